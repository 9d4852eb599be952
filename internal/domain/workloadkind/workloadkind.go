// Package workloadkind parses the list of further kinds of workloads that users write to
// the ConfigMap groupmanagement-config (docs/sources.md, G8):
//
//   - group: apps.example.com
//     version: v1
//     kind: Widget
//     replicasPath: .spec.replicas
//
// It checks the text only. The caller finds out whether the API server serves a kind and
// allows the manager to watch it.
package workloadkind

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"
)

const (
	// Key is the key of the ConfigMap whose value is the list of kinds.
	Key = "workloads.yaml"

	// MaxText bounds the text, in bytes.
	MaxText = 64 << 10
	// MaxEntries bounds the list: every replica has one watch for each entry.
	MaxEntries = 50
	// maxPath bounds a path, in bytes.
	maxPath = 253
)

// Entry is one kind of workload, as the user describes it.
type Entry struct {
	schema.GroupVersionKind
	// Resource is the plural name under which the kind is served. Empty: the API server
	// is asked for it.
	Resource string
	// ReplicasPath is the path of the field with the desired number of pods. Empty: the
	// kind has no such field.
	ReplicasPath Path
	// PodTemplatePath is the path of the pod template. OverridePolicies are tried on this
	// template before they are used. Empty: they are not tried.
	PodTemplatePath Path
	// RevisionLabel is the key of the pod label whose value differs between revisions of an
	// object. Empty: the labels that Kubernetes' own kinds use.
	RevisionLabel string
}

// Path is the path of a field in an object: one field name for each level.
type Path []string

// String returns the path as users write it, such as .spec.replicas.
func (p Path) String() string {
	if len(p) == 0 {
		return ""
	}
	return "." + strings.Join(p, ".")
}

// EntryError is the error of an entry, with what would be right.
type EntryError struct {
	// Index is the entry's index in the list, from 0; -1 for the text as a whole.
	Index int
	// Kind is the entry's kind and group; empty if they could not be parsed.
	Kind string
	// Err depends on the text only, not on the order of maps, so that the same text
	// always has the same errors.
	Err error
}

// Error returns the error with the entry before it.
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

// Unwrap returns the error without the entry.
func (e EntryError) Unwrap() error { return e.Err }

// builtin are the kinds that are workloads without an entry.
var builtin = map[schema.GroupKind]bool{
	{Kind: "Pod"}:                        true,
	{Group: "apps", Kind: "Deployment"}:  true,
	{Group: "apps", Kind: "ReplicaSet"}:  true,
	{Group: "apps", Kind: "StatefulSet"}: true,
	{Group: "apps", Kind: "DaemonSet"}:   true,
	{Group: "batch", Kind: "Job"}:        true,
	{Group: "batch", Kind: "CronJob"}:    true,
}

// Parse parses the list. It returns the valid entries, and one error for each invalid
// entry. An error of the text as a whole leaves no entries.
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
			err = fmt.Errorf("entry %d names the same kind: keep one of them", at)
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

// decode parses the text as a list. An empty text is an empty list.
func decode(text string) ([]any, error) {
	if len(text) > MaxText {
		return nil, fmt.Errorf("the text has %d bytes: at most %d are allowed", len(text), MaxText)
	}
	if manyDocuments(text) {
		return nil, errors.New("the text has more than one YAML document: write one list")
	}
	var value any
	if err := yaml.UnmarshalStrict([]byte(text), &value); err != nil {
		return nil, fmt.Errorf("the text is not valid YAML: %s", firstLine(err.Error()))
	}
	switch list := value.(type) {
	case nil:
		return nil, nil
	case []any:
		if len(list) > MaxEntries {
			return nil, fmt.Errorf("the list has %d entries: at most %d are allowed", len(list), MaxEntries)
		}
		return list, nil
	}
	return nil, errors.New(`the text is not a list: begin each entry with "- "`)
}

// manyDocuments reports whether the text has more than one YAML document with content.
// The decoder would ignore all but the first without an error.
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

// firstLine returns the first line of a decoder's error, without its prefixes.
func firstLine(text string) string {
	for _, prefix := range []string{"error converting YAML to JSON: ", "yaml: "} {
		text = strings.TrimPrefix(text, prefix)
	}
	text = strings.TrimPrefix(text, "unmarshal errors:\n  ")
	text, _, _ = strings.Cut(text, "\n")
	return text
}

// fields are the fields of an entry, in the order of docs/workloads.md.
var fields = []string{"group", "version", "kind", "resource", "replicasPath", "podTemplatePath", "revisionLabel"}

func parseEntry(item any) (Entry, error) {
	object, ok := item.(map[string]any)
	if !ok {
		return Entry{}, fmt.Errorf("is not an object: the fields are %s", strings.Join(fields, ", "))
	}
	for _, name := range slices.Sorted(maps.Keys(object)) {
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

// kindOf returns the kind and group of an entry; empty if one of them is not valid.
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
		return fmt.Errorf("kind %.63q is not a valid kind name, such as CloneSet", e.Kind)
	case e.Group != "" && len(validation.IsDNS1123Subdomain(e.Group)) > 0:
		return fmt.Errorf("group %.63q is not a valid API group name, such as apps.example.com; the core group is \"\"", e.Group)
	case e.Version == "":
		return errors.New("version is missing, such as v1alpha1")
	case len(validation.IsDNS1035Label(e.Version)) > 0:
		return fmt.Errorf("version %.63q is not a valid version, such as v1alpha1: write the group in the field group", e.Version)
	case builtin[e.GroupKind()]:
		return errors.New("the kind is built in: remove the entry")
	case e.Resource != "" && len(validation.IsDNS1035Label(e.Resource)) > 0:
		return fmt.Errorf("resource %.63q is not a valid plural name, such as clonesets", e.Resource)
	case e.RevisionLabel != "" && len(validation.IsQualifiedName(e.RevisionLabel)) > 0:
		return fmt.Errorf("revisionLabel %.63q is not a valid label key, such as pod-template-hash", e.RevisionLabel)
	}
	return nil
}

// parsePath parses names of fields with dots between them. The first dot is optional.
func parsePath(text string) (Path, error) {
	if text == "" {
		return nil, nil
	}
	if len(text) > maxPath {
		return nil, fmt.Errorf("has %d characters: at most %d are allowed", len(text), maxPath)
	}
	path := Path(strings.Split(strings.TrimPrefix(text, "."), "."))
	for _, name := range path {
		switch {
		case strings.ContainsAny(name, "[]*{}$@"):
			return nil, fmt.Errorf("%q leads into a list: only names of fields with dots between them can be followed, such as .spec.replicas", text)
		case !namePattern.MatchString(name):
			return nil, fmt.Errorf("%q is not a path: write names of fields with dots between them, such as .spec.replicas", text)
		}
	}
	if path[0] == "metadata" {
		return nil, fmt.Errorf("%q leads into metadata: the value cannot be there", text)
	}
	return path, nil
}
