// Package extender serves kube-scheduler's extender protocol (docs/sources.md, G9 to G11). It
// decodes requests, calls the ledger of seats and encodes the results; it decides nothing.
//
//	POST /scheduler/filter      keep only nodes of the group that is next, reserve the seat
//	POST /scheduler/prioritize  score nodes by group: the group that lacks most pods first
//	POST /scheduler/preempt     drop nodes on which preemption would not give the pod a place
//	POST /scheduler/bind        check the seat again, override images, bind
//
// For pods without a policy, filter keeps all nodes, and nothing is recorded or changed.
package extender

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/machinery/leader"
	"github.com/atoll-k8s/atoll/internal/policies"
	"github.com/atoll-k8s/atoll/internal/seats"
)

// Texts that kube-scheduler writes into the pod's condition. They are constants: if the
// text differed from one attempt to the next, kube-scheduler would retry the pod at once,
// for ever.
const (
	// TextNotBound refuses every node for a pod whose workload requires a PropagationPolicy
	// that is not bound (docs/sources.md, G5).
	TextNotBound = "the workload requires a PropagationPolicy that is missing, not valid or not bound yet"
	// TextOverrideNotBound refuses every node for a pod whose workload requires an
	// OverridePolicy that is not bound: the pod must not start without its overrides.
	TextOverrideNotBound = "the workload requires an OverridePolicy that is missing, not valid or not bound yet"
	// TextOutsideGroups refuses a node that is in no group of the policy.
	TextOutsideGroups = seats.TextOutsideGroups
	// TextOtherGroup refuses a node whose group has its share for now.
	TextOtherGroup = seats.TextOtherGroup
)

// Handler serves the protocol. Its fields must not be changed once it serves.
type Handler struct {
	// Policies finds the workload, the policies and the cohort of a pod.
	Policies *policies.Resolver
	// Ledger reserves seats.
	Ledger *seats.Ledger
	// Client binds pods and overrides their images.
	Client kubernetes.Interface
	// Wide: the filter keeps the nodes of every group that lacks pods and reserves nothing
	// (docs/sources.md, G10 and G11). prioritize ranks the groups, and bind refuses the pod
	// if its group is full by then. Default false: the filter keeps the nodes of one group
	// and reserves the seat.
	Wide bool
	// System are the namespaces in which the chart's policy atoll-manager-pods refuses to
	// change images. A pod there is bound with the images that it has.
	System sets.Set[string]
	// Leading returns whether this replica is the leader. A replica that is not forwards
	// requests to the leader.
	Leading func() bool
	// Leader is where requests are sent then. If it is nil, or if there is no leader, the
	// handler answers 503 and kube-scheduler retries.
	Leader *leader.Leader
	// Log receives, at V(2), why pods wait or were not bound.
	Log logr.Logger
}

// ServeMux returns the routes of all verbs.
func (h *Handler) ServeMux() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("/scheduler/filter", h.serve("filter", h.filter))
	mux.HandleFunc("/scheduler/prioritize", h.serve("prioritize", h.prioritize))
	mux.HandleFunc("/scheduler/preempt", h.serve("preempt", h.preempt))
	mux.HandleFunc("/scheduler/bind", h.serve("bind", h.bind))
	return mux
}

// serve measures the duration of a verb, and forwards its requests if this replica is not the
// leader.
func (h *Handler) serve(verb string, serve func(*buffers, http.ResponseWriter, *http.Request)) http.HandlerFunc {
	duration := requestSeconds.WithLabelValues(verb)
	return func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		defer func() { duration.Observe(time.Since(start).Seconds()) }()
		if !h.Leading() {
			forward(h.Leader, w, r)
			return
		}
		b := bufferPool.Get().(*buffers)
		defer b.release()
		serve(b, w, r)
	}
}

// assign returns the policies and the cohort of a pod. managed is false for a pod without a
// PropagationPolicy, and for a pod whose workload is configured to ignore a policy that
// cannot be used.
func (h *Handler) assign(r *http.Request, pod *podMeta) (a policies.Assignment, managed bool, err error) {
	object := pod.object()
	if object.Controller == nil && object.Policies.RequiredPropagation == "" && object.Policies.RequiredOverride == "" {
		return a, false, nil
	}
	a, err = h.Policies.Assignment(r.Context(), object, h.Policies.Revision(object.Controller, pod.Metadata.Labels))
	if ignoresPropagation(a.PolicyOwners, err) {
		return a, false, nil // the workload allows to ignore a policy that is missing
	}
	owner := a.PolicyOwners.Propagation
	if err != nil && owner != nil {
		// The workload is labelled as bound, but the policy cannot be read or used: the pod
		// waits.
		h.Log.V(2).Info("Pod waits for its policy", "pod", object.Namespace+"/"+object.Name, "why", err.Error())
		return a, true, nil
	}
	return a, owner != nil, err
}

// ignoresPropagation returns whether the PropagationPolicy that a workload requires cannot be
// used and the workload is configured to ignore it then. err is the error of
// Policies.Assignment.
func ignoresPropagation(workload ownership.PolicyOwners, err error) bool {
	o := workload.Propagation
	return o != nil && o.IgnoreMissing && (err != nil || o.Policies.Propagation() != ownership.Bound)
}

// filter keeps the nodes that a pod may be scheduled to.
func (h *Handler) filter(b *buffers, w http.ResponseWriter, r *http.Request) {
	args, ok := b.decodeFilter(w, r)
	if !ok {
		return
	}
	if args.Pod == nil {
		http.Error(w, "decoding the request: Pod is missing", http.StatusBadRequest)
		return
	}
	names, full, err := args.names()
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	a, managed, err := h.assign(r, args.Pod)
	switch {
	case err != nil:
		filterTotal.WithLabelValues("error").Inc()
		b.encode(w, filterResult{Error: err.Error()})
	case a.PolicyOwners.WaitsForOverride():
		filterTotal.WithLabelValues("not_bound").Inc()
		b.encode(w, refuse(&args, names, func(int) string { return TextOverrideNotBound }))
	case !managed:
		filterTotal.WithLabelValues("unmanaged").Inc()
		b.encode(w, keep(&args, names, full, nil))
	case a.PolicyOwners.Propagation.Policies.Propagation() != ownership.Bound || len(a.Spread.Groups()) == 0 && len(a.Spread.Missing()) == 0:
		filterTotal.WithLabelValues("not_bound").Inc()
		b.encode(w, refuse(&args, names, func(int) string { return TextNotBound }))
	case !a.Counted:
		allowed := groupSet(a.Spread.Taking())
		b.encode(w, h.keepGroups(b, &args, names, full, allowed, allowed))
	default:
		h.filterCounted(b, w, &args, a, names, full)
	}
}

// filterCounted is filter for a pod that is counted in a cohort: it needs a seat.
func (h *Handler) filterCounted(b *buffers, w http.ResponseWriter, args *filterArgs, a policies.Assignment, names []string, full []json.RawMessage) {
	request := h.Policies.SeatRequest(&a, args.Pod.Metadata.UID)
	request.Token, request.Nodes = types.UID(args.Pod.Metadata.Annotations[gm.SeatAnnotation]), names
	allowed := map[string]bool{}
	if h.Wide {
		for group := range h.Ledger.Scores(request) {
			allowed[group] = true
		}
	} else if group, why := h.Ledger.Reserve(request); why == seats.Seated {
		allowed[group] = true
	}
	result := "no_seat"
	if len(allowed) > 0 {
		result = "seated"
	}
	filterTotal.WithLabelValues(result).Inc()
	b.encode(w, h.keepGroups(b, args, names, full, allowed, groupSet(a.Spread.Groups())))
}

func groupSet(groups []string) map[string]bool {
	set := make(map[string]bool, len(groups))
	for _, g := range groups {
		set[g] = true
	}
	return set
}

// keepGroups keeps the nodes of the allowed groups. If there are none, each node is
// refused: with TextOtherGroup if its group is in named, or else with TextOutsideGroups. If
// some are kept, the result has no reasons for the others, because kube-scheduler does not
// use them.
func (h *Handler) keepGroups(b *buffers, args *filterArgs, names []string, full []json.RawMessage, allowed, named map[string]bool) filterResult {
	b.groups = h.Ledger.NodeGroups(b.groups, names)
	groups := b.groups
	for _, group := range groups {
		if group != "" && allowed[group] {
			return keep(args, names, full, func(i int) bool { return groups[i] != "" && allowed[groups[i]] })
		}
	}
	return refuse(args, names, func(i int) string {
		if groups[i] != "" && named[groups[i]] {
			return TextOtherGroup
		}
		return TextOutsideGroups
	})
}

// keep returns the nodes for which want is true, in the form of the request: names or whole
// nodes. A nil want keeps all. It overwrites names and full, which must not be used
// afterwards.
func keep(args *filterArgs, names []string, full []json.RawMessage, want func(i int) bool) filterResult {
	if args.Nodes != nil && !args.NodeNames.given {
		kept := *args.Nodes
		kept.Items = pick(full, want)
		return filterResult{Nodes: &kept}
	}
	kept := pick(names, want)
	return filterResult{NodeNames: &kept}
}

// pick moves the wanted elements to the front of the slice and returns them. It never returns
// nil: kube-scheduler reads null as a missing result, and [] as no nodes.
func pick[T any](all []T, want func(i int) bool) []T {
	switch {
	case all == nil:
		return []T{}
	case want == nil:
		return all
	}
	kept := all[:0]
	for i := range all {
		if want(i) {
			kept = append(kept, all[i])
		}
	}
	return kept
}

// refuse refuses every node as unresolvable, so that kube-scheduler does not try preemption,
// which would not help.
func refuse(args *filterArgs, names []string, text func(i int) string) filterResult {
	result := keep(args, nil, nil, nil)
	result.FailedAndUnresolvableNodes = make(map[string]string, len(names))
	for i, name := range names {
		result.FailedAndUnresolvableNodes[name] = text(i)
	}
	return result
}

// prioritize scores nodes by their groups. It scores all nodes 0 if the pod needs no seat
// or its policies cannot be read.
func (h *Handler) prioritize(b *buffers, w http.ResponseWriter, r *http.Request) {
	args, ok := b.decodeFilter(w, r)
	if !ok {
		return
	}
	names, _, err := args.names()
	if err != nil || args.Pod == nil {
		http.Error(w, "decoding the request: Pod or a node is missing", http.StatusBadRequest)
		return
	}
	scores := make([]hostPriority, len(names))
	for i, name := range names {
		scores[i].Host = name
	}
	a, managed, err := h.assign(r, args.Pod)
	if err == nil && managed && a.Counted && len(a.Spread.Groups()) > 0 {
		byGroup := h.Ledger.Scores(seats.Request{
			Pod: args.Pod.Metadata.UID, Cohort: a.Cohort, Total: a.Total, Spread: a.Spread, Nodes: names,
		})
		for i, group := range h.Ledger.NodeGroups(nil, names) {
			scores[i].Score = byGroup[group]
		}
	}
	b.encode(w, scores)
}

// preempt keeps the nodes on which preemption would give the pod a place: those of groups
// that lack pods, or all nodes for a pod without a policy.
func (h *Handler) preempt(b *buffers, w http.ResponseWriter, r *http.Request) {
	var args preemptionArgs
	if !b.decode(w, r, &args) {
		return
	}
	if args.Pod == nil {
		http.Error(w, "decoding the request: Pod is missing", http.StatusBadRequest)
		return
	}
	a, managed, err := h.assign(r, args.Pod)
	result := preemptionResult{NodeNameToMetaVictims: map[string]metaVictims{}}
	victims := args.victims()
	names := make([]string, 0, len(victims))
	for name := range victims {
		names = append(names, name)
	}
	open := map[string]int64{}
	switch {
	case err != nil || !managed:
	case !a.Counted:
		for _, group := range a.Spread.Taking() {
			open[group] = 1
		}
	default:
		open = h.Ledger.Scores(seats.Request{
			Pod: args.Pod.Metadata.UID, Cohort: a.Cohort, Total: a.Total, Spread: a.Spread, Nodes: names,
		})
	}
	for i, group := range h.Ledger.NodeGroups(nil, names) {
		v := victims[names[i]]
		if len(v.Pods) > 0 && (!managed && err == nil || open[group] > 0) {
			result.NodeNameToMetaVictims[names[i]] = v
		}
	}
	b.encode(w, result)
}

// victims returns the victims by node, in the form of the response. The request has them in
// that form or with whole pods. Nodes whose victims cannot be decoded are left out.
func (a *preemptionArgs) victims() map[string]metaVictims {
	if a.NodeNameToMetaVictims != nil {
		return a.NodeNameToMetaVictims
	}
	out := make(map[string]metaVictims, len(a.NodeNameToVictims))
	for name, raw := range a.NodeNameToVictims {
		var v struct {
			Pods             []podMeta
			NumPDBViolations int64
		}
		if json.Unmarshal(raw, &v) != nil {
			continue
		}
		m := metaVictims{NumPDBViolations: v.NumPDBViolations}
		for i := range v.Pods {
			uid, err := json.Marshal(map[string]any{"UID": v.Pods[i].Metadata.UID})
			if err == nil {
				m.Pods = append(m.Pods, uid)
			}
		}
		out[name] = m
	}
	return out
}
