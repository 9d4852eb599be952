package workload

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	overrides "github.com/atoll-k8s/atoll/internal/domain/override"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/machinery/conditions"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/policies"
)

const (
	// trialName is the name of the PodTemplate that is never stored.
	trialName = "atoll-override-trial"
	// retryTrial is how soon is asked again at the latest where the API server
	// did not answer. It doubles up to maxRetryTrial.
	retryTrial, maxRetryTrial = time.Second, time.Minute
	// trialTimeout bounds one question.
	trialTimeout = 5 * time.Second
	// maxTrying is how many workers may ask at a time: a webhook of somebody else
	// that hangs may sit on PodTemplates, and other workloads go on all the same.
	maxTrying = workers / 2
	// retryTurn is how soon a workload asks for its turn again.
	retryTurn = 500 * time.Millisecond
	// maxRefusal bounds the API server's words in a condition.
	maxRefusal = 700
)

// Pods are tried as PodTemplates, which the API server validates as it does
// pods and which no controller acts on. The right to create those is harmless.
// The right to create pods in every namespace, which a dry run of a pod would
// need as well, lets its holder run anything as anybody.
//
// +kubebuilder:rbac:groups="",resources=podtemplates,verbs=create

// try asks the API server whether it takes the pods that the rules make of the
// workload's template, if it was not asked about the same before. What comes of
// it is kept in the Policies. The error asks to come back: the API server did not
// answer, or too many others ask now. The workload is to stay as it is.
func (r *Reconciler) try(ctx context.Context, app *ownership.Object, policy *gm.OverridePolicy, rules *overrides.Rules) error {
	plan := r.Policies.TrialPlan(ctx, app, policy, rules)
	if len(plan.Groups) == 0 {
		r.Policies.DropTrial(app.UID)
		return nil
	}
	last, tried := r.Policies.Trial(app.UID)
	if tried && last.Key == plan.Key {
		if last.Untried == nil {
			return nil
		}
		if left := last.Again.Sub(r.Clock.Now()); left > 0 {
			return phase.Wait("the API server to try an override", left)
		}
	}
	defer r.trying.Add(-1)
	if r.trying.Add(1) > maxTrying {
		return phase.Wait("other overrides to be tried", retryTurn)
	}
	ctx, cancel := context.WithTimeout(ctx, trialTimeout)
	defer cancel()
	next := policies.Trial{Key: plan.Key, Rules: plan.Rules, Refused: last.Refused}
	template, err := r.template(ctx, app)
	if err == nil {
		next.Template = hashOf(template)
		if tried && last.Untried == nil && last.Rules == plan.Rules && last.Template == next.Template {
			r.Policies.SetTrial(app.UID, next) // only the number of pods has changed
			return nil
		}
		next.Refused, err = r.tryGroups(ctx, app, template, rules, plan.Groups)
	}
	if apierrors.IsNotFound(err) {
		return nil // the workload is gone
	}
	if err != nil {
		next.Untried, next.Refused = err, last.Refused
		next.Wait = min(maxRetryTrial, max(retryTrial, 2*last.Wait))
		next.Again = r.Clock.Now().Add(next.Wait)
		r.Policies.SetTrial(app.UID, next)
		log.FromContext(ctx).Info("An override could not be tried", "kind", app.Kind, "workload", app.Namespace+"/"+app.Name, "why", err.Error())
		return phase.Wait("the API server to try an override", next.Wait)
	}
	r.Policies.SetTrial(app.UID, next)
	return nil
}

// template reads the template of a workload's pods as it is now.
func (r *Reconciler) template(ctx context.Context, app *ownership.Object) (*corev1.PodTemplateSpec, error) {
	object := &unstructured.Unstructured{} // read from the API server: the cache holds no such objects
	object.SetGroupVersionKind(app.GroupVersionKind)
	if err := r.Client.Get(ctx, client.ObjectKey{Namespace: app.Namespace, Name: app.Name}, object); err != nil {
		return nil, fmt.Errorf("reading %s %s/%s: %w", app.Kind, app.Namespace, app.Name, err)
	}
	path := r.Walker.PodTemplatePath(app.GroupKind())
	fields, found, err := unstructured.NestedMap(object.Object, path...)
	if err != nil || !found {
		return nil, fmt.Errorf("reading %s %s/%s: no template of pods at .%s", app.Kind, app.Namespace, app.Name, strings.Join(path, "."))
	}
	template := &corev1.PodTemplateSpec{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(fields, template); err != nil {
		return nil, fmt.Errorf("reading the template of %s %s/%s: %w", app.Kind, app.Namespace, app.Name, err)
	}
	return template, nil
}

func hashOf(template *corev1.PodTemplateSpec) string {
	text, err := json.Marshal(template)
	if err != nil { // it was decoded from JSON
		text = []byte(err.Error())
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// errBase: the API server refuses the template as it is, so it is not the rules
// that have to be mended.
var errBase = errors.New("the API server refuses the template of the workload itself")

// tryGroups returns the API server's refusal of the first group in which there
// is one. err: it could not be asked.
func (r *Reconciler) tryGroups(
	ctx context.Context, app *ownership.Object, template *corev1.PodTemplateSpec, rules *overrides.Rules, groups []string,
) (refused, err error) {
	for _, group := range groups {
		refusal, err := r.tryRules(ctx, app, template, rules, group)
		if refusal == nil && err == nil {
			continue
		}
		if err != nil {
			return nil, err
		}
		if base, err := r.tryFewer(ctx, app, template, rules.First(0), group); err != nil || base != nil {
			return nil, errors.Join(err, asUntried(base))
		}
		return r.culprit(ctx, app, template, rules, group, refusal)
	}
	return nil, nil
}

func asUntried(refusal error) error {
	if refusal == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", errBase, refusal)
}

// culprit finds the rule with which the refusal begins.
func (r *Reconciler) culprit(
	ctx context.Context, app *ownership.Object, template *corev1.PodTemplateSpec, rules *overrides.Rules, group string, refusal error,
) (refused, err error) {
	var acting []int // the rules that do something in the group, from 1
	for i := 1; i <= rules.Len(); i++ {
		if rules.First(i).Hash(group) != rules.First(i-1).Hash(group) {
			acting = append(acting, i)
		}
	}
	n := acting[len(acting)-1]
	for _, i := range acting[:len(acting)-1] {
		early, err := r.tryFewer(ctx, app, template, rules.First(i), group)
		if err != nil {
			return nil, err
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
	return policies.Refusal{RuleError: overrides.RuleError{
		Rule: n - 1, Overrider: rules.Path(n), Err: fmt.Errorf("the API server refuses the pod that it makes %s: %w", where, refusal),
	}}, nil
}

// tryFewer tries some of the rules after all of them were refused. What is
// forbidden to them is not what made the others invalid: the API server looks
// at quotas once an object is valid.
func (r *Reconciler) tryFewer(
	ctx context.Context, app *ownership.Object, template *corev1.PodTemplateSpec, rules *overrides.Rules, group string,
) (refused, err error) {
	refused, err = r.tryRules(ctx, app, template, rules, group)
	if apierrors.IsForbidden(err) {
		return nil, nil
	}
	return refused, err
}

// tryRules tries what the rules make of the template in one group.
func (r *Reconciler) tryRules(
	ctx context.Context, app *ownership.Object, template *corev1.PodTemplateSpec, rules *overrides.Rules, group string,
) (refused, err error) {
	pod := &corev1.Pod{ObjectMeta: *template.ObjectMeta.DeepCopy(), Spec: *template.Spec.DeepCopy()}
	if rules.Apply(group, pod) != nil {
		return nil, nil //nolint:nilerr // the pod that is created shows it: there may be more to it than its template
	}
	_, err = r.Pods.CoreV1().PodTemplates(app.Namespace).Create(ctx, &corev1.PodTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: trialName},
		Template:   corev1.PodTemplateSpec{ObjectMeta: pod.ObjectMeta, Spec: pod.Spec},
	}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	switch {
	case err == nil, apierrors.IsAlreadyExists(err):
		return nil, nil
	case apierrors.IsInvalid(err):
		return errors.New(refusalText(err)), nil
	}
	return nil, fmt.Errorf("trying the override of %s %s/%s: %w", app.Kind, app.Namespace, app.Name, err)
}

// refusalText is what the API server says, with paths as they are in a pod.
func refusalText(err error) string {
	text := err.Error()
	var status apierrors.APIStatus
	if errors.As(err, &status) && status.Status().Details != nil && len(status.Status().Details.Causes) > 0 {
		parts := make([]string, 0, len(status.Status().Details.Causes))
		for _, cause := range status.Status().Details.Causes {
			parts = append(parts, strings.TrimPrefix(cause.Field, "template.")+": "+cause.Message)
		}
		text = strings.Join(parts, "; ")
	}
	return conditions.Truncate(text, maxRefusal)
}
