package owners

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
)

// Served asks the API server how a kind is served. The client must have a timeout. Of a
// group that hangs nothing is asked but what is about it, and nobody else waits. Kinds
// are compared without regard to case. An error for which meta.IsNoMatchError is true
// says that the kind is not served; any other that another try may do.
//
// Where exact is false, the kind is looked for in other versions of its group too.
func Served(client discovery.DiscoveryInterface, gvk schema.GroupVersionKind, exact bool) (Kind, error) {
	var tried []string
	if gvk.Version != "" && gvk.Version != "*" {
		tried = append(tried, gvk.Version)
		if kind, err := servedIn(client, gvk); err != nil || kind.Resource != "" {
			return kind, err
		}
	}
	if exact {
		return Kind{}, &meta.NoKindMatchError{GroupKind: gvk.GroupKind(), SearchedVersions: tried}
	}
	groups, err := client.ServerGroups()
	if err != nil {
		return Kind{}, fmt.Errorf("asking which groups are served: %w", err)
	}
	for _, group := range groups.Groups {
		if group.Name != gvk.Group {
			continue
		}
		for _, version := range append([]metav1.GroupVersionForDiscovery{group.PreferredVersion}, group.Versions...) {
			if version.Version == "" || slices.Contains(tried, version.Version) {
				continue
			}
			tried = append(tried, version.Version)
			kind, err := servedIn(client, gvk.GroupKind().WithVersion(version.Version))
			if err != nil || kind.Resource != "" {
				return kind, err
			}
		}
	}
	return Kind{}, &meta.NoKindMatchError{GroupKind: gvk.GroupKind(), SearchedVersions: tried}
}

// servedIn asks about one version. The kind has no resource if it is not served there.
func servedIn(client discovery.DiscoveryInterface, gvk schema.GroupVersionKind) (Kind, error) {
	list, err := client.ServerResourcesForGroupVersion(gvk.GroupVersion().String())
	if apierrors.IsNotFound(err) {
		return Kind{}, nil
	}
	if err != nil {
		return Kind{}, fmt.Errorf("asking for the kinds of %s: %w", gvk.GroupVersion(), err)
	}
	for _, resource := range list.APIResources {
		if strings.EqualFold(resource.Kind, gvk.Kind) && !strings.Contains(resource.Name, "/") {
			return Kind{GroupVersionKind: gvk.GroupVersion().WithKind(resource.Kind), Resource: resource.Name, ClusterScoped: !resource.Namespaced}, nil
		}
	}
	return Kind{}, nil
}

// isUnserved tells whether an answer is about the resource, and not about an object of
// it: the API server does not serve the version any more.
func isUnserved(err error) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	if details == nil || details.Name == "" {
		return true
	}
	return slices.ContainsFunc(details.Causes, func(c metav1.StatusCause) bool { return c.Type == metav1.CauseTypeUnexpectedServerResponse })
}
