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

// Served returns how the API server serves a kind. It compares kinds without regard to
// case. Unless exact is set, it searches the other versions of the group too. The client
// must have a timeout. Served requests resources of the kind's own group only, so that a
// group that hangs delays no other.
//
// An error for which meta.IsNoMatchError is true means that the kind is not served. After
// any other error the caller should try again.
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
		return Kind{}, fmt.Errorf("listing API groups: %w", err)
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

// servedIn searches one version. The Resource is empty if the kind is not served there.
func servedIn(client discovery.DiscoveryInterface, gvk schema.GroupVersionKind) (Kind, error) {
	list, err := client.ServerResourcesForGroupVersion(gvk.GroupVersion().String())
	if apierrors.IsNotFound(err) {
		return Kind{}, nil
	}
	if err != nil {
		return Kind{}, fmt.Errorf("listing the resources of %s: %w", gvk.GroupVersion(), err)
	}
	for _, resource := range list.APIResources {
		if strings.EqualFold(resource.Kind, gvk.Kind) && !strings.Contains(resource.Name, "/") {
			return Kind{GroupVersionKind: gvk.GroupVersion().WithKind(resource.Kind), Resource: resource.Name, ClusterScoped: !resource.Namespaced}, nil
		}
	}
	return Kind{}, nil
}

// isUnserved reports whether a NotFound error is about the resource and not about one
// object: the API server does not serve the version any more.
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
