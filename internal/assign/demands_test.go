package assign

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/atoll-k8s/atoll/internal/testing/turns"
)

// TestDemandsReadEachClaimOnce: a claim that does not exist yet has no effect on the others.
func TestDemandsReadEachClaimOnce(t *testing.T) {
	client := fake.NewClientset(
		&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "there"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv"}},
		&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{}}}},
		}})
	pod := &corev1.Pod{}
	for i := range 20 {
		claim := "there"
		if i%2 == 0 {
			claim = "comes-later"
		}
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: fmt.Sprint(i), VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}})
	}
	ctx, free := turns.Last(t)
	client.PrependReactor("get", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		if !t.Failed() && !free() {
			t.Error("no other request can be answered while a claim is read")
		}
		return false, nil, nil
	})
	d, err := DemandsOf(ctx, client, "default", pod)
	if err != nil || len(d.Volumes) != 1 {
		t.Errorf("%d volumes (%v), want one: that of the claim that exists", len(d.Volumes), err)
	}
	if n := len(client.Actions()); n != 3 {
		t.Errorf("%d reads, want two claims and a volume", n)
	}
}

// TestRequestsReadFewVolumes: each read counts, also those for one pod.
func TestRequestsReadFewVolumes(t *testing.T) {
	ctx, _ := turns.Last(t)
	client := fake.NewClientset()
	pod := &corev1.Pod{}
	for i := range 16 {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: fmt.Sprint(i), VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: fmt.Sprint(i)},
		}})
	}
	const pods = 200
	refused := 0
	for range pods {
		if _, err := DemandsOf(ctx, client, "default", pod); err != nil {
			refused++
		}
	}
	if n := len(client.Actions()); refused == 0 || n == 0 || n > pods*16/4 {
		t.Errorf("%d reads for %d pods with 16 claims each, and %d pods are refused", n, pods, refused)
	}
}
