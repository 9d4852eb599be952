package policies

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
)

// +kubebuilder:rbac:roleName=atoll-manager-capacity,groups="",resources=namespaces,verbs=list;watch

// Namespaces watches namespaces and passes their capacity settings to a Resolver. No
// pod waits for it: while namespaces cannot be read their last settings stay in force,
// none at first. Until all have been listed no pod is moved to another class.
type Namespaces struct {
	Resolver *Resolver
	Client   metadata.Interface
}

// Start implements manager.Runnable. It watches namespaces until ctx is done.
func (n *Namespaces) Start(ctx context.Context) error {
	informer := metadatainformer.NewFilteredMetadataInformer(n.Client, corev1.SchemeGroupVersion.WithResource("namespaces"), "", 0, nil, nil).Informer()
	if err := informer.SetTransform(slimNamespace); err != nil {
		return fmt.Errorf("watching namespaces: %w", err)
	}
	set := func(obj any) {
		if m, ok := obj.(*metav1.PartialObjectMetadata); ok {
			n.Resolver.SetNamespace(m.Name, ownership.CapacityOf(m.Annotations, m.Labels))
		}
	}
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    set,
		UpdateFunc: func(_, obj any) { set(obj) },
		DeleteFunc: func(obj any) {
			if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			if m, ok := obj.(*metav1.PartialObjectMetadata); ok {
				n.Resolver.SetNamespace(m.Name, ownership.Capacity{})
			}
		},
	})
	if err != nil {
		return fmt.Errorf("watching namespaces: %w", err)
	}
	go func() {
		if cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
			n.Resolver.SetNamespacesListed()
		}
	}()
	informer.RunWithContext(ctx)
	return nil
}

// NeedLeaderElection is false: every replica admits pods.
func (n *Namespaces) NeedLeaderElection() bool { return false }

// slimNamespace drops all of a namespace but its name, UID, version and capacity
// settings, to save memory.
func slimNamespace(obj any) (any, error) {
	m, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return obj, nil
	}
	slim := &metav1.PartialObjectMetadata{TypeMeta: m.TypeMeta, ObjectMeta: metav1.ObjectMeta{Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion}}
	only := func(all map[string]string) (kept map[string]string) {
		for _, key := range []string{gm.CapacitySwitchKey, gm.CapacityCountKey, gm.CapacityOnEmptyKey} {
			if v, ok := all[key]; ok {
				if kept == nil {
					kept = map[string]string{}
				}
				kept[key] = v
			}
		}
		return kept
	}
	slim.Annotations, slim.Labels = only(m.Annotations), only(m.Labels)
	return slim, nil
}
