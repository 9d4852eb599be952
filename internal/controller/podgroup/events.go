package podgroup

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	scheduling "github.com/atoll-k8s/atoll/api/scheduling/v1beta1"
	"github.com/atoll-k8s/atoll/internal/domain/gang"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/gangs"
	"github.com/atoll-k8s/atoll/internal/machinery/conditions"
	"github.com/atoll-k8s/atoll/internal/machinery/patch"
	"github.com/atoll-k8s/atoll/internal/owners"
)

// Reasons of the events on an owner or a pod.
const (
	// ReasonPodGroupRefused: the API server refuses the PodGroup of an owner, or the name of a
	// PodGroup in a pod.
	ReasonPodGroupRefused = "PodGroupRefused"
	// ReasonPodGroupAnnotationInvalid: annotations for the PodGroup of an owner cannot be used.
	ReasonPodGroupAnnotationInvalid = "PodGroupAnnotationInvalid"
	// ReasonPodGroupContested: another client deletes a PodGroup, or removes what atoll-manager
	// writes into it, again and again.
	ReasonPodGroupContested = "PodGroupContested"
)

// Reasons of the events on the ConfigMap.
const (
	// ReasonPodGroupRulesInForce: the rules that the event counts are in force.
	ReasonPodGroupRulesInForce = "PodGroupRulesInForce"
	// ReasonPodGroupRulesRejected: the text is invalid; the previous rules stay in force.
	ReasonPodGroupRulesRejected = "PodGroupRulesRejected"
	// ReasonPodGroupRulesProblem: rules in force can match nothing, or atoll-manager cannot read
	// owners.
	ReasonPodGroupRulesProblem = "PodGroupRulesProblem"
	// ReasonPodGroupRulesUnreadable: atoll-manager cannot read the ConfigMap.
	ReasonPodGroupRulesUnreadable = "PodGroupRulesUnreadable"
)

const (
	// maxNote bounds the text of an event, in bytes: the API server takes 1024.
	maxNote = 1000
	// maxShown bounds the problems in one event.
	maxShown = 3
)

// reported holds the last text of the events about each subject, so that each is recorded
// once. Safe for concurrent use; the zero value is ready.
type reported[K comparable] struct {
	mu   sync.Mutex
	last map[K]string
}

// replace stores the text about a subject, "" for none, and reports whether it is new and
// has to be recorded.
func (e *reported[K]) replace(subject K, text string) (isNew bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if text == "" {
		delete(e.last, subject)
		return false
	}
	if e.last == nil {
		e.last = map[K]string{}
	}
	isNew = e.last[subject] != text
	e.last[subject] = text
	return isNew
}

// recordProblem records on the owner of a PodGroup what is wrong with the PodGroup. err is
// that of the write.
func (r *Reconciler) recordProblem(s *scope, want *gang.PodGroup, err error) {
	reason, text := "", ""
	switch {
	case err != nil && patch.Refused(errors.Unwrap(err)):
		reason, text = ReasonPodGroupRefused, fmt.Sprintf("The API server refuses the PodGroup of these pods. They stay Pending until it is accepted: %v", errors.Unwrap(err))
	case s.contested:
		reason, text = ReasonPodGroupContested, fmt.Sprintf("Another client deletes PodGroup %s again and again, or removes its owner reference, its label %s or its annotation %s. atoll-manager restores them after longer and longer waits, up to one minute",
			s.key.Name, scheduling.ManagedByLabel, scheduling.AppliedAnnotation)
	case len(want.Problems) > 0:
		reason, text = ReasonPodGroupAnnotationInvalid, strings.Join(want.Problems, "; ")
	}
	if text == "" {
		if !s.unseen { // else it may still be removed: the next pass sees that
			r.reported.replace(s.key, "")
		}
		return
	}
	about := s.owner
	if about == nil {
		about = s.strays[0].Object()
	}
	if r.reported.replace(s.key, reason+text) {
		r.warn(about, reason, text)
	}
}

// recordUnnamed records on a pod why the name of its PodGroup cannot be written into it.
func (r *Reconciler) recordUnnamed(pod *gangs.Pod, err error) {
	text := fmt.Sprintf("The name of the PodGroup cannot be written into this pod: %v", errors.Unwrap(err))
	if r.unnamed.replace(pod.Key(), text) {
		r.warn(pod.Object(), ReasonPodGroupRefused, text)
	}
}

func (r *Reconciler) warn(about *ownership.Object, reason, text string) {
	r.Recorder.Eventf(owners.ObjectReference(about), nil, corev1.EventTypeWarning, reason, "Group", "%s", conditions.Truncate(text, maxNote))
}

// recordUnreadable records on the ConfigMap, which may not exist, why it cannot be read.
func (r *Rules) recordUnreadable(err error) {
	then := "The rules that it read last stay in force"
	if r.Resolver.Levels() == nil {
		then = "Until it can read them, pods get no PodGroups"
	}
	about := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: r.ConfigMap.Namespace, Name: r.ConfigMap.Name}}
	r.record(about, corev1.EventTypeWarning, ReasonPodGroupRulesUnreadable, fmt.Sprintf("atoll-manager cannot read the rules for PodGroups. %s. Error of the API server: %v", then, errors.Unwrap(err)))
}

// recordRules records on the ConfigMap which rules are in force: why its text is rejected,
// nil if it is not, and otherwise the number of rules and what is wrong with them.
func (r *Rules) recordRules(config *corev1.ConfigMap, rejected error, notes []string, rules int) {
	if rejected != nil {
		r.record(config, corev1.EventTypeWarning, ReasonPodGroupRulesRejected, fmt.Sprintf("%v. The previous rules stay in force: %d", rejected, rules))
		return
	}
	r.record(config, corev1.EventTypeWarning, ReasonPodGroupRulesRejected, "")
	inForce := ""
	if config.Data[ownership.LevelsKey] != "" {
		inForce = fmt.Sprintf("Rules for PodGroups in force: %d", rules)
	}
	r.record(config, corev1.EventTypeNormal, ReasonPodGroupRulesInForce, inForce)
	if len(notes) > maxShown {
		notes = append(notes[:maxShown:maxShown], fmt.Sprintf("and %d more", len(notes)-maxShown))
	}
	r.record(config, corev1.EventTypeWarning, ReasonPodGroupRulesProblem, strings.Join(notes, "; "))
}

// record records a text once; "" means that the problem is over. The same text is recorded
// again after an edit of the rules, and on a ConfigMap that was created again.
func (r *Rules) record(config *corev1.ConfigMap, kind, reason, text string) {
	state := text
	if text != "" {
		state += "\n" + string(config.UID) + "\n" + config.Data[ownership.LevelsKey]
	}
	if r.reported.replace(reason, state) {
		r.Recorder.Eventf(config, nil, kind, reason, "Configure", "%s", conditions.Truncate(text, maxNote))
	}
}
