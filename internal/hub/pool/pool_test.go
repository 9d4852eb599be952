package pool

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"pgregory.net/rapid"

	"github.com/atoll-k8s/atoll/internal/governance"
)

// node is what a hub keeps.
type node map[governance.Ref]governance.Item

func (n node) Items() (items []governance.Item, err error) {
	for _, item := range n {
		items = append(items, item)
	}
	return items, nil
}

func (n node) Report() (*governance.Report, *governance.Statuses) {
	if isSilent := len(n) == 0; isSilent {
		return nil, nil
	}
	return &governance.Report{}, nil
}

func (n node) Body(ref governance.Ref) ([]byte, error) {
	item, has := n[ref]
	if !has {
		return nil, errors.New("it is gone")
	}
	return json.Marshal(item)
}

// wide is what belongs to the pool; it is read at once.
type wide struct {
	node

	following bool
	follows   int
}

func (w *wide) Follow(ctx context.Context) {
	w.following = true
	w.follows++
	<-ctx.Done()
	w.following = false
}

// coordinator has what it was told. It implements http.RoundTripper.
type coordinator struct {
	stored map[governance.Ref]governance.Item
	digest string
	// leads is whether the hub leads, ofPool what is stored of the pool, and beats are those that it was sent.
	leads      bool
	ofPool     map[governance.Ref]governance.Item
	poolDigest string
	beats      []governance.Beat
	// pool is what it says of the pool.
	pool *governance.PoolState
	// reports are what nodes report, statuses those of each, and reads counts how often they were read.
	reports  map[string]governance.Report
	statuses *governance.Statuses
	reads    int
	// at is the address at which it answers, and code what it answers to uploads; 0 means that it takes them.
	at   string
	also []string
	code int
	// led is an address where another hub leads.
	led string
	// failing are the objects that it answers with code.
	failing func(governance.Ref) bool
	// most is how many uploads it takes at once; 0 for all.
	most int
	// broken begins the paths at which connections break.
	broken string
	puts   []string
}

func (c *coordinator) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	if r.URL.Host != c.at && !slices.Contains(c.also, r.URL.Host) {
		return nil, errors.New("nobody answers at " + r.URL.Host)
	}
	if c.broken != "" && strings.HasPrefix(r.URL.Path, c.broken) {
		return nil, io.ErrUnexpectedEOF
	}
	answer := func(code int, content any) (*http.Response, error) {
		text, err := json.Marshal(content)
		return &http.Response{StatusCode: code, Body: io.NopCloser(bytes.NewReader(text)), Request: r}, err
	}
	switch r.URL.Path {
	case governance.BeatPath:
		var beat governance.Beat
		if err := json.Unmarshal(body, &beat); err != nil {
			return nil, err
		}
		c.beats = append(c.beats, beat)
		return answer(http.StatusOK, governance.BeatAnswer{IsKnown: beat.Digest == c.digest, IsPoolKnown: beat.PoolDigest == c.poolDigest, Leads: c.leads && beat.HasCloud, IsLed: c.leads && beat.HasCloud || r.URL.Host == c.led, Pool: c.pool, Reports: c.reports})
	case governance.InventoryPath, governance.PoolInventoryPath:
		var inventory governance.Inventory
		if err := json.Unmarshal(body, &inventory); err != nil {
			return nil, err
		}
		digest, stored := &c.digest, &c.stored
		if r.URL.Path == governance.PoolInventoryPath {
			if !c.leads {
				return answer(http.StatusForbidden, "it does not lead")
			}
			digest, stored = &c.poolDigest, &c.ofPool
		}
		*digest = inventory.Digest()
		before := *stored
		*stored = map[governance.Ref]governance.Item{}
		var missing []governance.Ref
		for _, item := range inventory.Items {
			if before[item.Ref] == item {
				(*stored)[item.Ref] = item
			} else {
				missing = append(missing, item.Ref)
			}
		}
		slices.SortFunc(missing, governance.Ref.Compare)
		return answer(http.StatusOK, governance.InventoryAnswer{Missing: missing})
	default:
		if strings.HasPrefix(r.URL.Path, governance.StatusesPath+"/") {
			c.reads++
			return answer(http.StatusOK, c.statuses)
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		form, err := r.MultipartReader()
		if err != nil {
			return nil, err
		}
		var results []governance.UploadResult
		for len(results) < c.most || c.most == 0 {
			field, err := form.NextPart()
			if errors.Is(err, io.EOF) {
				break
			}
			var item governance.Item
			if err == nil {
				err = json.NewDecoder(field).Decode(&item)
			}
			if err != nil || field.FormName() != item.String() {
				return nil, fmt.Errorf("%+v: %w", item, err)
			}
			c.puts = append(c.puts, item.Name)
			result := governance.UploadResult{Code: http.StatusOK}
			switch kind, _ := governance.KindOf(item.Resource); {
			case c.code >= http.StatusInternalServerError && c.code != http.StatusInsufficientStorage && (c.failing == nil || c.failing(item.Ref)):
				return answer(c.code, "no "+item.Name)
			case c.code != 0 && (c.failing == nil || c.failing(item.Ref)):
				result = governance.UploadResult{Code: c.code, Reason: "no"}
			case kind.IsOfPool:
				c.ofPool[item.Ref] = item
			default:
				c.stored[item.Ref] = item
			}
			results = append(results, result)
		}
		return answer(http.StatusOK, governance.UploadAnswer{Results: results})
	}
}

func newPool(n node, c *coordinator) *Pool { return newLeader(n, &wide{node: node{}}, c) }

func newLeader(n node, w *wide, c *coordinator) *Pool {
	return New(Options{
		Source: n, PoolSource: w, HasCloud: func() bool { return true }, Addresses: func() []string { return []string{"a:1", "b:1"} }, Transport: c, Log: logr.Discard(),
		NodeName: "a", Pool: func() string { return "edge" }, IsRefused: func() bool { return false }, Send: (&tokens{token: "x", accepted: "x"}).send,
	})
}

// turn is one round of Run, and returns its error and whether a coordinator has answered.
func (p *Pool) turn(ctx context.Context) (answers bool, err error) {
	addresses := p.options.Addresses()
	if p.begin(len(addresses) > 0); len(addresses) > 0 {
		err = p.round(ctx, addresses)
	}
	p.confirm(ctx)
	return p.report(err), err
}

func pod(name, version string) governance.Item {
	return governance.Item{Ref: governance.Ref{Resource: "pods", Namespace: "default", Name: name}, UID: name, Version: version}
}

func (n node) put(items ...governance.Item) {
	for _, item := range items {
		n[item.Ref] = item
	}
}

// TestCoordinatorConvergesToTheNodesObjects: after any sequence of changes and failures, a minute and two rounds
// later both have the same objects.
func TestCoordinatorConvergesToTheNodesObjects(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, c := node{}, &coordinator{stored: map[governance.Ref]governance.Item{}, at: "a:1"}
		p := newPool(n, c)
		clock := time.Now()
		now := func() time.Time { return clock }
		p.now = now
		version := 0
		t.Repeat(map[string]func(*rapid.T){
			"change": func(t *rapid.T) {
				version++
				n.put(pod(fmt.Sprint(rapid.IntRange(0, 5).Draw(t, "pod")), fmt.Sprint(version)))
			},
			"delete": func(t *rapid.T) {
				delete(n, pod(fmt.Sprint(rapid.IntRange(0, 5).Draw(t, "pod")), "").Ref)
			},
			"restart the coordinator": func(*rapid.T) { c.stored, c.digest = map[governance.Ref]governance.Item{}, "" },
			"restart its writer":      func(*rapid.T) { c.digest = "" },
			"lose an object": func(t *rapid.T) {
				delete(c.stored, pod(fmt.Sprint(rapid.IntRange(0, 5).Draw(t, "pod")), "").Ref)
			},
			"restart the hub": func(*rapid.T) { p = newPool(n, c); p.now = now },
			"move":            func(t *rapid.T) { c.at = rapid.SampledFrom([]string{"a:1", "b:1", "nowhere:1"}).Draw(t, "at") },
			"fail": func(t *rapid.T) {
				c.code = rapid.SampledFrom([]int{0, http.StatusServiceUnavailable, http.StatusForbidden}).Draw(t, "code")
			},
			"take time": func(t *rapid.T) { c.most = rapid.IntRange(0, 3).Draw(t, "at once") },
			"round":     func(*rapid.T) { _, _ = p.turn(context.Background()) },
			"": func(t *rapid.T) {
				at, code := c.at, c.code
				c.at, c.code = "b:1", 0
				clock = clock.Add(2 * againAfter)
				for range 2 {
					if _, err := p.turn(context.Background()); err != nil {
						t.Fatal(err)
					}
				}
				if len(c.stored) != len(n) {
					t.Fatalf("the coordinator has %v, and the node %v", c.stored, n)
				}
				for ref, item := range n {
					if c.stored[ref] != item {
						t.Fatalf("the coordinator has %v, and the node %v", c.stored[ref], item)
					}
				}
				c.at, c.code = at, code
			},
		})
	})
}

// TestRefusedObjectDelaysNoOtherObject: codes 403, 422 and 507 refuse one object, which is uploaded again later.
// Codes 500 and 503 end the round.
func TestRefusedObjectDelaysNoOtherObject(t *testing.T) {
	for code, again := range map[int]bool{ // whether the next round uploads it again
		http.StatusForbidden: false, http.StatusUnprocessableEntity: false, http.StatusInsufficientStorage: false,
		http.StatusServiceUnavailable: true, http.StatusInternalServerError: true,
	} {
		n, c := node{}, &coordinator{stored: map[governance.Ref]governance.Item{}, at: "a:1", code: code}
		c.failing = func(ref governance.Ref) bool { return ref.Name == "bad" }
		n.put(pod("a", "1"), pod("bad", "1"), pod("z", "1"))
		p := newPool(n, c)
		now := time.Now()
		p.now = func() time.Time { return now }
		p.turn(t.Context())
		if got := c.stored[pod("z", "1").Ref]; (got.Name == "") != again {
			t.Errorf("%d: what comes after the object is stored: %v", code, got)
		}
		if status := p.Status(); again != (status.Reason != "") || status.Objects != 3 || !again && (status.Refused != 1 || status.Waiting != 0) {
			t.Errorf("%d: the status is %+v", code, status)
		}
		tries := func() int { return strings.Count(strings.Join(c.puts, " "), "bad") }
		n.put(pod("a", "2")) // another inventory
		p.turn(t.Context())
		if got := tries(); (got == 2) != again {
			t.Errorf("%d: after a change of another object it was uploaded %d times", code, got)
		}
		now = now.Add(2 * againAfter)
		before := tries()
		p.turn(t.Context())
		if tries() == before {
			t.Errorf("%d: it is never uploaded again", code)
		}
	}
}

// TestTheStatusNamesNoSecret: every process on the node can read the status.
func TestTheStatusNamesNoSecret(t *testing.T) {
	secret := governance.Item{Ref: governance.Ref{Resource: "secrets", Namespace: "default", Name: "of-payments"}, UID: "1", Version: "1"}
	for name, c := range map[string]*coordinator{
		"an answer":  {at: "a:1", code: http.StatusServiceUnavailable},
		"no answer":  {at: "a:1", broken: governance.UploadPath},
		"not at all": {},
	} {
		n := node{}
		n.put(secret)
		p := newPool(n, c)
		c.stored = map[governance.Ref]governance.Item{}
		if _, err := p.turn(t.Context()); err == nil {
			t.Errorf("%s: the Secret is uploaded", name)
		}
		if reason := p.Status().Reason; reason == "" || strings.Contains(reason, "payments") {
			t.Errorf("%s: the reason is %q", name, reason)
		}
	}
}

func TestNodeAndPodsAreUploadedBeforeOtherObjects(t *testing.T) {
	n, c := node{}, &coordinator{stored: map[governance.Ref]governance.Item{}, at: "a:1"}
	settings := governance.Item{Ref: governance.Ref{Resource: "configmaps", Namespace: "default", Name: "settings"}, UID: "1", Version: "1"}
	n.put(settings, pod("web", "2"), governance.Item{Ref: governance.Ref{Resource: "nodes", Name: "edge"}, UID: "3", Version: "3"})
	if _, err := newPool(n, c).turn(t.Context()); err != nil {
		t.Fatal(err)
	}
	if want := []string{"edge", "web", "settings"}; !slices.Equal(c.puts, want) {
		t.Errorf("the order is %v, want %v", c.puts, want)
	}
}

func TestUnreachableCoordinatorIsReported(t *testing.T) {
	p := newPool(node{}, &coordinator{at: "nowhere:1"})
	if answers, _ := p.turn(t.Context()); answers {
		t.Error("it is as if a coordinator had answered")
	}
	if status := p.Status(); !strings.Contains(status.Reason, "nobody answers at a:1") || status.Address != "" {
		t.Errorf("the status is %+v", status)
	}
}

// TestHubFollowsTheCoordinatorsAddresses: without an address the hub reads and sends nothing. A new coordinator
// gets all objects.
func TestHubFollowsTheCoordinatorsAddresses(t *testing.T) {
	n, c := node{}, &coordinator{stored: map[governance.Ref]governance.Item{}, at: "b:1"}
	n.put(pod("web", "1"))
	p := newPool(n, c)
	var addresses []string
	p.options.Addresses = func() []string { return addresses }
	expect := func(want string, stored int) {
		t.Helper()
		if _, err := p.turn(t.Context()); err != nil {
			t.Fatal(err)
		}
		got := ""
		if status := p.Status(); status != nil {
			got = status.Address
		}
		if got != want || len(c.stored) != stored {
			t.Errorf("the coordinator is at %q and has %d objects, want %q and %d", got, len(c.stored), want, stored)
		}
	}
	expect("", 0)
	addresses = []string{"a:1", "b:1"}
	expect("b:1", 1)
	addresses = []string{"b:1", "a:1"} // as its status says when it has moved
	expect("b:1", 1)
	addresses = []string{"c:1", "d:1"}
	c.at, c.stored, c.digest = "d:1", map[governance.Ref]governance.Item{}, ""
	expect("d:1", 1)
	c.also = []string{"c:1"} // the last one answers still, on a node that the cloud has lost
	addresses = []string{"c:1", "d:1"}
	expect("d:1", 1)
	addresses = []string{"d:1", "c:1"}
	expect("d:1", 1)
	addresses = []string{"c:1", "d:1"}
	expect("c:1", 1)
	addresses = nil
	expect("", 1)
}

// TestHubStaysUntilTheNextCoordinatorAnswers: the cloud starts it on another node, while the last one still
// answers on a node that the cloud has lost. The hub changes once, and not back.
func TestHubStaysUntilTheNextCoordinatorAnswers(t *testing.T) {
	c := &coordinator{stored: map[governance.Ref]governance.Item{}, at: "last:1"}
	p := newPool(node{}, c)
	now := time.Now()
	p.now = func() time.Time { return now }
	expect := func(want string) {
		t.Helper()
		now = now.Add(firstAgain + time.Second)
		if _, err := p.turn(t.Context()); err != nil || p.Status().Address != want {
			t.Errorf("it asks at %s, %v, want %s", p.Status().Address, err, want)
		}
	}
	addresses := []string{"last:1", "next:1"}
	p.options.Addresses = func() []string { return addresses }
	expect("last:1")
	addresses = []string{"next:1", "last:1"}
	expect("last:1")
	c.also = []string{"next:1"}
	expect("next:1")
	c.also = nil
	expect("last:1")
	c.also = []string{"next:1"} // it was there: the hub does not go to and fro
	expect("last:1")
}

// TestAHubLeavesACoordinatorWithoutALeader: the coordinator's node is cut off, and the cloud has started another
// coordinator, whose leader reports for the other nodes.
func TestAHubLeavesACoordinatorWithoutALeader(t *testing.T) {
	c := &coordinator{stored: map[governance.Ref]governance.Item{}, at: "a:1", led: "a:1"}
	for i := range 20 {
		c.also = append(c.also, fmt.Sprintf("n%d:1", i)) // of some nodes somebody else answers
	}
	p := newPool(node{}, c)
	now := time.Now()
	slow, asked := time.Duration(0), 0
	p.now = func() time.Time { // each beat takes so long
		if n := len(c.beats); n > asked {
			now, asked = now.Add(slow*time.Duration(n-asked)), n
		}
		return now
	}
	p.options.Addresses = func() []string { return append([]string{"a:1", "dead:1"}, c.also...) }
	after := func(d time.Duration, want string) {
		t.Helper()
		for range d / governance.BeatEvery {
			now = now.Add(governance.BeatEvery)
			if _, err := p.turn(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if got := p.Status().Address; got != want {
			t.Errorf("it is at %s, want %s", got, want)
		}
	}
	after(time.Minute, "a:1")
	c.led = ""
	after(time.Minute, "a:1")
	c.led = "n17:1"
	after(unledFor+2*governance.BeatEvery, "n17:1")
	after(time.Minute, "n17:1")
	c.led = "n3:1"
	after(unledFor-governance.BeatEvery, "n17:1")
	slow = 2 * time.Second // each address takes its time: the beats go on meanwhile
	before := len(c.beats)
	after(2*governance.BeatEvery, "n17:1")
	if asked := len(c.beats) - before; asked < 4 || asked > 8 {
		t.Errorf("in two rounds it has asked %d times", asked)
	}
	slow = 0
	after(2*governance.BeatEvery, "n3:1")
}

// TestTooManyObjectsEndNoBeats: no object is uploaded, and the hub still beats.
func TestTooManyObjectsEndNoBeats(t *testing.T) {
	n := node{}
	for i := range governance.MaxItems + 1 {
		n.put(pod(fmt.Sprint(i), "1"))
	}
	c := &coordinator{at: "a:1", stored: map[governance.Ref]governance.Item{}}
	p := newPool(n, c)
	if _, err := p.turn(t.Context()); err == nil || !strings.Contains(err.Error(), "1025 objects") {
		t.Errorf("the error is %v", err)
	}
	if len(c.beats) != 1 || len(c.stored)+len(c.puts) > 0 {
		t.Errorf("beats are %v, and stored is %v: the node lives, whatever it has", c.beats, c.stored)
	}
}
