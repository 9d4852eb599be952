package e2e

import (
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
)

// TestBadCoordinatorsAreRefused when they are applied, with a message that names field and error.
func TestBadCoordinatorsAreRefused(t *testing.T) {
	f := newFixture(t)
	for name, tc := range map[string]struct {
		spec string
		want []string // none means that it is accepted
	}{
		"a pool":                          {"{nodePool: edge}", nil},
		"a version":                       {"{nodePool: edge, version: v1.36.3}", nil},
		"a version without v":             {"{nodePool: edge, version: 1.36.3}", nil},
		"no pool":                         {"{}", []string{"spec.nodePool", "Required value"}},
		"an empty pool":                   {"{nodePool: ''}", []string{"spec.nodePool"}},
		"a name that no pool has":         {"{nodePool: Edge}", []string{"spec.nodePool", "must be the name of a NodePool"}},
		"a pool with a dot":               {"{nodePool: edge.one}", []string{"spec.nodePool", "must be the name of a NodePool"}},
		"a name of 64 characters":         {"{nodePool: " + strings.Repeat("x", 64) + "}", []string{"spec.nodePool", "63"}},
		"a version that is none":          {"{nodePool: edge, version: latest}", []string{"spec.version", "must be a version of Kubernetes"}},
		"a minor version":                 {"{nodePool: edge, version: v1.36}", []string{"spec.version", "must be a version of Kubernetes"}},
		"the version of a distribution":   {"{nodePool: edge, version: v1.36.3+k3s1}", []string{"spec.version", "must be a version of Kubernetes"}},
		"a number in the place of a text": {"{nodePool: edge, version: 1.36}", []string{"spec.version"}},
		"a field that is none":            {"{nodePool: edge, pool: edge}", []string{"unknown field", "spec.pool"}},
	} {
		t.Run(name, func(t *testing.T) {
			err := f.dryRun(fmt.Appendf(nil, "apiVersion: apps.openyurt.io/v1alpha1\nkind: YurtCoordinator\nmetadata: {name: c}\nspec: %s", tc.spec))
			if len(tc.want) == 0 && err != nil {
				t.Errorf("refused: %v", err)
			}
			for _, want := range tc.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("the refusal does not say %q: %v", want, err)
				}
			}
		})
	}
	t.Run("the pool cannot change", func(t *testing.T) {
		c := &apps.YurtCoordinator{ObjectMeta: metav1.ObjectMeta{Name: f.ns}, Spec: apps.YurtCoordinatorSpec{NodePool: f.ns}}
		f.create(c)
		c.Spec.NodePool = "other"
		if err := f.client.Update(f.ctx, c); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "make another YurtCoordinator") {
			t.Errorf("the answer is %v", err)
		}
		// A hub asks for that of its pool only.
		var list apps.YurtCoordinatorList
		if err := f.client.List(f.ctx, &list, client.MatchingFieldsSelector{Selector: fields.OneTermEqualSelector("spec.nodePool", f.ns)}); err != nil || len(list.Items) != 1 {
			t.Errorf("by its pool %d are found, %v", len(list.Items), err)
		}
	})
}
