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

// tell makes events and log lines of what is new.
func (r *Reconciler) tell(ctx context.Context, s *scope) error {
	if s.config == nil {
		r.told = nil
		return nil
	}
	if !r.settled {
		return nil
	}
	if len(s.bad) > 0 {
		r.say(ctx, s, corev1.EventTypeWarning, ReasonRejected, fmt.Sprintf("%s. In force: %s", several(s.bad), namesOf(r.inForce)))
		if r.told != nil && (r.told[ReasonInForce] != "" || len(r.inForce) > 0) {
			r.told[ReasonInForce] = "something else since" // so that the end of this is told
		}
	} else {
		delete(r.told, ReasonRejected)
		if names := namesOf(r.inForce); names != noKinds || r.told[ReasonInForce] != "" {
			r.say(ctx, s, corev1.EventTypeNormal, ReasonInForce, "Workloads beside the built-in kinds: "+names)
		}
	}
	var problems []error
	for _, p := range r.Walker.Problems() {
		if !s.badKinds[p.Kind.GroupKind()] {
			problems = append(problems, explain(p))
		}
	}
	if len(problems) == 0 {
		delete(r.told, ReasonProblem)
		return nil
	}
	r.say(ctx, s, corev1.EventTypeWarning, ReasonProblem, several(problems))
	return nil
}

// say tells something once for each state of the ConfigMap. Every replica
// finds the same; the one that leads tells.
func (r *Reconciler) say(ctx context.Context, s *scope, kind, reason, text string) {
	if !r.Leads() {
		return
	}
	state := text + "\n" + s.config.Data[workloadkind.Key] // the same mistake after another edit is told again
	if r.told[reason] == state {
		return
	}
	if r.told == nil {
		r.told = map[string]string{}
	}
	r.told[reason] = state
	log.FromContext(ctx).Info("Told about kinds of workloads", "reason", reason, "text", text)
	if len(text) > maxNote {
		text = strings.ToValidUTF8(text[:maxNote-3], "") + "..."
	}
	r.Recorder.Eventf(s.config, nil, kind, reason, "Configure", "%s", text)
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

// several joins the first errors and says how many more there are.
func several(errs []error) string {
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
