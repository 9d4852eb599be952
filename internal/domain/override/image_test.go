package override

import (
	"errors"
	"strings"
	"testing"

	"github.com/distribution/reference"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

var (
	digestA = "sha256:" + strings.Repeat("a", 64)
	digestB = "sha256:" + strings.Repeat("b", 64)
)

// imageRule makes a spec with one rule for every group.
func imageRule(overriders ...gm.ImageOverrider) gm.OverrideSpec {
	return gm.OverrideSpec{OverrideRules: []gm.RuleWithNodeGroup{inline(gm.Overriders{ImageOverrider: overriders})}}
}

// inline makes a rule with overriders directly in the rule.
func inline(overriders gm.Overriders, groups ...string) gm.RuleWithNodeGroup {
	return gm.RuleWithNodeGroup{TargetNodeGroup: groups, InlineOverriders: gm.InlineOverriders(overriders)}
}

func mustCompile(t testing.TB, spec gm.OverrideSpec) *Rules {
	t.Helper()
	rules, problems := Compile(spec)
	if len(problems) > 0 {
		t.Fatalf("Compile: %v", problems)
	}
	return rules
}

// oneImage applies the rules to a pod with one container.
func oneImage(rules *Rules, image string) (string, error) {
	images, err := rules.Images("edge", []Image{{Container: "c", Image: image}})
	if err != nil {
		return "", err
	}
	return images[0].Image, nil
}

func TestImageTableOfOperations(t *testing.T) {
	tests := map[string]struct {
		in        string
		component gm.ImageComponent
		operator  gm.OverriderOperator
		value     string
		want      string
	}{
		"a registry is set without an implied library/": {"nginx", "Registry", "replace", "hz.io", "hz.io/nginx"},
		"update is replace":                             {"nginx", "Registry", "update", "hz.io", "hz.io/nginx"},
		"a registry with a port is replaced as a whole": {"r.io:5000/a/b", "Registry", "replace", "hz.io", "hz.io/a/b"},
		"a registry gets a port":                        {"r.io/a:1", "Registry", "add", ":5000", "r.io:5000/a:1"},
		"a registry is added where there is none":       {"nginx:1", "Registry", "add", "r.io", "r.io/nginx:1"},
		"a registry gets a suffix":                      {"r.io/a:1", "Registry", "add", ".cn", "r.io.cn/a:1"},
		"a first part without dot is no registry":       {"ubuntu/nginx:1", "Registry", "replace", "hz.io", "hz.io/ubuntu/nginx:1"},
		"a value without dot ends up in the repository": {"ubuntu/nginx:1", "Registry", "replace", "bitnami", "bitnami/ubuntu/nginx:1"},
		"removing a registry that is none":              {"ubuntu/nginx:1", "Registry", "remove", "", "ubuntu/nginx:1"},
		"removing a registry":                           {"r.io/a/b:1", "Registry", "remove", "", "a/b:1"},
		"the value of remove is ignored":                {"r.io/a:1", "Registry", "remove", "not looked at!", "a:1"},
		"docker.io is not implied away":                 {"docker.io/library/nginx:1", "Registry", "replace", "hz.io", "hz.io/library/nginx:1"},
		"localhost is a registry":                       {"localhost/a:1", "Registry", "replace", "hz.io", "hz.io/a:1"},
		"an IPv6 registry is replaced":                  {"[2001:db8::1]:5000/a:1", "Registry", "replace", "hz.io", "hz.io/a:1"},
		"an IPv6 registry is set":                       {"r.io/a:1", "Registry", "replace", "[2001:db8::1]:5000", "[2001:db8::1]:5000/a:1"},
		"an IPv4 registry with a port":                  {"10.0.0.1:80/x", "Registry", "replace", "hz.io:443", "hz.io:443/x"},
		"a host without a dot is repository":            {"myhost/a:1", "Registry", "replace", "hz.io", "hz.io/myhost/a:1"},
		"a registry change keeps the digest":            {"r.io/a@" + digestA, "Registry", "replace", "hz.io", "hz.io/a@" + digestA},
		"a registry change keeps tag and digest":        {"r.io/a:1@" + digestA, "Registry", "replace", "hz.io", "hz.io/a:1@" + digestA},
		"a repository change keeps the digest":          {"r.io/a:1@" + digestA, "Repository", "add", "-edge", "r.io/a-edge:1@" + digestA},
		"a repository is replaced":                      {"r.io/a:1", "Repository", "replace", "b/c", "r.io/b/c:1"},
		"a repository gets a suffix":                    {"r.io/a:1", "Repository", "add", "-edge", "r.io/a-edge:1"},
		"a repository gets a part":                      {"r.io/a:1", "Repository", "add", "/edge", "r.io/a/edge:1"},
		"a tag is added":                                {"r.io/a", "Tag", "add", "v1", "r.io/a:v1"},
		"a tag gets a suffix":                           {"r.io/a:1", "Tag", "add", "-alpine", "r.io/a:1-alpine"},
		"a colon before an added tag is not doubled":    {"r.io/a", "Tag", "add", ":v1", "r.io/a:v1"},
		"a tag that is added to a digest replaces it":   {"r.io/a@" + digestA, "Tag", "add", "v1", "r.io/a:v1"},
		"a tag's suffix drops the digest":               {"r.io/a:1@" + digestA, "Tag", "add", "-alpine", "r.io/a:1-alpine"},
		"a tag becomes a digest":                        {"r.io/a:1", "Tag", "replace", digestB, "r.io/a@" + digestB},
		"a tag becomes a digest written with @":         {"r.io/a:1", "Tag", "replace", "@" + digestB, "r.io/a@" + digestB},
		"a tag and digest become a digest":              {"r.io/a:1@" + digestA, "Tag", "replace", digestB, "r.io/a@" + digestB},
		"a digest becomes a tag":                        {"r.io/a@" + digestA, "Tag", "replace", "v2", "r.io/a:v2"},
		"a tag and digest become a tag":                 {"r.io/a:1@" + digestA, "Tag", "replace", "v2", "r.io/a:v2"},
		"a tag written with its colon":                  {"r.io/a:1", "Tag", "replace", ":2", "r.io/a:2"},
		"a digest is removed":                           {"r.io/a@" + digestA, "Tag", "remove", "", "r.io/a"},
		"tag and digest are removed":                    {"r.io/a:1@" + digestA, "Tag", "remove", "", "r.io/a"},
		"a port is no tag":                              {"r.io:5000/a", "Tag", "replace", "v2", "r.io:5000/a:v2"},
		"a sha512 digest is kept":                       {"r.io/a@sha512:" + strings.Repeat("c", 128), "Registry", "replace", "hz.io", "hz.io/a@sha512:" + strings.Repeat("c", 128)},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			rules := mustCompile(t, imageRule(gm.ImageOverrider{Component: tc.component, Operator: tc.operator, Value: tc.value}))
			got, err := oneImage(rules, tc.in)
			if err != nil || got != tc.want {
				t.Errorf("%s of %s %q on %q = %q, %v; want %q", tc.operator, tc.component, tc.value, tc.in, got, err, tc.want)
			}
		})
	}
}

func TestImageTableOfParts(t *testing.T) {
	tests := map[string]struct {
		in   string
		want imageName
	}{
		"a bare name":             {"nginx", imageName{repository: "nginx"}},
		"docker.io stays":         {"docker.io/library/nginx:1", imageName{"docker.io", "library/nginx", "1", ""}},
		"localhost":               {"localhost/a:1", imageName{"localhost", "a", "1", ""}},
		"IPv6":                    {"[2001:db8::1]:5000/a:1", imageName{"[2001:db8::1]:5000", "a", "1", ""}},
		"IPv6 without a port":     {"[::1]/a", imageName{registry: "[::1]", repository: "a"}},
		"IPv4 with a port":        {"10.0.0.1:80/x", imageName{registry: "10.0.0.1:80", repository: "x"}},
		"a host without a dot":    {"myhost/a:1", imageName{"", "myhost/a", "1", ""}},
		"a port makes a registry": {"myhost:5000/a", imageName{registry: "myhost:5000", repository: "a"}},
		"tag and digest":          {"r.io/a/b:1@" + digestA, imageName{"r.io", "a/b", "1", digestA}},
		"a name and a tag":        {"a:5000", imageName{repository: "a", tag: "5000"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := parseImage(tc.in)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(imageName{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestImageTableOfInvalidImages(t *testing.T) {
	rules := mustCompile(t, imageRule(
		gm.ImageOverrider{Component: "Tag", Operator: "remove"},
		gm.ImageOverrider{Component: "Registry", Operator: "replace", Value: "hz.io"}))
	tests := map[string]string{
		"upper case":                    "r.io/Foo:1",
		"an upper case first part":      "MyHost/a:1",
		"empty":                         "",
		"a space":                       " nginx",
		"an empty tag":                  "r.io/a:",
		"a scheme":                      "https://r.io/a",
		"a short digest":                "r.io/a@sha256:abc",
		"a registry alone":              "r.io/",
		"an ID":                         strings.Repeat("a", 64),
		"two digests":                   "a@" + digestA + "@" + digestB,
		"longer than any name can be":   strings.Repeat("a/", 1000) + "a",
		"a repository that is too long": "r.io/" + strings.Repeat("a", 256),
		"not UTF-8":                     "r.io/\xff",
	}
	for name, image := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := oneImage(rules, image)
			ruleError, ok := errors.AsType[RuleError](err)
			if !ok || ruleError.Rule != 0 || ruleError.Overrider != "spec.overrideRules[0].imageOverrider[0]" {
				t.Fatalf("%q gave %v, not an error that names the rule", image, err)
			}
			if !strings.Contains(err.Error(), `container "c": image "`) && len(image) < 1000 {
				t.Errorf("the error does not name container and image: %v", err)
			}
			if len(err.Error()) > 1500 {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
		})
	}
}

// TestAnImageOfTheGreatestLength checks that an image of the highest length can be
// changed.
func TestAnImageOfTheGreatestLength(t *testing.T) {
	rules := mustCompile(t, imageRule(gm.ImageOverrider{Component: "Tag", Operator: "replace", Value: "2"}))
	host := strings.Repeat("a.", maxImageLength/2-3)
	if got, err := oneImage(rules, host+"io/a"); err != nil {
		t.Errorf("of %d characters: %v", len(host+"io/a")+len(":2"), err)
	} else if len(got) != maxImageLength {
		t.Errorf("the image has %d characters, this test is about %d", len(got), maxImageLength)
	}
	if got, err := oneImage(rules, host+"io/ab"); err == nil {
		t.Errorf("there is an image of %d characters", len(got))
	}
}

func TestInvalidResultsAreErrors(t *testing.T) {
	tests := map[string]struct {
		in       string
		override gm.ImageOverrider
	}{
		"a part of a registry that breaks it":      {"r.io:5000/a", gm.ImageOverrider{Component: "Registry", Operator: "add", Value: ":5000"}},
		"a tag that grows too long":                {"a:" + strings.Repeat("1", 100), gm.ImageOverrider{Component: "Tag", Operator: "add", Value: strings.Repeat("1", 100)}},
		"a first tag that begins with a dash":      {"r.io/a", gm.ImageOverrider{Component: "Tag", Operator: "add", Value: "-alpine"}},
		"a repository that grows too long":         {"r.io/" + strings.Repeat("a", 200), gm.ImageOverrider{Component: "Repository", Operator: "add", Value: strings.Repeat("b", 100)}},
		"a repository that would read as registry": {"nginx", gm.ImageOverrider{Component: "Repository", Operator: "replace", Value: "evil.io/nginx"}},
		"what is left would read as registry":      {"r.io/b.io/c", gm.ImageOverrider{Component: "Registry", Operator: "remove"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got, err := oneImage(mustCompile(t, imageRule(tc.override)), tc.in); err == nil {
				t.Errorf("%q became %q", tc.in, got)
			}
		})
	}
}

func genImage(t *rapid.T) string {
	registry := rapid.SampledFrom([]string{"", "r.io/", "r.io:5000/", "localhost/", "[2001:db8::1]:5000/", "10.0.0.1:80/"}).Draw(t, "registry")
	repository := rapid.StringMatching(`[a-z0-9]{1,5}([._-][a-z0-9]{1,3})?(/[a-z0-9]{1,5})?`).Draw(t, "repository")
	if strings.Contains(strings.Split(repository, "/")[0], ".") {
		registry = "r.io/"
	}
	tag := rapid.SampledFrom([]string{"", ":1", ":v1.2-x"}).Draw(t, "tag")
	digest := rapid.SampledFrom([]string{"", "@" + digestA}).Draw(t, "digest")
	return registry + repository + tag + digest
}

func TestRegistryAndRepositoryKeepTagAndDigestAndTagDropsTheDigest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		image := genImage(t)
		override := rapid.SampledFrom([]gm.ImageOverrider{
			{Component: "Registry", Operator: "replace", Value: "hz.io:5000"},
			{Component: "Registry", Operator: "add", Value: ".cn"},
			{Component: "Registry", Operator: "remove"},
			{Component: "Repository", Operator: "replace", Value: "b/c"},
			{Component: "Repository", Operator: "add", Value: "-edge"},
			{Component: "Tag", Operator: "replace", Value: "v2"},
			{Component: "Tag", Operator: "add", Value: "v2"},
			{Component: "Tag", Operator: "remove"},
		}).Draw(t, "override")
		rules, problems := Compile(imageRule(override))
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		got, err := oneImage(rules, image)
		if err != nil {
			return
		}
		again, _ := oneImage(rules, image)
		if again != got {
			t.Fatalf("from the same base %q came %q and %q", image, got, again)
		}
		before, _ := parseImage(image)
		after, err := parseImage(got)
		if err != nil {
			t.Fatalf("%q became %q: %v", image, got, err)
		}
		if override.Component == gm.Tag {
			if after.digest != "" || after.registry != before.registry || after.repository != before.repository {
				t.Fatalf("%q became %q", image, got)
			}
			return
		}
		if after.tag != before.tag || after.digest != before.digest {
			t.Fatalf("%q became %q", image, got)
		}
	})
}

// FuzzParseImage compares the parts of an image with the result of the library of the
// container runtimes, without the defaults that the library adds.
func FuzzParseImage(f *testing.F) {
	for _, seed := range []string{
		"nginx", "r.io/a:1", "r.io:5000/a/b", "docker.io/library/nginx:1", "docker.io/nginx", "index.docker.io/a",
		"[2001:db8::1]:5000/a:1", "myhost/a", "MyHost/a", "r.io/Foo", "a@" + digestA, "r.io/a:1@" + digestA, "", " ", "a:", "localhost", "localhost/a", "a:b:c", "a//b",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, image string) {
		got, err := parseImage(image)
		want, wantErr := reference.ParseNormalizedNamed(image)
		if err != nil {
			first, _, found := strings.Cut(image, "/")
			upper := found && !strings.ContainsAny(first, ".:") && strings.ToLower(first) != first
			if wantErr == nil && !upper && len(image) <= maxImageLength {
				t.Fatalf("%q is refused: %v", image, err)
			}
			return
		}
		if wantErr != nil {
			t.Fatalf("%q is accepted as %+v; the library returns %v", image, got, wantErr)
		}
		if got.String() != image {
			t.Fatalf("%q came back as %q", image, got)
		}
		domain, path := got.registry, got.repository
		if domain == "" || domain == "index.docker.io" {
			domain = "docker.io"
		}
		if domain == "docker.io" && !strings.Contains(path, "/") {
			path = "library/" + path
		}
		if domain != reference.Domain(want) || path != reference.Path(want) {
			t.Fatalf("%q: %+v, the library returns %q and %q", image, got, reference.Domain(want), reference.Path(want))
		}
		if tagged, ok := want.(reference.Tagged); ok != (got.tag != "") || ok && tagged.Tag() != got.tag {
			t.Fatalf("%q: tag %q", image, got.tag)
		}
		if pinned, ok := want.(reference.Digested); ok != (got.digest != "") || ok && pinned.Digest().String() != got.digest {
			t.Fatalf("%q: digest %q", image, got.digest)
		}
	})
}

func BenchmarkImages(b *testing.B) {
	rules := mustCompile(b, imageRule(gm.ImageOverrider{Component: "Registry", Operator: "replace", Value: "hz.io"}))
	base := []Image{{Container: "a", Image: "r.io/team/app:v1"}, {Container: "b", Init: true, Image: "r.io/team/init:v1"}}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := rules.Images("edge", base); err != nil {
			b.Fatal(err)
		}
	}
}
