package gangs

import (
	"encoding/json"
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	scheduling "github.com/atoll-k8s/atoll/api/scheduling/v1beta1"
	"github.com/atoll-k8s/atoll/internal/domain/gang"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/owners"
)

// Group is what is kept of a PodGroup. Groups are shared and never changed.
type Group struct {
	// ObjectMeta holds namespace, name, UID and resourceVersion.
	metav1.ObjectMeta
	// Controller is its owner, or nil.
	Controller *ownership.Reference
	// Ours: atoll-manager made it, or has made it its own.
	Ours bool
	// Deleting: it is being deleted.
	Deleting bool
	// Phase is the scheduler's.
	Phase string
	// Now is its spec, and its labels and annotations; Last is what was written last
	// into them, nil if that is not known.
	Now, Last *gang.Applied
}

// Key names the PodGroup.
func (g *Group) Key() types.NamespacedName {
	return types.NamespacedName{Namespace: g.Namespace, Name: g.Name}
}

// Owner is the UID of its controller, or "".
func (g *Group) Owner() types.UID {
	if g.Controller == nil {
		return ""
	}
	return g.Controller.UID
}

// OfPod is the name of the pod that owns it, or "".
func (g *Group) OfPod() string {
	if g.Controller != nil && g.Controller.Group == "" && g.Controller.Kind == "Pod" {
		return g.Controller.Name
	}
	return ""
}

// Generated tells whether a controller made the PodGroup for pods that named none, and
// not a person: it has the name that its owner's UID makes, or that of the owner for
// which we made it. A copy has another name, or another owner.
func (g *Group) Generated() bool {
	owner := gang.OwnerOf(g.Name)
	return owner != "" && (g.Owner() == owner || g.Ours && g.Last != nil && g.Last.Owner == owner)
}

// Slim keeps of a PodGroup what is read.
func Slim(u *unstructured.Unstructured) *Group {
	g := &Group{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: u.GetNamespace(), Name: u.GetName(), UID: u.GetUID(), ResourceVersion: u.GetResourceVersion(),
		},
		Ours:     u.GetLabels()[scheduling.ManagedByLabel] == scheduling.ManagedByAtoll,
		Deleting: u.GetDeletionTimestamp() != nil,
		Now:      &gang.Applied{Labels: u.GetLabels(), Annotations: u.GetAnnotations()},
		Last:     gang.ParseApplied(u.GetAnnotations()[scheduling.AppliedAnnotation]),
	}
	g.Controller = owners.ControllerOf(u.GetOwnerReferences())
	g.Phase, _, _ = unstructured.NestedString(u.Object, "status", "phase")
	if raw, err := json.Marshal(u.Object["spec"]); err == nil { // numbers are as what is written has them
		_ = json.Unmarshal(raw, &g.Now.Spec)
	}
	return g
}

func slimGroup(obj any) (any, error) {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		return Slim(u), nil
	}
	return obj, nil
}

// sameGroup tells whether two states of a PodGroup are the same to its controller: what
// the scheduler says of pods in its status is not read.
func sameGroup(a, b *Group) bool {
	return a.UID == b.UID && ptr.Equal(a.Controller, b.Controller) && a.Ours == b.Ours && a.Deleting == b.Deleting && a.Phase == b.Phase &&
		reflect.DeepEqual(a.Now, b.Now) && reflect.DeepEqual(a.Last, b.Last)
}
