// Package explain says why a pod is where it is, or what it waits for.
package explain

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podresource "k8s.io/component-helpers/resource"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	scheduling "github.com/atoll-k8s/atoll/api/scheduling/v1beta1"
	"github.com/atoll-k8s/atoll/internal/domain/connectivity"
	"github.com/atoll-k8s/atoll/internal/domain/override"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/kubectl/read"
)

// Explanation is the answer about one pod, and what -o json and -o yaml print.
type Explanation struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Facts     []Fact `json:"facts"`
	// Waits is what prevents the pod from running; nil if nothing does.
	Waits *Obstacle `json:"waits,omitempty"`
	// Unread tells which rights are missing to say more.
	Unread []string `json:"unread,omitempty"`
}

// Fact is one line: what it is about, and what is so.
type Fact struct {
	About string `json:"about"`
	Text  string `json:"text"`
}

// Obstacle is why something waits, and the command that helps.
type Obstacle struct {
	Why     string `json:"why"`
	Command string `json:"command"`
}

// Explain explains a pod.
func Explain(o *Observed) Explanation {
	e := Explanation{Namespace: o.Pod.Namespace, Pod: o.Pod.Name}
	for _, f := range []Fact{
		{"Owner", o.owner()}, {"Policy", o.policy()}, {"Share", o.share()}, {"Share", o.surplus()}, {"Group", o.group()}, {"Node", o.node()},
	} {
		if f.Text != "" {
			e.Facts = append(e.Facts, f)
		}
	}
	for _, text := range o.overrides() {
		e.Facts = append(e.Facts, Fact{"Override", text})
	}
	if class := o.Pod.Labels[gm.CapacityClassLabel]; class != "" {
		e.Facts = append(e.Facts, Fact{"Class", strings.TrimSuffix(class+": "+o.Pod.Annotations[gm.CapacityReasonAnnotation], ": ")})
	}
	if text := o.podGroup(); text != "" {
		e.Facts = append(e.Facts, Fact{"PodGroup", text})
	}
	e.Waits = o.waits()
	return e
}

func (o *Observed) owner() string {
	if len(o.Owners) == 0 && o.Unseen == "" {
		return "none: the pod is a workload of its own"
	}
	return o.names(o.Owners)
}

// names names owners, the highest first.
func (o *Observed) names(owners []*metav1.PartialObjectMetadata) string {
	var names []string
	if o.Unseen != "" {
		names = append(names, o.Unseen)
	}
	for _, owner := range slices.Backward(owners) {
		names = append(names, owner.Kind+" "+owner.Name)
	}
	return strings.Join(names, " › ")
}

// policyOwners are the objects that require policies.
func (o *Observed) policyOwners() ownership.PolicyOwners {
	return ownership.PolicyOwnersOfPod(o.chain())
}

func (o *Observed) policy() string {
	owner := o.policyOwners().Propagation
	switch {
	case owner == nil && o.Unseen != "":
		return "not known: that of " + o.Unseen
	case owner == nil && o.policyOwners().Override == nil:
		return "none: kube-scheduler alone places the pod"
	case owner == nil:
		return "no PropagationPolicy: kube-scheduler alone places the pod"
	case o.Propagation == nil && o.PoliciesUnread:
		return fmt.Sprintf("PropagationPolicy %s, which %s %s requires: you may not read it", owner.Policies.RequiredPropagation, owner.Kind, owner.Name)
	case o.Propagation == nil:
		return fmt.Sprintf("PropagationPolicy %s, which %s %s requires, is not there", owner.Policies.RequiredPropagation, owner.Kind, owner.Name)
	}
	return fmt.Sprintf("PropagationPolicy %s: %s", o.Propagation.Name, rules(&o.Propagation.Spec))
}

// rules tells a division in one line.
func rules(spec *gm.PropagationSpec) string {
	var parts []string
	if len(spec.StaticWeight) > 0 && spec.PropagationStrategy != gm.NumRangePropagationStrategy {
		for _, w := range spec.StaticWeight {
			parts = append(parts, fmt.Sprintf("%s %d", strings.ToLower(strings.Join(w.NodeGroupNames, ", ")), w.Weight))
		}
		return "weights " + strings.Join(parts, ", ")
	}
	for _, n := range spec.NumRange {
		least, most := "0", "∞"
		if n.Min != nil {
			least = n.Min.String()
		}
		if n.Max != nil {
			most = n.Max.String()
		}
		parts = append(parts, fmt.Sprintf("%s %s–%s", strings.ToLower(strings.Join(n.NodeGroupNames, ", ")), least, most))
	}
	return "ranges " + strings.Join(parts, ", ")
}

// spread returns the entry of the pod's workload in the policy's status; nil without one.
func (o *Observed) spread() *gm.WorkloadSpread {
	owner := o.policyOwners().Propagation
	if owner == nil || o.Propagation == nil {
		return nil
	}
	for i := range o.Propagation.Status.Apps {
		if app := &o.Propagation.Status.Apps[i]; app.Ref.Kind == owner.Kind && app.Ref.Name == owner.Name {
			return app
		}
	}
	return nil
}

func (o *Observed) share() string {
	spread := o.spread()
	if spread == nil {
		return ""
	}
	var parts []string
	for _, g := range spread.Groups {
		name := g.Name
		if name == "" {
			name = "no group"
		}
		parts = append(parts, fmt.Sprintf("%s has %d, wants %d", name, g.Current, g.Desired))
	}
	if spread.Waiting > 0 {
		parts = append(parts, fmt.Sprintf("%d have no node yet", spread.Waiting))
	}
	text := strings.Join(parts, "; ")
	if c := meta.FindStatusCondition(o.Propagation.Status.Conditions, gm.ConditionReady); c != nil && c.ObservedGeneration < o.Propagation.Generation {
		text += "; by the policy as it was: atoll-manager has not seen its newest spec"
	}
	return text
}

// surplus tells why groups have too many pods of the workload; "" if none has.
func (o *Observed) surplus() string {
	spread := o.spread()
	if spread == nil || !slices.ContainsFunc(spread.Groups, func(g gm.GroupSpread) bool { return g.Surplus > 0 }) {
		return ""
	}
	return spread.Message
}

func (o *Observed) group() string {
	name := o.Pod.Labels[gm.NodeGroupLabel]
	switch {
	case name == "":
		return ""
	case o.Pod.Annotations[gm.SeatAnnotation] != "":
		return name + ", chosen when the pod was created"
	}
	return name + ", chosen while the pod was scheduled"
}

func (o *Observed) node() string {
	name := o.Pod.Spec.NodeName
	if name == "" {
		return ""
	}
	if o.Node == nil {
		return name
	}
	text := name + ": " + readyText(o.Node)
	if r := connectivity.Parse(o.Node.Annotations[connectivity.Annotation]); r.State != connectivity.Direct {
		text += fmt.Sprintf("; %s since %s: %s", r.State, r.Since.UTC().Format("2006-01-02 15:04:05"), connectivity.Message(r.Reason))
	}
	return text
}

func readyText(node *corev1.Node) string {
	text := "no kubelet has written its status"
	for _, c := range node.Status.Conditions {
		if c.Type != corev1.NodeReady {
			continue
		}
		switch c.Status {
		case corev1.ConditionTrue:
			text = "Ready"
		case corev1.ConditionFalse:
			text = "not Ready: " + c.Message
		default:
			text = "not known whether it is Ready"
		}
	}
	if node.Spec.Unschedulable {
		text += ", cordoned"
	}
	return text
}

// overrides tells what the rules of the OverridePolicy that are about the pod's group change.
func (o *Observed) overrides() (all []string) {
	group := o.Pod.Labels[gm.NodeGroupLabel]
	if o.Override == nil || group == "" {
		return nil
	}
	images := o.originalImages()
	for i := range o.Override.Spec.OverrideRules {
		rule := o.Override.Spec.OverrideRules[i]
		if !targets(&rule, group) {
			continue
		}
		by := fmt.Sprintf("OverridePolicy %s, spec.overrideRules[%d]", o.Override.Name, i)
		changed := false
		if compiled, errs := override.Compile(gm.OverrideSpec{OverrideRules: []gm.RuleWithNodeGroup{rule}}); len(errs) == 0 {
			if next, err := compiled.Images(group, images); err == nil {
				for j := range next {
					if next[j].Image != images[j].Image {
						all, changed = append(all, fmt.Sprintf("container %s: %s, not %s (%s)", next[j].Container, next[j].Image, images[j].Image, by)), true
					}
				}
				images = next
			}
		}
		if others := othersOf(&rule); others != "" {
			all = append(all, fmt.Sprintf("%s (%s)", others, by))
		} else if !changed {
			all = append(all, by+" changes nothing of it")
		}
	}
	return all
}

// originalImages returns the images before any override.
func (o *Observed) originalImages() (images []override.Image) {
	original := map[string]string{}
	_ = json.Unmarshal([]byte(o.Pod.Annotations[gm.OriginalImagesAnnotation]), &original) // without it nothing was changed
	add := func(containers []corev1.Container, isInit bool) {
		for i := range containers {
			image := override.Image{Container: containers[i].Name, Image: containers[i].Image, Init: isInit}
			if before := original[image.Container]; before != "" {
				image.Image = before
			}
			images = append(images, image)
		}
	}
	add(o.Pod.Spec.InitContainers, true)
	add(o.Pod.Spec.Containers, false)
	return images
}

func targets(rule *gm.RuleWithNodeGroup, group string) bool {
	return len(rule.TargetNodeGroup) == 0 || slices.ContainsFunc(rule.TargetNodeGroup, func(name string) bool { return strings.EqualFold(name, group) })
}

// podGroup tells about the PodGroup of the pod.
func (o *Observed) podGroup() string {
	name := o.Pod.Annotations[scheduling.GroupNameAnnotation]
	switch {
	case name == "":
		return ""
	case o.PodGroup == nil:
		return name
	}
	text := fmt.Sprintf("%s: at least %d pods together", name, o.PodGroup.Spec.MinMember)
	if owner := metav1.GetControllerOf(o.PodGroup); owner != nil {
		text += fmt.Sprintf(", of %s %s", owner.Kind, owner.Name)
	}
	if phase := o.PodGroup.Status.Phase; phase != "" {
		text += ", " + string(phase)
	}
	return text
}

// waits finds the one thing that prevents the pod from running.
func (o *Observed) waits() *Obstacle {
	pod := o.Pod
	switch {
	case pod.DeletionTimestamp != nil, pod.Status.Phase == corev1.PodSucceeded, pod.Status.Phase == corev1.PodFailed:
		return nil
	case pod.Spec.NodeName != "":
		return o.notReady()
	}
	for _, gate := range pod.Spec.SchedulingGates {
		if gate.Name != gm.PolicyGate {
			return &Obstacle{fmt.Sprintf("scheduling gate %q of another program, which has to remove it", gate.Name), o.describe()}
		}
	}
	if len(pod.Spec.SchedulingGates) > 0 {
		return o.gated()
	}
	return o.unscheduled()
}

// gated finds why the pod is at our gate.
func (o *Observed) gated() *Obstacle {
	owners := o.policyOwners()
	if o.PoliciesUnread {
		return &Obstacle{"the scheduling gate of Atoll, and you may not read the policies that tell why", fmt.Sprintf("kubectl -n %s auth can-i get propagationpolicies.groupmanagement.kubeedge.io", o.Pod.Namespace)}
	}
	if o.Unseen != "" && (owners.Propagation == nil || o.Propagation == nil) {
		return &Obstacle{"the scheduling gate of Atoll: which policies it requires is told by " + o.Unseen, o.describe()}
	}
	if owner := owners.Propagation; owner != nil && o.Propagation == nil {
		return missing("PropagationPolicy", gm.RequiredPropagationPolicyLabel, owner.Policies.RequiredPropagation, owner, o.PropagationNames)
	}
	if owner := owners.Override; owner != nil && o.Override == nil {
		return missing("OverridePolicy", gm.RequiredOverridePolicyLabel, owner.Policies.RequiredOverride, owner, o.OverrideNames)
	}
	if o.Propagation != nil {
		if c := meta.FindStatusCondition(o.Propagation.Status.Conditions, gm.ConditionReady); c != nil && c.Reason == gm.ReasonInvalid {
			return o.invalid("PropagationPolicy", o.Propagation.Name, c.Message)
		}
	}
	if o.Override != nil {
		if _, text, ok := strings.Cut(o.Pod.Annotations[gm.UnassignedAnnotation], " "); ok {
			return o.invalid("OverridePolicy", o.Override.Name, text)
		}
		if c := meta.FindStatusCondition(o.Override.Status.Conditions, gm.ConditionReady); c != nil && c.Status != metav1.ConditionTrue && c.Reason != gm.ReasonConverging {
			return o.invalid("OverridePolicy", o.Override.Name, c.Message)
		}
	}
	if spread := o.spread(); spread != nil && spread.Message != "" {
		return &Obstacle{spread.Message, fmt.Sprintf("kubectl -n %s describe propagationpolicy %s", o.Pod.Namespace, o.Propagation.Name)}
	}
	return &Obstacle{"atoll-manager has not decided yet: no replica leads, or it has not seen the pod", "kubectl get pods -A -l app.kubernetes.io/name=atoll-manager"}
}

// missing tells that a policy is not there, and how to name one that is.
func missing(kind, label, name string, owner *ownership.Object, have []string) *Obstacle {
	why := fmt.Sprintf("%s %q, which %s %s requires, is not in namespace %s", kind, name, owner.Kind, owner.Name, owner.Namespace)
	if nearest := nearest(name, have); nearest != "" {
		return &Obstacle{
			fmt.Sprintf("%s; there is %q", why, nearest),
			fmt.Sprintf("kubectl -n %s label %s %s %s=%s --overwrite", owner.Namespace, resource(owner), owner.Name, label, nearest),
		}
	}
	return &Obstacle{
		why + ": create it, or take the label off",
		fmt.Sprintf("kubectl -n %s label %s %s %s-", owner.Namespace, resource(owner), owner.Name, label),
	}
}

// resource names the kind of an object as kubectl accepts it.
func resource(o *ownership.Object) string {
	kind := strings.ToLower(o.Kind)
	if o.Group != "" {
		return kind + "." + o.Group
	}
	return kind
}

func (o *Observed) invalid(kind, name, message string) *Obstacle {
	return &Obstacle{fmt.Sprintf("%s %s: %s", kind, name, message), fmt.Sprintf("kubectl -n %s edit %s %s", o.Pod.Namespace, strings.ToLower(kind), name)}
}

// unscheduled finds why kube-scheduler finds no node.
func (o *Observed) unscheduled() *Obstacle {
	name := o.Pod.Labels[gm.NodeGroupLabel]
	if name != "" && !o.NodesUnread {
		if obstacle := o.closed(name); obstacle != nil {
			return obstacle
		}
	}
	for _, c := range o.Pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Message != "" {
			text, _, _ := strings.Cut(c.Message, " no new claims to deallocate")
			text, _, _ = strings.Cut(text, " preemption: ")
			lacking, tooLarge := o.lacking(text)
			command := o.describe()
			switch {
			case tooLarge && len(o.Owners) > 0:
				owner := o.chain()[len(o.Owners)]
				command = fmt.Sprintf("kubectl -n %s edit %s %s", owner.Namespace, resource(owner), owner.Name)
			case name != "":
				command = fmt.Sprintf("kubectl describe nodes -l %s=%s", gm.NodeGroupLabel, name)
			}
			return &Obstacle{"kube-scheduler: " + text + lacking, command}
		}
	}
	return &Obstacle{"kube-scheduler has not placed the pod yet", o.describe()}
}

var insufficient = regexp.MustCompile(`Insufficient ([^ ,;]+[^ ,;.])`)

// lacking tells how much the pod requests of what kube-scheduler says nodes have too little of. tooLarge: an empty node
// of its group would not have enough.
func (o *Observed) lacking(text string) (all string, tooLarge bool) {
	requests := podresource.PodRequests(o.Pod, podresource.PodResourcesOptions{})
	for _, name := range insufficient.FindAllStringSubmatch(text, -1) {
		resource := corev1.ResourceName(name[1])
		requested, is := requests[resource]
		if !is {
			continue
		}
		part := fmt.Sprintf(" The pod requests %s: %s", resource, requested.String())
		if len(o.Members) > 0 {
			most := slices.MaxFunc(o.Members, func(a, b corev1.Node) int {
				return a.Status.Allocatable.Name(resource, apiresource.DecimalSI).Cmp(*b.Status.Allocatable.Name(resource, apiresource.DecimalSI))
			})
			has := most.Status.Allocatable.Name(resource, apiresource.DecimalSI)
			if requested.Cmp(*has) > 0 {
				tooLarge = true
				part += fmt.Sprintf("; the largest node of %s has %s", o.Pod.Labels[gm.NodeGroupLabel], has)
			}
		}
		if part += "."; !strings.Contains(all, part) {
			all += part
		}
	}
	return all, tooLarge
}

// closed tells why no node of the pod's group takes any pod; nil if one does.
func (o *Observed) closed(name string) *Obstacle {
	if len(o.Members) == 0 {
		if o.Group == nil {
			return &Obstacle{fmt.Sprintf("NodeGroup %q does not exist any more", name), "kubectl get nodegroups"}
		}
		return &Obstacle{fmt.Sprintf("NodeGroup %q has no node", name), fmt.Sprintf("kubectl describe nodegroup %s", name)}
	}
	var cordoned, silent []string
	for i := range o.Members {
		switch node := &o.Members[i]; {
		case node.Spec.Unschedulable:
			cordoned = append(cordoned, node.Name)
		case !connectivity.IsReady(node):
			silent = append(silent, node.Name)
		}
	}
	switch {
	case len(cordoned)+len(silent) < len(o.Members):
		return nil
	case len(cordoned) > 0:
		why := fmt.Sprintf("all nodes of NodeGroup %q are cordoned", name)
		if len(silent) > 0 {
			why = fmt.Sprintf("no node of NodeGroup %q takes pods: %s cordoned, %s not Ready", name, areOf(cordoned), areOf(silent))
		}
		return &Obstacle{why, "kubectl uncordon " + strings.Join(cordoned, " ")}
	}
	return &Obstacle{fmt.Sprintf("no node of NodeGroup %q is Ready", name), "kubectl describe node " + silent[0]}
}

// areOf returns the subject of a sentence about nodes, with its verb.
func areOf(names []string) string {
	if len(names) == 1 {
		return names[0] + " is"
	}
	return fmt.Sprintf("%d are", len(names))
}

// notReady finds why a pod on a node does not run, or is not Ready; nil if it is.
func (o *Observed) notReady() *Obstacle {
	if read.IsReady(o.Pod) {
		return nil
	}
	if o.Node != nil && !connectivity.IsReady(o.Node) {
		return &Obstacle{fmt.Sprintf("its node %s: %s", o.Node.Name, readyText(o.Node)), "kubectl describe node " + o.Node.Name}
	}
	for _, s := range slices.Concat(o.Pod.Status.InitContainerStatuses, o.Pod.Status.ContainerStatuses) {
		switch {
		case s.State.Waiting != nil && s.State.Waiting.Reason != "PodInitializing":
			return &Obstacle{strings.TrimSuffix(fmt.Sprintf("container %s: %s: %s", s.Name, s.State.Waiting.Reason, s.State.Waiting.Message), ": "), o.describe()}
		case s.State.Terminated != nil && s.State.Terminated.ExitCode != 0:
			return &Obstacle{fmt.Sprintf("container %s has ended with code %d: %s", s.Name, s.State.Terminated.ExitCode, s.State.Terminated.Reason), fmt.Sprintf("kubectl -n %s logs %s -c %s", o.Pod.Namespace, o.Pod.Name, s.Name)}
		case s.State.Running != nil && !s.Ready:
			return &Obstacle{fmt.Sprintf("container %s runs and is not ready", s.Name), fmt.Sprintf("kubectl -n %s logs %s -c %s", o.Pod.Namespace, o.Pod.Name, s.Name)}
		}
	}
	if o.Pod.Status.StartTime == nil {
		return &Obstacle{"the kubelet has not started it yet", o.describe()}
	}
	for _, c := range o.Pod.Status.Conditions {
		if c.Type == corev1.PodReady && c.Message != "" {
			return &Obstacle{c.Message, o.describe()}
		}
	}
	return &Obstacle{"the kubelet has not said yet that it is Ready", o.describe()}
}

func (o *Observed) describe() string {
	return fmt.Sprintf("kubectl -n %s describe pod %s", o.Pod.Namespace, o.Pod.Name)
}
