package capacity

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

func ready(t testing.TB, preset string) *Classes {
	t.Helper()
	c, err := Presets()[preset].Ready()
	if err != nil {
		t.Fatal(err)
	}
	return &c
}

// TestPresets checks what pods get with each preset.
func TestPresets(t *testing.T) {
	tests := map[string]struct{ onDemand, spot string }{
		"cloudpilot": {
			`{"affinity":[{"key":"node.kubernetes.io/capacity","operator":"In","values":["on-demand"]}]}`,
			`{"affinity":[{"key":"node.kubernetes.io/capacity","operator":"In","values":["spot"]}]}`,
		},
		"karpenter": {
			`{"affinity":[{"key":"karpenter.sh/capacity-type","operator":"In","values":["on-demand","reserved"]}]}`,
			`{"affinity":[{"key":"karpenter.sh/capacity-type","operator":"In","values":["spot"]}]}`,
		},
		"eks": {
			`{"affinity":[{"key":"eks.amazonaws.com/capacityType","operator":"In","values":["ON_DEMAND","CAPACITY_BLOCK"]}]}`,
			`{"affinity":[{"key":"eks.amazonaws.com/capacityType","operator":"In","values":["SPOT"]}]}`,
		},
		"gke": {
			`{"affinity":[{"key":"cloud.google.com/gke-spot","operator":"DoesNotExist"}]}`,
			`{"affinity":[{"key":"cloud.google.com/gke-spot","operator":"In","values":["true"]}]}`,
		},
		"aks": {
			`{"affinity":[{"key":"kubernetes.azure.com/scalesetpriority","operator":"DoesNotExist"}]}`,
			`{"affinity":[{"key":"kubernetes.azure.com/scalesetpriority","operator":"In","values":["spot"]}],` +
				`"tolerations":[{"key":"kubernetes.azure.com/scalesetpriority","operator":"Equal","value":"spot","effect":"NoSchedule"}]}`,
		},
	}
	for name := range Presets() {
		tc, held := tests[name]
		if !held {
			t.Errorf("nothing is known of preset %s", name)
			continue
		}
		t.Run(name, func(t *testing.T) {
			c := ready(t, name)
			for class, want := range map[Class]string{OnDemand: tc.onDemand, Spot: tc.spot} {
				spec := &corev1.PodSpec{}
				c.Restrict(spec, class)
				required := spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
				got, err := json.Marshal(struct {
					Affinity    []corev1.NodeSelectorRequirement `json:"affinity"`
					Tolerations []corev1.Toleration              `json:"tolerations,omitempty"`
				}{required.NodeSelectorTerms[0].MatchExpressions, spec.Tolerations})
				if err != nil || len(required.NodeSelectorTerms) != 1 {
					t.Fatal(err, required)
				}
				if diff := cmp.Diff(want, string(got)); diff != "" {
					t.Errorf("%s pods (-want +got):\n%s", class, diff)
				}
				if got := c.OfPod(nil, required); got != class {
					t.Errorf("a pod that is kept to %s is %q", class, got)
				}
			}
		})
	}
}

func TestNodesOfAClass(t *testing.T) {
	tests := []struct {
		preset string
		labels map[string]string
		want   Class
	}{
		{"cloudpilot", map[string]string{"node.kubernetes.io/capacity": "spot"}, Spot},
		{"cloudpilot", map[string]string{"node.kubernetes.io/capacity": "on-demand"}, OnDemand},
		{"cloudpilot", map[string]string{"node.kubernetes.io/capacity": "other"}, None},
		{"cloudpilot", nil, None},
		{"karpenter", map[string]string{"karpenter.sh/capacity-type": "reserved"}, OnDemand},
		{"gke", nil, OnDemand},
		{"gke", map[string]string{"cloud.google.com/gke-spot": "true"}, Spot},
		{"aks", map[string]string{"kubernetes.azure.com/scalesetpriority": "spot"}, Spot},
	}
	for _, tc := range tests {
		if got := ready(t, tc.preset).OfNode(tc.labels); got != tc.want {
			t.Errorf("%s: a node with %v is %q, want %q", tc.preset, tc.labels, got, tc.want)
		}
	}
	if got := (&Classes{}).OfNode(nil); got != None {
		t.Errorf("without definitions a node is %q", got)
	}
}

func TestBadDefinitions(t *testing.T) {
	spot, onDemand := in("class", "spot"), in("class", "on-demand")
	tests := map[string]struct {
		classes Classes
		want    string
	}{
		"no demands":            {Classes{Spot: Definition{Demands: spot}}, "onDemand.demands: must not be empty"},
		"an operator":           {Classes{OnDemand: Definition{Demands: onDemand}, Spot: Definition{Demands: []corev1.NodeSelectorRequirement{{Key: "a", Operator: "Gt", Values: []string{"1"}}}}}, `spot.demands[0].operator: "Gt"`},
		"a key":                 {Classes{OnDemand: Definition{Demands: in("a b", "c")}, Spot: Definition{Demands: spot}}, "onDemand.demands[0]: "},
		"they overlap":          {Classes{OnDemand: Definition{Demands: in("class", "on-demand", "spot")}, Spot: Definition{Demands: spot}}, "both classes"},
		"two keys of their own": {Classes{OnDemand: Definition{Demands: in("od", "true")}, Spot: Definition{Demands: in("spot", "true")}}, "both classes"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := tc.classes.Ready(); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error is %v, want %q", err, tc.want)
			}
		})
	}
}

// generator makes node affinity of any shape, with few keys and values.
type generator struct{ *rand.Rand }

func (r generator) pick(of ...string) string { return of[r.IntN(len(of))] }

func (r generator) requirement() corev1.NodeSelectorRequirement {
	key := r.pick("node.kubernetes.io/capacity", "zone", "size")
	switch op := corev1.NodeSelectorOperator(r.pick("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")); op {
	case "Exists", "DoesNotExist":
		return corev1.NodeSelectorRequirement{Key: key, Operator: op}
	case "Gt", "Lt":
		return corev1.NodeSelectorRequirement{Key: key, Operator: op, Values: []string{r.pick("0", "1", "2")}}
	default:
		values := []string{r.pick("on-demand", "spot", "1", "2")}
		if r.IntN(2) == 0 {
			values = append(values, r.pick("on-demand", "spot", "other"))
		}
		return corev1.NodeSelectorRequirement{Key: key, Operator: op, Values: values}
	}
}

func (r generator) spec() *corev1.PodSpec {
	spec := &corev1.PodSpec{}
	if r.IntN(3) == 0 {
		spec.NodeSelector = map[string]string{r.pick("node.kubernetes.io/capacity", "zone"): r.pick("on-demand", "spot", "1")}
	}
	if r.IntN(6) == 0 {
		return spec
	}
	required := &corev1.NodeSelector{}
	for range r.IntN(4) {
		term := corev1.NodeSelectorTerm{}
		for range r.IntN(4) {
			term.MatchExpressions = append(term.MatchExpressions, r.requirement())
		}
		if r.IntN(4) == 0 {
			term.MatchFields = []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}}}
		}
		required.NodeSelectorTerms = append(required.NodeSelectorTerms, term)
	}
	spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: required}}
	return spec
}

func (r generator) node() *corev1.Node {
	labels := map[string]string{}
	if r.IntN(5) > 0 {
		labels["node.kubernetes.io/capacity"] = r.pick("on-demand", "spot", "other", "1")
	}
	for _, key := range []string{"zone", "size"} {
		if r.IntN(3) > 0 {
			labels[key] = r.pick("on-demand", "spot", "0", "1", "2", "3")
		}
	}
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: r.pick("a", "b"), Labels: labels}}
}

func takes(t *testing.T, spec *corev1.PodSpec, node *corev1.Node) bool {
	t.Helper()
	ok, err := nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{Spec: *spec}).Match(node)
	return ok && err == nil
}

func required(spec *corev1.PodSpec) *corev1.NodeSelector {
	if spec.Affinity == nil || spec.Affinity.NodeAffinity == nil {
		return nil
	}
	return spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
}

// TestRestrictedPodFitsOnlyNodesOfItsClass checks that a restricted pod fits exactly
// the nodes of its class that it fitted before, for node affinity of any shape.
func TestRestrictedPodFitsOnlyNodesOfItsClass(t *testing.T) {
	for _, preset := range []string{"cloudpilot", "gke"} {
		c := ready(t, preset)
		for seed := range uint64(1_000) {
			r := generator{rand.New(rand.NewPCG(seed, 4))}
			before := r.spec()
			class := []Class{OnDemand, Spot}[r.IntN(2)]
			after := before.DeepCopy()
			c.Restrict(after, class)
			for range 8 {
				node := r.node()
				// A nil selector matches every node in kube-scheduler. The API server refuses a selector
				// without terms.
				if n := required(before); n != nil && len(n.NodeSelectorTerms) == 0 {
					break
				}
				if got, want := takes(t, after, node), takes(t, before, node) && c.OfNode(node.Labels) == class; got != want {
					t.Fatalf("%s, seed %d: a node with %v takes the %s pod: %t, want %t\nbefore %+v\nafter %+v",
						preset, seed, node.Labels, class, got, want, required(before), required(after))
				}
			}
			again := after.DeepCopy()
			c.Restrict(again, class)
			if diff := cmp.Diff(after, again); diff != "" {
				t.Fatalf("seed %d: restricted again it differs:\n%s", seed, diff)
			}
			if was := required(before); was != nil {
				for i, term := range required(after).NodeSelectorTerms {
					if i < len(was.NodeSelectorTerms) && !cmp.Equal(term.MatchExpressions[:len(was.NodeSelectorTerms[i].MatchExpressions)], was.NodeSelectorTerms[i].MatchExpressions, cmpopts.EquateEmpty()) {
						t.Fatalf("seed %d: term %d is %+v, want it to begin with %+v", seed, i, term, was.NodeSelectorTerms[i])
					}
				}
				if len(was.NodeSelectorTerms) > 0 && len(required(after).NodeSelectorTerms) != len(was.NodeSelectorTerms) {
					t.Fatalf("seed %d: there are more terms than before", seed)
				}
			}
		}
	}
}

// TestPodWithAClassFitsNoNodeOfTheOther checks that a pod with a class never fits a
// node of the other class.
func TestPodWithAClassFitsNoNodeOfTheOther(t *testing.T) {
	c := ready(t, "cloudpilot")
	for seed := range uint64(4_000) {
		r := generator{rand.New(rand.NewPCG(seed, 5))}
		spec := r.spec()
		class := c.OfPod(spec.NodeSelector, required(spec))
		for range 20 {
			node := r.node()
			if class != None && takes(t, spec, node) && c.OfNode(node.Labels) == class.Other() {
				t.Fatalf("seed %d: the pod is %s and goes to a node with %v: %+v %+v", seed, class, node.Labels, spec.NodeSelector, required(spec))
			}
		}
	}
	for name, tc := range map[string]struct {
		selector map[string]string
		terms    []corev1.NodeSelectorTerm
		want     Class
	}{
		"nothing":              {},
		"a node selector":      {selector: map[string]string{"node.kubernetes.io/capacity": "spot"}, want: Spot},
		"not spot":             {terms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "node.kubernetes.io/capacity", Operator: "NotIn", Values: []string{"spot"}}}}}, want: OnDemand},
		"one term each":        {terms: []corev1.NodeSelectorTerm{{MatchExpressions: in("node.kubernetes.io/capacity", "spot")}, {MatchExpressions: in("node.kubernetes.io/capacity", "on-demand")}}},
		"a class of neither":   {selector: map[string]string{"node.kubernetes.io/capacity": "other"}},
		"an empty term beside": {terms: []corev1.NodeSelectorTerm{{}, {MatchExpressions: in("node.kubernetes.io/capacity", "spot")}}, want: Spot},
	} {
		var affinity *corev1.NodeSelector
		if tc.terms != nil {
			affinity = &corev1.NodeSelector{NodeSelectorTerms: tc.terms}
		}
		if got := c.OfPod(tc.selector, affinity); got != tc.want {
			t.Errorf("%s: the pod is %q, want %q", name, got, tc.want)
		}
	}
}

// TestUnrestrictUndoesRestrict checks that Unrestrict is the inverse of Restrict.
func TestUnrestrictUndoesRestrict(t *testing.T) {
	for _, preset := range []string{"cloudpilot", "aks"} {
		c := ready(t, preset)
		for seed := range uint64(500) {
			r := generator{rand.New(rand.NewPCG(seed, 6))}
			before := r.spec()
			if c.OfPod(before.NodeSelector, required(before)) != None {
				continue // it may have demanded the same by itself
			}
			for _, class := range []Class{OnDemand, Spot} {
				after := before.DeepCopy()
				c.Restrict(after, class)
				freed, tolerations := c.Unrestrict(required(after), after.Tolerations, class)
				restored := after.DeepCopy()
				restored.Tolerations = tolerations
				if freed == nil {
					freed = &corev1.NodeSelector{}
				}
				restored.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = freed
				c.Restrict(restored, class)
				for range 8 {
					if node := r.node(); takes(t, after, node) != takes(t, restored, node) {
						t.Fatalf("%s, seed %d, %s: restricted, freed and restricted it differs about %v:\n%s", preset, seed, class, node.Labels, cmp.Diff(after, restored))
					}
				}
				if diff := cmp.Diff(after.Tolerations, restored.Tolerations); diff != "" {
					t.Fatalf("%s, seed %d, %s: its tolerations differ:\n%s", preset, seed, class, diff)
				}
			}
		}
	}
}

// TestSatisfiable checks that the bounds of Gt and Lt exclude the bound itself, and that
// excluded values do not make other values impossible.
func TestSatisfiable(t *testing.T) {
	is := func(operator corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorRequirement {
		return corev1.NodeSelectorRequirement{Key: "k", Operator: operator, Values: values}
	}
	elsewhere := corev1.NodeSelectorRequirement{Key: "other", Operator: "In", Values: []string{"a"}}
	tests := map[string]struct {
		all  []corev1.NodeSelectorRequirement
		want bool
	}{
		"nothing":                             {nil, true},
		"two that exclude each other":         {[]corev1.NodeSelectorRequirement{is("In", "a"), is("In", "b")}, false},
		"and another key":                     {[]corev1.NodeSelectorRequirement{elsewhere, is("In", "a"), is("In", "b")}, false},
		"a key that comes twice, and another": {[]corev1.NodeSelectorRequirement{is("Exists"), is("Exists"), {Key: "other", Operator: "In"}}, false},
		"between two bounds":                  {[]corev1.NodeSelectorRequirement{is("Gt", "1"), is("Lt", "3")}, true},
		"between bounds that touch":           {[]corev1.NodeSelectorRequirement{is("Gt", "1"), is("Lt", "2")}, false},
		"at the lower bound":                  {[]corev1.NodeSelectorRequirement{is("Gt", "3"), is("In", "3")}, false},
		"above it":                            {[]corev1.NodeSelectorRequirement{is("Gt", "3"), is("In", "4")}, true},
		"at the upper bound":                  {[]corev1.NodeSelectorRequirement{is("Lt", "3"), is("In", "3")}, false},
		"below it":                            {[]corev1.NodeSelectorRequirement{is("Lt", "3"), is("In", "2")}, true},
		"above a bound, but for some":         {[]corev1.NodeSelectorRequirement{is("Gt", "3"), is("NotIn", "4", "5")}, true},
		"below a bound, but for some":         {[]corev1.NodeSelectorRequirement{is("Lt", "3"), is("NotIn", "2", "1")}, true},
		"a bound that is no number":           {[]corev1.NodeSelectorRequirement{is("Gt", "x"), is("In", "4")}, false},
		"a value that is none":                {[]corev1.NodeSelectorRequirement{is("Gt", "3"), is("In", "x")}, false},
		"above a bound, but for many":         {[]corev1.NodeSelectorRequirement{is("Gt", "3"), is("NotIn", "4", "5", "6"), is("NotIn", "7")}, true},
		"a bound that is missing":             {[]corev1.NodeSelectorRequirement{is("Gt")}, false},
		"there, and none that comes to mind":  {[]corev1.NodeSelectorRequirement{is("Exists"), is("NotIn", "", "0", "other", "other-", "-")}, true},
		"two bounds in one":                   {[]corev1.NodeSelectorRequirement{is("Gt", "3", "4")}, false},
		"absent and above":                    {[]corev1.NodeSelectorRequirement{is("Gt", "3"), is("DoesNotExist")}, false},
		"absent, and not some value":          {[]corev1.NodeSelectorRequirement{is("DoesNotExist"), is("NotIn", "a")}, true},
		"there, and none of some":             {[]corev1.NodeSelectorRequirement{is("Exists"), is("NotIn", "other", "other-")}, true},
		"there and absent":                    {[]corev1.NodeSelectorRequirement{is("Exists"), is("DoesNotExist")}, false},
		"an unknown operator":                 {[]corev1.NodeSelectorRequirement{is("Near", "a")}, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := satisfiable(tc.all); got != tc.want {
				t.Errorf("it is %t, want %t", got, tc.want)
			}
		})
	}
}

// TestUnrestrictKeepsTheTolerationsOfOthers checks that Unrestrict removes only the tolerations of
// the class.
func TestUnrestrictKeepsTheTolerationsOfOthers(t *testing.T) {
	c := ready(t, "aks")
	own := corev1.Toleration{Key: "mine", Operator: corev1.TolerationOpExists}
	given := c.Tolerations([]corev1.Toleration{own}, Spot)
	if len(given) != 2 {
		t.Fatalf("the class gives %v", given)
	}
	if _, left := c.Unrestrict(nil, given, Spot); len(left) != 1 || left[0] != own {
		t.Errorf("left are %v, want %v", left, own)
	}
	if _, left := c.Unrestrict(nil, given, OnDemand); len(left) != 2 {
		t.Errorf("of another class left are %v, want %v", left, given)
	}
}

// TestPodsThatMayGoToBothClasses checks LeavesBoth. Atoll does not restrict other pods.
func TestPodsThatMayGoToBothClasses(t *testing.T) {
	c := ready(t, "cloudpilot")
	expressions := func(r ...corev1.NodeSelectorRequirement) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: r}
	}
	named := corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}}}}
	capacity := func(class string) corev1.NodeSelectorRequirement { return in("node.kubernetes.io/capacity", class)[0] }
	zone := in("zone", "z")[0]
	for name, tc := range map[string]struct {
		selector map[string]string
		terms    []corev1.NodeSelectorTerm // nil: there is no affinity
		want     bool
	}{
		"a pod that demands nothing":       {nil, nil, true},
		"one that demands a zone":          {map[string]string{"zone": "z"}, nil, true},
		"one of a class":                   {map[string]string{"node.kubernetes.io/capacity": "spot"}, nil, false},
		"one of neither class":             {map[string]string{"node.kubernetes.io/capacity": "other"}, nil, false},
		"one of a zone, by affinity":       {nil, []corev1.NodeSelectorTerm{expressions(zone)}, true},
		"one of on-demand, by affinity":    {nil, []corev1.NodeSelectorTerm{expressions(zone, capacity("on-demand"))}, false},
		"one of spot, by affinity":         {nil, []corev1.NodeSelectorTerm{expressions(capacity("spot"))}, false},
		"one of either, by affinity":       {nil, []corev1.NodeSelectorTerm{expressions(capacity("spot")), expressions(capacity("on-demand"))}, true},
		"one for one node":                 {nil, []corev1.NodeSelectorTerm{named}, false},
		"one for one node, or in a zone":   {nil, []corev1.NodeSelectorTerm{named, expressions(zone)}, true},
		"one for one node, or of a class":  {nil, []corev1.NodeSelectorTerm{named, expressions(capacity("spot"))}, false},
		"an affinity that demands nothing": {nil, []corev1.NodeSelectorTerm{}, true},
	} {
		var affinity *corev1.NodeSelector
		if tc.terms != nil {
			affinity = &corev1.NodeSelector{NodeSelectorTerms: tc.terms}
		}
		if got := c.LeavesBoth(tc.selector, affinity); got != tc.want {
			t.Errorf("%s: %t, want %t", name, got, tc.want)
		}
		if (&Classes{}).LeavesBoth(tc.selector, affinity) {
			t.Errorf("%s: there are two classes where none is defined", name)
		}
	}
}

// TestRestricted checks that a pod counts as restricted after Restrict, whatever it
// required before.
func TestRestricted(t *testing.T) {
	for _, preset := range []string{"cloudpilot", "gke"} {
		c := ready(t, preset)
		for seed := range uint64(500) {
			spec := generator{rand.New(rand.NewPCG(seed, 7))}.spec()
			for _, class := range []Class{OnDemand, Spot} {
				after := spec.DeepCopy()
				c.Restrict(after, class)
				if !c.Restricted(required(after), class) {
					t.Fatalf("%s, seed %d: what is kept to %s is not known: %+v", preset, seed, class, required(after))
				}
			}
		}
	}
	c := ready(t, "cloudpilot")
	spot, zone := in("node.kubernetes.io/capacity", "spot"), in("zone", "z")
	field := in(metav1.ObjectNameField, "a")
	for name, tc := range map[string]struct {
		terms []corev1.NodeSelectorTerm
		want  bool
	}{
		"no term":                           {nil, false},
		"another demand":                    {[]corev1.NodeSelectorTerm{{MatchExpressions: zone}}, false},
		"the other class":                   {[]corev1.NodeSelectorTerm{{MatchExpressions: in("node.kubernetes.io/capacity", "on-demand")}}, false},
		"more than the class":               {[]corev1.NodeSelectorTerm{{MatchExpressions: in("node.kubernetes.io/capacity", "spot", "on-demand")}}, false},
		"all but the class":                 {[]corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "node.kubernetes.io/capacity", Operator: "NotIn", Values: []string{"spot"}}}}}, false},
		"the class, and more":               {[]corev1.NodeSelectorTerm{{MatchExpressions: append(zone, spot...)}}, true},
		"one term of two":                   {[]corev1.NodeSelectorTerm{{MatchExpressions: spot}, {MatchExpressions: zone}}, false},
		"one beside one that finds no node": {[]corev1.NodeSelectorTerm{{MatchExpressions: spot}, {}}, true},
		"one node":                          {[]corev1.NodeSelectorTerm{{MatchFields: field}}, false},
		"one node and a zone":               {[]corev1.NodeSelectorTerm{{MatchExpressions: zone, MatchFields: field}}, false},
	} {
		if got := c.Restricted(&corev1.NodeSelector{NodeSelectorTerms: tc.terms}, Spot); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	if c.Restricted(nil, Spot) {
		t.Error("a pod without affinity is kept to a class")
	}
}

// TestUnrestrict checks that Unrestrict returns exactly what a pod required before Restrict.
func TestUnrestrict(t *testing.T) {
	c := ready(t, "cloudpilot")
	spot, zone, field := in("node.kubernetes.io/capacity", "spot"), in("zone", "z"), in(metav1.ObjectNameField, "a")
	for name, tc := range map[string]struct{ terms, want []corev1.NodeSelectorTerm }{
		"nothing":                {[]corev1.NodeSelectorTerm{{MatchExpressions: spot}}, nil},
		"a zone":                 {[]corev1.NodeSelectorTerm{{MatchExpressions: append(zone, spot...)}}, []corev1.NodeSelectorTerm{{MatchExpressions: zone}}},
		"one node":               {[]corev1.NodeSelectorTerm{{MatchExpressions: spot, MatchFields: field}}, []corev1.NodeSelectorTerm{{MatchFields: field}}},
		"a zone and a node":      {[]corev1.NodeSelectorTerm{{MatchExpressions: append(zone, spot...), MatchFields: field}}, []corev1.NodeSelectorTerm{{MatchExpressions: zone, MatchFields: field}}},
		"a zone, or the class":   {[]corev1.NodeSelectorTerm{{MatchExpressions: append(zone, spot...)}, {MatchExpressions: spot}}, []corev1.NodeSelectorTerm{{MatchExpressions: zone}, {MatchExpressions: spot}}},
		"what finds no node":     {[]corev1.NodeSelectorTerm{{}}, []corev1.NodeSelectorTerm{{}}},
		"what is like the class": {[]corev1.NodeSelectorTerm{{MatchExpressions: in("capacity", "spot")}}, []corev1.NodeSelectorTerm{{MatchExpressions: in("capacity", "spot")}}},
	} {
		var want *corev1.NodeSelector
		if tc.want != nil {
			want = &corev1.NodeSelector{NodeSelectorTerms: tc.want}
		}
		got, _ := c.Unrestrict(&corev1.NodeSelector{NodeSelectorTerms: tc.terms}, nil, Spot)
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
