package main

import (
	"context"
	"errors"
	"strings"

	"github.com/atoll-k8s/atoll/devcluster"
)

// governance shows that the cloud tells a node that is dead from nodes that are only cut off.
var governance = scene{
	name: "governance", about: "of a pool, one node is cut off, then the hub that leads, then all, then one dies: only the dead one loses its pod",
	coordinators: true,
	cluster:      func() devcluster.Options { return devcluster.Options{RealNodes: devcluster.RealNodesMissing() == nil} },
	begin:        (*stage).addSite,
	acts: []act{{
		about:    "the pool gets a coordinator, and a pod on each node",
		commands: [][]string{{"create", "namespace", site}, {"apply", "-n", site, "-f", "test/demo/testdata/governance.yaml"}},
		answers: append(siteIs("none", 3),
			answer{about: "condition PodAccess of the YurtCoordinator", want: "True", args: siteStatus(`{.conditions[?(@.type=="PodAccess")].status}`)}),
	}, {
		about:   "site-3 is cut off from the cloud: its pool speaks for it",
		then:    func(s *stage, ctx context.Context) error { return s.link(ctx, true, siteNodes[2]) },
		answers: append(siteIs("[site-3]", 3), siteReady("True True Unknown")),
	}, {
		about:   "site-3 is back",
		then:    func(s *stage, ctx context.Context) error { return s.link(ctx, false, siteNodes[2]) },
		answers: append(siteIs("none", 3), siteReady("True True True")),
	}, {
		about:   "the hub that leads is cut off: another one speaks for its node",
		then:    (*stage).cutLeader,
		answers: []answer{{about: "endpoints that are ready", want: "true true true", args: siteEndpoints}, {about: "condition Frozen of the YurtCoordinator", want: "False", args: siteFrozen}},
	}, {
		about:   "all nodes are cut off: nobody knows, and nothing is evicted",
		then:    func(s *stage, ctx context.Context) error { return s.link(ctx, true, siteNodes...) },
		answers: []answer{{about: "condition Frozen of the YurtCoordinator", want: "True", args: siteFrozen}, {about: "pods of the Deployment", want: "3", args: sitePods}},
	}, {
		about:   "all nodes are back",
		then:    func(s *stage, ctx context.Context) error { return s.link(ctx, false, siteNodes...) },
		answers: append(siteIs("none", 3), siteReady("True True True")),
	}, {
		about: "site-3 dies: its pod is evicted, and nothing else",
		then: func(s *stage, ctx context.Context) error {
			s.journal.add(note, "killing site-3")
			return s.cluster.Kill(ctx, siteNodes[2])
		},
		answers: append(siteIs("none", 2), siteReady("True True Unknown")),
	}, {
		about:    "without its YurtCoordinator nothing of it is left",
		commands: [][]string{{"delete", "yurtcoordinator", site}},
		answers: []answer{
			// A pod that ran on the dead node is gone when that node is: Kubernetes waits for its kubelet.
			{about: "objects in the namespace atoll-pools", want: "none", args: []string{"get", "uniteddeployments,deployments,pods,services,secrets,leases", "-n", "atoll-pools", "-o", "go-template={{range .items}}{{if not .metadata.deletionTimestamp}}{{.kind}} {{end}}{{end}}none"}},
			{about: "nodes with a mark", want: "none", args: []string{"get", "nodes", "-o", `go-template={{range .items}}{{if or (index .metadata.annotations "atoll.dev/connectivity") (index .metadata.labels "node.kubernetes.io/exclude-disruption")}}{{.metadata.name}} {{end}}{{end}}none`}},
		},
	}},
}

func siteStatus(path string) []string {
	return []string{"get", "yurtcoordinator", site, "-o", "jsonpath=" + strings.Replace(path, "{.", "{.status.", 1)}
}

var (
	siteEndpoints = []string{"get", "endpointslices", "-n", site, "-l", "kubernetes.io/service-name=sensor", "-o", "go-template={{range .items}}{{range .endpoints}}{{if .conditions.ready}}true {{end}}{{end}}{{end}}"} // a pod that was evicted is there while its node is dead
	sitePods      = []string{"get", "pods", "-n", site, "-l", "app=sensor", "-o", "go-template={{len .items}}"}
	siteFrozen    = siteStatus(`{.conditions[?(@.type=="Frozen")].status}`)
)

// siteIs are the answers if these nodes are delegated, the condition Frozen is False, and so many pods are ready endpoints.
func siteIs(delegated string, endpoints int) []answer {
	return []answer{
		{about: "delegated nodes", want: delegated, args: []string{"get", "yurtcoordinator", site, "-o", "go-template={{with .status.delegatedNodes}}{{.}}{{else}}none{{end}}"}},
		{about: "condition Frozen of the YurtCoordinator", want: "False", args: siteFrozen},
		{about: "endpoints that are ready", want: strings.TrimSpace(strings.Repeat("true ", endpoints)), args: siteEndpoints},
	}
}

// link cuts or restores links between nodes and the cloud.
func (s *stage) link(ctx context.Context, cut bool, nodes ...string) error {
	what := map[bool]string{true: "cutting", false: "restoring"}[cut]
	s.journal.add(note, "%s the links between the cloud and %s", what, strings.Join(nodes, ", "))
	for _, node := range nodes {
		if err := s.cluster.SetLeg(ctx, node, devcluster.Cloud, devcluster.LegState{Cut: cut}); err != nil {
			return err
		}
	}
	return nil
}

// cutLeader cuts the node off whose hub leads, and waits until another one does.
func (s *stage) cutLeader(ctx context.Context) error {
	holder := []string{"get", "lease", "-n", "atoll-pools", "pool-" + site, "-o", "jsonpath={.spec.holderIdentity}"}
	leader, err := s.ask(ctx, holder...)
	if err != nil {
		return err
	}
	if err := s.link(ctx, true, leader); err != nil {
		return err
	}
	return s.until(ctx, "another hub leads, and its pool speaks for "+leader, func() error {
		now, err := s.ask(ctx, holder...)
		if err != nil {
			return err
		}
		delegated, err := s.ask(ctx, siteStatus("{.delegatedNodes[*]}")...)
		if err == nil && (now == leader || delegated != leader) {
			err = errors.New(now + " leads, and delegated is " + delegated)
		}
		return err
	})
}
