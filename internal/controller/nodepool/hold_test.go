package nodepool

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// offline returns a pool that gives a NoExecute taint and a label.
func offline(value apps.LabelValue) build.Option {
	return build.With(func(p *apps.NodePool) {
		p.Spec.Labels = map[string]apps.LabelValue{"a": "b"}
		p.Spec.Taints = []apps.NodePoolTaint{{Key: "offline", Value: value, Effect: corev1.TaintEffectNoExecute}}
	})
}

// unitedIn returns the Deployment of a UnitedDeployment in a pool and a pod of it, with the
// given tolerations.
func unitedIn(pool string, template, live []corev1.Toleration) []client.Object {
	labels := map[string]string{"app": "web", apps.PoolNameLabel: pool}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: build.Namespace, Name: "web-" + pool, Labels: labels, OwnerReferences: []metav1.OwnerReference{{
		APIVersion: apps.GroupVersion.String(), Kind: "UnitedDeployment", Name: "web", UID: "web", Controller: new(true),
	}}}}
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	d.Spec.Template.Spec.Tolerations = template
	pod := build.Pod("web-"+pool+"-0", build.With(func(p *corev1.Pod) { p.Labels, p.Spec.Tolerations = labels, live }))
	return []client.Object{d, pod}
}

func (s *site) taints(node string) (keys string) {
	s.t.Helper()
	for _, t := range s.node(node).Spec.Taints {
		keys += t.Key + "=" + t.Value + " "
	}
	return strings.TrimSpace(keys)
}

// visit runs a pass over a node and one over its pool. It reports whether both have to be
// repeated.
func (s *site) visit(node, pool string) (waits bool) {
	s.t.Helper()
	s.index.all.Invalidate()
	n, err := s.reconcileNode(s.t.Context(), request(node))
	if err != nil {
		s.t.Fatal(err)
	}
	p, err := s.Reconcile(s.t.Context(), request(pool))
	if err != nil {
		s.t.Fatal(err)
	}
	return n.RequeueAfter > 0 && p.RequeueAfter > 0
}

// TestATaintThatEvictsWaitsForTolerations: everything that a NodePool gives is
// written at once, except a NoExecute taint that pods of a UnitedDeployment do not tolerate.
func TestATaintThatEvictsWaitsForTolerations(t *testing.T) {
	tolerant := []corev1.Toleration{{Key: "offline", Operator: corev1.TolerationOpExists}}
	s := newSite(t, append(unitedIn("p", nil, nil), build.NodePool("p", offline("")), build.Node("n", names("p")))...)
	if !s.visit("n", "p") {
		t.Error("no pass is repeated")
	}
	if got := s.taints("n"); got != "" || s.node("n").Labels["a"] != "b" {
		t.Errorf("taints are %q, labels %v", got, s.node("n").Labels)
	}
	c := s.condition("p", apps.ConditionTaintsTolerated)
	if c.Status != metav1.ConditionFalse || c.Reason != apps.ReasonTaintsWait || !strings.Contains(c.Message, `"`+build.Namespace+`/web-p"`) {
		t.Errorf("the condition is %+v", c)
	}
	if c := s.condition("p", apps.ConditionReady); c.Reason != apps.ReasonTaintsWait {
		t.Errorf("Ready is %+v", c)
	}

	d := &appsv1.Deployment{}
	if err := s.Client.Get(t.Context(), client.ObjectKey{Namespace: build.Namespace, Name: "web-p"}, d); err != nil {
		t.Fatal(err)
	}
	d.Spec.Template.Spec.Tolerations = tolerant
	if err := s.Client.Update(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	s.clock.SetTime(s.clock.Now().Add(holdEvery))
	if !s.visit("n", "p") || s.taints("n") != "" {
		t.Errorf("while a pod does not tolerate it, taints are %q", s.taints("n"))
	}

	if err := s.Client.Delete(t.Context(), build.Pod("web-p-0")); err != nil {
		t.Fatal(err)
	}
	s.clock.SetTime(s.clock.Now().Add(holdEvery))
	if s.visit("n", "p") || s.taints("n") != "offline=" {
		t.Errorf("tolerated, taints are %q", s.taints("n"))
	}
	if c := s.condition("p", apps.ConditionTaintsTolerated); c.Status != metav1.ConditionTrue || c.Reason != apps.ReasonTolerated {
		t.Errorf("the condition is %+v", c)
	}
}

// TestATaintWaitsFiveMinutes: it does not wait longer, whatever pods do, and the time
// continues in another process.
func TestATaintWaitsFiveMinutes(t *testing.T) {
	s := newSite(t, append(unitedIn("p", nil, nil), build.NodePool("p", offline("")), build.Node("n", names("p")))...)
	s.clock.SetTime(time.Now()) // conditions have the time of day
	if !s.visit("n", "p") {
		t.Error("no pass is repeated")
	}
	s.Reconciler = &Reconciler{Client: s.Client, Live: s.Live, Recorder: s.recorder, Clock: s.clock}
	s.clock.SetTime(s.clock.Now().Add(holdMost - time.Minute))
	if !s.visit("n", "p") || s.taints("n") != "" {
		t.Errorf("before, taints are %q", s.taints("n"))
	}
	s.clock.SetTime(s.clock.Now().Add(time.Minute + time.Second))
	if s.visit("n", "p") || s.taints("n") != "offline=" {
		t.Errorf("afterwards, taints are %q", s.taints("n"))
	}
}

// TestATaintsOldValueStaysWhileTheNewOneWaits: pods may tolerate only the old one.
func TestATaintsOldValueStaysWhileTheNewOneWaits(t *testing.T) {
	old := []corev1.Toleration{{Key: "offline", Operator: corev1.TolerationOpEqual, Value: "1"}}
	s := newSite(t, append(unitedIn("p", old, old), build.NodePool("p", offline("1")), build.Node("n", names("p")))...)
	s.nodes("n")
	s.pools("p")
	if got := s.taints("n"); got != "offline=1" {
		t.Fatalf("taints are %q", got)
	}
	p := s.pool("p")
	p.Spec.Taints[0].Value = "2"
	p.Generation++
	if err := s.Client.Update(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second finds nothing to put back
		if !s.visit("n", "p") || s.taints("n") != "offline=1" {
			t.Errorf("taints are %q", s.taints("n"))
		}
		s.events()
		s.writes = nil
	}
	s.visit("n", "p")
	if len(s.writes) > 0 {
		t.Errorf("waiting, it wrote %v", s.writes)
	}
}

// unreadable is a client that fails to list pods.
type unreadable struct{ client.Reader }

func (unreadable) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errors.New("no pods today")
}

// TestUnreadablePodsDelayOnlyTheTaint: only the taint waits.
func TestUnreadablePodsDelayOnlyTheTaint(t *testing.T) {
	tolerant := []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	s := newSite(t, append(unitedIn("p", tolerant, tolerant), build.NodePool("p", offline("")), build.Node("n", names("p")))...)
	live := s.Live
	s.Live = unreadable{live}
	if !s.visit("n", "p") || s.taints("n") != "" || s.node("n").Labels["a"] != "b" {
		t.Errorf("taints are %q, labels %v", s.taints("n"), s.node("n").Labels)
	}
	c := s.condition("p", apps.ConditionTaintsTolerated)
	if c.Status != metav1.ConditionUnknown || c.Reason != apps.ReasonObservationFailed || !strings.Contains(c.Message, "no pods today") {
		t.Errorf("the condition is %+v", c)
	}
	s.Live = live
	s.clock.SetTime(s.clock.Now().Add(holdEvery))
	if s.visit("n", "p") || s.taints("n") != "offline=" {
		t.Errorf("taints are %q", s.taints("n"))
	}
}

// TestTaintsWaitForUnitedDeploymentsOnly: no delay for taints without eviction, for workloads that do not
// belong to a UnitedDeployment, and for pools without workloads.
func TestTaintsWaitForUnitedDeploymentsOnly(t *testing.T) {
	theirs := unitedIn("p", nil, nil)
	theirs[0].SetOwnerReferences(nil)
	s := newSite(t, append(append(theirs, unitedIn("q", nil, nil)...), build.NodePool("p", offline("")), build.Node("n", names("p")),
		build.NodePool("q", build.With(func(p *apps.NodePool) {
			p.Spec.Taints = []apps.NodePoolTaint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}}
		})), build.Node("m", names("q")))...)
	s.nodes("n", "m")
	if s.taints("n") != "offline=" || s.taints("m") != "k=" {
		t.Errorf("taints are %q and %q", s.taints("n"), s.taints("m"))
	}
}

// TestANodeThatIsCutOffGetsNoTaintThatEvicts, however long it is cut off. All else of the pool it gets.
func TestANodeThatIsCutOffGetsNoTaintThatEvicts(t *testing.T) {
	s := newSite(t, build.NodePool("p", offline("")), build.Node("n", names("p"), build.Held()), build.Node("m", names("p")))
	s.visit("m", "p")
	for range 3 {
		s.visit("n", "p")
		if got := s.taints("n"); got != "" || s.node("n").Labels["a"] != "b" {
			t.Errorf("taints are %q, labels %v", got, s.node("n").Labels)
		}
		s.clock.SetTime(s.clock.Now().Add(holdMost))
	}
	if got := s.taints("m"); got != "offline=" {
		t.Errorf("the other node has %q", got)
	}
	if c := s.condition("p", apps.ConditionAttributesSynced); c.Reason != apps.ReasonTaintsWait || !strings.Contains(c.Message, `"n"`) {
		t.Errorf("the condition is %+v", c)
	}
	node := s.node("n")
	build.Lost()(node)
	if err := s.Client.Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	s.visit("n", "p")
	if got := s.taints("n"); got != "offline=" {
		t.Errorf("when it is known to be dead it has %q", got)
	}
}
