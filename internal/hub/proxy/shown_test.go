package proxy

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiwatch "k8s.io/apimachinery/pkg/watch"

	"github.com/atoll-k8s/atoll/internal/hub/identity"
	"github.com/atoll-k8s/atoll/internal/hub/ownwrites"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// TestEndedPodsReadAsEndedOffline: the kubelet has written offline that a pod has ended. After a restart it must
// not run the pod again, and its next status must not undo the end.
func TestEndedPodsReadAsEndedOffline(t *testing.T) {
	for _, format := range []wire.Format{wire.JSON, wire.Protobuf} {
		for _, phase := range []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed} {
			t.Run(format.String()+" "+string(phase), func(t *testing.T) {
				e := newEdge(t, format)
				read := func() *corev1.Pod {
					return answered[*corev1.Pod](e, e.ask(t.Context(), ownPodPath), http.StatusOK, ownwrites.PodKind)
				}
				say := func(change func(*corev1.Pod)) {
					before := read()
					want := before.DeepCopy()
					change(want)
					if w := e.do(http.MethodPatch, ownPodPath+"/status", strategic, podPatch(t, before, want)); w.Code != http.StatusOK {
						t.Fatalf("the write is answered %d %s", w.Code, w.Body)
					}
				}
				say(func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse })
				if got := read().Status; got.Phase != corev1.PodRunning || got.Conditions[0].Status != corev1.ConditionTrue {
					t.Errorf("a pod that runs reads as %+v, not as the cloud has it", got)
				}
				say(func(p *corev1.Pod) { p.Status.Phase, p.Status.Reason = phase, "Evicted" })
				list := e.ask(t.Context(), podsOfNode)
				if err := e.mentions(list.Body.Bytes(), phase); err != "" {
					t.Error("the list: " + err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
				defer cancel()
				watch := e.ask(ctx, podsOfNode+"&watch=1&resourceVersion=0")
				if !strings.Contains(watch.Body.String(), string(phase)) {
					t.Errorf("the watch begins with %q", watch.Body)
				}
				// A kubelet that has started compares with what it reads.
				say(func(p *corev1.Pod) { p.Status.Message = "over" })
				if got := read().Status; got.Phase != phase || got.Reason != "Evicted" || got.Message != "over" {
					t.Errorf("the pod reads as %+v", got)
				}
				// The cloud is back, and has not been told yet.
				e.server.lock(func() { e.server.offline = false })
				if got := read().Status; got.Phase != phase || got.Message != "over" {
					t.Errorf("the pod reads as %+v before the cloud has been told", got)
				}
				if err := e.mentions(e.ask(t.Context(), podsOfNode).Body.Bytes(), phase); err != "" {
					t.Error("the list, before the cloud has been told: " + err)
				}
				frame, err := format.AppendEvent(nil, apiwatch.Modified, e.encode(live[*corev1.Pod](e, ownPodPath)))
				if err != nil {
					t.Fatal(err)
				}
				e.cloud.set(false, func(*http.Request) (int, string, io.ReadCloser) {
					return http.StatusOK, format.WatchContentType(), io.NopCloser(bytes.NewReader(frame))
				})
				e.Proxy.Cloud = e.cloud
				if events := e.ask(t.Context(), podsOfNode+"&watch=1&resourceVersion=1").Body.String(); !strings.Contains(events, string(phase)) {
					t.Errorf("before the cloud has been told, the watch has %q", events)
				}
				e.Proxy.Cloud = e.server
				e.comeBack()
				if got := live[*corev1.Pod](e, ownPodPath).Status; got.Phase != phase || got.Reason != "Evicted" || got.Message != "over" {
					t.Errorf("the cloud has %+v", got)
				}
			})
		}
	}
}

// TestEndOfAnEarlierPodIsNotShown: a later pod in the cloud has the same name.
func TestEndOfAnEarlierPodIsNotShown(t *testing.T) {
	e := newEdge(t, wire.JSON)
	before := answered[*corev1.Pod](e, e.ask(t.Context(), ownPodPath), http.StatusOK, ownwrites.PodKind)
	ended := before.DeepCopy()
	ended.Status.Phase = corev1.PodFailed
	if w := e.do(http.MethodPatch, ownPodPath+"/status", strategic, podPatch(t, before, ended)); w.Code != http.StatusOK {
		t.Fatalf("the write is answered %d %s", w.Code, w.Body)
	}
	e.server.put(ownPodPath, aPodWith(aPod("web", "a", corev1.PodRunning), "another", ""))
	e.server.lock(func() { e.server.offline = false })
	for range 2 { // of the cloud, and of what is kept
		if got := answered[*corev1.Pod](e, e.ask(t.Context(), ownPodPath), http.StatusOK, ownwrites.PodKind); got.UID != "another" || got.Status.Phase != corev1.PodRunning {
			t.Errorf("the new pod reads as %s %s", got.UID, got.Status.Phase)
		}
		e.Wait()
		e.server.lock(func() { e.server.offline = true })
	}
}

// TestPeopleSeeThatPodsHaveEnded: in tables and in JSON, although the kubelet reads protobuf.
func TestPeopleSeeThatPodsHaveEnded(t *testing.T) {
	e := newEdge(t, wire.Protobuf)
	before := answered[*corev1.Pod](e, e.ask(t.Context(), ownPodPath), http.StatusOK, ownwrites.PodKind)
	ended := before.DeepCopy()
	ended.Status.Phase = corev1.PodFailed
	if w := e.do(http.MethodPatch, ownPodPath+"/status", strategic, podPatch(t, before, ended)); w.Code != http.StatusOK {
		t.Fatalf("the write is answered %d %s", w.Code, w.Body)
	}
	for _, accept := range []string{ofKubectl, "application/json"} {
		if w := e.accepting(identity.OfNode(), accept, podsOfNode); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "Failed") {
			t.Errorf("as %.24s, the pods are %d %s", accept, w.Code, w.Body)
		}
	}
}

// mentions returns what is wrong with a list of pods; "" if its pod web has a phase.
func (e *edge) mentions(list []byte, phase corev1.PodPhase) string {
	object, _, err := e.codecs.UniversalDeserializer().Decode(list, nil, nil)
	if err != nil {
		return err.Error()
	}
	pods, is := object.(*corev1.PodList)
	if !is {
		return "it is none"
	}
	for i := range pods.Items {
		if pods.Items[i].Name == "web" {
			if got := pods.Items[i].Status.Phase; got != phase {
				return "the pod has the phase " + string(got)
			}
			return ""
		}
	}
	return "it has no pod web"
}
