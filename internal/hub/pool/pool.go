// Package pool keeps the coordinator of the node's pool up to date with what the hub keeps of its node and, while the
// hub leads, with what belongs to the pool, and tells the cloud how the pool is. It must not know how objects are kept, nor how the coordinator is connected to.
//
// Every governance.BeatEvery it compares what is kept with what the coordinator was told last, so that it
// does not matter what happened meanwhile to either of them. Without a coordinator nothing else of the hub
// changes.
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
	// roundWithin bounds one round. What is not uploaded by then is in the next one.
	roundWithin = 30 * time.Second
	// maxPause is the longest time between two rounds while no coordinator answers.
	maxPause = 8 * time.Second
	// firstAgain is when the address is asked again at which the coordinator should be and has not answered yet, while
	// another one answers.
	firstAgain = 15 * time.Second
	// unledFor is how long a hub stays where none leads before it asks at the other addresses, and before it does so again.
	// Each coordinator has a leader after 8.5 s, if a hub there has the cloud. beyondWithin is how long it asks in a round.
	unledFor, beyondWithin = 15 * time.Second, 3 * time.Second
	// againAfter is when an object is uploaded again that the coordinator has refused.
	againAfter = time.Minute
	// maxReason bounds what is read of the reason for a refusal, in bytes.
	maxReason = 1024
)

// Source is what is kept of the node: see proxy.Inventory.
type Source interface {
	// Items returns all objects that the coordinator should have.
	Items() ([]governance.Item, error)
	// Body returns one of them, in its current version.
	Body(ref governance.Ref) ([]byte, error)
}

// NodeSource is what is kept of the node, and what it has to say to the cloud.
type NodeSource interface {
	Source
	// Report returns what the node has written and could not send; nil if its kubelet is silent.
	Report() (*governance.Report, *governance.Statuses)
}

// PoolSource is what belongs to the pool: see proxy.PoolInventory.
type PoolSource interface {
	Source
	// Follow reads it until ctx is done. Items returns nothing until all of it was read once.
	Follow(ctx context.Context)
}

// Options are those of New.
type Options struct {
	Source     NodeSource
	PoolSource PoolSource
	// HasCloud tells whether the hub reaches the cloud.
	HasCloud func() bool
	// Pool returns the name of the node's pool. The hub leads no more when that changes.
	Pool func() string
	// Addresses returns those at which the coordinator may be, as host:port; none if there is no coordinator. The one
	// that has answered last is asked first.
	Addresses func() []string
	// Changed has a value when Addresses returns others: the next round begins at once.
	Changed <-chan struct{}
	// Transport sends requests to the coordinator as the node.
	Transport http.RoundTripper
	// Send sends a request to the cloud, as the node or with the credentials that it has.
	Send func(r *http.Request, asNode bool) (*http.Response, error)
	// IsRefused tells whether the kubelet of the node refuses the hub.
	IsRefused func() bool
	// NodeName is the name of the node.
	NodeName string
	Log      logr.Logger
}

// Pool is the hub's part in the governance of its pool. Run does the work.
type Pool struct {
	options Options
	client  *http.Client
	now     func() time.Time
	lead    lead
	// at is the address that is asked, and first the one at which the coordinator should be: another one is asked first
	// until it has answered once, also if at answers still. firstAsked is when that was tried last.
	at, first  string
	isReached  bool
	firstAsked time.Time
	// led is when a hub led where at is, or that was asked first; beyond is the next address to be asked whether one leads
	// there.
	led    time.Time
	beyond int
	// of is the pool of the last round.
	of string
	// session and number are those of the last beat, and beaten when it was sent.
	session string
	number  uint64
	beaten  time.Time
	// unsent are the statuses that the last beat has reported.
	unsent *governance.Statuses
	// isSpokenFor: the coordinator has a report of the node, and the cloud has not heard from the node since.
	isSpokenFor bool
	// node and pool are what is told of the node, and of its pool while the hub leads.
	node, pool told
	refused    map[governance.Item]time.Time

	mu     sync.Mutex
	status *Status
	// state is how the pool is, by the last answer to the hub that leads, and pulseProblem why the cloud does not hear of it.
	state        *governance.PoolState
	pulseProblem string
	// reports are those of nodes that do not reach the cloud, and statuses what is known of theirs; while the hub leads.
	reports  map[string]governance.Report
	statuses map[string]*governance.Statuses
	// failing is since when the cloud takes nothing that is forwarded; zero if it does, or there is nothing. mayPulse: it
	// has, or there was nothing, since the hub leads.
	failing  time.Time
	mayPulse bool
}

// told is what the coordinator is told of a Source.
type told struct {
	source Source
	// path is where its inventories are sent to.
	path string
	// at is when the last inventory was sent: from time to time one is sent in any case, because others may have
	// removed what is of several nodes, and what was refused may be taken now.
	at time.Time
	// pending are the objects to be uploaded, in order.
	pending []governance.Ref
	// inventory is what the coordinator should have; nil if that is not known.
	inventory *governance.Inventory
}

func (t *told) digest() string {
	if t.inventory == nil {
		return ""
	}
	return t.inventory.Digest()
}

// Status is what is known of the coordinator.
type Status struct {
	// Address is where the coordinator has answered last; "" if it never has.
	Address string `json:"address,omitempty"`
	// Since is since when it answers, or does not any more. Reason is why it does not; "" if it does.
	Since  time.Time `json:"since"`
	Reason string    `json:"reason,omitempty"`
	// Leads is whether the hub leads its pool.
	Leads bool `json:"leads,omitempty"`
	// Pulse is why the cloud does not hear from the hub, while it leads, how the pool is; "" if it does.
	Pulse string `json:"pulse,omitempty"`
	// Objects is the number of objects that it should have, Waiting that of those that are not uploaded yet, and
	// Refused that of those that it refuses.
	Objects int `json:"objects"`
	Waiting int `json:"waiting"`
	Refused int `json:"refused"`
}

// New returns the pool of a hub.
func New(o Options) *Pool {
	p := &Pool{options: o, client: &http.Client{Transport: o.Transport}, now: time.Now, session: rand.Text(), refused: map[governance.Item]time.Time{}}
	p.lead = lead{do: p.follow, now: func() time.Time { return p.now() }}
	p.node, p.pool = told{source: o.Source, path: governance.InventoryPath}, told{source: o.PoolSource, path: governance.PoolInventoryPath}
	return p
}

// follow is what the hub does while it leads.
func (p *Pool) follow(ctx context.Context) {
	var running sync.WaitGroup
	d := &delegate{send: p.options.Send}
	p.settle(time.Time{}, false)
	running.Go(func() { p.options.PoolSource.Follow(ctx) })
	running.Go(func() { p.pulse(ctx, d) })
	running.Go(func() { p.forward(ctx, d) })
	running.Wait()
}

// Status returns what is known of the coordinator; nil if there is none.
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
		case <-time.After(pause - mathrand.N(pause/4)): // hubs that begin together do not stay together
		}
	}
}

// begin notes whether there is a coordinator.
func (p *Pool) begin(isThere bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !isThere {
		p.status, p.at, p.first, p.node.pending = nil, "", "", nil
		p.lead.answered(p.now(), false)
	} else if p.status == nil {
		p.status = &Status{Since: p.now(), Reason: "it was not asked yet"}
	}
}

// report notes how a round has ended. It returns false if no coordinator answers.
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
		p.options.Log.Info("Whether the pool's coordinator is up to date has changed", "isUpToDate", err == nil, "reason", reason)
	}
	p.status.Reason, p.status.Waiting, p.status.Refused = reason, len(p.node.pending)+len(p.pool.pending), len(p.refused)
	return !errors.As(err, new(*unreachable))
}

// unreachable is the error of a coordinator that does not answer anywhere.
type unreachable struct{ error }

// Unwrap returns the reason.
func (u *unreachable) Unwrap() error { return u.error }

// round beats, and uploads what the coordinator lacks.
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
		problem = errors.Join(problem, p.tell(ctx, &p.node, answer.IsKnown, has)) // what comes next is no less urgent
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

// itemsOfNode sets the inventory of the node. Without one, the hub beats all the same: the node lives.
func (p *Pool) itemsOfNode() ([]governance.Item, error) {
	p.node.inventory = nil
	items, err := p.options.Source.Items()
	if err != nil {
		return nil, fmt.Errorf("reading what is kept of the node: %w", err)
	}
	if len(items) > governance.MaxItems {
		return nil, fmt.Errorf("the node has %d objects, and a coordinator takes %d of a node", len(items), governance.MaxItems)
	}
	p.node.inventory = &governance.Inventory{Items: items}
	return items, nil
}

// itemsOfPool sets the inventory of the pool while the hub leads. Beyond its bound the last objects are left out,
// which are the same ones for every hub.
func (p *Pool) itemsOfPool() (items []governance.Item, problem error) {
	p.pool.inventory = nil
	if !p.lead.Leads() {
		p.pool.at, p.pool.pending = time.Time{}, nil // others may lead meanwhile
		return nil, nil
	}
	items, err := p.options.PoolSource.Items()
	if err != nil {
		return nil, fmt.Errorf("reading what belongs to the pool: %w", err)
	}
	if len(items) == 0 { // every cluster has a Namespace
		return nil, nil
	}
	if most := governance.MaxPoolItems; len(items) > most {
		problem = fmt.Errorf("there are %d NodePools, Namespaces, Services and EndpointSlices, and a coordinator takes the first %d", len(items), most)
		slices.SortFunc(items, func(a, b governance.Item) int { return a.Compare(b.Ref) })
		items = items[:most]
	}
	p.pool.inventory = &governance.Inventory{Items: items}
	return items, problem
}

// find beats at the address that has answered last, and then at the others.
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
		p.client.CloseIdleConnections() // one that is dead, or that began with a certificate that has expired since
		if ctx.Err() != nil {
			return answer, &unreachable{err} // the next round goes on from here
		}
		if i == 0 { // where it was last: at the others nobody listens
			last = err
		}
	}
	p.at = ""
	return answer, &unreachable{fmt.Errorf("it answers at none of %d addresses; at the first, %w", len(addresses), last)}
}

// elsewhere looks for a coordinator that has a hub that leads, when where the hub is none has led for a while: nobody speaks
// for its node there. The cloud has started another one, because it does not hear of the node of this one. In each
// round it asks at other addresses for a while, and goes on from there in the next one.
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

// beat sends a beat, and learns whether the hub leads. It does not lead any more once it says that it has no cloud.
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

// tell sends an inventory, if the coordinator does not know it, and uploads what is pending.
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

// upload uploads what is pending, and beats meanwhile. What the coordinator refuses is left out; any other failure ends
// it.
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

// next reads the first objects that are pending, as many as are uploaded at once, and returns the rest. One that cannot be
// read, mostly because it is gone, is left to the next inventory.
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
			p.refuse(item, fmt.Sprintf("it has %d bytes, more than %d", len(body), governance.MaxObject))
		default:
			uploads, size = append(uploads, governance.Upload{Ref: item.Ref, Body: body}), size+len(body)
		}
	}
	return uploads, rest
}

// refuse notes that an object is not taken.
func (p *Pool) refuse(item governance.Item, reason string) {
	p.refused[item] = p.now()
	log := p.options.Log
	if kind, _ := governance.KindOf(item.Resource); !kind.IsOfNode && !kind.IsOfPool {
		log = log.V(2) // what no pod of the node names any more stays in the cache for a while
	}
	log.Info("The pool's coordinator refuses an object", "object", item.String(), "reason", reason)
}

// put uploads objects, and returns how many of them are done with: at least one.
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
	if code != http.StatusOK { // every process of the node may ask for the status: it must not name a Secret
		return 0, fmt.Errorf("uploading: the coordinator at %s answers %d", p.at, code)
	}
	if done = len(answer.Results); done == 0 || done > len(uploads) {
		return 0, fmt.Errorf("the coordinator at %s answers %d results for %d objects", p.at, done, len(uploads))
	}
	for i, result := range answer.Results {
		item := has[uploads[i].Ref]
		kind, _ := governance.KindOf(item.Resource)
		switch {
		case result.Code == http.StatusOK, result.Code == http.StatusConflict: // a later version is there
		case result.Code == http.StatusForbidden && kind.IsOfPool: // another hub leads by now
			return 0, errors.New(result.Reason)
		default:
			p.refuse(item, result.Reason)
		}
	}
	return done, nil
}

// post sends a message, and reads the answer.
func (p *Pool) post(ctx context.Context, path string, message, answer any) error {
	body, err := json.Marshal(message)
	if err != nil {
		return err
	}
	code, reason, err := p.send(ctx, http.MethodPost, path, "application/json", body, answer)
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("the coordinator at %s answers %d: %s", p.at, code, reason)
	}
	return err
}

// sendWithin bounds a request.
const sendWithin = 10 * time.Second

// send sends a request. reason is the text of an answer that is no success; else the answer is read.
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
		err = e.Err // without the path, which may name a Secret
	}
	if err != nil {
		return 0, "", fmt.Errorf("asking the coordinator at %s: %w", p.at, err)
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
