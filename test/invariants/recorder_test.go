package invariants

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// server is an API server that serves only pods and counts versions.
type server struct {
	mu     sync.Mutex // guards the fields below
	rv     int
	pods   map[string]*corev1.Pod
	events []watch.Event
	// forgotten is the number of events that cannot be watched any more.
	forgotten int
	// down refuses new watches.
	down    bool
	watches []*watch.FakeWatcher
	// asked are the resourceVersions from which watches began.
	asked []string
}

func (s *server) write(kind watch.EventType, name, node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rv++
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), ResourceVersion: strconv.Itoa(s.rv)}, Spec: corev1.PodSpec{NodeName: node}}
	s.pods[name] = pod
	if kind == watch.Deleted {
		delete(s.pods, name)
	}
	s.events = append(s.events, watch.Event{Type: kind, Object: pod})
	for _, w := range s.watches {
		w.Action(kind, pod)
	}
}

// cut ends all watches and refuses new ones until open.
func (s *server) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = true
	for _, w := range s.watches {
		w.Stop()
	}
	s.watches = nil
}

// open allows watches again; forget drops the events that they missed.
func (s *server) open(forget bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = false
	if forget {
		s.forgotten = len(s.events)
	}
}

func (s *server) client() client.WithWatch {
	return interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, _ ...client.ListOption) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			list.SetResourceVersion(strconv.Itoa(s.rv))
			if pods, ok := list.(*corev1.PodList); ok {
				for _, pod := range s.pods {
					pods.Items = append(pods.Items, *pod)
				}
			}
			return nil
		},
		Watch: func(ctx context.Context, _ client.WithWatch, list client.ObjectList, opts ...client.ListOption) (watch.Interface, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			w := watch.NewFakeWithChanSize(100, false)
			context.AfterFunc(ctx, w.Stop)
			if _, ok := list.(*corev1.PodList); !ok {
				return w, nil
			}
			if s.down {
				return nil, apierrors.NewServiceUnavailable("down")
			}
			var o client.ListOptions
			o.ApplyOptions(opts)
			from, _ := strconv.Atoi(o.Raw.ResourceVersion)
			if from < s.forgotten {
				return nil, apierrors.NewResourceExpired("too old")
			}
			s.asked = append(s.asked, o.Raw.ResourceVersion)
			for _, e := range s.events[from:] {
				w.Action(e.Type, e.Object)
			}
			s.watches = append(s.watches, w)
			return w, nil
		},
	})
}

// TestARecorderMissesNothing: writes while a watch is down are recorded when it
// continues, and there is no gap.
func TestARecorderMissesNothing(t *testing.T) {
	s := &server{pods: map[string]*corev1.Pod{}}
	s.write(watch.Added, "first", "")
	r, err := Record(t.Context(), s.client())
	if err != nil {
		t.Fatal(err)
	}
	s.write(watch.Added, "second", "")
	s.cut()
	s.write(watch.Modified, "second", "node")
	s.write(watch.Deleted, "second", "node")
	s.write(watch.Added, "third", "")
	s.open(false)
	h, err := r.Stop(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	h.sort()
	var got []string
	for _, v := range h.timelines[podKey("second")] {
		pod, _ := v.object.(Pod)
		got = append(got, fmt.Sprintf("%d gone=%t node=%q gap=%t", v.RV, v.object == nil, pod.Node, v.Gap))
	}
	if want := []string{`2 gone=false node="" gap=false`, `3 gone=false node="node" gap=false`, `4 gone=true node="" gap=false`}; !slices.Equal(got, want) {
		t.Errorf("versions are %q, want %q", got, want)
	}
	if len(h.Gaps) != 0 || h.First != 1 || h.Last != 5 {
		t.Errorf("versions %d to %d with gaps %v", h.First, h.Last, h.Gaps)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if last := s.asked[len(s.asked)-1]; last == "0" || last == "" {
		t.Errorf("the last watch began at %q", last)
	}
}

// TestRecorderMarksGaps: if the missed events cannot be watched any more, the objects
// are listed, and the versions that changed meanwhile are marked.
func TestRecorderMarksGaps(t *testing.T) {
	s := &server{pods: map[string]*corev1.Pod{}}
	for _, name := range []string{"stays", "moves", "goes"} {
		s.write(watch.Added, name, "")
	}
	r, err := Record(t.Context(), s.client())
	if err != nil {
		t.Fatal(err)
	}
	s.cut()
	s.write(watch.Modified, "moves", "node")
	s.write(watch.Deleted, "goes", "")
	s.open(true)
	h, err := r.Stop(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	h.sort()
	for name, want := range map[string]bool{"stays": false, "moves": true, "goes": true} {
		timeline := h.timelines[podKey(name)]
		if last := timeline[len(timeline)-1]; last.Gap != want || (last.object == nil) != (name == "goes") {
			t.Errorf("%s ends with %+v", name, last)
		}
	}
	if len(h.Gaps) != 1 || h.Gaps[0].What != "pods" {
		t.Errorf("gaps are %v", h.Gaps)
	}
}
