package policies

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/seats"
)

// behindTime is how long the cache of owners may be behind that of pods at most.
const behindTime = 30 * time.Second

// IsBehind returns whether a new pod names other policies than its workload has in the caches. The
// webhook writes the names into the pod, so a replica may have seen a later state of the workload than
// this one. That is not so if this one has seen the workload with these names before: then the
// policies were replaced after the pod was created. After behindTime they were too.
func (r *Resolver) IsBehind(pod *seats.Pod, workload ownership.PolicyOwners, owners []*ownership.Object) bool {
	if !pod.Admitted || r.clock.Now().Sub(pod.Created) > behindTime {
		return false
	}
	has := workload.Policies()
	differs := func(required func(*ownership.Policies) string) bool {
		named := required(&pod.Policies)
		return named != "" && named != required(&has) && !slices.ContainsFunc(owners, func(o *ownership.Object) bool {
			return o.Replaced != nil && required(o.Replaced) == named
		})
	}
	return differs(func(p *ownership.Policies) string { return p.RequiredPropagation }) ||
		differs(func(p *ownership.Policies) string { return p.RequiredOverride })
}

// OnHeld adds a handler that is called when SetHeld sets, changes or removes the reason of a
// workload.
// The handler must not block. OnHeld must be called before anything runs.
func (r *Resolver) OnHeld(h func(workload types.UID)) { r.onHeld = append(r.onHeld, h) }

// SetHeld records why pods of a workload stay at the gate although all of its policies
// exist: the API server refuses the binding labels, or the update that would remove the
// gate. An empty reason removes the record.
func (r *Resolver) SetHeld(workload types.UID, reason string) {
	r.mu.Lock()
	if r.held[workload] == reason {
		r.mu.Unlock()
		return
	}
	if reason == "" {
		delete(r.held, workload)
	} else {
		r.held[workload] = reason
	}
	r.mu.Unlock()
	for _, h := range r.onHeld {
		h(workload)
	}
}

// Held returns the reason that SetHeld recorded for the first of the objects that has
// one; "" if none has.
func (r *Resolver) Held(uids []types.UID) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, uid := range uids {
		if reason := r.held[uid]; reason != "" {
			return reason
		}
	}
	return ""
}
