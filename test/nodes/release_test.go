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
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
	"github.com/atoll-k8s/atoll/devcluster/images"
	"github.com/atoll-k8s/atoll/internal/manager"
)

// sites are the nodes of each site of the example in examples/groups.
var sites = map[string][]string{"beijing": {"bj-0"}, "hangzhou": {"hz-0", "hz-1"}}

func TestMain(m *testing.M) {
	klog.SetLogger(logr.Discard())
	ctrl.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

// rig is a cluster with the nodes of the sites.
type rig struct {
	*testing.T
	*devcluster.Cluster
	client client.Client
	nodes  []string
}

func newRig(t *testing.T) *rig {
	t.Helper()
	if err := devcluster.RealNodesMissing(); err != nil {
		t.Skip(err)
	}
	c, err := devcluster.Start(t.Context(), devcluster.Options{RealNodes: true, Log: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	r := &rig{T: t, Cluster: c}
	if r.client, err = client.New(c.AdminConfig(), client.Options{Scheme: manager.Scheme()}); err != nil {
		t.Fatal(err)
	}
	var specs []devcluster.RealNodeSpec
	for site, nodes := range sites {
		for _, node := range nodes {
			specs = append(specs, devcluster.RealNodeSpec{NodeSpec: devcluster.NodeSpec{Name: node, Labels: map[string]string{"location": site}}, Pool: site})
			r.nodes = append(r.nodes, node)
		}
	}
	if err := c.AddRealNodes(t.Context(), specs...); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) eventually(what string, check func() error) {
	r.Helper()
	var last error
	err := wait.PollUntilContextTimeout(r.Context(), 200*time.Millisecond, 3*time.Minute, true, func(context.Context) (bool, error) {
		last = check()
		return last == nil, nil
	})
	if err != nil {
		r.Fatalf("%s: %v\n%s", what, last, r.kubectl("get", "pods,deployments,nodegroups,propagationpolicies,overridepolicies", "-A", "-o", "wide"))
	}
}

func (r *rig) kubectl(args ...string) string {
	r.Helper()
	var out bytes.Buffer
	cmd := exec.CommandContext(r.Context(), r.BinaryPath("kubectl"), append([]string{"--kubeconfig=" + r.KubeconfigPath()}, args...)...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		r.Errorf("kubectl %s: %v: %s", strings.Join(args, " "), err, out.String())
	}
	return out.String()
}

// pulls counts the images that a registry has given out.
type pulls struct {
	mu    sync.Mutex
	paths map[string]int
}

func (p *pulls) of(image string) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for path, count := range p.paths {
		if strings.HasPrefix(path, "/v2/"+image+"/manifests/") {
			n += count
		}
	}
	return n
}

// registry runs a registry under a host name for all nodes. It has one image, which serves HTTP.
func (r *rig) registry(host, image string) *pulls {
	r.Helper()
	var config net.ListenConfig
	listener, err := config.Listen(r.Context(), "tcp", r.ServerAddress()+":0")
	if err != nil {
		r.Fatal(err)
	}
	p := &pulls{paths: map[string]int{}}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.Method == http.MethodGet {
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
	built, err := images.New(images.Spec{
		Programs:   map[string]string{"/pause": filepath.Join(r.Dir(), "bin", "devcluster-pause")},
		Entrypoint: []string{"/pause", "serve", ":80"}, Architecture: runtime.GOARCH, Labels: map[string]string{"host": host},
	})
	if err != nil {
		r.Fatal(err)
	}
	ref, err := name.ParseReference(listener.Addr().String()+"/"+image, name.Insecure)
	if err != nil {
		r.Fatal(err)
	}
	if err := remote.Write(ref, built, remote.WithContext(r.Context())); err != nil {
		r.Fatal(err)
	}
	if err := r.UseRegistry(host, "http://"+listener.Addr().String(), r.nodes...); err != nil {
		r.Fatal(err)
	}
	return p
}

// TestTheChartOnRealNodes: installed by Helm with two replicas, used for the example in
// examples/groups with real registries, then upgraded to another form, rolled back and removed.
func TestTheChartOnRealNodes(t *testing.T) {
	r := newRig(t)
	release, err := atoll.NewRelease(t.Context(), r.Cluster, "", os.Stderr, r.nodes...)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := release.Install(t.Context(), nil); err != nil {
		t.Fatalf("%v\n%s", err, r.kubectl("-n", atoll.Namespace, "describe", "pods"))
	}
	t.Logf("the chart is installed after %s", time.Since(began).Round(time.Millisecond))
	r.replicas("atoll-manager", 2)

	registries := map[string]*pulls{}
	for site := range sites {
		registries[site] = r.registry(site+".registry.io", "nginx:1.27")
	}
	root := filepath.Join("..", "..", "examples", "groups")
	r.kubectl("apply", "-f", filepath.Join(root, "01-nodegroups.yaml"), "-f", filepath.Join(root, "02-policies.yaml"))
	labelled := filepath.Join(t.TempDir(), "deployment.yaml")
	text := r.kubectl("label", "--local", "-f", filepath.Join(root, "deployment.yaml"), "-o", "yaml",
		gm.RequiredPropagationPolicyLabel+"=nginx-propagationpolicy", gm.RequiredOverridePolicyLabel+"=nginx-overridepolicy")
	if err := os.WriteFile(labelled, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r.kubectl("apply", "-f", labelled)
	want := map[string]int{"beijing": 2, "hangzhou": 3}
	r.example(want)
	for site, p := range registries {
		if p.of("nginx") == 0 {
			t.Errorf("nothing was pulled from the registry of %s", site)
		}
	}

	began = time.Now()
	if err := release.Upgrade(t.Context(), map[string]any{"scheduler": map[string]any{"mode": string(atoll.Isolated)}}); err != nil {
		t.Fatalf("%v\n%s", err, r.kubectl("-n", atoll.Namespace, "describe", "pods"))
	}
	t.Logf("upgraded to the form Isolated after %s", time.Since(began).Round(time.Millisecond))
	r.replicas("atoll-scheduler", 2)
	r.kubectl("rollout", "restart", "deployment/nginx")
	r.kubectl("rollout", "status", "deployment/nginx", "--timeout=2m")
	r.example(want)
	if err := release.Rollback(); err != nil {
		t.Fatal(err)
	}
	r.kubectl("rollout", "restart", "deployment/nginx")
	r.kubectl("rollout", "status", "deployment/nginx", "--timeout=2m")
	r.example(want)

	r.kubectl("delete", "-f", filepath.Join(root, "deployment.yaml"), "-f", filepath.Join(root, "02-policies.yaml"), "-f", filepath.Join(root, "01-nodegroups.yaml"))
	if err := release.Uninstall(); err != nil {
		t.Fatal(err)
	}
	r.nothingIsLeft()
}

// replicas fails the test unless a Deployment of the release has so many ready pods, on different
// nodes, that have not been restarted.
func (r *rig) replicas(name string, want int) {
	r.Helper()
	nodes := map[string]bool{}
	for _, pod := range r.pods(atoll.Namespace) {
		if pod.Labels["app.kubernetes.io/name"] != name || pod.DeletionTimestamp != nil {
			continue
		}
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

func (r *rig) pods(namespace string) []corev1.Pod {
	r.Helper()
	var list corev1.PodList
	if err := r.client.List(r.Context(), &list, client.InNamespace(namespace)); err != nil {
		r.Fatal(err)
	}
	return list.Items
}

// example waits until the pods of the example are divided as its policy says, each runs the image
// of the registry of its site, and no container was ever started with another one. All answer over
// HTTP.
func (r *rig) example(want map[string]int) {
	r.Helper()
	r.eventually("the example is as it should be", func() error {
		got := map[string]int{}
		for _, pod := range r.pods("default") {
			site := ""
			for s, nodes := range sites {
				for _, node := range nodes {
					if node == pod.Spec.NodeName {
						site = s
					}
				}
			}
			if pod.DeletionTimestamp != nil || len(pod.Status.ContainerStatuses) == 0 || !pod.Status.ContainerStatuses[0].Ready {
				return fmt.Errorf("pod %s is not ready: %s", pod.Name, pod.Status.Phase)
			}
			if image := pod.Status.ContainerStatuses[0].Image; image != site+".registry.io/nginx:1.27" || pod.Status.ContainerStatuses[0].RestartCount > 0 {
				r.Fatalf("pod %s on %s runs %s, and was restarted %d times", pod.Name, pod.Spec.NodeName, image, pod.Status.ContainerStatuses[0].RestartCount)
			}
			got[site]++
		}
		for site, n := range want {
			if got[site] != n {
				return fmt.Errorf("the pods are in %v", got)
			}
		}
		return nil
	})
	from := r.pods("default")[0]
	for _, pod := range r.pods("default") {
		if out := r.kubectl("exec", from.Name, "--", "/pause", "get", "http://"+pod.Status.PodIP); out != pod.Name {
			r.Errorf("pod %s answers %q", pod.Name, out)
		}
	}
}

// nothingIsLeft fails the test if something of the release is there after it was removed.
// CustomResourceDefinitions stay: docs/install.md.
func (r *rig) nothingIsLeft() {
	r.Helper()
	for _, kind := range []string{
		"mutatingwebhookconfigurations", "validatingwebhookconfigurations", "validatingadmissionpolicies", "validatingadmissionpolicybindings", "clusterroles", "clusterrolebindings", "flowschemas",
	} {
		for line := range strings.Lines(r.kubectl("get", kind, "-o", "name")) {
			if strings.Contains(line, "atoll") {
				r.Errorf("%s is left", strings.TrimSpace(line))
			}
		}
	}
	var deployments appsv1.DeploymentList
	if err := r.client.List(r.Context(), &deployments, client.InNamespace(atoll.Namespace)); err != nil || len(deployments.Items) > 0 {
		r.Errorf("%d Deployments are left, %v", len(deployments.Items), err)
	}
	r.eventually("its pods end", func() error {
		if pods := r.pods(atoll.Namespace); len(pods) > 0 {
			return fmt.Errorf("%d pods are left", len(pods))
		}
		return nil
	})
}
