package proxy

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/atoll-k8s/atoll/internal/hub/uplink"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// unproven is a cloud that is reachable, while the node has no certificate.
type unproven struct{ Cloud }

// RoundTrip implements Cloud.
func (unproven) RoundTrip(*http.Request, bool) (*http.Response, error) {
	return nil, fmt.Errorf("%w: it waits for its approval", uplink.ErrNoCertificate)
}

// TestNodeWithoutACertificateIsAnsweredFromTheCache: at once, and its watches stay open.
func TestNodeWithoutACertificateIsAnsweredFromTheCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const target = "/api/v1/pods?fieldSelector=spec.nodeName%3Da"
		n := newNode(t, wire.JSON)
		n.answers(5, pod("a", "1", 5, nil))
		before := n.pods(n.ask(t.Context(), target).Body.Bytes())
		n.Wait()
		n.Cloud = unproven{n.cloud}
		began := time.Now()
		w := n.ask(t.Context(), target)
		if got := n.pods(w.Body.Bytes()); !cmp.Equal(got, before) || w.Header().Get(AsOf) == "" || time.Since(began) > 0 {
			t.Errorf("after %s the answer is %v as of %q", time.Since(began), got, w.Header().Get(AsOf))
		}
		if w := n.ask(t.Context(), "/api/v1/services"); w.Code != http.StatusServiceUnavailable {
			t.Errorf("what was not asked before is answered %d", w.Code)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		func() {
			defer func() { _ = recover() }() // as net/http does when the client goes
			if w := n.ask(ctx, target+"&watch=true&resourceVersion=5"); w.Code != http.StatusOK || w.Body.Len() > 0 {
				t.Errorf("a watch is answered %d %s", w.Code, w.Body)
			}
		}()
		if took := time.Since(began); took < time.Hour {
			t.Errorf("the watch has ended after %s", took)
		}
	})
}
