package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the API group and version of every kind of this package.
var GroupVersion = schema.GroupVersion{Group: "apps.openyurt.io", Version: "v1alpha1"}

var (
	schemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)

	// AddToScheme registers the kinds of this package with a scheme.
	AddToScheme = schemeBuilder.AddToScheme
)

// kinds are an object and a list of every kind.
var kinds = []runtime.Object{
	&NodePool{}, &NodePoolList{},
	&UnitedDeployment{}, &UnitedDeploymentList{},
	&YurtCoordinator{}, &YurtCoordinatorList{},
}

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, kinds...)
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
