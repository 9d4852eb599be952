// Package conditions sets status conditions in one way: observedGeneration is always set,
// the transition time moves only when the status changes, and messages are bounded.
package conditions

import (
	"fmt"
	"strings"
	"unicode"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Set sets one condition in the slice and reports whether the condition changed.
func Set(conditions *[]metav1.Condition, generation int64, kind string, status metav1.ConditionStatus, reason, message string) bool {
	return meta.SetStatusCondition(conditions, metav1.Condition{
		Type: kind, Status: status, ObservedGeneration: generation, Reason: reason, Message: message,
	})
}

// The condition that sums an object up, and the one beside it for tools that wait until an object
// is ready (kstatus, which Flux and others use).
const ready, stalled = "Ready", "Stalled"

// SetReady sets the condition Ready and, beside it, Stalled with the same reason and message: True
// if Ready does not become True before a person changes something, and absent otherwise. Tools
// that wait end with an error then.
func SetReady(conditions *[]metav1.Condition, generation int64, status metav1.ConditionStatus, reason, message string, isStalled bool) {
	Set(conditions, generation, ready, status, reason, message)
	if !isStalled || status == metav1.ConditionTrue {
		meta.RemoveStatusCondition(conditions, stalled)
		return
	}
	Set(conditions, generation, stalled, metav1.ConditionTrue, reason, message)
}

// maxMessage bounds messages with texts of other programs, in bytes. The API allows 32768
// characters.
const maxMessage = 2000

// Bounded shortens a message that contains the text of another program to 2000 bytes.
func Bounded(message string) string {
	return Truncate(message, maxMessage)
}

// Truncate shortens a text to at most limit bytes. A text that was cut ends with "…". No
// UTF-8 character is split. The limit must be at least 3.
func Truncate(text string, limit int) string {
	const mark = "…"
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit-len(mark)], "") + mark
}

// Printable replaces what does not show in a text by spaces: control characters, line
// breaks, marks that change the direction of writing. Such a character, in a text that a
// tenant wrote, could change what a terminal shows of the text beside it.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsGraphic(r) {
			return r
		}
		return ' '
	}, text)
}

// List joins names for a message: the first three, quoted, and the number of the others. For
// stable messages the caller sorts the names.
func List(names []string) string {
	const shown = 3
	quoted := make([]string, 0, shown)
	for i, name := range names {
		if i == shown {
			return fmt.Sprintf("%s and %d more", strings.Join(quoted, ", "), len(names)-shown)
		}
		quoted = append(quoted, fmt.Sprintf("%q", name))
	}
	return strings.Join(quoted, ", ")
}
