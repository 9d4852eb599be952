package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
	"github.com/atoll-k8s/atoll/internal/hub"
	"github.com/atoll-k8s/atoll/test/rawclient"
)

// hubUploads measures what a hub pays for its pool's coordinator.
var hubUploads = benchmark{
	name: "hub uploads", nodes: 10, pods: 2 * kubeletPods,
	about: `The CPU of atoll-hub for each change of a pod of its node: of a hub in a pool with [a coordinator](pools.md) ÷ of one without a pool.

- Each of the two nodes has 110 pods and a client that watches them through its hub. 2,000 statuses of pods change, 50 a second, one pod after the other.
  That is much more than a node does: of each pod there is at most one version in two seconds, so each is uploaded.
- The coordinator has etcd, kube-apiserver and the writer, and the hub leads: it also follows Services, EndpointSlices and Namespaces.
- The CPU is that of the hub's process, from the first change until three seconds after the last, less what it needs at rest in that time, measured in the 20 s before.`,
	variants: []variant{{name: "uploads", unit: "ms", ideal: "≤ 1.2", a: "CPU for a change, in a pool with a coordinator", b: "without a pool"}},
	open:     openHubUploads,
}

const (
	// uploadedChanges are those of a round, and changesASecond how fast they come.
	uploadedChanges, changesASecond = 2000, 50
	// settleUploads is the time in which the last changes are uploaded.
	settleUploads = 3 * time.Second
	// restFor is for how long a hub at rest is measured.
	restFor = 20 * time.Second
)

// hubUploadsBench has the coordinator, and the hubs of its two nodes, of which one is in its pool.
type hubUploadsBench struct {
	*coordinatorBench

	programs map[string]*atoll.HubProcess
	clients  map[string]*rawclient.Client
	changed  int
}

// The nodes of the two sides.
const poolNode, loneNode = "node-0", "node-1"

func openHubUploads(ctx context.Context, o options, log io.Writer) (bench, error) {
	cluster, err := devcluster.Start(ctx, devcluster.Options{Log: log, KeepDir: o.keep})
	if err != nil {
		return nil, err
	}
	o.nodes = 2
	h := &hubUploadsBench{
		coordinatorBench: &coordinatorBench{bed: &bed{options: o, log: log, cluster: cluster}, running: map[string]*exec.Cmd{}},
		programs:         map[string]*atoll.HubProcess{}, clients: map[string]*rawclient.Client{},
	}
	err = h.prepare(ctx)
	if err == nil {
		err = h.govern(ctx, poolNode)
	}
	for _, node := range []string{poolNode, loneNode} {
		if err == nil {
			err = h.addHub(ctx, node)
		}
	}
	if err != nil {
		return nil, errors.Join(err, h.close())
	}
	return h, nil
}

func (h *hubUploadsBench) close() error {
	for _, c := range h.clients {
		c.Close()
	}
	return h.coordinatorBench.close()
}

// govern gives the pool of these nodes its YurtCoordinator, as atoll-manager does.
func (h *hubUploadsBench) govern(ctx context.Context, nodes ...string) error {
	rbac, meta := h.client.RbacV1(), metav1.ObjectMeta{Name: "hubs"}
	_, roleErr := rbac.ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{
		Verbs: []string{"get", "list", "watch"}, APIGroups: []string{"", "discovery.k8s.io", "apps.openyurt.io"}, Resources: []string{"namespaces", "endpointslices", "yurtcoordinators", "nodepools"},
	}}}, metav1.CreateOptions{})
	_, bindErr := rbac.ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name}, Subjects: []rbacv1.Subject{{Kind: rbacv1.GroupKind, Name: "system:nodes"}},
	}, metav1.CreateOptions{})
	status, err := json.Marshal(map[string]any{"status": map[string]any{"addresses": []string{"127.0.0.1"}, "caBundle": h.ca.Cert}})
	file := filepath.Join(filepath.Dir(h.run), "yurtcoordinator.yaml")
	err = errors.Join(roleErr, bindErr, err, os.WriteFile(file, []byte("apiVersion: apps.openyurt.io/v1alpha1\nkind: YurtCoordinator\nmetadata: {name: edge}\nspec: {nodePool: edge}\n"), 0o600))
	for _, args := range [][]string{
		{"apply", "--server-side", "-f", filepath.Join("..", "charts", "atoll", "files", "crds")},
		{"wait", "--for=condition=Established", "crd/yurtcoordinators.apps.openyurt.io"},
		{"create", "-f", file},
		{"patch", "yurtcoordinator", "edge", "--subresource=status", "--type=merge", "--patch=" + string(status)},
		append(append([]string{"label", "node"}, nodes...), "apps.openyurt.io/nodepool=edge"),
	} {
		if err != nil {
			return fmt.Errorf("giving the pool its coordinator: %w", err)
		}
		err = h.kubectl(ctx, args...)
		for range 10 {
			if err == nil || args[0] != "wait" { // it fails for one that has no status yet
				break
			}
			time.Sleep(time.Second)
			err = h.kubectl(ctx, args...)
		}
	}
	return err
}

func (h *hubUploadsBench) kubectl(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, h.cluster.BinaryPath("kubectl"), append([]string{"--kubeconfig=" + h.cluster.KubeconfigPath()}, args...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// addHub starts the hub of a node, with a client.
func (h *hubUploadsBench) addHub(ctx context.Context, node string) (err error) {
	if h.programs[node], err = atoll.StartHub(ctx, h.cluster, node, "", h.log); err != nil {
		return err
	}
	kubeconfig, err := h.cluster.Kubeconfig(ctx, "system:node:"+node, "system:nodes")
	if err == nil {
		h.clients[node], err = rawclient.New(kubeconfig, &h.programs[node].Endpoint, rawclient.Protobuf)
	}
	if err == nil {
		_, err = h.clients[node].Skip(ctx, nodePath(node))
	}
	return err
}

func (h *hubUploadsBench) sides(context.Context, string) (a, b side, err error) {
	return side{name: "uploads", measure: h.cpuOf(poolNode)}, side{name: "no pool", measure: h.cpuOf(loneNode)}, nil
}

// cpuOf returns the CPU of a node's hub for a change, in ms.
func (h *hubUploadsBench) cpuOf(node string) func(context.Context) (sample, error) {
	return func(ctx context.Context) (s sample, err error) {
		w, err := openWatch(ctx, h.clients[node], podsPath(node))
		if err != nil {
			return s, err
		}
		defer w.stop()
		if err := h.eventually(ctx, "the hub to be up to date", func(ctx context.Context) (bool, error) {
			s, err := hub.ReadStatus(ctx, h.programs[node].Observe)
			c := s.Coordinator
			return err == nil && (c == nil) == (node == loneNode) && (c == nil || c.Leads && c.Reason == "" && c.Objects > kubeletPods && c.Waiting+c.Refused == 0), err
		}); err != nil {
			return s, err
		}
		program := h.programs[node].Name
		rest, err := h.usedBy(ctx, func() error { return pause(ctx, restFor) })
		if err != nil {
			return s, err
		}
		began := time.Now()
		used, err := h.usedBy(ctx, func() error { return h.changePods(ctx, node, w) })
		if err != nil {
			return s, err
		}
		atRest := rest.by[program] * float64(time.Since(began)) / float64(restFor)
		return sample{
			rate: (used.by[program] - atRest) * 1000 / uploadedChanges, off: -1, strangers: used.strangers(), facts: fmt.Sprintf("at rest %.2f; %s", atRest, used),
		}, nil
	}
}

// usedBy returns the CPU that the processes use while do runs.
func (h *hubUploadsBench) usedBy(ctx context.Context, do func() error) (usage, error) {
	before, err := usageOf(ctx, h.cluster)
	if err != nil {
		return usage{}, err
	}
	if err := do(); err != nil {
		return usage{}, err
	}
	after, err := usageOf(ctx, h.cluster)
	return after.since(before), err
}

// changePods changes the statuses of a node's pods in turns, and waits until its hub has nothing more to do.
func (h *hubUploadsBench) changePods(ctx context.Context, node string, w *hubWatch) error {
	ticker := time.NewTicker(time.Second / changesASecond)
	defer ticker.Stop()
	first, last := 0, ""
	if node == loneNode {
		first = 1
	}
	for range uploadedChanges {
		h.changed++
		name := fmt.Sprintf("pod-%d", (2*h.changed+first)%h.options.pods)
		pod, err := h.client.CoreV1().Pods(namespace).Patch(ctx, name, types.MergePatchType, fmt.Appendf(nil, `{"status":{"message":"change %d"}}`, h.changed), metav1.PatchOptions{}, "status")
		if err != nil {
			return fmt.Errorf("changing pod %q: %w", name, err)
		}
		last = pod.ResourceVersion
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
	if _, err := w.await(ctx, last); err != nil {
		return err
	}
	return pause(ctx, settleUploads)
}
