package fairqueue

import (
	"fmt"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"pgregory.net/rapid"
	ctrl "sigs.k8s.io/controller-runtime"
)

func request(namespace string, i int) ctrl.Request {
	return ctrl.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: fmt.Sprint(i)}}
}

// TestAThousandRequestsOfOneNamespaceDelayAnotherByOne fails with a queue that has one line
// for all.
func TestAThousandRequestsOfOneNamespaceDelayAnotherByOne(t *testing.T) {
	queue := ByNamespace("", workqueue.NewTypedItemExponentialFailureRateLimiter[ctrl.Request](1, 1))
	defer queue.ShutDown()
	for i := range 1000 {
		queue.Add(request("crowd", i))
	}
	queue.Add(request("other", 0))
	var passes []string
	for range 3 {
		r, _ := queue.Get()
		passes = append(passes, r.Namespace)
		queue.Done(r)
		queue.Add(r) // it never converges
	}
	if want := []string{"crowd", "other", "crowd"}; !slices.Equal(passes, want) {
		t.Errorf("passes of %v, want %v", passes, want)
	}
}

// TestRequestsOfOneObjectAreMerged: a request that waits is not added twice, and one that is
// under way is not handed out again before it is done.
func TestRequestsOfOneObjectAreMerged(t *testing.T) {
	queue := ByNamespace("", workqueue.NewTypedItemExponentialFailureRateLimiter[ctrl.Request](1, 1))
	defer queue.ShutDown()
	for range 3 {
		queue.Add(request("a", 0))
	}
	if n := queue.Len(); n != 1 {
		t.Fatalf("%d requests wait, want 1", n)
	}
	r, _ := queue.Get()
	queue.Add(r)
	if n := queue.Len(); n != 0 {
		t.Fatalf("%d requests wait while it is under way, want 0", n)
	}
	queue.Done(r)
	if n := queue.Len(); n != 1 {
		t.Fatalf("%d requests wait afterwards, want 1", n)
	}
}

// TestTurns: requests of one namespace keep their order, none is lost, and while a
// namespace waits no other one has two turns.
func TestTurns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		queue := newTurns(func(r ctrl.Request) string { return r.Namespace })
		waiting := map[string][]ctrl.Request{}
		turns := map[string]int{} // since the namespace last had one or began to wait, by "namespace/other"
		pushed, count := 0, 0
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				namespace := rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "namespace")
				r := request(namespace, pushed)
				pushed++
				count++
				queue.Push(r)
				if len(waiting[namespace]) == 0 {
					clearTurns(turns, namespace)
				}
				waiting[namespace] = append(waiting[namespace], r)
			},
			"pop": func(t *rapid.T) {
				if count == 0 {
					return
				}
				r := queue.Pop()
				count--
				of := waiting[r.Namespace]
				if len(of) == 0 || of[0] != r {
					t.Fatalf("got %v, want the first of %v", r, of)
				}
				waiting[r.Namespace] = of[1:]
				clearTurns(turns, r.Namespace)
				for namespace, requests := range waiting {
					if namespace == r.Namespace || len(requests) == 0 {
						continue
					}
					if turns[namespace+"/"+r.Namespace]++; turns[namespace+"/"+r.Namespace] > 1 {
						t.Fatalf("%q had two turns while %q waited", r.Namespace, namespace)
					}
				}
			},
			"": func(t *rapid.T) {
				if queue.Len() != count {
					t.Fatalf("%d requests wait, want %d", queue.Len(), count)
				}
				if len(queue.waiting) != len(queue.order) {
					t.Fatalf("namespaces are kept: %d with requests, %d with turns", len(queue.waiting), len(queue.order))
				}
			},
		})
	})
}

func clearTurns(turns map[string]int, namespace string) {
	for _, other := range []string{"", "a", "b", "c"} {
		turns[namespace+"/"+other] = 0
	}
}
