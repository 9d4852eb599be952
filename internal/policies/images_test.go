package policies

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"pgregory.net/rapid"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/override"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/seats"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

func rulesOf(t interface{ Fatal(...any) }, options ...build.Option) *override.Rules {
	rules, errs := override.Compile(build.OverridePolicy("o", options...).Spec)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	return rules
}

// patched returns the pod after the patch for its group, applied as the API server
// does; nil if no patch is needed.
func patched(t interface{ Fatal(...any) }, rules *override.Rules, group string, pod *corev1.Pod) *corev1.Pod {
	change, err := Images(rules, group, seats.Slim(pod))
	if err != nil {
		t.Fatal(err)
	}
	if !change.Needed() {
		return nil
	}
	patch, err := change.Patch(nil)
	if err != nil {
		t.Fatal(err)
	}
	before, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	after, err := strategicpatch.StrategicMergePatch(before, patch, corev1.Pod{})
	if err != nil {
		t.Fatal(err)
	}
	out := &corev1.Pod{}
	if err := json.Unmarshal(after, out); err != nil {
		t.Fatal(err)
	}
	return out
}

// imagesOf returns the images by container name.
func imagesOf(pod *corev1.Pod) map[string]string {
	images := map[string]string{}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for _, c := range list {
			images[c.Name] = c.Image
		}
	}
	return images
}

func annotation(t *testing.T, pod *corev1.Pod, key string) map[string]any {
	t.Helper()
	value, ok := pod.Annotations[key]
	if !ok {
		return nil
	}
	out := map[string]any{}
	if err := json.Unmarshal([]byte(value), &out); err != nil {
		t.Fatalf("annotation %s is %s: %v", key, value, err)
	}
	return out
}

func TestImages(t *testing.T) {
	const keep = "kept.example.com/note"
	original := func(json string) build.Option { return build.Annotation(gm.OriginalImagesAnnotation, json) }
	bj := build.Registry("bj", "bj.io")
	web, side, setup := build.Container("web", "nginx:1"), build.Container("side", "bj.io/side:2"), build.InitContainer("setup", "setup:3")
	tests := map[string]struct {
		rules []build.Option
		pod   *corev1.Pod

		wantImages     map[string]string // nil: nothing is to change
		wantOriginals  map[string]any
		wantRestarting map[string]any
	}{
		"nothing to do in a group without a rule": {
			rules: []build.Option{build.Registry("hz", "hz.io")},
			pod:   build.Pod("p", web),
		},
		"the first change remembers every image, and marks what has to restart": {
			rules:          []build.Option{bj},
			pod:            build.Pod("p", setup, web, side, build.Running(4)),
			wantImages:     map[string]string{"setup": "bj.io/setup:3", "web": "bj.io/nginx:1", "side": "bj.io/side:2"},
			wantOriginals:  map[string]any{"setup": "setup:3", "web": "nginx:1", "side": "bj.io/side:2"},
			wantRestarting: map[string]any{"web": 4.0},
		},
		"a container that does not run has nothing to restart": {
			rules:         []build.Option{bj},
			pod:           build.Pod("p", web),
			wantImages:    map[string]string{"web": "bj.io/nginx:1"},
			wantOriginals: map[string]any{"web": "nginx:1"},
		},
		"the base is what was remembered, not what is there": {
			rules: []build.Option{build.Registry("bj", "new.io")},
			pod: build.Pod("p", build.Container("web", "bj.io/nginx:1"), build.Running(0),
				original(`{"web":"nginx:1"}`)),
			wantImages:     map[string]string{"web": "new.io/nginx:1"},
			wantOriginals:  map[string]any{"web": "nginx:1"},
			wantRestarting: map[string]any{"web": 0.0},
		},
		"a rule taken away gives the old image back and leaves nothing behind": {
			pod: build.Pod("p", build.Container("web", "bj.io/nginx:1"), build.Running(1),
				original(`{"web":"nginx:1"}`)),
			wantImages:     map[string]string{"web": "nginx:1"},
			wantRestarting: map[string]any{"web": 1.0},
		},
		"an older mark of a restart goes when nothing runs that has to": {
			rules: []build.Option{bj},
			pod: build.Pod("p", build.Container("web", "old.io/nginx:1"),
				original(`{"web":"nginx:1"}`), build.Annotation(gm.RestartingAnnotation, `{"web":3}`)),
			wantImages:    map[string]string{"web": "bj.io/nginx:1"},
			wantOriginals: map[string]any{"web": "nginx:1"},
		},
		"what was remembered and cannot be read counts as nothing": {
			rules:         []build.Option{bj},
			pod:           build.Pod("p", web, original(`{"web":`)),
			wantImages:    map[string]string{"web": "bj.io/nginx:1"},
			wantOriginals: map[string]any{"web": "nginx:1"},
		},
		"a container that is not among the remembered keeps what it has as its base": {
			rules: []build.Option{bj},
			pod: build.Pod("p", build.Container("web", "bj.io/nginx:1"), build.Container("late", "late:1"),
				original(`{"web":"nginx:1"}`)),
			wantImages:    map[string]string{"web": "bj.io/nginx:1", "late": "bj.io/late:1"},
			wantOriginals: map[string]any{"web": "nginx:1", "late": "late:1"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			build.Annotation(keep, "as it was")(tc.pod)
			rules := rulesOf(t, tc.rules...)
			after := patched(t, rules, "bj", tc.pod)
			if tc.wantImages == nil {
				if after != nil {
					t.Errorf("nothing was to change, and images became %v", imagesOf(after))
				}
				return
			}
			if after == nil {
				t.Fatal("nothing changed")
			}
			if diff := cmp.Diff(tc.wantImages, imagesOf(after)); diff != "" {
				t.Errorf("wrong images (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.wantOriginals, annotation(t, after, gm.OriginalImagesAnnotation)); diff != "" {
				t.Errorf("wrong memory (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.wantRestarting, annotation(t, after, gm.RestartingAnnotation)); diff != "" {
				t.Errorf("wrong mark of restarts (-want +got):\n%s", diff)
			}
			if got := seats.Slim(after).Restarting(); got != (tc.wantRestarting != nil) {
				t.Errorf("the pod counts as restarting: %t", got)
			}
			if after.Annotations[keep] == "" {
				t.Error("an annotation of another program was removed")
			}
			if again := patched(t, rules, "bj", after); again != nil {
				t.Errorf("applied again, images become %v", imagesOf(again))
			}
		})
	}
}

func TestImagesNamesTheRuleThatCannotBeApplied(t *testing.T) {
	rules := rulesOf(t, build.Registry("bj", "bj.io"))
	_, err := Images(rules, "bj", seats.Slim(build.Pod("p", build.Container("web", "NO IMAGE"))))
	if found, ok := errors.AsType[override.RuleError](err); !ok || found.Rule != 0 {
		t.Errorf("error is %v: it must name the rule", err)
	}
}

// TestImagesOfAPodThatWasOverriddenAtCreation applies all rules to a template as the
// webhook does, and checks the images afterwards.
func TestImagesOfAPodThatWasOverriddenAtCreation(t *testing.T) {
	plain := func(operator gm.OverriderOperator, path, value string) gm.PlaintextOverrider {
		o := gm.PlaintextOverrider{Operator: operator, Path: path}
		if value != "" {
			o.Value = &apiextensionsv1.JSON{Raw: []byte(value)}
		}
		return o
	}
	rule := func(steps ...gm.PlaintextOverrider) build.Option {
		return build.Overrides("bj", gm.Overriders{Plaintext: steps})
	}
	at := func(path, tag string) build.Option {
		return build.Overrides("bj", gm.Overriders{ImageOverrider: []gm.ImageOverrider{{
			Component: gm.Tag, Operator: gm.OverriderOpReplace, Value: tag, Predicate: &gm.ImagePredicate{Path: path},
		}}})
	}
	args := build.Args("bj", "web", "-v")
	sidecar := `{"name":"agent","image":"agent:1"}`
	tests := map[string]struct {
		rules []build.Option
		// want are the images at creation. They must not change later.
		want map[string]string
		// then are other rules with the same effect on immutable fields. after are the
		// images that they make.
		then  []build.Option
		after map[string]string
	}{
		"images beside args": {
			rules: []build.Option{args, build.Registry("bj", "bj.io")},
			want:  map[string]string{"setup": "bj.io/setup:3", "web": "bj.io/nginx:1", "side": "bj.io/side:2"},
			then:  []build.Option{args, build.Registry("bj", "new.io")},
			after: map[string]string{"setup": "new.io/setup:3", "web": "new.io/nginx:1", "side": "new.io/side:2"},
		},
		"a container that a rule adds at the end keeps its image": {
			rules: []build.Option{build.Registry("bj", "bj.io"), rule(plain("add", "/spec/containers/-", sidecar))},
			want:  map[string]string{"setup": "bj.io/setup:3", "web": "bj.io/nginx:1", "side": "bj.io/side:2", "agent": "agent:1"},
			then:  []build.Option{build.Registry("bj", "new.io"), rule(plain("add", "/spec/containers/-", sidecar))},
			after: map[string]string{"setup": "new.io/setup:3", "web": "new.io/nginx:1", "side": "new.io/side:2", "agent": "agent:1"},
		},
		"an index means the same container as at creation, also if a rule added one before it": {
			rules: []build.Option{at("/spec/containers/1/image", "x"), rule(plain("add", "/spec/containers/0", sidecar))},
			want:  map[string]string{"setup": "setup:3", "web": "nginx:1", "side": "side:x", "agent": "agent:1"},
			then:  []build.Option{at("/spec/containers/0/image", "y"), rule(plain("add", "/spec/containers/0", sidecar))},
			after: map[string]string{"setup": "setup:3", "web": "nginx:y", "side": "side:2", "agent": "agent:1"},
		},
		"and among init containers": {
			rules: []build.Option{rule(plain("add", "/spec/initContainers/0", sidecar)), at("/spec/initContainers/1/image", "x")},
			want:  map[string]string{"setup": "setup:x", "web": "nginx:1", "side": "side:2", "agent": "agent:1"},
		},
		"a rule replaces a whole container": {
			rules: []build.Option{build.Registry("bj", "bj.io"), rule(plain("replace", "/spec/containers/0", `{"name":"web","image":"own:7"}`))},
			want:  map[string]string{"setup": "bj.io/setup:3", "web": "own:7", "side": "bj.io/side:2"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := build.Pod("p", build.InitContainer("setup", "setup:3"), build.Container("web", "nginx:1"), build.Container("side", "side:2"))
			raw, err := json.Marshal(imagesOf(pod))
			if err != nil {
				t.Fatal(err)
			}
			rules := rulesOf(t, tc.rules...)
			if err := rules.Apply("bj", pod); err != nil {
				t.Fatal(err)
			}
			build.Annotation(gm.OriginalImagesAnnotation, string(raw))(pod)
			build.Annotation(gm.OverridesAnnotation, rules.FixedHash("bj"))(pod)
			if diff := cmp.Diff(tc.want, imagesOf(pod)); diff != "" {
				t.Errorf("wrong images at creation (-want +got):\n%s", diff)
			}
			if later := patched(t, rules, "bj", pod); later != nil {
				t.Errorf("the same rules change the images to %v", imagesOf(later))
			}
			if tc.then == nil {
				return
			}
			next := rulesOf(t, tc.then...)
			after := patched(t, next, "bj", pod)
			if after == nil {
				t.Fatal("other rules change nothing")
			}
			if diff := cmp.Diff(tc.after, imagesOf(after)); diff != "" {
				t.Errorf("wrong images by other rules (-want +got):\n%s", diff)
			}
			if again := patched(t, next, "bj", after); again != nil {
				t.Errorf("applied again, images become %v", imagesOf(again))
			}
			back := patched(t, rules, "bj", after)
			if back == nil {
				t.Fatal("the first rules again change nothing")
			}
			if diff := cmp.Diff(tc.want, imagesOf(back)); diff != "" {
				t.Errorf("the first rules again give other images (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRestarts(t *testing.T) {
	web, done, setup := build.Container("web", "nginx:1"), build.Container("done", "bj.io/done:1"), build.InitContainer("setup", "setup:1")
	tests := map[string]struct {
		pod  *corev1.Pod
		want bool
	}{
		"a container that runs changes":                        {build.Pod("p", web, build.Running(0)), true},
		"a container that does not run changes":                {build.Pod("p", web), false},
		"one changes that does not run, another runs":          {build.Pod("p", done, build.Running(0), web), false},
		"an init container changes alone":                      {build.Pod("p", setup, done, build.Running(0)), false},
		"an init container changes with a container that runs": {build.Pod("p", setup, web, build.Running(0)), true},
		"nothing changes":                                      {build.Pod("p", done, build.Running(0)), false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			change, err := Images(rulesOf(t, build.Registry("bj", "bj.io")), "bj", seats.Slim(tc.pod))
			if err != nil {
				t.Fatal(err)
			}
			if got := change.Restarts(); got != tc.want {
				t.Errorf("a container restarts: %t, want %t", got, tc.want)
			}
		})
	}
}

func TestPatchesFailOnAnotherPodOfTheSameName(t *testing.T) {
	change, err := Images(rulesOf(t, build.Registry("bj", "bj.io")), "bj", seats.Slim(build.Pod("p", build.UID("the-one"), build.Container("web", "nginx"))))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := change.Patch(map[string]string{"a": "b"})
	if err != nil {
		t.Fatal(err)
	}
	var patch corev1.Pod
	if err := json.Unmarshal(raw, &patch); err != nil {
		t.Fatal(err)
	}
	if patch.UID != "the-one" || patch.Labels["a"] != "b" {
		t.Errorf("patch is %s: it must carry the UID and the labels", raw)
	}
}

// TestOnlyTheLastRulesOfAPodCount applies different rules one after the other. Only
// the last ones count, and without rules the pod is as its template.
func TestOnlyTheLastRulesOfAPodCount(t *testing.T) {
	registry := rapid.SampledFrom([]string{"a.io", "b.io:5000", "localhost"})
	rapid.Check(t, func(t *rapid.T) {
		template := build.Pod("p", build.Running(0))
		for i := range rapid.IntRange(1, 3).Draw(t, "containers") {
			image := rapid.SampledFrom([]string{"nginx", "a.io/x/y:1", "b.io:5000/z@sha256:" + fmt.Sprintf("%064d", 7)}).Draw(t, "image")
			if rapid.Bool().Draw(t, "init") {
				build.InitContainer(fmt.Sprint("c", i), image)(template)
			} else {
				build.Container(fmt.Sprint("c", i), image)(template)
			}
		}
		pod, last := template.DeepCopy(), rulesOf(t)
		for range rapid.IntRange(0, 4).Draw(t, "edits") {
			last = rulesOf(t)
			if rapid.Bool().Draw(t, "a rule") {
				last = rulesOf(t, build.Registry("bj", registry.Draw(t, "registry")))
			}
			if after := patched(t, last, "bj", pod); after != nil {
				pod = after
			}
			if again := patched(t, last, "bj", pod); again != nil {
				t.Fatal("applied twice, the second time changed something")
			}
		}
		fresh := template
		if after := patched(t, last, "bj", template); after != nil {
			fresh = after
		}
		if diff := cmp.Diff(imagesOf(fresh), imagesOf(pod)); diff != "" {
			t.Fatalf("earlier rules have an effect (-want +got):\n%s", diff)
		}
		if after := patched(t, rulesOf(t), "bj", pod); after != nil {
			pod = after
		}
		if diff := cmp.Diff(imagesOf(template), imagesOf(pod)); diff != "" {
			t.Fatalf("the template's images did not come back (-want +got):\n%s", diff)
		}
		if pod.Annotations[gm.OriginalImagesAnnotation] != "" {
			t.Fatal("the annotation with the original images was not removed")
		}
	})
}

func TestPodLabels(t *testing.T) {
	app := ownership.PolicyOwners{Propagation: build.Owner(build.Deployment("d", build.Bound("p", ""))), Override: build.Owner(build.Deployment("d", build.Requires("", "o")))}
	r, pod := newTestResolver(t).Resolver, seats.Slim(build.Pod("a", build.OwnedBy(build.ReplicaSet("web-1"))))
	want := map[string]string{
		gm.RequiredPropagationPolicyLabel: "p", gm.BindingPropagationPolicyLabel: "p",
		gm.RequiredOverridePolicyLabel: "o", gm.NodeGroupLabel: "bj",
	}
	if diff := cmp.Diff(want, r.PodLabels(app, pod, "bj")); diff != "" {
		t.Errorf("wrong labels (-want +got):\n%s", diff)
	}
	r.walker.Put(build.Owner(build.ReplicaSet("web-1", build.SelectsBy("app", gm.NodeGroupLabel, gm.RequiredOverridePolicyLabel))))
	delete(want, gm.NodeGroupLabel)
	delete(want, gm.RequiredOverridePolicyLabel)
	if diff := cmp.Diff(want, r.PodLabels(app, pod, "bj")); diff != "" {
		t.Errorf("labels that the owner finds its pods by are written (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{}, r.PodLabels(ownership.PolicyOwners{}, pod, "")); diff != "" {
		t.Errorf("a pod without a workload and a group has labels (-want +got):\n%s", diff)
	}
}
