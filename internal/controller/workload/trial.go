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
	// retryTrial is the wait after a trial that the API server did not answer. It doubles
	// up to maxRetryTrial.
	retryTrial, maxRetryTrial = time.Second, time.Minute
	// trialTimeout bounds the trial of one workload.
	trialTimeout = 5 * time.Second
	// maxTrying is the number of workers that may try at a time. An admission webhook for
	// PodTemplates may hang; the other workers must go on.
	maxTrying = workers / 2
	// retryTurn is the wait for another worker to end its trial.
	retryTurn = 500 * time.Millisecond
	// maxRefusal bounds the API server's message in a condition, in bytes.
	maxRefusal = 700
)

// Overridden pods are tried as dry runs of PodTemplates. The API server validates these
// like pods, and no controller acts on them. Permission to create them is harmless. A dry
// run of a pod would need permission to create pods in every namespace, which allows its
// holder to run anything with any service account.
//
// +kubebuilder:rbac:groups="",resources=podtemplates,verbs=create

// try finds out whether the API server accepts the pods that the rules make of the
// workload's template, unless the same was tried before. The result is stored in
// Policies. An error is a wait: the API server did not answer, or maxTrying other workers
// are trying. The binding of the workload must not change then.
func (r *Reconciler) try(ctx context.Context, workload *ownership.Object, policy *gm.OverridePolicy, rules *overrides.Rules) error {
	plan := r.Policies.TrialPlan(ctx, workload, policy, rules)
	if len(plan.Groups) == 0 {
		r.Policies.DropTrial(workload.UID)
		return nil
	}
	last, tried := r.Policies.Trial(workload.UID)
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
	// Until the API server answers, the last refusal stays in force.
	next := policies.Trial{Key: plan.Key, Rules: plan.Rules, Refused: last.Refused}
	template, err := r.template(ctx, workload)
	if err == nil {
		next.Template = hashOf(template)
		if tried && last.Untried == nil && last.Rules == plan.Rules && last.Template == next.Template {
			r.Policies.SetTrial(workload.UID, next) // only the number of pods has changed
			return nil
		}
		next.Refused, err = r.tryGroups(ctx, workload, template, rules, plan.Groups)
	}
	if apierrors.IsNotFound(err) {
		return nil // the workload was deleted
	}
	if err != nil {
		next.Untried, next.Refused = err, last.Refused
		next.Wait = min(maxRetryTrial, max(retryTrial, 2*last.Wait))
		next.Again = r.Clock.Now().Add(next.Wait)
		r.Policies.SetTrial(workload.UID, next)
		log.FromContext(ctx).Info("An override could not be tried", "kind", workload.Kind, "workload", workload.Namespace+"/"+workload.Name, "why", err.Error())
		return phase.Wait("the API server to try an override", next.Wait)
	}
	r.Policies.SetTrial(workload.UID, next)
	return nil
}

// template reads the current pod template of a workload.
func (r *Reconciler) template(ctx context.Context, workload *ownership.Object) (*corev1.PodTemplateSpec, error) {
	object := &unstructured.Unstructured{} // read from the API server: the cache holds no such objects
	object.SetGroupVersionKind(workload.GroupVersionKind)
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

// errBase: the API server refuses the template without any rules, so the rules are not the
// cause.
var errBase = errors.New("the API server refuses the template of the workload itself")

// tryGroups returns the API server's refusal for the first group that has one. An error
// means that the API server could not be asked.
func (r *Reconciler) tryGroups(
	ctx context.Context, workload *ownership.Object, template *corev1.PodTemplateSpec, rules *overrides.Rules, groups []string,
) (refused, err error) {
	for _, group := range groups {
		refusal, err := r.tryRules(ctx, workload, template, rules, group)
		if refusal == nil && err == nil {
			continue
		}
		if err != nil {
			return nil, err
		}
		if base, err := r.tryFewer(ctx, workload, template, rules.First(0), group); err != nil || base != nil {
			return nil, errors.Join(err, asUntried(base))
		}
		return r.culprit(ctx, workload, template, rules, group, refusal)
	}
	return nil, nil
}

// asUntried turns a refusal of the template itself into an error; nil stays nil.
func asUntried(refusal error) error {
	if refusal == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", errBase, refusal)
}

// culprit returns the refusal with the first rule that causes it.
func (r *Reconciler) culprit(
	ctx context.Context, workload *ownership.Object, template *corev1.PodTemplateSpec, rules *overrides.Rules, group string, refusal error,
) (refused, err error) {
	var acting []int // the rules that change something in the group, counted from 1
	for i := 1; i <= rules.Len(); i++ {
		if rules.First(i).Hash(group) != rules.First(i-1).Hash(group) {
			acting = append(acting, i)
		}
	}
	n := acting[len(acting)-1]
	for _, i := range acting[:len(acting)-1] {
		early, err := r.tryFewer(ctx, workload, template, rules.First(i), group)
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
		Rule: n - 1, Overrider: rules.Path(n), Err: fmt.Errorf("the API server refuses the pod with its changes %s: %w", where, refusal),
	}}, nil
}

// tryFewer tries some of the rules after all of them were refused. It ignores Forbidden: the
// API server checks quotas after validation, so the pod is valid.
func (r *Reconciler) tryFewer(
	ctx context.Context, workload *ownership.Object, template *corev1.PodTemplateSpec, rules *overrides.Rules, group string,
) (refused, err error) {
	refused, err = r.tryRules(ctx, workload, template, rules, group)
	if apierrors.IsForbidden(err) {
		return nil, nil
	}
	return refused, err
}

// tryRules tries the pod that the rules make of the template in one group.
func (r *Reconciler) tryRules(
	ctx context.Context, workload *ownership.Object, template *corev1.PodTemplateSpec, rules *overrides.Rules, group string,
) (refused, err error) {
	pod := &corev1.Pod{ObjectMeta: *template.ObjectMeta.DeepCopy(), Spec: *template.Spec.DeepCopy()}
	if rules.Apply(group, pod) != nil {
		return nil, nil //nolint:nilerr // real pods show it: admission may add what the rules need to the template
	}
	_, err = r.Pods.CoreV1().PodTemplates(workload.Namespace).Create(ctx, &corev1.PodTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: trialName},
		Template:   corev1.PodTemplateSpec{ObjectMeta: pod.ObjectMeta, Spec: pod.Spec},
	}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	switch {
	case err == nil, apierrors.IsAlreadyExists(err):
		return nil, nil
	case apierrors.IsInvalid(err):
		return errors.New(refusalText(err)), nil
	}
	return nil, fmt.Errorf("trying the override of %s %s/%s: %w", workload.Kind, workload.Namespace, workload.Name, err)
}

// refusalText returns the API server's message, with field paths as in a pod.
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
