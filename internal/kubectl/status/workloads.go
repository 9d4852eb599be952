package status

import (
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/kubectl/read"
)

// Workload is a workload that requires policies.
type Workload struct {
	metav1.Object
	// Kind is in lower case, as commands have it.
	Kind string
	// Ready of Wanted pods are Ready.
	Ready, Wanted int32
}

// workloads reads the workloads of Kubernetes' own kinds that require policies.
func workloads(ctx context.Context, r *read.Reader, namespace string) (all []Workload, err error) {
	seen := sets.New[types.UID]()
	for _, label := range []string{gm.RequiredPropagationPolicyLabel, gm.RequiredOverridePolicyLabel} {
		for _, list := range []client.ObjectList{&appsv1.DeploymentList{}, &appsv1.StatefulSetList{}, &appsv1.DaemonSetList{}, &batchv1.JobList{}} {
			if err := r.List(ctx, list, client.InNamespace(namespace), client.HasLabels{label}); err != nil {
				return nil, err
			}
			objects, err := meta.ExtractList(list)
			if err != nil {
				return nil, fmt.Errorf("reading %T: %w", list, err)
			}
			for _, object := range objects {
				if w, is := workloadOf(object); is && !seen.Has(w.GetUID()) {
					seen.Insert(w.GetUID())
					all = append(all, w)
				}
			}
		}
	}
	return all, nil
}

func workloadOf(object any) (Workload, bool) {
	switch o := object.(type) {
	case *appsv1.Deployment:
		return Workload{o, "deployment", o.Status.ReadyReplicas, ptr.Deref(o.Spec.Replicas, 1)}, true
	case *appsv1.StatefulSet:
		return Workload{o, "statefulset", o.Status.ReadyReplicas, ptr.Deref(o.Spec.Replicas, 1)}, true
	case *appsv1.DaemonSet:
		return Workload{o, "daemonset", o.Status.NumberReady, o.Status.DesiredNumberScheduled}, true
	case *batchv1.Job: // pods that have ended are not active
		return Workload{o, "job", ptr.Deref(o.Status.Ready, 0), o.Status.Active}, true
	}
	return Workload{}, false
}

// workloads tells about workloads whose policies are not there, whose pods are not all Ready, and whose pods are not
// divided as the policy wants.
func (o *Observed) workloads() Section {
	s := Section{Name: "Workloads", Total: len(o.Workloads)}
	slices.SortStableFunc(o.Workloads, func(a, b Workload) int {
		return strings.Compare(nameOf(a)+" "+a.Kind, nameOf(b)+" "+b.Kind)
	})
	for _, w := range o.Workloads {
		var reason string
		why := o.spread(w)
		kind, name := o.missing(w)
		switch {
		case name != "":
			reason, why = "PolicyNotFound", fmt.Sprintf("there is no %s %s", kind, name)
		case w.Ready < w.Wanted:
			reason, why = "NotReady", strings.TrimSuffix(fmt.Sprintf("%d of %d pods are Ready: %s", w.Ready, w.Wanted, why), ": ")
		case why != "" && w.Kind != "daemonset": // of which it says that it has a pod on each node
			reason = "NotDivided"
		default:
			s.Good++
			continue
		}
		s.Problems = append(s.Problems, Problem{nameOf(w), reason, why, fmt.Sprintf("kubectl atoll explain %s/%s -n %s", w.Kind, w.GetName(), w.GetNamespace())})
	}
	return s
}

// spread returns why a workload does not satisfy its PropagationPolicy; "" if it does.
func (o *Observed) spread(w Workload) string {
	for i := range o.Propagations.Items {
		p := &o.Propagations.Items[i]
		for j := range p.Status.Apps {
			if app := &p.Status.Apps[j]; p.Namespace == w.GetNamespace() && strings.EqualFold(app.Ref.Kind, w.Kind) && app.Ref.Name == w.GetName() {
				return app.Message
			}
		}
	}
	return ""
}

// missing returns a policy that a workload requires and that is not there.
func (o *Observed) missing(w Workload) (kind, name string) {
	return read.MissingPolicy(w, func(kind, name string) bool {
		if kind == "OverridePolicy" {
			return o.OverridesUnread || slices.ContainsFunc(o.Overrides.Items, func(p gm.OverridePolicy) bool { return p.Namespace == w.GetNamespace() && p.Name == name })
		}
		return o.PropagationsUnread || slices.ContainsFunc(o.Propagations.Items, func(p gm.PropagationPolicy) bool { return p.Namespace == w.GetNamespace() && p.Name == name })
	})
}
