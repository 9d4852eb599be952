// Package endpoints filters the endpoints of Services in responses to the clients of a node that route traffic.
// It removes endpoints that the topology of the Service excludes, and corrects the addresses of the node's own
// pods, which the cloud does not know while the node is offline. It must not know connections or a disk.
package endpoints

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	appsv1alpha1 "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/hub/filter"
	"github.com/atoll-k8s/atoll/internal/hub/panics"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

const (
	// awaitWithin is how long, from the start, responses wait for the inputs of the filter. Without the inputs
	// a Service would have endpoints that its topology excludes.
	awaitWithin = 10 * time.Second
	// saveEvery is the least time between two attempts to save the addresses of pods. After a failed attempt it
	// doubles up to maxSavePause.
	saveEvery, maxSavePause = time.Second, 30 * time.Second
	// maxServices is the most Services with a topology.
	maxServices = 20000
)

// Options configure a Filter.
type Options struct {
	// NodeName is the name of the node.
	NodeName string
	// Clients are the users that get filtered endpoints.
	Clients []string
	// Kept is the last argument of Save; nil if there is none.
	Kept []byte
	// Save stores up to MaxKept bytes for the next start.
	Save func([]byte) error
	// Panics catches panics of the filter's own goroutines. nil catches none.
	Panics *panics.Catcher
	Log    logr.Logger
}

// Filter filters endpoints.
type Filter struct {
	clients []string
	save    func([]byte) error
	panics  *panics.Catcher
	log     logr.Logger
	until   time.Time     // the end of awaitWithin
	isKnown chan struct{} // closed when all inputs are known
	unsaved chan struct{} // has an element if addresses must be saved
	pooled  chan struct{} // has an element if the node's pool has changed

	mu      sync.RWMutex
	changed chan struct{}
	place   Place
	// topology has the keys of each Service with a topology. damaged has the invalid annotations that were
	// logged.
	topology map[service][]Reach
	damaged  map[service]string
	pods     *pods
	inputs   map[string]*Input
}

// service is the name of a Service.
type service struct{ namespace, name string }

// Input is an object or a collection that the filter depends on.
type Input struct {
	Name string `json:"name"`
	// Known is true once the input has been read.
	Known bool `json:"known"`
	// Reason is why the input cannot be read at the moment; "" if it can, or was not tried.
	Reason string `json:"reason,omitempty"`
}

// Names of the inputs.
const (
	inputServices = "Services"
	inputNode     = "Node"
	inputPool     = "NodePool"
)

// New returns a filter. Call Run so that it reads its inputs.
func New(o Options) *Filter {
	f := &Filter{
		clients: o.Clients, save: o.Save, panics: o.Panics, log: o.Log, until: time.Now().Add(awaitWithin),
		isKnown: make(chan struct{}), unsaved: make(chan struct{}, 1), pooled: make(chan struct{}, 1),
		changed: make(chan struct{}), place: Place{Node: o.NodeName}, topology: map[service][]Reach{}, damaged: map[service]string{},
		inputs: map[string]*Input{inputServices: {Name: inputServices}, inputNode: {Name: inputNode}},
	}
	if len(o.Clients) == 0 {
		f.inputs = nil
	}
	var err error
	if f.pods, err = newPods(o.Kept); err != nil {
		o.Log.Error(err, "The saved pod addresses cannot be read; the cloud's addresses are used until the kubelet writes")
	}
	return f
}

// Run reads the inputs of the filter, until ctx is done.
func (f *Filter) Run(ctx context.Context, follow filter.Follower) {
	if len(f.clients) == 0 {
		<-ctx.Done() // the inputs are not needed
		return
	}
	var running sync.WaitGroup
	running.Go(func() { follow(ctx, services, &serviceReceiver{f}) })
	running.Go(func() { follow(ctx, nodeOf(f.place.Node), &nodeReceiver{f}) })
	running.Go(func() {
		f.panics.Keep(ctx, "following the node's pool", func(ctx context.Context) { f.followPool(ctx, follow) })
	})
	running.Go(func() { f.panics.Keep(ctx, "keeping the addresses of pods", f.keepSaving) })
	running.Wait()
}

// keepSaving saves the addresses of pods when they have changed. Writes do not wait for it; all changes of a
// second are saved at once.
func (f *Filter) keepSaving(ctx context.Context) {
	defer f.Flush()
	for pause := saveEvery; ; {
		select {
		case <-ctx.Done():
			return
		case <-f.unsaved:
		}
		if f.saveNow() {
			pause = saveEvery
		} else {
			f.saveSoon()
			pause = min(2*pause, maxSavePause)
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// Flush saves the addresses of pods if they have changed. Call it when Run has ended and Written is not called
// any more.
func (f *Filter) Flush() {
	select {
	case <-f.unsaved:
		if !f.saveNow() {
			f.saveSoon()
		}
	default:
	}
}

// saveNow saves the addresses of pods, and returns whether that succeeded.
func (f *Filter) saveNow() bool {
	f.mu.RLock()
	text := f.pods.encode()
	f.mu.RUnlock()
	err := f.save(text)
	if err != nil {
		f.log.Error(err, "Saving the addresses of the node's pods failed; retrying. If the hub restarts offline before that, EndpointSlices may have wrong addresses")
	}
	return err == nil
}

// Changed implements filter.Filter.
func (f *Filter) Changed() <-chan struct{} {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.changed
}

// tellLocked signals that forms may have changed.
func (f *Filter) tellLocked() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// Await implements filter.Filter.
func (f *Filter) Await(ctx context.Context) {
	timer := time.NewTimer(time.Until(f.until))
	defer timer.Stop()
	select {
	case <-f.isKnown:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// observeLocked records whether an input can be read.
func (f *Filter) observeLocked(name string, err error) {
	input := f.inputs[name]
	if input == nil {
		return
	}
	reason := ""
	if err != nil {
		reason = err.Error()
	}
	if reason != input.Reason && reason != "" {
		f.log.Info("The hub cannot read an input of the topology of Services", "what", name, "reason", reason)
	}
	input.Reason, input.Known = reason, input.Known || err == nil
	for _, i := range f.inputs {
		if !i.Known && i.Reason == "" {
			return
		}
	}
	select {
	case <-f.isKnown:
	default:
		close(f.isKnown)
	}
}

// Status is the status of the filter.
type Status struct {
	// Pool and Zone are those of the node.
	Pool string `json:"pool,omitempty"`
	Zone string `json:"zone,omitempty"`
	// Services is the number of Services with a topology.
	Services int     `json:"services"`
	Inputs   []Input `json:"inputs"`
	// Moved are the addresses of pods that the cloud does not have yet, by the UID of the pod.
	Moved map[string][]string `json:"moved,omitempty"`
}

// Status returns the current inputs of the filter.
func (f *Filter) Status() Status {
	f.mu.RLock()
	defer f.mu.RUnlock()
	s := Status{Pool: f.place.Pool, Zone: f.place.Zone, Services: len(f.topology)}
	for _, name := range []string{inputServices, inputNode, inputPool} {
		if i := f.inputs[name]; i != nil {
			s.Inputs = append(s.Inputs, *i)
		}
	}
	for uid, e := range f.pods.entries {
		if !e.Confirmed {
			if s.Moved == nil {
				s.Moved = map[string][]string{}
			}
			s.Moved[uid] = slices.Clone(e.Addresses)
		}
	}
	return s
}

// Session implements filter.Filter.
func (f *Filter) Session(user, group, version, resource string) filter.Session {
	if !slices.Contains(f.clients, user) {
		return nil
	}
	var k kind
	switch {
	case group == discoveryv1.GroupName && version == "v1" && resource == "endpointslices":
		k = slice
	case group == corev1.GroupName && version == "v1" && resource == "endpoints":
		k = endpoints
	default:
		return nil
	}
	return &session{filter: f, kind: k, of: map[service]map[string]presence{}}
}

// session filters one list or watch.
type session struct {
	filter *Filter
	kind   kind
	// of has, for each Service with several keys, the presence of its endpoints by object name: a Service may
	// have several EndpointSlices, and has one reach for all of them.
	of map[service]map[string]presence
}

// serviceOf returns the Service of an object.
func (s *session) serviceOf(format wire.Format, m *wire.Meta, object []byte) (service, error) {
	if s.kind == endpoints {
		return service{m.Namespace, m.Name}, nil
	}
	labels, err := format.Labels(object)
	return service{m.Namespace, labels[discoveryv1.LabelServiceName]}, err
}

// Learn implements filter.Session.
func (s *session) Learn(format wire.Format, m *wire.Meta, object []byte) (others bool) {
	s.filter.mu.RLock()
	defer s.filter.mu.RUnlock()
	of, err := s.serviceOf(format, m, object)
	if err != nil {
		return false
	}
	keys := s.filter.topology[of]
	if len(keys) < 2 {
		return false
	}
	var p presence
	if _, err := edit(format, s.kind, m, object, func(e *Endpoint) change { p.add(&s.filter.place, e); return change{} }); err != nil {
		return false
	}
	before := choose(keys, s.whole(of))
	if s.of[of] == nil {
		s.of[of] = map[string]presence{}
	}
	s.of[of][m.Name] = p
	return choose(keys, s.whole(of)) != before
}

// whole returns the presence of a Service's endpoints in all its objects.
func (s *session) whole(of service) (all presence) {
	for _, p := range s.of[of] {
		all.any |= p.any
		all.ready |= p.ready
	}
	return all
}

// Forget implements filter.Session.
func (s *session) Forget(m *wire.Meta) (others bool) {
	s.filter.mu.RLock()
	defer s.filter.mu.RUnlock()
	for of, objects := range s.of {
		if _, is := objects[m.Name]; !is || of.namespace != m.Namespace {
			continue
		}
		before := s.whole(of)
		delete(objects, m.Name)
		keys := s.filter.topology[of]
		return len(keys) > 0 && choose(keys, s.whole(of)) != choose(keys, before)
	}
	return false
}

// Form implements filter.Session.
func (s *session) Form(format wire.Format, m *wire.Meta, object []byte) []byte {
	form, err := s.form(format, m, object)
	if err != nil {
		s.filter.log.V(2).Info("Filtering the endpoints of a Service failed; they are unchanged", "object", fmt.Sprintf("%s/%s", m.Namespace, m.Name), "error", err.Error())
		return object
	}
	return form
}

func (s *session) form(format wire.Format, m *wire.Meta, object []byte) ([]byte, error) {
	f := s.filter
	f.mu.RLock()
	defer f.mu.RUnlock()
	of, err := s.serviceOf(format, m, object)
	if err != nil {
		return nil, err
	}
	keys := f.topology[of]
	if len(keys) == 0 && len(f.pods.entries) == 0 {
		return object, nil
	}
	within := All
	if len(keys) > 0 {
		within = choose(keys, s.whole(of))
	}
	return edit(format, s.kind, m, object, func(e *Endpoint) change {
		if !f.place.has(within, e) {
			return change{drop: true}
		}
		if e.Node != "" && e.Node != f.place.Node {
			return change{}
		}
		return change{address: f.pods.address(e)}
	})
}

// Written implements filter.Pods. It does not wait for the disk.
func (f *Filter) Written(method, contentType string, body []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	changed, err := f.pods.written(method, contentType, body)
	if err != nil {
		f.log.V(2).Info("Reading the address of a pod failed", "error", err.Error())
	}
	if changed {
		f.tellLocked()
		f.saveSoon()
	}
}

// saveSoon requests that the addresses are saved.
func (f *Filter) saveSoon() {
	select {
	case f.unsaved <- struct{}{}:
	default: // already requested
	}
}

// Read implements filter.Pods.
func (f *Filter) Read(format wire.Format, uid string, pod []byte) {
	s, err := decodeStatus(format, pod)
	if err != nil || uid == "" {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pods.reads(uid, s.addresses())
}

// Seen implements filter.Pods.
func (f *Filter) Seen(format wire.Format, m *wire.Meta, pod []byte) {
	f.mu.RLock()
	_, is := f.pods.entries[m.UID]
	f.mu.RUnlock()
	if !is {
		return // true for most versions of most pods
	}
	s, err := decodeStatus(format, pod)
	if err != nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	changed, kept := f.pods.seen(m.UID, m.ResourceVersion, s.addresses())
	if changed {
		f.tellLocked()
	}
	if kept {
		f.saveSoon()
	}
}

// Gone implements filter.Pods.
func (f *Filter) Gone(uid string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.pods.read, uid)
	if f.pods.forget(uid) {
		f.tellLocked()
		f.saveSoon()
	}
}

// poolLabel is the label of a Node with the name of its pool.
const poolLabel = appsv1alpha1.NodePoolLabel
