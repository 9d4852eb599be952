package workloadkind

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/atoll-k8s/atoll/internal/domain/workloadkind"
	"github.com/atoll-k8s/atoll/internal/machinery/conditions"
	"github.com/atoll-k8s/atoll/internal/owners"
)

// Reasons of the events on the ConfigMap.
const (
	// ReasonInForce: the kinds that the event names are workloads from here on.
	ReasonInForce = "WorkloadsInForce"
	// ReasonRejected: the text is not right; what was in force stays so.
	ReasonRejected = "WorkloadsRejected"
	// ReasonProblem: a kind that is in force cannot be listed or watched, or an object of it not be read.
	ReasonProblem = "WorkloadProblem"
)

const (
	// maxShown bounds the errors of one event, maxNote its text in bytes: the
	// API server takes 1024.
	maxShown, maxNote = 3, 1000
)

// reportEvents emits events, and logs, what has changed.
func (r *Reconciler) reportEvents(ctx context.Context, s *scope) error {
	if s.config == nil {
		r.lastEvents = nil
		return nil
	}
	if !r.settled {
		return nil
	}
	if len(s.bad) > 0 {
		r.event(ctx, s, corev1.EventTypeWarning, ReasonRejected, fmt.Sprintf("%s. In force: %s", joinFirst(s.bad), namesOf(r.inForce)))
		if r.lastEvents != nil && (r.lastEvents[ReasonInForce] != "" || len(r.inForce) > 0) {
			r.lastEvents[ReasonInForce] = "something else since" // so that an event says when it is over
		}
	} else {
		delete(r.lastEvents, ReasonRejected)
		if names := namesOf(r.inForce); names != noKinds || r.lastEvents[ReasonInForce] != "" {
			r.event(ctx, s, corev1.EventTypeNormal, ReasonInForce, "Workloads beside the built-in kinds: "+names)
		}
	}
	var problems []error
	for _, p := range r.Walker.Problems() {
		if !s.badKinds[p.Kind.GroupKind()] {
			problems = append(problems, explain(p))
		}
	}
	if len(problems) == 0 {
		delete(r.lastEvents, ReasonProblem)
		return nil
	}
	r.event(ctx, s, corev1.EventTypeWarning, ReasonProblem, joinFirst(problems))
	return nil
}

// event emits an event once for each state of the ConfigMap. Every replica finds the
// same; only the leader emits it.
func (r *Reconciler) event(ctx context.Context, s *scope, kind, reason, text string) {
	if !r.Leads() {
		return
	}
	state := text + "\n" + s.config.Data[workloadkind.Key] // the same mistake after another edit gets an event again
	if r.lastEvents[reason] == state {
		return
	}
	if r.lastEvents == nil {
		r.lastEvents = map[string]string{}
	}
	r.lastEvents[reason] = state
	log.FromContext(ctx).Info("Reported kinds of workloads", "reason", reason, "text", text)
	r.Recorder.Eventf(s.config, nil, kind, reason, "Configure", "%s", conditions.Truncate(text, maxNote))
}

// explain says what is wrong with a kind in force, and the way out.
func explain(p owners.Problem) error {
	name := p.Kind.GroupKind().String()
	switch {
	case apierrors.IsForbidden(p.Err):
		return fmt.Errorf("%s: %s", name, forbidden(p.Kind, p.Verb))
	case apierrors.IsNotFound(p.Err):
		return fmt.Errorf("%s: the API server does not serve %s any more: install its CustomResourceDefinition, or take the entry out", name, p.Kind.GroupVersion())
	case p.Verb != "":
		return fmt.Errorf("%s: the API server cannot %s it: %w: mend that, or take the entry out; until then new pods of the kind wait", name, p.Verb, p.Err)
	default:
		return fmt.Errorf("%s: %w: correct replicasPath, or the object; until then its pods are counted as they come", name, p.Err)
	}
}

// joinFirst joins the first errors and says how many more there are.
func joinFirst(errs []error) string {
	var texts []string
	for i, err := range errs {
		if i == maxShown {
			texts = append(texts, fmt.Sprintf("and %d more", len(errs)-maxShown))
			break
		}
		texts = append(texts, err.Error())
	}
	return strings.Join(texts, "; ")
}

// noKinds stands for an empty list.
const noKinds = "none"

func namesOf(kinds []owners.Kind) string {
	if len(kinds) == 0 {
		return noKinds
	}
	names := make([]string, len(kinds))
	for i, k := range kinds {
		names[i] = k.GroupKind().String()
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}
