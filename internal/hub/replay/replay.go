// Package replay sends journaled writes to the cloud. It must not know how the hub answers requests.
package replay

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/atoll-k8s/atoll/internal/hub/journal"
	"github.com/atoll-k8s/atoll/internal/hub/panics"
	"github.com/atoll-k8s/atoll/internal/hub/uplink"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

const (
	// sendWithin is the timeout for sending a journaled write.
	sendWithin = 15 * time.Second
	// sendAgain is the time until a failed write is sent again. It doubles up to maxSendAgain.
	sendAgain, maxSendAgain = time.Second, 30 * time.Second
	// maxBusy is the longest pause while the API server accepts no requests: the Lease waits during this pause,
	// too.
	maxBusy = 5 * time.Second
	// SilentAfter is the time after its last write after which the kubelet counts as silent. From then on the
	// hub sends nothing that makes the node look alive.
	SilentAfter = 40 * time.Second
	// maxAnswer is how many bytes are read of a response, and maxRefusal of that of an error.
	maxAnswer  = 1 << 20
	maxRefusal = 16 << 10
	// ForbiddenWithin is how long a write that gets 403 is retried: an API server that is starting has not
	// loaded its authorization rules.
	ForbiddenWithin = 5 * time.Minute
	// leaseAttempts is the number of attempts to update a Lease when updates conflict.
	leaseAttempts = 3
)

// Cloud is the connection to the API servers: see uplink.Uplink.
type Cloud interface {
	RoundTrip(r *http.Request, asNode bool) (*http.Response, error)
	AwaitReachable(ctx context.Context) (spread time.Duration, err error)
}

// Replayer sends the writes of a journal. It is safe for concurrent use; only one goroutine may call Run.
type Replayer struct {
	Cloud   Cloud
	Journal *journal.Journal
	// Panics catches panics of sending. nil catches none.
	Panics *panics.Catcher
	Log    logr.Logger

	mu    sync.Mutex
	heard time.Time // when the kubelet last sent a write of its Lease or a status
	wake  chan struct{}
}

// Heard records that the kubelet is alive, and sends writes that were waiting for this.
func (r *Replayer) Heard(at time.Time) {
	r.mu.Lock()
	r.heard = at
	r.mu.Unlock()
	r.Hurry()
}

// IsSilent reports whether the kubelet has sent no such write for SilentAfter.
func (r *Replayer) IsSilent() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Since(r.heard) > SilentAfter
}

// Hurry ends the pause before the next attempt.
func (r *Replayer) Hurry() {
	select {
	case r.signal() <- struct{}{}:
	default:
	}
}

func (r *Replayer) signal() chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.wake == nil {
		r.wake = make(chan struct{}, 1)
	}
	return r.wake
}

// Run sends the entries of the journal as the node while the cloud is reachable, until ctx is done: the
// Lease first, then statuses in their order, then events in their order. When the cloud becomes reachable, the
// Lease is sent at once, so that the node does not look dead for longer than necessary. The rest is sent after
// a random delay.
//
// A write may be sent twice: if its response is lost, or if the hub is killed or the power fails before the
// removal of its entry is on disk. This does no harm. A patch of a status sets the same values again. An event
// is sent whole, by a PUT with its name. A Lease is first compared with the Lease in the cloud. Only after a
// power failure can a client have written something newer in between, because a write of an object is not
// forwarded while the journal has an entry of that object. In that case the kubelet compares the status in the
// cloud with its own, and writes again.
func (r *Replayer) Run(ctx context.Context) {
	later := map[string]Retry{}
	var restAt time.Time // when entries other than the Lease may be sent
	for pause := sendAgain; ; {
		if r.Journal.Await(ctx) != nil {
			return
		}
		spread, err := r.Cloud.AwaitReachable(ctx)
		if err != nil {
			return
		}
		if spread > 0 {
			restAt = time.Now().Add(spread)
		}
		leaseOnly := time.Now().Before(restAt)
		sent, busy := r.SendAll(ctx, later, leaseOnly)
		if sent > 0 {
			r.Log.Info("Sent journaled writes to the cloud", "sent", sent, "waiting", r.Journal.Summary().Waiting)
		}
		wake, wait := r.signal(), maxSendAgain
		if leaseOnly { // sending it may have taken until after restAt
			wait = min(wait, max(0, time.Until(restAt)))
		}
		for object, again := range later {
			if len(r.Journal.Of(object)) == 0 {
				delete(later, object)
				continue
			}
			wait = min(wait, max(0, time.Until(again.At)))
		}
		if busy { // wait the full pause, even if entries are added meanwhile
			wake, wait = nil, pause
			pause = min(2*pause, maxBusy)
		} else {
			pause = sendAgain
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// Retry is when the write of an object is sent again, the last pause, and since when it gets 403; zero if it
// does not.
type Retry struct {
	At        time.Time
	Pause     time.Duration
	Forbidden time.Time
}

// errRefused is the error of a write that the API server refuses permanently, or that the hub cannot send.
var errRefused = errors.New("the API server refuses the write")

// errForbidden is the error of a write that gets 403.
var errForbidden = errors.New("the API server forbids the write")

// errOutdated is the error of a Lease that must not be sent any more.
var errOutdated = errors.New("the Lease is outdated")

// errBusy is the error of a write that gets 429.
var errBusy = errors.New("the API server is busy")

// ranks are the kinds of entries in the order of sending. A Lease that waits behind a thousand events on a slow
// link would make the node look dead.
var ranks = []journal.Kind{journal.Lease, journal.Status, journal.Event}

// nextEntry returns the next entry of these kinds to send, except entries of waiting objects.
func (r *Replayer) nextEntry(kinds []journal.Kind, waits map[string]bool) (next journal.Entry, found bool) {
	rank := len(kinds)
	r.Journal.Each(func(e *journal.Entry) {
		if r := slices.Index(kinds, e.Kind); r >= 0 && r < rank && !waits[e.Object] {
			next, rank, found = *e, r, true
		}
	})
	return next, found
}

// SendAll sends all entries that it can, including those that are added meanwhile. If an entry fails, later
// entries of its object wait too, but other objects do not; later has the time of the next attempt. With leaseOnly,
// only the Lease is sent: if that changed meanwhile, later entries could be sent before earlier ones. busy means that
// nothing can be sent at the moment.
func (r *Replayer) SendAll(ctx context.Context, later map[string]Retry, leaseOnly bool) (sent int, busy bool) {
	waits := map[string]bool{}
	for object, again := range later {
		waits[object] = time.Now().Before(again.At)
	}
	kinds := ranks
	if leaseOnly {
		kinds = ranks[:1]
	}
	for {
		e, found := r.nextEntry(kinds, waits)
		if !found {
			return sent, false
		}
		if e.Kind == journal.Status && r.IsSilent() {
			// Otherwise the node and its pods would look alive, until the control plane detects again that they
			// are not.
			waits[e.Object] = true
			continue
		}
		var err error
		if caught := r.Panics.Do("sending a journaled write", func() error { err = r.sendOne(ctx, &e); return nil }); caught != nil {
			err = fmt.Errorf("%w: %w", errRefused, caught) // a retry would panic again and delay later writes
		}
		again := later[e.Object]
		switch {
		case !errors.Is(err, errForbidden):
			again.Forbidden = time.Time{}
		case again.Forbidden.IsZero():
			again.Forbidden = time.Now()
		case time.Since(again.Forbidden) >= ForbiddenWithin:
			err = fmt.Errorf("%w: %w", errRefused, err)
		}
		switch {
		case err == nil:
			r.Journal.Done(e.Seq, journal.Replayed)
			delete(later, e.Object)
			sent++
		case errors.Is(err, errRefused):
			r.Log.Info("Dropping a journaled write that the API server refuses", "object", e.Object, "written", e.At, "reason", err.Error())
			r.Journal.Done(e.Seq, journal.Refused)
		case errors.Is(err, errOutdated):
			r.Log.V(2).Info("Dropping a journaled Lease", "written", e.At, "reason", err.Error())
			r.Journal.Done(e.Seq, journal.Outdated)
		default:
			r.Log.V(2).Info("Sending a journaled write failed", "object", e.Object, "error", err.Error())
			again.Pause = min(max(sendAgain, 2*again.Pause), maxSendAgain)
			again.At = time.Now().Add(again.Pause)
			later[e.Object], waits[e.Object] = again, true
			if ctx.Err() != nil || errors.Is(err, uplink.ErrOffline) || errors.Is(err, errBusy) {
				return sent, true
			}
		}
	}
}

func (r *Replayer) sendOne(ctx context.Context, e *journal.Entry) error {
	ctx, cancel := context.WithTimeout(ctx, sendWithin)
	defer cancel()
	if e.Kind == journal.Lease {
		return r.sendLease(ctx, e)
	}
	code, answer, err := r.send(ctx, e, e.Method, e.Target, e.Body)
	if err != nil {
		return err
	}
	return errorOf(code, answer)
}

// send sends a request for an entry, as the node.
func (r *Replayer) send(ctx context.Context, e *journal.Entry, method, target string, body []byte) (code int, answer []byte, err error) {
	request, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(body))
	if err != nil {
		return 0, nil, fmt.Errorf("%w: %w", errRefused, err)
	}
	if len(body) > 0 {
		request.Header.Set("Content-Type", e.ContentType)
	}
	request.Header.Set("Accept", wire.JSON.ContentType())
	request.Header.Set("User-Agent", e.UserAgent) // the API server uses it as the field manager
	response, err := r.Cloud.RoundTrip(request, true)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	most := int64(maxAnswer)
	if response.StatusCode/100 != 2 {
		most = maxRefusal
	}
	answer, err = io.ReadAll(io.LimitReader(response.Body, most))
	return response.StatusCode, answer, err
}

// errorOf returns nil if a response is a success, otherwise an error that shows whether it is permanent.
func errorOf(code int, answer []byte) error {
	switch {
	case code/100 == 2:
		return nil
	case code == http.StatusTooManyRequests:
		return errBusy
	case code/100 != 4, code == http.StatusUnauthorized, code == http.StatusRequestTimeout: // a certificate can be renewed
		return fmt.Errorf("the API server returned %d", code)
	}
	message := "no reason"
	if status, err := wire.JSON.DecodeStatus(answer); err == nil {
		message = status.Message
	}
	is := errRefused
	if code == http.StatusForbidden {
		is = errForbidden
	}
	return fmt.Errorf("%w (%d): %s", is, code, message)
}

// sendLease updates the node's Lease in the cloud with the last renewal of the kubelet. The node must not
// look alive for longer than it was: the control plane counts from the arrival of a renewal, not from the time
// in it. So an expired renewal is dropped; a running kubelet will write the next one. The Lease in the cloud
// never goes back.
func (r *Replayer) sendLease(ctx context.Context, e *journal.Entry) error {
	var kept coordinationv1.Lease
	if err := json.Unmarshal(e.Body, &kept); err != nil || kept.Spec.RenewTime == nil || kept.Spec.LeaseDurationSeconds == nil {
		return fmt.Errorf("%w: the Lease cannot be read", errOutdated)
	}
	valid := time.Duration(*kept.Spec.LeaseDurationSeconds) * time.Second
	for range leaseAttempts {
		if now := time.Now(); now.Before(e.At) || now.After(e.At.Add(valid)) || now.After(kept.Spec.RenewTime.Add(valid)) {
			return fmt.Errorf("%w: the Lease has expired", errOutdated)
		}
		code, answer, err := r.send(ctx, e, http.MethodGet, e.Object, nil)
		if err != nil {
			return err
		}
		live := kept
		method, target := http.MethodPut, e.Object
		switch err := errorOf(code, answer); {
		case code == http.StatusNotFound:
			live.UID, live.ResourceVersion = "", ""
			method, target = http.MethodPost, path.Dir(e.Object)
		case err != nil:
			return err
		default:
			live = coordinationv1.Lease{}
			if err := json.Unmarshal(answer, &live); err != nil {
				return fmt.Errorf("reading the Lease of the cloud: %w", err)
			}
			if live.Spec.RenewTime != nil && !live.Spec.RenewTime.Before(kept.Spec.RenewTime) {
				return fmt.Errorf("%w: the Lease of the cloud is newer", errOutdated)
			}
			live.Spec = kept.Spec
		}
		body, err := json.Marshal(&live)
		if err != nil {
			return err
		}
		code, answer, err = r.send(ctx, e, method, target, body)
		if err != nil {
			return err
		}
		if code != http.StatusConflict {
			return errorOf(code, answer)
		}
	}
	return errors.New("the Lease is changed concurrently by other clients")
}
