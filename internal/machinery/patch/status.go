// Package patch writes statuses as patches that contain only the changes of a reconciler, and
// classifies the errors of patches. It depends on no kind.
package patch

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// Status patches an object's status if object differs from before. The patch has no
// resourceVersion. A missing object is not an error.
func Status(ctx context.Context, c client.Client, object, before client.Object) error {
	if equality.Semantic.DeepEqual(before, object) {
		return nil
	}
	err := c.Status().Patch(ctx, object, client.MergeFrom(before))
	if client.IgnoreNotFound(err) == nil {
		return nil
	}
	kind := "object"
	if gvk, gvkErr := apiutil.GVKForObject(object, c.Scheme()); gvkErr == nil {
		kind = gvk.Kind
	}
	return fmt.Errorf("writing status of %s %q: %w", kind, client.ObjectKeyFromObject(object).String(), err)
}
