package readonly

import (
	"encoding/json"
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
)

// TestRightsAreGrantedOnceThePolicyIsInForce: rules for Secrets exist only while Secrets are uploaded. Kinds that
// the API server does not know by itself come last.
func TestRightsAreGrantedOnceThePolicyIsInForce(t *testing.T) {
	for name, tc := range map[string]struct {
		isEnforced, hasSecrets bool
		want                   []string
		secretRules            int
	}{
		"the policy is not in force": {false, true, []string{"no-changes.atoll.dev", "no-changes.atoll.dev"}, 0},
		"without Secrets": {true, false, []string{
			"no-changes.atoll.dev", "no-changes.atoll.dev", "atoll.dev:people", "atoll.dev:people", secretsRole, secretsRole, "nodepools.apps.openyurt.io",
		}, 0},
		"with Secrets": {true, true, []string{
			"no-changes.atoll.dev", "no-changes.atoll.dev", "atoll.dev:people", "atoll.dev:people", secretsRole, secretsRole, "nodepools.apps.openyurt.io",
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			own, other := fake.NewSimpleDynamicClient(runtime.NewScheme()), fake.NewSimpleDynamicClient(runtime.NewScheme())
			var applied []string
			secretRules := 0
			own.PrependReactor("patch", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
				patch, is := action.(clienttesting.PatchAction)
				if !is {
					t.Fatalf("the action is %v", action)
				}
				applied = append(applied, patch.GetName())
				var role rbacv1.ClusterRole
				if patch.GetName() == secretsRole && patch.GetResource().Resource == "clusterroles" {
					if err := json.Unmarshal(patch.GetPatch(), &role); err != nil {
						t.Error(err)
					}
					secretRules = len(role.Rules)
				}
				return true, &unstructured.Unstructured{Object: map[string]any{}}, nil
			})
			other.PrependReactor("create", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
				if !tc.isEnforced {
					return true, &unstructured.Unstructured{Object: map[string]any{}}, nil
				}
				return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "atoll-change", nil)
			})
			r := &runner{own, other, func() bool { return tc.hasSecrets }}
			if err := r.apply(t.Context()); (err == nil) != tc.isEnforced {
				t.Errorf("the error is %v", err)
			}
			if !slices.Equal(applied, tc.want) || secretRules != tc.secretRules {
				t.Errorf("%q are applied, and %d rules about Secrets; want %q and %d", applied, secretRules, tc.want, tc.secretRules)
			}
		})
	}
}
