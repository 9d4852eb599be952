package workload

import (
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// blamed is the cause of a refusal.
type blamed int

const (
	// onRules: the API server would accept the pod without the rules.
	onRules blamed = iota
	// onTemplate: it would refuse the pod without the rules too.
	onTemplate
	// onNothing: a full quota refuses a further pod. It would accept a successor, because
	// that takes the place of a pod.
	onNothing
)

// blame compares the refusal of a pod with base, the refusal of the pod without the rules;
// base is nil if the API server accepts that. The API server checks quotas last, so
// a pod that is refused by a quota passes everything else.
func blame(refusal, base error) blamed {
	over, plain := parseQuota(refusal), parseQuota(base)
	switch {
	case base == nil, plain != nil && over == nil:
		return onRules
	case plain == nil, over == nil, over.name != plain.name, !plain.takesSuccessor(plain):
		return onTemplate
	case !over.takesSuccessor(plain):
		return onRules
	default:
		return onNothing
	}
}

// quota is the answer of a ResourceQuota to a pod: the amounts of each resource of which
// too little is left.
type quota struct {
	name                     string
	requested, used, limited map[string]resource.Quantity
}

var quotaText = regexp.MustCompile(`exceeded quota: ([^,]+), requested: (\S+), used: (\S+), limited: ([^\s;]+)`)

// isQuota reports whether a quota is the cause of a refusal.
func isQuota(refusal error) bool { return parseQuota(refusal) != nil }

// parseQuota reads the refusal of a quota. It returns nil for any other refusal.
func parseQuota(refusal error) *quota {
	if refusal == nil {
		return nil
	}
	match := quotaText.FindStringSubmatch(refusal.Error())
	if match == nil {
		return nil
	}
	return &quota{name: match[1], requested: amounts(match[2]), used: amounts(match[3]), limited: amounts(match[4])}
}

// amounts reads a list such as pods=1,requests.cpu=500m.
func amounts(list string) map[string]resource.Quantity {
	out := map[string]resource.Quantity{}
	for _, pair := range strings.Split(list, ",") {
		name, text, _ := strings.Cut(pair, "=")
		if amount, err := resource.ParseQuantity(text); err == nil {
			out[name] = amount
		}
	}
	return out
}

// takesSuccessor reports whether the quota has enough for the pod once another pod is gone,
// for which the same quota gave the answer gone.
func (q *quota) takesSuccessor(gone *quota) bool {
	for name, total := range q.requested {
		total.Add(q.used[name])
		total.Sub(gone.requested[name])
		if total.Cmp(q.limited[name]) > 0 {
			return false
		}
	}
	return true
}
