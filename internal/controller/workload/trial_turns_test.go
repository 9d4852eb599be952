package workload

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

const fullQuota = "exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2"

// answers answers trials in order; "" accepts. The last one is repeated.
func answers(list ...string) func(*corev1.Pod) error {
	return func(*corev1.Pod) error {
		why := list[0]
		if len(list) > 1 {
			list = list[1:]
		}
		if why == "" {
			return nil
		}
		return forbids(why)
	}
}

// TestUndecidedGroupsAreNotTriedAgain: groups whose pods are refused without the rules too are not tried
// again in the next turn.
func TestUndecidedGroupsAreNotTriedAgain(t *testing.T) {
	s := newSite(t, build.Deployment("web", both, withTemplate(hasVolumes("data"))), twoGroups,
		build.OverridePolicy("o", addVolume("bj", "less"), addVolume("hz", "more")))
	j := newJudge(s)
	j.admission = func(*corev1.Pod) error {
		s.World.Clock.Step(turn)
		return forbids("no such service account")
	}
	s.World.Clock.Step(s.tried("web"))
	if trial, _ := s.World.Policies.Trial("web"); !errors.Is(trial.Untried, errTurnOver) {
		t.Fatalf("after the first turn the trial is %+v", trial)
	}
	s.tried("web")
	if trial, _ := s.World.Policies.Trial("web"); trial.Untried != nil || trial.Refused != nil || !errors.Is(trial.Doubt, errBase) {
		t.Errorf("after the second turn the trial is %+v", trial)
	}
}

// TestUnfinishedRuleSearchIsRepeated: a search that did not end is made again by the next trial.
func TestUnfinishedRuleSearchIsRepeated(t *testing.T) {
	for name, fails := range map[string]error{"the turn is over": nil, "the search gets no answer": apierrors.NewInternalError(errors.New("too late"))} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, build.Deployment("web", both, withTemplate(hasVolumes("data"))), twoGroups,
				build.OverridePolicy("o", addVolume("hz", "more"), addVolume("hz", "a")))
			j := newJudge(s)
			j.admission = func(pod *corev1.Pod) error {
				if fails == nil {
					s.World.Clock.Step(turn)
				} else if len(j.asked) > 2 {
					return fails
				}
				return admission("not here", "")(pod)
			}
			for _, want := range []string{"spec.overrideRules[1]", "spec.overrideRules[0]"} {
				s.World.Clock.Step(s.tried("web"))
				if trial, _ := s.World.Policies.Trial("web"); trial.Refused == nil || !strings.HasPrefix(trial.Refused.Error(), want) {
					t.Errorf("refused is %v, want %s", trial.Refused, want)
				}
				j.admission = admission("not here", "")
			}
		})
	}
}

// TestQuotaIsComparedWithANewTrialOfThePlainPod: the pod without rules was accepted for another group,
// and the quota is full again since.
func TestQuotaIsComparedWithANewTrialOfThePlainPod(t *testing.T) {
	s := newSite(t, build.Deployment("web", both, withTemplate(hasVolumes("data"))), twoGroups,
		build.OverridePolicy("o", addVolume("bj", "less"), addVolume("hz", "more")))
	newJudge(s).admission = answers(fullQuota, "", "", fullQuota)
	s.tried("web")
	if trial, _ := s.World.Policies.Trial("web"); trial.Refused != nil || trial.Untried != nil {
		t.Errorf("refused is %v, untried %v", trial.Refused, trial.Untried)
	}
}

// TestNoQuotaIsBlamedOnImages: the rule that adds the volume is named, and not the one after it
// that changes only images.
func TestNoQuotaIsBlamedOnImages(t *testing.T) {
	s := newSite(t, build.Deployment("web", both, withTemplate(hasVolumes("data"))), twoGroups,
		build.OverridePolicy("o", addVolume("hz", "more"), build.Registry("hz", "hz.io")))
	newJudge(s).admission = answers(fullQuota, "", fullQuota, "")
	s.tried("web")
	const want = "spec.overrideRules[0]"
	if trial, _ := s.World.Policies.Trial("web"); trial.Refused == nil || !strings.HasPrefix(trial.Refused.Error(), want) {
		t.Errorf("refused is %v, want %s", trial.Refused, want)
	}
}

// TestNotFoundOfAPodTemplateBindsNothing: a webhook for PodTemplates may answer NotFound too.
func TestNotFoundOfAPodTemplateBindsNothing(t *testing.T) {
	s := newSite(t, build.Deployment("web", both, withTemplate(hasVolumes("data"))), twoGroups, build.OverridePolicy("o", addVolume("hz", "more")))
	j := newJudge(s)
	j.unable = noPermission
	j.quota = apierrors.NewNotFound(schema.GroupResource{Resource: "images"}, "more")
	s.tried("web")
	trial, _ := s.World.Policies.Trial("web")
	if is := s.deployment("web").Labels[gm.BindingOverridePolicyLabel]; is != "" || trial.Untried == nil {
		t.Errorf("it is bound to %q, untried %v", is, trial.Untried)
	}
}
