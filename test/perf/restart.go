package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster"
)

// restart measures the time until a new atoll-manager gives correct classes of capacity.
var restart = benchmark{
	name: "restart", unit: "s", nodes: 1000, pods: 20000,
	about: `The time from the start of the process atoll-manager to its first correct answers about classes of capacity ÷ the time that a client takes to LIST the
same objects.

- 2,000 Deployments with 20,000 pods between them, ten each, of which three are on-demand. One workload lacks an on-demand pod, another one a
  spot pod. Correct answers make the next pod of the first on-demand, and that of the second spot: this needs every pod and owner.
  Both are dry runs, through the API server and the webhook.
- The process before was killed, and its Lease is taken away: how long a standby waits for a dead leader is not what this is about.
- The peer lists pods, nodes and the six kinds of owners, all at the same time, with protobuf, and decodes them.
- In addition to the ratio, the goal is 10 seconds at most.`,
	variants: []variant{{name: "classes", ideal: "≤ 4", a: "start to first correct answers", b: "LIST of the same objects"}},
	open:     openRestart,
}

const (
	// podsEach and onDemandEach are the pods of each workload, and how many of them are on-demand.
	podsEach, onDemandEach = 10, 3
)

type restartBench struct {
	*bed
	mu sync.Mutex
	// next are the pods that are created next, by the class that they should get.
	next map[string]*corev1.Pod
}

func openRestart(ctx context.Context, o options, log io.Writer) (bench, error) {
	b, err := makeBed(ctx, settings{options: o, pinned: true, log: log})
	if err != nil {
		return nil, err
	}
	r := &restartBench{bed: b, next: map[string]*corev1.Pod{}}
	if err := r.populate(ctx); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

// populate creates the workloads and, through the webhook, their pods, and binds the
// pods.
func (r *restartBench) populate(ctx context.Context) error {
	err := r.eventually(ctx, "the ServiceAccount of the namespace", func(ctx context.Context) (bool, error) {
		accounts, err := r.client.CoreV1().ServiceAccounts(namespace).List(ctx, metav1.ListOptions{})
		return err == nil && len(accounts.Items) > 0, err
	})
	if err != nil {
		return err
	}
	// Only this program may create, bind or delete pods.
	for _, name := range []string{devcluster.ControllerManager, devcluster.Scheduler} {
		if err := r.cluster.Kill(ctx, name); err != nil {
			return err
		}
	}
	workloads := make([]int, max(2, r.options.pods/podsEach))
	for i := range workloads {
		workloads[i] = i
	}
	fmt.Fprintf(r.log, "adding %d workloads of %d pods\n", len(workloads), podsEach)
	if err := inParallel(ctx, writers, workloads, r.add); err != nil {
		return err
	}
	return r.waitIdle(ctx)
}

// add creates one workload. The first lacks an on-demand pod, the second a spot pod.
func (r *restartBench) add(ctx context.Context, i int) error {
	set, err := r.createOwners(ctx, fmt.Sprint("w-", i), workload{onDemand: onDemandEach}, podsEach)
	if err != nil {
		return err
	}
	named := map[string]string{} // a pod of each class
	for j := range podsEach {
		pod, err := r.client.CoreV1().Pods(namespace).Create(ctx, podOf(set, j), metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("creating pod %d of %s: %w", j, set.Name, err)
		}
		class := pod.Labels[gm.CapacityClassLabel]
		named[class] = pod.Name
		node := 2 * ((i*podsEach + j) % (r.options.nodes / 2))
		if class == classNames[1] {
			node++
		}
		err = r.client.CoreV1().Pods(namespace).Bind(ctx, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: pod.Name}, Target: corev1.ObjectReference{Kind: "Node", Name: nodeName(node)},
		}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("binding pod %s: %w", pod.Name, err)
		}
	}
	if i >= len(classNames) {
		return nil
	}
	class := classNames[i]
	if err := r.client.CoreV1().Pods(namespace).Delete(ctx, named[class], metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
		return fmt.Errorf("deleting a pod of class %s: %w", class, err)
	}
	r.expect(class, podOf(set, podsEach))
	return nil
}

func (r *restartBench) expect(class string, pod *corev1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next[class] = pod
}

func (r *restartBench) sides(context.Context, string) (a, b side, err error) {
	return side{name: "atoll-manager", measure: r.cold}, side{name: "LIST", measure: r.listed}, nil
}

// cold starts the manager and waits for correct answers.
func (r *restartBench) cold(ctx context.Context) (sample, error) {
	start, err := r.restartManager(ctx)
	if err != nil {
		return sample{}, err
	}
	return r.timed(ctx, func(ctx context.Context) (string, error) {
		started := make(chan error, 1)
		go func() { started <- start(ctx) }()
		wrong, err := r.waitCorrect(ctx)
		return fmt.Sprintf("%d answers before that were not correct", wrong), errors.Join(err, <-started)
	})
}

// waitCorrect sends requests until both answers are correct, and returns how many were
// wrong. A pod that passed no webhook, or waits at the gate, has no class; then the
// request is repeated.
func (r *restartBench) waitCorrect(ctx context.Context) (wrong int, err error) {
	var last error
	err = wait.PollUntilContextTimeout(ctx, poll/10, stepWithin, true, func(ctx context.Context) (bool, error) {
		right := 0
		for class, pod := range r.next {
			created, err := r.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if err != nil {
				last = err
				return false, nil //nolint:nilerr // reported if it lasts
			}
			switch created.Labels[gm.CapacityClassLabel] {
			case class:
				right++
			case "":
				last = fmt.Errorf("pod %s got no class", pod.Name)
			default:
				wrong++
			}
		}
		return right == len(r.next), nil
	})
	if err != nil {
		return wrong, fmt.Errorf("waiting for correct answers, of which %d were wrong: %w", wrong, errors.Join(err, last))
	}
	return wrong, nil
}
