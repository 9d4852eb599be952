package e2e

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// scriptOf returns the steps of a section of docs/migrate.md.
func scriptOf(t *testing.T, section string) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/migrate.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(page), "\n## "+section+"\n")
	if !found {
		t.Fatalf("docs/migrate.md has no section %s", section)
	}
	rest, _, _ = strings.Cut(rest, "\n## ")
	var steps []string
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(rest, -1) {
		steps = append(steps, block[1])
	}
	if len(steps) == 0 {
		t.Fatalf("section %s has no steps", section)
	}
	return "set -e\n" + strings.Join(steps, "\n")
}

// foreign creates an object of another project, and the definition of its kind if the cluster lacks it.
func (f *fixture) foreign(group, version, kind, name string, spec map[string]any) *unstructured.Unstructured {
	f.Helper()
	plural := strings.ToLower(kind) + "s"
	crd := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": plural + "." + group},
		"spec": map[string]any{
			"group": group, "scope": "Namespaced",
			"names": map[string]any{"kind": kind, "plural": plural, "singular": strings.ToLower(kind)},
			"versions": []any{map[string]any{
				"name": version, "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
			}},
		},
	}}
	if err := f.client.Create(f.ctx, crd); err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = f.client.Delete(f.Context(), crd) })
	o := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	o.SetAPIVersion(group + "/" + version)
	o.SetKind(kind)
	o.SetNamespace(f.ns)
	o.SetName(name)
	f.eventually(patience, kind+" is served", func() error { return f.client.Create(f.ctx, o) })
	return o
}

// owned is a Deployment that another project's controller has made for one of its objects.
func (f *fixture) owned(owner *unstructured.Unstructured, name string, replicas int32, change func(*appsv1.Deployment)) {
	f.Helper()
	d := deployment(name, replicas, "")
	d.Labels = map[string]string{}
	d.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, owner.GroupVersionKind())}
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	d.Spec.Template.Labels = map[string]string{"app": "web"}
	d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "app", Image: "nginx:1.27"}}
	change(d)
	f.create(d)
}

// readyWeb counts the Ready pods of all workloads "web".
func (f *fixture) readyWeb() (ready int, uids map[types.UID]bool, byLocation map[string]int) {
	f.Helper()
	uids, byLocation = map[types.UID]bool{}, map[string]int{}
	for _, p := range f.pods("web") {
		uids[p.UID] = true
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue && p.DeletionTimestamp == nil {
				ready++
				byLocation[strings.TrimSuffix(p.Spec.NodeName, "-0")]++
			}
		}
	}
	return ready, uids, byLocation
}

// migrate runs the steps of a section, and counts the Ready pods meanwhile: they are never fewer than five.
func (f *fixture) migrate(section string) {
	f.Helper()
	kubeconfig := filepath.Join(f.TempDir(), "kubeconfig")
	raw, err := os.ReadFile(f.cluster.KubeconfigPath())
	if err != nil {
		f.Fatal(err)
	}
	if err := os.WriteFile(kubeconfig, raw, 0o600); err != nil {
		f.Fatal(err)
	}
	run := func(script string) ([]byte, error) {
		cmd := exec.CommandContext(f.ctx, "sh", "-c", script)
		cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "PATH="+filepath.Dir(f.cluster.BinaryPath("kubectl"))+":"+os.Getenv("PATH"))
		return cmd.CombinedOutput()
	}
	if out, err := run("kubectl config set-context --current --namespace=" + f.ns); err != nil {
		f.Fatalf("%v: %s", err, out)
	}
	ended := make(chan struct{})
	least := 5
	go func() {
		defer close(ended)
		if out, err := run(scriptOf(f.T, section)); err != nil {
			f.Errorf("the steps: %v: %s", err, out)
		}
	}()
	for {
		select {
		case <-ended:
			if least < 5 {
				f.Errorf("meanwhile there were only %d Ready pods", least)
			}
			return
		default:
			ready, _, _ := f.readyWeb()
			least = min(least, ready)
		}
	}
}

// TestMigration: the steps of docs/migrate.md, as they stand there, keep at least as many pods Ready as there were.
func TestMigration(t *testing.T) {
	tier.All(t, "a cluster of its own, and three migrations: two minutes")
	f := newFixtureOfItsOwn(t, atoll.Options{})
	for _, location := range []string{"hangzhou", "beijing"} {
		f.nodes(map[string]string{"location": location}, location+"-0")
	}
	pinned := func(location string) func(*appsv1.Deployment) {
		return func(d *appsv1.Deployment) {
			d.Spec.Template.Spec.NodeSelector = map[string]string{"location": location}
		}
	}
	is := func(f *fixture, want map[string]int) error {
		if _, _, have := f.readyWeb(); !maps.Equal(have, want) {
			return fmt.Errorf("the pods are %v", have)
		}
		return nil
	}
	want := map[string]int{"hangzhou": 3, "beijing": 2}
	cleared := func(f *fixture) {
		for _, kind := range []string{"nodegroups.groupmanagement.kubeedge.io", "propagationpolicies.groupmanagement.kubeedge.io", "overridepolicies.groupmanagement.kubeedge.io", "deployments", "uniteddeployments.apps.openyurt.io"} {
			f.run(fmt.Sprintf("kubectl -n %s delete %s --all --wait", f.ns, kind))
		}
		f.clear()
	}
	f.part("KubeEdge", func(f *fixture) {
		edge := f.foreign("apps.kubeedge.io", "v1alpha1", "EdgeApplication", "web", map[string]any{"workloadScope": map[string]any{"targetNodeGroups": []any{map[string]any{"name": "hangzhou"}, map[string]any{"name": "beijing"}}}})
		f.owned(edge, "web-hangzhou", 3, pinned("hangzhou"))
		f.owned(edge, "web-beijing", 2, pinned("beijing"))
		f.eventually(patience, "as KubeEdge has left it", func() error { return is(f, want) })
		f.migrate("KubeEdge")
		f.eventually(patience, "one Deployment is divided as before", func() error { return is(f, want) })
		for _, p := range f.pods("web") {
			if p.Spec.NodeName == "hangzhou-0" && p.Spec.Containers[0].Image != "hangzhou.registry.io/nginx:1.27" {
				f.Errorf("%s has the image %s", p.Name, p.Spec.Containers[0].Image)
			}
		}
		cleared(f)
	})
	f.part("OpenKruise", func(f *fixture) {
		f.foreign("apps.kruise.io", "v1alpha1", "WorkloadSpread", "web", map[string]any{"targetRef": map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}})
		// 3 pods there and then 2 elsewhere, as WorkloadSpread divides them.
		f.cordon(true, "beijing-0")
		f.create(deployment("web", 3, ""))
		f.eventually(patience, "three run", func() error { return is(f, map[string]int{"hangzhou": 3}) })
		f.cordon(true, "hangzhou-0")
		f.cordon(false, "beijing-0")
		f.scale("web", 5)
		f.eventually(patience, "as WorkloadSpread has left it", func() error { return is(f, want) })
		f.cordon(false, "hangzhou-0")
		_, before, _ := f.readyWeb()
		f.migrate("OpenKruise")
		if _, after, _ := f.readyWeb(); !maps.Equal(before, after) {
			f.Errorf("pods were replaced: %v, then %v", before, after)
		}
		f.scale("web", 6)
		f.eventually(patience, "new pods follow the policy", func() error { return is(f, map[string]int{"hangzhou": 3, "beijing": 3}) })
		cleared(f)
	})
	f.part("OpenYurt", func(f *fixture) {
		// The definition of NodePools is Atoll's already: docs/beside.md.
		f.pools(poolOf("hangzhou", apps.NodePoolSpec{Selector: selects("location", "hangzhou")}), poolOf("beijing", apps.NodePoolSpec{Selector: selects("location", "beijing")}))
		set := f.foreign("apps.openyurt.io", "v1beta1", "YurtAppSet", "web", map[string]any{"pools": []any{"hangzhou", "beijing"}})
		for pool, replicas := range want {
			f.owned(set, "web-"+pool+"-x7k2p", int32(replicas), func(d *appsv1.Deployment) {
				d.Labels[apps.PoolNameLabel] = pool
				d.Spec.Selector.MatchLabels[apps.PoolNameLabel] = pool
				d.Spec.Template.Labels[apps.PoolNameLabel] = pool
				d.Spec.Template.Spec.NodeSelector = map[string]string{apps.NodePoolLabel: pool}
			})
		}
		f.eventually(patience, "as OpenYurt has left it", func() error { return is(f, want) })
		f.migrate("OpenYurt")
		var all appsv1.DeploymentList
		if err := f.client.List(f.ctx, &all, client.InNamespace(f.ns)); err != nil {
			f.Fatal(err)
		}
		var names []string
		for i := range all.Items {
			names = append(names, all.Items[i].Name)
			if owner := metav1.GetControllerOf(&all.Items[i]); owner == nil || owner.Kind != "UnitedDeployment" {
				f.Errorf("%s belongs to %v", all.Items[i].Name, owner)
			}
		}
		slices.Sort(names)
		if !slices.Equal(names, []string{"web-beijing-x7k2p", "web-hangzhou-x7k2p"}) {
			f.Errorf("the Deployments are %v", names)
		}
		ud := &apps.UnitedDeployment{}
		if err := f.client.Get(f.ctx, client.ObjectKey{Namespace: f.ns, Name: "web"}, ud); err != nil || !meta.IsStatusConditionTrue(ud.Status.Conditions, "Ready") {
			f.Errorf("%v %v", ud.Status.Conditions, err)
		}
		f.eventually(patience, "the pods are divided as before", func() error { return is(f, want) })
	})
}
