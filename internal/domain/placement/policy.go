package placement

import (
	"fmt"
	"regexp"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

// groupName matches the names that the API accepts for a group, in lower or upper case.
var groupName = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?$`)

// New makes a Spread from the spec of a PropagationPolicy. The strategy may be unset if
// only one of the two lists is set. The error names the first field that Validate
// reports. New repeats the checks of the CRD, because a stored object may be older than a check.
// present and uid are as for StaticWeight.
func New(spec gm.PropagationSpec, present func(group string) bool, uid types.UID) (Spread, error) {
	strategy, faults := validate(&spec)
	if len(faults) > 0 {
		return Spread{}, fmt.Errorf("%s: %s", faults[0].Field, faults[0].Detail)
	}
	if strategy == gm.NumRangePropagationStrategy {
		return NumRange(spec.NumRange, present, uid), nil
	}
	return StaticWeight(spec.StaticWeight, present, uid), nil
}

// Strategy returns the strategy of a spec: the one that it names or, if it names none, the one whose
// list is set. It returns "" if there is none.
func Strategy(spec *gm.PropagationSpec) gm.PropagationStrategy {
	strategy, _ := strategyOf(spec, nil)
	return strategy
}

// Validate returns all faults of the spec: the strategy first, then the entries
// of the list that the strategy uses, in order. Where no strategy can be chosen,
// both lists are checked. New succeeds exactly if there are no faults.
func Validate(spec *gm.PropagationSpec) field.ErrorList {
	_, faults := validate(spec)
	return faults
}

// validate returns the strategy, "" where none can be chosen, and all faults.
func validate(spec *gm.PropagationSpec) (gm.PropagationStrategy, field.ErrorList) {
	path := field.NewPath("spec")
	var faults field.ErrorList
	strategy, fault := strategyOf(spec, path)
	if fault != nil {
		faults = append(faults, fault)
	}
	if strategy != gm.NumRangePropagationStrategy {
		for i := range spec.StaticWeight {
			faults = append(faults, checkWeight(&spec.StaticWeight[i], path.Child("staticWeightList").Index(i))...)
		}
	}
	if strategy != gm.StaticWeightPropagationStrategy {
		for i := range spec.NumRange {
			faults = append(faults, checkRange(&spec.NumRange[i], path.Child("numRange").Index(i))...)
		}
	}
	return strategy, faults
}

// invalid is a fault whose text holds the value itself, shortened where it may be long.
func invalid(path *field.Path, format string, args ...any) *field.Error {
	return field.Invalid(path, field.OmitValueType{}, fmt.Sprintf(format, args...))
}

func strategyOf(spec *gm.PropagationSpec, path *field.Path) (gm.PropagationStrategy, *field.Error) {
	weights, ranges := len(spec.StaticWeight) > 0, len(spec.NumRange) > 0
	at := path.Child("propagationStrategy")
	switch spec.PropagationStrategy {
	case gm.StaticWeightPropagationStrategy:
		if !weights {
			return "", invalid(at, "is StaticWeight and spec.staticWeightList is empty")
		}
		return gm.StaticWeightPropagationStrategy, nil
	case gm.NumRangePropagationStrategy:
		if !ranges {
			return "", invalid(at, "is NumRange and spec.numRange is empty")
		}
		return gm.NumRangePropagationStrategy, nil
	case "":
		switch {
		case weights && ranges:
			return "", invalid(at, "is unset and both spec.staticWeightList and spec.numRange are set")
		case weights:
			return gm.StaticWeightPropagationStrategy, nil
		case ranges:
			return gm.NumRangePropagationStrategy, nil
		}
		return "", field.Required(path, "neither staticWeightList nor numRange is set")
	}
	return "", invalid(at, "%.64q is neither StaticWeight nor NumRange", spec.PropagationStrategy)
}

func checkWeight(rule *gm.StaticNodeGroupWeight, path *field.Path) field.ErrorList {
	faults := checkNames(rule.NodeGroupNames, path.Child("nodeGroupNames"))
	if rule.Weight < 0 || rule.Weight > maxCount {
		faults = append(faults, invalid(path.Child("weight"), "%d is not in 0 to %d", rule.Weight, maxCount))
	}
	return faults
}

func checkRange(rule *gm.NodeGroupNumRange, path *field.Path) field.ErrorList {
	faults := checkNames(rule.NodeGroupNames, path.Child("nodeGroupNames"))
	faults = append(faults, checkBound(rule.Min, path.Child("min"))...)
	faults = append(faults, checkBound(rule.Max, path.Child("max"))...)
	low, hasMin := parseBound(rule.Min)
	high, hasMax := parseBound(rule.Max)
	if hasMin && hasMax && low.percent == high.percent && low.value > high.value {
		faults = append(faults, invalid(path.Child("min"), "%s is greater than max, %s", rule.Min.String(), rule.Max.String()))
	}
	return faults
}

func checkBound(value *intstr.IntOrString, path *field.Path) field.ErrorList {
	if _, ok := parseBound(value); value != nil && !ok {
		return field.ErrorList{invalid(path, "%.64q is neither a number from 0 to %d nor a percentage from 0%% to 100%%", value.String(), maxCount)}
	}
	return nil
}

func checkNames(names []string, path *field.Path) field.ErrorList {
	if len(names) == 0 {
		return field.ErrorList{field.Required(path, "names no group")}
	}
	var faults field.ErrorList
	for i, name := range names {
		if len(name) > 63 || !groupName.MatchString(name) {
			faults = append(faults, invalid(path.Index(i), "%.64q cannot be the name of a NodeGroup", name))
		}
	}
	return faults
}
