package extender

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/atoll-k8s/atoll/internal/testing/build"
	"github.com/atoll-k8s/atoll/internal/testing/build/world"
)

// fixture is a handler, and the cluster that it reads.
type fixture struct {
	*Handler
	*world.World
	t   testing.TB
	mux http.Handler
	// writes are the writes of pods in order: "patch" or "bind".
	writes []string
	// bindings are those that were created. bindError is the response to each.
	bindings  []*corev1.Binding
	bindError error
}

func newFixture(t testing.TB, objects ...build.Object) *fixture {
	t.Helper()
	d := &fixture{World: world.New(t, objects...), t: t}
	d.Handler = &Handler{Policies: d.World.Policies, Ledger: d.World.Ledger, Client: d.Pods, Leading: func() bool { return true }, Log: logr.Discard()}
	d.mux = d.ServeMux()
	d.Pods.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		binding, ok := action.(clienttesting.CreateAction).GetObject().(*corev1.Binding)
		if !ok {
			return false, nil, nil
		}
		d.writes = append(d.writes, "bind")
		d.bindings = append(d.bindings, binding)
		return true, binding, d.bindError
	})
	d.Pods.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		d.writes = append(d.writes, "patch")
		return false, nil, nil
	})
	return d
}

// send posts a body and returns the response, which must have a Content-Length.
func (d *fixture) send(verb string, body []byte) *httptest.ResponseRecorder {
	d.t.Helper()
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodPost, "/scheduler/"+verb, bytes.NewReader(body))
	d.mux.ServeHTTP(w, r)
	if w.Code == http.StatusOK && w.Header().Get("Content-Length") != strconv.Itoa(w.Body.Len()) {
		d.t.Errorf("%s answered %d bytes with Content-Length %q", verb, w.Body.Len(), w.Header().Get("Content-Length"))
	}
	return w
}

// ask posts a request and decodes the response.
func ask[R any](d *fixture, verb string, request any) R {
	d.t.Helper()
	body, err := json.Marshal(request)
	if err != nil {
		d.t.Fatal(err)
	}
	w := d.send(verb, body)
	if w.Code != http.StatusOK {
		d.t.Fatalf("%s answered %d: %s", verb, w.Code, w.Body)
	}
	var reply R
	if err := json.Unmarshal(w.Body.Bytes(), &reply); err != nil {
		d.t.Fatalf("%s answered %s: %v", verb, w.Body, err)
	}
	return reply
}

// The protocol's types as kube-scheduler has them.
type (
	extenderArgs struct {
		Pod       *corev1.Pod
		Nodes     *corev1.NodeList
		NodeNames *[]string
	}
	extenderFilterResult struct {
		Nodes                      *corev1.NodeList
		NodeNames                  *[]string
		FailedNodes                map[string]string
		FailedAndUnresolvableNodes map[string]string
		Error                      string
	}
)

func (d *fixture) filter(pod *corev1.Pod, nodes ...string) extenderFilterResult {
	d.t.Helper()
	return ask[extenderFilterResult](d, "filter", extenderArgs{Pod: pod, NodeNames: &nodes})
}

func (d *fixture) bind(pod *corev1.Pod, node string) error {
	d.t.Helper()
	result := ask[bindingResult](d, "bind", bindingArgs{PodName: pod.Name, PodNamespace: pod.Namespace, PodUID: pod.UID, Node: node})
	if result.Error != "" {
		return errors.New(result.Error)
	}
	return nil
}

// seated counts the seats of the ReplicaSet web-1 by group.
func (d *fixture) seated() map[string]int {
	out := map[string]int{}
	for _, c := range d.World.Ledger.View(d.World.Walker.Descendants("web")) {
		for _, pod := range c.Pods {
			if pod.Seated {
				out[pod.Group]++
			}
		}
	}
	return out
}

// ground returns a Deployment of five pods, a policy of 3:2, a node in each group and a node
// without a group.
func ground(options ...build.Option) []build.Object {
	options = append([]build.Option{build.Bound("p", ""), build.Replicas(5)}, options...)
	deployment := build.Deployment("web", options...)
	return []build.Object{
		deployment, build.ReplicaSet("web-1", build.OwnedBy(deployment), build.Replicas(5)),
		build.PropagationPolicy("p", build.Weight(3, "hz"), build.Weight(2, "bj")),
		build.Node("node-hz", build.InGroup("hz")), build.Node("node-bj", build.InGroup("bj")), build.Node("node-out"),
	}
}

// webPod returns the i-th pod of the Deployment.
func webPod(i int, options ...build.Option) *corev1.Pod {
	options = append([]build.Option{build.OwnedBy(build.ReplicaSet("web-1")), build.Container("c", "nginx:1")}, options...)
	return build.Pod(fmt.Sprint("web-1-", i), options...)
}

var allNodes = []string{"node-hz", "node-bj", "node-out"}
