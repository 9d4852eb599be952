package main

import (
	"context"
	"fmt"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

// evenPolicy gives every group the same weight.
const evenPolicy = "even"

// createGroups creates the NodeGroups and the policy, and waits for them.
func (b *bed) createGroups(ctx context.Context) error {
	policy := &gm.PropagationPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: evenPolicy, Namespace: namespace},
		Spec: gm.PropagationSpec{
			PropagationStrategy: gm.StaticWeightPropagationStrategy,
			StaticWeight:        []gm.StaticNodeGroupWeight{{Weight: 1}},
			Assignment:          gm.AssignmentLate, // in forms in which a scheduler calls the extender
		},
	}
	for i := range b.options.groups {
		group := &gm.NodeGroup{
			ObjectMeta: metav1.ObjectMeta{Name: b.groupName(i)},
			Spec:       gm.NodeGroupSpec{MatchLabels: map[string]string{poolLabel: b.groupName(i)}},
		}
		if err := b.atoll.Create(ctx, group); err != nil {
			return fmt.Errorf("creating NodeGroup %q: %w", group.Name, err)
		}
		policy.Spec.StaticWeight[0].NodeGroupNames = append(policy.Spec.StaticWeight[0].NodeGroupNames, group.Name)
	}
	if err := b.atoll.Create(ctx, policy); err != nil {
		return fmt.Errorf("creating PropagationPolicy %q: %w", policy.Name, err)
	}
	return b.eventually(ctx, "the NodeGroups to have their nodes", func(ctx context.Context) (bool, error) {
		var groups gm.NodeGroupList
		if err := b.atoll.List(ctx, &groups); err != nil {
			return false, fmt.Errorf("listing NodeGroups: %w", err)
		}
		for i := range groups.Items {
			status := &groups.Items[i].Status
			if int(status.Total) != b.options.nodes/b.options.groups || !apimeta.IsStatusConditionTrue(status.Conditions, gm.ConditionReady) {
				return false, nil
			}
		}
		return len(groups.Items) == b.options.groups, nil
	})
}
