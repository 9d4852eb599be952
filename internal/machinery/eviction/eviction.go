// Package eviction evicts pods through the Eviction API, at a rate that all workloads
// share. It depends on no policy: the caller decides which pod to evict.
package eviction

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/atoll-k8s/atoll/internal/machinery/phase"
)

// Retry is the delay before an eviction that was refused is requested again. It also
// bounds each request to the API server.
const Retry = 5 * time.Second

// Fresh is how old an observation of a workload may be when a pod is evicted because of
// it. Callers that evict one pod after the other observe again after that: a slow API
// server takes seconds for each eviction, and the reason for the next may be gone.
const Fresh = time.Second

var (
	// ErrPace: the evictions of all workloads together have reached the limit of Pace, or
	// those of the namespace have reached its share.
	ErrPace = errors.New("the limit of evictions per second is reached")
	// ErrRefused: a PodDisruptionBudget allows no eviction now.
	ErrRefused = errors.New("a PodDisruptionBudget allows no eviction")
	// ErrBusy: the API server did not answer within Retry, or answered that the request
	// comes too early, for another reason than a PodDisruptionBudget.
	ErrBusy = errors.New("the API server has granted no eviction yet")
	// ErrGone: the pod is gone or terminating, or the name belongs to another pod now.
	ErrGone = errors.New("the pod is gone")
	// ErrBound: a pod that was to be discarded has a node by now.
	ErrBound = errors.New("the pod has got a node")
	// ErrHeld: the pod's node is Held.
	ErrHeld = errors.New("the pod's node is cut off from the cloud, and its pods are kept until it is back or known to be dead")
	// ErrReady: a pod that was to be evicted because it was not Ready is Ready by now.
	ErrReady = errors.New("the pod has become Ready")
)

// paced is ErrPace, with the delay before the eviction should be requested again.
type paced struct{ again time.Duration }

func (*paced) Error() string        { return ErrPace.Error() }
func (*paced) Is(target error) bool { return target == ErrPace }

// Again returns the delay before an eviction that failed with err should be requested again.
func Again(err error) time.Duration {
	if p := (*paced)(nil); errors.As(err, &p) {
		return p.again
	}
	return Retry
}

// +kubebuilder:rbac:groups="",resources=pods/eviction,verbs=create

// Evictor evicts pods. Safe for concurrent use.
type Evictor struct {
	Client kubernetes.Interface
	// Pace bounds the evictions of all workloads together. Evictions that the API server
	// refuses do not count, so that a workload whose PodDisruptionBudget allows nothing
	// does not delay the others.
	Pace *Pace
	// Held reports whether pods on a node with this name are to be kept, although the node may be NotReady. Nil: none is.
	Held func(node string) bool
}

// IsHeld reports whether evictions of pods on a node are refused with ErrHeld.
func (e *Evictor) IsHeld(node string) bool { return node != "" && e.Held != nil && e.Held(node) }

// Evict evicts a pod with a node, and takes a token of Pace for it. Errors: ErrHeld, ErrPace,
// ErrRefused, ErrBusy, ErrGone, or the API server's.
func (e *Evictor) Evict(ctx context.Context, pod types.NamespacedName, uid types.UID, node string) error {
	if e.IsHeld(node) {
		return ErrHeld
	}
	return e.paced(ctx, pod, func() (metav1.Preconditions, error) { return metav1.Preconditions{UID: &uid}, nil })
}

// paced is Evict with the preconditions that only returns, a UID among them. A pod that was
// changed since only has read it is read once more: the status of one that does not become
// Ready may change often.
func (e *Evictor) paced(ctx context.Context, pod types.NamespacedName, only func() (metav1.Preconditions, error)) (err error) {
	if ok, again := e.Pace.begin(pod.Namespace); !ok {
		return &paced{again}
	}
	for range 2 {
		var preconditions metav1.Preconditions
		if preconditions, err = only(); err == nil {
			err = e.request(ctx, pod, preconditions)
		}
		if preconditions.ResourceVersion == nil || !apierrors.IsConflict(err) {
			break
		}
	}
	e.Pace.end(err == nil || errors.Is(err, ErrGone)) // with ErrGone the eviction may have succeeded and its answer be lost
	return err
}

// +kubebuilder:rbac:groups="",resources=pods,verbs=get

// Discard evicts a pod that has no node yet. That disturbs nothing, so it takes no token
// of Pace. It first reads from the API server whether the pod has a node by now, because
// the cache may be behind. Errors: ErrBound, and those of Evict except ErrPace and ErrHeld.
func (e *Evictor) Discard(ctx context.Context, pod types.NamespacedName, uid types.UID) error {
	only, err := e.only(ctx, pod, uid, func(live *corev1.Pod) error {
		if live.Spec.NodeName != "" {
			return ErrBound
		}
		return nil
	})
	if err != nil {
		return err
	}
	return e.request(ctx, pod, only)
}

// evictUnready is Evict for a pod that the cache shows as not Ready, so that its eviction
// disturbs nothing. It first reads from the API server whether that is still so. Errors:
// ErrReady, and those of Evict.
func (e *Evictor) evictUnready(ctx context.Context, pod types.NamespacedName, uid types.UID, node string) error {
	if e.IsHeld(node) {
		return ErrHeld
	}
	return e.paced(ctx, pod, func() (metav1.Preconditions, error) {
		return e.only(ctx, pod, uid, func(live *corev1.Pod) error {
			if slices.ContainsFunc(live.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue }) {
				return ErrReady
			}
			return nil
		})
	})
}

// only reads a pod from the API server, and returns the preconditions by which it is evicted in
// the state that was read. It returns what check returns for the pod, ErrGone, ErrBusy, or the
// API server's error.
func (e *Evictor) only(ctx context.Context, pod types.NamespacedName, uid types.UID, check func(*corev1.Pod) error) (only metav1.Preconditions, err error) {
	bounded, cancel := context.WithTimeout(ctx, Retry)
	defer cancel()
	live, err := e.Client.CoreV1().Pods(pod.Namespace).Get(bounded, pod.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return only, ErrGone
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
		return only, ErrBusy
	case err != nil:
		return only, fmt.Errorf("reading pod %s: %w", pod, err)
	case live.UID != uid || live.DeletionTimestamp != nil:
		return only, ErrGone
	}
	return metav1.Preconditions{UID: &uid, ResourceVersion: &live.ResourceVersion}, check(live)
}

// request requests one eviction and names the answer. only must hold a UID.
func (e *Evictor) request(ctx context.Context, pod types.NamespacedName, only metav1.Preconditions) error {
	// client-go repeats a request that was answered with Retry-After, for minutes. Other
	// workloads would wait meanwhile.
	bounded, cancel := context.WithTimeout(ctx, Retry)
	defer cancel()
	err := e.Client.PolicyV1().Evictions(pod.Namespace).Evict(bounded, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &only},
	})
	switch {
	case err == nil:
		return nil
	case apierrors.IsNotFound(err):
		return ErrGone
	case apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause):
		return ErrRefused
	case apierrors.IsTooManyRequests(err), errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
		return ErrBusy
	case ctx.Err() == nil && e.isLeaving(ctx, pod, *only.UID): // the answer was lost, or another client was faster
		return ErrGone
	default:
		return fmt.Errorf("evicting pod %s: %w", pod, err)
	}
}

// Announced is a pod that the caller has announced as disturbed.
type Announced struct {
	Pod types.NamespacedName
	UID types.UID
	// Node is "" for a pod that has none.
	Node string
	// Ready is the pod's Ready condition, as the caller knows it.
	Ready bool
}

// EvictAnnounced evicts a pod that the caller has announced as disturbed, or discards it
// if it has no node. It calls undisrupt if the pod stays, to take the announcement back.
// Errors: those of Evict and Discard, and ErrReady for a pod that is Ready by now and was not
// when the caller decided.
func (e *Evictor) EvictAnnounced(ctx context.Context, pod Announced, undisrupt func(types.UID)) error {
	var err error
	switch {
	case pod.Node == "":
		err = e.Discard(ctx, pod.Pod, pod.UID)
	case pod.Ready:
		err = e.Evict(ctx, pod.Pod, pod.UID, pod.Node)
	default:
		err = e.evictUnready(ctx, pod.Pod, pod.UID, pod.Node)
	}
	if err != nil && !errors.Is(err, ErrGone) {
		undisrupt(pod.UID)
	}
	return err
}

// Moot returns whether an error means that nothing is left to evict: the pod is gone, or
// a pod without a node has one now, or one that was not Ready is. The cache will show it soon.
func Moot(err error) bool {
	return errors.Is(err, ErrGone) || errors.Is(err, ErrBound) || errors.Is(err, ErrReady)
}

// Outcome turns the result of an eviction into the result of a phase: nil where the pod
// is evicted, or nothing is left to evict (Moot), a wait of Retry or less (Again) where the API server may
// grant the eviction later (ErrPace, ErrRefused, ErrBusy) or the node may be back (ErrHeld), and err itself otherwise.
func Outcome(err error) error {
	switch {
	case err == nil || Moot(err):
		return nil
	case errors.Is(err, ErrPace), errors.Is(err, ErrRefused), errors.Is(err, ErrBusy), errors.Is(err, ErrHeld):
		return phase.Wait(err.Error(), Again(err))
	default:
		return err
	}
}

// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=list

// SideBySide returns whether evictions in a namespace may be requested at the same time:
// only if the namespace has no PodDisruptionBudget. Evictions that count against the same
// budget update it one after the other, and the API server delays each that has a conflict
// by half a second, so requests one after the other are faster. It returns false too if
// the budgets cannot be listed.
func (e *Evictor) SideBySide(ctx context.Context, namespace string) bool {
	budgets, err := e.Client.PolicyV1().PodDisruptionBudgets(namespace).List(ctx, metav1.ListOptions{Limit: 1})
	return err == nil && len(budgets.Items) == 0
}

// isLeaving returns whether the pod is gone or terminating according to the API server.
func (e *Evictor) isLeaving(ctx context.Context, pod types.NamespacedName, uid types.UID) bool {
	live, err := e.Client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if err != nil {
		return apierrors.IsNotFound(err)
	}
	return live.UID != uid || live.DeletionTimestamp != nil
}
