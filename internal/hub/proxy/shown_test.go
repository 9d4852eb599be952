package proxy

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// TestPodsThatHaveEndedReadAsEnded: the cloud is away, and the kubelet has told the hub that a pod has ended. A
// kubelet that starts then must not run it again, and what it says of the pod next must not take the end back.
func TestPodsThatHaveEndedReadAsEnded(t *testing.T) {
	for _, format := range []wire.Format{wire.JSON, wire.Protobuf, wire.CBOR} {
		for _, phase := range []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed} {
			t.Run(format.String()+" "+string(phase), func(t *testing.T) {
				e := newEdge(t, format)
				read := func() *corev1.Pod {
					return answered[*corev1.Pod](e, e.ask(t.Context(), ownPodPath), http.StatusOK, podKind)
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
				e.comeBack()
				if got := live[*corev1.Pod](e, ownPodPath).Status; got.Phase != phase || got.Reason != "Evicted" || got.Message != "over" {
					t.Errorf("the cloud has %+v", got)
				}
			})
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
