package e2e

import (
	"fmt"
	"testing"

	"github.com/atoll-k8s/atoll/devcluster/atoll"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// TestExtenderIsCalledForMarkedPodsOnly: in the form Plain the extender can be limited
// to managed pods. They are marked by a request of 0 of a resource, and all others are
// bound also while parts of Atoll are down.
func TestExtenderIsCalledForMarkedPodsOnly(t *testing.T) {
	tier.All(t, "a cluster of its own: a minute")
	f := newFixtureOfItsOwn(t, atoll.Options{Form: atoll.Plain, Managed: true})
	f.group("marked-a", 2)
	f.group("marked-b", 2)
	f.create(weights("policy", "marked-a", 3, "marked-b", 2))
	f.create(deployment("app", 5, "policy"), deployment("free", 10, ""))
	f.eventually(patience, "managed pods are spread exactly", func() error {
		if err := f.spreadIs("app", map[string]int{"marked-a": 3, "marked-b": 2}); err != nil {
			return err
		}
		return f.allReady("app", 5) // no node offers the resource, and none has to
	})
	f.eventually(patience, "pods without a policy are bound", func() error { return f.boundAre("free", 10) })
	if n := f.askedWithoutPolicy(); n != 0 {
		t.Errorf("%v filter requests were about pods without a policy", n)
	}
	if f.filterCalls() == 0 {
		t.Error("no filter request at all: the managed pods went past the extender")
	}

	f.kill(atoll.Manager)
	f.scale("free", 20)
	f.eventually(patience, "pods without a policy are bound without the manager", func() error { return f.boundAre("free", 20) })
	f.scale("app", 10)
	f.eventually(patience, "the webhook is passed by", func() error {
		if n := len(f.pods("app")); n != 10 {
			return fmt.Errorf("%d pods", n)
		}
		return f.boundAre("app", 10)
	})
	f.restart(atoll.Manager)
	f.eventually(2*patience, "managed pods of that time are put right", func() error {
		if err := f.spreadIs("app", map[string]int{"marked-a": 6, "marked-b": 4}); err != nil {
			return err
		}
		return f.allReady("app", 10)
	})
	if n := f.askedWithoutPolicy(); n != 0 {
		t.Errorf("%v filter requests were about pods without a policy", n)
	}
}
