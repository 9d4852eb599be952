// Package override decides what a pod looks like in a NodeGroup (docs/sources.md,
// G16 to G19): which images, commands, args and other fields
// differ from its template.
//
// It always starts from the template's values, so that applying rules again
// changes nothing and a rule taken away gives the old value back. It must not
// know which group a pod will be in, nor when and how its answer is written.
package override

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

// Rules are an OverridePolicy made ready for use. Immutable and safe for
// concurrent use. A nil *Rules changes nothing.
type Rules struct {
	rules   []rule
	groups  []string
	folded  []string
	aliases []string
}

// rule is one entry of spec.overrideRules. What it does is applied in the
// order of its fields.
type rule struct {
	index   int
	path    string // where the overriders stand, for example spec.overrideRules[2].overriders
	targets map[string]struct{}

	images   []imageChange
	commands []listChange
	args     []listChange
	patch    []patchStep
}

// RuleError says which rule of a policy cannot be used, or cannot be applied
// to a pod. Its text holds no time and no counter that moves.
type RuleError struct {
	// Rule is the index in spec.overrideRules.
	Rule int
	// Overrider is the path of the field that is to be repaired, for example
	// spec.overrideRules[2].overriders.imageOverrider[0].value.
	Overrider string
	// Err says what is wrong.
	Err error
}

func (e RuleError) Error() string { return e.Overrider + ": " + e.Err.Error() }

// Unwrap returns what is wrong.
func (e RuleError) Unwrap() error { return e.Err }

// groupName is what the API accepts as the name of a group, in any case.
var groupName = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?$`)

// Compile makes Rules of a policy's spec. Overriders may stand nested or
// inline, update is replace, names of groups are folded to lower case.
//
// Every problem is reported, in the order of the spec, and Rules is nil if
// there is one: a policy of which half is in force is one that nobody wrote.
// What the API server refuses is refused here again, for objects written
// before a rule was.
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

// compiler collects the rules and every problem with them.
type compiler struct {
	rules    *Rules
	problems []RuleError
	rule     int
}

// refuse notes a problem of the current rule.
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
			out.targets = make(map[string]struct{}, len(spec.TargetNodeGroup))
		}
		out.targets[lower] = struct{}{}
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

// inlineOf are the overriders that stand directly in the rule.
func inlineOf(spec *gm.RuleWithNodeGroup) *gm.Overriders {
	return (*gm.Overriders)(&spec.InlineOverriders)
}

func hasAny(o *gm.Overriders) bool {
	return o.Plaintext != nil || o.ImageOverrider != nil || o.CommandOverrider != nil || o.ArgsOverrider != nil
}

// operator checks an operator and turns its alias into what it stands for.
func (c *compiler) operator(operator gm.OverriderOperator, path string) (gm.OverriderOperator, bool) {
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

// listChange is one commandOverrider or argsOverrider that changes something.
type listChange struct {
	path      string
	Container string
	Operator  gm.OverriderOperator
	Value     []string
}

// compileLists leaves entries without values out: they change nothing.
func (c *compiler) compileLists(overriders []gm.CommandArgsOverrider, path string) []listChange {
	var changes []listChange
	for i := range overriders {
		at := fmt.Sprintf("%s[%d]", path, i)
		hasName := overriders[i].ContainerName != ""
		if !hasName {
			c.refuse(at+".containerName", "names no container")
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

// applies says whether the rule is in force in the group. A rule without
// targets is in force in every group; a node of no group, "", gets nothing.
func (r *rule) applies(group string) bool {
	if group == "" {
		return false
	}
	if len(r.targets) == 0 {
		return true
	}
	_, targeted := r.targets[group]
	return targeted
}

// touchesImmutable says whether the rule changes anything that cannot be
// changed on a pod that exists.
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

// TouchesImmutable says whether some rule that is in force in the group
// changes anything but images of containers and init containers: such a pod
// must be as wanted from its creation.
func (r *Rules) TouchesImmutable(group string) bool {
	return slices.ContainsFunc(r.all(), func(x rule) bool { return x.applies(group) && x.touchesImmutable() })
}

// TouchesImmutableAnywhere is TouchesImmutable for any group at all.
func (r *Rules) TouchesImmutableAnywhere() bool {
	return slices.ContainsFunc(r.all(), func(x rule) bool { return x.touchesImmutable() })
}

// Len is the number of rules.
func (r *Rules) Len() int { return len(r.all()) }

// First are the first n rules. A rule is what n and n-1 differ in.
func (r *Rules) First(n int) *Rules {
	if r == nil {
		return nil
	}
	first := *r
	first.rules = r.rules[:n]
	return &first
}

// Path is where the overriders of the n-th rule stand in the spec, from 1.
func (r *Rules) Path(n int) string { return r.all()[n-1].path }

// Groups are the groups that some rule names, in lower case, sorted. Rules
// that name none are in force in all others too.
func (r *Rules) Groups() []string {
	if r == nil {
		return nil
	}
	return slices.Clone(r.groups)
}

// Folded are the names of groups that were not in lower case, as written,
// sorted.
func (r *Rules) Folded() []string {
	if r == nil {
		return nil
	}
	return slices.Clone(r.folded)
}

// Aliases are the paths of the fields that say update instead of replace, in
// the order of the spec.
func (r *Rules) Aliases() []string {
	if r == nil {
		return nil
	}
	return slices.Clone(r.aliases)
}

// Hash is 16 hexadecimal digits that stand for what is in force in the group:
// the same for specs that do the same in the same words, whatever they do in
// other groups and however their JSON is spaced. "" if nothing is in force.
func (r *Rules) Hash(group string) string {
	return r.hash(group, func(rule) bool { return true }, func(x rule) effect {
		return effect{x.images, x.commands, x.args, x.patch}
	})
}

// FixedHash is Hash of what is in force in the group and cannot be changed on
// a pod that exists: a pod that was created under another one must be replaced.
func (r *Rules) FixedHash(group string) string {
	return r.hash(group, func(x rule) bool { return x.touchesImmutable() }, func(x rule) effect {
		fixed := slices.DeleteFunc(slices.Clone(x.patch), func(s patchStep) bool { return s.setsImage() })
		return effect{Commands: x.commands, Args: x.args, Patch: fixed}
	})
}

// effect is what a rule does, in the words of its spec.
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
	if err != nil { // values were decoded from JSON and can be encoded
		text = []byte(err.Error())
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// AsRuleError finds the rule that an error of Images or Apply is about.
func AsRuleError(err error) (RuleError, bool) {
	var ruleError RuleError
	found := errors.As(err, &ruleError)
	return ruleError, found
}
