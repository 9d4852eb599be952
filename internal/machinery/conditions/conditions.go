// Package conditions sets status conditions in one way: observedGeneration
// always, the transition time only when the status turns, messages bounded.
package conditions

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Set writes one condition and reports whether anything changed.
func Set(conditions *[]metav1.Condition, generation int64, kind string, status metav1.ConditionStatus, reason, message string) bool {
	return meta.SetStatusCondition(conditions, metav1.Condition{
		Type: kind, Status: status, ObservedGeneration: generation, Reason: reason, Message: message,
	})
}

// maxMessage bounds messages that repeat what somebody else said, in bytes. The
// API allows 32768 characters.
const maxMessage = 2000

// Bounded shortens a message that repeats what somebody else said.
func Bounded(message string) string {
	return Truncate(message, maxMessage)
}

// Truncate returns a text of at most limit bytes: one that is longer loses its end, and
// ends with "…". No character is cut in two. The limit must be at least 3.
func Truncate(text string, limit int) string {
	const mark = "…"
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit-len(mark)], "") + mark
}

// List joins sorted names for a message, the first three and how many more.
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
