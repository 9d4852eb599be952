package membership

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
)

func nodePool(name string, second int64, modify ...func(*apps.NodePool)) *apps.NodePool {
	p := &apps.NodePool{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.Unix(second, 0)}}
	for _, m := range modify {
		m(p)
	}
	return p
}

func selecting(labels ...string) func(*apps.NodePool) {
	return func(p *apps.NodePool) {
		p.Spec.Selector = &apps.NodeSelector{MatchLabels: map[string]apps.LabelValue{}}
		for i := 0; i < len(labels); i += 2 {
			p.Spec.Selector.MatchLabels[labels[i]] = apps.LabelValue(labels[i+1])
		}
	}
}

func expressing(key string, op metav1.LabelSelectorOperator, values ...apps.LabelValue) func(*apps.NodePool) {
	return func(p *apps.NodePool) {
		if p.Spec.Selector == nil {
			p.Spec.Selector = &apps.NodeSelector{}
		}
		p.Spec.Selector.MatchExpressions = append(p.Spec.Selector.MatchExpressions, apps.NodeSelectorRequirement{Key: key, Operator: op, Values: values})
	}
}

func ending(p *apps.NodePool) { p.DeletionTimestamp = &metav1.Time{} }

func compiledPools(pools ...*apps.NodePool) Pools {
	all := make([]Pool, 0, len(pools))
	for _, p := range pools {
		pool, _ := CompilePool(p)
		all = append(all, pool)
	}
	return NewPools(all)
}

func TestAssignPool(t *testing.T) {
	site := map[string]string{"site": "x"}
	tests := map[string]struct {
		pools    []*apps.NodePool
		claim    Claim
		want     string
		selected bool
	}{
		"nothing wants the node":                   {[]*apps.NodePool{nodePool("a", 1)}, Claim{Own: site}, "", false},
		"a selector that is not there":             {[]*apps.NodePool{nodePool("a", 1, selecting("site", "y"))}, Claim{Own: site}, "", false},
		"a selector matches":                       {[]*apps.NodePool{nodePool("a", 1, selecting("site", "x"))}, Claim{Own: site}, "a", true},
		"the owner chose":                          {[]*apps.NodePool{nodePool("a", 1), nodePool("b", 1, selecting("site", "x"))}, Claim{Own: site, Chosen: "a"}, "a", false},
		"the owner chose what is not there":        {[]*apps.NodePool{nodePool("b", 1, selecting("site", "x"))}, Claim{Own: site, Chosen: "a", Incumbent: "b"}, "", false},
		"the owner chose what ends":                {[]*apps.NodePool{nodePool("a", 1, ending)}, Claim{Own: site, Chosen: "a"}, "", false},
		"the owner chose what ends, for another's": {[]*apps.NodePool{nodePool("a", 1, ending), nodePool("b", 1, selecting("site", "x"))}, Claim{Own: site, Chosen: "a", Incumbent: "b"}, "", false},
		"what ends has what its owner chose":       {[]*apps.NodePool{nodePool("a", 1, ending)}, Claim{Own: site, Chosen: "a", Incumbent: "a"}, "a", false},
		"the older gets a free node":               {[]*apps.NodePool{nodePool("a", 2, selecting("site", "x")), nodePool("b", 1, selecting("site", "x"))}, Claim{Own: site}, "b", true},
		"of two as old the first by name":          {[]*apps.NodePool{nodePool("b", 1, selecting("site", "x")), nodePool("a", 1, selecting("site", "x"))}, Claim{Own: site}, "a", true},
		"the incumbent keeps it":                   {[]*apps.NodePool{nodePool("a", 2, selecting("site", "x")), nodePool("b", 1, selecting("site", "x"))}, Claim{Own: site, Incumbent: "a"}, "a", true},
		"the incumbent selects it no more":         {[]*apps.NodePool{nodePool("a", 1, selecting("site", "y")), nodePool("b", 1, selecting("site", "x"))}, Claim{Own: site, Incumbent: "a"}, "b", true},
		"the incumbent ends, another wants":        {[]*apps.NodePool{nodePool("a", 1, selecting("site", "x"), ending), nodePool("b", 2, selecting("site", "x"))}, Claim{Own: site, Incumbent: "a"}, "b", true},
		"the incumbent ends, no other wants":       {[]*apps.NodePool{nodePool("a", 1, selecting("site", "x"), ending)}, Claim{Own: site, Incumbent: "a"}, "a", true},
		"what ends takes no node":                  {[]*apps.NodePool{nodePool("a", 1, selecting("site", "x"), ending)}, Claim{Own: site}, "", false},
		"the incumbent cannot be read":             {[]*apps.NodePool{nodePool("a", 1, selecting("not a key", "x")), nodePool("b", 1, selecting("site", "x"))}, Claim{Own: site, Incumbent: "a"}, "a", true},
		"the incumbent is gone":                    {[]*apps.NodePool{nodePool("b", 1, selecting("site", "x"))}, Claim{Own: site, Incumbent: "a"}, "b", true},
		"all of several requirements":              {[]*apps.NodePool{nodePool("a", 1, selecting("site", "x", "tier", "edge"))}, Claim{Own: site}, "", false},
		"a value of several":                       {[]*apps.NodePool{nodePool("a", 1, expressing("site", metav1.LabelSelectorOpIn, "w", "x"))}, Claim{Own: site}, "a", true},
		"a label that is there":                    {[]*apps.NodePool{nodePool("a", 1, expressing("site", metav1.LabelSelectorOpExists))}, Claim{Own: site}, "a", true},
		"a label that is not there":                {[]*apps.NodePool{nodePool("a", 1, expressing("tier", metav1.LabelSelectorOpDoesNotExist))}, Claim{Own: site}, "a", true},
		"a label that must not be there":           {[]*apps.NodePool{nodePool("a", 1, expressing("site", metav1.LabelSelectorOpNotIn, "x"))}, Claim{Own: site}, "", false},
		"a node without labels":                    {[]*apps.NodePool{nodePool("a", 1, expressing("site", metav1.LabelSelectorOpNotIn, "x"))}, Claim{}, "a", true},
		"a selector that names nothing":            {[]*apps.NodePool{nodePool("a", 1, selecting())}, Claim{Own: site}, "", false},
		"a NodeGroup's label cannot select":        {[]*apps.NodePool{nodePool("a", 1, selecting("groupmanagement.kubeedge.io/nodegroup", "g"))}, Claim{Own: map[string]string{"groupmanagement.kubeedge.io/nodegroup": "g"}}, "", false},
		"an operator that is none is invalid":      {[]*apps.NodePool{nodePool("a", 1, expressing("site", "Gt", "1"))}, Claim{Own: site}, "", false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pools := compiledPools(tc.pools...)
			got, selected := pools.Assign(tc.claim)
			if got != tc.want || selected != tc.selected {
				t.Errorf("assigned to %q (selected: %t), want %q (%t)", got, selected, tc.want, tc.selected)
			}
		})
	}
}

func TestCompilePoolNamesTheField(t *testing.T) {
	for want, p := range map[string]*apps.NodePool{
		"spec.selector.matchLabels[a b]":                                     nodePool("p", 1, selecting("a b", "c")),
		"spec.selector.matchExpressions[1].operator":                         nodePool("p", 1, expressing("a", metav1.LabelSelectorOpExists), expressing("a", "Is")),
		"spec.selector.matchExpressions[0]: ":                                nodePool("p", 1, expressing("a", metav1.LabelSelectorOpIn)),
		"must not select by the label groupmanagement.kubeedge.io/nodegroup": nodePool("p", 1, selecting("groupmanagement.kubeedge.io/nodegroup", "g")),
	} {
		pool, err := CompilePool(p)
		if err == nil || !strings.Contains(err.Error(), want) || !pool.Invalid {
			t.Errorf("the error does not contain %q: %v (invalid: %t)", want, err, pool.Invalid)
		}
	}
}

// TestPoolIndexFindsTheSameAsAFullScan checks that the index finds the same pools as a check of
// every pool.
func TestPoolIndexFindsTheSameAsAFullScan(t *testing.T) {
	keys, values := []string{"a", "b", "c"}, []apps.LabelValue{"1", "2", ""}
	operators := []metav1.LabelSelectorOperator{metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist}
	rapid.Check(t, func(t *rapid.T) {
		var pools []*apps.NodePool
		for i := range rapid.IntRange(0, 12).Draw(t, "pools") {
			p := nodePool(fmt.Sprintf("p%d", i), rapid.Int64Range(0, 3).Draw(t, "created"))
			for range rapid.IntRange(0, 3).Draw(t, "requirements") {
				key, op := rapid.SampledFrom(keys).Draw(t, "key"), rapid.SampledFrom(operators).Draw(t, "operator")
				var of []apps.LabelValue
				if op == metav1.LabelSelectorOpIn || op == metav1.LabelSelectorOpNotIn {
					of = rapid.SliceOfNDistinct(rapid.SampledFrom(values), 1, 3, rapid.ID).Draw(t, "values")
				}
				expressing(key, op, of...)(p)
			}
			pools = append(pools, p)
		}
		own := map[string]string{}
		for _, key := range keys {
			if rapid.Bool().Draw(t, "has "+key) {
				own[key] = string(rapid.SampledFrom(values).Draw(t, "value"))
			}
		}
		index := compiledPools(pools...)
		var want, got []string
		for _, p := range index.byAge {
			if p.Selects(own) {
				want = append(want, p.Name)
			}
		}
		for _, p := range index.Selecting(own) {
			got = append(got, p.Name)
			if some, all := index.Labels(p.Name); !all && !carries(own, some) {
				t.Fatalf("pool %s would not be found by %v", p.Name, some)
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("found %v, want %v", got, want)
		}
	})
}

// carries reports whether a node with these labels has one of some.
func carries(own map[string]string, some []Label) bool {
	return slices.ContainsFunc(some, func(l Label) bool {
		value, has := own[l.Key]
		return has && (l.Any || value == l.Value)
	})
}

// TestPoolIndexChecksFewPoolsPerNode checks the index with a thousand pools that all require one
// label, and each another one of its own: only the pool with the node's own label is
// checked.
func TestPoolIndexChecksFewPoolsPerNode(t *testing.T) {
	var pools []*apps.NodePool
	for i := range 1000 {
		pools = append(pools, nodePool(fmt.Sprintf("site-%d", i), 1, selecting("cloud", "edge", "site", fmt.Sprintf("site-%d", i))))
	}
	index := compiledPools(pools...)
	if asked := index.candidates("", map[string]string{"cloud": "edge", "site": "site-7", "other": "x"}); len(asked) != 1 {
		t.Errorf("%d pools are checked for the node", len(asked))
	}
	if some, all := index.Labels("site-7"); all || !slices.Equal(some, []Label{{Key: "site", Value: "site-7"}}) {
		t.Errorf("its nodes are found by %v", some)
	}
}

// BenchmarkPoolOfANode: what a change of one node costs must not grow with the
// number of pools.
//
//	go test ./internal/domain/membership -run '^$' -bench PoolOfANode -benchmem
func BenchmarkPoolOfANode(b *testing.B) {
	labels := map[string]string{"cloud": "edge"}
	for i := range 20 {
		labels[fmt.Sprintf("example.io/label-%d", i)] = "v"
	}
	for _, n := range []int{10, 100, 1000} {
		var pools []*apps.NodePool
		for i := range n {
			pools = append(pools, nodePool(fmt.Sprintf("site-%d", i), int64(i), selecting("cloud", "edge", "site", fmt.Sprintf("site-%d", i))))
		}
		index := compiledPools(pools...)
		own := maps.Clone(labels)
		own["site"] = fmt.Sprintf("site-%d", n/2)
		for name, claim := range map[string]Claim{
			"chosen": {Own: own, Chosen: "site-3"}, "kept": {Own: own, Incumbent: own["site"]}, "selected": {Own: own}, "none": {Own: labels},
		} {
			b.Run(fmt.Sprintf("pools=%d/%s", n, name), func(b *testing.B) {
				for b.Loop() {
					index.Assign(claim)
					index.Selecting(claim.Own)
				}
			})
		}
	}
}
