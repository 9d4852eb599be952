// Package pool keeps the coordinator of the node's pool up to date. It uploads the objects of the hub's node
// and, while the hub leads, those of the pool, forwards reports of other nodes to the cloud, and reports the
// state of the pool to the cloud. It must not know how objects are stored, nor how the coordinator is
// connected.
//
// Every governance.BeatEvery it compares the objects with what it last told the coordinator, so it does not
// matter what happened to either of them meanwhile. A hub without a coordinator is not affected.
package pool

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	mathrand "math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/atoll-k8s/atoll/internal/governance"
)

const (
	// roundWithin is the timeout of one round. Objects that are not uploaded by then are uploaded in the next
	// one.
	roundWithin = 30 * time.Second
	// maxPause is the longest time between two rounds while no coordinator answers.
	maxPause = 8 * time.Second
	// firstAgain is the time between two attempts to reach the preferred address while it has not answered yet
	// and another one answers.
	firstAgain = 15 * time.Second
	// unledFor is how long a hub stays with a coordinator without a leader before it tries the other addresses,
	// and the time between two such searches. Each coordinator has a leader after 8.5 s if one of its hubs
	// reaches the cloud. beyondWithin is how long one search may take in a round.
	unledFor, beyondWithin = 15 * time.Second, 3 * time.Second
	// againAfter is when an object that the coordinator refused is uploaded again.
	againAfter = time.Minute
	// maxReason is how many bytes are read of the body of an error response.
	maxReason = 1024
)

// Source has the cached objects of the node: see inventory.Inventory.
type Source interface {
	// Items returns all objects that the coordinator should have.
	Items() ([]governance.Item, error)
	// Body returns an object in its current version.
	Body(ref governance.Ref) ([]byte, error)
}

// NodeSource is a Source with a report for the cloud.
type NodeSource interface {
	Source
	// Report returns the writes of the node that could not be sent to the cloud; nil if its kubelet has stopped
	// writing.
	Report() (*governance.Report, *governance.Statuses)
}

// PoolSource has the objects of the pool: see inventory.PoolInventory.
type PoolSource interface {
	Source
	// Follow reads the objects until ctx is done. Items returns nothing until all of them were read once.
	Follow(ctx context.Context)
}

// Options configure a Pool.
type Options struct {
	Source     NodeSource
	PoolSource PoolSource
	// HasCloud reports whether the hub reaches the cloud.
	HasCloud func() bool
	// Pool returns the name of the node's pool. When it changes, the hub stops leading.
	Pool func() string
	// Addresses returns the possible addresses of the coordinator, as host:port, the preferred one first; none
	// if there is no coordinator. The hub tries the address that answered last first.
	Addresses func() []string
	// Changed has an element when the result of Addresses has changed: the next round begins at once.
	Changed <-chan struct{}
	// Transport sends requests to the coordinator as the node.
	Transport http.RoundTripper
	// Send sends a request to the cloud, as the node or with the credentials in its headers.
	Send func(r *http.Request, asNode bool) (*http.Response, error)
	// IsRefused reports whether the kubelet of the node refuses the hub.
	IsRefused func() bool
	// NodeName is the name of the node.
	NodeName string
	Log      logr.Logger
}

// Pool does the hub's part in the governance of its pool. Run does the work.
type Pool struct {
	options Options
	client  *http.Client
	now     func() time.Time
	lead    lead
	// at is the current address, and first the preferred one. Until first has answered once (isReached), it is
	// tried again from time to time, even while at answers. firstAsked is the time of the last such attempt.
	at, first  string
	isReached  bool
	firstAsked time.Time
	// led is when a hub led at the current address, or when that became the current one. beyond is the index of
	// the next address where a leader is looked for.
	led    time.Time
	beyond int
	// of is the name of the pool in the last round.
	of string
	// session and number identify the last beat; beaten is when it was sent.
	session string
	number  uint64
	beaten  time.Time
	// unsent are the statuses of which the last beat reported the digest.
	unsent *governance.Statuses
	// isSpokenFor: the coordinator has a report of the node, and the node has not confirmed it in the cloud
	// since.
	isSpokenFor bool
	// node and pool are what was told about the node, and while the hub leads, about its pool.
	node, pool told
	refused    map[governance.Item]time.Time

	mu     sync.Mutex
	status *Status
	// state is the state of the pool in the coordinator's last answer, while the hub leads. pulseProblem is why
	// the pulse could not be sent.
	state        *governance.PoolState
	pulseProblem string
	// reports are the reports of nodes that do not reach the cloud, and statuses their statuses; both while the
	// hub leads.
	reports  map[string]governance.Report
	statuses map[string]*governance.Statuses
	// failing is since when the cloud accepts nothing that is forwarded; zero if it does, or if there is
	// nothing to forward. mayPulse: since the hub leads, the cloud has accepted something, or there was nothing
	// to forward.
	failing  time.Time
	mayPulse bool
}

// told is what the coordinator was told about a Source.
type told struct {
	source Source
	// path is the path for inventories.
	path string
	// at is when the last inventory was sent. It is sent again after againAfter in any case: other hubs may
	// have removed objects of several nodes, and refused objects may be accepted now.
	at time.Time
	// pending are the objects to be uploaded, in order.
	pending []governance.Ref
	// inventory is the list of objects that the coordinator should have; nil if it is not known.
	inventory *governance.Inventory
}

func (t *told) digest() string {
	if t.inventory == nil {
		return ""
	}
	return t.inventory.Digest()
}

// Status is the status of the connection to the coordinator.
type Status struct {
	// Address is where the coordinator last answered; "" if it never has.
	Address string `json:"address,omitempty"`
	// Since is since when the coordinator answers, or does not. Reason is why it does not; "" if it does.
	Since  time.Time `json:"since"`
	Reason string    `json:"reason,omitempty"`
	// Leads is whether the hub leads its pool.
	Leads bool `json:"leads,omitempty"`
	// Pulse is why the hub, while it leads, cannot report the state of the pool to the cloud; "" if it can.
	Pulse string `json:"pulse,omitempty"`
	// Objects is the number of objects that the coordinator should have, Waiting the number of those that are
	// not uploaded yet, and Refused the number of those that it refuses.
	Objects int `json:"objects"`
	Waiting int `json:"waiting"`
	Refused int `json:"refused"`
}

// New returns a Pool.
func New(o Options) *Pool {
	p := &Pool{options: o, client: &http.Client{Transport: o.Transport}, now: time.Now, session: rand.Text(), refused: map[governance.Item]time.Time{}}
	p.lead = lead{do: p.follow, now: func() time.Time { return p.now() }}
	p.node, p.pool = told{source: o.Source, path: governance.InventoryPath}, told{source: o.PoolSource, path: governance.PoolInventoryPath}
	return p
}

// follow does the work of the leader.
func (p *Pool) follow(ctx context.Context) {
	var running sync.WaitGroup
	d := &delegate{send: p.options.Send}
	p.settle(time.Time{}, false)
	running.Go(func() { p.options.PoolSource.Follow(ctx) })
	running.Go(func() { p.pulse(ctx, d) })
	running.Go(func() { p.forward(ctx, d) })
	running.Wait()
}

// Status returns the status; nil if there is no coordinator.
func (p *Pool) Status() *Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.status == nil {
		return nil
	}
	status := *p.status
	if status.Leads = p.lead.Leads(); status.Leads {
		status.Pulse = p.pulseProblem
	}
	return &status
}

// Run keeps the coordinator up to date until ctx is done.
func (p *Pool) Run(ctx context.Context) {
	defer p.lead.end()
	for pause := governance.BeatEvery; ; {
		addresses := p.options.Addresses()
		p.begin(len(addresses) > 0)
		if of := p.options.Pool(); of != p.of {
			p.of = of
			p.lead.answered(p.now(), false)
			p.lead.follow(ctx)
		}
		var err error
		if len(addresses) > 0 {
			err = p.round(ctx, addresses)
		}
		p.lead.follow(ctx)
		p.confirm(ctx)
		if ctx.Err() != nil {
			return
		}
		if p.report(err) {
			pause = governance.BeatEvery
		} else {
			pause = min(2*pause, maxPause)
		}
		select {
		case <-ctx.Done():
			return
		case <-p.options.Changed:
			pause = governance.BeatEvery
		case <-time.After(pause - mathrand.N(pause/4)): // random, so that hubs do not stay in step
		}
	}
}

// begin records whether there is a coordinator.
func (p *Pool) begin(isThere bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !isThere {
		p.status, p.at, p.first, p.node.pending = nil, "", "", nil
		p.lead.answered(p.now(), false)
	} else if p.status == nil {
		p.status = &Status{Since: p.now(), Reason: "no request was sent yet"}
	}
}

// report records the result of a round. It returns false if no coordinator answers.
func (p *Pool) report(err error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.status == nil {
		return true
	}
	reason := ""
	if err != nil {
		reason = err.Error()
	}
	if (reason == "") != (p.status.Reason == "") {
		p.status.Since = p.now()
		p.options.Log.Info("The state of the pool's coordinator changed", "isUpToDate", err == nil, "reason", reason)
	}
	p.status.Reason, p.status.Waiting, p.status.Refused = reason, len(p.node.pending)+len(p.pool.pending), len(p.refused)
	return !errors.As(err, new(*unreachable))
}

// unreachable is the error of a round in which the coordinator answered at no address.
type unreachable struct{ error }

// Unwrap returns the reason.
func (u *unreachable) Unwrap() error { return u.error }

// round sends a beat, and uploads the objects that the coordinator lacks.
func (p *Pool) round(ctx context.Context, addresses []string) error {
	ctx, cancel := context.WithTimeout(ctx, roundWithin)
	defer cancel()
	items, ofNode := p.itemsOfNode()
	ofPool, problem := p.itemsOfPool()
	problem = errors.Join(ofNode, problem)
	items = append(slices.Clip(items), ofPool...)
	p.mu.Lock()
	p.status.Objects = len(items)
	p.mu.Unlock()
	answer, err := p.find(ctx, addresses)
	if err != nil {
		return err
	}
	has := make(map[governance.Ref]governance.Item, len(items))
	for _, item := range items {
		has[item.Ref] = item
	}
	maps.DeleteFunc(p.refused, func(item governance.Item, at time.Time) bool {
		return has[item.Ref] != item || p.now().Sub(at) > againAfter
	})
	if ofNode == nil {
		problem = errors.Join(problem, p.tell(ctx, &p.node, answer.IsKnown, has)) // continue: the rest is as urgent
	}
	if answer.NeedsStatuses && p.unsent != nil {
		if err := p.post(ctx, governance.StatusesPath, p.unsent, nil); err != nil {
			return err
		}
	}
	problem = errors.Join(problem, p.readStatuses(ctx))
	if p.pool.inventory != nil && p.lead.Leads() {
		if err := p.tell(ctx, &p.pool, answer.IsPoolKnown, has); err != nil {
			return err
		}
	}
	return problem
}

// itemsOfNode sets the inventory of the node. If it fails, the hub still sends beats, because the node is
// alive.
func (p *Pool) itemsOfNode() ([]governance.Item, error) {
	p.node.inventory = nil
	items, err := p.options.Source.Items()
	if err != nil {
		return nil, fmt.Errorf("reading the cached objects of the node: %w", err)
	}
	if len(items) > governance.MaxItems {
		return nil, fmt.Errorf("the node has %d objects, but a coordinator accepts at most %d of a node", len(items), governance.MaxItems)
	}
	p.node.inventory = &governance.Inventory{Items: items}
	return items, nil
}

// itemsOfPool sets the inventory of the pool while the hub leads. Objects above the limit are left out. The
// order is the same for every hub, so each leaves out the same ones.
func (p *Pool) itemsOfPool() (items []governance.Item, problem error) {
	p.pool.inventory = nil
	if !p.lead.Leads() {
		p.pool.at, p.pool.pending = time.Time{}, nil // other hubs may lead meanwhile
		return nil, nil
	}
	items, err := p.options.PoolSource.Items()
	if err != nil {
		return nil, fmt.Errorf("reading the objects of the pool: %w", err)
	}
	if len(items) == 0 { // every cluster has a Namespace
		return nil, nil
	}
	if most := governance.MaxPoolItems; len(items) > most {
		problem = fmt.Errorf("there are %d NodePools, Namespaces, Services and EndpointSlices, but a coordinator accepts only the first %d", len(items), most)
		slices.SortFunc(items, func(a, b governance.Item) int { return a.Compare(b.Ref) })
		items = items[:most]
	}
	p.pool.inventory = &governance.Inventory{Items: items}
	return items, problem
}

// find sends a beat to the address that answered last, and then to the others until one answers.
func (p *Pool) find(ctx context.Context, addresses []string) (answer governance.BeatAnswer, err error) {
	if addresses[0] != p.first {
		p.first, p.isReached, p.firstAsked = addresses[0], false, time.Time{}
	}
	if !p.isReached && p.now().Sub(p.firstAsked) > firstAgain {
		p.at, p.firstAsked = "", p.now()
	}
	first := max(0, slices.Index(addresses, p.at))
	before := p.at
	var last error
	for i := range addresses {
		p.at = addresses[(first+i)%len(addresses)]
		answer, err = p.beat(ctx)
		if err == nil {
			if answer.IsLed || p.at != before {
				p.led = p.now()
			}
			answer = p.elsewhere(ctx, addresses, answer)
			p.isReached = p.isReached || p.at == p.first
			p.mu.Lock()
			p.status.Address = p.at
			p.mu.Unlock()
			return answer, nil
		}
		p.client.CloseIdleConnections() // they may be broken, or use an expired certificate
		if ctx.Err() != nil {
			return answer, &unreachable{err} // the next round continues here
		}
		if i == 0 { // the address of the last answer: usually no coordinator runs at the others
			last = err
		}
	}
	p.at = ""
	return answer, &unreachable{fmt.Errorf("no answer at any of %d addresses; at the first: %w", len(addresses), last)}
}

// elsewhere looks for another coordinator with a leader, if the current one had no leader for unledFor and so
// does not report the node to the cloud. This happens when the cloud has started a second coordinator because
// it cannot reach the node of the first. Each round tries some addresses, and the next round continues after
// them.
func (p *Pool) elsewhere(ctx context.Context, addresses []string, here governance.BeatAnswer) governance.BeatAnswer {
	if here.IsLed || p.now().Sub(p.led) < unledFor {
		return here
	}
	at, began := p.at, p.now()
	for ; p.beyond < len(addresses) && p.now().Sub(began) < beyondWithin; p.beyond++ {
		if p.at = addresses[p.beyond]; p.at == at {
			continue
		}
		if answer, err := p.beat(ctx); err == nil && answer.IsLed {
			p.led, p.beyond = p.now(), 0
			return answer
		}
		if ctx.Err() != nil {
			break
		}
	}
	if p.at = at; p.beyond >= len(addresses) {
		p.led, p.beyond = p.now(), 0
	}
	return here
}

// beat sends a beat, and records whether the hub leads. A hub stops leading as soon as it reports that it does
// not reach the cloud.
func (p *Pool) beat(ctx context.Context) (answer governance.BeatAnswer, err error) {
	p.number++
	p.beaten = p.now()
	hasCloud := p.options.HasCloud()
	var report *governance.Report
	if p.unsent = nil; !hasCloud {
		report, p.unsent = p.options.Source.Report()
	}
	beat := governance.Beat{Session: p.session, Number: p.number, HasCloud: hasCloud && !p.abdicates(), Digest: p.node.digest(), PoolDigest: p.pool.digest(), IsRefused: p.options.IsRefused(), Report: report}
	if !beat.HasCloud {
		p.lead.answered(p.beaten, false)
	}
	if err := p.post(ctx, governance.BeatPath, beat, &answer); err != nil {
		return answer, err
	}
	p.isSpokenFor = p.isSpokenFor || report != nil
	p.mu.Lock()
	p.state, p.reports = answer.Pool, answer.Reports
	p.mu.Unlock()
	p.lead.answered(p.beaten, answer.Leads)
	return answer, nil
}

// tell sends an inventory if the coordinator does not have it, and uploads the pending objects.
func (p *Pool) tell(ctx context.Context, t *told, isKnown bool, has map[governance.Ref]governance.Item) error {
	if !isKnown || p.now().Sub(t.at) > againAfter {
		var answer governance.InventoryAnswer
		if err := p.post(ctx, t.path, t.inventory, &answer); err != nil {
			return err
		}
		t.pending, t.at = answer.Missing, p.now()
	}
	return p.upload(ctx, t, has)
}

// upload uploads the pending objects, and sends beats meanwhile. It skips objects that the coordinator refuses;
// any other failure ends it.
func (p *Pool) upload(ctx context.Context, t *told, has map[governance.Ref]governance.Item) error {
	for len(t.pending) > 0 {
		if p.now().Sub(p.beaten) > governance.BeatEvery {
			if _, err := p.beat(ctx); err != nil {
				return err
			}
		}
		uploads, rest := p.next(t, has)
		if len(uploads) > 0 {
			done, err := p.put(ctx, uploads, has)
			if err != nil {
				return err
			}
			if done < len(uploads) {
				rest = t.pending[slices.Index(t.pending, uploads[done].Ref):]
			}
		}
		t.pending = rest
	}
	return nil
}

// next reads the pending objects of the next upload, and returns the rest. It skips objects that cannot be
// read, mostly because they are deleted: the next inventory corrects this.
func (p *Pool) next(t *told, has map[governance.Ref]governance.Item) (uploads []governance.Upload, rest []governance.Ref) {
	size := 0
	for rest = t.pending; len(rest) > 0 && size < governance.EnoughAtOnce; rest = rest[1:] {
		item := has[rest[0]]
		if _, isRefused := p.refused[item]; isRefused || item.Name == "" {
			continue
		}
		body, err := t.source.Body(item.Ref)
		switch {
		case err != nil:
		case len(body) > governance.MaxObject:
			p.refuse(item, fmt.Sprintf("the object has %d bytes, more than %d", len(body), governance.MaxObject))
		default:
			uploads, size = append(uploads, governance.Upload{Ref: item.Ref, Body: body}), size+len(body)
		}
	}
	return uploads, rest
}

// refuse records that the coordinator refuses an object.
func (p *Pool) refuse(item governance.Item, reason string) {
	p.refused[item] = p.now()
	log := p.options.Log
	if kind, _ := governance.KindOf(item.Resource); !kind.IsOfNode && !kind.IsOfPool {
		log = log.V(2) // objects that no pod of the node uses any more stay in the cache for a while
	}
	log.Info("The pool's coordinator refuses an object", "object", item.String(), "reason", reason)
}

// put uploads objects, and returns how many of them have a result: at least one.
func (p *Pool) put(ctx context.Context, uploads []governance.Upload, has map[governance.Ref]governance.Item) (done int, err error) {
	contentType, body, err := governance.EncodeUploads(uploads)
	if err != nil {
		return 0, err
	}
	var answer governance.UploadAnswer
	code, _, err := p.send(ctx, http.MethodPost, governance.UploadPath, contentType, body, &answer)
	if err != nil {
		return 0, err
	}
	if code != http.StatusOK { // every process of the node can read the status: it must not contain names of Secrets
		return 0, fmt.Errorf("uploading: the coordinator at %s returned %d", p.at, code)
	}
	if done = len(answer.Results); done == 0 || done > len(uploads) {
		return 0, fmt.Errorf("the coordinator at %s returned %d results for %d objects", p.at, done, len(uploads))
	}
	for i, result := range answer.Results {
		item := has[uploads[i].Ref]
		kind, _ := governance.KindOf(item.Resource)
		switch {
		case result.Code == http.StatusOK, result.Code == http.StatusConflict: // it has a later version
		case result.Code == http.StatusForbidden && kind.IsOfPool: // another hub leads now
			return 0, errors.New(result.Reason)
		default:
			p.refuse(item, result.Reason)
		}
	}
	return done, nil
}

// post sends a message, and decodes the answer.
func (p *Pool) post(ctx context.Context, path string, message, answer any) error {
	body, err := json.Marshal(message)
	if err != nil {
		return err
	}
	code, reason, err := p.send(ctx, http.MethodPost, path, "application/json", body, answer)
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("the coordinator at %s returned %d: %s", p.at, code, reason)
	}
	return err
}

// sendWithin is the timeout of a request.
const sendWithin = 10 * time.Second

// send sends a request. For an error response, reason is its text; otherwise the response is decoded into
// answer.
func (p *Pool) send(ctx context.Context, method, path, contentType string, body []byte, answer any) (code int, reason string, err error) {
	ctx, cancel := context.WithTimeout(ctx, sendWithin)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "https://"+p.at+path, bytes.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("Content-Type", contentType)
	response, err := p.client.Do(r)
	if e := (*url.Error)(nil); errors.As(err, &e) {
		err = e.Err // without the path, which may contain the name of a Secret
	}
	if err != nil {
		return 0, "", fmt.Errorf("sending a request to the coordinator at %s: %w", p.at, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, maxReason))
		return response.StatusCode, strings.TrimSpace(string(text)), nil
	}
	content, err := io.ReadAll(io.LimitReader(response.Body, governance.MaxPoolMessage))
	if err == nil && answer != nil {
		err = json.Unmarshal(content, answer)
	}
	if err != nil {
		return 0, "", fmt.Errorf("reading the answer of the coordinator: %w", err)
	}
	return http.StatusOK, "", nil
}
