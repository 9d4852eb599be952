package policies

import (
	"errors"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/atoll-k8s/atoll/internal/machinery/budget"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
)

// unreadEvery is how often it is checked whether there is room for a policy that was left
// out of the cache.
const unreadEvery = time.Minute

// errRoom is the condition of a policy that was left out of the cache and for which there is
// room now. The API server sends the policy to all watches when its status changes, and
// that reads it.
var errRoom = errors.New("it was not read, and there is room for it now: it is being read again")

// SetBudgets sets the budgets of the caches of policies. It must be called before anything
// runs.
func (r *Resolver) SetBudgets(budgets ...*budget.Budget) { r.budgets = budgets }

// Unread returns why a policy cannot be used because it was left out of the cache, or nil if
// it was not. The controller of the policy writes this into the condition, and returns the
// wait.
func (r *Resolver) Unread(policy client.Object) (why, wait error) {
	if why = budget.Unread(policy); why == nil {
		return nil, nil
	}
	if slices.ContainsFunc(r.budgets, func(b *budget.Budget) bool { return b.Fits(policy.GetUID()) }) {
		why = errRoom
	}
	return why, phase.Wait("room for the policy", unreadEvery)
}
