package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// staysBecause returns an error unless surplus pods stay, and the policy's status has the
// reason.
func (f *fixture) staysBecause(policy, why string) error {
	if err := f.reason(policy, gm.ReasonNoFeasibleTarget); err != nil {
		return err
	}
	var p gm.PropagationPolicy
	if err := f.client.Get(f.ctx, types.NamespacedName{Namespace: f.ns, Name: policy}, &p); err != nil {
		return err
	}
	for _, c := range p.Status.Conditions {
		if strings.Contains(c.Message, why) {
			return nil
		}
	}
	return fmt.Errorf("conditions are %+v", p.Status.Conditions)
}

// uids returns the UIDs of a workload's pods, sorted.
func (f *fixture) uids(app string) []string {
	f.Helper()
	var out []string
	for _, pod := range f.pods(app) {
		out = append(out, string(pod.UID))
	}
	slices.Sort(out)
	return out
}

// TestNoPodLeavesForAGroupThatIsClosedToIt: the only group that lacks a pod has a taint,
// so that the successor would wait for ever.
func TestNoPodLeavesForAGroupThatIsClosedToIt(t *testing.T) {
	tier.All(t, "watches for some time that nothing moves, in two forms")
	inBothWays(t, func(t *testing.T, f *fixture) {
		f.group("closed-a", 1)
		f.group("closed-b", 1)
		taints := func(taints ...corev1.Taint) {
			f.patch(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "closed-b-0"}}, map[string]any{"spec": map[string]any{"taints": taints}})
		}
		taints(corev1.Taint{Key: "test-site", Value: "closed", Effect: corev1.TaintEffectNoSchedule})
		f.create(weights("policy", "closed-a", 1))
		f.create(deployment("app", 2, "policy"))
		f.eventually(patience, "both in a", func() error { return f.allReady("app", 2) })
		before := f.uids("app")
		f.edit(weights("policy", "closed-a", 1, "closed-b", 1))
		f.eventually(patience, "the policy says what is in the way", func() error {
			return f.staysBecause("policy", `NodeGroup "closed-b" can take none: its open nodes have taints that the pods do not tolerate`)
		})
		if got := f.uids("app"); !slices.Equal(got, before) {
			t.Errorf("pods are %v, were %v", got, before)
		}
		if err := f.allReady("app", 2); err != nil {
			t.Error(err)
		}
		taints()
		f.eventually(patience, "one and one", func() error {
			if err := f.allReady("app", 2); err != nil {
				return err
			}
			return f.spreadIs("app", map[string]int{"closed-a": 1, "closed-b": 1})
		})
	})
}

// TestPodsStayWithTheirVolumes: a volume that only nodes of one group reach.
func TestPodsStayWithTheirVolumes(t *testing.T) {
	inBothWays(t, func(t *testing.T, f *fixture) {
		f.group("tied-a", 1)
		f.group("tied-b", 1)
		size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
		volume := &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: f.ns},
			Spec: corev1.PersistentVolumeSpec{
				Capacity: size, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany},
				PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
				PersistentVolumeSource:        corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/data"}},
				NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
					MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "test-group", Operator: corev1.NodeSelectorOpIn, Values: []string{"tied-a"}}},
				}}}},
			},
		}
		if _, err := f.kube.CoreV1().PersistentVolumes().Create(f.ctx, volume, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		f.Cleanup(func() {
			err := f.kube.CoreV1().PersistentVolumes().Delete(context.Background(), volume.Name, metav1.DeleteOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				t.Error(err)
			}
		})
		f.create(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: volume.Spec.AccessModes, VolumeName: volume.Name, StorageClassName: new(""), Resources: corev1.VolumeResourceRequirements{Requests: size},
		}})
		f.create(weights("policy", "tied-a", 1))
		f.create(deployment("app", 2, "policy", func(d *appsv1.Deployment) {
			d.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
			}}}
		}))
		f.eventually(patience, "both in a", func() error { return f.allReady("app", 2) })
		before := f.uids("app")
		f.edit(weights("policy", "tied-a", 1, "tied-b", 1))
		f.eventually(patience, "the policy names pods and group", func() error {
			return f.staysBecause("policy", ` are tied to NodeGroup "tied-a" by their volumes`)
		})
		if got := f.uids("app"); !slices.Equal(got, before) {
			t.Errorf("pods are %v, were %v", got, before)
		}
	})
}

// TestAJobWhosePoliciesComeLaterDoesNotFail: its pods wait at the gate, and do not match
// the policies. None of them may count as failed.
func TestAJobWhosePoliciesComeLaterDoesNotFail(t *testing.T) {
	f := newFixture(t)
	f.group("late-a", 1)
	f.group("late-b", 1)
	pods := template("job")
	delete(pods.Annotations, devcluster.StartDelayAnnotation)
	j := &batchv1.Job{ObjectMeta: requiring("job"), Spec: job(2, 2, pods)}
	j.Labels[gm.RequiredOverridePolicyLabel] = "rules"
	j.Spec.BackoffLimit = new(int32(0))
	f.create(j)
	f.eventually(patience, "both pods wait at the gate", func() error {
		gated := 0
		for _, pod := range f.pods("job") {
			gated += len(pod.Spec.SchedulingGates)
		}
		if gated != 2 {
			return fmt.Errorf("%d pods wait at the gate", gated)
		}
		return nil
	})
	f.create(weights("policy", "late-a", 1, "late-b", 1))
	f.create(overrides("rules", argsRule("late-a", "--site=a"), argsRule("late-b", "--site=b")))
	var done batchv1.Job
	f.eventually(patience, "the Job completes", func() error {
		if err := f.client.Get(f.ctx, types.NamespacedName{Namespace: f.ns, Name: "job"}, &done); err != nil {
			return err
		}
		for _, c := range done.Status.Conditions {
			if c.Type == batchv1.JobFailed && c.Status == corev1.ConditionTrue {
				f.Fatalf("the Job has failed: %s: %s", c.Reason, c.Message)
			}
			if c.Type == batchv1.JobComplete && c.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("the Job is %+v", done.Status)
	})
	if done.Status.Failed != 0 || done.Status.Succeeded != 2 {
		t.Errorf("%d pods failed and %d succeeded", done.Status.Failed, done.Status.Succeeded)
	}
	if done.Spec.Suspend == nil || *done.Spec.Suspend || !strings.HasPrefix(done.Annotations[gm.JobRestartAnnotation], "resumed ") {
		t.Errorf("suspended %v, annotations %v", done.Spec.Suspend, done.Annotations)
	}
	if err := f.argsAre("job", map[string]string{"late-a": "--site=a", "late-b": "--site=b"}); err != nil {
		t.Error(err)
	}
}
