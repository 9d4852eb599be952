package devcluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// setImage changes the image of the container main in place.
func setImage(t *testing.T, client kubernetes.Interface, pod, image string) {
	t.Helper()
	patch := `{"spec":{"containers":[{"name":"main","image":"` + image + `"}]}}`
	_, err := client.CoreV1().Pods(metav1.NamespaceDefault).Patch(t.Context(), pod,
		types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

func testInPlaceImage(t *testing.T, client kubernetes.Interface) {
	spec := podSpec("sim")
	spec.Containers = append(spec.Containers, corev1.Container{Name: "other", Image: "example.org/other:v1"})
	createPod(t, client, "in-place", nil, spec)
	pod := waitPod(t, client, "in-place", isPodReady)
	for change := int32(1); change <= 3; change++ {
		image := fmt.Sprintf("example.org/app:v%d", change+1)
		watcher, err := client.CoreV1().Pods(pod.Namespace).Watch(t.Context(), metav1.ListOptions{
			FieldSelector: "metadata.name=in-place", ResourceVersion: pod.ResourceVersion,
		})
		if err != nil {
			t.Fatal(err)
		}
		setImage(t, client, "in-place", image)
		sawUnready := false
		before := pod
		pod = waitPod(t, client, "in-place", func(pod *corev1.Pod) error {
			if pod.Status.ContainerStatuses[0].Image != image {
				return fmt.Errorf("status has image %s", pod.Status.ContainerStatuses[0].Image)
			}
			return isPodReady(pod)
		})
		for event := range watcher.ResultChan() {
			seen := event.Object.(*corev1.Pod)
			sawUnready = sawUnready || podCondition(seen, corev1.PodReady).Status == corev1.ConditionFalse
			if seen.ResourceVersion == pod.ResourceVersion {
				watcher.Stop()
				break
			}
		}
		main, other := pod.Status.ContainerStatuses[0], pod.Status.ContainerStatuses[1]
		if main.RestartCount != change || other.RestartCount != 0 {
			t.Errorf("after change %d: restarts %d and %d, want %d and 0", change, main.RestartCount, other.RestartCount, change)
		}
		if !sawUnready {
			t.Errorf("change %d: the pod was never unready", change)
		}
		if main.ContainerID == before.Status.ContainerStatuses[0].ContainerID || main.ImageID == before.Status.ContainerStatuses[0].ImageID {
			t.Errorf("change %d: container and image ids stay %s and %s", change, main.ContainerID, main.ImageID)
		}
		if other.ContainerID != before.Status.ContainerStatuses[1].ContainerID {
			t.Errorf("change %d: the untouched container has another id", change)
		}
		if pod.Status.ObservedGeneration != pod.Generation {
			t.Errorf("change %d: observed generation %d, want %d", change, pod.Status.ObservedGeneration, pod.Generation)
		}
	}
}

func testReadinessGate(t *testing.T, client kubernetes.Interface) {
	spec := podSpec("sim")
	spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "example.org/gate"}}
	createPod(t, client, "gated", nil, spec)
	waitPod(t, client, "gated", func(pod *corev1.Pod) error {
		if podCondition(pod, corev1.ContainersReady).Status != corev1.ConditionTrue {
			return errors.New("containers are not ready")
		}
		if ready := podCondition(pod, corev1.PodReady); ready.Reason != "ReadinessGatesNotReady" {
			return fmt.Errorf("ready is %v", ready)
		}
		return nil
	})
	for _, status := range []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionTrue} {
		patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []any{
			map[string]any{"type": "example.org/gate", "status": status},
		}}})
		if err != nil {
			t.Fatal(err)
		}
		_, err = client.CoreV1().Pods(metav1.NamespaceDefault).Patch(t.Context(), "gated",
			types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		if err != nil {
			t.Fatal(err)
		}
		waitPod(t, client, "gated", func(pod *corev1.Pod) error {
			if ready := podCondition(pod, corev1.PodReady); ready.Status != status {
				return fmt.Errorf("ready is %v, want %s", ready, status)
			}
			return nil
		})
	}
}

func testSimulatedPods(t *testing.T, client kubernetes.Interface) {
	createPod(t, client, "late", map[string]string{StartDelayAnnotation: "1h"}, podSpec("sim"))
	delayed := map[string]string{StartDelayAnnotation: "1500ms"}
	createPod(t, client, "delayed", delayed, podSpec("sim"))
	broken := podSpec("sim")
	broken.Containers[0].Image = "example.org/app:" + NeverReadyTag
	createPod(t, client, "broken", nil, broken)

	pod := waitPod(t, client, "delayed", isPodReady)
	scheduled, ready := podCondition(pod, corev1.PodScheduled), podCondition(pod, corev1.PodReady)
	// Conditions hold whole seconds.
	if delay := ready.LastTransitionTime.Sub(scheduled.LastTransitionTime.Time); delay < 1e9 {
		t.Errorf("a pod with a start delay of 1.5 s became ready after %s", delay)
	}
	waitPod(t, client, "late", func(pod *corev1.Pod) error {
		if pod.Spec.NodeName == "" {
			return errors.New("not placed yet")
		}
		if pod.Status.Phase != corev1.PodPending {
			t.Errorf("a pod with a start delay of an hour is %s", pod.Status.Phase)
		}
		return nil
	})
	waitPod(t, client, "broken", func(pod *corev1.Pod) error {
		if pod.Status.Phase != corev1.PodRunning || podCondition(pod, corev1.ContainersReady).Status != corev1.ConditionFalse {
			return fmt.Errorf("%s %v", pod.Status.Phase, pod.Status.Conditions)
		}
		return nil
	})
	setImage(t, client, "broken", "example.org/app:mended")
	mended := waitPod(t, client, "broken", isPodReady)
	if restarts := mended.Status.ContainerStatuses[0].RestartCount; restarts != 1 {
		t.Errorf("a mended container has restarted %d times, want 1", restarts)
	}
}

func testHollowNode(t *testing.T, c *Cluster, client kubernetes.Interface) {
	createPod(t, client, "hollow", nil, podSpec("hollow"))
	waitPod(t, client, "hollow", isPodReady)
	setImage(t, client, "hollow", "example.org/app:v2")
	waitPod(t, client, "hollow", func(pod *corev1.Pod) error {
		if status := pod.Status.ContainerStatuses[0]; status.RestartCount != 1 || status.Image != "example.org/app:v2" {
			return fmt.Errorf("%d restarts, image %s", status.RestartCount, status.Image)
		}
		return isPodReady(pod)
	})
	for _, verb := range []func() error{
		func() error { return c.Pause(t.Context(), "hollow-0") },
		func() error { return c.Resume(t.Context(), "hollow-0") },
		func() error { return c.Kill(t.Context(), "hollow-0") },
		func() error { return c.Restart(t.Context(), "hollow-0") },
	} {
		if err := verb(); err != nil {
			t.Fatal(err)
		}
	}
	createPod(t, client, "hollow-later", nil, podSpec("hollow"))
	waitPod(t, client, "hollow-later", isPodReady)
}
