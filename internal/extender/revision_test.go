package extender

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	metadatafake "k8s.io/client-go/metadata/fake"

	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/owners"
	"github.com/atoll-k8s/atoll/internal/seats"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// TestPodsAreCountedByTheRevisionLabelOfTheirOwnersKind: the extender, at the filter
// request, and the ledger, when it observes the pod later, must put the pod in the same
// cohort.
func TestPodsAreCountedByTheRevisionLabelOfTheirOwnersKind(t *testing.T) {
	d := newFixture(t, build.PropagationPolicy("p", build.Weight(3, "hz"), build.Weight(2, "bj")), build.Node("node-hz", build.InGroup("hz")), build.Node("node-bj", build.InGroup("bj")))
	cloneSet := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "CloneSet"}
	d.World.Walker.Extend(nil, metadatafake.NewSimpleMetadataClient(metadatafake.NewTestScheme()))
	d.World.Walker.SetKinds([]owners.Kind{{GroupVersionKind: cloneSet, Resource: "clonesets", RevisionLabel: "revision"}})
	d.World.Walker.Put(&ownership.Object{
		GroupVersionKind: cloneSet, Namespace: build.Namespace, Name: "main", UID: "main",
		Policies: ownership.Policies{RequiredPropagation: "p", BindingPropagation: "p"},
	})
	yes := true
	pod := build.Pod("a", build.Label("revision", "one"), build.Label("pod-template-hash", "hash"), func(o build.Object) {
		o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "example.com/v1", Kind: "CloneSet", Name: "main", UID: "main", Controller: &yes}})
	})
	if r := d.filter(pod, "node-hz", "node-bj"); !cmp.Equal(*r.NodeNames, []string{"node-hz"}) {
		t.Fatalf("the first pod may go to %v, error %q", r.NodeNames, r.Error)
	}
	if err := d.Pods.Tracker().Add(pod); err != nil {
		t.Fatal(err)
	}
	if err := d.bind(pod, "node-hz"); err != nil { // the ledger has not observed the pod, so it is read from the API server
		t.Fatal(err)
	}
	bound := pod.DeepCopy()
	build.On("node-hz")(bound)
	d.World.Ledger.Observe(seats.SlimBy(d.World.Walker.Revision, bound))
	cohorts := d.World.Ledger.View([]types.UID{"main"})
	if len(cohorts) != 1 || cohorts[0].Revision != "one" || len(cohorts[0].Pods) != 1 {
		t.Errorf("cohorts are %+v", cohorts)
	}
}
