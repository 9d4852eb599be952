package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/hub/cache"
	"github.com/atoll-k8s/atoll/internal/hub/identity"
	"github.com/atoll-k8s/atoll/internal/hub/record"
	"github.com/atoll-k8s/atoll/internal/hub/uplink"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// scripted is a cloud that answers what a test says.
type scripted struct {
	mu      sync.Mutex
	offline bool
	answer  func(r *http.Request) (code int, contentType string, body io.ReadCloser)
	events  []corev1.Event // that were created
}

// set changes what the cloud answers; nil leaves that as it is.
func (s *scripted) set(offline bool, answer func(*http.Request) (int, string, io.ReadCloser)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.offline = offline
	if answer != nil {
		s.answer = answer
	}
}

// RoundTrip implements Cloud.
func (s *scripted) RoundTrip(r *http.Request, _ bool) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.offline {
		return nil, uplink.ErrOffline
	}
	if r.Method == http.MethodPost {
		var e corev1.Event
		if err := json.NewDecoder(r.Body).Decode(&e); err != nil {
			return nil, err
		}
		s.events = append(s.events, e)
		return &http.Response{StatusCode: http.StatusCreated, Status: "201 Created", Header: http.Header{}, Body: http.NoBody, Request: r}, nil
	}
	code, contentType, body := s.answer(r)
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {contentType}}, Body: body, Request: r}, nil
}

// AwaitOnline implements Cloud.
func (s *scripted) AwaitOnline(ctx context.Context) error {
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for {
		s.mu.Lock()
		offline := s.offline
		s.mu.Unlock()
		if !offline {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}

// AwaitReachable implements Cloud.
func (s *scripted) AwaitReachable(ctx context.Context) (time.Duration, error) {
	return 0, s.AwaitOnline(ctx)
}

// node is a proxy and its cloud, asked by the node.
type node struct {
	*testing.T
	*Proxy

	cloud  *scripted
	format wire.Format
	info   runtime.SerializerInfo
	scheme *runtime.Scheme
	codecs serializer.CodecFactory
	dir    string // of the cache
}

func newNode(t *testing.T, format wire.Format) *node {
	t.Helper()
	return newNodeOn(t, format, cache.Options{})
}

// newNodeOn returns a node with a cache of its own.
func newNodeOn(t *testing.T, format wire.Format, o cache.Options) *node {
	t.Helper()
	n := &node{T: t, cloud: &scripted{}, format: format, scheme: runtime.NewScheme(), dir: t.TempDir()}
	if o.ShareOf == nil {
		o.ShareOf = record.Shares(o.MaxBytes, nil)
	}
	store, err := cache.Open(n.dir, o)
	if err != nil {
		t.Fatal(err)
	}
	if err := corev1.AddToScheme(n.scheme); err != nil {
		t.Fatal(err)
	}
	n.codecs = serializer.NewCodecFactory(n.scheme)
	var found bool
	if n.info, found = runtime.SerializerInfoForMediaType(n.codecs.SupportedMediaTypes(), format.ContentType()); !found {
		t.Fatalf("there is no serializer of %s", format)
	}
	tokens := identity.NewTokens([]byte("secret"), nil)
	n.Proxy = New(Options{
		Cloud: n.cloud, Cache: store, Tokens: tokens, Log: logr.Discard(),
		Recognizer: &identity.Recognizer{NodeName: "a", Tokens: tokens, ClientRoots: x509.NewCertPool, Now: time.Now, Renews: func() bool { return true }},
	})
	t.Cleanup(func() {
		n.Wait()
		if err := n.Cache.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// encode encodes an object as the API server does.
func (n *node) encode(object runtime.Object) []byte {
	n.Helper()
	var text bytes.Buffer
	if err := n.codecs.EncoderForVersion(n.info.Serializer, corev1.SchemeGroupVersion).Encode(object, &text); err != nil {
		n.Fatal(err)
	}
	return text.Bytes()
}

// ask sends a request of the node to the proxy, as its ServeHTTP does once it has recognized it.
func (n *node) ask(ctx context.Context, target string) *httptest.ResponseRecorder {
	n.Helper()
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	r.Header.Set("Accept", n.format.ContentType())
	w := httptest.NewRecorder()
	n.answer(w, r, identity.Caller{Name: "node", IsNode: true})
	return w
}

// pods returns the names of the pods of an answer, with their images.
func (n *node) pods(body []byte) map[string]string {
	n.Helper()
	object, _, err := n.codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		n.Fatalf("%v: %q", err, body)
	}
	got := map[string]string{}
	for _, pod := range object.(*corev1.PodList).Items {
		got[pod.Name] = pod.Spec.Containers[0].Image
	}
	return got
}

// pod returns a version of a pod.
func pod(name, image string, version int, labels map[string]string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name), ResourceVersion: fmt.Sprint(version), Labels: labels},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: image}}},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

var (
	unbound  = map[string]string{gm.RequiredPropagationPolicyLabel: "p"}
	bound    = map[string]string{gm.RequiredPropagationPolicyLabel: "p", gm.BindingPropagationPolicyLabel: "p"}
	deleting = func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1e9, 0)} }
	begun    = func(p *corev1.Pod) { p.Status.StartTime = &metav1.Time{Time: time.Unix(1e9, 0)} }
)

// answers lets the cloud answer with objects: the whole list of pods, or the pod that is asked for.
func (n *node) answers(version int, pods ...*corev1.Pod) {
	n.cloud.set(false, func(r *http.Request) (int, string, io.ReadCloser) {
		list := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: fmt.Sprint(version)}}
		for _, p := range pods {
			if strings.HasSuffix(r.URL.Path, "/"+p.Name) {
				return http.StatusOK, n.format.ContentType(), io.NopCloser(bytes.NewReader(n.encode(p)))
			}
			list.Items = append(list.Items, *p)
		}
		return http.StatusOK, n.format.ContentType(), io.NopCloser(bytes.NewReader(n.encode(list)))
	})
}

var formats = []wire.Format{wire.JSON, wire.Protobuf}

const podsOfNode = "/api/v1/pods?fieldSelector=spec.nodeName%3Da"

// TestGateRemovesHeldPodsFromLists: a held pod gets an event. A pod that the node already has stays as it was,
// and a pod that is being deleted passes.
func TestGateRemovesHeldPodsFromLists(t *testing.T) {
	for _, format := range formats {
		t.Run(format.String(), func(t *testing.T) {
			n := newNode(t, format)
			check := func(when string, want map[string]string) {
				t.Helper()
				if got := n.pods(n.ask(t.Context(), podsOfNode).Body.Bytes()); !maps.Equal(got, want) {
					t.Errorf("%s the pods are %v, want %v", when, got, want)
				}
				n.Wait()
			}
			n.answers(5, pod("free", "one", 1, nil), pod("bound", "one", 2, bound), pod("held", "one", 3, unbound), pod("going", "one", 4, unbound, deleting), pod("running", "one", 5, unbound, begun))
			first := map[string]string{"free": "one", "bound": "one", "going": "one", "running": "one"}
			check("at first", first)
			if len(n.cloud.events) != 1 || n.cloud.events[0].InvolvedObject.Name != "held" || !strings.Contains(n.cloud.events[0].Message, `the PropagationPolicy "p"`) {
				t.Errorf("the events are %+v", n.cloud.events)
			}
			check("asked again", first)
			if len(n.cloud.events) != 1 {
				t.Errorf("there are %d events", len(n.cloud.events))
			}
			// The labels of what was delivered change, and with them the pods.
			n.answers(9, pod("free", "two", 6, unbound), pod("bound", "two", 7, unbound), pod("held", "two", 8, bound), pod("running", "two", 9, unbound, begun))
			check("after a change of labels", map[string]string{"free": "one", "bound": "one", "held": "two", "running": "one"})
			n.cloud.set(true, nil)
			check("offline", map[string]string{"free": "one", "bound": "one", "held": "two", "running": "one"})
			n.cloud.set(false, nil)
			n.answers(12, pod("free", "three", 10, nil), pod("bound", "three", 11, bound), pod("held", "two", 8, bound))
			check("when they are bound again", map[string]string{"free": "three", "bound": "three", "held": "two"})
			// A pod of the same name is another one.
			n.answers(13, pod("bound", "four", 13, unbound, func(p *corev1.Pod) { p.UID = "another" }))
			check("with another pod of a name", map[string]string{})
		})
	}
}

// TestGateKeepsRunningPodsWithoutACache: pods that a kubelet has accepted stay in the list.
func TestGateKeepsRunningPodsWithoutACache(t *testing.T) {
	for _, format := range formats {
		n := newNode(t, format)
		n.answers(1, pod("running", "one", 1, unbound, begun), pod("new", "one", 1, unbound))
		if got := n.pods(n.ask(t.Context(), podsOfNode).Body.Bytes()); !maps.Equal(got, map[string]string{"running": "one"}) {
			t.Errorf("%s: the pods are %v", format, got)
		}
	}
}

func TestGateAnswersNotFoundForHeldPods(t *testing.T) {
	for _, format := range formats {
		n := newNode(t, format)
		n.answers(1, pod("held", "one", 1, unbound), pod("bound", "one", 1, bound), pod("running", "one", 1, unbound, begun))
		for name, want := range map[string]int{"held": http.StatusNotFound, "bound": http.StatusOK, "running": http.StatusOK} {
			if w := n.ask(t.Context(), "/api/v1/namespaces/default/pods/"+name); w.Code != want {
				t.Errorf("%s: pod %s is answered %d", format, name, w.Code)
			}
		}
	}
}

func TestGateRefusesUnreadableAnswers(t *testing.T) {
	n := newNode(t, wire.JSON)
	for name, body := range map[string]string{"a table": `{"kind":"Table","apiVersion":"meta.k8s.io/v1","rows":[]}`, "nothing": "", "no object": "[]"} {
		n.cloud.set(false, func(*http.Request) (int, string, io.ReadCloser) {
			return http.StatusOK, "application/json", io.NopCloser(strings.NewReader(body))
		})
		for _, target := range []string{podsOfNode, "/api/v1/namespaces/default/pods/x"} {
			if w := n.ask(t.Context(), target); w.Code != http.StatusNotAcceptable && (name != "a table" || target == podsOfNode) {
				t.Errorf("%s at %s is answered %d %s", name, target, w.Code, w.Body)
			}
		}
	}
}

// event is an event of the cloud's watch.
type event struct {
	kind watch.EventType
	pod  *corev1.Pod
}

// watched returns the events that the node gets of a watch whose cloud sends these and ends.
func (n *node) watched(target string, events ...event) (got []string) {
	n.Helper()
	var frames []byte
	for _, e := range events {
		var err error
		if frames, err = n.format.AppendEvent(frames, e.kind, n.encode(e.pod)); err != nil {
			n.Fatal(err)
		}
	}
	n.cloud.set(false, func(*http.Request) (int, string, io.ReadCloser) {
		return http.StatusOK, n.format.WatchContentType(), io.NopCloser(bytes.NewReader(frames))
	})
	w := n.ask(n.Context(), target)
	reader := n.format.NewEventReader(w.Body, 1<<20)
	for {
		e, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return got
		}
		if err != nil {
			n.Fatal(err)
		}
		object, _, err := n.codecs.UniversalDeserializer().Decode(e.Object, &schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, nil)
		if err != nil {
			n.Fatal(err)
		}
		p := object.(*corev1.Pod)
		image := ""
		if len(p.Spec.Containers) > 0 {
			image = p.Spec.Containers[0].Image
		}
		got = append(got, strings.TrimSpace(fmt.Sprint(e.Type, " ", p.Name, " ", image)))
	}
}

// TestGateRemovesHeldPodsFromWatches: the first allowed version of a pod is ADDED, a pod that the node already
// has stays as it was, and deletions pass.
func TestGateRemovesHeldPodsFromWatches(t *testing.T) {
	for _, format := range formats {
		t.Run(format.String(), func(t *testing.T) {
			n := newNode(t, format)
			n.answers(1, pod("old", "one", 1, bound))
			n.ask(t.Context(), podsOfNode)
			n.Wait()
			got := n.watched(podsOfNode+"&watch=1&resourceVersion=1",
				event{watch.Added, pod("held", "one", 2, unbound)},
				event{watch.Added, pod("gone", "one", 3, unbound)},
				event{watch.Modified, pod("old", "two", 4, unbound)},
				event{watch.Modified, pod("held", "two", 5, unbound)},
				event{watch.Modified, pod("held", "three", 6, bound)},
				event{watch.Deleted, pod("gone", "one", 7, unbound)},
				event{watch.Modified, pod("old", "two", 8, unbound, deleting)},
				event{watch.Modified, pod("held", "four", 9, unbound)},
			)
			if want := []string{"ADDED held three", "DELETED gone one", "MODIFIED old two"}; !slices.Equal(got, want) {
				t.Errorf("the node gets %q, want %q", got, want)
			}
			n.cloud.set(true, nil)
			w := n.ask(t.Context(), podsOfNode)
			if got, want := n.pods(w.Body.Bytes()), map[string]string{"old": "two", "held": "three"}; !maps.Equal(got, want) {
				t.Errorf("offline the pods are %v, want %v", got, want)
			}
			if m, err := format.DecodeList(w.Body.Bytes()); err != nil || m.ResourceVersion != "9" {
				t.Errorf("the version of the list is %+v, %v: the events that were held come again", m, err)
			}
		})
	}
}

// streamed is the rest of the query of a list that is a watch.
const streamed = "&watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"

// endOfInitial is the event after the last of such a list.
func endOfInitial(version string) event {
	return event{watch.Bookmark, &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{
		ResourceVersion: version, Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"},
	}}}
}

func TestGateRemovesHeldPodsFromStreamedLists(t *testing.T) {
	const target = podsOfNode + streamed
	end := endOfInitial("9")
	for _, format := range formats {
		t.Run(format.String(), func(t *testing.T) {
			n := newNode(t, format)
			got := n.watched(target, event{watch.Added, pod("bound", "one", 1, bound)}, event{watch.Added, pod("held", "one", 2, unbound)},
				event{watch.Added, pod("running", "one", 3, unbound, begun)}, end)
			if want := []string{"ADDED bound one", "ADDED running one", "BOOKMARK"}; !slices.Equal(got, want) {
				t.Errorf("the node gets %q, want %q", got, want)
			}
			n.Wait()
			// It lists again after a change of labels: nothing is missing.
			got = n.watched(target, event{watch.Added, pod("bound", "two", 5, unbound)}, event{watch.Added, pod("running", "two", 6, unbound, begun)}, end)
			if want := []string{"ADDED bound one", "ADDED running one", "BOOKMARK"}; !slices.Equal(got, want) {
				t.Errorf("again it gets %q, want %q", got, want)
			}
			n.Wait()
			n.cloud.set(true, nil)
			if got, want := n.pods(n.ask(t.Context(), podsOfNode).Body.Bytes()), map[string]string{"bound": "one", "running": "one"}; !maps.Equal(got, want) {
				t.Errorf("offline the pods are %v, want %v", got, want)
			}
		})
	}
}

// TestGateAppliesToTheNodeOnly: other callers see held pods.
func TestGateAppliesToTheNodeOnly(t *testing.T) {
	n := newNode(t, wire.JSON)
	n.answers(1, pod("held", "one", 1, unbound))
	r := httptest.NewRequest(http.MethodGet, podsOfNode, nil)
	r.Header.Set("Authorization", "Bearer x")
	r.TLS = &tls.ConnectionState{}
	w := httptest.NewRecorder()
	n.ServeHTTP(w, r)
	if got := n.pods(w.Body.Bytes()); len(got) != 1 {
		t.Errorf("they see %v", got)
	}
}
