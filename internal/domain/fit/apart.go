package fit

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Apart is a rule that keeps the pods of one workload apart: a term of required pod
// anti-affinity, or a topology spread constraint with DoNotSchedule.
type Apart struct {
	// Key is the topology key: nodes with the same value of this label are one domain.
	Key string
	// Skew is the maxSkew of topology spread: the number of pods that a domain may have
	// beyond the domain with the fewest. 0 means pod anti-affinity: a domain may have one
	// pod.
	Skew int32
	// MinDomains is the minDomains of topology spread: while there are fewer domains, the
	// domain with the fewest pods counts as having 0.
	MinDomains int32
	// Everywhere is true for nodeAffinityPolicy: Ignore. Then pods count that are on nodes
	// that the pod cannot run on.
	Everywhere bool
}

// apartOf returns the rules of a pod whose selector matches the pod itself. It leaves out
// rules about pods of other workloads.
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

// Domains counts the pods of a workload by domain, for each rule. It is not safe for
// concurrent use.
type Domains struct {
	rules []Apart
	pods  []map[string]int // by rule, and then by value of the rule's label
	// fewest is, by rule, the number of pods in the domain with the fewest. nil means that
	// it has to be computed.
	fewest []int
}

// Domains returns an empty count for the workload of the pod, nil if the pod has no rules.
func (c *Check) Domains() *Domains { return domainsOf(c.demand.Apart) }

// Separate is Domains for the pod's anti-affinity only. So the nodes on which the workload
// has no pod need not be added.
func (c *Check) Separate() *Domains {
	return domainsOf(slices.DeleteFunc(slices.Clone(c.demand.Apart), func(rule Apart) bool { return rule.Skew > 0 }))
}

// Demand is the demand of the pod that is checked. It must not be changed.
func (c *Check) Demand() *Demand { return c.demand }

// Exclusive reports whether a node can have one pod of the workload at most.
func (c *Check) Exclusive() bool { return len(c.demand.Ports) > 0 || c.Separate() != nil }

func domainsOf(rules []Apart) *Domains {
	if len(rules) == 0 {
		return nil
	}
	d := &Domains{rules: rules}
	for range d.rules {
		d.pods = append(d.pods, map[string]int{})
	}
	return d
}

// Add adds the pods that the workload has on a node, without the one that is to leave.
// eligible is true if the pod's node selector and affinity match the node; for topology
// spread, only those nodes count.
func (d *Domains) Add(n *Node, eligible bool, pods int) {
	d.fewest = nil
	for i, rule := range d.rules {
		if value, labelled := n.Labels[rule.Key]; labelled && (eligible || rule.Skew == 0 || rule.Everywhere) {
			d.pods[i][value] += pods
		}
	}
}

// Take reports whether the rules allow one more pod on the node.
func (d *Domains) Take(n *Node) bool {
	if d.fewest == nil { // computed once for all nodes
		for i := range d.rules {
			d.fewest = append(d.fewest, d.fewestOf(i))
		}
	}
	for i, rule := range d.rules {
		value, labelled := n.Labels[rule.Key]
		present := d.pods[i][value]
		switch {
		case rule.Skew == 0:
			if labelled && present > 0 {
				return false
			}
		case !labelled || present+1-d.fewest[i] > int(rule.Skew):
			return false
		}
	}
	return true
}

// fewestOf returns the number of pods in the domain with the fewest.
func (d *Domains) fewestOf(rule int) int {
	if d.rules[rule].Skew == 0 {
		return 0 // not used
	}
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
