package podgroup

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
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
	group *gangs.Group // nil if there is none
	// named: live pods name the PodGroup; members are those of its owner.
	named   bool
	members []member
	// owner has the PodGroup, and above are the annotations from a member's controller
	// up to it. nil without members.
	owner *ownership.Object
	above []map[string]string
}

// member is a pod in the PodGroup, with its owners.
type member struct {
	pod   *gangs.Pod
	chain []*ownership.Object
	end   *owners.End
	at    int // where the owner of the PodGroup is in the chain
}

// Reconcile runs the phases for one PodGroup.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if !r.ready() {
		return ctrl.Result{}, nil // all comes once it is
	}
	s := &scope{key: req.NamespacedName}
	began := r.Clock.Now()
	if err := r.observe(ctx, s); err != nil {
		return ctrl.Result{}, err
	}
	r.groups.Took(req, r.Clock.Since(began))
	return phase.Run(ctx, s, r.ensure, r.collect)
}

// observe finds the PodGroup and the pods that are in it.
func (r *Reconciler) observe(ctx context.Context, s *scope) error {
	s.group = r.group(s.key)
	uid := gang.OwnerOf(s.key.Name)
	for _, pod := range r.Store.Naming(s.key) {
		if !pod.Live {
			continue
		}
		s.named = true
		chain, end, err := r.Lineage.Chain(ctx, pod.Object())
		if err != nil {
			return fmt.Errorf("observing pod %s: %w", pod, err)
		}
		at := slices.IndexFunc(chain, func(o *ownership.Object) bool { return o.UID == uid })
		if at >= 0 && !pod.Terminating {
			s.members = append(s.members, member{pod, chain, end, at})
		}
	}
	if len(s.members) == 0 {
		return nil
	}
	newest := &s.members[0]
	for i := range s.members {
		if newest.before(&s.members[i]) {
			newest = &s.members[i]
		}
	}
	s.members[0], *newest = *newest, s.members[0]
	first := s.members[0]
	r.Rules.note(first.pod, first.end) // pods that the webhook named came by nobody else
	s.owner = first.chain[first.at]
	for i := 1; i <= max(first.at, 1) && i < len(first.chain); i++ {
		s.above = append(s.above, annotationsOf(first.chain, i))
	}
	return nil
}

// annotationsOf are those of an owner in a chain. A ReplicaSet has those of its
// Deployment, as copies that stay when the Deployment loses them.
func annotationsOf(chain []*ownership.Object, i int) map[string]string {
	if i+1 < len(chain) && chain[i].Kind == "ReplicaSet" && chain[i+1].Kind == "Deployment" {
		i++
	}
	return chain[i].Gang.Annotations
}

// before tells whether another member is of a newer template, or younger where both are
// of the same.
func (m *member) before(o *member) bool {
	return cmp.Or(
		cmp.Compare(m.order(), o.order()),
		m.pod.CreationTimestamp.Compare(o.pod.CreationTimestamp.Time),
		cmp.Compare(m.pod.Name, o.pod.Name),
	) < 0
}

// order is higher for newer templates.
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

// group is a PodGroup as the watch has it, or as it was written last if that is newer.
func (r *Reconciler) group(key types.NamespacedName) *gangs.Group {
	seen := r.Store.Group(key)
	r.mu.Lock()
	defer r.mu.Unlock()
	made, ok := r.made[key]
	if !ok {
		return seen
	}
	if r.Clock.Since(made.at) >= lag || seen != nil && !older(seen, made.value) {
		delete(r.made, key)
		return seen
	}
	return made.value
}

// older tells whether a PodGroup was seen before the other was written.
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

// ensure makes the PodGroup of live pods what it is to be.
func (r *Reconciler) ensure(ctx context.Context, s *scope) error {
	if len(s.members) == 0 {
		return nil
	}
	want := gang.Want(s.members[0].pod.Gang, s.above, s.owner.Members())
	applied, err := want.Applied()
	if err != nil {
		return phase.Terminal("EncodingFailed", err)
	}
	if s.group == nil {
		err = r.create(ctx, s, applied)
	} else if !s.group.Deleting {
		err = r.update(ctx, s, applied)
	}
	r.tell(s, &want, err)
	return err
}

func (r *Reconciler) create(ctx context.Context, s *scope, a *gang.Applied) error {
	if s.owner.Deleting {
		return nil // the garbage collector would take it away again
	}
	u, err := newGroup(s, a)
	if err != nil {
		return phase.Terminal("EncodingFailed", err)
	}
	made, err := r.Objects.Resource(gangs.Resource).Namespace(s.key.Namespace).Create(ctx, u, metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err):
		return phase.Wait("the PodGroup to be seen", lag/100)
	case err != nil:
		return fmt.Errorf("creating PodGroup %s: %w", s.key, err)
	}
	r.setMade(made)
	writesTotal.WithLabelValues("create").Inc()
	return nil
}

func newGroup(s *scope, a *gang.Applied) (*unstructured.Unstructured, error) {
	text, err := a.Encode()
	if err != nil {
		return nil, err
	}
	apiVersion, kind := s.owner.ToAPIVersionAndKind()
	labels, annotations := maps.Clone(a.Labels), maps.Clone(a.Annotations)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[scheduling.ManagedByLabel] = scheduling.ManagedByAtoll
	annotations[scheduling.AppliedAnnotation] = text
	object := map[string]any{
		"apiVersion": scheduling.GroupVersion.String(), "kind": "PodGroup",
		"metadata": map[string]any{
			"namespace": s.key.Namespace, "name": s.key.Name, "labels": labels, "annotations": annotations,
			// No blockOwnerDeletion: it needs more permissions and makes deletions slow.
			"ownerReferences": []map[string]any{{"apiVersion": apiVersion, "kind": kind, "name": s.owner.Name, "uid": s.owner.UID, "controller": true}},
		},
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

// update writes the keys that are to be otherwise, and no others: the scheduler writes
// the object as a whole.
func (r *Reconciler) update(ctx context.Context, s *scope, a *gang.Applied) error {
	changes := a.Changes(s.group.Last, s.group.Now)
	if changes.None() && s.group.Ours && s.group.Last != nil {
		return nil
	}
	text, err := a.Encode()
	if err != nil {
		return phase.Terminal("EncodingFailed", err)
	}
	changes.Labels[scheduling.ManagedByLabel] = scheduling.ManagedByAtoll
	changes.Annotations[scheduling.AppliedAnnotation] = text
	body := map[string]any{"metadata": map[string]any{"uid": s.group.UID, "labels": changes.Labels, "annotations": changes.Annotations}}
	if len(changes.Spec) > 0 {
		body["spec"] = changes.Spec
	}
	raw, err := json.Marshal(body)
	if err != nil {
		return phase.Terminal("EncodingFailed", err)
	}
	made, err := r.Objects.Resource(gangs.Resource).Namespace(s.key.Namespace).Patch(ctx, s.key.Name, types.MergePatchType, raw, metav1.PatchOptions{})
	switch {
	case apierrors.IsNotFound(err) || patch.AnotherOfThatName(err):
		return phase.Wait("the PodGroup to be seen", lag/100)
	case err != nil:
		return fmt.Errorf("writing PodGroup %s: %w", s.key, err)
	}
	r.setMade(made)
	writesTotal.WithLabelValues("patch").Inc()
	return nil
}

// collect deletes a PodGroup that nobody has needed for a while. The API server is asked
// first: what a watch does not show may be there all the same.
func (r *Reconciler) collect(ctx context.Context, s *scope) error {
	if s.named || s.group == nil || s.group.Deleting || !s.group.Generated() || r.needed(s) {
		r.mu.Lock()
		delete(r.idle, s.key)
		if s.group == nil && !s.named {
			delete(r.told, s.key)
		}
		r.mu.Unlock()
		return nil
	}
	if left := grace - r.idleFor(s.key); left > 0 {
		return phase.Wait("pods that need the PodGroup", left)
	}
	if named, err := r.isNamed(ctx, s); err != nil || named {
		return errors.Join(err, phase.Wait("pods to be seen", lag))
	}
	err := r.Objects.Resource(gangs.Resource).Namespace(s.key.Namespace).Delete(ctx, s.key.Name, metav1.DeleteOptions{
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
	return nil
}

const (
	// askWithin bounds the question whether a live pod names a PodGroup.
	askWithin = 10 * time.Second
	// page is the number of pods that are listed at a time.
	page = 500
)

// isNamed asks the API server whether a live pod names a PodGroup.
func (r *Reconciler) isNamed(ctx context.Context, s *scope) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	pods := r.Pods.CoreV1().Pods(s.key.Namespace)
	names := func(pod *corev1.Pod) bool {
		return pod.Annotations[scheduling.GroupNameAnnotation] == s.key.Name && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
	}
	if s.group.Pod != "" {
		pod, err := pods.Get(ctx, s.group.Pod, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil // the garbage collector has the PodGroup
		}
		if err != nil {
			return false, fmt.Errorf("reading pod %s/%s: %w", s.key.Namespace, s.group.Pod, err)
		}
		// A watch that shows the pod shows those that it owns.
		return names(pod) || slices.Contains(r.Resolver.Schedulers, pod.Spec.SchedulerName) && r.Store.PodOf(pod.UID) == nil, nil
	}
	for _, scheduler := range r.Resolver.Schedulers {
		options := metav1.ListOptions{FieldSelector: "spec.schedulerName=" + scheduler, Limit: page}
		for {
			list, err := pods.List(ctx, options)
			if err != nil {
				return false, fmt.Errorf("listing the pods of %s in %s: %w", scheduler, s.key.Namespace, err)
			}
			for i := range list.Items {
				if names(&list.Items[i]) {
					return true, nil
				}
			}
			if options.Continue = list.Continue; options.Continue == "" {
				break
			}
		}
	}
	return false, nil
}

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

// needed tells whether a PodGroup that no live pod names is to stay: its owner is about
// to make pods, or it shows that all has been done.
func (r *Reconciler) needed(s *scope) bool {
	uid := gang.OwnerOf(s.key.Name)
	if s.group.Owner != uid {
		return false // its owner left it behind
	}
	if s.group.Phase == string(scheduling.PhaseCompleted) {
		return r.Lineage.Get(uid) != nil || r.Store.PodOf(uid) != nil
	}
	owner := r.Lineage.Get(uid)
	if owner == nil || owner.Deleting {
		return false
	}
	members := owner.Members()
	if members == nil || *members == 0 {
		return false
	}
	// Its pods are there and are in other PodGroups: the rules have changed.
	for _, below := range r.Lineage.Descendants(uid) {
		for _, pod := range r.Store.OwnedBy(s.key.Namespace, below) {
			if pod.Live && !pod.Terminating && pod.Group != "" {
				return false
			}
		}
	}
	return true
}

const (
	// ReasonRefused: the API server refuses the PodGroup of an owner.
	ReasonRefused = "PodGroupRefused"
	// ReasonInvalid: annotations for the PodGroup of an owner cannot be used.
	ReasonInvalid = "PodGroupAnnotationInvalid"
)

// tell makes an event of what is wrong, once.
func (r *Reconciler) tell(s *scope, want *gang.PodGroup, err error) {
	reason, text := "", ""
	switch {
	case err != nil && patch.Refused(errors.Unwrap(err)):
		reason, text = ReasonRefused, fmt.Sprintf("The API server refuses the PodGroup of these pods, which wait until it does not: %v", errors.Unwrap(err))
	case len(want.Problems) > 0:
		reason, text = ReasonInvalid, strings.Join(want.Problems, "; ")
	}
	r.mu.Lock()
	was := r.told[s.key]
	r.told[s.key] = reason + text
	if text == "" {
		delete(r.told, s.key)
	}
	r.mu.Unlock()
	if text != "" && was != reason+text {
		r.Recorder.Eventf(regarding(s.owner), nil, corev1.EventTypeWarning, reason, "Group", "%s", shorten(text))
	}
}

// maxNote bounds the text of an event, in bytes: the API server takes 1024.
const maxNote = 1000

func parseVersion(version string) (uint64, error) { return strconv.ParseUint(version, 10, 64) }
