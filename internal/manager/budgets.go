package manager

import (
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/machinery/budget"
)

const (
	// maxPolicy bounds the memory of one policy, without its status, and maxPolicies that of
	// all policies of one kind in a namespace, in bytes. A policy with 1,000 NodeGroups takes
	// 60 KiB, and one of 500 kB of JSON 741 KiB.
	// What is compiled from the policies takes twice as much.
	maxPolicy, maxPolicies = 1 << 20, 8 << 20
	// maxPoolObjects bounds the memory of the workloads of UnitedDeployments, and of their
	// revisions, of a namespace, in bytes. It is enough for 2,000 Deployments of usual size.
	maxPoolObjects = 32 << 20
)

// budgets bound the memory that objects of one namespace take in the manager's cache.
type budgets struct {
	// propagations and overrides are for policies. One that does not fit is not used, and
	// says so. Each kind has its own, so that it does not depend on which one is listed first.
	propagations, overrides *budget.Budget
	// pools is for workloads and revisions of UnitedDeployments. One that does not fit is
	// read from the API server whenever it is needed.
	pools *budget.Budget
}

func newBudgets() budgets {
	return budgets{propagations: budget.New(maxPolicy, maxPolicies), overrides: budget.New(maxPolicy, maxPolicies), pools: budget.New(maxPoolObjects, maxPoolObjects)}
}

// ofPolicies returns the transform for a kind of policies. Annotations are dropped: nobody
// reads those of policies, and kubectl writes the whole object into one.
func ofPolicies[T client.Object](b *budget.Budget, size func(T) int64, without func(T) T) toolscache.TransformFunc {
	bounded := budget.Transform(b, size, without)
	return func(obj any) (any, error) {
		if o, ok := obj.(T); ok && budget.Unread(o) == nil {
			o.SetAnnotations(nil)
		}
		return bounded(obj)
	}
}

func ofPropagations(b *budget.Budget) toolscache.TransformFunc {
	return ofPolicies(b, sizeOfPropagation, func(p *gm.PropagationPolicy) *gm.PropagationPolicy { return &gm.PropagationPolicy{Status: p.Status} })
}

func ofOverrides(b *budget.Budget) toolscache.TransformFunc {
	return ofPolicies(b, sizeOfOverride, func(p *gm.OverridePolicy) *gm.OverridePolicy { return &gm.OverridePolicy{Status: p.Status} })
}

// ofPool returns the transform for a kind of workloads, or for revisions. empty returns an
// object with the given metadata. One that is left out keeps the labels by which it is found.
func ofPool[T client.Object](b *budget.Budget, empty func(metav1.ObjectMeta) T) toolscache.TransformFunc {
	return budget.Transform(b, func(o T) int64 { return budget.SizeOf(o) }, func(o T) T {
		kept := map[string]string{}
		for _, key := range []string{apps.PoolNameLabel, apps.UnitedDeploymentLabel, apps.RevisionLabel} {
			if value, found := o.GetLabels()[key]; found {
				kept[key] = value
			}
		}
		return empty(metav1.ObjectMeta{Labels: kept})
	})
}

func sizeOfPropagation(p *gm.PropagationPolicy) int64 { return policySize(p.ObjectMeta, p.Spec) }

func sizeOfOverride(p *gm.OverridePolicy) int64 { return policySize(p.ObjectMeta, p.Spec) }

// policySize returns the memory of what the author of a policy writes, as far as the cache
// keeps it.
func policySize[Spec any](meta metav1.ObjectMeta, spec Spec) int64 {
	meta.Annotations, meta.ManagedFields = nil, nil
	return budget.SizeOf(meta) + budget.SizeOf(spec)
}

// fits returns an error if a policy would be left out of the cache.
func (b budgets) fits(policy client.Object) error {
	switch p := policy.(type) {
	case *gm.PropagationPolicy:
		return b.propagations.Check(p.Namespace, p.UID, sizeOfPropagation(p))
	case *gm.OverridePolicy:
		return b.overrides.Check(p.Namespace, p.UID, sizeOfOverride(p))
	}
	return nil
}

// slimUnitedDeployment keeps of a UnitedDeployment what starts a pass. The pass itself reads
// it from the API server. Beyond the budget the names of its pools are left out: changes of
// NodePools do not start a pass then.
func (b budgets) slimUnitedDeployment(obj any) (any, error) {
	ud, ok := obj.(*apps.UnitedDeployment)
	if !ok {
		return obj, nil
	}
	slim := &apps.UnitedDeployment{ObjectMeta: metav1.ObjectMeta{
		Namespace: ud.Namespace, Name: ud.Name, UID: ud.UID, ResourceVersion: ud.ResourceVersion, Generation: ud.Generation,
		DeletionTimestamp: ud.DeletionTimestamp,
	}}
	if to, asked := ud.Annotations[apps.RollbackToAnnotation]; asked {
		slim.Annotations = map[string]string{apps.RollbackToAnnotation: strings.Clone(to[:min(len(to), 64)])}
	}
	for i := range ud.Spec.Topology.Pools {
		slim.Spec.Topology.Pools = append(slim.Spec.Topology.Pools, apps.Pool{Name: ud.Spec.Topology.Pools[i].Name})
	}
	slim.Spec.Topology.Pools = slices.Clip(slim.Spec.Topology.Pools)
	if b.pools.Take(slim.Namespace, slim.UID, budget.SizeOf(slim)) != nil {
		slim.Spec.Topology.Pools = nil
	}
	return slim, nil
}

// watchDeleted makes the budgets forget deleted objects. It must be called before the cache
// is started.
func (b budgets) watchDeleted(ctx context.Context, c cache.Cache, pools bool) error {
	kinds := map[client.Object]*budget.Budget{&gm.PropagationPolicy{}: b.propagations, &gm.OverridePolicy{}: b.overrides}
	if pools {
		for _, kind := range []client.Object{&apps.UnitedDeployment{}, &appsv1.Deployment{}, &appsv1.StatefulSet{}, &appsv1.DaemonSet{}, &appsv1.ControllerRevision{}} {
			kinds[kind] = b.pools
		}
	}
	for kind, of := range kinds {
		informer, err := c.GetInformer(ctx, kind)
		if err == nil {
			_, err = informer.AddEventHandler(of.DropDeleted())
		}
		if err != nil {
			return fmt.Errorf("watching deletions of %T: %w", kind, err)
		}
	}
	return nil
}
