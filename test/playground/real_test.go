package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// TestInvalidRealNodeOptionsAreRefused: what the playground cannot do is refused before anything is started.
func TestInvalidRealNodeOptionsAreRefused(t *testing.T) {
	rename(t, "playground-refused")
	refused(t, "-real-nodes=-1: it is a number from 1 to 20", "-real-nodes=-1")
	refused(t, "-real-nodes=21: it is a number from 1 to 20", "-real-nodes=21")
	refused(t, "-form=Plain needs simulated nodes", "-real-nodes=3", "-form=Plain")
	t.Setenv("CC", "no-such-compiler")
	refused(t, devcluster.RealNodesMissing().Error(), "-real-nodes=3")
	if _, err := devcluster.Attach(t.Context(), name); err == nil {
		t.Error("a playground was started")
	}
}

// TestSpecsOfRealNodes: they are divided over the sites, and have the labels of simulated nodes.
func TestSpecsOfRealNodes(t *testing.T) {
	specs, bySite := realSpecs(3)
	var names []string
	for _, spec := range specs {
		names = append(names, spec.Name)
		if site := spec.Labels["location"]; spec.Pool != site || !slices.Contains(bySite[site], spec.Name) || spec.Labels["apps.openyurt.io/nodepool"] != site {
			t.Errorf("node %s has the labels %v and is in %v", spec.Name, spec.Labels, bySite)
		}
	}
	if want := []string{"hangzhou-0", "beijing-0", "hangzhou-1"}; !slices.Equal(names, want) {
		t.Errorf("the nodes are %v, want %v", names, want)
	}
}

// TestUpAndDownOnRealNodes: the playground outlives the command, the example of the README runs on
// it and answers, and down removes it.
func TestUpAndDownOnRealNodes(t *testing.T) {
	tier.All(t, "starts and stops a whole playground with real nodes: 1.5 min")
	if err := devcluster.RealNodesMissing(); err != nil {
		t.Skip(err)
	}
	rename(t, "playground-real")
	if err := run(t.Context(), []string{"-real-nodes=2", "-form=Isolated"}); err != nil {
		t.Fatal(err)
	}
	if err := run(t.Context(), nil); err != nil {
		t.Error(err)
	}
	refused(t, "runs on 2 real nodes, not on simulated nodes: stop it with make down first", "-real-nodes=0")
	refused(t, "runs in the form Isolated, not Pinned: stop it with make down first", "-form=Pinned")
	cluster, err := devcluster.Attach(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	kubectl := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), cluster.BinaryPath("kubectl"), append([]string{"--kubeconfig=" + cluster.KubeconfigPath()}, args...)...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("kubectl %v: %v: %s", args, err, out)
		}
		return string(out)
	}
	examples := filepath.Join("..", "..", "examples", "groups")
	labelled := filepath.Join(t.TempDir(), "deployment.yaml")
	text := kubectl("label", "--local", "-f", filepath.Join(examples, "deployment.yaml"), "-o", "yaml",
		gm.RequiredPropagationPolicyLabel+"=nginx-propagationpolicy", gm.RequiredOverridePolicyLabel+"=nginx-overridepolicy")
	if err := os.WriteFile(labelled, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	kubectl("apply", "-f", filepath.Join(examples, "02-policies.yaml"), "-f", labelled)
	client, err := kubernetes.NewForConfig(cluster.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	var pods []corev1.Pod
	var last error
	err = wait.PollUntilContextTimeout(t.Context(), 200*time.Millisecond, 2*time.Minute, true, func(ctx context.Context) (bool, error) {
		list, err := client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		pods = list.Items
		last = exampleRuns(pods)
		return last == nil, nil
	})
	if err != nil {
		t.Fatalf("%v: %v\n%s", err, last, kubectl("describe", "pods"))
	}
	for _, pod := range pods {
		if out := kubectl("exec", pods[0].Name, "--", "/pause", "get", "http://"+pod.Status.PodIP); out != pod.Name {
			t.Errorf("pod %s answers %q", pod.Name, out)
		}
	}
	if err := run(t.Context(), []string{"-down"}); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(cluster.Dir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory of the playground is left: %v", err)
	}
}

// exampleRuns returns nil if three pods in hangzhou and two in beijing are ready, each with the
// image of its site's registry.
func exampleRuns(pods []corev1.Pod) error {
	want := map[string]int{"hangzhou-0": 3, "beijing-0": 2}
	for _, pod := range pods {
		image := registryOf(strings.TrimSuffix(pod.Spec.NodeName, "-0")) + "/nginx:1.27"
		if s := pod.Status.ContainerStatuses; pod.DeletionTimestamp != nil || len(s) == 0 || !s[0].Ready || s[0].Image != image {
			return fmt.Errorf("pod %s on %q is not ready with image %s: %+v", pod.Name, pod.Spec.NodeName, image, s)
		}
		want[pod.Spec.NodeName]--
	}
	for node, n := range want {
		if n != 0 {
			return fmt.Errorf("node %s lacks %d pods", node, n)
		}
	}
	return nil
}
