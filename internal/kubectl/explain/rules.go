package explain

import (
	"fmt"
	"slices"
	"strings"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

// othersOf tells what a rule changes beside images, in one line; "" if nothing.
func othersOf(rule *gm.RuleWithNodeGroup) string {
	o := (*gm.Overriders)(&rule.InlineOverriders)
	if rule.Overriders != nil {
		o = rule.Overriders
	}
	var parts []string
	for _, c := range o.CommandOverrider {
		parts = append(parts, fmt.Sprintf("command of container %s: %s %s", c.ContainerName, c.Operator, strings.Join(c.Value, " ")))
	}
	for _, c := range o.ArgsOverrider {
		parts = append(parts, fmt.Sprintf("args of container %s: %s %s", c.ContainerName, c.Operator, strings.Join(c.Value, " ")))
	}
	for _, p := range o.Plaintext {
		parts = append(parts, fmt.Sprintf("%s %s", p.Operator, p.Path))
	}
	return strings.Join(parts, "; ")
}

// nearest returns the name that differs from another one by two letters at most, and by half of them, or else
// the only one that begins with it; "" if there is none.
func nearest(name string, have []string) string {
	best, least := "", min(2, len(name)/2)+1
	if longer := slices.DeleteFunc(slices.Clone(have), func(other string) bool { return !strings.HasPrefix(other, name) }); name != "" && len(longer) == 1 {
		best = longer[0]
	}
	for _, other := range have {
		if d := distance(name, other); d < least {
			best, least = other, d
		}
	}
	return best
}

// distance is the number of letters to insert, remove or replace in a to get b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
