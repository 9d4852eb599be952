package podgroup

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"

	scheduling "github.com/atoll-k8s/atoll/api/scheduling/v1beta1"
	"github.com/atoll-k8s/atoll/internal/domain/gang"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/gangs"
	"github.com/atoll-k8s/atoll/internal/machinery/patch"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/owners"
)

// scope is what one pass observed.
type scope struct {
	key   types.NamespacedName
	group *gangs.Group // nil if it does not exist
	// unseen: group is the result of a write that the watch has not delivered yet.
	unseen bool
	// named: live pods name the PodGroup. members are those below its owner; the first is
	// one of the newest template.
	named   bool
	members []member
	// strays are pods that name the PodGroup and are not below its owner any more.
	strays []*gangs.Pod
	// owner is the owner of the PodGroup. above holds the annotations of the owners of the
	// first member, from its controller up to owner. Both are nil without members.
	owner *ownership.Object
	above []map[string]string
	// contested: another client reverts the writes of this controller again and again.
	contested bool
}

// member is a pod in the PodGroup, with its owners.
type member struct {
	pod   *gangs.Pod
	chain []*ownership.Object
	end   *owners.End
	at    int // index of the owner of the PodGroup in chain
}

// Reconcile runs the phases for one PodGroup.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if !r.ready() {
		return ctrl.Result{}, nil // enqueueAll enqueues it again once ready
	}
	s := &scope{key: req.NamespacedName}
	began := r.Clock.Now()
	failed := r.observe(ctx, s)
	r.groups.Took(req, r.Clock.Since(began))
	return phase.Run(ctx, s, r.ensure, r.collect, func(context.Context, *scope) error { return failed })
}

// observe finds the PodGroup and its members. A pod whose owners cannot be read is no
// member, but it keeps the PodGroup from being deleted. The error about it is returned
// after the other pods are observed.
func (r *Reconciler) observe(ctx context.Context, s *scope) error {
	s.group, s.unseen = r.group(s.key)
	uid := gang.OwnerOf(s.key.Name)
	var failed error
	for _, pod := range r.Store.Naming(s.key) {
		if !pod.Live {
			continue
		}
		s.named = true
		if pod.Terminating {
			continue
		}
		chain, end, err := r.Lineage.Chain(ctx, pod.Object())
		if err != nil {
			failed = fmt.Errorf("observing pod %s: %w", pod, err)
			continue
		}
		at := slices.IndexFunc(chain, func(o *ownership.Object) bool { return o.UID == uid })
		if at < 0 {
			if end == nil || end.Reason != owners.EndGone { // else the garbage collector deletes the pod
				s.strays = append(s.strays, pod)
			}
			continue
		}
		if at > 0 && r.Resolver.Levels().Select(chain).Index == 0 && r.isOfTheseRules(pod) {
			r.Rules.noteNamedFirst()
		}
		s.members = append(s.members, member{pod, chain, end, at})
	}
	if len(s.members) == 0 {
		return failed
	}
	newest := &s.members[0]
	for i := range s.members {
		if newest.before(&s.members[i]) {
			newest = &s.members[i]
		}
	}
	s.members[0], *newest = *newest, s.members[0]
	first := s.members[0]
	r.Rules.note(first.pod, first.end) // nothing else notes it for pods that the webhook named
	s.owner = first.chain[first.at]
	for i := 1; i <= max(first.at, 1) && i < len(first.chain); i++ {
		s.above = append(s.above, annotationsOf(first.chain, i))
	}
	return failed
}

// isOfTheseRules reports whether a pod is so much younger than the rules in force that every
// replica had them when it was admitted.
func (r *Reconciler) isOfTheseRules(pod *gangs.Pod) bool {
	now := r.Clock.Now()
	return now.Sub(pod.CreationTimestamp.Time) < r.Resolver.InForceFor(now)-settled
}

// annotationsOf returns the annotations of an owner in a chain; for a ReplicaSet of a
// Deployment those of the Deployment. The copies on the ReplicaSet stay when they are
// removed from the Deployment.
func annotationsOf(chain []*ownership.Object, i int) map[string]string {
	if i+1 < len(chain) && chain[i].Kind == "ReplicaSet" && chain[i+1].Kind == "Deployment" {
		i++
	}
	return chain[i].Gang.Annotations
}

// before reports whether the other member is of a newer template, or is younger if both
// are of the same one.
func (m *member) before(o *member) bool {
	return cmp.Or(
		cmp.Compare(m.order(), o.order()),
		m.pod.CreationTimestamp.Compare(o.pod.CreationTimestamp.Time),
		cmp.Compare(m.pod.Name, o.pod.Name),
	) < 0
}

// order returns a number that is higher for newer templates of the same owner.
func (m *member) order() int64 {
	if len(m.chain) == 1 {
		return 0
	}
	g := m.chain[1].Gang
	if g.UpdateRevision != "" && g.UpdateRevision == m.pod.Revision {
		return 1
	}
	return g.Order
}

// group returns a PodGroup as the watch delivered it, or as it was written last if that is
// newer; unseen is true then.
func (r *Reconciler) group(key types.NamespacedName) (group *gangs.Group, unseen bool) {
	seen := r.Store.Group(key)
	r.mu.Lock()
	defer r.mu.Unlock()
	made, ok := r.made[key]
	if !ok {
		return seen, false
	}
	if r.Clock.Since(made.at) >= lag || seen != nil && !older(seen, made.value) {
		delete(r.made, key)
		return seen, false
	}
	return made.value, true
}

// older reports whether a PodGroup from the watch is older than a written one.
func older(seen, written *gangs.Group) bool {
	a, errA := parseVersion(seen.ResourceVersion)
	b, errB := parseVersion(written.ResourceVersion)
	return errA == nil && errB == nil && a < b
}

func (r *Reconciler) setMade(u *unstructured.Unstructured) {
	group := gangs.Slim(u)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.made[group.Key()] = write[*gangs.Group]{group, r.Clock.Now()}
}

// ensure creates or updates the PodGroup of live pods.
func (r *Reconciler) ensure(ctx context.Context, s *scope) error {
	var want gang.PodGroup
	switch {
	case len(s.members) > 0:
		want = gang.Want(s.members[0].pod.Gang, s.above, r.maxMembers(s))
	case len(s.strays) > 0 && s.group == nil && isUID(gang.OwnerOf(s.key.Name)):
		// The pods were orphaned and the PodGroup deleted: without it they would stay
		// Pending for ever.
		want = gang.Want(s.strays[0].Gang, nil, nil)
	default:
		return nil
	}
	applied, err := want.Applied()
	if err != nil {
		return phase.Terminal("EncodingFailed", err)
	}
	applied.Owner = gang.OwnerOf(s.key.Name)
	if s.group == nil {
		err = r.create(ctx, s, applied)
	} else {
		err = r.update(ctx, s, applied)
	}
	r.recordProblem(s, &want, err)
	if err == nil && s.unseen { // it may be deleted before the watch delivers it
		return phase.Wait("the PodGroup to be seen", lag)
	}
	return err
}

// maxMembers returns how many pods can be in the PodGroup: the replicas of its owner,
// without the pods that stay in other PodGroups. nil if the replicas are not known.
func (r *Reconciler) maxMembers(s *scope) *int32 {
	if !slices.ContainsFunc(s.members, func(m member) bool { return m.at > 0 }) {
		return new(int32(1)) // a pod's own PodGroup
	}
	members := s.owner.Members()
	if members == nil {
		return nil
	}
	left := *members
	for pod := range r.below(s.key) {
		if (pod.OthersGroup || pod.Group != "") && pod.Group != s.key.Name && !r.isLeaving(pod) {
			left--
		}
	}
	return &left
}

// below yields the live pods below the owner of a PodGroup, in any PodGroup or none.
func (r *Reconciler) below(group types.NamespacedName) iter.Seq[*gangs.Pod] {
	return func(yield func(*gangs.Pod) bool) {
		for _, owner := range r.Lineage.Descendants(gang.OwnerOf(group.Name)) {
			for _, pod := range r.Store.OwnedBy(group.Namespace, owner) {
				if pod.Live && !pod.Terminating && !yield(pod) {
					return
				}
			}
		}
	}
}

// isLeaving reports whether a pod, which must have a controller, is about to leave its
// PodGroup for the one that the rules choose.
func (r *Reconciler) isLeaving(pod *gangs.Pod) bool {
	chain := append(r.Lineage.Above(pod.Controller.UID), pod.Object())
	return r.mayMove(pod) && inChain(chain, gang.OwnerOf(pod.Group))
}

// isUID reports whether a UID has the form that the API server generates. It excludes
// PodGroups of people whose names begin with the prefix of generated ones.
func isUID(uid types.UID) bool { return uidForm.MatchString(string(uid)) }

var uidForm = regexp.MustCompile("^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")

func (r *Reconciler) create(ctx context.Context, s *scope, a *gang.Applied) error {
	if s.owner != nil && s.owner.Gang.DependentsFirst {
		return nil // foreground deletion: the garbage collector would delete the PodGroup at once
	}
	if s.isRunDown() {
		return nil // Volcano's controller deletes the PodGroup of an owner that is scaled to 0
	}
	text, err := a.Encode()
	if err != nil {
		return phase.Terminal("EncodingFailed", err)
	}
	if err := r.waitBeforeRewrite(s, text); err != nil {
		return err
	}
	u, err := newGroup(s, a, text)
	if err != nil {
		return phase.Terminal("EncodingFailed", err)
	}
	made, err := r.Objects.Resource(gangs.Resource).Namespace(s.key.Namespace).Create(ctx, u, metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err):
		return r.read(ctx, s)
	case err != nil:
		return fmt.Errorf("creating PodGroup %s: %w", s.key, err)
	}
	r.wrote(s, text, "", s.mayBeOwned(), made)
	writesTotal.WithLabelValues("create").Inc()
	return nil
}

// isRunDown reports whether the owner wants no pods, and those that are left have nodes: nobody
// schedules them any more.
func (s *scope) isRunDown() bool {
	if s.owner == nil {
		return false
	}
	members := s.owner.Members()
	return members != nil && *members == 0 && !slices.ContainsFunc(s.members, func(m member) bool { return !m.pod.Bound })
}

// read reads a PodGroup that the watch has not delivered yet, for the next pass.
func (r *Reconciler) read(ctx context.Context, s *scope) error {
	is, err := r.Objects.Resource(gangs.Resource).Namespace(s.key.Namespace).Get(ctx, s.key.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading PodGroup %s: %w", s.key, err)
	}
	r.setMade(is)
	return phase.Wait("a pass over the PodGroup that was read", retryRead)
}

// wrote records a write: the text of its annotation, the resourceVersion of the PodGroup
// before it, whether it set the owner reference, and the stored object. Admission webhooks
// may remove the label, the annotation or the owner reference in the write itself.
func (r *Reconciler) wrote(s *scope, text, seen string, owned bool, made *unstructured.Unstructured) {
	r.setMade(made)
	s.unseen = true
	version, is := made.GetResourceVersion(), gangs.Slim(made)
	if !is.Ours || made.GetAnnotations()[scheduling.AppliedAnnotation] != text || owned && is.Controller == nil {
		version = "" // removed by admission
	}
	r.rewrites.wrote(s.key, text, version, seen, r.Clock.Now())
}

// mayBeOwned reports whether the PodGroup gets an owner reference. It gets none to an
// owner that is being deleted. With orphaning deletion the garbage collector removes the
// references once; it would delete a PodGroup that got one later, under live pods.
func (s *scope) mayBeOwned() bool {
	return s.owner != nil && !s.owner.Gang.DependentsFirst && !s.owner.Gang.Orphans
}

// waitBeforeRewrite returns a wait if the same text was written and reverted a moment ago.
func (r *Reconciler) waitBeforeRewrite(s *scope, text string) error {
	version := ""
	if s.group != nil {
		version = s.group.ResourceVersion
	}
	left, contested := r.rewrites.due(s.key, text, version, r.Clock.Now())
	s.contested = contested
	if left > 0 {
		return phase.Wait("the pause before reverted keys are written again", left)
	}
	return nil
}

func newGroup(s *scope, a *gang.Applied, text string) (*unstructured.Unstructured, error) {
	labels, annotations := maps.Clone(a.Labels), maps.Clone(a.Annotations)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[scheduling.ManagedByLabel] = scheduling.ManagedByAtoll
	annotations[scheduling.AppliedAnnotation] = text
	metadata := map[string]any{"namespace": s.key.Namespace, "name": s.key.Name, "labels": labels, "annotations": annotations}
	if s.mayBeOwned() {
		metadata["ownerReferences"] = ownedBy(s.owner)
	}
	object := map[string]any{
		"apiVersion": scheduling.GroupVersion.String(), "kind": "PodGroup", "metadata": metadata,
		"spec": a.Spec, "status": map[string]any{"phase": scheduling.PhasePending},
	}
	raw, err := json.Marshal(object)
	if err != nil {
		return nil, fmt.Errorf("encoding a PodGroup: %w", err)
	}
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(raw); err != nil {
		return nil, fmt.Errorf("encoding a PodGroup: %w", err)
	}
	return u, nil
}

// ownedBy returns the controller reference to an owner. blockOwnerDeletion is not set: it
// needs permission to update finalizers of every kind of owner, and slows deletions down.
func ownedBy(o *ownership.Object) []map[string]any {
	apiVersion, kind := o.ToAPIVersionAndKind()
	return []map[string]any{{"apiVersion": apiVersion, "kind": kind, "name": o.Name, "uid": o.UID, "controller": true}}
}

// update patches the keys whose value is wrong, and no others, because the scheduler
// updates the whole object. It creates the PodGroup if it was deleted and the watch has
// not delivered that.
func (r *Reconciler) update(ctx context.Context, s *scope, a *gang.Applied) error {
	if s.group.Omitted != 0 {
		is, err := r.Objects.Resource(gangs.Resource).Namespace(s.key.Namespace).Get(ctx, s.key.Name, metav1.GetOptions{})
		switch {
		case err == nil && is.GetUID() == s.group.UID:
			s.group = gangs.Slim(is)
		case err != nil && !apierrors.IsNotFound(err): // what follows finds out that it was deleted, or made again
			return fmt.Errorf("reading PodGroup %s, which is too large to be kept: %w", s.key, err)
		}
	}
	last := s.group.Last
	if !s.group.Ours {
		last = nil // the annotation counts only beside the managed-by label
	}
	changes := a.Changes(last, s.group.Now)
	lost := s.group.Controller == nil && s.mayBeOwned() && !s.group.Deleting
	if changes.None() && last != nil && last.Owner == a.Owner && !lost {
		return nil
	}
	text, err := a.Encode()
	if err != nil {
		return phase.Terminal("EncodingFailed", err)
	}
	if err := r.waitBeforeRewrite(s, text); err != nil {
		return err
	}
	changes.Labels[scheduling.ManagedByLabel] = scheduling.ManagedByAtoll
	changes.Annotations[scheduling.AppliedAnnotation] = text
	metadata := map[string]any{"uid": s.group.UID, "labels": changes.Labels, "annotations": changes.Annotations}
	if lost {
		metadata["ownerReferences"] = ownedBy(s.owner)
	}
	body := map[string]any{"metadata": metadata}
	if len(changes.Spec) > 0 {
		body["spec"] = changes.Spec
	}
	raw, err := json.Marshal(body)
	if err != nil {
		return phase.Terminal("EncodingFailed", err)
	}
	made, err := r.Objects.Resource(gangs.Resource).Namespace(s.key.Namespace).Patch(ctx, s.key.Name, types.MergePatchType, raw, metav1.PatchOptions{})
	switch {
	case apierrors.IsNotFound(err): // the watch is behind
		s.group = nil
		return r.create(ctx, s, a)
	case patch.AnotherOfThatName(err):
		return r.read(ctx, s)
	case err != nil:
		return fmt.Errorf("writing PodGroup %s: %w", s.key, err)
	}
	r.wrote(s, text, s.group.ResourceVersion, lost, made)
	writesTotal.WithLabelValues("patch").Inc()
	return nil
}

// collect deletes a PodGroup that no pod has needed for grace. It first reads from the API
// server whether pods name it: the store holds pods of gang schedulers only, and lags.
func (r *Reconciler) collect(ctx context.Context, s *scope) error {
	if s.named || s.group == nil || s.group.Deleting || !s.group.Generated() || r.needed(s) {
		r.mu.Lock()
		delete(r.idle, s.key)
		r.mu.Unlock()
		if s.group == nil && !s.named {
			r.reported.replace(s.key, "")
		}
		return nil
	}
	if left := grace - r.idleFor(s.key); left > 0 {
		return phase.Wait("pods that need the PodGroup", left)
	}
	if keep, err := r.isRecord(ctx, s); err != nil || keep {
		return err
	}
	named, err := r.isNamed(ctx, s)
	if err != nil || named {
		// The pod may be of another scheduler, and live long: its end may not be watched.
		// The longer the PodGroup is idle, the longer the wait.
		return errors.Join(err, phase.Wait("pods to be seen", min(max(r.idleFor(s.key), lag), listRare)))
	}
	err = r.Objects.Resource(gangs.Resource).Namespace(s.key.Namespace).Delete(ctx, s.key.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &s.group.UID, ResourceVersion: &s.group.ResourceVersion},
	})
	if err != nil && !apierrors.IsNotFound(err) && !patch.AnotherOfThatName(err) {
		return fmt.Errorf("deleting PodGroup %s: %w", s.key, err)
	}
	writesTotal.WithLabelValues("delete").Inc()
	r.mu.Lock()
	delete(r.idle, s.key)
	delete(r.made, s.key)
	r.mu.Unlock()
	r.rewrites.forget(s.key)
	return nil
}

// isRecord reports whether the PodGroup is Completed and its owner exists: it stays as a
// record of the finished gang until its owner is deleted.
func (r *Reconciler) isRecord(ctx context.Context, s *scope) (bool, error) {
	if s.group.Phase != string(scheduling.PhaseCompleted) || s.group.Owner() != gang.OwnerOf(s.key.Name) {
		return false, nil
	}
	if r.Store.PodOf(s.group.Owner()) != nil {
		return true, nil
	}
	of := &ownership.Object{Namespace: s.key.Namespace, Controller: s.group.Controller}
	chain, end, err := r.Lineage.Chain(ctx, of)
	if err != nil {
		return false, fmt.Errorf("looking for the owner of PodGroup %s: %w", s.key, err)
	}
	return len(chain) > 1 && (end == nil || end.At.UID != s.group.Owner() || end.Reason == owners.EndForbidden), nil
}

func (r *Reconciler) idleSince(key types.NamespacedName) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.idle[key]
}

// idleFor returns for how long no pod has needed a PodGroup, from the first call on.
func (r *Reconciler) idleFor(key types.NamespacedName) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	since, ok := r.idle[key]
	if !ok {
		since = r.Clock.Now()
		r.idle[key] = since
	}
	return r.Clock.Since(since)
}

// needed reports whether a PodGroup that no live pod names is kept, because its owner is
// about to create pods.
func (r *Reconciler) needed(s *scope) bool {
	uid := gang.OwnerOf(s.key.Name)
	if s.group.Owner() != uid {
		return false // orphaned, or of another owner
	}
	owner := r.Lineage.Get(uid)
	if owner == nil || owner.Deleting {
		return false
	}
	members := owner.Members()
	if members == nil || *members == 0 {
		return false
	}
	for pod := range r.below(s.key) {
		if pod.Group != "" {
			return false // the pods exist and are in other PodGroups: the rules have changed
		}
	}
	return true
}

func parseVersion(version string) (uint64, error) { return strconv.ParseUint(version, 10, 64) }
