package owners

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/atoll-k8s/atoll/internal/domain/ownership"
)

// TestSurge: how many pods more than its replicas a workload may have in a rollout.
func TestSurge(t *testing.T) {
	of := func(maxSurge intstr.IntOrString, kind appsv1.DeploymentStrategyType) *appsv1.Deployment {
		return &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Strategy: appsv1.DeploymentStrategy{
			Type: kind, RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &maxSurge},
		}}}
	}
	kind := func(version, kind string, spec map[string]any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": version, "kind": kind, "spec": spec}}
	}
	strategy := func(s map[string]any) map[string]any { return map[string]any{"strategy": s} }
	const rollout, cloneSet = "argoproj.io/v1alpha1", "apps.kruise.io/v1alpha1"
	for name, tc := range map[string]struct {
		object any
		want   int32
	}{
		"a number":                      {of(intstr.FromInt32(3), appsv1.RollingUpdateDeploymentStrategyType), 3},
		"a percentage is rounded up":    {of(intstr.FromString("25%"), appsv1.RollingUpdateDeploymentStrategyType), 3},
		"strategy Recreate has none":    {of(intstr.FromInt32(3), appsv1.RecreateDeploymentStrategyType), 0},
		"a negative number is 0":        {of(intstr.FromInt32(-3), appsv1.RollingUpdateDeploymentStrategyType), 0},
		"a Rollout's canary":            {kind(rollout, "Rollout", strategy(map[string]any{"canary": map[string]any{"maxSurge": int64(2)}})), 2},
		"a Rollout without one":         {kind(rollout, "Rollout", strategy(map[string]any{"canary": map[string]any{}})), 3},
		"both of blue and green run":    {kind(rollout, "Rollout", strategy(map[string]any{"blueGreen": map[string]any{}})), 10},
		"a CloneSet":                    {kind(cloneSet, "CloneSet", map[string]any{"updateStrategy": map[string]any{"maxSurge": "50%"}}), 5},
		"a CloneSet without one":        {kind(cloneSet, "CloneSet", map[string]any{}), 0},
		"another kind, as a Deployment": {kind("x.io/v1", "Widget", strategy(map[string]any{"rollingUpdate": map[string]any{"maxSurge": int64(1)}})), 1},
		"neither a number nor a text":   {kind(cloneSet, "CloneSet", map[string]any{"updateStrategy": map[string]any{"maxSurge": true}}), 0},
	} {
		t.Run(name, func(t *testing.T) {
			o := &ownership.Object{Replicas: new(int32(10))}
			setCapacity(o, tc.object, nil)
			if o.Surge != tc.want {
				t.Errorf("its surge is %d, want %d", o.Surge, tc.want)
			}
		})
	}
}
