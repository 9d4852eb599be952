package manager

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

// TestLargePoliciesFit: a policy of 500 kB is used, as TestFaultLimits shows on a cluster.
func TestLargePoliciesFit(t *testing.T) {
	policy := &gm.PropagationPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "large", UID: "1"}}
	for i := range 98 {
		rule := gm.StaticNodeGroupWeight{Weight: 1}
		for j := range 90 {
			rule.NodeGroupNames = append(rule.NodeGroupNames, fmt.Sprintf("group-%02d-%02d-%s", i, j, strings.Repeat("x", 47)))
		}
		policy.Spec.StaticWeight = append(policy.Spec.StaticWeight, rule)
	}
	doc, err := json.Marshal(policy)
	if err != nil || len(doc) < 500_000 {
		t.Fatalf("the policy has %d bytes, want 500 kB: %v", len(doc), err)
	}
	if err := newBudgets().fits(policy); err != nil {
		t.Error(err)
	}
}
