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

// givenUp holds the active pods whose owner does not select them any more after they were
// overridden, by that owner. There are none as long as overrides change no labels. Safe
// for concurrent use; the zero value is ready.
type givenUp struct {
	mu   sync.Mutex
	pods map[types.UID]sets.Set[types.UID]
	// wants holds the highest number of pods that each workload wanted since it gave up
	// the first of them.
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

// count returns the number of pods that the owners gave up, and the highest number of pods
// that the workload wanted meanwhile. It calls wantsNow only if there are any.
func (g *givenUp) count(workload types.UID, owners []types.UID, wantsNow func() int) (pods, wants int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, owner := range owners {
		pods += len(g.pods[owner])
	}
	if pods == 0 {
		delete(g.wants, workload)
		return 0, 0
	}
	g.wants[workload] = max(g.wants[workload], wantsNow())
	return pods, g.wants[workload]
}

// drop forgets a workload that was deleted.
func (g *givenUp) drop(workload types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.wants, workload)
}

// stop marks a workload that gives up overridden pods and creates others in their place,
// without end. No known override does that: this is a safety net.
func (r *Reconciler) stop(ctx context.Context, s *scope) error {
	if s.workload.Policies.RequiredOverride == "" || s.workload.OverridesStopped {
		return nil
	}
	owners := r.ownersOf(s.workload)
	pods, wants := r.givenUp.count(s.workload.UID, owners, func() int { return r.wants(s.workload, owners) })
	if !overrides.IsRunaway(pods, wants) {
		return nil
	}
	seen := fmt.Sprintf("it gave up more than %d pods that OverridePolicy %q had changed, and wants at most %d", wants, s.workload.Policies.RequiredOverride, wants)
	raw, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": s.workload.UID, "annotations": map[string]string{gm.OverridesStoppedAnnotation: seen},
	}})
	if err != nil {
		return fmt.Errorf("encoding a patch of a workload: %w", err)
	}
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(s.workload.GroupVersionKind)
	object.Namespace, object.Name = s.workload.Namespace, s.workload.Name
	err = r.Client.Patch(ctx, object, client.RawPatch(types.MergePatchType, raw))
	if apierrors.IsNotFound(err) || patch.AnotherOfThatName(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("stopping overrides of %s %s/%s: %w", s.workload.Kind, s.workload.Namespace, s.workload.Name, err)
	}
	// Objects of the walker are shared: the later phases of this pass use a changed copy.
	stopped := *s.workload
	stopped.OverridesStopped = true
	s.workload = &stopped
	log.FromContext(ctx).Info("Stopped overrides", "kind", s.workload.Kind, "workload", s.workload.Namespace+"/"+s.workload.Name, "why", seen)
	r.overridesStopped(s.workload, seen)
	return nil
}

// ownersOf returns the workload and the objects below it, without those that are being
// deleted: these may orphan pods on purpose.
func (r *Reconciler) ownersOf(workload *ownership.Object) []types.UID {
	var owners []types.UID
	for _, uid := range r.Walker.Descendants(workload.UID) {
		if o := r.Walker.Get(uid); o != nil && !o.Deleting {
			owners = append(owners, uid)
		}
	}
	return owners
}

// wants returns how many pods the workload wants now: the highest of its replicas, the sum
// of the replicas of the objects below it, which is higher in a rollout, and the number of
// its pods.
func (r *Reconciler) wants(workload *ownership.Object, owners []types.UID) int {
	replicas, pods := 0, 0
	for _, uid := range owners {
		if o := r.Walker.Get(uid); o != nil && uid != workload.UID && o.Replicas != nil {
			replicas += int(*o.Replicas)
		}
	}
	for _, cohort := range r.Ledger.View(owners) {
		pods += len(cohort.Pods)
	}
	if workload.Replicas != nil {
		replicas = max(replicas, int(*workload.Replicas))
	}
	return max(replicas, pods)
}
