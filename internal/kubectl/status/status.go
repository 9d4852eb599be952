// Package status tells in one screen how all that Atoll does is doing.
package status

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	capacity "github.com/atoll-k8s/atoll/api/capacity/v1alpha1"
	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	scheduling "github.com/atoll-k8s/atoll/api/scheduling/v1beta1"
	"github.com/atoll-k8s/atoll/internal/domain/connectivity"
	"github.com/atoll-k8s/atoll/internal/kubectl/read"
)

// Status is the answer, and what -o json and -o yaml print.
type Status struct {
	// Namespace is that of the namespaced objects; "" is all.
	Namespace string    `json:"namespace,omitempty"`
	Sections  []Section `json:"sections"`
	// Unread tells which rights are missing to say more.
	Unread []string `json:"unread,omitempty"`
}

// Section is about one kind: how many are as they should be, and which are not and why.
type Section struct {
	Name string `json:"name"`
	// Good of Total objects are as they should be.
	Good  int `json:"good"`
	Total int `json:"total"`
	// Facts are about all objects, such as the nodes of each group.
	Facts []string `json:"facts,omitempty"`
	// Problems are those that are not as they should be.
	Problems []Problem `json:"problems,omitempty"`
}

// Problem is about one object.
type Problem struct {
	// Name has the namespace before it, if there is one.
	Name   string `json:"name"`
	Reason string `json:"reason,omitempty"`
	Why    string `json:"why"`
	// Command tells more; "" if Why tells all.
	Command string `json:"command,omitempty"`
}

// Observed is what was read.
type Observed struct {
	Namespace    string
	Workloads    []Workload
	Groups       gm.NodeGroupList
	Propagations gm.PropagationPolicyList
	Overrides    gm.OverridePolicyList
	Pools        apps.NodePoolList
	United       apps.UnitedDeploymentList
	Coordinators apps.YurtCoordinatorList
	Splits       capacity.CapacitySplitList
	PodGroups    scheduling.PodGroupList
	Nodes        corev1.NodeList
	// PropagationsUnread and OverridesUnread: policies may be there, and may not be read.
	PropagationsUnread, OverridesUnread bool
}

// Observe reads all kinds of Atoll, and the nodes. Namespaced kinds are read in one namespace,
// or in all for "".
func Observe(ctx context.Context, r *read.Reader, namespace string) (*Observed, error) {
	o := &Observed{Namespace: namespace}
	for _, list := range []client.ObjectList{&o.Groups, &o.Pools, &o.Coordinators, &o.Nodes} {
		if err := r.List(ctx, list); err != nil {
			return nil, err
		}
	}
	for _, list := range []client.ObjectList{&o.Propagations, &o.Overrides, &o.United, &o.Splits, &o.PodGroups} {
		if err := r.List(ctx, list, client.InNamespace(namespace)); err != nil {
			return nil, err
		}
	}
	o.PropagationsUnread, o.OverridesUnread = r.Forbidden("list", namespace, &o.Propagations), r.Forbidden("list", namespace, &o.Overrides)
	all, err := workloads(ctx, r, namespace)
	o.Workloads = all
	return o, err
}

// Of tells how what was read is doing. A kind without objects has no section.
func Of(o *Observed) Status {
	s := Status{Namespace: o.Namespace}
	for _, section := range []Section{
		o.workloads(), o.policies(), o.overrides(), o.groups(), o.pools(), o.cutOff(), o.coordinators(), o.united(), o.splits(), o.podGroups(),
	} {
		if section.Total > 0 {
			s.Sections = append(s.Sections, section)
		}
	}
	return s
}

// add counts an object by its condition Ready.
func (s *Section) add(o metav1.Object, conditions []metav1.Condition) {
	s.addBy(o, conditions, "Ready", metav1.ConditionTrue)
}

// addBy counts an object by a condition, which has a status if all is well.
func (s *Section) addBy(o metav1.Object, conditions []metav1.Condition, kind string, well metav1.ConditionStatus) {
	s.Total++
	c := meta.FindStatusCondition(conditions, kind)
	switch {
	case c == nil:
		s.Problems = append(s.Problems, Problem{nameOf(o), "", "atoll-manager has written no status yet", "kubectl get pods -A -l app.kubernetes.io/name=atoll-manager"})
	case c.ObservedGeneration != 0 && c.ObservedGeneration < o.GetGeneration():
		s.Problems = append(s.Problems, Problem{nameOf(o), "NotSeen", "atoll-manager has not seen its newest spec", "kubectl get pods -A -l app.kubernetes.io/name=atoll-manager"})
	case c.Status == well:
		s.Good++
	default:
		s.Problems = append(s.Problems, Problem{Name: nameOf(o), Reason: c.Reason, Why: c.Message})
	}
}

func nameOf(o metav1.Object) string {
	if o.GetNamespace() == "" {
		return o.GetName()
	}
	return o.GetNamespace() + "/" + o.GetName()
}

func (o *Observed) policies() Section {
	s := Section{Name: "PropagationPolicies"}
	for i := range o.Propagations.Items {
		s.add(&o.Propagations.Items[i], o.Propagations.Items[i].Status.Conditions)
	}
	return s
}

func (o *Observed) overrides() Section {
	s := Section{Name: "OverridePolicies"}
	for i := range o.Overrides.Items {
		s.add(&o.Overrides.Items[i], o.Overrides.Items[i].Status.Conditions)
	}
	return s
}

func (o *Observed) groups() Section {
	s := Section{Name: "NodeGroups"}
	for i := range o.Groups.Items {
		g := &o.Groups.Items[i]
		s.add(g, g.Status.Conditions)
		s.Facts = append(s.Facts, fmt.Sprintf("%s %d of %d nodes Ready", g.Name, g.Status.Ready, g.Status.Total))
	}
	return s
}

func (o *Observed) pools() Section {
	s := Section{Name: "NodePools"}
	for i := range o.Pools.Items {
		p := &o.Pools.Items[i]
		s.add(p, p.Status.Conditions)
		s.Facts = append(s.Facts, fmt.Sprintf("%s %d of %d nodes Ready", p.Name, p.Status.ReadyNode, p.Status.ReadyNode+p.Status.NotReadyNode))
	}
	return s
}

// cutOff tells about the nodes that do not reach the cloud themselves.
func (o *Observed) cutOff() Section {
	s := Section{Name: "Nodes"}
	for i := range o.Nodes.Items {
		node := &o.Nodes.Items[i]
		s.Total++
		r := connectivity.Parse(node.Annotations[connectivity.Annotation])
		switch {
		case r.State != connectivity.Direct && r.State != connectivity.Released:
			s.Problems = append(s.Problems, Problem{Name: node.Name, Reason: string(r.State), Why: fmt.Sprintf("since %s: %s", r.Since.UTC().Format("2006-01-02 15:04:05 UTC"), connectivity.Message(r.Reason))})
		case connectivity.IsReady(node):
			s.Good++
		default:
			s.Problems = append(s.Problems, Problem{node.Name, "NotReady", "its condition Ready is not True", "kubectl describe node " + node.Name})
		}
	}
	return s
}

func (o *Observed) coordinators() Section {
	s := Section{Name: "YurtCoordinators"}
	for i := range o.Coordinators.Items {
		c := &o.Coordinators.Items[i]
		s.add(c, c.Status.Conditions)
		if len(c.Status.OutsidePoolNodes) > 0 {
			s.Problems = append(s.Problems, Problem{Name: c.Name, Reason: "OutsidePool", Why: "they do not reach it: " + strings.Join(c.Status.OutsidePoolNodes, ", ")})
		}
	}
	return s
}

func (o *Observed) united() Section {
	s := Section{Name: "UnitedDeployments"}
	for i := range o.United.Items {
		s.add(&o.United.Items[i], o.United.Items[i].Status.Conditions)
	}
	return s
}

func (o *Observed) splits() Section {
	s := Section{Name: "CapacitySplits"}
	for i := range o.Splits.Items {
		c := &o.Splits.Items[i]
		s.add(c, c.Status.Conditions)
		s.Facts = append(s.Facts, fmt.Sprintf("%s/%s on-demand %d of %d, spot %d of %d", c.Namespace, c.Status.Workload.Name, c.Status.OnDemand.Have, c.Status.OnDemand.Want, c.Status.Spot.Have, c.Status.Spot.Want))
	}
	return s
}

func (o *Observed) podGroups() Section {
	s := Section{Name: "PodGroups"}
	for i := range o.PodGroups.Items {
		g := &o.PodGroups.Items[i]
		s.Total++
		if g.Status.Phase == "Pending" || g.Status.Phase == "Inqueue" {
			s.Problems = append(s.Problems, Problem{Name: nameOf(g), Reason: string(g.Status.Phase), Why: fmt.Sprintf("waits until %d pods can start together", g.Spec.MinMember)})
			continue
		}
		s.Good++
	}
	return s
}
