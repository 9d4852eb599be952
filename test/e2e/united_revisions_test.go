package e2e

import (
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// TestUnitedHistory is scenarios 54 and 55: the limit is the number of kept old
// revisions, and a revision in use is never deleted; a rollback restores a template
// without a second revision of it, and the revision number grows.
func TestUnitedHistory(t *testing.T) {
	tier.All(t, "breadth: the limit of kept revisions, and rollbacks")
	f := newFixture(t)
	f.sites("history-a")
	ud := united("web", pool("history-a", 1))
	ud.Spec.RevisionHistoryLimit = new(int32(3))
	f.create(ud)
	f.done("web")
	for i := range 6 {
		f.setImage("web", fmt.Sprintf("nginx:2.%d", i))
		f.done("web")
	}
	var revisions []appsv1.ControllerRevision
	f.eventually(patience, "three old revisions are left", func() error {
		if revisions = f.revisions("web"); len(revisions) != 4 || revisions[3].Name != f.ud("web").Status.CurrentRevision {
			return fmt.Errorf("there are %d, current is %s", len(revisions), f.ud("web").Status.CurrentRevision)
		}
		return nil
	})
	f.rollBack("web", fmt.Sprint(revisions[1].Revision))
	f.eventually(patience, "the old template is back", func() error {
		ud := f.ud("web")
		if image := podsOfTemplate(ud).Spec.Containers[0].Image; image != "nginx:2.3" || ud.Annotations[apps.RollbackToAnnotation] != "" {
			return fmt.Errorf("it has %s, annotations %v", image, ud.Annotations)
		}
		return f.isDone("web")
	})
	after := f.revisions("web")
	last := after[len(after)-1]
	if len(after) != 4 || last.Name != revisions[1].Name || last.Revision != revisions[3].Revision+1 {
		t.Errorf("there are %d revisions, the last is %s, number %d", len(after), last.Name, last.Revision)
	}
	f.rollBack("web", "no-such")
	f.eventually(patience, "a rollback to nothing is reported and dropped", func() error {
		list, err := f.kube.EventsV1().Events(f.ns).List(f.ctx, metav1.ListOptions{})
		if err != nil || f.ud("web").Annotations[apps.RollbackToAnnotation] != "" {
			return fmt.Errorf("not yet: %w", err)
		}
		for _, e := range list.Items {
			if e.Reason == "RollbackRevisionNotFound" {
				return f.isDone("web")
			}
		}
		return fmt.Errorf("none of %d events reports it", len(list.Items))
	})
}

func (f *fixture) rollBack(name, to string) {
	f.Helper()
	f.change(name, func(ud *apps.UnitedDeployment) { ud.Annotations = map[string]string{apps.RollbackToAnnotation: to} })
}

// TestUnitedRevisionNameIsTaken is scenario 56: the name of a revision is taken by
// another object. That object is not changed, and the revision gets another name.
func TestUnitedRevisionNameIsTaken(t *testing.T) {
	f := newFixture(t)
	f.sites("taken-a")
	f.create(united("web", pool("taken-a", 1)))
	f.done("web")
	f.setImage("web", "nginx:1.28")
	f.done("web")
	taken := f.ud("web").Status.CurrentRevision
	// The same UnitedDeployment is created again.
	if err := f.client.Delete(f.ctx, f.ud("web"), client.PropagationPolicy(metav1.DeletePropagationForeground)); err != nil {
		t.Fatal(err)
	}
	f.eventually(patience, "it goes with its revisions", func() error {
		err := f.client.Get(f.ctx, types.NamespacedName{Namespace: f.ns, Name: "web"}, &apps.UnitedDeployment{})
		if n := len(f.revisions("web")); n > 0 || !apierrors.IsNotFound(err) {
			return fmt.Errorf("%d are left: %w", n, err)
		}
		return nil
	})
	other := &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Name: taken}, Data: runtime.RawExtension{Raw: []byte(`{"a":"b"}`)}, Revision: 7}
	owner := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}
	f.create(owner)
	other.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, corev1.SchemeGroupVersion.WithKind("ConfigMap"))}
	f.create(other)
	ud := united("web", pool("taken-a", 1))
	podsOfTemplate(ud).Spec.Containers[0].Image = "nginx:1.28"
	f.create(ud)
	f.done("web")
	s := f.ud("web").Status
	if s.CollisionCount == nil || *s.CollisionCount != 1 || s.CurrentRevision == taken {
		t.Errorf("status is %s", asJSON(s))
	}
	if err := f.client.Get(f.ctx, client.ObjectKeyFromObject(other), other); err != nil || string(other.Data.Raw) != `{"a":"b"}` {
		t.Errorf("the other one is %s: %v", other.Data.Raw, err)
	}
}
