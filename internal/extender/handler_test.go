package extender

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/machinery/leader"
	"github.com/atoll-k8s/atoll/internal/seats"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

func TestFilter(t *testing.T) {
	ignore := build.Annotation(gm.MissingPolicyAnnotation, gm.MissingPolicyIgnore)
	without := func(name string, objects []build.Object) []build.Object {
		return slices.DeleteFunc(objects, func(o build.Object) bool { return o.GetName() == name })
	}
	everywhere := func(text string) map[string]string {
		return map[string]string{"node-hz": text, "node-bj": text, "node-out": text}
	}
	daemons := build.DaemonSet("agent", build.Bound("p", ""))
	full := append(ground(), webPod(0, build.On("node-hz")), webPod(1, build.On("node-hz")), webPod(2, build.On("node-hz")),
		webPod(3, build.On("node-bj")))
	tests := map[string]struct {
		objects []build.Object
		pod     *corev1.Pod
		nodes   []string
		kept    []string
		refused map[string]string
		failed  bool
	}{
		"a pod without an owner and without a label passes": {
			objects: ground(), pod: build.Pod("bare"), nodes: allNodes, kept: allNodes,
		},
		"a pod without an owner that requires only overrides, which are bound, passes": {
			objects: ground(), pod: build.Pod("bare", build.Bound("", "o")), nodes: allNodes, kept: allNodes,
		},
		"a pod of a workload that requires nothing passes": {
			objects: []build.Object{build.ReplicaSet("free")}, pod: build.Pod("x", build.OwnedBy(build.ReplicaSet("free"))), nodes: allNodes, kept: allNodes,
		},
		"policy labels of a pod with an owner are ignored": {
			objects: append(ground(), build.ReplicaSet("free")), pod: build.Pod("x", build.OwnedBy(build.ReplicaSet("free")), build.Bound("p", "")),
			nodes: allNodes, kept: allNodes,
		},
		"a bound pod is sent to the group that lacks most": {
			objects: ground(), pod: webPod(0), nodes: allNodes, kept: []string{"node-hz"},
		},
		"and to the next group if kube-scheduler has no node of the first": {
			objects: ground(), pod: webPod(0), nodes: []string{"node-bj", "node-out"}, kept: []string{"node-bj"},
		},
		"the last open seat is in bj": {
			objects: full, pod: webPod(4), nodes: allNodes, kept: []string{"node-bj"},
		},
		"the group that is next has no node that fits: the others are full": {
			objects: full, pod: webPod(4), nodes: []string{"node-hz", "node-out"},
			refused: map[string]string{"node-hz": TextOtherGroup, "node-out": TextOutsideGroups},
		},
		"nodes without a group and unknown nodes are refused": {
			objects: ground(), pod: webPod(0), nodes: []string{"node-out", "node-unknown"},
			refused: map[string]string{"node-out": TextOutsideGroups, "node-unknown": TextOutsideGroups},
		},
		"a bare pod that requires a policy is a workload of one": {
			objects: ground(), pod: build.Pod("bare", build.Bound("p", "")), nodes: allNodes, kept: []string{"node-hz"},
		},
		"no node is offered": {
			objects: ground(), pod: webPod(0), nodes: []string{}, kept: nil, refused: nil,
		},
		"situation 1: required and not bound": {
			objects: ground(build.Label(gm.BindingPropagationPolicyLabel, "")), pod: webPod(0), nodes: allNodes, refused: everywhere(TextNotBound),
		},
		"situation 2: bound to another": {
			objects: ground(build.Label(gm.BindingPropagationPolicyLabel, "q")), pod: webPod(0), nodes: allNodes, refused: everywhere(TextNotBound),
		},
		"bound, and the policy is deleted": {
			objects: without("p", ground()), pod: webPod(0), nodes: allNodes, refused: everywhere(TextNotBound),
		},
		"bound, and the policy cannot be used": {
			objects: append(without("p", ground()), build.PropagationPolicy("p")), pod: webPod(0), nodes: allNodes, refused: everywhere(TextNotBound),
		},
		"bound, and no group of the policy has a node": {
			objects: without("node-hz", without("node-bj", ground())), pod: webPod(0), nodes: allNodes, refused: everywhere(TextOutsideGroups),
		},
		"not bound, and a missing policy is ignored": {
			objects: ground(ignore, build.Label(gm.BindingPropagationPolicyLabel, "")), pod: webPod(0), nodes: allNodes, kept: allNodes,
		},
		"the policy is deleted, and a missing policy is ignored": {
			objects: without("p", ground(ignore)), pod: webPod(0), nodes: allNodes, kept: allNodes,
		},
		"the policy exists, and a missing one would be ignored": {
			objects: ground(ignore), pod: webPod(0), nodes: allNodes, kept: []string{"node-hz"},
		},
		"bound, and overrides are required and not bound": {
			objects: ground(build.Requires("", "o")), pod: webPod(0), nodes: allNodes, refused: everywhere(TextOverrideNotBound),
		},
		"bound, overrides are not, and missing ones are ignored": {
			objects: ground(ignore, build.Requires("", "o")), pod: webPod(0), nodes: allNodes, kept: []string{"node-hz"},
		},
		"only overrides are required, and not bound": {
			objects: []build.Object{build.ReplicaSet("free", build.Requires("", "o"))}, pod: build.Pod("x", build.OwnedBy(build.ReplicaSet("free"))),
			nodes: allNodes, refused: everywhere(TextOverrideNotBound),
		},
		"a pod without an owner that requires only overrides, not bound": {
			objects: ground(), pod: build.Pod("bare", build.Requires("", "o")), nodes: allNodes, refused: everywhere(TextOverrideNotBound),
		},
		"the pods of a DaemonSet may go to all groups, and to no other node": {
			objects: append(ground(), daemons), pod: build.Pod("agent-x", build.OwnedBy(daemons)), nodes: allNodes, kept: []string{"node-hz", "node-bj"},
		},
		"a DaemonSet's pod for a node without a group": {
			objects: append(ground(), daemons), pod: build.Pod("agent-x", build.OwnedBy(daemons)), nodes: []string{"node-out"},
			refused: map[string]string{"node-out": TextOutsideGroups},
		},
		"an owner that does not exist is an error": {
			objects: ground(), pod: build.Pod("x", build.OwnedBy(build.ReplicaSet("gone"))), nodes: allNodes, failed: true,
		},
	}
	for name, tc := range tests {
		for _, form := range []string{"names", "nodes"} {
			t.Run(name+", asked with "+form, func(t *testing.T) {
				d := newFixture(t, tc.objects...)
				var result extenderFilterResult
				var kept []string
				if form == "names" {
					result = d.filter(tc.pod, tc.nodes...)
					if result.NodeNames != nil {
						kept = *result.NodeNames
					}
				} else {
					list := &corev1.NodeList{}
					for _, name := range tc.nodes {
						list.Items = append(list.Items, *build.Node(name))
					}
					result = ask[extenderFilterResult](d, "filter", extenderArgs{Pod: tc.pod, Nodes: list})
					if result.Nodes != nil {
						for _, node := range result.Nodes.Items {
							kept = append(kept, node.Name)
							if diff := cmp.Diff(build.Node(node.Name), &node); diff != "" {
								t.Errorf("node %s did not come back as it was sent:\n%s", node.Name, diff)
							}
						}
					}
				}
				if (result.Error != "") != tc.failed {
					t.Fatalf("error is %q, want one: %t", result.Error, tc.failed)
				}
				if len(kept)+len(tc.kept) > 0 {
					if diff := cmp.Diff(tc.kept, kept); diff != "" {
						t.Errorf("wrong nodes are kept (-want +got):\n%s", diff)
					}
				}
				if len(result.FailedAndUnresolvableNodes)+len(tc.refused) > 0 {
					if diff := cmp.Diff(tc.refused, result.FailedAndUnresolvableNodes); diff != "" {
						t.Errorf("wrong nodes are refused (-want +got):\n%s", diff)
					}
				}
				if len(result.FailedNodes) != 0 {
					t.Errorf("%v are refused in a way that makes kube-scheduler try preemption, which cannot help", result.FailedNodes)
				}
				if (form == "names") != (result.NodeNames != nil) && !tc.failed {
					t.Error("the response is not in the form of the request")
				}
			})
		}
	}
}

func TestUnmanagedPodsLeaveNoLedgerEntry(t *testing.T) {
	d := newFixture(t, append(ground(), build.ReplicaSet("free"))...)
	for _, pod := range []*corev1.Pod{build.Pod("bare"), build.Pod("owned", build.OwnedBy(build.ReplicaSet("free")))} {
		d.filter(pod, allNodes...)
		ask[[]hostPriority](d, "prioritize", extenderArgs{Pod: pod, NodeNames: &allNodes})
		ask[preemptionResult](d, "preempt", map[string]any{"Pod": pod, "NodeNameToMetaVictims": map[string]any{}})
		if d.World.Ledger.Pod(pod.UID) != nil || d.World.Ledger.SeatNumber(pod.UID) != 0 {
			t.Errorf("%s has an entry in the ledger", pod.Name)
		}
	}
	if n := d.API.Reads(); n != 0 || len(d.Pods.Actions()) != 0 {
		t.Errorf("%d reads of owners, calls %v", n, d.Pods.Actions())
	}
}

// TestNoNodesAreAnEmptyList: kube-scheduler reads null as a response in the other form.
// Released buffers must not have names of the last request.
func TestNoNodesAreAnEmptyList(t *testing.T) {
	d := newFixture(t, ground()...)
	for _, pod := range []*corev1.Pod{build.Pod("bare"), webPod(0)} {
		d.filter(webPod(1), allNodes...)
		for name, nodes := range map[string][]string{"null": nil, "[]": {}} {
			if got := d.filter(pod, nodes...); got.NodeNames == nil || len(*got.NodeNames)+len(got.FailedAndUnresolvableNodes) != 0 {
				t.Errorf("%s of %s is answered with %+v", name, pod.Name, got)
			}
		}
		if got := ask[extenderFilterResult](d, "filter", extenderArgs{Pod: pod, Nodes: &corev1.NodeList{}}); got.NodeNames != nil || got.Nodes == nil || len(got.Nodes.Items) != 0 {
			t.Errorf("no whole nodes of %s are answered with %+v", pod.Name, got)
		}
	}
}

func TestFilterHandsOutSeatsAsThePolicyDivides(t *testing.T) {
	d := newFixture(t, ground()...)
	got := map[string]int{}
	for i := range 5 {
		kept := *d.filter(webPod(i), allNodes...).NodeNames
		if len(kept) != 1 {
			t.Fatalf("pod %d may go to %v", i, kept)
		}
		got[kept[0]]++
	}
	if diff := cmp.Diff(map[string]int{"node-hz": 3, "node-bj": 2}, got); diff != "" {
		t.Errorf("wrong division (-want +got):\n%s", diff)
	}
	first := *d.filter(webPod(0), allNodes...).NodeNames
	if again := *d.filter(webPod(0), allNodes...).NodeNames; !slices.Equal(first, again) {
		t.Errorf("after a second request the pod is sent to %v instead of %v", again, first)
	}
}

func TestPrioritize(t *testing.T) {
	pinned := build.DaemonSet("agent", build.Bound("p", ""))
	tests := map[string]struct {
		objects []build.Object
		pod     *corev1.Pod
		want    map[string]int64
	}{
		"an unmanaged pod: all 0":             {ground(), build.Pod("bare"), map[string]int64{"node-hz": 0, "node-bj": 0, "node-out": 0}},
		"the group that lacks most first":     {ground(), webPod(0), map[string]int64{"node-hz": 10, "node-bj": 9, "node-out": 0}},
		"a full group last":                   {append(ground(), webPod(8, build.On("node-bj")), webPod(9, build.On("node-bj"))), webPod(0), map[string]int64{"node-hz": 10, "node-bj": 0, "node-out": 0}},
		"a pod that is not bound: all 0":      {ground(build.Label(gm.BindingPropagationPolicyLabel, "")), webPod(0), map[string]int64{"node-hz": 0, "node-bj": 0, "node-out": 0}},
		"the pods of a DaemonSet: all 0":      {append(ground(), pinned), build.Pod("x", build.OwnedBy(pinned)), map[string]int64{"node-hz": 0, "node-bj": 0, "node-out": 0}},
		"an owner that does not exist: all 0": {ground(), build.Pod("x", build.OwnedBy(build.ReplicaSet("gone"))), map[string]int64{"node-hz": 0, "node-bj": 0, "node-out": 0}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := map[string]int64{}
			for _, p := range ask[[]hostPriority](newFixture(t, tc.objects...), "prioritize", extenderArgs{Pod: tc.pod, NodeNames: &allNodes}) {
				got[p.Host] = p.Score
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("wrong scores (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPreemptDropsNodesWithUselessVictims(t *testing.T) {
	full := append(ground(), webPod(0, build.On("node-hz")), webPod(1, build.On("node-hz")), webPod(2, build.On("node-hz")))
	daemons := build.DaemonSet("agent", build.Bound("q", ""))
	tests := map[string]struct {
		objects []build.Object
		pod     *corev1.Pod
		victims map[string][]string // by node
		want    []string
	}{
		"an unmanaged pod: every node with victims": {
			objects: ground(), pod: build.Pod("bare"),
			victims: map[string][]string{"node-hz": {"v1"}, "node-bj": {"v2", "v3"}, "node-out": {}}, want: []string{"node-bj", "node-hz"},
		},
		"groups that are full and nodes of no group are dropped": {
			objects: full, pod: webPod(9),
			victims: map[string][]string{"node-hz": {"v1"}, "node-bj": {"v2", "v3"}, "node-out": {"v4"}}, want: []string{"node-bj"},
		},
		"nodes without a victim are dropped": {
			objects: full, pod: webPod(9), victims: map[string][]string{"node-bj": {}},
		},
		"the pods of a DaemonSet may preempt in every group to which the policy gives pods": {
			objects: append(full, build.PropagationPolicy("q", build.Weight(1, "hz", "bj"), build.Weight(0, "sh")), build.Node("node-sh", build.InGroup("sh")), daemons),
			pod:     build.Pod("agent-x", build.OwnedBy(daemons)),
			victims: map[string][]string{"node-hz": {"v1"}, "node-bj": {"v2"}, "node-sh": {"v3"}, "node-out": {"v4"}}, want: []string{"node-bj", "node-hz"},
		},
		"a pod that is not bound preempts no pod": {
			objects: ground(build.Label(gm.BindingPropagationPolicyLabel, "")), pod: webPod(9),
			victims: map[string][]string{"node-hz": {"v1"}},
		},
		"a pod whose owner does not exist preempts no pod": {
			objects: ground(), pod: build.Pod("x", build.OwnedBy(build.ReplicaSet("gone"))),
			victims: map[string][]string{"node-hz": {"v1"}},
		},
	}
	for name, tc := range tests {
		for _, form := range []string{"UIDs", "pods"} {
			t.Run(name+", asked with "+form, func(t *testing.T) {
				type metaPod struct{ UID string }
				type meta struct {
					Pods             []metaPod
					NumPDBViolations int64
				}
				byUID, byPod := map[string]any{}, map[string]any{}
				for node, victims := range tc.victims {
					var uids []metaPod
					var pods []*corev1.Pod
					for _, v := range victims {
						uids, pods = append(uids, metaPod{v}), append(pods, build.Pod(v))
					}
					byUID[node] = meta{uids, 2}
					byPod[node] = map[string]any{"Pods": pods, "NumPDBViolations": 2}
				}
				request := map[string]any{"Pod": tc.pod, "NodeNameToMetaVictims": byUID}
				if form == "pods" {
					request = map[string]any{"Pod": tc.pod, "NodeNameToVictims": byPod}
				}
				result := ask[struct{ NodeNameToMetaVictims map[string]meta }](newFixture(t, tc.objects...), "preempt", request)
				var nodes []string
				for node, left := range result.NodeNameToMetaVictims {
					nodes = append(nodes, node)
					var uids []string
					for _, pod := range left.Pods {
						uids = append(uids, pod.UID)
					}
					if diff := cmp.Diff(tc.victims[node], uids); diff != "" || left.NumPDBViolations != 2 {
						t.Errorf("victims on %s changed, violations %d (-want +got):\n%s", node, left.NumPDBViolations, diff)
					}
				}
				slices.Sort(nodes)
				if diff := cmp.Diff(tc.want, nodes); diff != "" {
					t.Errorf("wrong nodes (-want +got):\n%s", diff)
				}
			})
		}
	}
}

var verbs = []string{"filter", "prioritize", "preempt", "bind"}

func TestMalformedRequestsAreRefused(t *testing.T) {
	d := newFixture(t, ground()...)
	tests := map[string]struct {
		method string
		body   string
		want   int
	}{
		"not a POST":              {method: http.MethodGet, want: http.StatusMethodNotAllowed},
		"an empty body":           {method: http.MethodPost, want: http.StatusBadRequest},
		"no JSON":                 {method: http.MethodPost, body: "{", want: http.StatusBadRequest},
		"a list":                  {method: http.MethodPost, body: "[]", want: http.StatusBadRequest},
		"nothing in it":           {method: http.MethodPost, body: "{}", want: http.StatusBadRequest},
		"null":                    {method: http.MethodPost, body: "null", want: http.StatusBadRequest},
		"no pod in it":            {method: http.MethodPost, body: `{"NodeNames":["a"]}`, want: http.StatusBadRequest},
		"a pod that is a number":  {method: http.MethodPost, body: `{"Pod":1,"PodName":1}`, want: http.StatusBadRequest},
		"labels that are numbers": {method: http.MethodPost, body: `{"Pod":{"metadata":{"labels":{"a":1}}},"Node":1}`, want: http.StatusBadRequest},
	}
	for name, tc := range tests {
		for _, verb := range verbs {
			t.Run(name+", "+verb, func(t *testing.T) {
				w := httptest.NewRecorder()
				d.mux.ServeHTTP(w, httptest.NewRequest(tc.method, "/scheduler/"+verb, strings.NewReader(tc.body)))
				if w.Code != tc.want {
					t.Errorf("answered %d: %s", w.Code, w.Body)
				}
			})
		}
	}
	t.Run("a node that is no object", func(t *testing.T) {
		if w := d.send("filter", []byte(`{"Pod":{},"Nodes":{"items":[1]}}`)); w.Code != http.StatusBadRequest {
			t.Errorf("answered %d: %s", w.Code, w.Body)
		}
	})
	t.Run("an unknown path", func(t *testing.T) {
		if w := d.send("unknown", []byte(`{}`)); w.Code != http.StatusNotFound {
			t.Errorf("answered %d: %s", w.Code, w.Body)
		}
	})
}

// TestABodyBeyondTheLimitIsTooLarge: maxBody is too large for a unit test. So one body has
// a limit of its own, and the other has a Content-Length above the limit and must not be
// read.
func TestABodyBeyondTheLimitIsTooLarge(t *testing.T) {
	leads, follows := newFixture(t), newFixture(t)
	follows.Leading, follows.Leader = func() bool { return false }, &leader.Leader{Address: func() string { return "leader:9444" }, Transport: replicas{}}
	for who, d := range map[string]*fixture{"the leader": leads, "another replica": follows} {
		for _, verb := range verbs {
			long := httptest.NewRequest(http.MethodPost, "/scheduler/"+verb, http.MaxBytesReader(nil, io.NopCloser(strings.NewReader(`{"Pod":{}}`)), 5))
			announced := httptest.NewRequest(http.MethodPost, "/scheduler/"+verb, iotest.ErrReader(errors.New("it was read")))
			announced.ContentLength = maxBody + 1
			for what, r := range map[string]*http.Request{"a long body": long, "a body announced as long": announced} {
				w := httptest.NewRecorder()
				d.mux.ServeHTTP(w, r)
				if w.Code != http.StatusRequestEntityTooLarge {
					t.Errorf("%s answered %d to %s of %s: %s", who, w.Code, what, verb, w.Body)
				}
			}
		}
	}
}

// TestRepliesAreNotChunked uses a real HTTP server: it would send a response above 2 kB
// without Content-Length in chunks.
func TestRepliesAreNotChunked(t *testing.T) {
	d := newFixture(t, ground()...)
	server := httptest.NewServer(d.mux)
	defer server.Close()
	var nodes []string
	for i := range 500 {
		nodes = append(nodes, fmt.Sprint("node-", i))
	}
	for verb, request := range map[string]any{
		"filter":     extenderArgs{Pod: webPod(0), NodeNames: &nodes},
		"prioritize": extenderArgs{Pod: webPod(0), NodeNames: &nodes},
		"preempt":    map[string]any{"Pod": build.Pod("bare"), "NodeNameToMetaVictims": map[string]any{}},
		"bind":       bindingArgs{PodName: "x", PodNamespace: "ns", Node: "n"},
	} {
		body, err := json.Marshal(request)
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.Post(server.URL+"/scheduler/"+verb, "application/json", strings.NewReader(string(body)))
		if err != nil {
			t.Fatal(err)
		}
		reply, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.ContentLength != int64(len(reply)) || len(response.TransferEncoding) != 0 || response.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s answered %d bytes with length %d, encoding %v, type %q", verb, len(reply), response.ContentLength, response.TransferEncoding, response.Header.Get("Content-Type"))
		}
	}
}

// TestRefusalTextStaysTheSame: kube-scheduler retries a pod at once if the text of a refusal
// differs from the last one.
func TestRefusalTextStaysTheSame(t *testing.T) {
	d := newFixture(t, ground()...)
	var last map[string]string
	for i := range 8 {
		refused := d.filter(webPod(100), "node-out").FailedAndUnresolvableNodes
		if last != nil {
			if diff := cmp.Diff(last, refused); diff != "" {
				t.Fatalf("the refusal changed (-before +now):\n%s", diff)
			}
		}
		last = refused
		d.World.Ledger.Observe(seats.Slim(webPod(i, build.On([]string{"node-hz", "node-bj"}[i%2]))))
	}
}

func FuzzFilterDecode(f *testing.F) {
	for _, seed := range []string{
		``, `null`, `{}`, `[]`, `{"Pod":null}`, `{"Pod":{}}`, `{"Pod":{"metadata":{"uid":1}}}`,
		`{"Pod":{"metadata":{"name":"a","namespace":"ns","labels":{"groupmanagement.kubeedge.io/required-propagationpolicy":"p","groupmanagement.kubeedge.io/binding-propagationpolicy":"p"}}},"NodeNames":["node-hz",""]}`,
		`{"Pod":{"metadata":{"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"web-1","uid":"web-1","controller":true}]}},"NodeNames":["node-hz","node-hz"]}`,
		`{"Pod":{"metadata":{"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"../x?y#z","uid":"none","controller":true}]}},"NodeNames":null}`,
		`{"Pod":{"metadata":{"ownerReferences":[{"apiVersion":"///","kind":"","controller":true}]}},"Nodes":{"metadata":null,"items":[{},null,{"metadata":{"name":"node-bj"}}]}}`,
		`{"Pod":{"metadata":{}},"NodeNameToVictims":{"a":{"Pods":[{}]},"b":1,"c":null}}`,
		`{"Pod":{"metadata":{}},"NodeNameToMetaVictims":{"a":{"Pods":[null,{}]},"b":null}}`,
		`{"PodName":"a","PodNamespace":"ns","PodUID":"","Node":"node-hz"}`,
	} {
		f.Add([]byte(seed))
	}
	d := newFixture(f, ground()...)
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, verb := range verbs {
			w := httptest.NewRecorder()
			d.mux.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/scheduler/"+verb, strings.NewReader(string(body))))
			if w.Code != http.StatusOK && (w.Code < 400 || w.Code > 499) {
				t.Errorf("%s answered %d to %q", verb, w.Code, body)
			}
			if w.Code == http.StatusOK && !json.Valid(w.Body.Bytes()) {
				t.Errorf("%s answered %q to %q: not valid JSON", verb, w.Body, body)
			}
		}
	})
}
