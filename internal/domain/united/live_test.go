package united

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
)

// rolledDeployment, rolledStatefulSet and rolledDaemonSet are complete workloads of two pods.
func rolledDeployment(modify ...func(*appsv1.Deployment)) *appsv1.Deployment {
	return deployment(2, append([]func(*appsv1.Deployment){func(d *appsv1.Deployment) {
		d.Generation = 3
		d.Status = appsv1.DeploymentStatus{ObservedGeneration: 3, Replicas: 2, ReadyReplicas: 2, UpdatedReplicas: 2, AvailableReplicas: 2}
	}}, modify...)...)
}

func rolledStatefulSet(modify ...func(*appsv1.StatefulSet)) *appsv1.StatefulSet {
	return stateful(2, append([]func(*appsv1.StatefulSet){func(s *appsv1.StatefulSet) {
		s.Generation = 3
		s.Status = appsv1.StatefulSetStatus{ObservedGeneration: 3, Replicas: 2, ReadyReplicas: 2, UpdatedReplicas: 2, AvailableReplicas: 2, CurrentRevision: "old", UpdateRevision: "new"}
	}}, modify...)...)
}

func rolledDaemonSet(modify ...func(*appsv1.DaemonSet)) *appsv1.DaemonSet {
	d := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "agent", Generation: 3}}
	d.Status = appsv1.DaemonSetStatus{ObservedGeneration: 3, DesiredNumberScheduled: 2, CurrentNumberScheduled: 2, NumberReady: 2, UpdatedNumberScheduled: 2, NumberAvailable: 2}
	for _, m := range modify {
		m(d)
	}
	return d
}

// TestWorkloadIsRolledOutAndAvailable: a rollout goes on to the next pool when all pods of a pool have
// the current template (rolled) and are available (up).
func TestWorkloadIsRolledOutAndAvailable(t *testing.T) {
	partition := func(s *appsv1.StatefulSet, n int32) {
		s.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{Partition: &n}
	}
	for name, tc := range map[string]struct {
		w          Workload
		rolled, up bool
	}{
		"a Deployment":                            {rolledDeployment(), true, true},
		"one that its controller has not seen":    {rolledDeployment(func(d *appsv1.Deployment) { d.Status.ObservedGeneration = 2 }), false, false},
		"one with an old pod beside the new ones": {rolledDeployment(func(d *appsv1.Deployment) { d.Status.Replicas = 3 }), false, true},
		"one with an old pod among them":          {rolledDeployment(func(d *appsv1.Deployment) { d.Status.UpdatedReplicas = 1 }), false, true},
		"one with a pod that does not serve":      {rolledDeployment(func(d *appsv1.Deployment) { d.Status.AvailableReplicas = 1 }), true, false},
		"one pod by default": {rolledDeployment(func(d *appsv1.Deployment) {
			d.Spec.Replicas = nil
			d.Status.Replicas, d.Status.UpdatedReplicas, d.Status.AvailableReplicas = 1, 1, 1
		}), true, true},

		"a StatefulSet":                        {rolledStatefulSet(), true, true},
		"one that has not been seen yet":       {rolledStatefulSet(func(s *appsv1.StatefulSet) { s.Status.ObservedGeneration = 2 }), false, false},
		"one in the middle of a rollout":       {rolledStatefulSet(func(s *appsv1.StatefulSet) { s.Status.UpdatedReplicas = 1 }), false, true},
		"one whose rollout is over":            {rolledStatefulSet(func(s *appsv1.StatefulSet) { s.Status.UpdatedReplicas, s.Status.CurrentRevision = 0, "new" }), true, true},
		"one that is held in part":             {rolledStatefulSet(func(s *appsv1.StatefulSet) { s.Status.UpdatedReplicas = 1; partition(s, 1) }), true, true},
		"one that is held in part, on its way": {rolledStatefulSet(func(s *appsv1.StatefulSet) { s.Status.UpdatedReplicas = 0; partition(s, 1) }), false, true},
		"one that is held wholly, and more":    {rolledStatefulSet(func(s *appsv1.StatefulSet) { s.Status.UpdatedReplicas = 0; partition(s, 5) }), true, true},
		"one of a strategy without partition": {rolledStatefulSet(func(s *appsv1.StatefulSet) {
			s.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{}
		}), true, true},

		"a DaemonSet":                         {rolledDaemonSet(), true, true},
		"not observed yet":                    {rolledDaemonSet(func(d *appsv1.DaemonSet) { d.Status.ObservedGeneration = 2 }), false, false},
		"one whose node got no pod yet":       {rolledDaemonSet(func(d *appsv1.DaemonSet) { d.Status.CurrentNumberScheduled = 1 }), false, true},
		"one with an old pod":                 {rolledDaemonSet(func(d *appsv1.DaemonSet) { d.Status.UpdatedNumberScheduled = 1 }), false, true},
		"one on a node that is away":          {rolledDaemonSet(func(d *appsv1.DaemonSet) { d.Status.NumberAvailable = 1 }), true, false},
		"one that was seen after it was read": {rolledDaemonSet(func(d *appsv1.DaemonSet) { d.Status.ObservedGeneration = 4 }), true, true},
	} {
		if c := ChildOf(tc.w); c.RolloutComplete != tc.rolled || c.Available != tc.up {
			t.Errorf("%s: rolled %t, up %t; want %t, %t", name, c.RolloutComplete, c.Available, tc.rolled, tc.up)
		}
	}
}

func TestChildOf(t *testing.T) {
	w := rolledStatefulSet(func(s *appsv1.StatefulSet) {
		s.Labels = map[string]string{apps.PoolNameLabel: "a", apps.RevisionLabel: "r1"}
		s.Annotations = map[string]string{apps.PoolRevisionAnnotation: "r1/a"}
		s.CreationTimestamp = metav1.Unix(7, 0)
		s.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{Partition: new(int32(1))}
	})
	want := Child{Name: "db", UID: "s", Pool: "a", Created: 7, Revision: "r1", PoolRevision: "r1/a", Replicas: 2, Partition: 1, RolloutComplete: true, Available: true}
	if diff := cmp.Diff(want, ChildOf(w)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	w.DeletionTimestamp = new(metav1.Unix(9, 0))
	if !ChildOf(w).Deleting {
		t.Error("it is not known that it is being deleted")
	}
}

// TestFailureOf: a rollout stops for a failure that a Deployment reports about its current
// generation, and for no other.
func TestFailureOf(t *testing.T) {
	says := func(kind appsv1.DeploymentConditionType, status corev1.ConditionStatus, reason string) func(*appsv1.Deployment) {
		return func(d *appsv1.Deployment) {
			d.Status.Conditions = append(d.Status.Conditions, appsv1.DeploymentCondition{Type: kind, Status: status, Reason: reason, Message: string(kind)})
		}
	}
	available := says(appsv1.DeploymentAvailable, corev1.ConditionFalse, "MinimumReplicasUnavailable")
	refused := says(appsv1.DeploymentReplicaFailure, corev1.ConditionTrue, "FailedCreate")
	late := says(appsv1.DeploymentProgressing, corev1.ConditionFalse, "ProgressDeadlineExceeded")
	for name, tc := range map[string]struct {
		w               Workload
		reason, message string
	}{
		"nothing is wrong":              {rolledDeployment(), "", ""},
		"its pods are refused":          {rolledDeployment(available, refused), apps.ReasonPodsRefused, "ReplicaFailure"},
		"they were":                     {rolledDeployment(says(appsv1.DeploymentReplicaFailure, corev1.ConditionFalse, "")), "", ""},
		"it makes no progress":          {rolledDeployment(available, late), apps.ReasonProgressDeadlineExceeded, "Progressing"},
		"it makes progress":             {rolledDeployment(says(appsv1.DeploymentProgressing, corev1.ConditionTrue, "ReplicaSetUpdated")), "", ""},
		"Progressing is Unknown":        {rolledDeployment(says(appsv1.DeploymentProgressing, corev1.ConditionUnknown, "ProgressDeadlineExceeded")), "", ""},
		"another reason of Progressing": {rolledDeployment(says(appsv1.DeploymentProgressing, corev1.ConditionFalse, "FailedCreate")), "", ""},
		"pods that are not available":   {rolledDeployment(available), "", ""},
		"another condition":             {rolledDeployment(says("Other", corev1.ConditionFalse, "ProgressDeadlineExceeded")), "", ""},
		"that was before the change":    {rolledDeployment(refused, func(d *appsv1.Deployment) { d.Generation = 4 }), "", ""},
		"a StatefulSet":                 {rolledStatefulSet(), "", ""},
	} {
		if reason, message := FailureOf(tc.w); reason != tc.reason || message != tc.message {
			t.Errorf("%s: %q, %q; want %q, %q", name, reason, message, tc.reason, tc.message)
		}
	}
}

// TestUnownedWorkloadMatchesItsPool: a workload with another selector would not control the pods of
// the pool.
func TestUnownedWorkloadMatchesItsPool(t *testing.T) {
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	for name, tc := range map[string]struct {
		change func(*appsv1.Deployment)
		want   bool
	}{
		"as we make it":        {func(*appsv1.Deployment) {}, true},
		"of a wider selector":  {func(d *appsv1.Deployment) { d.Spec.Selector = selector }, false},
		"of another pool":      {func(d *appsv1.Deployment) { d.Labels[apps.PoolNameLabel] = "b" }, false},
		"without any selector": {func(d *appsv1.Deployment) { d.Spec.Selector = nil }, false},
		"of a narrower one":    {func(d *appsv1.Deployment) { d.Spec.Selector.MatchLabels["tier"] = "x" }, false},
	} {
		d := build(t)
		tc.change(d)
		if got := IsAdoptable(d, selector); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// TestForeignWorkloadHasNoAtollAnnotations: a workload that Atoll did not create has no valid
// Atoll annotations. Overlay sets all of them.
func TestForeignWorkloadHasNoAtollAnnotations(t *testing.T) {
	theirs := deployment(1)
	theirs.Annotations = map[string]string{apps.PoolTaintsAnnotation: "{", apps.TemplateKeysAnnotation: `{"labels": 1}`}
	if got := TaintsOf(theirs); got != nil {
		t.Errorf("taints are %v", got)
	}
	want := build(t)
	got := Overlay(theirs, want).(*appsv1.Deployment)
	if diff := cmp.Diff(want.Labels, got.Labels); diff != "" {
		t.Errorf("wrong labels (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want.Annotations, got.Annotations); diff != "" {
		t.Errorf("wrong annotations (-want +got):\n%s", diff)
	}
}
