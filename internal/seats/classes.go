package seats

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/atoll-k8s/atoll/internal/domain/capacity"
	"github.com/atoll-k8s/atoll/internal/domain/fit"
)

// A pod's class of capacity is the second thing that its seat says, beside its
// group: reserved while the pod is being created, and then read off the pod and
// its node. Groups are divided for each cohort by itself; on-demand pods are
// counted over all revisions of a workload.

// Sibling is another direct owner of pods of the same workload, as another
// ReplicaSet of the Deployment.
type Sibling struct {
	Owner types.UID
	// Replicas is the number of pods that it is to have.
	Replicas int
}

// ClassRequest asks for the class of a pod.
type ClassRequest struct {
	// Pod is the pod's UID, or the token of one that is being created.
	Pod    types.UID
	Cohort Cohort
	// Namespace of a pod that is being created: see lost.go.
	Namespace string
	// Total is the number of pods that the cohort's owner wants.
	Total int
	// Class is the one that the pod has anyway; None is the one whose turn it is.
	Class capacity.Class
	// Count is the number of on-demand pods that the workload is to have at most,
	// and Surge how many pods more it may have in a rollout.
	Count, Surge int
	Siblings     []Sibling
	// Final: what is in doubt is decided as it looks. It has looked so for long.
	Final bool
}

// SetClasses says how nodes and pods of the classes are known. Call before the
// ledger is fed; without it every class is None.
func (l *Ledger) SetClasses(c *capacity.Classes) { l.classes = c }

// TakeClass hands out the class of a pod that is being created. The pod is to
// carry the token that stands for it in Pod, which may be the one of the seat that
// it takes as well. The class is None, with a Reason, where nobody can tell now. A
// dry run answers the same and takes nothing.
func (l *Ledger) TakeClass(r ClassRequest, dryRun bool) (capacity.Class, Reason) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.entryLocked(Request{Pod: r.Pod, Cohort: r.Cohort})
	class := s.granted // asked again
	if class == capacity.None && (s.token || s.cohort.unseen < maxUnseen+r.Total) {
		class = l.turnOfClassLocked(s, r)
	}
	if class == capacity.None || dryRun {
		if !s.token {
			l.dropLocked(s)
		}
	} else {
		l.takenLocked(s)
		l.grantLocked(s, class, r.Namespace)
	}
	if class == capacity.None {
		return class, NoSeatOpen
	}
	return class, Seated
}

// PlaceClass gives a pod that waits at our gate its class, for as long as it takes
// to restrict the pod. A caller that fails to do that asks again, and gets the
// same answer.
func (l *Ledger) PlaceClass(r ClassRequest) (capacity.Class, Reason) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.seats[r.Pod]
	if s == nil || s.pod == nil || s.cohort.key != r.Cohort {
		return capacity.None, NoSeatOpen
	}
	l.lapseLocked(s.cohort)
	class := s.class
	if class == capacity.None || r.Class != capacity.None {
		class = l.turnOfClassLocked(s, r)
	}
	if class == capacity.None {
		return class, NoSeatOpen
	}
	l.grantLocked(s, class, s.pod.Namespace)
	return class, Seated
}

// grantLocked reserves a class for a pod that is not seen with it yet.
func (l *Ledger) grantLocked(s *seat, class capacity.Class, namespace string) {
	s.granted = class
	l.promiseLocked(s, namespace)
	l.countClassLocked(s)
}

// turnOfClassLocked is the class of the next pod of a cohort; None while that is
// in doubt.
func (l *Ledger) turnOfClassLocked(s *seat, r ClassRequest) capacity.Class {
	if r.Class != capacity.None {
		return r.Class
	}
	c := s.cohort
	l.lapseLocked(c)
	var others []capacity.Revision
	all := c.classes[capacity.OnDemand]
	for _, o := range c.owner.cohorts {
		if o != c { // of one owner with several revisions nobody says how many each is to keep
			l.lapseLocked(o)
			others = append(others, capacity.Revision{OnDemand: o.classes[capacity.OnDemand], Replicas: o.active})
			all += o.classes[capacity.OnDemand]
		}
	}
	for _, sibling := range r.Siblings {
		o := l.owners[sibling.Owner]
		if o == nil || sibling.Owner == r.Cohort.Owner {
			continue
		}
		onDemand := 0
		for _, of := range o.cohorts {
			l.lapseLocked(of)
			onDemand += of.classes[capacity.OnDemand]
		}
		others = append(others, capacity.Revision{OnDemand: onDemand, Replicas: sibling.Replicas})
		all += onDemand
	}
	own := c.classes[capacity.OnDemand]
	class := capacity.Next(own, others, r.Count, r.Surge)
	switch {
	case r.Final:
		return class
	case class == capacity.OnDemand && all >= r.Count+r.Surge:
		return capacity.None // once others have given up what they do not keep
	case class == capacity.OnDemand:
		return class
	}
	if l.behindLocked(c.owner, s, r.Total) && capacity.Next(0, others, r.Count, r.Surge) == capacity.OnDemand {
		return capacity.None // those that are gone, or never came, may be on-demand
	}
	return class
}

// Behind tells whether the owner of a pod that is created, for which token stands, has
// as many pods already as it makes, total, as far as the ledger knows. An owner makes
// no more than that, so some are gone, and the watch is about to say so, or were
// refused after we were asked. Of an owner for which more is asked than it can make
// nothing is expected.
func (l *Ledger) Behind(owner, token types.UID, total int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	o := l.owners[owner]
	if o == nil {
		return false
	}
	unseen := 0
	for _, c := range o.cohorts {
		unseen += c.unseen
	}
	return unseen < maxUnseen+total && l.behindLocked(o, l.seats[token], total)
}

// behindLocked is Behind. But is the new pod's own entry.
func (l *Ledger) behindLocked(o *owner, but *seat, total int) bool {
	active := 0
	for _, c := range o.cohorts {
		active += c.active
	}
	if but != nil && but.active && but.cohort.owner == o {
		active--
	}
	return active >= total
}

// takenLocked counts a seat as one for a pod that nobody has seen.
func (l *Ledger) takenLocked(s *seat) {
	if s.token {
		return
	}
	s.token = true
	s.cohort.unseen++
	s.cohort.arrived()
}

// classOfLocked is the class of a seat. Of a pod that has its node the node tells:
// who wrote the pod may not have asked us.
func (l *Ledger) classOfLocked(s *seat) capacity.Class {
	switch {
	case !s.active:
		return capacity.None
	case s.pod == nil:
		return s.granted
	}
	if n := l.nodes[s.pod.Node]; n != nil && n.class != capacity.None {
		return n.class
	}
	if s.pod.Class != capacity.None {
		return s.pod.Class
	}
	return s.granted
}

// countClassLocked keeps the sums of a seat's cohort. It belongs after every
// change of the pod, its node or what was granted.
func (l *Ledger) countClassLocked(s *seat) {
	class := l.classOfLocked(s)
	if class == s.class {
		return
	}
	s.cohort.classes[s.class]--
	s.cohort.classes[class]++
	s.class = class
}

// classifyLocked reads the class that a pod's own demands leave it. Nobody else
// knows the pod yet.
func (l *Ledger) classifyLocked(pod *Pod) {
	if l.classes == nil || pod.Demand == nil {
		return
	}
	if pod.ClassStamp != capacity.None && l.classes.Restricted(pod.Demand.Affinity, pod.ClassStamp) {
		pod.Class = pod.ClassStamp
		return
	}
	pod.Class = l.classes.OfPod(pod.Demand.NodeSelector, pod.Demand.Affinity)
}

// ClassesHandler is told of the owners of pods whose class has changed with that of
// their node; everybody is concerned where the first node of a class has come to be
// open, or the last one is not any more. It must not block.
type ClassesHandler func(owners []types.UID, everybody bool)

// OnClasses adds a handler. Call before the ledger is fed.
func (l *Ledger) OnClasses(h ClassesHandler) { l.classesHandlers = append(l.classesHandlers, h) }

// classChange is what a ClassesHandler is told.
type classChange struct {
	owners    []types.UID
	everybody bool
}

func (l *Ledger) notifyClasses(c classChange) {
	if len(c.owners) == 0 && !c.everybody {
		return
	}
	for _, h := range l.classesHandlers {
		h(c.owners, c.everybody)
	}
}

// classifyNodeLocked notes of which class a node is now.
func (l *Ledger) classifyNodeLocked(n *node, before Node) (change classChange) {
	open := l.openOfClass
	defer func() {
		for class := range open {
			switch {
			case (open[class] == 0) == (l.openOfClass[class] == 0):
				continue
			case l.openOfClass[class] == 0:
				l.emptySince[class] = l.clock.Now()
			default:
				l.emptySince[class] = time.Time{}
			}
			change.everybody = true
		}
	}()
	class := capacity.None
	if l.classes != nil && n.exists {
		class = l.classes.OfNode(n.Offer.Labels)
	}
	if before.Open {
		l.openOfClass[n.class]--
	}
	if n.Open {
		l.openOfClass[class]++
	}
	if class == n.class {
		return change
	}
	n.class = class
	for _, s := range n.pods {
		l.countClassLocked(s)
		change.owners = append(change.owners, s.cohort.key.Owner)
	}
	return change
}

// OpenOfClass is the number of nodes of a class that are Ready and not cordoned.
func (l *Ledger) OpenOfClass(class capacity.Class) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.openOfClass[class]
}

// EmptyClass is the class that has had no open node for a while, since somebody first
// asked at the earliest, while the other one has some; None if there is none.
func (l *Ledger) EmptyClass(since time.Duration) capacity.Class {
	l.mu.Lock()
	defer l.mu.Unlock()
	now, empty := l.clock.Now(), capacity.None
	for _, class := range []capacity.Class{capacity.OnDemand, capacity.Spot} {
		switch {
		case l.openOfClass[class] > 0:
		case l.emptySince[class].IsZero(): // it has had none since the start
			l.emptySince[class] = now
		case now.Sub(l.emptySince[class]) >= since && l.openOfClass[class.Other()] > 0:
			empty = class
		}
	}
	return empty
}

// ClassCanTake tells whether some open node of a class could run the successor of
// a pod, as far as kube-scheduler looks at the one pod, the one node and the other
// pods of its workload, which these owners have; and else why not. Of a pod that has a
// seat in a NodeGroup, only nodes of that group count. volumes are the node affinities
// of the pod's PersistentVolumes.
func (l *Ledger) ClassCanTake(class capacity.Class, pod *Pod, volumes []*nodeaffinity.NodeSelector, owners []types.UID) (bool, fit.Reason) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.classes == nil {
		return false, fit.NoOpenNode
	}
	demand := *pod.demand()
	if pod.ClassStamp != capacity.None {
		demand.Affinity, demand.Tolerations = l.classes.Free(demand.Affinity, demand.Tolerations, pod.ClassStamp)
	}
	demand.Tolerations = l.classes.Tolerations(demand.Tolerations, class)
	check, why := fit.NewCheck(&demand, volumes), fit.NoOpenNode
	domains := check.Domains()
	if domains != nil {
		others := l.podsByNodeLocked(owners, pod.UID)
		for _, n := range l.nodes {
			domains.Add(&n.Offer, n.class == class && check.Matches(&n.Offer), others[n.Name])
		}
	}
	for _, n := range l.nodes {
		if n.class != class || !n.Open || pod.GroupStamp != "" && n.Group != pod.GroupStamp {
			continue
		}
		reason := check.Of(&n.Offer, &n.used)
		if reason == fit.Fits && domains != nil && !domains.Take(&n.Offer) {
			reason = fit.TooClose
		}
		if reason == fit.Fits {
			return true, fit.Fits
		}
		why = fit.Further(why, reason)
	}
	return false, why
}

// ClassOfVolumes tells whether volumes with these required node affinities tie a pod to
// nodes: one of them names its nodes, as local volumes do, and these are not of both
// classes. The class is theirs; None if they are away, or if some are of neither class.
// Volumes of a zone tie a pod to nothing: nodes of the other class may come to be there.
func (l *Ledger) ClassOfVolumes(required []*corev1.NodeSelector) (class capacity.Class, tied bool) {
	var volumes []*nodeaffinity.NodeSelector
	for _, r := range required {
		volume, err := nodeaffinity.NewNodeSelector(r)
		if err != nil {
			return capacity.None, false // kube-scheduler finds no node either
		}
		volumes = append(volumes, volume)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.ContainsFunc(required, l.namesNodesLocked) {
		return capacity.None, false
	}
	var nodes [3]int // by class
	for _, n := range l.nodes {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Offer.Labels}}
		if n.exists && !slices.ContainsFunc(volumes, func(volume *nodeaffinity.NodeSelector) bool { return !volume.Match(node) }) {
			nodes[n.class]++
		}
	}
	switch onDemand, spot := nodes[capacity.OnDemand] > 0, nodes[capacity.Spot] > 0; {
	case onDemand && spot:
		return capacity.None, false
	case nodes[capacity.None] > 0:
		return capacity.None, true
	case onDemand:
		return capacity.OnDemand, true
	case spot:
		return capacity.Spot, true
	default:
		return capacity.None, true
	}
}

// namesNodesLocked tells whether each term is about nodes by their names: by the field or
// the label that Kubernetes has for it, or by a label of a CSI driver whose value is the
// name of the node that has it.
func (l *Ledger) namesNodesLocked(required *corev1.NodeSelector) bool {
	names := func(r corev1.NodeSelectorRequirement) bool {
		return r.Operator == corev1.NodeSelectorOpIn && (r.Key == corev1.LabelHostname || slices.ContainsFunc(r.Values, func(name string) bool {
			n := l.nodes[name]
			return n != nil && n.exists && n.Offer.Labels[r.Key] == name
		}))
	}
	return !slices.ContainsFunc(required.NodeSelectorTerms, func(term corev1.NodeSelectorTerm) bool {
		return len(term.MatchFields) == 0 && !slices.ContainsFunc(term.MatchExpressions, names)
	})
}

// podsByNodeLocked counts the active pods of these owners by node, but for one.
func (l *Ledger) podsByNodeLocked(owners []types.UID, but types.UID) map[string]int {
	pods := map[string]int{}
	for _, owner := range owners {
		o := l.owners[owner]
		if o == nil {
			continue
		}
		for _, c := range o.cohorts {
			for _, s := range c.seats {
				if s.pod != nil && s.pod.Active && s.pod.Node != "" && s.uid != but {
					pods[s.pod.Node]++
				}
			}
		}
	}
	return pods
}

// ReservedOfClass counts, by class, the seats of pods of these owners that nobody
// has seen yet.
func (l *Ledger) ReservedOfClass(owners []types.UID) (reserved [3]int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, owner := range owners {
		o := l.owners[owner]
		if o == nil {
			continue
		}
		for _, c := range o.cohorts {
			l.lapseLocked(c)
			for _, s := range c.reservations {
				if s.pod == nil {
					reserved[s.class]++
				}
			}
		}
	}
	return reserved
}
