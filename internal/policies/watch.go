package policies

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
)

// OfEveryKind asks for a reconcile of every object of a kind when the watched
// object changes: a NodeGroup can be named by any policy.
func OfEveryKind(reader client.Reader, kind client.ObjectList) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, _ client.Object) []ctrl.Request {
		list := kind.DeepCopyObject().(client.ObjectList)
		if reader.List(ctx, list) != nil {
			return nil // the cache is not started yet: everything is reconciled when it is
		}
		var requests []ctrl.Request
		_ = meta.EachListItem(list, func(o runtime.Object) error {
			requests = append(requests, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(o.(client.Object))})
			return nil
		})
		return requests
	})
}
