package e2e

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/membership"
)

// TestMembershipProtectedMatchesKubeletRights: the condition MembershipProtected warns of exactly the
// labels that the API server's own plugin lets a kubelet set on its node. The chart's policy
// refuses some of these too.
func TestMembershipProtectedMatchesKubeletRights(t *testing.T) {
	f := newFixture(t)
	f.nodes(nil, "stolen-0")
	config := f.cluster.AdminConfig()
	config.Impersonate.UserName = "system:node:stolen-0"
	config.Impersonate.Groups = []string{"system:nodes", "system:authenticated"}
	kubelet, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{
		"location", "example.com/location", apps.NodePoolLabel, gm.NodeGroupLabel, "notkubernetes.io/x",
		"topology.kubernetes.io/zone", "topology.kubernetes.io/region", "topology.kubernetes.io/rack",
		"node.kubernetes.io/instance-type", "node.kubernetes.io/x", "deep.node.kubernetes.io/x", "kubelet.kubernetes.io/x",
		"beta.kubernetes.io/instance-type", "beta.kubernetes.io/x", "failure-domain.beta.kubernetes.io/zone",
		"node-restriction.kubernetes.io/x", "shop.node-restriction.kubernetes.io/x", "mynode-restriction.kubernetes.io/x",
		"node-role.kubernetes.io/edge", "kubernetes.io/x", "k8s.io/x", "example.k8s.io/x",
	} {
		raw := []byte(`{"metadata":{"labels":{"` + key + `":"stolen"}}}`)
		err := kubelet.Patch(f.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "stolen-0"}}, client.RawPatch("application/merge-patch+json", raw))
		if err != nil && !apierrors.IsForbidden(err) {
			t.Fatal(err)
		}
		guarded := err != nil && strings.Contains(err.Error(), "ValidatingAdmissionPolicy 'atoll-node-labels'")
		if may := membership.KubeletMaySet(key); may != (err == nil || guarded) {
			t.Errorf("KubeletMaySet(%q) = %t, and the API server answers %v", key, may, err)
		}
	}
}
