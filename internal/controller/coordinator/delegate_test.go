package coordinator

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/connectivity"
	"github.com/atoll-k8s/atoll/internal/governance"
	"github.com/atoll-k8s/atoll/internal/testing/watched"
)

// hasNodes changes which nodes the pool edge has.
func (s *site) hasNodes(names ...string) {
	s.t.Helper()
	edge := pool("edge")
	s.get(edge, "", "edge")
	edge.Status.Nodes = names
	if err := s.all.Status().Update(s.t.Context(), edge); err != nil {
		s.t.Fatal(err)
	}
}

// subjects returns those of a RoleBinding, and the rules of its Role.
func (s *site) subjects(name string) string {
	s.t.Helper()
	binding, role := &rbacv1.RoleBinding{}, &rbacv1.Role{}
	if !s.get(binding, governance.Namespace, name) || !s.get(role, governance.Namespace, binding.RoleRef.Name) {
		return ""
	}
	var all []string
	for _, subject := range binding.Subjects {
		all = append(all, subject.Kind+" "+subject.Name)
	}
	for _, rule := range role.Rules {
		all = append(all, fmt.Sprint(rule.Verbs, rule.Resources, rule.ResourceNames))
	}
	return strings.Join(all, ", ")
}

// TestTheDelegate: the nodes of a pool may read a token that may write the pulse of the pool, and nothing else. It is
// another one in time, and when somebody has left who has read it.
func TestTheDelegate(t *testing.T) {
	s := newSite(t, of("one", "edge", 0))
	s.rest("one")
	if got, want := s.subjects("delegate-edge"), "ServiceAccount delegate-edge, [patch] [leases] [pool-edge], [update] [delegations] [a b c]"; got != want {
		t.Errorf("who speaks for the pool: %s, want %s", got, want)
	}
	if got, want := s.subjects("delegate-edge.readers"), "User system:node:a, User system:node:b, User system:node:c, [get] [secrets] [delegate-edge]"; got != want {
		t.Errorf("who reads the token: %s, want %s", got, want)
	}
	if !s.get(&coordinationv1.Lease{}, governance.Namespace, "pool-edge") {
		t.Error("there is no Lease for the pulse")
	}
	token := func() string { return string(s.data("delegate-edge")["token"]) }
	uid := func() string {
		secret := &corev1.Secret{}
		s.get(secret, governance.Namespace, "delegate-edge")
		return string(secret.UID)
	}
	if request := s.tokens[0]; len(s.tokens) != 1 || request.Spec.BoundObjectRef.Kind != "Secret" || string(request.Spec.BoundObjectRef.UID) != uid() || token() != "token 1" {
		t.Errorf("the requests are %+v, and the token is %q", s.tokens, token())
	}
	s.clock.Step(15 * time.Hour)
	s.rest("one")
	if token() != "token 1" {
		t.Error("the token is made anew in the first two thirds of its life")
	}
	s.clock.Step(2 * time.Hour)
	s.rest("one")
	if token() != "token 2" {
		t.Errorf("after two thirds of its life the token is %q", token())
	}
	before := uid()
	s.hasNodes("a", "b", "c", "d")
	s.rest("one")
	if token() != "token 2" || uid() != before || !strings.Contains(s.subjects("delegate-edge.readers"), "system:node:d") {
		t.Errorf("with one node more the token is %q, for %s", token(), s.subjects("delegate-edge.readers"))
	}
	n := node("a", "")
	s.get(n, "", "a")
	n.Annotations = map[string]string{connectivity.Annotation: connectivity.Record{State: connectivity.Delegated, Since: s.clock.Now(), Reason: connectivity.ReasonDelegated}.String()}
	if err := s.all.Update(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	s.rest("one")
	if got, want := s.subjects("delegate-edge"), "[update] [delegations] [a b c d], [update] [delegations/pods] [a]"; !strings.HasSuffix(got, want) {
		t.Errorf("with a delegated node who speaks for the pool is %s, want %s", got, want)
	}
	s.writes = nil
	s.hasNodes("a", "b", "c")
	if _, err := s.pass("one"); err != nil {
		t.Fatal(err)
	}
	if token() != "token 3" || !slices.Contains(s.writes, "delete *v1.Secret delegate-edge") || strings.Contains(s.subjects("delegate-edge.readers"), "system:node:d") {
		t.Errorf("without a node that has read it the token is %q, after %q", token(), s.writes)
	}
	account := &corev1.ServiceAccount{}
	s.get(account, governance.Namespace, "delegate-edge")
	if err := s.all.Delete(t.Context(), account); err != nil {
		t.Fatal(err)
	}
	s.accounts = "another "
	s.rest("one")
	if token() != "token 4" {
		t.Errorf("with another ServiceAccount the token is %q", token())
	}
	for _, o := range []client.Object{&corev1.ServiceAccount{}, &rbacv1.Role{}, &coordinationv1.Lease{}, &corev1.Secret{}} {
		name := map[bool]string{true: "pool-edge", false: "delegate-edge"}[fmt.Sprintf("%T", o) == "*v1.Lease"]
		if s.get(o, governance.Namespace, name); len(o.GetOwnerReferences()) != 1 || o.GetOwnerReferences()[0].Name != "one" {
			t.Errorf("the owners of %T %s are %v", o, name, o.GetOwnerReferences())
		}
	}
}

// TestAPoolWithoutNodesSpeaksForNone: a rule without names would be one for all nodes of the cluster.
func TestAPoolWithoutNodesSpeaksForNone(t *testing.T) {
	s := newSite(t, of("one", "edge", 0))
	s.runs("edge", "b", corev1.ConditionTrue)
	s.rest("one")
	s.hasNodes()
	s.rest("one")
	if got, want := s.subjects("delegate-edge"), "ServiceAccount delegate-edge, [patch] [leases] [pool-edge]"; got != want {
		t.Errorf("who speaks for the pool: %s, want %s", got, want)
	}
}

// TestNothingOfTheDelegateIsLeft of a coordinator that is not deployed any more.
func TestNothingOfTheDelegateIsLeft(t *testing.T) {
	s := newSite(t, of("one", "edge", 0))
	s.rest("one")
	if err := s.all.Delete(t.Context(), pool("edge")); err != nil {
		t.Fatal(err)
	}
	s.rest("one")
	for _, list := range []client.ObjectList{&corev1.ServiceAccountList{}, &rbacv1.RoleList{}, &rbacv1.RoleBindingList{}, &coordinationv1.LeaseList{}, &corev1.SecretList{}} {
		if err := s.all.List(t.Context(), list, client.InNamespace(governance.Namespace)); err != nil {
			t.Fatal(err)
		}
		if n := meta.LenList(list); n != 0 {
			t.Errorf("%d objects are left in %T", n, list)
		}
	}
}

// TestATokenThatCannotBeHad: the coordinator is deployed all the same, and a condition says why.
func TestATokenThatCannotBeHad(t *testing.T) {
	s := newSite(t, of("one", "edge", 0))
	s.runs("edge", "b", corev1.ConditionTrue)
	s.refuse = func(write string) error {
		if write == "create token *v1.ServiceAccount delegate-edge" {
			return errors.New("a quota")
		}
		return nil
	}
	for range 5 {
		_, _ = s.pass("one")
		s.clock.Step(time.Second)
	}
	if got := s.conditions("one"); !strings.Contains(got, "Ready True PodReady") {
		t.Errorf("the conditions are %s", got)
	}
	if got := s.access("one"); !strings.HasPrefix(got, "Unknown WriteFailed requesting a token of ServiceAccount atoll-pools/delegate-edge: a quota") {
		t.Errorf("PodAccess is %s", got)
	}
}

// TestNoTokenWithoutThePolicy that bounds it, also none that was made before.
func TestNoTokenWithoutThePolicy(t *testing.T) {
	for _, o := range []client.Object{&admissionregistrationv1.ValidatingAdmissionPolicy{}, &admissionregistrationv1.ValidatingAdmissionPolicyBinding{}} {
		s := newSite(t, of("one", "edge", 0))
		s.runs("edge", "b", corev1.ConditionTrue)
		s.rest("one")
		s.get(o, "", delegatesPolicy)
		if err := s.all.Delete(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			_, _ = s.pass("one")
			s.clock.Step(time.Second)
		}
		if got := s.access("one"); s.data("delegate-edge") != nil || !strings.HasPrefix(got, "Unknown WriteFailed no pool gets a token without the policy atoll-delegates of the chart") {
			t.Errorf("without %T the Secret has %v, and PodAccess is %s", o, s.data("delegate-edge"), got)
		}
	}
}

func (s *site) access(name string) string {
	c := meta.FindStatusCondition(s.status(name).Conditions, apps.ConditionPodAccess)
	if c == nil {
		return "none"
	}
	return fmt.Sprintf("%s %s %s", c.Status, c.Reason, c.Message)
}

// pulse is a pulse of a pool, which says text, at a time in seconds.
func pulseOf(pool, text string, at int64) *coordinationv1.Lease {
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: governance.Namespace, Name: governance.Pulse(pool), Annotations: map[string]string{governance.PulseAnnotation: text}}}
	l.Spec.RenewTime = &metav1.MicroTime{Time: time.Unix(at, 0)}
	return l
}

// says receives a pulse, and returns what it enqueues.
func (s *site) says(pulse *coordinationv1.Lease) string {
	var q watched.Queue
	q.Send(s.t.Context(), s.watches(), pulse, pulse)
	return q.Take()
}

// TestThePoolSaysHowItIs, and what is old is not shown.
func TestThePoolSaysHowItIs(t *testing.T) {
	s := newSite(t, of("one", "edge", 0))
	for name, ready := range map[string]corev1.ConditionStatus{"a": corev1.ConditionTrue, "b": corev1.ConditionFalse, "c": corev1.ConditionUnknown} {
		n := node(name, "")
		s.get(n, "", name)
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
		if err := s.all.Status().Update(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	s.runs("edge", "b", corev1.ConditionTrue)
	s.rest("one")
	const silent = "Unknown PoolSilent"
	if got := s.access("one"); !strings.HasPrefix(got, silent) {
		t.Errorf("before the first pulse PodAccess is %s", got)
	}
	text := func(outside, refused string) string {
		out, err := json.Marshal(governance.NewPoolState(strings.Fields(outside), strings.Fields(refused)))
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	expect := func(outside, access string) {
		t.Helper()
		s.rest("one")
		if got := strings.Join(s.status("one").OutsidePoolNodes, " "); got != outside {
			t.Errorf("outside are %q, want %q", got, outside)
		}
		if got := s.access("one"); !strings.HasPrefix(got, access) {
			t.Errorf("PodAccess is %s, want %s", got, access)
		}
	}
	if got := s.says(pulseOf("edge", text("", ""), 1)); got != "one" {
		t.Errorf("the first pulse enqueues %q", got)
	}
	expect("", "True KubeletsAccept")
	if got := s.says(pulseOf("edge", text("", ""), 2)); got != "" {
		t.Errorf("a pulse that says nothing new enqueues %q", got)
	}
	if got := s.says(pulseOf("edge", text("a b c x", "a x"), 3)); got != "one" {
		t.Errorf("a pulse that says something new enqueues %q", got)
	}
	expect("a b", "False KubeletsRefuse logs and exec do not work on nodes whose kubelets need authentication.webhook.enabled, authorization.mode Webhook, and a kubeconfig that leads to the hub: a")
	s.clock.Step(35 * time.Second)
	expect("a b", "False")
	s.says(pulseOf("edge", text("a b c x", "a x"), 3)) // a list that is read again is no pulse
	s.clock.Step(5 * time.Second)
	if got := s.pulses.silent(s.clock.Now()); !slices.Equal(got, []string{"edge"}) || s.pulses.silent(s.clock.Now()) != nil {
		t.Errorf("silent are %q", got)
	}
	expect("", silent)
	if got := s.says(pulseOf("edge", text("a b c x", "a x"), 4)); got != "one" {
		t.Errorf("the first pulse of a pool that was silent enqueues %q", got)
	}
	expect("a b", "False")
	var q watched.Queue
	q.Send(t.Context(), s.watches(), pulseOf("edge", "", 4), nil)
	if got := q.Take(); got != "one" {
		t.Errorf("a pulse that somebody deletes enqueues %q", got)
	}
	expect("", silent)
	for _, text := range []string{"", "no JSON", `{"outside":1}`} {
		s.says(pulseOf("edge", text, 5+int64(len(text))))
		expect("", silent)
	}
	if got := s.says(pulseOf("site", text("a", ""), 1)) + s.says(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: governance.Namespace, Name: "other"}}); got != "" {
		t.Errorf("the pulse of a pool without a coordinator, and another Lease, enqueue %q", got)
	}
}

// TestAStuckCoordinatorIsReplaced: once, when nobody speaks through it any more, though the cloud hears from a node.
func TestAStuckCoordinatorIsReplaced(t *testing.T) {
	s := newSite(t, of("one", "edge", 0))
	heard := func(is corev1.ConditionStatus) {
		n := node("a", "")
		s.get(n, "", "a")
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: is}}
		if err := s.all.Status().Update(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	isThere := func(when string, want bool) {
		t.Helper()
		if _, err := s.pass("one"); err != nil {
			t.Fatal(err)
		}
		if is := s.get(&corev1.Pod{}, governance.Namespace, "coordinator-edge-b"); is != want {
			t.Errorf("%s: the pod is there: %t", when, is)
		}
	}
	heard(corev1.ConditionTrue)
	s.runs("edge", "b", corev1.ConditionTrue)
	s.rest("one")
	s.clock.Step(time.Hour)
	isThere("nobody ever spoke through it", true)
	s.says(pulseOf("edge", "{}", 1))
	s.clock.Step(stuckAfter - time.Second)
	isThere("the pool is silent for a while", true)
	heard(corev1.ConditionUnknown)
	s.clock.Step(time.Hour)
	isThere("the whole pool is cut off", true)
	heard(corev1.ConditionTrue)
	s.refuse = func(write string) error {
		if strings.HasPrefix(write, "delete *v1.Pod") {
			return errors.New("refused")
		}
		return nil
	}
	if _, err := s.pass("one"); err == nil {
		t.Error("a pod that cannot be deleted is no error")
	}
	s.refuse = nil
	isThere("a node is heard", false)
	if event := <-s.events.Events; !strings.Contains(event, "Stuck No hub has used the coordinator for 2m0s") {
		t.Errorf("the event is %q", event)
	}
	s.runs("edge", "b", corev1.ConditionTrue)
	pod := &corev1.Pod{}
	s.get(pod, governance.Namespace, "coordinator-edge-b")
	pod.CreationTimestamp.Time = s.clock.Now()
	if err := s.all.Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	s.clock.Step(time.Hour)
	isThere("nobody ever spoke through the next one", true)
}
