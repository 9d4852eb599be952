package workload

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	overrides "github.com/atoll-k8s/atoll/internal/domain/override"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/policies"
)

const (
	// retryTrial is the wait after a trial that the API server did not answer. It doubles
	// up to maxRetryTrial.
	retryTrial, maxRetryTrial = time.Second, time.Minute
	// retryRefused is the wait after a trial that the API server answered. It doubles up to
	// maxRetryRefused. Quotas, admission policies and namespaces change without an event.
	retryRefused, maxRetryRefused = 30 * time.Second, 5 * time.Minute
	// askTimeout bounds each request of a trial. Admission webhooks for pods may take as
	// long by default.
	askTimeout = 10 * time.Second
	// turn is how long a worker tries the groups of one workload; it begins no request after
	// that. The next turn goes on with the other groups.
	turn = 5 * time.Second
	// maxTrying is the number of workers that may try at a time. An admission webhook for
	// pods may hang; the other workers must go on.
	maxTrying = workers / 2
	// retryTurn is the wait for another worker to end its trial.
	retryTurn = 500 * time.Millisecond
)

// try finds out whether the API server accepts the pods that the rules make of the
// workload's template, unless the same was tried before. The result is stored in
// Policies. An error is a wait: the API server did not answer, or maxTrying other workers
// are trying. The binding of the workload must not change then. try sets s.retrial.
func (r *Reconciler) try(ctx context.Context, s *scope, policy *gm.OverridePolicy, rules *overrides.Rules) error {
	workload := s.workload
	plan := r.Policies.TrialPlan(ctx, workload, policy, rules)
	if len(plan.Groups) == 0 {
		r.Policies.DropTrial(workload.UID)
		return nil
	}
	last, tried := r.Policies.Trial(workload.UID)
	repeated := tried && last.Key == plan.Key
	if repeated {
		if settled, wait := r.untilRetrial(s, last); settled {
			return wait
		}
	}
	if !r.slots.take(workload.Namespace, r.Clock.Now()) {
		return phase.Wait("other overrides to be tried", retryTurn)
	}
	defer r.slots.give()
	started := r.Clock.Now()
	template, err := r.template(ctx, workload)
	// Until the API server answers, the last refusal stays in force.
	next := policies.Trial{Key: plan.Key, Rules: plan.Rules, Refused: last.Refused, Doubt: last.Doubt, Answer: last.Answer}
	if err != nil && last.Rules == plan.Rules { // the next turn goes on from there if the template is still the same
		next.Template, next.Accepted = last.Template, last.Accepted
	}
	if err == nil {
		next.Template = hashOf(template)
		same := tried && last.Untried == nil && last.Rules == plan.Rules && last.Template == next.Template
		if same && !repeated { // only the number of pods has changed
			last.Key = plan.Key
			r.Policies.SetTrial(workload.UID, last)
			_, wait := r.untilRetrial(s, last)
			return wait
		}
		t := &trial{r: r, workload: workload, template: template, rules: rules, until: started.Add(turn)}
		if same {
			t.last = last
		}
		if tried && last.Untried != nil && last.Rules == plan.Rules && last.Template == next.Template {
			next.Accepted = last.Accepted.Clone()
		}
		err = t.tryGroups(ctx, plan.Groups, &next)
	}
	if apierrors.IsNotFound(err) && (template == nil || isGone(err)) {
		return nil // the workload or its namespace was deleted
	}
	first, most := retryRefused, maxRetryRefused
	if next.Untried = err; err != nil {
		next.Refused, next.Answer = last.Refused, last.Answer
		if next.Accepted.Len() == 0 {
			next.Doubt = last.Doubt
		}
		first, most = retryTrial, maxRetryTrial
		log.FromContext(ctx).Info("An override could not be tried", "kind", workload.Kind, "workload", workload.Namespace+"/"+workload.Name, "why", err.Error())
	}
	next.Wait = first
	goesOn := err != nil && next.Accepted.Len() > last.Accepted.Len()
	if repeated && !goesOn && (last.Untried == nil) == (err == nil) && (last.Refused == nil) == (next.Refused == nil) {
		next.Wait = min(most, max(first, 2*last.Wait))
	}
	next.Again = r.Clock.Now().Add(next.Wait)
	r.Policies.SetTrial(workload.UID, next)
	_, wait := r.untilRetrial(s, next)
	return wait
}

// untilRetrial returns settled if the result of a trial needs no further trial now. It sets
// s.retrial if one follows later. wait is not nil if the API server has not answered yet.
func (r *Reconciler) untilRetrial(s *scope, last policies.Trial) (settled bool, wait error) {
	final := last.Untried == nil && last.Refused == nil && last.Doubt == nil
	if final && r.Walker.PodsRefused(r.Walker.Descendants(s.workload.UID)) == "" {
		return true, nil
	}
	left := last.Again.Sub(r.Clock.Now())
	switch {
	case left <= 0:
		return false, nil
	case last.Untried != nil:
		return true, phase.Wait("the API server to try an override", left)
	}
	s.retrial = phase.Wait("the next trial of an override", left)
	return true, nil
}

// template reads the current pod template of a workload, with the volumes that a
// StatefulSet adds for its claims.
func (r *Reconciler) template(ctx context.Context, workload *ownership.Object) (*corev1.PodTemplateSpec, error) {
	object := &unstructured.Unstructured{} // read from the API server: the cache holds no such objects
	object.SetGroupVersionKind(workload.GroupVersionKind)
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if err := r.Client.Get(ctx, client.ObjectKey{Namespace: workload.Namespace, Name: workload.Name}, object); err != nil {
		return nil, fmt.Errorf("reading %s %s/%s: %w", workload.Kind, workload.Namespace, workload.Name, err)
	}
	path := r.Walker.PodTemplatePath(workload.GroupKind())
	fields, found, err := unstructured.NestedMap(object.Object, path...)
	if err != nil || !found {
		return nil, fmt.Errorf("reading %s %s/%s: no pod template at .%s", workload.Kind, workload.Namespace, workload.Name, strings.Join(path, "."))
	}
	template := &corev1.PodTemplateSpec{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(fields, template); err != nil {
		return nil, fmt.Errorf("reading the template of %s %s/%s: %w", workload.Kind, workload.Namespace, workload.Name, err)
	}
	if workload.Group != appsv1.GroupName || workload.Kind != "StatefulSet" {
		return template, nil
	}
	set := &appsv1.StatefulSet{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, set); err != nil {
		return nil, fmt.Errorf("reading StatefulSet %s/%s: %w", workload.Namespace, workload.Name, err)
	}
	addClaims(template, set)
	return template, nil
}

// addClaims adds the volumes for the claims of a StatefulSet, as its controller does.
func addClaims(template *corev1.PodTemplateSpec, set *appsv1.StatefulSet) {
	for _, claim := range set.Spec.VolumeClaimTemplates {
		template.Spec.Volumes = slices.DeleteFunc(template.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == claim.Name })
		template.Spec.Volumes = append(template.Spec.Volumes, corev1.Volume{Name: claim.Name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: fmt.Sprintf("%s-%s-0", claim.Name, set.Name)},
		}})
	}
}

func hashOf(template *corev1.PodTemplateSpec) string {
	text, err := json.Marshal(template)
	if err != nil { // it was decoded from JSON
		text = []byte(err.Error())
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// errBase: the API server refuses the template without any rules, so the rules are not the
// cause.
var errBase = errors.New("the API server refuses the template of the workload itself")

// errTurnOver: the worker tries other workloads before it goes on with this one.
var errTurnOver = errors.New("not all NodeGroups of the workload have been tried yet")

// trial tries the rules of a policy with the template of one workload.
type trial struct {
	r        *Reconciler
	workload *ownership.Object
	template *corev1.PodTemplateSpec
	rules    *overrides.Rules
	// until is the end of the turn.
	until time.Time
	// last is the last trial of the same rules and the same template, if there was one.
	last policies.Trial

	// base is the API server's refusal of the pod without rules, or nil; known once
	// baseKnown is set.
	base      error
	baseKnown bool
}

// tryGroups sets the result of a trial. An error means that the API server could not be
// asked, or that the turn is over; groups without a refusal are not tried again then, and
// their Doubt stays. The first group with a refusal decides.
func (t *trial) tryGroups(ctx context.Context, groups []string, result *policies.Trial) error {
	result.Refused, result.Answer = nil, ""
	if result.Accepted.Len() == 0 {
		result.Doubt = nil
	}
	tried := false
	for _, group := range groups {
		hash := t.rules.Hash(group)
		if result.Accepted.Has(hash) {
			continue
		}
		if tried && t.isOver() {
			return errTurnOver
		}
		tried = true
		doubt := result.Doubt
		err := t.tryGroup(ctx, group, result)
		if err != nil {
			result.Doubt = doubt // the group is tried again
		}
		if err != nil || result.Refused != nil {
			return err
		}
		if result.Accepted == nil {
			result.Accepted = sets.New[string]()
		}
		result.Accepted.Insert(hash)
	}
	result.Accepted = nil
	return nil
}

// isOver reports whether the turn is over.
func (t *trial) isOver() bool { return !t.r.Clock.Now().Before(t.until) }

// tryGroup tries a pod of one group. If the API server refuses the pod without the rules
// too, or a pod cannot be tried, it tries a PodTemplate.
func (t *trial) tryGroup(ctx context.Context, group string, result *policies.Trial) error {
	refusal, err := t.ask(ctx, t.r.askPod, t.rules, group)
	if refusal != nil && err == nil {
		if isQuota(refusal) {
			t.baseKnown = false // pods come and go: only an answer after the refusal can be compared
		}
		err = t.tryBase(ctx)
	}
	switch {
	case errors.Is(err, errNoPodTrial):
		return t.tryTemplate(ctx, group, result)
	case err != nil || refusal == nil:
		return err
	}
	switch blame(refusal, t.base) {
	case onRules:
		if isQuota(refusal) && (t.runsIn(group) || !t.rules.TouchesImmutable(group)) {
			return nil // a successor gets what a pod of the same size has used; an image uses nothing
		}
		if isQuota(refusal) && t.base == nil {
			// A pod may have ended in between.
			if refusal, err = t.ask(ctx, t.r.askPod, t.rules, group); err != nil || refusal == nil {
				return err
			}
		}
		return t.refuse(ctx, group, refusal, result, func(ctx context.Context, rules *overrides.Rules) (refused, err error) {
			refused, err = t.ask(ctx, t.r.askPod, rules, group)
			if err != nil || refused == nil || blame(refused, t.base) != onRules {
				return nil, err
			}
			return refused, nil
		})
	case onTemplate:
		result.Doubt = fmt.Errorf("%w: %w", errBase, t.base)
	}
	return t.tryTemplate(ctx, group, result)
}

// tryBase tries the pod without rules.
func (t *trial) tryBase(ctx context.Context) (err error) {
	if !t.baseKnown {
		t.base, err = t.ask(ctx, t.r.askPod, t.rules.First(0), "")
		t.baseKnown = err == nil
	}
	return err
}

// runsIn reports whether a pod of the workload was created with the rules of the group.
func (t *trial) runsIn(group string) bool {
	hash := t.rules.FixedHash(group)
	for _, cohort := range t.r.Ledger.View(t.r.Walker.Descendants(t.workload.UID)) {
		for _, pod := range cohort.Pods {
			if hash != "" && pod.Overrides == hash {
				return true
			}
		}
	}
	return false
}

// tryTemplate tries a PodTemplate of one group. Admission of pods does not apply to
// PodTemplates. Rules that change only images need no such trial: their form is checked
// when the policy is compiled.
func (t *trial) tryTemplate(ctx context.Context, group string, result *policies.Trial) error {
	if !t.rules.TouchesImmutable(group) {
		return nil
	}
	refusal, err := t.ask(ctx, t.r.askTemplate, t.rules, group)
	if err != nil || refusal == nil {
		return err
	}
	// Forbidden is ignored after all rules were refused: the API server checks quotas after
	// validation, so the template is valid.
	fewer := func(ctx context.Context, rules *overrides.Rules) (refused, err error) {
		refused, err = t.ask(ctx, t.r.askTemplate, rules, group)
		if apierrors.IsForbidden(err) {
			return nil, nil
		}
		return refused, err
	}
	base, err := fewer(ctx, t.rules.First(0))
	if err != nil {
		return err
	}
	if base != nil {
		return fmt.Errorf("%w: %w", errBase, base)
	}
	return t.refuse(ctx, group, refusal, result, fewer)
}

// refuse sets the refusal of a group, with the first rule that causes it. ask returns the
// refusal of fewer rules. If the search for that rule does not end, the refusal has the last
// rule that acts in the group, and the next trial searches again.
func (t *trial) refuse(
	ctx context.Context, group string, refusal error, result *policies.Trial, ask func(context.Context, *overrides.Rules) (refused, err error),
) error {
	result.Answer = group + " " + refusal.Error()
	if t.last.Refused != nil && t.last.Answer == result.Answer {
		result.Refused = t.last.Refused
		return nil
	}
	hash := (*overrides.Rules).Hash
	if isQuota(refusal) {
		hash = (*overrides.Rules).FixedHash // an image uses nothing of a quota
	}
	var acting []int // the rules that change something in the group, counted from 1
	for i := 1; i <= t.rules.Len(); i++ {
		if hash(t.rules.First(i), group) != hash(t.rules.First(i-1), group) {
			acting = append(acting, i)
		}
	}
	n := acting[len(acting)-1]
	for _, i := range acting[:len(acting)-1] {
		if t.isOver() {
			result.Answer = "" // the refusal stands, whichever rule is the first
			break
		}
		early, err := ask(ctx, t.rules.First(i))
		if err != nil {
			result.Answer = ""
			break
		}
		if early != nil {
			n, refusal = i, early
			break
		}
	}
	where := fmt.Sprintf("in NodeGroup %q", group)
	if group == policies.AnyOtherGroup {
		where = "in NodeGroups that no rule names"
	}
	result.Refused = policies.Refusal{RuleError: overrides.RuleError{
		Rule: n - 1, Overrider: t.rules.Path(n), Err: fmt.Errorf("the API server refuses the pod with its changes %s: %w", where, refusal),
	}}
	return nil
}
