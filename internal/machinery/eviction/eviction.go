// Package eviction asks for evictions, each of one pod and all at a pace that
// all workloads share. It knows no policy: whether a pod may go is decided before.
package eviction

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/atoll-k8s/atoll/internal/machinery/phase"
)

// Retry is how long an eviction that was refused is left alone.
const Retry = 5 * time.Second

// Fresh is how long what was seen of a workload is a reason to evict its pods. Who
// asks for one eviction after the other looks again after that: a slow API server
// takes seconds for each, and what was a reason is none any more.
const Fresh = time.Second

var (
	// ErrPace: all workloads together have had their evictions for now.
	ErrPace = errors.New("the pace of evictions")
	// ErrRefused: a PodDisruptionBudget allows no eviction now.
	ErrRefused = errors.New("a PodDisruptionBudget allows no eviction")
	// ErrBusy: the API server has not granted the eviction within Retry, or wants
	// to be asked later, for another reason than a PodDisruptionBudget.
	ErrBusy = errors.New("the API server has granted no eviction yet")
	// ErrGone: the pod is gone, about to go, or another of that name.
	ErrGone = errors.New("the pod is gone")
	// ErrBound: a pod that was to be discarded has got a node.
	ErrBound = errors.New("the pod has got a node")
)

// +kubebuilder:rbac:groups="",resources=pods/eviction,verbs=create

// Evictor evicts pods. Safe for concurrent use.
type Evictor struct {
	Client kubernetes.Interface
	// Pace bounds the evictions of all workloads together. Those that are refused
	// do not count: workloads that nobody may disturb hold up no other.
	Pace *rate.Limiter

	mu       sync.Mutex
	underWay int // evictions that hold a turn until they are answered
}

// Evict evicts a pod that does its work or may come to: it takes its turn in
// the pace. Errors: ErrPace, ErrRefused, ErrBusy, ErrGone, or the API server's.
func (e *Evictor) Evict(ctx context.Context, pod types.NamespacedName, uid types.UID) error {
	if !e.begin() {
		return ErrPace
	}
	err := e.ask(ctx, pod, metav1.Preconditions{UID: &uid})
	e.end(err == nil || errors.Is(err, ErrGone)) // the answer may have been lost
	return err
}

// begin tells whether a turn is left beside those of the evictions under way.
func (e *Evictor) begin() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.Pace.Limit() != rate.Inf && e.Pace.Tokens() < float64(e.underWay+1) {
		return false
	}
	e.underWay++
	return true
}

func (e *Evictor) end(granted bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.underWay--
	if granted {
		e.Pace.Allow()
	}
}

// +kubebuilder:rbac:groups="",resources=pods,verbs=get

// Discard evicts a pod that has no node yet, which disturbs nothing and takes
// no turn. The API server is asked first whether the pod has one by now: caches
// are behind. Errors: ErrBound, and Evict's but for ErrPace.
func (e *Evictor) Discard(ctx context.Context, pod types.NamespacedName, uid types.UID) error {
	bounded, cancel := context.WithTimeout(ctx, Retry)
	defer cancel()
	live, err := e.Client.CoreV1().Pods(pod.Namespace).Get(bounded, pod.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return ErrGone
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
		return ErrBusy
	case err != nil:
		return fmt.Errorf("reading pod %s: %w", pod, err)
	case live.UID != uid || live.DeletionTimestamp != nil:
		return ErrGone
	case live.Spec.NodeName != "":
		return ErrBound
	}
	return e.ask(ctx, pod, metav1.Preconditions{UID: &uid, ResourceVersion: &live.ResourceVersion})
}

func (e *Evictor) ask(ctx context.Context, pod types.NamespacedName, only metav1.Preconditions) error {
	// The client would repeat an eviction that the API server wants to see
	// later for minutes; other workloads wait meanwhile.
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
	case ctx.Err() == nil && e.leaves(ctx, pod, *only.UID): // the answer was lost, or somebody was quicker
		return ErrGone
	default:
		return fmt.Errorf("evicting pod %s: %w", pod, err)
	}
}

// EvictAnnounced evicts a pod, or discards one that was seen without a node. Others
// count it as disturbed already: undisrupt takes that back if it stays. Errors: Evict's
// and Discard's.
func (e *Evictor) EvictAnnounced(ctx context.Context, pod types.NamespacedName, uid types.UID, node string, undisrupt func(types.UID)) error {
	evict := e.Evict
	if node == "" {
		evict = e.Discard
	}
	err := evict(ctx, pod, uid)
	if err != nil && !errors.Is(err, ErrGone) {
		undisrupt(uid)
	}
	return err
}

// Moot tells whether an error says that there is nothing to evict any more: the
// pod is not as it was seen, and what became of it will be seen.
func Moot(err error) bool { return errors.Is(err, ErrGone) || errors.Is(err, ErrBound) }

// Outcome turns the result of an eviction into the result of a phase: nil where the pod
// is evicted, gone or has got a node (Moot), a wait of Retry where the API server may
// grant the eviction later (ErrPace, ErrRefused, ErrBusy), and err itself otherwise.
func Outcome(err error) error {
	switch {
	case err == nil || Moot(err):
		return nil
	case errors.Is(err, ErrPace), errors.Is(err, ErrRefused), errors.Is(err, ErrBusy):
		return phase.Wait(err.Error(), Retry)
	default:
		return err
	}
}

// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=list

// SideBySide tells whether many evictions in a namespace may be asked for at a
// time. Those that count against one PodDisruptionBudget write it in turn, and
// the API server lets who comes too early wait for half a second each time:
// one after the other is quicker.
func (e *Evictor) SideBySide(ctx context.Context, namespace string) bool {
	budgets, err := e.Client.PolicyV1().PodDisruptionBudgets(namespace).List(ctx, metav1.ListOptions{Limit: 1})
	return err == nil && len(budgets.Items) == 0
}

// leaves tells whether the API server knows the pod as gone or terminating.
func (e *Evictor) leaves(ctx context.Context, pod types.NamespacedName, uid types.UID) bool {
	live, err := e.Client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if err != nil {
		return apierrors.IsNotFound(err)
	}
	return live.UID != uid || live.DeletionTimestamp != nil
}
