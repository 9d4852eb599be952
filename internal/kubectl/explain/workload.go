package explain

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/kubectl/read"
)

// maxCauses is how many causes are told of one workload: each takes some requests.
const maxCauses = 10

// Workload is the answer about one workload, and what -o json and -o yaml print.
type Workload struct {
	Namespace string `json:"namespace"`
	Kind      string `json:"kind"`
	Name      string `json:"name"`
	Facts     []Fact `json:"facts"`
	// Waits are the pods that do not run or are not Ready, by what prevents it.
	Waits []Waiting `json:"waits,omitempty"`
	// Stays is why groups keep more pods than the policy gives them; nil if none does.
	Stays *Obstacle `json:"stays,omitempty"`
	// More counts further pods that are not Ready, of which no cause was looked for.
	More int `json:"more,omitempty"`
	// Unread tells which rights are missing to say more.
	Unread []string `json:"unread,omitempty"`
}

// Waiting is what prevents pods from running. There may be no pod: the workload wants some, and
// gets none.
type Waiting struct {
	Obstacle
	Pods []string `json:"pods"`
}

// OfWorkload reads and explains a workload, which has its metadata and its kind.
func OfWorkload(ctx context.Context, r *read.Reader, workload *metav1.PartialObjectMetadata) (*Workload, error) {
	w := &Workload{Namespace: workload.Namespace, Kind: workload.Kind, Name: workload.Name}
	prospect := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: workload.Namespace}}
	prospect.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(workload, workload.GroupVersionKind())}
	o, err := observe(ctx, r, prospect)
	if err != nil {
		return nil, err
	}
	pods, err := r.PodsOf(ctx, workload)
	if err != nil {
		return nil, err
	}
	ready, ended, waiting := 0, 0, map[string][]string{}
	var causes []*corev1.Pod // one pod for each
	for i := range pods {
		pod := &pods[i]
		if read.IsReady(pod) {
			ready++
			continue
		}
		if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			ended++
			continue
		}
		if pod.DeletionTimestamp != nil {
			continue // it waits for nothing
		}
		k := looks(pod)
		if waiting[k] == nil {
			causes = append(causes, pod)
		}
		waiting[k] = append(waiting[k], pod.Name)
	}
	count := fmt.Sprintf("%d of %d are Ready", ready, len(pods)-ended)
	if ended > 0 {
		count += fmt.Sprintf(", %d have ended", ended)
	}
	for _, f := range []Fact{{"Owner", o.above()}, {"Policy", o.policy()}, {"Override", o.overridePolicy()}, {"Share", o.share()}, {"Pods", count}} {
		if f.Text != "" {
			w.Facts = append(w.Facts, f)
		}
	}
	for i, pod := range causes {
		if i >= maxCauses {
			w.More += len(waiting[looks(pod)])
			continue
		}
		of, err := observe(ctx, r, pod)
		if err != nil {
			return nil, err
		}
		if obstacle := of.waits(); obstacle != nil {
			w.add(obstacle, waiting[looks(pod)])
		}
	}
	if spread := o.spread(); len(pods) == 0 && spread != nil && spread.Message != "" {
		w.add(&Obstacle{spread.Message, fmt.Sprintf("kubectl -n %s describe propagationpolicy %s", w.Namespace, o.Propagation.Name)}, []string{})
	}
	if why := o.surplus(); why != "" {
		w.Stays, err = o.stays(ctx, r, why, pods)
	}
	return w, err
}

// stays tells why surplus pods are not moved, and names the PodDisruptionBudget that allows no eviction.
func (o *Observed) stays(ctx context.Context, r *read.Reader, why string, pods []corev1.Pod) (*Obstacle, error) {
	obstacle := &Obstacle{why, fmt.Sprintf("kubectl -n %s describe propagationpolicy %s", o.Pod.Namespace, o.Propagation.Name)}
	c := meta.FindStatusCondition(o.Propagation.Status.Conditions, gm.ConditionReady)
	if c == nil || c.Reason != gm.ReasonBlockedByPDB {
		return obstacle, nil
	}
	var budgets policyv1.PodDisruptionBudgetList
	if err := r.List(ctx, &budgets, client.InNamespace(o.Pod.Namespace)); err != nil {
		return nil, err
	}
	for i := range budgets.Items {
		b := &budgets.Items[i]
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err == nil && b.Status.DisruptionsAllowed == 0 && slices.ContainsFunc(pods, func(pod corev1.Pod) bool { return selector.Matches(labels.Set(pod.Labels)) }) {
			return &Obstacle{strings.Replace(why, "a PodDisruptionBudget", fmt.Sprintf("PodDisruptionBudget %q", b.Name), 1), fmt.Sprintf("kubectl -n %s describe pdb %s", b.Namespace, b.Name)}, nil
		}
	}
	return obstacle, nil
}

// add adds pods that wait; pods that look different may wait for the same.
func (w *Workload) add(o *Obstacle, pods []string) {
	at := slices.IndexFunc(w.Waits, func(other Waiting) bool { return other.Obstacle == *o })
	if at < 0 {
		w.Waits = append(w.Waits, Waiting{*o, pods})
		return
	}
	w.Waits[at].Pods = append(w.Waits[at].Pods, pods...)
}

// above names the owners of a workload; "" without one.
func (o *Observed) above() string {
	return o.names(o.Owners[min(1, len(o.Owners)):])
}

// overridePolicy names the OverridePolicy; "" without one.
func (o *Observed) overridePolicy() string {
	owner := o.policyOwners().Override
	switch {
	case owner == nil:
		return ""
	case o.Override == nil && o.PoliciesUnread:
		return fmt.Sprintf("OverridePolicy %s, which %s %s requires: you may not read it", owner.Policies.RequiredOverride, owner.Kind, owner.Name)
	case o.Override == nil:
		return fmt.Sprintf("OverridePolicy %s, which %s %s requires, is not there", owner.Policies.RequiredOverride, owner.Kind, owner.Name)
	}
	var groups []string
	for i := range o.Override.Spec.OverrideRules {
		for _, group := range o.Override.Spec.OverrideRules[i].TargetNodeGroup {
			if group = strings.ToLower(group); !slices.Contains(groups, group) {
				groups = append(groups, group)
			}
		}
	}
	if slices.ContainsFunc(o.Override.Spec.OverrideRules, func(r gm.RuleWithNodeGroup) bool { return len(r.TargetNodeGroup) == 0 }) {
		groups = []string{"all NodeGroups"}
	}
	return fmt.Sprintf("OverridePolicy %s: rules for %s", o.Override.Name, strings.Join(groups, ", "))
}

// looks tells pods apart that may wait for different things.
func looks(pod *corev1.Pod) string {
	parts := []string{strconv.FormatBool(pod.Spec.NodeName == ""), pod.Labels[gm.NodeGroupLabel], pod.Annotations[gm.UnassignedAnnotation], string(pod.Status.Phase)}
	if pod.DeletionTimestamp != nil {
		parts = append(parts, "deleted")
	}
	for _, gate := range pod.Spec.SchedulingGates {
		parts = append(parts, gate.Name)
	}
	for _, c := range pod.Status.Conditions {
		parts = append(parts, c.Message)
	}
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if s.State.Waiting != nil {
			parts = append(parts, s.Name+s.State.Waiting.Reason)
		}
	}
	return strings.Join(parts, "\n")
}
