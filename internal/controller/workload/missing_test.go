package workload

import (
	"strings"
	"testing"
	"time"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// TestAWorkloadThatRequiresAMissingPolicyGetsAnEvent: not at once, because the two are often applied
// together, and then about once an hour, which is how long the API server keeps it.
func TestAWorkloadThatRequiresAMissingPolicyGetsAnEvent(t *testing.T) {
	shop, other := build.PropagationPolicy("shop", build.Weight(1, "hz")), build.PropagationPolicy("web", build.Weight(1, "hz"))
	waits := ` does not exist in namespace "` + build.Namespace + `". Pods wait until it does; the namespace has `
	for name, tc := range map[string]struct {
		workload build.Object
		policies []build.Object
		want     string // "" if there is none
	}{
		"a misspelt name": {
			build.Deployment("web", build.Requires("shopp", "")), []build.Object{other, shop},
			`PropagationPolicy "shopp"` + waits + `"shop", "web"`,
		},
		"both kinds, and none is there": {
			build.StatefulSet("web", build.Requires("p", "o")), nil,
			`PropagationPolicy "p"` + waits[:len(waits)-len("has ")-len("the namespace ")] + `the namespace has none. OverridePolicy "o"` + waits + "none",
		},
		"pods do not wait": {
			build.Deployment("web", build.Requires("shopp", ""), build.Annotation(gm.MissingPolicyAnnotation, gm.MissingPolicyIgnore)), []build.Object{shop},
			`Pods start without it; the namespace has "shop"`,
		},
		"the policy exists": {build.Deployment("web", build.Requires("shop", "")), []build.Object{shop}, ""},
		"none is required":  {build.Deployment("web"), nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, append(tc.policies, tc.workload)...)
			pass := func(after time.Duration) (event string) {
				s.World.Clock.SetTime(s.World.Clock.Now().Add(after))
				if _, err := s.Reconcile(t.Context(), request{"web"}); err != nil {
					t.Fatal(err)
				}
				select {
				case event = <-s.events.Events:
				default:
				}
				return event
			}
			if event := pass(0); event != "" {
				t.Errorf("reported at once: %s", event)
			}
			event := pass(missingAfter)
			if (event == "") != (tc.want == "") || !strings.Contains(event, tc.want) {
				t.Errorf("got %q\nwant %q", event, tc.want)
			}
			if again := pass(missedEvery / 2); again != "" {
				t.Errorf("reported again too early: %s", again)
			}
			if again := pass(missedEvery / 2); (again == "") != (tc.want == "") {
				t.Errorf("after an hour: %q", again)
			}
		})
	}
}

// TestThePolicyOfARunningWorkloadIsDeleted: it is reported anew each time.
func TestThePolicyOfARunningWorkloadIsDeleted(t *testing.T) {
	s := newSite(t, build.Deployment("web", build.Requires("p", "")), policy, node)
	for range 2 {
		s.reconcile("web")
		policy := build.PropagationPolicy("p", build.Weight(1, "hz"))
		if err := s.World.Client.Delete(t.Context(), policy); err != nil {
			t.Fatal(err)
		}
		s.see("web")
		s.reconcile("web")
		s.World.Clock.SetTime(s.World.Clock.Now().Add(missingAfter))
		if _, err := s.Reconcile(t.Context(), request{"web"}); err != nil || len(s.events.Events) != 1 {
			t.Fatalf("%d events, error %v", len(s.events.Events), err)
		}
		<-s.events.Events
		if err := s.World.Client.Create(t.Context(), policy); err != nil {
			t.Fatal(err)
		}
	}
}
