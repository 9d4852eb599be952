package fit

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Apart is a rule by which pods of one workload keep apart from each other.
type Apart struct {
	// Key is the label of nodes that makes domains: nodes with the same value are in one.
	Key string
	// Skew is how many more pods of the workload a domain may have than the one that
	// has fewest (topology spread, DoNotSchedule). 0: a domain may have one pod
	// (required pod anti-affinity).
	Skew int32
	// MinDomains: as long as there are fewer domains, the fewest pods of one count as 0.
	MinDomains int32
	// Everywhere: nodes that the pod may not go to count as well (nodeAffinityPolicy: Ignore).
	Everywhere bool
}

// apartOf reads the rules of a pod that are about pods like it. What it demands of
// other workloads' pods is not among them.
func apartOf(pod *corev1.Pod) (rules []Apart) {
	add := func(selector *metav1.LabelSelector, rule Apart) {
		like, err := metav1.LabelSelectorAsSelector(selector)
		if err == nil && like.Matches(labels.Set(pod.Labels)) {
			rules = append(rules, rule)
		}
	}
	if a := pod.Spec.Affinity; a != nil && a.PodAntiAffinity != nil {
		for _, term := range a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
			if len(term.Namespaces) == 0 || term.NamespaceSelector != nil || slices.Contains(term.Namespaces, pod.Namespace) {
				add(term.LabelSelector, Apart{Key: term.TopologyKey})
			}
		}
	}
	for _, constraint := range pod.Spec.TopologySpreadConstraints {
		if constraint.WhenUnsatisfiable == corev1.DoNotSchedule {
			rule := Apart{Key: constraint.TopologyKey, Skew: constraint.MaxSkew}
			if constraint.MinDomains != nil {
				rule.MinDomains = *constraint.MinDomains
			}
			if policy := constraint.NodeAffinityPolicy; policy != nil {
				rule.Everywhere = *policy == corev1.NodeInclusionPolicyIgnore
			}
			add(constraint.LabelSelector, rule)
		}
	}
	return rules
}

// Domains counts the pods of a workload by the domains in which they keep apart.
type Domains struct {
	rules []Apart
	pods  []map[string]int // of each rule, by the value of its label
	// fewest is, of each rule, the number of pods in the domain that has fewest; nil until
	// it is asked for.
	fewest []int
}

// Domains makes a count for the workload of the pod that is checked; nil if its pods do
// not keep apart.
func (c *Check) Domains() *Domains {
	if len(c.demand.Apart) == 0 {
		return nil
	}
	d := &Domains{rules: c.demand.Apart}
	for range d.rules {
		d.pods = append(d.pods, map[string]int{})
	}
	return d
}

// Add counts the pods that the workload has on a node, but for the one that leaves.
// Topology spread looks only at nodes that the pod's node selector and affinity let it
// go to: eligible.
func (d *Domains) Add(n *Node, eligible bool, pods int) {
	d.fewest = nil
	for i, rule := range d.rules {
		if value, labelled := n.Labels[rule.Key]; labelled && (eligible || rule.Skew == 0 || rule.Everywhere) {
			d.pods[i][value] += pods
		}
	}
}

// Take tells whether the rules let the node take one more pod.
func (d *Domains) Take(n *Node) bool {
	if d.fewest == nil { // once for all nodes
		for i := range d.rules {
			d.fewest = append(d.fewest, d.fewestOf(i))
		}
	}
	for i, rule := range d.rules {
		value, labelled := n.Labels[rule.Key]
		there := d.pods[i][value]
		switch {
		case rule.Skew == 0:
			if labelled && there > 0 {
				return false
			}
		case !labelled || there+1-d.fewest[i] > int(rule.Skew):
			return false
		}
	}
	return true
}

// fewestOf is the number of pods in the domain that has fewest.
func (d *Domains) fewestOf(rule int) int {
	if len(d.pods[rule]) < int(d.rules[rule].MinDomains) {
		return 0
	}
	fewest := -1
	for _, pods := range d.pods[rule] {
		if fewest < 0 || pods < fewest {
			fewest = pods
		}
	}
	return max(0, fewest)
}
