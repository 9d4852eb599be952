package writer

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/atoll-k8s/atoll/internal/coordinator/records"
	"github.com/atoll-k8s/atoll/internal/governance"
)

// memory is a storage that fails as it is told.
type memory struct {
	mu      sync.Mutex
	records map[governance.Ref]records.Record
	loads   int
	// err is the error of the next change, and lost that it is made all the same.
	err  error
	lost bool
}

func (m *memory) Load(context.Context) (map[governance.Ref]records.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.loads++
	return maps.Clone(m.records), nil
}

func (m *memory) change(do func()) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	err := m.err
	if m.err = nil; err == nil || m.lost {
		do()
	}
	return err
}

func (m *memory) Put(_ context.Context, ref governance.Ref, record records.Record, _ []byte) error {
	return m.change(func() { m.records[ref] = record })
}

func (m *memory) Remove(_ context.Context, refs []governance.Ref) error {
	return m.change(func() {
		for _, ref := range refs {
			delete(m.records, ref)
		}
	})
}

func (m *memory) Check(context.Context) error { return m.change(func() {}) }

// rig is a writer for the pool of the nodes a and b.
type rig struct {
	*testing.T
	*Writer

	memory *memory
}

func newRig(t *testing.T) *rig {
	m := &memory{records: map[governance.Ref]records.Record{}}
	nodes := func() ([]string, error) { return []string{"a", "b"}, nil }
	nothing := func() ([]string, error) { return nil, nil }
	r := &rig{t, New(m, "", nodes, nothing, records.Limits{NodeObjects: 10, NodeBytes: 1 << 19, PoolObjects: 10, PoolBytes: 1 << 19, Bytes: 1 << 20}, logr.Discard()), m}
	if err := r.look(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r
}

// put uploads an object under a name, and returns its result.
func (r *rig) put(user, name, body string) (code int, answer string) {
	r.Helper()
	contentType, form, err := governance.EncodeUploads([]governance.Upload{{Ref: governance.ParseRef(name), Body: []byte(body)}})
	if err != nil {
		r.Fatal(err)
	}
	code, answer = r.sendAs(contentType, user, "POST", governance.UploadPath, string(form))
	if code != http.StatusOK {
		return code, answer
	}
	var results governance.UploadAnswer
	if err := json.Unmarshal([]byte(answer), &results); err != nil || len(results.Results) != 1 {
		r.Fatalf("%v: %s", err, answer)
	}
	return results.Results[0].Code, results.Results[0].Reason
}

// send sends a request with the certificate of a user.
func (r *rig) send(user, method, path string, body any) (code int, answer string) {
	r.Helper()
	return r.sendAs("application/json", user, method, path, body)
}

func (r *rig) sendAs(contentType, user, method, path string, body any) (code int, answer string) {
	r.Helper()
	text, is := body.(string)
	if !is {
		encoded, err := json.Marshal(body)
		if err != nil {
			r.Fatal(err)
		}
		text = string(encoded)
	}
	request := httptest.NewRequestWithContext(r.Context(), method, path, strings.NewReader(text))
	request.Header.Set("Content-Type", contentType)
	cert := &x509.Certificate{Subject: pkix.Name{CommonName: user, Organization: []string{"system:nodes"}}, NotAfter: time.Now().Add(time.Hour)}
	request.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}, VerifiedChains: [][]*x509.Certificate{{cert}}}
	w := httptest.NewRecorder()
	r.Handler().ServeHTTP(w, request)
	return w.Code, w.Body.String()
}

func pod(name, node string, version int) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"default","name":%q,"uid":%[1]q,"resourceVersion":"%d"},"spec":{"nodeName":%q}}`, name, version, node)
}

const webName = "pods/default/web"

var web = governance.Ref{Resource: "pods", Namespace: "default", Name: "web"}

func TestWriterAnswersUploadsBeatsAndInventories(t *testing.T) {
	for name, tc := range map[string]struct {
		user, method, path string
		body               any
		want               int
	}{
		"a pod":                             {"system:node:a", "", webName, pod("web", "a", 1), 200},
		"another node's pod":                {"system:node:b", "", webName, pod("web", "a", 1), 403},
		"a caller that is no node":          {"alice", "", webName, pod("web", "a", 1), 403},
		"a node outside the pool":           {"system:node:c", "", webName, pod("web", "c", 1), 403},
		"another name":                      {"system:node:a", "", webName, pod("db", "a", 1), 422},
		"no JSON":                           {"system:node:a", "", webName, "{", 422},
		"too large":                         {"system:node:a", "", webName, strings.Repeat(" ", governance.MaxObject+1), 422},
		"a long name":                       {"system:node:a", "", strings.Repeat("a", 1<<20), "{}", 422},
		"another resource":                  {"system:node:a", "", "events/default/web", pod("web", "a", 1), 422},
		"no space":                          {"system:node:a", "", webName, strings.Replace(pod("web", "a", 1), `"spec"`, `"status":{"message":"`+strings.Repeat("a", 1<<20-200)+`"},"spec"`, 1), 507},
		"a beat":                            {"system:node:a", "POST", governance.BeatPath, governance.Beat{}, 200},
		"no beat":                           {"system:node:a", "POST", governance.BeatPath, "[", 422},
		"an inventory":                      {"system:node:a", "POST", governance.InventoryPath, governance.Inventory{}, 200},
		"an inventory with an invalid name": {"system:node:a", "POST", governance.InventoryPath, governance.Inventory{Items: []governance.Item{{Version: "1"}}}, 403},
		"a read":                            {"system:node:a", "GET", governance.UploadPath, "", 405},
		"another path":                      {"system:node:a", "POST", "/", "", 404},
		"no upload":                         {"system:node:a", "POST", governance.UploadPath, "{}", 422},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			code, answer := 0, ""
			if object, is := tc.body.(string); is && tc.method == "" {
				code, answer = r.put(tc.user, tc.path, object)
			} else {
				code, answer = r.send(tc.user, tc.method, tc.path, tc.body)
			}
			if code != tc.want {
				t.Errorf("the answer is %d %s, want %d", code, answer, tc.want)
			}
		})
	}
}

// TestWriterTakesPoolObjectsFromTheLeaderOnly: a hub can lead a while after the start of the writer.
func TestWriterTakesPoolObjectsFromTheLeaderOnly(t *testing.T) {
	r := newRig(t)
	began := time.Now()
	number := uint64(0)
	beat := func(node string, hasCloud bool, after time.Duration) (answer governance.BeatAnswer) {
		t.Helper()
		r.now = func() time.Time { return began.Add(after) }
		number++
		_, text := r.send("system:node:"+node, "POST", governance.BeatPath, governance.Beat{Session: node, Number: number, HasCloud: hasCloud})
		if err := json.Unmarshal([]byte(text), &answer); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		return answer
	}
	namespace := governance.Ref{Resource: "namespaces", Name: "default"}
	inventory := governance.Inventory{Items: []governance.Item{{Ref: namespace, UID: "1", Version: "1"}}}
	expect := func(node string, want int) {
		t.Helper()
		body := `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"default","uid":"1","resourceVersion":"1"}}`
		user := "system:node:" + node
		if code, answer := r.send(user, "POST", governance.PoolInventoryPath, inventory); code != want {
			t.Errorf("the inventory of %s is answered with %d %s, want %d", node, code, answer, want)
		}
		if code, answer := r.put(user, namespace.String(), body); code != want {
			t.Errorf("an upload of %s is answered with %d %s, want %d", node, code, answer, want)
		}
	}
	const start = governance.LeadFor + governance.LeadMargin
	if beat("a", true, start-time.Second).Leads {
		t.Error("a hub leads too soon after the start of the writer")
	}
	expect("a", 403)
	if beat("b", true, start+time.Second).Leads || !beat("a", true, start+time.Second).Leads {
		t.Error("it is not the first hub that leads")
	}
	expect("b", 403)
	expect("a", 200)
	if len(r.memory.records) != 1 || r.memory.records[namespace].Node != "a" {
		t.Errorf("the records are %v", r.memory.records)
	}
	if beat("b", true, governance.OutsideAfter-time.Second).Pool != nil || beat("a", true, governance.OutsideAfter-time.Second).Pool != nil {
		t.Error("somebody hears of the pool before each hub had the time to come")
	}
	if beat("b", true, start+2*time.Second).Pool != nil {
		t.Error("a hub that does not lead hears of the pool")
	}
	if beat("a", false, start+2*time.Second).Leads || !beat("b", true, start+2*time.Second).Leads {
		t.Error("a hub without the cloud is not followed by the other one")
	}
	expect("a", 403)
	expect("b", 200)
	if r.memory.records[namespace].Node != "a" {
		t.Error("the same version is stored again for another leader")
	}
	if state := beat("b", true, 2*governance.OutsideAfter).Pool; state == nil || len(state.Outside) != 1 || state.Outside[0] != "a" {
		t.Errorf("the hub that leads hears %+v of the pool", state)
	}
	r.memory.err = errors.New("etcd hangs")
	r.put("system:node:a", webName, pod("web", "a", 1))
	if !beat("b", true, 2*governance.OutsideAfter+time.Second).Leads {
		t.Error("what fails in etcd ends the leadership")
	}
}

// TestExpiredNodeCertificateIsRefused: also on a connection that was opened before it expired.
func TestExpiredNodeCertificateIsRefused(t *testing.T) {
	r := newRig(t)
	r.now = func() time.Time { return time.Now().Add(2 * time.Hour) }
	if code, answer := r.send("system:node:a", "POST", governance.BeatPath, governance.Beat{}); code != 403 || !strings.Contains(answer, "has expired") {
		t.Errorf("the answer is %d %s", code, answer)
	}
}

// TestRecordsAreLoadedAgainAfterAFailedWrite: it is unknown whether the failed write has changed the storage.
func TestRecordsAreLoadedAgainAfterAFailedWrite(t *testing.T) {
	for name, lost := range map[string]bool{"nothing was changed": false, "the answer was lost": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.memory.err, r.memory.lost = errors.New("etcd hangs"), lost
			if code, answer := r.put("system:node:a", webName, pod("web", "a", 2)); code != 503 {
				t.Errorf("the answer is %d %s", code, answer)
			}
			code, _ := r.put("system:node:a", webName, pod("web", "a", 1))
			if want := map[bool]int{false: 200, true: 409}[lost]; code != want || r.memory.loads != 2 {
				t.Errorf("an older upload is answered with %d after %d loads, want %d", code, r.memory.loads, want)
			}
		})
	}
}

// TestRefusedUploadLoadsNoRecordsAgain: so a refusal of one node delays no other node.
func TestRefusedUploadLoadsNoRecordsAgain(t *testing.T) {
	r := newRig(t)
	r.memory.err = &records.Refusal{Reason: records.Full, Message: "etcd was full"}
	if code, _ := r.put("system:node:a", webName, pod("web", "a", 1)); code != 507 || r.memory.loads != 1 {
		t.Errorf("the answer is %d after %d loads", code, r.memory.loads)
	}
	if code, _ := r.put("system:node:a", webName, pod("web", "a", 1)); code != 200 {
		t.Errorf("the answer is %d once there is place", code)
	}
}

func TestAnEmptiedStorageIsFilledAgain(t *testing.T) {
	r := newRig(t)
	inventory := governance.Inventory{Items: []governance.Item{{Ref: web, UID: "web", Version: "1"}}}
	beat := func() string {
		_, answer := r.send("system:node:a", "POST", governance.BeatPath, governance.Beat{Digest: inventory.Digest()})
		return strings.TrimSpace(answer)
	}
	r.send("system:node:a", "POST", governance.InventoryPath, inventory)
	r.put("system:node:a", webName, pod("web", "a", 1))
	if got := beat(); got != `{"isKnown":true}` {
		t.Errorf("the answer is %s", got)
	}
	r.memory.records, r.memory.err = map[governance.Ref]records.Record{}, errNotHeld
	if err := r.look(t.Context()); !errors.Is(err, errNotHeld) {
		t.Errorf("the error is %v", err)
	}
	if got := beat(); got != `{"isKnown":false}` {
		t.Errorf("the answer is %s", got)
	}
	if _, answer := r.send("system:node:a", "POST", governance.InventoryPath, inventory); !strings.Contains(answer, `"name":"web"`) {
		t.Errorf("missing is %s", answer)
	}
}

func TestObjectsAreRemovedOnceTheirNodeLeavesThePool(t *testing.T) {
	r := newRig(t)
	settings := governance.Ref{Resource: "configmaps", Namespace: "default", Name: "settings"}
	named := strings.Replace(pod("web", "a", 1), `"spec":{`, `"spec":{"volumes":[{"name":"v","configMap":{"name":"settings"}}],`, 1)
	r.put("system:node:a", webName, named)
	config := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"namespace":"default","name":"settings","uid":"1","resourceVersion":"1"}}`
	if code, answer := r.put("system:node:a", settings.String(), config); code != 200 {
		t.Fatalf("the answer is %d %s", code, answer)
	}
	r.put("system:node:b", "pods/default/db", pod("db", "b", 1))
	r.nodes = func() ([]string, error) { return nil, errors.New("the file hangs") }
	if err := r.look(t.Context()); err == nil || len(r.memory.records) != 3 {
		t.Errorf("without the nodes, %d objects are left: %v", len(r.memory.records), err)
	}
	r.nodes = func() ([]string, error) { return []string{"b"}, nil }
	if err := r.look(t.Context()); err != nil || len(r.memory.records) != 1 {
		t.Errorf("%d objects are left, want that of the other node: %v", len(r.memory.records), err)
	}
}

// TestStoredSecretsAreRemovedOnceNotRequested: the writer removes them at its next look, also if hubs upload them
// again. If the writer cannot read what is requested, nothing changes.
func TestStoredSecretsAreRemovedOnceNotRequested(t *testing.T) {
	r := newRig(t)
	secret := governance.Ref{Resource: "secrets", Namespace: "default", Name: "tls"}
	r.put("system:node:a", webName, strings.Replace(pod("web", "a", 1), `"spec":{`, `"spec":{"volumes":[{"name":"v","secret":{"secretName":"tls"}}],`, 1))
	upload := func(want int) {
		t.Helper()
		body := `{"apiVersion":"v1","kind":"Secret","metadata":{"namespace":"default","name":"tls","uid":"1","resourceVersion":"1"},"data":{"a":"Yg=="}}`
		if code, answer := r.put("system:node:a", secret.String(), body); code != want {
			t.Errorf("the answer is %d %s, want %d", code, answer, want)
		}
	}
	asks := func(want int, err error, kinds ...string) {
		t.Helper()
		r.uploads = func() ([]string, error) { return kinds, err }
		if lookErr := r.look(t.Context()); !errors.Is(lookErr, err) || len(r.memory.records) != want {
			t.Errorf("%d objects are left, want %d: %v", len(r.memory.records), want, lookErr)
		}
	}
	upload(403)
	asks(1, nil, "Secrets")
	upload(200)
	r.memory.err = errors.New("etcd hangs")
	r.put("system:node:a", webName, pod("web", "a", 2))
	upload(200) // the records were read again meanwhile
	asks(2, errors.New("the file hangs"))
	upload(200)
	asks(1, nil, "Other")
	upload(403)
}

func TestConcurrentUploadsStoreNoOlderVersion(t *testing.T) {
	r := newRig(t)
	var wait sync.WaitGroup
	for version := range 50 {
		wait.Go(func() {
			if code, answer := r.put("system:node:a", webName, pod("web", "a", version+1)); code != 200 && code != 409 && code != 503 {
				t.Errorf("the answer is %d %s", code, answer)
			}
		})
		wait.Go(func() { _ = r.look(context.Background()) })
	}
	wait.Wait()
	r.put("system:node:a", webName, pod("web", "a", 51)) // of the others, those that came beside another were refused
	if code, _ := r.put("system:node:a", webName, pod("web", "a", 50)); code != 409 || r.memory.records[web].Version != 51 {
		t.Errorf("version %d is stored after the answer %d", r.memory.records[web].Version, code)
	}
}

// TestANodeHasOneRequestAtATime: a second one gets 503 before its body is read, and may be sent again.
func TestANodeHasOneRequestAtATime(t *testing.T) {
	r := newRig(t)
	r.busy.Store("a", true)
	if code, answer := r.put("system:node:a", webName, pod("web", "a", 1)); code != 503 {
		t.Errorf("the answer is %d %s", code, answer)
	}
	if code, answer := r.put("system:node:b", webName, pod("web", "b", 1)); code != 200 {
		t.Errorf("another node is answered with %d %s", code, answer)
	}
}

// TestUploadsCountWithTheirSizeInMemory: a small text can be many times as large in the memory of an API server.
func TestUploadsCountWithTheirSizeInMemory(t *testing.T) {
	r := newRig(t)
	large := strings.Replace(pod("web", "a", 1), `"nodeName":`, `"containers":[`+strings.Repeat("{},", 300)+`{}],"nodeName":`, 1)
	if code, answer := r.put("system:node:a", webName, large); code != 200 {
		t.Fatalf("the answer is %d %s", code, answer)
	}
	small := pod("db", "a", 1)
	if code, answer := r.put("system:node:a", governance.Ref{Resource: "pods", Namespace: "default", Name: "db"}.String(), small); code != 200 {
		t.Fatalf("the answer is %d %s", code, answer)
	}
	if got := r.memory.records[governance.Ref{Resource: "pods", Namespace: "default", Name: "db"}]; got.Bytes <= int64(len(small)) {
		t.Errorf("a pod of %d bytes counts as %d", len(small), got.Bytes)
	}
	if got := r.memory.records[web]; got.Bytes < 10*int64(len(large)) {
		t.Errorf("a pod of %d bytes with 301 containers counts as %d", len(large), got.Bytes)
	}
}

// TestOneUploadCanHaveSeveralObjects: a refused object delays no other. Objects for which there is no time have
// no result, so that the hub can beat.
func TestOneUploadCanHaveSeveralObjects(t *testing.T) {
	r := newRig(t)
	upload := func() (answer governance.UploadAnswer) {
		t.Helper()
		var objects []governance.Upload
		for i, node := range []string{"a", "b", "a", "a"} {
			ref := governance.Ref{Resource: "pods", Namespace: "default", Name: fmt.Sprint(i)}
			objects = append(objects, governance.Upload{Ref: ref, Body: []byte(pod(ref.Name, node, 1))})
		}
		contentType, form, err := governance.EncodeUploads(objects)
		if err != nil {
			t.Fatal(err)
		}
		if code, text := r.sendAs(contentType, "system:node:a", "POST", governance.UploadPath, string(form)); code != http.StatusOK || json.Unmarshal([]byte(text), &answer) != nil {
			t.Fatalf("the answer is %d %s", code, text)
		}
		return answer
	}
	now := time.Now()
	r.now = func() time.Time { return now }
	if a := upload(); len(a.Results) != 4 || a.Results[0].Code != 200 || a.Results[1].Code != 403 || a.Results[3].Code != 200 || len(r.memory.records) != 3 {
		t.Errorf("the answer is %+v, and %v is stored", a, r.memory.records)
	}
	if code, text := r.sendAs("multipart/form-data; boundary=x", "system:node:a", "POST", governance.UploadPath, "--x\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n{"); code != http.StatusUnprocessableEntity {
		t.Errorf("a form without its end is answered %d %s", code, text)
	}
	r.now = func() time.Time { now = now.Add(governance.BeatEvery / 8); return now }
	if a := upload(); len(a.Results) == 0 || len(a.Results) == 4 {
		t.Errorf("after two seconds the answer is %+v", a)
	}
}
