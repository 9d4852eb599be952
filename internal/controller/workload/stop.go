package workload

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	overrides "github.com/atoll-k8s/atoll/internal/domain/override"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/machinery/patch"
	"github.com/atoll-k8s/atoll/internal/seats"
)

// givenUp holds the active pods that were overridden for an owner which does not
// find them any more, by that owner. There are none as long as overrides leave
// labels alone.
type givenUp struct {
	mu   sync.Mutex
	pods map[types.UID]sets.Set[types.UID]
	// wants is the highest number of pods that a workload wanted while it had
	// given up any.
	wants map[types.UID]int
}

// note records a change of a pod: old is nil for a new pod, new for one that is deleted.
func (g *givenUp) note(old, new *seats.Pod) {
	was, is := old != nil && old.GivenUp(), new != nil && new.GivenUp()
	if !was && !is {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if was {
		g.pods[old.CreatedFor].Delete(old.UID)
		if len(g.pods[old.CreatedFor]) == 0 {
			delete(g.pods, old.CreatedFor)
		}
	}
	if is {
		if g.pods == nil {
			g.pods, g.wants = map[types.UID]sets.Set[types.UID]{}, map[types.UID]int{}
		}
		if g.pods[new.CreatedFor] == nil {
			g.pods[new.CreatedFor] = sets.New[types.UID]()
		}
		g.pods[new.CreatedFor].Insert(new.UID)
	}
}

// count is the number of pods that these owners gave up, and the highest number
// of pods that the workload wanted meanwhile.
func (g *givenUp) count(app types.UID, owners []types.UID, wantsNow func() int) (pods, wants int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, owner := range owners {
		pods += len(g.pods[owner])
	}
	if pods == 0 {
		delete(g.wants, app)
		return 0, 0
	}
	g.wants[app] = max(g.wants[app], wantsNow())
	return pods, g.wants[app]
}

// drop forgets a workload that is gone.
func (g *givenUp) drop(app types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.wants, app)
}

// stop marks a workload that gives up overridden pods and makes others in their
// place, without end. Nothing that is known lets an override do that: this is
// the net below.
func (r *Reconciler) stop(ctx context.Context, s *scope) error {
	if s.app.Policies.RequiredOverride == "" || s.app.OverridesStopped {
		return nil
	}
	owners := r.ownersOf(s.app)
	pods, wants := r.givenUp.count(s.app.UID, owners, func() int { return r.wants(s.app, owners) })
	if !overrides.Runaway(pods, wants) {
		return nil
	}
	seen := fmt.Sprintf("it gave up more than %d pods that OverridePolicy %q had changed, and wants at most %d", wants, s.app.Policies.RequiredOverride, wants)
	raw, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": s.app.UID, "annotations": map[string]string{gm.OverridesStoppedAnnotation: seen},
	}})
	if err != nil {
		return fmt.Errorf("encoding a patch of a workload: %w", err)
	}
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(s.app.GroupVersionKind)
	object.Namespace, object.Name = s.app.Namespace, s.app.Name
	err = r.Client.Patch(ctx, object, client.RawPatch(types.MergePatchType, raw))
	if apierrors.IsNotFound(err) || patch.AnotherOfThatName(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("stopping overrides of %s %s/%s: %w", s.app.Kind, s.app.Namespace, s.app.Name, err)
	}
	stopped := *s.app
	stopped.OverridesStopped = true
	s.app = &stopped
	log.FromContext(ctx).Info("Stopped overrides", "kind", s.app.Kind, "workload", s.app.Namespace+"/"+s.app.Name, "why", seen)
	r.overridesStopped(s.app, seen)
	return nil
}

// ownersOf are the workload and all below it that are not on their way out:
// pods may be left behind on purpose by one that is.
func (r *Reconciler) ownersOf(app *ownership.Object) []types.UID {
	var owners []types.UID
	for _, uid := range r.Walker.Descendants(app.UID) {
		if o := r.Walker.Get(uid); o != nil && !o.Deleting {
			owners = append(owners, uid)
		}
	}
	return owners
}

// wants is how many pods the workload wants now: as many as it says, as its
// ReplicaSets say in a rollout, or as it has, where nobody says.
func (r *Reconciler) wants(app *ownership.Object, owners []types.UID) int {
	said, has := 0, 0
	for _, uid := range owners {
		if o := r.Walker.Get(uid); o != nil && uid != app.UID && o.Replicas != nil {
			said += int(*o.Replicas)
		}
	}
	for _, cohort := range r.Ledger.View(owners) {
		has += len(cohort.Pods)
	}
	if app.Replicas != nil {
		said = max(said, int(*app.Replicas))
	}
	return max(said, has)
}
