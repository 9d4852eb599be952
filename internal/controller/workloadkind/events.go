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
	// ReasonWorkloadsInForce: the event names the kinds that are workloads from now on.
	ReasonWorkloadsInForce = "WorkloadsInForce"
	// ReasonWorkloadsRejected: the list is wrong, and the kinds in force stay.
	ReasonWorkloadsRejected = "WorkloadsRejected"
	// ReasonWorkloadProblem: a kind in force cannot be listed or watched, or an object of it
	// cannot be read.
	ReasonWorkloadProblem = "WorkloadProblem"
)

const (
	// maxShown bounds the errors that one event names. maxNote bounds its text, in
	// bytes: the API server accepts 1024.
	maxShown, maxNote = 3, 1000
)

// reportEvents emits events about the list and about problems with kinds in force, if
// they differ from the last events.
func (r *Reconciler) reportEvents(ctx context.Context, s *scope) error {
	if s.config == nil {
		r.lastEvents = nil
		return nil
	}
	if !r.applied {
		return nil
	}
	if len(s.bad) > 0 {
		r.event(ctx, s, corev1.EventTypeWarning, ReasonWorkloadsRejected, fmt.Sprintf("%s. In force: %s", joinFirst(s.bad), namesOf(r.inForce)))
		if r.lastEvents != nil && (r.lastEvents[ReasonWorkloadsInForce] != "" || len(r.inForce) > 0) {
			r.lastEvents[ReasonWorkloadsInForce] = "rejected since" // an event is emitted when the list is right again
		}
	} else {
		delete(r.lastEvents, ReasonWorkloadsRejected)
		if names := namesOf(r.inForce); names != noKinds || r.lastEvents[ReasonWorkloadsInForce] != "" {
			r.event(ctx, s, corev1.EventTypeNormal, ReasonWorkloadsInForce, "Workloads beside the built-in kinds: "+names)
		}
	}
	var problems []error
	for _, p := range r.Walker.Problems() {
		if !s.badKinds.Has(p.Kind.GroupKind()) { // the event about the entry covers it
			problems = append(problems, explain(p))
		}
	}
	if len(problems) == 0 {
		delete(r.lastEvents, ReasonWorkloadProblem)
		return nil
	}
	r.event(ctx, s, corev1.EventTypeWarning, ReasonWorkloadProblem, joinFirst(problems))
	return nil
}

// event emits an event, if it is not the last one of its reason for this text of the
// ConfigMap. Every replica calls it; only the leader emits.
func (r *Reconciler) event(ctx context.Context, s *scope, kind, reason, text string) {
	if !r.Leads() {
		return
	}
	state := text + "\n" + s.config.Data[workloadkind.Key] // the same error after another edit gets a new event
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

// explain returns what is wrong with a kind in force, and the remedy.
func explain(p owners.Problem) error {
	name := p.Kind.GroupKind().String()
	switch {
	case apierrors.IsForbidden(p.Err):
		return fmt.Errorf("%s: %s", name, forbidden(p.Kind, p.Verb))
	case apierrors.IsNotFound(p.Err):
		return fmt.Errorf("%s: the API server does not serve %s any more: install its CustomResourceDefinition, or remove the entry", name, p.Kind.GroupVersion())
	case p.Verb != "":
		return fmt.Errorf("%s: the API server cannot %s it: %w: repair that, or remove the entry; until then new pods of the kind wait", name, p.Verb, p.Err)
	default:
		return fmt.Errorf("%s: %w: correct replicasPath, or the object; until then the pods that exist are counted", name, p.Err)
	}
}

// joinFirst joins the first maxShown errors and the number of the others.
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

// noKinds is the text for an empty list.
const noKinds = "none"

// namesOf returns the names of kinds, sorted.
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
