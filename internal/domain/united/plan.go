package united

import (
	"cmp"
	"fmt"
	"slices"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
)

// Owner is the kind of controller reference that a workload has.
type Owner int

const (
	// Ours means that the UnitedDeployment is the workload's controller.
	Ours Owner = iota
	// Unowned means that the workload has no controller, and that its selector is the
	// one that Build gives the workload of its pool. It can be adopted.
	Unowned
)

// Child is an observed workload.
type Child struct {
	Name, UID string
	// Pool is the pool that the workload belongs to, by its label or, without one, its name.
	Pool     string
	Owner    Owner
	Deleting bool
	// Created is the creation time in seconds since 1970. Of two workloads of one
	// pool that are otherwise equal the older is kept.
	Created int64
	// Revision is the UnitedDeployment's revision that the workload was made from,
	// PoolRevision the hash of everything that the pool's workload was made from.
	Revision, PoolRevision string
	// Edited is true if somebody changed the workload after we wrote it.
	Edited bool
	// Replicas and Partition are those of its spec.
	Replicas, Partition int32
	// RolloutComplete is true if every pod that should have the current template
	// has it, and no other pod is left. Available is true if as many pods are
	// available as are desired.
	RolloutComplete, Available bool
	// Settled is true if the workload was complete (see Complete) at some time since
	// its content changed last, Established if it ever was.
	Settled, Established bool
	// Failure is why the workload makes no progress; "" if it may still make some.
	Failure string
	// Drained is true if deleting the workload would delete no pod. It is set only
	// for workloads whose pool was removed.
	Drained bool
}

// Complete reports whether all desired pods are available and have the current template.
func (c *Child) Complete() bool { return c.RolloutComplete && c.Available }

// InRollout reports whether the workload's last change of content is not finished:
// since that change it was never complete, or it has another revision than current,
// the last revision that every pool had. For such a workload a missing pod counts
// against the progress deadline.
func (c *Child) InRollout(current string) bool { return c.Revision != current || !c.Settled }

// Pool is one pool of the spec.
type Pool struct {
	Name string
	// Replicas and Partition are the desired values.
	Replicas, Partition int32
	// Contents maps each revision to the PoolRevision that the pool's workload has
	// at it. Revisions at which the workload cannot be built are left out.
	Contents map[string]string
	// Refused is true if the pool's workload cannot be built, or if the API server
	// refused to write it in this pass.
	Refused bool
}

// Strategy is spec.updateStrategy, with its defaults.
type Strategy struct {
	Paused bool
	// Partition is the number of pools, from the end of the list, that keep their
	// revision.
	Partition int
	// MaxUpdating is at least 1.
	MaxUpdating int
	// Continue is true if a failed pool does not stop the rollout of the others.
	Continue bool
}

// State is the input of Plan: what was observed, and what the spec demands.
type State struct {
	// Pools are in the order of the spec, Children in any order.
	Pools    []Pool
	Children []Child
	Strategy Strategy
	// Update is the revision to roll out. Current is the last revision that every
	// pool had; "" if there was none yet. Base is Current as long as workloads can
	// still be built from it, else "".
	Update, Current, Base string
	// HasReplicas is true if the workloads have spec.replicas, false for DaemonSets.
	HasReplicas bool
}

// Verb is what an Action does to a workload.
type Verb string

const (
	// Create creates the workload at Action.Revision.
	Create Verb = "create"
	// Update changes the workload's content to that of Action.Revision.
	Update Verb = "update"
	// Restore undoes the edits of others: the workload gets the content of its own
	// revision again.
	Restore Verb = "restore"
	// Scale changes replicas and partition and nothing else.
	Scale Verb = "scale"
	// Adopt sets our owner reference and changes nothing else.
	Adopt Verb = "adopt"
	// Drain scales the workload of a removed pool down, as far as
	// PodDisruptionBudgets allow now.
	Drain Verb = "drain"
	// Delete deletes the workload.
	Delete Verb = "delete"
)

// Action is one write.
type Action struct {
	Verb Verb
	Pool string
	// Child is the name of the workload; "" for Create.
	Child string
	// Revision is the shared revision; "" for Scale, Adopt, Drain and Delete.
	Revision string
	// Why is the reason, for people who read the plan.
	Why string
}

func (a Action) String() string {
	s := string(a.Verb) + " " + a.Pool
	if a.Child != "" {
		s += " (" + a.Child + ")"
	}
	if a.Revision != "" {
		s += " at " + a.Revision
	}
	return s + ": " + a.Why
}

// Outlook is the state of one pool before the actions of the plan.
type Outlook struct {
	// Child is the workload that the pool keeps; nil if the pool has none.
	Child *Child
	Phase apps.PoolPhase
	// Busy is true while an update of an established workload is not finished.
	Busy bool
	// Provisioned is true if the pool has a workload of ours that is not being deleted.
	Provisioned bool
	// Updated is true if that workload is made from the update revision, its rollout
	// is complete, and no partition keeps pods of it at an older revision.
	Updated bool
}

// Plan is the result of State.Plan.
type Plan struct {
	// Actions are in the order in which they are to be executed.
	Actions []Action
	// Pools are in the order of State.Pools.
	Pools []Outlook
	// Draining are the names of our workloads of removed pools that are not being
	// deleted yet. Surplus are the names of all other workloads of ours that no pool
	// keeps: they are deleted in this pass, or being deleted. Both are sorted.
	Draining, Surplus []string
	// Complete is true if every pool is updated, available and of the desired size.
	Complete bool
	// Stopped, Paused and Partitioned are the reasons why pools are not updated now:
	// a pool failed, the strategy is paused, or a partition keeps old revisions: that
	// of the UnitedDeployment, or those of StatefulSets where nothing else is left to do.
	Stopped, Paused, Partitioned bool
}

// rollout holds the intermediate results of Plan.
type rollout struct {
	State
	// kept is the workload of each pool, in the order of Pools; nil if there is none.
	kept []*Child
	// updating counts the pools whose update to their target is not finished, busy
	// the pools whose update to any content is not finished.
	updating, busy int
	// stopped is true if a failed pool stops the rollout of the others.
	stopped bool
	plan    Plan
}

// Plan returns the writes that are due now (P6 to P14).
//
// Wrong replicas, edits of others, missing and surplus workloads are repaired at once.
// Changes that replace pods go through the pools in the order of the spec, at most
// MaxUpdating pools at a time: the next pool begins when one of these is complete
// again. A pool that was never complete has no available pods to lose: no other pool
// waits for it. It waits itself only if it still has the revision Current.
func (s State) Plan() Plan {
	r := &rollout{State: s, kept: make([]*Child, len(s.Pools))}
	leave := r.pickChildren()
	for i := range s.Pools {
		c := r.kept[i]
		if !r.isBusy(c) {
			continue
		}
		failed := c.Failure != ""
		if failed && s.Strategy.Continue {
			continue
		}
		r.busy++
		if r.isAtTarget(i) {
			r.updating++
			r.stopped = r.stopped || failed
		}
	}
	for i, p := range s.Pools {
		if c := r.kept[i]; p.Refused && c != nil && c.Established && !s.Strategy.Continue {
			r.stopped = true
		}
	}
	for i := range s.Pools {
		r.decide(i)
	}
	r.plan.Actions = append(r.plan.Actions, leave...)
	r.summarize()
	return r.plan
}

// pickChildren chooses the one workload that each pool keeps. It returns the actions
// on all others: those of removed pools are drained and then deleted, those that a
// pool has too many are deleted at once. The workloads of removed pools are the ones
// that Leaving returns.
func (r *rollout) pickChildren() (leave []Action) {
	byPool := map[string][]*Child{}
	for i := range r.Children {
		c := &r.Children[i]
		byPool[c.Pool] = append(byPool[c.Pool], c)
	}
	for i, p := range r.Pools {
		children := byPool[p.Name]
		delete(byPool, p.Name)
		slices.SortFunc(children, prefer)
		for n, c := range children {
			switch {
			case n == 0:
				r.kept[i] = c
				continue
			case c.Owner != Ours:
				continue
			case !c.Deleting:
				leave = append(leave, Action{Delete, p.Name, c.Name, "", "the pool also has " + r.kept[i].Name})
			}
			r.plan.Surplus = append(r.plan.Surplus, c.Name)
		}
	}
	for i := range r.Children {
		if c := &r.Children[i]; c.Owner == Ours && c.Deleting && r.isRemoved(c.Pool) {
			r.plan.Surplus = append(r.plan.Surplus, c.Name)
		}
	}
	for _, c := range r.Leaving() {
		r.plan.Draining = append(r.plan.Draining, c.Name)
		if c.Drained {
			leave = append(leave, Action{Delete, c.Pool, c.Name, "", "the pool was removed, and deleting its workload deletes no pod"})
		} else {
			leave = append(leave, Action{Drain, c.Pool, c.Name, "", "the pool was removed"})
		}
	}
	slices.SortFunc(leave, func(a, b Action) int { return cmp.Or(cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.Child, b.Child)) })
	slices.Sort(r.plan.Draining)
	slices.Sort(r.plan.Surplus)
	return leave
}

// isRemoved reports whether the spec has no pool of this name.
func (s State) isRemoved(pool string) bool {
	return !slices.ContainsFunc(s.Pools, func(p Pool) bool { return p.Name == pool })
}

// Leaving returns our workloads whose pool was removed and that are not being deleted,
// in the order of Children. The caller sets Child.Drained of these before it plans.
func (s State) Leaving() []*Child {
	var out []*Child
	for i := range s.Children {
		c := &s.Children[i]
		if c.Owner == Ours && !c.Deleting && s.isRemoved(c.Pool) {
			out = append(out, c)
		}
	}
	return out
}

// prefer sorts the workload that a pool keeps first. The criteria, in this order: it is
// not being deleted; it is ours; it has pods and all are available; it was complete
// once; it is older; its name sorts first.
func prefer(a, b *Child) int {
	rank := func(c *Child) int {
		n := 0
		for _, good := range []bool{!c.Deleting, c.Owner == Ours, c.Available && c.Replicas > 0, c.Established} {
			n *= 2
			if !good {
				n++
			}
		}
		return n
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Created, b.Created), cmp.Compare(a.Name, b.Name))
}

// isBusy reports whether an update took pods of a workload away that are not back yet.
// A workload that was never complete is not busy: its pods were never all there.
func (r *rollout) isBusy(c *Child) bool {
	return c != nil && c.Established && !c.Complete() && c.InRollout(r.Current)
}

// isHeld reports whether the partition of the UnitedDeployment holds a pool at the
// revision that it has.
func (r *rollout) isHeld(i int) bool { return i >= len(r.Pools)-r.Strategy.Partition }

// target returns the revision that a pool is to have now, and the PoolRevision at it.
// A held pool keeps its revision, and still follows its patch and its NodePool.
func (r *rollout) target(i int) (revision, content string) {
	if c := r.kept[i]; r.isHeld(i) && c != nil && r.Pools[i].Contents[c.Revision] != "" {
		return c.Revision, r.Pools[i].Contents[c.Revision]
	}
	return r.Update, r.Pools[i].Contents[r.Update]
}

// isAtTarget reports whether a pool's workload has the content of its target.
func (r *rollout) isAtTarget(i int) bool {
	c := r.kept[i]
	revision, content := r.target(i)
	return c != nil && c.Revision == revision && c.PoolRevision == content
}

// decide appends the outlook of one pool and the actions on its workload.
func (r *rollout) decide(i int) {
	p, c := r.Pools[i], r.kept[i]
	out := Outlook{Child: c, Busy: r.isBusy(c), Provisioned: c != nil && c.Owner == Ours && !c.Deleting, Updated: r.isUpdated(i)}
	switch {
	case c == nil:
		out.Phase = apps.PoolPending
		if !p.Refused {
			revision, why := r.firstRevision(i)
			r.add(Action{Create, p.Name, "", revision, why})
		}
	case c.Deleting:
		out.Phase = apps.PoolPending // a new workload may need its name
	case c.Owner == Unowned:
		out.Phase = apps.PoolPending
		if !p.Refused {
			r.add(Action{Adopt, p.Name, c.Name, "", "the workload of the pool has no owner"})
		}
	default:
		out.Phase = r.decideOurs(i)
	}
	if p.Refused {
		out.Phase = apps.PoolFailed
	}
	r.plan.Pools = append(r.plan.Pools, out)
}

// firstRevision returns the revision at which a pool's workload is created. It is Base
// as long as other pools have an older revision and the rollout has not reached this
// pool, or may not go on. Otherwise it is the update revision.
func (r *rollout) firstRevision(i int) (revision, why string) {
	if r.Base == "" || r.Base == r.Update || !slices.ContainsFunc(r.kept, func(c *Child) bool { return c != nil && c.Revision != r.Update }) {
		return r.Update, "the pool has no workload"
	}
	for j := range i {
		if c := r.kept[j]; c != nil && c.Revision != r.Update || r.isBusy(c) {
			return r.Base, "the rollout has not reached the pool yet"
		}
	}
	if r.isHeld(i) || r.Strategy.Paused || r.stopped {
		return r.Base, "the pool is held"
	}
	return r.Update, "the pool has no workload"
}

// decideOurs adds the actions on a workload of ours that stays, and returns the
// pool's phase.
func (r *rollout) decideOurs(i int) apps.PoolPhase {
	p, c := r.Pools[i], r.kept[i]
	phase := phaseOf(c, r.isBusy(c))
	if r.isAtTarget(i) {
		r.repair(i)
		if c.Revision != r.Update {
			r.plan.Partitioned = true
			phase = apps.PoolHeld
		}
		return phase
	}
	revision, _ := r.target(i)
	switch {
	case p.Refused:
	case r.Strategy.Paused:
		r.plan.Paused = true
		phase = apps.PoolHeld
	case !c.Established && c.Revision != r.Current:
		r.add(Action{Update, p.Name, c.Name, revision, "the pool was never complete"})
		return apps.PoolUpdating
	case r.stopped && (!r.isBusy(c) || r.updating > 0):
		r.plan.Stopped = true
		phase = apps.PoolHeld
	case r.mayBegin(c):
		r.updating++
		if !r.isBusy(c) {
			r.busy++
		}
		r.add(Action{Update, p.Name, c.Name, revision, fmt.Sprintf("pool %d of at most %d at a time", r.updating, r.Strategy.MaxUpdating)})
		return apps.PoolUpdating
	default:
		phase = apps.PoolWaiting
	}
	r.repair(i)
	return phase
}

// mayBegin reports whether the update of one more pool may begin. A pool in the middle
// of another update may begin although MaxUpdating pools are busy: it is one of them.
func (r *rollout) mayBegin(c *Child) bool {
	return r.updating < r.Strategy.MaxUpdating && (r.isBusy(c) || r.busy < r.Strategy.MaxUpdating)
}

// repair corrects replicas, partition and edits of others, whatever holds the rollout.
func (r *rollout) repair(i int) {
	p, c := r.Pools[i], r.kept[i]
	switch {
	case p.Refused:
	case c.Edited && p.Contents[c.Revision] != "":
		r.add(Action{Restore, p.Name, c.Name, c.Revision, "it was edited by hand"})
	case !r.isSized(i):
		r.add(Action{Scale, p.Name, c.Name, "", fmt.Sprintf("%s, not %s", size(p.Replicas, p.Partition), size(c.Replicas, c.Partition))})
	}
}

// isSized reports whether a pool's workload has the desired replicas and partition.
func (r *rollout) isSized(i int) bool {
	p, c := r.Pools[i], r.kept[i]
	return !r.HasReplicas || c.Replicas == p.Replicas && c.Partition == p.Partition
}

// size returns replicas and partition as text.
func size(replicas, partition int32) string {
	if partition == 0 {
		return fmt.Sprintf("%d replicas", replicas)
	}
	return fmt.Sprintf("%d replicas, partition %d", replicas, partition)
}

// phaseOf returns the phase of a workload of ours that nothing holds.
func phaseOf(c *Child, busy bool) apps.PoolPhase {
	switch {
	case c.Complete():
		return apps.PoolReady
	case c.Failure != "":
		return apps.PoolFailed
	case busy || !c.Established || !c.RolloutComplete:
		return apps.PoolUpdating
	}
	return apps.PoolUnavailable
}

func (r *rollout) add(a Action) { r.plan.Actions = append(r.plan.Actions, a) }

// isRolledOut reports whether a pool's workload has the update revision and its rollout
// is complete, as far as its partition goes.
func (r *rollout) isRolledOut(i int) bool {
	c := r.kept[i]
	return c != nil && c.RolloutComplete && c.Revision == r.Update && c.PoolRevision == r.Pools[i].Contents[r.Update]
}

// isUpdated is the rule of Outlook.Updated.
func (r *rollout) isUpdated(i int) bool {
	c := r.kept[i]
	return r.isRolledOut(i) && c.Owner == Ours && (c.Partition <= 0 || c.Replicas <= 0)
}

// summarize sets the fields of the plan that concern all pools.
func (r *rollout) summarize() {
	updated, rolledOut := true, true
	r.plan.Complete = true
	for i, out := range r.plan.Pools {
		updated = updated && out.Updated
		rolledOut = rolledOut && r.isRolledOut(i)
		r.plan.Complete = r.plan.Complete && out.Updated && out.Provisioned && out.Child.Available && !out.Child.Edited && r.isSized(i)
	}
	r.plan.Partitioned = r.plan.Partitioned || rolledOut && !updated
}
