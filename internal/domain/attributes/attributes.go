// Package attributes decides which labels, annotations and taints a node carries: its own,
// and those of its NodePool, which replace its own (docs/sources.md, P3 and P4).
//
// A record in one annotation of the node has the values that the node had under the keys of
// its pool. They come back when the pool no longer has the key, or when the node leaves the
// pool. Read parses a node, Of parses a pool, and Node.Plan computes the change.
//
// The package must not decide which pool a node is in (see package membership), and must not
// contain anything about how nodes are written.
package attributes

import (
	"encoding/json"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
)

// Set is a set of attributes. Its maps and lists are shared and must not be changed.
type Set struct {
	Labels      map[string]string
	Annotations map[string]string
	// Taints have no two entries with the same key and effect.
	Taints []corev1.Taint
}

// Pool is the set of attributes that a NodePool gives to its nodes.
type Pool struct {
	Name string
	Set
	// Ignored has the reserved keys in the spec, with the path of their field, sorted. The
	// CRD refuses them, but a stored object may be older than that check. They are not in
	// the set.
	Ignored []string
	// hash is a hash of the set, by which a record shows whether the pool was edited since.
	hash string
}

// Of returns the attributes of a NodePool.
func Of(p *apps.NodePool) Pool {
	pool := Pool{Name: p.Name}
	var ignored [2][]string
	pool.Labels, ignored[0] = withoutReserved(p.Spec.Labels, "spec.labels: ", reservedLabel)
	pool.Annotations, ignored[1] = withoutReserved(p.Spec.Annotations, "spec.annotations: ", reservedAnnotation)
	pool.Ignored = slices.Concat(ignored[:]...)
	for i := range p.Spec.Taints {
		t := &p.Spec.Taints[i]
		if reservedTaint(t.Key) {
			pool.Ignored = append(pool.Ignored, "spec.taints: "+t.Key)
			continue
		}
		pool.Taints = append(pool.Taints, corev1.Taint{Key: t.Key, Value: string(t.Value), Effect: t.Effect, TimeAdded: t.TimeAdded})
	}
	slices.Sort(pool.Ignored)
	pool.hash = pool.sum()
	return pool
}

func (s *Set) sum() string {
	raw, _ := json.Marshal(s) // never fails for strings and times, and sorts maps
	sum := fnv.New64a()
	_, _ = sum.Write(raw)
	return strconv.FormatUint(sum.Sum64(), 36)
}

// Evicting returns the NoExecute taints of the pool that the node does not carry yet. They
// would evict pods from the node.
func (p *Pool) Evicting(n *Node) []corev1.Taint {
	var out []corev1.Taint
	for i := range p.Taints {
		t := &p.Taints[i]
		if t.Effect == corev1.TaintEffectNoExecute && !slices.ContainsFunc(n.now.Taints, func(has corev1.Taint) bool { return slotOf(&has) == slotOf(t) && has.Value == t.Value }) {
			out = append(out, *t)
		}
	}
	return out
}

// WithoutEvicting returns the pool without the taints of Evicting, for the time until the node
// may get them. If the pool gave the node such a taint with another value, that one stays.
func (p *Pool) WithoutEvicting(n *Node) Pool {
	out := *p
	out.Taints = nil
	evicting := p.Evicting(n)
	for i := range p.Taints {
		t := p.Taints[i]
		if slices.ContainsFunc(evicting, func(e corev1.Taint) bool { return slotOf(&e) == slotOf(&t) }) {
			before, had := n.givenBy(p.Name, slotOf(&t))
			if !had {
				continue
			}
			t = before
		}
		out.Taints = append(out.Taints, t)
	}
	out.hash = out.sum()
	return out
}

// withoutReserved returns the entries that are not reserved, and the keys of the others with
// field before them.
func withoutReserved[V ~string](from map[string]V, field string, reserved func(string) bool) (kept map[string]string, ignored []string) {
	kept = make(map[string]string, len(from))
	for key, value := range from {
		if reserved(key) {
			ignored = append(ignored, field+key)
			continue
		}
		kept[key] = string(value)
	}
	return kept, ignored
}

// ownPrefix is the prefix of keys that only atoll-manager writes.
const ownPrefix = "atoll.dev/"

// reservedLabel reports whether a pool must not give a label: the kubelet writes labels about
// the machine, and atoll-manager writes the labels of group and pool.
func reservedLabel(key string) bool {
	switch key {
	case corev1.LabelHostname, corev1.LabelOSStable, corev1.LabelArchStable, "beta.kubernetes.io/os", "beta.kubernetes.io/arch",
		apps.NodePoolLabel, "groupmanagement.kubeedge.io/nodegroup":
		return true
	}
	return strings.HasPrefix(key, ownPrefix)
}

// reservedAnnotation reports whether a pool must not give an annotation, because Kubernetes,
// kubectl or atoll-manager writes it.
func reservedAnnotation(key string) bool {
	switch key {
	case corev1.LastAppliedConfigAnnotation, corev1.ObjectTTLAnnotationKey,
		"volumes.kubernetes.io/controller-managed-attach-detach", "csi.volume.kubernetes.io/nodeid":
		return true
	}
	return strings.HasPrefix(key, ownPrefix)
}

// reservedTaint reports whether a pool must not give a taint, because Kubernetes adds and
// removes it.
func reservedTaint(key string) bool {
	return strings.HasPrefix(key, "node.kubernetes.io/") || strings.HasPrefix(key, "node.cloudprovider.kubernetes.io/")
}

// slot is the identity of a taint: a node has one taint for each key and effect.
type slot struct {
	key    string
	effect corev1.TaintEffect
}

func slotOf(t *corev1.Taint) slot { return slot{t.Key, t.Effect} }

// overlay returns own with the pool's attributes over it, and the record of the own attributes
// that they replace.
func (p *Pool) overlay(own Set, selected bool) (Set, record) {
	rec := record{Pool: p.Name, Selected: selected, Given: p.hash}
	out := Set{}
	out.Labels, rec.Labels = cover(own.Labels, p.Labels)
	out.Annotations, rec.Annotations = cover(own.Annotations, p.Annotations)
	given := map[slot]*corev1.Taint{}
	for i := range p.Taints {
		given[slotOf(&p.Taints[i])] = &p.Taints[i]
	}
	below := map[slot]*ownTaint{}
	for i := range own.Taints {
		t := &own.Taints[i]
		if given[slotOf(t)] == nil {
			out.Taints = append(out.Taints, *t)
			continue
		}
		below[slotOf(t)] = &ownTaint{Value: t.Value, TimeAdded: t.TimeAdded}
	}
	for i := range p.Taints {
		t := &p.Taints[i]
		out.Taints = append(out.Taints, *t)
		rec.Taints = append(rec.Taints, coveredTaint{Key: t.Key, Effect: t.Effect, Before: below[slotOf(t)]})
	}
	return out, rec
}

// cover returns own with given over it, and the own value of each given key, nil for none.
func cover(own, given map[string]string) (map[string]string, map[string]*string) {
	if len(given) == 0 {
		return own, nil
	}
	out, below := maps.Clone(own), make(map[string]*string, len(given))
	if out == nil {
		out = make(map[string]string, len(given))
	}
	for key, value := range given {
		below[key] = nil
		if before, had := own[key]; had {
			below[key] = &before
		}
		out[key] = value
	}
	return out, below
}

// uncover is the inverse of cover: it returns own.
func uncover(now map[string]string, below map[string]*string) map[string]string {
	if len(below) == 0 {
		return now
	}
	own := maps.Clone(now)
	if own == nil {
		own = map[string]string{}
	}
	for key, before := range below {
		if before == nil {
			delete(own, key)
			continue
		}
		own[key] = *before
	}
	return own
}

// uncoverTaints returns the node's own taints, from its present ones and the record.
func uncoverTaints(now []corev1.Taint, covered []coveredTaint) []corev1.Taint {
	if len(covered) == 0 {
		return now
	}
	given := make(map[slot]bool, len(covered))
	for i := range covered {
		given[slot{covered[i].Key, covered[i].Effect}] = true
	}
	var own []corev1.Taint
	for i := range now {
		if !given[slotOf(&now[i])] {
			own = append(own, now[i])
		}
	}
	for i := range covered {
		if c := &covered[i]; c.Before != nil {
			own = append(own, corev1.Taint{Key: c.Key, Effect: c.Effect, Value: c.Before.Value, TimeAdded: c.Before.TimeAdded})
		}
	}
	return own
}

// settleTaints returns the wanted taints in the order in which the node has them, new ones
// last, and whether they differ from the present ones. If a wanted taint has no timeAdded,
// the node's stays.
func settleTaints(now, want []corev1.Taint) ([]corev1.Taint, bool) {
	left := make(map[slot]*corev1.Taint, len(want))
	for i := range want {
		left[slotOf(&want[i])] = &want[i]
	}
	changed := false
	out := []corev1.Taint{}
	for i := range now {
		t := &now[i]
		w, wanted := left[slotOf(t)]
		switch {
		case !wanted:
			changed = true
		case w.Value == t.Value && (w.TimeAdded == nil || sameTime(w.TimeAdded, t.TimeAdded)):
			out = append(out, *t)
		default:
			changed = true
			out = append(out, *w)
		}
		delete(left, slotOf(t))
	}
	for i := range want {
		if w, missing := left[slotOf(&want[i])]; missing {
			changed = true
			out = append(out, *w)
		}
	}
	return out, changed
}

// sameTime reports whether b is set and equals a, in seconds, as the API server stores times.
func sameTime(a, b *metav1.Time) bool { return b != nil && a.Unix() == b.Unix() }
