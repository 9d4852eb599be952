package united

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"
)

func TestNames(t *testing.T) {
	long := strings.Repeat("x", 63)
	for name, tc := range map[string]struct{ name, pool, plain, hashed string }{
		"short":                  {"web", "beijing", "web-beijing", "web-beijing-79763ea5"},
		"of the greatest length": {strings.Repeat("x", 44), "beijing", strings.Repeat("x", 44) + "-beijing", strings.Repeat("x", 43) + "-679d4627"},
		"too long":               {long, "beijing", strings.Repeat("x", 43) + "-5fb6b4c5", strings.Repeat("x", 43) + "-5fb6b4c5"},
	} {
		t.Run(name, func(t *testing.T) {
			plain, hashed := Names(tc.name, tc.pool)
			if plain != tc.plain || hashed != tc.hashed {
				t.Errorf("got %q and %q, want %q and %q", plain, hashed, tc.plain, tc.hashed)
			}
		})
	}
}

// TestWorkloadNamesAreValidAndUnique: scenario 61. Names are valid for any input. Two
// UnitedDeployments with the same plain name have different hashed names.
func TestWorkloadNamesAreValidAndUnique(t *testing.T) {
	label := rapid.StringMatching(`[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?`)
	rapid.Check(t, func(t *rapid.T) {
		name, pool := label.Draw(t, "name"), label.Draw(t, "pool")
		plain, hashed := Names(name, pool)
		for _, n := range []string{plain, hashed} {
			if problems := validation.IsDNS1123Subdomain(n); len(problems) > 0 || len(n) > maxName {
				t.Fatalf("%q: %v", n, problems)
			}
		}
		head, tail, found := strings.Cut(name+"-"+pool, "-")
		if !found || head == name || head == "" || tail == "" {
			return
		}
		if _, other := Names(head, tail); other == hashed {
			t.Fatalf("%s-%s and %s-%s are both %q", name, pool, head, tail, hashed)
		}
	})
}
