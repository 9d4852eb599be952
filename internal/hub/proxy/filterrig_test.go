package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	appsv1alpha1 "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/hub/cache"
	"github.com/atoll-k8s/atoll/internal/hub/endpoints"
	"github.com/atoll-k8s/atoll/internal/hub/filter"
	"github.com/atoll-k8s/atoll/internal/hub/identity"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

const (
	slicesPath   = "/apis/discovery.k8s.io/v1/endpointslices"
	servicesPath = "/api/v1/services"
	nodesPath    = "/api/v1/nodes"
	poolsPath    = "/apis/apps.openyurt.io/v1alpha1/nodepools"
	podPath      = "/api/v1/namespaces/default/pods/web-a"
)

// api is a cloud with collections that can be listed and watched.
type api struct {
	t      *testing.T
	format wire.Format // of EndpointSlices and pods
	encode func(runtime.Object) []byte

	mu      sync.Mutex
	version int
	// objects are by path, then by name, and history by path.
	objects  map[string]map[string]metav1.Object
	history  map[string][]change
	refused  map[string]int // status codes, by path
	watchers map[*watcher]bool
}

type change struct {
	version int
	kind    watch.EventType
	frame   []byte
}

type watcher struct {
	path   string
	events chan []byte
	to     *io.PipeWriter
}

func formatOf(path string, own wire.Format) wire.Format {
	switch path {
	case servicesPath, nodesPath:
		return wire.Protobuf
	case poolsPath:
		return wire.JSON
	default:
		return own
	}
}

// put creates or changes an object; nil deletes the one of the name.
func (a *api) put(path, name string, object metav1.Object) {
	a.t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	kind := watch.Modified
	was := a.objects[path][name]
	switch {
	case object == nil:
		kind, object = watch.Deleted, was
		delete(a.objects[path], name)
	case was == nil:
		kind = watch.Added
	}
	object.SetResourceVersion(strconv.Itoa(a.version))
	if kind != watch.Deleted {
		if a.objects[path] == nil {
			a.objects[path] = map[string]metav1.Object{}
		}
		a.objects[path][name] = object
	}
	frame, err := formatOf(path, a.format).AppendEvent(nil, kind, a.raw(path, object))
	if err != nil {
		a.t.Fatal(err)
	}
	a.history[path] = append(a.history[path], change{a.version, kind, frame})
	for w := range a.watchers {
		if w.path == path {
			w.events <- frame
		}
	}
}

// raw encodes an object of a collection.
func (a *api) raw(path string, object metav1.Object) []byte {
	a.t.Helper()
	if path == poolsPath {
		text, err := json.Marshal(object)
		if err != nil {
			a.t.Fatal(err)
		}
		return text
	}
	if m, is := object.(*metav1.PartialObjectMetadata); is {
		text, err := m.Marshal()
		if err == nil {
			text, err = wire.Protobuf.ObjectOf(text, m.APIVersion, m.Kind)
		}
		if err != nil {
			a.t.Fatal(err)
		}
		return text
	}
	return bytes.TrimSuffix(a.encode(object.(runtime.Object)), []byte("\n"))
}

// answer answers a request.
func (a *api) answer(r *http.Request) (int, string, io.ReadCloser) {
	a.mu.Lock()
	defer a.mu.Unlock()
	path := r.URL.Path
	if code := a.refused[path]; code != 0 {
		return code, "application/json", io.NopCloser(strings.NewReader(`{"kind":"Status","apiVersion":"v1","status":"Failure"}`))
	}
	format := formatOf(path, a.format)
	if r.URL.Query().Get("watch") != "" {
		return http.StatusOK, format.WatchContentType(), a.watch(r)
	}
	if before, name, found := strings.Cut(path, "/default/"); found && strings.Contains(before, "namespaces") {
		_, name, _ = strings.Cut(name, "/")
		for _, of := range a.objects {
			if object := of[name]; object != nil {
				return http.StatusOK, a.format.ContentType(), io.NopCloser(bytes.NewReader(a.raw("", object)))
			}
		}
		return http.StatusNotFound, "application/json", io.NopCloser(strings.NewReader(`{"kind":"Status","apiVersion":"v1","status":"Failure"}`))
	}
	kinds := map[string][2]string{
		servicesPath: {"meta.k8s.io/v1", "PartialObjectMetadataList"}, nodesPath: {"meta.k8s.io/v1", "PartialObjectMetadataList"},
		poolsPath: {"apps.openyurt.io/v1alpha1", "NodePoolList"}, slicesPath: {"discovery.k8s.io/v1", "EndpointSliceList"}, "/api/v1/pods": {"v1", "PodList"},
	}
	list := wire.Header{Format: format, APIVersion: kinds[path][0], Kind: kinds[path][1], ItemsHaveType: path == poolsPath, ResourceVersion: strconv.Itoa(a.version)}
	var items []wire.Item
	for _, object := range a.objects[path] {
		item, err := format.ItemOf(a.raw(path, object), list.ItemsHaveType)
		if err != nil {
			a.t.Error(err)
		}
		items = append(items, wire.Item{Raw: item})
	}
	text, err := (&batch{&wire.List{Header: list, Items: items}, false}).encode()
	if err != nil {
		a.t.Error(err)
	}
	return http.StatusOK, format.ContentType(), io.NopCloser(bytes.NewReader(text))
}

func (a *api) watch(r *http.Request) io.ReadCloser {
	path := r.URL.Path
	from, to := io.Pipe()
	w := &watcher{path, make(chan []byte, 1000), to}
	after, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	if r.URL.Query().Get("sendInitialEvents") != "" {
		after = a.version
		format := formatOf(path, a.format)
		for _, object := range a.objects[path] {
			frame, err := format.AppendEvent(nil, watch.Added, a.raw(path, object))
			if err != nil {
				a.t.Error(err)
			}
			w.events <- frame
		}
		bookmark, err := format.Bookmark("discovery.k8s.io/v1", "EndpointSlice", strconv.Itoa(a.version), true)
		if err == nil {
			bookmark, err = format.AppendEvent(nil, watch.Bookmark, bookmark)
		}
		if err != nil {
			a.t.Error(err)
		}
		w.events <- bookmark
	}
	for _, c := range a.history[path] {
		if c.version > after {
			w.events <- c.frame
		}
	}
	a.watchers[w] = true
	ctx := r.Context()
	context.AfterFunc(ctx, func() { _ = to.CloseWithError(context.Canceled) })
	go func() {
		for frame := range w.events {
			if _, err := to.Write(frame); err != nil {
				return
			}
		}
		_ = to.CloseWithError(io.ErrUnexpectedEOF)
	}()
	return from
}

// cut breaks all watches off.
func (a *api) cut() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for w := range a.watchers {
		close(w.events)
		delete(a.watchers, w)
	}
}

// filterRig is a hub of the node a with a filter of endpoints, between clients and an api.
type filterRig struct {
	*node
	*api

	services *endpoints.Filter
	kept     []byte
	keptMu   sync.Mutex
	stop     func()
	wrap     func(filter.Filter) filter.Filter // nil: the filter is as it is
}

// kubeProxy is a client that is filtered, and person one that is not.
var (
	kubeProxy = identity.Caller{Name: "subject:issuer#system:serviceaccount:kube-system:kube-proxy", Token: "kube-proxy"}
	person    = identity.Caller{Name: "subject:issuer#jane", Token: "jane"}
)

func newFilterRig(t *testing.T, format wire.Format) *filterRig {
	t.Helper()
	n := newNode(t, format)
	if err := discoveryv1.AddToScheme(n.scheme); err != nil {
		t.Fatal(err)
	}
	r := &filterRig{node: n, api: &api{
		t: t, format: format, objects: map[string]map[string]metav1.Object{}, history: map[string][]change{}, refused: map[string]int{}, watchers: map[*watcher]bool{},
	}}
	r.api.encode = func(object runtime.Object) []byte {
		var text bytes.Buffer
		if err := n.info.Serializer.Encode(object, &text); err != nil {
			t.Error(err)
		}
		return text.Bytes()
	}
	r.cloud.set(false, r.api.answer)
	r.put(nodesPath, "a", nodeIn("p"))
	r.put(poolsPath, "p", poolWith("a", "b"))
	r.put(servicesPath, "web", serviceWith("openyurt.io/nodepool"))
	r.put(slicesPath, "web-1", sliceWith("web-1", "a=10.0.0.1", "b=10.0.0.2", "c=10.0.0.3"))
	r.put("/api/v1/pods", "web-a", podAt("10.0.0.1"))
	r.start()
	t.Cleanup(func() { r.stop() })
	return r
}

// start starts the filter of the hub.
func (r *filterRig) start() {
	r.keptMu.Lock()
	kept := r.kept
	r.keptMu.Unlock()
	r.services = endpoints.New(endpoints.Options{
		NodeName: "a", Clients: []string{"system:serviceaccount:kube-system:kube-proxy"}, Kept: kept, Log: logr.Discard(),
		Save: func(text []byte) error {
			r.keptMu.Lock()
			defer r.keptMu.Unlock()
			r.kept = text
			return nil
		},
	})
	r.Proxy.Filter, r.Pods = r.services, r.services
	if r.wrap != nil {
		r.Proxy.Filter = r.wrap(r.services)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.services.Run(ctx, r.Follow)
	}()
	r.stop = func() { cancel(); r.api.cut(); <-done }
}

// restart starts the hub again, with what is on its disk.
func (r *filterRig) restart() {
	r.Helper()
	r.stop()
	r.Wait()
	if err := r.Cache.Close(); err != nil {
		r.Fatal(err)
	}
	store, err := cache.Open(r.dir, cache.Options{Log: logr.Discard()})
	if err != nil {
		r.Fatal(err)
	}
	r.Proxy = New(Options{Cloud: r.cloud, Cache: store, Tokens: r.Tokens, Log: logr.Discard(), Recognizer: r.Recognizer})
	r.start()
}

// offline takes the cloud away.
func (r *filterRig) goOffline() {
	r.cloud.set(true, nil)
	r.cut()
}

func nodeIn(pool string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"}, ObjectMeta: metav1.ObjectMeta{
		Name: "a", Labels: map[string]string{appsv1alpha1.NodePoolLabel: pool},
	}}
}

func serviceWith(topology string) *metav1.PartialObjectMetadata {
	s := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"}, ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}
	if topology != "" {
		s.Annotations = map[string]string{endpoints.TopologyAnnotation: topology}
	}
	return s
}

func poolWith(members ...string) *appsv1alpha1.NodePool {
	return &appsv1alpha1.NodePool{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps.openyurt.io/v1alpha1", Kind: "NodePool"},
		ObjectMeta: metav1.ObjectMeta{Name: "p"}, Status: appsv1alpha1.NodePoolStatus{Nodes: members},
	}
}

// sliceWith is a slice of the Service web, with endpoints node=address. The pod on the node a is web-a.
func sliceWith(name string, list ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		TypeMeta:    metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for _, text := range list {
		node, address, _ := strings.Cut(text, "=")
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}, NodeName: &node, TargetRef: &corev1.ObjectReference{Kind: "Pod", UID: types.UID("uid-web-" + node)}})
	}
	return s
}

func podAt(ip string) *corev1.Pod {
	return pod("web-a", "image", 1, nil, func(p *corev1.Pod) {
		p.Status.Phase, p.Status.PodIP, p.Status.PodIPs = corev1.PodRunning, ip, []corev1.PodIP{{IP: ip}}
	})
}

// request asks as a caller.
func (r *filterRig) request(ctx context.Context, caller identity.Caller, method, target string, body []byte) *httptest.ResponseRecorder {
	r.Helper()
	q := httptest.NewRequestWithContext(ctx, method, target, bytes.NewReader(body))
	q.Header.Set("Accept", r.node.format.ContentType())
	if body != nil {
		q.Header.Set("Content-Type", "application/strategic-merge-patch+json")
	}
	w := httptest.NewRecorder()
	r.Proxy.answer(w, q, caller)
	return w
}

// get reads an object as a caller.
func (r *filterRig) get(caller identity.Caller, target string) []byte {
	r.Helper()
	w := r.request(r.Context(), caller, http.MethodGet, target, nil)
	if w.Code != http.StatusOK {
		r.Errorf("%s is answered %d %s", target, w.Code, w.Body)
	}
	return w.Body.Bytes()
}

// listed returns the addresses of the slices of a list as a caller gets it.
func (r *filterRig) listed(caller identity.Caller) map[string]string {
	r.Helper()
	list, err := r.node.format.DecodeList(r.get(caller, slicesPath))
	if err != nil {
		r.Fatal(err)
	}
	got := map[string]string{}
	for _, item := range list.Items {
		object, err := r.node.format.ObjectOf(item.Raw, item.APIVersion, item.Kind)
		if err != nil {
			r.Fatal(err)
		}
		got[item.Name] = r.addressesOf(object)
	}
	return got
}

// addressesOf returns the addresses of a slice, as one text.
func (r *filterRig) addressesOf(object []byte) string {
	r.Helper()
	decoded, _, err := r.codecs.UniversalDeserializer().Decode(object, nil, nil)
	if err != nil {
		r.Fatalf("%v: %q", err, object)
	}
	var list []string
	for _, e := range decoded.(*discoveryv1.EndpointSlice).Endpoints {
		list = append(list, strings.TrimPrefix(e.Addresses[0], "10.0.0."))
	}
	slices.Sort(list)
	return strings.Join(list, ",")
}

// kubelet writes a new address of the pod, as a kubelet does: it reads the pod before. It returns the
// code of the answer.
func (r *filterRig) kubelet(ip string) int {
	r.Helper()
	r.get(identity.OfNode(), podPath)
	body := fmt.Appendf(nil, `{"metadata":{"uid":"uid-web-a"},"status":{"$setElementOrder/podIPs":[{"ip":%q}],"podIP":%[1]q,"podIPs":[{"ip":%[1]q}]}}`, ip)
	return r.request(r.Context(), identity.OfNode(), http.MethodPatch, podPath+"/status", body).Code
}
