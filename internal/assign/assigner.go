// Package assign hands out seats at creation (docs/sources.md, G22): the pod webhook
// requests a seat for a pod that does not exist yet. The leader takes the seat from its
// ledger. Every other replica sends the request to the leader. While there is no leader, no
// pod gets a seat.
//
// It is a thin adapter: it finds the pod's policies, calls the ledger and returns the result.
package assign

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/atoll-k8s/atoll/internal/domain/capacity"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/machinery/bounded"
	"github.com/atoll-k8s/atoll/internal/machinery/leader"
	"github.com/atoll-k8s/atoll/internal/policies"
	"github.com/atoll-k8s/atoll/internal/seats"
)

const (
	// Path is the URL path at which the leader serves requests of other replicas, over mutual
	// TLS.
	Path = "/assign"
	// maxBody is the maximum size of a request or response in bytes. A request has names,
	// labels, the pod's demands and one owner.
	maxBody = 1 << 20
	// askTimeout is the timeout of a request to the leader. It is well below timeoutSeconds
	// of the webhook: if the leader hangs, the pod gets the gate. If the webhook timed out,
	// the pod would be created without its policy.
	askTimeout = time.Second
)

// ErrNoSeat: no group of the policy may have another pod now.
var ErrNoSeat = errors.New("no NodeGroup has a seat for the pod now")

// Request is a request for a seat.
type Request struct {
	// Pod is the start of the walk up the owners.
	Pod *ownership.Object `json:"pod,omitempty"`
	// Revision is ownership.Revision of the pod.
	Revision string `json:"revision,omitempty"`
	// Token identifies the pod in the ledger before the pod has a UID. It is written on the
	// pod.
	Token types.UID `json:"token"`
	// Node is the one node that a DaemonSet's pod is for; "" for other pods. A pod for one
	// node takes no seat: Answer.Group is the group of the node.
	Node string `json:"node,omitempty"`
	// Late: only find out whether a seat is open. The pod gets its seat while it is
	// scheduled.
	Late bool `json:"late,omitempty"`
	// Overridden: the pod will be created with overrides that the API server can refuse. Only
	// the leader tries whether the API server accepts them.
	Overridden bool `json:"overridden,omitempty"`
	// Demands restrict the groups that the pod may go to; nil means any group.
	Demands *Demands `json:"demands,omitempty"`
	// Capacity requests the pod's capacity class instead of a seat.
	Capacity bool `json:"capacity,omitempty"`
	// DryRun: return the same Answer, and reserve nothing.
	DryRun bool `json:"dryRun,omitempty"`
}

// Answer is the leader's response to an Request.
type Answer struct {
	// Group is the NodeGroup of the seat.
	Group string `json:"group,omitempty"`
	// Cost is the deletion cost of the seat; nil if the pod's owner does not use deletion
	// costs.
	Cost *int32 `json:"cost,omitempty"`
	// Class is the capacity class, if Request.Capacity is set; "" for a pod whose workload is not
	// divided over classes.
	Class string `json:"class,omitempty"`
	// Reason is why the pod has that class.
	Reason string `json:"reason,omitempty"`
	// NoSeat: there is no seat for the pod now.
	NoSeat bool `json:"noSeat,omitempty"`
}

// Assigner serves requests for seats. It is safe for concurrent use.
type Assigner struct {
	Policies *policies.Resolver
	Ledger   *seats.Ledger
	// Leading returns whether this replica is the leader.
	Leading func() bool
	// Leader is where requests are sent otherwise.
	leader.Leader
}

// Assign requests a seat from this replica if it is the leader, or else from the leader. It
// returns ErrNoSeat, leader.ErrNone, or why the request failed.
func (d *Assigner) Assign(ctx context.Context, ask Request) (Answer, error) {
	var answer Answer
	var err error
	if d.Leading() {
		answer, err = d.answer(ctx, ask)
	} else {
		bounded.Outside(ctx, func() { answer, err = d.sendToLeader(ctx, ask) })
	}
	if err == nil && answer.NoSeat {
		err = ErrNoSeat
	}
	return answer, err
}

// answer serves a request on the leader.
func (d *Assigner) answer(ctx context.Context, ask Request) (Answer, error) {
	if ask.Pod == nil || ask.Token == "" {
		return Answer{}, errors.New("requesting a seat: pod or token is missing")
	}
	pod := *ask.Pod
	pod.UID = ask.Token
	if ask.Capacity {
		return d.answerClass(ctx, &pod, ask)
	}
	a, err := d.assignment(ctx, &pod, ask)
	if o := a.PolicyOwners.Override; ask.Overridden && o != nil {
		trial, _ := d.Policies.Trial(o.UID)
		why := trial.Refused
		if why == nil && o.Policies.Override() != ownership.Bound {
			why = trial.Untried // another replica may have found that the API server refuses it
		}
		if why != nil {
			return Answer{}, fmt.Errorf("overriding a pod of %s %s/%s: %w", o.Kind, o.Namespace, o.Name, why)
		}
	}
	if ask.Node != "" {
		return Answer{Group: d.Ledger.NodeGroup(ask.Node)}, nil
	}
	if err != nil {
		return Answer{}, err
	}
	if len(a.Spread.Groups()) == 0 {
		return Answer{NoSeat: true}, nil
	}
	request := d.Policies.SeatRequest(&a, ask.Token)
	request.Namespace = pod.Namespace
	if ask.Late {
		if !d.Ledger.Admit(request, ask.DryRun) {
			return Answer{NoSeat: true}, nil
		}
		return Answer{}, nil
	}
	if request.Check, err = ask.Demands.Check(); err != nil {
		return Answer{}, err
	}
	group, why := d.Ledger.Take(request, ask.DryRun)
	if why != seats.Seated {
		return Answer{NoSeat: true}, nil
	}
	return Answer{Group: group, Cost: SeatCost(d.Ledger, a, pod.Controller, pod.UID, group)}, nil
}

// assignment returns the policy and the cohort by which the seat of a pod is decided. The
// owner of a deleted pod creates the successor within milliseconds. If the ledger still
// counts the deleted pod, the successor would get a seat in a group that lacks no pod. So
// assignment waits, for catchUpTimeout at most, until the ledger has caught up.
func (d *Assigner) assignment(ctx context.Context, pod *ownership.Object, ask Request) (policies.Assignment, error) {
	a, err := d.onceBound(ctx, pod, ask.Revision)
	if err != nil || ask.DryRun || ask.Late || !d.behind(&a, ask.Token) {
		return a, err
	}
	catchUp(ctx, func(ctx context.Context) bool {
		a, err = d.onceBound(ctx, pod, ask.Revision)
		return err != nil || !d.behind(&a, ask.Token)
	})
	return a, err
}

// onceBound walks up the owners of a pod, as this replica knows them now.
func (d *Assigner) onceBound(ctx context.Context, pod *ownership.Object, revision string) (policies.Assignment, error) {
	chain, err := d.Policies.Chain(ctx, pod)
	if err != nil {
		return policies.Assignment{}, err
	}
	return d.Policies.AssignmentOnceBound(ctx, chain, revision)
}

// behind returns whether the ledger has as many pods of an owner as the owner creates at
// most, its surge included. It is false for Jobs: they replace pods that have finished.
func (d *Assigner) behind(a *policies.Assignment, token types.UID) bool {
	if !a.Divided() || a.Job || len(a.Owners) == 0 || a.Owners[0].Replicas == nil {
		return false
	}
	owner := a.Owners[0]
	return d.Ledger.Behind(owner.UID, token, int(*owner.Replicas+owner.Surge))
}

func (d *Assigner) answerClass(ctx context.Context, pod *ownership.Object, ask Request) (Answer, error) {
	answer, err := d.takeClass(ctx, pod, ask)
	if err != nil || !answer.NoSeat || ask.DryRun {
		return answer, err
	}
	// The ledger may not have seen yet that the pod's predecessor was deleted.
	catchUp(ctx, func(ctx context.Context) bool {
		answer, err = d.takeClass(ctx, pod, ask)
		return err != nil || !answer.NoSeat
	})
	return answer, err
}

// catchUp waits until done returns true, or for catchUpTimeout, but not after the caller's deadline:
// the watches may be behind.
func catchUp(ctx context.Context, done func(context.Context) bool) {
	within := catchUpTimeout
	if deadline, is := ctx.Deadline(); is {
		within = min(within, time.Until(deadline))
	}
	bounded.Outside(ctx, func() {
		_ = wait.PollUntilContextTimeout(context.WithoutCancel(ctx), catchUpInterval, within, false, func(ctx context.Context) (bool, error) {
			return done(ctx), nil
		})
	})
}

const (
	// catchUpTimeout is how long a request waits at most for watches that are behind.
	catchUpTimeout = 300 * time.Millisecond
	// catchUpInterval is how often it checks.
	catchUpInterval = 5 * time.Millisecond
)

func (d *Assigner) takeClass(ctx context.Context, pod *ownership.Object, ask Request) (Answer, error) {
	c, err := d.Policies.CapacityOfPod(ctx, pod)
	if err != nil || !c.On {
		return Answer{}, err
	}
	class, why := d.Ledger.TakeClass(d.Policies.ClassRequest(&c, ask.Token, pod.Name, ask.Revision, capacity.None), ask.DryRun)
	if why != seats.Seated {
		return Answer{NoSeat: true}, nil
	}
	return Answer{Class: class.String(), Reason: Reason(&c, class)}, nil
}

// SeatCost returns the deletion cost of the seat that a pod has just got. It is nil if the
// pod's controller is not a ReplicaSet: only ReplicaSets use deletion costs.
func SeatCost(ledger *seats.Ledger, a policies.Assignment, controller *ownership.Reference, pod types.UID, group string) *int32 {
	if controller == nil || controller.Kind != "ReplicaSet" {
		return nil
	}
	return new(a.Spread.SeatCost(group, ledger.SeatNumber(pod), a.Total))
}

func (d *Assigner) sendToLeader(ctx context.Context, ask Request) (Answer, error) {
	body, err := json.Marshal(ask)
	if err != nil {
		return Answer{}, fmt.Errorf("encoding the request for a seat: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	reply, status, err := d.Post(ctx, Path, body, maxBody)
	if err != nil {
		return Answer{}, err
	}
	if status != http.StatusOK {
		return Answer{}, fmt.Errorf("requesting a seat from the leader: %d %s: %.200s", status, http.StatusText(status), reply)
	}
	var answer Answer
	if err := json.Unmarshal(reply, &answer); err != nil {
		return Answer{}, fmt.Errorf("decoding the leader's answer: %w", err)
	}
	return answer, nil
}

// ServeHTTP serves requests of other replicas. A replica that is not the leader, or not any
// more, answers 503 and does not forward the request: a request is forwarded only once.
func (d *Assigner) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "requests for seats use POST", http.StatusMethodNotAllowed)
		return
	}
	var ask Request
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&ask); err != nil {
		http.Error(w, "decoding the request: "+err.Error(), http.StatusBadRequest)
		return
	}
	if !d.Leading() {
		http.Error(w, leader.ErrNone.Error(), http.StatusServiceUnavailable)
		return
	}
	answer, err := d.answer(r.Context(), ask)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // the write fails if the other replica has closed the connection
}
