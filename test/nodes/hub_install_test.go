package nodes

import (
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// TestTheHubAsAStaticPod: a node gets its hub as docs/hub.md#installation says, from the files that the chart
// renders, while a pod runs on it. While the node is cut off, the hub, the kubelet and the pod are killed, and
// the kubelet starts them again. Then the hub is removed.
func TestTheHubAsAStaticPod(t *testing.T) {
	tier.All(t, "five minutes; TestTheHubOnRealNodes has the hub itself")
	t.Parallel()
	const manifests = "/etc/kubernetes/manifests"
	node := edge[0]
	r := &offRig{rig: startRig(t, map[string][]string{
		devcluster.ControllerManager: {"--node-monitor-grace-period=8s", "--node-monitor-period=1s"},
	})}
	r.nodes = []string{cloudNode, node}
	if err := r.AddRealNodes(t.Context(),
		devcluster.RealNodeSpec{NodeSpec: devcluster.NodeSpec{Name: cloudNode}, Pool: "cloud"},
		devcluster.RealNodeSpec{
			NodeSpec: devcluster.NodeSpec{Name: node, Taints: []corev1.Taint{{Key: "edge", Effect: corev1.TaintEffectNoSchedule}}}, Pool: "edge",
			Kubelet: map[string]any{"nodeLeaseDurationSeconds": 8, "staticPodPath": manifests, "fileCheckFrequency": "1s"},
		},
	); err != nil {
		t.Fatal(err)
	}
	atollIs := r.release("")
	atollIs.Within = patience
	r.changes("installed", func() error {
		return atollIs.Install(r.Context(), map[string]any{
			"hub": map[string]any{"enabled": true, "config": map[string]any{"cloud": map[string]any{"servers": []string{r.AdminConfig().Host}}}},
		})
	})
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Spec: corev1.PodSpec{
		NodeName: node,
		Volumes:  []corev1.Volume{{Name: "data"}}, // an emptyDir
		Containers: []corev1.Container{{
			Name: "web", Image: devcluster.PauseImage, Args: []string{"serve", ":8080", "/data/starts"}, ImagePullPolicy: corev1.PullNever,
			VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}},
		}},
	}}
	r.create(pod)
	r.eventually("the pod runs", r.runs(pod, 0))

	// What a node of kubeadm has.
	kubeconfig, err := r.Kubeconfig(r.Context(), "system:node:"+node, "system:nodes")
	if err != nil {
		t.Fatal(err)
	}
	direct, err := os.ReadFile(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := clientcmd.Load(direct)
	if err != nil {
		t.Fatal(err)
	}
	auth := loaded.AuthInfos[loaded.Contexts[loaded.CurrentContext].AuthInfo]
	r.on(node, `mkdir -p /run/node/etc /run/node/var-lib && cp -a /etc/. /run/node/etc
		mount --bind /run/node/etc /etc && mount --bind /run/node/var-lib /var/lib`)
	r.write(node, "/etc/kubernetes/pki/ca.crt", r.AdminConfig().CAData)
	r.write(node, "/var/lib/kubelet/pki/kubelet-client-current.pem", slices.Concat(auth.ClientCertificateData, auth.ClientKeyData))

	// The steps of the installation.
	var files corev1.ConfigMap
	if err := r.client.Get(r.Context(), client.ObjectKey{Namespace: atoll.Namespace, Name: "atoll-hub-node-files"}, &files); err != nil {
		t.Fatal(err)
	}
	r.write(node, "/etc/atoll/hub.yaml", []byte(files.Data["hub.yaml"]))
	r.write(node, manifests+"/atoll-hub.yaml", []byte(files.Data["static-pod.yaml"]))
	r.eventually("the hub serves", r.hubIs(node, "Online"))
	r.kubectl("--kubeconfig="+kubeconfig, "config", "set-cluster", loaded.Contexts[loaded.CurrentContext].Cluster,
		"--server=https://127.0.0.1:10261", "--certificate-authority=/var/lib/atoll-hub/serving/ca.crt")
	restart := func() {
		t.Helper()
		if err := r.RestartOn(r.Context(), node, devcluster.Kubelet); err != nil {
			t.Fatal(err)
		}
	}
	restart()
	r.eventually("the kubelet has its pods, and the token for one, through the hub", func() error {
		out, err := r.get(node, "http://127.0.0.1:10267/status")
		if err == nil && (!strings.Contains(out, "/api/v1/pods?") || !strings.Contains(out, "/serviceaccounts/default/token")) {
			err = fmt.Errorf("the hub has kept %s", out)
		}
		return err
	})
	r.eventually("the cloud has the pod of the hub", func() error {
		var hub corev1.Pod
		if err := r.client.Get(r.Context(), client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: "atoll-hub-" + node}, &hub); err != nil {
			return err
		}
		if len(hub.Status.ContainerStatuses) != 1 || !hub.Status.ContainerStatuses[0].Ready {
			return fmt.Errorf("it is %+v", hub.Status)
		}
		return nil
	})
	if err := r.runs(pod, 0)(); err != nil {
		t.Error(err)
	}

	defer func() {
		if t.Failed() {
			t.Log(r.on(node, "tail -n 30 /run/node/pod-logs/kube-system_atoll-hub*/hub/*.log /run/node/logs/kubelet.log; ls -l /run/node/addresses/devcluster"))
		}
	}()
	cut := func(is bool) {
		t.Helper()
		if err := r.SetLeg(r.Context(), node, devcluster.Cloud, devcluster.LegState{Cut: is}); err != nil {
			t.Fatal(err)
		}
	}
	cut(true)
	r.eventually("the cloud has lost the node", r.ready(node, corev1.ConditionUnknown))
	r.eventually("the hub has lost the cloud", r.hubIs(node, "Offline"))
	// A kubelet that is killed between creating a container and starting it creates another one, so it is killed first.
	if err := r.KillOn(r.Context(), node, devcluster.Kubelet); err != nil {
		t.Fatal(err)
	}
	for _, of := range [][]string{{metav1.NamespaceSystem, "atoll-hub-" + node, "hub"}, {"default", pod.Name, "web"}} {
		if err := r.KillContainer(r.Context(), of[0], of[1], of[2]); err != nil {
			t.Fatal(err)
		}
	}
	restart()
	r.eventually("the hub serves again, without the cloud", r.hubIs(node, "Offline"))
	r.eventually("the pod answers again", func() error {
		out, err := r.get(node, "http://"+pod.Status.PodIP+":8080")
		if err == nil && strings.Count(out, "\n") != 2 {
			err = fmt.Errorf("it has started %q", out)
		}
		return err
	})
	cut(false)
	r.eventually("the node is back", r.ready(node, corev1.ConditionTrue))
	r.eventually("the cloud knows of the restart", r.runs(pod, 1))

	// It is taken away.
	if err := os.WriteFile(kubeconfig, direct, 0o600); err != nil {
		t.Fatal(err)
	}
	restart()
	r.on(node, "rm "+manifests+"/atoll-hub.yaml")
	r.eventually("the hub has ended", func() error {
		if out, err := r.get(node, "http://127.0.0.1:10267/healthz"); err == nil {
			return fmt.Errorf("it answers %q", out)
		}
		return nil
	})
	r.eventually("the node does without", r.ready(node, corev1.ConditionTrue))
	r.kubectl("label", "pod", "web", "seen=yes")
	if err := r.runs(pod, 1)(); err != nil {
		t.Error(err)
	}
}

// on runs a command of the shell on a node.
func (r *offRig) on(node, command string) string {
	r.Helper()
	out, err := r.RunOn(r.Context(), node, "/bin/sh", "-ec", command)
	if err != nil {
		r.Fatal(err)
	}
	return out
}

// write writes a file on a node.
func (r *offRig) write(node, path string, content []byte) {
	r.Helper()
	r.on(node, fmt.Sprintf(`mkdir -p "$(dirname %[1]s)"; umask 077; echo %[2]s | base64 -d > %[1]s`, path, base64.StdEncoding.EncodeToString(content)))
}

// hubIs returns a check of the state of the cloud in the status of a node's hub.
func (r *offRig) hubIs(node, state string) func() error {
	return func() error {
		out, err := r.get(node, "http://127.0.0.1:10267/status")
		if err == nil && !strings.Contains(out, fmt.Sprintf(`"state":%q`, state)) {
			err = fmt.Errorf("it says %s", out)
		}
		return err
	}
}

// runs returns a check that a pod, which it reads again, is ready and that its container was
// restarted so often.
func (r *offRig) runs(pod *corev1.Pod, restarts int32) func() error {
	return func() error {
		if err := r.client.Get(r.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
			return err
		}
		if pod.Status.PodIP == "" || len(pod.Status.ContainerStatuses) == 0 {
			return errors.New("it has not started")
		}
		if s := pod.Status.ContainerStatuses[0]; !s.Ready || s.RestartCount != restarts {
			return fmt.Errorf("its container is ready: %t, and was restarted %d times, want %d", s.Ready, s.RestartCount, restarts)
		}
		return nil
	}
}
