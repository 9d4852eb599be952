package proxy

import (
	"errors"
	"net/http"

	"github.com/atoll-k8s/atoll/internal/hub/delivery"
	"github.com/atoll-k8s/atoll/internal/hub/request"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

const (
	// ahead is more than a client can decompress, beyond what the hub has, of the same bytes: the 32 KiB that
	// the decompressor may still hold, a copy that it has begun, and what 32 bits stand for.
	ahead = 64 << 10
	// leastPassed is the least that is passed on while more arrives, in bytes: each part costs a call.
	leastPassed = 16 << 10
	// maxClear bounds the scopes that a gate remembers as clear.
	maxClear = 100
)

// arriving passes a compressed list of pods on while it arrives, so that the client decompresses it
// meanwhile. The client never has a part of a pod that the gate has not seen whole: what it has is behind what the
// hub has decompressed.
//
// That is for lists of which every pod passes as it is, without a close look. If another one turns up once the client has the
// beginning, the answer breaks off, and the client asks again. So it is done only if the last list of the scope had none,
// and none has been seen since.
type arriving struct {
	*Proxy
	*call

	w     http.ResponseWriter
	items wire.Items
	uids  []string // of the pods that pass
	// parts are the bytes that were needed, and what was decompressed by them, each time when something arrived.
	// Those that were passed on are taken away.
	parts  []part
	passed int  // bytes that the client has
	gone   bool // the client takes no more
	// stopped: the list is not passed on before all of it has arrived.
	stopped bool
}

type part struct{ sent, decompressed int }

// errObstacle means that something of a list must not reach the client that has its beginning.
var errObstacle = errors.New("a pod of the list is held, or cannot be read")

// arrivingFor returns what passes a list on; nil if it is to be seen whole before.
func (p *Proxy) arrivingFor(w http.ResponseWriter, c *call, response *http.Response) *arriving {
	format, err := wire.FormatOf(response.Header.Get("Content-Type"))
	if err != nil || request.PositionOf(c.URL.Query()).Continue != "" || format != wire.Protobuf || response.Header.Get("Content-Encoding") != gzipped || !p.gate.isClear(c.key) {
		return nil
	}
	return &arriving{Proxy: p, call: c, w: w}
}

// arrived looks at what has arrived of a list, and passes on what may be. n is the number of bytes of it
// that were needed for what is decompressed.
func (a *arriving) arrived(r *received, n int) error {
	if a.stopped {
		return nil
	}
	a.parts = append(a.parts, part{n, len(r.body)})
	for {
		item, ok, err := a.items.Next(r.body)
		if err != nil || ok && !a.mayPass(&item) {
			if a.passed > 0 {
				return errObstacle
			}
			a.stopped = true
			return nil
		}
		if !ok {
			break
		}
	}
	i := 0
	for i < len(a.parts) && a.parts[i].decompressed+ahead <= a.items.At() {
		i++
	}
	if i > 0 && a.parts[i-1].sent >= a.passed+leastPassed {
		a.pass(r, a.parts[i-1].sent)
		a.parts = a.parts[i:]
	}
	return nil
}

// mayPass reports whether a pod may reach the node, so far as that is seen without a close look.
func (a *arriving) mayPass(item *wire.Item) bool {
	if item.Kind != "Pod" && item.Kind != "PartialObjectMetadata" {
		return false
	}
	labels, err := policyLabels(wire.Protobuf, item.Raw)
	if err != nil || delivery.Waiting(labels) != "" || a.keepsOfPod(item.Namespace, item.Name) {
		return false
	}
	if a.Pods != nil {
		a.Pods.Seen(wire.Protobuf, &item.Meta, item.Raw)
	}
	a.uids = append(a.uids, item.UID)
	return true
}

// pass passes the first n bytes on. A list is kept also if its client has gone.
func (a *arriving) pass(r *received, n int) {
	if a.passed == 0 {
		answerWith(a.w, r.Response)
	}
	if !a.gone {
		_, err := a.w.Write(r.sent[a.passed:n])
		a.gone = err != nil
	}
	a.passed = n
}

// finish passes the rest on, and returns false if the client has nothing yet.
func (a *arriving) finish(r *received, err error) bool {
	if a == nil || a.passed == 0 {
		return false
	}
	if err == nil {
		err = a.items.Whole(r.body)
	}
	if err != nil && a.Context().Err() != nil {
		panic(http.ErrAbortHandler) // the client has gone, and the list may have had no fault
	}
	if err != nil {
		a.gate.look()
		a.metrics.brokeOff()
		a.Log.Info("A list of pods broke off, and the kubelet asks again", "path", a.URL.Path, "error", err.Error())
		panic(http.ErrAbortHandler)
	}
	for _, uid := range a.uids {
		a.gate.deliver(uid)
	}
	a.pass(r, len(r.sent))
	return true
}

// isClear reports whether the last list of a scope had only pods that pass without a close look, and no other
// has been seen since.
func (g *gate) isClear(key string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.clear[key]
}

// looks returns how many close looks there were.
func (g *gate) looks() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.closeLooks
}

// setClear remembers that a list had only pods that pass without a close look, unless there were more looks than
// before it.
func (g *gate) setClear(key string, looks int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closeLooks != looks {
		return
	}
	if g.clear == nil || len(g.clear) >= maxClear {
		g.clear = map[string]bool{}
	}
	g.clear[key] = true
}

// look remembers that a pod needs a close look, or cannot be read.
func (g *gate) look() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closeLooks++
	g.clear = nil
}
