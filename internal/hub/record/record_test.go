package record

import (
	"fmt"
	"testing"

	"github.com/go-logr/logr"
	kubernetesscheme "k8s.io/client-go/kubernetes/scheme"
)

// TestScopesThatWaitAreBounded: while the disk hangs, requests of other callers leave a bounded number of scopes
// in memory, and the node has its own limit.
func TestScopesThatWaitAreBounded(t *testing.T) {
	r := New(nil, 0, nil, logr.Discard())
	hangs := make(chan struct{})
	nothing := func(*Job) error { return nil }
	added := map[string]int{}
	for i := range MaxScopes + 10 {
		for _, caller := range []string{"node", "somebody", "another"} {
			if r.Keep(fmt.Sprint(caller, "\n", i), 0, func(*Job) error { <-hangs; return nil }) {
				added[caller]++
			}
		}
	}
	if added["node"] != MaxScopes || added["somebody"]+added["another"] != maxOthersScopes {
		t.Errorf("waiting are %v", added)
	}
	close(hangs)
	r.Wait()
	if !r.Keep("somebody\nlater", 0, nothing) || !r.Keep("node\nlater", 0, nothing) {
		t.Error("the places are not given back")
	}
	r.Wait()
}

func TestCustomResourcesAreRecognizedByTheirGroup(t *testing.T) {
	builtin := map[string]bool{"apiextensions.k8s.io/v1": true, "apiregistration.k8s.io/v1": true}
	for _, version := range kubernetesscheme.Scheme.PrioritizedVersionsAllGroups() {
		builtin[version.String()] = true
	}
	for version := range builtin {
		if isCustom(version) {
			t.Errorf("%s counts as custom", version)
		}
	}
	for _, version := range []string{"gateway.networking.k8s.io/v1", "snapshot.storage.k8s.io/v1", "policy.networking.k8s.io/v1alpha1", "groupmanagement.kubeedge.io/v1alpha1", "x.example/v1"} {
		if !isCustom(version) {
			t.Errorf("%s counts as one of the API server's own", version)
		}
	}
}
