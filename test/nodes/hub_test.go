package nodes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
)

// edge are the nodes behind hubs, in one pool, and cloudNode is one without.
var edge = []string{"edge-0", "edge-1"}

const cloudNode = "cloud-0"

// offRig is a rig in which each edge node has a pod of the DaemonSet web, behind a Service, that
// needs a ConfigMap, a Secret and a token.
type offRig struct {
	*rig

	starts  int // of the container on edge-0
	service string
}

// TestTheHubOnRealNodes: the kubelet reaches the cloud through atoll-hub only. The node is cut off, and its pods
// run on, whichever of its programs is started again.
func TestTheHubOnRealNodes(t *testing.T) {
	t.Parallel() // most of its time it waits, as the other test of a hub does
	r := &offRig{rig: startRig(t, map[string][]string{
		devcluster.ControllerManager: {"--node-monitor-grace-period=8s", "--node-monitor-period=1s"},
		// Nothing evicts the pods in the time of the test, as nothing evicts those of a DaemonSet.
	}), starts: 1}
	gateway, err := atoll.NewHub(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	specs := []devcluster.RealNodeSpec{{NodeSpec: devcluster.NodeSpec{Name: cloudNode}, Pool: "cloud"}}
	for _, name := range edge {
		specs = append(specs, devcluster.RealNodeSpec{
			NodeSpec: devcluster.NodeSpec{Name: name, Labels: map[string]string{"edge": "yes"}}, Pool: "edge", Gateway: gateway,
			Kubelet: map[string]any{"nodeLeaseDurationSeconds": 8}, // renewed every 2 s
		})
	}
	if err := r.AddRealNodes(t.Context(), specs...); err != nil {
		t.Fatal(err)
	}
	part := func(name string, run func(*offRig)) {
		r.part(name, func(inner *rig) {
			one := *r
			one.rig = inner
			run(&one)
			r.starts, r.service = one.starts, one.service
		})
		if t.Failed() {
			t.FailNow()
		}
	}
	part("pods start behind the hub", (*offRig).testStart)
	part("the node is cut off", (*offRig).testCut)
	part("its programs are started again", (*offRig).testPrograms)
	part("it loses its power", (*offRig).testPowerOff)
	part("the cloud is back", (*offRig).testBack)
	if !testing.Short() { // half a minute more
		part("its disk is full", (*offRig).testFullDisk)
	}
}

func (r *offRig) testStart() {
	r.create(
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "settings"}, Data: map[string]string{"key": "value"}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "secret"}, StringData: map[string]string{"key": "value"}},
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}},
		}},
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "hosts"}, Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "web"}, ClusterIP: corev1.ClusterIPNone,
		}},
	)
	pods := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}}, Spec: corev1.PodSpec{
		NodeSelector: map[string]string{"edge": "yes"},
		Volumes: []corev1.Volume{
			{Name: "data"}, // an emptyDir
			{Name: "settings", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}}}},
			{Name: "secret", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "secret"}}},
		},
		Containers: []corev1.Container{{
			Name: "web", Image: devcluster.PauseImage, Args: []string{"serve", ":8080", "/data/names"}, ImagePullPolicy: corev1.PullNever,
			VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}, {Name: "settings", MountPath: "/settings"}, {Name: "secret", MountPath: "/secret"}},
		}},
	}}
	r.create(&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Spec: appsv1.DaemonSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: pods.Labels}, Template: pods,
	}})
	r.eventually("a pod runs on each edge node", func() error {
		ready := 0
		for _, pod := range r.pods("default", "web") {
			if len(pod.Status.ContainerStatuses) > 0 && pod.Status.ContainerStatuses[0].Ready {
				ready++
			}
		}
		if ready != len(edge) {
			return fmt.Errorf("%d pods are ready", ready)
		}
		return nil
	})
	pod := r.podOn(edge[0])
	for what, args := range map[string][]string{"log": {"logs", pod.Name}, "exec": {"exec", pod.Name, "--", "/pause", "get", "http://127.0.0.1:8080"}} {
		if out := r.kubectl(args...); !strings.Contains(out, pod.Name) {
			r.Errorf("%s prints %q", what, out)
		}
	}
	service := &corev1.Service{}
	if err := r.client.Get(r.Context(), client.ObjectKey{Namespace: "default", Name: "web"}, service); err != nil {
		r.Fatal(err)
	}
	r.service = service.Spec.ClusterIP
	r.answers("before", pod.Status.PodIP)
	// The cloud tells of each Service's endpoints some time after their pods are ready: what it has
	// not told before the cut, the node cannot know.
	r.serviceAnswers("before")
	r.nameHas("before", pod.Status.PodIP, r.podOn(edge[1]).Status.PodIP)
}

// podOn returns the pod of the DaemonSet that is on a node.
func (r *offRig) podOn(node string) *corev1.Pod {
	r.Helper()
	for _, pod := range r.pods("default", "web") {
		if pod.Spec.NodeName == node {
			return &pod
		}
	}
	r.Fatalf("no pod is on %s", node)
	return nil
}

// get asks on a node, without the control plane.
func (r *offRig) get(node, url string) (string, error) {
	return r.RunOn(r.Context(), node, filepath.Join(r.Dir(), "bin", "devcluster-pause"), "get", url)
}

// answers waits until the container on edge-0 answers at an address, asked from its node and from
// the other one of its pool, and has started as often as it should.
func (r *offRig) answers(when, address string) {
	r.Helper()
	for _, from := range edge {
		r.eventually(when+" the container answers to "+from, func() error {
			out, err := r.get(from, "http://"+address+":8080")
			if err == nil && strings.Count(out, "\n") != r.starts {
				err = fmt.Errorf("it has started %d times, want %d", strings.Count(out, "\n"), r.starts)
			}
			return err
		})
	}
}

// serviceAnswers waits until each pod answers at the address of the Service, asked on edge-0.
func (r *offRig) serviceAnswers(when string) {
	r.Helper()
	answered := map[string]bool{}
	r.eventually(when+" the Service has an answer of each pod", func() error {
		out, err := r.get(edge[0], "http://"+r.service)
		if err != nil {
			return err
		}
		name, _, _ := strings.Cut(out, "\n")
		if answered[name] = true; len(answered) < len(edge) {
			return fmt.Errorf("only %v do", answered)
		}
		return nil
	})
}

func (r *offRig) ready(node string, want corev1.ConditionStatus) func() error {
	return func() error {
		var n corev1.Node
		if err := r.client.Get(r.Context(), client.ObjectKey{Name: node}, &n); err != nil {
			return err
		}
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == want {
				return nil
			}
		}
		return errors.New("its condition is another")
	}
}

func (r *offRig) testCut() {
	address := r.podOn(edge[0]).Status.PodIP
	if err := r.SetLeg(r.Context(), edge[0], devcluster.Cloud, devcluster.LegState{Cut: true}); err != nil {
		r.Fatal(err)
	}
	r.eventually("the cloud has lost the node", r.ready(edge[0], corev1.ConditionUnknown))
	r.answers("cut off,", address)
	r.serviceAnswers("cut off,")
}

// testPrograms starts each program of the node again, and all at once.
func (r *offRig) testPrograms() {
	address := r.podOn(edge[0]).Status.PodIP
	for _, programs := range [][]string{
		{devcluster.Kubelet}, {atoll.Hub}, {devcluster.ServiceProxy}, {devcluster.Containerd},
		{atoll.Hub, devcluster.Kubelet, devcluster.ServiceProxy, devcluster.Containerd},
	} {
		for _, program := range programs {
			if err := r.KillOn(r.Context(), edge[0], program); err != nil {
				r.Fatal(err)
			}
		}
		for _, program := range programs {
			if err := r.RestartOn(r.Context(), edge[0], program); err != nil {
				r.Fatal(err)
			}
		}
		r.eventually("the kubelet has synchronised its pods", r.kubeletIsWell)
		when := "after a restart of " + strings.Join(programs, ", ")
		r.answers(when, address)
		r.serviceAnswers(when)
	}
	// The kubelet starts a container that ends, without the cloud.
	if err := r.KillContainer(r.Context(), "default", r.podOn(edge[0]).Name, "web"); err != nil {
		r.Fatal(err)
	}
	r.starts++
	r.answers("after it was killed", address)
}

// kubeletIsWell returns nil if the kubelet of edge-0 says that it is healthy.
func (r *offRig) kubeletIsWell() error {
	out, err := r.get(edge[0], "http://127.0.0.1:10248/healthz")
	if err == nil && out != "ok" {
		err = fmt.Errorf("it says %q", out)
	}
	return err
}

// testPowerOff: the node loses its power, and when it is back, still cut off, its pod is started
// from what the hub has on its disk.
func (r *offRig) testPowerOff() {
	if err := r.Kill(r.Context(), edge[0]); err != nil {
		r.Fatal(err)
	}
	if err := r.Restart(r.Context(), edge[0]); err != nil {
		r.Fatal(err)
	}
	r.starts++
	before, now := r.podOn(edge[0]).Status.PodIP, ""
	r.eventually("the pod has started with a new address", func() error {
		list, err := r.RunOn(r.Context(), edge[0], "/bin/ls", "/run/node/addresses/devcluster")
		if err != nil {
			return err
		}
		var last error
		for _, address := range strings.Fields(list) {
			if strings.Count(address, ".") != 3 || strings.HasPrefix(address, "last_reserved_ip") {
				continue
			}
			out, err := r.get(edge[0], "http://"+address+":8080")
			if err == nil && strings.Count(out, "\n") == r.starts {
				now = address
				return nil
			}
			last = fmt.Errorf("%s answers %q, %w", address, out, err)
		}
		return last
	})
	if now == before {
		r.Fatalf("the address is %s, as before", now)
	}
	// The cloud's EndpointSlices have the old address.
	r.serviceAnswers("after a loss of power,")
	for range 20 {
		if out, err := r.get(edge[0], "http://"+r.service); err != nil {
			r.Fatalf("the Service has an endpoint that does not answer: %v %s", err, out)
		}
	}
	r.nameHas("after a loss of power,", now, r.podOn(edge[1]).Status.PodIP)
}

// nameHas waits until the DNS server of edge-0 answers the name of the headless Service with these
// addresses.
func (r *offRig) nameHas(when string, addresses ...string) {
	r.Helper()
	slices.Sort(addresses)
	r.eventually(when+" the name of the Service has the addresses of its pods", func() error {
		out, err := r.lookup(edge[0], "hosts.default.svc.cluster.local.")
		if err == nil && !slices.Equal(out, addresses) {
			err = fmt.Errorf("it has %v, want %v", out, addresses)
		}
		return err
	})
}

// lookup asks the DNS server of a node for a name.
func (r *offRig) lookup(node, name string) ([]string, error) {
	var n corev1.Node
	if err := r.client.Get(r.Context(), client.ObjectKey{Name: node}, &n); err != nil {
		return nil, err
	}
	for _, address := range n.Status.Addresses {
		if address.Type == corev1.NodeInternalIP {
			out, err := r.RunOn(r.Context(), node, filepath.Join(r.Dir(), "bin", "devcluster-pause"), "lookup", address.Address+":53", name)
			return slices.Sorted(slices.Values(strings.Fields(out))), err
		}
	}
	return nil, errors.New("the node has no address")
}

// testBack: nothing was lost, and what the cloud wants from now on happens.
func (r *offRig) testBack() {
	before := r.podOn(edge[0])
	if err := r.SetLeg(r.Context(), edge[0], devcluster.Cloud, devcluster.LegState{}); err != nil {
		r.Fatal(err)
	}
	r.eventually("the node is back", r.ready(edge[0], corev1.ConditionTrue))
	r.eventually("the cloud knows of its pod", func() error {
		pod := r.podOn(edge[0])
		if pod.UID != before.UID {
			r.Fatalf("the pod was replaced: %s by %s", before.Name, pod.Name)
		}
		s := pod.Status.ContainerStatuses[0]
		if !s.Ready || int(s.RestartCount) != r.starts-1 {
			return fmt.Errorf("its container is ready: %t, and was restarted %d times, want %d", s.Ready, s.RestartCount, r.starts-1)
		}
		return nil
	})
	r.answers("back,", r.podOn(edge[0]).Status.PodIP)
	r.serviceAnswers("back,")
	// A rollout replaces the pod.
	r.kubectl("rollout", "restart", "daemonset/web")
	r.kubectl("rollout", "status", "daemonset/web", "--timeout=3m")
}
