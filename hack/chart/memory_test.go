package chart

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// TestTheManagerKnowsItsMemoryLimit: near the limit it collects garbage more often.
func TestTheManagerKnowsItsMemoryLimit(t *testing.T) {
	container := get[*appsv1.Deployment](t, render(t, load(t), nil), "Deployment/atoll-manager").Spec.Template.Spec.Containers[0]
	if container.Resources.Limits.Memory().IsZero() {
		t.Error("there is no limit")
	}
	for _, env := range container.Env {
		if env.Name != "MEMORY_LIMIT" {
			continue
		}
		if from := env.ValueFrom; from == nil || from.ResourceFieldRef == nil || from.ResourceFieldRef.Resource != string(corev1.ResourceLimitsMemory) {
			t.Errorf("the limit comes from %v", from)
		}
		return
	}
	t.Error("the manager does not get its limit")
}
