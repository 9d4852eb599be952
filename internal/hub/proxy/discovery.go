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

	"github.com/atoll-k8s/atoll/internal/hub/filter"
	"github.com/atoll-k8s/atoll/internal/hub/identity"
)

// discovery are the documents that kubectl reads before all else, and discoveryForm how it accepts them.
var discovery = []string{"/api", "/apis"}

const (
	discoveryForm = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
	// discoveryEvery is how often they are read, and discoveryAgain after how long if that failed.
	discoveryEvery, discoveryAgain = 12 * time.Hour, time.Minute
)

// KeepDiscovery reads as the node, from time to time until ctx is done, what tells kubectl which kinds there are: a
// person who uses it on the node for the first time may do so while the cloud is away.
func (p *Proxy) KeepDiscovery(ctx context.Context) {
	for p.Cloud.AwaitOnline(ctx) == nil {
		wait := discoveryEvery
		for _, path := range discovery {
			if err := p.readDiscovery(ctx, path); err != nil && ctx.Err() == nil {
				p.Log.V(2).Info("What kubectl reads first is not kept", "path", path, "error", err.Error())
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
	f := &follower{Proxy: p, caller: identity.OfNode(), collection: filter.Collection{Path: path}}
	a := f.askOwn(ctx, "", discoveryForm, io.Discard)
	<-a.done
	if a.broke || a.code != http.StatusOK {
		return fmt.Errorf("the answer has the code %d, or broke off", a.code)
	}
	return nil
}

// keyOfDiscovery returns the key of the scope of a request, or if nothing is kept of that and the request is one of
// discovery, of the same document in a form that the client accepts, too.
func (p *Proxy) keyOfDiscovery(c *call) string {
	if !slices.Contains(discovery, c.what.Path) {
		return c.key
	}
	if view, err := p.Cache.Peek(c.key); err == nil {
		_ = view.Close()
		return c.key
	}
	for _, s := range p.Cache.Scopes() {
		if !strings.HasPrefix(s.Key, c.caller.Name+"\n"+c.what.Path+"\n") {
			continue
		}
		view, err := p.Cache.Peek(s.Key)
		if err != nil {
			continue
		}
		h, err := decodeHead(view.Head())
		_ = view.Close()
		if err == nil && slices.Contains(c.accepts(), strings.ToLower(strings.ReplaceAll(h.ContentType, " ", ""))) {
			return s.Key
		}
	}
	return c.key
}
