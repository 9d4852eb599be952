package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
)

// hubNode measures a hub that has a kubelet with pods.
var hubNode = benchmark{
	name: "hub node", nodes: 10, pods: kubeletPods,
	about: `The memory of atoll-hub on a node with 110 pods, against its limit.

- The kubelet is a hollow one: the real code over a container runtime that does nothing. Each pod has a ConfigMap, a Secret and a token of its own, so that the
  kubelet has more than 220 watches.
- ` + "`memory`" + ` is VmRSS, with the pages of the program's own file, 10 s after the hub was started again and the kubelet has opened its watches. It is
  read every second, and the highest counts.`,
	variants: []variant{{name: "memory", unit: "MB", ideal: "≤ 1", a: "atoll-hub with a kubelet of 110 pods", b: "the limit"}},
	open:     openHubNode,
}

const (
	// kubeletPods is the most that a kubelet has by default.
	kubeletPods = 110
	// hubMemory is the limit, in MB.
	hubMemory = 60
	// worker is the node of the kubelet.
	worker = "worker"
	// memoryFor is how long the memory is read.
	memoryFor = 10 * time.Second
	// watchesWithin is the longest time in which a kubelet has opened its watches again.
	watchesWithin = time.Minute
)

type hubNodeBench struct {
	*bed
	hub  *atoll.HubProcess
	pods int
}

func openHubNode(ctx context.Context, o options, log io.Writer) (bench, error) {
	cluster, err := devcluster.Start(ctx, devcluster.Options{Log: log, KeepDir: o.keep})
	if err != nil {
		return nil, err
	}
	h := &hubNodeBench{bed: &bed{options: o, log: log, cluster: cluster}, pods: min(o.pods, kubeletPods)}
	if err := h.prepare(ctx); err != nil {
		return nil, errors.Join(err, h.close())
	}
	return h, nil
}

func (h *hubNodeBench) prepare(ctx context.Context) (err error) {
	if h.client, err = kubernetes.NewForConfig(h.cluster.AdminConfig()); err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	core := h.client.CoreV1()
	if _, err := core.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating namespace %q: %w", namespace, err)
	}
	if h.hub, err = atoll.StartHub(ctx, h.cluster, worker, "", h.log); err != nil {
		return err
	}
	if err := h.cluster.AddHollowNodesBehind(ctx, h.hub.Endpoint, devcluster.NodeSpec{Name: worker}); err != nil {
		return err
	}
	if err := h.awaitAccount(ctx); err != nil {
		return err
	}
	var configs []*corev1.ConfigMap
	var secrets []*corev1.Secret
	var pods []*corev1.Pod
	for i := range h.pods {
		meta := metav1.ObjectMeta{Name: fmt.Sprintf("own-%d", i), Namespace: namespace}
		configs = append(configs, &corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"key": "value"}})
		secrets = append(secrets, &corev1.Secret{ObjectMeta: meta, StringData: map[string]string{"key": "value"}})
		pods = append(pods, ownPod(meta))
	}
	if err := createAll(ctx, configs, core.ConfigMaps(namespace).Create); err != nil {
		return err
	}
	if err := createAll(ctx, secrets, core.Secrets(namespace).Create); err != nil {
		return err
	}
	if err := createAll(ctx, pods, core.Pods(namespace).Create); err != nil {
		return err
	}
	return h.eventually(ctx, "the kubelet to run its pods", func(ctx context.Context) (bool, error) {
		list, err := core.Pods(namespace).List(ctx, metav1.ListOptions{FieldSelector: "status.phase=Running"})
		if err != nil {
			return false, fmt.Errorf("listing pods: %w", err)
		}
		return len(list.Items) == h.pods, nil
	})
}

// ownPod returns a pod of the worker with a ConfigMap and a Secret of its own name.
func ownPod(meta metav1.ObjectMeta) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{
		NodeName: worker, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		Containers: []corev1.Container{{Name: "main", Image: "nginx:1.27", VolumeMounts: []corev1.VolumeMount{{Name: "config", MountPath: "/config"}, {Name: "secret", MountPath: "/secret"}}}},
		Volumes: []corev1.Volume{
			{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: meta.Name}}}},
			{Name: "secret", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: meta.Name}}},
		},
	}}
	furnish(&pod.Spec.Containers[0])
	return pod
}

func (h *hubNodeBench) sides(context.Context, string) (a, b side, err error) {
	return side{name: "memory", measure: h.memory}, limit("memory", hubMemory), nil
}

// memory starts the hub again and returns its highest memory once the kubelet is back.
func (h *hubNodeBench) memory(ctx context.Context) (sample, error) {
	if err := h.cluster.Restart(ctx, h.hub.Name); err != nil {
		return sample{}, err
	}
	return h.observed(ctx, func(ctx context.Context) (float64, string, error) {
		watches := 0.0
		within, cancel := context.WithTimeout(ctx, watchesWithin)
		defer cancel()
		for int(watches) < 2*h.pods {
			var err error
			if watches, err = metricOf(ctx, h.hub.Observe, `atoll_hub_requests_total{from="cloud",kind="watch"}`); err != nil {
				watches = 0 // there was none yet
			}
			if err := pause(within, poll); err != nil {
				return 0, "", fmt.Errorf("waiting for the kubelet's watches, of which there are %.0f: %w", watches, err)
			}
		}
		highest, own := 0.0, 0.0
		for began := time.Now(); time.Since(began) < memoryFor; {
			if err := pause(ctx, time.Second); err != nil {
				return 0, "", err
			}
			for field, into := range map[string]*float64{"VmRSS": &highest, "RssAnon": &own} {
				now, err := h.status(ctx, field)
				if err != nil {
					return 0, "", err
				}
				*into = max(*into, now)
			}
		}
		peak, err := h.status(ctx, "VmHWM")
		return highest, fmt.Sprintf("%.0f watches; of that %.1f MB not of a file; %.1f MB at most since the start", watches, own, peak), err
	})
}

// status reads a field of the memory of the hub, in MB.
func (h *hubNodeBench) status(ctx context.Context, field string) (float64, error) {
	processes, err := h.cluster.Processes(ctx)
	if err != nil {
		return 0, err
	}
	for _, p := range processes {
		if p.Name == h.hub.Name && p.Running {
			return memoryOf(p.PID, field)
		}
	}
	return 0, fmt.Errorf("reading the memory of %s: it does not run", h.hub.Name)
}
