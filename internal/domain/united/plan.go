package united

import (
	"cmp"
	"fmt"
	"slices"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
)

// Owner says whose a workload is.
type Owner int

const (
	// Ours: the UnitedDeployment is its controller.
	Ours Owner = iota
	// Nobodys: it has no controller, and is as if we had made it.
	Nobodys
)

// Child is a workload that is there.
type Child struct {
	Name, UID string
	// Pool is the pool that its label names.
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
	// Settled is true if both were true at the same time since the workload's
	// content changed last, Established if they ever were.
	Settled, Established bool
	// Failure says why the workload makes no progress; "" if it may make some.
	Failure string
	// Drained is true if deleting the workload would delete no pod. It is set only
	// for workloads whose pool was removed.
	Drained bool
}

// Complete tells whether all desired pods are available and have the current template.
func (c *Child) Complete() bool { return c.RolloutComplete && c.Available }

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

// State is what was observed.
type State struct {
	// Pools are in the order of the spec, Children in any.
	Pools    []Pool
	Children []Child
	Strategy Strategy
	// Update is the revision to roll out. Current is the last revision that every
	// pool had; "" if there was none yet. Base is Current as long as workloads can
	// still be built from it, else "".
	Update, Current, Base string
	// HasReplicas is true if the workloads have a number of replicas: DaemonSets
	// do not.
	HasReplicas bool
}

// Verb says what is done to a workload.
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
	// Why is for people.
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

// Outlook is how one pool stands before the actions of the plan.
type Outlook struct {
	// Child is the workload that is kept; nil if there is none.
	Child *Child
	Phase apps.PoolPhase
	// Busy: an update is under way that has not come to its end.
	Busy bool
}

// Plan is what is done now.
type Plan struct {
	Actions []Action
	// Pools are in the order of State.Pools.
	Pools []Outlook
	// Complete: every pool is at the update revision, rolled and up.
	Complete bool
	// Stopped, Paused and Partitioned say what holds pools that are to be updated.
	Stopped, Paused, Partitioned bool
}

// rollout is a plan in the making.
type rollout struct {
	State
	kept []*Child
	// updating are pools in the middle of an update to what they are to be,
	// busy those in the middle of any.
	updating, busy int
	stopped        bool
	plan           Plan
}

// Plan decides. Replicas, hand edits and pools that are missing or too many are
// put right at once. What replaces pods goes through the pools in their order,
// MaxUpdating at a time: the next begins when one is rolled and up. A pool that
// was never up has no pod to lose: it makes no other wait, and waits itself only
// where it began at the revision that the others have.
func (s State) Plan() Plan {
	r := &rollout{State: s, kept: make([]*Child, len(s.Pools))}
	leave := r.sortOut()
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
		if r.isAsWanted(i) {
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
	r.plan.Complete = r.isComplete()
	return r.plan
}

// sortOut finds the one workload of each pool, and returns what happens to the others.
func (r *rollout) sortOut() (leave []Action) {
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
			case c.Owner == Ours && !c.Deleting:
				leave = append(leave, Action{Delete, p.Name, c.Name, "", "the pool has " + r.kept[i].Name + " too"})
			}
		}
	}
	for _, children := range byPool {
		for _, c := range children {
			switch {
			case c.Owner != Ours || c.Deleting:
			case c.Drained:
				leave = append(leave, Action{Delete, c.Pool, c.Name, "", "there is no such pool any more, and no pod of it"})
			default:
				leave = append(leave, Action{Drain, c.Pool, c.Name, "", "there is no such pool any more"})
			}
		}
	}
	slices.SortFunc(leave, func(a, b Action) int { return cmp.Or(cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.Child, b.Child)) })
	return leave
}

// Leaving are the workloads of ours whose pool is removed.
func (s State) Leaving() []*Child {
	var out []*Child
	for i := range s.Children {
		c := &s.Children[i]
		if c.Owner == Ours && !c.Deleting && !slices.ContainsFunc(s.Pools, func(p Pool) bool { return p.Name == c.Pool }) {
			out = append(out, c)
		}
	}
	return out
}

// prefer puts the workload that is kept first: one that stays, ours, that is up
// or once was, the oldest.
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

// isBusy tells whether a workload is between two states: what was done to it
// took pods away that have not come back.
func (r *rollout) isBusy(c *Child) bool {
	return c != nil && c.Established && !c.Complete() && (c.Revision != r.Current || !c.Settled)
}

// isHeld tells whether a pool keeps the revision that it has.
func (r *rollout) isHeld(i int) bool { return i >= len(r.Pools)-r.Strategy.Partition }

// wanted is what a pool is to be made of. A pool that is held by the partition
// follows its patch and its NodePool at the revision that it has.
func (r *rollout) wanted(i int) (revision, content string) {
	if c := r.kept[i]; r.isHeld(i) && c != nil && r.Pools[i].Contents[c.Revision] != "" {
		return c.Revision, r.Pools[i].Contents[c.Revision]
	}
	return r.Update, r.Pools[i].Contents[r.Update]
}

// isAsWanted tells whether a pool's workload is made of what it is to be.
func (r *rollout) isAsWanted(i int) bool {
	c := r.kept[i]
	revision, content := r.wanted(i)
	return c != nil && c.Revision == revision && c.PoolRevision == content
}

// decide adds what is done to one pool.
func (r *rollout) decide(i int) {
	p, c := r.Pools[i], r.kept[i]
	out := Outlook{Child: c, Busy: r.isBusy(c)}
	switch {
	case c == nil:
		out.Phase = apps.PoolPending
		if !p.Refused {
			revision, why := r.birth(i)
			r.act(Action{Create, p.Name, "", revision, why})
		}
	case c.Deleting:
		out.Phase = apps.PoolPending // its name is free when it is gone
	case c.Owner == Nobodys:
		out.Phase = apps.PoolPending
		if !p.Refused {
			r.act(Action{Adopt, p.Name, c.Name, "", "it has no owner and is of this pool"})
		}
	default:
		out.Phase = r.tend(i)
	}
	if p.Refused {
		out.Phase = apps.PoolFailed
	}
	r.plan.Pools = append(r.plan.Pools, out)
}

// birth says at which revision a new pool begins: while a rollout has not come
// to it yet, at the one that the others have.
func (r *rollout) birth(i int) (revision, why string) {
	if r.Base == "" || r.Base == r.Update || !slices.ContainsFunc(r.kept, func(c *Child) bool { return c != nil && c.Revision != r.Update }) {
		return r.Update, "the pool has no workload"
	}
	for j := range i {
		if c := r.kept[j]; c != nil && c.Revision != r.Update || r.isBusy(c) {
			return r.Base, "the rollout has not come to the pool yet"
		}
	}
	if r.isHeld(i) || r.Strategy.Paused || r.stopped {
		return r.Base, "the pool is held"
	}
	return r.Update, "the pool has no workload"
}

// tend decides about a workload of ours.
func (r *rollout) tend(i int) apps.PoolPhase {
	p, c := r.Pools[i], r.kept[i]
	phase := phaseOf(c, r.isBusy(c))
	if r.isAsWanted(i) {
		r.keepUp(i)
		if c.Revision != r.Update {
			r.plan.Partitioned = true
			phase = apps.PoolHeld
		}
		return phase
	}
	revision, _ := r.wanted(i)
	switch {
	case p.Refused:
	case r.Strategy.Paused:
		r.plan.Paused = true
		phase = apps.PoolHeld
	case !c.Established && c.Revision != r.Current:
		r.act(Action{Update, p.Name, c.Name, revision, "the pool was never up"})
		return apps.PoolUpdating
	case r.stopped && (!r.isBusy(c) || r.updating > 0):
		r.plan.Stopped = true
		phase = apps.PoolHeld
	case r.mayBegin(c):
		r.updating++
		if !r.isBusy(c) {
			r.busy++
		}
		r.act(Action{Update, p.Name, c.Name, revision, fmt.Sprintf("its turn, %d of at most %d", r.updating, r.Strategy.MaxUpdating)})
		return apps.PoolUpdating
	default:
		phase = apps.PoolWaiting
	}
	r.keepUp(i)
	return phase
}

// mayBegin tells whether one more pool may be updated. One that is in the
// middle of another update has its pods away already.
func (r *rollout) mayBegin(c *Child) bool {
	return r.updating < r.Strategy.MaxUpdating && (r.isBusy(c) || r.busy < r.Strategy.MaxUpdating)
}

// keepUp puts replicas and hand edits right, whatever the rollout says.
func (r *rollout) keepUp(i int) {
	p, c := r.Pools[i], r.kept[i]
	switch {
	case p.Refused:
	case c.Edited && p.Contents[c.Revision] != "":
		r.act(Action{Restore, p.Name, c.Name, c.Revision, "it was edited by hand"})
	case r.HasReplicas && (c.Replicas != p.Replicas || c.Partition != p.Partition):
		r.act(Action{Scale, p.Name, c.Name, "", fmt.Sprintf("%s, not %s", size(p.Replicas, p.Partition), size(c.Replicas, c.Partition))})
	}
}

func size(replicas, partition int32) string {
	if partition == 0 {
		return fmt.Sprintf("%d replicas", replicas)
	}
	return fmt.Sprintf("%d replicas, partition %d", replicas, partition)
}

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

func (r *rollout) act(a Action) { r.plan.Actions = append(r.plan.Actions, a) }

// isComplete tells whether the update revision is what every pool has in full.
func (r *rollout) isComplete() bool {
	for i := range r.Pools {
		c := r.kept[i]
		if c == nil || c.Owner != Ours || c.Deleting || c.Edited || c.Revision != r.Update || c.PoolRevision != r.Pools[i].Contents[r.Update] ||
			!c.Complete() || c.Partition > 0 && c.Replicas > 0 ||
			r.HasReplicas && (c.Replicas != r.Pools[i].Replicas || c.Partition != r.Pools[i].Partition) {
			return false
		}
	}
	return true
}
