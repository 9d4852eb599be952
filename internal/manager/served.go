package manager

import (
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

const (
	// servedWithin bounds the wait for the manager's own kinds, so that the state of the
	// container says which kind is missing. Probes do not bound it: they are served meanwhile.
	servedWithin = 100 * time.Second
	// servedInterval is the time between two questions for them.
	servedInterval = 500 * time.Millisecond
)

// listKinds asks the API server for the kinds of a group and version.
type listKinds func(ctx context.Context, groupVersion string) (*metav1.APIResourceList, error)

// kindsFrom returns a listKinds for a client. Unlike the client's own functions, it ends with
// its context.
func kindsFrom(client discovery.DiscoveryInterface) listKinds {
	return func(ctx context.Context, groupVersion string) (*metav1.APIResourceList, error) {
		list := &metav1.APIResourceList{}
		err := client.RESTClient().Get().AbsPath("/apis", groupVersion).Do(ctx).Into(list)
		return list, err
	}
}

// ownKinds are the kinds without which the manager cannot start.
func ownKinds(pools, coordinators bool) []schema.GroupVersionKind {
	kinds := []schema.GroupVersionKind{
		gm.GroupVersion.WithKind("NodeGroup"), gm.GroupVersion.WithKind("PropagationPolicy"), gm.GroupVersion.WithKind("OverridePolicy"),
	}
	if pools {
		kinds = append(kinds, apps.GroupVersion.WithKind("NodePool"), apps.GroupVersion.WithKind("UnitedDeployment"))
	}
	if coordinators {
		kinds = append(kinds, apps.GroupVersion.WithKind("YurtCoordinator"))
	}
	return kinds
}

// awaitKinds waits until the API server serves the kinds. An installation creates their
// CustomResourceDefinitions together with the Deployment of the manager, and the API server
// serves a kind moments after it has its definition.
func awaitKinds(ctx context.Context, list listKinds, kinds []schema.GroupVersionKind, log logr.Logger) error {
	var missing error
	told := false
	err := wait.PollUntilContextTimeout(ctx, servedInterval, servedWithin, true, func(ctx context.Context) (bool, error) {
		reason := firstMissing(ctx, list, kinds)
		if reason == nil || missing == nil || ctx.Err() == nil { // the end of the wait is no reason
			missing = reason
		}
		if missing != nil && !told {
			told = true
			log.Info("Waiting for the CustomResourceDefinitions of Atoll", "reason", missing.Error())
		}
		return missing == nil, nil
	})
	if missing != nil {
		return fmt.Errorf("waiting for the CustomResourceDefinitions of Atoll (the chart installs them unless crds.install is false): %w", missing)
	}
	return err
}

// firstMissing returns why the API server does not serve the first of the kinds that it does
// not serve; nil if it serves all.
func firstMissing(ctx context.Context, list listKinds, kinds []schema.GroupVersionKind) error {
	for _, kind := range kinds {
		if err := serves(ctx, list, kind); err != nil {
			return err
		}
	}
	return nil
}

// serves returns nil if the API server serves a kind. It serves one also while its
// CustomResourceDefinition is being deleted, then without the verb create. The manager must
// start then: until it has removed its finalizers from NodeGroups and NodePools, the
// definition stays.
func serves(ctx context.Context, list listKinds, kind schema.GroupVersionKind) error {
	served, err := list(ctx, kind.GroupVersion().String())
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("asking for the kinds of %s: %w", kind.GroupVersion(), err)
	}
	if err == nil {
		for i := range served.APIResources {
			if served.APIResources[i].Kind == kind.Kind {
				return nil
			}
		}
	}
	return fmt.Errorf("the API server does not serve %s in %s", kind.Kind, kind.GroupVersion())
}
