package podgroup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/gangs"
	"github.com/atoll-k8s/atoll/internal/machinery/patch"
	"github.com/atoll-k8s/atoll/internal/owners"
)

// LastGoodAnnotation keeps, on the ConfigMap, the last rules that could be used: a
// replica that starts while the text is wrong begins with them.
const LastGoodAnnotation = "atoll.dev/last-good-podgroup-rules"

const (
	// lookEvery is how often is looked whether rules can match by now, and whether
	// owners can be read.
	lookEvery = 2 * time.Minute
	// lookAgain is when is looked again where the API server did not answer as it should.
	lookAgain = 5 * time.Second
	// unwatchedFor is how long a refusal of the watch counts: it is tried again within a
	// minute.
	unwatchedFor = time.Minute
	// askers is how many rules are asked about at a time.
	askers = 8
	// unreadFor is how long it is told that an owner could not be read, and maxUnread
	// bounds the kinds of them.
	unreadFor, maxUnread = 10 * time.Minute, 30
	// askTime bounds the questions about all rules.
	askTime = 10 * time.Second
	// lookRest is how long is rested between two looks: somebody may edit the rules all
	// the time.
	lookRest = time.Second
)

// Rules keeps the rules of the ConfigMap in force, on every replica. The one that leads
// tells what is wrong.
type Rules struct {
	Client kubernetes.Interface
	// Discovery is asked which kinds are served. Its client has a timeout.
	Discovery discovery.DiscoveryInterface
	// ConfigMap is where the rules are.
	ConfigMap types.NamespacedName
	Resolver  *gangs.Resolver
	Recorder  events.EventRecorder
	// Leads tells whether this replica tells of what it finds.
	Leads func() bool

	onChange func()
	// woken: something has changed since the last look.
	woken atomic.Bool

	mu sync.Mutex
	// config is the ConfigMap, nil if there is none; text is the text in force.
	config *corev1.ConfigMap
	text   *string
	// accepted: the text in force is that of a ConfigMap as it was, and not of its annotation.
	accepted bool
	// rejected is what is wrong with the ConfigMap's text, and notes are about what is
	// in force.
	rejected error
	notes    []string
	// unread are the kinds of owners that could not be read, and why.
	unread map[schema.GroupKind]write[unread]
	// asked is what was wrong with each rule when the API server said last.
	asked map[ownership.LevelRule]string
	// unwatched is the last time that the watch was refused, and unreadable how many looks in a row
	// could not read the ConfigMap.
	unwatched  write[error]
	unreadable int
	// reported is the last event of each reason.
	reported reported[string]
}

// Start watches the ConfigMap until ctx is done.
func (r *Rules) Start(ctx context.Context) error {
	selector := fields.OneTermEqualSelector(metav1.ObjectNameField, r.ConfigMap.Name)
	informer := cache.NewSharedIndexInformer(
		cache.NewListWatchFromClient(r.Client.CoreV1().RESTClient(), "configmaps", r.ConfigMap.Namespace, selector), &corev1.ConfigMap{}, 0, cache.Indexers{},
	)
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { r.setObject(obj) },
		UpdateFunc: func(_, obj any) { r.setObject(obj) },
		DeleteFunc: func(any) { r.Set(nil) },
	})
	if err != nil {
		return fmt.Errorf("watching ConfigMap %s: %w", r.ConfigMap, err)
	}
	err = informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, reflector *cache.Reflector, err error) {
		cache.DefaultWatchErrorHandler(ctx, reflector, err)
		r.watchFailed(err)
	})
	if err != nil {
		return fmt.Errorf("watching ConfigMap %s: %w", r.ConfigMap, err)
	}
	var running sync.WaitGroup
	running.Go(func() { informer.RunWithContext(ctx) })
	running.Go(func() {
		if cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
			r.setNone()
		}
	})
	running.Go(func() { r.lookOn(ctx) })
	running.Wait()
	return nil
}

// lookOn looks when something has changed, when this replica comes to lead, and now and
// then, until ctx is done.
func (r *Rules) lookOn(ctx context.Context) {
	tick := time.NewTicker(lookRest)
	defer tick.Stop()
	var last time.Time
	led, failed := false, false
	for {
		leads := r.Leads()
		every := lookEvery
		if failed {
			every = lookAgain
		}
		if leads && (r.woken.Swap(false) || !led || time.Since(last) >= every) {
			failed = !r.look(ctx)
			last = time.Now()
		}
		led = leads
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// NeedLeaderElection is false: every replica admits pods.
func (r *Rules) NeedLeaderElection() bool { return false }

func (r *Rules) setObject(obj any) {
	if config, ok := obj.(*corev1.ConfigMap); ok {
		r.Set(config)
	}
}

// Set puts the rules of a ConfigMap in force if they are right; nil is none, which has
// no rules.
func (r *Rules) Set(config *corev1.ConfigMap) {
	r.mu.Lock()
	changed := r.setLocked(config)
	r.mu.Unlock()
	if changed && r.onChange != nil {
		r.onChange()
	}
	r.woken.Store(true)
}

// setNone puts no rules in force where the watch has shown no ConfigMap.
func (r *Rules) setNone() {
	r.mu.Lock()
	changed := r.text == nil && r.setLocked(nil)
	r.mu.Unlock()
	if changed && r.onChange != nil {
		r.onChange()
	}
	r.woken.Store(true)
}

// watchFailed records that the ConfigMap may not be listed or watched. Failures that pass
// are no concern of people, and those that last keep it from being read too.
func (r *Rules) watchFailed(err error) {
	if !apierrors.IsForbidden(err) {
		return
	}
	r.mu.Lock()
	r.unwatched = write[error]{err, time.Now()}
	r.mu.Unlock()
	r.woken.Store(true)
}

func (r *Rules) setLocked(config *corev1.ConfigMap) (changed bool) {
	r.config, r.unwatched = config, write[error]{}
	text := ""
	if config != nil {
		text = config.Data[ownership.LevelsKey]
	}
	levels, notes, err := ownership.ParseLevels(text)
	r.rejected = err
	rejectedGauge.Set(0)
	if err == nil {
		r.accepted = config != nil
	} else {
		rejectedGauge.Set(1)
		if r.text != nil {
			return false // the rules before stay
		}
		text = config.Annotations[LastGoodAnnotation]
		if levels, notes, err = ownership.ParseLevels(text); err != nil {
			text, levels, notes = "", ownership.Levels{}, nil
		}
	}
	if r.text != nil && *r.text == text {
		return false
	}
	r.text, r.notes = &text, notes
	r.unread = nil
	r.Resolver.SetLevels(levels, time.Now())
	rulesGauge.Set(float64(len(levels.Rules)))
	ctrl.Log.WithName("gangs").Info("Rules for PodGroups in force", "rules", len(levels.Rules))
	return true
}

// note records what kept a walk from the topmost owner.
func (r *Rules) note(pod *gangs.Pod, end *owners.End) {
	if end == nil {
		return
	}
	endedTotal.WithLabelValues(string(end.Reason)).Inc()
	var why unread
	switch end.Reason {
	case owners.EndForbidden:
		why.resource = end.Resource
		why.text = fmt.Sprintf("atoll-manager may not get %s: label a ClusterRole that allows get, list and watch with atoll.dev/podgroup-owner-reader=true. Until then the owner below has the PodGroup", resourceOf(end))
	case owners.EndCycle, owners.EndTooDeep:
		why.text = fmt.Sprintf("the owners of pod %s do not end within %d steps, at %s %s: rules see no further", pod, ownership.MaxHops, end.At.Kind, end.At.Name)
	default:
		return // the garbage collector, or whoever made the reference, has to act
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.unread == nil {
		r.unread = map[schema.GroupKind]write[unread]{}
	}
	gk := end.At.GroupKind()
	if _, known := r.unread[gk]; !known {
		if len(r.unread) >= maxUnread {
			return
		}
		r.woken.Store(true)
	}
	r.unread[gk] = write[unread]{why, time.Now()}
}

// unread is why owners of a kind could not be read, and the resource that may not be.
type unread struct {
	text     string
	resource schema.GroupResource
}

func resourceOf(end *owners.End) string {
	if end.Resource.Resource != "" {
		return end.Resource.String()
	}
	return end.At.GroupKind().String()
}

// look tells what is wrong, and keeps the rules in force for a replica that starts later.
// It returns whether the API server answered as it should.
func (r *Rules) look(ctx context.Context) (answered bool) {
	if !r.Leads() {
		return true
	}
	if !r.lookReadable(ctx) {
		return false
	}
	r.mu.Lock()
	config, rejected, notes, text, accepted := r.config, r.rejected, slices.Clone(r.notes), ptr.Deref(r.text, ""), r.accepted
	r.mu.Unlock()
	levels := r.Resolver.Levels()
	if config == nil || levels == nil {
		problemsGauge.Set(0)
		for _, reason := range []string{ReasonRulesInForce, ReasonRulesRejected, ReasonRulesProblem} {
			r.reported.replace(reason, "")
		}
		return true
	}
	if accepted { // first what a replica that starts later needs
		switch err := r.remember(ctx, config, text); {
		case err == nil || ctx.Err() != nil:
		case patch.Refused(err):
			notes = append(notes, fmt.Sprintf("the annotation %s cannot be written, so that a replica that starts while the text is wrong has no rules: %v", LastGoodAnnotation, errors.Unwrap(err)))
		default:
			ctrl.Log.WithName("gangs").Error(err, "The last good rules are not kept yet")
			return false
		}
	}
	notes = append(notes, r.unmatched(ctx, levels)...)
	notes = append(notes, r.stillUnread(ctx)...)
	if levels.AtMostDirectOwner && slices.ContainsFunc(levels.Rules, func(rule ownership.LevelRule) bool { return rule.Adjust >= 0 }) || levels.AtMostDirectOwner && levels.NoMatch == ownership.NoMatchRoot {
		notes = append(notes, "several schedulers share the pods out by the name of their controller: no PodGroup is above it, whatever the rules say")
	}
	slices.Sort(notes)
	problemsGauge.Set(float64(len(notes)))
	r.recordRules(config, rejected, notes, len(levels.Rules))
	return true
}

// lookReadable tells whether the ConfigMap can be read, and tells people if it could not
// be twice in a row.
func (r *Rules) lookReadable(ctx context.Context) bool {
	err := r.read(ctx)
	r.mu.Lock()
	r.unreadable++
	if err == nil {
		r.unreadable = 0
	}
	lasting := r.unreadable > 1
	r.mu.Unlock()
	switch {
	case err == nil:
		unreadableGauge.Set(0)
		r.reported.replace(ReasonRulesUnreadable, "")
	case lasting:
		unreadableGauge.Set(1)
		r.recordUnreadable(err)
	}
	return err == nil
}

// stillUnread are the kinds of owners that could not be read a while ago. Whoever may not
// be read is asked about: no pod may have come since.
func (r *Rules) stillUnread(ctx context.Context) (notes []string) {
	bounded, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	r.mu.Lock()
	unread := maps.Clone(r.unread)
	r.mu.Unlock()
	for gk, why := range unread {
		if time.Since(why.at) > unreadFor && (why.value.resource.Empty() || r.mayGet(bounded, why.value.resource)) {
			r.mu.Lock()
			if r.unread[gk] == why { // no pod has met it since
				delete(r.unread, gk)
			}
			r.mu.Unlock()
			continue
		}
		notes = append(notes, why.value.text)
	}
	return notes
}

// mayGet tells whether atoll-manager may read objects. What the API server does not say
// counts as no.
func (r *Rules) mayGet(ctx context.Context, resource schema.GroupResource) bool {
	review, err := r.review(ctx, "get", resource)
	return err == nil && review.Status.Allowed
}

func (r *Rules) review(ctx context.Context, verb string, resource schema.GroupResource) (*authorizationv1.SelfSubjectAccessReview, error) {
	review, err := r.Client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: verb, Group: resource.Group, Resource: resource.Resource,
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("asking for permission to %s %s: %w", verb, resource, err)
	}
	return review, nil
}

// read tells whether the ConfigMap can be read and watched; one that does not exist can.
func (r *Rules) read(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	_, err := r.Client.CoreV1().ConfigMaps(r.ConfigMap.Namespace).Get(bounded, r.ConfigMap.Name, metav1.GetOptions{})
	if ctx.Err() != nil {
		return nil
	}
	err = client.IgnoreNotFound(err)
	if err != nil {
		return fmt.Errorf("reading ConfigMap %s: %w", r.ConfigMap, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.unwatched.value != nil && time.Since(r.unwatched.at) < unwatchedFor {
		return fmt.Errorf("watching ConfigMap %s: %w", r.ConfigMap, r.unwatched.value)
	}
	return nil
}

// unmatched finds rules whose kind the API server does not serve, or whose objects
// atoll-manager may not read. Where it does not answer, what it said before counts.
func (r *Rules) unmatched(ctx context.Context, levels *ownership.Levels) (notes []string) {
	bounded, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	said := make([]*string, len(levels.Rules))
	var asking sync.WaitGroup
	turn := make(chan struct{}, askers)
	for i, rule := range levels.Rules {
		if rule.AnyGroup {
			continue
		}
		asking.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			if note, ok := r.unmatchedRule(bounded, rule); ok {
				said[i] = &note
			}
		})
	}
	asking.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	asked := map[ownership.LevelRule]string{}
	for i, rule := range levels.Rules {
		note := r.asked[rule]
		if said[i] != nil {
			note = *said[i]
		}
		if note != "" {
			asked[rule] = note
			notes = append(notes, note)
		}
	}
	r.asked = asked
	return notes
}

// unmatchedRule tells what is wrong with a rule, and whether the API server said.
func (r *Rules) unmatchedRule(ctx context.Context, rule ownership.LevelRule) (note string, ok bool) {
	if ctx.Err() != nil {
		return "", false
	}
	gvk := schema.GroupVersionKind{Group: rule.ServedGroup(), Version: rule.Version, Kind: rule.Kind}
	kind, err := owners.Served(r.Discovery, gvk, rule.ExactVersion)
	if meta.IsNoMatchError(err) {
		return fmt.Sprintf("the API server does not serve a kind %s in group %q: the rule matches nothing until it does", rule.Kind, rule.Group), true
	}
	if err != nil {
		return "", false
	}
	if kind.Group == "" && kind.Kind != "Pod" {
		return fmt.Sprintf("atoll-manager reads no %s: the rule matches only pods whose own controller is one", kind.Kind), true
	}
	resource := schema.GroupResource{Group: kind.Group, Resource: kind.Resource}
	for _, verb := range readVerbs {
		review, err := r.review(ctx, verb, resource)
		if err != nil {
			return "", false
		}
		if !review.Status.Allowed {
			return fmt.Sprintf("atoll-manager may not %s %s: label a ClusterRole that allows get, list and watch with atoll.dev/podgroup-owner-reader=true", verb, resource), true
		}
	}
	return "", true
}

// readVerbs are what reading owners needs. Those that may be got and not watched are seen
// late.
var readVerbs = [...]string{"get", "list", "watch"}

// remember keeps a text that is right, on a ConfigMap that may have another by now.
func (r *Rules) remember(ctx context.Context, config *corev1.ConfigMap, text string) error {
	if config.Annotations[LastGoodAnnotation] == text {
		return nil
	}
	raw, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": config.UID, "resourceVersion": config.ResourceVersion, "annotations": map[string]string{LastGoodAnnotation: text},
	}})
	if err != nil {
		return fmt.Errorf("encoding a patch of a ConfigMap: %w", err)
	}
	_, err = r.Client.CoreV1().ConfigMaps(config.Namespace).Patch(ctx, config.Name, types.MergePatchType, raw, metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("keeping the rules of ConfigMap %s: %w", r.ConfigMap, err)
	}
	return nil
}
