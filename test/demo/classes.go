package main

import (
	"context"
	"fmt"
	"strings"

	apimeta "k8s.io/apimachinery/pkg/api/meta"

	capacity "github.com/atoll-k8s/atoll/api/capacity/v1alpha1"
)

// shop is the namespace of the scene of on-demand and spot nodes. Its Deployment mixed
// has three on-demand pods and two spot pods.
const (
	shop  = "shop"
	mixed = "mixed"

	classLabel = "node.kubernetes.io/capacity"
)

// classes shows on-demand and spot nodes (docs/sources.md, C4).
var classes = scene{
	name: "capacity", about: "the four cases of docs/sources.md, C4, spot nodes that are taken back, and a Deployment that shrinks: exact each time",
	begin: (*stage).watchClasses,
	acts: []act{{
		commands: [][]string{
			{"label", "node", "nodea", "nodec", classLabel + "=on-demand"},
			{"label", "node", "nodeb", "noded", "nodee", classLabel + "=spot"},
			{"create", "namespace", shop},
			{"apply", "-n", shop, "-f", "examples/capacity/deployments.yaml"},
		},
		answers: []answer{
			splits("all-on-demand 5+0 Satisfied", "all-spot 0+5 Satisfied", "fewer-than-the-count 5+0 Satisfied", "mixed 3+2 Satisfied"),
			onNodes("all-spot", "nodeb", "noded", "nodee"),
			onNodes("all-on-demand", "nodea", "nodec"),
		},
	}, {
		commands: [][]string{
			{"drain", "noded", "nodee", "--ignore-daemonsets", "--delete-emptydir-data"},
			{"delete", "node", "noded", "nodee"},
		},
		answers: []answer{
			splits("all-on-demand 5+0 Satisfied", "all-spot 0+5 Satisfied", "fewer-than-the-count 5+0 Satisfied", "mixed 3+2 Satisfied"),
			onNodes("all-spot", "nodeb"),
		},
	}, {
		commands: [][]string{{"scale", "-n", shop, "deployment", mixed, "--replicas=3"}},
		answers: []answer{
			splits("all-on-demand 5+0 Satisfied", "all-spot 0+5 Satisfied", "fewer-than-the-count 5+0 Satisfied", "mixed 3+0 Satisfied"),
		},
	}},
}

// splits is the expected answer for the CapacitySplits, each as "<workload> <on-demand
// pods>+<spot pods> <reason>".
func splits(want ...string) answer {
	return answer{about: "CapacitySplits", args: []string{
		"get", "-n", shop, "capacitysplits", "-o",
		`jsonpath={range .items[*]}{.status.workload.name} {.status.onDemand.have}+{.status.spot.have} {.status.conditions[?(@.type=="Ready")].reason}, {end}`,
	}, want: strings.Join(want, ", ") + ","}
}

// onNodes is the expected answer when the pods of a workload run on these nodes, at least
// one on each of them.
func onNodes(app string, nodes ...string) answer {
	return answer{about: "nodes of " + app, args: []string{
		"get", "-n", shop, "pods", "-l", "app=" + app, "--sort-by=.spec.nodeName", "-o", "jsonpath={.items[*].spec.nodeName}",
	}, want: strings.Join(nodes, " "), once: true}
}

// watchClasses adds a line for each change of a CapacitySplit from now on.
func (s *stage) watchClasses(ctx context.Context) error {
	return s.state.watch(ctx, &capacity.CapacitySplit{}, whenever(s.seeSplit))
}

func (s *stage) seeSplit(o any) {
	split, ok := o.(*capacity.CapacitySplit)
	if !ok || split.Status.Workload.Name == "" {
		return
	}
	text := fmt.Sprintf("%d of %d on-demand, %d of %d spot",
		split.Status.OnDemand.Have, split.Status.OnDemand.Want, split.Status.Spot.Have, split.Status.Spot.Want)
	if c := apimeta.FindStatusCondition(split.Status.Conditions, capacity.ConditionReady); c != nil {
		text += fmt.Sprintf(": Ready=%s %s: %s", c.Status, c.Reason, c.Message)
	}
	s.report("CapacitySplit of "+split.Status.Workload.Name, text)
}
