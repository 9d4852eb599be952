package ownership

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"
)

const (
	// LevelsKey is the key of the rules in the ConfigMap. The text under it also has settings
	// for other programs (docs/sources.md, V3).
	LevelsKey = "volcano-controller.conf"

	// maxLevelsText is the highest length of the text, in bytes, and maxLevelRules the
	// highest number of rules.
	maxLevelsText, maxLevelRules = 128 << 10, 200
	// maxAdjust bounds adjust-level in both directions. No chain is longer.
	maxAdjust = 1000
)

// levelKeys are both keys of the list of rules (docs/sources.md, V3).
var levelKeys = [...]string{"podgroup-level-rules", "podgroupLevel"}

// ParseLevels parses the rules in the text of a ConfigMap. It ignores unknown keys, which
// are for other programs. notes are warnings for the author: rules that have no effect. An
// error names every problem, and means that no rule of the text is used.
func ParseLevels(text string) (levels Levels, notes []string, err error) {
	if len(text) > maxLevelsText {
		return Levels{}, nil, fmt.Errorf("%s has %d bytes: at most %d are read", LevelsKey, len(text), maxLevelsText)
	}
	var root any
	if err := yaml.Unmarshal([]byte(text), &root); err != nil {
		return Levels{}, nil, fmt.Errorf("%s is not YAML: %s", LevelsKey, firstLine(err.Error()))
	}
	if inner, is := root.(string); is { // Volcano's chart renders a text that overrides its own as a text in the text
		if err := yaml.Unmarshal([]byte(inner), &root); err != nil {
			return Levels{}, nil, fmt.Errorf("%s is not YAML: %s", LevelsKey, firstLine(err.Error()))
		}
	}
	file, ok := root.(map[string]any)
	if !ok && root != nil {
		return Levels{}, nil, fmt.Errorf("%s is not a mapping: begin with the key %s", LevelsKey, levelKeys[0])
	}
	for _, key := range append(levelKeys[:], "noMatch", "migrate") {
		levels.Stated = levels.Stated || file[key] != nil
	}
	var errs []error
	for _, key := range levelKeys {
		list, ok := file[key].([]any)
		if !ok && file[key] != nil {
			errs = append(errs, fmt.Errorf("%s is not a list: begin each rule with \"- \"", key))
			continue
		}
		for i, item := range list {
			at := fmt.Sprintf("%s[%d]", key, i)
			rule, err := parseLevelRule(item)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s%s: %w", at, nameOf(item), err))
				continue
			}
			if j := slices.IndexFunc(levels.Rules, func(r LevelRule) bool { return r.same(&rule) }); j >= 0 {
				if levels.Rules[j].Adjust != rule.Adjust {
					notes = append(notes, fmt.Sprintf("%s%s: is not used, because an earlier rule is about the same kind", at, nameOf(item)))
				}
				continue
			}
			levels.Rules = append(levels.Rules, rule)
		}
	}
	if len(levels.Rules) > maxLevelRules {
		errs = append(errs, fmt.Errorf("there are %d rules: at most %d are read", len(levels.Rules), maxLevelRules))
	}
	if levels.NoMatch, err = oneOf(file, "noMatch", NoMatchDirectOwner, NoMatchRoot); err != nil {
		errs = append(errs, err)
	}
	migrate, err := oneOf(file, "migrate", migrateNever, migratePending)
	if err != nil {
		errs = append(errs, err)
	}
	levels.MovePending = migrate == migratePending
	if len(errs) > 0 {
		return Levels{}, nil, errors.Join(errs...)
	}
	return levels, notes, nil
}

// migrate is what happens to pods when new rules select another PodGroup for them.
type migrate string

const (
	migrateNever   migrate = "Never"
	migratePending migrate = "Pending"
)

// oneOf reads a setting with two values, without regard to case. The default is the first.
func oneOf[T ~string](file map[string]any, key string, first, second T) (T, error) {
	switch value := file[key].(type) {
	case nil:
		return first, nil
	case string:
		for _, v := range []T{first, second} {
			if strings.EqualFold(value, string(v)) {
				return v, nil
			}
		}
	}
	return first, fmt.Errorf("%s is %.63v: it must be %s or %s", key, file[key], first, second)
}

// levelFields are the fields of a rule, by their name in lower case and without dashes.
var levelFields = map[string]string{"apiversion": "apiversion", "kind": "kind", "adjustlevel": "adjust-level", "exactversion": "exactVersion"}

func parseLevelRule(item any) (LevelRule, error) {
	object, ok := item.(map[string]any)
	if !ok {
		return LevelRule{}, errors.New("is not a mapping: a rule has apiversion, kind and adjust-level")
	}
	values := map[string]any{}
	for key, value := range object {
		name, known := levelFields[strings.ToLower(strings.ReplaceAll(key, "-", ""))]
		if !known {
			return LevelRule{}, fmt.Errorf("unknown field %.63q: a rule has apiversion, kind, adjust-level and exactVersion", key)
		}
		if _, twice := values[name]; twice {
			return LevelRule{}, fmt.Errorf("%s is set twice: keep one of its spellings", name)
		}
		values[name] = value
	}
	rule := LevelRule{}
	if rule.Kind, ok = values["kind"].(string); !ok || len(validation.IsDNS1035Label(strings.ToLower(rule.Kind))) > 0 {
		return LevelRule{}, errors.New("kind must be the name of a kind, such as Deployment")
	}
	apiVersion, ok := values["apiversion"].(string)
	if !ok || apiVersion == "" {
		return LevelRule{}, errors.New(`apiversion must be the API version of the kind, such as apps/v1, or "*"`)
	}
	if err := rule.setVersion(apiVersion); err != nil {
		return LevelRule{}, err
	}
	switch exact := values["exactVersion"].(type) {
	case nil:
	case bool:
		rule.ExactVersion = exact
	default:
		return LevelRule{}, errors.New("exactVersion must be true or false")
	}
	if rule.ExactVersion && (rule.Version == "" || rule.Version == "*") {
		return LevelRule{}, fmt.Errorf("exactVersion needs an apiversion with a version; it is %q", apiVersion)
	}
	switch adjust := values["adjust-level"].(type) {
	case nil:
	case float64:
		if adjust != math.Trunc(adjust) || math.Abs(adjust) > maxAdjust {
			return LevelRule{}, fmt.Errorf("adjust-level is %v: it must be an integer from -%d to %d", adjust, maxAdjust, maxAdjust)
		}
		rule.Adjust = int(adjust)
	default:
		return LevelRule{}, fmt.Errorf("adjust-level is %.63v: it must be an integer, such as -1", adjust)
	}
	return rule, nil
}

// setVersion parses an apiVersion, in which "*" is any group or any version.
func (r *LevelRule) setVersion(apiVersion string) error {
	if apiVersion == "*" {
		r.AnyGroup = true
		return nil
	}
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil || gv.Version == "" {
		return fmt.Errorf("apiversion is %.253q: it must be like apps/v1", apiVersion)
	}
	r.Group, r.Version = gv.Group, gv.Version
	if gv.Group == "*" {
		r.Group, r.AnyGroup = "", true
	}
	return nil
}

// nameOf returns the kind of a rule for an error message, "" if it cannot be read.
func nameOf(item any) string {
	if object, ok := item.(map[string]any); ok {
		if kind, ok := object["kind"].(string); ok && kind != "" {
			return fmt.Sprintf(" (%.63s)", kind)
		}
	}
	return ""
}

// firstLine shortens an error of the YAML parser.
func firstLine(text string) string {
	text = strings.TrimPrefix(text, "error converting YAML to JSON: ")
	text, _, _ = strings.Cut(strings.TrimPrefix(text, "yaml: "), "\n")
	return text
}
