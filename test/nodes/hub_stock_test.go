package nodes

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// TestTheHubWithStockClients: kube-proxy, CoreDNS and flannel reach the cloud through atoll-hub only. The node is
// cut off and loses its power. Its programs start again with their Services, names and routes, and people can use
// kubectl.
func TestTheHubWithStockClients(t *testing.T) {
	tier.All(t, "its programs take minutes to build; TestTheHubOnRealNodes has the hub itself")
	t.Parallel() // most of its time it waits
	services := devcluster.StockServicesMissing()
	if services != nil {
		t.Logf("without kube-proxy and CoreDNS: %v", services)
	}
	r := &offRig{rig: startRig(t, map[string][]string{devcluster.ControllerManager: {"--node-monitor-grace-period=8s", "--node-monitor-period=1s"}}), starts: 1}
	gateway, err := atoll.NewHub(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	var specs []devcluster.RealNodeSpec
	for _, name := range edge {
		specs = append(specs, devcluster.RealNodeSpec{
			NodeSpec: devcluster.NodeSpec{Name: name, Labels: map[string]string{"edge": "yes"}}, Pool: "edge", Gateway: gateway,
			Kubelet:       map[string]any{"nodeLeaseDurationSeconds": 8}, // renewed every 2 s
			StockServices: services == nil, StockNetwork: true,
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
			r.showStock()
			t.FailNow()
		}
	}
	part("pods start", (*offRig).testStart)
	part("people use kubectl on the node", (*offRig).testLook)
	part("the node is cut off", (*offRig).testCut)
	part("its programs are started again", (*offRig).testStockPrograms)
	part("it loses its power", (*offRig).testPowerOff)
	part("people use kubectl on the node, cut off", (*offRig).testLook)
	part("the cloud is back", (*offRig).testBack)
}

// stockPrograms returns those of edge-0.
func (r *offRig) stockPrograms() (programs []string) {
	for _, name := range []string{devcluster.KubeProxy, devcluster.CoreDNS, devcluster.Flannel} {
		if _, err := os.Stat(r.NodeLogPath(edge[0], name)); err == nil {
			programs = append(programs, name)
		}
	}
	return programs
}

// showStock prints the ends of the logs of the stock programs of edge-0.
func (r *offRig) showStock() {
	for _, name := range r.stockPrograms() {
		text, err := os.ReadFile(r.NodeLogPath(edge[0], name))
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		r.Logf("%s, %v:\n%s", name, err, strings.Join(lines[max(0, len(lines)-20):], "\n"))
	}
}

// testStockPrograms starts each of them again, without the cloud.
func (r *offRig) testStockPrograms() {
	address := r.podOn(edge[0]).Status.PodIP
	for _, program := range r.stockPrograms() {
		if err := r.KillOn(r.Context(), edge[0], program); err != nil {
			r.Fatal(err)
		}
		if err := r.RestartOn(r.Context(), edge[0], program); err != nil {
			r.Fatal(err)
		}
		r.answers("after a restart of "+program, address)
		r.serviceAnswers("after a restart of " + program)
	}
}

// onNode runs kubectl on edge-0, as the node, by the hub.
func (r *offRig) onNode(args ...string) (string, error) {
	return r.kubectlOn(append([]string{"--kubeconfig=/run/node/kubelet.kubeconfig", "--cache-dir=/tmp/none"}, args...)...)
}

func (r *offRig) kubectlOn(args ...string) (string, error) {
	program := filepath.Join(filepath.Dir(r.BinaryPath("kubectl")), "kubectl")
	return r.RunOn(r.Context(), edge[0], program, args...)
}

// testLook: kubectl on the node, with the kubelet's kubeconfig, and with the token that its pod has.
func (r *offRig) testLook() {
	token, err := r.RunOn(r.Context(), edge[0], "/bin/sh", "-c", "cat /run/node/kubelet/pods/"+string(r.podOn(edge[0]).UID)+"/volumes/kubernetes.io~projected/*/token")
	if err != nil {
		r.Fatal(err)
	}
	if out, err := r.kubectlOn("--server=https://127.0.0.1:10261", "--certificate-authority=/run/node/gateway/serving/ca.crt", "--token="+token, "get", "--raw", "/version"); err != nil || !strings.Contains(out, "gitVersion") {
		r.Errorf("the hub answers the pod's token %q, %v", out, err)
	}
	pod := r.podOn(edge[0]).Name
	r.eventually("kubectl get pods on the node shows its pod", func() error {
		out, err := r.onNode("get", "pods", "-A", "--field-selector", "spec.nodeName="+edge[0])
		if err != nil {
			return err
		}
		for line := range strings.Lines(out) {
			if fields := strings.Fields(line); len(fields) > 3 && fields[1] == pod && fields[2] == "1/1" && fields[3] == string(corev1.PodRunning) {
				return nil
			}
		}
		return fmt.Errorf("it shows:\n%s", out)
	})
	if out, err := r.onNode("get", "pod", pod, "-n", "default", "-o", "jsonpath={.spec.nodeName}"); err != nil || out != edge[0] {
		r.Errorf("kubectl get pod -o jsonpath prints %q, %v", out, err)
	}
	if out, err := r.onNode("logs", pod, "-n", "default", "--tail=5"); err != nil || !strings.Contains(out, pod) {
		r.Errorf("kubectl logs prints %q, %v", out, err)
	}
}
