package placement

import (
	"fmt"
	"regexp"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

// groupName matches the names that the API accepts for a group, in lower or upper case.
var groupName = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?$`)

// New makes a Spread from the spec of a PropagationPolicy. The strategy may be unset if
// only one of the two lists is set. The error names the first field that cannot be used.
// New repeats the checks of the CRD, because a stored object may be older than a check.
// present and uid are as for StaticWeight.
func New(spec gm.PropagationSpec, present func(group string) bool, uid types.UID) (Spread, error) {
	strategy, err := strategyOf(&spec)
	if err != nil {
		return Spread{}, err
	}
	if strategy == gm.NumRangePropagationStrategy {
		for i := range spec.NumRange {
			if err := checkRange(&spec.NumRange[i], fmt.Sprintf("spec.numRange[%d]", i)); err != nil {
				return Spread{}, err
			}
		}
		return NumRange(spec.NumRange, present, uid), nil
	}
	for i := range spec.StaticWeight {
		if err := checkWeight(&spec.StaticWeight[i], fmt.Sprintf("spec.staticWeightList[%d]", i)); err != nil {
			return Spread{}, err
		}
	}
	return StaticWeight(spec.StaticWeight, present, uid), nil
}

func strategyOf(spec *gm.PropagationSpec) (gm.PropagationStrategy, error) {
	weights, ranges := len(spec.StaticWeight) > 0, len(spec.NumRange) > 0
	switch spec.PropagationStrategy {
	case gm.StaticWeightPropagationStrategy:
		if !weights {
			return "", fmt.Errorf("spec.propagationStrategy: is StaticWeight and spec.staticWeightList is empty")
		}
		return gm.StaticWeightPropagationStrategy, nil
	case gm.NumRangePropagationStrategy:
		if !ranges {
			return "", fmt.Errorf("spec.propagationStrategy: is NumRange and spec.numRange is empty")
		}
		return gm.NumRangePropagationStrategy, nil
	case "":
		switch {
		case weights && ranges:
			return "", fmt.Errorf("spec.propagationStrategy: is unset and both spec.staticWeightList and spec.numRange are set")
		case weights:
			return gm.StaticWeightPropagationStrategy, nil
		case ranges:
			return gm.NumRangePropagationStrategy, nil
		}
		return "", fmt.Errorf("spec: neither staticWeightList nor numRange is set")
	}
	return "", fmt.Errorf("spec.propagationStrategy: %.64q is neither StaticWeight nor NumRange", spec.PropagationStrategy)
}

func checkWeight(rule *gm.StaticNodeGroupWeight, path string) error {
	if err := checkNames(rule.NodeGroupNames, path); err != nil {
		return err
	}
	if rule.Weight < 0 || rule.Weight > maxCount {
		return fmt.Errorf("%s.weight: %d is not in 0 to %d", path, rule.Weight, maxCount)
	}
	return nil
}

func checkRange(rule *gm.NodeGroupNumRange, path string) error {
	if err := checkNames(rule.NodeGroupNames, path); err != nil {
		return err
	}
	if err := checkBound(rule.Min, path+".min"); err != nil {
		return err
	}
	if err := checkBound(rule.Max, path+".max"); err != nil {
		return err
	}
	low, hasMin := parseBound(rule.Min)
	high, hasMax := parseBound(rule.Max)
	if hasMin && hasMax && low.percent == high.percent && low.value > high.value {
		return fmt.Errorf("%s.min: %s is greater than max, %s", path, rule.Min.String(), rule.Max.String())
	}
	return nil
}

func checkBound(value *intstr.IntOrString, path string) error {
	if _, ok := parseBound(value); value != nil && !ok {
		return fmt.Errorf("%s: %.64q is neither a number from 0 to %d nor a percentage from 0%% to 100%%", path, value.String(), maxCount)
	}
	return nil
}

func checkNames(names []string, path string) error {
	if len(names) == 0 {
		return fmt.Errorf("%s.nodeGroupNames: names no group", path)
	}
	for i, name := range names {
		if len(name) > 63 || !groupName.MatchString(name) {
			return fmt.Errorf("%s.nodeGroupNames[%d]: %.64q cannot be the name of a NodeGroup", path, i, name)
		}
	}
	return nil
}
