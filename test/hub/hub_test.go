package hub

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/internal/hub/gate"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// The representations that clients ask for.
var representations = []string{
	"application/json", "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf,application/json",
	"application/json;as=Table;v=v1;g=meta.k8s.io,application/json", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json",
}

// part is a part of a test with one hub.
type part struct {
	name string
	run  func(*rig)
}

// TestMain runs two tests in parallel, on any number of processors: each has a cluster, and most of the time they wait.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "2"); err != nil { // unless the command line sets another value
		panic(err)
	}
	flag.Parse()
	os.Exit(m.Run())
}

// TestHub: two clusters run in parallel, because most of the time the parts wait until the cloud is offline or
// online again.
func TestHub(t *testing.T) {
	t.Parallel()
	for name, parts := range map[string][]part{
		"reads": {
			{"answers are those of the API server, and offline the same", (*rig).testAnswers},
			{"identities are kept apart", (*rig).testIdentities},
			{"a watch continues after an outage", (*rig).testWatch},
			{"a streamed list", (*rig).testStreamedList},
			{"a pod whose policy is not bound is held", (*rig).testGate},
			{"the node's certificate expires while the cloud is away", (*rig).testExpired},
		},
		"more": {
			{"Services keep to their topology, and the node's pods to their addresses", (*rig).testServices},
			{"scenario 66, writes of the node are kept while the cloud is away", (*rig).testKeptWrites},
			{"the hub is killed while the cloud is away", (*rig).testKill},
			{"other users cannot read the hub's files", (*rig).testFiles},
			{"a hub requests the certificate of its node, and renews it", (*rig).testBootstrap},
			{"the API server's etcd hangs", (*rig).testHangingEtcd},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, startCluster(t, devcluster.Options{LowIdle: true, ComponentArgs: map[string][]string{
				devcluster.ControllerManager: {"--node-monitor-grace-period=1h"}, // nobody writes the status of a node but its kubelet
			}}), nodeName)
			r.objects()
			r.serviceAccount("reader", "view")
			r.serviceAccount("stranger", "")
			for _, part := range parts {
				t.Run(part.name, func(t *testing.T) {
					one := *r
					one.T = t
					part.run(&one)
					r.hub = one.hub
				})
			}
		})
	}
}

// objects makes what is read: a Node, pods that are bound to it, and objects of other kinds.
func (r *rig) objects() {
	r.Helper()
	nodes := r.admin.CoreV1()
	if _, err := nodes.Nodes().Create(r.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}, metav1.CreateOptions{}); err != nil {
		r.Fatal(err)
	}
	for i := range 25 {
		r.createConfigMap(fmt.Sprintf("settings-%02d", i))
	}
	for i := range 3 {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("pod-", i), Labels: map[string]string{"app": fmt.Sprint("app-", i%2)}}, Spec: corev1.PodSpec{
			NodeName: nodeName, Containers: []corev1.Container{{Name: "c", Image: "nginx"}}, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		}}
		r.eventually("a pod is created", func() error { // once its ServiceAccount is there
			_, err := nodes.Pods(namespace).Create(r.Context(), pod, metav1.CreateOptions{})
			return err
		})
	}
}

func (r *rig) createConfigMap(name string) {
	r.Helper()
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "web"}}, Data: map[string]string{"name": name}}
	if _, err := r.admin.CoreV1().ConfigMaps(namespace).Create(r.Context(), object, metav1.CreateOptions{}); err != nil {
		r.Fatal(err)
	}
}

// questions are 200 and more reads of the node and of a ServiceAccount.
func questions() (all []question) {
	paths := map[string][]string{
		"node": {
			"/api/v1/pods?fieldSelector=spec.nodeName%3D" + nodeName, "/api/v1/pods?fieldSelector=spec.nodeName%3D" + nodeName + "&labelSelector=app%3Dapp-1",
			"/api/v1/pods?fieldSelector=spec.nodeName%3D" + nodeName + "&resourceVersion=0", "/api/v1/nodes/" + nodeName, "/api/v1/nodes?fieldSelector=metadata.name%3D" + nodeName,
			"/api/v1/services", "/api/v1/services?limit=500&resourceVersion=0", "/api/v1/nodes/nobody", "/api/v1/namespaces/default/pods/pod-1", "/api/v1/namespaces/default/pods/nobody",
			"/apis/node.k8s.io/v1/runtimeclasses", "/apis/storage.k8s.io/v1/csidrivers", "/version", "/api", "/apis", "/api/v1", "/apis/apps/v1", "/openapi/v3",
		},
		"reader": {
			"/api/v1/namespaces/default/configmaps", "/api/v1/namespaces/default/configmaps?labelSelector=app%3Dweb", "/api/v1/namespaces/default/configmaps?labelSelector=app%3Dnobody",
			"/api/v1/namespaces/default/configmaps/settings-07", "/api/v1/configmaps?fieldSelector=metadata.name%3Dsettings-11", "/api/v1/namespaces/default/pods", "/api/v1/pods?labelSelector=app+in+(app-0,app-1)",
			"/api/v1/namespaces/default/serviceaccounts", "/api/v1/namespaces/default/services/kubernetes", "/api/v1/namespaces/default/endpoints/kubernetes", "/apis/discovery.k8s.io/v1/endpointslices",
			"/api/v1/namespaces/nobody/pods", "/apis/apps/v1/deployments", "/apis/batch/v1/namespaces/default/jobs", "/api/v1/namespaces/default", "/api/v1/namespaces/default/secrets",
			"/apis/nobody.example/v1/things", "/version", "/apis/apps", "/apis/apps/v1", "/api/v1/namespaces/default/pods/pod-0/status", "/api/v1/namespaces",
		},
	}
	for identity, of := range paths {
		for _, path := range of {
			for _, accept := range representations {
				all = append(all, question{identity, path, accept})
			}
		}
	}
	return all
}

// testAnswers asks the API server and the hub the same, and the hub once more without the cloud.
func (r *rig) testAnswers() {
	all := questions()
	if len(all) < 200 {
		r.Fatalf("there are %d questions", len(all))
	}
	online := map[question]answer{}
	for _, q := range all {
		direct, over := r.ask(r.direct, q), r.ask(r.over, q)
		if over.err != nil || over.asOf != "" || over.code != direct.code || over.contentType != direct.contentType || steady(over) != steady(direct) {
			r.Errorf("%+v: the API server answers %d %s %s\nand the hub %d %s %s %v", q, direct.code, direct.contentType, short(direct.body), over.code, over.contentType, short(over.body), over.err)
		}
		online[q] = over
	}
	// The chunks of a list are one list.
	chunked := question{"reader", "/api/v1/namespaces/kube-system/configmaps?limit=2", "application/json"}
	for at := chunked; ; {
		a := r.ask(r.over, at)
		var list metav1.PartialObjectMetadataList
		if err := json.Unmarshal([]byte(a.body), &list); err != nil || a.code != http.StatusOK {
			r.Fatalf("a chunk is %+v, %v", a, err)
		}
		if list.Continue == "" {
			break
		}
		at.path = chunked.path + "&continue=" + url.QueryEscape(list.Continue)
	}
	whole := r.ask(r.direct, question{"reader", "/api/v1/namespaces/kube-system/configmaps", "application/json"})

	r.cutOff(all[0])
	defer r.comeBack(all[0])
	for q, was := range online {
		is := r.ask(r.over, q)
		switch {
		case was.code == http.StatusOK || was.code == http.StatusNotFound:
			if is.code != was.code || is.contentType != was.contentType || !isKept(is, was) || is.asOf == "" {
				r.Errorf("%+v: the hub has answered %d %s %s\nand answers offline %d %s %s", q, was.code, was.contentType, short(was.body), is.code, is.contentType, short(is.body))
			}
		case is.code != http.StatusServiceUnavailable:
			r.Errorf("%+v: the hub has answered %d, and answers offline %d %s", q, was.code, is.code, short(is.body))
		}
	}
	if a := r.ask(r.over, chunked); items(a.body) != items(whole.body) || a.code != http.StatusOK {
		r.Errorf("the list that was read in chunks is offline %+v, want %+v", a, whole)
	}
	for _, q := range []question{
		{"node", "/api/v1/pods", "application/json"},                                             // never asked: an empty list would be a lie
		{"node", "/api/v1/pods?fieldSelector=spec.nodeName%3D" + nodeName, "application/yaml"},   // not in this form
		{"reader", "/api/v1/pods?fieldSelector=spec.nodeName%3D" + nodeName, representations[0]}, // not by this identity
		{"stranger", "/api/v1/namespaces/default/configmaps", representations[0]},                // nor by one that nobody has accepted
		{"reader", "/api/v1/namespaces/default/pods/pod-0/log", "*/*"},                           // never kept
		{"node", "/api/v1/watch/pods?fieldSelector=spec.nodeName%3Dnobody", "application/json"},  // nor watched
		{"reader", "/api/v1/namespaces/default/configmaps?watch=1&labelSelector=x", "application/json"},
	} {
		if a := r.ask(r.over, q); a.code != http.StatusServiceUnavailable || !strings.Contains(a.body, "cannot ask the cloud") {
			r.Errorf("%+v: the hub answers %+v", q, a)
		}
	}
}

// steady is an answer without what differs from one to the next: the resource version of a list, and
// ages in tables.
func steady(a answer) string {
	format, err := wire.FormatOf(a.contentType)
	if err != nil {
		return a.body
	}
	if list, err := format.DecodeList([]byte(a.body)); err == nil {
		var text strings.Builder
		fmt.Fprintln(&text, list.Kind, list.Continue)
		for _, item := range list.Items {
			text.Write(item.Raw)
		}
		return text.String()
	}
	var table struct {
		Kind string            `json:"kind"`
		Rows []json.RawMessage `json:"rows"`
	}
	if json.Unmarshal([]byte(a.body), &table) == nil && table.Kind == "Table" {
		return fmt.Sprint(len(table.Rows))
	}
	return a.body
}

// isKept reports whether an answer is another one byte for byte, or the same list but for its resource
// version: two questions may have one answer that is kept, and something else may have been written
// between them.
func isKept(is, was answer) bool {
	if ageless(is.body) == ageless(was.body) {
		return true
	}
	one, now := withoutVersion(is)
	other, then := withoutVersion(was)
	return one > 0 && other > 0 && now == then
}

// withoutVersion returns the resource version of a list or a table, 0 for other answers, and the rest.
func withoutVersion(a answer) (version int, rest string) {
	var table metav1.Table
	if json.Unmarshal([]byte(a.body), &table) == nil && table.Kind == "Table" {
		version, _ = strconv.Atoi(table.ResourceVersion)
		table.ResourceVersion = ""
		text, _ := json.Marshal(table)
		return version, ageless(string(text))
	}
	if format, err := wire.FormatOf(a.contentType); err == nil {
		if list, err := format.DecodeList([]byte(a.body)); err == nil {
			version, _ = strconv.Atoi(list.ResourceVersion)
		}
	}
	return version, steady(a)
}

// ageless is an answer byte for byte, but the ages in a table: two questions that one answer is kept
// for are not asked in the same second.
func ageless(body string) string {
	var table metav1.Table
	if json.Unmarshal([]byte(body), &table) != nil || table.Kind != "Table" {
		return body
	}
	age := slices.IndexFunc(table.ColumnDefinitions, func(c metav1.TableColumnDefinition) bool { return c.Name == "Age" })
	for _, row := range table.Rows {
		if age >= 0 && age < len(row.Cells) {
			row.Cells[age] = "age"
		}
	}
	text, err := json.Marshal(table)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// items is a list in JSON without its metadata.
func items(body string) string {
	var list struct {
		Items json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal([]byte(body), &list); err != nil {
		return err.Error()
	}
	return string(list.Items)
}

// testIdentities: nobody gets more through the hub than the API server gives them.
func (r *rig) testIdentities() {
	for _, q := range []question{
		{"stranger", "/api/v1/namespaces/default/configmaps", "application/json"},
		{"stranger", "/api/v1/pods?fieldSelector=spec.nodeName%3D" + nodeName, "application/json"},
	} {
		if a := r.ask(r.over, q); a.code != http.StatusForbidden || !strings.Contains(a.body, "system:serviceaccount:default:stranger") {
			r.Errorf("%+v is answered %+v", q, a)
		}
	}
	if a := r.ask(r.over, question{"nobody", "/api/v1/nodes/" + nodeName, "application/json"}); a.code != http.StatusUnauthorized || !strings.Contains(a.body, "send a bearer token") {
		r.Errorf("nobody is answered %+v", a)
	}
	// What a client says of itself in headers is not passed on.
	for _, header := range []string{"Impersonate-User", "Impersonate-Group", "X-Remote-User", "X-Remote-Group"} {
		request, err := http.NewRequestWithContext(r.Context(), http.MethodGet, "https://"+r.address+"/api/v1/namespaces/default/secrets", nil)
		if err != nil {
			r.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+r.tokens["stranger"])
		request.Header.Set(header, "system:masters")
		response, err := r.over["stranger"].Do(request)
		if err != nil {
			r.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != http.StatusForbidden {
			r.Errorf("with the header %s the answer is %s", header, response.Status)
		}
	}
	// A token that nobody signed is not taken for that of the ServiceAccount that it names, however the
	// API server answers requests with it.
	payload, err := base64.RawURLEncoding.DecodeString(strings.Split(r.tokens["reader"], ".")[1])
	if err != nil {
		r.Fatal(err)
	}
	forged := "e30." + base64.RawURLEncoding.EncodeToString(payload) + ".c2lnbmF0dXJl"
	r.clients("forger", forged)
	secrets := question{"reader", "/api/v1/namespaces/default/configmaps/settings-05", "application/json"}
	if a := r.ask(r.over, secrets); a.code != http.StatusOK {
		r.Fatalf("the answer is %+v", a)
	}
	for _, path := range []string{"/version", secrets.path, secrets.path + "?timeout=x", "/api/v1/pods?watch=1&timeout=x", "/healthz"} {
		for _, header := range []string{"Bearer  " + forged, "Bearer " + forged, "bearer\t" + forged, "Bearer " + forged + " x"} {
			request, err := http.NewRequestWithContext(r.Context(), http.MethodGet, "https://"+r.address+path, nil)
			if err != nil {
				r.Fatal(err)
			}
			request.Header.Set("Authorization", header)
			response, err := r.over["forger"].Do(request)
			if err != nil {
				r.Fatal(err)
			}
			_ = response.Body.Close()
			if response.StatusCode/100 == 2 {
				r.Errorf("%s with %.20q is answered %s", path, header, response.Status)
			}
		}
	}
	r.cutOff(secrets)
	if a := r.ask(r.over, question{"forger", secrets.path, secrets.accept}); a.code != http.StatusServiceUnavailable {
		r.Errorf("offline a forged token is answered %+v", a)
	}
	r.comeBack(secrets)
	// An answer that is refused later is not repeated.
	q := question{"reader", "/api/v1/namespaces/default/configmaps/settings-03", "application/json"}
	if a := r.ask(r.over, q); a.code != http.StatusOK {
		r.Fatalf("the answer is %+v", a)
	}
	r.kubectl("delete", "clusterrolebinding", "reader")
	r.eventually("the right is gone", func() error {
		if a := r.ask(r.over, q); a.code != http.StatusForbidden {
			return fmt.Errorf("the answer is %+v", a)
		}
		return nil
	})
	known := question{"node", "/version", "application/json"}
	r.ask(r.over, known)
	r.cutOff(known)
	if a := r.ask(r.over, q); a.code != http.StatusServiceUnavailable {
		r.Errorf("what is forbidden is answered from the cache: %+v", a)
	}
	r.comeBack(known)
	r.kubectl("create", "clusterrolebinding", "reader", "--clusterrole=view", "--serviceaccount=default:reader")
	r.eventually("the right is back", func() error {
		if a := r.ask(r.over, q); a.code != http.StatusOK {
			return fmt.Errorf("the answer is %+v", a)
		}
		return nil
	})
}

// events is an open watch in JSON.
type events struct {
	*rig

	body  io.Closer
	lines *bufio.Scanner
	names []string // of the objects, with the type of the event
}

// openWatch opens a watch of the ServiceAccount reader over the hub.
func (r *rig) openWatch(path string) *events { return r.openWatchAs("reader", path) }

// openWatchAs opens a watch of an identity over the hub.
func (r *rig) openWatchAs(identity, path string) *events {
	r.Helper()
	ctx, cancel := context.WithCancel(r.Context())
	r.Cleanup(cancel)
	response, err := r.open(ctx, r.over, question{identity, path, "application/json"})
	if err != nil {
		r.Fatal(err)
	}
	if response.StatusCode != http.StatusOK {
		r.Fatalf("the watch is answered %s", response.Status)
	}
	r.Cleanup(func() { _ = response.Body.Close() })
	e := &events{rig: r, body: response.Body, lines: bufio.NewScanner(response.Body)}
	e.lines.Buffer(nil, 1<<20)
	return e
}

// until reads events until one is that of an object.
func (e *events) until(last string) {
	e.Helper()
	timer := time.AfterFunc(patience, func() {
		e.Errorf("no event %s; so far %v", last, e.names)
		_ = e.body.Close() // ends Scan
	})
	defer timer.Stop()
	for !slices.Contains(e.names, last) {
		if e.Failed() || !e.lines.Scan() {
			e.Fatalf("the watch ends with %v, after %v", e.lines.Err(), e.names)
		}
		var event struct {
			Type   string                       `json:"type"`
			Object metav1.PartialObjectMetadata `json:"object"`
		}
		if err := json.Unmarshal(e.lines.Bytes(), &event); err != nil {
			e.Fatalf("an event is %s: %v", e.lines.Bytes(), err)
		}
		if event.Type == "BOOKMARK" && event.Object.Annotations[metav1.InitialEventsAnnotationKey] == "" {
			continue
		}
		e.names = append(e.names, event.Type+" "+event.Object.Name)
	}
}

// testWatch: what happens while the cloud is away is in the watch afterwards, once and in its order.
func (r *rig) testWatch() {
	const path = "/api/v1/namespaces/default/configmaps"
	q := question{"reader", path, "application/json"}
	e := r.openWatch(path + "?watch=1&allowWatchBookmarks=true&resourceVersion=" + version(r.T, r.ask(r.over, q).body))
	r.createConfigMap("event-1")
	e.until("ADDED event-1")
	r.cutOff(q)
	if a := r.ask(r.over, q); !strings.Contains(a.body, `"name":"event-1"`) {
		r.Error("the event is not in the list offline")
	}
	offline := r.openWatch(path + "?watch=1&resourceVersion=" + version(r.T, r.ask(r.over, q).body))
	for i := 2; i < 20; i++ {
		r.createConfigMap(fmt.Sprint("event-", i))
	}
	r.kubectl("delete", "configmap", "event-1")
	r.comeBack(q)
	r.createConfigMap("event-20")
	want := []string{}
	for i := 2; i < 20; i++ {
		want = append(want, fmt.Sprint("ADDED event-", i))
	}
	want = append(want, "DELETED event-1", "ADDED event-20")
	e.until("ADDED event-20")
	if !slices.Equal(e.names, append([]string{"ADDED event-1"}, want...)) {
		r.Errorf("the watch has %v", e.names)
	}
	offline.until("ADDED event-20")
	if !slices.Equal(offline.names, want) {
		r.Errorf("the watch that was begun offline has %v", offline.names)
	}
}

func version(t *testing.T, body string) string {
	t.Helper()
	var list metav1.PartialObjectMetadataList
	if err := json.Unmarshal([]byte(body), &list); err != nil || list.ResourceVersion == "" {
		t.Fatalf("%s is no list: %v", short(body), err)
	}
	return list.ResourceVersion
}

// testStreamedList: a list that begins a watch is kept, and given again offline.
func (r *rig) testStreamedList() {
	const path = "/api/v1/namespaces/default/configmaps?labelSelector=app%3Dweb%2Capp%21%3Dx"
	const streamed = path + "&watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
	q := question{"reader", "/api/v1/namespaces/default/configmaps", "application/json"}
	r.ask(r.over, q)
	first := r.openWatch(streamed)
	first.until("BOOKMARK ")
	r.createConfigMap("streamed-1")
	first.until("ADDED streamed-1")
	direct := r.ask(r.direct, question{"reader", path, "application/json"})
	r.cutOff(q)
	if a := r.ask(r.over, question{"reader", path, "application/json"}); items(a.body) != items(direct.body) {
		r.Errorf("offline the list is %s, want %s", short(a.body), short(direct.body))
	}
	again := r.openWatch(streamed)
	again.until("BOOKMARK ")
	slices.Sort(first.names)
	slices.Sort(again.names)
	if !slices.Equal(first.names, again.names) {
		r.Errorf("offline the list has %v, want %v", again.names, first.names)
	}
	r.comeBack(q)
	r.createConfigMap("streamed-2")
	first.until("ADDED streamed-2")
	again.until("ADDED streamed-2")
}

const podsOfNode = "/api/v1/pods?fieldSelector=spec.nodeName%3D" + nodeName

// status fails the test if atoll-hub status does not print these texts, and a metric.
func (r *rig) status(want ...string) {
	r.Helper()
	out, err := exec.CommandContext(r.Context(), r.program, "--config="+filepath.Join(r.dir, "hub.yaml"), "status").CombinedOutput()
	for _, text := range want {
		if err != nil || !strings.Contains(string(out), text) {
			r.Errorf("atoll-hub status prints no %q: %v\n%s", text, err, out)
		}
	}
	response, err := http.Get("http://" + r.observe + "/metrics")
	if err != nil {
		r.Fatal(err)
	}
	defer response.Body.Close()
	if text, err := io.ReadAll(response.Body); err != nil || !strings.Contains(string(text), `atoll_hub_requests_total{from="cache",kind="list"}`) {
		r.Errorf("the metrics are %s, %v", short(string(text)), err)
	}
}

// testGate: the node gets a pod once the policies that it requires are bound, and keeps it.
func (r *rig) testGate() {
	const path = podsOfNode
	q := question{"node", path, "application/json"}
	has := func(when string, want bool) {
		r.Helper()
		for _, accept := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
			if a := r.ask(r.over, question{"node", path, accept}); strings.Contains(a.body, "gated") != want || a.code != http.StatusOK {
				r.Errorf("%s the node has the pod: %t, want %t, in %s: %d", when, !want, want, accept, a.code)
			}
		}
		code := http.StatusNotFound
		if want {
			code = http.StatusOK
		}
		if a := r.ask(r.over, question{"node", "/api/v1/namespaces/default/pods/gated", "application/json"}); a.code != code {
			r.Errorf("%s the pod is answered %d", when, a.code)
		}
	}
	watch := r.openWatchAs("node", path+"&watch=1&resourceVersion="+version(r.T, r.ask(r.over, q).body))
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "gated", Labels: map[string]string{gm.RequiredPropagationPolicyLabel: "spread"}},
		Spec:       corev1.PodSpec{NodeName: nodeName, Containers: []corev1.Container{{Name: "c", Image: "nginx"}}, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}},
	}
	if _, err := r.admin.CoreV1().Pods(namespace).Create(r.Context(), pod, metav1.CreateOptions{}); err != nil {
		r.Fatal(err)
	}
	has("not bound,", false)
	r.eventually("there is an event on the pod", func() error {
		list, err := r.admin.CoreV1().Events(namespace).List(r.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=gated,reason=" + gate.ReasonHeld})
		if err == nil && len(list.Items) != 1 {
			err = fmt.Errorf("there are %d", len(list.Items))
		}
		return err
	})
	r.status("held: pod default/gated", `the pod requires the PropagationPolicy "spread", which is not bound`, "cloud Online", podsOfNode)
	r.kubectl("label", "pod", "gated", gm.BindingPropagationPolicyLabel+"=spread")
	watch.until("ADDED gated")
	has("bound,", true)
	r.kubectl("label", "pod", "gated", "--overwrite", gm.BindingPropagationPolicyLabel+"=another")
	has("bound to another policy afterwards,", true)
	r.kubectl("delete", "pod", "gated", "--force", "--grace-period=0")
	watch.until("DELETED gated")
	// The change of the label is not there. The deletion may be one event or two.
	if got := strings.Join(watch.names, ", "); got != "ADDED gated, DELETED gated" && got != "ADDED gated, MODIFIED gated, DELETED gated" {
		r.Errorf("the node's watch has %s", got)
	}
}

// testKill: what was answered is answered after a restart of the hub too, with events that came
// last, and to tokens that the cloud has accepted.
func (r *rig) testKill() {
	const path = "/api/v1/namespaces/default/configmaps"
	q := question{"reader", path, "application/json"}
	e := r.openWatch(path + "?watch=1&resourceVersion=" + version(r.T, r.ask(r.over, q).body))
	r.createConfigMap("late")
	e.until("ADDED late")
	node := question{"node", podsOfNode, "application/vnd.kubernetes.protobuf"}
	r.ask(r.over, node)
	r.cutOff(q)
	r.status("cloud Offline", "because sending a request to "+r.link.Address())
	var was answer
	r.eventually("the event is kept", func() error {
		if was = r.ask(r.over, q); !strings.Contains(was.body, `"name":"late"`) {
			return fmt.Errorf("the list is %s", short(was.body))
		}
		return nil
	})
	r.killHub()
	r.startHub()
	r.eventually("the hub answers as before", func() error {
		if is := r.ask(r.over, q); is.body != was.body || is.code != http.StatusOK || is.asOf != was.asOf {
			return fmt.Errorf("it answers %d %s %s", is.code, is.asOf, short(is.body))
		}
		return nil
	})
	if a := r.ask(r.over, node); a.code != http.StatusOK || !strings.Contains(a.body, "pod-2") {
		r.Errorf("the node's pods are %+v", a)
	}
	r.comeBack(q)
}

// testFiles: all that the hub writes is for its user only.
func (r *rig) testFiles() {
	err := filepath.WalkDir(filepath.Join(r.dir, "state"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			r.Errorf("%s has the mode %s", path, info.Mode())
		}
		return err
	})
	if err != nil {
		r.Error(err)
	}
}

// testHangingEtcd: the API server answers, but nothing that it has to read. Without anonymous requests, as here, it tells
// only who has a certificate that it is not ready.
func (r *rig) testHangingEtcd() {
	q := question{"node", "/api/v1/nodes/" + nodeName, representations[0]}
	if a := r.ask(r.over, q); a.code != http.StatusOK || a.asOf != "" {
		r.Fatalf("the Node is answered %+v", a)
	}
	if err := r.Pause(r.Context(), devcluster.Etcd); err != nil {
		r.Fatal(err)
	}
	r.eventually("the hub answers from its cache", func() error {
		if a := r.ask(r.over, q); a.code != http.StatusOK || a.asOf == "" {
			return fmt.Errorf("the answer is %+v", a)
		}
		return nil
	})
	if err := r.Resume(r.Context(), devcluster.Etcd); err != nil {
		r.Fatal(err)
	}
	r.comeBack(q)
}
