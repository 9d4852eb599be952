package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/seats"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

const exampleDir = "../../examples/groups"

// TestExampleInAnyOrder is scenario 1: the files of examples/groups, unchanged, applied
// in three different orders.
func TestExampleInAnyOrder(t *testing.T) {
	for name, order := range map[string][]func(*fixture){
		"groups, policies, labels": {exampleGroups, examplePolicies, exampleLabels},
		"labels, policies, groups": {exampleLabels, examplePolicies, exampleGroups},
		"policies, labels, groups": {examplePolicies, exampleLabels, exampleGroups},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "policies, labels, groups" {
				tier.All(t, "a third order, in two forms")
			}
			inBothWays(t, func(_ *testing.T, f *fixture) { f.example(order...) })
		})
	}
}

func exampleGroups(f *fixture) { f.apply("01-nodegroups.yaml") }

func examplePolicies(f *fixture) { f.apply("02-policies.yaml") }

func exampleLabels(f *fixture) {
	f.label(&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "nginx", Namespace: f.ns}}, map[string]any{
		gm.RequiredPropagationPolicyLabel: "nginx-propagationpolicy",
		gm.RequiredOverridePolicyLabel:    "nginx-overridepolicy",
	})
}

// example does the example's steps. Five pods, 2 in Hangzhou and 3 in Beijing, become 3
// and 2, each with its group's registry. One pod is evicted, and at most one is missing
// at a time.
func (f *fixture) example(order ...func(*fixture)) {
	f.Helper()
	f.nodes(map[string]string{"location": "hangzhou"}, "nodea", "nodeb")
	f.nodes(map[string]string{"location": "beijing"}, "nodec", "noded", "nodee")
	f.runNginxTwoAndThree()
	f.Cleanup(func() {
		f.ctx = context.Background()
		f.deleteNodeGroup("hangzhou")
		f.deleteNodeGroup("beijing")
	})
	watch := f.watchAvailability("nginx", 5)
	for _, step := range order {
		step(f)
	}
	f.eventually(patience, "the example's end", f.exampleReached)
	f.always(2*time.Second, "the end is no end", f.exampleReached)
	worst, deleted := watch()
	if worst < 4 {
		f.Errorf("at one moment only %d of 5 pods were available", worst)
	}
	if deleted != 1 {
		f.Errorf("%d pods were evicted, one had to move", deleted)
	}
	f.eventually(patience, "the policies are Ready", func() error {
		return f.policiesReady("nginx-propagationpolicy", "nginx-overridepolicy")
	})
}

// apply creates the objects of an example's file.
func (f *fixture) apply(file string) {
	f.Helper()
	raw, err := os.ReadFile(filepath.Join(exampleDir, file))
	if err != nil {
		f.Fatal(err)
	}
	for _, doc := range bytes.Split(raw, []byte("\n---\n")) {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(doc, &o.Object); err != nil {
			f.Fatalf("decoding %s: %v", file, err)
		}
		if o.GetKind() != "NodeGroup" {
			o.SetNamespace(f.ns)
		}
		if err := f.client.Create(f.ctx, o); err != nil {
			f.Fatalf("applying %s: %v", file, err)
		}
	}
}

// runNginxTwoAndThree creates the example's starting point.
func (f *fixture) runNginxTwoAndThree() {
	f.Helper()
	beijing := []string{"nodec", "noded", "nodee"}
	hangzhou := []string{"nodea", "nodeb"}
	f.cordon(true, beijing...)
	raw, err := os.ReadFile(filepath.Join(exampleDir, "deployment.yaml"))
	if err != nil {
		f.Fatal(err)
	}
	var d appsv1.Deployment
	if err := yaml.UnmarshalStrict(raw, &d); err != nil {
		f.Fatal(err)
	}
	two := int32(2)
	d.Namespace, d.Spec.Replicas = f.ns, &two
	d.Spec.Template.Spec.TerminationGracePeriodSeconds = new(int64)
	f.create(&d)
	f.eventually(patience, "two pods in Hangzhou", func() error { return f.allReady("nginx", 2) })
	f.cordon(false, beijing...)
	f.cordon(true, hangzhou...)
	f.scale("nginx", 5)
	f.eventually(patience, "three pods in Beijing", func() error { return f.allReady("nginx", 5) })
	f.cordon(false, hangzhou...)
}

// exampleReached returns an error unless pods, images and readiness are as the example
// says they become.
func (f *fixture) exampleReached() error {
	pods := f.pods("nginx") // read once, because the state may change between two reads
	if err := readyOf("nginx", pods, 5); err != nil {
		return err
	}
	got := map[string]int{}
	for _, pod := range pods {
		if seats.Slim(&pod).Restarting() {
			return fmt.Errorf("pod %s has not restarted with its new image", pod.Name)
		}
		got[pod.Spec.NodeName+" "+pod.Spec.Containers[0].Image]++
	}
	count := map[string]int{}
	for key, n := range got {
		node, image, _ := strings.Cut(key, " ")
		location := "beijing"
		if node == "nodea" || node == "nodeb" {
			location = "hangzhou"
		}
		count[location+" "+image] += n
	}
	want := map[string]int{"hangzhou hangzhou.registry.io/nginx:1.27": 3, "beijing beijing.registry.io/nginx:1.27": 2}
	if fmt.Sprint(count) != fmt.Sprint(want) {
		return fmt.Errorf("pods are %v, want %v", count, want)
	}
	return nil
}

func (f *fixture) policiesReady(propagation, override string) error {
	var p gm.PropagationPolicy
	if err := f.client.Get(f.ctx, types.NamespacedName{Namespace: f.ns, Name: propagation}, &p); err != nil {
		return err
	}
	var o gm.OverridePolicy
	if err := f.client.Get(f.ctx, types.NamespacedName{Namespace: f.ns, Name: override}, &o); err != nil {
		return err
	}
	for _, conditions := range [][]metav1.Condition{p.Status.Conditions, o.Status.Conditions} {
		if len(conditions) != 1 || conditions[0].Status != metav1.ConditionTrue {
			return fmt.Errorf("conditions are %+v", conditions)
		}
	}
	return nil
}
