package owners

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	testingclock "k8s.io/utils/clock/testing"

	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/testing/build"
	"github.com/atoll-k8s/atoll/internal/testing/turns"
)

// podOfWidget returns a pod of a Widget.
func podOfWidget(name string) *ownership.Object {
	pod := build.Owner(build.Pod("pod"))
	pod.Controller = &ownership.Reference{GroupVersionKind: widgets.GroupVersionKind, Name: name, UID: types.UID(name)}
	return pod
}

// failRequests makes lists and reads of Widgets return answer, until it is undone.
func (h *fixture) failRequests(answer func() error) (undo func()) {
	var clear atomic.Bool
	for _, verb := range []string{"list", "get"} {
		h.dynamic.PrependReactor(verb, "widgets", func(clienttesting.Action) (bool, apiruntime.Object, error) {
			if clear.Load() {
				return false, nil, nil
			}
			return true, nil, answer()
		})
	}
	return func() { clear.Store(true) }
}

// widgetsSynced returns the metric of Widgets, or -1 if it is not there.
func widgetsSynced(t *testing.T) float64 {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != "atoll_owners_kind_synced" {
			continue
		}
		for _, m := range family.GetMetric() {
			if m.GetLabel()[0].GetValue() == "Widget.example.com" {
				return m.GetGauge().GetValue()
			}
		}
	}
	return -1
}

func conversionError() error {
	return apierrors.NewInternalError(errors.New("conversion webhook for example.com/v1, Kind=Widget failed"))
}

// TestAKindThatCannotBeListedHoldsUpItsOwnPodsOnly: readiness, leader election and
// admission depend on HasSynced.
func TestAKindThatCannotBeListedHoldsUpItsOwnPodsOnly(t *testing.T) {
	never := make(chan struct{})
	t.Cleanup(sync.OnceFunc(func() { close(never) }))
	for name, answer := range map[string]func() error{
		"an error of its conversion webhook": conversionError,
		"an answer that never comes": func() error {
			<-never
			return errors.New("late")
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newFixture(t, custom(widgets, "main", build.Requires("p", "")), custom(gadgets, "left", build.Requires("p", "")))
			h.problemTime = time.Millisecond
			h.failRequests(answer)
			h.SetKinds([]Kind{widgets, gadgets})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() { _ = h.Start(ctx) }()
			build.Eventually(t, "the walker is synced without the Widgets", h.HasSynced)
			build.Eventually(t, "the Gadget is cached", h.isCached("left"))
			build.Eventually(t, "the Widgets are a problem", func() bool { return len(h.Problems()) == 1 && h.Problems()[0].Kind.Kind == "Widget" })
			if n := widgetsSynced(t); n != 0 {
				t.Errorf("the metric of Widgets is %v", n)
			}
			ended := make(chan struct{})
			go func() {
				h.SetKinds([]Kind{gadgets})
				close(ended)
			}()
			select {
			case <-ended:
			case <-time.After(2 * time.Minute):
				t.Fatal("SetKinds waits for the list that hangs")
			}
			if !h.HasSynced() || len(h.Problems()) != 0 {
				t.Errorf("problems after the kind was removed: %v", h.Problems())
			}
		})
	}
}

// TestUnreadableOwnerIsNotTreatedAsMissing: it may require a policy. It is read once
// per unreadTime, until its kind is listed.
func TestUnreadableOwnerIsNotTreatedAsMissing(t *testing.T) {
	h := newFixture(t, custom(widgets, "main", build.Requires("p", "")))
	clock := testingclock.NewFakeClock(time.Now())
	h.clock = clock
	var reads atomic.Int32
	undo := h.failRequests(func() error {
		reads.Add(1)
		return conversionError()
	})
	h.SetKinds([]Kind{widgets}) // nothing runs, so nothing is listed
	for range 5 {
		if app, _, err := h.PolicyOwners(t.Context(), podOfWidget("main")); !errors.Is(err, ErrOwnerUnread) || app.Managed() {
			t.Fatalf("a pod of the Widget belongs to %+v, error %v", app, err)
		}
	}
	if n := reads.Load(); n != 1 {
		t.Errorf("the Widget was read %d times, want 1", n)
	}
	clock.Step(unreadTime)
	_, _, _ = h.PolicyOwners(t.Context(), podOfWidget("main"))
	if n := reads.Load(); n != 2 {
		t.Errorf("the Widget was read %d times, want 2 after unreadTime", n)
	}
	undo()
	start(t, h.Walker)
	build.Eventually(t, "Widgets are listed", h.isCached("main"))
	if app, _, err := h.PolicyOwners(t.Context(), podOfWidget("main")); err != nil || app.Propagation == nil {
		t.Errorf("after the list a pod of the Widget belongs to %+v, error %v", app, err)
	}
	if n := widgetsSynced(t); n != 1 {
		t.Errorf("the metric of Widgets is %v", n)
	}
	h.SetKinds(nil)
	if n := widgetsSynced(t); n != -1 {
		t.Errorf("the metric of Widgets is still %v", n)
	}
	if app, _, err := h.PolicyOwners(t.Context(), podOfWidget("second")); err != nil || app.Managed() {
		t.Errorf("after the kind was removed a pod of a Widget belongs to %+v, error %v", app, err)
	}
}

// TestOwnerReadTimesOutAfterASecond: the creation of pods waits for the read, and the API
// server waits up to 30 seconds for a conversion webhook.
func TestOwnerReadTimesOutAfterASecond(t *testing.T) {
	w := NewWalker(build.NewAPI(t).Client())
	for gk, k := range w.kinds {
		k.get = func(ctx context.Context, _, _ string) (any, error) {
			if deadline, bounded := ctx.Deadline(); !bounded || time.Until(deadline) > time.Second {
				t.Errorf("%s is read without a time limit", gk)
			}
			return nil, context.DeadlineExceeded
		}
		pod := build.Owner(build.Pod("pod"))
		pod.Controller = &ownership.Reference{GroupVersionKind: k.GroupVersionKind, Name: "x", UID: "x"}
		if _, err := w.Chain(context.Background(), pod); err == nil {
			t.Errorf("%s: no error", gk)
		}
	}
}

// TestOwnerReadReleasesItsTurn: other requests are answered while the API server is asked.
func TestOwnerReadReleasesItsTurn(t *testing.T) {
	ctx, free := turns.Last(t)
	w := NewWalker(build.NewAPI(t).Client())
	read := 0
	for _, k := range w.kinds {
		k.get = func(context.Context, string, string) (any, error) {
			if read++; !t.Failed() && !free() {
				t.Error("no other request can be answered")
			}
			return nil, context.DeadlineExceeded
		}
		pod := build.Owner(build.Pod("pod"))
		pod.Controller = &ownership.Reference{GroupVersionKind: k.GroupVersionKind, Name: "x", UID: "x"}
		if _, err := w.Chain(ctx, pod); err == nil {
			t.Errorf("%s: no error", k.Kind)
		}
	}
	r := newLineage(t, nil, of(flows, "flow", nil))
	r.meta.PrependReactor("get", "*", func(clienttesting.Action) (bool, apiruntime.Object, error) {
		read++
		if !free() {
			t.Error("no other request can be answered while an owner of any kind is read")
		}
		return false, nil, nil
	})
	r.api.PrependReactor("get", "resource", func(clienttesting.Action) (bool, apiruntime.Object, error) {
		read++
		if !free() {
			t.Error("no other request can be answered while a kind is discovered")
		}
		return false, nil, nil
	})
	if _, _, err := r.Chain(ctx, podOf(ref(flows, "flow"))); err != nil {
		t.Error(err)
	}
	if read < len(w.kinds)+2 {
		t.Errorf("%d reads", read)
	}
}

// TestRequestsReadFewOwners: whoever reaches the webhooks can name any number of owners that
// nobody knows. Those that are not read are unknown, and not gone.
func TestRequestsReadFewOwners(t *testing.T) {
	ctx, _ := turns.Last(t)
	api := build.NewAPI(t)
	w := NewWalker(api.Client())
	const asked = 2000
	unread := 0
	for i := range asked {
		name := fmt.Sprint("a-", i)
		_, err := w.Chain(ctx, build.Owner(build.Pod("pod", build.OwnedBy(build.ReplicaSet(name)))))
		if errors.Is(err, ErrOwnerUnread) {
			unread++
		}
	}
	if n := api.Reads(); n == 0 || n+unread != asked || n > asked/2 {
		t.Errorf("%d of %d owners were read, and %d are unread", n, asked, unread)
	}
	if _, err := w.Chain(t.Context(), build.Owner(build.Pod("pod", build.OwnedBy(build.ReplicaSet("other"))))); !errors.Is(err, ErrOwnerGone) {
		t.Errorf("an owner that no request asks for is not read: %v", err)
	}
}

// TestAnOwnerThatCannotExistIsNotRead: the API server does not check the names in references.
// A read fails, and would make the whole kind unread for a while.
func TestAnOwnerThatCannotExistIsNotRead(t *testing.T) {
	api := build.NewAPI(t)
	w := NewWalker(api.Client())
	for _, ref := range []ownership.Reference{{Name: "a/b", UID: "x"}, {Name: "..", UID: "x"}, {Name: "a", UID: "x y"}, {UID: "x"}} {
		ref.GroupVersionKind = appsv1.SchemeGroupVersion.WithKind("ReplicaSet")
		pod := build.Owner(build.Pod("pod"))
		pod.Controller = &ref
		if _, err := w.Chain(t.Context(), pod); !errors.Is(err, ErrOwnerGone) {
			t.Errorf("%+v: %v", ref, err)
		}
	}
	if n := api.Reads(); n > 0 {
		t.Errorf("%d reads", n)
	}
}

// TestDeletedOwnerIsReadOnce: its pods are walked again and again until the
// garbage collector deletes them.
func TestDeletedOwnerIsReadOnce(t *testing.T) {
	api := build.NewAPI(t, build.ReplicaSet("other", build.UID("younger")))
	w := NewWalker(api.Client())
	clock := testingclock.NewFakeClock(time.Now())
	w.clock = clock
	ask := func(name string) error {
		_, err := w.Chain(t.Context(), build.Owner(build.Pod("pod", build.OwnedBy(build.ReplicaSet(name)))))
		return err
	}
	for _, name := range []string{"gone", "other"} {
		before := api.Reads()
		for range 5 {
			if err := ask(name); !errors.Is(err, ErrOwnerGone) {
				t.Fatalf("error is %v", err)
			}
		}
		if n := api.Reads() - before; n != 1 {
			t.Errorf("ReplicaSet %s was read %d times, want 1", name, n)
		}
		clock.Step(goneTime)
		if _ = ask(name); api.Reads()-before != 2 {
			t.Errorf("ReplicaSet %s is not read again after goneTime", name)
		}
	}
	w.Put(build.Owner(build.ReplicaSet("gone")))
	if err := ask("gone"); err != nil {
		t.Errorf("the watch delivered it, error is %v", err)
	}
	w.Drop("gone")
	before := api.Reads()
	if _ = ask("gone"); api.Reads() != before+1 {
		t.Error("an owner that the watch delivered is still taken for gone")
	}
	for i := range maxGone + 10 {
		w.setGone(types.UID(time.Unix(int64(i), 0).String()))
	}
	if n := w.gone.Len(); n > maxGone {
		t.Errorf("%d are remembered", n)
	}
}
