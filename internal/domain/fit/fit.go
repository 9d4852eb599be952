// Package fit decides whether a node can take a pod, with the same result as kube-scheduler's
// filters for node selector, node affinity, volumes, taints, host ports and requests. The
// ledger uses it before it moves a pod, so that no pod is evicted from a place that it
// cannot get elsewhere.
//
// Check compares one pod with one node, and Domains applies anti-affinity and topology spread
// among the pods of one workload. Affinity to pods of other workloads is not covered. The
// package must not contain anything about groups or seats.
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

// Reason is why no node of a NodeGroup can take a pod, as text for messages about the group.
// The texts contain nothing that changes. An open node is one that is Ready and not cordoned.
type Reason string

const (
	// Fits: a node can take the pod.
	Fits Reason = ""
	// Avoided: the ledger gives the group no new pods of the workload for a while.
	Avoided Reason = "a pod of the workload found no node there lately"
	// NoOpenNode: no node is Ready and not cordoned.
	NoOpenNode Reason = "it has no node that is Ready and not cordoned"
	// TooLong: atoll-manager keeps only a part of what the pod demands.
	TooLong Reason = "the pods' node affinity, tolerations, ports and images are too long to be kept and compared with nodes"
	// NoMatch: the pod's node selector or required node affinity.
	NoMatch Reason = "no open node matches the pods' node selector and affinity"
	// NoOnDemand: atoll-manager restricted the pod to on-demand nodes, and the group has no
	// open one.
	NoOnDemand Reason = "it has no open node of class on-demand"
	// NoSpot is NoOnDemand for spot nodes.
	NoSpot Reason = "it has no open node of class spot"
	// OutOfReach: the node affinity of the pod's PersistentVolumes.
	OutOfReach Reason = "no open node reaches the pods' volumes"
	// Unread: the pod's PersistentVolumes have not been read yet.
	Unread Reason = "the nodes that reach the pods' volumes are not known yet"
	// Tainted: a taint NoSchedule or NoExecute.
	Tainted Reason = "its open nodes have taints that the pods do not tolerate"
	// PortTaken: another pod uses the host port.
	PortTaken Reason = "the pods' host ports are taken on its open nodes"
	// NoRoom: the pod's requests, or the number of pods on the node.
	NoRoom Reason = "no open node has room for the pods' requests"
	// TooClose: required pod anti-affinity, or topology spread with DoNotSchedule.
	TooClose Reason = "the workload's pod anti-affinity or topology spread excludes its open nodes"
)

// order is the order of the checks. If several nodes fail, the reason of the node that passed
// the most checks is the most useful one.
var order = []Reason{NoOpenNode, TooLong, NoOnDemand, NoSpot, NoMatch, Unread, OutOfReach, Tainted, PortTaken, NoRoom, TooClose}

// Further returns the reason of the two whose check comes later.
func Further(a, b Reason) Reason {
	if slices.Index(order, b) > slices.Index(order, a) {
		return b
	}
	return a
}

// Amount is an amount of one resource: of CPU in millicores, of others in their own unit.
type Amount struct {
	Name  corev1.ResourceName
	Value int64
}

// Amounts are amounts of several resources, sorted by name, none of them 0. A resource that is
// not listed is 0.
type Amounts []Amount

// AmountsOf converts a ResourceList.
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

// Of returns the amount of one resource.
func (a Amounts) Of(name corev1.ResourceName) int64 {
	for i := range a {
		if a[i].Name == name {
			return a[i].Value
		}
	}
	return 0
}

// exceeds reports whether a has more of some resource than b.
func (a Amounts) exceeds(b Amounts) bool {
	return slices.ContainsFunc(a, func(amount Amount) bool { return amount.Value > b.Of(amount.Name) })
}

// plus returns a + sign·b. It may change the memory of a.
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

// Port is a host port. If IP is "", it is the port on every address of the node.
type Port struct {
	Protocol corev1.Protocol
	IP       string
	Number   int32
}

// Demand is what a pod requires of a node. Demands are shared and must not be changed.
type Demand struct {
	// Requests are the pod's requests as kube-scheduler counts them, and 1 of the resource
	// pods.
	Requests Amounts
	Ports    []Port
	// NodeSelector and Affinity must both match the node. A nil Affinity matches every node.
	NodeSelector map[string]string
	Affinity     *corev1.NodeSelector
	// Tolerations have no tolerationSeconds, so that more pods have equal demands.
	Tolerations []corev1.Toleration
	// Claims is true if the pod mounts PersistentVolumeClaims that outlive it.
	Claims bool
	// Apart are the rules that keep pods of the workload apart.
	Apart []Apart
	// Partial is true for a demand of which only the requests are known; see Shortened.
	Partial bool
}

// maxUsed bounds the resources, and the host ports, in a demand that Shortened returns.
const maxUsed = 32

// Shortened returns the part of a demand that is always kept: requests and host ports, which
// are used on the pod's node. No node can take a pod with such a demand, because it is not
// known which could.
func (d *Demand) Shortened() *Demand {
	return &Demand{
		Requests: slices.Clone(d.Requests[:min(maxUsed, len(d.Requests))]), Ports: slices.Clone(d.Ports[:min(maxUsed, len(d.Ports))]),
		Claims: d.Claims, Partial: true,
	}
}

// Size estimates the memory of a demand, in bytes.
func (d *Demand) Size() int64 {
	if d == nil {
		return 0
	}
	n := 0
	for i := range d.Requests {
		n += 32 + len(d.Requests[i].Name)
	}
	for i := range d.Ports {
		n += 40 + len(d.Ports[i].Protocol) + len(d.Ports[i].IP)
	}
	for key, value := range d.NodeSelector {
		n += 48 + len(key) + len(value)
	}
	for i := range d.Tolerations {
		t := &d.Tolerations[i]
		n += 80 + len(t.Key) + len(t.Operator) + len(t.Value) + len(t.Effect)
	}
	for i := range d.Apart {
		n += 32 + len(d.Apart[i].Key)
	}
	if d.Affinity != nil {
		for i := range d.Affinity.NodeSelectorTerms {
			term := &d.Affinity.NodeSelectorTerms[i]
			n += 48 + sizeOf(term.MatchExpressions) + sizeOf(term.MatchFields)
		}
	}
	return int64(n)
}

func sizeOf(requirements []corev1.NodeSelectorRequirement) (n int) {
	for i := range requirements {
		n += 56 + len(requirements[i].Key) + len(requirements[i].Operator)
		for _, value := range requirements[i].Values {
			n += 16 + len(value)
		}
	}
	return n
}

// DemandOf returns what a pod requires. affinity replaces the pod's required node affinity:
// callers leave out what atoll-manager added to pin the pod.
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

// Equal reports whether two demands are the same. Both may be nil.
func (d *Demand) Equal(o *Demand) bool {
	if d == nil || o == nil {
		return d == o
	}
	return d == o || d.Claims == o.Claims && d.Partial == o.Partial &&
		slices.Equal(d.Requests, o.Requests) && slices.Equal(d.Ports, o.Ports) && slices.Equal(d.Tolerations, o.Tolerations) &&
		slices.Equal(d.Apart, o.Apart) &&
		maps.Equal(d.NodeSelector, o.NodeSelector) && reflect.DeepEqual(d.Affinity, o.Affinity)
}

// Node is a node, as far as checks need it.
type Node struct {
	Name        string
	Labels      map[string]string
	Taints      []corev1.Taint
	Allocatable Amounts
}

// Use is the sum of what pods use on a node. The zero Use is of no pods. It is not safe for
// concurrent use.
type Use struct {
	amounts Amounts
	// ports counts the pods by port and address.
	ports map[Port]int
	// numbers counts the pods by port, on any address.
	numbers map[Port]int
}

// Add adds a pod.
func (u *Use) Add(d *Demand) { u.count(d, 1) }

// Remove subtracts a pod. The sum may become negative: Check.Of takes such a Use for pods that
// leave.
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

// Equal reports whether two sums are the same.
func (u *Use) Equal(o *Use) bool {
	return !u.amounts.exceeds(o.amounts) && !o.amounts.exceeds(u.amounts) && maps.Equal(u.ports, o.ports)
}

// holders returns the number of pods whose host port conflicts with port.
func (u *Use) holders(port Port) int {
	if port.IP == "" {
		return u.numbers[port]
	}
	return u.ports[port] + u.ports[port.anywhere()]
}

// Check compares nodes with the demand of one pod. It is not safe for concurrent use.
type Check struct {
	demand   *Demand
	affinity nodeaffinity.RequiredNodeAffinity
	volumes  []*nodeaffinity.NodeSelector
	node     corev1.Node // reused as the argument of nodeaffinity
}

// NewCheck makes a Check from a demand and from the node affinity of the pod's volumes.
func NewCheck(d *Demand, volumes []*nodeaffinity.NodeSelector) *Check {
	pod := &corev1.Pod{Spec: corev1.PodSpec{NodeSelector: d.NodeSelector}}
	if d.Affinity != nil {
		pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: d.Affinity}}
	}
	return &Check{demand: d, affinity: nodeaffinity.GetRequiredNodeAffinity(pod), volumes: volumes}
}

// Matches reports whether the pod's node selector and required node affinity match a node.
func (c *Check) Matches(n *Node) bool {
	c.node.Name, c.node.Labels = n.Name, n.Labels
	matches, err := c.affinity.Match(&c.node)
	return err == nil && matches
}

// Of returns Fits, or the first reason why an open node cannot take the pod. What is used on
// the node is the sum of used. One of them may be negative, for pods that leave.
func (c *Check) Of(n *Node, used ...*Use) Reason {
	if c.demand.Partial {
		return TooLong
	}
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

// Reaches reports whether the pod could run on a node at some time, no matter what runs there
// now and whether the node is open. It checks node selector and affinity, volumes, and
// taints other than those that Kubernetes adds and removes. For a demand that is Partial it
// returns true.
func (c *Check) Reaches(n *Node) bool {
	if c.demand.Partial {
		return true
	}
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

// lasting reports whether a taint keeps pods away and is not one that Kubernetes adds and
// removes with the state of the node.
func lasting(t *corev1.Taint) bool {
	return closes(t) && !strings.HasPrefix(t.Key, "node.kubernetes.io/") && !strings.HasPrefix(t.Key, "node.cloudprovider.kubernetes.io/")
}

// untolerated reports whether some taint that the filter selects is not tolerated.
var untolerated = withoutLogger(scheduling.FindMatchingUntoleratedTaint)

// withoutLogger passes the zero logger, which drops everything. component-helpers logs
// invalid tolerations, and domain packages must not import a logger.
func withoutLogger[Logger, Filter any](
	find func(Logger, []corev1.Taint, []corev1.Toleration, Filter, bool) (corev1.Taint, bool),
) func([]corev1.Taint, []corev1.Toleration, Filter) bool {
	return func(taints []corev1.Taint, tolerations []corev1.Toleration, filter Filter) bool {
		var none Logger
		_, found := find(none, taints, tolerations, filter, true)
		return found
	}
}

// closes reports whether kube-scheduler keeps pods away from a node with the taint.
func closes(t *corev1.Taint) bool {
	return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
}

// Roomier reports whether the node has changed so that a pod may fit now that did not before:
// more allocatable resources, other labels, or a taint less.
func (n *Node) Roomier(before *Node) bool {
	return n.Allocatable.exceeds(before.Allocatable) || !maps.Equal(n.Labels, before.Labels) ||
		slices.ContainsFunc(before.Taints, func(t corev1.Taint) bool {
			return closes(&t) && !slices.ContainsFunc(n.Taints, func(now corev1.Taint) bool { return now.MatchTaint(&t) && now.Value == t.Value })
		})
}
