// Package assign hands out seats at creation (docs/sources.md, G22):
// the pod webhook asks for a seat for a pod that does not exist yet. The replica
// that leads asks its ledger; any other asks the one that leads, and without
// one nobody gets a seat.
//
// It is a thin adapter: it joins what is known of the pod, asks, and answers.
package assign

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/atoll-k8s/atoll/internal/domain/capacity"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/policies"
	"github.com/atoll-k8s/atoll/internal/seats"
)

const (
	// Path is where a leader answers other replicas, over mutual TLS.
	Path = "/assign"
	// maxBody bounds a question: names, labels and one owner.
	maxBody = 1 << 20
	// askTimeout bounds the way to the leader and back. It is well below the
	// timeoutSeconds of the webhook: a pod whose leader hangs waits at the gate
	// and does not go past.
	askTimeout = time.Second
)

var (
	// ErrNoLeader: nobody decides at the moment.
	ErrNoLeader = errors.New("no replica of atoll-manager leads at the moment")
	// ErrNoSeat: the policy gives no group another pod now.
	ErrNoSeat = errors.New("no NodeGroup has a seat for the pod now")
)

// Ask is a question for a seat.
type Ask struct {
	// Pod is the start of the walk up the owners.
	Pod *ownership.Object `json:"pod,omitempty"`
	// Revision is ownership.Revision of the pod.
	Revision string `json:"revision,omitempty"`
	// Token is what the pod will be known by, once it is created.
	Token types.UID `json:"token"`
	// Node is the one node that the pod is for, as DaemonSets say; the pod then
	// takes no seat.
	Node string `json:"node,omitempty"`
	// Late asks only whether a seat is open: the pod gets it while it is
	// scheduled.
	Late bool `json:"late,omitempty"`
	// Overridden: the pod will be created with overrides that the API server can
	// refuse. The replica that leads is the one that knows whether it does.
	Overridden bool `json:"overridden,omitempty"`
	// Demands tell which groups the pod may go to; nil is any.
	Demands *Demands `json:"demands,omitempty"`
	// Capacity asks for the pod's class of capacity, and nothing else.
	Capacity bool `json:"capacity,omitempty"`
	// DryRun takes no seat.
	DryRun bool `json:"dryRun,omitempty"`
}

// Answer is what the leader says.
type Answer struct {
	// Group is the NodeGroup of the seat.
	Group string `json:"group,omitempty"`
	// Cost is the deletion cost of the seat, where the pod's owner looks at it.
	Cost *int32 `json:"cost,omitempty"`
	// Class is the class of capacity, where that was asked for; "" for a pod that is
	// not divided.
	Class string `json:"class,omitempty"`
	// Reason is why the pod is of that class.
	Reason string `json:"reason,omitempty"`
	// NoSeat: there is no seat for the pod now.
	NoSeat bool `json:"noSeat,omitempty"`
}

// Assigner answers questions for seats. Safe for concurrent use.
type Assigner struct {
	Policies *policies.Resolver
	Ledger   *seats.Ledger
	// Leading tells whether this replica decides now.
	Leading func() bool
	// Leader is the host:port of the one that does; "" while none is known.
	Leader func() string
	// Transport speaks mutual TLS to other replicas.
	Transport http.RoundTripper
}

// Assign asks for a seat, here or at the replica that leads. Errors: ErrNoSeat,
// ErrNoLeader, or what kept the leader from answering.
func (d *Assigner) Assign(ctx context.Context, ask Ask) (Answer, error) {
	var answer Answer
	var err error
	if d.Leading() {
		answer, err = d.answer(ctx, ask)
	} else {
		answer, err = d.askLeader(ctx, ask)
	}
	if err == nil && answer.NoSeat {
		err = ErrNoSeat
	}
	return answer, err
}

func (d *Assigner) answer(ctx context.Context, ask Ask) (Answer, error) {
	if ask.Pod == nil || ask.Token == "" {
		return Answer{}, errors.New("asking for a seat: pod or token is missing")
	}
	pod := *ask.Pod
	pod.UID = ask.Token
	if ask.Capacity {
		return d.answerClass(ctx, &pod, ask)
	}
	a, err := d.prospect(ctx, &pod, ask)
	if o := a.Application.Override; ask.Overridden && o != nil {
		trial, _ := d.Policies.Trial(o.UID)
		why := trial.Refused
		if why == nil && o.Policies.Override() != ownership.Bound {
			why = trial.Untried // another replica may have found that it is refused
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
	request := seats.Request{Pod: ask.Token, Namespace: pod.Namespace, Cohort: a.Cohort, Total: a.Total, Spread: a.Spread}
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

// prospect is what the seat of a pod is decided by. The successor of a pod that was
// deleted is asked about within milliseconds: it waits until that is seen, for it
// would get a seat that nobody has left.
func (d *Assigner) prospect(ctx context.Context, pod *ownership.Object, ask Ask) (policies.Assignment, error) {
	a, err := d.Policies.Prospect(ctx, pod, ask.Revision)
	if err != nil || ask.DryRun || ask.Late || !d.behind(&a, ask.Token) {
		return a, err
	}
	catchUp(ctx, func(ctx context.Context) bool {
		a, err = d.Policies.Prospect(ctx, pod, ask.Revision)
		return err != nil || !d.behind(&a, ask.Token)
	})
	return a, err
}

// behind tells whether the owner of a pod has as many already as it makes. A Job's
// pods end by themselves, and who makes more in a rollout says how many.
func (d *Assigner) behind(a *policies.Assignment, token types.UID) bool {
	if !a.Divided() || a.Job || len(a.Owners) == 0 || a.Owners[0].Replicas == nil {
		return false
	}
	owner := a.Owners[0]
	return d.Ledger.Behind(owner.UID, token, int(*owner.Replicas+owner.Surge))
}

func (d *Assigner) answerClass(ctx context.Context, pod *ownership.Object, ask Ask) (Answer, error) {
	answer, err := d.takeClass(ctx, pod, ask)
	if err != nil || !answer.NoSeat || ask.DryRun {
		return answer, err
	}
	// The successor of a pod that was deleted is asked about within milliseconds.
	catchUp(ctx, func(ctx context.Context) bool {
		answer, err = d.takeClass(ctx, pod, ask)
		return err != nil || !answer.NoSeat
	})
	return answer, err
}

// catchUp gives watches that are behind a moment, until done.
func catchUp(ctx context.Context, done func(context.Context) bool) {
	_ = wait.PollUntilContextTimeout(context.WithoutCancel(ctx), lagStep, lagTime, false, func(ctx context.Context) (bool, error) {
		return done(ctx), nil
	})
}

const (
	// lagTime bounds how long a pod's answer waits for watches that are behind, and
	// lagStep is how often is looked.
	lagTime = 300 * time.Millisecond
	lagStep = 5 * time.Millisecond
)

func (d *Assigner) takeClass(ctx context.Context, pod *ownership.Object, ask Ask) (Answer, error) {
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

// SeatCost is the deletion cost of the seat that a pod has just got; nil for a pod
// whose owner does not look at it.
func SeatCost(ledger *seats.Ledger, a policies.Assignment, controller *ownership.Reference, pod types.UID, group string) *int32 {
	if controller == nil || controller.Kind != "ReplicaSet" {
		return nil
	}
	return new(a.Spread.SeatCost(group, ledger.SeatNumber(pod), a.Total))
}

func (d *Assigner) askLeader(ctx context.Context, ask Ask) (Answer, error) {
	leader := d.Leader()
	if leader == "" {
		return Answer{}, ErrNoLeader
	}
	body, err := json.Marshal(ask)
	if err != nil {
		return Answer{}, fmt.Errorf("encoding a question for a seat: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+leader+Path, bytes.NewReader(body))
	if err != nil {
		return Answer{}, fmt.Errorf("asking the leader for a seat: %w", err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := (&http.Client{Transport: d.Transport}).Do(request)
	if err != nil {
		return Answer{}, fmt.Errorf("asking the leader for a seat: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	reply, err := io.ReadAll(io.LimitReader(response.Body, maxBody))
	if err != nil {
		return Answer{}, fmt.Errorf("asking the leader for a seat: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return Answer{}, fmt.Errorf("asking the leader for a seat: %s: %.200s", response.Status, reply)
	}
	var answer Answer
	if err := json.Unmarshal(reply, &answer); err != nil {
		return Answer{}, fmt.Errorf("decoding the leader's answer: %w", err)
	}
	return answer, nil
}

// ServeHTTP answers other replicas. One that does not lead (any more) says so:
// a question is never handed on twice.
func (d *Assigner) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "seats are asked for with POST", http.StatusMethodNotAllowed)
		return
	}
	var ask Ask
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&ask); err != nil {
		http.Error(w, "decoding the question: "+err.Error(), http.StatusBadRequest)
		return
	}
	if !d.Leading() {
		http.Error(w, ErrNoLeader.Error(), http.StatusServiceUnavailable)
		return
	}
	answer, err := d.answer(r.Context(), ask)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // a failed write means that the asker has gone away
}
