package plan

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/domain/placement/rebalance"
	"github.com/atoll-k8s/atoll/internal/domain/replacement"
	"github.com/atoll-k8s/atoll/internal/kubectl/read"
	"github.com/atoll-k8s/atoll/internal/owners"
	"github.com/atoll-k8s/atoll/internal/survey"
)

// Plan is what will be done, and what -o json and -o yaml print.
type Plan struct {
	Nodes     []Node     `json:"nodes,omitempty"`
	Workloads []Workload `json:"workloads,omitempty"`
	// Unknown is what the plan does not know.
	Unknown []string `json:"unknown,omitempty"`
}

// Change is a value now and once the objects are applied; "" is none.
type Change struct {
	Now  string `json:"now"`
	Then string `json:"then"`
}

// Workload is what will be done about one workload.
type Workload struct {
	Namespace         string `json:"namespace"`
	Kind              string `json:"kind"`
	Name              string `json:"name"`
	PropagationPolicy string `json:"propagationPolicy,omitempty"`
	OverridePolicy    string `json:"overridePolicy,omitempty"`
	// Rollout: the pod template changes, so the workload's own controller replaces all pods. The
	// new ones come to the groups that Groups has, and as the rules want them.
	Rollout bool `json:"rollout,omitempty"`
	// Groups has the numbers of pods of the NodeGroups of the PropagationPolicy.
	Groups []Group `json:"groups,omitempty"`
	// AtATime is how many pods may be unavailable because of the moves, restarts and
	// replacements below, which are in their order.
	AtATime int `json:"atATime,omitempty"`
	// Moves are the pods that are evicted, so that their successors come to other NodeGroups.
	Moves []Pod `json:"moves,omitempty"`
	// Restarts are the pods whose images change in place, which restarts the containers.
	Restarts []Pod `json:"restarts,omitempty"`
	// Replacements are the pods that are evicted, so that their successors are as the rules
	// want them.
	Replacements []Pod `json:"replacements,omitempty"`
	// Blocked is why not all of it can be done now.
	Blocked []string `json:"blocked,omitempty"`
	// Unknown is what cannot be known of a new workload.
	Unknown string `json:"unknown,omitempty"`
}

// Group has the numbers of pods of a NodeGroup.
type Group struct {
	Name string `json:"name"`
	Now  int    `json:"now"`
	Then int    `json:"then"`
}

// Pod is a pod to which something is done.
type Pod struct {
	Name string `json:"name"`
	// Group is the NodeGroup that it is in.
	Group string `json:"group"`
	// Images are the images that change, by container.
	Images map[string]Change `json:"images,omitempty"`
}

// IsBlocked returns whether something is in the way of a workload.
func (p *Plan) IsBlocked() bool {
	return slices.ContainsFunc(p.Workloads, func(w Workload) bool { return len(w.Blocked) > 0 })
}

// Of plans what atoll-manager does in a cluster once objects were applied. pods reads volumes,
// and owners of kinds that the cluster was not observed for.
func (c *Cluster) Of(ctx context.Context, applied []client.Object, pods kubernetes.Interface) (*Plan, error) {
	before, err := c.With(nil)
	if err != nil {
		return nil, err
	}
	after, err := c.With(applied)
	if err != nil {
		return nil, err
	}
	now, err := before.workloads(ctx, pods)
	if err != nil {
		return nil, err
	}
	then, err := after.workloads(ctx, pods)
	if err != nil {
		return nil, err
	}
	p := &Plan{Nodes: nodesOf(before, after)}
	for _, w := range then {
		k := key{w.Kind, w.Namespace, w.Name}
		w.Rollout = rollsOut(before.objects[k], after.objects[k])
		if w.Rollout {
			w.Moves, w.Restarts, w.Replacements, w.AtATime, w.Blocked = nil, nil, nil, 0, nil
			w.block(after.missing(after.objects[k]))
		}
		if !slices.ContainsFunc(now, func(other Workload) bool { return reflect.DeepEqual(other, w) }) {
			p.Workloads = append(p.Workloads, w)
		}
	}
	for _, w := range now {
		if !slices.ContainsFunc(then, func(other Workload) bool { return other.same(&w) }) {
			w.Moves, w.Restarts, w.Replacements, w.AtATime, w.Groups = nil, nil, nil, 0, nil
			w.PropagationPolicy, w.OverridePolicy, w.Blocked = "", "", nil
			p.Workloads = append(p.Workloads, w)
		}
	}
	return p, nil
}

func (w *Workload) same(o *Workload) bool {
	return w.Kind == o.Kind && w.Namespace == o.Namespace && w.Name == o.Name
}

// rollsOut returns whether the pod template of a workload changes.
func rollsOut(before, after client.Object) bool {
	a, b := templateOf(before), templateOf(after)
	return a != nil && b != nil && !equality.Semantic.DeepEqual(a, b)
}

func templateOf(o client.Object) *corev1.PodTemplateSpec {
	switch o := o.(type) {
	case *appsv1.Deployment:
		return &o.Spec.Template
	case *appsv1.StatefulSet:
		return &o.Spec.Template
	case *appsv1.DaemonSet:
		return &o.Spec.Template
	}
	return nil
}

// workloads returns what atoll-manager does about all workloads that require a policy, by
// namespace, kind and name.
func (c *Cluster) workloads(ctx context.Context, pods kubernetes.Interface) (all []Workload, err error) {
	s := c.surveyor(pods)
	byUID := map[types.UID]*Workload{}
	workload := func(object *ownership.Object) *Workload {
		if byUID[object.UID] == nil {
			byUID[object.UID] = &Workload{Namespace: object.Namespace, Kind: object.Kind, Name: object.Name}
		}
		return byUID[object.UID]
	}
	for _, policy := range of[*gm.PropagationPolicy](c) {
		for _, object := range s.Walker.Requiring(owners.Propagation, policy.Namespace, policy.Name) {
			w := workload(object)
			w.PropagationPolicy = policy.Name
			if err := w.spread(ctx, s, policy, object); err != nil {
				w.block(err.Error())
			}
			if c.fresh.Has(key{object.Kind, object.Namespace, object.Name}) {
				w.begin(s, policy, object)
			}
		}
	}
	for _, policy := range of[*gm.OverridePolicy](c) {
		for _, object := range s.Walker.Requiring(owners.Override, policy.Namespace, policy.Name) {
			w := workload(object)
			w.OverridePolicy = policy.Name
			if err := w.override(ctx, s, policy, object); err != nil {
				return nil, err
			}
		}
	}
	for k, o := range c.objects {
		if why := c.missing(o); why != "" {
			workload(&ownership.Object{GroupVersionKind: schema.GroupVersionKind{Kind: k.Kind}, Namespace: k.Namespace, Name: k.Name, UID: o.GetUID()}).block(why)
		}
	}
	for _, w := range byUID {
		if len(w.Moves)+len(w.Restarts)+len(w.Replacements) == 0 {
			w.AtATime = 0
		}
		w.budgets(c)
		all = append(all, *w)
	}
	slices.SortFunc(all, func(a, b Workload) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
	})
	return all, nil
}

// missing tells that a workload requires a policy that is not there; "" if it does not.
func (c *Cluster) missing(o client.Object) string {
	if metav1.GetControllerOf(o) != nil {
		return ""
	}
	kind, name := read.MissingPolicy(o, func(kind, name string) bool { return c.objects[key{kind, o.GetNamespace(), name}] != nil })
	if name == "" {
		return ""
	}
	return fmt.Sprintf("%s %q is not in namespace %s: new pods wait at the scheduling gate", kind, name, o.GetNamespace())
}

// block adds why not all can be done.
func (w *Workload) block(why string) {
	if why != "" && !slices.Contains(w.Blocked, why) {
		w.Blocked = append(w.Blocked, why)
	}
}

// spread adds what the PropagationPolicy demands.
func (w *Workload) spread(ctx context.Context, s *survey.Surveyor, policy *gm.PropagationPolicy, object *ownership.Object) error {
	observed, err := s.Workload(ctx, policy, object)
	if err != nil {
		return err
	}
	pods := 0
	for _, c := range observed.Cohorts {
		pods += len(c.Pods)
	}
	// A pod that its own controller deletes is not moved before.
	observed.Observed.Balanced = len(observed.Cohorts) <= 1 && pods <= observed.Observed.Replicas
	p := rebalance.NewPlan(&observed.Observed)
	for _, g := range p.Spread.Groups {
		w.Groups = append(w.Groups, Group{Name: g.Name, Now: int(g.Current), Then: int(g.Desired)})
	}
	w.Moves = inTurn(p.Evict, p.Spread.Groups)
	w.AtATime = max(1, int(policy.Spec.Rescheduling.MaxUnavailable))
	if len(p.Evict) < p.Surplus || rebalance.Severity(p.Reason) > rebalance.Severity(gm.ReasonPodsWaiting) {
		w.block(p.Spread.Message)
	}
	if observed.Unread != nil {
		w.block(fmt.Sprintf("where the volumes of its pods can be used could not be read: %v", observed.Unread))
	}
	if len(observed.Cohorts) > 1 {
		w.block("a rollout is in progress: pods are moved when it is over")
	}
	return nil
}

// begin tells what is not known of a workload that is new.
func (w *Workload) begin(s *survey.Surveyor, policy *gm.PropagationPolicy, object *ownership.Object) {
	switch {
	case w.Kind == "DaemonSet":
		w.Groups, w.Unknown = nil, "on which nodes it runs: its controller decides that, and no policy divides its pods"
		return
	case object.Replicas == nil || w.Kind == "Job":
		w.Groups, w.Unknown = nil, "where it runs: the policy decides that for each pod as it is created, and never moves such a pod"
		return
	}
	spread, err := s.Policies.Spread(policy, object.Ties())
	if err != nil {
		return // it blocks already
	}
	// The last letters of these two make the two orders of equal groups (see placement.Spread.For).
	n := int(*object.Replicas)
	if !slices.Equal(spread.For("a").Divide(n), spread.For("b").Divide(n)) {
		w.Unknown = "which of equal NodeGroups gets a pod more: its UID decides that"
	}
}

// inTurn returns the pods that leave as they leave one after the other: each time one of the
// group that has most too many.
func inTurn(evict []*rebalance.Pod, groups []gm.GroupSpread) (moves []Pod) {
	surplus, left := map[string]int32{}, slices.Clone(evict)
	for _, g := range groups {
		surplus[g.Name] = g.Surplus
	}
	for len(left) > 0 {
		next := 0
		for i, pod := range left {
			if c := cmp.Or(cmp.Compare(surplus[pod.Group], surplus[left[next].Group]), cmp.Compare(left[next].Group, pod.Group)); c > 0 {
				next = i
			}
		}
		pod := left[next]
		surplus[pod.Group]--
		moves, left = append(moves, Pod{Name: pod.Name, Group: pod.Group}), slices.Delete(left, next, next+1)
	}
	return moves
}

// override adds what the OverridePolicy demands.
func (w *Workload) override(ctx context.Context, s *survey.Surveyor, policy *gm.OverridePolicy, object *ownership.Object) error {
	rules, errs := s.Policies.Rules(policy)
	if len(errs) > 0 {
		w.block(errs[0].Error())
		return nil
	}
	observed, err := s.Overridden(ctx, policy, rules, object)
	if err != nil {
		return err
	}
	if observed.Failure != nil {
		w.block(observed.Failure.Error())
	}
	if observed.UpdatesImages() {
		for _, due := range observed.Due {
			w.Restarts = append(w.Restarts, Pod{Name: due.Name, Group: due.Group, Images: imagesOf(&due)})
		}
	}
	p := replacement.NewPlan(s.Replacements(rules, observed))
	if p.Blocked != nil {
		w.block(p.Blocked.Error())
	}
	for _, i := range p.Replace {
		w.Replacements = append(w.Replacements, Pod{Name: observed.Stale[i].Name, Group: observed.Stale[i].Group})
	}
	if observed.Mode != gm.ReschedulingEvict && len(observed.Due)+len(observed.Stale) > len(w.Restarts)+len(w.Replacements) {
		w.block(fmt.Sprintf("running pods stay as they are: rescheduling.mode of the PropagationPolicy is %s", observed.Mode))
	}
	w.AtATime = observed.MaxUnavailable
	return nil
}

func imagesOf(due *survey.DuePod) map[string]Change {
	images := map[string]Change{}
	for _, i := range due.Change.Changed() {
		for _, c := range due.Containers {
			if c.Name == i.Container {
				images[c.Name] = Change{Now: c.Image, Then: i.Image}
			}
		}
	}
	return images
}

// budgets adds the PodDisruptionBudgets that allow no eviction of the pods that are to go.
func (w *Workload) budgets(c *Cluster) {
	for _, b := range of[*policyv1.PodDisruptionBudget](c) {
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil || b.Namespace != w.Namespace || b.Status.DisruptionsAllowed > 0 {
			continue
		}
		if slices.ContainsFunc(slices.Concat(w.Moves, w.Replacements), func(m Pod) bool {
			pod := c.objects[key{"Pod", w.Namespace, m.Name}]
			return pod != nil && selector.Matches(labels.Set(pod.GetLabels()))
		}) {
			w.block(fmt.Sprintf("PodDisruptionBudget %q allows no eviction now: kubectl describe pdb -n %s %s", b.Name, b.Namespace, b.Name))
		}
	}
}

// Text returns the plan for people.
func (p *Plan) Text() string {
	var text strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&text, format+"\n", args...) }
	for i := range p.Nodes {
		p.Nodes[i].write(line)
	}
	for i := range p.Workloads {
		p.Workloads[i].write(line)
	}
	switch {
	case len(p.Nodes)+len(p.Workloads) > 0:
	case len(p.Unknown) > 0:
		line("Nothing changes, as far as a plan knows.")
	default:
		line("Nothing changes.")
	}
	for _, u := range p.Unknown {
		line("Not known: %s", u)
	}
	return text.String()
}

func (w *Workload) write(line func(string, ...any)) {
	line("%s %s/%s", w.Kind, w.Namespace, w.Name)
	switch {
	case w.PropagationPolicy == "" && w.OverridePolicy == "" && len(w.Blocked) == 0:
		line("  Its pods stay where they are: no policy that it requires exists any more")
	case w.Rollout:
		line("  A rollout replaces its pods: its pod template changes")
	}
	if len(w.Groups) > 0 {
		line("  %-40s  %5s  %5s", "NODEGROUP, BY "+w.PropagationPolicy, "NOW", "THEN")
	}
	for _, g := range w.Groups {
		line("  %-40s  %5d  %5d", cmp.Or(g.Name, "(no NodeGroup)"), g.Now, g.Then)
	}
	list := func(what string, pods []Pod) {
		if len(pods) > 0 {
			line("  %s, in this order, %d at a time:", what, w.AtATime)
		}
		for _, pod := range pods {
			line("    %s  in %s", pod.Name, cmp.Or(pod.Group, "no NodeGroup"))
			for _, container := range sortedKeys(pod.Images) {
				line("      %s: %s → %s", container, pod.Images[container].Now, pod.Images[container].Then)
			}
		}
	}
	list("Leave their NodeGroup", w.Moves)
	list("Restart in place with other images", w.Restarts)
	list("Are replaced, because other fields change", w.Replacements)
	if w.Unknown != "" {
		line("  Not known: %s", w.Unknown)
	}
	for _, why := range w.Blocked {
		line("  Blocked: %s", why)
	}
}
