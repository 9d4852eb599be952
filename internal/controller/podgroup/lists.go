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

	scheduling "github.com/atoll-k8s/atoll/api/scheduling/v1beta1"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
)

const (
	// askWithin bounds the question whether a live pod names a PodGroup.
	askWithin = 10 * time.Second
	// page is the number of pods that are listed at a time.
	page = 500
	// listTrusted is how long a list of pods is believed, and listRest the least time from
	// one list of a namespace to the next. A pod that a list has is believed for lag: the
	// PodGroup stays for it.
	listTrusted, listRest = 2 * time.Second, time.Second
	// listRare bounds the time from one question about a PodGroup to the next.
	listRare = 10 * time.Minute
	// maxLists bounds the lists that are kept.
	maxLists = 20
)

// isNamed asks the API server whether a live pod names a PodGroup.
func (r *Reconciler) isNamed(ctx context.Context, s *scope) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	if name := s.group.OfPod(); name != "" {
		pod, err := r.Pods.CoreV1().Pods(s.key.Namespace).Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return false, nil // the garbage collector has the PodGroup
		case err != nil:
			return false, fmt.Errorf("reading pod %s/%s: %w", s.key.Namespace, name, err)
		case names(pod) == s.key.Name, slices.Contains(r.Resolver.Schedulers, pod.Spec.SchedulerName) && r.Store.PodOf(pod.UID) == nil:
			return true, nil
		}
	}
	return r.lists.named(ctx, s.key, r.idleSince(s.key).Add(grace), r.Clock.Now, r.listNamed)
}

// names is the PodGroup that a live pod names, or "".
func names(pod *corev1.Pod) string {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return ""
	}
	return pod.Annotations[scheduling.GroupNameAnnotation]
}

// listNamed lists the PodGroups that live pods of a namespace name, whatever their
// scheduler: Volcano makes PodGroups for the pods of schedulers that we do not watch.
func (r *Reconciler) listNamed(ctx context.Context, namespace string) (map[string]bool, error) {
	all := map[string]bool{}
	for options := (metav1.ListOptions{Limit: page}); ; {
		list, err := r.Pods.CoreV1().Pods(namespace).List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("listing the pods in %s: %w", namespace, err)
		}
		for i := range list.Items {
			if name := names(&list.Items[i]); name != "" {
				all[name] = true
			}
		}
		if options.Continue = list.Continue; options.Continue == "" {
			return all, nil
		}
	}
}

// lists are the last lists of pods, by namespace: many PodGroups that nobody needs are
// collected with one. The zero value is ready.
type lists struct {
	mu   sync.Mutex
	last map[string]listed
	// listing are the namespaces whose pods are being listed, since when.
	listing map[string]time.Time
}

type listed struct {
	names map[string]bool
	began time.Time
}

// named tells whether a live pod names a PodGroup, by a list that began after a time and
// is not older than a watch may be.
func (l *lists) named(
	ctx context.Context, key types.NamespacedName, after time.Time, now func() time.Time, list func(context.Context, string) (map[string]bool, error),
) (bool, error) {
	began := now()
	last, due, err := l.begin(key, after, began)
	if err != nil || !due {
		return last.names[key.Name], err
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
	return names[key.Name], nil
}

func (l *lists) end(namespace string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.listing, namespace)
}

// begin is the last list of a namespace, or tells that another one is due, which whoever
// is told makes. An error means to wait for it.
func (l *lists) begin(key types.NamespacedName, after, now time.Time) (last listed, due bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	last, ok := l.last[key.Namespace]
	age := now.Sub(last.began)
	if ok && (last.names[key.Name] && age < lag || !last.began.Before(after) && age < listTrusted) {
		return last, false, nil
	}
	if began, is := l.listing[key.Namespace]; is { // the longer it takes, the later is looked again
		return listed{}, false, phase.Wait("another list of pods", min(max(now.Sub(began), again), listRest))
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
