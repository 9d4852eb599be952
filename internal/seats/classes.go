package seats

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/atoll-k8s/atoll/internal/domain/capacity"
	"github.com/atoll-k8s/atoll/internal/domain/fit"
)

// Besides its group, the seat of a pod has a capacity class. The class is reserved while the
// pod is being created; later it is read from the pod and its node. Groups are divided for
// each cohort separately, but on-demand pods are counted over all revisions of a workload.

// Sibling is another direct owner of pods of the same workload, for example another
// ReplicaSet of a Deployment.
type Sibling struct {
	Owner types.UID
	// Replicas is the number of pods that it is to have.
	Replicas int
}

// ClassRequest is a request for the class of a pod.
type ClassRequest struct {
	// Pod is the pod's UID, or the token of a pod that is being created.
	Pod    types.UID
	Cohort Cohort
	// Namespace is that of a pod that is being created. It is used to find the pod if the
	// watch does not show it in time: see lost.go.
	Namespace string
	// Total is the number of pods that the cohort's owner wants.
	Total int
	// Class is the class that the pod must have; None to choose the one that is next.
	Class capacity.Class
	// Count is the maximum number of on-demand pods of the workload, and Surge the number of
	// pods that it may have in addition during a rollout.
	Count, Surge int
	// Siblings are the other direct owners of the workload's pods.
	Siblings []Sibling
	// Final chooses a class even if the ledger may be out of date. The caller sets it when
	// the pod has waited for long.
	Final bool
}

// SetClasses defines the classes of nodes and pods. Call it before the first Observe and
// ObserveNode. Without it every class is None.
func (l *Ledger) SetClasses(c *capacity.Classes) { l.classes = c }

// TakeClass reserves a class for a pod that is being created, and returns it.
// ClassRequest.Pod is a token that the caller must write on the pod; it may be the token of
// the seat that the pod takes too. If the class cannot be decided now, it is None, with a
// Reason. A dry run returns the same and reserves nothing.
func (l *Ledger) TakeClass(r ClassRequest, dryRun bool) (capacity.Class, Reason) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.entryLocked(r.Pod, r.Cohort)
	class := s.granted // not None if this is a repeated request
	if class == capacity.None && !s.cohort.tooManyUnseen(s, r.Total) {
		class = l.cohorts.turnOfClass(s, r)
	}
	switch {
	case class != capacity.None && !dryRun:
		l.cohorts.markUnseen(s)
		l.cohorts.grant(s, class, r.Namespace)
	case !s.token:
		l.dropLocked(s)
	}
	return classOrReason(class)
}

// PlaceClass reserves a class for a pod that waits at our gate, for takeTTL: the caller
// restricts the pod to that class. A caller that cannot do that calls again, and gets the
// same result.
func (l *Ledger) PlaceClass(r ClassRequest) (capacity.Class, Reason) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return classOrReason(l.cohorts.placeClass(r))
}

func classOrReason(class capacity.Class) (capacity.Class, Reason) {
	if class == capacity.None {
		return class, NoSeatOpen
	}
	return class, Seated
}

// placeClass is PlaceClass of the Ledger; None if there is no class for the pod now.
func (cs *cohorts) placeClass(r ClassRequest) capacity.Class {
	s := cs.byPod[r.Pod]
	if s == nil || s.pod == nil || s.cohort.key != r.Cohort {
		return capacity.None
	}
	cs.lapse(s.cohort)
	class := s.class
	if class == capacity.None || r.Class != capacity.None {
		class = cs.turnOfClass(s, r)
	}
	if class != capacity.None {
		cs.grant(s, class, s.pod.Namespace)
	}
	return class
}

// grant reserves a class for a pod that the watch has not shown with the class yet.
func (cs *cohorts) grant(s *seat, class capacity.Class, namespace string) {
	s.granted = class
	cs.promise(s, namespace)
	cs.countClass(s)
}

// turnOfClass returns the class that is next for a pod of a cohort; None if it cannot be
// decided now.
func (cs *cohorts) turnOfClass(s *seat, r ClassRequest) capacity.Class {
	if r.Class != capacity.None {
		return r.Class
	}
	own := s.cohort
	cs.lapse(own)
	var others []capacity.Revision
	all := own.classes[capacity.OnDemand]
	for _, c := range own.owner.cohorts {
		if c != own { // the owner does not state how many pods of each of its revisions it keeps
			cs.lapse(c)
			others = append(others, capacity.Revision{OnDemand: c.classes[capacity.OnDemand], Replicas: c.active})
			all += c.classes[capacity.OnDemand]
		}
	}
	for _, sibling := range r.Siblings {
		o := cs.byOwner[sibling.Owner]
		if o == nil || sibling.Owner == r.Cohort.Owner {
			continue
		}
		onDemand := 0
		for _, c := range o.cohorts {
			cs.lapse(c)
			onDemand += c.classes[capacity.OnDemand]
		}
		others = append(others, capacity.Revision{OnDemand: onDemand, Replicas: sibling.Replicas})
		all += onDemand
	}
	class := capacity.Next(own.classes[capacity.OnDemand], others, r.Count, r.Surge)
	switch {
	case r.Final:
		return class
	case class == capacity.OnDemand && all >= r.Count+r.Surge:
		return capacity.None // wait until other revisions have deleted the pods that they do not keep
	case class == capacity.OnDemand:
		return class
	}
	if own.owner.behind(s, r.Total) && capacity.Next(0, others, r.Count, r.Surge) == capacity.OnDemand {
		return capacity.None // the pods that were deleted or refused may be on-demand ones
	}
	return class
}

// Behind returns whether the ledger has at least total active pods of an owner, without the
// one in creation that token stands for. total is the maximum that the owner creates. So if
// Behind is true, some of these pods are deleted and the watch does not show it yet, or
// were refused after they got a seat. Behind is false if more pods in creation are recorded
// for the owner than it can create: then the ledger does not become correct by waiting.
func (l *Ledger) Behind(owner, token types.UID, total int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cohorts.behind(owner, token, total)
}

func (cs *cohorts) behind(owner, token types.UID, total int) bool {
	o := cs.byOwner[owner]
	if o == nil {
		return false
	}
	unseen := 0
	for _, c := range o.cohorts {
		unseen += c.unseen
	}
	return unseen < maxUnseen+total && o.behind(cs.byPod[token], total)
}

// behind returns whether an owner has at least total active pods, without the entry of the
// pod that is being created. except is that entry, or nil.
func (o *owner) behind(except *seat, total int) bool {
	active := 0
	for _, c := range o.cohorts {
		active += c.active
	}
	if except != nil && except.active && except.cohort.owner == o {
		active--
	}
	return active >= total
}

// classOf returns the class of a seat. The node's class comes first: the pod may have been
// created without our webhook.
func (cs *cohorts) classOf(s *seat) capacity.Class {
	switch {
	case !s.active:
		return capacity.None
	case s.pod == nil:
		return s.granted
	}
	if class := cs.nodes.class(s.pod.Node); class != capacity.None {
		return class
	}
	if s.pod.Class != capacity.None {
		return s.pod.Class
	}
	return s.granted
}

// countClass updates the class of an entry and the sums of its cohort. It must be called
// after every change of the pod, of the class of its node, of active and of granted.
func (cs *cohorts) countClass(s *seat) {
	class := cs.classOf(s)
	if class == s.class {
		return
	}
	s.cohort.classes[s.class]--
	s.cohort.classes[class]++
	s.class = class
}

// reservedOfClass is ReservedOfClass of the Ledger.
func (cs *cohorts) reservedOfClass(owners []types.UID) (reserved [3]int) {
	for _, owner := range owners {
		o := cs.byOwner[owner]
		if o == nil {
			continue
		}
		for _, c := range o.cohorts {
			cs.lapse(c)
			for _, s := range c.reservations {
				if s.pod == nil {
					reserved[s.class]++
				}
			}
		}
	}
	return reserved
}

// podsByNode returns the number of active pods of these owners on each node. The pod except
// does not count.
func (cs *cohorts) podsByNode(owners []types.UID, except types.UID) map[string]int {
	pods := map[string]int{}
	for _, owner := range owners {
		o := cs.byOwner[owner]
		if o == nil {
			continue
		}
		for _, c := range o.cohorts {
			for _, s := range c.seats {
				if s.pod != nil && s.pod.Active && s.pod.Node != "" && s.uid != except {
					pods[s.pod.Node]++
				}
			}
		}
	}
	return pods
}

// classifyLocked sets the class that a pod's own demands leave to it. It must be called
// before the pod is stored anywhere.
func (l *Ledger) classifyLocked(pod *Pod) {
	if l.classes == nil || pod.Demand == nil {
		return
	}
	if pod.ClassStamp != capacity.None && (pod.Demand.Partial || l.classes.Restricted(pod.Demand.Affinity, pod.ClassStamp)) {
		pod.Class = pod.ClassStamp
		return
	}
	pod.Class = l.classes.OfPod(pod.Demand.NodeSelector, pod.Demand.Affinity)
}

// ClassesHandler is called with the owners of the pods whose class has changed with the
// class of their node. An owner is in owners once for each such pod. everybody is true if a
// class got its first open node or lost its last one: this concerns all workloads. The
// handler is called without the ledger's mutex, and it must not block.
type ClassesHandler func(owners []types.UID, everybody bool)

// OnClasses adds a handler. Call it before the first ObserveNode.
func (l *Ledger) OnClasses(h ClassesHandler) { l.classesHandlers = append(l.classesHandlers, h) }

// classChange are the arguments of a ClassesHandler.
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

// OpenOfClass returns the number of nodes of a class that are Ready, not cordoned and not
// being deleted.
func (l *Ledger) OpenOfClass(class capacity.Class) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.nodes.openOfClass[class]
}

// EmptyClass returns the class that has had no open node for at least the duration since,
// while the other class has some; None if there is no such class. For a class that never
// had an open node, the time starts with the first call of EmptyClass.
func (l *Ledger) EmptyClass(since time.Duration) capacity.Class {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.nodes.emptyClass(since)
}

// ClassCanTake returns whether some open node of a class could run the successor of a pod,
// and if not, why. It checks what kube-scheduler's filters check of the one pod, one node
// and the other pods of its workload, which are those of owners. If the pod has a seat in a
// NodeGroup, only nodes of that group count. volumes are the node affinities of the pod's
// PersistentVolumes.
func (l *Ledger) ClassCanTake(class capacity.Class, pod *Pod, volumes []*nodeaffinity.NodeSelector, owners []types.UID) (bool, fit.Reason) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.classes == nil {
		return false, fit.NoOpenNode
	}
	demand := *pod.demand()
	if pod.ClassStamp != capacity.None {
		demand.Affinity, demand.Tolerations = l.classes.Unrestrict(demand.Affinity, demand.Tolerations, pod.ClassStamp)
	}
	demand.Tolerations = l.classes.Tolerations(demand.Tolerations, class)
	check := fit.NewCheck(&demand, volumes)
	domains := check.Domains()
	if domains != nil {
		l.nodes.addDomains(domains, check, class, "", l.cohorts.podsByNode(owners, pod.UID))
	}
	return l.nodes.searchClass(class, pod.GroupStamp, check, domains)
}

// ClassOfVolumes returns whether volumes with these required node affinities tie a pod to
// nodes of one class, and which class that is. They do if one of them selects nodes by
// name, as local volumes do, and the nodes that match all of them are not of both classes.
// The class is None if no node matches, or if a matching node has no class. Volumes that
// select a zone do not tie a pod: nodes of the other class may be added to the zone.
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
	return l.nodes.classOfVolumes(required, volumes)
}

// ReservedOfClass returns, by class, the number of pods of these owners that have a
// reservation and that the watch has not shown yet.
func (l *Ledger) ReservedOfClass(owners []types.UID) (reserved [3]int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cohorts.reservedOfClass(owners)
}
