package podgroup

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	scheduling "github.com/atoll-k8s/atoll/api/scheduling/v1beta1"
	"github.com/atoll-k8s/atoll/internal/machinery/paged"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
)

const (
	// listTimeout bounds the search for a live pod that names a PodGroup.
	listTimeout = 10 * time.Second
	// listTrusted is how long a list shows that no pod names a PodGroup, and listRest the
	// shortest time between two lists of a namespace. That a pod names it counts for lag,
	// because it only keeps the PodGroup.
	listTrusted, listRest = 2 * time.Second, time.Second
	// listRare bounds the time between two searches for pods of the same PodGroup.
	listRare = 10 * time.Minute
	// maxLists bounds the namespaces whose last list is kept.
	maxLists = 20
)

// isNamed reports whether a live pod names the PodGroup, from the API server.
func (r *Reconciler) isNamed(ctx context.Context, s *scope) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	if name := s.group.OfPod(); name != "" {
		pod, err := r.Pods.CoreV1().Pods(s.key.Namespace).Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return false, nil // the garbage collector deletes the PodGroup
		case err != nil:
			return false, fmt.Errorf("reading pod %s/%s: %w", s.key.Namespace, name, err)
		case groupOf(pod) == s.key.Name, slices.Contains(r.Resolver.Schedulers, pod.Spec.SchedulerName) && r.Store.PodOf(pod.UID) == nil:
			return true, nil
		}
	}
	return r.lists.named(ctx, s.key, r.idleSince(s.key).Add(grace), r.Clock.Now, r.listNamed)
}

// groupOf returns the PodGroup that a pod names; "" if it names none or is not live.
func groupOf(pod *corev1.Pod) string {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return ""
	}
	return pod.Annotations[scheduling.GroupNameAnnotation]
}

// listNamed returns the PodGroups that live pods of a namespace name. It lists the pods of
// all schedulers: Volcano creates PodGroups for pods of schedulers that the store does not
// watch.
func (r *Reconciler) listNamed(ctx context.Context, namespace string) (sets.Set[string], error) {
	all := sets.New[string]()
	err := paged.Pods(ctx, r.Pods.CoreV1().Pods(namespace).List, metav1.ListOptions{}, func(pods []corev1.Pod) bool {
		for i := range pods {
			if name := groupOf(&pods[i]); name != "" {
				all.Insert(name)
			}
		}
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("listing the pods in %s: %w", namespace, err)
	}
	return all, nil
}

// lists holds the last list of pods of each namespace, so that one list serves the
// collection of many PodGroups. Safe for concurrent use; the zero value is ready.
type lists struct {
	mu   sync.Mutex
	last map[string]listed
	// listing holds the namespaces whose pods are being listed, and since when.
	listing map[string]time.Time
}

// listed is one list: the PodGroups that live pods named, and when the list began.
type listed struct {
	names sets.Set[string]
	began time.Time
}

// named reports whether a live pod names a PodGroup. The answer is from a list that began
// after a given time and is not older than listTrusted, or names the PodGroup and is not
// older than lag. It calls list if there is none.
func (l *lists) named(
	ctx context.Context, key types.NamespacedName, after time.Time, now func() time.Time, list func(context.Context, string) (sets.Set[string], error),
) (bool, error) {
	began := now()
	last, due, err := l.begin(key, after, began)
	if err != nil || !due {
		return last.names.Has(key.Name), err
	}
	defer l.end(key.Namespace)
	names, err := list(ctx, key.Namespace)
	if err != nil {
		return false, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last == nil || len(l.last) >= maxLists {
		l.last = map[string]listed{}
	}
	l.last[key.Namespace] = listed{names, began}
	return names.Has(key.Name), nil
}

func (l *lists) end(namespace string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.listing, namespace)
}

// begin returns the last list of a namespace if it serves. If due is set, the caller must
// list the pods and call end. An error is a wait: another caller lists, or the last list
// ended less than listRest ago.
func (l *lists) begin(key types.NamespacedName, after, now time.Time) (last listed, due bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	last, ok := l.last[key.Namespace]
	age := now.Sub(last.began)
	if ok && (last.names.Has(key.Name) && age < lag || !last.began.Before(after) && age < listTrusted) {
		return last, false, nil
	}
	if began, is := l.listing[key.Namespace]; is { // the wait grows with the duration of the list
		return listed{}, false, phase.Wait("another list of pods", min(max(now.Sub(began), retryRead), listRest))
	}
	if ok && age < listRest {
		return listed{}, false, phase.Wait("a list of pods for more PodGroups", listRest-age)
	}
	if l.listing == nil {
		l.listing = map[string]time.Time{}
	}
	l.listing[key.Namespace] = now
	return listed{}, true, nil
}
