package seats

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// TestRelistCountsPodsByTheirNewRevisions: the label that distinguishes revisions may be
// configured while pods run, without a change of any pod.
func TestRelistCountsPodsByTheirNewRevisions(t *testing.T) {
	labels := []build.Option{build.Label("pod-template-hash", "hash"), build.Label("revision", "one"), build.OwnedBy(build.ReplicaSet("rs")), build.On("node-hz")}
	api := build.NewAPI(t, build.Pod("a", labels...), build.Pod("b", labels...))
	ledger := NewLedger(testingclock.NewFakeClock(time.Unix(1_000_000, 0)))
	ledger.ObserveNode(Node{Name: "node-hz", Group: "hz"})
	var label atomic.Pointer[string]
	label.Store(new(""))
	informer := NewInformer(ledger, api.Client(), func(_ *ownership.Reference, labels map[string]string) string {
		return ownership.Revision(labels, *label.Load())
	})
	expect := func(when, revision string, pods int) {
		t.Helper()
		build.Eventually(t, when, func() bool {
			return informer.HasSynced() && counts(ledger, Cohort{Owner: "rs", Revision: revision})["hz"] == pods
		})
	}
	informer.Relist() // no watch runs yet
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- informer.Start(ctx) }()
	expect("at first", "hash", 2)
	label.Store(new("revision"))
	informer.Relist()
	expect("after the label changed", "one", 2)
	if got := counts(ledger, Cohort{Owner: "rs", Revision: "hash"}); len(got) != 0 {
		t.Errorf("%v pods are still counted as before", got)
	}
	api.Put(build.Pod("c", labels...))
	expect("a pod that came later", "one", 3)
	for range 5 {
		informer.Relist()
	}
	expect("after many requests", "one", 3)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestNewLeaderListsPodsAgain: it lists the pods again, once.
func TestNewLeaderListsPodsAgain(t *testing.T) {
	api := build.NewAPI(t, build.Pod("a", build.OwnedBy(build.ReplicaSet("rs")), build.On("node-hz")))
	ledger := NewLedger(testingclock.NewFakeClock(time.Unix(1_000_000, 0)))
	ledger.ObserveNode(Node{Name: "node-hz", Group: "hz"})
	listed, leads := make(chan struct{}), make(chan struct{})
	var once sync.Once
	informer := NewInformer(ledger, api.Client(), func(*ownership.Reference, map[string]string) string {
		once.Do(func() {
			close(listed)
			<-leads
		})
		return ""
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- informer.Start(ctx) }()
	<-listed
	caught := make(chan error)
	go func() { caught <- informer.CatchUp(ctx) }()
	build.Eventually(t, "the list is requested again", func() bool {
		informer.mu.Lock()
		defer informer.mu.Unlock()
		return informer.requested > 0
	})
	close(leads)
	if err := <-caught; err != nil || !informer.HasSynced() || counts(ledger, Cohort{Owner: "rs"})["hz"] != 1 {
		t.Errorf("caught up with %v, error %v", counts(ledger, Cohort{Owner: "rs"}), err)
	}
	if n := api.Lists(); n != 2 {
		t.Errorf("%d lists, want the one that was under way and one more", n)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestReflectorStoresSlimPods: the reflector collects reduced pods while a list is streamed. The
// ledger gets the same state from these as from whole pods.
func TestReflectorStoresSlimPods(t *testing.T) {
	ledger := NewLedger(testingclock.NewFakeClock(time.Unix(1_000_000, 0)))
	var store cache.ReflectorStore = NewInformer(ledger, nil, func(*ownership.Reference, map[string]string) string { return "r" })
	transforming, ok := store.(cache.TransformingStore)
	if !ok {
		t.Fatal("the informer does not transform pods")
	}
	slim, err := transforming.Transformer()(build.Pod("slim", build.On("node")))
	if _, whole := slim.(*corev1.Pod); whole || err != nil {
		t.Errorf("gathered is %T, error %v", slim, err)
	}
	if err := store.Replace([]any{slim, build.Pod("whole", build.On("node"))}, "1"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"slim", "whole"} {
		if pod := ledger.Pod(types.UID(name)); pod == nil || pod.Node != "node" || pod.Revision != "r" {
			t.Errorf("%s pod is %+v", name, pod)
		}
	}
	if err := store.Replace(nil, "2"); err != nil || ledger.Pod("slim") != nil || ledger.Pod("whole") != nil {
		t.Errorf("pods that are not in the list are kept, error %v", err)
	}
}

// olderAPI is an API server that does not stream lists. It has pods, and its watches send no
// events.
type olderAPI struct {
	pods   corev1.PodList
	closed atomic.Bool // lists are refused

	mu    sync.Mutex
	lists []url.Values
}

func (a *olderAPI) client(t *testing.T) kubernetes.Interface {
	t.Helper()
	server := httptest.NewServer(a)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func (a *olderAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	switch query := r.URL.Query(); {
	case query.Has("sendInitialEvents"):
		w.WriteHeader(http.StatusBadRequest)
	case query.Has("watch"):
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	case a.closed.Load():
		w.WriteHeader(http.StatusForbidden)
	default:
		a.mu.Lock()
		defer a.mu.Unlock()
		a.lists = append(a.lists, query)
		list := a.pods
		list.APIVersion, list.Kind, list.ResourceVersion = "v1", "PodList", "1"
		_ = json.NewEncoder(w).Encode(list)
	}
}

// TestPodListsAreNeverStale: this must hold also if lists are not streamed. From an older
// list, a seat that was taken a moment ago would look free.
func TestPodListsAreNeverStale(t *testing.T) {
	api := &olderAPI{pods: corev1.PodList{Items: []corev1.Pod{*build.Pod("a", build.On("node"))}}}
	ledger := NewLedger(testingclock.NewFakeClock(time.Unix(1_000_000, 0)))
	informer := NewInformer(ledger, api.client(t), func(*ownership.Reference, map[string]string) string { return "" })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- informer.Start(ctx) }()
	build.Eventually(t, "pods are listed", func() bool { return informer.HasSynced() && ledger.Pod("a") != nil })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	api.mu.Lock()
	defer api.mu.Unlock()
	for _, query := range api.lists {
		if version := query.Get("resourceVersion"); version != "" {
			t.Errorf("a list of version %q is requested, which may be older than now", version)
		}
	}
}

// TestCatchUpWaitsForEveryPod: CatchUp returns when the ledger has observed all
// pods, in any order.
func TestCatchUpWaitsForEveryPod(t *testing.T) {
	version := func(v string) build.Option { return build.With(func(p *corev1.Pod) { p.ResourceVersion = v }) }
	pods := []*corev1.Pod{build.Pod("a", version("7")), build.Pod("b", version("9")), build.Pod("c", version("8"))}
	api := &olderAPI{}
	for _, pod := range pods {
		api.pods.Items = append(api.pods.Items, *pod)
	}
	informer := NewInformer(NewLedger(testingclock.NewFakeClock(time.Unix(1_000_000, 0))), api.client(t), func(*ownership.Reference, map[string]string) string { return "" })
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	caughtUp := func(within time.Duration) bool {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		return informer.CatchUp(ctx) == nil
	}
	must(informer.Replace([]any{pods[0]}, "7"))
	if caughtUp(50 * time.Millisecond) {
		t.Error("caught up although pods were not observed")
	}
	must(informer.Update(pods[1]))
	must(informer.Update(pods[2]))
	if !caughtUp(20 * time.Second) {
		t.Error("all pods were observed, and CatchUp waits")
	}
	api.closed.Store(true)
	if caughtUp(20 * time.Second) {
		t.Error("caught up although the list fails")
	}
}

// TestAPodThatIsDeletedIsForgotten: objects that are not pods are refused.
func TestAPodThatIsDeletedIsForgotten(t *testing.T) {
	ledger := NewLedger(testingclock.NewFakeClock(time.Unix(1_000_000, 0)))
	informer := NewInformer(ledger, nil, func(*ownership.Reference, map[string]string) string { return "" })
	pod := build.Pod("a")
	if err := informer.Add(pod); err != nil || ledger.Pod("a") == nil {
		t.Errorf("a pod is not taken up, error %v", err)
	}
	if err := informer.Delete(pod); err != nil || ledger.Pod("a") != nil {
		t.Errorf("a pod is not forgotten, error %v", err)
	}
	if informer.Update(build.Node("n")) == nil || informer.Delete(build.Node("n")) == nil {
		t.Error("a node is accepted as a pod")
	}
}
