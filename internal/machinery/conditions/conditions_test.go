package conditions

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

func TestList(t *testing.T) {
	tests := map[string]struct {
		names []string
		want  string
	}{
		"none":             {nil, ""},
		"one":              {[]string{"a"}, `"a"`},
		"three are shown":  {[]string{"a", "b", "c"}, `"a", "b", "c"`},
		"more are counted": {[]string{"a", "b", "c", "d", "e"}, `"a", "b", "c" and 2 more`},
		"an empty name":    {[]string{""}, `""`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := List(tc.names); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

func TestListIsBoundedAndSaysEveryNameOrCountsIt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfN(rapid.StringMatching(`[a-z0-9]{1,63}`), 0, 10_000).Draw(t, "names")
		got := List(names)
		if len(got) > 3*67+len(" and 9999 more") {
			t.Fatalf("%d names take %d characters", len(names), len(got))
		}
		shown := min(len(names), 3)
		if strings.Count(got, `"`) != 2*shown {
			t.Fatalf("of %d names %s does not show %d", len(names), got, shown)
		}
		if more := fmt.Sprintf(" and %d more", len(names)-shown); (len(names) > shown) != strings.HasSuffix(got, more) {
			t.Fatalf("%d names are %s", len(names), got)
		}
	})
}

func TestSetMovesTheTransitionTimeOnlyWhenTheStatusTurns(t *testing.T) {
	var conditions []metav1.Condition
	if !Set(&conditions, 1, "Ready", metav1.ConditionFalse, "Waiting", "a") {
		t.Error("a new condition is not reported as a change")
	}
	then := metav1.NewTime(time.Unix(1_000_000, 0))
	conditions[0].LastTransitionTime = then
	if Set(&conditions, 1, "Ready", metav1.ConditionFalse, "Waiting", "a") {
		t.Error("the same condition is reported as a change")
	}
	if !Set(&conditions, 2, "Ready", metav1.ConditionFalse, "Waiting", "b") || !conditions[0].LastTransitionTime.Equal(&then) {
		t.Error("another message and generation must be a change without a transition")
	}
	if c := conditions[0]; c.ObservedGeneration != 2 || c.Message != "b" {
		t.Errorf("the condition is %+v", c)
	}
	if !Set(&conditions, 2, "Ready", metav1.ConditionTrue, "Satisfied", "") || conditions[0].LastTransitionTime.Equal(&then) {
		t.Error("the status changed, but the transition time did not move")
	}
	if !Set(&conditions, 2, "Other", metav1.ConditionTrue, "Satisfied", "") || len(conditions) != 2 {
		t.Errorf("a second condition replaced the first: %+v", conditions)
	}
}

// TestTruncateCutsNoCharacter: the API server would replace a split character.
func TestTruncateCutsNoCharacter(t *testing.T) {
	for text, want := range map[string]string{
		"12345678": "12345678", "123456789": "12345…", "1234äöü": "1234…", "123456äö": "12345…", "äöüß": "äöüß", "äöüßä": "äö…",
	} {
		if got := Truncate(text, 8); got != want || len(got) > 8 {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}

func TestPrintableReplacesControlCharacters(t *testing.T) {
	for text, want := range map[string]string{
		"plain text":                "plain text",
		"äöü, 日本, …, \u00a0":        "äöü, 日本, …, \u00a0",
		"two\nlines\r\tand a tab":   "two lines  and a tab",
		"\x1b[31mred\x1b[0m":        " [31mred [0m",
		"a\x00b\x7fc\u0085d":        "a b c d",
		"right\u202eto left\u2066x": "right to left x",
		"line\u2028paragraph\u2029": "line paragraph ",
		"half a character \xc3":     "half a character \ufffd",
	} {
		if got := Printable(text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}
