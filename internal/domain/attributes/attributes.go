// Package attributes decides what a node carries: what is its own, and over it
// what its NodePool gives (docs/sources.md, P3 and P4). What the node had
// under the keys that its pool gives is remembered on the node, in one
// annotation, and comes back when the pool no longer gives the key.
//
// It must not know why a node is in a pool, nor how a node is written.
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

// Set is a set of attributes. Maps and lists are shared and never changed.
type Set struct {
	Labels      map[string]string
	Annotations map[string]string
	// Taints have no two of the same key and effect.
	Taints []corev1.Taint
}

// Pool is what a NodePool gives to its nodes.
type Pool struct {
	Name string
	Set
	// Ignored are keys in spec that are not a pool's to give, sorted. The
	// schema refuses them; what was stored without it is left out.
	Ignored []string
	// hash is of the set, to tell an edit of the pool from one of a node.
	hash string
}

// Of reads a NodePool.
func Of(p *apps.NodePool) Pool {
	pool := Pool{Name: p.Name}
	var ignored [2][]string
	pool.Labels, ignored[0] = keep(p.Spec.Labels, "spec.labels: ", reservedLabel)
	pool.Annotations, ignored[1] = keep(p.Spec.Annotations, "spec.annotations: ", reservedAnnotation)
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
	raw, _ := json.Marshal(s) // strings and times always encode; maps are sorted
	sum := fnv.New64a()
	_, _ = sum.Write(raw)
	return strconv.FormatUint(sum.Sum64(), 36)
}

// Evicting are the NoExecute taints of the pool that the node does not carry.
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

// WithoutEvicting is the pool as long as it does not give these taints to the
// node. Where it gave the node another value of one before, that stays.
func (p *Pool) WithoutEvicting(n *Node) Pool {
	out := *p
	out.Taints = nil
	wait := p.Evicting(n)
	for i := range p.Taints {
		t := p.Taints[i]
		if slices.ContainsFunc(wait, func(w corev1.Taint) bool { return slotOf(&w) == slotOf(&t) }) {
			before, had := n.given(p.Name, slotOf(&t))
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

// keep leaves out what is reserved, and names it.
func keep[V ~string](from map[string]V, field string, reserved func(string) bool) (kept map[string]string, ignored []string) {
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

// ours is the prefix of the keys that only atoll-manager writes.
const ours = "atoll.dev/"

// reservedLabel: the kubelet writes what a node is, and membership is written
// by who decides it.
func reservedLabel(key string) bool {
	switch key {
	case corev1.LabelHostname, corev1.LabelOSStable, corev1.LabelArchStable, "beta.kubernetes.io/os", "beta.kubernetes.io/arch",
		apps.NodePoolLabel, "groupmanagement.kubeedge.io/nodegroup":
		return true
	}
	return strings.HasPrefix(key, ours)
}

// reservedAnnotation: Kubernetes and kubectl write these themselves.
func reservedAnnotation(key string) bool {
	switch key {
	case corev1.LastAppliedConfigAnnotation, corev1.ObjectTTLAnnotationKey,
		"volumes.kubernetes.io/controller-managed-attach-detach", "csi.volume.kubernetes.io/nodeid":
		return true
	}
	return strings.HasPrefix(key, ours)
}

// reservedTaint: Kubernetes puts these on and takes them off.
func reservedTaint(key string) bool {
	return strings.HasPrefix(key, "node.kubernetes.io/") || strings.HasPrefix(key, "node.cloudprovider.kubernetes.io/")
}

// slot is what makes a taint replace another.
type slot struct {
	key    string
	effect corev1.TaintEffect
}

func slotOf(t *corev1.Taint) slot { return slot{t.Key, t.Effect} }

// overlay is own with what the pool gives over it, and the record of what of
// own lies below.
func (p *Pool) overlay(own Set, selected bool) (Set, Record) {
	record := Record{Pool: p.Name, Selected: selected, Given: p.hash}
	out := Set{}
	out.Labels, record.Labels = cover(own.Labels, p.Labels)
	out.Annotations, record.Annotations = cover(own.Annotations, p.Annotations)
	given := map[slot]*corev1.Taint{}
	for i := range p.Taints {
		given[slotOf(&p.Taints[i])] = &p.Taints[i]
	}
	below := map[slot]*Before{}
	for i := range own.Taints {
		t := &own.Taints[i]
		if given[slotOf(t)] == nil {
			out.Taints = append(out.Taints, *t)
			continue
		}
		below[slotOf(t)] = &Before{Value: t.Value, TimeAdded: t.TimeAdded}
	}
	for i := range p.Taints {
		t := &p.Taints[i]
		out.Taints = append(out.Taints, *t)
		record.Taints = append(record.Taints, Covered{Key: t.Key, Effect: t.Effect, Before: below[slotOf(t)]})
	}
	return out, record
}

// cover lays given over own, and returns what of own lies below.
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

// uncover gives own back.
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

// uncoverTaints gives the node's own taints back.
func uncoverTaints(now []corev1.Taint, covered []Covered) []corev1.Taint {
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

// settleTaints orders the wanted taints as the node has them, new ones last,
// and says whether anything differs. When nobody asks for a time, the node's
// is kept.
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

// sameTime compares a time with one that may not be set, as the API server stores
// them: in seconds.
func sameTime(a, b *metav1.Time) bool { return b != nil && a.Unix() == b.Unix() }
