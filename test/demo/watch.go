package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	capacity "github.com/atoll-k8s/atoll/api/capacity/v1alpha1"
	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	scheduling "github.com/atoll-k8s/atoll/api/scheduling/v1beta1"
)

// state is what watches of the API server have shown so far.
type state struct {
	journal *journal
	cancel  context.CancelFunc
	cache   cache.Cache

	mu           sync.Mutex // guards the fields below
	pods         map[types.UID]*corev1.Pod
	atoll        bool // Atoll's kinds are watched too
	availability *availability
	last         *picture
	// changed is closed and replaced whenever last changes.
	changed chan struct{}
}

func newState(j *journal) *state {
	return &state{
		journal: j, cancel: func() {}, last: &picture{},
		pods: map[types.UID]*corev1.Pod{}, changed: make(chan struct{}),
	}
}

// stop ends all watches. The last state is kept.
func (s *state) stop() { s.cancel() }

// watchCore watches Kubernetes' own kinds until stop.
func (s *state) watchCore(ctx context.Context, config *rest.Config) error {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, gm.AddToScheme, apps.AddToScheme, capacity.AddToScheme, scheduling.AddToScheme} {
		if err := add(scheme); err != nil {
			return fmt.Errorf("making a scheme: %w", err)
		}
	}
	var err error
	s.cache, err = cache.New(config, cache.Options{
		Scheme: scheme,
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}:        {Namespaces: map[string]cache.Config{namespace: {}}},
			&appsv1.Deployment{}: {Namespaces: map[string]cache.Config{namespace: {}}},
			&eventsv1.Event{}:    {Namespaces: map[string]cache.Config{namespace: {}}},
		},
		DefaultWatchErrorHandler: s.interrupted,
	})
	if err != nil {
		return fmt.Errorf("making a cache: %w", err)
	}
	var running context.Context
	running, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	go func() { _ = s.cache.Start(running) }()
	refresh := toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { s.refresh() },
		UpdateFunc: func(_, _ any) { s.refresh() },
		DeleteFunc: func(any) { s.refresh() },
	}
	pods := toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { s.observePod(o, false) },
		UpdateFunc: func(_, o any) { s.observePod(o, false) },
		DeleteFunc: func(o any) { s.observePod(o, true) },
	}
	events := toolscache.ResourceEventHandlerFuncs{
		AddFunc:    s.observeEvent,
		UpdateFunc: func(_, o any) { s.observeEvent(o) },
	}
	for _, w := range []struct {
		object  client.Object
		handler toolscache.ResourceEventHandler
	}{{&corev1.Node{}, refresh}, {&appsv1.Deployment{}, refresh}, {&corev1.Pod{}, pods}, {&eventsv1.Event{}, events}} {
		if err := s.watch(ctx, w.object, w.handler); err != nil {
			return err
		}
	}
	return nil
}

// watchAtoll also watches Atoll's kinds, once they are installed.
func (s *state) watchAtoll(ctx context.Context) error {
	refresh := toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { s.refresh() },
		UpdateFunc: func(_, _ any) { s.refresh() },
		DeleteFunc: func(any) { s.refresh() },
	}
	for _, object := range []client.Object{&gm.NodeGroup{}, &gm.PropagationPolicy{}, &gm.OverridePolicy{}} {
		if err := s.watch(ctx, object, refresh); err != nil {
			return err
		}
	}
	s.mu.Lock()
	s.atoll = true
	s.mu.Unlock()
	s.refresh()
	return nil
}

func (s *state) watch(ctx context.Context, object client.Object, handler toolscache.ResourceEventHandler) error {
	informer, err := s.cache.GetInformer(ctx, object)
	if err != nil {
		return fmt.Errorf("watching %T: %w", object, err)
	}
	registration, err := informer.AddEventHandler(handler)
	if err != nil {
		return fmt.Errorf("watching %T: %w", object, err)
	}
	if !toolscache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		return fmt.Errorf("watching %T: %w", object, ctx.Err())
	}
	return nil
}

// interrupted handles a failed list or watch. After a new list, events in between may be
// missing.
func (s *state) interrupted(_ context.Context, _ *toolscache.Reflector, err error) {
	if errors.Is(err, io.EOF) {
		return // a normal end of a watch; the next one continues from its last version
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.availability != nil {
		s.availability.gaps++
	}
}

func (s *state) observePod(o any, gone bool) {
	if tombstone, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
		o = tombstone.Obj
	}
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return
	}
	s.mu.Lock()
	if gone {
		delete(s.pods, pod.UID)
	} else {
		s.pods[pod.UID] = pod
	}
	if s.availability != nil {
		s.availability.observe(pod, gone)
	}
	s.mu.Unlock()
	s.refresh()
}

// watchAvailability counts from now on how many of the wanted pods are not available.
func (s *state) watchAvailability(wanted int) {
	s.mu.Lock()
	s.availability = newAvailability(wanted)
	for _, pod := range s.pods {
		s.availability.begin(pod)
	}
	s.mu.Unlock()
	s.refresh()
}

// refresh composes a new picture, and wakes the waiters if it is different.
func (s *state) refresh() {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.objectsLocked()
	if !ok {
		return
	}
	next := compose(o)
	if s.availability != nil {
		copied := *s.availability
		copied.serving = nil
		next.availability = &copied
	}
	for _, text := range changes(s.last, next) {
		s.journal.add(change, "%s", text)
	}
	s.last = next
	close(s.changed)
	s.changed = make(chan struct{})
}

// objectsLocked reads the caches; ok is false while one of them cannot be read.
func (s *state) objectsLocked() (o objects, ok bool) {
	ctx := context.Background()
	o.pods = slices.Collect(maps.Values(s.pods))
	var nodes corev1.NodeList
	var deployments appsv1.DeploymentList
	var groups gm.NodeGroupList
	var propagation gm.PropagationPolicyList
	var override gm.OverridePolicyList
	lists := []client.ObjectList{&nodes, &deployments}
	if s.atoll {
		lists = append(lists, &groups, &propagation, &override)
	}
	for _, list := range lists {
		if err := s.cache.List(ctx, list); err != nil {
			return o, false
		}
	}
	o.nodes, o.groups, o.propagation, o.override = nodes.Items, groups.Items, propagation.Items, override.Items
	for i := range deployments.Items {
		if deployments.Items[i].Name == deployment {
			o.deployment = &deployments.Items[i]
		}
	}
	return o, true
}

// picture returns the last picture.
func (s *state) picture() *picture {
	p, _ := s.next()
	return p
}

// next returns the last picture, and a channel that is closed when there is another.
func (s *state) next() (*picture, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last, s.changed
}

// await returns the first picture that fulfils the condition, or the last one and an
// error.
func (s *state) await(ctx context.Context, is func(*picture) bool) (*picture, error) {
	for {
		p, changed := s.next()
		if is(p) {
			return p, nil
		}
		select {
		case <-ctx.Done():
			return p, ctx.Err()
		case <-changed:
		}
	}
}

func (s *state) observeEvent(o any) {
	if e, ok := o.(*eventsv1.Event); ok {
		if text, ok := textOfEvent(e); ok {
			s.journal.add(event, "%s", text)
		}
	}
}

// shownReasons are reasons of Kubernetes' own events that explain why a pod moves or
// changes. All events of Atoll and all warnings are also shown.
var shownReasons = []string{"Scheduled", "Killing", "Evicted", "TaintManagerEviction"}

func textOfEvent(e *eventsv1.Event) (string, bool) {
	ours := strings.Contains(e.ReportingController, "atoll") || e.Reason == "SurplusPodEvicted" || e.Reason == "ImagesOverridden"
	if !ours && e.Type != corev1.EventTypeWarning && !slices.Contains(shownReasons, e.Reason) {
		return "", false
	}
	return fmt.Sprintf("%s %s/%s: %s", e.Reason, strings.ToLower(e.Regarding.Kind), e.Regarding.Name, e.Note), true
}

// availability counts, after every change of any pod, how many pods are
// missing of those that are wanted.
type availability struct {
	wanted, missing, worst int
	// gaps is the number of times that a watch was interrupted: changes in these times
	// are not known.
	gaps    int
	serving map[types.UID]bool
}

func newAvailability(wanted int) *availability {
	return &availability{wanted: wanted, serving: map[types.UID]bool{}}
}

// begin records a pod that exists already.
func (a *availability) begin(pod *corev1.Pod) {
	if serves(pod) {
		a.serving[pod.UID] = true
	}
	a.missing = max(0, a.wanted-len(a.serving))
}

func (a *availability) observe(pod *corev1.Pod, gone bool) {
	if !gone && serves(pod) {
		a.serving[pod.UID] = true
	} else {
		delete(a.serving, pod.UID)
	}
	a.missing = max(0, a.wanted-len(a.serving))
	a.worst = max(a.worst, a.missing)
}
