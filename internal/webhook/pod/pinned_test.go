package pod

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/fake"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/assign"
	"github.com/atoll-k8s/atoll/internal/policies"
	"github.com/atoll-k8s/atoll/internal/testing/build"
	"github.com/atoll-k8s/atoll/internal/testing/build/world"
)

// newPinnedWebhook returns a webhook in the form Pinned: no kube-scheduler calls the extender.
func newPinnedWebhook(t *testing.T, objects ...build.Object) *Webhook {
	t.Helper()
	w, _ := newWebhook(t, objects...)
	assigner := w.Assigner.(*assign.Assigner)
	var seen []build.Object
	for _, o := range objects {
		switch o.(type) {
		case *gm.PropagationPolicy, *gm.OverridePolicy, *gm.NodeGroup, *corev1.Node:
			seen = append(seen, o)
		}
	}
	rest := world.New(t, seen...)
	w.Policies = policies.NewResolver(rest.Client, w.Walker, rest.Ledger, rest.Clock, false)
	assigner.Policies, assigner.Ledger = w.Policies, rest.Ledger
	return w
}

// TestWithoutExtender: a pod is pinned when it is created, or waits at the gate. Only pods
// to which no policy applies may run on all nodes.
func TestWithoutExtender(t *testing.T) {
	type pod struct {
		Gated, Pinned bool
		Image         string
		Args          []string
	}
	daemons := func(bound build.Option, objects ...build.Object) []build.Object {
		return append([]build.Object{
			build.Deployment("web"), replicaSet, build.DaemonSet("agent", bound),
			build.Node("node-hz", build.InGroup("hz")), build.Node("node-bj", build.InGroup("bj")), build.Node("node-out"),
		}, objects...)
	}
	ignoring := func(propagation, override string) build.Option {
		return func(o build.Object) {
			build.Requires(propagation, override)(o)
			build.Annotation(gm.MissingPolicyAnnotation, gm.MissingPolicyIgnore)(o)
		}
	}
	bound := func(o build.Object) {
		build.Bound("p", "o")(o)
		build.Annotation(gm.MissingPolicyAnnotation, gm.MissingPolicyIgnore)(o)
	}
	free, waits := pod{Image: "nginx:1"}, pod{Gated: true, Image: "nginx:1"}
	for name, tc := range map[string]struct {
		objects []build.Object
		pod     *corev1.Pod
		want    pod
	}{
		"pinned":                             {ground(build.Bound("p", ""), toHz), webPod(), pod{Pinned: true, Image: "nginx:1"}},
		"Late is read as Early":              {ground(build.Bound("p", ""), build.PropagationPolicy("p", build.Weight(1, "hz"), build.Assigns(gm.AssignmentLate))), webPod(), pod{Pinned: true, Image: "nginx:1"}},
		"with its images":                    {ground(build.Bound("p", "o"), toHz, images), webPod(), pod{Pinned: true, Image: "hz.io/nginx:1"}},
		"the policy is missing":              {ground(build.Bound("p", "")), webPod(), waits},
		"the missing policy is ignored":      {ground(ignoring("p", "")), webPod(), free},
		"the OverridePolicy is missing":      {ground(build.Requires("p", "o"), toHz), webPod(), waits},
		"this replica has not read it yet":   {ground(build.Bound("p", "o"), toHz), webPod(), waits},
		"it is ignored while it is missing":  {ground(ignoring("p", "o"), toHz), webPod(), pod{Pinned: true, Image: "nginx:1"}},
		"another replica has read it":        {ground(bound, toHz), webPod(), waits},
		"and the PropagationPolicy":          {ground(bound), webPod(), waits},
		"a DaemonSet's that is missing":      {daemons(build.Bound("", "o")), daemon("node-hz"), waits},
		"images without a PropagationPolicy": {ground(build.Bound("", "o"), images), webPod(), waits},
		"no policy":                          {ground(build.Replicas(1), toHz, images), webPod(), free},
		"a DaemonSet's, in a group":          {daemons(build.Bound("p", "o"), toHz, args), daemon("node-hz"), pod{Image: "hz.io/nginx:1", Args: []string{"--hz"}}},
		"in another group":                   {daemons(build.Bound("p", "o"), toHz, args), daemon("node-bj"), waits},
		"in no group":                        {daemons(build.Bound("p", ""), toHz), daemon("node-out"), waits},
		"in no group, with images only":      {daemons(build.Bound("", "o"), images), daemon("node-out"), free},
		"in a group, with images only":       {daemons(build.Bound("", "o"), images), daemon("node-hz"), pod{Image: "hz.io/nginx:1"}},
		"a Deployment's, that names a node":  {ground(build.Bound("p", ""), toHz), webPod(build.ForNode("node-hz")), pod{Pinned: true, Image: "nginx:1"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newPinnedWebhook(t, tc.objects...)
			after := admit(t, w, tc.pod, false)
			required := after.Spec.Affinity
			got := pod{Gated: len(gates(after)) > 0, Image: after.Spec.Containers[0].Image, Args: after.Spec.Containers[0].Args}
			if required != nil && required.NodeAffinity != nil {
				for _, term := range required.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
					for _, r := range term.MatchExpressions {
						got.Pinned = got.Pinned || r.Key == gm.NodeGroupLabel
					}
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("wrong pod (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(after, admit(t, w, after, false)); diff != "" {
				t.Errorf("admitted again, it changes:\n%s", diff)
			}
		})
	}
}

// TestAdmissionReadsOnlyVolumeClaims: admission reads nothing from the API server except the
// volume claims of a pod, at most maxClaims, and writes nothing.
func TestAdmissionReadsOnlyVolumeClaims(t *testing.T) {
	claims := func(n int) build.Option {
		return build.With(func(p *corev1.Pod) {
			for i := range n {
				p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: fmt.Sprint(i), VolumeSource: corev1.VolumeSource{
					PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: fmt.Sprint("claim-", i)},
				}})
			}
		})
	}
	for name, tc := range map[string]struct {
		objects []build.Object
		pod     *corev1.Pod
		reads   int
	}{
		"a pinned pod":             {ground(build.Bound("p", "o"), toHz, args), webPod(), 0},
		"one at the gate":          {ground(build.Requires("p", "")), webPod(), 0},
		"a DaemonSet's":            {ground(build.Bound("p", "o"), images), daemon("node-hz"), 0},
		"one without policies":     {ground(build.Replicas(1)), webPod(), 0},
		"one with a claim":         {ground(build.Bound("p", ""), toHz), webPod(claims(1)), 1},
		"one with too many claims": {ground(build.Bound("p", ""), toHz), webPod(claims(maxClaims + 1)), 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newPinnedWebhook(t, tc.objects...)
			client := w.API.(*fake.Clientset)
			client.ClearActions()
			after := admit(t, w, tc.pod, false)
			reads := 0
			for _, a := range client.Actions() {
				if reads++; a.GetVerb() != "get" {
					t.Errorf("the webhook sends %s %s", a.GetVerb(), a.GetResource().Resource)
				}
			}
			if reads != tc.reads {
				t.Errorf("%d reads, want %d", reads, tc.reads)
			}
			if many := len(tc.pod.Spec.Volumes) > maxClaims; many && len(gates(after)) == 0 {
				t.Error("a pod with too many claims does not wait at the gate")
			}
		})
	}
}
