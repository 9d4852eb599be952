package nodes

import (
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
)

// cacheDir is where the hub of a node keeps what was answered.
const cacheDir = "/run/node/gateway/cache"

// testFullDisk: the disk of edge-1 is full, so its hub can keep nothing more. The cloud's answers
// reach its kubelet all the same, and without the cloud what runs goes on.
func (r *offRig) testFullDisk() {
	node := edge[1]
	shell := func(command string) string {
		r.Helper()
		out, err := r.RunOn(r.Context(), node, "/bin/sh", "-c", command)
		if err != nil {
			r.Fatal(err)
		}
		return out
	}
	restart := func(meanwhile string) {
		r.Helper()
		if err := r.KillOn(r.Context(), node, atoll.Hub); err != nil {
			r.Fatal(err)
		}
		shell(meanwhile)
		if err := r.RestartOn(r.Context(), node, atoll.Hub); err != nil {
			r.Fatal(err)
		}
	}
	restart("mount -t tmpfs -o size=256k tmpfs " + cacheDir)
	defer restart("umount " + cacheDir)
	r.eventually("the hub serves", func() error {
		_, err := r.get(node, "http://127.0.0.1:10267/healthz")
		return err
	})
	shell("cat /dev/zero > " + cacheDir + "/filled 2>/dev/null; true")
	if out := shell("dd if=/dev/zero of=" + cacheDir + "/more bs=4096 count=1 2>&1; true"); !strings.Contains(out, "No space left") {
		r.Fatalf("the disk is not full: %q", out)
	}
	// What the cloud wants happens.
	settings := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "late"}, Data: map[string]string{"key": "value"}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "late"}, Spec: corev1.PodSpec{
		NodeName: node,
		Volumes:  []corev1.Volume{{Name: "settings", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: settings.Name}}}}},
		Containers: []corev1.Container{{
			Name: "late", Image: devcluster.PauseImage, Args: []string{"serve", ":8080"}, ImagePullPolicy: corev1.PullNever,
			VolumeMounts: []corev1.VolumeMount{{Name: "settings", MountPath: "/settings"}},
		}},
	}}
	r.create(settings, pod)
	r.eventually("a new pod runs", func() error {
		if err := r.client.Get(r.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
			return err
		}
		if pod.Status.PodIP == "" || len(pod.Status.ContainerStatuses) == 0 || !pod.Status.ContainerStatuses[0].Ready {
			return errors.New("it is not ready")
		}
		return nil
	})
	// And without the cloud it goes on.
	if err := r.SetLeg(r.Context(), node, devcluster.Cloud, devcluster.LegState{Cut: true}); err != nil {
		r.Fatal(err)
	}
	r.eventually("the cloud has lost the node", r.ready(node, corev1.ConditionUnknown))
	r.eventually("the hub has lost the cloud", func() error {
		out, err := r.get(node, "http://127.0.0.1:10267/status")
		if err == nil && !strings.Contains(out, `"state":"Offline"`) {
			err = fmt.Errorf("it says %s", out)
		}
		return err
	})
	if _, err := r.get(node, "http://"+pod.Status.PodIP+":8080"); err != nil {
		r.Error(err)
	}
	if err := r.SetLeg(r.Context(), node, devcluster.Cloud, devcluster.LegState{}); err != nil {
		r.Fatal(err)
	}
	r.eventually("the node is back", r.ready(node, corev1.ConditionTrue))
	if err := r.client.Get(r.Context(), client.ObjectKeyFromObject(pod), pod); err != nil || pod.Status.ContainerStatuses[0].RestartCount != 0 {
		r.Errorf("the pod is %+v, %v", pod.Status, err)
	}
}
