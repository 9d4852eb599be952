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

// Record is the value of apps.NodePoolAnnotation: the pool that a node carries
// the attributes of, and what was the node's own under the keys of the pool.
type Record struct {
	// Pool is the pool's name.
	Pool string `json:"pool"`
	// Selected: a selector brought the node into the pool, and the node's
	// label is written by atoll-manager.
	Selected bool `json:"selected,omitempty"`
	// Given is a hash of what the pool gave.
	Given string `json:"given,omitempty"`
	// Labels and Annotations have every key that the pool gave, and the value
	// that the node had; null is none.
	Labels      map[string]*string `json:"labels,omitempty"`
	Annotations map[string]*string `json:"annotations,omitempty"`
	// Taints has every taint that the pool gave.
	Taints []Covered `json:"taints,omitempty"`
}

// Covered is a taint that the pool gave.
type Covered struct {
	Key    string             `json:"key"`
	Effect corev1.TaintEffect `json:"effect"`
	// Before is what the node had of the same key and effect; nil is none.
	Before *Before `json:"before,omitempty"`
}

// Before is the rest of a node's own taint.
type Before struct {
	Value     string       `json:"value,omitempty"`
	TimeAdded *metav1.Time `json:"timeAdded,omitempty"`
}

func (r *Record) encode() (string, error) {
	raw, err := json.Marshal(r)
	if err != nil {
		return "", fmt.Errorf("encoding what the node had before: %w", err)
	}
	return string(raw), nil
}

// Node is a node as it is, read once.
type Node struct {
	// now is what it carries, its label and the record of its pool apart.
	now Set
	// label is the value of apps.NodePoolLabel, "" if there is none.
	label string
	// raw is the record as it stands on the node, "" if there is none.
	raw string
	// record is nil where there is none, and where it cannot be read: then
	// lost is the reason.
	record *Record
	lost   error
	own    Set
}

// Read reads a node.
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

func decode(raw string) (*Record, error) {
	record := &Record{}
	if err := json.Unmarshal([]byte(raw), record); err != nil {
		return nil, fmt.Errorf("reading annotation %s: %w", apps.NodePoolAnnotation, err)
	}
	if record.Pool == "" {
		return nil, fmt.Errorf("reading annotation %s: it names no pool", apps.NodePoolAnnotation)
	}
	return record, nil
}

// Lost tells why the record of what the node had before cannot be read; nil if
// it can be, or there is none.
func (n *Node) Lost() error { return n.lost }

// Incumbent is the pool whose attributes the node carries, "" if none. Where
// the record is lost it is the pool that the label names.
func (n *Node) Incumbent() string {
	switch {
	case n.record != nil:
		return n.record.Pool
	case n.lost != nil:
		return n.label
	}
	return ""
}

// given is the taint that the node carries in a slot, if the pool gave it.
func (n *Node) given(pool string, s slot) (corev1.Taint, bool) {
	if n.record == nil || n.record.Pool != pool || !slices.ContainsFunc(n.record.Taints, func(c Covered) bool { return slot{c.Key, c.Effect} == s }) {
		return corev1.Taint{}, false
	}
	i := slices.IndexFunc(n.now.Taints, func(t corev1.Taint) bool { return slotOf(&t) == s })
	if i < 0 {
		return corev1.Taint{}, false
	}
	return n.now.Taints[i], true
}

// Label is the node's label as it stands, whoever wrote it.
func (n *Node) Label() string { return n.label }

// Chosen is the pool that the node's owner wrote into the label, "" if none.
func (n *Node) Chosen() string {
	if n.record != nil && n.record.Selected && n.record.Pool == n.label {
		return ""
	}
	return n.label
}

// OwnLabels are the node's own labels, with the label of its pool only if the
// node's owner wrote it.
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

// Change is what makes a node as it ought to be.
type Change struct {
	// From and To are the pools before and after; "" is none.
	From, To string
	// Labels and Annotations have the keys that change; nil takes one off.
	Labels, Annotations map[string]*string
	// Taints are all taints afterwards, if TaintsChanged.
	Taints        []corev1.Taint
	TaintsChanged bool
	// Repair: neither the pool nor what it gives changed, so somebody else
	// changed the node.
	Repair bool
}

// Empty tells that the node is as it ought to be.
func (c *Change) Empty() bool {
	return len(c.Labels) == 0 && len(c.Annotations) == 0 && !c.TaintsChanged
}

// Keys names what changes, sorted, for people; the record is left out.
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

// Plan says what to change on the node so that it carries its own attributes
// and, over them, those of the pool; nil is no pool. Selected says that a
// selector brought the node into the pool.
//
// A lost record is made anew: what the node has just like the pool gives it
// counts as given, everything else as the node's own.
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
		var record Record
		want, record = pool.overlay(own, selected)
		if selected {
			label = pool.Name
		}
		var err error
		if raw, err = record.encode(); err != nil {
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

// without takes off what is just as given.
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

// diff has the keys in which want differs from now; nil takes one off.
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

// set notes a value; "" takes the key off.
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
