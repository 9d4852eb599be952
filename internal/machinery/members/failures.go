package members

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/atoll-k8s/atoll/internal/machinery/conditions"
)

// Failures are the nodes that could not be written. It is safe for concurrent use; the zero value has
// none.
type Failures struct {
	mu     sync.Mutex
	byNode map[string]Failure
}

// Failure is the error of a write of a node, and the groups that the node was to leave and to join.
type Failure struct {
	Node, Why, From, To string
}

// set records that a node could not be written. It reports whether that is new, and returns the node's
// failure before, which is empty if there was none.
func (f *Failures) set(is Failure) (was Failure, isNew bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	was = f.byNode[is.Node]
	if was == is {
		return was, false
	}
	if f.byNode == nil {
		f.byNode = map[string]Failure{}
	}
	f.byNode[is.Node] = is
	return was, true
}

// clear removes a node's failure and returns it.
func (f *Failures) clear(node string) (was Failure, had bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	was, had = f.byNode[node]
	delete(f.byNode, node)
	return was, had
}

// Of returns the failures that concern a group, sorted by node.
func (f *Failures) Of(group string) (all []Failure) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, is := range f.byNode {
		if is.From == group || is.To == group {
			all = append(all, is)
		}
	}
	slices.SortFunc(all, func(a, b Failure) int { return cmp.Compare(a.Node, b.Node) })
	return all
}

// Message names the nodes for a condition, with the error of the first. There must be one.
func Message(all []Failure) string {
	names := make([]string, len(all))
	for i := range all {
		names[i] = all[i].Node
	}
	return fmt.Sprintf("nodes that cannot be written: %s: %s", conditions.List(names), all[0].Why)
}

// ReasonOf returns the text of an error, bounded, for a status message.
func ReasonOf(err error) string {
	const shown = 200
	text := conditions.Truncate(err.Error(), shown)
	if reason := apierrors.ReasonForError(err); reason != "" && text != err.Error() {
		return string(reason) + ": " + text
	}
	return text
}
