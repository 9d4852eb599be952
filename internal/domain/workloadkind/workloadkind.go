// Package workloadkind reads what users write about kinds of workloads that
// Kubernetes itself does not have in the ConfigMap
// groupmanagement-config (docs/sources.md, G8):
//
//   - group: apps.example.com
//     version: v1
//     kind: Sail
//     replicasPath: .spec.replicas
//
// It judges the text alone. Whether a kind is served, and whether it may be
// watched, is for others to find out.
package workloadkind

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"
)

const (
	// Key is the key of the ConfigMap under which the list of kinds is.
	Key = "workloads.yaml"

	// MaxText bounds the text, in bytes.
	MaxText = 64 << 10
	// MaxEntries bounds the list: each entry is a watch on every replica.
	MaxEntries = 50
	// maxPath bounds a path, in bytes.
	maxPath = 253
)

// Entry is one kind of workload, as its user describes it.
type Entry struct {
	schema.GroupVersionKind
	// Resource is the plural under which the kind is served, where the user
	// wrote it; the API server knows.
	Resource string
	// ReplicasPath leads to the number of pods that an object wants. Empty: it
	// has no such number.
	ReplicasPath Path
	// PodTemplatePath leads to the template of the object's pods. What an
	// OverridePolicy makes of them is tried on it. Empty: nothing is tried.
	PodTemplatePath Path
	// RevisionLabel is the key of the pod label that tells the revisions of an
	// object's pods apart. Empty: the labels that Kubernetes' own kinds use.
	RevisionLabel string
}

// Path is the names of the fields that lead to a value.
type Path []string

// String spells the path as users do: .spec.replicas.
func (p Path) String() string {
	if len(p) == 0 {
		return ""
	}
	return "." + strings.Join(p, ".")
}

// EntryError says what is wrong with an entry and what would be right.
type EntryError struct {
	// Index is the entry's place in the list, from 0; -1 is the text as a whole.
	Index int
	// Kind is the entry's kind, as far as it could be read.
	Kind string
	// Err holds no line numbers and no order of maps: the same text has the same
	// errors.
	Err error
}

// Error names the entry.
func (e EntryError) Error() string {
	switch {
	case e.Index < 0:
		return fmt.Sprintf("%s: %v", Key, e.Err)
	case e.Kind == "":
		return fmt.Sprintf("%s[%d]: %v", Key, e.Index, e.Err)
	default:
		return fmt.Sprintf("%s[%d] (%s): %v", Key, e.Index, e.Kind, e.Err)
	}
}

// Unwrap returns what is wrong.
func (e EntryError) Unwrap() error { return e.Err }

// builtin are the kinds that are always on.
var builtin = map[schema.GroupKind]bool{
	{Kind: "Pod"}:                        true,
	{Group: "apps", Kind: "Deployment"}:  true,
	{Group: "apps", Kind: "ReplicaSet"}:  true,
	{Group: "apps", Kind: "StatefulSet"}: true,
	{Group: "apps", Kind: "DaemonSet"}:   true,
	{Group: "batch", Kind: "Job"}:        true,
	{Group: "batch", Kind: "CronJob"}:    true,
}

// Parse reads the list. It returns the entries that are right, also beside
// others that are not; an error for each of those; and never both for one.
func Parse(text string) ([]Entry, []EntryError) {
	list, err := decode(text)
	if err != nil {
		return nil, []EntryError{{Index: -1, Err: err}}
	}
	var entries []Entry
	var errs []EntryError
	first := map[schema.GroupKind]int{}
	for i, item := range list {
		e, err := parseEntry(item)
		if at, twice := first[e.GroupKind()]; err == nil && twice {
			err = fmt.Errorf("entry %d is about the same kind: keep one of them", at)
		}
		if err != nil {
			errs = append(errs, EntryError{Index: i, Kind: kindOf(item), Err: err})
			continue
		}
		first[e.GroupKind()] = i
		entries = append(entries, e)
	}
	return entries, errs
}

// decode reads the text as a list. An empty text is an empty list.
func decode(text string) ([]any, error) {
	if len(text) > MaxText {
		return nil, fmt.Errorf("the text has %d bytes: at most %d are read", len(text), MaxText)
	}
	if manyDocuments(text) {
		return nil, errors.New("the text has more than one YAML document: write one list")
	}
	var value any
	if err := yaml.UnmarshalStrict([]byte(text), &value); err != nil {
		return nil, fmt.Errorf("the text is no YAML: %s", firstLine(err.Error()))
	}
	switch list := value.(type) {
	case nil:
		return nil, nil
	case []any:
		if len(list) > MaxEntries {
			return nil, fmt.Errorf("the list has %d entries: at most %d are read", len(list), MaxEntries)
		}
		return list, nil
	}
	return nil, errors.New(`the text is not a list: begin each entry with "- "`)
}

// manyDocuments tells whether content follows content behind a "---": the
// decoder would pass it over in silence.
func manyDocuments(text string) bool {
	content := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \t\r\n")
		switch {
		case line == "---" || strings.HasPrefix(line, "--- "):
			if content {
				return true
			}
		case line != "" && !strings.HasPrefix(strings.TrimSpace(line), "#") && !strings.HasPrefix(line, "%"):
			content = true
		}
	}
	return false
}

func firstLine(text string) string {
	for _, prefix := range []string{"error converting YAML to JSON: ", "yaml: "} {
		text = strings.TrimPrefix(text, prefix)
	}
	text = strings.TrimPrefix(text, "unmarshal errors:\n  ")
	text, _, _ = strings.Cut(text, "\n")
	return text
}

// fields are what an entry may say, in the order in which docs list them.
var fields = []string{"group", "version", "kind", "resource", "replicasPath", "podTemplatePath", "revisionLabel"}

func parseEntry(item any) (Entry, error) {
	object, ok := item.(map[string]any)
	if !ok {
		return Entry{}, fmt.Errorf("is no object: the fields are %s", strings.Join(fields, ", "))
	}
	for _, name := range sorted(object) {
		if !slices.Contains(fields, name) {
			return Entry{}, fmt.Errorf("unknown field %.63q: the fields are %s", name, strings.Join(fields, ", "))
		}
	}
	values := map[string]string{}
	for _, name := range fields {
		switch value := object[name].(type) {
		case nil:
		case string:
			values[name] = value
		default:
			return Entry{}, fmt.Errorf("%s is not a string: put it in quotes", name)
		}
	}
	e := Entry{
		GroupVersionKind: schema.GroupVersionKind{Group: values["group"], Version: values["version"], Kind: values["kind"]},
		Resource:         values["resource"],
		RevisionLabel:    values["revisionLabel"],
	}
	if err := e.check(); err != nil {
		return Entry{}, err
	}
	var err error
	if e.ReplicasPath, err = parsePath(values["replicasPath"]); err != nil {
		return Entry{}, fmt.Errorf("replicasPath %w", err)
	}
	if e.PodTemplatePath, err = parsePath(values["podTemplatePath"]); err != nil {
		return Entry{}, fmt.Errorf("podTemplatePath %w", err)
	}
	return e, nil
}

func sorted(object map[string]any) []string {
	names := make([]string, 0, len(object))
	for name := range object {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func kindOf(item any) string {
	object, _ := item.(map[string]any)
	kind, _ := object["kind"].(string)
	group, _ := object["group"].(string)
	if !kindPattern.MatchString(kind) || group != "" && len(validation.IsDNS1123Subdomain(group)) > 0 {
		return ""
	}
	return schema.GroupKind{Group: group, Kind: kind}.String()
}

var (
	kindPattern = regexp.MustCompile(`^[A-Z][A-Za-z0-9]{0,62}$`)
	namePattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]*$`)
)

func (e *Entry) check() error {
	switch {
	case e.Kind == "":
		return errors.New("kind is missing")
	case !kindPattern.MatchString(e.Kind):
		return fmt.Errorf("kind %.63q is no name of a kind, such as CloneSet", e.Kind)
	case e.Group != "" && len(validation.IsDNS1123Subdomain(e.Group)) > 0:
		return fmt.Errorf("group %.63q is no name of an API group, such as apps.example.com; the core group is \"\"", e.Group)
	case e.Version == "":
		return errors.New("version is missing, such as v1alpha1")
	case len(validation.IsDNS1035Label(e.Version)) > 0:
		return fmt.Errorf("version %.63q is no version, such as v1alpha1: the group has a field of its own", e.Version)
	case builtin[e.GroupKind()]:
		return errors.New("the kind is always on: take the entry out")
	case e.Resource != "" && len(validation.IsDNS1035Label(e.Resource)) > 0:
		return fmt.Errorf("resource %.63q is no plural, such as clonesets", e.Resource)
	case e.RevisionLabel != "" && len(validation.IsQualifiedName(e.RevisionLabel)) > 0:
		return fmt.Errorf("revisionLabel %.63q is no key of a label, such as pod-template-hash", e.RevisionLabel)
	}
	return nil
}

// parsePath reads names of fields with dots between them. A dot before the
// first may be left out.
func parsePath(text string) (Path, error) {
	if text == "" {
		return nil, nil
	}
	if len(text) > maxPath {
		return nil, fmt.Errorf("has %d characters: at most %d are read", len(text), maxPath)
	}
	path := Path(strings.Split(strings.TrimPrefix(text, "."), "."))
	for _, name := range path {
		switch {
		case strings.ContainsAny(name, "[]*{}$@"):
			return nil, fmt.Errorf("%q leads into a list: only names of fields with dots between them can be followed, such as .spec.replicas", text)
		case !namePattern.MatchString(name):
			return nil, fmt.Errorf("%q is no path: write names of fields with dots between them, such as .spec.replicas", text)
		}
	}
	if path[0] == "metadata" {
		return nil, fmt.Errorf("%q leads into metadata: no object keeps it there", text)
	}
	return path, nil
}
