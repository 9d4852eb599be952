package survey

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/membership"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// TestNodesAreFoundByWhatTheyCarry: by each label, also one that a NodePool has replaced, by name and
// by the pool; each node once.
func TestNodesAreFoundByWhatTheyCarry(t *testing.T) {
	type labels = []membership.Label
	cache := build.ClientBuilder(interceptor.Funcs{},
		build.Node("c", build.Label("site", "x")), build.Node("a", build.Label("site", "x"), build.Label("rack", "1")), build.Node("b", build.Label("rack", "2")),
		build.Node("d", build.Label("site", "of-pool"), build.Annotation(apps.NodePoolAnnotation, `{"pool":"p","labels":{"site":"z"}}`)),
	).WithIndex(&corev1.Node{}, NodeLabels, LabelsOf).Build()
	for name, tc := range map[string]struct {
		some labels
		all  bool
		want []string
	}{
		"nothing":                              {},
		"a value":                              {some: labels{{Key: "site", Value: "x"}}, want: []string{"a", "c"}},
		"a value that none has":                {some: labels{{Key: "site", Value: "1"}}},
		"any value, which is not in the index": {some: labels{{Key: "rack", Any: true}}, want: []string{"a", "b", "c", "d"}},
		"a host name, which is not either":     {some: labels{{Key: corev1.LabelHostname, Value: "b"}}, want: []string{"a", "b", "c", "d"}},
		"a name that no node has":              {some: labels{membership.NameOf("x")}},
		"several labels":                       {some: labels{{Key: "rack", Value: "1"}, {Key: "site", Value: "x"}, membership.NameOf("b")}, want: []string{"a", "b", "c"}},
		"a name":                               {some: labels{membership.NameOf("b")}, want: []string{"b"}},
		"a pool":                               {some: labels{IncumbentOf("p")}, want: []string{"d"}},
		"what a pool gave":                     {some: labels{{Key: "site", Value: "of-pool"}}, want: []string{"d"}},
		"what it replaced":                     {some: labels{{Key: "site", Value: "z"}}, want: []string{"d"}},
		"all":                                  {some: labels{membership.NameOf("b")}, all: true, want: []string{"a", "b", "c", "d"}},
	} {
		found, err := NodesWith(t.Context(), cache, tc.some, tc.all)
		var got []string
		for _, node := range found {
			got = append(got, node.Name)
		}
		if err != nil || !slices.Equal(got, tc.want) {
			t.Errorf("%s: found %v, %v; want %v", name, got, err, tc.want)
		}
	}
}
