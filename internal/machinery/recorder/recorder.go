// Package recorder bounds the events that are written: how many there are about an object
// and in a namespace, and what their text contains. It depends on no kind.
//
// client-go bounds little of this. It counts an event in the series of an earlier one only
// if both have the same reference, and the reference of a cached object has its
// resourceVersion: an object that changes gets a new event each time.
package recorder

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/reference"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/atoll-k8s/atoll/internal/machinery/conditions"
)

// Each limit is a number of events without delay, and the delay of later ones. Events that
// come sooner are not written.
//
// An object has a limit for each reason, so that a reason that repeats does not hide the
// others, and one for all its reasons. The last half of the limit of an object is for
// reasons that it has not had yet, and the last half of the limit of a namespace is for
// objects that have had no event yet. Events of type Warning have a limit of their own in a
// namespace, so that others do not hide them.
const (
	reasonBurst, reasonEvery       = 10, 30 * time.Second
	objectBurst, objectEvery       = 20, 15 * time.Second
	namespaceBurst, namespaceEvery = 1000, 200 * time.Millisecond
)

const (
	// maxObjects and maxNamespaces bound the histories that are kept. The one that was not
	// used for longest is dropped.
	maxObjects, maxNamespaces = 4096, 1024
	// maxNote bounds the text of an event, in bytes: the API server takes 1024.
	maxNote = 1000
	// maxName bounds each field of a reference, in bytes. Owners of pods are references
	// that users write, and the API server does not check their kind.
	maxName = 253
)

// Recorder is an events.EventRecorder with bounds. Safe for concurrent use.
type Recorder struct {
	inner  events.EventRecorder
	scheme *runtime.Scheme
	clock  clock.PassiveClock

	mu         sync.Mutex // guards the content of the histories
	objects    *lru.Cache // *history by object
	namespaces *lru.Cache // *rate.Limiter by kindred
}

// New returns a Recorder that writes through inner. scheme has the kinds of the objects
// that events are about.
func New(inner events.EventRecorder, scheme *runtime.Scheme, clock clock.PassiveClock) *Recorder {
	return &Recorder{inner: inner, scheme: scheme, clock: clock, objects: lru.New(maxObjects), namespaces: lru.New(maxNamespaces)}
}

// object identifies what an event is about. It has no UID, so that an object that is
// deleted and created again and again has one limit.
type object struct{ kind, namespace, name string }

// kindred are the events of a namespace that share a limit.
type kindred struct {
	namespace string
	warnings  bool
}

// history is what is known about the events of one object.
type history struct {
	all     *rate.Limiter
	reasons map[string]*series // few: reasons are constants
}

// series is what is known about the events of one reason about one object.
type series struct {
	limiter *rate.Limiter
	// suppressed are the events that were not written since the last one that was.
	suppressed int
}

// Eventf writes an event unless a limit is reached. The note is one line of at most 1000
// bytes. It ends with the number of events that were not written before, if there are any.
func (r *Recorder) Eventf(regarding, related runtime.Object, eventtype, reason, action, note string, args ...any) {
	about, err := r.refer(regarding)
	if err != nil {
		// Without the object: an entry of the log must not have all of it.
		ctrl.Log.WithName("events").Error(err, "Could not refer to the object of an event", "type", fmt.Sprintf("%T", regarding), "reason", reason)
		return
	}
	suppressed, limit := r.admit(about, eventtype == corev1.EventTypeWarning, reason)
	if limit != "" {
		suppressedTotal.WithLabelValues(limit).Inc()
		return
	}
	if related != nil {
		// An event without its related object is better than none.
		other, err := r.refer(related)
		related = nil
		if err == nil {
			related = other
		}
	}
	r.inner.Eventf(about, related, eventtype, reason, action, "%s", text(fmt.Sprintf(note, args...), suppressed))
}

// refer returns the bounded reference to an object.
func (r *Recorder) refer(obj runtime.Object) (*corev1.ObjectReference, error) {
	full, err := reference.GetReference(r.scheme, obj)
	if err != nil {
		return nil, err
	}
	ref := *full
	for _, field := range []*string{&ref.Kind, &ref.Namespace, &ref.Name, &ref.APIVersion, &ref.ResourceVersion, &ref.FieldPath} {
		*field = bounded(*field, maxName)
	}
	ref.UID = types.UID(bounded(string(ref.UID), maxName))
	return &ref, nil
}

// text returns the note of an event.
func text(note string, suppressed int) string {
	if suppressed == 0 {
		return bounded(note, maxNote)
	}
	more := fmt.Sprintf(" (%d more events with this reason were not written)", suppressed)
	return bounded(note, maxNote-len(more)) + more
}

func bounded(text string, limit int) string {
	return conditions.Truncate(conditions.Printable(conditions.Truncate(text, 4*limit)), limit)
}

// admit returns the name of the limit that an event exceeds, or "" if it may be written,
// and then the number of events of that reason that were not written before.
func (r *Recorder) admit(about *corev1.ObjectReference, warning bool, reason string) (suppressed int, limit string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	key := object{about.Kind, about.Namespace, about.Name}
	known, found := r.objects.Get(key)
	if !found {
		known = &history{all: rate.NewLimiter(rate.Every(objectEvery), objectBurst), reasons: map[string]*series{}}
		r.objects.Add(key, known)
	}
	all, hasNamespace := r.namespaces.Get(kindred{about.Namespace, warning})
	if !hasNamespace {
		all = rate.NewLimiter(rate.Every(namespaceEvery), namespaceBurst)
		r.namespaces.Add(kindred{about.Namespace, warning}, all)
	}
	h, namespace := known.(*history), all.(*rate.Limiter)
	s, repeats := h.reasons[reason]
	if !repeats {
		s = &series{limiter: rate.NewLimiter(rate.Every(reasonEvery), reasonBurst)}
		h.reasons[reason] = s
	}
	switch {
	case !hasToken(s.limiter, now, false):
		limit = "reason"
	case !hasToken(h.all, now, repeats):
		limit = "object"
	case !hasToken(namespace, now, found):
		limit = "namespace"
	}
	if limit != "" {
		s.suppressed++
		return 0, limit
	}
	for _, l := range []*rate.Limiter{s.limiter, h.all, namespace} {
		l.AllowN(now, 1)
	}
	suppressed, s.suppressed = s.suppressed, 0
	return suppressed, ""
}

// hasToken returns whether a limiter has a token left, or, for an event that repeats
// another one, a token above its last half.
func hasToken(l *rate.Limiter, now time.Time, repeats bool) bool {
	need := 1.0
	if repeats {
		need += float64(l.Burst()) / 2
	}
	return l.TokensAt(now) >= need
}
