// Package nodes tests Atoll on real nodes, with kubelets, containers and a network: installed by
// Helm from the chart, with atoll-manager in pods.
package nodes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
	"github.com/atoll-k8s/atoll/devcluster/images"
	"github.com/atoll-k8s/atoll/internal/manager"
)

// sites are the nodes of each site of the example in examples/groups.
var sites = map[string][]string{"beijing": {"bj-0"}, "hangzhou": {"hz-0", "hz-1"}}

// patience bounds each wait, also on a slow and busy machine.
const patience = 5 * time.Minute

func TestMain(m *testing.M) {
	klog.SetLogger(logr.Discard())
	ctrl.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

// rig is a cluster with the nodes of the sites, on which the example in examples/groups runs.
type rig struct {
	*testing.T
	*devcluster.Cluster
	client client.Client
	nodes  []string

	// registries are those of the sites. tags are the tags of nginx that run there.
	registries map[string]*pulls
	tags       map[string]string
	// restarted are the containers that were restarted once, as is wanted, by their pods.
	restarted map[types.UID]bool
}

// part runs a part of a test on the same cluster.
func (r *rig) part(name string, run func(*rig)) {
	r.Helper()
	r.Run(name, func(t *testing.T) {
		part := *r
		part.T = t
		run(&part)
	})
}

// startRig starts a cluster without nodes.
func startRig(t *testing.T, args map[string][]string) *rig {
	t.Helper()
	if err := devcluster.RealNodesMissing(); err != nil {
		t.Skip(err)
	}
	c, err := devcluster.Start(t.Context(), devcluster.Options{LowIdle: true, RealNodes: true, Log: os.Stderr, ComponentArgs: args})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	r := &rig{
		T: t, Cluster: c, registries: map[string]*pulls{}, restarted: map[types.UID]bool{},
		tags: map[string]string{"beijing": "1.27", "hangzhou": "1.27"},
	}
	if r.client, err = client.New(c.AdminConfig(), client.Options{Scheme: manager.Scheme()}); err != nil {
		t.Fatal(err)
	}
	return r
}

// newRig starts a cluster with the nodes of the sites.
func newRig(t *testing.T) *rig {
	t.Helper()
	r := startRig(t, map[string][]string{
		// A node that is away loses its pods soon.
		devcluster.ControllerManager: {"--node-monitor-grace-period=40s"},
		devcluster.APIServer:         {"--default-unreachable-toleration-seconds=3", "--default-not-ready-toleration-seconds=3"},
	})
	var specs []devcluster.RealNodeSpec
	for site, nodes := range sites {
		for _, node := range nodes {
			specs = append(specs, devcluster.RealNodeSpec{
				NodeSpec: devcluster.NodeSpec{Name: node, Labels: map[string]string{"location": site}}, Pool: site,
				Kubelet: map[string]any{"nodeLeaseDurationSeconds": 16}, // renewed every 4 s
			})
			r.nodes = append(r.nodes, node)
		}
	}
	if err := r.AddRealNodes(t.Context(), specs...); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) eventually(what string, check func() error) {
	r.Helper()
	var last error
	err := wait.PollUntilContextTimeout(r.Context(), 200*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		last = check()
		return last == nil, nil
	})
	if err != nil {
		r.Fatalf("%s\n%s: %v", r.state(), what, last)
	}
}

// state returns what tells why something has not come about, the most telling last: a log may be
// cut at its start.
func (r *rig) state() string {
	var all strings.Builder
	for _, args := range [][]string{
		{"get", "events", "-A", "--sort-by=.lastTimestamp", "-o", "custom-columns=AT:.lastTimestamp,OBJECT:.involvedObject.name,REASON:.reason,MESSAGE:.message"},
		{"logs", "-n", atoll.Namespace, "-l", "app.kubernetes.io/name=atoll-manager", "--prefix", "--tail=60"},
		{"get", "nodes,nodegroups,propagationpolicies,overridepolicies", "-A"},
		{"get", "deployments,jobs,statefulsets,pods", "-A", "-o", "wide"},
	} {
		out, err := r.tryKubectl(args...)
		if err != nil {
			out = err.Error()
		}
		fmt.Fprintf(&all, "kubectl %s\n%s\n", strings.Join(args, " "), out)
	}
	return all.String()
}

// kubectl returns what kubectl prints, and ends the test if it fails.
func (r *rig) kubectl(args ...string) string {
	r.Helper()
	out, err := r.tryKubectl(args...)
	if err != nil {
		r.Fatal(err)
	}
	return out
}

func (r *rig) tryKubectl(args ...string) (string, error) {
	var out bytes.Buffer
	cmd := exec.CommandContext(r.Context(), r.BinaryPath("kubectl"), append([]string{"--kubeconfig=" + r.KubeconfigPath()}, args...)...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, out.String())
	}
	return out.String(), nil
}

// pulls counts the images that a registry has given out.
type pulls struct {
	address string
	mu      sync.Mutex
	paths   map[string]int
}

// of returns how often a tag of an image was asked for.
func (p *pulls) of(image, tag string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.paths["/v2/"+image+"/manifests/"+tag]
}

// registry runs the registry of a site, under its host name on all nodes.
func (r *rig) registry(site string) {
	r.Helper()
	var config net.ListenConfig
	listener, err := config.Listen(r.Context(), "tcp", r.ServerAddress()+":0")
	if err != nil {
		r.Fatal(err)
	}
	p := &pulls{address: listener.Addr().String(), paths: map[string]int{}}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.Method != http.MethodPut {
			p.mu.Lock()
			p.paths[q.URL.Path]++
			p.mu.Unlock()
		}
		inner.ServeHTTP(w, q)
	})}
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			r.Error(err)
		}
	}()
	r.Cleanup(func() { _ = server.Close() })
	if err := r.UseRegistry(site+".registry.io", "http://"+p.address, r.nodes...); err != nil {
		r.Fatal(err)
	}
	r.registries[site] = p
}

// push gives the registry of a site the image nginx under a tag. It serves HTTP, and each one has
// other content: containerd reports one of the names of what it has.
func (r *rig) push(site, tag string) {
	r.Helper()
	built, err := images.New(images.Spec{
		Programs:   map[string]string{"/pause": filepath.Join(r.Dir(), "bin", "devcluster-pause")},
		Entrypoint: []string{"/pause", "serve", ":80"}, Architecture: runtime.GOARCH, Fast: true, Labels: map[string]string{"site": site, "tag": tag},
	})
	if err != nil {
		r.Fatal(err)
	}
	ref, err := name.ParseReference(r.registries[site].address+"/nginx:"+tag, name.Insecure)
	if err != nil {
		r.Fatal(err)
	}
	if err := remote.Write(ref, built, remote.WithContext(r.Context())); err != nil {
		r.Fatal(err)
	}
}

// image is the image of nginx that the pods of a site run.
func (r *rig) image(site string) string { return site + ".registry.io/nginx:" + r.tags[site] }

// siteOf returns the site of a node.
func siteOf(node string) string {
	for site, nodes := range sites {
		if slices.Contains(nodes, node) {
			return site
		}
	}
	return ""
}

// replicas fails the test unless a Deployment of the release has so many ready pods, on different
// nodes, that have not been restarted. It waits until those that are being deleted are gone, because
// the API server may ask them.
func (r *rig) replicas(name string, want int) {
	r.Helper()
	var pods []corev1.Pod
	r.eventually("replicas that end are gone", func() error {
		pods = slices.DeleteFunc(r.pods(atoll.Namespace, ""), func(pod corev1.Pod) bool { return pod.Labels["app.kubernetes.io/name"] != name })
		for _, pod := range pods {
			if pod.DeletionTimestamp != nil {
				return fmt.Errorf("pod %s is being deleted", pod.Name)
			}
		}
		return nil
	})
	nodes := map[string]bool{}
	for _, pod := range pods {
		nodes[pod.Spec.NodeName] = true
		for _, s := range pod.Status.ContainerStatuses {
			if !s.Ready || s.RestartCount > 0 {
				r.Errorf("container %s of %s is ready: %t, and was restarted %d times: %+v", s.Name, pod.Name, s.Ready, s.RestartCount, s.LastTerminationState)
			}
		}
	}
	if len(nodes) != want {
		r.Errorf("%s runs on %v, want %d nodes", name, nodes, want)
	}
}

// pods returns the pods of a namespace, with a label app of this value; "" is all.
func (r *rig) pods(namespace, app string) []corev1.Pod {
	r.Helper()
	options := []client.ListOption{client.InNamespace(namespace)}
	if app != "" {
		options = append(options, client.MatchingLabels{"app": app})
	}
	var list corev1.PodList
	if err := r.client.List(r.Context(), &list, options...); err != nil {
		r.Fatal(err)
	}
	return list.Items
}

// want is how the policy of the example divides its five pods.
var want = map[string]int{"beijing": 2, "hangzhou": 3}

// example waits until the pods of the example are divided as its policy says and each is ready,
// and no other is there. All answer over HTTP. Each runs the image of the registry of its site,
// and no container was ever started with another one.
func (r *rig) example() {
	r.Helper()
	var pods []corev1.Pod
	r.eventually("the example is as it should be", func() error {
		pods = r.pods("default", "nginx")
		for _, pod := range pods {
			if pod.DeletionTimestamp != nil {
				return fmt.Errorf("pod %s is being deleted", pod.Name)
			}
		}
		return r.divided(pods)
	})
	for _, pod := range pods {
		// A kubelet whose containerd was started again finds it after up to three seconds.
		r.eventually("pod "+pod.Name+" answers", func() error {
			out, err := r.tryKubectl("exec", pods[0].Name, "--", "/pause", "get", "http://"+pod.Status.PodIP)
			if err == nil && out != pod.Name {
				err = fmt.Errorf("it answers %q", out)
			}
			return err
		})
	}
}

// divided returns nil if the pods that are not being deleted are as they should be.
func (r *rig) divided(pods []corev1.Pod) error {
	got := map[string]int{}
	for _, pod := range pods {
		if pod.DeletionTimestamp != nil {
			continue
		}
		if len(pod.Status.ContainerStatuses) == 0 || !pod.Status.ContainerStatuses[0].Ready {
			return fmt.Errorf("pod %s is not ready: %s", pod.Name, pod.Status.Phase)
		}
		site, status := siteOf(pod.Spec.NodeName), pod.Status.ContainerStatuses[0]
		if status.Image != r.image(site) || status.RestartCount > 1 || status.RestartCount == 1 && !r.restarted[pod.UID] {
			r.Fatalf("pod %s on %s runs %s, and was restarted %d times", pod.Name, pod.Spec.NodeName, status.Image, status.RestartCount)
		}
		got[site]++
	}
	if !maps.Equal(got, want) {
		return fmt.Errorf("the pods are in %v", got)
	}
	return nil
}
