package override

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

// aPod makes a pod with an init container, two containers and an ephemeral container.
func aPod(modify ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web-1", Namespace: "shop", Labels: map[string]string{"app": "web", gm.NodeGroupLabel: "edge"}},
		Spec: corev1.PodSpec{
			ServiceAccountName: "web",
			InitContainers:     []corev1.Container{{Name: "init", Image: "r.io/init:1"}},
			Containers: []corev1.Container{
				{
					Name: "web", Image: "r.io/web:1", Command: []string{"nginx", "-v", "-t"},
					Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"memory": resource.MustParse("1024Mi")}},
				},
				{Name: "log", Image: "r.io/log:1@" + digestA, Args: []string{"-f"}},
			},
			EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", Image: "r.io/debug:1"}}},
		},
	}
	for _, m := range modify {
		m(pod)
	}
	return pod
}

func imagesOf(pod *corev1.Pod) []string {
	var images []string
	for _, c := range pod.Spec.InitContainers {
		images = append(images, c.Image)
	}
	for _, c := range pod.Spec.Containers {
		images = append(images, c.Image)
	}
	return images
}

// baseOf returns the argument base of Images, init containers first.
func baseOf(pod *corev1.Pod) []Image {
	var base []Image
	for _, c := range pod.Spec.InitContainers {
		base = append(base, Image{Container: c.Name, Init: true, Image: c.Image})
	}
	for _, c := range pod.Spec.Containers {
		base = append(base, Image{Container: c.Name, Image: c.Image})
	}
	return base
}

func registry(value string) gm.Overriders {
	return gm.Overriders{ImageOverrider: []gm.ImageOverrider{{Component: "Registry", Operator: "replace", Value: value}}}
}

func TestARegistryForEachGroup(t *testing.T) {
	rules := mustCompile(t, gm.OverrideSpec{OverrideRules: []gm.RuleWithNodeGroup{
		inline(registry("beijing.registry.io"), "Beijing"), inline(registry("hangzhou.registry.io"), "Hangzhou"),
	}})
	for group, want := range map[string]string{"beijing": "beijing.registry.io/nginx", "hangzhou": "hangzhou.registry.io/nginx", "other": "nginx", "": "nginx"} {
		got, err := rules.Images(group, []Image{{Container: "nginx", Image: "nginx"}})
		if err != nil || got[0].Image != want {
			t.Errorf("in %q: %v, %v; want %s", group, got, err, want)
		}
	}
}

func TestRulesCumulateInListOrderWhereTheyApply(t *testing.T) {
	suffix := func(value string) gm.Overriders {
		return gm.Overriders{ImageOverrider: []gm.ImageOverrider{{Component: "Repository", Operator: "add", Value: value}}}
	}
	rules := mustCompile(t, gm.OverrideSpec{OverrideRules: []gm.RuleWithNodeGroup{
		forGroups(suffix("-one")), forGroups(suffix("-two"), "edge", "far"), forGroups(suffix("-three"), "far"),
	}})
	for group, want := range map[string]string{"edge": "a-one-two", "far": "a-one-two-three", "other": "a-one", "": "a"} {
		if got, err := rules.Images(group, []Image{{Container: "c", Image: "a"}}); err != nil || got[0].Image != want {
			t.Errorf("in %q: %v, %v; want %s", group, got, err, want)
		}
	}
}

func TestPredicates(t *testing.T) {
	tests := map[string]struct {
		path    string
		want    []string // images of init, web, log; digest left out
		wantErr string
	}{
		"one container":                    {path: "/spec/containers/1/image", want: []string{"r.io/init", "r.io/web", "hz.io/log"}},
		"one init container":               {path: "/spec/initContainers/0/image", want: []string{"hz.io/init", "r.io/web", "r.io/log"}},
		"every container":                  {path: "/spec/containers/*/image", want: []string{"r.io/init", "hz.io/web", "hz.io/log"}},
		"a path into a template":           {path: "/spec/template/spec/containers/0/image", want: []string{"r.io/init", "hz.io/web", "r.io/log"}},
		"no leading slash":                 {path: "spec/containers/0/image", want: []string{"r.io/init", "hz.io/web", "r.io/log"}},
		"a template without leading slash": {path: "spec/template/spec/initContainers/*/image", want: []string{"hz.io/init", "r.io/web", "r.io/log"}},
		"an index out of range":            {path: "/spec/containers/2/image", wantErr: "no container at /spec/containers/2: the pod has 2"},
		"an init index out of range":       {path: "/spec/initContainers/1/image", wantErr: "no container at /spec/initContainers/1: the pod has 1"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			override := gm.ImageOverrider{Component: "Registry", Operator: "replace", Value: "hz.io", Predicate: &gm.ImagePredicate{Path: tc.path}}
			spec := imageRule(override)
			spec.OverrideRules = append([]gm.RuleWithNodeGroup{{}}, spec.OverrideRules...)
			pod := aPod()
			err := mustCompile(t, spec).Apply("edge", pod)
			if tc.wantErr != "" {
				ruleError, ok := errors.AsType[RuleError](err)
				if !ok || ruleError.Rule != 1 || !strings.HasSuffix(err.Error(), tc.wantErr) {
					t.Fatalf("error %v, want %q of rule 1", err, tc.wantErr)
				}
				if diff := cmp.Diff(aPod(), pod); diff != "" {
					t.Errorf("the pod changed in spite of the error: %s", diff)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for i, image := range imagesOf(pod) {
				if !strings.HasPrefix(image, tc.want[i]+":1") {
					t.Errorf("image %d is %q, want %q", i, image, tc.want[i])
				}
			}
		})
	}
}

func TestWildcardOverNoContainersIsNoError(t *testing.T) {
	rules := mustCompile(t, imageRule(gm.ImageOverrider{
		Component: "Registry", Operator: "replace", Value: "hz.io", Predicate: &gm.ImagePredicate{Path: "/spec/initContainers/*/image"},
	}))
	if got, err := oneImage(rules, "nginx"); err != nil || got != "nginx" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestApply(t *testing.T) {
	commands := func(c ...gm.CommandArgsOverrider) gm.Overriders { return gm.Overriders{CommandOverrider: c} }
	args := func(c ...gm.CommandArgsOverrider) gm.Overriders { return gm.Overriders{ArgsOverrider: c} }
	list := func(container string, operator gm.OverriderOperator, value ...string) gm.CommandArgsOverrider {
		return gm.CommandArgsOverrider{ContainerName: container, Operator: operator, Value: value}
	}
	command := func(value ...string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.Containers[0].Command = value }
	}
	patch := func(steps ...gm.PlaintextOverrider) gm.Overriders { return gm.Overriders{Plaintext: steps} }
	tests := map[string]struct {
		overriders gm.Overriders
		want       func(*corev1.Pod) // from aPod
		wantErr    string
	}{
		"images of containers and init containers, not of ephemeral ones": {overriders: registry("hz.io"), want: func(p *corev1.Pod) {
			p.Spec.InitContainers[0].Image = "hz.io/init:1"
			p.Spec.Containers[0].Image, p.Spec.Containers[1].Image = "hz.io/web:1", "hz.io/log:1@"+digestA
		}},
		"add appends to a command":           {overriders: commands(list("web", "add", "-x")), want: command("nginx", "-v", "-t", "-x")},
		"remove drops every equal element":   {overriders: commands(list("web", "add", "-t"), list("web", "remove", "-t", "none")), want: command("nginx", "-v")},
		"replace sets":                       {overriders: commands(list("web", "replace", "sh")), want: command("sh")},
		"update is replace":                  {overriders: commands(list("web", "update", "sh")), want: command("sh")},
		"an empty value changes nothing":     {overriders: commands(list("web", "replace"), list("web", "remove"))},
		"add makes args that were not there": {overriders: args(list("web", "add", "-x")), want: func(p *corev1.Pod) { p.Spec.Containers[0].Args = []string{"-x"} }},
		"remove from nothing is nothing":     {overriders: args(list("web", "remove", "-x"))},
		"init containers have args too":      {overriders: args(list("init", "add", "-x")), want: func(p *corev1.Pod) { p.Spec.InitContainers[0].Args = []string{"-x"} }},
		"an unknown container":               {overriders: args(list("nobody", "add", "-x")), wantErr: `argsOverrider[0]: no container or init container "nobody"`},
		"an ephemeral container is unknown":  {overriders: commands(list("debug", "add", "-x")), wantErr: `commandOverrider[0]: no container or init container "debug"`},
		"plaintext sees what images made": {overriders: gm.Overriders{ImageOverrider: registry("hz.io").ImageOverrider, Plaintext: []gm.PlaintextOverrider{plain("replace", "/spec/containers/0/image", `"last.io/a"`)}}, want: func(p *corev1.Pod) {
			p.Spec.InitContainers[0].Image = "hz.io/init:1"
			p.Spec.Containers[0].Image, p.Spec.Containers[1].Image = "last.io/a", "hz.io/log:1@"+digestA
		}},
		"a label is added":                     {overriders: patch(plain("add", "/metadata/labels/zone", `"z1"`)), want: func(p *corev1.Pod) { p.Labels["zone"] = "z1" }},
		"a key with a slash":                   {overriders: patch(plain("add", "/metadata/labels/a.b~1c", `"d"`)), want: func(p *corev1.Pod) { p.Labels["a.b/c"] = "d" }},
		"a first annotation is added":          {overriders: patch(plain("add", "/metadata/annotations/a", `"b"`)), want: func(p *corev1.Pod) { p.Annotations = map[string]string{"a": "b"} }},
		"a field is replaced":                  {overriders: patch(plain("update", "/spec/containers/0/resources/requests/memory", `"2Gi"`)), want: func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests["memory"] = resource.MustParse("2Gi") }},
		"a dash appends":                       {overriders: patch(plain("add", "/spec/containers/1/args/-", `"-x"`)), want: func(p *corev1.Pod) { p.Spec.Containers[1].Args = []string{"-f", "-x"} }},
		"an index inserts":                     {overriders: patch(plain("add", "/spec/containers/0/command/1", `"-x"`)), want: command("nginx", "-x", "-v", "-t")},
		"the index after the last appends":     {overriders: patch(plain("add", "/spec/containers/0/command/3", `"-x"`)), want: command("nginx", "-v", "-t", "-x")},
		"remove takes an element":              {overriders: patch(plain("remove", "/spec/containers/0/command/1", "")), want: command("nginx", "-t")},
		"one step sees the one before":         {overriders: patch(plain("add", "/spec/hostAliases", `[]`), plain("add", "/spec/hostAliases/-", `{"ip":"10.0.0.1"}`)), want: func(p *corev1.Pod) { p.Spec.HostAliases = []corev1.HostAlias{{IP: "10.0.0.1"}} }},
		"a large number stays exact":           {overriders: patch(plain("add", "/spec/terminationGracePeriodSeconds", "9007199254740993")), want: func(p *corev1.Pod) { n := int64(9007199254740993); p.Spec.TerminationGracePeriodSeconds = &n }},
		"a missing path":                       {overriders: patch(plain("replace", "/spec/hostname", `"a"`)), wantErr: `plaintext[0]: "hostname" does not exist`},
		"a missing parent":                     {overriders: patch(plain("add", "/spec/affinity/nodeAffinity", `{}`)), wantErr: `plaintext[0]: "affinity" does not exist`},
		"remove of what is missing":            {overriders: patch(plain("remove", "/metadata/labels/none", "")), wantErr: `plaintext[0]: "none" does not exist`},
		"an index past the end":                {overriders: patch(plain("add", "/spec/containers/0/command/4", `"-x"`)), wantErr: `no element "4" in a list of 3`},
		"an index with a leading zero":         {overriders: patch(plain("replace", "/spec/containers/00/image", `"a"`)), wantErr: `no element "00" in a list of 2`},
		"an index without digits":              {overriders: patch(plain("replace", "/spec/containers//image", `"a"`)), wantErr: `no element "" in a list of 2`},
		"an index beyond all numbers":          {overriders: patch(plain("replace", "/spec/containers/18446744073709551616/image", `"a"`)), wantErr: `no element "18446744073709551616" in a list of 2`},
		"a negative index":                     {overriders: patch(plain("remove", "/spec/containers/0/command/-1", "")), wantErr: `no element "-1" in a list of 3`},
		"a dash where nothing is added":        {overriders: patch(plain("remove", "/spec/containers/0/command/-", "")), wantErr: `no element "-" in a list of 3`},
		"a path through a string":              {overriders: patch(plain("add", "/spec/containers/0/image/x", `"a"`)), wantErr: "neither an object nor a list"},
		"one of two fails and none is applied": {overriders: patch(plain("add", "/spec/hostname", `"a"`), plain("remove", "/spec/none", "")), wantErr: `plaintext[1]: "none" does not exist`},
		"a field that pods do not have":        {overriders: patch(plain("add", "/spec/hostNam", `"a"`)), wantErr: `unknown field "spec.hostNam"`},
		"a field in the wrong case":            {overriders: patch(plain("add", "/spec/NodeName", `"a"`)), wantErr: `unknown field "spec.NodeName"`},
		"a value of the wrong type":            {overriders: patch(plain("add", "/spec/hostname", `{}`)), wantErr: "the result is not a pod"},
		"a number that does not fit":           {overriders: patch(plain("add", "/spec/activeDeadlineSeconds", `"many"`)), wantErr: "the result is not a pod"},
		"a container with an invalid image":    {overriders: patch(plain("add", "/spec/containers/-", `{"name":"x","image":"r.io/Foo"}`)), wantErr: `container "x": image "r.io/Foo"`},
		"an invalid image instead of one":      {overriders: patch(plain("replace", "/spec/containers/0", `{"name":"web","image":"r.io/Foo"}`)), wantErr: `container "web": image "r.io/Foo"`},
		"a container without an image":         {overriders: patch(plain("remove", "/spec/containers/0", ""), plain("add", "/spec/containers/0", `{"name":"x"}`)), wantErr: `container "x": image ""`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			rules := mustCompile(t, gm.OverrideSpec{OverrideRules: []gm.RuleWithNodeGroup{forGroups(tc.overriders, "edge")}})
			pod, want := aPod(), aPod()
			err := rules.Apply("edge", pod)
			switch {
			case tc.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tc.wantErr)):
				t.Errorf("error %v does not contain %q", err, tc.wantErr)
			case tc.wantErr != "":
				if _, ok := errors.AsType[RuleError](err); !ok {
					t.Errorf("%v is no RuleError", err)
				}
			case err != nil:
				t.Fatal(err)
			case tc.want != nil:
				tc.want(want)
			}
			if diff := cmp.Diff(want, pod); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestInvalidImageOfTheTemplateStays checks that an invalid image in the template does
// not prevent rules about other fields.
func TestInvalidImageOfTheTemplateStays(t *testing.T) {
	broken := func(p *corev1.Pod) { p.Spec.Containers[1].Image = "r.io/Foo" }
	pod, want := aPod(broken), aPod(broken)
	want.Spec.Hostname = "a"
	if err := mustCompile(t, plainRule(plain("add", "/spec/hostname", `"a"`))).Apply("edge", pod); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, pod); diff != "" {
		t.Error(diff)
	}
}

// TestImagesIgnoresOtherChanges checks that Images applies only changes of images: it has
// no other fields of the pod, on which other changes would fail.
func TestImagesIgnoresOtherChanges(t *testing.T) {
	fields := func(p *corev1.Pod) {
		p.Spec.Hostname = "web"
		p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "a", Value: "1"}}
		p.Spec.Containers[0].LivenessProbe = &corev1.Probe{}
	}
	for name, step := range map[string]gm.PlaintextOverrider{
		"a label":                plain("replace", "/metadata/labels/app", `"shop"`),
		"a field of the pod":     plain("replace", "/spec/hostname", `"shop"`),
		"a field of a container": plain("remove", "/spec/containers/0/livenessProbe", ""),
		"a part of such a field": plain("replace", "/spec/containers/0/env/0/value", `"2"`),
		"a name":                 plain("replace", "/spec/containers/0/name", `"shop"`),
	} {
		t.Run(name, func(t *testing.T) {
			image := plain("replace", "/spec/containers/1/image", `"x.io/log:2"`)
			rules := mustCompile(t, plainRule(step, image))
			pod := aPod(fields)
			if err := rules.Apply("edge", pod); err != nil {
				t.Fatal(err)
			}
			want := baseOf(aPod(fields))
			want[2].Image = "x.io/log:2"
			if got, err := rules.Images("edge", baseOf(aPod(fields))); err != nil || !cmp.Equal(want, got) {
				t.Errorf("images are %v, error %v; want %v", got, err, want)
			}
		})
	}
}

// TestAContainerWithAnotherNameKeepsItsImage checks that a renamed container keeps its
// image, because the containers of an existing pod cannot be renamed.
func TestAContainerWithAnotherNameKeepsItsImage(t *testing.T) {
	rules := mustCompile(t, plainRule(
		plain("replace", "/spec/containers/0/name", `"shop"`), plain("replace", "/spec/containers/0/image", `"x.io/shop"`)))
	if got, err := rules.Images("edge", baseOf(aPod())); err != nil || !cmp.Equal(baseOf(aPod()), got) {
		t.Errorf("images are %v, error %v; want %v", got, err, baseOf(aPod()))
	}
}

// TestTheImageOfAVolume checks that the image of a volume can be overridden like any
// other field.
func TestTheImageOfAVolume(t *testing.T) {
	mount := func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "models", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "r.io/models:1"}}}}
	}
	pod, want := aPod(mount), aPod(mount)
	want.Spec.Volumes[0].Image = &corev1.ImageVolumeSource{Reference: "hz.io/models:1"}
	rules := mustCompile(t, plainRule(plain("replace", "/spec/volumes/0/image", `{"reference":"hz.io/models:1"}`)))
	if err := rules.Apply("edge", pod); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, pod); diff != "" {
		t.Error(diff)
	}
	if !rules.TouchesImmutable("edge") {
		t.Error("it cannot be changed on a pod that is there")
	}
}

func TestApplyAndImagesAgree(t *testing.T) {
	steps := []gm.PlaintextOverrider{
		plain("replace", "/spec/containers/0/image", `"x.io/p:1"`),
		plain("replace", "/spec/containers/1/image", `"x.io/q"`),
		plain("add", "/spec/containers/0", `{"name":"sidecar","image":"x.io/side"}`),
		plain("add", "/spec/containers/-", `{"name":"last","image":"x.io/last"}`),
		plain("remove", "/spec/initContainers/0", ""),
		plain("add", "/spec/hostname", `"a"`),
		plain("replace", "/spec/initContainers", `[{"name":"init","image":"x.io/init"}]`),
	}
	overrides := []gm.ImageOverrider{
		{Component: "Registry", Operator: "replace", Value: "hz.io"},
		{Component: "Repository", Operator: "add", Value: "-edge"},
		{Component: "Tag", Operator: "replace", Value: "v2"},
		{Component: "Tag", Operator: "remove", Predicate: &gm.ImagePredicate{Path: "/spec/containers/1/image"}},
		{Component: "Registry", Operator: "remove", Predicate: &gm.ImagePredicate{Path: "/spec/initContainers/*/image"}},
	}
	rapid.Check(t, func(t *rapid.T) {
		var spec gm.OverrideSpec
		for range rapid.IntRange(1, 3).Draw(t, "rules") {
			spec.OverrideRules = append(spec.OverrideRules, forGroups(gm.Overriders{
				ImageOverrider: rapid.SliceOfN(rapid.SampledFrom(overrides), 0, 2).Draw(t, "images"),
				Plaintext:      rapid.SliceOfN(rapid.SampledFrom(steps), 0, 2).Draw(t, "plaintext"),
			}, rapid.SampledFrom([][]string{nil, {"edge"}, {"other"}}).Draw(t, "groups")...))
		}
		rules, problems := Compile(spec)
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		pod, again := aPod(), aPod()
		if err := rules.Apply("edge", pod); err != nil {
			if diff := cmp.Diff(aPod(), pod); diff != "" {
				t.Fatalf("the pod changed in spite of %v: %s", err, diff)
			}
			return
		}
		if err := rules.Apply("edge", again); err != nil || !cmp.Equal(pod, again) {
			t.Fatalf("from the same base another pod: %v %s", err, cmp.Diff(pod, again))
		}
		base := baseOf(aPod())
		images, err := rules.Images("edge", base)
		if err != nil {
			t.Fatalf("Apply succeeded, and Images returned %v", err)
		}
		if second, _ := rules.Images("edge", base); !cmp.Equal(images, second) || !cmp.Equal(base, baseOf(aPod())) {
			t.Fatalf("from the same base %v and %v", images, second)
		}
		for _, image := range images {
			if c := containerNamed(pod, image.Container); c != nil && c.Image != image.Image {
				t.Fatalf("container %s has %s, Images returned %s", c.Name, c.Image, image.Image)
			}
		}
	})
}

func TestNilAndForeignRulesChangeNothing(t *testing.T) {
	elsewhere := mustCompile(t, gm.OverrideSpec{OverrideRules: []gm.RuleWithNodeGroup{forGroups(registry("hz.io"), "other")}})
	everywhere := mustCompile(t, gm.OverrideSpec{OverrideRules: []gm.RuleWithNodeGroup{forGroups(registry("hz.io"))}})
	tests := map[string]struct {
		rules *Rules
		group string
	}{
		"nil rules":          {nil, "edge"},
		"rules elsewhere":    {elsewhere, "edge"},
		"a node of no group": {everywhere, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := aPod()
			if err := tc.rules.Apply(tc.group, pod); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(aPod(), pod); diff != "" {
				t.Error(diff)
			}
			if images, err := tc.rules.Images(tc.group, baseOf(pod)); err != nil || !cmp.Equal(images, baseOf(pod)) {
				t.Errorf("Images = %v, %v", images, err)
			}
			if tc.rules.TouchesImmutable(tc.group) || tc.rules.TouchesImmutableAnywhere() {
				t.Error("nothing is touched")
			}
		})
	}
}
