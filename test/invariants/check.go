package invariants

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/override"
	"github.com/atoll-k8s/atoll/internal/domain/placement"
)

// Limits are the bounds that a Check uses.
type Limits struct {
	// Lag is the maximum age of the state that a decision may be based on, because caches
	// lag.
	Lag time.Duration
	// EvictionsPerMinute is the maximum number of evictions of pods that have a node. 0
	// means no limit.
	EvictionsPerMinute int
	// Exceptions are the violations that a run causes on purpose.
	Exceptions []Exception
}

// Exception allows violations of an invariant, in one namespace and for a time.
type Exception struct {
	Invariant, Namespace string
	// From and To bound the time; a zero To means the end of the run.
	From, To time.Time
	// Why names the fault that causes the violations, and its purpose.
	Why string
}

func (e Exception) covers(v Violation) bool {
	return e.Invariant == v.Invariant && e.Namespace == v.Namespace && !v.At.Before(e.From) && (e.To.IsZero() || !v.At.After(e.To))
}

// Violation is one break of an invariant.
type Violation struct {
	// Invariant is its name: I1, I2, I5, I10 or I12.
	Invariant string
	// RV is the resourceVersion at which it happened; 0 if nothing was written.
	RV uint64
	// At is the time when it was seen.
	At time.Time
	// Namespace and Pod are the namespace and the name of the affected object.
	Namespace, Pod string
	// Why describes the violation; it continues a sentence that begins with the object.
	Why string
	// Around is the history of the pod, its node and its policies up to that moment, one
	// line for each version.
	Around []string
}

func (v Violation) String() string {
	return fmt.Sprintf("%s at resourceVersion %d (%s): pod %s/%s %s", v.Invariant, v.RV, clockOf(v.At), v.Namespace, v.Pod, v.Why)
}

func clockOf(t time.Time) string { return t.UTC().Format("15:04:05.000") }

// Report is the result of a Check.
type Report struct {
	// Violations are in the order in which they happened.
	Violations []Violation
	// Binds, Evictions and OnDemand (pods that became on-demand) are the numbers of
	// judged events; Unjudged is the number of those that could not be judged.
	Binds, Evictions, OnDemand, Unjudged int
	// Excepted is the number of violations that Exceptions allow.
	Excepted    int
	Gaps        []Gap
	First, Last uint64
}

// Summary is one line about the run.
func (r Report) Summary() string {
	return fmt.Sprintf("resourceVersions %d to %d: %d bindings, %d evictions and %d on-demand pods judged, %d could not be, %d gaps, %d violations, %d more on purpose",
		r.First, r.Last, r.Binds, r.Evictions, r.OnDemand, r.Unjudged, len(r.Gaps), len(r.Violations), r.Excepted)
}

// shown is the maximum number of violations that are printed.
const shown = 30

// Err lists the violations and the history around them, or is nil.
func (r Report) Err() error {
	if len(r.Violations) == 0 {
		return nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, "checking invariants over %s", r.Summary())
	for i, v := range r.Violations {
		if i == shown {
			fmt.Fprintf(&b, "\n  and %d more", len(r.Violations)-shown)
			break
		}
		fmt.Fprintf(&b, "\n  %s", v)
		for _, line := range v.Around {
			fmt.Fprintf(&b, "\n      %s", line)
		}
	}
	return errors.New(b.String())
}

// Check replays a history and the requests of atoll-manager to the API server.
func Check(h *History, requests []Request, limits Limits) Report {
	h.sort()
	c := &checker{History: h, Limits: limits, rules: map[types.UID]map[int64]*override.Rules{}, moved: map[seat][]uint64{}}
	c.report.Gaps, c.report.First, c.report.Last = h.Gaps, min(h.First, h.Last), h.Last
	c.checkDeletions(requests)
	c.checkSums()
	for _, key := range h.pods {
		c.checkBinds(h.timelines[key])
	}
	c.checkClasses()
	c.checkEvictions(requests)
	slices.SortStableFunc(c.report.Violations, func(a, b Violation) int { return cmp.Compare(a.RV, b.RV) })
	return c.report
}

type checker struct {
	*History
	Limits
	report Report
	// rules caches compiled rules, one entry for each generation of a policy.
	rules map[types.UID]map[int64]*override.Rules
	// moved are the evictions that were justified by a surplus, as resourceVersions.
	moved map[seat][]uint64
}

// seat is a group of one cohort.
type seat struct {
	cohort
	group string
}

func (c *checker) violate(invariant string, s Stamp, pod types.NamespacedName, around []any, why string, args ...any) {
	v := Violation{Invariant: invariant, RV: s.RV, At: s.Seen, Namespace: pod.Namespace, Pod: pod.Name, Why: fmt.Sprintf(why, args...)}
	if slices.ContainsFunc(c.Exceptions, func(e Exception) bool { return e.covers(v) }) {
		c.report.Excepted++
		return
	}
	if len(c.report.Violations) < shown { // the others are not printed
		v.Around = c.around(s.RV, around)
	}
	c.report.Violations = append(c.report.Violations, v)
}

func (p Pod) name() types.NamespacedName {
	return types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
}

// checkDeletions checks I2, and I12 for deletions.
func (c *checker) checkDeletions(requests []Request) {
	for _, r := range requests {
		if !r.deletes() {
			continue
		}
		switch of, spare := c.unitedWorkload(r); {
		case spare:
		case of != "":
			c.violate("I12", Stamp{Seen: r.Received}, r.object(), nil, "%s of %s by %s, answered %d: UnitedDeployment %q has the pool, and no other workload for it",
				r.Verb, r.Resource, r.User, r.Code, of)
		default:
			c.violate("I2", Stamp{Seen: r.Received}, r.object(), nil, "%s of %s by %s, answered %d: pods leave by eviction only", r.Verb, r.Resource, r.User, r.Code)
		}
	}
}

// unitedWorkload returns the UnitedDeployment whose workload a request deletes, and
// whether it may be deleted: it was of no pool of the spec, or not the only one of its
// pool.
func (c *checker) unitedWorkload(r Request) (of string, spare bool) {
	from, to := r.Received.Add(-c.Lag), r.Answered.Add(c.Lag)
	for _, w := range c.workloads(from, to) {
		if w.Namespace != r.Namespace || w.Name != r.Name || strings.ToLower(w.Kind)+"s" != r.Resource || w.United == "" ||
			w.Owner != "" && w.OwnerKind != "UnitedDeployment" {
			continue
		}
		of = w.United
		for _, other := range c.workloads(from, to) {
			switch {
			case other.Namespace != w.Namespace || other.UID == w.UID:
			case other.Kind == "UnitedDeployment" && other.Name == w.United && !strings.Contains(other.Pools, "/"+w.Pool+"/"),
				other.United == w.United && other.Pool == w.Pool:
				return of, true
			}
		}
	}
	return of, false
}

// workloads returns all versions of workloads that were in force between two times.
func (c *checker) workloads(from, to time.Time) []Workload {
	var found []Workload
	for key, t := range c.timelines {
		if _, ok := key.(workloadKey); !ok {
			continue
		}
		for i, v := range t {
			w, ok := v.object.(Workload)
			if ok && !v.Seen.After(to) && (i == len(t)-1 || !t[i+1].Seen.Before(from)) {
				found = append(found, w)
			}
		}
	}
	return found
}

// checkBinds checks I5 for one pod.
func (c *checker) checkBinds(t timeline) {
	for i := 1; i < len(t); i++ {
		before, unbound := t[i-1].object.(Pod)
		pod, ok := t[i].object.(Pod)
		if !ok || !unbound || before.Node != "" || pod.Node == "" {
			continue
		}
		if t[i].Gap {
			c.report.Unjudged++ // the version at which it was bound is not known
			continue
		}
		c.checkBind(pod, t[i].Stamp)
	}
}

func (c *checker) checkBind(pod Pod, s Stamp) {
	from := s.Seen.Add(-c.Lag)
	ancestries, ok := c.ancestries(pod, from, s.RV)
	if !ok {
		c.report.Unjudged++
		return
	}
	c.report.Binds++
	groups := c.groupsOf(pod.Node, from, s.RV)
	var policies []PropagationPolicy
	bound, total := false, 0
	for _, a := range ancestries {
		o := a.propagation
		if o == nil || o.IgnoreMissing && o.Policies.BindingPropagation != o.Policies.RequiredPropagation {
			return // no policy is required
		}
		bound = bound || o.Policies.BindingPropagation == o.Policies.RequiredPropagation
		versions := c.propagationPolicies(types.NamespacedName{Namespace: pod.Namespace, Name: o.Policies.RequiredPropagation}, from, s.RV)
		if o.IgnoreMissing && len(versions) == 0 {
			return
		}
		policies = append(policies, versions...)
		total = max(total, a.replicas())
	}
	required := ancestries[0].propagation.Policies.RequiredPropagation
	if !bound {
		c.violate("I5", s, pod.name(), c.near(pod, ancestries), "got node %q while PropagationPolicy %q, which %s %q requires, was not bound",
			pod.Node, required, ancestries[0].propagation.Kind, ancestries[0].propagation.Name)
		return
	}
	if pod.Pinned && slices.Equal(groups, []string{""}) && slices.Contains(c.groupsOf(pod.Node, s.Seen, math.MaxUint64), pod.Group) {
		groups = []string{pod.Group} // a newcomer: a node that was labelled afterwards
	}
	if !anyAllows(policies, groups) {
		c.violate("I5", s, pod.name(), c.near(pod, ancestries), "got node %q of NodeGroup %q, which PropagationPolicy %q gives nothing", pod.Node, groups[0], required)
		return
	}
	if pod.OwnerKind != "DaemonSet" { // one pod on each node: not divided
		c.checkMax(pod, s, ancestries, policies, total, groups)
	}
}

// checkMax reports a range that a binding filled beyond its max, in each of the groups that the node
// had lately, the newest first.
func (c *checker) checkMax(pod Pod, s Stamp, ancestries []ancestry, policies []PropagationPolicy, total int, groups []string) {
	for _, group := range groups {
		if sitting, most := c.filled(pod, s, policies, total, group); sitting <= most {
			return
		}
	}
	sitting, most := c.filled(pod, s, policies, total, groups[0])
	c.violate("I5", s, pod.name(), c.near(pod, ancestries), "is pod %d of its cohort in NodeGroup %q, which may have %d", sitting, groups[0], most)
}

// filled returns how many pods of a cohort sit in a group once a pod of it is there, and how many may.
func (c *checker) filled(pod Pod, s Stamp, policies []PropagationPolicy, total int, group string) (sitting, most int) {
	from := s.Seen.Add(-c.Lag)
	active := 0
	for _, key := range c.cohorts[pod.cohort()] {
		other, ok := get[Pod](c.History, key, s.RV)
		if !ok || !other.Active {
			continue
		}
		active++
		if other.UID == pod.UID || other.Node != "" && c.stays(other.Node, group, from, s.RV) {
			sitting++
		}
	}
	for _, p := range policies {
		most = max(most, maxOf(p.Spec, group, max(total, active)))
	}
	return sitting, most
}

// stays reports whether a node was in a group all the time.
func (c *checker) stays(node, group string, from time.Time, to uint64) bool {
	groups := c.groupsOf(node, from, to)
	return len(groups) == 1 && groups[0] == group
}

// groupsOf returns the groups that a node had since a time, the newest first. There is at
// least one, which may be "".
func (c *checker) groupsOf(node string, from time.Time, to uint64) []string {
	var groups []string
	for _, v := range slices.Backward(c.timelines[nodeKey(node)].within(from, to)) {
		n, _ := v.object.(Node)
		if !slices.Contains(groups, n.Group) {
			groups = append(groups, n.Group)
		}
	}
	if groups == nil {
		return []string{""}
	}
	return groups
}

// ancestries returns the values of a pod's ancestry since a time, the newest first.
func (c *checker) ancestries(pod Pod, from time.Time, to uint64) ([]ancestry, bool) {
	now, ok := c.ancestryAt(pod, to)
	if !ok {
		return nil, false
	}
	keys := []any{podKey(pod.UID)}
	for _, o := range now.chain {
		keys = append(keys, workloadKey(o.UID))
	}
	ancestries := []ancestry{now}
	for _, rv := range c.moments(from, to, keys...)[1:] {
		then, _ := get[Pod](c.History, podKey(pod.UID), rv)
		if then.Owner == "" {
			then = pod // before the pod existed
		}
		if a, ok := c.ancestryAt(then, rv); ok {
			ancestries = append(ancestries, a)
		}
	}
	return ancestries, true
}

// replicas returns the largest number of pods that an owner wants, up to the one that
// requires the PropagationPolicy; at least 1.
func (a ancestry) replicas() int {
	most := 1
	for i := range a.chain {
		most = max(most, a.chain[i].Replicas)
		if &a.chain[i] == a.propagation {
			break
		}
	}
	return most
}

// propagationPolicies returns the versions of a policy since a time.
func (c *checker) propagationPolicies(name types.NamespacedName, from time.Time, to uint64) []PropagationPolicy {
	var policies []PropagationPolicy
	for _, v := range c.timelines[propagationKey(name)].within(from, to) {
		if p, ok := v.object.(PropagationPolicy); ok {
			policies = append(policies, p)
		}
	}
	return policies
}

func anyAllows(policies []PropagationPolicy, groups []string) bool {
	return slices.ContainsFunc(policies, func(p PropagationPolicy) bool {
		return slices.ContainsFunc(groups, func(group string) bool { return allows(p.Spec, group) })
	})
}

// allows reports whether a policy can give a group a pod. It is implemented here
// independently, because atoll-manager is checked against it.
func allows(spec *gm.PropagationSpec, group string) bool {
	if group == "" {
		return false
	}
	if len(spec.NumRange) > 0 && spec.PropagationStrategy != gm.StaticWeightPropagationStrategy {
		return maxOf(spec, group, unlimited) > 0
	}
	named, weight, any := false, int64(0), false
	for i := range spec.StaticWeight {
		rule := &spec.StaticWeight[i]
		any = any || rule.Weight > 0
		if names(rule.NodeGroupNames, group) {
			named, weight = true, max(weight, rule.Weight)
		}
	}
	return named && (weight > 0 || !any) // if all are zero they count as equal
}

// unlimited is more pods than any test has.
const unlimited = 1 << 30

// maxOf returns how many of a number of pods a group may have. If several ranges name the
// group, the first counts.
func maxOf(spec *gm.PropagationSpec, group string, total int) int {
	if len(spec.NumRange) == 0 || spec.PropagationStrategy == gm.StaticWeightPropagationStrategy {
		return unlimited
	}
	for i := range spec.NumRange {
		rule := &spec.NumRange[i]
		if !names(rule.NodeGroupNames, group) {
			continue
		}
		if rule.Max == nil {
			return unlimited
		}
		var percent int
		if n, _ := fmt.Sscanf(rule.Max.StrVal, "%d%%", &percent); n == 1 {
			return (total*percent + 99) / 100
		}
		return int(rule.Max.IntVal)
	}
	return 0
}

func names(groups []string, group string) bool {
	return slices.ContainsFunc(groups, func(g string) bool { return strings.EqualFold(g, group) })
}

// divide returns how many of the first pods of a cohort each group should have.
func (c *checker) divide(p PropagationPolicy, workload types.UID, first, total int, rv uint64) map[string]int {
	spread, err := placement.New(*p.Spec, func(group string) bool { return c.hasMembers(group, rv) }, workload)
	if err != nil {
		return nil
	}
	desired := map[string]int{}
	for i, n := range spread.First(first, total) {
		desired[spread.Groups()[i]] = n
	}
	return desired
}

// compiled returns the rules of an OverridePolicy; nil if they are invalid.
func (c *checker) compiled(p OverridePolicy) *override.Rules {
	byGeneration := c.rules[p.UID]
	if byGeneration == nil {
		byGeneration = map[int64]*override.Rules{}
		c.rules[p.UID] = byGeneration
	}
	rules, known := byGeneration[p.Generation]
	if !known {
		rules, _ = override.Compile(*p.Spec)
		byGeneration[p.Generation] = rules
	}
	return rules
}
