// Package ui drives the page of kubectl atoll ui in a real browser: Debian's chromium, by playwright-core.
// make ui-test brings playwright-core, and skips where there is no chromium or no Node.js.
package ui

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
	"github.com/atoll-k8s/atoll/internal/kubectl/page"
	"github.com/atoll-k8s/atoll/internal/kubectl/read"
)

func needsBrowser(t *testing.T) {
	t.Helper()
	if os.Getenv("PLAYWRIGHT") == "" {
		t.Skip("there is no browser: make ui-test")
	}
}

// script runs a script in the browser.
func script(t *testing.T, name string, env ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "node", name)
	cmd.Env = append(os.Environ(), env...)
	text, err := cmd.CombinedOutput()
	t.Logf("%s\nscreenshots are in %s", text, os.Getenv("OUT"))
	if err != nil {
		t.Fatal(err)
	}
}

// serveUI runs kubectl-atoll ui, and returns its address.
func serveUI(t *testing.T, kubeconfig string, args ...string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "kubectl-atoll")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".")
	build.Dir = "../../cmd/kubectl-atoll"
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building kubectl-atoll: %v\n%s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), program, append([]string{"--kubeconfig", kubeconfig, "ui", "--open=false"}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// TestPage: the page of a real cluster, for an administrator in the browser, and for somebody who may not see
// nodes.
func TestPage(t *testing.T) {
	needsBrowser(t)
	ctx := t.Context()
	cluster, err := devcluster.Start(ctx, devcluster.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cluster.Stop(context.Background()) })
	for _, side := range []string{"left", "right"} {
		if err := cluster.AddNodes(ctx, devcluster.NodeSpec{Name: side + "-0", Labels: map[string]string{"side": side}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := atoll.Install(ctx, cluster, atoll.Options{}); err != nil {
		t.Fatal(err)
	}
	scheme, err := read.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	if err := rbacv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(cluster.AdminConfig(), client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	const ns = "default"
	weight := func(group string, n int64) gm.StaticNodeGroupWeight {
		return gm.StaticNodeGroupWeight{NodeGroupNames: []string{group}, Weight: n}
	}
	for _, object := range []client.Object{
		&gm.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "left"}, Spec: gm.NodeGroupSpec{MatchLabels: map[string]string{"side": "left"}}},
		&gm.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "right"}, Spec: gm.NodeGroupSpec{MatchLabels: map[string]string{"side": "right"}}},
		&gm.PropagationPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "spread"}, Spec: gm.PropagationSpec{StaticWeight: []gm.StaticNodeGroupWeight{weight("left", 3), weight("right", 2)}}},
		&appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "web", Labels: map[string]string{gm.RequiredPropagationPolicyLabel: "spread"}},
			Spec: appsv1.DeploymentSpec{
				Replicas: ptr.To[int32](5), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
				Template: corev1.PodTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
					Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "app"}}},
				},
			},
		},
	} {
		if err := c.Create(ctx, object); err != nil {
			t.Fatal(err)
		}
	}
	script(t, "page.mjs", "ADDRESS="+serveUI(t, cluster.KubeconfigPath()), "KUBECTL="+cluster.BinaryPath("kubectl"), "KUBECONFIG="+cluster.KubeconfigPath(), "NS="+ns)
	viewer, err := cluster.Kubeconfig(ctx, "viewer")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "viewer"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "viewer"}},
	}); err != nil {
		t.Fatal(err)
	}
	err = wait.PollUntilContextTimeout(ctx, time.Second, time.Minute, true, func(ctx context.Context) (bool, error) {
		return exec.CommandContext(ctx, cluster.BinaryPath("kubectl"), "--kubeconfig", viewer, "get", "pods").Run() == nil, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	script(t, "viewer.mjs", "ADDRESS="+serveUI(t, viewer))
}

// TestPaint: 1,000 pods of 20 workloads in 50 NodeGroups. It says how long they take to be painted.
func TestPaint(t *testing.T) {
	needsBrowser(t)
	const groups, workloads, pods = 50, 20, 1000
	o := &page.Observed{}
	for i := range groups {
		o.Groups.Items = append(o.Groups.Items, gm.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("group-%02d", i)}})
	}
	policy := gm.PropagationPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "spread"}}
	for i := range workloads {
		policy.Status.Apps = append(policy.Status.Apps, gm.WorkloadSpread{Ref: gm.WorkloadReference{Kind: "Deployment", Name: fmt.Sprintf("web-%02d", i)}})
	}
	o.Propagations.Items = []gm.PropagationPolicy{policy}
	for i := range pods {
		o.Pods.Items = append(o.Pods.Items, corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "shop", Name: fmt.Sprintf("pod-%04d", i), Labels: map[string]string{gm.NodeGroupLabel: fmt.Sprintf("group-%02d", i%groups)},
				OwnerReferences: []metav1.OwnerReference{{Kind: "Deployment", Name: fmt.Sprintf("web-%02d", i/groups), Controller: ptr.To(true)}},
			},
			Spec:   corev1.PodSpec{NodeName: fmt.Sprintf("node-%d", i%groups)},
			Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
		})
	}
	picture, err := page.Of(o)
	if err != nil {
		t.Fatal(err)
	}
	server := &page.Server{Feed: page.NewFeed()}
	server.Feed.Set(picture)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := make(chan page.Addresses, 1)
	go func() { _ = server.Serve(t.Context(), listener, func(a page.Addresses) { at <- a }) }()
	script(t, "paint.mjs", "ADDRESS="+(<-at).Page, fmt.Sprintf("PODS=%d", pods), "ROUNDS=7")
}
