package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

// objects are the demo's objects in the API server.
type objects struct {
	nodes       []corev1.Node
	pods        []*corev1.Pod
	groups      []gm.NodeGroup
	propagation []gm.PropagationPolicy
	override    []gm.OverridePolicy
	deployment  *appsv1.Deployment
}

// picture is the state that is shown at one moment.
type picture struct {
	// groups are in the order of their first nodes; last is "", if there are
	// nodes of no group.
	groups []groupView
	// waiting are pods without a node.
	waiting  []podView
	policies []policyView
	// replicas are the replicas of the Deployment.
	replicas int
	// availability is nil until it is counted.
	availability *availability
}

type groupView struct {
	name string
	// wanted is the number of pods in the PropagationPolicy's status; -1 if it has none.
	wanted int
	nodes  []nodeView
}

type nodeView struct {
	name, location  string
	ready, cordoned bool
	pods            []podView
}

type podView struct {
	name, node, group string
	images, args      string
	condition         string
	ready             bool
	restarts          int
}

type policyView struct {
	kind, name, status, reason, message string
}

// compose returns a picture of the objects.
func compose(o objects) *picture {
	p := &picture{}
	groupOf := map[string]string{}
	byName := map[string]*groupView{}
	for _, group := range o.groups {
		byName[group.Name] = &groupView{name: group.Name, wanted: -1}
		for _, node := range group.Status.ContainedNodes {
			groupOf[node] = group.Name
		}
	}
	byNode := map[string][]podView{}
	for _, pod := range o.pods {
		v := viewPod(pod, groupOf)
		if v.node == "" {
			p.waiting = append(p.waiting, v)
		}
		byNode[v.node] = append(byNode[v.node], v)
	}
	for i := range o.nodes {
		node := viewNode(&o.nodes[i], byNode[o.nodes[i].Name])
		name := groupOf[node.name]
		if byName[name] == nil {
			byName[name] = &groupView{name: name, wanted: -1}
		}
		byName[name].nodes = append(byName[name].nodes, node)
	}
	for i := range o.propagation {
		setWanted(byName, &o.propagation[i])
		p.policies = append(p.policies, viewPolicy("PropagationPolicy", o.propagation[i].ObjectMeta, o.propagation[i].Status.Conditions))
	}
	for i := range o.override {
		p.policies = append(p.policies, viewPolicy("OverridePolicy", o.override[i].ObjectMeta, o.override[i].Status.Conditions))
	}
	if o.deployment != nil && o.deployment.Spec.Replicas != nil {
		p.replicas = int(*o.deployment.Spec.Replicas)
	}
	for _, group := range byName {
		p.groups = append(p.groups, *group)
	}
	p.sort()
	return p
}

// sort sorts everything in an order that is the same in each picture.
func (p *picture) sort() {
	for i := range p.groups {
		slices.SortFunc(p.groups[i].nodes, func(a, b nodeView) int { return strings.Compare(a.name, b.name) })
		for j := range p.groups[i].nodes {
			slices.SortFunc(p.groups[i].nodes[j].pods, comparePods)
		}
	}
	slices.SortFunc(p.groups, func(a, b groupView) int {
		if (a.name == "") != (b.name == "") {
			return cmp.Compare(b.name, a.name) // "" is last
		}
		return cmp.Or(strings.Compare(a.firstNode(), b.firstNode()), strings.Compare(a.name, b.name))
	})
	slices.SortFunc(p.waiting, comparePods)
	slices.SortFunc(p.policies, func(a, b policyView) int {
		return cmp.Or(-strings.Compare(a.kind, b.kind), strings.Compare(a.name, b.name))
	})
}

func comparePods(a, b podView) int { return strings.Compare(a.name, b.name) }

// firstNode sorts groups without a node after the others.
func (g *groupView) firstNode() string {
	if len(g.nodes) == 0 {
		return "~"
	}
	return g.nodes[0].name
}

func setWanted(groups map[string]*groupView, policy *gm.PropagationPolicy) {
	for _, app := range policy.Status.Apps {
		if app.Ref.Kind != "Deployment" || app.Ref.Name != deployment {
			continue
		}
		for _, spread := range app.Groups {
			if group := groups[spread.Name]; group != nil {
				group.wanted = int(spread.Desired)
			}
		}
	}
}

func viewNode(node *corev1.Node, pods []podView) nodeView {
	v := nodeView{name: node.Name, location: node.Labels[location], cordoned: node.Spec.Unschedulable, pods: pods}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			v.ready = c.Status == corev1.ConditionTrue
		}
	}
	return v
}

func viewPod(pod *corev1.Pod, groupOf map[string]string) podView {
	v := podView{
		name: pod.Name, node: pod.Spec.NodeName, group: groupOf[pod.Spec.NodeName],
		ready: serves(pod),
	}
	var images, args []string
	for _, c := range pod.Spec.Containers {
		images, args = append(images, c.Image), append(args, c.Args...)
	}
	v.images, v.args = strings.Join(images, " "), strings.Join(args, " ")
	for _, c := range pod.Status.ContainerStatuses {
		v.restarts += int(c.RestartCount)
	}
	switch {
	case pod.DeletionTimestamp != nil:
		v.condition = "Terminating"
	case v.node == "":
		v.condition = "waits for a node"
	case v.ready:
		v.condition = "Ready"
	case isReady(pod):
		v.condition = "Restarting"
	default:
		v.condition = "not Ready"
	}
	return v
}

// serves reports whether a pod counts as available. A pod whose container does not run
// its image yet will be restarted, and does not count, even if its kubelet still reports
// it as Ready.
func serves(pod *corev1.Pod) bool {
	if pod.DeletionTimestamp != nil || !isReady(pod) {
		return false
	}
	runs := map[string]string{}
	for _, c := range pod.Status.ContainerStatuses {
		runs[c.Name] = c.Image
	}
	for _, c := range pod.Spec.Containers {
		if runs[c.Name] != c.Image {
			return false
		}
	}
	return true
}

func isReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// viewPolicy returns a policy's condition, unless the condition is about an older
// generation of the spec.
func viewPolicy(kind string, object metav1.ObjectMeta, conditions []metav1.Condition) policyView {
	v := policyView{kind: kind, name: object.Name, status: "Unknown"}
	if c := apimeta.FindStatusCondition(conditions, gm.ConditionReady); c != nil && c.ObservedGeneration == object.Generation {
		v.status, v.reason, v.message = string(c.Status), c.Reason, c.Message
	}
	return v
}

// allPods are the pods on nodes and those that wait for one.
func (p *picture) allPods() []podView {
	all := slices.Clone(p.waiting)
	for _, group := range p.groups {
		for _, node := range group.nodes {
			all = append(all, node.pods...)
		}
	}
	return all
}

func (p *picture) pods() int { return len(p.allPods()) }

func (p *picture) ready() int { return countReady(p.allPods()) }

func countReady(pods []podView) int {
	n := 0
	for _, pod := range pods {
		if pod.ready {
			n++
		}
	}
	return n
}

func (g *groupView) pods() []podView {
	var pods []podView
	for _, node := range g.nodes {
		pods = append(pods, node.pods...)
	}
	return pods
}

// images of the group's pods, each once, sorted.
func (g *groupView) images() []string {
	return g.each(func(pod podView) string { return pod.images })
}

// hasArgs reports whether any pod has arguments.
func (p *picture) hasArgs() bool {
	return slices.ContainsFunc(p.allPods(), func(pod podView) bool { return pod.args != "" })
}

// args of the group's pods, each once, sorted.
func (g *groupView) args() []string {
	return g.each(func(pod podView) string { return pod.args })
}

func (g *groupView) each(what func(podView) string) []string {
	var all []string
	for _, pod := range g.pods() {
		all = append(all, what(pod))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// summary returns one line with the number of pods by the location of their nodes.
func (p *picture) summary() string {
	count := map[string]int{}
	var names []string
	for _, group := range p.groups {
		for _, node := range group.nodes {
			if !slices.Contains(names, node.location) {
				names = append(names, node.location)
			}
			count[node.location] += len(node.pods)
		}
	}
	slices.SortFunc(names, func(a, b string) int { return -strings.Compare(a, b) })
	var parts []string
	for _, name := range names {
		parts = append(parts, fmt.Sprintf("%d in %s", count[name], name))
	}
	if len(p.waiting) > 0 {
		parts = append(parts, fmt.Sprintf("%d without a node", len(p.waiting)))
	}
	return fmt.Sprintf("%d pods: %s; %d Ready", p.pods(), strings.Join(parts, ", "), p.ready())
}

// changes describes the differences between two pictures.
func changes(before, after *picture) []string {
	var lines []string
	old := map[string]podView{}
	for _, pod := range before.allPods() {
		old[pod.name] = pod
	}
	for _, pod := range after.allPods() {
		was, known := old[pod.name]
		delete(old, pod.name)
		if text := changeOfPod(was, pod, known); text != "" {
			lines = append(lines, "pod "+pod.name+": "+text)
		}
	}
	for name := range old {
		lines = append(lines, "pod "+name+": gone")
	}
	policies := map[string]policyView{}
	for _, policy := range before.policies {
		policies[policy.kind+policy.name] = policy
	}
	for _, policy := range after.policies {
		if policies[policy.kind+policy.name] != policy && policy.reason != "" {
			lines = append(lines, policy.text())
		}
	}
	lines = append(lines, changesOfGroups(before, after)...)
	slices.Sort(lines)
	return lines
}

func changeOfPod(was, pod podView, known bool) string {
	var parts []string
	switch {
	case !known:
		parts = append(parts, "created", strings.TrimSpace(pod.images+" "+pod.args))
	case was.images != pod.images:
		parts = append(parts, fmt.Sprintf("image %s → %s", was.images, pod.images))
	}
	if was.node != pod.node {
		on := "on " + pod.node
		if pod.group != "" {
			on += " in " + pod.group
		}
		parts = append(parts, on)
	}
	if was.condition != pod.condition {
		parts = append(parts, pod.condition)
	}
	if was.restarts != pod.restarts {
		parts = append(parts, fmt.Sprintf("restarted, %d in all", pod.restarts))
	}
	return strings.Join(parts, ", ")
}

func changesOfGroups(before, after *picture) []string {
	var lines []string
	old := map[string]int{}
	for _, group := range before.groups {
		old[group.name] = len(group.nodes)
	}
	for _, group := range after.groups {
		if group.name != "" && old[group.name] != len(group.nodes) {
			var names []string
			for _, node := range group.nodes {
				names = append(names, node.name)
			}
			lines = append(lines, fmt.Sprintf("NodeGroup %s: %s", group.name, strings.Join(names, ", ")))
		}
	}
	return lines
}

func (v policyView) text() string {
	text := fmt.Sprintf("%s %s: Ready=%s", v.kind, v.name, v.status)
	if v.reason != "" {
		text += " " + v.reason
	}
	if v.message != "" {
		text += ": " + v.message
	}
	return text
}
