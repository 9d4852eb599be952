package main

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestUndetectedMutationsAreReported: exactly the changes that the tests of a package do not
// notice are reported.
func TestUndetectedMutationsAreReported(t *testing.T) {
	for dir, want := range map[string][]string{
		"testdata/probe": {"probe.go:5:35: >= instead of >"},
		"testdata/whole": nil,
	} {
		changes, missed, err := run(t.Context(), dir, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, c := range missed {
			got = append(got, c.String())
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: of %d changes these are not noticed (-want +got):\n%s", dir, len(changes), diff)
		}
	}
}

// TestChangesOfEveryKind: there is a change of every kind, and none of constants.
func TestChangesOfEveryKind(t *testing.T) {
	p, err := load(t.Context(), "testdata/whole")
	if err != nil {
		t.Fatal(err)
	}
	_, changes := p.mutate()
	kinds := map[string]bool{}
	for _, c := range changes {
		kinds[c.what] = true
		if c.at.Line < 9 {
			t.Errorf("a constant is changed: %s", c)
		}
	}
	for _, want := range []string{
		"< instead of <=", "<= negated", "> instead of >=", ">= instead of >", "== negated", "!= negated", "|| instead of &&", "&& instead of ||", "without !",
		"another operator than +", "another operator than -", "another operator than *", "another operator than /", "-- instead of ++", "= instead of +=",
		"break instead of continue", "continue instead of break",
	} {
		if !kinds[want] {
			t.Errorf("there is no change %q", want)
		}
	}
}

// TestEditsOfOneOffset keep their order.
func TestEditsOfOneOffset(t *testing.T) {
	got := string(apply([]byte("a<b"), []edit{{1, 1, ","}, {0, 0, "f("}, {0, 0, "g("}, {3, 0, ")"}, {3, 0, ")"}}))
	if want := "f(g(a,b))"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestPackagesThatCannotBeChanged are errors.
func TestPackagesThatCannotBeChanged(t *testing.T) {
	for _, dir := range []string{"testdata", "testdata/missing"} {
		if _, _, err := run(t.Context(), dir, time.Second); err == nil {
			t.Errorf("%s: no error", dir)
		}
	}
}
