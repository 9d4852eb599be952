package capacity

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// Definition says which nodes are of a class, and what pods for them carry.
type Definition struct {
	// Demands are met, all of them, by the nodes of the class and by no others.
	Demands []corev1.NodeSelectorRequirement `json:"demands"`
	// Tolerations are given to the pods of the class.
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
}

// Classes are the definitions of both classes.
type Classes struct {
	OnDemand Definition `json:"onDemand"`
	Spot     Definition `json:"spot"`

	// How nodes are told apart, made ready by Ready.
	onDemand, spot labels.Selector
}

func in(key string, values ...string) []corev1.NodeSelectorRequirement {
	return []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values}}
}

// DefaultPreset knows the label of docs/sources.md, C8.
const DefaultPreset = "cloudpilot"

const (
	gkeSpot = "cloud.google.com/gke-spot"
	aksSpot = "kubernetes.azure.com/scalesetpriority"
)

// Presets are the definitions by who provisions the nodes, as each documents its
// labels and taints.
func Presets() map[string]Classes {
	return map[string]Classes{
		DefaultPreset: {
			OnDemand: Definition{Demands: in("node.kubernetes.io/capacity", "on-demand")},
			Spot:     Definition{Demands: in("node.kubernetes.io/capacity", "spot")},
		},
		// Reserved capacity stays as on-demand does.
		"karpenter": {
			OnDemand: Definition{Demands: in("karpenter.sh/capacity-type", "on-demand", "reserved")},
			Spot:     Definition{Demands: in("karpenter.sh/capacity-type", "spot")},
		},
		"eks": {
			OnDemand: Definition{Demands: in("eks.amazonaws.com/capacityType", "ON_DEMAND", "CAPACITY_BLOCK")},
			Spot:     Definition{Demands: in("eks.amazonaws.com/capacityType", "SPOT")},
		},
		// On-demand nodes carry no label of their own.
		"gke": {
			OnDemand: Definition{Demands: []corev1.NodeSelectorRequirement{{Key: gkeSpot, Operator: corev1.NodeSelectorOpDoesNotExist}}},
			Spot:     Definition{Demands: in(gkeSpot, "true")},
		},
		"aks": {
			OnDemand: Definition{Demands: []corev1.NodeSelectorRequirement{{Key: aksSpot, Operator: corev1.NodeSelectorOpDoesNotExist}}},
			Spot: Definition{Demands: in(aksSpot, "spot"), Tolerations: []corev1.Toleration{
				{Key: aksSpot, Operator: corev1.TolerationOpEqual, Value: "spot", Effect: corev1.TaintEffectNoSchedule},
			}},
		},
	}
}

// Ready checks the definitions and makes them ready for use. Errors name the
// field.
func (c Classes) Ready() (Classes, error) {
	var err error
	if c.onDemand, err = c.OnDemand.selector(); err != nil {
		return c, fmt.Errorf("onDemand.%w", err)
	}
	if c.spot, err = c.Spot.selector(); err != nil {
		return c, fmt.Errorf("spot.%w", err)
	}
	if Satisfiable(slices.Concat(c.OnDemand.Demands, c.Spot.Demands)) {
		return c, errors.New("a node could be of both classes: onDemand.demands and spot.demands must exclude each other")
	}
	return c, nil
}

var operators = map[corev1.NodeSelectorOperator]selection.Operator{
	corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn,
	corev1.NodeSelectorOpExists: selection.Exists, corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist,
}

func (d Definition) selector() (labels.Selector, error) {
	if len(d.Demands) == 0 {
		return nil, errors.New("demands: there must be one at least")
	}
	selector := labels.NewSelector()
	for i, demand := range d.Demands {
		operator, known := operators[demand.Operator]
		if !known {
			return nil, fmt.Errorf("demands[%d].operator: %.64q is none of In, NotIn, Exists and DoesNotExist", i, demand.Operator)
		}
		r, err := labels.NewRequirement(demand.Key, operator, demand.Values)
		if err != nil {
			return nil, fmt.Errorf("demands[%d]: %w", i, err)
		}
		selector = selector.Add(*r)
	}
	return selector, nil
}

func (c *Classes) of(class Class) *Definition {
	if class == OnDemand {
		return &c.OnDemand
	}
	return &c.Spot
}

// OfNode is the class of a node with these labels.
func (c *Classes) OfNode(nodeLabels map[string]string) Class {
	switch set := labels.Set(nodeLabels); {
	case c.spot == nil:
		return None // not in use
	case c.spot.Matches(set):
		return Spot
	case c.onDemand.Matches(set):
		return OnDemand
	default:
		return None
	}
}

// LeavesBoth tells whether a pod's own demands leave it nodes of both classes. Those that
// name a node in each term, and those that no node of either class meets, do not.
func (c *Classes) LeavesBoth(nodeSelector map[string]string, required *corev1.NodeSelector) bool {
	if c.spot == nil {
		return false
	}
	if required != nil {
		unnamed := slices.DeleteFunc(slices.Clone(required.NodeSelectorTerms), func(term corev1.NodeSelectorTerm) bool { return len(term.MatchFields) > 0 })
		if len(unnamed) == 0 && len(required.NodeSelectorTerms) > 0 {
			return false
		}
		required = &corev1.NodeSelector{NodeSelectorTerms: unnamed}
	}
	return c.allows(OnDemand, nodeSelector, required) && c.allows(Spot, nodeSelector, required)
}

// OfPod is the one class that a pod's own demands leave it; None if they leave
// it both, or no node at all.
func (c *Classes) OfPod(nodeSelector map[string]string, required *corev1.NodeSelector) Class {
	if c.spot == nil || len(nodeSelector) == 0 && required == nil {
		return None
	}
	onDemand, spot := c.allows(OnDemand, nodeSelector, required), c.allows(Spot, nodeSelector, required)
	switch {
	case onDemand == spot:
		return None
	case onDemand:
		return OnDemand
	default:
		return Spot
	}
}

// allows tells whether some node of the class could meet the demands.
func (c *Classes) allows(class Class, nodeSelector map[string]string, required *corev1.NodeSelector) bool {
	demands := slices.Clone(c.of(class).Demands)
	for key, value := range nodeSelector {
		demands = append(demands, corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value}})
	}
	if required == nil || len(required.NodeSelectorTerms) == 0 {
		return Satisfiable(demands)
	}
	return slices.ContainsFunc(required.NodeSelectorTerms, func(term corev1.NodeSelectorTerm) bool {
		return len(term.MatchExpressions)+len(term.MatchFields) > 0 && Satisfiable(slices.Concat(demands, term.MatchExpressions))
	})
}

// Satisfiable tells whether the labels of some node could meet all requirements.
func Satisfiable(all []corev1.NodeSelectorRequirement) bool {
	for i := range all {
		key := all[i].Key
		if slices.ContainsFunc(all[:i], func(r corev1.NodeSelectorRequirement) bool { return r.Key == key }) {
			continue // looked at
		}
		var about []corev1.NodeSelectorRequirement
		candidates := []string{"", "0"}
		excluded := 0
		for _, r := range all[i:] {
			if r.Key == key {
				about = append(about, r)
				candidates = append(candidates, r.Values...)
				excluded += len(r.Values)
			}
		}
		for _, r := range about {
			candidates = append(candidates, beyond(r, excluded)...)
		}
		meets := func(value string, absent bool) bool {
			return !slices.ContainsFunc(about, func(r corev1.NodeSelectorRequirement) bool { return !met(r, value, absent) })
		}
		other := "other" // a value that nobody names
		for slices.Contains(candidates, other) {
			other += "-"
		}
		if !meets("", true) && !meets(other, false) && !slices.ContainsFunc(candidates, func(v string) bool { return meets(v, false) }) {
			return false
		}
	}
	return true
}

// beyond are more values that a bound lets pass than others can exclude.
func beyond(r corev1.NodeSelectorRequirement, excluded int) (values []string) {
	step := map[corev1.NodeSelectorOperator]int64{corev1.NodeSelectorOpGt: 1, corev1.NodeSelectorOpLt: -1}[r.Operator]
	if step == 0 || len(r.Values) != 1 {
		return nil
	}
	n, err := strconv.ParseInt(r.Values[0], 10, 64)
	if err != nil {
		return nil
	}
	for i := range int64(excluded) + 1 {
		values = append(values, strconv.FormatInt(n+step*(i+1), 10))
	}
	return values
}

// met tells whether a label meets a requirement. One that kube-scheduler does
// not know is met by nothing, there as here.
func met(r corev1.NodeSelectorRequirement, value string, absent bool) bool {
	switch r.Operator {
	case corev1.NodeSelectorOpIn:
		return !absent && slices.Contains(r.Values, value)
	case corev1.NodeSelectorOpNotIn:
		return absent || !slices.Contains(r.Values, value)
	case corev1.NodeSelectorOpExists:
		return !absent
	case corev1.NodeSelectorOpDoesNotExist:
		return absent
	case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
		if absent || len(r.Values) != 1 {
			return false
		}
		is, err := strconv.ParseInt(value, 10, 64)
		bound, boundErr := strconv.ParseInt(r.Values[0], 10, 64)
		if err != nil || boundErr != nil {
			return false
		}
		if r.Operator == corev1.NodeSelectorOpGt {
			return is > bound
		}
		return is < bound
	default:
		return false
	}
}

// Restrict keeps a pod to the nodes of a class, on top of what it demands
// already: node selector terms are ORed, so each gets the class's demands at its
// end. A term without expressions and fields matches no node and stays as it is;
// a pod without terms gets one. Doing it again changes nothing.
func (c *Classes) Restrict(spec *corev1.PodSpec, class Class) {
	definition := c.of(class)
	if spec.Affinity == nil {
		spec.Affinity = &corev1.Affinity{}
	}
	if spec.Affinity.NodeAffinity == nil {
		spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	required := &spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if *required == nil {
		*required = &corev1.NodeSelector{}
	}
	if len((*required).NodeSelectorTerms) == 0 {
		(*required).NodeSelectorTerms = []corev1.NodeSelectorTerm{{}}
		(*required).NodeSelectorTerms[0].MatchExpressions = slices.Clone(definition.Demands)
	} else {
		for i := range (*required).NodeSelectorTerms {
			term := &(*required).NodeSelectorTerms[i]
			if len(term.MatchExpressions)+len(term.MatchFields) == 0 {
				continue
			}
			for _, demand := range definition.Demands {
				if !slices.ContainsFunc(term.MatchExpressions, same(demand)) {
					term.MatchExpressions = append(slices.Clip(term.MatchExpressions), demand)
				}
			}
		}
	}
	spec.Tolerations = c.Tolerations(spec.Tolerations, class)
}

// Restricted tells whether Restrict has kept a pod with this node affinity to a
// class, or the pod demands the same by itself.
func (c *Classes) Restricted(required *corev1.NodeSelector, class Class) bool {
	if required == nil || len(required.NodeSelectorTerms) == 0 {
		return false
	}
	return !slices.ContainsFunc(required.NodeSelectorTerms, func(term corev1.NodeSelectorTerm) bool {
		return len(term.MatchExpressions)+len(term.MatchFields) > 0 && slices.ContainsFunc(c.of(class).Demands, func(demand corev1.NodeSelectorRequirement) bool {
			return !slices.ContainsFunc(term.MatchExpressions, same(demand))
		})
	})
}

// Tolerations are those that a pod has once it is kept to a class.
func (c *Classes) Tolerations(own []corev1.Toleration, class Class) []corev1.Toleration {
	for _, toleration := range c.of(class).Tolerations {
		if !slices.Contains(own, toleration) {
			own = append(slices.Clip(own), toleration)
		}
	}
	return own
}

// Free returns what a pod demanded before Restrict, as far as that can be told:
// one that demanded the same by itself is not told apart. What it is given stays
// as it is.
func (c *Classes) Free(required *corev1.NodeSelector, tolerations []corev1.Toleration, class Class) (*corev1.NodeSelector, []corev1.Toleration) {
	definition := c.of(class)
	if len(definition.Tolerations) > 0 {
		tolerations = slices.DeleteFunc(slices.Clone(tolerations), func(t corev1.Toleration) bool { return slices.Contains(definition.Tolerations, t) })
	}
	if required == nil {
		return nil, tolerations
	}
	out := &corev1.NodeSelector{}
	for _, term := range required.NodeSelectorTerms {
		if len(term.MatchExpressions) > 0 {
			own := slices.DeleteFunc(slices.Clone(term.MatchExpressions), func(r corev1.NodeSelectorRequirement) bool {
				return slices.ContainsFunc(definition.Demands, same(r))
			})
			switch {
			case len(own)+len(term.MatchFields) > 0:
				term.MatchExpressions = own
			case len(required.NodeSelectorTerms) == 1:
				return nil, tolerations // the term that Restrict gives a pod without terms
			} // an empty term would match nothing: one of several that says no more is the user's own
		}
		out.NodeSelectorTerms = append(out.NodeSelectorTerms, term)
	}
	return out, tolerations
}

func same(demand corev1.NodeSelectorRequirement) func(corev1.NodeSelectorRequirement) bool {
	return func(r corev1.NodeSelectorRequirement) bool {
		return r.Key == demand.Key && r.Operator == demand.Operator && slices.Equal(r.Values, demand.Values)
	}
}
