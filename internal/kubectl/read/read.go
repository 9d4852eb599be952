// Package read reads a cluster with the rights of the person who asks. What that person may not
// read is noted, and all else is shown.
package read

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	capacity "github.com/atoll-k8s/atoll/api/capacity/v1alpha1"
	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	scheduling "github.com/atoll-k8s/atoll/api/scheduling/v1beta1"
)

// Reader reads objects. It is for one command: what could not be read stays noted. It must not
// be used by several goroutines at the same time.
type Reader struct {
	client client.Reader
	scheme *runtime.Scheme
	unread map[string]string
}

// Scheme returns the kinds that a Reader knows.
func Scheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	return scheme, errors.Join(corev1.AddToScheme(scheme), appsv1.AddToScheme(scheme), batchv1.AddToScheme(scheme), policyv1.AddToScheme(scheme), coordinationv1.AddToScheme(scheme), discoveryv1.AddToScheme(scheme), metav1.AddMetaToScheme(scheme), gm.AddToScheme(scheme), apps.AddToScheme(scheme), capacity.AddToScheme(scheme), scheduling.AddToScheme(scheme))
}

// New returns a Reader for the cluster of a configuration.
func New(config *rest.Config) (*Reader, error) {
	scheme, err := Scheme()
	if err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = 50, 300 // as kubectl; client-go's default would make people wait
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", config.Host, err)
	}
	return For(c, scheme), nil
}

// For returns a Reader for a client.
func For(c client.Reader, scheme *runtime.Scheme) *Reader {
	return &Reader{client: c, scheme: scheme, unread: map[string]string{}}
}

// Get reads an object. It returns false if there is none, or if the cluster does not serve the
// kind, or if the person may not read it, which Unread then tells.
func (r *Reader) Get(ctx context.Context, key client.ObjectKey, object client.Object) (bool, error) {
	err := r.client.Get(ctx, key, object)
	return err == nil, r.note("get", key.Namespace, object, err)
}

// List reads all objects of a kind. Of what cannot be read there is none, as with Get.
func (r *Reader) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	var all client.ListOptions
	all.ApplyOptions(options)
	return r.note("list", all.Namespace, list, r.client.List(ctx, list, options...))
}

// Serves reports whether a kind is served and the person may list it; if not, Unread tells.
func (r *Reader) Serves(ctx context.Context, list client.ObjectList, options ...client.ListOption) (bool, error) {
	var all client.ListOptions
	all.ApplyOptions(append(options, client.Limit(1)))
	err := r.client.List(ctx, list, &all)
	return err == nil, r.note("list", all.Namespace, list, err)
}

// note returns the error of a request unless it says that there is no such thing, or that the
// person may not read it.
func (r *Reader) note(verb, namespace string, object runtime.Object, err error) error {
	var unserved *discovery.ErrGroupDiscoveryFailed
	switch {
	case err == nil, apierrors.IsNotFound(err), meta.IsNoMatchError(err), errors.As(err, &unserved):
		return nil
	case apierrors.IsForbidden(err) && !strings.Contains(err.Error(), " cannot impersonate "):
		r.unread[r.what(verb, namespace, object)] = roleFor(object, namespace)
		return nil
	}
	return err
}

// Forbidden reports whether a request before was refused, so that an object may be there although
// it was not found.
func (r *Reader) Forbidden(verb, namespace string, object runtime.Object) bool {
	_, is := r.unread[r.what(verb, namespace, object)]
	return is
}

// what names a right, such as "list pods in namespace default".
func (r *Reader) what(verb, namespace string, object runtime.Object) string {
	what := fmt.Sprintf("%T", object)
	if kind, err := apiutil.GVKForObject(object, r.scheme); err == nil {
		kind.Kind = strings.TrimSuffix(kind.Kind, "List")
		plural, _ := meta.UnsafeGuessKindToResource(kind)
		what = plural.GroupResource().String()
	}
	if namespace != "" {
		return fmt.Sprintf("%s %s in namespace %s", verb, what, namespace)
	}
	return verb + " " + what
}

// roleFor tells who has the right to read a kind.
func roleFor(object runtime.Object, namespace string) string {
	switch object.(type) {
	case *corev1.Node, *corev1.NodeList:
		return "no role that is always there has the right; kubectl create clusterrole node-viewer --verb=get,list,watch --resource=nodes makes one"
	case *gm.NodeGroup, *gm.NodeGroupList, *apps.NodePool, *apps.NodePoolList, *apps.YurtCoordinator, *apps.YurtCoordinatorList:
		return "ClusterRole atoll-view has the right, with a ClusterRoleBinding"
	case *unstructured.Unstructured: // a part of the installation
		return "ClusterRole cluster-admin has the right"
	}
	role := "ClusterRole view has the right"
	switch object.(type) {
	case *corev1.Secret, *coordinationv1.Lease, *coordinationv1.LeaseList:
		role = "ClusterRole edit has the right"
	}
	if namespace == "" {
		return role + ", with a ClusterRoleBinding"
	}
	return role
}

// Unread tells what the person may not read, and which role has the right.
func (r *Reader) Unread() (all []string) {
	for _, right := range slices.Sorted(maps.Keys(r.unread)) {
		all = append(all, fmt.Sprintf("you may not %s: %s", right, r.unread[right]))
	}
	return all
}
