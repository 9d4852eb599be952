package workloadkind

import (
	"context"
	"fmt"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-k8s/atoll/internal/domain/workloadkind"
	"github.com/atoll-k8s/atoll/internal/owners"
)

// verbs are what the manager needs for a kind: it watches all objects, reads single
// objects that are not in the cache yet, and writes binding labels.
var verbs = []string{"get", "list", "watch", "patch"}

// refusal is the reason why a kind cannot be used, and the remedy.
type refusal struct {
	text string
	// temporary is true if the reason may disappear although the list does not change.
	temporary bool
}

func (r refusal) Error() string { return r.text }

// resolveEntry returns the kind that an entry names. An error that is not a refusal means
// that the API server could not answer.
func (r *Reconciler) resolveEntry(ctx context.Context, e workloadkind.Entry) (owners.Kind, error) {
	kind := owners.Kind{
		GroupVersionKind: e.GroupVersionKind,
		ReplicasPath:     e.ReplicasPath, RevisionLabel: e.RevisionLabel, PodTemplatePath: e.PodTemplatePath,
	}
	resource, err := r.served(ctx, e)
	if err != nil {
		return kind, err
	}
	kind.Resource = resource.Name
	switch {
	case e.Resource != "" && e.Resource != resource.Name:
		return kind, refusal{text: fmt.Sprintf("resource is %q, but the API server serves the kind as %q: write the latter, or leave resource out", e.Resource, resource.Name)}
	case !resource.Namespaced:
		return kind, refusal{text: "the kind is cluster-scoped: a policy applies only to workloads of its own namespace. List the kinds that it owns instead"}
	}
	for _, verb := range verbs {
		if !slices.Contains(resource.Verbs, verb) {
			return kind, refusal{text: fmt.Sprintf("the API server serves the kind without the verb %s: it cannot be a workload", verb)}
		}
	}
	return kind, r.allowed(ctx, kind)
}

// served returns the resource under which the API server serves a kind.
func (r *Reconciler) served(ctx context.Context, e workloadkind.Entry) (metav1.APIResource, error) {
	list, err := r.resourcesOf(ctx, e.GroupVersion().String())
	if err != nil && !apierrors.IsNotFound(err) {
		return metav1.APIResource{}, fmt.Errorf("reading the resources of %s: %w", e.GroupVersion(), err)
	}
	if err == nil {
		for _, resource := range list.APIResources {
			if resource.Kind == e.Kind && !strings.Contains(resource.Name, "/") {
				return resource, nil
			}
		}
	}
	return metav1.APIResource{}, refusal{temporary: true, text: fmt.Sprintf(
		"the API server does not serve %s, kind %s: install its CustomResourceDefinition, or correct group, version and kind", e.GroupVersion(), e.Kind)}
}

// resourcesOf reads the resources of a group and version. It returns when ctx ends: the
// discovery client takes no context.
func (r *Reconciler) resourcesOf(ctx context.Context, groupVersion string) (*metav1.APIResourceList, error) {
	type answer struct {
		list *metav1.APIResourceList
		err  error
	}
	answers := make(chan answer, 1)
	go func() { // ends at the latest when the request times out
		list, err := r.API.Discovery().ServerResourcesForGroupVersion(groupVersion)
		answers <- answer{list, err}
	}()
	select {
	case a := <-answers:
		return a.list, a.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// allowed checks that the manager has the permission for all verbs in all namespaces.
func (r *Reconciler) allowed(ctx context.Context, kind owners.Kind) error {
	var denied []string
	for _, verb := range verbs {
		review, err := r.API.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: verb, Group: kind.Group, Version: kind.Version, Resource: kind.Resource,
			}},
		}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("reviewing the permission to %s %s: %w", verb, kind.Resource, err)
		}
		if !review.Status.Allowed {
			denied = append(denied, verb)
		}
	}
	if len(denied) > 0 {
		return refusal{temporary: true, text: forbidden(kind, denied...)}
	}
	return nil
}

// forbidden returns the text about missing permissions, and how they can be granted.
func forbidden(kind owners.Kind, denied ...string) string {
	return fmt.Sprintf("atoll-manager is not allowed to %s %s in every namespace: list the kind in the chart's value workloads, with resource: %s, or grant it a ClusterRole",
		strings.Join(denied, ", "), kind.GroupVersion().WithResource(kind.Resource).GroupResource(), kind.Resource)
}
