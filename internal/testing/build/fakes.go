package build

import (
	certificatesv1 "k8s.io/api/certificates/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	capacity "github.com/atoll-k8s/atoll/api/capacity/v1alpha1"
	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

// Client makes a client for objects in memory. Status is a subresource, as in the CRDs. funcs
// can intercept calls.
func Client(funcs interceptor.Funcs, objects ...client.Object) client.WithWatch {
	return ClientBuilder(funcs, objects...).Build()
}

// ClientBuilder builds what Client returns, for tests that add indexes.
func ClientBuilder(funcs interceptor.Funcs, objects ...client.Object) *fake.ClientBuilder {
	// This tracker does not keep the fields' managers, which takes most of the time of a write.
	tracker := clienttesting.NewObjectTracker(kinds, serializer.NewCodecFactory(kinds).UniversalDecoder())
	return fake.NewClientBuilder().WithScheme(kinds).WithObjectTracker(tracker).
		WithStatusSubresource(&gm.NodeGroup{}, &gm.PropagationPolicy{}, &gm.OverridePolicy{}, &apps.NodePool{}, &apps.UnitedDeployment{}, &apps.YurtCoordinator{}, &capacity.CapacitySplit{}, &certificatesv1.CertificateSigningRequest{}).
		WithInterceptorFuncs(funcs).WithObjects(objects...)
}

// EvictionRefused returns the API server's error for an eviction that a PodDisruptionBudget does
// not allow.
func EvictionRefused() error {
	err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{Type: policyv1.DisruptionBudgetCause})
	return err
}
