package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	toolscache "k8s.io/client-go/tools/cache"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
)

// store is the namespace of the UnitedDeployment in the scene of pools.
const store = "store"

// askEvery is the interval between two runs of kubectl that wait for an answer.
const askEvery = 250 * time.Millisecond

// answer is an expected output of kubectl.
type answer struct {
	about string
	args  []string
	want  string
	// wantOf are arguments with which kubectl prints the wanted text, instead of want.
	wantOf []string
	// once reports that a word that is printed several times in a row counts once.
	once bool
}

// pools shows NodePools and a UnitedDeployment.
var pools = scene{
	name: "pools", about: "nodes get what their pool gives; one template runs in both pools and is rolled out pool by pool; a node that leaves gets its own taint back",
	begin: (*stage).watchPools,
	acts: []act{{
		commands: [][]string{
			{"taint", "node", "nodee", "site=workshop:PreferNoSchedule"},
			{"apply", "-f", "examples/pools/01-nodepools.yaml"},
			{"label", "node", "nodea", "nodeb", apps.NodePoolLabel + "=hangzhou"},
			{"label", "node", "nodec", "noded", "nodee", apps.NodePoolLabel + "=beijing"},
		},
		answers: []answer{
			nodesOf("hangzhou", "nodea", "nodeb"),
			nodesOf("beijing", "nodec", "noded", "nodee"),
			poolsLabel("hangzhou hangzhou beijing beijing beijing"),
			taintOf("nodee", "beijing"),
		},
	}, {
		commands: [][]string{
			{"create", "namespace", store},
			{"apply", "-n", store, "-f", "examples/pools/02-uniteddeployment.yaml"},
		},
		answers: rolledOut("store:1"),
	}, {
		commands: [][]string{
			{"patch", "-n", store, "uniteddeployment", store, "--type=merge", "-p", `{"spec":{"workloadTemplate":{"deploymentTemplate":{"spec":{"template":{"spec":{"containers":[{"name":"store","image":"store:2"}]}}}}}}}`},
		},
		answers: rolledOut("store:2"),
		verdict: (*stage).judgeRollout,
	}, {
		commands: [][]string{{"label", "node", "nodee", apps.NodePoolLabel + "-"}},
		answers: []answer{
			nodesOf("beijing", "nodec", "noded"),
			taintOf("nodee", "workshop"),
			poolsLabel("hangzhou hangzhou beijing beijing"),
		},
	}},
}

func nodesOf(pool string, nodes ...string) answer {
	return answer{
		about: "nodes of NodePool " + pool, want: strings.Join(nodes, " "),
		args: []string{"get", "nodepool", pool, "-o", "jsonpath={.status.nodes[*]}"},
	}
}

func taintOf(node, value string) answer {
	return answer{
		about: "taint site of node " + node, want: value,
		args: []string{"get", "node", node, "-o", `jsonpath={.spec.taints[?(@.key=="site")].value}`},
	}
}

// poolsLabel is the expected answer when the nodes with the pools' label have these
// values.
func poolsLabel(want string) answer {
	return answer{about: "the pools' label", want: want, args: []string{"get", "nodes", "-o", `jsonpath={.items[*].metadata.labels.example\.com/site}`}}
}

// rolledOut are the expected answers when every pool runs the image.
func rolledOut(image string) []answer {
	ud := []string{"get", "-n", store, "uniteddeployment", store, "-o"}
	return []answer{
		{about: "phases of the pools", args: append(slices.Clone(ud), "jsonpath={.status.pools[*].phase}"), want: "Ready Ready"},
		{about: "updated pods of the pools", args: append(slices.Clone(ud), "jsonpath={.status.pools[*].updatedReplicas}"), want: "3 2"},
		{about: "images of pods that are Ready", args: []string{
			"get", "-n", store, "deployments", "-l", "app=" + store, "-o",
			`jsonpath={range .items[*]}{.metadata.name} {.spec.template.spec.containers[0].image} {.status.readyReplicas} {end}`,
		}, want: fmt.Sprintf("%[1]s-beijing %[2]s 2 %[1]s-hangzhou %[2]s 3", store, image)},
	}
}

// rollouts are, for each revision, the pools of the UnitedDeployment that were updated,
// in the order in which they began.
type rollouts struct {
	order map[string][]string
	// atOnce is the largest number of pools that were updated at the same time.
	atOnce map[string]int
	// revision is the last one.
	revision string
}

// watchPools adds a line for each change of the pools and of the UnitedDeployment from
// now on.
func (s *stage) watchPools(ctx context.Context) error {
	seen := &rollouts{order: map[string][]string{}, atOnce: map[string]int{}}
	s.mu.Lock()
	s.rollouts = seen
	s.mu.Unlock()
	if err := s.state.watch(ctx, &apps.NodePool{}, whenever(s.seePool)); err != nil {
		return err
	}
	return s.state.watch(ctx, &apps.UnitedDeployment{}, whenever(s.seeUnited))
}

// whenever calls see for each object, and after each change of it.
func whenever(see func(any)) toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{AddFunc: see, UpdateFunc: func(_, o any) { see(o) }}
}

func (s *stage) seePool(o any) {
	pool, ok := o.(*apps.NodePool)
	if !ok || pool.Status.ObservedGeneration == 0 {
		return
	}
	s.report("NodePool "+pool.Name, fmt.Sprintf("%d of %d nodes Ready: %s", pool.Status.ReadyNode,
		pool.Status.ReadyNode+pool.Status.NotReadyNode, strings.Join(pool.Status.Nodes, ", ")))
}

func (s *stage) seeUnited(o any) {
	ud, ok := o.(*apps.UnitedDeployment)
	if !ok {
		return
	}
	for _, pool := range ud.Status.Pools {
		s.report(fmt.Sprintf("UnitedDeployment %s, pool %s", ud.Name, pool.Name),
			fmt.Sprintf("%s, %d of %d pods updated, %d Ready", pool.Phase, pool.UpdatedReplicas, pool.DesiredReplicas, pool.ReadyReplicas))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r, revision, updating := s.rollouts, ud.Status.UpdateRevision, 0
	for _, pool := range ud.Status.Pools {
		if pool.Phase == apps.PoolUpdating {
			updating++
			if !slices.Contains(r.order[revision], pool.Name) {
				r.order[revision] = append(r.order[revision], pool.Name)
			}
		}
	}
	r.atOnce[revision], r.revision = max(r.atOnce[revision], updating), revision
}

// report adds a line about an object, if it differs from the last line about it.
func (s *stage) report(about, text string) {
	s.mu.Lock()
	known := s.reported[about] == text
	s.reported[about] = text
	s.mu.Unlock()
	if !known {
		s.journal.add(change, "%s: %s", about, text)
	}
}

// judgeRollout returns the failures during the rollout of the last revision, and a
// summary.
func (s *stage) judgeRollout() (text string, failures []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.rollouts
	order, atOnce := r.order[r.revision], r.atOnce[r.revision]
	if !slices.Equal(order, []string{"hangzhou", "beijing"}) {
		failures = append(failures, fmt.Sprintf("pools were updated in the order %v, wanted hangzhou before beijing", order))
	}
	if atOnce != 1 {
		failures = append(failures, fmt.Sprintf("%d pools were updated at once, wanted 1", atOnce))
	}
	return fmt.Sprintf("updated %s, %d pool at a time", strings.Join(order, ", then "), atOnce), failures
}

// awaitAnswers runs kubectl until it prints the expected answers, and returns those that
// it did not print in time.
func (s *stage) awaitAnswers(ctx context.Context, answers []answer, within time.Duration) ([]string, error) {
	deadline := time.After(within)
	for {
		var failures []string
		for _, a := range answers {
			got, err := s.ask(ctx, a.args...)
			want := a.want
			if a.wantOf != nil && err == nil {
				want, err = s.ask(ctx, a.wantOf...)
			}
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if a.once {
				got = strings.Join(slices.Compact(strings.Fields(got)), " ")
			}
			if err != nil || got != want || want == "" {
				failures = append(failures, fmt.Sprintf("%s: %q, wanted %q", a.about, got, want))
			}
		}
		if len(failures) == 0 {
			return nil, nil
		}
		select {
		case <-time.After(askEvery):
		case <-deadline:
			return append(failures, fmt.Sprintf("not as wanted within %s", within)), nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
