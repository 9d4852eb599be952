package e2e

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
	"github.com/atoll-k8s/atoll/test/random"
)

var (
	randomTime = flag.Duration("random", 40*time.Second, "how long TestRandomObjects writes random objects")
	randomSeed = flag.Uint64("seed", 1, "seed of TestRandomObjects; 0 chooses one")
)

const (
	// randomNames is the number of names of each kind that random objects have, so that
	// most writes change an object that is in use.
	randomNames = 3
	// randomRound is how long random objects are written before what they led to is
	// checked.
	randomRound = 10 * time.Second
	// managerMemory is the memory limit of atoll-manager in the chart, in bytes.
	managerMemory = 512 << 20
	// memoryGrowth is how much more memory atoll-manager may have, in bytes, after many
	// rounds of objects than after the first, when all of them are deleted.
	memoryGrowth = 96 << 20
)

// randomKind is a kind whose objects TestRandomObjects makes.
type randomKind struct {
	*random.Maker
	kind, apiVersion string
	namespaced       bool
	accepted         int
	refused          int
}

// TestRandomObjects writes random objects of every kind of the chart, valid and invalid
// ones, over each other: atoll-manager never panics nor ends, its status is about the
// newest generation and says nothing that is not so, its memory does not grow, and all
// objects can be deleted. The invariants of the other pods hold.
func TestRandomObjects(t *testing.T) {
	tier.All(t, "random objects for 40 s and more")
	f := newFixtureOfItsOwn(t, atoll.Options{Gangs: true}.WithCoordinators())
	f.lastsUpTo(*randomTime + 20*time.Minute)
	f.group("random-a", 2)
	f.group("random-b", 2)
	f.nodes(map[string]string{"random": "spare"}, "spare-0", "spare-1")
	for _, app := range []string{"random-0", "random-1"} {
		f.create(deployment(app, 4, app, func(d *appsv1.Deployment) { d.Labels[gm.RequiredOverridePolicyLabel] = app }))
	}
	seed := *randomSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("the seed is %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	kinds := randomKinds(t, seed)
	before := f.managerProcess()
	var first int64
	provesLittle := func(kind *randomKind) bool { return kind.accepted < 5 || kind.refused < 5 }
	end := time.Now().Add(*randomTime)
	for time.Now().Before(end) || time.Now().Before(end.Add(10*time.Minute)) && slices.ContainsFunc(kinds, provesLittle) { // a slow machine takes longer
		for round := time.Now().Add(randomRound); time.Now().Before(round); {
			kind := kinds[rng.IntN(len(kinds))]
			f.writeRandomly(kind, fmt.Sprintf("random-%d", rng.IntN(randomNames)), rng)
		}
		f.statusesAreTrue(kinds)
		f.clearRandom(kinds)
		now := f.managerProcess()
		switch {
		case now.pid != before.pid:
			f.Fatalf("atoll-manager ended and was started again, seed %d", seed)
		case now.resident > managerMemory:
			f.Errorf("atoll-manager has %d MiB", now.resident>>20)
		case first == 0:
			first = now.resident
		case now.resident > first+memoryGrowth:
			f.Errorf("with all objects deleted atoll-manager has %d MiB, %d MiB after the first round", now.resident>>20, first>>20)
		}
		f.noPanics()
	}
	for _, kind := range kinds {
		t.Logf("%s: %d writes accepted, %d refused", kind.kind, kind.accepted, kind.refused)
		if provesLittle(kind) {
			t.Errorf("%s: the test proves little", kind.kind)
		}
	}
}

// randomKinds reads the definitions of the chart.
func randomKinds(t *testing.T, seed uint64) []*randomKind {
	t.Helper()
	files, err := filepath.Glob("../../charts/atoll/files/crds/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no definitions: ", err)
	}
	var kinds []*randomKind
	for i, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.Unmarshal(raw, crd); err != nil {
			t.Fatal(err)
		}
		if len(crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties) == 0 {
			continue // atoll-manager alone writes such objects, and they have nothing but a status
		}
		maker := random.NewMaker(crd, seed+uint64(i))
		maker.Values = randomValues()
		kinds = append(kinds, &randomKind{
			Maker: maker, kind: crd.Spec.Names.Kind, namespaced: crd.Spec.Scope == apiextensionsv1.NamespaceScoped,
		})
	}
	return kinds
}

// randomValues are values that mean something in the cluster of TestRandomObjects, by the
// name of their field.
func randomValues() map[string][]any {
	groups := []any{"random-a", "random-b", "random-0", "random-1", "none"}
	expression := map[string]any{"key": "random", "operator": "Exists"}
	templates := []any{}
	for _, image := range []string{"nginx:1.27", "nginx:1.28"} {
		pods := map[string]any{
			"metadata": map[string]any{"labels": map[string]any{"app": "united"}},
			"spec":     map[string]any{"containers": []any{map[string]any{"name": "app", "image": image}}},
		}
		templates = append(templates,
			map[string]any{"deploymentTemplate": map[string]any{"spec": map[string]any{"template": pods}}},
			map[string]any{"daemonSetTemplate": map[string]any{"spec": map[string]any{"template": pods}}},
			map[string]any{"statefulSetTemplate": map[string]any{"spec": map[string]any{"serviceName": "united", "template": pods}}})
	}
	return map[string][]any{
		"nodeGroupNames":      groups,
		"targetNodeGroup":     groups,
		"propagationStrategy": {"StaticWeight", "NumRange", ""},
		"weight":              {int64(0), int64(1), int64(3)},
		"min":                 {int64(0), int64(1), "20%"},
		"max":                 {int64(2), int64(5), "60%"},
		"nodes":               {"spare-0", "spare-1", "random-a-0", "nobody"},
		"matchLabels":         {"spare"},
		"matchLabels key":     {"random", "app"},
		"matchExpressions":    {expression, map[string]any{"key": "random", "operator": "In", "values": []any{"spare"}}},
		"containerName":       {"app", "none"},
		"path":                {"/metadata/annotations", "/spec/containers/0/image", "/spec/priority", "/spec/containers/0/env"},
		"value":               {"mirror.example.com", "1.28", map[string]any{"example.com/a": "b"}, int64(1)},
		"selector":            {map[string]any{"matchLabels": map[string]any{"app": "united"}}},
		"workloadTemplate":    templates,
		"replicas":            {int64(0), int64(1), int64(3), "50%"},
		"patch":               {map[string]any{"spec": map[string]any{"template": map[string]any{"spec": map[string]any{"priority": int64(0)}}}}},
		"name":                {"random-0", "random-1", "random-2"},
		"key":                 {"random", "example.com/key"},
		"effect":              {"NoSchedule", "PreferNoSchedule"}, // NoExecute would evict the pods of other policies
		"minMember":           {int64(1), int64(2)},
		"nodePool":            {"random-0", "random-1", "random-2", "none", "No"},
		"version":             {"v1.36.3", "1.35.0", "v1.20.0", "latest"},
	}
}

// writeRandomly creates, replaces or deletes one object.
func (f *fixture) writeRandomly(kind *randomKind, name string, rng *rand.Rand) {
	f.Helper()
	object, _ := kind.Object()
	object.SetName(name)
	if kind.namespaced {
		object.SetNamespace(f.ns)
	}
	kind.apiVersion = object.GetAPIVersion()
	stored := &unstructured.Unstructured{}
	stored.SetGroupVersionKind(object.GroupVersionKind())
	err := f.client.Get(f.ctx, client.ObjectKeyFromObject(object), stored)
	switch {
	case apierrors.IsNotFound(err):
		err = f.client.Create(f.ctx, object)
	case err != nil:
	case rng.IntN(6) == 0:
		if err = f.client.Delete(f.ctx, stored); err == nil {
			return // deletions are not counted
		}
	default:
		object.SetResourceVersion(stored.GetResourceVersion())
		object.SetFinalizers(stored.GetFinalizers())
		err = f.client.Update(f.ctx, object)
	}
	switch {
	case err == nil:
		kind.accepted++
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsForbidden(err), apierrors.IsRequestEntityTooLargeError(err):
		kind.refused++
	case apierrors.IsConflict(err), apierrors.IsNotFound(err), apierrors.IsAlreadyExists(err):
	default:
		f.Errorf("writing %s %s: %v", kind.kind, name, err)
	}
}

// randomObjects returns the random objects that exist.
func (f *fixture) randomObjects(kinds []*randomKind) []unstructured.Unstructured {
	f.Helper()
	var objects []unstructured.Unstructured
	for _, kind := range kinds {
		if kind.apiVersion == "" {
			continue // none was written yet
		}
		list := &unstructured.UnstructuredList{}
		list.SetAPIVersion(kind.apiVersion)
		list.SetKind(kind.kind + "List")
		if err := f.client.List(f.ctx, list); err != nil {
			f.Fatal(err)
		}
		for _, o := range list.Items {
			if strings.HasPrefix(o.GetName(), "random-") && o.GetName() != "random-a" && o.GetName() != "random-b" {
				objects = append(objects, o)
			}
		}
	}
	return objects
}

// statusesAreTrue waits until the status of every random object is about its newest generation
// and true.
func (f *fixture) statusesAreTrue(kinds []*randomKind) {
	f.Helper()
	f.eventually(patience, "the status of every object is up to date", func() error {
		var errs []error
		for _, o := range f.randomObjects(kinds) {
			if err := f.statusIsTrue(&o); err != nil {
				errs = append(errs, fmt.Errorf("%s %s: %w", o.GetKind(), o.GetName(), err))
			}
		}
		return errors.Join(errs...)
	})
}

// statusIsTrue returns an error if the status is not about the newest generation, or
// contradicts the cluster.
func (f *fixture) statusIsTrue(o *unstructured.Unstructured) error {
	f.Helper()
	if o.GetKind() == "PodGroup" {
		return nil // its scheduler writes the status, and none runs here
	}
	observed, _, _ := unstructured.NestedInt64(o.Object, "status", "observedGeneration")
	if observed != o.GetGeneration() {
		return fmt.Errorf("its status is about generation %d, and it has %d", observed, o.GetGeneration())
	}
	conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	if len(conditions) == 0 {
		return errors.New("it has no condition")
	}
	for _, raw := range conditions {
		condition, _ := raw.(map[string]any)
		generation, _ := condition["observedGeneration"].(int64)
		switch {
		case generation != o.GetGeneration():
			return fmt.Errorf("condition %v is about generation %d, and it has %d", condition["type"], generation, o.GetGeneration())
		case condition["reason"] == gm.ReasonSatisfied && o.GetNamespace() != "" && len(f.pods(o.GetName())) == 0:
			return fmt.Errorf("it is %s, and there is no pod", gm.ReasonSatisfied)
		}
	}
	if o.GetKind() != "NodeGroup" {
		return nil
	}
	contained, _, _ := unstructured.NestedStringSlice(o.Object, "status", "containedNodes")
	var members []string
	for node, group := range f.groupsOfNodes() {
		if group == o.GetName() {
			members = append(members, node)
		}
	}
	slices.Sort(members)
	if !slices.Equal(contained, members) {
		return fmt.Errorf("its status has the nodes %v, and the label is on %v", contained, members)
	}
	return nil
}

// clearRandom deletes all random objects, and waits until they are gone.
func (f *fixture) clearRandom(kinds []*randomKind) {
	f.Helper()
	f.eventually(patience, "all random objects go", func() error {
		objects := f.randomObjects(kinds)
		for _, o := range objects {
			if o.GetKind() == "NodePool" { // one that still selects nodes waits for them
				if err := f.client.Patch(f.ctx, &o, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"selector":null}}`))); client.IgnoreNotFound(err) != nil {
					return err
				}
			}
			if err := f.client.Delete(f.ctx, &o); client.IgnoreNotFound(err) != nil {
				return err
			}
		}
		if len(objects) > 0 {
			return fmt.Errorf("%d are left, such as %s %s", len(objects), objects[0].GetKind(), objects[0].GetName())
		}
		return nil
	})
	// The pods of random workloads are not needed, and the next ones have the same names.
	f.eventually(patience, "the workloads of UnitedDeployments go", func() error {
		var left appsv1.DeploymentList
		if err := f.client.List(f.ctx, &left, client.InNamespace(f.ns), client.HasLabels{apps.PoolNameLabel}); err != nil || len(left.Items) > 0 {
			return fmt.Errorf("%d are left: %w", len(left.Items), err)
		}
		return nil
	})
}

// processState is what the system knows about a process.
type processState struct {
	pid      int
	resident int64 // bytes
}

// managerProcess returns the state of atoll-manager's first replica.
func (f *fixture) managerProcess() processState {
	f.Helper()
	all, err := f.cluster.Processes(f.ctx)
	if err != nil {
		f.Fatal(err)
	}
	for _, p := range all {
		if p.Name != atoll.Manager {
			continue
		}
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.PID))
		if err != nil {
			f.Logf("the memory of atoll-manager is not known here: %v", err)
			return processState{pid: p.PID}
		}
		pages, err := strconv.ParseInt(strings.Fields(string(raw))[1], 10, 64)
		if err != nil {
			f.Fatal(err)
		}
		return processState{pid: p.PID, resident: pages * int64(os.Getpagesize())}
	}
	f.Fatal("the cluster has no atoll-manager")
	return processState{}
}

// noPanics fails the test if a controller or a webhook of atoll-manager panicked.
// controller-runtime recovers from panics, and counts them.
func (f *fixture) noPanics() {
	f.Helper()
	for name, value := range f.metrics() {
		if strings.Contains(name, "panics_total") && value > 0 {
			f.Errorf("%s is %v", name, value)
		}
	}
}
