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

// LastGoodAnnotation holds, on the ConfigMap, the last valid text of the rules. The leader
// writes it. A replica that starts while the text is invalid uses these rules.
const LastGoodAnnotation = "atoll.dev/last-good-podgroup-rules"

const (
	// checkEvery is how often the leader checks whether rules can match and owners can be
	// read, if nothing changes.
	checkEvery = 2 * time.Minute
	// recheckAfter is the pause before the next check if the ConfigMap could not be read or
	// its annotation not be written.
	recheckAfter = 5 * time.Second
	// unwatchedFor is how long a Forbidden watch counts as a failure. The informer tries
	// again within a minute: without a new failure by then, the watch works.
	unwatchedFor = time.Minute
	// checkers is the number of rules that are checked concurrently.
	checkers = 8
	// unreadFor is how long a kind of owners is reported after its last failed read. Then it
	// is reported only while RBAC still forbids the read. maxUnread bounds these kinds.
	unreadFor, maxUnread = 10 * time.Minute, 30
	// checkTimeout bounds the requests of one check of all rules.
	checkTimeout = 10 * time.Second
	// minPause is the shortest time between two checks, if the rules change all the time.
	minPause = time.Second
)

// Rules keeps the rules of the ConfigMap in force, on every replica. The leader also checks
// them, and records events about what is wrong. Safe for concurrent use.
type Rules struct {
	Client kubernetes.Interface
	// Discovery returns which kinds are served. Its client must have a timeout.
	Discovery discovery.DiscoveryInterface
	// ConfigMap holds the rules, under ownership.LevelsKey.
	ConfigMap types.NamespacedName
	Resolver  *gangs.Resolver
	Recorder  events.EventRecorder
	// Leads reports whether this replica is the leader.
	Leads func() bool

	// onChange is called when other rules come into force.
	onChange func()
	// woken: something has changed since the last check.
	woken atomic.Bool

	mu sync.Mutex
	// config is the ConfigMap, nil if it does not exist. text is the text in force, nil
	// before the first one.
	config *corev1.ConfigMap
	text   *string
	// accepted is true if the text in force was read from the data of the ConfigMap, and
	// false if it was read from LastGoodAnnotation. A later invalid text does not change it.
	accepted bool
	// rejected is why the text of the ConfigMap is invalid. notes are warnings about the
	// text in force.
	rejected error
	notes    []string
	// unread holds the kinds of owners that could not be read, with the reason and the time
	// of the last failure. The entry of Pod is that of noteNamedFirst.
	unread map[schema.GroupKind]write[unread]
	// checked holds what was wrong with each rule when the API server answered last.
	checked map[ownership.LevelRule]string
	// unwatched is the last Forbidden error of the watch. unreadable counts the checks in
	// a row that could not read the ConfigMap.
	unwatched  write[error]
	unreadable int
	// reported holds the last event of each reason.
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
	running.Go(func() { r.checkLoop(ctx) })
	running.Wait()
	return nil
}

// checkLoop checks the rules when something has changed, when this replica becomes the
// leader, some time (recheckAfter) after a check that failed, and every checkEvery, until ctx
// is done. Two
// checks are at least minPause apart.
func (r *Rules) checkLoop(ctx context.Context) {
	tick := time.NewTicker(minPause)
	defer tick.Stop()
	var last time.Time
	led, failed := false, false
	for {
		leads := r.Leads()
		every := checkEvery
		if failed {
			every = recheckAfter
		}
		if leads && (r.woken.Swap(false) || !led || time.Since(last) >= every) {
			failed = !r.check(ctx)
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

// Set puts the rules of a ConfigMap into force if they are valid. nil means that it does
// not exist: no rules.
func (r *Rules) Set(config *corev1.ConfigMap) {
	r.mu.Lock()
	changed := r.setLocked(config)
	r.mu.Unlock()
	if changed && r.onChange != nil {
		r.onChange()
	}
	r.woken.Store(true)
}

// setNone puts an empty set of rules into force if there is no ConfigMap. Call it after the
// first list. It does nothing if rules are in force.
func (r *Rules) setNone() {
	r.mu.Lock()
	changed := r.text == nil && r.setLocked(nil)
	r.mu.Unlock()
	if changed && r.onChange != nil {
		r.onChange()
	}
	r.woken.Store(true)
}

// watchFailed records that RBAC forbids to list or watch the ConfigMap. It ignores other
// errors: they end by themselves, or the next check reads the ConfigMap and reports the same
// error.
func (r *Rules) watchFailed(err error) {
	if !apierrors.IsForbidden(err) {
		return
	}
	r.mu.Lock()
	r.unwatched = write[error]{err, time.Now()}
	r.mu.Unlock()
	r.woken.Store(true)
}

// setLocked puts the rules of a ConfigMap into force, and reports whether they differ from
// the previous ones. If the text is invalid, or does not mention rules any more, the previous
// rules stay in force; if there are none, the rules of LastGoodAnnotation come into force.
func (r *Rules) setLocked(config *corev1.ConfigMap) (changed bool) {
	r.config, r.unwatched = config, write[error]{}
	text := ""
	if config != nil {
		text = config.Data[ownership.LevelsKey]
	}
	levels, notes, err := ownership.ParseLevels(text)
	if err == nil && config != nil && !levels.Stated && r.hadRulesLocked() {
		err = errEmptied
	}
	r.rejected = err
	rejectedGauge.Set(0)
	if err == nil {
		r.accepted = config != nil
	} else {
		rejectedGauge.Set(1)
		if r.text != nil {
			return false
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

// errEmptied: Volcano's chart makes the ConfigMap too, and an upgrade of it writes its own text.
var errEmptied = fmt.Errorf("%s has no rules any more, as after an upgrade of Volcano's chart: write the rules again, or podgroup-level-rules: [] if there are to be none", ownership.LevelsKey)

// hadRulesLocked reports whether the text in force, or else that of LastGoodAnnotation, says more
// than the default.
func (r *Rules) hadRulesLocked() bool {
	text := r.config.Annotations[LastGoodAnnotation]
	if r.text != nil {
		text = *r.text
	}
	levels, _, err := ownership.ParseLevels(text)
	return err == nil && (len(levels.Rules) > 0 || levels.NoMatch == ownership.NoMatchRoot || levels.MovePending)
}

// note records why the walk up the owners of a pod ended before the topmost owner. end is nil
// if the walk reached the topmost owner.
func (r *Rules) note(pod *gangs.Pod, end *owners.End) {
	if end == nil {
		return
	}
	endedTotal.WithLabelValues(string(end.Reason)).Inc()
	var why unread
	switch end.Reason {
	case owners.EndForbidden:
		why.resource = end.Resource
		why.text = fmt.Sprintf("atoll-manager is not allowed to get %s: label a ClusterRole that allows get, list and watch with atoll.dev/podgroup-owner-reader=true. Until then the PodGroup is made for the next lower owner", resourceOf(end))
	case owners.EndCycle, owners.EndTooDeep:
		why.text = fmt.Sprintf("pod %s has more than %d owners, or a cycle of owners: rules do not apply above %s %s", pod, ownership.MaxHops, end.At.Kind, end.At.Name)
	default:
		return // no rule and no RBAC change would help
	}
	r.noteProblem(end.At.GroupKind(), why)
}

// noteNamedFirst records that another client gave a pod the PodGroup of its controller, and a
// rule chooses the pod itself.
func (r *Rules) noteNamedFirst() {
	r.noteProblem(schema.GroupKind{Kind: "Pod"}, unread{text: "a rule chooses the pod itself, but another client wrote the PodGroup of its controller into a pod first: give Volcano's controllers the flag --controllers=*,-pg-controller,-sharding-controller"})
}

// noteProblem records a problem that pods meet, for unreadFor.
func (r *Rules) noteProblem(gk schema.GroupKind, why unread) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.unread == nil {
		r.unread = map[schema.GroupKind]write[unread]{}
	}
	if _, known := r.unread[gk]; !known {
		if len(r.unread) >= maxUnread {
			return
		}
		r.woken.Store(true)
	}
	r.unread[gk] = write[unread]{why, time.Now()}
}

// unread is why owners of a kind could not be read, and their resource if RBAC forbids it.
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

// check writes LastGoodAnnotation, and records events about the rules. It returns false if the
// ConfigMap could not be read, or if the write of the annotation failed and may succeed later.
// On a replica that does not lead it does nothing.
func (r *Rules) check(ctx context.Context) (answered bool) {
	if !r.Leads() {
		return true
	}
	if !r.checkReadable(ctx) {
		return false
	}
	r.mu.Lock()
	config, rejected, notes, text, accepted := r.config, r.rejected, slices.Clone(r.notes), ptr.Deref(r.text, ""), r.accepted
	r.mu.Unlock()
	levels := r.Resolver.Levels()
	if config == nil || levels == nil {
		problemsGauge.Set(0)
		for _, reason := range []string{ReasonPodGroupRulesInForce, ReasonPodGroupRulesRejected, ReasonPodGroupRulesProblem} {
			r.reported.replace(reason, "")
		}
		return true
	}
	if accepted { // first, because replicas that start later depend on it
		switch err := r.remember(ctx, config, text); {
		case err == nil || ctx.Err() != nil:
		case patch.Refused(err):
			notes = append(notes, fmt.Sprintf("the annotation %s cannot be written: %v. A replica that starts while the text is invalid uses the rules of an older annotation, or none", LastGoodAnnotation, errors.Unwrap(err)))
		default:
			ctrl.Log.WithName("gangs").Error(err, "The last valid rules are not written to the annotation yet")
			return false
		}
	}
	notes = append(notes, r.unmatched(ctx, levels)...)
	notes = append(notes, r.stillUnread(ctx)...)
	if levels.AtMostDirectOwner && slices.ContainsFunc(levels.Rules, func(rule ownership.LevelRule) bool { return rule.Adjust >= 0 }) || levels.AtMostDirectOwner && levels.NoMatch == ownership.NoMatchRoot {
		notes = append(notes, "several Volcano schedulers divide the pods by the name of their controller, so a PodGroup must not contain pods of several controllers: a rule that chooses an owner above the controller chooses the controller instead")
	}
	slices.Sort(notes)
	problemsGauge.Set(float64(len(notes)))
	r.recordRules(config, rejected, notes, len(levels.Rules))
	return true
}

// checkReadable reports whether the ConfigMap can be read. It records an event at the second
// failure in a row.
func (r *Rules) checkReadable(ctx context.Context) bool {
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
		r.reported.replace(ReasonPodGroupRulesUnreadable, "")
	case lasting:
		unreadableGauge.Set(1)
		r.recordUnreadable(err)
	}
	return err == nil
}

// stillUnread returns a note for each kind of owners that could not be read. If the last
// failure of a kind is older than unreadFor, stillUnread asks the API server whether RBAC
// allows the read now: perhaps no pod with such an owner was created since then.
func (r *Rules) stillUnread(ctx context.Context) (notes []string) {
	bounded, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	r.mu.Lock()
	unread := maps.Clone(r.unread)
	r.mu.Unlock()
	for gk, why := range unread {
		if time.Since(why.at) > unreadFor && (why.value.resource.Empty() || r.mayGet(bounded, why.value.resource)) {
			r.mu.Lock()
			if r.unread[gk] == why { // no other walk has failed since
				delete(r.unread, gk)
			}
			r.mu.Unlock()
			continue
		}
		notes = append(notes, why.value.text)
	}
	return notes
}

// mayGet reports whether RBAC allows atoll-manager to get objects of a resource. It is
// false if the request fails.
func (r *Rules) mayGet(ctx context.Context, resource schema.GroupResource) bool {
	review, err := r.review(ctx, "get", resource)
	return err == nil && review.Status.Allowed
}

// review asks the API server whether RBAC allows a verb on a resource in all namespaces.
func (r *Rules) review(ctx context.Context, verb string, resource schema.GroupResource) (*authorizationv1.SelfSubjectAccessReview, error) {
	review, err := r.Client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: verb, Group: resource.Group, Resource: resource.Resource,
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("reviewing access to %s %s: %w", verb, resource, err)
	}
	return review, nil
}

// read returns an error if the ConfigMap cannot be read or watched. A ConfigMap that does not
// exist is no error.
func (r *Rules) read(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, checkTimeout)
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

// unmatched returns a note for each rule whose kind the API server does not serve, or whose
// objects atoll-manager is not allowed to read. If the API server does not
// answer about a rule, the note is that of the last answer.
func (r *Rules) unmatched(ctx context.Context, levels *ownership.Levels) (notes []string) {
	bounded, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	answers := make([]*string, len(levels.Rules)) // nil for a check that failed
	var checking sync.WaitGroup
	slots := make(chan struct{}, checkers)
	for i, rule := range levels.Rules {
		if rule.AnyGroup {
			continue
		}
		checking.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if note, ok := r.unmatchedRule(bounded, rule); ok {
				answers[i] = &note
			}
		})
	}
	checking.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	checked := map[ownership.LevelRule]string{}
	for i, rule := range levels.Rules {
		note := r.checked[rule]
		if answers[i] != nil {
			note = *answers[i]
		}
		if note != "" {
			checked[rule] = note
			notes = append(notes, note)
		}
	}
	r.checked = checked
	return notes
}

// unmatchedRule returns what is wrong with a rule, "" if nothing is. ok is false if the API
// server did not answer.
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
		return fmt.Sprintf("atoll-manager does not read kind %s of the core group: the rule matches only pods whose direct controller is of this kind", kind.Kind), true
	}
	resource := schema.GroupResource{Group: kind.Group, Resource: kind.Resource}
	for _, verb := range readVerbs {
		review, err := r.review(ctx, verb, resource)
		if err != nil {
			return "", false
		}
		if !review.Status.Allowed {
			return fmt.Sprintf("atoll-manager is not allowed to %s %s: label a ClusterRole that allows get, list and watch with atoll.dev/podgroup-owner-reader=true", verb, resource), true
		}
	}
	return "", true
}

// readVerbs are the RBAC verbs that are needed to read owners. If only get is allowed, edits of
// an owner are noticed when it is read the next time.
var readVerbs = [...]string{"get", "list", "watch"}

// remember writes a valid text to LastGoodAnnotation. The text of the ConfigMap itself may
// be another, invalid one.
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
		return fmt.Errorf("writing the annotation of ConfigMap %s: %w", r.ConfigMap, err)
	}
	return nil
}
