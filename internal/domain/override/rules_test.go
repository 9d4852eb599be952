package override

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

func plain(operator gm.OverriderOperator, path, value string) gm.PlaintextOverrider {
	o := gm.PlaintextOverrider{Operator: operator, Path: path}
	if value != "" {
		o.Value = &apiextensionsv1.JSON{Raw: []byte(value)}
	}
	return o
}

func forGroups(overriders gm.Overriders, groups ...string) gm.RuleWithNodeGroup {
	return gm.RuleWithNodeGroup{TargetNodeGroup: groups, Overriders: &overriders}
}

func plainRule(overriders ...gm.PlaintextOverrider) gm.OverrideSpec {
	return gm.OverrideSpec{OverrideRules: []gm.RuleWithNodeGroup{forGroups(gm.Overriders{Plaintext: overriders})}}
}

func TestCompileRefuses(t *testing.T) {
	image := func(component gm.ImageComponent, operator gm.OverriderOperator, value string) gm.OverrideSpec {
		return gm.OverrideSpec{OverrideRules: []gm.RuleWithNodeGroup{
			forGroups(gm.Overriders{ImageOverrider: []gm.ImageOverrider{{Component: component, Operator: operator, Value: value}}}),
		}}
	}
	at := func(path string) gm.OverrideSpec {
		return imageRule(gm.ImageOverrider{Component: "Tag", Operator: "remove", Predicate: &gm.ImagePredicate{Path: path}})
	}
	command := func(c gm.CommandArgsOverrider) gm.OverrideSpec {
		return gm.OverrideSpec{OverrideRules: []gm.RuleWithNodeGroup{{}, forGroups(gm.Overriders{CommandOverrider: []gm.CommandArgsOverrider{c}})}}
	}
	const (
		imageValue = "spec.overrideRules[0].overriders.imageOverrider[0].value"
		predicate  = "spec.overrideRules[0].imageOverrider[0].predicate.path"
		plainPath  = "spec.overrideRules[0].overriders.plaintext[0].path"
		plainValue = "spec.overrideRules[0].overriders.plaintext[0].value"
	)
	bothForms := inline(gm.Overriders{ArgsOverrider: []gm.CommandArgsOverrider{}})
	bothForms.Overriders = &gm.Overriders{}
	tests := map[string]struct {
		spec gm.OverrideSpec
		want string
	}{
		"an empty registry":                                    {image("Registry", "replace", ""), imageValue},
		"an empty addition":                                    {image("Tag", "add", ""), imageValue},
		"a registry with a slash":                              {image("Registry", "replace", "hz.io/"), imageValue},
		"a registry with a path":                               {image("Registry", "replace", "hz.io/team"), imageValue},
		"a registry with a scheme":                             {image("Registry", "replace", "https://hz.io"), imageValue},
		"an upper case host without a dot":                     {image("Registry", "replace", "MyHost"), imageValue},
		"a part of a registry with a slash":                    {image("Registry", "add", "/x"), imageValue},
		"an upper case repository":                             {image("Repository", "replace", "Foo"), imageValue},
		"a repository with a tag":                              {image("Repository", "replace", "a:1"), imageValue},
		"a repository that ends in a slash":                    {image("Repository", "replace", "a/"), imageValue},
		"a part that ends in a dash":                           {image("Repository", "add", "edge-"), imageValue},
		"a repository that is removed":                         {image("Repository", "remove", ""), "spec.overrideRules[0].overriders.imageOverrider[0].operator"},
		"a tag with a space":                                   {image("Tag", "replace", "bad tag"), imageValue},
		"a short digest":                                       {image("Tag", "replace", "sha256:abc"), imageValue},
		"an upper case digest":                                 {image("Tag", "replace", "sha256:"+strings.Repeat("A", 64)), imageValue},
		"a digest that is added":                               {image("Tag", "add", digestA), imageValue},
		"a value of 256 characters":                            {image("Tag", "add", strings.Repeat("a", 256)), imageValue},
		"an unknown component":                                 {image("Host", "replace", "a"), "spec.overrideRules[0].overriders.imageOverrider[0].component"},
		"an unknown operator":                                  {image("Tag", "set", "a"), "spec.overrideRules[0].overriders.imageOverrider[0].operator"},
		"no operator":                                          {image("Tag", "", "a"), "spec.overrideRules[0].overriders.imageOverrider[0].operator"},
		"a predicate on a name":                                {at("/spec/containers/0/name"), predicate},
		"a predicate on ephemeral containers":                  {at("/spec/ephemeralContainers/0/image"), predicate},
		"a predicate on four digits":                           {at("/spec/containers/1000/image"), predicate},
		"a predicate on a negative index":                      {at("/spec/containers/-1/image"), predicate},
		"an empty predicate":                                   {at(""), predicate},
		"a predicate on a deployment's template of a template": {at("/spec/template/spec/template/spec/containers/0/image"), predicate},
		"a command without a container":                        {command(gm.CommandArgsOverrider{Operator: "add", Value: []string{"a"}}), "spec.overrideRules[1].overriders.commandOverrider[0].containerName"},
		"a command with a bad operator":                        {command(gm.CommandArgsOverrider{ContainerName: "c", Operator: "append"}), "spec.overrideRules[1].overriders.commandOverrider[0].operator"},
		"a group that can have no name":                        {gm.OverrideSpec{OverrideRules: []gm.RuleWithNodeGroup{{TargetNodeGroup: []string{"a", "b/c"}}}}, "spec.overrideRules[0].targetNodeGroup[1]"},
		"a group whose name is too long": {
			gm.OverrideSpec{OverrideRules: []gm.RuleWithNodeGroup{{TargetNodeGroup: []string{strings.Repeat("a", 64)}}}},
			"spec.overrideRules[0].targetNodeGroup[0]",
		},
		"overriders in both places": {
			gm.OverrideSpec{OverrideRules: []gm.RuleWithNodeGroup{bothForms}},
			"spec.overrideRules[0].overriders",
		},
		"remove with a value":             {plainRule(plain("remove", "/spec/hostname", `"a"`)), plainValue},
		"add without a value":             {plainRule(plain("add", "/spec/hostname", "")), plainValue},
		"a value that is not JSON":        {plainRule(plain("add", "/spec/hostname", "{")), plainValue},
		"no path":                         {plainRule(plain("add", "", "1")), plainPath},
		"the whole pod":                   {plainRule(plain("replace", "/", "{}")), plainPath},
		"the whole metadata":              {plainRule(plain("replace", "/metadata", "{}")), plainPath},
		"the whole spec":                  {plainRule(plain("replace", "/spec", "{}")), plainPath},
		"the whole spec, with a slash":    {plainRule(plain("replace", "/spec/", "{}")), plainPath},
		"the status":                      {plainRule(plain("replace", "/status/phase", `"Running"`)), plainPath},
		"the whole status":                {plainRule(plain("remove", "/status", "")), plainPath},
		"the kind":                        {plainRule(plain("replace", "/kind", `"Job"`)), plainPath},
		"the name":                        {plainRule(plain("replace", "/metadata/name", `"a"`)), plainPath},
		"the generated name":              {plainRule(plain("replace", "/metadata/generateName", `"a"`)), plainPath},
		"the namespace":                   {plainRule(plain("replace", "/metadata/namespace", `"a"`)), plainPath},
		"the UID":                         {plainRule(plain("replace", "/metadata/uid", `"a"`)), plainPath},
		"the owners":                      {plainRule(plain("remove", "/metadata/ownerReferences", "")), plainPath},
		"one owner":                       {plainRule(plain("remove", "/metadata/ownerReferences/0", "")), plainPath},
		"a key beside metadata and spec":  {plainRule(plain("replace", "/met~0adata/name", `"a"`)), plainPath},
		"the node":                        {plainRule(plain("add", "/spec/nodeName", `"a"`)), plainPath},
		"the service account":             {plainRule(plain("replace", "/spec/serviceAccountName", `"admin"`)), plainPath},
		"the service account's old field": {plainRule(plain("replace", "/spec/serviceAccount", `"admin"`)), plainPath},
		"ephemeral containers":            {plainRule(plain("add", "/spec/ephemeralContainers", "[]")), plainPath},
		"all labels":                      {plainRule(plain("replace", "/metadata/labels", "{}")), plainPath},
		"all annotations":                 {plainRule(plain("add", "/metadata/annotations", "{}")), plainPath},
		"a label of ours":                 {plainRule(plain("remove", "/metadata/labels/groupmanagement.kubeedge.io~1nodegroup", "")), plainPath},
		"an annotation of ours":           {plainRule(plain("add", "/metadata/annotations/atoll.dev~1nudge", `"1"`)), plainPath},
		"an unescaped label of ours":      {plainRule(plain("add", "/metadata/labels/atoll.dev/x", `"1"`)), plainPath},
		"a path without its slash":        {plainRule(plain("add", "spec/hostname", `"a"`)), plainPath},
		"a path into a template":          {plainRule(plain("add", "/spec/template/spec/hostname", `"a"`)), plainPath},
		"a bad escape":                    {plainRule(plain("add", "/spec/a~2", "1")), plainPath},
		"a path of 256 characters":        {plainRule(plain("add", "/spec/"+strings.Repeat("a", 250), "1")), plainPath},
		"an unknown plaintext operator":   {plainRule(plain("move", "/spec/hostname", `"a"`)), "spec.overrideRules[0].overriders.plaintext[0].operator"},
		"an image that is removed":        {plainRule(plain("remove", "/spec/containers/0/image", "")), "spec.overrideRules[0].overriders.plaintext[0].operator"},
		"an image that is no string":      {plainRule(plain("replace", "/spec/containers/0/image", "1")), plainValue},
		"an image that is invalid":        {plainRule(plain("replace", "/spec/initContainers/0/image", `"r.io/Foo"`)), plainValue},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			rules, problems := Compile(tc.spec)
			if tc.want == "" {
				if len(problems) > 0 {
					t.Errorf("refused: %v", problems)
				}
				return
			}
			if rules != nil || len(problems) != 1 {
				t.Fatalf("want one problem and no rules, got %v, %v", rules, problems)
			}
			if problems[0].Overrider != tc.want || !strings.Contains(tc.want, "["+string(rune('0'+problems[0].Rule))+"]") {
				t.Errorf("problem of rule %d at %s, want %s", problems[0].Rule, problems[0].Overrider, tc.want)
			}
		})
	}
}

// TestCompileAcceptsValuesAtTheLimits checks that Compile accepts the extreme values that
// the CRD accepts.
func TestCompileAcceptsValuesAtTheLimits(t *testing.T) {
	noValue := plain("remove", "/spec/hostname", "")
	noValue.Value = &apiextensionsv1.JSON{}
	for name, spec := range map[string]gm.OverrideSpec{
		"a value of 255 characters":          imageRule(gm.ImageOverrider{Component: "Repository", Operator: "replace", Value: strings.Repeat("a", 255)}),
		"a path of 255 characters":           plainRule(plain("add", "/spec/"+strings.Repeat("a", 249), "1")),
		"a group's name of 63 characters":    {OverrideRules: []gm.RuleWithNodeGroup{{TargetNodeGroup: []string{strings.Repeat("a", 63)}}}},
		"a value without content, of remove": plainRule(noValue),
	} {
		if _, problems := Compile(spec); len(problems) > 0 {
			t.Errorf("%s is refused: %v", name, problems)
		}
	}
}

// TestOverridersInBothPlacesOfEveryKind checks that overriders in both places are an
// error for each kind of overrider; those directly in the rule would have no effect.
func TestOverridersInBothPlacesOfEveryKind(t *testing.T) {
	for name, overriders := range map[string]gm.Overriders{
		"plaintext": {Plaintext: []gm.PlaintextOverrider{plain("remove", "/spec/hostname", "")}},
		"images":    registry("hz.io"),
		"commands":  {CommandOverrider: []gm.CommandArgsOverrider{{ContainerName: "c", Operator: "add", Value: []string{"a"}}}},
		"args":      {ArgsOverrider: []gm.CommandArgsOverrider{{ContainerName: "c", Operator: "add", Value: []string{"a"}}}},
	} {
		rule := inline(overriders)
		rule.Overriders = &gm.Overriders{}
		if rules, _ := Compile(gm.OverrideSpec{OverrideRules: []gm.RuleWithNodeGroup{rule}}); rules != nil {
			t.Errorf("%s are accepted", name)
		}
	}
}

// TestEntriesWithoutAValueAreLeftOut checks that entries after one without values are
// kept.
func TestEntriesWithoutAValueAreLeftOut(t *testing.T) {
	rules := mustCompile(t, gm.OverrideSpec{OverrideRules: []gm.RuleWithNodeGroup{inline(gm.Overriders{ArgsOverrider: []gm.CommandArgsOverrider{
		{ContainerName: "web", Operator: "add"}, {ContainerName: "web", Operator: "add", Value: []string{"-v"}},
	}})}})
	pod := aPod()
	if err := rules.Apply("edge", pod); err != nil || !slices.Equal(pod.Spec.Containers[0].Args, []string{"-v"}) {
		t.Errorf("args are %q, error %v", pod.Spec.Containers[0].Args, err)
	}
}

// TestFirstRules checks the rules that First returns, with which a controller finds the
// rule that the API server refuses.
func TestFirstRules(t *testing.T) {
	rules := mustCompile(t, gm.OverrideSpec{OverrideRules: []gm.RuleWithNodeGroup{forGroups(registry("hz.io")), inline(registry("bj.io"))}})
	for n, want := range []string{"nginx", "hz.io/nginx", "bj.io/nginx"} {
		if got, err := oneImage(rules.First(n), "nginx"); err != nil || got != want || rules.First(n).Len() != n {
			t.Errorf("the first %d make %q, error %v; want %q", n, got, err, want)
		}
	}
	if first, second := rules.Path(1), rules.Path(2); first != "spec.overrideRules[0].overriders" || second != "spec.overrideRules[1]" {
		t.Errorf("the overriders stand at %s and %s", first, second)
	}
}

func TestCompileReportsEveryProblemInOrder(t *testing.T) {
	_, problems := Compile(gm.OverrideSpec{OverrideRules: []gm.RuleWithNodeGroup{
		forGroups(gm.Overriders{
			Plaintext:      []gm.PlaintextOverrider{plain("add", "/status", "1"), plain("remove", "/spec/hostname", "")},
			ImageOverrider: []gm.ImageOverrider{{Component: "Tag", Operator: "add"}},
		}),
		forGroups(gm.Overriders{}, "edge"),
		inline(gm.Overriders{ImageOverrider: []gm.ImageOverrider{{Component: "Tag", Operator: "set"}}}),
		inline(gm.Overriders{ArgsOverrider: []gm.CommandArgsOverrider{{Operator: "add"}, {ContainerName: "c", Operator: "set"}, {Operator: "add"}}}, "a/b", "c/d"),
	}})
	var got []string
	for _, p := range problems {
		got = append(got, p.Overrider)
	}
	want := []string{
		"spec.overrideRules[0].overriders.imageOverrider[0].value",
		"spec.overrideRules[0].overriders.plaintext[0].path",
		"spec.overrideRules[2].imageOverrider[0].operator",
		"spec.overrideRules[3].targetNodeGroup[0]",
		"spec.overrideRules[3].targetNodeGroup[1]",
		"spec.overrideRules[3].argsOverrider[0].containerName",
		"spec.overrideRules[3].argsOverrider[1].operator",
		"spec.overrideRules[3].argsOverrider[2].containerName",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestCompileReportsEveryProblemOfOneOverrider(t *testing.T) {
	_, problems := Compile(gm.OverrideSpec{OverrideRules: []gm.RuleWithNodeGroup{inline(gm.Overriders{
		ImageOverrider: []gm.ImageOverrider{{Component: "Tag", Operator: "add", Predicate: &gm.ImagePredicate{Path: "/metadata"}}},
		ArgsOverrider:  []gm.CommandArgsOverrider{{Operator: "set"}},
		Plaintext:      []gm.PlaintextOverrider{plain("add", "/status", "")},
	})}})
	var got []string
	for _, p := range problems {
		got = append(got, p.Overrider)
	}
	want := []string{
		"spec.overrideRules[0].imageOverrider[0].predicate.path",
		"spec.overrideRules[0].imageOverrider[0].value",
		"spec.overrideRules[0].argsOverrider[0].containerName",
		"spec.overrideRules[0].argsOverrider[0].operator",
		"spec.overrideRules[0].plaintext[0].path",
		"spec.overrideRules[0].plaintext[0].value",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestNamesAreFoldedAndAliasesReported(t *testing.T) {
	replace := gm.Overriders{ImageOverrider: []gm.ImageOverrider{{Component: "Registry", Operator: "update", Value: "hz.io"}}}
	rules := mustCompile(t, gm.OverrideSpec{OverrideRules: []gm.RuleWithNodeGroup{
		forGroups(replace, "Hangzhou", "edge"), forGroups(gm.Overriders{}, "Beijing", "hangzhou", "Hangzhou"),
	}})
	if diff := cmp.Diff([]string{"beijing", "edge", "hangzhou"}, rules.Groups()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"Beijing", "Hangzhou"}, rules.Folded()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"spec.overrideRules[0].overriders.imageOverrider[0].operator"}, rules.Aliases()); diff != "" {
		t.Error(diff)
	}
	got, err := rules.Images("hangzhou", []Image{{Container: "c", Image: "nginx"}})
	if err != nil || got[0].Image != "hz.io/nginx" {
		t.Errorf("Images = %v, %v", got, err)
	}
}

func TestTouchesImmutable(t *testing.T) {
	tag := gm.Overriders{ImageOverrider: []gm.ImageOverrider{{Component: "Tag", Operator: "remove"}}}
	args := func(value ...string) gm.Overriders {
		return gm.Overriders{ArgsOverrider: []gm.CommandArgsOverrider{{ContainerName: "c", Operator: "add", Value: value}}}
	}
	tests := map[string]struct {
		rule        gm.RuleWithNodeGroup
		here, else_ bool
	}{
		"images only":                           {rule: forGroups(tag)},
		"args":                                  {rule: forGroups(args("-v")), here: true, else_: true},
		"args in one group":                     {rule: forGroups(args("-v"), "edge"), here: true},
		"args in another group":                 {rule: forGroups(args("-v"), "other")},
		"args without a value change nothing":   {rule: forGroups(args())},
		"plaintext that sets an image":          {rule: forGroups(gm.Overriders{Plaintext: []gm.PlaintextOverrider{plain("replace", "/spec/containers/0/image", `"a"`)}})},
		"plaintext that sets something else":    {rule: forGroups(gm.Overriders{Plaintext: []gm.PlaintextOverrider{plain("replace", "/spec/containers/0/env", `[]`)}}), here: true, else_: true},
		"plaintext that adds a whole container": {rule: forGroups(gm.Overriders{Plaintext: []gm.PlaintextOverrider{plain("add", "/spec/containers/-", `{}`)}}), here: true, else_: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			rules := mustCompile(t, gm.OverrideSpec{OverrideRules: []gm.RuleWithNodeGroup{tc.rule}})
			if got := rules.TouchesImmutable("edge"); got != tc.here {
				t.Errorf("in edge: %v", got)
			}
			if got := rules.TouchesImmutable("elsewhere"); got != tc.else_ {
				t.Errorf("elsewhere: %v", got)
			}
			if got, want := rules.TouchesImmutableAnywhere(), tc.here || tc.else_ || slices.Contains(tc.rule.TargetNodeGroup, "other"); got != want {
				t.Errorf("anywhere: %v", got)
			}
			if rules.TouchesImmutable("") {
				t.Error("a node of no group gets nothing")
			}
		})
	}
}

func TestHash(t *testing.T) {
	env := func(value string) gm.Overriders {
		return gm.Overriders{Plaintext: []gm.PlaintextOverrider{plain("replace", "/spec/containers/0/env", value)}}
	}
	base := mustCompile(t, gm.OverrideSpec{OverrideRules: []gm.RuleWithNodeGroup{forGroups(env(`[{"name":"a","value":"1"}]`), "edge")}})
	hash := base.Hash("edge")
	if len(hash) != 16 {
		t.Fatalf("hash %q", hash)
	}
	tests := map[string]struct {
		rules []gm.RuleWithNodeGroup
		same  bool
	}{
		"other spaces and another order of keys": {[]gm.RuleWithNodeGroup{forGroups(env(`[ {"value": "1", "name": "a"} ]`), "Edge")}, true},
		"an alias":                               {[]gm.RuleWithNodeGroup{forGroups(gm.Overriders{Plaintext: []gm.PlaintextOverrider{plain("update", "/spec/containers/0/env", `[{"name":"a","value":"1"}]`)}})}, true},
		"rules for other groups and empty rules": {[]gm.RuleWithNodeGroup{forGroups(env(`[]`), "other"), forGroups(gm.Overriders{}), forGroups(env(`[{"name":"a","value":"1"}]`), "edge")}, true},
		"another value":                          {[]gm.RuleWithNodeGroup{forGroups(env(`[{"name":"a","value":"2"}]`), "edge")}, false},
		"one rule more":                          {[]gm.RuleWithNodeGroup{forGroups(env(`[{"name":"a","value":"1"}]`), "edge"), forGroups(env(`[]`))}, false},
		"nothing":                                {nil, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := mustCompile(t, gm.OverrideSpec{OverrideRules: tc.rules}).Hash("edge")
			if (got == hash) != tc.same {
				t.Errorf("hash %q, the base has %q", got, hash)
			}
		})
	}
	if got := base.Hash("other") + base.Hash("") + (*Rules)(nil).Hash("edge"); got != "" {
		t.Errorf("where nothing is in force the hash is %q", got)
	}
}

func TestFixedHash(t *testing.T) {
	args := gm.Overriders{ArgsOverrider: []gm.CommandArgsOverrider{{ContainerName: "c", Operator: "add", Value: []string{"-v"}}}}
	command := gm.Overriders{CommandOverrider: []gm.CommandArgsOverrider{{ContainerName: "c", Operator: "add", Value: []string{"-v"}}}}
	tag := func(value string) gm.Overriders {
		return gm.Overriders{ImageOverrider: []gm.ImageOverrider{{Component: "Tag", Operator: "replace", Value: value}}}
	}
	setsImage := gm.Overriders{Plaintext: []gm.PlaintextOverrider{plain("replace", "/spec/containers/0/image", `"a"`)}}
	env := plain("replace", "/spec/containers/0/env", `[]`)
	with := func(o gm.Overriders, image gm.Overriders) gm.Overriders {
		o.ImageOverrider, o.Plaintext = image.ImageOverrider, append(o.Plaintext, image.Plaintext...)
		return o
	}
	hash := func(group string, rules ...gm.RuleWithNodeGroup) string {
		t.Helper()
		return mustCompile(t, gm.OverrideSpec{OverrideRules: rules}).FixedHash(group)
	}
	base := hash("edge", forGroups(args, "edge"))
	if len(base) != 16 {
		t.Fatalf("hash %q", base)
	}
	tests := map[string]struct {
		rules []gm.RuleWithNodeGroup
		// want is base, "" or "another".
		want string
	}{
		"no rule":                             {nil, ""},
		"images only":                         {[]gm.RuleWithNodeGroup{forGroups(tag("1"), "edge")}, ""},
		"plaintext that sets an image":        {[]gm.RuleWithNodeGroup{forGroups(setsImage, "edge")}, ""},
		"another group":                       {[]gm.RuleWithNodeGroup{forGroups(args, "other")}, ""},
		"every group":                         {[]gm.RuleWithNodeGroup{forGroups(args)}, base},
		"images beside it":                    {[]gm.RuleWithNodeGroup{forGroups(with(args, tag("1")), "edge")}, base},
		"other images beside it":              {[]gm.RuleWithNodeGroup{forGroups(with(args, tag("2")), "edge"), forGroups(setsImage, "edge")}, base},
		"an image set by plaintext beside it": {[]gm.RuleWithNodeGroup{forGroups(with(args, setsImage), "edge")}, base},
		"rules of other groups before it":     {[]gm.RuleWithNodeGroup{forGroups(command, "other"), forGroups(args, "edge")}, base},
		"the same for the command":            {[]gm.RuleWithNodeGroup{forGroups(command, "edge")}, "another"},
		"plaintext beside it":                 {[]gm.RuleWithNodeGroup{forGroups(gm.Overriders{ArgsOverrider: args.ArgsOverrider, Plaintext: []gm.PlaintextOverrider{env}}, "edge")}, "another"},
		"the same twice":                      {[]gm.RuleWithNodeGroup{forGroups(args, "edge"), forGroups(args, "edge")}, "another"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := hash("edge", tc.rules...)
			if tc.want == "another" && (got == "" || got == base) || tc.want != "another" && got != tc.want {
				t.Errorf("hash %q, want %q; the base has %q", got, tc.want, base)
			}
			if again := hash("edge", tc.rules...); again != got {
				t.Errorf("the same rules have hash %q, then %q", got, again)
			}
		})
	}
	two := []gm.RuleWithNodeGroup{forGroups(args, "edge"), forGroups(command, "other")}
	if hash("edge", two...) == hash("other", two...) {
		t.Error("two groups with different rules have one hash")
	}
	if got := hash("", forGroups(args)) + (*Rules)(nil).FixedHash("edge"); got != "" {
		t.Errorf("where nothing is in force the hash is %q", got)
	}
}
