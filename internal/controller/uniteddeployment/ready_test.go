package uniteddeployment

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/machinery/conditions"
)

// TestReady: the condition Ready sums the others and the counts up, and Stalled is beside it while only a person can help.
func TestReady(t *testing.T) {
	const yes, no = metav1.ConditionTrue, metav1.ConditionFalse
	type condition struct {
		is     metav1.ConditionStatus
		reason string
	}
	good := map[string]condition{apps.PoolProvisioned: {yes, apps.ReasonProvisioned}, apps.PoolUpdated: {yes, apps.ReasonUpdated}, apps.PoolFailure: {no, apps.ReasonNoFailure}}
	for name, c := range map[string]struct {
		other         map[string]condition
		ready, there  int32
		want          string
		wantIsStalled bool
	}{
		"all pods are Ready":          {nil, 6, 6, "True PodsReady", false},
		"a pod is not Ready":          {nil, 5, 6, "False PodsNotReady", false},
		"there is one pod too many":   {nil, 6, 7, "False PodsNotReady", false},
		"a pool has no workload":      {map[string]condition{apps.PoolProvisioned: {no, apps.ReasonProvisioning}}, 6, 6, "False Provisioning", false},
		"pools are being updated":     {map[string]condition{apps.PoolUpdated: {no, apps.ReasonUpdating}}, 6, 6, "False Updating", false},
		"the update is paused":        {map[string]condition{apps.PoolUpdated: {no, apps.ReasonPaused}}, 6, 6, "False Paused", false},
		"a partition holds pods back": {map[string]condition{apps.PoolUpdated: {no, apps.ReasonPartitioned}}, 6, 6, "True PodsReady", false},
		"the API server refuses":      {map[string]condition{apps.PoolFailure: {yes, apps.ReasonRefused}}, 6, 6, "False Refused", false},
		"a patch is invalid":          {map[string]condition{apps.PoolFailure: {yes, apps.ReasonPatchInvalid}}, 6, 6, "False PatchInvalid", true},
		"a pool's failure stops others": {map[string]condition{
			apps.PoolFailure: {yes, apps.ReasonPodsRefused}, apps.PoolUpdated: {no, apps.ReasonStopped},
		}, 6, 6, "False Stopped", true},
		"nothing was observed": {map[string]condition{apps.PoolFailure: {yes, apps.ReasonObservationFailed}}, -1, 0, "Unknown ObservationFailed", false},
	} {
		t.Run(name, func(t *testing.T) {
			s := &scope{ud: &apps.UnitedDeployment{}, observed: c.ready >= 0, failure: failure{reason: apps.ReasonObservationFailed}}
			status := &s.ud.Status
			status.ReadyReplicas, status.Replicas = c.ready, c.there
			status.Pools = []apps.PoolStatus{{DesiredReplicas: 2}, {DesiredReplicas: 4}}
			for kind, is := range good {
				if other, differs := c.other[kind]; differs {
					is = other
				}
				conditions.Set(&status.Conditions, 1, kind, is.is, is.reason, "why")
			}
			setReady(s)
			got := meta.FindStatusCondition(status.Conditions, apps.ConditionReady)
			if text := fmt.Sprintf("%s %s", got.Status, got.Reason); text != c.want {
				t.Errorf("Ready is %s, want %s", text, c.want)
			}
			if meta.IsStatusConditionTrue(status.Conditions, "Stalled") != c.wantIsStalled {
				t.Errorf("conditions %+v, want Stalled %t", status.Conditions, c.wantIsStalled)
			}
		})
	}
}
