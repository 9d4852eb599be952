package uniteddeployment

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/united"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
)

// errNamesTaken means that objects that are not ours have both names of a pool's workload.
var errNamesTaken = errors.New("objects that do not belong to this UnitedDeployment have both possible names")

// maxAtOnce is the number of writes of one UnitedDeployment that are requested at the same time.
const maxAtOnce = 16

// execute executes the plan's actions. After each round it plans again, with refused pools
// marked, so that a refused pool does not block actions on other pools. It ends when a plan
// has no new action.
func (r *Reconciler) execute(ctx context.Context, s *scope) error {
	if !s.observed {
		return nil
	}
	var errs []error
	done := map[united.Action]bool{}
	for again := true; again; {
		again = false
		var writes, drains []united.Action
		s.plan = s.state.Plan()
		for _, a := range s.plan.Actions {
			a.Why = "" // the same action may have another reason in the next plan
			if done[a] {
				continue
			}
			done[a], again = true, true
			if a.Verb == united.Drain {
				drains = append(drains, a)
				continue
			}
			writes = append(writes, a)
		}
		errs = append(errs, r.writeAll(ctx, s, writes))
		for _, a := range drains { // last, as in the plan: first the other pools get their pods
			errs = append(errs, r.drain(ctx, s, a))
		}
	}
	return errors.Join(errs...)
}

// writeAll executes actions, first one alone, because it may be refused, then batches that
// double in size, as a ReplicaSet creates pods.
func (r *Reconciler) writeAll(ctx context.Context, s *scope, actions []united.Action) error {
	var errs []error
	for size := 1; len(actions) > 0; {
		batch := actions[:min(size, len(actions))]
		actions = actions[len(batch):]
		steps := make([]step, len(batch))
		var running sync.WaitGroup
		for i, a := range batch {
			if steps[i] = r.prepare(ctx, s, a); steps[i].err == nil {
				running.Go(func() { steps[i].err = steps[i].request() })
			}
		}
		running.Wait()
		size = min(2*size, maxAtOnce)
		for i, a := range batch {
			if err := r.finish(ctx, s, a, &steps[i]); err != nil {
				errs = append(errs, r.recordFailure(s, a, err))
				size = 1 // the next ones may be refused too
			}
		}
	}
	return errors.Join(errs...)
}

// recordFailure marks a pool as refused in this pass, and records the failure for its
// status. Conflicts, missing objects and early repairs are not failures of the pool.
func (r *Reconciler) recordFailure(s *scope, a united.Action, err error) error {
	err = fmt.Errorf("pool %q: trying to %s its workload: %w", a.Pool, a.Verb, err)
	for i := range s.state.Pools {
		if s.state.Pools[i].Name == a.Pool {
			s.state.Pools[i].Refused = true
		}
	}
	if early := (*earlyError)(nil); errors.As(err, &early) {
		return phase.Wait(err.Error(), early.after)
	}
	actionsTotal.WithLabelValues(string(a.Verb), resultOf(err)).Inc()
	switch {
	case apierrors.IsConflict(err):
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil // no object can be created there any more
	case apierrors.IsNotFound(err) && a.Verb != united.Create:
		return phase.Wait("the deletion of the workload in the cache", retryFirst)
	case errors.Is(err, errNamesTaken):
		s.failures[a.Pool] = failure{apps.ReasonNameTaken, err.Error()}
	default:
		s.failures[a.Pool] = failure{apps.ReasonRefused, err.Error()}
	}
	return err
}

// step is one action other than Drain on its way: the workload before and after it, the request
// to the API server, and the error of prepare or request.
type step struct {
	live, after united.Workload
	request     func() error
	err         error
}

// prepare builds the request of an action. Requests run while others are prepared, so they must
// not use the scope.
func (r *Reconciler) prepare(ctx context.Context, s *scope, a united.Action) (step step) {
	step.live = s.live[a.Child]
	update := func() error { return r.Client.Update(ctx, step.after) }
	switch a.Verb {
	case united.Create:
		plain, _ := united.Names(s.ud.Name, a.Pool)
		w, err := s.build(s.index(a.Pool), a.Revision)
		if err != nil {
			step.err = err
			return step
		}
		w.SetName(plain)
		setController(w, s.ud)
		step.after, step.request = w, func() error { return r.Client.Create(ctx, w) }
	case united.Update, united.Restore:
		if a.Verb == united.Restore {
			if step.err = r.pace.check(step.live.GetUID(), r.Clock.Now()); step.err != nil {
				return step
			}
		}
		var want united.Workload
		if want, step.err = s.build(s.index(a.Pool), a.Revision); step.err != nil {
			return step
		}
		step.after = united.Overlay(step.live, want)
		setController(step.after, s.ud)
		step.request = update
	case united.Scale:
		step.after = step.live.DeepCopyObject().(united.Workload)
		pool := &s.state.Pools[s.index(a.Pool)]
		united.Resize(step.after, pool.Replicas, pool.Partition)
		step.request = update
	case united.Adopt:
		step.after = step.live.DeepCopyObject().(united.Workload)
		setController(step.after, s.ud)
		step.request = update
	case united.Delete:
		live, uid := step.live, step.live.GetUID()
		step.request = func() error {
			return client.IgnoreNotFound(r.Client.Delete(ctx, live, client.Preconditions{UID: &uid}, client.PropagationPolicy(metav1.DeletePropagationForeground)))
		}
	}
	return step
}

// finish records the result of an action.
func (r *Reconciler) finish(ctx context.Context, s *scope, a united.Action, step *step) error {
	after, err := step.after, step.err
	if a.Verb == united.Create && apierrors.IsAlreadyExists(err) {
		if after, err = r.createBeside(ctx, s, a, after); after == nil && err == nil {
			return nil // it exists already; the next plan decides about it
		}
	}
	if err != nil {
		return err
	}
	s.wrote = true
	actionsTotal.WithLabelValues(string(a.Verb), resultOf(nil)).Inc()
	log.FromContext(ctx).Info("Pool changed", "pool", a.Pool, "action", string(a.Verb), "workload", a.Child, "revision", a.Revision)
	if after == nil {
		r.markDeleting(s, a, step.live)
		return nil
	}
	if a.Verb == united.Restore {
		r.pace.restored(step.live.GetUID(), r.Clock.Now())
	}
	r.written(s, a, after)
	return r.remember(s, a, after)
}

// index returns the index of a pool in the spec; -1 if it was removed.
func (s *scope) index(pool string) int {
	return slices.IndexFunc(s.state.Pools, func(p united.Pool) bool { return p.Name == pool })
}

// setController makes the UnitedDeployment the controller of a workload.
func setController(w united.Workload, ud *apps.UnitedDeployment) {
	if metav1.IsControlledBy(w, ud) {
		return
	}
	w.SetOwnerReferences(append(w.GetOwnerReferences(), *controllerRef(ud)))
}

// createBeside creates a pool's workload whose plain name is taken, by an object with the name of
// taken, under its other name. If a workload of ours has one of the names, the cache was stale:
// createBeside adds it to the scope and returns nil.
func (r *Reconciler) createBeside(ctx context.Context, s *scope, a united.Action, taken united.Workload) (united.Workload, error) {
	_, hashed := united.Names(s.ud.Name, a.Pool)
	for {
		there := taken.DeepCopyObject().(united.Workload)
		if err := r.Live.Get(ctx, client.ObjectKeyFromObject(taken), there); err != nil {
			return nil, err
		}
		if _, ours := s.ownership(there); ours {
			return nil, r.addUncached(s, a.Pool, there)
		}
		if taken.GetName() == hashed {
			return nil, errNamesTaken
		}
		w, err := s.build(s.index(a.Pool), a.Revision)
		if err != nil {
			return nil, err
		}
		w.SetName(hashed)
		setController(w, s.ud)
		if err := r.Client.Create(ctx, w); !apierrors.IsAlreadyExists(err) {
			return w, err
		}
		taken = w
	}
}

// addUncached adds a workload that the cache did not have, so that the next plan has it.
func (r *Reconciler) addUncached(s *scope, pool string, w united.Workload) error {
	if err := r.addChild(s, w); err != nil {
		return err
	}
	refused := s.state.Pools[s.index(pool)].Refused
	s.makePool(s.index(pool))
	s.state.Pools[s.index(pool)].Refused = refused
	return nil
}

// markDeleting marks a workload as being deleted after its deletion was accepted.
func (r *Reconciler) markDeleting(s *scope, a united.Action, live united.Workload) {
	r.deleted(s.ud, live, a.Pool)
	for i := range s.state.Children {
		if s.state.Children[i].Name == a.Child {
			s.state.Children[i].Deleting = true
		}
	}
}

// remember records the state of a pool's workload after a write.
func (r *Reconciler) remember(s *scope, a united.Action, w united.Workload) error {
	m := s.remembered[a.Pool]
	if m == nil || m.Workload != w.GetName() {
		m = &apps.PoolStatus{Name: a.Pool, Workload: w.GetName()}
		s.remembered[a.Pool] = m
	}
	for i := range s.state.Children { // as it was observed before the write
		if c := &s.state.Children[i]; c.Name == w.GetName() {
			m.Settled, m.Established = c.Settled, c.Established
		}
	}
	if a.Verb == united.Adopt {
		delete(s.live, a.Child) // addChild reads its content again
		m.Written = ""
		return r.addChild(s, w)
	}
	written, err := united.WrittenHash(w)
	if err != nil {
		return fmt.Errorf("hashing %q: %w", w.GetName(), err)
	}
	m.Written = written
	if a.Verb == united.Create || a.Verb == united.Update {
		m.Settled = false
		m.LastProgressTime = new(r.now())
	}
	return r.addChild(s, w)
}
