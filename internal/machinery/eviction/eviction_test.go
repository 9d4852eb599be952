package eviction

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

var pod = types.NamespacedName{Namespace: "ns", Name: "pod"}

// newEvictor returns an Evictor whose API server gives one answer to each eviction.
// requested are the evictions that it got.
func newEvictor(answer error) (e *Evictor, requested *[]*policyv1.Eviction) {
	client := fake.NewClientset()
	requested = &[]*policyv1.Eviction{}
	client.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		*requested = append(*requested, action.(clienttesting.CreateAction).GetObject().(*policyv1.Eviction))
		return true, nil, answer
	})
	return &Evictor{Client: client, Pace: NewPace(rate.Inf, 0)}, requested
}

// addPod adds the pod to the API server.
func addPod(t *testing.T, e *Evictor) *corev1.Pod {
	t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: "uid", ResourceVersion: "7"}}
	if err := e.Client.(*fake.Clientset).Tracker().Add(p); err != nil {
		t.Fatal(err)
	}
	return p
}

// update changes the pod in the API server.
func update(t *testing.T, e *Evictor, p *corev1.Pod) {
	t.Helper()
	if err := e.Client.(*fake.Clientset).Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), p, p.Namespace); err != nil {
		t.Fatal(err)
	}
}

func TestAnswersToAnEviction(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	broken := errors.New("broken")
	there := func(modify ...func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: "uid"}}
		for _, m := range modify {
			m(p)
		}
		return p
	}
	conflict := apierrors.NewConflict(pods, "pod", broken)
	tests := map[string]struct {
		answer, want error
		// live is the pod in the API server, or nil.
		live *corev1.Pod
	}{
		"done":                                    {nil, nil, there()},
		"a PodDisruptionBudget refuses":           {build.EvictionRefused(), ErrRefused, there()},
		"no answer in time":                       {fmt.Errorf("asking: %w", context.DeadlineExceeded), ErrBusy, there()},
		"the API server has too much to do":       {apierrors.NewTooManyRequests("slow down", 1), ErrBusy, there()},
		"the pod is gone":                         {apierrors.NewNotFound(pods, "pod"), ErrGone, nil},
		"another pod of that name":                {conflict, ErrGone, there(func(p *corev1.Pod) { p.UID = "younger" })},
		"another client wrote the pod in between": {conflict, conflict, there()},
		"the API server failed":                   {broken, broken, there()},
		"the API server failed when it was done":  {broken, ErrGone, nil},
		"it failed, and the pod is terminating":   {broken, ErrGone, there(func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) })},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			e, requested := newEvictor(tc.answer)
			evict := func(ctx context.Context, pod types.NamespacedName, uid types.UID) error {
				return e.Evict(ctx, pod, uid, "node")
			}
			if tc.live != nil {
				if err := e.Client.(*fake.Clientset).Tracker().Add(tc.live); err != nil {
					t.Fatal(err)
				}
			}
			for _, evict := range []func(context.Context, types.NamespacedName, types.UID) error{evict, e.Discard} {
				if err := evict(t.Context(), pod, "uid"); !errors.Is(err, tc.want) {
					t.Errorf("error is %v, want %v", err, tc.want)
				}
			}
			if len(*requested) == 0 {
				t.Fatal("no eviction was requested")
			}
			for _, eviction := range *requested {
				p := eviction.DeleteOptions.Preconditions
				if eviction.Namespace != "ns" || eviction.Name != "pod" || p == nil || p.UID == nil || *p.UID != "uid" {
					t.Errorf("the eviction is %+v: another pod of that name would go", eviction)
				}
			}
		})
	}
}

// TestAPodThatGotANodeIsNotDiscarded: the pod may do its work although the cache shows it
// without a node. The resource version protects one that gets its node after the read.
func TestAPodThatGotANodeIsNotDiscarded(t *testing.T) {
	e, requested := newEvictor(nil)
	live := addPod(t, e)
	if err := e.Discard(t.Context(), pod, "uid"); err != nil || len(*requested) != 1 {
		t.Fatalf("requested %d times, error %v", len(*requested), err)
	}
	if p := (*requested)[0].DeleteOptions.Preconditions; p.ResourceVersion == nil || *p.ResourceVersion != "7" {
		t.Errorf("preconditions are %+v: it may have got a node since", p)
	}
	live.Spec.NodeName = "node"
	update(t, e, live)
	if err := e.Discard(t.Context(), pod, "uid"); !errors.Is(err, ErrBound) || !Moot(err) || len(*requested) != 1 {
		t.Errorf("requested %d times, error %v", len(*requested), err)
	}
}

// TestAPodThatBecameReadyIsNotEvicted: one that the cache shows as not Ready, beside others that
// are missing already.
func TestAPodThatBecameReadyIsNotEvicted(t *testing.T) {
	e, requested := newEvictor(nil)
	live := addPod(t, e)
	stays := 0
	evict := func(isReady bool) error {
		return e.EvictAnnounced(t.Context(), Announced{pod, "uid", "node", isReady}, func(types.UID) { stays++ })
	}
	if err := evict(false); err != nil || len(*requested) != 1 || stays != 0 {
		t.Fatalf("requested %d times, error %v", len(*requested), err)
	}
	if p := (*requested)[0].DeleteOptions.Preconditions; p.ResourceVersion == nil || *p.ResourceVersion != "7" {
		t.Errorf("preconditions are %+v: it may have become Ready since", p)
	}
	live.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	update(t, e, live)
	if err := evict(false); !errors.Is(err, ErrReady) || !Moot(err) || len(*requested) != 1 || stays != 1 {
		t.Errorf("requested %d times, error %v, taken back %d times", len(*requested), err, stays)
	}
	if err := evict(true); err != nil || len(*requested) != 2 || stays != 1 { // it is counted
		t.Errorf("requested %d times, error %v", len(*requested), err)
	}
}

// TestPodsOfHeldNodesAreKept, whether they are Ready or not. Pods without a node are not: nothing is lost with them.
func TestPodsOfHeldNodesAreKept(t *testing.T) {
	e, requested := newEvictor(nil)
	addPod(t, e)
	e.Held = func(node string) bool { return node == "edge" }
	for _, isReady := range []bool{true, false} {
		stays := 0
		evict := func(node string) error {
			return e.EvictAnnounced(t.Context(), Announced{pod, "uid", node, isReady}, func(types.UID) { stays++ })
		}
		*requested = nil
		err := evict("edge")
		if !errors.Is(err, ErrHeld) || Moot(err) || stays != 1 || len(*requested) > 0 {
			t.Errorf("Ready %t: error %v, taken back %d times, requested %d times", isReady, err, stays, len(*requested))
		}
		if wait := Outcome(err); wait == nil || errors.Is(wait, ErrHeld) {
			t.Errorf("the outcome is %v", wait)
		}
		if err := evict("cloud"); err != nil || len(*requested) != 1 {
			t.Errorf("Ready %t, on another node: error %v", isReady, err)
		}
		if err := evict(""); err != nil || len(*requested) != 2 {
			t.Errorf("Ready %t, without a node: error %v", isReady, err)
		}
	}
}

// TestAPodWhoseStatusChangesOftenIsEvicted although it has changed since it was read.
func TestAPodWhoseStatusChangesOftenIsEvicted(t *testing.T) {
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, pod.Name, errors.New("it was changed"))
	for name, tc := range map[string]struct {
		answers []error
		stays   int
	}{
		"once":  {answers: []error{conflict, nil}},
		"twice": {answers: []error{conflict, conflict}, stays: 1},
	} {
		t.Run(name, func(t *testing.T) {
			e, _ := newEvictor(nil)
			e.Pace = NewPace(1, 1)
			addPod(t, e)
			requested, stays := 0, 0
			e.Client.(*fake.Clientset).PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
				requested++
				return true, nil, tc.answers[requested-1]
			})
			err := e.EvictAnnounced(t.Context(), Announced{pod, "uid", "node", false}, func(types.UID) { stays++ })
			if last := tc.answers[len(tc.answers)-1]; !errors.Is(err, last) || requested != 2 || stays != tc.stays {
				t.Errorf("requested %d times, taken back %d times, error %v", requested, stays, err)
			}
		})
	}
}

func TestAContextThatEndsIsNoRefusal(t *testing.T) {
	ctx, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancel()
	e, _ := newEvictor(context.DeadlineExceeded)
	addPod(t, e)
	if err := e.Discard(ctx, pod, "uid"); errors.Is(err, ErrRefused) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error is %v: no PodDisruptionBudget refused", err)
	}
}

func TestPodsWithoutANodeTakeNoToken(t *testing.T) {
	e, requested := newEvictor(nil)
	addPod(t, e)
	e.Pace = NewPace(rate.Every(time.Hour), 1)
	for range 3 {
		if err := e.Discard(t.Context(), pod, "uid"); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Evict(t.Context(), pod, "uid", "node"); err != nil {
		t.Errorf("the only token is spent: %v", err)
	}
	if err := e.Evict(t.Context(), pod, "uid", "node"); !errors.Is(err, ErrPace) || len(*requested) != 4 {
		t.Errorf("error is %v after %d evictions, want %v after 4", err, len(*requested), ErrPace)
	}
}

// TestRefusedEvictionsTakeNoToken: five workloads whose PodDisruptionBudgets allow nothing
// do not delay a sixth.
func TestRefusedEvictionsTakeNoToken(t *testing.T) {
	e, requested := newEvictor(nil)
	e.Pace = NewPace(rate.Every(time.Hour), 2)
	refused := true
	e.Client.(*fake.Clientset).PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return refused, nil, build.EvictionRefused()
	})
	for range 5 {
		if err := e.Evict(t.Context(), pod, "uid", "node"); !errors.Is(err, ErrRefused) {
			t.Fatalf("error is %v, want %v", err, ErrRefused)
		}
	}
	refused = false
	for range 2 {
		if err := e.Evict(t.Context(), pod, "uid", "node"); err != nil {
			t.Errorf("evictions that were refused took tokens: %v", err)
		}
	}
	if err := e.Evict(t.Context(), pod, "uid", "node"); !errors.Is(err, ErrPace) || len(*requested) != 2 {
		t.Errorf("error is %v after %d evictions, want %v after 2", err, len(*requested), ErrPace)
	}
}

// TestEvictionsUnderWayHoldTokens: Pace bounds the evictions that are requested at the same
// time too, whatever the answers are.
func TestEvictionsUnderWayHoldTokens(t *testing.T) {
	e, _ := newEvictor(nil)
	e.Pace = NewPace(rate.Every(time.Hour), 3)
	came, answer := make(chan struct{}, 10), make(chan struct{})
	e.Client.(*fake.Clientset).PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		came <- struct{}{}
		<-answer
		return true, nil, nil
	})
	errs := make(chan error, 10)
	for range 10 {
		go func() { errs <- e.Evict(t.Context(), pod, "uid", "node") }()
	}
	for range 7 {
		if err := <-errs; !errors.Is(err, ErrPace) {
			t.Errorf("error is %v, want %v", err, ErrPace)
		}
	}
	close(answer)
	for range 3 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if len(came) != 3 {
		t.Errorf("%d evictions were requested, want 3", len(came))
	}
}

func TestEvictionsUnderOneBudgetAreSequential(t *testing.T) {
	e, _ := newEvictor(nil)
	if !e.SideBySide(t.Context(), pod.Namespace) {
		t.Error("without a PodDisruptionBudget they wait for each other")
	}
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: "budget"}}
	if err := e.Client.(*fake.Clientset).Tracker().Add(budget); err != nil {
		t.Fatal(err)
	}
	if e.SideBySide(t.Context(), pod.Namespace) {
		t.Error("with one they do not")
	}
	if !e.SideBySide(t.Context(), "another") {
		t.Error("the budget of another namespace counts")
	}
}

func TestOutcome(t *testing.T) {
	broken := errors.New("broken")
	tests := map[string]struct {
		err, want error
		again     time.Duration
	}{
		"the pod is evicted":                {nil, nil, 0},
		"the pod is gone":                   {ErrGone, nil, 0},
		"the pod has got a node":            {ErrBound, nil, 0},
		"the pod has become Ready":          {ErrReady, nil, 0},
		"no turn is left":                   {ErrPace, nil, Retry},
		"a budget allows no eviction":       {ErrRefused, nil, Retry},
		"the API server is busy":            {ErrBusy, nil, Retry},
		"the API server answers with error": {broken, broken, 0},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			result, err := phase.Run(t.Context(), tc.err, func(_ context.Context, err error) error { return Outcome(err) })
			if !errors.Is(err, tc.want) || result.RequeueAfter != tc.again {
				t.Errorf("the phase returns %v and runs again after %s, want %v and %s", err, result.RequeueAfter, tc.want, tc.again)
			}
		})
	}
}
