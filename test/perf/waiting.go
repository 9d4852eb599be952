package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster"
)

// waiting measures how often kube-scheduler calls extenders for pods that find no room.
var waiting = benchmark{
	name: "waiting", unit: "calls a minute for each pod", nodes: 10, pods: 100,
	about: `How often kube-scheduler calls extenders for a pod that finds no room, while other objects change.

- 10 NodeGroups of one simulated node each with the same weight and a Deployment of 100 pods. The nodes of five groups are cordoned,
  so that fifty pods wait for their share and may not go to other groups (` + "`rescheduleAfterSeconds: 0`" + `). Then the label of one other pod
  changes 20 times a second, for 10 s.
- The peer has the same pods without a policy, and an extender that refuses all of them. This is the cost of any extender that lets pods wait by refusing
  them, because every event of any pod makes kube-scheduler try the refused ones again.
- Calls are counted by an extender that is configured before all others.`,
	variants: []variant{
		{name: "weights", ideal: "A ≤ 2", a: "fifty pods of a PropagationPolicy of weights wait", b: "an extender refuses fifty pods"},
	},
	open: openWaiting,
}

const (
	// waitPolicy makes pods wait for their share instead of going on loan.
	waitPolicy = "wait"
	// updates is the number of changes of the other pod's label, one after each interval
	// of every.
	updates = 200
	every   = 50 * time.Millisecond
)

type waitingBench struct {
	*bed
	countingExtender *countingExtender
}

func openWaiting(ctx context.Context, o options, log io.Writer) (bench, error) {
	b, err := makeBed(ctx, settings{options: o, log: log})
	if err != nil {
		return nil, err
	}
	w := &waitingBench{bed: b}
	if w.countingExtender, err = startCountingExtender(ctx); err == nil {
		err = w.prepare(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

func (w *waitingBench) close() error {
	var err error
	if w.countingExtender != nil {
		err = w.countingExtender.Close()
	}
	return errors.Join(err, w.bed.close())
}

func (w *waitingBench) prepare(ctx context.Context) error {
	if err := w.createGroups(ctx); err != nil {
		return err
	}
	policy := &gm.PropagationPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: waitPolicy, Namespace: namespace},
		Spec: gm.PropagationSpec{
			PropagationStrategy:    gm.StaticWeightPropagationStrategy,
			StaticWeight:           []gm.StaticNodeGroupWeight{{Weight: 1}},
			Assignment:             gm.AssignmentLate,
			RescheduleAfterSeconds: new(int32(0)),
		},
	}
	for i := range w.options.groups {
		policy.Spec.StaticWeight[0].NodeGroupNames = append(policy.Spec.StaticWeight[0].NodeGroupNames, w.groupName(i))
	}
	if err := w.atoll.Create(ctx, policy); err != nil {
		return fmt.Errorf("creating PropagationPolicy %q: %w", policy.Name, err)
	}
	return w.cluster.Kill(ctx, devcluster.Scheduler)
}

func (w *waitingBench) sides(context.Context, string) (a, b side, err error) {
	a = side{name: "weights", measure: func(ctx context.Context) (sample, error) {
		return w.measure(ctx, workload{policy: waitPolicy})
	}}
	b = side{name: "refused", measure: func(ctx context.Context) (sample, error) {
		return w.measure(ctx, workload{})
	}}
	return a, b, nil
}

// measure makes half of a workload's pods wait, and counts the calls for them while
// another pod changes.
func (w *waitingBench) measure(ctx context.Context, load workload) (s sample, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*stepWithin)
	defer cancel()
	config, err := w.countingExtender.before(w.installed.SchedulerConfig, load.policy == "")
	if err != nil {
		return s, err
	}
	if err := w.cordon(ctx, true); err != nil {
		return s, err
	}
	w.countingExtender.open.Store(int64(w.options.pods / 2))
	other := workload{name: "other"}
	if err := w.createOther(ctx, other); err != nil {
		return s, err
	}
	if err := w.createPods(ctx, load); err != nil {
		return s, err
	}
	if err := w.cluster.RestartScheduler(ctx, config); err != nil {
		return s, err
	}
	if err := w.settle(ctx, load); err != nil {
		return s, err
	}
	before, err := usageOf(ctx, w.cluster)
	if err != nil {
		return s, err
	}
	calls, began := w.countingExtender.calls.Load(), time.Now()
	if err := w.change(ctx); err != nil {
		return s, err
	}
	calls, took := w.countingExtender.calls.Load()-calls, time.Since(began)
	after, err := usageOf(ctx, w.cluster)
	if err != nil {
		return s, err
	}
	used := after.since(before)
	s.rate = float64(calls) / took.Minutes() / float64(w.options.pods/2)
	s.off, s.strangers = -1, used.strangers()
	s.facts = fmt.Sprintf("%d calls in %.1f s; %s", calls, took.Seconds(), used)
	if err := w.cluster.Kill(ctx, devcluster.Scheduler); err != nil {
		return s, err
	}
	if err := w.cordon(ctx, false); err != nil {
		return s, err
	}
	return s, w.deletePods(ctx, load, other)
}

// cordon cordons or uncordons the nodes of every second group.
func (w *waitingBench) cordon(ctx context.Context, closed bool) error {
	patch := fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, closed)
	for i := 1; i < w.options.nodes; i += 2 {
		if _, err := w.client.CoreV1().Nodes().Patch(ctx, nodeName(i), types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("cordoning node %q: %w", nodeName(i), err)
		}
	}
	return nil
}

// createOther creates the one pod that changes; it has a node from the beginning.
func (w *waitingBench) createOther(ctx context.Context, other workload) error {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: other.deployed(), Namespace: namespace, Labels: other.labels()},
		Spec:       corev1.PodSpec{NodeName: nodeName(0), Containers: []corev1.Container{{Name: "main", Image: "nginx:1.27"}}},
	}
	return w.eventually(ctx, "the other pod to be created", func(ctx context.Context) (bool, error) {
		_, err := w.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
		return err == nil, nil // the namespace's ServiceAccount may not exist yet
	})
}

// settle returns when half of the pods are bound, kube-scheduler has found no node for
// the others, and the cluster is idle.
func (w *waitingBench) settle(ctx context.Context, load workload) error {
	half := w.options.pods / 2
	err := w.eventually(ctx, "half of the pods to wait", func(ctx context.Context) (bool, error) {
		pods, err := w.client.CoreV1().Pods(namespace).List(ctx, selecting(load))
		if err != nil {
			return false, fmt.Errorf("listing pods: %w", err)
		}
		bound, waiting := 0, 0
		for i := range pods.Items {
			pod := &pods.Items[i]
			switch {
			case pod.Spec.NodeName != "":
				bound++
			case load.policy != "" && pod.Annotations[gm.SeatAnnotation] == "":
				// It has not been recreated with its group yet.
			case refused(pod):
				waiting++
			}
		}
		return bound == half && waiting == half, nil
	})
	if err != nil {
		return err
	}
	return w.waitIdle(ctx)
}

// refused: kube-scheduler has found no node for the pod.
func refused(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable {
			return true
		}
	}
	return false
}

// change changes the label of the other pod again and again.
func (w *waitingBench) change(ctx context.Context) error {
	ticks := time.NewTicker(every)
	defer ticks.Stop()
	for n := range updates {
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{"tick":"%d"}}}`, n)
		if _, err := w.client.CoreV1().Pods(namespace).Patch(ctx, "other", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("changing the other pod: %w", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticks.C:
		}
	}
	return nil
}

// countingExtender is an extender that counts the calls for pods of the workload. It
// accepts all pods, or refuses all after the number in open.
type countingExtender struct {
	*http.Server
	url   string
	calls atomic.Int64
	// open is the number of pods that it still accepts if it refuses; for accepted pods
	// it is called once.
	open atomic.Int64
}

func startCountingExtender(ctx context.Context) (*countingExtender, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listening: %w", err)
	}
	d := &countingExtender{url: "http://" + listener.Addr().String()}
	mux := http.NewServeMux()
	mux.HandleFunc("/pass", func(w http.ResponseWriter, r *http.Request) { d.answer(w, r, false) })
	mux.HandleFunc("/refuse", func(w http.ResponseWriter, r *http.Request) { d.answer(w, r, true) })
	d.Server = &http.Server{ReadHeaderTimeout: time.Minute, Handler: mux}
	go func() { _ = d.Serve(listener) }() // ends with Close
	return d, nil
}

func (d *countingExtender) answer(w http.ResponseWriter, r *http.Request, refuse bool) {
	var asked struct{ NodeNames *[]string }
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil || asked.NodeNames == nil {
		http.Error(w, "a request with node names is expected", http.StatusBadRequest)
		return
	}
	d.calls.Add(1)
	names := *asked.NodeNames
	if refuse && d.open.Add(-1) < 0 {
		names = []string{}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(filterAnswer{NodeNames: &names}) // the client has closed the connection
}

// before adds this extender before the extenders of a configuration, or replaces them if
// it refuses pods.
func (d *countingExtender) before(config []byte, refuse bool) ([]byte, error) {
	fields := map[string]any{}
	if err := yaml.Unmarshal(config, &fields); err != nil {
		return nil, fmt.Errorf("decoding the scheduler's configuration: %w", err)
	}
	extenders, _ := fields["extenders"].([]any)
	verb := "pass"
	if refuse {
		extenders, verb = nil, "refuse"
	}
	fields["extenders"] = append([]any{map[string]any{"urlPrefix": d.url, "filterVerb": verb, "nodeCacheCapable": true}}, extenders...)
	out, err := yaml.Marshal(fields)
	if err != nil {
		return nil, fmt.Errorf("encoding the scheduler's configuration: %w", err)
	}
	return out, nil
}
