// Package override decides what a pod looks like in a NodeGroup (docs/sources.md, G16 to
// G19): which images, commands, args and other fields differ from its template.
//
// Compile makes Rules from an OverridePolicy. ApplyTo changes a pod that is being created;
// Images computes the images of a pod that exists, whose other fields cannot change.
//
// Callers pass the values of the pod template, never the result of an earlier call. So
// applying rules twice gives the same result, and a value comes back when its rule is
// deleted. The package must not choose the group of a pod, and must not contain anything
// about how pods are written.
package override

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

// Rules are a compiled OverridePolicy. They are immutable and safe for concurrent use. A nil
// *Rules has no rule.
type Rules struct {
	rules   []rule
	groups  []string
	folded  []string
	aliases []string
}

// rule is one entry of spec.overrideRules. Its changes are applied in the order of the
// fields below.
type rule struct {
	index   int
	path    string // of the overriders, for example spec.overrideRules[2].overriders
	targets sets.Set[string]

	images   []imageChange
	commands []listChange
	args     []listChange
	patch    []patchStep
}

// RuleError is about a rule of a policy that is invalid, or that cannot be applied to a
// pod. The same problem always gives the same text, so that it can be part of a condition.
type RuleError struct {
	// Rule is the index in spec.overrideRules.
	Rule int
	// Overrider is the path of the field that causes the error, for example
	// spec.overrideRules[2].overriders.imageOverrider[0].value.
	Overrider string
	// Err is the cause.
	Err error
}

func (e RuleError) Error() string { return e.Overrider + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e RuleError) Unwrap() error { return e.Err }

// groupName matches the names that the API accepts for a group, in lower or upper case.
var groupName = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?$`)

// Compile makes Rules from the spec of an OverridePolicy. It accepts overriders that are
// nested under overriders and those directly in the rule, replaces the operator update by
// replace, and folds names of groups to lower case.
//
// It returns every problem, in the order of the spec. Rules is nil if there is a problem:
// half of a policy is not what its author wrote. Compile repeats the checks of the CRD,
// because a stored object may be older than a check.
func Compile(spec gm.OverrideSpec) (*Rules, []RuleError) {
	c := compiler{rules: &Rules{}}
	for i := range spec.OverrideRules {
		c.compileRule(i, &spec.OverrideRules[i])
	}
	if len(c.problems) > 0 {
		return nil, c.problems
	}
	r := c.rules
	r.groups = sortedUnique(r.groups)
	r.folded = sortedUnique(r.folded)
	return r, nil
}

func sortedUnique(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}

// compiler collects rules and problems.
type compiler struct {
	rules    *Rules
	problems []RuleError
	rule     int // index of the current rule
}

// refuse records a problem of the current rule.
func (c *compiler) refuse(field, format string, args ...any) {
	c.problems = append(c.problems, RuleError{Rule: c.rule, Overrider: field, Err: fmt.Errorf(format, args...)})
}

func (c *compiler) compileRule(index int, spec *gm.RuleWithNodeGroup) {
	c.rule = index
	out := rule{index: index, path: fmt.Sprintf("spec.overrideRules[%d]", index)}
	for i, name := range spec.TargetNodeGroup {
		if len(name) > 63 || !groupName.MatchString(name) {
			c.refuse(fmt.Sprintf("%s.targetNodeGroup[%d]", out.path, i), "%.64q cannot be the name of a NodeGroup", name)
			continue
		}
		lower := strings.ToLower(name)
		if lower != name {
			c.rules.folded = append(c.rules.folded, name)
		}
		if out.targets == nil {
			out.targets = sets.New[string]()
		}
		out.targets.Insert(lower)
		c.rules.groups = append(c.rules.groups, lower)
	}
	overriders := inlineOf(spec)
	if spec.Overriders != nil {
		if hasAny(overriders) {
			c.refuse(out.path+".overriders", "overriders stand both under overriders and directly in the rule: move them all to one place")
			return
		}
		overriders = spec.Overriders
		out.path += ".overriders"
	}
	out.images = c.compileImages(overriders.ImageOverrider, out.path+".imageOverrider")
	out.commands = c.compileLists(overriders.CommandOverrider, out.path+".commandOverrider")
	out.args = c.compileLists(overriders.ArgsOverrider, out.path+".argsOverrider")
	out.patch = c.compilePatch(overriders.Plaintext, out.path+".plaintext")
	c.rules.rules = append(c.rules.rules, out)
}

// inlineOf returns the overriders that are directly in the rule (docs/sources.md, G17).
func inlineOf(spec *gm.RuleWithNodeGroup) *gm.Overriders {
	return (*gm.Overriders)(&spec.InlineOverriders)
}

func hasAny(o *gm.Overriders) bool {
	return o.Plaintext != nil || o.ImageOverrider != nil || o.CommandOverrider != nil || o.ArgsOverrider != nil
}

// operator checks an operator, and replaces the alias update by replace. ok is false after
// a problem.
func (c *compiler) operator(operator gm.OverriderOperator, path string) (known gm.OverriderOperator, ok bool) {
	switch operator {
	case gm.OverriderOpAdd, gm.OverriderOpRemove, gm.OverriderOpReplace:
		return operator, true
	case gm.OverriderOpUpdate:
		c.rules.aliases = append(c.rules.aliases, path)
		return gm.OverriderOpReplace, true
	}
	c.refuse(path, "%.64q is not one of add, remove, replace, update", operator)
	return "", false
}

// listChange is one commandOverrider or argsOverrider. Hash covers the exported fields.
type listChange struct {
	path      string
	Container string
	Operator  gm.OverriderOperator
	Value     []string
}

// compileLists compiles overriders of command or args. It leaves out entries without
// values, which change nothing.
func (c *compiler) compileLists(overriders []gm.CommandArgsOverrider, path string) []listChange {
	var changes []listChange
	for i := range overriders {
		at := fmt.Sprintf("%s[%d]", path, i)
		hasName := overriders[i].ContainerName != ""
		if !hasName {
			c.refuse(at+".containerName", "must not be empty")
		}
		operator, ok := c.operator(overriders[i].Operator, at+".operator")
		if !hasName || !ok || len(overriders[i].Value) == 0 {
			continue
		}
		changes = append(changes, listChange{
			path: at, Container: overriders[i].ContainerName, Operator: operator, Value: slices.Clone(overriders[i].Value),
		})
	}
	return changes
}

// applies reports whether the rule is in force in the group. A rule without targets is in
// force in every group. No rule is in force for pods outside all groups, group "".
func (r *rule) applies(group string) bool {
	if group == "" {
		return false
	}
	if len(r.targets) == 0 {
		return true
	}
	return r.targets.Has(group)
}

// touchesImmutable reports whether the rule changes a field that cannot change after the
// pod's creation: any but the images of containers and init containers.
func (r *rule) touchesImmutable() bool {
	return len(r.commands) > 0 || len(r.args) > 0 ||
		slices.ContainsFunc(r.patch, func(s patchStep) bool { return !s.setsImage() })
}

func (r *Rules) all() []rule {
	if r == nil {
		return nil
	}
	return r.rules
}

// TouchesImmutable reports whether some rule in force in the group changes anything but the
// images of containers and init containers. The API server accepts such changes only when
// a pod is created.
func (r *Rules) TouchesImmutable(group string) bool {
	return slices.ContainsFunc(r.all(), func(x rule) bool { return x.applies(group) && x.touchesImmutable() })
}

// TouchesImmutableAnywhere reports whether TouchesImmutable is true for some group.
func (r *Rules) TouchesImmutableAnywhere() bool {
	return slices.ContainsFunc(r.all(), func(x rule) bool { return x.touchesImmutable() })
}

// Len returns the number of rules.
func (r *Rules) Len() int { return len(r.all()) }

// First returns the first n rules; n must not be above Len. The effect of rule n is the
// difference between First(n) and First(n-1).
func (r *Rules) First(n int) *Rules {
	if r == nil {
		return nil
	}
	first := *r
	first.rules = r.rules[:n]
	return &first
}

// Path returns the path of the overriders of the n-th rule, from 1, in the spec.
func (r *Rules) Path(n int) string { return r.all()[n-1].path }

// Groups returns the groups that some rule names, in lower case, sorted. A rule that names
// none is in force in every group.
func (r *Rules) Groups() []string {
	if r == nil {
		return nil
	}
	return slices.Clone(r.groups)
}

// Folded returns the names of groups that are not in lower case, as written, sorted.
func (r *Rules) Folded() []string {
	if r == nil {
		return nil
	}
	return slices.Clone(r.folded)
}

// Aliases returns the paths of the operators that are update instead of replace, in the
// order of the spec.
func (r *Rules) Aliases() []string {
	if r == nil {
		return nil
	}
	return slices.Clone(r.aliases)
}

// Hash returns 16 hexadecimal digits over the rules in force in the group, "" if there are
// none. Rules for other groups, names of groups and the formatting of JSON values do not
// change it.
func (r *Rules) Hash(group string) string {
	return r.hash(group, func(rule) bool { return true }, func(x rule) effect {
		return effect{x.images, x.commands, x.args, x.patch}
	})
}

// FixedHash is Hash of the changes that are possible only when a pod is created. A pod that
// was created under another FixedHash has to be recreated.
func (r *Rules) FixedHash(group string) string {
	return r.hash(group, func(x rule) bool { return x.touchesImmutable() }, func(x rule) effect {
		fixed := slices.DeleteFunc(slices.Clone(x.patch), func(s patchStep) bool { return s.setsImage() })
		return effect{Commands: x.commands, Args: x.args, Patch: fixed}
	})
}

// effect is the input of a hash: the changes of one rule. Its JSON must not change from
// release to release, because pods carry the hashes.
type effect struct {
	Images         []imageChange
	Commands, Args []listChange
	Patch          []patchStep
}

func (r *Rules) hash(group string, counts func(rule) bool, effectOf func(rule) effect) string {
	var effects []effect
	for _, x := range r.all() {
		if x.applies(group) && counts(x) && len(x.images)+len(x.commands)+len(x.args)+len(x.patch) > 0 {
			effects = append(effects, effectOf(x))
		}
	}
	if len(effects) == 0 {
		return ""
	}
	text, err := json.Marshal(effects)
	if err != nil { // cannot happen: the values were decoded from JSON
		text = []byte(err.Error())
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}
