package inventory

import (
	"encoding/json"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/atoll-k8s/atoll/internal/governance"
	"github.com/atoll-k8s/atoll/internal/hub/journal"
	"github.com/atoll-k8s/atoll/internal/hub/objects"
	"github.com/atoll-k8s/atoll/internal/hub/ownwrites"
)

// Report returns what the node has written while offline: its last heartbeat, and the statuses of pods that the
// cloud does not have yet, for pods in the last call of Items. It returns nil if the kubelet has stopped
// writing, or if the journal has no Lease: the hub never makes a node look alive.
func (i *Inventory) Report() (*governance.Report, *governance.Statuses) {
	w := i.writes
	if w.Journal == nil || w.IsSilent() {
		return nil, nil
	}
	leases := w.Journal.Of(ownwrites.LeasePath(w.NodeName))
	if len(leases) == 0 {
		return nil, nil
	}
	var lease coordinationv1.Lease
	if json.Unmarshal(leases[len(leases)-1].Body, &lease) != nil || lease.Spec.RenewTime == nil {
		return nil, nil
	}
	statuses := i.statuses()
	return &governance.Report{Renewed: *lease.Spec.RenewTime, Digest: statuses.Digest()}, statuses
}

// statuses returns the statuses of pods with journaled writes, in the order of the first write of each.
func (i *Inventory) statuses() *governance.Statuses {
	statuses, has := &governance.Statuses{}, map[string]bool{}
	i.writes.Journal.Each(func(e *journal.Entry) {
		ref, is := podOf(e.Object)
		if !is || e.Kind != journal.Status || has[e.Object] {
			return
		}
		has[e.Object] = true
		statuses.Pods = append(statuses.Pods, governance.PodStatus{Namespace: ref.Namespace, Name: ref.Name})
	})
	known := statuses.Pods[:0]
	for _, pod := range statuses.Pods {
		if i.complete(&pod) {
			known = append(known, pod)
		}
	}
	statuses.Pods = known
	return statuses
}

// podOf returns the pod of a path.
func podOf(path string) (ref governance.Ref, is bool) {
	rest, is := strings.CutPrefix(path, "/api/v1/namespaces/")
	namespace, name, has := strings.Cut(rest, "/pods/")
	return governance.Ref{Resource: "pods", Namespace: namespace, Name: name}, is && has
}

// complete adds the UID and the status that the node has written for a pod. It returns false if they are not
// known.
func (i *Inventory) complete(status *governance.PodStatus) bool {
	ref := governance.Ref{Resource: "pods", Namespace: status.Namespace, Name: status.Name}
	key, has := i.at[ref]
	if !has {
		return false
	}
	contentType, body, err := objectAt(i.record, key, ref)
	if err != nil {
		return false
	}
	object, err := objects.Decode(contentType, body, ownwrites.PodKind)
	pod, is := object.(*corev1.Pod)
	if err != nil || !is {
		return false
	}
	written, is := i.writes.Written(pod)
	if is {
		status.UID, status.Status = string(written.UID), written.Status
	}
	return is
}
