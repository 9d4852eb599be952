package uniteddeployment

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/united"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
)

// errTaken: objects that are not ours have the names of a pool's workload.
var errTaken = errors.New("objects that are not of this UnitedDeployment have its names")

// execute does what the planner says. One pool that is refused keeps no other
// from what it is due: the rest is planned again without it.
func (r *Reconciler) execute(ctx context.Context, s *scope) error {
	if !s.observed {
		return nil
	}
	var errs []error
	done := map[united.Action]bool{}
	for again := true; again; {
		again = false
		s.plan = s.state.Plan()
		for _, a := range s.plan.Actions {
			a.Why = "" // it may be put otherwise the next time
			if done[a] {
				continue
			}
			done[a], again = true, true
			if a.Verb == united.Drain {
				errs = append(errs, r.drain(ctx, s, a))
				continue
			}
			if err := r.do(ctx, s, a); err != nil {
				errs = append(errs, r.refused(s, a, err))
			}
		}
	}
	return errors.Join(errs...)
}

// refused keeps what a pool failed with. A write that came too late is none.
func (r *Reconciler) refused(s *scope, a united.Action, err error) error {
	err = fmt.Errorf("pool %q: trying to %s its workload: %w", a.Pool, a.Verb, err)
	for i := range s.state.Pools {
		if s.state.Pools[i].Name == a.Pool {
			s.state.Pools[i].Refused = true
		}
	}
	if early := (*pacedError)(nil); errors.As(err, &early) {
		return phase.Wait(err.Error(), early.after)
	}
	actionsTotal.WithLabelValues(string(a.Verb), resultOf(err)).Inc()
	switch {
	case apierrors.IsConflict(err):
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil // nothing will ever be made there
	case apierrors.IsNotFound(err) && a.Verb != united.Create:
		return phase.Wait("the workload is gone, and is looked for again", retryFirst)
	case errors.Is(err, errTaken):
		s.failures[a.Pool] = failure{apps.ReasonNameTaken, err.Error()}
	default:
		s.failures[a.Pool] = failure{apps.ReasonRefused, err.Error()}
	}
	return err
}

// do does one thing.
func (r *Reconciler) do(ctx context.Context, s *scope, a united.Action) error {
	live := s.live[a.Child]
	var after united.Workload
	var err error
	switch a.Verb {
	case united.Create:
		after, err = r.create(ctx, s, a)
	case united.Update, united.Restore:
		if a.Verb == united.Restore {
			if err := r.pace.early(live.GetUID(), r.Clock.Now()); err != nil {
				return err
			}
		}
		var want united.Workload
		if want, err = s.build(s.index(a.Pool), a.Revision); err == nil {
			after = united.Overlay(live, want)
			own(after, s.ud)
			err = r.Client.Update(ctx, after)
		}
	case united.Scale:
		after = live.DeepCopyObject().(united.Workload)
		pool := &s.state.Pools[s.index(a.Pool)]
		united.Resize(after, pool.Replicas, pool.Partition)
		err = r.Client.Update(ctx, after)
	case united.Adopt:
		after = live.DeepCopyObject().(united.Workload)
		own(after, s.ud)
		err = r.Client.Update(ctx, after)
	case united.Delete:
		uid := live.GetUID()
		err = r.Client.Delete(ctx, live, client.Preconditions{UID: &uid}, client.PropagationPolicy(metav1.DeletePropagationForeground))
	}
	switch {
	case apierrors.IsNotFound(err) && a.Verb == united.Delete:
	case err != nil:
		return err
	}
	if after == nil && a.Verb == united.Create {
		return nil // it was there, and is looked at next
	}
	actionsTotal.WithLabelValues(string(a.Verb), resultOf(nil)).Inc()
	log.FromContext(ctx).Info("Pool changed", "pool", a.Pool, "action", string(a.Verb), "workload", a.Child, "revision", a.Revision)
	if after == nil {
		r.gone(s, a, live)
		return nil
	}
	if a.Verb == united.Restore {
		r.pace.restored(live.GetUID(), r.Clock.Now())
	}
	r.did(s, a, after)
	return r.remember(s, a, after)
}

// index is where a pool stands in the spec.
func (s *scope) index(pool string) int {
	for i := range s.state.Pools {
		if s.state.Pools[i].Name == pool {
			return i
		}
	}
	return -1
}

// own makes the UnitedDeployment the controller of a workload.
func own(w united.Workload, ud *apps.UnitedDeployment) {
	if metav1.IsControlledBy(w, ud) {
		return
	}
	w.SetOwnerReferences(append(w.GetOwnerReferences(), *controllerRef(ud)))
}

// create makes a pool's workload under the first of its names that is free. One
// that is there already and concerns us was not seen yet: the cache was behind.
func (r *Reconciler) create(ctx context.Context, s *scope, a united.Action) (united.Workload, error) {
	plain, hashed := united.Names(s.ud.Name, a.Pool)
	for _, name := range []string{plain, hashed} {
		w, err := s.build(s.index(a.Pool), a.Revision)
		if err != nil {
			return nil, err
		}
		w.SetName(name)
		own(w, s.ud)
		err = r.Client.Create(ctx, w)
		if !apierrors.IsAlreadyExists(err) {
			return w, err
		}
		there := w.DeepCopyObject().(united.Workload)
		if err := r.Live.Get(ctx, client.ObjectKeyFromObject(w), there); err != nil {
			return nil, err
		}
		if _, ours := s.concerns(there); ours {
			return nil, r.admitLate(s, a.Pool, there)
		}
	}
	return nil, errTaken
}

// admitLate adds a workload that the cache did not have, and lets the planner
// look at it.
func (r *Reconciler) admitLate(s *scope, pool string, w united.Workload) error {
	if err := r.admit(s, w); err != nil {
		return err
	}
	refused := s.state.Pools[s.index(pool)].Refused
	s.makePool(s.index(pool))
	s.state.Pools[s.index(pool)].Refused = refused
	return nil
}

// gone forgets a workload that is deleted, or is on its way.
func (r *Reconciler) gone(s *scope, a united.Action, live united.Workload) {
	r.deleted(s.ud, live, a.Pool)
	for i := range s.state.Children {
		if s.state.Children[i].Name == a.Child {
			s.state.Children[i].Deleting = true
		}
	}
}

// remember writes down what a pool's workload is like after a write.
func (r *Reconciler) remember(s *scope, a united.Action, w united.Workload) error {
	m := s.remembered[a.Pool]
	if m == nil || m.Workload != w.GetName() {
		m = &apps.PoolStatus{Name: a.Pool, Workload: w.GetName()}
		s.remembered[a.Pool] = m
	}
	for i := range s.state.Children { // what was seen of it before the write
		if c := &s.state.Children[i]; c.Name == w.GetName() {
			m.Settled, m.Established = c.Settled, c.Established
		}
	}
	if a.Verb == united.Adopt {
		delete(s.live, a.Child) // what it is made of is looked at next
		m.Written = ""
		return r.admit(s, w)
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
	return r.admit(s, w)
}
