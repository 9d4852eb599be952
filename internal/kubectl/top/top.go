// Package top tells how full each NodeGroup is.
package top

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	podresource "k8s.io/component-helpers/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/connectivity"
	"github.com/atoll-k8s/atoll/internal/kubectl/read"
)

// Top is the answer, and what -o json and -o yaml print.
type Top struct {
	Groups []Group `json:"groups"`
	// Unread tells which rights are missing to say more.
	Unread []string `json:"unread,omitempty"`
}

// Group has the numbers of one NodeGroup.
type Group struct {
	Name string `json:"name"`
	// Nodes is the number of nodes, and NodesReady of those that are Ready and not cordoned.
	Nodes      int `json:"nodes"`
	NodesReady int `json:"nodesReady"`
	// Wanted is how many pods all PropagationPolicies together give to the group, Pods how many
	// of those it has, and Ready how many of these are Ready.
	Wanted int `json:"wanted"`
	Pods   int `json:"pods"`
	Ready  int `json:"ready"`
	// CPU and Memory are of all pods on the nodes, those without a policy too.
	CPU    Use `json:"cpu"`
	Memory Use `json:"memory"`
}

// Use is what pods request of what nodes have for them.
type Use struct {
	Requests    resource.Quantity `json:"requests"`
	Allocatable resource.Quantity `json:"allocatable"`
}

// Percent returns how much of it is requested; 0 of nothing.
func (u *Use) Percent() int {
	if u.Allocatable.IsZero() {
		return 0
	}
	return int(100 * u.Requests.AsApproximateFloat64() / u.Allocatable.AsApproximateFloat64())
}

// Observed is what was read.
type Observed struct {
	Groups       gm.NodeGroupList
	Propagations gm.PropagationPolicyList
	Nodes        corev1.NodeList
	Pods         corev1.PodList
}

// Observe reads what tells about all NodeGroups.
func Observe(ctx context.Context, r *read.Reader) (*Observed, error) {
	o := &Observed{}
	for _, list := range []client.ObjectList{&o.Groups, &o.Propagations, &o.Nodes, &o.Pods} {
		if err := r.List(ctx, list); err != nil {
			return nil, err
		}
	}
	return o, nil
}

// Of returns the NodeGroups by name.
func Of(o *Observed) Top {
	groups := map[string]*Group{}
	for i := range o.Groups.Items {
		groups[o.Groups.Items[i].Name] = &Group{Name: o.Groups.Items[i].Name}
	}
	of := map[string]*Group{} // by node
	for i := range o.Nodes.Items {
		node := &o.Nodes.Items[i]
		g := groups[node.Labels[gm.NodeGroupLabel]]
		if g == nil {
			continue
		}
		of[node.Name] = g
		g.Nodes++
		if connectivity.IsReady(node) && !node.Spec.Unschedulable {
			g.NodesReady++
		}
		g.CPU.Allocatable.Add(*node.Status.Allocatable.Cpu())
		g.Memory.Allocatable.Add(*node.Status.Allocatable.Memory())
	}
	for i := range o.Pods.Items {
		pod := &o.Pods.Items[i]
		if g := of[pod.Spec.NodeName]; g != nil && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
			requests := podresource.PodRequests(pod, podresource.PodResourcesOptions{})
			g.CPU.Requests.Add(*requests.Cpu())
			g.Memory.Requests.Add(*requests.Memory())
		}
	}
	for i := range o.Propagations.Items {
		for _, app := range o.Propagations.Items[i].Status.Apps {
			for _, spread := range app.Groups {
				if g := groups[spread.Name]; g != nil {
					g.Wanted, g.Pods, g.Ready = g.Wanted+int(spread.Desired), g.Pods+int(spread.Current), g.Ready+int(spread.Ready)
				}
			}
		}
	}
	t := Top{Groups: []Group{}}
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		t.Groups = append(t.Groups, *groups[name])
	}
	return t
}
