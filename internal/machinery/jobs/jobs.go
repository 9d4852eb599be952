// Package jobs makes the Job controller recreate the pods of a Job that has not started: it
// suspends the Job and, when its pods are gone, resumes it. Eviction is not possible, because
// the Job controller counts an evicted pod as failed. It does not count the pods that it
// deletes itself because the Job is suspended.
//
// The suspension and an annotation are written in one patch. A Job is resumed only if it has
// the annotation: so another process can resume it after a restart, and a Job that somebody
// else suspended is never resumed. The caller decides whether pods are to be recreated.
package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/atoll-k8s/atoll/internal/machinery/paged"
)

// The reasons why Suspend does not suspend a Job. Any other error means that the Job could not
// be read or written.
var (
	// ErrStarted: a pod of the Job has or had a node, or has ended.
	ErrStarted = errors.New("the Job has started")
	// ErrManaged: another program or a user decides whether the Job is suspended.
	ErrManaged = errors.New("somebody else suspends and resumes the Job")
	// ErrAgain: the Job was suspended and resumed for the same reason before.
	ErrAgain = errors.New("the Job's pods were already recreated for this reason")
	// ErrGone: the Job does not exist, is being deleted, or another Job has its name.
	ErrGone = errors.New("the Job is gone")
)

// Refused reports whether an error of Suspend means that the Job must not be suspended: its
// pods stay as they are.
func Refused(err error) bool {
	return errors.Is(err, ErrStarted) || errors.Is(err, ErrManaged) || errors.Is(err, ErrAgain)
}

// queueLabel is a label of Kueue, which suspends and resumes the Jobs that have it.
const queueLabel = "kueue.x-k8s.io/queue-name"

// Restarter suspends and resumes Jobs. It is safe for concurrent use.
type Restarter struct {
	Client kubernetes.Interface
	// Annotation is the key of the annotation that records suspensions.
	Annotation string
}

// The annotation's value is one of these words, the Job's UID and the reasons so far, the
// newest last, separated by spaces. The UID makes the annotation of a copied Job invalid.
const (
	suspended = "suspended"
	resumed   = "resumed"
)

// maxReasons bounds the reasons in the annotation. The oldest are dropped.
const maxReasons = 50

// Suspended reports whether a value of the annotation on the Job with this UID means that a
// Restarter suspended the Job and has not resumed it.
func Suspended(value string, uid types.UID) bool {
	return strings.HasPrefix(value, suspended+" "+string(uid)+" ")
}

// +kubebuilder:rbac:groups=batch,resources=jobs,verbs=get;patch
// +kubebuilder:rbac:groups="",resources=pods,verbs=list

// Suspend suspends a Job that has not started, once for each reason. It does nothing if it
// suspended the Job before and the Job is not resumed yet. The reason must not contain spaces.
func (r *Restarter) Suspend(ctx context.Context, name types.NamespacedName, uid types.UID, why string) error {
	job, err := r.read(ctx, name, uid)
	if err != nil {
		return err
	}
	note := job.Annotations[r.Annotation]
	reasons := reasonsOf(note, uid)
	switch {
	case isSuspended(job) && Suspended(note, uid):
		return nil
	case isSuspended(job) || !isUnmanaged(job):
		return ErrManaged
	case started(job):
		return ErrStarted
	case slices.Contains(reasons, why):
		return ErrAgain
	}
	pods, err := r.pods(ctx, job)
	if err != nil {
		return err
	}
	for i := range pods {
		if pods[i].Spec.NodeName != "" || pods[i].Status.Phase != corev1.PodPending {
			return ErrStarted
		}
	}
	reasons = append(reasons, why)
	reasons = reasons[max(0, len(reasons)-maxReasons):]
	return r.patch(ctx, job, true, strings.Join(append([]string{suspended, string(uid)}, reasons...), " "))
}

// reasonsOf returns the reasons of earlier suspensions of a resumed Job.
func reasonsOf(note string, uid types.UID) []string {
	words := strings.Fields(note)
	if len(words) < 2 || words[0] != resumed || words[1] != string(uid) {
		return nil
	}
	return words[2:]
}

// Resume resumes a Job that Suspend suspended, once its pods are gone. It returns false if the
// caller has to call it again later.
func (r *Restarter) Resume(ctx context.Context, name types.NamespacedName, uid types.UID) (done bool, err error) {
	job, err := r.read(ctx, name, uid)
	if errors.Is(err, ErrGone) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	note := job.Annotations[r.Annotation]
	if !Suspended(note, uid) {
		return true, nil
	}
	if isSuspended(job) {
		seen := false
		for _, c := range job.Status.Conditions {
			seen = seen || c.Type == batchv1.JobSuspended && c.Status == corev1.ConditionTrue
		}
		pods, err := r.pods(ctx, job)
		if err != nil || !seen || slices.ContainsFunc(pods, isActive) {
			return false, err
		}
	}
	return true, r.patch(ctx, job, false, resumed+strings.TrimPrefix(note, suspended))
}

func (r *Restarter) read(ctx context.Context, name types.NamespacedName, uid types.UID) (*batchv1.Job, error) {
	job, err := r.Client.BatchV1().Jobs(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && (job.UID != uid || job.DeletionTimestamp != nil):
		return nil, ErrGone
	case err != nil:
		return nil, fmt.Errorf("reading Job %s: %w", name, err)
	}
	return job, nil
}

// pods lists the pods of the Job in any state, with the fields that are used.
func (r *Restarter) pods(ctx context.Context, job *batchv1.Job) ([]corev1.Pod, error) {
	selector, err := metav1.LabelSelectorAsSelector(job.Spec.Selector)
	if err != nil {
		return nil, fmt.Errorf("reading the selector of Job %s/%s: %w", job.Namespace, job.Name, err)
	}
	var pods []corev1.Pod
	err = paged.Pods(ctx, r.Client.CoreV1().Pods(job.Namespace).List, metav1.ListOptions{LabelSelector: selector.String()}, func(page []corev1.Pod) bool {
		for i := range page {
			if pod := &page[i]; metav1.IsControlledBy(pod, job) {
				pods = append(pods, corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: pod.DeletionTimestamp},
					Spec:       corev1.PodSpec{NodeName: pod.Spec.NodeName}, Status: corev1.PodStatus{Phase: pod.Status.Phase},
				})
			}
		}
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("listing pods of Job %s/%s: %w", job.Namespace, job.Name, err)
	}
	return pods, nil
}

func isActive(pod corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
}

// patch writes spec.suspend and the annotation. It fails if the Job changed since it was read.
func (r *Restarter) patch(ctx context.Context, job *batchv1.Job, suspend bool, note string) error {
	raw, err := json.Marshal(map[string]any{
		"metadata": map[string]any{
			"uid": job.UID, "resourceVersion": job.ResourceVersion, "annotations": map[string]string{r.Annotation: note},
		},
		"spec": map[string]any{"suspend": suspend},
	})
	if err == nil {
		_, err = r.Client.BatchV1().Jobs(job.Namespace).Patch(ctx, job.Name, types.MergePatchType, raw, metav1.PatchOptions{})
	}
	if err != nil {
		return fmt.Errorf("suspending or resuming Job %s/%s: %w", job.Namespace, job.Name, err)
	}
	return nil
}

func isSuspended(job *batchv1.Job) bool { return job.Spec.Suspend != nil && *job.Spec.Suspend }

// isUnmanaged reports whether Kubernetes' own Job controller runs the Job, and no queue
// suspends it.
func isUnmanaged(job *batchv1.Job) bool {
	_, queued := job.Labels[queueLabel]
	return !queued && (job.Spec.ManagedBy == nil || *job.Spec.ManagedBy == batchv1.JobControllerName)
}

// started reports whether a pod of the Job ever ran, according to the Job's status.
func started(job *batchv1.Job) bool {
	s := &job.Status
	if s.Succeeded > 0 || s.Failed > 0 || s.Ready != nil && *s.Ready > 0 || s.CompletionTime != nil {
		return true
	}
	if u := s.UncountedTerminatedPods; u != nil && len(u.Succeeded)+len(u.Failed) > 0 {
		return true
	}
	for _, c := range s.Conditions {
		if c.Type != batchv1.JobSuspended && c.Status == corev1.ConditionTrue {
			return true // complete, failed, or soon one of these
		}
	}
	return false
}
