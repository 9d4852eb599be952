package proxy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-k8s/atoll/internal/hub/record"
	"github.com/atoll-k8s/atoll/internal/hub/request"
)

const (
	// relistAgain is the time until a failed list of the hub's own is repeated. It doubles up to maxRelistAgain.
	relistAgain, maxRelistAgain = 500 * time.Millisecond, 30 * time.Second
)

// reads answers gets and lists.
type reads struct{ *parts }

// answer answers a get of one object or document, or a list, from the cloud or, while that is offline, from the cache.
func (p *reads) answer(w http.ResponseWriter, c *call) {
	filter := filterFor(p.parts, c)
	if _, isTopology := filter.(*topology); (isTopology || c.what.Kind == request.List && c.wantsTable()) && !p.asWhole(w, c) {
		return
	}
	response, err := p.sender.read(c, c.Request)
	if err != nil {
		p.fromCache(w, c, filter, err)
		return
	}
	defer response.Body.Close()
	if filter == nil || response.StatusCode != http.StatusOK {
		p.pass(w, c, response)
		return
	}
	p.inTurn(w, c, filter, func() { p.passFiltered(w, c, filter, response) })
}

// inTurn calls answer, which filters objects, when the caller has a slot. The gate needs none.
func (p *reads) inTurn(w http.ResponseWriter, c *call, filter objectFilter, answer func()) {
	t, isTopology := filter.(*topology)
	if !isTopology {
		answer()
		return
	}
	t.source.Await(c.Context()) // before the request has a slot
	p.limits.inTurn(w, c, p.limits.filtered, answer)
}

// asWhole changes a request for a chunk of a filtered list into a request for the whole list, because the form
// of an object depends on all objects. An API server, too, may return the whole list for such a request. For a
// further chunk of a list that the client has begun elsewhere, it answers that the client must list again, and
// returns false.
func (p *reads) asWhole(w http.ResponseWriter, c *call) bool {
	query := c.URL.Query()
	if query.Get("continue") != "" {
		p.errors.refuse(w, c.Request, http.StatusGone, metav1.StatusReasonExpired, "the hub returns this list only as a whole")
		return false
	}
	if query.Has("limit") {
		query.Del("limit")
		c.URL = &url.URL{Path: c.URL.Path, RawPath: c.URL.RawPath, RawQuery: query.Encode()}
	}
	return true
}

// keptCodes are the codes of responses that are cached: the object exists, or does not exist.
var keptCodes = []int{http.StatusOK, http.StatusNotFound}

// pass forwards the cloud's response to the client, and records it if its code is one of keptCodes.
func (p *reads) pass(w http.ResponseWriter, c *call, response *http.Response) {
	answer := &buffer{limit: p.Record.Waiting(c.key)}
	passInto(w, response, answer)
	head, encoding := record.HeadOf(response), response.Header.Get("Content-Encoding")
	isKept := func() bool {
		return c.what.Kind == request.Get && encoding == "" && !answer.tooLarge && p.Record.Has(c.key, head, answer.body)
	}
	switch {
	case response.StatusCode == http.StatusForbidden:
		drop(p.parts, c)
	case slices.Contains(keptCodes, response.StatusCode) && !isKept():
		queued := p.Record.Keep(c.key, 0, func(j *record.Job) error {
			defer answer.release()
			if err := answer.decode(encoding); err != nil {
				return err
			}
			if c.what.Kind == request.Get {
				return j.Document(head, answer.body)
			}
			return j.Collection(request.PositionOf(c.URL.Query()), head, answer.body)
		})
		if queued {
			return
		}
	}
	answer.release()
}

// passFiltered forwards the cloud's response through a filter to the client, and records it. Objects that cannot be
// filtered pass unchanged, except through the gate.
func (p *reads) passFiltered(w http.ResponseWriter, c *call, filter objectFilter, response *http.Response) {
	_, isGate := filter.(*gateFilter)
	answer, err := receive(response)
	keeping := false
	defer func() {
		if !keeping {
			answer.release()
		}
	}()
	if errors.Is(err, errTooLarge) && !isGate {
		p.Log.Info("Forwarded a list without filtering, because it is too large", "path", c.URL.Path)
		answerWith(w, response)
		if _, err := io.Copy(w, io.MultiReader(bytes.NewReader(answer.sent), response.Body)); err != nil {
			panic(http.ErrAbortHandler)
		}
		return
	}
	if err != nil {
		p.errors.unavailable(w, c.Request, err)
		return
	}
	passed, err := throughFilter(c, filter, response, answer.body)
	switch {
	case err != nil && isGate: // for example a table, whose pods cannot be checked
		what := "which of these pods"
		if c.what.Kind == request.Get {
			what = "whether this pod"
		}
		p.errors.refuse(w, c.Request, http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable, fmt.Sprintf("the hub cannot check %s may reach the node: %v", what, err))
		return
	case err != nil: // for example a table
		p.Log.V(2).Info("Forwarded a list without filtering", "path", c.URL.Path, "error", err.Error())
	case passed.isHeld:
		p.errors.refuse(w, c.Request, http.StatusNotFound, metav1.StatusReasonNotFound, fmt.Sprintf("pods %q not found: the hub holds this pod", c.what.Name))
		return
	case !isGate: // other callers wait for this slot
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(localWithin))
	}
	if c.what.Kind == request.Get {
		observeRead(p.parts, c, record.HeadOf(response), answer.body)
	}
	if passed.changed != nil {
		answer.passChanged(w, passed.changed)
	} else {
		answer.pass(w)
	}
	keeping = p.Record.Keep(c.key, len(answer.body), func(j *record.Job) error {
		defer answer.release()
		return passed.store(j)
	})
}

// filtered is a response that has passed a filter.
type filtered struct {
	// changed is the body for the client; nil if the filter has changed nothing.
	changed []byte
	// isHeld is true if the only object of the response is held.
	isHeld bool
	// store stores the response.
	store func(*record.Job) error
}

// throughFilter lets a response pass a filter. After an error, only store is set.
func throughFilter(c *call, filter objectFilter, response *http.Response, body []byte) (filtered, error) {
	head, position := record.HeadOf(response), request.PositionOf(c.URL.Query())
	unfiltered := filtered{store: func(j *record.Job) error { return j.Collection(position, head, body) }}
	b, err := decodeBatch(c, head.ContentType, body)
	if err != nil {
		return unfiltered, err
	}
	forClient, forRecord, err := filter.list(b.List)
	if err != nil {
		return unfiltered, err
	}
	passed := filtered{
		isHeld: b.isSingle && len(forClient.Items) == 0,
		store:  func(j *record.Job) error { return j.List(position, head.ContentType, forRecord) },
	}
	if b.isSingle {
		passed.store = func(j *record.Job) error { return j.Document(head, body) }
	}
	if forClient != b.List && !passed.isHeld {
		if passed.changed, err = (&batch{forClient, b.isSingle}).encode(); err != nil {
			return unfiltered, err
		}
	}
	return passed, nil
}

// drop removes a scope from the cache, and the scopes with other forms of the same content, because the cloud
// refuses the request now. Scopes of the node and of clients of Services are removed only after the cloud has
// refused them for some time. Cached lists that contain a refused object remain, because lists need another
// permission.
func drop(p *parts, c *call) {
	if isLasting := p.refusals.isLasting(c.key); p.Cache.RankOf(c.key) > 0 && !isLasting {
		return
	}
	p.refusals.isLasting(c.ofAnyForm())
	p.Record.Remove(c.key, 0)
	for _, s := range p.Cache.Scopes() {
		if s.Key != c.key && c.isPartOf(s.Key) && (c.what.Kind != request.Get || strings.HasPrefix(s.Key, c.ofAnyForm()+"\n")) {
			p.Record.Remove(s.Key, 0)
		}
	}
}

// relist lists the collection of a watch again, as its caller, because the cache has missed events. It retries until
// it succeeds or the watch ends. It does nothing if the collection was listed again a short time ago.
func relist(p *parts, c *call) {
	if c.Context().Err() != nil || !p.Record.MayRelist(c.key) {
		return
	}
	list := &call{Request: c.Clone(c.Context()), caller: c.caller, what: c.what, key: c.key}
	list.what.Kind = request.List
	query := c.URL.Query()
	for _, name := range request.Positions() {
		query.Del(name)
	}
	list.URL = &url.URL{Path: c.what.Path, RawQuery: query.Encode()}
	list.Header.Set("Accept", strings.ReplaceAll(strings.Join(c.Header.Values("Accept"), ","), "as=PartialObjectMetadata;", "as=PartialObjectMetadataList;"))
	p.Record.Go(func() {
		for pause := relistAgain; p.Cloud.AwaitOnline(list.Context()) == nil; pause = min(2*pause, maxRelistAgain) {
			err := p.Panics.Do("listing a collection again", func() error { return readList(p, list) })
			if err == nil || list.Context().Err() != nil {
				return
			}
			p.Log.V(2).Info("Listing a collection with missed events failed", "path", c.URL.Path, "error", err.Error())
			select {
			case <-list.Context().Done():
			case <-time.After(pause):
			}
		}
	})
}

// errFull means that a response could not be queued.
var errFull = errors.New("too many responses wait to be stored")

// readList reads a list for the record only.
func readList(p *parts, c *call) error {
	response, err := p.sender.send(c, c.Request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the API server answered %s", response.Status)
	}
	answer, err := receive(response)
	if err != nil {
		return err
	}
	position, head := request.PositionOf(c.URL.Query()), record.HeadOf(response)
	store := func(j *record.Job) error { return j.Collection(position, head, answer.body) }
	if c.isGated() {
		passed, err := throughFilter(c, &gateFilter{p, c}, response, answer.body)
		if err != nil {
			return err
		}
		store = passed.store
	}
	if !p.Record.Keep(c.key, len(answer.body), store) {
		return errFull
	}
	return nil
}
