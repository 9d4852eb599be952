package main

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// rename gives the playground of a test a name of its own, and removes it before and after the
// test.
func rename(t *testing.T, to string) {
	t.Helper()
	name = to
	remove := func() { // also removes the leftovers of an interrupted run
		if err := devcluster.Remove(context.Background(), name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
	}
	remove()
	t.Cleanup(remove)
}

// refused fails the test unless the command is refused with these words.
func refused(t *testing.T, words string, args ...string) {
	t.Helper()
	if err := run(t.Context(), args); err == nil || !strings.Contains(err.Error(), words) {
		t.Errorf("%v: %v, want %q", args, err, words)
	}
}

// TestUpAndDown: the playground outlives the command, the next command finds it and
// refuses another form and other nodes, and down removes it.
func TestUpAndDown(t *testing.T) {
	tier.All(t, "starts and stops a whole playground: a minute")
	rename(t, "playground-test")
	for range 2 {
		if err := run(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := run(t.Context(), []string{"-form=pinned", "-real-nodes=0"}); err != nil {
		t.Error(err)
	}
	refused(t, "runs in the form Pinned, not Plain: stop it with make down first", "-form=plain")
	refused(t, "runs on simulated nodes, not on 3 real nodes: stop it with make down first", "-real-nodes=3")
	cluster, err := devcluster.Attach(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	scheme := runtime.NewScheme()
	if err := gm.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(cluster.AdminConfig(), client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	var groups gm.NodeGroupList
	if err := c.List(t.Context(), &groups); err != nil || len(groups.Items) != len(sites) {
		t.Errorf("there are %d NodeGroups (%v), want %d", len(groups.Items), err, len(sites))
	}
	if err := run(t.Context(), []string{"-down"}); err != nil {
		t.Error(err)
	}
	if _, err := devcluster.Attach(t.Context(), name); err == nil {
		t.Error("the playground still exists")
	}
}
