// Package fit decides whether a node could take a pod, as kube-scheduler's
// filters decide it: node selector and affinity, taints, host ports, requests.
//
// It looks at one pod and one node, and at how the pods of one workload keep apart
// from each other (Domains). It knows neither groups nor seats, and not what depends
// on pods of other workloads.
package fit

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"
	scheduling "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// Reason says why no node of a NodeGroup can take a pod. Texts are stable.
type Reason string

const (
	// Fits: a node can take the pod.
	Fits Reason = ""
	// Avoided: the next pod of the owner would not go to the group.
	Avoided Reason = "a pod of the workload found no node there lately"
	// NoOpenNode: no node is Ready and schedulable.
	NoOpenNode Reason = "it has no node that is Ready and not cordoned"
	// NoMatch: node selector or required node affinity.
	NoMatch Reason = "no open node matches the pods' node selector and affinity"
	// NoOnDemand: the pods were made on-demand, and the group has no such open node.
	NoOnDemand Reason = "it has no open node of class on-demand"
	// NoSpot is the same for spot pods.
	NoSpot Reason = "it has no open node of class spot"
	// OutOfReach: node affinity of PersistentVolumes.
	OutOfReach Reason = "no open node reaches the pods' volumes"
	// Unread: it is not known where PersistentVolumes can be used.
	Unread Reason = "where the pods' volumes can be used is not known yet"
	// Tainted: a taint NoSchedule or NoExecute.
	Tainted Reason = "its open nodes have taints that the pods do not tolerate"
	// PortTaken: a host port.
	PortTaken Reason = "the pods' host ports are taken on its open nodes"
	// NoRoom: requests, and the number of pods.
	NoRoom Reason = "no open node has room for the pods' requests"
	// TooClose: required pod anti-affinity, or topology spread.
	TooClose Reason = "its open nodes are too close to other pods of the workload"
)

// order is that of the checks: of several nodes, the reason of the one that
// came furthest tells most.
var order = []Reason{NoOpenNode, NoOnDemand, NoSpot, NoMatch, Unread, OutOfReach, Tainted, PortTaken, NoRoom, TooClose}

// Further returns the reason of the two whose check comes later.
func Further(a, b Reason) Reason {
	if slices.Index(order, b) > slices.Index(order, a) {
		return b
	}
	return a
}

// Amount is how much of one resource: CPU in thousandths of a core, others in
// their own unit.
type Amount struct {
	Name  corev1.ResourceName
	Value int64
}

// Amounts are sorted by name. What is missing is 0.
type Amounts []Amount

// AmountsOf converts a list, without what is 0.
func AmountsOf(list corev1.ResourceList) Amounts {
	out := make(Amounts, 0, len(list))
	for name, q := range list {
		value := q.Value()
		if name == corev1.ResourceCPU {
			value = q.MilliValue()
		}
		if value != 0 {
			out = append(out, Amount{name, value})
		}
	}
	slices.SortFunc(out, compare)
	return out
}

func compare(a, b Amount) int { return strings.Compare(string(a.Name), string(b.Name)) }

// Of is the amount of one resource.
func (a Amounts) Of(name corev1.ResourceName) int64 {
	for i := range a {
		if a[i].Name == name {
			return a[i].Value
		}
	}
	return 0
}

// Exceeds tells whether there is more of some resource than in b.
func (a Amounts) Exceeds(b Amounts) bool {
	return slices.ContainsFunc(a, func(amount Amount) bool { return amount.Value > b.Of(amount.Name) })
}

// plus adds b, sign times.
func (a Amounts) plus(b Amounts, sign int64) Amounts {
	for _, amount := range b {
		i, found := slices.BinarySearchFunc(a, amount, compare)
		if !found {
			a = slices.Insert(a, i, Amount{Name: amount.Name})
		}
		if a[i].Value += sign * amount.Value; a[i].Value == 0 {
			a = slices.Delete(a, i, i+1)
		}
	}
	return a
}

// Port is a host port. An empty IP is every address of the node.
type Port struct {
	Protocol corev1.Protocol
	IP       string
	Number   int32
}

// Demand is what a pod demands of a node. Demands are shared and never changed.
type Demand struct {
	// Requests are what kube-scheduler counts, and one of the resource pods.
	Requests Amounts
	Ports    []Port
	// NodeSelector and Affinity are both to be met; a nil Affinity demands nothing.
	NodeSelector map[string]string
	Affinity     *corev1.NodeSelector
	// Tolerations are without their seconds.
	Tolerations []corev1.Toleration
	// Claims: the pod mounts PersistentVolumeClaims that outlive it.
	Claims bool
	// Apart is how it keeps apart from other pods of its workload.
	Apart []Apart
}

// DemandOf reads what a pod demands. affinity is the required node affinity
// that counts, which need not be all that the pod has.
func DemandOf(pod *corev1.Pod, affinity *corev1.NodeSelector) *Demand {
	d := &Demand{NodeSelector: pod.Spec.NodeSelector, Affinity: affinity, Apart: apartOf(pod)}
	d.Requests = AmountsOf(resource.PodRequests(pod, resource.PodResourcesOptions{
		UseStatusResources: true, InPlacePodLevelResourcesVerticalScalingEnabled: true, UseDRANodeAllocatableResourceClaimStatus: true,
	})).plus(Amounts{{corev1.ResourcePods, 1}}, 1)
	d.Requests = slices.Clip(d.Requests)
	if len(pod.Spec.Tolerations) > 0 {
		d.Tolerations = slices.Clone(pod.Spec.Tolerations)
		for i := range d.Tolerations {
			d.Tolerations[i].TolerationSeconds = nil
		}
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			d.addPorts(c)
		}
	}
	for i := range pod.Spec.Containers {
		d.addPorts(&pod.Spec.Containers[i])
	}
	for i := range pod.Spec.Volumes {
		d.Claims = d.Claims || pod.Spec.Volumes[i].PersistentVolumeClaim != nil
	}
	return d
}

func (d *Demand) addPorts(c *corev1.Container) {
	for _, p := range c.Ports {
		if p.HostPort <= 0 {
			continue
		}
		port := Port{Protocol: p.Protocol, IP: p.HostIP, Number: p.HostPort}
		if port.Protocol == "" {
			port.Protocol = corev1.ProtocolTCP
		}
		if port.IP == anyAddress {
			port.IP = ""
		}
		d.Ports = append(d.Ports, port)
	}
}

const anyAddress = "0.0.0.0"

// Equal tells whether two demands are the same.
func (d *Demand) Equal(o *Demand) bool {
	if d == nil || o == nil {
		return d == o
	}
	return d == o || d.Claims == o.Claims &&
		slices.Equal(d.Requests, o.Requests) && slices.Equal(d.Ports, o.Ports) && slices.Equal(d.Tolerations, o.Tolerations) &&
		slices.Equal(d.Apart, o.Apart) &&
		maps.Equal(d.NodeSelector, o.NodeSelector) && reflect.DeepEqual(d.Affinity, o.Affinity)
}

// Node is what a node has.
type Node struct {
	Name        string
	Labels      map[string]string
	Taints      []corev1.Taint
	Allocatable Amounts
}

// Use is the sum of what pods hold on a node. The zero Use is none.
type Use struct {
	amounts Amounts
	ports   map[Port]int
	// numbers counts ports whatever their address.
	numbers map[Port]int
}

// Add counts a pod in.
func (u *Use) Add(d *Demand) { u.count(d, 1) }

// Remove takes a pod out that was added.
func (u *Use) Remove(d *Demand) { u.count(d, -1) }

func (u *Use) count(d *Demand, sign int) {
	u.amounts = u.amounts.plus(d.Requests, int64(sign))
	for _, port := range d.Ports {
		if u.ports == nil {
			u.ports, u.numbers = map[Port]int{}, map[Port]int{}
		}
		add(u.ports, port, sign)
		add(u.numbers, port.anywhere(), sign)
	}
}

func add(counts map[Port]int, port Port, n int) {
	if counts[port] += n; counts[port] == 0 {
		delete(counts, port)
	}
}

func (p Port) anywhere() Port { return Port{Protocol: p.Protocol, Number: p.Number} }

// Equal tells whether two sums are the same.
func (u *Use) Equal(o *Use) bool {
	return !u.amounts.Exceeds(o.amounts) && !o.amounts.Exceeds(u.amounts) && maps.Equal(u.ports, o.ports)
}

// holders counts the pods that hold a port.
func (u *Use) holders(port Port) int {
	if port.IP == "" {
		return u.numbers[port]
	}
	return u.ports[port] + u.ports[port.anywhere()]
}

// Check compares nodes with what one pod demands.
type Check struct {
	demand   *Demand
	affinity nodeaffinity.RequiredNodeAffinity
	volumes  []*nodeaffinity.NodeSelector
	node     corev1.Node // what nodeaffinity wants to see
}

// NewCheck makes a check of a demand, and of the node affinity of volumes.
func NewCheck(d *Demand, volumes []*nodeaffinity.NodeSelector) *Check {
	pod := &corev1.Pod{Spec: corev1.PodSpec{NodeSelector: d.NodeSelector}}
	if d.Affinity != nil {
		pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: d.Affinity}}
	}
	return &Check{demand: d, affinity: nodeaffinity.GetRequiredNodeAffinity(pod), volumes: volumes}
}

// Matches tells whether the pod's node selector and required node affinity let it go
// to a node.
func (c *Check) Matches(n *Node) bool {
	c.node.Name, c.node.Labels = n.Name, n.Labels
	matches, err := c.affinity.Match(&c.node)
	return err == nil && matches
}

// Of returns Fits, or the first reason why an open node cannot take the pod
// beside what is used there: the sum of used, of which one may be less than
// nothing, for what leaves.
func (c *Check) Of(n *Node, used ...*Use) Reason {
	if !c.Matches(n) {
		return NoMatch
	}
	for _, volume := range c.volumes {
		if !volume.Match(&c.node) {
			return OutOfReach
		}
	}
	if untolerated(n.Taints, c.demand.Tolerations, closes) {
		return Tainted
	}
	for _, port := range c.demand.Ports {
		holders := 0
		for _, u := range used {
			holders += u.holders(port)
		}
		if holders > 0 {
			return PortTaken
		}
	}
	for _, want := range c.demand.Requests {
		sum := want.Value
		for _, u := range used {
			sum += u.amounts.Of(want.Name)
		}
		if sum > n.Allocatable.Of(want.Name) {
			return NoRoom
		}
	}
	return Fits
}

// Reaches tells whether a node is one that the pod may go to at all, whatever
// runs there now and whether or not it is open: what it demands of labels, where
// its volumes are, and the taints that people write.
func (c *Check) Reaches(n *Node) bool {
	if !c.Matches(n) {
		return false
	}
	for _, volume := range c.volumes {
		if !volume.Match(&c.node) {
			return false
		}
	}
	return !untolerated(n.Taints, c.demand.Tolerations, lasting)
}

// lasting taints are there for good: those that Kubernetes writes come and go
// with the state of a node.
func lasting(t *corev1.Taint) bool {
	return closes(t) && !strings.HasPrefix(t.Key, "node.kubernetes.io/") && !strings.HasPrefix(t.Key, "node.cloudprovider.kubernetes.io/")
}

// untolerated tells whether there is a taint that no toleration tolerates.
var untolerated = withoutLogger(scheduling.FindMatchingUntoleratedTaint)

// withoutLogger calls with the zero logger, which drops everything: component-helpers
// want one for tolerations that cannot be read, and domain has none.
func withoutLogger[Logger, Filter any](
	find func(Logger, []corev1.Taint, []corev1.Toleration, Filter, bool) (corev1.Taint, bool),
) func([]corev1.Taint, []corev1.Toleration, Filter) bool {
	return func(taints []corev1.Taint, tolerations []corev1.Toleration, filter Filter) bool {
		var none Logger
		_, found := find(none, taints, tolerations, filter, true)
		return found
	}
}

// closes tells whether kube-scheduler keeps pods from a node that has the taint.
func closes(t *corev1.Taint) bool {
	return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
}

// Roomier tells whether a pod may fit on the node now that did not before.
func (n *Node) Roomier(before *Node) bool {
	return n.Allocatable.Exceeds(before.Allocatable) || !maps.Equal(n.Labels, before.Labels) ||
		slices.ContainsFunc(before.Taints, func(t corev1.Taint) bool {
			return closes(&t) && !slices.ContainsFunc(n.Taints, func(now corev1.Taint) bool { return now.MatchTaint(&t) && now.Value == t.Value })
		})
}
