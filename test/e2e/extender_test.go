package e2e

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// caller calls the extender as kube-scheduler does.
type caller struct {
	*fixture
	http *http.Client
	url  string // of the extender
}

func newCaller(f *fixture) *caller {
	f.Helper()
	dir := f.atoll.TLSDir
	ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		f.Fatal(err)
	}
	cert, err := tls.LoadX509KeyPair(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
	if err != nil {
		f.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13}}
	f.Cleanup(transport.CloseIdleConnections)
	return &caller{fixture: f, url: f.atoll.ExtenderURL, http: &http.Client{Transport: transport, Timeout: 10 * time.Second}}
}

func (c *caller) post(verb string, args, reply any) {
	c.Helper()
	body, err := json.Marshal(args)
	if err != nil {
		c.Fatal(err)
	}
	response, err := c.http.Post(c.url+"/scheduler/"+verb, "application/json", bytes.NewReader(body))
	if err != nil {
		c.Fatal(err)
	}
	defer response.Body.Close()
	raw, err := io.ReadAll(response.Body)
	if err != nil {
		c.Fatal(err)
	}
	if response.StatusCode != http.StatusOK {
		c.Fatalf("%s answered %s: %s", verb, response.Status, raw)
	}
	if response.ContentLength < 0 {
		c.Errorf("%s answered without Content-Length: kube-scheduler would open a connection for every call", verb)
	}
	if err := json.Unmarshal(raw, reply); err != nil {
		c.Fatalf("%s answered %s: %v", verb, raw, err)
	}
}

func (c *caller) filter(pod *corev1.Pod, nodes ...string) extenderv1.ExtenderFilterResult {
	c.Helper()
	var result extenderv1.ExtenderFilterResult
	c.post("filter", extenderv1.ExtenderArgs{Pod: pod, NodeNames: &nodes}, &result)
	if result.Error != "" {
		c.Fatalf("filter answered an error: %s", result.Error)
	}
	return result
}

// podOf makes a pod that the workload's ReplicaSet could have made. It is never created.
func (c *caller) podOf(app string) *corev1.Pod {
	c.Helper()
	var rs appsv1.ReplicaSet
	c.eventually(patience, "the app has a ReplicaSet", func() error {
		list, err := c.kube.AppsV1().ReplicaSets(c.ns).List(c.ctx, metav1.ListOptions{LabelSelector: "app=" + app})
		if err != nil || len(list.Items) != 1 {
			return fmt.Errorf("%d ReplicaSets: %w", len(list.Items), err)
		}
		rs = list.Items[0]
		return nil
	})
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: c.ns, Name: "asked-for", UID: uuid.NewUUID(), Labels: rs.Spec.Template.Labels,
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(&rs, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))},
	}}
}

// waitBound waits until the workload has its binding label and the extender has seen it,
// that is until the filter keeps some nodes for the returned pod.
func (c *caller) waitBound(app, policy string, nodes ...string) *corev1.Pod {
	c.Helper()
	pod := c.podOf(app)
	c.eventually(patience, "the Deployment is bound to its policy", func() error {
		d, err := c.kube.AppsV1().Deployments(c.ns).Get(c.ctx, app, metav1.GetOptions{})
		if err != nil || d.Labels[gm.BindingPropagationPolicyLabel] != policy {
			return fmt.Errorf("labels are %v: %w", d.Labels, err)
		}
		if r := c.filter(pod, nodes...); len(*r.NodeNames) == 0 {
			return fmt.Errorf("the extender refuses: %v", r.FailedAndUnresolvableNodes)
		}
		return nil
	})
	return pod
}

// pausedApp creates a workload whose pods are not scheduled, because they name a
// scheduler that does not exist.
func (c *caller) pausedApp(name string, replicas int32, policy string) {
	c.Helper()
	c.create(deployment(name, replicas, policy, func(d *appsv1.Deployment) { d.Spec.Template.Spec.SchedulerName = "nobody" }))
}

func texts(m extenderv1.FailedNodesMap) []string {
	var all []string
	for node, text := range m {
		all = append(all, node+": "+text)
	}
	sort.Strings(all)
	return all
}

// TestLabelSituations is scenario 5: the four situations of docs/sources.md, G5, and
// a stray binding label.
func TestLabelSituations(t *testing.T) {
	tier.All(t, "five situations of labels, one after the other: 25 s")
	f := isolated.fixture(t)
	c := newCaller(f)
	f.group("situations-in", 1)
	f.nodes(nil, "situations-out")
	nodes := []string{"situations-in-0", "situations-out"}
	f.create(weights("policy", "situations-in", 1))

	t.Run("neither label: all nodes pass and the pod is left alone", func(t *testing.T) {
		c.pausedApp("neither", 1, "")
		result := c.filter(c.podOf("neither"), nodes...)
		if got := strings.Join(*result.NodeNames, " "); got != strings.Join(nodes, " ") || len(result.FailedAndUnresolvableNodes) != 0 {
			t.Errorf("kept [%s], refused %v", got, result.FailedAndUnresolvableNodes)
		}
		f.eventually(patience, "its pod exists", func() error {
			pods := f.pods("neither")
			if len(pods) != 1 {
				return fmt.Errorf("%d pods", len(pods))
			}
			if pod := pods[0]; len(pod.Spec.SchedulingGates) != 0 || pod.Labels[gm.BindingPropagationPolicyLabel] != "" {
				t.Errorf("the pod was changed: %v %v", pod.Spec.SchedulingGates, pod.Labels)
			}
			return nil
		})
	})

	t.Run("required and no such policy: pods are held back, and the extender refuses every node", func(t *testing.T) {
		c.create(deployment("unbound", 2, "no-such-policy"))
		result := c.filter(c.podOf("unbound"), nodes...)
		if len(*result.NodeNames) != 0 || len(result.FailedAndUnresolvableNodes) != 2 || len(result.FailedNodes) != 0 {
			t.Errorf("kept %v, refused %v", *result.NodeNames, texts(result.FailedAndUnresolvableNodes))
		}
		f.eventually(patience, "its pods wait at the gate", func() error {
			pods := f.pods("unbound")
			for _, pod := range pods {
				if len(pod.Spec.SchedulingGates) != 1 || pod.Spec.SchedulingGates[0].Name != gm.PolicyGate {
					return fmt.Errorf("gates are %v", pod.Spec.SchedulingGates)
				}
			}
			if len(pods) != 2 {
				return fmt.Errorf("%d pods", len(pods))
			}
			return nil
		})
	})

	t.Run("the policy appears: its pods are scheduled at once", func(t *testing.T) {
		f.create(weights("no-such-policy", "situations-in", 1))
		start := time.Now()
		f.eventually(patience, "the pods that waited are bound", func() error {
			return f.spreadIs("unbound", map[string]int{"situations-in": 2})
		})
		t.Logf("bound %s after the policy came", time.Since(start))
	})

	t.Run("required and bound are equal: by policy", func(t *testing.T) {
		c.pausedApp("bound", 0, "policy")
		c.waitBound("bound", "policy", nodes[0])
		if result := c.filter(c.podOf("bound"), nodes...); strings.Join(*result.NodeNames, " ") != nodes[0] {
			t.Errorf("kept %v, want %s", *result.NodeNames, nodes[0])
		}
	})

	t.Run("binding without required: as neither, and the label is stripped", func(t *testing.T) {
		d := deployment("stray", 0, "")
		d.Labels[gm.BindingPropagationPolicyLabel] = "policy"
		f.create(d)
		if result := c.filter(c.podOf("stray"), nodes...); len(*result.NodeNames) != 2 {
			t.Errorf("kept %v, want both", *result.NodeNames)
		}
		f.eventually(patience, "the stray label goes", func() error {
			d, err := f.kube.AppsV1().Deployments(f.ns).Get(f.ctx, "stray", metav1.GetOptions{})
			if err == nil && d.Labels[gm.BindingPropagationPolicyLabel] != "" {
				err = fmt.Errorf("labels are %v", d.Labels)
			}
			return err
		})
	})

	t.Run("the policy is deleted: running pods stay, the binding label goes, new pods wait", func(t *testing.T) {
		if err := f.client.Delete(f.ctx, &gm.PropagationPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: "no-such-policy"}}); err != nil {
			t.Fatal(err)
		}
		f.eventually(patience, "the binding label goes", func() error {
			d, err := f.kube.AppsV1().Deployments(f.ns).Get(f.ctx, "unbound", metav1.GetOptions{})
			if err == nil && d.Labels[gm.BindingPropagationPolicyLabel] != "" {
				err = fmt.Errorf("labels are %v", d.Labels)
			}
			return err
		})
		f.scale("unbound", 3)
		f.eventually(patience, "the new pod waits", func() error {
			if pods := f.pods("unbound"); len(pods) != 3 {
				return fmt.Errorf("%d pods", len(pods))
			}
			return nil
		})
		f.always(time.Second, "running pods stay, new ones wait", func() error {
			return f.spreadIs("unbound", map[string]int{"situations-in": 2})
		})
	})
}

// TestFilterKeepsAndRefuses is scenario 7: nodes in no target group and nodes of a full
// group are refused with different, constant texts; the other nodes are kept.
func TestFilterKeepsAndRefuses(t *testing.T) {
	f := isolated.fixture(t)
	c := newCaller(f)
	f.group("filter-a", 2)
	f.group("filter-b", 2)
	f.group("filter-other", 1)
	f.nodes(nil, "filter-none")
	f.create(weights("policy", "filter-a", 1, "filter-b", 1))
	c.pausedApp("app", 0, "policy")
	all := []string{"filter-a-0", "filter-a-1", "filter-b-0", "filter-b-1", "filter-other-0", "filter-none"}
	first := c.filter(c.waitBound("app", "policy", all...), all...)
	kept := *first.NodeNames
	if len(kept) != 2 || kept[0][:8] != kept[1][:8] || !strings.HasPrefix(kept[0], "filter-") {
		t.Fatalf("kept %v, want both nodes of one group", kept)
	}
	// The other group is next. For a third pod there are only nodes of a full group, of
	// another group, and of no group.
	second := c.filter(c.podOf("app"), all...)
	if (*second.NodeNames)[0][:8] == kept[0][:8] {
		t.Errorf("two pods at 1:1 were both sent to %v", kept)
	}
	third := c.podOf("app")
	full := []string{kept[0], "filter-other-0", "filter-none"}
	c.filter(c.podOf("app"), kept...) // kept's group now has one pod more
	refused := c.filter(third, full...)
	if len(*refused.NodeNames) != 0 || len(refused.FailedNodes) != 0 || len(refused.FailedAndUnresolvableNodes) != 3 {
		t.Fatalf("kept %v, failed %v, unresolvable %v", *refused.NodeNames, refused.FailedNodes, refused.FailedAndUnresolvableNodes)
	}
	if refused.FailedAndUnresolvableNodes[kept[0]] == refused.FailedAndUnresolvableNodes["filter-none"] {
		t.Errorf("a full group and no group have the same text: %q", refused.FailedAndUnresolvableNodes["filter-none"])
	}
	for range 3 {
		again := c.filter(third, full...)
		if fmt.Sprint(texts(again.FailedAndUnresolvableNodes)) != fmt.Sprint(texts(refused.FailedAndUnresolvableNodes)) {
			t.Errorf("the texts changed:\n%v\n%v", texts(refused.FailedAndUnresolvableNodes), texts(again.FailedAndUnresolvableNodes))
		}
	}
}

// TestPrioritizeScoresGroups is scenario 8: equal scores within a group, a higher score
// for a group that lacks more pods, 0 to 10, and 0 for nodes without a group.
func TestPrioritizeScoresGroups(t *testing.T) {
	f := isolated.fixture(t)
	c := newCaller(f)
	for _, g := range []string{"score-a", "score-b", "score-c"} {
		f.group(g, 2)
	}
	f.nodes(nil, "score-none")
	f.create(weights("policy", "score-a", 5, "score-b", 3, "score-c", 1))
	c.pausedApp("app", 9, "policy")
	nodes := []string{"score-a-0", "score-a-1", "score-b-0", "score-b-1", "score-c-0", "score-c-1", "score-none"}
	pod := c.waitBound("app", "policy", nodes...)
	var scores extenderv1.HostPriorityList
	c.post("prioritize", extenderv1.ExtenderArgs{Pod: pod, NodeNames: &nodes}, &scores)
	by := map[string]int64{}
	for _, s := range scores {
		by[s.Host] = s.Score
		if s.Score < extenderv1.MinExtenderPriority || s.Score > extenderv1.MaxExtenderPriority {
			t.Errorf("%s scores %d", s.Host, s.Score)
		}
	}
	if len(by) != len(nodes) {
		t.Errorf("%d of %d nodes are scored", len(by), len(nodes))
	}
	for _, g := range []string{"score-a", "score-b", "score-c"} {
		if by[g+"-0"] != by[g+"-1"] {
			t.Errorf("nodes of %s score %d and %d", g, by[g+"-0"], by[g+"-1"])
		}
	}
	if by["score-a-0"] != 10 || by["score-a-0"] < by["score-b-0"] || by["score-b-0"] < by["score-c-0"] || by["score-none"] != 0 {
		t.Errorf("a lacks 5, b 3, c 1, none is in no group: %v", by)
	}
}

// TestBothNodeForms is scenario 9: requests with node names and with full nodes are both
// answered in the same form, only with nodes of the request.
func TestBothNodeForms(t *testing.T) {
	f := isolated.fixture(t)
	c := newCaller(f)
	f.group("forms", 1)
	f.nodes(nil, "forms-none")
	f.create(weights("policy", "forms", 1))
	c.pausedApp("app", 0, "policy")
	c.pausedApp("unmanaged", 0, "")
	c.waitBound("app", "policy", "forms-0")
	full := &corev1.NodeList{}
	for _, name := range []string{"forms-none", "forms-0"} {
		node, err := f.kube.CoreV1().Nodes().Get(f.ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		full.Items = append(full.Items, *node)
	}
	for name, tc := range map[string]struct {
		app  string
		want []string
	}{
		"managed":   {"app", []string{"forms-0"}},
		"unmanaged": {"unmanaged", []string{"forms-none", "forms-0"}},
	} {
		t.Run(name, func(t *testing.T) {
			pod := c.podOf(tc.app)
			byName := c.filter(pod, "forms-none", "forms-0")
			if byName.Nodes != nil || strings.Join(*byName.NodeNames, " ") != strings.Join(tc.want, " ") {
				t.Errorf("names: got %v, nodes %v, want %v", *byName.NodeNames, byName.Nodes, tc.want)
			}
			var result extenderv1.ExtenderFilterResult
			c.post("filter", extenderv1.ExtenderArgs{Pod: pod, Nodes: full}, &result)
			var got []string
			for _, n := range result.Nodes.Items {
				got = append(got, n.Name)
				if n.Status.Allocatable.Cpu().IsZero() || n.UID == "" {
					t.Errorf("node %s did not come back whole", n.Name)
				}
			}
			if result.NodeNames != nil || strings.Join(got, " ") != strings.Join(tc.want, " ") {
				t.Errorf("full nodes: got %v, want %v", got, tc.want)
			}
			empty := c.filter(pod)
			if empty.NodeNames == nil || len(*empty.NodeNames) != 0 || len(empty.FailedAndUnresolvableNodes) != 0 {
				t.Errorf("no nodes: got %+v", empty)
			}
		})
	}
}

// TestOnlyKubeSchedulerMayAsk: the extender answers only clients with its own client
// certificate.
func TestOnlyKubeSchedulerMayAsk(t *testing.T) {
	f := isolated.fixture(t)
	c := newCaller(f)
	ok := c.http.Transport.(*http.Transport).TLSClientConfig
	anonymous := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: ok.RootCAs, MinVersion: tls.VersionTLS13}}, Timeout: 5 * time.Second}
	if response, err := anonymous.Post(f.atoll.ExtenderURL+"/scheduler/filter", "application/json", strings.NewReader("{}")); err == nil {
		response.Body.Close()
		t.Errorf("a caller without a certificate got %s", response.Status)
	}
	for name, tc := range map[string]struct {
		method, path, body string
		want               int
		says               string
	}{
		"wrong method":        {http.MethodGet, "filter", "", http.StatusMethodNotAllowed, "the scheduler extender protocol uses POST\n"},
		"no JSON":             {http.MethodPost, "filter", "no json", http.StatusBadRequest, "decoding the request: invalid character 'o' in literal null (expecting 'u')\n"},
		"no pod":              {http.MethodPost, "filter", "{}", http.StatusBadRequest, "decoding the request: Pod is missing\n"},
		"no pod, preempt":     {http.MethodPost, "preempt", "{}", http.StatusBadRequest, "decoding the request: Pod is missing\n"},
		"no pod, prioritize":  {http.MethodPost, "prioritize", "{}", http.StatusBadRequest, "decoding the request: Pod or a node is missing\n"},
		"no pod, bind":        {http.MethodPost, "bind", "{}", http.StatusBadRequest, "decoding the request: PodName, PodNamespace or Node is missing\n"},
		"a node without JSON": {http.MethodPost, "filter", `{"Pod":{},"Nodes":{"items":[1]}}`, http.StatusBadRequest, "decoding node 0: "},
		"no such verb":        {http.MethodPost, "guess", "{}", http.StatusNotFound, "404 page not found\n"},
	} {
		t.Run(name, func(t *testing.T) {
			request, err := http.NewRequestWithContext(f.ctx, tc.method, f.atoll.ExtenderURL+"/scheduler/"+tc.path, strings.NewReader(tc.body))
			if err != nil {
				t.Fatal(err)
			}
			response, err := c.http.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			body, err := io.ReadAll(response.Body)
			if err != nil {
				t.Fatal(err)
			}
			if response.StatusCode != tc.want || !strings.HasPrefix(string(body), tc.says) {
				t.Errorf("got %s: %q, want %d: %q", response.Status, body, tc.want, tc.says)
			}
		})
	}
}

// TestExtenderErrorsAppearOnThePod is scenario 50: if the extender cannot decide, the pod gets
// an error of the scheduler with the extender's own text, and not a refusal of nodes.
// Other pods are not delayed, and the pod is bound once the cause is removed.
func TestExtenderErrorsAppearOnThePod(t *testing.T) {
	f := isolated.fixture(t)
	f.group("told", 1)
	f.create(weights("policy", "told", 1))
	top := f.chain("told", 2)
	bottom := &appsv1.ReplicaSet{}
	if err := f.client.Get(f.ctx, types.NamespacedName{Namespace: f.ns, Name: "told-0"}, bottom); err != nil {
		t.Fatal(err)
	}
	f.patch(top, map[string]any{"metadata": map[string]any{"ownerReferences": []any{controllerOf(bottom)}}})
	f.patch(bottom, map[string]any{"spec": map[string]any{"replicas": 1, "template": map[string]any{"spec": map[string]any{"schedulerName": atoll.Scheduler}}}})
	const says = "owners form a cycle"
	f.eventually(patience, "the pod says what is wrong", func() error {
		pods := f.pods("told-0")
		if len(pods) != 1 {
			return fmt.Errorf("%d pods", len(pods))
		}
		for _, c := range pods[0].Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonSchedulerError && strings.Contains(c.Message, says) {
				t.Logf("users see: %s", c.Message)
				return nil
			}
		}
		return fmt.Errorf("conditions are %+v", pods[0].Status.Conditions)
	})
	f.eventually(patience, "an event reports it too", func() error { return f.eventOn("told-0", "FailedScheduling", says) })
	f.create(deployment("app", 2, "policy"))
	f.eventually(patience, "other pods are bound", func() error { return f.spreadIs("app", map[string]int{"told": 2}) })
	f.patch(top, map[string]any{"metadata": map[string]any{"ownerReferences": nil}})
	f.eventually(patience, "the pod is bound when its owners are in order", func() error { return f.boundAre("told-0", 1) })
}

// eventOn returns an error unless a workload's pods have an event with the reason and the
// text.
func (f *fixture) eventOn(app, reason, text string) error {
	events, err := f.kube.EventsV1().Events(f.ns).List(f.ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var notes []string
	for _, e := range events.Items {
		if e.Regarding.Kind != "Pod" || e.Reason != reason || !strings.HasPrefix(e.Regarding.Name, app) {
			continue
		}
		if strings.Contains(e.Note, text) {
			return nil
		}
		notes = append(notes, e.Note)
	}
	return fmt.Errorf("no event %s of %s says %q; there are %q", reason, app, text, notes)
}

// TestRefusalsAreConstant: a pod that waits because its group has no node that fits
// causes at most two filter calls in a minute.
func TestRefusalsAreConstant(t *testing.T) {
	tier.All(t, "counts the calls of a minute")
	f := isolated.fixture(t)
	f.group("constant-a", 1)
	f.group("constant-b", 1)
	policy := weights("policy", "constant-a", 1, "constant-b", 1)
	policy.Spec.RescheduleAfterSeconds = new(int32) // it does not go on loan
	f.create(policy)
	f.create(deployment("app", 1, "policy"))
	f.eventually(patience, "the first pod is bound", func() error { return f.allReady("app", 1) })
	full := "constant-a-0"
	if f.spread("app")["constant-a"] == 1 {
		full = "constant-b-0"
	}
	f.cordon(true, full)
	f.scale("app", 2)
	f.eventually(patience, "the second pod is refused", func() error {
		for _, pod := range f.pods("app") {
			for _, cond := range pod.Status.Conditions {
				if cond.Type == corev1.PodScheduled && cond.Status == corev1.ConditionFalse && cond.Reason == corev1.PodReasonUnschedulable {
					t.Logf("users see: %s", cond.Message)
					return nil
				}
			}
		}
		return fmt.Errorf("no pod is unschedulable")
	})
	before := f.filterCalls()
	f.eventually(patience, "it is recreated, with its group", func() error {
		if n := f.pinnedAndRefused("app"); n != 1 {
			return fmt.Errorf("%d pods are", n)
		}
		return nil
	})
	f.always(time.Minute, "the next pod goes on waiting", func() error {
		if n := f.pinnedAndRefused("app"); n != 1 {
			return fmt.Errorf("%d pods wait", n)
		}
		return nil
	})
	if calls := f.filterCalls() - before; calls > 2 {
		t.Errorf("one waiting pod caused %v filter calls in a minute, want at most 2", calls)
	}
	f.cordon(false, full)
	f.eventually(patience, "the pod is bound when the node is back", func() error {
		return f.spreadIs("app", map[string]int{"constant-a": 1, "constant-b": 1})
	})
}
