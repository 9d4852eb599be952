package nodes

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
)

// says waits until the status has these nodes outside, and PodAccess with this reason, which names this node if it is not "".
func (r *poolRig) says(outside []string, reason, names string) {
	r.Helper()
	r.eventually(fmt.Sprintf("the cloud knows that %v are outside, and %s", outside, reason), func() error {
		c, err := r.coordinator()
		if err != nil {
			return err
		}
		access := meta.FindStatusCondition(c.Status.Conditions, apps.ConditionPodAccess)
		if access == nil || access.Reason != reason || !strings.HasSuffix(access.Message, names) || !slices.Equal(c.Status.OutsidePoolNodes, outside) {
			return fmt.Errorf("outside are %q, and the condition is %+v", c.Status.OutsidePoolNodes, access)
		}
		return nil
	})
}

// testPulse: the cloud knows which nodes the coordinator does not hear, and which kubelets refuse their hubs, from whoever
// has the cloud; and that it does not know it if nobody has.
func (r *poolRig) testPulse() {
	r.says(nil, apps.ReasonKubeletsAccept, "")
	outside := r.other()
	leg := func(of devcluster.Leg, cut bool, nodes ...string) {
		for _, node := range nodes {
			if err := r.SetLeg(r.Context(), node, of, devcluster.LegState{Cut: cut}); err != nil {
				r.Fatal(err)
			}
		}
	}
	leg(devcluster.Pool, true, outside)
	r.says([]string{outside}, apps.ReasonKubeletsAccept, "")
	leg(devcluster.Cloud, true, outside) // it is not outside any more: nobody hears from it
	r.says(nil, apps.ReasonKubeletsAccept, "")
	leg(devcluster.Cloud, false, outside)
	r.says([]string{outside}, apps.ReasonKubeletsAccept, "")
	leg(devcluster.Pool, false, outside)
	r.says(nil, apps.ReasonKubeletsAccept, "")

	kubelet := func(webhook string) {
		r.Helper()
		if _, err := r.RunOn(r.Context(), outside, "/bin/sed", "-i", "/webhook:/{n;s/true\\|false/"+webhook+"/}; s/webhook: {enabled: [a-z]*}/webhook: {enabled: "+webhook+"}/", "/run/node/kubelet.yaml"); err != nil {
			r.Fatal(err)
		}
		for _, program := range []string{devcluster.Kubelet, atoll.Hub} { // the hub tries its kubelet when its port is served, and each five minutes
			if err := r.RestartOn(r.Context(), outside, program); err != nil {
				r.Fatal(err)
			}
		}
	}
	kubelet("false")
	r.says(nil, apps.ReasonKubeletsRefuse, "leads to the hub: "+outside)
	kubelet("true")
	r.says(nil, apps.ReasonKubeletsAccept, "")

	var holders []string
	for _, node := range poolNodes { // one after the other leads, until nobody does
		leg(devcluster.Cloud, true, node)
		r.eventually("somebody else speaks for the pool", func() error {
			var lease coordinationv1.Lease
			if err := r.client.Get(r.Context(), client.ObjectKey{Namespace: "atoll-pools", Name: "pool-edge"}, &lease); err != nil {
				return err
			}
			holder := lease.Spec.HolderIdentity
			if holder == nil || (*holder == node || slices.Contains(holders, *holder)) && len(holders) < len(poolNodes)-1 {
				return errors.New("it does not")
			}
			return nil
		})
		holders = append(holders, node)
	}
	r.says(nil, apps.ReasonPoolSilent, "")
	leg(devcluster.Cloud, false, poolNodes...)
	r.says(nil, apps.ReasonKubeletsAccept, "")
	for _, node := range poolNodes {
		r.eventually("the node "+node+" is back", r.ready(node, corev1.ConditionTrue))
	}
	r.settled(poolNodes...)
}
