package capacity

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/atoll-k8s/atoll/internal/domain/affinity"
)

// Definition defines the nodes of a class, and what pods need to run there.
type Definition struct {
	// Demands are requirements on labels. A node is of the class if it meets all of them.
	Demands []corev1.NodeSelectorRequirement `json:"demands"`
	// Tolerations are added to the pods of the class.
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
}

// Classes are the definitions of both classes. Use the result of Ready; in the zero value no
// node or pod has a class.
type Classes struct {
	OnDemand Definition `json:"onDemand"`
	Spot     Definition `json:"spot"`

	// The compiled Demands; nil before Ready.
	onDemand, spot labels.Selector
}

func in(key string, values ...string) []corev1.NodeSelectorRequirement {
	return []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values}}
}

// DefaultPreset is the name of the preset with the label of docs/sources.md, C8.
const DefaultPreset = "cloudpilot"

const (
	gkeSpot = "cloud.google.com/gke-spot"
	aksSpot = "kubernetes.azure.com/scalesetpriority"
)

// Presets returns definitions by name. Each uses the labels and taints that a cloud provider
// or a provisioner of nodes documents.
func Presets() map[string]Classes {
	return map[string]Classes{
		DefaultPreset: {
			OnDemand: Definition{Demands: in("node.kubernetes.io/capacity", "on-demand")},
			Spot:     Definition{Demands: in("node.kubernetes.io/capacity", "spot")},
		},
		// Like on-demand capacity, reserved capacity is not taken away.
		"karpenter": {
			OnDemand: Definition{Demands: in("karpenter.sh/capacity-type", "on-demand", "reserved")},
			Spot:     Definition{Demands: in("karpenter.sh/capacity-type", "spot")},
		},
		"eks": {
			OnDemand: Definition{Demands: in("eks.amazonaws.com/capacityType", "ON_DEMAND", "CAPACITY_BLOCK")},
			Spot:     Definition{Demands: in("eks.amazonaws.com/capacityType", "SPOT")},
		},
		// GKE and AKS have no label for on-demand nodes.
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

// Ready checks and compiles the definitions. Errors begin with the path of the field.
func (c Classes) Ready() (Classes, error) {
	var err error
	if c.onDemand, err = c.OnDemand.selector(); err != nil {
		return c, fmt.Errorf("onDemand.%w", err)
	}
	if c.spot, err = c.Spot.selector(); err != nil {
		return c, fmt.Errorf("spot.%w", err)
	}
	if satisfiable(slices.Concat(c.OnDemand.Demands, c.Spot.Demands)) {
		return c, errors.New("onDemand.demands and spot.demands must exclude each other: a node could be of both classes")
	}
	return c, nil
}

var operators = map[corev1.NodeSelectorOperator]selection.Operator{
	corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn,
	corev1.NodeSelectorOpExists: selection.Exists, corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist,
}

func (d Definition) selector() (labels.Selector, error) {
	if len(d.Demands) == 0 {
		return nil, errors.New("demands: must not be empty")
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

// OfNode returns the class of a node with these labels, None if it has none.
func (c *Classes) OfNode(nodeLabels map[string]string) Class {
	switch set := labels.Set(nodeLabels); {
	case c.spot == nil:
		return None // not Ready: classes are not in use
	case c.spot.Matches(set):
		return Spot
	case c.onDemand.Matches(set):
		return OnDemand
	default:
		return None
	}
}

// LeavesBoth reports whether a pod's own node selector and required node affinity allow nodes
// of both classes. A pod that names a node in each term is for those nodes, so the result
// is false.
func (c *Classes) LeavesBoth(nodeSelector map[string]string, required *corev1.NodeSelector) bool {
	if c.spot == nil {
		return false
	}
	if required != nil {
		byLabels := slices.DeleteFunc(slices.Clone(required.NodeSelectorTerms), func(term corev1.NodeSelectorTerm) bool { return len(term.MatchFields) > 0 })
		if len(byLabels) == 0 && len(required.NodeSelectorTerms) > 0 {
			return false
		}
		required = &corev1.NodeSelector{NodeSelectorTerms: byLabels}
	}
	return c.allows(OnDemand, nodeSelector, required) && c.allows(Spot, nodeSelector, required)
}

// OfPod returns the class that a pod's own node selector and required node affinity allow;
// None if they allow both classes or neither.
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

// allows reports whether some node of the class could match a pod's node selector and
// required node affinity.
func (c *Classes) allows(class Class, nodeSelector map[string]string, required *corev1.NodeSelector) bool {
	demands := slices.Clone(c.of(class).Demands)
	for key, value := range nodeSelector {
		demands = append(demands, corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value}})
	}
	if required == nil || len(required.NodeSelectorTerms) == 0 {
		return satisfiable(demands)
	}
	return slices.ContainsFunc(required.NodeSelectorTerms, func(term corev1.NodeSelectorTerm) bool {
		return !affinity.IsEmpty(term) && satisfiable(slices.Concat(demands, term.MatchExpressions))
	})
}

// satisfiable reports whether the labels of some node could meet all requirements. For each
// key it tries the absent label, every value that a requirement names, and values around
// the bounds of Gt and Lt: if none of them meets the requirements on the key, no value does.
func satisfiable(all []corev1.NodeSelectorRequirement) bool {
	for i := range all {
		key := all[i].Key
		if slices.ContainsFunc(all[:i], func(r corev1.NodeSelectorRequirement) bool { return r.Key == key }) {
			continue // the key was checked before
		}
		var about []corev1.NodeSelectorRequirement // the requirements on this key
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
			candidates = append(candidates, withinBound(r, excluded)...)
		}
		meets := func(value string, absent bool) bool {
			return !slices.ContainsFunc(about, func(r corev1.NodeSelectorRequirement) bool { return !met(r, value, absent) })
		}
		other := "other" // a value that no requirement names
		for slices.Contains(candidates, other) {
			other += "-"
		}
		if !meets("", true) && !meets(other, false) && !slices.ContainsFunc(candidates, func(v string) bool { return meets(v, false) }) {
			return false
		}
	}
	return true
}

// withinBound returns excluded+1 values that a requirement with Gt or Lt allows, so that the
// other requirements, which exclude at most excluded values, cannot exclude all of them.
func withinBound(r corev1.NodeSelectorRequirement, excluded int) (values []string) {
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

// met reports whether a label meets a requirement, as in kube-scheduler. A requirement with an
// unknown operator is never met.
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

// Restrict adds required node affinity and tolerations to a pod, so that it runs only on
// nodes of a class, in addition to what it requires already: each term of its node affinity
// gets the class's requirements at its end. Restrict is idempotent.
func (c *Classes) Restrict(spec *corev1.PodSpec, class Class) {
	affinity.Narrow(spec, func(term corev1.NodeSelectorTerm) []corev1.NodeSelectorTerm {
		for _, demand := range c.of(class).Demands {
			if !affinity.Contains(term.MatchExpressions, demand) {
				term.MatchExpressions = append(slices.Clip(term.MatchExpressions), demand)
			}
		}
		return []corev1.NodeSelectorTerm{term}
	})
	spec.Tolerations = c.Tolerations(spec.Tolerations, class)
}

// Restricted reports whether Restrict was applied to a pod with this required node
// affinity, or the pod itself requires the same.
func (c *Classes) Restricted(required *corev1.NodeSelector, class Class) bool {
	if required == nil || len(required.NodeSelectorTerms) == 0 {
		return false
	}
	return !slices.ContainsFunc(required.NodeSelectorTerms, func(term corev1.NodeSelectorTerm) bool {
		return !affinity.IsEmpty(term) && slices.ContainsFunc(c.of(class).Demands, func(demand corev1.NodeSelectorRequirement) bool {
			return !affinity.Contains(term.MatchExpressions, demand)
		})
	})
}

// Tolerations returns the tolerations that a pod with the given ones has after Restrict.
func (c *Classes) Tolerations(own []corev1.Toleration, class Class) []corev1.Toleration {
	for _, toleration := range c.of(class).Tolerations {
		if !slices.Contains(own, toleration) {
			own = append(slices.Clip(own), toleration)
		}
	}
	return own
}

// Unrestrict is the inverse of Restrict: it returns the required node affinity and the
// tolerations that a pod had before. The arguments stay as they are. If the pod itself
// had the same requirements or tolerations, Unrestrict removes those too.
func (c *Classes) Unrestrict(required *corev1.NodeSelector, tolerations []corev1.Toleration, class Class) (*corev1.NodeSelector, []corev1.Toleration) {
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
				return affinity.Contains(definition.Demands, r)
			})
			switch {
			case len(own)+len(term.MatchFields) > 0:
				term.MatchExpressions = own
			case len(required.NodeSelectorTerms) == 1:
				return nil, tolerations // Restrict gives this term to a pod without terms
			}
			// Otherwise one of several terms requires only the class. It is the user's own:
			// Restrict gives a pod without terms exactly one. It stays, because an empty
			// term would match no node.
		}
		out.NodeSelectorTerms = append(out.NodeSelectorTerms, term)
	}
	return out, tolerations
}
