package proxy

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/atoll-k8s/atoll/internal/hub/identity"
	"github.com/atoll-k8s/atoll/internal/hub/record"
)

// discovery are the documents that kubectl reads first, and discoveryForm its Accept header for them.
var discovery = []string{"/api", "/apis"}

const (
	discoveryForm = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
	// discoveryEvery is the time between two reads, and discoveryAgain the time after a failed read.
	discoveryEvery, discoveryAgain = 12 * time.Hour, time.Minute
)

// KeepDiscovery reads the discovery documents periodically as the node, until ctx is done. So they are cached
// when kubectl is used on the node for the first time while offline.
func (p *Proxy) KeepDiscovery(ctx context.Context) {
	for p.Cloud.AwaitOnline(ctx) == nil {
		wait := discoveryEvery
		for _, path := range discovery {
			if err := p.readDiscovery(ctx, path); err != nil && ctx.Err() == nil {
				p.Log.V(2).Info("Caching discovery for kubectl failed", "path", path, "error", err.Error())
				wait = discoveryAgain
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait + rand.N(wait)):
		}
	}
}

func (p *Proxy) readDiscovery(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, ownWithin)
	defer cancel()
	a := p.askOwn(ctx, identity.OfNode(), path, discoveryForm, io.Discard)
	<-a.done
	if a.broke || a.code != http.StatusOK {
		return fmt.Errorf("the status code is %d, or the response is incomplete", a.code)
	}
	return nil
}

// keyOfDiscovery returns the key of the scope of a request. If the request is for discovery and its scope is
// not in the cache, it returns the key of the same document in another representation that the client accepts.
func keyOfDiscovery(r *record.Recorder, c *call) string {
	if !slices.Contains(discovery, c.what.Path) {
		return c.key
	}
	if state, err := r.Peek(c.key); err == nil {
		_ = state.Close()
		return c.key
	}
	for _, s := range r.Cache.Scopes() {
		if !strings.HasPrefix(s.Key, c.caller.Name+"\n"+c.what.Path+"\n") {
			continue
		}
		state, err := r.Peek(s.Key)
		if err != nil {
			continue
		}
		_ = state.Close()
		if slices.Contains(c.accepts(), strings.ToLower(strings.ReplaceAll(state.Head.ContentType, " ", ""))) {
			return s.Key
		}
	}
	return c.key
}
