package main

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/atoll-k8s/atoll/devcluster"
)

// TestVerbArgumentsSelectTheTarget: a process or node, a program of a real node, or a container.
func TestVerbArgumentsSelectTheTarget(t *testing.T) {
	var got string
	v := verb{
		name: "kill",
		do:   func(_ *devcluster.Cluster, _ context.Context, of string) error { got = "process " + of; return nil },
		on: func(_ *devcluster.Cluster, _ context.Context, node, program string) error {
			got = program + " of " + node
			return nil
		},
		container: func(_ *devcluster.Cluster, _ context.Context, namespace, pod, container string) error {
			got = container + " of " + pod + " in " + namespace
			return nil
		},
	}
	for args, want := range map[string]string{
		"etcd":              "process etcd",
		"real-0 kubelet":    "kubelet of real-0",
		"default/web/nginx": "nginx of web in default",
	} {
		do, err := v.action(strings.Fields(args))
		if err != nil {
			t.Fatal(err)
		}
		if err := do(nil, t.Context()); err != nil || got != want {
			t.Errorf("%s is about %s, %v, want %s", args, got, err, want)
		}
	}
	if _, err := v.action([]string{"default/web"}); err == nil {
		t.Error("a container without a name is accepted")
	}
	v.container = nil
	if _, err := v.action([]string{"default/web/nginx"}); err == nil || !strings.Contains(err.Error(), "kill it") {
		t.Errorf("restart of a container: %v", err)
	}
}

// TestCommandsThatAreRefused before a cluster is looked for.
func TestCommandsThatAreRefused(t *testing.T) {
	t.Setenv("ATOLL_CACHE_DIR", t.TempDir())
	for args, words := range map[string]string{
		"cut real-0":                         "accepts 2 arg(s)",
		"degrade real-0 cloud":               "give --delay, --loss or both",
		"degrade real-0 cloud --delay soon":  "invalid duration",
		"degrade real-0 cloud --delay 300ms": "no cluster runs",
		"restore real-0 pool":                "no cluster runs",
		"kill real-0 kubelet containerd":     "accepts between 1 and 2 arg(s)",
		"restart default/web/nginx":          "the kubelet starts it again",
		"pause web/nginx":                    "NAMESPACE/POD/CONTAINER",
		"resume default/web/nginx":           "no cluster runs",
	} {
		root := newRootCommand()
		root.SetArgs(strings.Fields(args))
		root.SetOut(&bytes.Buffer{})
		root.SetErr(&bytes.Buffer{})
		if err := root.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("devcluster %s: %v, want %q", args, err, words)
		}
	}
}

// TestHelpSaysWhatRealNodesNeed, and that the others need less.
func TestHelpSaysWhatRealNodesNeed(t *testing.T) {
	for _, args := range []string{"--help", "up --help"} {
		var help bytes.Buffer
		root := newRootCommand()
		root.SetArgs(strings.Fields(args))
		root.SetOut(&help)
		if err := root.ExecuteContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, need := range []string{"Linux", "root", "TUN", "C compiler"} {
			if !strings.Contains(help.String(), need) {
				t.Errorf("devcluster %s does not say that real nodes need %s:\n%s", args, need, help.String())
			}
		}
		if strings.Contains(help.String(), "nothing else") {
			t.Errorf("devcluster %s says that nothing else is needed:\n%s", args, help.String())
		}
	}
}
