package owners

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	testingclock "k8s.io/utils/clock/testing"

	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// mannedBy is a pod of a Sail.
func mannedBy(name string) *ownership.Object {
	pod := build.Owner(build.Pod("pod"))
	pod.Controller = &ownership.Reference{GroupVersionKind: sails.GroupVersionKind, Name: name, UID: types.UID(name)}
	return pod
}

// obstruct makes lists and reads of Sails end as answer says, until it is undone.
func (h *harbour) obstruct(answer func() error) (undo func()) {
	var clear atomic.Bool
	for _, verb := range []string{"list", "get"} {
		h.dynamic.PrependReactor(verb, "sails", func(clienttesting.Action) (bool, apiruntime.Object, error) {
			if clear.Load() {
				return false, nil, nil
			}
			return true, nil, answer()
		})
	}
	return func() { clear.Store(true) }
}

// sailsSynced is what the metric says of Sails.
func sailsSynced(t *testing.T) float64 {
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
			if m.GetLabel()[0].GetValue() == "Sail.example.com" {
				return m.GetGauge().GetValue()
			}
		}
	}
	return -1
}

func unconverted() error {
	return apierrors.NewInternalError(errors.New("conversion webhook for example.com/v1, Kind=Sail failed"))
}

// TestAKindThatCannotBeListedHoldsUpItsOwnPodsOnly: readiness, leading and
// admission stand on HasSynced.
func TestAKindThatCannotBeListedHoldsUpItsOwnPodsOnly(t *testing.T) {
	never := make(chan struct{})
	t.Cleanup(sync.OnceFunc(func() { close(never) }))
	for name, answer := range map[string]func() error{
		"an error of its conversion webhook": unconverted,
		"an answer that never comes": func() error {
			<-never
			return errors.New("late")
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarbour(t, custom(sails, "main", build.Requires("p", "")), custom(oars, "left", build.Requires("p", "")))
			h.problemTime = time.Millisecond
			h.obstruct(answer)
			h.SetKinds([]Kind{sails, oars})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() { _ = h.Start(ctx) }()
			build.Eventually(t, "the walk is synced without the Sails", h.HasSynced)
			build.Eventually(t, "the Oar is known", h.knows("left"))
			build.Eventually(t, "the Sails are a problem", func() bool { return len(h.Problems()) == 1 && h.Problems()[0].Kind.Kind == "Sail" })
			if n := sailsSynced(t); n != 0 {
				t.Errorf("the metric says %v of Sails", n)
			}
			ended := make(chan struct{})
			go func() {
				h.SetKinds([]Kind{oars})
				close(ended)
			}()
			select {
			case <-ended:
			case <-time.After(20 * time.Second):
				t.Fatal("naming other kinds waits for the list that hangs")
			}
			if !h.HasSynced() || len(h.Problems()) != 0 {
				t.Errorf("without the entry there are problems: %v", h.Problems())
			}
		})
	}
}

// TestAnOwnerThatCannotBeReadIsNotTakenForNone: nobody knows whether it
// requires a policy. It is asked for once in a while, until its kind is listed.
func TestAnOwnerThatCannotBeReadIsNotTakenForNone(t *testing.T) {
	h := newHarbour(t, custom(sails, "main", build.Requires("p", "")))
	clock := testingclock.NewFakeClock(time.Now())
	h.clock = clock
	var reads atomic.Int32
	undo := h.obstruct(func() error {
		reads.Add(1)
		return unconverted()
	})
	h.SetKinds([]Kind{sails}) // nothing runs: nobody lists
	for range 5 {
		if app, _, err := h.Application(t.Context(), mannedBy("main")); !errors.Is(err, ErrOwnerUnread) || app.Managed() {
			t.Fatalf("a pod of the Sail belongs to %+v, error %v", app, err)
		}
	}
	if n := reads.Load(); n != 1 {
		t.Errorf("the Sail was asked for %d times in a moment", n)
	}
	clock.Step(unreadTime)
	_, _, _ = h.Application(t.Context(), mannedBy("main"))
	if n := reads.Load(); n != 2 {
		t.Errorf("the Sail was asked for %d times, want once more after a while", n)
	}
	undo()
	start(t, h.Walker)
	build.Eventually(t, "Sails are listed", h.knows("main"))
	if app, _, err := h.Application(t.Context(), mannedBy("main")); err != nil || app.Propagation == nil {
		t.Errorf("once listed a pod of the Sail belongs to %+v, error %v", app, err)
	}
	if n := sailsSynced(t); n != 1 {
		t.Errorf("the metric says %v of Sails", n)
	}
	h.SetKinds(nil)
	if n := sailsSynced(t); n != -1 {
		t.Errorf("the metric still says %v of Sails", n)
	}
	if app, _, err := h.Application(t.Context(), mannedBy("jib")); err != nil || app.Managed() {
		t.Errorf("once named no more a pod of a Sail belongs to %+v, error %v", app, err)
	}
}

// TestAnOwnerIsReadForASecondAtMost: pods that are created wait for it, and the
// API server waits for a conversion webhook for half a minute.
func TestAnOwnerIsReadForASecondAtMost(t *testing.T) {
	w := NewWalker(build.NewAPI(t).Client())
	for gk, k := range w.kinds {
		k.get = func(ctx context.Context, _, _ string) (any, error) {
			if deadline, bounded := ctx.Deadline(); !bounded || time.Until(deadline) > time.Second {
				t.Errorf("%s is read without a bound", gk)
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

// TestAnOwnerThatIsGoneIsAskedForOnce: its pods come by again and again until
// the garbage collector has them.
func TestAnOwnerThatIsGoneIsAskedForOnce(t *testing.T) {
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
			t.Errorf("ReplicaSet %s was asked for %d times, want 1", name, n)
		}
		clock.Step(goneTime)
		if _ = ask(name); api.Reads()-before != 2 {
			t.Errorf("ReplicaSet %s is not asked for again after a while", name)
		}
	}
	w.Put(build.Owner(build.ReplicaSet("gone")))
	if err := ask("gone"); err != nil {
		t.Errorf("the watch brought it, error is %v", err)
	}
	w.Drop("gone")
	before := api.Reads()
	if _ = ask("gone"); api.Reads() != before+1 {
		t.Error("what the watch brings does not end that an owner is taken for gone")
	}
	for i := range maxGone + 10 {
		w.setGone(types.UID(time.Unix(int64(i), 0).String()))
	}
	if n := w.gone.Len(); n > maxGone {
		t.Errorf("%d are remembered", n)
	}
}
