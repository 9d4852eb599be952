package endpoints

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"

	"github.com/atoll-k8s/atoll/internal/hub/filter"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// TestADamagedAnnotationIsLoggedOnce: the log names the Service and the correction. It is logged again after a
// change.
func TestADamagedAnnotationIsLoggedOnce(t *testing.T) {
	r := newRig(t, wire.JSON)
	var lines []string
	r.log = funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})
	for range 3 {
		r.topology("nodepool")
	}
	raw := encode(t, wire.JSON, serviceWith("web", "nodepool"))
	m, err := wire.JSON.Meta(raw)
	if err != nil {
		t.Fatal(err)
	}
	(&serviceReceiver{r.Filter}).Replace(wire.JSON, []wire.Item{{Meta: m, Raw: raw}}) // it is listed again
	if len(lines) != 1 || !strings.Contains(lines[0], "default/web") || !strings.Contains(lines[0], "openyurt.io/nodepool") || !strings.Contains(lines[0], "correct or remove it") {
		t.Errorf("the log has %q", lines)
	}
	r.topology("hostname")
	r.topology("kubernetes.io/hostname")
	r.topology("nodepool")
	if len(lines) != 3 {
		t.Errorf("after changes the log has %q", lines)
	}
	(&serviceReceiver{r.Filter}).Replace(wire.JSON, nil)
	if len(r.damaged) > 0 || len(r.Filter.topology) > 0 {
		t.Errorf("what is gone is remembered: %v", r.damaged)
	}
}

// TestFilterChangesOnlyWithItsInputs: changes of other fields of Services, Nodes and pools do not end watches.
func TestFilterChangesOnlyWithItsInputs(t *testing.T) {
	r := newRig(t, wire.JSON).in("z1", "p", "a", "b").topology("openyurt.io/nodepool")
	changes := func(what string, want bool, do func()) {
		t.Helper()
		before := r.Changed()
		do()
		select {
		case <-before:
			if !want {
				t.Errorf("%s changes forms", what)
			}
		default:
			if want {
				t.Errorf("%s changes no form", what)
			}
		}
	}
	changes("the same Service", false, func() { r.topology("openyurt.io/nodepool") })
	changes("a Service without a topology", false, func() { r.put(&serviceReceiver{r.Filter}, serviceWith("other", "")) })
	changes("the same node and pool", false, func() { r.in("z1", "p", "b", "a") })
	changes("another member", true, func() { r.in("z1", "p", "a", "c") })
	changes("another zone", true, func() { r.in("z2", "p", "a", "c") })
	changes("another topology", true, func() { r.topology("kubernetes.io/hostname") })
	changes("no topology", true, func() { (&serviceReceiver{r.Filter}).Delete(&wire.Meta{Namespace: "default", Name: "web"}) })
	pool := &poolReceiver{r.Filter, "p"}
	changes("a cloud that is away", false, func() { pool.Failed(errors.New("the cloud is away")) })
	changes("a right that is taken away", true, func() { pool.Failed(fmt.Errorf("reading: %w", filter.ErrRefused)) })
	changes("the pool of before", false, func() { (&poolReceiver{r.Filter, "q"}).Failed(filter.ErrRefused) })
}

// TestRunFollowsThePoolOfTheNode: Run watches the Node, Services and the pool of the node, and ends with its
// context. Await waits for Services for a limited time.
func TestRunFollowsThePoolOfTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		following := map[string]bool{}
		var paths []string
		saved := 0
		f := New(Options{NodeName: "a", Clients: []string{proxyUser}, Log: newRig(t, wire.JSON).log, Save: func([]byte) error { saved++; return errors.New("the disk is full") }})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			f.Run(ctx, func(ctx context.Context, c filter.Collection, _ filter.Receiver) {
				mu.Lock()
				following[c.Path+"?"+c.Selector] = true
				mu.Unlock()
				<-ctx.Done()
				mu.Lock()
				delete(following, c.Path+"?"+c.Selector)
				mu.Unlock()
			})
		}()
		now := func() []string {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			paths = nil
			for path := range following {
				paths = append(paths, path)
			}
			slices.Sort(paths)
			return paths
		}
		first := []string{"/api/v1/nodes?fieldSelector=metadata.name%3Da", "/api/v1/services?"}
		if got := now(); !slices.Equal(got, first) {
			t.Errorf("it follows %v", got)
		}
		r := &rig{t, f, wire.JSON}
		r.in("", "p")
		if got, want := now(), append(slices.Clone(first), "/apis/apps.openyurt.io/v1alpha1/nodepools?fieldSelector=metadata.name%3Dp"); !slices.Equal(got, want) {
			t.Errorf("in a pool it follows %v", got)
		}
		began := time.Now()
		f.Await(t.Context())
		if waited := time.Since(began); waited != awaitWithin {
			t.Errorf("without Services an answer waits %s", waited)
		}
		r.in("", "")
		if got := now(); !slices.Equal(got, first) {
			t.Errorf("out of the pool it follows %v", got)
		}
		r.kubelet(podWith("web", "Running", "10.0.0.1"), podWith("web", "Running", "10.0.0.2"))
		synctest.Wait()
		if saved != 1 {
			t.Errorf("it is saved %d times", saved)
		}
		cancel()
		<-ended
	})
}

// TestAwaitReturnsOnceInputsAreKnown: Await returns at once if each input is known or has failed.
func TestAwaitReturnsOnceInputsAreKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, wire.JSON)
		began := time.Now()
		r.in("", "")
		(&serviceReceiver{r.Filter}).Failed(errors.New("the cloud is away, and nothing is kept"))
		r.Await(t.Context())
		if waited := time.Since(began); waited != 0 {
			t.Errorf("an answer waits %s", waited)
		}
		for _, input := range r.Status().Inputs {
			if input.Known != (input.Name == inputNode) || (input.Reason == "") != input.Known {
				t.Errorf("the status has %+v", input)
			}
		}
	})
}

// TestPodAddressesAreSavedOnceASecond: one save has all changed pods, and no write of the kubelet waits for it. A
// failed save is tried again.
func TestPodAddressesAreSavedOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var kept []byte
		saves, full := 0, false
		f := New(Options{NodeName: "a", Clients: []string{proxyUser}, Log: logr.Discard(), Save: func(text []byte) error {
			time.Sleep(300 * time.Millisecond) // a slow disk
			mu.Lock()
			defer mu.Unlock()
			if saves++; full {
				return errors.New("no space left on device")
			}
			kept = text
			return nil
		}})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { f.Run(ctx, func(ctx context.Context, _ filter.Collection, _ filter.Receiver) { <-ctx.Done() }) })
		defer running.Wait()
		defer cancel()
		written := 0
		write := func(n int) {
			t.Helper()
			began := time.Now()
			for range n {
				written++
				f.Written(http.MethodPatch, strategic, fmt.Appendf(nil, `{"metadata":{"uid":"pod-%d"},"status":{"podIP":"10.0.0.9"}}`, written))
			}
			if took := time.Since(began); took > 0 {
				t.Errorf("%d writes take %s", n, took)
			}
		}
		check := func(when string, most int) {
			t.Helper()
			mu.Lock()
			defer mu.Unlock()
			if got := strings.Count(string(kept), "10.0.0.9"); got != written {
				t.Errorf("%s %d of %d addresses are kept", when, got, written)
			}
			if saves > most {
				t.Errorf("%s it was saved %d times", when, saves)
			}
			saves = 0
		}
		for range 50 {
			write(2)
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(3 * time.Second)
		check("after 5 seconds with changes", 6)
		mu.Lock()
		full = true
		mu.Unlock()
		write(10)
		time.Sleep(time.Minute)
		mu.Lock()
		full = false
		mu.Unlock()
		time.Sleep(maxSavePause + time.Second)
		check("with space again", 8)
		write(10)
		cancel()
		running.Wait()
		check("at the end", 2)
	})
}

// TestPodAddressesAreSavedAtShutdown: also addresses that the kubelet writes during the shutdown.
func TestPodAddressesAreSavedAtShutdown(t *testing.T) {
	var kept string
	f := New(Options{NodeName: "a", Clients: []string{proxyUser}, Log: logr.Discard(), Save: func(text []byte) error {
		kept = string(text)
		return nil
	}})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f.Run(ctx, func(ctx context.Context, _ filter.Collection, _ filter.Receiver) { <-ctx.Done() })
	f.Written(http.MethodPatch, "application/strategic-merge-patch+json", []byte(`{"metadata":{"uid":"late"},"status":{"podIP":"10.0.0.9"}}`)) // it does not wait
	f.Flush()
	if !strings.Contains(kept, "late") {
		t.Errorf("kept is %q", kept)
	}
}
