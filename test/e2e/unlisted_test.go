package e2e

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
	"github.com/atoll-k8s/atoll/internal/controller/workloadkind"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// converter is a conversion webhook between the versions of Stages. Each test sets its
// behaviour.
type converter struct {
	server *httptest.Server
	does   atomic.Pointer[http.HandlerFunc]
}

func newConverter(t *testing.T) *converter {
	c := &converter{}
	c.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*c.does.Load())(w, r) }))
	c.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	c.fails()
	c.server.StartTLS()
	t.Cleanup(func() {
		c.server.CloseClientConnections()
		c.server.Close()
	})
	return c
}

func (c *converter) set(does http.HandlerFunc) { c.does.Store(&does) }

func (c *converter) fails() {
	c.set(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "out of order", http.StatusInternalServerError)
	})
}

func (c *converter) hangs() {
	c.set(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // before that the server does not notice that the client has closed the connection
		<-r.Context().Done()
	})
}

// works changes the version and nothing else.
func (c *converter) works() {
	c.set(func(w http.ResponseWriter, r *http.Request) {
		var review struct {
			APIVersion string `json:"apiVersion"`
			Kind       string `json:"kind"`
			Request    struct {
				UID               string           `json:"uid"`
				DesiredAPIVersion string           `json:"desiredAPIVersion"`
				Objects           []map[string]any `json:"objects"`
			} `json:"request"`
		}
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		for _, o := range review.Request.Objects {
			o["apiVersion"] = review.Request.DesiredAPIVersion
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{
			"apiVersion": review.APIVersion, "kind": review.Kind,
			"response": map[string]any{
				"uid": review.Request.UID, "convertedObjects": review.Request.Objects, "result": map[string]any{"status": "Success"},
			},
		})
	})
}

// define is the definition of Stages, stored as v1 and converted to v2.
func (c *converter) define() *unstructured.Unstructured {
	d := stageDefinition()
	spec := d.Object["spec"].(map[string]any)
	v2 := map[string]any{}
	for key, value := range spec["versions"].([]any)[0].(map[string]any) {
		v2[key] = value
	}
	v2["name"], v2["storage"] = "v2", false
	spec["versions"] = append(spec["versions"].([]any), v2)
	spec["conversion"] = map[string]any{"strategy": "Webhook", "webhook": map[string]any{
		"conversionReviewVersions": []any{"v1"},
		"clientConfig": map[string]any{
			"url": c.server.URL, "caBundle": base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.server.Certificate().Raw})),
		},
	}}
	return d
}

// TestKindThatCannotBeListedDelaysNoOther: the conversion webhook of a kind that the ConfigMap names
// fails, then hangs. atoll-manager is Ready, starts and leads, and places other
// workloads; new pods of the kind wait at the gate, and go to their groups once the kind
// can be listed.
func TestKindThatCannotBeListedDelaysNoOther(t *testing.T) {
	tier.All(t, "a cluster of its own, whose kind's webhook hangs")
	t.Parallel()
	convert := newConverter(t)
	f := newFixtureOfItsOwn(t, atoll.Options{Values: map[string]any{"workloads": []any{map[string]any{
		"group": "e2e.example.com", "version": "v2", "kind": "Stage",
		"replicasPath": ".spec.size", "podTemplatePath": ".spec.template", "revisionLabel": "e2e.example.com/revision",
	}}}})
	if err := f.client.Create(f.ctx, convert.define()); err != nil {
		t.Fatal(err)
	}
	f.group("list-a", 2)
	f.group("list-b", 2)
	f.create(weights("policy", "list-a", 3, "list-b", 2))
	threeTwo := map[string]int{"list-a": 3, "list-b": 2}
	var main *unstructured.Unstructured
	f.eventually(patience, "Stages are served", func() error {
		main = &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"size": int64(5)}}}
		main.SetGroupVersionKind(stageKind)
		main.SetNamespace(f.ns)
		main.SetName("main")
		main.SetLabels(map[string]string{gm.RequiredPropagationPolicyLabel: "policy"})
		return f.client.Create(f.ctx, main)
	})
	f.eventuallyEvent(workloadkind.ReasonWorkloadsInForce, "Stage.e2e.example.com")
	gated := func(n int) func() error {
		return func() error {
			pods := f.pods("main")
			if len(pods) != n {
				return fmt.Errorf("%d pods, want %d", len(pods), n)
			}
			for _, pod := range pods {
				if len(pod.Spec.SchedulingGates) != 1 {
					return fmt.Errorf("pod %s has gates %v", pod.Name, pod.Spec.SchedulingGates)
				}
			}
			return nil
		}
	}
	n := 0
	for _, tc := range []struct {
		name string
		does func()
	}{{"fails", convert.fails}, {"hangs", convert.hangs}} {
		f.part("the conversion webhook "+tc.name, func(f *fixture) {
			tc.does()
			app := "app-" + tc.name
			f.create(deployment(app, 5, "policy"))
			f.eventually(patience, "3:2", func() error { return f.spreadIs(app, threeTwo) })
			f.createPods(main, tc.name, 1)
			n++
			if err := gated(n)(); err != nil {
				f.Fatal(err)
			}
			if err := f.cluster.Restart(f.ctx, atoll.Manager); err != nil { // until it is Ready
				f.Fatal(err)
			}
			if n := f.metric("atoll_owners_kind_synced", `kind="Stage.e2e.example.com"`); n != 0 {
				f.Errorf("the metric says %v", n)
			}
			f.create(deployment(app+"-after", 5, "policy"))
			f.eventually(patience, "3:2 by a leader that has just begun", func() error { return f.spreadIs(app+"-after", threeTwo) })
			f.always(2*time.Second, "pods of the Stage wait", gated(n))
		})
	}
	f.eventuallyEvent(workloadkind.ReasonWorkloadProblem, "Stage.e2e.example.com: the API server cannot ")
	f.part("the conversion webhook works", func(f *fixture) {
		convert.works()
		f.eventually(3*time.Minute, "the Stage is bound", func() error { return f.boundTo(main, "policy") })
		f.eventually(patience, "the pods that waited are bound", func() error { return f.bindings("main", n) })
		f.createPods(main, "one", 5)
		f.eventually(patience, "3:2 of a revision of its own, beside those of two others", func() error {
			return f.spreadIs("main", map[string]int{"list-a": 3 + n, "list-b": 2})
		})
	})
}
