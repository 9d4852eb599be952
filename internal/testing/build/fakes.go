package build

import (
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

// Client is a client over objects in memory. Status is a subresource, as in
// the CRDs; funcs sees the calls first.
func Client(funcs interceptor.Funcs, objects ...client.Object) client.WithWatch {
	return fake.NewClientBuilder().WithScheme(kinds).
		WithStatusSubresource(&gm.NodeGroup{}, &gm.PropagationPolicy{}, &gm.OverridePolicy{}, &apps.NodePool{}, &apps.UnitedDeployment{}).
		WithInterceptorFuncs(funcs).WithObjects(objects...).Build()
}
