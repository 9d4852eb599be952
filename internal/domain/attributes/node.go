package attributes

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
)

// record is the value of apps.NodePoolAnnotation: the pool whose attributes a node carries,
// and the node's own attributes that they replace. Nodes of older releases carry it too, so
// its JSON must stay compatible.
type record struct {
	// Pool is the pool's name.
	Pool string `json:"pool"`
	// Selected is true if a selector brought the node into the pool, so that atoll-manager
	// wrote the node's label.
	Selected bool `json:"selected,omitempty"`
	// Given is the hash of the pool's attributes.
	Given string `json:"given,omitempty"`
	// Labels and Annotations have every key of the pool, with the value that the node had
	// itself; null for none.
	Labels      map[string]*string `json:"labels,omitempty"`
	Annotations map[string]*string `json:"annotations,omitempty"`
	// Taints has every taint of the pool.
	Taints []coveredTaint `json:"taints,omitempty"`
}

// coveredTaint is a taint of the pool, with the node's own taint that it replaces.
type coveredTaint struct {
	Key    string             `json:"key"`
	Effect corev1.TaintEffect `json:"effect"`
	// Before is the node's own taint of the same key and effect; nil for none.
	Before *ownTaint `json:"before,omitempty"`
}

// ownTaint is the rest of a node's own taint.
type ownTaint struct {
	Value     string       `json:"value,omitempty"`
	TimeAdded *metav1.Time `json:"timeAdded,omitempty"`
}

func (r *record) encode() (string, error) {
	raw, err := json.Marshal(r)
	if err != nil {
		return "", fmt.Errorf("encoding the attributes that the node had before: %w", err)
	}
	return string(raw), nil
}

// Node is the present state of a node, parsed by Read.
type Node struct {
	// now has the attributes that the node carries, except for apps.NodePoolLabel and
	// apps.NodePoolAnnotation.
	now Set
	// label is the value of apps.NodePoolLabel, "" if there is none.
	label string
	// raw is the value of apps.NodePoolAnnotation, "" if there is none.
	raw string
	// record is the parsed annotation; nil if there is none or it cannot be parsed. In the
	// second case lost is the error.
	record *record
	lost   error
	// own has the node's own attributes: now without those of the pool.
	own Set
}

// Read parses a node. It does not change the node, whose maps the result shares.
func Read(n *corev1.Node) *Node {
	out := &Node{now: Set{Labels: n.Labels, Annotations: n.Annotations, Taints: n.Spec.Taints}}
	if label, labelled := n.Labels[apps.NodePoolLabel]; labelled {
		out.label = label
		out.now.Labels = maps.Clone(n.Labels)
		delete(out.now.Labels, apps.NodePoolLabel)
	}
	if raw, recorded := n.Annotations[apps.NodePoolAnnotation]; recorded {
		out.raw = raw
		out.now.Annotations = maps.Clone(n.Annotations)
		delete(out.now.Annotations, apps.NodePoolAnnotation)
		out.record, out.lost = decode(raw)
	}
	out.own = out.now
	if r := out.record; r != nil {
		out.own = Set{
			Labels: uncover(out.now.Labels, r.Labels), Annotations: uncover(out.now.Annotations, r.Annotations),
			Taints: uncoverTaints(out.now.Taints, r.Taints),
		}
	}
	return out
}

func decode(raw string) (*record, error) {
	r := &record{}
	if err := json.Unmarshal([]byte(raw), r); err != nil {
		return nil, fmt.Errorf("reading annotation %s: %w", apps.NodePoolAnnotation, err)
	}
	if r.Pool == "" {
		return nil, fmt.Errorf("reading annotation %s: it names no pool", apps.NodePoolAnnotation)
	}
	return r, nil
}

// Lost returns why the annotation with the node's own attributes cannot be read; nil if it can
// be read, or if there is none.
func (n *Node) Lost() error { return n.lost }

// Incumbent returns the pool whose attributes the node carries, "" if none. If the annotation
// cannot be read, it is the pool in the node's label.
func (n *Node) Incumbent() string {
	switch {
	case n.record != nil:
		return n.record.Pool
	case n.lost != nil:
		return n.label
	}
	return ""
}

// givenBy returns the taint that the node carries in a slot, if the pool gave it.
func (n *Node) givenBy(pool string, s slot) (corev1.Taint, bool) {
	if n.record == nil || n.record.Pool != pool || !slices.ContainsFunc(n.record.Taints, func(c coveredTaint) bool { return slot{c.Key, c.Effect} == s }) {
		return corev1.Taint{}, false
	}
	i := slices.IndexFunc(n.now.Taints, func(t corev1.Taint) bool { return slotOf(&t) == s })
	if i < 0 {
		return corev1.Taint{}, false
	}
	return n.now.Taints[i], true
}

// Label returns the value of the node's label apps.NodePoolLabel, no matter who wrote it; ""
// if there is none.
func (n *Node) Label() string { return n.label }

// Chosen returns the pool that a person wrote into the node's label, "" if none: the value of
// the label, unless atoll-manager wrote it for a selector.
func (n *Node) Chosen() string {
	if n.record != nil && n.record.Selected && n.record.Pool == n.label {
		return ""
	}
	return n.label
}

// OwnLabels returns the node's own labels. apps.NodePoolLabel is among them only if a person
// wrote it. The map must not be changed.
func (n *Node) OwnLabels() map[string]string {
	if chosen := n.Chosen(); chosen != "" {
		own := maps.Clone(n.own.Labels)
		if own == nil {
			own = map[string]string{}
		}
		own[apps.NodePoolLabel] = chosen
		return own
	}
	return n.own.Labels
}

// Change is the difference between a node's present and wanted attributes.
type Change struct {
	// From and To are the node's pools before and after; "" is none.
	From, To string
	// Labels and Annotations have the keys that change; a nil value removes the key.
	Labels, Annotations map[string]*string
	// Taints has all taints of the node after the change. It counts only if TaintsChanged.
	Taints        []corev1.Taint
	TaintsChanged bool
	// Repair is true if the node's pool and the pool's attributes are the same as before. If
	// the change is not empty, something other than atoll-manager changed the node.
	Repair bool
}

// Empty reports whether there is nothing to change.
func (c *Change) Empty() bool {
	return len(c.Labels) == 0 && len(c.Annotations) == 0 && !c.TaintsChanged
}

// Keys describes the attributes that change, for messages: labels and annotations sorted, then
// taints. It leaves out the annotation with the record.
func (c *Change) Keys() []string {
	var keys []string
	for key := range c.Labels {
		keys = append(keys, "label "+key)
	}
	for key := range c.Annotations {
		if key != apps.NodePoolAnnotation {
			keys = append(keys, "annotation "+key)
		}
	}
	slices.Sort(keys)
	if c.TaintsChanged {
		keys = append(keys, "taints")
	}
	return keys
}

// Plan returns what to change on the node, so that it carries its own attributes and, over
// them, those of the pool; a nil pool is no pool. selected is true if a selector brought the
// node into the pool, so that atoll-manager writes its label.
//
// If the record cannot be read, Plan writes a new one: attributes with the same value in the
// pool count as the pool's, all others as the node's own.
func (n *Node) Plan(pool *Pool, selected bool) (Change, error) {
	change := Change{From: n.Incumbent()}
	own := n.own
	if n.lost != nil && pool != nil {
		own = without(own, pool.Set)
	}
	want, label := own, n.Chosen()
	raw := ""
	if pool != nil {
		change.To = pool.Name
		var rec record
		want, rec = pool.overlay(own, selected)
		if selected {
			label = pool.Name
		}
		var err error
		if raw, err = rec.encode(); err != nil {
			return change, err
		}
		change.Repair = n.record != nil && n.record.Pool == pool.Name && n.record.Given == pool.hash && n.record.Selected == selected
	}
	change.Labels = diff(n.now.Labels, want.Labels)
	if label != n.label {
		change.Labels = set(change.Labels, apps.NodePoolLabel, label)
	}
	change.Annotations = diff(n.now.Annotations, want.Annotations)
	if raw != n.raw || raw == "" && n.lost != nil {
		change.Annotations = set(change.Annotations, apps.NodePoolAnnotation, raw)
	}
	change.Taints, change.TaintsChanged = settleTaints(n.now.Taints, want.Taints)
	return change, nil
}

// without returns own without the attributes that are the same in given.
func without(own, given Set) Set {
	strip := func(own, given map[string]string) map[string]string {
		out := maps.Clone(own)
		maps.DeleteFunc(out, func(key, value string) bool { g, is := given[key]; return is && g == value })
		return out
	}
	out := Set{Labels: strip(own.Labels, given.Labels), Annotations: strip(own.Annotations, given.Annotations)}
	for _, t := range own.Taints {
		if !slices.ContainsFunc(given.Taints, func(g corev1.Taint) bool { return slotOf(&g) == slotOf(&t) && g.Value == t.Value }) {
			out.Taints = append(out.Taints, t)
		}
	}
	return out
}

// diff returns the keys in which want differs from now; nil removes a key.
func diff(now, want map[string]string) map[string]*string {
	var out map[string]*string
	for key, value := range want {
		if is, had := now[key]; !had || is != value {
			out = set(out, key, value)
			out[key] = &value
		}
	}
	for key := range now {
		if _, wanted := want[key]; !wanted {
			out = set(out, key, "")
		}
	}
	return out
}

// set records a value in changes, or nil for "", which removes the key.
func set(changes map[string]*string, key, value string) map[string]*string {
	if changes == nil {
		changes = map[string]*string{}
	}
	changes[key] = nil
	if value != "" {
		changes[key] = &value
	}
	return changes
}
