package override

import (
	_ "crypto/sha512" // images may be pinned by sha384 and sha512 as well
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/distribution/reference"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

// maxImageLength is the longest name of an image in bytes. It bounds error messages, which
// repeat the name; the parts of a valid name together are shorter.
const maxImageLength = 1024

// imageName is the name of an image in parts: [registry/]repository[:tag][@digest]. Parts
// that the name leaves out are "": docker.io, library/ and latest are not filled in.
type imageName struct{ registry, repository, tag, digest string }

// parseImage splits the name of an image into parts. The first path element is the registry
// if it contains "." or ":" or is "localhost"; the others are the repository. Names that
// container runtimes refuse are errors. So is a first element with upper case letters and
// without "." and ":", because runtimes read it in different ways.
func parseImage(image string) (imageName, error) {
	if len(image) > maxImageLength {
		return imageName{}, fmt.Errorf("image %.64q… is longer than %d characters", image, maxImageLength)
	}
	if _, err := reference.ParseNormalizedNamed(image); err != nil {
		return imageName{}, fmt.Errorf("image %q: %w", image, err)
	}
	var name imageName
	rest, digest, _ := strings.Cut(image, "@")
	name.digest = digest
	if colon := strings.LastIndexByte(rest, ':'); colon > strings.LastIndexByte(rest, '/') {
		rest, name.tag = rest[:colon], rest[colon+1:]
	}
	name.repository = rest
	if first, others, found := strings.Cut(rest, "/"); found && (strings.ContainsAny(first, ".:") || first == "localhost") {
		name.registry, name.repository = first, others
	}
	if strings.ToLower(name.repository) != name.repository {
		return imageName{}, fmt.Errorf("image %q: %w", image, reference.ErrNameContainsUppercase)
	}
	return name, nil
}

func (n imageName) String() string {
	var b strings.Builder
	if n.registry != "" {
		b.WriteString(n.registry + "/")
	}
	b.WriteString(n.repository)
	if n.tag != "" {
		b.WriteString(":" + n.tag)
	}
	if n.digest != "" {
		b.WriteString("@" + n.digest)
	}
	return b.String()
}

// imageChange is one imageOverrider. Hash covers the exported fields.
type imageChange struct {
	path      string
	Component gm.ImageComponent
	Operator  gm.OverriderOperator
	Value     string
	// List is containers or initContainers, "" for both.
	List string `json:",omitempty"`
	// Index is the index in List; everyIndex for all.
	Index int
}

const everyIndex = -1

// apply changes one part of an image's name. It fails if the result is not valid, or if the
// result has another registry than was asked for: without its registry, r.io/b.io/c would
// be an image of the registry b.io.
func (c *imageChange) apply(image string) (string, error) {
	name, err := parseImage(image)
	if err != nil {
		return "", err
	}
	switch c.Component {
	case gm.Registry:
		name.registry = changePart(c.Operator, name.registry, c.Value)
	case gm.Repository:
		name.repository = changePart(c.Operator, name.repository, c.Value)
	case gm.Tag:
		c.applyTag(&name)
	}
	changed := name.String()
	again, err := parseImage(changed)
	if err != nil {
		return "", fmt.Errorf("image %q would become invalid: %w", image, err)
	}
	if again.registry != "" && again.registry != name.registry {
		return "", fmt.Errorf("image %q would become %q, of which %q reads as the registry", image, changed, again.registry)
	}
	return changed, nil
}

func changePart(operator gm.OverriderOperator, part, value string) string {
	switch operator {
	case gm.OverriderOpAdd:
		return part + value
	case gm.OverriderOpReplace:
		return value
	}
	return ""
}

// applyTag changes the tag and removes the digest, which belongs to the old tag. A value
// that is a digest replaces both. The tag of an image with a digest only is empty, so that
// add sets it to the value.
func (c *imageChange) applyTag(name *imageName) {
	name.digest = ""
	if digestValue.MatchString(c.Value) && c.Operator == gm.OverriderOpReplace {
		name.tag, name.digest = "", strings.TrimPrefix(c.Value, "@")
		return
	}
	name.tag = changePart(c.Operator, name.tag, strings.TrimPrefix(c.Value, ":"))
}

// The patterns of values are those of the CRD's schema. They are short, because their
// length adds to the cost of its CEL rules, which is limited.
var (
	registryValue = regexp.MustCompile(`^([A-Za-z\d]+((-+|\.)[A-Za-z\d]+)*|\[[a-fA-F\d]*:[a-fA-F\d:]*\])(:\d{1,5})?$`)
	// A host without dot and port counts as part of the repository, which must not have
	// upper case letters.
	registryUpper = regexp.MustCompile(`^[^.:]*[A-Z][^.:]*$`)
	// The value of add follows a letter or a digit, or is the whole name.
	registryPart    = regexp.MustCompile(`^([A-Za-z\d]*((-+|\.)[A-Za-z\d]+)*|\[[a-fA-F\d]*:[a-fA-F\d:]*\])(:\d{1,5})?$`)
	repositoryValue = regexp.MustCompile(`^[a-z\d]+(([._/]|__|-+)[a-z\d]+)*$`)
	repositoryPart  = regexp.MustCompile(`^[a-z\d]*(([._/]|__|-+)[a-z\d]+)*$`)
	repositoryChars = regexp.MustCompile(`^[a-z\d/_.-]+$`)
	tagValue        = regexp.MustCompile(`^:?[A-Za-z0-9_][-A-Za-z0-9_.]{0,127}$`)
	tagPart         = regexp.MustCompile(`^:?[-A-Za-z0-9_.]{1,128}$`)
	digestValue     = regexp.MustCompile(`^@?sha256:[0-9a-f]{64}$`)

	predicatePath = regexp.MustCompile(`^/?(?:spec/template/)?spec/(containers|initContainers)/([0-9]{1,3}|\*)/image$`)
)

func (c *compiler) compileImages(overriders []gm.ImageOverrider, path string) []imageChange {
	changes := make([]imageChange, 0, len(overriders))
	for i := range overriders {
		at := fmt.Sprintf("%s[%d]", path, i)
		if change, ok := c.compileImage(&overriders[i], at); ok {
			changes = append(changes, change)
		}
	}
	return changes
}

func (c *compiler) compileImage(o *gm.ImageOverrider, at string) (imageChange, bool) {
	operator, ok := c.operator(o.Operator, at+".operator")
	change := imageChange{path: at, Component: o.Component, Operator: operator, Value: o.Value, Index: everyIndex}
	pathOK := true
	if o.Predicate != nil {
		match := predicatePath.FindStringSubmatch(o.Predicate.Path)
		if match == nil {
			c.refuse(at+".predicate.path", "%.255q does not point to an image: use for example /spec/containers/0/image", o.Predicate.Path)
			pathOK = false
		} else {
			change.List = match[1]
			if index, err := strconv.Atoi(match[2]); err == nil {
				change.Index = index
			}
		}
	}
	switch o.Component {
	case gm.Registry, gm.Repository, gm.Tag:
	default:
		c.refuse(at+".component", "%.64q is not one of Registry, Repository, Tag", o.Component)
		ok = false
	}
	if !ok { // which values are valid depends on the operator and the component
		return change, false
	}
	if operator == gm.OverriderOpRemove {
		change.Value = ""
		if o.Component == gm.Repository {
			c.refuse(at+".operator", "an image without a repository is no image: use replace")
			return change, false
		}
		return change, pathOK
	}
	if err := checkImageValue(o.Component, operator, o.Value); err != nil {
		c.refuse(at+".value", "%w", err)
		return change, false
	}
	return change, pathOK
}

// checkImageValue refuses values that would make every image invalid.
func checkImageValue(component gm.ImageComponent, operator gm.OverriderOperator, value string) error {
	if value == "" {
		return errors.New("value must not be empty when operator is add or replace")
	}
	if len(value) > 255 {
		return errors.New("must be at most 255 characters")
	}
	replace := operator == gm.OverriderOpReplace
	switch {
	case component == gm.Registry && replace:
		if _, err := parseImage(value + "/a"); err != nil || !registryValue.MatchString(value) || registryUpper.MatchString(value) {
			return fmt.Errorf("%q must be a host or host:port, without scheme and path, for example hangzhou.registry.io:5000", value)
		}
	case component == gm.Registry:
		if !registryPart.MatchString(value) {
			return fmt.Errorf("%q must be a part of a host or host:port, without scheme and path", value)
		}
	case component == gm.Repository:
		return checkRepository(value, replace)
	case replace:
		if !tagValue.MatchString(value) && !digestValue.MatchString(value) {
			return fmt.Errorf("%q must be a tag such as v1.2 or a digest such as sha256:<64 hexadecimal digits>", value)
		}
	default:
		if !tagPart.MatchString(value) {
			return fmt.Errorf("%q must be a part of a tag, of letters, digits, and the signs - _ . only", value)
		}
	}
	return nil
}

// checkRepository checks an image path, or, if whole is false, a part of one.
func checkRepository(value string, whole bool) error {
	part, shape := "a part of an image path", repositoryPart
	if whole {
		part, shape = "an image path", repositoryValue
	}
	switch {
	case !repositoryChars.MatchString(value):
		return fmt.Errorf("%q must be %s, of lower case letters, digits, and the signs / _ . - only", value, part)
	case whole && strings.HasPrefix(value, "/"):
		return fmt.Errorf("%q must be %s: it must not begin with /", value, part)
	case strings.HasSuffix(value, "/"):
		return fmt.Errorf("%q must be %s: it must not end with /", value, part)
	case strings.Contains(value, "//"):
		return fmt.Errorf("%q must be %s: there is nothing between two /", value, part)
	case !shape.MatchString(value):
		return fmt.Errorf("%q must be %s: between two / it must begin and end with a letter or a digit, and join those with one of . _ __ or with dashes", value, part)
	}
	if _, err := parseImage("r.io/" + value); err != nil && whole {
		return fmt.Errorf("%q must be %s: %w", value, part, err)
	}
	return nil
}
