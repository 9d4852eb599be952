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

// newEvictor answers evictions; asked are those that came.
func newEvictor(answer error) (e *Evictor, asked *[]*policyv1.Eviction) {
	client := fake.NewClientset()
	asked = &[]*policyv1.Eviction{}
	client.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		*asked = append(*asked, action.(clienttesting.CreateAction).GetObject().(*policyv1.Eviction))
		return true, nil, answer
	})
	return &Evictor{Client: client, Pace: rate.NewLimiter(rate.Inf, 0)}, asked
}

// has lets the API server have the pod.
func has(t *testing.T, e *Evictor) {
	t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: "uid"}}
	if err := e.Client.(*fake.Clientset).Tracker().Add(p); err != nil {
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
		// live is the pod as it is by then, or nil.
		live *corev1.Pod
	}{
		"done":                                   {nil, nil, there()},
		"a PodDisruptionBudget says no":          {build.BudgetSaysNo(), ErrRefused, there()},
		"nobody answered in time":                {fmt.Errorf("asking: %w", context.DeadlineExceeded), ErrBusy, there()},
		"the API server has too much to do":      {apierrors.NewTooManyRequests("slow down", 1), ErrBusy, there()},
		"the pod is gone":                        {apierrors.NewNotFound(pods, "pod"), ErrGone, nil},
		"another pod of that name":               {conflict, ErrGone, there(func(p *corev1.Pod) { p.UID = "younger" })},
		"somebody wrote the pod in between":      {conflict, conflict, there()},
		"the API server failed":                  {broken, broken, there()},
		"the API server failed when it was done": {broken, ErrGone, nil},
		"it failed, and the pod is terminating":  {broken, ErrGone, there(func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) })},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			e, asked := newEvictor(tc.answer)
			if tc.live != nil {
				if err := e.Client.(*fake.Clientset).Tracker().Add(tc.live); err != nil {
					t.Fatal(err)
				}
			}
			for _, evict := range []func(context.Context, types.NamespacedName, types.UID) error{e.Evict, e.Discard} {
				if err := evict(t.Context(), pod, "uid"); !errors.Is(err, tc.want) {
					t.Errorf("error is %v, want %v", err, tc.want)
				}
			}
			if len(*asked) == 0 {
				t.Fatal("nobody was asked")
			}
			for _, eviction := range *asked {
				p := eviction.DeleteOptions.Preconditions
				if eviction.Namespace != "ns" || eviction.Name != "pod" || p == nil || p.UID == nil || *p.UID != "uid" {
					t.Errorf("the eviction is %+v: another pod of that name would go", eviction)
				}
			}
		})
	}
}

// TestAPodThatGotANodeIsNotDiscarded: it does its work by now, and caches are behind.
// One that gets it in between is another version than the one that was looked at.
func TestAPodThatGotANodeIsNotDiscarded(t *testing.T) {
	e, asked := newEvictor(nil)
	live := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: "uid", ResourceVersion: "7"}}
	pods, tracker := corev1.SchemeGroupVersion.WithResource("pods"), e.Client.(*fake.Clientset).Tracker()
	if err := tracker.Create(pods, live, pod.Namespace); err != nil {
		t.Fatal(err)
	}
	if err := e.Discard(t.Context(), pod, "uid"); err != nil || len(*asked) != 1 {
		t.Fatalf("asked %d times, error %v", len(*asked), err)
	}
	if p := (*asked)[0].DeleteOptions.Preconditions; p.ResourceVersion == nil || *p.ResourceVersion != "7" {
		t.Errorf("preconditions are %+v: it may have got a node since", p)
	}
	live.Spec.NodeName = "node"
	if err := tracker.Update(pods, live, pod.Namespace); err != nil {
		t.Fatal(err)
	}
	if err := e.Discard(t.Context(), pod, "uid"); !errors.Is(err, ErrBound) || !Moot(err) || len(*asked) != 1 {
		t.Errorf("asked %d times, error %v", len(*asked), err)
	}
}

func TestACallerThatIsToldToStopIsNotRefused(t *testing.T) {
	ctx, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancel()
	e, _ := newEvictor(context.DeadlineExceeded)
	has(t, e)
	if err := e.Discard(ctx, pod, "uid"); errors.Is(err, ErrRefused) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error is %v: no PodDisruptionBudget said no", err)
	}
}

func TestPodsWithoutANodeTakeNoTurnInThePace(t *testing.T) {
	e, asked := newEvictor(nil)
	has(t, e)
	e.Pace = rate.NewLimiter(rate.Every(time.Hour), 1)
	for range 3 {
		if err := e.Discard(t.Context(), pod, "uid"); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Evict(t.Context(), pod, "uid"); err != nil {
		t.Errorf("the first turn is spent: %v", err)
	}
	if err := e.Evict(t.Context(), pod, "uid"); !errors.Is(err, ErrPace) || len(*asked) != 4 {
		t.Errorf("error is %v after %d evictions, want %v after 4", err, len(*asked), ErrPace)
	}
}

// TestRefusedEvictionsTakeNoTurnInThePace: five workloads whose
// PodDisruptionBudgets allow nothing do not starve a sixth.
func TestRefusedEvictionsTakeNoTurnInThePace(t *testing.T) {
	e, asked := newEvictor(nil)
	e.Pace = rate.NewLimiter(rate.Every(time.Hour), 2)
	refused := true
	e.Client.(*fake.Clientset).PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return refused, nil, build.BudgetSaysNo()
	})
	for range 5 {
		if err := e.Evict(t.Context(), pod, "uid"); !errors.Is(err, ErrRefused) {
			t.Fatalf("error is %v, want %v", err, ErrRefused)
		}
	}
	refused = false
	for range 2 {
		if err := e.Evict(t.Context(), pod, "uid"); err != nil {
			t.Errorf("the evictions that were refused took its turn: %v", err)
		}
	}
	if err := e.Evict(t.Context(), pod, "uid"); !errors.Is(err, ErrPace) || len(*asked) != 2 {
		t.Errorf("error is %v after %d evictions, want %v after 2", err, len(*asked), ErrPace)
	}
}

// TestEvictionsUnderWayHoldTheirTurn: how many are asked for at a time is
// bounded by the pace too, whatever is answered.
func TestEvictionsUnderWayHoldTheirTurn(t *testing.T) {
	e, _ := newEvictor(nil)
	e.Pace = rate.NewLimiter(rate.Every(time.Hour), 3)
	came, answer := make(chan struct{}, 10), make(chan struct{})
	e.Client.(*fake.Clientset).PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		came <- struct{}{}
		<-answer
		return true, nil, nil
	})
	errs := make(chan error, 10)
	for range 10 {
		go func() { errs <- e.Evict(t.Context(), pod, "uid") }()
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
		t.Errorf("%d were asked for, want 3", len(came))
	}
}

func TestEvictionsThatWriteOneBudgetAreNotAskedForSideBySide(t *testing.T) {
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
