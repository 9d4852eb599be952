package proxy

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// TestAnswersWaitingForTheDiskAreCounted: for every kind of answer the bytes are counted while the disk is slow,
// and released later.
func TestAnswersWaitingForTheDiskAreCounted(t *testing.T) {
	hang := func(n *node, key string) (goOn func()) {
		hangs := make(chan struct{})
		n.queues.add(key, 0, func(*state) { <-hangs })
		return func() { close(hangs) }
	}
	r := newFilterRig(t, wire.JSON)
	r.listed(kubeProxy)
	goOn := hang(r.node, kubeProxy.Name+"\n"+requestOf(slicesPath, wire.JSON))
	for range 3 {
		r.listed(kubeProxy)
	}
	if taken := r.limits().ofOthers.Taken(); taken == 0 {
		t.Error("lists that are filtered are not counted")
	}
	goOn()
	r.stop()
	r.node.Wait()
	if taken := r.limits().ofOthers.Taken(); taken != 0 {
		t.Errorf("%d bytes are not given back", taken)
	}

	n := newNode(t, wire.JSON)
	n.answers(1, pod("a", "1", 1, nil))
	waits := func(what string, answer func()) {
		t.Helper()
		goOn := hang(n, "node\n"+requestOf(podsOfNode, wire.JSON))
		answer()
		if n.limits().ofNode.Taken() == 0 {
			t.Errorf("%s is not counted", what)
		}
		goOn()
		n.Wait()
		if taken := n.limits().ofNode.Taken(); taken != 0 {
			t.Errorf("%d bytes of %s are not given back", taken, what)
		}
	}
	waits("a list of the node", func() { n.ask(t.Context(), podsOfNode) })
	waits("an event", func() { n.watched(podsOfNode+"&watch=1&resourceVersion=1", event{watch.Added, pod("b", "1", 2, nil)}) })
	// With no bytes left the clients are answered, and the state before is kept.
	n.limits().ofNode.Take(maxAnswer)
	n.answers(3, pod("c", "1", 3, nil))
	if w := n.ask(t.Context(), podsOfNode); !strings.Contains(w.Body.String(), `"name":"c","namespace"`) {
		t.Errorf("the answer is %d %s", w.Code, w.Body)
	}
	n.Wait()
	n.cloud.set(true, nil)
	if w := n.ask(t.Context(), podsOfNode); strings.Contains(w.Body.String(), `"name":"c","namespace"`) {
		t.Errorf("what was beyond the limit is kept: %s", w.Body)
	}
	n.limits().ofNode.Give(maxAnswer)
}

// TestScopesThatWaitAreBounded: while the disk hangs, requests of other callers leave a bounded number of scopes
// in memory, and the node has its own limit.
func TestScopesThatWaitAreBounded(t *testing.T) {
	var q queues
	hangs := make(chan struct{})
	added := map[string]int{}
	for i := range maxScopes + 10 {
		for _, caller := range []string{"node", "somebody", "another"} {
			if q.add(fmt.Sprint(caller, "\n", i), 0, func(*state) { <-hangs }) {
				added[caller]++
			}
		}
	}
	if added["node"] != maxScopes || added["somebody"]+added["another"] != maxOthersQueues {
		t.Errorf("waiting are %v", added)
	}
	close(hangs)
	q.tasks.Wait()
	if !q.add("somebody\nlater", 0, func(*state) {}) || !q.add("node\nlater", 0, func(*state) {}) {
		t.Error("the places are not given back")
	}
	q.tasks.Wait()
}
