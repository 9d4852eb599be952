package proxy

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/atoll-k8s/atoll/internal/governance"
	"github.com/atoll-k8s/atoll/internal/hub/cache"
	"github.com/atoll-k8s/atoll/internal/hub/identity"
	"github.com/atoll-k8s/atoll/internal/hub/inventory"
	"github.com/atoll-k8s/atoll/internal/hub/record"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

const nodePoolsPath = "/apis/apps.openyurt.io/v1alpha1/nodepools"

// edgePool is the name of the node's pool.
func edgePool() string { return "edge" }

// watchable is a cloud with collections, in JSON, that may be watched.
type watchable struct {
	Cloud

	mu      sync.Mutex
	lists   map[string]string // the items, by path
	refused string            // the path of a collection that is not given
	watches map[string]*io.PipeWriter
}

func newWatchable(c Cloud) *watchable {
	return &watchable{Cloud: c, watches: map[string]*io.PipeWriter{}, lists: map[string]string{
		nodePoolsPath:        `{"apiVersion":"apps.openyurt.io/v1alpha1","kind":"NodePool",` + named("edge", "")[1:],
		"/api/v1/namespaces": named("default", ""), "/api/v1/services": named("web", "default"), slicesPath: named("web-x7", "default"),
	}}
}

func named(name, namespace string) string {
	return fmt.Sprintf(`{"metadata":{"name":%q,"namespace":%q,"uid":"1","resourceVersion":"5"}}`, name, namespace)
}

// RoundTrip implements Cloud.
func (c *watchable) RoundTrip(r *http.Request, _ bool) (*http.Response, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	path := r.URL.Path
	answer := &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Request: r}
	items, isList := c.lists[path]
	switch kind := map[string]string{nodePoolsPath: "NodePool", "/api/v1/namespaces": "Namespace", "/api/v1/services": "Service", slicesPath: "EndpointSlice"}[path]; {
	case path == nodePoolsPath && r.URL.Query().Get("fieldSelector") != "metadata.name=edge":
		answer.StatusCode, answer.Body = http.StatusForbidden, http.NoBody // all pools are of no use
	case path == c.refused:
		answer.StatusCode = http.StatusForbidden
		answer.Body = io.NopCloser(strings.NewReader(`{"kind":"Status","apiVersion":"v1","code":403}`))
	case isList && r.URL.Query().Has("watch"):
		from, to := io.Pipe()
		answer.Body, c.watches[path] = from, to
		context.AfterFunc(r.Context(), func() { _ = to.CloseWithError(r.Context().Err()) })
	case isList:
		version := strings.TrimPrefix(strings.TrimPrefix(strings.TrimSuffix(path, "/"+strings.ToLower(kind)+"s"), "/apis/"), "/api/")
		answer.Body = io.NopCloser(strings.NewReader(fmt.Sprintf(`{"kind":"%sList","apiVersion":%q,"metadata":{"resourceVersion":"9"},"items":[%s]}`, kind, version, items)))
	default:
		return c.Cloud.RoundTrip(r, true)
	}
	return answer, nil
}

func (c *watchable) event(path, event string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _ = io.WriteString(c.watches[path], event+"\n")
}

// expectPool waits until the inventory of the pool has these names, and each body is an object of its kind.
func (n *node) expectPool(i *inventory.PoolInventory, want ...string) {
	n.Helper()
	time.Sleep(5 * time.Second)
	items, err := i.Items()
	if err != nil {
		n.Error(err)
	}
	var got []string
	for _, item := range items {
		kind, _ := governance.KindOf(item.Resource)
		body, err := i.Body(item.Ref)
		if err != nil || !strings.Contains(string(body), fmt.Sprintf(`"kind":%q`, kind.Kind)) || !strings.Contains(string(body), fmt.Sprintf(`"apiVersion":%q`, kind.APIVersion)) {
			n.Errorf("the body of %s is %s, %v", item.Ref, body, err)
		}
		got = append(got, item.String()+"@"+item.Version)
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		n.Errorf("of the pool there are %q, want %q", got, want)
	}
}

// kept returns how many scopes are kept of the pool, and of the node.
func (n *node) kept() (ofPool, ofNode int) {
	n.Wait()
	for _, s := range n.Cache.Scopes() {
		switch {
		case record.IsOfNode(s.Key):
			ofNode++
		case strings.HasPrefix(s.Key, identity.OfPool().Name+"\n"):
			ofPool++
		}
	}
	return ofPool, ofNode
}

// TestPoolInventoryExistsWhileTheHubFollowsThePool: Services that the kubelet has read belong to the node and
// stay.
func TestPoolInventoryExistsWhileTheHubFollowsThePool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, wire.JSON)
		cloud := newWatchable(n.cloud)
		n.Proxy.Cloud = cloud
		n.ask(t.Context(), "/api/v1/services")
		n.answer(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/v1/services", nil), identity.OfPool())
		if ofPool, ofNode := n.kept(); ofPool != 1 || ofNode != 1 {
			t.Fatalf("%d scopes of the pool and %d of the node are kept", ofPool, ofNode)
		}
		i := inventory.NewPool(n.Writes, edgePool, n.FollowAsPool)
		if ofPool, _ := n.kept(); ofPool != 0 {
			t.Error("what an earlier process has kept is still there")
		}
		for range 2 {
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				i.Follow(ctx)
			}()
			n.expectPool(i, "endpointslices/default/web-x7@5", "namespaces/default@5", "nodepools/edge@5", "services/default/web@5")
			cloud.event("/api/v1/services", `{"type":"ADDED","object":{"kind":"Service","apiVersion":"v1","metadata":{"name":"db","namespace":"default","uid":"2","resourceVersion":"11"}}}`)
			cloud.event(slicesPath, `{"type":"DELETED","object":{"kind":"EndpointSlice","apiVersion":"discovery.k8s.io/v1","metadata":{"name":"web-x7","namespace":"default","uid":"1","resourceVersion":"12"}}}`)
			n.expectPool(i, "namespaces/default@5", "nodepools/edge@5", "services/default/db@11", "services/default/web@5")
			cloud.event(nodePoolsPath, `{"type":"DELETED","object":{"kind":"NodePool","apiVersion":"apps.openyurt.io/v1alpha1","metadata":{"name":"edge","uid":"1","resourceVersion":"13"}}}`)
			n.expectPool(i, "namespaces/default@5", "services/default/db@11", "services/default/web@5")
			cancel()
			<-ended
			n.expectPool(i)
			if ofPool, ofNode := n.kept(); ofPool != 0 || ofNode != 1 {
				t.Errorf("%d scopes of the pool and %d of the node are kept", ofPool, ofNode)
			}
		}
	})
}

// TestUnreadablePoolObjectsGiveNoInventory: a shorter inventory would remove objects from the coordinator.
func TestUnreadablePoolObjectsGiveNoInventory(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*watchable)
		says   string
	}{
		"refused":   {func(c *watchable) { c.refused = slicesPath }, "reading /apis/discovery.k8s.io/v1/endpointslices: the API server refuses the request"},
		"too large": {func(c *watchable) { c.lists["/api/v1/services"] = named(strings.Repeat("x", 200<<10), "default") }, "the services cannot be cached"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNodeOn(t, wire.JSON, cache.Options{MaxBytes: 1 << 20})
				cloud := newWatchable(n.cloud)
				n.Proxy.Cloud = cloud
				n.ask(t.Context(), "/api/v1/namespaces")
				tc.change(cloud)
				i := inventory.NewPool(n.Writes, edgePool, n.FollowAsPool)
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					i.Follow(ctx)
				}()
				time.Sleep(10 * time.Second)
				if items, err := i.Items(); len(items) > 0 || err == nil || !strings.Contains(err.Error(), tc.says) {
					t.Errorf("there are %v, %v", items, err)
				}
				if _, ofNode := n.kept(); ofNode != 1 {
					t.Error("what the node has read is gone")
				}
				cancel()
				<-ended
			})
		})
	}
}
