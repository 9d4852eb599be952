package connectivity

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"
)

func TestRecord(t *testing.T) {
	for text, r := range map[string]Record{
		"": {State: Direct},
		"Delegated since=2026-03-01T10:00:00Z reason=DelegatedByPool": {State: Delegated, Since: start, Reason: ReasonDelegated},
		"Direct silent=15s observed=0s beat=b":                        {State: Direct, Silent: 15 * time.Second, Beat: "b"},
		"Lost since=2026-03-01T10:00:00Z reason=NodeLost silent=35s observed=30s beat=2026-03-01T10:00:00.000001Z": {
			State: Lost, Since: start, Reason: ReasonLost, Silent: 35 * time.Second, Observed: 30 * time.Second, Beat: "2026-03-01T10:00:00.000001Z",
		},
	} {
		if got := r.String(); got != text {
			t.Errorf("%+v is %q, want %q", r, got, text)
		}
		if diff := cmp.Diff(r, Parse(text)); diff != "" {
			t.Errorf("%q: %s", text, diff)
		}
	}
}

func TestParseWhatCannotBeRead(t *testing.T) {
	for _, text := range []string{
		"delegated", "Delegated", "Delegated since=yesterday reason=DelegatedByPool", "Delegated since=2026-03-01T10:00:00Z",
		"Delegated since=2026-03-01T10:00:00Z reason=Mine", "Direct silent=-15s observed=0s beat=b", "Direct silent=15 observed=0s beat=b",
		"Frozen reason=PoolSilent", "=", " ", "{}", "Direct observed=x",
	} {
		if diff := cmp.Diff(Record{State: Direct}, Parse(text)); diff != "" {
			t.Errorf("%q: %s", text, diff)
		}
	}
}

// TestParseAnything: no text makes a record that would be written differently, or that Decide cannot use.
func TestParseAnything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.SampledFrom([]string{"Direct", "Frozen", "Lost", " ", "since=", "2026-03-01T10:00:00Z", "9999-12-31T23:59:59Z", "reason=", "PoolSilent", "silent=", "15s", "1h", "observed=", "beat=", "x", "-"})
		text := strings.Join(rapid.SliceOf(rapid.OneOf(word, rapid.String())).Draw(t, "words"), "")
		r := Parse(text)
		if again := Parse(r.String()); again.State != r.State || !again.Since.Equal(r.Since) || again.Silent != r.Silent {
			t.Fatalf("%q is read as %+v, and that as %+v", text, r, again)
		}
		p := NewPool(grace, start)
		p.HasCoordinator = true
		p.Add("n", r, "x", start)
		if d := Decide(p, start); len(d.Verdicts) > 0 {
			t.Fatalf("%q: a manager that starts concludes %+v", text, d.Verdicts)
		}
	})
}

func TestHeld(t *testing.T) {
	for text, want := range map[string]bool{
		"": false, "garbage": false,
		Record{State: Delegated, Since: start, Reason: ReasonDelegated}.String():   true,
		Record{State: Unobserved, Since: start, Reason: ReasonUnobserved}.String(): true,
		Record{State: Frozen, Since: start, Reason: ReasonFrozen}.String():         true,
		Record{State: Lost, Since: start, Reason: ReasonLost}.String():             false,
		Record{State: Released, Since: start, Reason: ReasonReleased}.String():     false,
		Record{State: Direct, Since: start, Reason: ReasonHeard}.String():          false,
	} {
		node := readyNode("n")
		node.Annotations = map[string]string{Annotation: text}
		if got := Held(node); got != want {
			t.Errorf("%q: held is %t", text, got)
		}
	}
	node := unknown(readyNode("n"), ReasonDelegated, "", start)
	node.Annotations = map[string]string{Annotation: Record{State: Direct, Since: start, Reason: ReasonHeard}.String()}
	if !Held(node) {
		t.Error("a node that is back is not held until its kubelet has written Ready")
	}
	readyOf(node).Reason = "NodeStatusUnknown"
	if !Held(node) {
		t.Error("a node that is back from a silent pool is not held until its kubelet has written Ready")
	}
	readyOf(node).Status, readyOf(node).Reason = corev1.ConditionFalse, "KubeletNotReady"
	if Held(node) {
		t.Error("a node is held whose kubelet says that it is not Ready")
	}
	delete(node.Annotations, Annotation)
	if readyOf(node).Status = corev1.ConditionUnknown; Held(node) {
		t.Error("a node is held that was never cut off")
	}
}
