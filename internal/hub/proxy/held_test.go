package proxy

import (
	"errors"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/watch"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// TestHeldPodMissingFromAListIsForgotten: only a complete list of the node's pods counts.
func TestHeldPodMissingFromAListIsForgotten(t *testing.T) {
	n := newNode(t, wire.JSON)
	lists := func(path string, want int) {
		t.Helper()
		n.ask(t.Context(), path)
		n.Wait()
		if got := n.Gate.Held(); len(got) != want {
			t.Errorf("after %s, held are %v, want %d", path, got, want)
		}
	}
	n.answers(1, pod("held", "one", 1, unbound))
	lists(podsOfNode, 1)
	lists(podsOfNode, 1)
	n.answers(2)
	lists("/api/v1/namespaces/other/pods", 1)
	lists(podsOfNode+"&labelSelector=a%3Db", 1)
	lists(podsOfNode+"&continue=x", 1)
	lists(podsOfNode, 0)
}

// withoutEvents is a cloud that takes no events while fails is true.
type withoutEvents struct {
	*scripted
	fails bool
}

func (c *withoutEvents) RoundTrip(r *http.Request, asNode bool) (*http.Response, error) {
	if r.Method == http.MethodPost && c.fails {
		return nil, errors.New("connection reset")
	}
	return c.scripted.RoundTrip(r, asNode)
}

// TestEventOfAHeldPodIsRetriedAndRenewed: it is sent again if the first attempt fails, and before the API
// server's event expires.
func TestEventOfAHeldPodIsRetriedAndRenewed(t *testing.T) {
	n := newNode(t, wire.JSON)
	cloud := &withoutEvents{n.cloud, true}
	n.Proxy.Cloud = cloud
	n.answers(1, pod("held", "one", 1, unbound))
	n.ask(t.Context(), podsOfNode)
	n.Wait()
	cloud.fails = false
	const tellAgain, tellAnew = 10 * time.Second, 30 * time.Minute // of package gate
	began := time.Now()
	for _, step := range []struct {
		after time.Duration
		want  int
	}{
		{0, 0}, {tellAgain + time.Second, 1}, {2 * tellAgain, 1}, {tellAnew - time.Minute, 1}, {tellAnew + time.Minute, 2},
	} {
		n.Gate.TellDue(t.Context(), began.Add(step.after))
		if got := len(n.cloud.events); got != step.want {
			t.Errorf("%s after the first attempt, there are %d events, want %d", step.after, got, step.want)
		}
	}
	n.answers(2)
	n.ask(t.Context(), podsOfNode)
	n.Gate.TellDue(t.Context(), began.Add(time.Hour))
	if got := len(n.cloud.events); got != 2 {
		t.Errorf("of a pod that is gone, there are %d events", got)
	}
}

// TestHeldPodShowsTheLatestReason: in the status and in an event.
func TestHeldPodShowsTheLatestReason(t *testing.T) {
	n := newNode(t, wire.JSON)
	labels := map[string]string{gm.RequiredPropagationPolicyLabel: "p", gm.RequiredOverridePolicyLabel: "o"}
	for version, want := range []string{`the PropagationPolicy "p"`, `the OverridePolicy "o"`} {
		n.answers(version+1, pod("held", "one", version+1, maps.Clone(labels)))
		n.ask(t.Context(), podsOfNode)
		n.Wait()
		n.Gate.TellDue(t.Context(), time.Now().Add(time.Duration(version)*10*time.Second))
		if got := n.Gate.Held()[0].Reason; !strings.Contains(got, want) {
			t.Errorf("the status says %q, want %s", got, want)
		}
		if got := n.cloud.events; len(got) != version+1 || !strings.Contains(got[version].Message, want) {
			t.Errorf("the events are %+v, want the last of %s", got, want)
		}
		labels[gm.BindingPropagationPolicyLabel] = "p"
	}
}

// TestOlderListForgetsNoHeldPod: the pod was created after the state of the list.
func TestOlderListForgetsNoHeldPod(t *testing.T) {
	for _, query := range []string{"", "&resourceVersion=0", "&resourceVersion=1&resourceVersionMatch=Exact"} {
		n := newNode(t, wire.JSON)
		n.answers(5, pod("held", "one", 5, unbound))
		n.ask(t.Context(), podsOfNode)
		n.Wait()
		for version, want := range map[int]int{1: 1, 4: 1} {
			n.answers(version)
			n.ask(t.Context(), podsOfNode+query)
			n.Wait()
			if got := n.Gate.Held(); len(got) != want {
				t.Errorf("after a list at %d with %q, held are %v", version, query, got)
			}
		}
		n.answers(6)
		n.ask(t.Context(), podsOfNode+query)
		n.Wait()
		if got := n.Gate.Held(); len(got) != 0 {
			t.Errorf("after a newer list with %q, held are %v", query, got)
		}
	}
}

func TestInitialEventsForgetDeletedHeldPods(t *testing.T) {
	n := newNode(t, wire.JSON)
	n.answers(5, pod("held", "one", 5, unbound))
	n.ask(t.Context(), podsOfNode)
	n.Wait()
	o := n.open(podsOfNode + streamed)
	o.send(event{watch.Added, pod("other", "one", 3, nil)})
	o.send(endOfInitial("9"))
	build.Eventually(t, "the pod is forgotten", func() bool { return len(n.Gate.Held()) == 0 })
}
