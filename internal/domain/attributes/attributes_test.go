package attributes

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
)

func taint(key, value string, effect corev1.TaintEffect) corev1.Taint {
	return corev1.Taint{Key: key, Value: value, Effect: effect}
}

func nodeWith(labels, annotations map[string]string, taints ...corev1.Taint) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: labels, Annotations: annotations},
		Spec:       corev1.NodeSpec{Taints: taints},
	}
}

func poolWith(name string, labels, annotations map[string]string, taints ...corev1.Taint) *apps.NodePool {
	p := &apps.NodePool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: apps.NodePoolSpec{
		Labels: map[string]apps.LabelValue{}, Annotations: map[string]apps.AnnotationValue{},
	}}
	for key, value := range labels {
		p.Spec.Labels[key] = apps.LabelValue(value)
	}
	for key, value := range annotations {
		p.Spec.Annotations[key] = apps.AnnotationValue(value)
	}
	for _, t := range taints {
		p.Spec.Taints = append(p.Spec.Taints, apps.NodePoolTaint{Key: t.Key, Value: apps.LabelValue(t.Value), Effect: t.Effect, TimeAdded: t.TimeAdded})
	}
	return p
}

// apply changes the node as the API server does with a merge patch.
func apply(n *corev1.Node, c Change) {
	merge := func(into map[string]string, changes map[string]*string) map[string]string {
		out := maps.Clone(into)
		for key, value := range changes {
			if value == nil {
				delete(out, key)
				continue
			}
			if out == nil {
				out = map[string]string{}
			}
			out[key] = *value
		}
		return out
	}
	n.Labels, n.Annotations = merge(n.Labels, c.Labels), merge(n.Annotations, c.Annotations)
	if c.TaintsChanged {
		n.Spec.Taints = c.Taints
	}
}

// settle applies Plan to the node, and fails if a second Plan is not empty.
func settle(t interface {
	Helper()
	Fatalf(string, ...any)
}, n *corev1.Node, p *apps.NodePool, selected bool) Change {
	t.Helper()
	var pool *Pool
	if p != nil {
		of := Of(p)
		pool = &of
	}
	change, err := Read(n).Plan(pool, selected)
	if err != nil {
		t.Fatalf("planning: %v", err)
	}
	apply(n, change)
	again, err := Read(n).Plan(pool, selected && p != nil)
	if err != nil || !again.Empty() {
		t.Fatalf("a second application changes %+v (%v)", again, err)
	}
	return change
}

var (
	byKey   = cmpopts.SortSlices(func(a, b corev1.Taint) bool { return a.Key+string(a.Effect) < b.Key+string(b.Effect) })
	empties = cmpopts.EquateEmpty()
)

func expect(t testing.TB, what string, n, want *corev1.Node) {
	t.Helper()
	got := n.DeepCopy()
	delete(got.Annotations, apps.NodePoolAnnotation)
	if d := cmp.Diff(want, got, byKey, empties); d != "" {
		t.Errorf("%s, the node is not as wanted (-want +got):\n%s", what, d)
	}
}

func TestJoinEditLeave(t *testing.T) {
	label := func(m map[string]string) map[string]string {
		m[apps.NodePoolLabel] = "p"
		return m
	}
	tests := map[string]struct {
		node   *corev1.Node
		pool   *apps.NodePool
		joined *corev1.Node
		// edited is the pool's spec after an edit; nil means no edit.
		edited    *apps.NodePool
		afterEdit *corev1.Node
	}{
		"a pool gives all three": {
			node:   nodeWith(nil, nil),
			pool:   poolWith("p", map[string]string{"region": "x"}, map[string]string{"note": "y"}, taint("edge", "", corev1.TaintEffectNoSchedule)),
			joined: nodeWith(label(map[string]string{"region": "x"}), map[string]string{"note": "y"}, taint("edge", "", corev1.TaintEffectNoSchedule)),
		},
		"what the node had comes back when the pool drops the key": {
			node:      nodeWith(map[string]string{"region": "mine", "own": "o"}, map[string]string{"note": "mine"}, taint("edge", "mine", corev1.TaintEffectNoSchedule)),
			pool:      poolWith("p", map[string]string{"region": "x"}, map[string]string{"note": "y"}, taint("edge", "pool", corev1.TaintEffectNoSchedule)),
			joined:    nodeWith(label(map[string]string{"region": "x", "own": "o"}), map[string]string{"note": "y"}, taint("edge", "pool", corev1.TaintEffectNoSchedule)),
			edited:    poolWith("p", nil, nil),
			afterEdit: nodeWith(label(map[string]string{"region": "mine", "own": "o"}), map[string]string{"note": "mine"}, taint("edge", "mine", corev1.TaintEffectNoSchedule)),
		},
		"the same key with another effect is another taint": {
			node:   nodeWith(nil, nil, taint("edge", "mine", corev1.TaintEffectNoExecute)),
			pool:   poolWith("p", nil, nil, taint("edge", "pool", corev1.TaintEffectNoSchedule)),
			joined: nodeWith(label(map[string]string{}), nil, taint("edge", "mine", corev1.TaintEffectNoExecute), taint("edge", "pool", corev1.TaintEffectNoSchedule)),
		},
		"a value that the node has already is the node's own": {
			node:      nodeWith(map[string]string{"region": "x"}, nil),
			pool:      poolWith("p", map[string]string{"region": "x"}, nil),
			joined:    nodeWith(label(map[string]string{"region": "x"}), nil),
			edited:    poolWith("p", nil, nil),
			afterEdit: nodeWith(label(map[string]string{"region": "x"}), nil),
		},
		"an empty value is a value": {
			node:      nodeWith(map[string]string{"region": ""}, nil),
			pool:      poolWith("p", map[string]string{"region": "x", "role": ""}, nil),
			joined:    nodeWith(label(map[string]string{"region": "x", "role": ""}), nil),
			edited:    poolWith("p", nil, nil),
			afterEdit: nodeWith(label(map[string]string{"region": ""}), nil),
		},
		"keys that are not a pool's to give are left out": {
			node: nodeWith(map[string]string{corev1.LabelHostname: "n"}, nil),
			pool: poolWith("p", map[string]string{corev1.LabelHostname: "x", "atoll.dev/x": "x", apps.NodePoolLabel: "q"},
				map[string]string{apps.NodePoolAnnotation: "{}"}, taint(corev1.TaintNodeNotReady, "", corev1.TaintEffectNoSchedule)),
			joined: nodeWith(label(map[string]string{corev1.LabelHostname: "n"}), nil),
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			before := tc.node.DeepCopy()
			n := tc.node
			if c := settle(t, n, tc.pool, true); c.From != "" || c.To != "p" || c.Repair {
				t.Errorf("after joining, the change is %+v", c)
			}
			expect(t, "joined", n, tc.joined)
			if tc.edited != nil {
				if c := settle(t, n, tc.edited, true); c.From != "p" || c.To != "p" || c.Repair {
					t.Errorf("after an edit of the pool, the change is %+v", c)
				}
				expect(t, "edited", n, tc.afterEdit)
			}
			settle(t, n, nil, false)
			if d := cmp.Diff(before, n, byKey, empties); d != "" {
				t.Errorf("after leaving, the node is not as before (-before +after):\n%s", d)
			}
		})
	}
}

// TestMoveIsOneStep checks that the record for the second pool has the node's own value,
// not that of the first pool.
func TestMoveIsOneStep(t *testing.T) {
	n := nodeWith(map[string]string{"region": "mine"}, nil, taint("k", "mine", corev1.TaintEffectNoSchedule))
	before := n.DeepCopy()
	settle(t, n, poolWith("a", map[string]string{"region": "a", "only-a": "1"}, nil, taint("k", "a", corev1.TaintEffectNoSchedule)), true)
	c := settle(t, n, poolWith("b", map[string]string{"region": "b", "only-b": "1"}, nil, taint("k", "b", corev1.TaintEffectNoSchedule)), true)
	if c.From != "a" || c.To != "b" {
		t.Errorf("the change is from pool %q to %q", c.From, c.To)
	}
	expect(t, "moved", n, nodeWith(map[string]string{"region": "b", "only-b": "1", apps.NodePoolLabel: "b"}, nil, taint("k", "b", corev1.TaintEffectNoSchedule)))
	settle(t, n, nil, false)
	if d := cmp.Diff(before, n, byKey, empties); d != "" {
		t.Errorf("after leaving (-before +after):\n%s", d)
	}
}

func TestHandEditsAreRepaired(t *testing.T) {
	pool := poolWith("p", map[string]string{"region": "x"}, map[string]string{"note": "y"}, taint("k", "p", corev1.TaintEffectNoSchedule))
	for name, edit := range map[string]func(*corev1.Node){
		"a label is taken off":        func(n *corev1.Node) { delete(n.Labels, "region") },
		"a label is changed":          func(n *corev1.Node) { n.Labels["region"] = "other" },
		"an annotation is changed":    func(n *corev1.Node) { n.Annotations["note"] = "other" },
		"a taint is taken off":        func(n *corev1.Node) { n.Spec.Taints = nil },
		"a taint's value is changed":  func(n *corev1.Node) { n.Spec.Taints[0].Value = "other" },
		"the pool's label is removed": func(n *corev1.Node) { delete(n.Labels, apps.NodePoolLabel) },
	} {
		t.Run(name, func(t *testing.T) {
			n := nodeWith(nil, nil)
			settle(t, n, pool, true)
			synced := n.DeepCopy()
			edit(n)
			if c := settle(t, n, pool, true); !c.Repair || c.Empty() {
				t.Errorf("after an edit by hand, the change is %+v", c)
			}
			if d := cmp.Diff(synced, n, byKey, empties); d != "" {
				t.Errorf("not repaired (-before +after):\n%s", d)
			}
		})
	}
}

// TestOthersTaintsAreNoDrift checks that other taints, in any order, and a time that
// something adds to a taint need no write.
func TestOthersTaintsAreNoDrift(t *testing.T) {
	pool := Of(poolWith("p", nil, nil, taint("k", "p", corev1.TaintEffectNoExecute)))
	n := nodeWith(nil, nil, taint("own", "", corev1.TaintEffectNoSchedule))
	settle(t, n, poolWith("p", nil, nil, taint("k", "p", corev1.TaintEffectNoExecute)), true)
	at := metav1.NewTime(time.Unix(5, 0))
	n.Spec.Taints = append([]corev1.Taint{taint(corev1.TaintNodeUnreachable, "", corev1.TaintEffectNoExecute)}, n.Spec.Taints...)
	slices.Reverse(n.Spec.Taints)
	n.Spec.Taints[0].TimeAdded = &at
	change, err := Read(n).Plan(&pool, true)
	if err != nil || !change.Empty() {
		t.Errorf("changes %+v (%v)", change, err)
	}
}

// TestUserWrittenPoolLabelStays checks that a label that a person wrote stays when the pool is
// deleted, and that a label from a selector is removed.
func TestUserWrittenPoolLabelStays(t *testing.T) {
	for name, tc := range map[string]struct {
		labels   map[string]string
		selected bool
		want     string
	}{
		"chosen":   {map[string]string{apps.NodePoolLabel: "p"}, false, "p"},
		"selected": {nil, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			n := nodeWith(tc.labels, nil)
			settle(t, n, poolWith("p", map[string]string{"a": "b"}, nil), tc.selected)
			if got := Read(n).Chosen(); got != tc.want {
				t.Errorf("in the pool, chosen is %q", got)
			}
			if got := Read(n).OwnLabels()[apps.NodePoolLabel]; got != tc.want {
				t.Errorf("in the pool, the own label is %q", got)
			}
			settle(t, n, nil, false)
			if got := n.Labels[apps.NodePoolLabel]; got != tc.want {
				t.Errorf("after it, the label is %q, want %q", got, tc.want)
			}
		})
	}
}

// TestLostRecordHeals checks that attributes with the value of the pool count as the
// pool's.
func TestLostRecordHeals(t *testing.T) {
	pool := poolWith("p", map[string]string{"region": "x"}, map[string]string{"note": "y"}, taint("k", "p", corev1.TaintEffectNoSchedule))
	for name, raw := range map[string]string{"no JSON": "{", "no pool": "{}", "empty": "", "another type": `{"pool":3}`} {
		t.Run(name, func(t *testing.T) {
			n := nodeWith(map[string]string{"own": "o"}, nil)
			settle(t, n, pool, true)
			synced := n.DeepCopy()
			n.Annotations[apps.NodePoolAnnotation] = raw
			read := Read(n)
			if read.Lost() == nil || read.Incumbent() != "p" {
				t.Errorf("lost: %v, incumbent %q", read.Lost(), read.Incumbent())
			}
			settle(t, n, pool, true)
			if d := cmp.Diff(synced, n, byKey, empties); d != "" {
				t.Errorf("not healed (-before +after):\n%s", d)
			}
			settle(t, n, nil, false)
			expect(t, "left", n, nodeWith(map[string]string{"own": "o"}, nil))
		})
	}
	for _, raw := range []string{"?", ""} {
		t.Run(fmt.Sprintf("%q in no pool", raw), func(t *testing.T) {
			n := nodeWith(map[string]string{"own": "o"}, map[string]string{apps.NodePoolAnnotation: raw})
			settle(t, n, nil, false)
			if _, left := n.Annotations[apps.NodePoolAnnotation]; left {
				t.Error("the annotation is left")
			}
		})
	}
}

// TestLostRecordKeepsTheNodesOwnAttributes checks that attributes with another value than the
// pool's count as the node's own, and come back.
func TestLostRecordKeepsTheNodesOwnAttributes(t *testing.T) {
	pool := poolWith("p", map[string]string{"region": "x"}, map[string]string{"note": "y"}, taint("k", "p", corev1.TaintEffectNoSchedule))
	n := nodeWith(map[string]string{"region": "mine", "own": "", apps.NodePoolLabel: "p"}, map[string]string{"note": "mine", "own": ""},
		taint("k", "mine", corev1.TaintEffectNoSchedule), taint("j", "p", corev1.TaintEffectNoSchedule))
	want := n.DeepCopy()
	n.Annotations[apps.NodePoolAnnotation] = "{"
	settle(t, n, pool, false)
	settle(t, n, nil, false)
	expect(t, "left", n, want)
}

// TestReservedKeysHideNoOtherKeys checks that the keys after a reserved one are used,
// in any order.
func TestReservedKeysHideNoOtherKeys(t *testing.T) {
	labels, annotations, want := map[string]string{}, map[string]string{}, nodeWith(map[string]string{}, map[string]string{}, taint("k", "", corev1.TaintEffectNoSchedule))
	for i := range 20 {
		key := fmt.Sprintf("key-%d", i)
		labels[key], annotations[key], labels["atoll.dev/"+key], annotations["atoll.dev/"+key] = "x", "x", "x", "x"
		want.Labels[key], want.Annotations[key] = "x", "x"
	}
	pool := poolWith("p", labels, annotations, taint(corev1.TaintNodeNotReady, "", corev1.TaintEffectNoSchedule),
		taint("node.cloudprovider.kubernetes.io/uninitialized", "", corev1.TaintEffectNoSchedule), taint("k", "", corev1.TaintEffectNoSchedule))
	n := nodeWith(nil, nil)
	settle(t, n, pool, false)
	expect(t, "joined", n, want)
	if got := Of(pool).Ignored; len(got) != 42 || !slices.IsSorted(got) || got[41] != "spec.taints: "+corev1.TaintNodeNotReady {
		t.Errorf("left out are %q", got)
	}
}

// TestTimesOfTaints checks that the pool's timeAdded, if it has one, replaces the node's,
// with the precision of seconds in which the API server stores times.
func TestTimesOfTaints(t *testing.T) {
	at := func(seconds, nanoseconds int64) *metav1.Time {
		return new(metav1.NewTime(time.Unix(seconds, nanoseconds)))
	}
	for name, tc := range map[string]struct {
		pool, node, want *metav1.Time
		changed          bool
	}{
		"no time":                   {nil, nil, nil, false},
		"the node has one":          {nil, at(5, 0), at(5, 0), false},
		"the pool has a time":       {at(5, 0), nil, at(5, 0), true},
		"they have the same":        {at(5, 0), at(5, 0), at(5, 0), false},
		"they have the same second": {at(5, 7), at(5, 0), at(5, 0), false},
		"the pool has another time": {at(6, 0), at(5, 0), at(6, 0), true},
	} {
		t.Run(name, func(t *testing.T) {
			with := func(when *metav1.Time) corev1.Taint {
				out := taint("k", "v", corev1.TaintEffectNoSchedule)
				out.TimeAdded = when
				return out
			}
			pool := Of(poolWith("p", nil, nil, with(tc.pool)))
			change, err := Read(nodeWith(nil, nil, with(tc.node))).Plan(&pool, false)
			if err != nil || change.TaintsChanged != tc.changed {
				t.Errorf("changed: %t, error %v", change.TaintsChanged, err)
			}
			if diff := cmp.Diff([]corev1.Taint{with(tc.want)}, change.Taints); diff != "" {
				t.Errorf("wrong taints (-want +got):\n%s", diff)
			}
		})
	}
}

// TestKeysOfAChange checks that Keys leaves out the record.
func TestKeysOfAChange(t *testing.T) {
	pool := Of(poolWith("p", map[string]string{"b": "1", "a": "2"}, map[string]string{"note": "y"}, taint("k", "", corev1.TaintEffectNoSchedule)))
	change, err := Read(nodeWith(map[string]string{apps.NodePoolLabel: "p"}, nil)).Plan(&pool, false)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"annotation note", "label a", "label b", "taints"}, change.Keys()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := (&Change{}).Keys(); got != nil {
		t.Errorf("of no change: %q", got)
	}
}

// TestOwnLabelsExcludeThePoolsLabels checks that own labels are those without the pool's,
// with the label of the pool only if a person wrote it.
func TestOwnLabelsExcludeThePoolsLabels(t *testing.T) {
	for _, selected := range []bool{false, true} {
		n, want := nodeWith(map[string]string{"own": "o"}, nil), map[string]string{"own": "o"}
		if !selected {
			n.Labels[apps.NodePoolLabel], want[apps.NodePoolLabel] = "p", "p"
		}
		settle(t, n, poolWith("p", map[string]string{"a": "b", "own": "p"}, nil), selected)
		if diff := cmp.Diff(want, Read(n).OwnLabels()); diff != "" {
			t.Errorf("selected %t (-want +got):\n%s", selected, diff)
		}
	}
}

// TestOwnAttributesReturnAfterAnySequence checks that, after any sequence of pools, edits of pools and
// edits of the node, the node carries its own attributes under those of its pool, and
// only its own at the end.
func TestOwnAttributesReturnAfterAnySequence(t *testing.T) {
	keys := []string{"a", "b", "c"}
	values := rapid.SampledFrom([]string{"", "1", "2"})
	effects := rapid.SampledFrom([]corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute})
	drawSet := func(t *rapid.T, what string) Set {
		s := Set{Labels: map[string]string{}, Annotations: map[string]string{}}
		for _, key := range keys {
			if rapid.Bool().Draw(t, what+" label") {
				s.Labels[key] = values.Draw(t, "value")
			}
			if rapid.Bool().Draw(t, what+" annotation") {
				s.Annotations[key] = values.Draw(t, "value")
			}
			if rapid.Bool().Draw(t, what+" taint") {
				s.Taints = append(s.Taints, taint(key, values.Draw(t, "value"), effects.Draw(t, "effect")))
			}
		}
		return s
	}
	rapid.Check(t, func(t *rapid.T) {
		own := drawSet(t, "own")
		n := nodeWith(maps.Clone(own.Labels), maps.Clone(own.Annotations), slices.Clone(own.Taints)...)
		pools := make([]*apps.NodePool, 3)
		for i := range pools {
			s := drawSet(t, "pool")
			pools[i] = poolWith(fmt.Sprintf("p%d", i), s.Labels, s.Annotations, s.Taints...)
		}
		var in *apps.NodePool
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			covered := Read(n).record
			if covered == nil {
				covered = &record{}
			}
			key, value := rapid.SampledFrom(keys).Draw(t, "key"), values.Draw(t, "value")
			switch rapid.SampledFrom([]string{"move", "leave", "edit pool", "edit label", "edit annotation", "add taint", "take taint"}).Draw(t, "step") {
			case "move":
				in = rapid.SampledFrom(pools).Draw(t, "to")
				settle(t, n, in, true)
			case "leave":
				in = nil
				settle(t, n, nil, false)
			case "edit pool":
				if in != nil {
					s := drawSet(t, "edited")
					in.Spec = poolWith("", s.Labels, s.Annotations, s.Taints...).Spec
				}
			case "edit label":
				editMap(n.Labels, own.Labels, covered.Labels, key, value)
			case "edit annotation":
				if n.Annotations == nil {
					n.Annotations = map[string]string{}
				}
				editMap(n.Annotations, own.Annotations, covered.Annotations, key, value)
			case "add taint":
				added := taint(key, value, effects.Draw(t, "effect"))
				n.Spec.Taints = replaceTaint(n.Spec.Taints, added, true)
				if !covers(covered, added) {
					own.Taints = replaceTaint(own.Taints, added, true)
				}
			case "take taint":
				taken := taint(key, "", effects.Draw(t, "effect"))
				n.Spec.Taints = replaceTaint(n.Spec.Taints, taken, false)
				if !covers(covered, taken) {
					own.Taints = replaceTaint(own.Taints, taken, false)
				}
			}
			if rapid.Bool().Draw(t, "reconciled") {
				settle(t, n, in, true)
			}
		}
		settle(t, n, in, in != nil)
		if in != nil {
			for key, value := range in.Spec.Labels {
				if n.Labels[key] != string(value) {
					t.Fatalf("label %s is %q, the pool gives %q", key, n.Labels[key], value)
				}
			}
		}
		settle(t, n, nil, false)
		want := nodeWith(own.Labels, own.Annotations, own.Taints...)
		if d := cmp.Diff(want, n, byKey, empties); d != "" {
			t.Fatalf("the node's own is not back (-want +got):\n%s", d)
		}
	})
}

// editMap sets a value by hand, or removes the key if the value is "2". The value is the
// node's own unless a pool has the key.
func editMap(now, own map[string]string, covered map[string]*string, key, value string) {
	_, pools := covered[key]
	for _, m := range []map[string]string{now, own} {
		if value == "2" {
			delete(m, key)
		} else {
			m[key] = value
		}
		if pools {
			return
		}
	}
}

func covers(r *record, t corev1.Taint) bool {
	return slices.ContainsFunc(r.Taints, func(c coveredTaint) bool { return c.Key == t.Key && c.Effect == t.Effect })
}

func replaceTaint(taints []corev1.Taint, t corev1.Taint, add bool) []corev1.Taint {
	out := slices.DeleteFunc(slices.Clone(taints), func(o corev1.Taint) bool { return slotOf(&o) == slotOf(&t) })
	if add {
		out = append(out, t)
	}
	return out
}
