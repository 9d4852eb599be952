package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

// people measures how long a person waits for kubectl atoll.
var people = benchmark{
	name: "people", unit: "s", nodes: 1000, pods: 10000,
	about: `How long kubectl atoll takes ÷ the time that a client takes to LIST the objects that it needs.

- 1,000 simulated nodes in 10 NodeGroups, and 10,000 pods of 200 Deployments that require one PropagationPolicy: one has half of the pods, which are
  spread evenly but for one that waits, and the others the rest, all of each in one group.
- The whole process is measured, with its start and the discovery of kinds. plan is for other weights, so that pods of every Deployment move.
- The peer lists the same objects with protobuf, all at the same time, and decodes them.`,
	variants: []variant{
		{name: "explain", ideal: "≤ 1.5, A < 2 s", a: "kubectl atoll explain deployment/load", b: "LIST of the pods, ReplicaSets and Jobs of its namespace"},
		{name: "plan", ideal: "A < 5 s", a: "kubectl atoll plan -f policy.json", b: "LIST of pods, nodes and six kinds of owners"},
	},
	open: openPeople,
}

// deployments is how many require the policy.
const deployments = 200

type peopleBench struct {
	*fleet
	// program is kubectl-atoll, and file has other weights for the policy.
	program, file string
}

func openPeople(ctx context.Context, o options, log io.Writer) (bench, error) {
	pods := o.pods
	o.pods /= 2
	f, err := makeFleet(ctx, settings{options: o, log: log})
	if err != nil {
		return nil, err
	}
	p := &peopleBench{fleet: f, program: filepath.Join(f.cluster.Dir(), "kubectl-atoll"), file: filepath.Join(f.cluster.Dir(), "policy.json")}
	if err := errors.Join(p.build(ctx), p.writePolicy(), p.addDeployments(ctx, pods-o.pods)); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

func (p *peopleBench) build(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", p.program, ".")
	cmd.Dir = "../cmd/kubectl-atoll"
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building kubectl-atoll: %w: %s", err, out)
	}
	return nil
}

// writePolicy writes a policy with weights of 1 and 2 in turns.
func (p *peopleBench) writePolicy() error {
	policy := &gm.PropagationPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: gm.GroupVersion.String(), Kind: "PropagationPolicy"},
		ObjectMeta: metav1.ObjectMeta{Name: evenPolicy, Namespace: namespace},
	}
	policy.Spec.PropagationStrategy, policy.Spec.Assignment = gm.StaticWeightPropagationStrategy, gm.AssignmentLate
	for i := range p.options.groups {
		policy.Spec.StaticWeight = append(policy.Spec.StaticWeight, gm.StaticNodeGroupWeight{NodeGroupNames: []string{p.groupName(i)}, Weight: int64(1 + i%2)})
	}
	raw, err := json.Marshal(policy)
	if err != nil {
		return fmt.Errorf("encoding the policy: %w", err)
	}
	if err := os.WriteFile(p.file, raw, 0o600); err != nil {
		return fmt.Errorf("writing the policy: %w", err)
	}
	return nil
}

// addDeployments adds the Deployments beside the one of the fleet.
func (p *peopleBench) addDeployments(ctx context.Context, pods int) error {
	others := make([]int, deployments-1)
	for i := range others {
		others[i] = i
	}
	each := max(1, pods/len(others))
	return inParallel(ctx, writers, others, func(ctx context.Context, i int) error {
		set, err := p.createOwners(ctx, fmt.Sprintf("other-%d", i), workload{name: "other", policy: evenPolicy}, each)
		if err != nil {
			return err
		}
		for j := range each {
			pod := podOf(set, j)
			pod.Spec.NodeName, pod.Spec.SchedulerName = p.nodeFor(i%p.options.groups+j*p.options.groups), corev1.DefaultSchedulerName
			if _, err := p.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
				return fmt.Errorf("creating pod %q: %w", pod.Name, err)
			}
		}
		return nil
	})
}

func (p *peopleBench) sides(_ context.Context, variant string) (a, b side, err error) {
	if variant == "explain" {
		return side{name: "explain", measure: func(ctx context.Context) (sample, error) { return p.runs(ctx, "explain", "deployment/"+loadName) }},
			side{name: "LIST", measure: p.listedOfNamespace}, nil
	}
	return side{name: "plan", measure: func(ctx context.Context) (sample, error) { return p.runs(ctx, "plan", "-f", p.file) }}, side{name: "LIST", measure: p.listed}, nil
}

// runs runs kubectl-atoll. plan ends with 2 or 3, because something changes.
func (p *peopleBench) runs(ctx context.Context, args ...string) (sample, error) {
	return p.timed(ctx, func(ctx context.Context) (string, error) {
		cmd := exec.CommandContext(ctx, p.program, append([]string{"--kubeconfig", p.cluster.KubeconfigPath(), "-n", namespace}, args...)...)
		out, err := cmd.Output()
		var exit *exec.ExitError
		if errors.As(err, &exit) && args[0] == "plan" && exit.ExitCode() > 1 {
			err = nil
		} else if exit != nil {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		return fmt.Sprintf("%d bytes printed", len(out)), err
	})
}

// listedOfNamespace lists what explain needs of a namespace.
func (p *peopleBench) listedOfNamespace(ctx context.Context) (sample, error) {
	lists := []func(context.Context, metav1.ListOptions) error{
		lister(p.client.CoreV1().Pods(namespace).List), lister(p.client.AppsV1().ReplicaSets(namespace).List), lister(p.client.BatchV1().Jobs(namespace).List),
	}
	return p.timed(ctx, func(ctx context.Context) (string, error) {
		return "", inParallel(ctx, len(lists), lists, func(ctx context.Context, list func(context.Context, metav1.ListOptions) error) error {
			return list(ctx, metav1.ListOptions{})
		})
	})
}
