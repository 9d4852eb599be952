package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
)

// site is the pool of the scene, and the namespace of its DaemonSet. siteNodes are its nodes.
const site = "site"

var siteNodes = []string{"site-1", "site-2", "site-3"}

// pool shows a pool that is cut off from the cloud, with a coordinator.
var pool = scene{
	name: "pool", about: "a pool of three nodes is cut off: people look and act there, by its coordinator, and change nothing",
	coordinators: true,
	cluster: func() devcluster.Options {
		return devcluster.Options{
			RealNodes:     devcluster.RealNodesMissing() == nil,
			ComponentArgs: map[string][]string{devcluster.ControllerManager: {"--node-monitor-grace-period=" + fieldGrace.String(), "--node-monitor-period=1s"}},
		}
	},
	begin: (*stage).addSite,
	acts: []act{{
		about:    "the pool gets a coordinator",
		commands: [][]string{{"create", "namespace", site}, {"apply", "-n", site, "-f", "test/demo/testdata/pool.yaml"}},
		answers: []answer{
			{about: "condition Ready of the YurtCoordinator", want: "True", args: []string{"get", "yurtcoordinator", site, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`}},
			{about: "ready pods of the DaemonSet", want: "3", args: []string{"get", "-n", site, "daemonset", "sensor", "-o", "jsonpath={.status.numberReady}"}},
		},
	}, {
		about:   "the cloud is cut off from all nodes of the pool",
		then:    (*stage).cutSite,
		answers: []answer{siteReady("Unknown Unknown Unknown")},
	}, {
		about:   "people look and act in the pool",
		then:    (*stage).playSite,
		answers: []answer{siteReady("Unknown Unknown Unknown")},
	}, {
		about:   "the cloud is back",
		then:    (*stage).restoreSite,
		answers: []answer{siteReady("True True True")},
	}, {
		about:    "without its YurtCoordinator nothing of it is left",
		commands: [][]string{{"delete", "yurtcoordinator", site}},
		answers:  []answer{{about: "objects in the namespace atoll-pools", want: "0", args: []string{"get", "uniteddeployments,deployments,pods,services,secrets", "-n", "atoll-pools", "-o", "go-template={{len .items}}"}}},
	}},
}

func siteReady(want string) answer {
	return answer{about: "conditions Ready of the pool's nodes", want: want, args: []string{
		"get", "nodes", "-l", "apps.openyurt.io/nodepool=" + site, "-o", `jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}`,
	}}
}

// addSite adds the nodes of the pool. Only real ones can run a coordinator.
func (s *stage) addSite(ctx context.Context) error {
	if missing := devcluster.RealNodesMissing(); missing != nil {
		return fmt.Errorf("this scene runs the pod of a coordinator, which needs real nodes: %w", missing)
	}
	s.journal.add(note, "adding %d real nodes, with containerd, a kubelet and atoll-hub", len(siteNodes))
	hub, err := atoll.NewHub(ctx, s.journal)
	if err != nil {
		return err
	}
	var specs []devcluster.RealNodeSpec
	for _, name := range siteNodes {
		specs = append(specs, devcluster.RealNodeSpec{
			NodeSpec: devcluster.NodeSpec{Name: name, Labels: map[string]string{"apps.openyurt.io/nodepool": site}}, Pool: site, Gateway: hub,
			Kubelet: map[string]any{"nodeLeaseDurationSeconds": 8}, // renewed every 2 s
		})
	}
	if err := s.cluster.AddRealNodes(ctx, specs...); err != nil {
		return err
	}
	return atoll.LoadCoordinator(ctx, s.cluster, s.journal, siteNodes...)
}

// sitePeople is the file with people's kubeconfig.
func (s *stage) sitePeople() string { return filepath.Join(s.cluster.Dir(), "people.kubeconfig") }

// cutSite keeps people's kubeconfig, and cuts the links once the hubs serve the coordinator.
func (s *stage) cutSite(ctx context.Context) error {
	err := s.until(ctx, "the hubs serve the coordinator", func() error {
		for _, node := range siteNodes {
			out, err := s.cluster.RunOn(ctx, node, s.siteGet(), "get", "http://127.0.0.1:10267/status")
			if err == nil && !strings.Contains(out, `"access":{"address":"[::]:10262"`) {
				err = errors.New("that of " + node + " does not yet")
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	args := []string{"get", "secret", "-n", "atoll-pools", "kubeconfig-" + site, "-o", "go-template={{.data.kubeconfig | base64decode}}"}
	s.journal.add(command, "kubectl %s > people.kubeconfig", strings.Join(args, " "))
	kubeconfig, err := s.ask(ctx, args...)
	if err != nil {
		return err
	}
	if err := os.WriteFile(s.sitePeople(), []byte(kubeconfig), 0o600); err != nil {
		return err
	}
	// The namespace is among what the hub that leads uploads for the pool, some seconds after the pods.
	err = s.until(ctx, "the coordinator has the namespace", func() error {
		_, err := s.onSite(ctx, "get", "namespace", site)
		return err
	})
	if err != nil {
		return err
	}
	s.journal.add(note, "cutting the links between the pool and the cloud")
	return s.linkSite(ctx, true)
}

func (s *stage) siteGet() string { return filepath.Join(s.cluster.Dir(), "bin", "devcluster-pause") }

func (s *stage) linkSite(ctx context.Context, cut bool) error {
	for _, node := range siteNodes {
		if err := s.cluster.SetLeg(ctx, node, devcluster.Cloud, devcluster.LegState{Cut: cut}); err != nil {
			return err
		}
	}
	return nil
}

// onSite runs kubectl on a node of the pool with people's kubeconfig.
func (s *stage) onSite(ctx context.Context, args ...string) (string, error) {
	return s.cluster.RunOn(ctx, siteNodes[0], s.cluster.BinaryPath("kubectl"), append([]string{"--kubeconfig=" + s.sitePeople()}, args...)...)
}

// playSite runs kubectl on a node of the pool, as people do there.
func (s *stage) playSite(ctx context.Context) error {
	pod, err := s.ask(ctx, "get", "pods", "-n", site, "--field-selector=spec.nodeName="+siteNodes[2], "-o", "jsonpath={.items[0].metadata.name}")
	if err != nil {
		return err
	}
	for _, one := range []struct {
		args []string
		want string
	}{
		{[]string{"get", "nodes"}, siteNodes[2]},
		{[]string{"get", "pods", "-n", site, "-o", "wide"}, pod},
		{[]string{"logs", "-n", site, pod}, "serving as"},
		{[]string{"exec", "-n", site, pod, "--", "/pause", "get", "http://127.0.0.1:8080"}, pod},
		{[]string{"delete", "pod", "-n", site, pod}, "Make them at the cloud's API server"},
	} {
		s.journal.add(command, "on %s: kubectl --kubeconfig=people.kubeconfig %s", siteNodes[0], strings.Join(one.args, " "))
		out, err := s.onSite(ctx, one.args...)
		if err != nil {
			out = err.Error()
		}
		s.journal.add(output, "%s", strings.TrimSpace(out))
		if !strings.Contains(out, one.want) {
			return fmt.Errorf("kubectl %s does not print %q", strings.Join(one.args, " "), one.want)
		}
	}
	return nil
}

func (s *stage) restoreSite(ctx context.Context) error {
	s.journal.add(note, "restoring the links")
	return s.linkSite(ctx, false)
}
