package proxy

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/atoll-k8s/atoll/internal/hub/record"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// TestAnswersWaitingForTheDiskAreCounted: for every kind of answer the bytes are counted while the disk is slow,
// and released later.
func TestAnswersWaitingForTheDiskAreCounted(t *testing.T) {
	hang := func(n *node, key string) (goOn func()) {
		hangs := make(chan struct{})
		n.Record.Keep(key, 0, func(*record.Job) error { <-hangs; return nil })
		return func() { close(hangs) }
	}
	r := newFilterRig(t, wire.JSON)
	r.listed(kubeProxy)
	goOn := hang(r.node, kubeProxy.Name+"\n"+requestOf(slicesPath, wire.JSON))
	for range 3 {
		r.listed(kubeProxy)
	}
	if taken := r.Record.Waiting("others\n").Taken(); taken == 0 {
		t.Error("lists that are filtered are not counted")
	}
	goOn()
	r.stop()
	r.node.Wait()
	if taken := r.Record.Waiting("others\n").Taken(); taken != 0 {
		t.Errorf("%d bytes are not given back", taken)
	}

	n := newNode(t, wire.JSON)
	n.answers(1, pod("a", "1", 1, nil))
	waits := func(what string, answer func()) {
		t.Helper()
		goOn := hang(n, "node\n"+requestOf(podsOfNode, wire.JSON))
		answer()
		if n.Record.Waiting("node\n").Taken() == 0 {
			t.Errorf("%s is not counted", what)
		}
		goOn()
		n.Wait()
		if taken := n.Record.Waiting("node\n").Taken(); taken != 0 {
			t.Errorf("%d bytes of %s are not given back", taken, what)
		}
	}
	waits("a list of the node", func() { n.ask(t.Context(), podsOfNode) })
	waits("an event", func() { n.watched(podsOfNode+"&watch=1&resourceVersion=1", event{watch.Added, pod("b", "1", 2, nil)}) })
	// With no bytes left the clients are answered, and the state before is kept.
	n.Record.Waiting("node\n").Take(maxAnswer)
	n.answers(3, pod("c", "1", 3, nil))
	if w := n.ask(t.Context(), podsOfNode); !strings.Contains(w.Body.String(), `"name":"c","namespace"`) {
		t.Errorf("the answer is %d %s", w.Code, w.Body)
	}
	n.Wait()
	n.cloud.set(true, nil)
	if w := n.ask(t.Context(), podsOfNode); strings.Contains(w.Body.String(), `"name":"c","namespace"`) {
		t.Errorf("what was beyond the limit is kept: %s", w.Body)
	}
	n.Record.Waiting("node\n").Give(maxAnswer)
}
