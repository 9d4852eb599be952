// Package plan says what atoll-manager will do once objects are applied. It decides nothing
// itself: it builds what the decisions depend on from lists, and calls them.
package plan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/attributes"
	"github.com/atoll-k8s/atoll/internal/domain/connectivity"
	"github.com/atoll-k8s/atoll/internal/domain/membership"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/kubectl/read"
	"github.com/atoll-k8s/atoll/internal/owners"
	"github.com/atoll-k8s/atoll/internal/policies"
	"github.com/atoll-k8s/atoll/internal/seats"
	"github.com/atoll-k8s/atoll/internal/survey"
)

// Cluster has the objects on which the decisions depend.
type Cluster struct {
	objects map[key]client.Object
	// fresh are those that With has added.
	fresh sets.Set[key]
}

// key names an object; Kind is enough, because no two kinds here have the same.
type key struct{ Kind, Namespace, Name string }

func keyOf(o client.Object) key {
	return key{kindOf(o), o.GetNamespace(), o.GetName()}
}

// Knows reports whether a plan depends on objects of a kind.
func Knows(o client.Object) bool { return kindOf(o) != "" }

// kindOf returns the kind of an object that is typed; "" for one on which nothing depends.
func kindOf(o client.Object) string {
	switch o.(type) {
	case *corev1.Node:
		return "Node"
	case *corev1.Pod:
		return "Pod"
	case *gm.NodeGroup:
		return "NodeGroup"
	case *apps.NodePool:
		return "NodePool"
	case *gm.PropagationPolicy:
		return "PropagationPolicy"
	case *gm.OverridePolicy:
		return "OverridePolicy"
	case *policyv1.PodDisruptionBudget:
		return "PodDisruptionBudget"
	case *appsv1.Deployment:
		return "Deployment"
	case *appsv1.ReplicaSet:
		return "ReplicaSet"
	case *appsv1.StatefulSet:
		return "StatefulSet"
	case *appsv1.DaemonSet:
		return "DaemonSet"
	case *batchv1.Job:
		return "Job"
	case *batchv1.CronJob:
		return "CronJob"
	}
	return ""
}

// Observe reads a cluster. Whatever the person may not read, the controllers do read, so without
// it there is no plan.
func Observe(ctx context.Context, r *read.Reader) (*Cluster, error) {
	c := &Cluster{objects: map[key]client.Object{}}
	for _, list := range []client.ObjectList{
		&corev1.NodeList{}, &corev1.PodList{}, &gm.NodeGroupList{}, &apps.NodePoolList{}, &gm.PropagationPolicyList{}, &gm.OverridePolicyList{}, &policyv1.PodDisruptionBudgetList{},
		&appsv1.DeploymentList{}, &appsv1.ReplicaSetList{}, &appsv1.StatefulSetList{}, &appsv1.DaemonSetList{}, &batchv1.JobList{}, &batchv1.CronJobList{},
	} {
		if err := r.List(ctx, list); err != nil {
			return nil, err
		}
		c.addList(list)
	}
	if unread := r.Unread(); len(unread) > 0 {
		return nil, errors.New("a plan needs all that atoll-manager reads, and " + strings.Join(unread, "; "))
	}
	return c, nil
}

// addList adds the items of a list.
func (c *Cluster) addList(list client.ObjectList) {
	_ = meta.EachListItem(list, func(o runtime.Object) error {
		object, _ := o.(client.Object)
		c.objects[keyOf(object)] = object
		return nil
	})
}

// With returns the cluster as it is once objects were applied and the controllers have written
// what follows from that: nodes are in their NodePools and NodeGroups, workloads have their
// labels, and ReplicaSets the replicas of their Deployment.
func (c *Cluster) With(applied []client.Object) (*Cluster, error) {
	next := &Cluster{objects: maps.Clone(c.objects), fresh: sets.New[key]()}
	for _, o := range applied {
		k := keyOf(o)
		if k.Kind == "" {
			continue
		}
		o = o.DeepCopyObject().(client.Object)
		before := c.objects[k]
		if before == nil {
			next.fresh.Insert(k)
		}
		switch {
		case o.GetUID() != "": // the API server has answered
		case before != nil:
			o.SetUID(before.GetUID())
			o.SetGeneration(before.GetGeneration() + 1)
			o.SetCreationTimestamp(before.GetCreationTimestamp())
		default:
			o.SetUID(types.UID(fmt.Sprintf("new %s %s/%s", k.Kind, k.Namespace, k.Name)))
			o.SetCreationTimestamp(metav1.Now())
		}
		next.objects[k] = o
	}
	if err := next.give(); err != nil {
		return nil, err
	}
	next.assign()
	next.scale()
	next.bind()
	return next, nil
}

// give puts each node into its NodePool, and gives it what the pool has for it.
func (c *Cluster) give() error {
	var compiled []membership.Pool
	gives := map[string]attributes.Pool{}
	for _, p := range of[*apps.NodePool](c) {
		pool, _ := membership.CompilePool(p) // an invalid one counts too
		compiled = append(compiled, pool)
		gives[p.Name] = attributes.Of(p)
	}
	pools := membership.NewPools(compiled)
	for _, node := range of[*corev1.Node](c) {
		read := attributes.Read(node)
		name, selected := pools.Assign(survey.Claim(&pools, read))
		var pool *attributes.Pool
		if name != "" {
			given := gives[name]
			pool = &given
			if connectivity.Held(node) {
				given = given.WithoutEvicting(read)
			}
		}
		change, err := read.Plan(pool, selected)
		if err != nil {
			return fmt.Errorf("planning node %s: %w", node.Name, err)
		}
		if change.Empty() {
			continue
		}
		node = node.DeepCopy()
		node.Labels, node.Annotations = changed(node.Labels, change.Labels), changed(node.Annotations, change.Annotations)
		if change.TaintsChanged {
			node.Spec.Taints = change.Taints
		}
		c.objects[keyOf(node)] = node
	}
	return nil
}

// changed applies the keys that change; nil removes a key.
func changed(now map[string]string, changes map[string]*string) map[string]string {
	next := maps.Clone(now)
	for key, value := range changes {
		if value == nil {
			delete(next, key)
			continue
		}
		if next == nil {
			next = map[string]string{}
		}
		next[key] = *value
	}
	return next
}

// assign puts each node into its NodeGroup.
func (c *Cluster) assign() {
	var groups []membership.Group
	for _, g := range of[*gm.NodeGroup](c) {
		compiled, _ := membership.Compile(g) // an invalid one counts too
		groups = append(groups, compiled)
	}
	index := membership.NewGroups(groups)
	for _, node := range of[*corev1.Node](c) {
		want := index.Assign(node.Name, node.Labels)
		if want == node.Labels[gm.NodeGroupLabel] {
			continue
		}
		node = node.DeepCopy()
		delete(node.Labels, gm.NodeGroupLabel)
		if want != "" {
			metav1.SetMetaDataLabel(&node.ObjectMeta, gm.NodeGroupLabel, want)
		}
		c.objects[keyOf(node)] = node
	}
}

// scale gives the ReplicaSet of a Deployment the replicas of its Deployment, if it is the only
// one with pods.
func (c *Cluster) scale() {
	sized := map[types.UID][]*appsv1.ReplicaSet{}
	for _, rs := range of[*appsv1.ReplicaSet](c) {
		if owner := metav1.GetControllerOf(rs); owner != nil && (ptr.Deref(rs.Spec.Replicas, 1) > 0 || rs.Status.Replicas > 0) {
			sized[owner.UID] = append(sized[owner.UID], rs)
		}
	}
	for _, d := range of[*appsv1.Deployment](c) {
		if all := sized[d.UID]; len(all) == 1 && !d.Spec.Paused {
			rs := all[0].DeepCopy()
			rs.Spec.Replicas = d.Spec.Replicas
			c.objects[keyOf(rs)] = rs
		}
	}
}

// bind writes the binding labels that the controller will write.
func (c *Cluster) bind() {
	for k, o := range c.objects {
		labels := o.GetLabels()
		required := ownership.PoliciesOf(labels)
		if required.RequiredPropagation == "" && required.RequiredOverride == "" || k.Kind == "Pod" {
			continue
		}
		bound := maps.Clone(labels)
		for kind, l := range map[string][2]string{
			"PropagationPolicy": {gm.BindingPropagationPolicyLabel, required.RequiredPropagation},
			"OverridePolicy":    {gm.BindingOverridePolicyLabel, required.RequiredOverride},
		} {
			if c.objects[key{kind, k.Namespace, l[1]}] != nil {
				bound[l[0]] = l[1]
			}
		}
		o = o.DeepCopyObject().(client.Object)
		o.SetLabels(bound)
		c.objects[k] = o
	}
}

// of returns the objects of a kind, by namespace and name.
func of[T client.Object](c *Cluster) (all []T) {
	for _, o := range c.objects {
		if typed, is := o.(T); is {
			all = append(all, typed)
		}
	}
	slices.SortFunc(all, func(a, b T) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
	return all
}

// Get implements client.Reader for the policies and groups.
func (c *Cluster) Get(_ context.Context, name client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	found := c.objects[key{kindOf(o), name.Namespace, name.Name}]
	if found == nil {
		return apierrors.NewNotFound(schema.GroupResource{Resource: kindOf(o)}, name.Name)
	}
	switch o := o.(type) {
	case *gm.PropagationPolicy:
		*o = *found.(*gm.PropagationPolicy)
	case *gm.OverridePolicy:
		*o = *found.(*gm.OverridePolicy)
	case *gm.NodeGroup:
		*o = *found.(*gm.NodeGroup)
	}
	return nil
}

// List implements client.Reader. Nothing that is used here lists.
func (c *Cluster) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errors.ErrUnsupported
}

// isPinned returns whether atoll-manager is installed in the form in which no kube-scheduler calls
// it: its Deployment says so.
func (c *Cluster) isPinned() bool {
	return slices.ContainsFunc(of[*appsv1.Deployment](c), func(d *appsv1.Deployment) bool {
		return d.Labels["app.kubernetes.io/part-of"] == "atoll" && slices.ContainsFunc(d.Spec.Template.Spec.Containers, func(container corev1.Container) bool {
			return slices.Contains(container.Args, "--assignment=Early")
		})
	})
}

// surveyor returns what observes workloads in the cluster. pods reads volumes, and owners of
// other kinds.
func (c *Cluster) surveyor(pods kubernetes.Interface) *survey.Surveyor {
	now := clock.RealClock{}
	s := &survey.Surveyor{Walker: owners.NewWalker(pods), Ledger: seats.NewLedger(now), Pods: pods, Clock: now}
	s.Policies = policies.NewResolver(c, s.Walker, s.Ledger, now, !c.isPinned())
	for _, o := range c.objects {
		switch o := o.(type) {
		case *corev1.Node:
			s.Ledger.ObserveNode(seats.SlimNode(o))
		case *corev1.Pod, *gm.NodeGroup, *apps.NodePool, *gm.PropagationPolicy, *gm.OverridePolicy, *policyv1.PodDisruptionBudget:
		default:
			s.Walker.Observe(o)
		}
	}
	for _, pod := range of[*corev1.Pod](c) {
		slim := seats.SlimBy(s.Walker.Revision, pod)
		if slim.Controller == nil {
			s.Walker.Put(slim.Object())
		}
		s.Ledger.Observe(slim)
	}
	return s
}
