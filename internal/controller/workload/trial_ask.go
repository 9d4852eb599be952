package workload

import (
	"context"
	"errors"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	overrides "github.com/atoll-k8s/atoll/internal/domain/override"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/machinery/conditions"
	"github.com/atoll-k8s/atoll/internal/machinery/patch"
)

const (
	// trialName is the name of the pods and PodTemplates that are never stored.
	trialName = "atoll-override-trial"
	// maxRefusal bounds the API server's message in a condition, in bytes.
	maxRefusal = 700
)

// Overridden pods are tried as dry runs of pods, so that Pod Security, LimitRanges, quotas,
// image policies and webhooks see them. The chart gives the permission to create pods
// together with an admission policy that limits it to dry runs (trial-admission.yaml), so
// it has no marker here. Without the permission, PodTemplates are tried: the API server
// validates them like pods, but admission of pods does not apply to them.
//
// The API server asks atoll-manager's own webhook about every pod but these: a match
// condition leaves out dry runs by atoll-manager. What the webhook would change is here
// already, or is the same with and without rules.
//
// +kubebuilder:rbac:groups="",resources=podtemplates,verbs=create

// asker tries one pod. refused is the API server's refusal; err means that it could not be
// asked.
type asker func(ctx context.Context, pod *corev1.Pod) (refused, err error)

// errNoPodTrial: dry runs of pods are not possible here.
var errNoPodTrial = errors.New("pods cannot be tried")

// ask tries the pod that the rules make of the template in one group.
func (t *trial) ask(ctx context.Context, ask asker, rules *overrides.Rules, group string) (refused, err error) {
	pod := t.pod()
	if rules.Apply(group, pod) != nil {
		return nil, nil // real pods show it: admission may add what the rules need to the template
	}
	bounded, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	refused, err = ask(bounded, pod)
	if err != nil {
		err = fmt.Errorf("trying the override of %s %s/%s: %w", t.workload.Kind, t.workload.Namespace, t.workload.Name, err)
	}
	return refused, err
}

// pod returns the pod that the controller of the workload would create from the template.
// Its owner reference does not block the deletion of the owner, because that would need
// the permission to write the owner's finalizers.
func (t *trial) pod() *corev1.Pod {
	from := t.template.DeepCopy()
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: trialName, Namespace: t.workload.Namespace,
			Labels: from.Labels, Annotations: from.Annotations, Finalizers: from.Finalizers,
			OwnerReferences: []metav1.OwnerReference{t.owner()},
		},
		Spec: from.Spec,
	}
}

// owner returns the reference to the direct owner of the workload's pods. If there is none
// yet, it has the name and the UID of the workload.
func (t *trial) owner() metav1.OwnerReference {
	direct := map[schema.GroupKind]schema.GroupVersionKind{
		{Group: appsv1.GroupName, Kind: "Deployment"}: appsv1.SchemeGroupVersion.WithKind("ReplicaSet"),
		{Group: batchv1.GroupName, Kind: "CronJob"}:   batchv1.SchemeGroupVersion.WithKind("Job"),
	}
	kind, indirect := direct[t.workload.GroupKind()]
	if !indirect {
		kind = t.workload.GroupVersionKind
	}
	owner := &ownership.Object{Name: t.workload.Name, UID: t.workload.UID}
	for _, uid := range t.r.Walker.Descendants(t.workload.UID) {
		if o := t.r.Walker.Get(uid); indirect && o != nil && o.GroupKind() == kind.GroupKind() {
			owner = o
			break
		}
	}
	return metav1.OwnerReference{APIVersion: kind.GroupVersion().String(), Kind: kind.Kind, Name: owner.Name, UID: owner.UID, Controller: new(true)}
}

// askPod tries a pod as a pod.
func (r *Reconciler) askPod(ctx context.Context, pod *corev1.Pod) (refused, err error) {
	_, err = r.Pods.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	switch {
	case err == nil, apierrors.IsAlreadyExists(err):
		return nil, nil
	case lacksPermission(err), cannotRunDry(err):
		return nil, fmt.Errorf("%w: %w", errNoPodTrial, err)
	case patch.Refused(err) && !isUnknownQuota(err), apierrors.IsNotFound(err) && !isGone(err):
		return errors.New(refusalText(err)), nil
	}
	return nil, err
}

// isGone reports whether the namespace was not found. Admission may answer NotFound for
// other reasons.
func isGone(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Details != nil && status.Status().Details.Kind == "namespaces"
}

// askTemplate tries a pod as a PodTemplate.
func (r *Reconciler) askTemplate(ctx context.Context, pod *corev1.Pod) (refused, err error) {
	_, err = r.Pods.CoreV1().PodTemplates(pod.Namespace).Create(ctx, &corev1.PodTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: trialName},
		Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels, Annotations: pod.Annotations, Finalizers: pod.Finalizers},
			Spec:       pod.Spec,
		},
	}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	switch {
	case err == nil, apierrors.IsAlreadyExists(err):
		return nil, nil
	case apierrors.IsInvalid(err):
		return errors.New(refusalText(err)), nil
	}
	return nil, err
}

// lacksPermission reports whether the API server refuses a request before admission. Only
// then the refusal names no pod.
func lacksPermission(err error) bool {
	var status apierrors.APIStatus
	return apierrors.IsForbidden(err) && errors.As(err, &status) && status.Status().Details != nil &&
		status.Status().Details.Name == "" && strings.Contains(err.Error(), `cannot create resource "pods"`)
}

// cannotRunDry reports whether a webhook has side effects, so that the API server does not
// call it in a dry run.
func cannotRunDry(err error) bool {
	return apierrors.IsBadRequest(err) && strings.Contains(err.Error(), "does not support dry run")
}

// isUnknownQuota reports whether a quota is so new that its use is not computed yet.
func isUnknownQuota(err error) bool { return strings.Contains(err.Error(), "status unknown for quota") }

// refusalText returns the API server's message; of a validation, the invalid fields as in a
// pod.
func refusalText(err error) string {
	text := err.Error()
	var status apierrors.APIStatus
	if apierrors.IsInvalid(err) && errors.As(err, &status) && status.Status().Details != nil && len(status.Status().Details.Causes) > 0 {
		parts := make([]string, 0, len(status.Status().Details.Causes))
		for _, cause := range status.Status().Details.Causes {
			parts = append(parts, strings.TrimPrefix(cause.Field, "template.")+": "+cause.Message)
		}
		text = strings.Join(parts, "; ")
	}
	return conditions.Truncate(text, maxRefusal)
}
