// Package uninstall puts back what Atoll has written on objects that are not its own, once it has been
// removed from a cluster: nodes get their own attributes again, pods leave the scheduling gate, and
// nothing waits for a finalizer. It works with the rights of the person who runs it, and needs nothing
// of the installation, so that it helps too when that is gone already.
package uninstall

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/attributes"
	"github.com/atoll-k8s/atoll/internal/domain/connectivity"
	"github.com/atoll-k8s/atoll/internal/machinery/conditions"
)

// Change is one object that is to be put back.
type Change struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// What is put back, for people.
	What string `json:"what"`

	object client.Object
	patch  []byte
	form   types.PatchType
}

// Plan returns what is to be put back: nodes, pods, workloads, and finalizers last, so that a run that
// ended early can be repeated. It is an error while an atoll-manager runs, which would write all again,
// or while there are YurtCoordinators, whose nodes may be cut off.
func Plan(ctx context.Context, c client.Client) ([]Change, error) {
	if err := isGone(ctx, c); err != nil {
		return nil, err
	}
	var changes []Change
	for _, of := range []func(context.Context, client.Client) ([]Change, error){nodes, pods, workloads, finalizers} {
		more, err := of(ctx, c)
		if err != nil {
			return nil, err
		}
		changes = append(changes, more...)
	}
	return changes, nil
}

// Apply makes the changes. An object that has changed meanwhile is an error: the next Plan has it again.
func Apply(ctx context.Context, c client.Client, changes []Change) error {
	var failed []error
	for i := range changes {
		change := &changes[i]
		if err := c.Patch(ctx, change.object, client.RawPatch(change.form, change.patch)); client.IgnoreNotFound(err) != nil {
			failed = append(failed, fmt.Errorf("%s %s: %w", change.Kind, change.Name, err))
		}
	}
	return errors.Join(failed...)
}

func isGone(ctx context.Context, c client.Client) error {
	var managers appsv1.DeploymentList
	if err := c.List(ctx, &managers, client.MatchingLabels{"app.kubernetes.io/name": "atoll-manager"}); err != nil {
		return fmt.Errorf("looking for atoll-manager: %w", err)
	}
	for i := range managers.Items {
		if m := &managers.Items[i]; m.Spec.Replicas == nil || *m.Spec.Replicas > 0 {
			return fmt.Errorf("atoll-manager runs in namespace %s and would write everything again: first helm uninstall it, or kubectl delete -f the file that it was installed with", m.Namespace)
		}
	}
	coordinators := &metav1.PartialObjectMetadataList{}
	coordinators.SetGroupVersionKind(apps.GroupVersion.WithKind("YurtCoordinatorList"))
	err := listed(c.List(ctx, coordinators))
	if err == nil && len(coordinators.Items) > 0 {
		err = fmt.Errorf("YurtCoordinator %q is still there: kubectl delete yurtcoordinators --all", coordinators.Items[0].Name)
	}
	return err
}

// listed returns the error of a list; nil if the cluster does not serve the kind.
func listed(err error) error {
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// nodes returns the nodes with something of Atoll.
func nodes(ctx context.Context, c client.Client) (changes []Change, err error) {
	var list corev1.NodeList
	if err := c.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	for i := range list.Items {
		node := &list.Items[i]
		patch, keys, err := restored(node)
		if err != nil {
			return nil, fmt.Errorf("node %s: %w", node.Name, err)
		}
		if len(keys) > 0 {
			changes = append(changes, Change{Kind: "Node", Name: node.Name, What: "its own values of " + conditions.List(keys), object: node, patch: patch, form: types.MergePatchType})
		}
	}
	return changes, nil
}

// restored returns the patch that gives a node its own attributes, and the keys that change.
func restored(node *corev1.Node) (patch []byte, keys []string, err error) {
	change, err := attributes.Read(node).Plan(nil, false)
	if err != nil {
		return nil, nil, err
	}
	keys = change.Keys()
	labels, annotations := change.Labels, change.Annotations
	remove := func(from map[string]string, key, onlyIf string, to *map[string]*string) {
		if value, has := from[key]; has && (onlyIf == "" || value == onlyIf) {
			if *to == nil {
				*to = map[string]*string{}
			}
			(*to)[key], keys = nil, append(keys, key)
		}
	}
	remove(node.Labels, gm.NodeGroupLabel, "", &labels)
	remove(node.Labels, connectivity.ExcludeLabel, connectivity.LabelValue, &labels)
	remove(node.Annotations, connectivity.Annotation, "", &annotations)
	fields := map[string]any{"metadata": map[string]any{"resourceVersion": node.ResourceVersion, "labels": labels, "annotations": annotations}}
	if change.TaintsChanged {
		fields["spec"] = map[string]any{"taints": change.Taints}
	}
	if change.Empty() && len(keys) == 0 {
		return nil, nil, nil
	}
	if len(keys) == 0 {
		keys = []string{apps.NodePoolAnnotation}
	}
	patch, err = json.Marshal(fields)
	return patch, keys, err
}

// pods returns the pods at the scheduling gate.
func pods(ctx context.Context, c client.Client) (changes []Change, err error) {
	var list corev1.PodList
	if err := c.List(ctx, &list, client.MatchingFields{"spec.nodeName": ""}); err != nil {
		return nil, fmt.Errorf("listing pods: %w", err)
	}
	for i := range list.Items {
		pod := &list.Items[i]
		if !slices.ContainsFunc(pod.Spec.SchedulingGates, func(g corev1.PodSchedulingGate) bool { return g.Name == gm.PolicyGate }) {
			continue
		}
		changes = append(changes, Change{
			Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, What: "leaves the scheduling gate", object: pod, form: types.StrategicMergePatchType,
			patch: fmt.Appendf(nil, `{"spec":{"schedulingGates":[{"$patch":"delete","name":%q}]}}`, gm.PolicyGate),
		})
	}
	return changes, nil
}

// workloads returns those with a binding label.
func workloads(ctx context.Context, c client.Client) (changes []Change, err error) {
	keys := []string{gm.BindingPropagationPolicyLabel, gm.BindingOverridePolicyLabel}
	for _, kind := range []schema.GroupVersionKind{
		appsv1.SchemeGroupVersion.WithKind("Deployment"), appsv1.SchemeGroupVersion.WithKind("ReplicaSet"), appsv1.SchemeGroupVersion.WithKind("StatefulSet"),
		appsv1.SchemeGroupVersion.WithKind("DaemonSet"), batchv1.SchemeGroupVersion.WithKind("Job"), batchv1.SchemeGroupVersion.WithKind("CronJob"),
	} {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
		if err := c.List(ctx, list); err != nil {
			return nil, fmt.Errorf("listing objects of kind %s: %w", kind.Kind, err)
		}
		for i := range list.Items {
			object := &list.Items[i]
			if !slices.ContainsFunc(keys, func(key string) bool { _, has := object.Labels[key]; return has }) {
				continue
			}
			object.SetGroupVersionKind(kind)
			changes = append(changes, Change{
				Kind: kind.Kind, Namespace: object.Namespace, Name: object.Name, What: "no binding label", object: object, form: types.MergePatchType,
				patch: fmt.Appendf(nil, `{"metadata":{"labels":{%q:null,%q:null}}}`, keys[0], keys[1]),
			})
		}
	}
	return changes, nil
}

// finalizers returns the NodeGroups and NodePools with a finalizer of Atoll.
func finalizers(ctx context.Context, c client.Client) (changes []Change, err error) {
	for _, of := range []struct {
		kind      schema.GroupVersionKind
		finalizer string
	}{{gm.GroupVersion.WithKind("NodeGroup"), gm.NodeGroupFinalizer}, {apps.GroupVersion.WithKind("NodePool"), apps.NodePoolFinalizer}} {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(of.kind.GroupVersion().WithKind(of.kind.Kind + "List"))
		if err := listed(c.List(ctx, list)); err != nil {
			return nil, fmt.Errorf("listing %ss: %w", of.kind.Kind, err)
		}
		for i := range list.Items {
			object := &list.Items[i]
			left := slices.DeleteFunc(slices.Clone(object.GetFinalizers()), func(f string) bool { return f == of.finalizer })
			if len(left) == len(object.GetFinalizers()) {
				continue
			}
			patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": object.GetResourceVersion(), "finalizers": left}})
			if err != nil {
				return nil, err
			}
			changes = append(changes, Change{Kind: of.kind.Kind, Name: object.GetName(), What: "no finalizer, so that it can be deleted", object: object, patch: patch, form: types.MergePatchType})
		}
	}
	return changes, nil
}
