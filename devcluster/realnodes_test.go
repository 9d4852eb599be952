package devcluster

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// rig is a cluster with real nodes: a-0 and a-1 in a pool, b-0 in another. On each runs a pod
// of its name that serves HTTP.
type rig struct {
	*testing.T
	*Cluster
}

var rigNodes = []string{"a-0", "a-1", "b-0"}

// newRig starts the cluster and its nodes.
func newRig(t *testing.T) *rig {
	t.Helper()
	if err := RealNodesMissing(); err != nil {
		t.Skip(err)
	}
	c := startCluster(t, Options{
		RealNodes:     true,
		ComponentArgs: map[string][]string{ControllerManager: {"--node-monitor-grace-period=6s", "--node-monitor-period=1s"}},
	})
	r := &rig{t, c}
	var specs []RealNodeSpec
	for _, name := range rigNodes {
		specs = append(specs, RealNodeSpec{NodeSpec: NodeSpec{Name: name}, Pool: name[:1], Kubelet: map[string]any{
			"nodeLeaseDurationSeconds": 8, // renewed every 2 s
		}})
	}
	began := time.Now()
	if err := c.AddRealNodes(t.Context(), specs...); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d nodes are Ready after %s", len(specs), time.Since(began).Round(time.Millisecond))
	for _, node := range rigNodes {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: node, Labels: map[string]string{"app": "web"}},
			Spec: corev1.PodSpec{NodeName: node, Volumes: []corev1.Volume{{Name: "files"}}, Containers: []corev1.Container{{
				VolumeMounts: []corev1.VolumeMount{{Name: "files", MountPath: "/files"}}, // an emptyDir, for kubectl cp
				Name:         "web", Image: PauseImage, Args: []string{"serve", ":8080"}, ImagePullPolicy: corev1.PullNever,
				SecurityContext: &corev1.SecurityContext{
					RunAsNonRoot: new(true), ReadOnlyRootFilesystem: new(true), AllowPrivilegeEscalation: new(false),
					Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
				},
				ReadinessProbe: &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(8080)}}},
			}}},
		}
		if _, err := c.client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, node := range rigNodes {
		r.eventually("pod "+node+" is Ready", func() error { return r.podReady(node) })
	}
	t.Logf("a pod on each is Ready after %s", time.Since(began).Round(time.Millisecond))
	return r
}

func (r *rig) eventually(what string, check func() error) {
	r.Helper()
	eventually(r.T, what, func(context.Context) error { return check() })
}

func (r *rig) pod(name string) (*corev1.Pod, error) {
	return r.client.CoreV1().Pods("default").Get(r.Context(), name, metav1.GetOptions{})
}

func (r *rig) podReady(name string) error {
	pod, err := r.pod(name)
	if err != nil {
		return err
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return nil
		}
	}
	return fmt.Errorf("%s: %+v", pod.Status.Phase, pod.Status.ContainerStatuses)
}

func (r *rig) nodeReady(name string, want corev1.ConditionStatus) func() error {
	return func() error {
		node, err := r.client.CoreV1().Nodes().Get(r.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == want {
				return nil
			}
		}
		return fmt.Errorf("conditions are %+v", node.Status.Conditions)
	}
}

func (r *rig) kubectlCommand(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, r.BinaryPath("kubectl"), append([]string{"--kubeconfig=" + r.KubeconfigPath()}, args...)...)
}

// kubectl runs kubectl and returns what it prints.
func (r *rig) kubectl(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(r.Context(), 20*time.Second)
	defer cancel()
	var out bytes.Buffer
	cmd := r.kubectlCommand(ctx, args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, out.String())
	}
	return out.String(), err
}

// get returns the answer to an HTTP request that a pod sends, from inside of its node: nothing of
// that needs the control plane.
func (r *rig) get(from, url string) (string, error) {
	id, err := r.container(from)
	if err != nil {
		return "", err
	}
	return r.getIn(from, id, url)
}

// getIn is get for a container whose id is known.
func (r *rig) getIn(from, id, url string) (string, error) {
	return r.ctr(r.Context(), from, "tasks", "exec", "--exec-id", fmt.Sprint("get-", time.Now().UnixNano()), id, "/pause", "get", url)
}

// container returns the id of the container of a pod.
func (r *rig) container(pod string) (string, error) {
	p, err := r.pod(pod)
	if err != nil {
		return "", err
	}
	if len(p.Status.ContainerStatuses) == 0 {
		return "", errors.New("the pod has no container")
	}
	return strings.TrimPrefix(p.Status.ContainerStatuses[0].ContainerID, "containerd://"), nil
}

func (r *rig) setLeg(node string, leg Leg, s LegState) {
	r.Helper()
	if err := r.SetLeg(r.Context(), node, leg, s); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) url(pod string) string {
	r.Helper()
	p, err := r.pod(pod)
	if err != nil {
		r.Fatal(err)
	}
	return fmt.Sprintf("http://%s:8080", p.Status.PodIP)
}

// TestRealNodes on one cluster, because its parts are fast.
func TestRealNodes(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a cluster; make test has the tests of test/nodes on such nodes")
	}
	r := newRig(t)
	part := func(name string, run func(*rig)) {
		t.Run(name, func(t *testing.T) { run(&rig{t, r.Cluster}) })
	}
	part("people see into pods", (*rig).testPeople)
	part("Services", (*rig).testServices)
	part("legs", (*rig).testLegs)
	part("programs", (*rig).testPrograms)
	part("containers", (*rig).testContainers)
	part("power", (*rig).testPower)
	part("the network", (*rig).testNetwork)
	part("a removed node", (*rig).testRemovedNode)
	part("nothing is left", (*rig).testNothingIsLeft)
}

// testPeople: logs, exec, cp, attach and port-forward reach the kubelet.
func (r *rig) testPeople() {
	if out, err := r.kubectl("logs", "a-0"); err != nil || out != "serving as a-0\n" {
		r.Errorf("the log is %q, %v", out, err)
	}
	if out, err := r.kubectl("exec", "b-0", "--", "/pause", "get", r.url("a-0")); err != nil || out != "a-0" {
		r.Errorf("a pod of another pool is answered %q, %v", out, err)
	}
	if out, err := r.kubectl("exec", "a-0", "--", "/pause", "get", "https://kubernetes.default"); err == nil || !strings.Contains(out, "certificate") {
		r.Errorf("the API server is not found by its name, which its certificate has: %q", out)
	}
	if out, err := r.kubectl("exec", "a-0", "--", "/pause", "get", "https://nobody.default"); err == nil || !strings.Contains(out, "no such host") {
		r.Errorf("a name of no Service: %q", out)
	}
	r.testCopy()
	r.testAttach()
	r.testPortForward()
}

// testCopy copies a file into a pod and back.
func (r *rig) testCopy() {
	r.Helper()
	dir := r.TempDir()
	there, back := filepath.Join(dir, "there"), filepath.Join(dir, "back")
	if err := os.WriteFile(there, []byte("a file"), 0o600); err != nil {
		r.Fatal(err)
	}
	for _, args := range [][]string{{"cp", there, "a-0:/files/there"}, {"cp", "a-0:/files/there", back}} {
		if _, err := r.kubectl(args...); err != nil {
			r.Error(err)
		}
	}
	if content, err := os.ReadFile(back); err != nil || string(content) != "a file" {
		r.Errorf("the file comes back as %q, %v", content, err)
	}
}

// testAttach sends a line to a container that prints it, and ends with its input.
func (r *rig) testAttach() {
	r.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "echo"}, Spec: corev1.PodSpec{
		NodeName: "a-0", RestartPolicy: corev1.RestartPolicyNever,
		Containers: []corev1.Container{{Name: "echo", Image: PauseImage, Args: []string{"echo"}, ImagePullPolicy: corev1.PullNever, Stdin: true, StdinOnce: true}},
	}}
	if _, err := r.client.CoreV1().Pods("default").Create(r.Context(), pod, metav1.CreateOptions{}); err != nil {
		r.Fatal(err)
	}
	r.eventually("the pod runs", func() error { return r.podReady("echo") })
	cmd := r.kubectlCommand(r.Context(), "attach", "--stdin", "echo")
	cmd.Stdin = strings.NewReader("a line\n")
	if out, err := cmd.Output(); err != nil || string(out) != "a line\n" {
		r.Errorf("the container prints %q, %v", out, err)
	}
	r.eventually("the container has ended with its input", func() error {
		p, err := r.pod("echo")
		if err == nil && p.Status.Phase != corev1.PodSucceeded {
			err = fmt.Errorf("the pod is %s", p.Status.Phase)
		}
		return err
	})
}

// testPortForward reaches a pod by a port of this machine.
func (r *rig) testPortForward() {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), 20*time.Second)
	defer cancel()
	cmd := r.kubectlCommand(ctx, "port-forward", "b-0", ":8080")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		r.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }() // it is killed
	defer cancel()
	line, err := bufio.NewReader(out).ReadString('\n') // Forwarding from 127.0.0.1:40123 -> 8080
	address, _, found := strings.Cut(strings.TrimPrefix(line, "Forwarding from "), " ")
	if err != nil || !found {
		r.Fatalf("kubectl port-forward prints %q, %v", line, err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address, nil)
	if err != nil {
		r.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		r.Fatal(err)
	}
	defer response.Body.Close()
	if answer, err := io.ReadAll(response.Body); err != nil || string(answer) != "b-0" {
		r.Errorf("the answer is %q, %v", answer, err)
	}
}

// testServices: the cluster address leads to the ready pods, of pods and of the node's own
// programs, and is refused at once if there are none.
func (r *rig) testServices() {
	service := func(name, app string) string {
		s, err := r.client.CoreV1().Services("default").Create(r.Context(), &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": app}, Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}}},
		}, metav1.CreateOptions{})
		if err != nil {
			r.Fatal(err)
		}
		return "http://" + s.Spec.ClusterIP
	}
	web, nobody := service("web", "web"), service("nobody", "nobody")
	answered := map[string]bool{}
	r.eventually("all pods answer", func() error {
		out, err := r.get("a-0", web)
		if err != nil {
			return err
		}
		if answered[out] = true; len(answered) < len(rigNodes) {
			return fmt.Errorf("only %v do", answered)
		}
		return nil
	})
	r.eventually("a connection to a Service without pods is refused", func() error {
		if out, err := r.get("a-0", nobody); err == nil || !strings.Contains(err.Error(), "refused") {
			return fmt.Errorf("the answer is %q, %w", out, err)
		}
		return nil
	})
}

// testLegs: a node whose cloud is cut becomes NotReady, and its pods and those of its pool reach
// each other all the same. Then the other leg.
func (r *rig) testLegs() {
	r.setLeg("a-0", Cloud, LegState{Cut: true})
	if out, err := r.get("a-0", r.url("a-1")); err != nil || out != "a-1" {
		r.Errorf("with the cloud cut, a pod of the pool answers %q, %v", out, err)
	}
	if out, err := r.get("a-0", r.url("b-0")); err == nil {
		r.Errorf("with the cloud cut, a pod of another pool answers %q", out)
	}
	r.eventually("the node is away", r.nodeReady("a-0", corev1.ConditionUnknown))
	if out, err := r.kubectl("logs", "a-0", "--request-timeout=3s"); err == nil {
		r.Errorf("with the cloud cut there is a log: %q", out)
	}
	r.setLeg("a-0", Cloud, LegState{})
	r.eventually("the node is back", r.nodeReady("a-0", corev1.ConditionTrue))
	r.eventually("its pod is Ready", func() error { return r.podReady("a-0") })

	r.setLeg("a-0", Pool, LegState{Cut: true})
	if out, err := r.get("a-0", r.url("a-1")); err == nil {
		r.Errorf("with the pool's leg cut, a pod of the pool answers %q", out)
	}
	r.setLeg("a-0", Pool, LegState{Loss: 0.2})
	r.eventually("a pod answers over a lossy leg", func() error {
		out, err := r.get("a-0", r.url("a-1"))
		if err == nil && out != "a-1" {
			err = fmt.Errorf("it answers %q", out)
		}
		return err
	})
	r.setLeg("a-0", Pool, LegState{Delay: 300 * time.Millisecond})
	began := time.Now()
	if out, err := r.get("a-0", r.url("a-1")); err != nil || out != "a-1" || time.Since(began) < 1200*time.Millisecond {
		r.Errorf("over a slow leg, a pod answers %q, %v after %s", out, err, time.Since(began)) // two round trips
	}
	r.setLeg("a-0", Pool, LegState{})
	if err := r.SetLeg(r.Context(), "nobody", Pool, LegState{}); err == nil {
		r.Error("a leg of an unknown node is set")
	}
}

// testPrograms: containers outlive the kubelet and containerd.
func (r *rig) testPrograms() {
	for _, name := range []string{"nothing", "../" + Kubelet} {
		for _, err := range []error{r.KillOn(r.Context(), "a-1", name), r.RestartOn(r.Context(), "a-1", name)} {
			if err == nil || !strings.Contains(err.Error(), "its programs are containerd, kubelet, service-proxy") {
				r.Errorf("program %q: %v", name, err)
			}
		}
	}
	if found, _ := filepath.Glob(filepath.Join(r.nodeDir("a-1"), "hold-*")); len(found) > 0 {
		r.Errorf("%v are there", found)
	}
	before, err := r.container("a-1")
	if err != nil {
		r.Fatal(err)
	}
	for _, program := range []string{Kubelet, Containerd} {
		if err := r.KillOn(r.Context(), "a-1", program); err != nil {
			r.Fatal(err)
		}
		r.proxyStartsAgain("a-1") // and what was killed before would have, too
		if out, err := r.get("a-0", r.url("a-1")); err != nil || out != "a-1" {
			r.Errorf("without %s the pod answers %q, %v", program, out, err)
		}
		if err := r.KillOn(r.Context(), "a-1", program); err == nil {
			r.Errorf("%s runs though it was killed", program)
		}
		if err := r.RestartOn(r.Context(), "a-1", program); err != nil {
			r.Fatal(err)
		}
	}
	// A kubelet ends if it starts before containerd, and is started again.
	r.eventually("the kubelet runs, and can be paused", func() error { return r.PauseOn(r.Context(), "a-1", Kubelet) })
	r.eventually("a node whose kubelet hangs is away", r.nodeReady("a-1", corev1.ConditionUnknown))
	if err := r.ResumeOn(r.Context(), "a-1", Kubelet); err != nil {
		r.Fatal(err)
	}
	r.eventually("the node is back", r.nodeReady("a-1", corev1.ConditionTrue))
	r.eventually("its pod is Ready", func() error { return r.podReady("a-1") })
	if after, err := r.container("a-1"); err != nil || after != before {
		r.Errorf("the container is another one: %s and %s, %v", before, after, err)
	}
}

// testContainers: a container that was paused does not answer, and one that was killed is started
// again.
func (r *rig) testContainers() {
	if err := r.PauseContainer(r.Context(), "default", "a-1", "web"); err != nil {
		r.Fatal(err)
	}
	if out, err := r.get("a-0", r.url("a-1")); err == nil {
		r.Errorf("a paused container answers %q", out)
	}
	if err := r.ResumeContainer(r.Context(), "default", "a-1", "web"); err != nil {
		r.Fatal(err)
	}
	if out, err := r.get("a-0", r.url("a-1")); err != nil || out != "a-1" {
		r.Errorf("after it was resumed the container answers %q, %v", out, err)
	}
	if err := r.KillContainer(r.Context(), "default", "a-1", "web"); err != nil {
		r.Fatal(err)
	}
	r.eventually("the container was started again", func() error {
		pod, err := r.pod("a-1")
		if err != nil {
			return err
		}
		s := pod.Status.ContainerStatuses[0]
		if s.RestartCount != 1 || s.LastTerminationState.Terminated == nil || s.LastTerminationState.Terminated.ExitCode != 128+int32(syscall.SIGKILL) {
			return fmt.Errorf("it has restarted %d times, last from %+v", s.RestartCount, s.LastTerminationState)
		}
		return r.podReady("a-1")
	})
	for container, words := range map[string]string{"a-1/nobody": "the containers of this pod are web", "echo/echo": "does not run", "nobody/web": "not found"} {
		pod, name, _ := strings.Cut(container, "/")
		if err := r.KillContainer(r.Context(), "default", pod, name); err == nil || !strings.Contains(err.Error(), words) {
			r.Errorf("killing container %s: %v, want %q", container, err, words)
		}
	}
}

// proxyStartsAgain ends the Service proxy of a node as if by itself, and waits until the node has
// started it again.
func (r *rig) proxyStartsAgain(node string) {
	r.Helper()
	before, err := r.onNode(node, ServiceProxy)
	if err == nil {
		err = before.Signal(syscall.SIGKILL)
	}
	if err != nil {
		r.Fatal(err)
	}
	r.eventually("the proxy runs again", func() error {
		now, err := r.onNode(node, ServiceProxy)
		if err == nil && now == before {
			err = errors.New("it has not ended yet")
		}
		return err
	})
}

// testPower: with the power of a node everything on it ends at once, and nobody is told: its
// connections stay as they are. Afterwards its pod comes back, from the image on its disk, and its
// legs are as they were set.
func (r *rig) testPower() {
	conn, err := r.dial("b-0")
	if err != nil {
		r.Fatal(err)
	}
	defer conn.Close()
	if err := r.Kill(r.Context(), "b-0"); err != nil {
		r.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(2 * time.Second))
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		r.Errorf("a connection to the node that has no power ends with %v, want silence", err)
	}
	if _, err := r.dial("b-0"); !isTimeout(err) {
		r.Errorf("a new connection to it ends with %v, want silence", err)
	}
	if out, err := r.kubectl("exec", "a-0", "--", "/pause", "get", r.url("b-0")); err == nil {
		r.Errorf("a pod without power answers %q", out)
	}
	r.eventually("the node is away", r.nodeReady("b-0", corev1.ConditionUnknown))
	r.setLeg("b-0", Cloud, LegState{Cut: true})
	if err := r.Restart(r.Context(), "b-0"); err != nil {
		r.Fatal(err)
	}
	r.eventually("the kubelet runs", func() error {
		_, err := r.RunOn(r.Context(), "b-0", filepath.Join(r.Dir(), "bin", pauseProgram), "get", "http://127.0.0.1:10248/healthz")
		return err
	})
	if _, err := r.dial("b-0"); !isTimeout(err) {
		r.Errorf("a connection over a leg that was cut ends with %v", err)
	}
	r.setLeg("b-0", Cloud, LegState{})
	r.eventually("the node is back", r.nodeReady("b-0", corev1.ConditionTrue))
	r.eventually("its pod has started once more", func() error {
		pod, err := r.pod("b-0")
		if err != nil {
			return err
		}
		if n := pod.Status.ContainerStatuses[0].RestartCount; n != 1 {
			return fmt.Errorf("it has restarted %d times", n)
		}
		return r.podReady("b-0")
	})
	if out, err := r.get("a-0", r.url("b-0")); err != nil || out != "b-0" {
		r.Errorf("afterwards it answers %q, %v", out, err)
	}
}

// dial connects this machine to the kubelet of a node.
func (r *rig) dial(node string) (net.Conn, error) {
	n, err := r.readNode(node)
	if err != nil {
		return nil, err
	}
	dialer := net.Dialer{Timeout: 2 * time.Second}
	return dialer.DialContext(r.Context(), "tcp", net.JoinHostPort(n.Link.Address.String(), "10250"))
}

func isTimeout(err error) bool {
	timeout, is := errors.AsType[net.Error](err)
	return is && timeout.Timeout()
}

// testNetwork: while the network does not run no node reaches another nor the API server, and when
// it is started again all do.
func (r *rig) testNetwork() {
	url := r.url("a-1")
	id, err := r.container("a-0")
	if err != nil {
		r.Fatal(err)
	}
	if err := r.Kill(r.Context(), networkProcess); err != nil {
		r.Fatal(err)
	}
	if out, err := r.getIn("a-0", id, url); err == nil || !strings.Contains(err.Error(), url) {
		r.Errorf("without a network a pod answers %q, %v", out, err)
	}
	if err := r.Kill(r.Context(), "b-0"); err != nil { // it has no devices that could be closed
		r.Fatal(err)
	}
	for _, name := range []string{networkProcess, "b-0"} {
		if err := r.Restart(r.Context(), name); err != nil {
			r.Fatal(err)
		}
	}
	for _, node := range rigNodes {
		r.eventually("node "+node+" is back", r.nodeReady(node, corev1.ConditionTrue))
	}
	for _, to := range []string{"a-1", "b-0"} {
		r.eventually("pod "+to+" answers", func() error {
			out, err := r.get("a-0", r.url(to))
			if err == nil && out != to {
				err = fmt.Errorf("it answers %q", out)
			}
			return err
		})
	}
}

// testRemovedNode: nothing of a removed node is left, and a node of another pool gets its address.
func (r *rig) testRemovedNode() {
	add := func(name, pool string) netip.Addr {
		r.Helper()
		if err := r.AddRealNodes(r.Context(), RealNodeSpec{NodeSpec: NodeSpec{Name: name}, Pool: pool}); err != nil {
			r.Fatal(err)
		}
		n, err := r.readNode(name)
		if err != nil {
			r.Fatal(err)
		}
		return n.Link.Address
	}
	routes := func(to netip.Addr) int {
		r.Helper()
		out, err := r.RunOn(r.Context(), "a-1", "/bin/cat", "/proc/net/route")
		if err != nil {
			r.Fatal(err)
		}
		b := to.As4()
		return strings.Count(out, fmt.Sprintf("\t%02X%02X%02X%02X\t", b[3], b[2], b[1], b[0])) // as /proc/net/route has it
	}
	address := add("a-2", "a")
	if routes(address) != 1 {
		r.Errorf("a node of its pool has %d routes to the new one", routes(address))
	}
	if err := r.RemoveNode(r.Context(), "a-2"); err != nil {
		r.Fatal(err)
	}
	if _, err := os.Stat(r.nodeDir("a-2")); !errors.Is(err, os.ErrNotExist) {
		r.Errorf("the disk of the removed node is left: %v", err)
	}
	for _, pattern := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
		if found, _ := filepath.Glob(pattern + r.nodeGroup("a-2")); len(found) > 0 {
			r.Errorf("control groups of the removed node are left: %v", found)
		}
	}
	if n := routes(address); n != 0 {
		r.Errorf("%d routes to the removed node are left", n)
	}
	if err := r.SetLeg(r.Context(), "a-2", Cloud, LegState{}); err == nil {
		r.Error("the removed node still has legs")
	}
	if again := add("b-1", "b"); again != address {
		r.Errorf("the next node has the address %s, want %s of the removed one", again, address)
	}
	url := fmt.Sprintf("http://%s/healthz", net.JoinHostPort(address.String(), "10250"))
	if out, err := r.get("a-1", url); err != nil || !strings.Contains(out, "HTTP request to an HTTPS server") {
		r.Errorf("its kubelet answers to a node of the other pool %q, %v", out, err)
	}
	// A node that cannot be created leaves nothing either.
	if err := r.AddRealNodes(r.Context(), RealNodeSpec{NodeSpec: NodeSpec{Name: "b-2", Labels: map[string]string{"not a label": ""}}}); err == nil {
		r.Error("a node with an impossible label is added")
	}
	if _, err := os.Stat(r.nodeDir("b-2")); !errors.Is(err, os.ErrNotExist) {
		r.Errorf("the disk of a node that was refused is left: %v", err)
	}
}

// testNothingIsLeft: neither of processes, mounts, devices and control groups nor of files.
func (r *rig) testNothingIsLeft() {
	dir, name := r.Dir(), r.Name()
	if err := r.Stop(context.Background()); err != nil {
		r.Fatal(err)
	}
	if left := leftovers(r.T, dir, name); left != "" {
		r.Error(left)
	}
}

// leftovers returns what is left of a cluster.
func leftovers(t *testing.T, dir, name string) string {
	t.Helper()
	var left []string
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), dir) {
		left = append(left, "mounts of its directory")
	}
	for _, pattern := range []string{"/sys/fs/cgroup/atoll-" + name + "-*", "/sys/fs/cgroup/*/atoll-" + name + "-*", dir} {
		if found, _ := filepath.Glob(pattern); len(found) > 0 {
			left = append(left, fmt.Sprint(found))
		}
	}
	processes, _ := filepath.Glob("/proc/[0-9]*")
	mark := regexp.MustCompile(clusterMark + "=[^\x00]*/" + name + "\x00") // shims have it from containerd
	for _, path := range processes {
		line, err := os.ReadFile(filepath.Join(path, "cmdline"))
		if err != nil {
			continue
		}
		environment, _ := os.ReadFile(filepath.Join(path, "environ"))
		if strings.Contains(string(line), dir) || mark.Match(environment) {
			left = append(left, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return strings.Join(left, "; ")
}
