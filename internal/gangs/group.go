package gangs

import (
	"encoding/json"
	"hash/fnv"
	"reflect"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	scheduling "github.com/atoll-k8s/atoll/api/scheduling/v1beta1"
	"github.com/atoll-k8s/atoll/internal/domain/gang"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/machinery/budget"
	"github.com/atoll-k8s/atoll/internal/owners"
)

// Group holds the fields of a PodGroup that are used. Groups are shared: do not change
// them.
type Group struct {
	// ObjectMeta holds namespace, name, UID and resourceVersion.
	metav1.ObjectMeta
	// Controller is its owner, or nil.
	Controller *ownership.Reference
	// Ours: atoll-manager created or adopted it. It has the managed-by label.
	Ours bool
	// Deleting: it is being deleted.
	Deleting bool
	// Phase is status.phase, which the scheduler writes.
	Phase string
	// Now holds its spec, labels and annotations. Last holds the values that atoll-manager
	// wrote last, from scheduling.AppliedAnnotation; nil if the annotation is missing or
	// invalid.
	Now, Last *gang.Applied
	// Omitted is not 0 if Now, and all of Last but the owner, are left out because they are
	// larger than maxContent. It is a hash of them, so that changes are noticed.
	Omitted uint64
}

// maxContent bounds what is kept of the content of a PodGroup, in bytes of memory.
const maxContent = 32 << 10

// Bounded returns the group without its content if that is too large to be kept.
func (g *Group) Bounded() *Group {
	content := []*gang.Applied{g.Now, g.Last}
	if budget.SizeOf(content) <= maxContent {
		return g
	}
	bounded := *g
	bounded.Now = &gang.Applied{}
	if g.Last != nil {
		bounded.Last = &gang.Applied{}
		if len(g.Last.Owner) <= maxUID {
			bounded.Last.Owner = types.UID(strings.Clone(string(g.Last.Owner))) // not a part of the annotation
		}
	}
	hash := fnv.New64a()
	_ = json.NewEncoder(hash).Encode(content) // it was decoded from JSON
	bounded.Omitted = max(1, hash.Sum64())
	return &bounded
}

// maxUID bounds an owner's UID that somebody may have written by hand, in bytes. UIDs of the
// API server have 36.
const maxUID = 63

// Key returns namespace and name of the PodGroup.
func (g *Group) Key() types.NamespacedName {
	return types.NamespacedName{Namespace: g.Namespace, Name: g.Name}
}

// Owner returns the UID of its controller, or "".
func (g *Group) Owner() types.UID {
	if g.Controller == nil {
		return ""
	}
	return g.Controller.UID
}

// OfPod returns the name of its controller if that is a pod, or "".
func (g *Group) OfPod() string {
	if g.Controller != nil && g.Controller.Group == "" && g.Controller.Kind == "Pod" {
		return g.Controller.Name
	}
	return ""
}

// Generated reports whether a controller, not a person, created the PodGroup for pods
// that named none. Its name contains the UID of its controller, or the UID of the owner
// for which atoll-manager wrote it. A person's copy has another name or another owner.
func (g *Group) Generated() bool {
	owner := gang.OwnerOf(g.Name)
	return owner != "" && (g.Owner() == owner || g.Ours && g.Last != nil && g.Last.Owner == owner)
}

// Slim returns the fields of a PodGroup that are used.
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
	if raw, err := json.Marshal(u.Object["spec"]); err == nil { // so that numbers have the types that Last has
		_ = json.Unmarshal(raw, &g.Now.Spec)
	}
	return g
}

func slimGroup(obj any) (any, error) {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		return Slim(u).Bounded(), nil
	}
	return obj, nil
}

// sameGroup reports whether two states of a PodGroup are equal in the fields that its
// controller uses. Of the status it uses the phase only.
func sameGroup(a, b *Group) bool {
	return a.UID == b.UID && ptr.Equal(a.Controller, b.Controller) && a.Ours == b.Ours && a.Deleting == b.Deleting && a.Phase == b.Phase &&
		a.Omitted == b.Omitted && reflect.DeepEqual(a.Now, b.Now) && reflect.DeepEqual(a.Last, b.Last)
}
