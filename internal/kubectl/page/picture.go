// Package page serves the page that shows what Atoll does: on the machine of the person who looks, with
// the rights of that person, and to nobody else.
package page

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	capacity "github.com/atoll-k8s/atoll/api/capacity/v1alpha1"
	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	scheduling "github.com/atoll-k8s/atoll/api/scheduling/v1beta1"
	"github.com/atoll-k8s/atoll/internal/domain/connectivity"
	"github.com/atoll-k8s/atoll/internal/kubectl/read"
)

// Picture is what the page shows, in parts: each NodeGroup, workload, node and PodGroup is one, so that
// what changes can be sent alone.
type Picture map[string]json.RawMessage

// Observed is what the picture is made of.
type Observed struct {
	Groups       gm.NodeGroupList
	Propagations gm.PropagationPolicyList
	Pools        apps.NodePoolList
	Splits       capacity.CapacitySplitList
	PodGroups    scheduling.PodGroupList
	Nodes        corev1.NodeList
	Pods         corev1.PodList
	// Between are owners of pods that are owned by workloads themselves: ReplicaSets and Jobs.
	Between []metav1.PartialObjectMetadata
	// Unread tells which rights are missing to show more, and Away why what is shown may be old. Reading:
	// there is nothing to show yet.
	Unread  []string
	Away    string
	Reading bool
}

type group struct {
	Name  string `json:"name"`
	Nodes int32  `json:"nodes"`
	Ready int32  `json:"ready"`
}

type workload struct {
	Namespace string `json:"namespace"`
	Kind      string `json:"kind"`
	Name      string `json:"name"`
	Policy    string `json:"policy,omitempty"`
	// Message says why the workload is not as its policies want it; "" if it is.
	Message string           `json:"message,omitempty"`
	Cells   map[string]*cell `json:"cells"`
}

// cell has the pods of a workload in one group; in none under "".
type cell struct {
	Wanted int32 `json:"wanted"`
	OnLoan int32 `json:"onLoan,omitempty"`
	Pods   []pod `json:"pods"`
}

type pod struct {
	Name  string `json:"name"`
	State string `json:"state"`
	Class string `json:"class,omitempty"`
	Node  string `json:"node,omitempty"`
}

// The states of pods, as the page's styles name them.
const (
	stateReady   = "ready"
	stateUnready = "unready"
	stateWaiting = "waiting" // has no node
	stateHeld    = "held"    // at a scheduling gate
	stateLeaving = "leaving"
	stateCutOff  = "cut-off" // its node does not reach the cloud
)

type node struct {
	Name  string `json:"name"`
	Pool  string `json:"pool,omitempty"`
	Group string `json:"group,omitempty"`
	// State is Ready, NotReady, or what the cloud concludes about a node that it does not hear.
	State string `json:"state"`
	Why   string `json:"why,omitempty"`
}

type gang struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Owner     string `json:"owner,omitempty"`
	Min       int32  `json:"min"`
	Phase     string `json:"phase,omitempty"`
}

// Of draws the picture.
func Of(o *Observed) (Picture, error) {
	p := Picture{}
	parts := map[string]any{"unread": o.Unread, "away": o.Away, "reading": o.Reading}
	nodes := map[string]*corev1.Node{}
	for i := range o.Groups.Items {
		g := &o.Groups.Items[i]
		parts["group/"+g.Name] = group{g.Name, g.Status.Total, g.Status.Ready}
	}
	for i := range o.Nodes.Items {
		n := &o.Nodes.Items[i]
		nodes[n.Name] = n
		parts["node/"+n.Name] = nodeOf(n)
	}
	for i := range o.PodGroups.Items {
		g := &o.PodGroups.Items[i]
		one := gang{Namespace: g.Namespace, Name: g.Name, Min: g.Spec.MinMember, Phase: string(g.Status.Phase)}
		if owner := metav1.GetControllerOf(g); owner != nil {
			one.Owner = owner.Kind + " " + owner.Name
		}
		parts["gang/"+g.Namespace+"/"+g.Name] = one
	}
	for key, w := range o.workloads(nodes) {
		parts["workload/"+key] = w
	}
	for i := range o.Pools.Items {
		pool := &o.Pools.Items[i]
		why := ""
		if c := meta.FindStatusCondition(pool.Status.Conditions, gm.ConditionReady); c != nil && c.Status != metav1.ConditionTrue {
			why = c.Message
		}
		parts["pool/"+pool.Name] = map[string]any{"name": pool.Name, "why": why}
	}
	for key, part := range parts {
		data, err := json.Marshal(part)
		if err != nil {
			return nil, fmt.Errorf("encoding %s: %w", key, err)
		}
		p[key] = data
	}
	return p, nil
}

func nodeOf(n *corev1.Node) node {
	one := node{Name: n.Name, Pool: n.Labels[apps.NodePoolLabel], Group: n.Labels[gm.NodeGroupLabel], State: "NotReady"}
	r := connectivity.Parse(n.Annotations[connectivity.Annotation])
	switch {
	case isCutOff(r.State):
		one.State, one.Why = string(r.State), fmt.Sprintf("since %s: %s", r.Since.UTC().Format("2006-01-02 15:04:05 UTC"), connectivity.Message(r.Reason))
	case connectivity.IsReady(n):
		one.State = "Ready"
	}
	if n.Spec.Unschedulable {
		one.Why = strings.TrimPrefix(one.Why+"; cordoned", "; ")
	}
	return one
}

func isCutOff(state connectivity.State) bool {
	return state != connectivity.Direct && state != connectivity.Released
}

// workloads are those with a policy or a division by capacity, and those whose pods are held.
func (o *Observed) workloads(nodes map[string]*corev1.Node) map[string]*workload {
	all := map[string]*workload{}
	of := func(namespace, kind, name string) *workload {
		key := namespace + "/" + kind + "/" + name
		if all[key] == nil {
			all[key] = &workload{Namespace: namespace, Kind: kind, Name: name, Cells: map[string]*cell{}}
		}
		return all[key]
	}
	for i := range o.Propagations.Items {
		policy := &o.Propagations.Items[i]
		for _, app := range policy.Status.Apps {
			w := of(policy.Namespace, app.Ref.Kind, app.Ref.Name)
			w.Policy, w.Message = policy.Name, app.Message
			for _, g := range app.Groups {
				c := w.cell(g.Name)
				c.Wanted, c.OnLoan = g.Desired, g.OnLoan
			}
		}
	}
	for i := range o.Splits.Items {
		split := &o.Splits.Items[i]
		if split.Status.Workload.Name == "" {
			continue // nothing is known of it yet
		}
		w := of(split.Namespace, split.Status.Workload.Kind, split.Status.Workload.Name)
		if c := meta.FindStatusCondition(split.Status.Conditions, gm.ConditionReady); c != nil && c.Status != metav1.ConditionTrue && w.Message == "" {
			w.Message = c.Message
		}
	}
	between := map[types.UID]*metav1.PartialObjectMetadata{}
	for i := range o.Between {
		between[o.Between[i].UID] = &o.Between[i]
	}
	for i := range o.Pods.Items {
		p := &o.Pods.Items[i]
		if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		kind, name := top(p, between)
		if all[p.Namespace+"/"+kind+"/"+name] == nil && !isHeld(p) {
			continue
		}
		on := nodes[p.Spec.NodeName]
		in := p.Labels[gm.NodeGroupLabel]
		if in == "" && on != nil {
			in = on.Labels[gm.NodeGroupLabel]
		}
		c := of(p.Namespace, kind, name).cell(in)
		c.Pods = append(c.Pods, pod{p.Name, stateOf(p, on), p.Labels[gm.CapacityClassLabel], p.Spec.NodeName})
	}
	for _, w := range all {
		for _, c := range w.Cells {
			slices.SortFunc(c.Pods, func(a, b pod) int { return cmp.Compare(a.Name, b.Name) })
		}
	}
	return all
}

func (w *workload) cell(group string) *cell {
	if w.Cells[group] == nil {
		w.Cells[group] = &cell{Pods: []pod{}}
	}
	return w.Cells[group]
}

// top returns the workload that owns a pod, as far as its owners were read.
func top(p *corev1.Pod, between map[types.UID]*metav1.PartialObjectMetadata) (kind, name string) {
	kind, name = "Pod", p.Name
	ref := metav1.GetControllerOf(p)
	for range len(between) + 1 {
		if ref == nil {
			break
		}
		kind, name = ref.Kind, ref.Name
		above := between[ref.UID]
		if above == nil {
			break
		}
		ref = metav1.GetControllerOf(above)
	}
	return kind, name
}

func isHeld(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Spec.SchedulingGates, func(gate corev1.PodSchedulingGate) bool { return gate.Name == gm.PolicyGate })
}

func stateOf(p *corev1.Pod, on *corev1.Node) string {
	switch {
	case p.DeletionTimestamp != nil:
		return stateLeaving
	case len(p.Spec.SchedulingGates) > 0:
		return stateHeld
	case p.Spec.NodeName == "":
		return stateWaiting
	case on != nil && isCutOff(connectivity.Parse(on.Annotations[connectivity.Annotation]).State):
		return stateCutOff
	case read.IsReady(p):
		return stateReady
	}
	return stateUnready
}
