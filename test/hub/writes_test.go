package hub

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/atoll-k8s/atoll/internal/hub/proxy"
)

const (
	leasesPath = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
	eventsPath = "/api/v1/namespaces/default/events"
	podsPath   = "/api/v1/namespaces/default/pods"
	nodePath   = "/api/v1/nodes/" + nodeName
	jsonType   = "application/json"
	strategic  = string(types.StrategicMergePatchType)
)

// write sends a write over the hub, and returns the answer, and when the hub kept it; "" if it did not.
func (r *rig) write(identity, method, path, contentType string, body any) (a answer, kept string) {
	r.Helper()
	raw, is := body.([]byte)
	if !is {
		var err error
		if raw, err = json.Marshal(body); err != nil {
			r.Fatal(err)
		}
	}
	request, err := http.NewRequestWithContext(r.Context(), method, "https://"+r.address+path, bytes.NewReader(raw))
	if err != nil {
		r.Fatal(err)
	}
	request.Header.Set("Content-Type", contentType)
	request.Header.Set("Accept", jsonType)
	if token := r.tokens[identity]; token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := r.over[identity].Do(request)
	if err != nil {
		return answer{err: err}, ""
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return answer{code: response.StatusCode, body: string(text), err: err}, response.Header.Get(proxy.Kept)
}

// keeps fails the test if a write of the node is not kept, or not answered with this text.
func (r *rig) keeps(code int, method, path, contentType string, body any, want string) {
	r.Helper()
	if a, kept := r.write("node", method, path, contentType, body); a.err != nil || a.code != code || kept == "" || !strings.Contains(a.body, want) {
		r.Errorf("%s %s is answered %d %s %v, kept %q", method, path, a.code, short(a.body), a.err, kept)
	}
}

// object reads an object over the hub.
func object[T any](r *rig, path string) *T {
	r.Helper()
	into := new(T)
	a := r.ask(r.over, question{"node", path, jsonType})
	if err := json.Unmarshal([]byte(a.body), into); err != nil || a.code != http.StatusOK {
		r.Fatalf("%s is answered %+v, %v", path, a, err)
	}
	return into
}

// difference is the patch that a kubelet makes.
func (r *rig) difference(from, to any) []byte {
	r.Helper()
	before, errBefore := json.Marshal(from)
	after, errAfter := json.Marshal(to)
	patch, err := strategicpatch.CreateTwoWayMergePatch(before, after, to)
	if errBefore != nil || errAfter != nil || err != nil {
		r.Fatal(errBefore, errAfter, err)
	}
	return patch
}

// ready is a node with a condition as a kubelet writes it.
func ready(node *corev1.Node, status corev1.ConditionStatus, reason string) *corev1.Node {
	node = node.DeepCopy()
	now := metav1.NewTime(time.Now().Add(time.Second)) // another second than that of the heartbeat before
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status, Reason: reason, LastHeartbeatTime: now, LastTransitionTime: now}}
	return node
}

// phase is the patch of a kubelet for a pod that has a phase.
func (r *rig) phase(pod *corev1.Pod, phase corev1.PodPhase) []byte {
	r.Helper()
	want := corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: pod.UID}, Status: *pod.Status.DeepCopy()}
	want.Status.Phase = phase
	return r.difference(corev1.Pod{Status: pod.Status}, want)
}

func lease(at time.Time, version string) *coordinationv1.Lease {
	holder, seconds, renewed := nodeName, int32(40), metav1.NewMicroTime(at)
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName, Namespace: corev1.NamespaceNodeLease, ResourceVersion: version},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &renewed},
	}
}

func event(name string, count int32) *corev1.Event {
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: name, Namespace: namespace},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: "pod-0"},
		Reason:         "BackOff", Message: "it fails", Type: corev1.EventTypeWarning, Count: count,
		FirstTimestamp: metav1.Now(), LastTimestamp: metav1.Now(), Source: corev1.EventSource{Component: "kubelet", Host: nodeName},
	}
}

// statusOf returns what atoll-hub status prints.
func (r *rig) statusOf() string {
	out, err := exec.CommandContext(r.Context(), r.program, "--config="+filepath.Join(r.dir, "hub.yaml"), "status").CombinedOutput()
	if err != nil {
		return err.Error()
	}
	return string(out)
}

// testKeptWrites: what the node writes of itself while the cloud is away is in the cloud afterwards, also
// if the hub was killed; what conflicts is dropped and holds nothing up; all else is refused.
func (r *rig) testKeptWrites() {
	q := question{"node", podsOfNode, jsonType}
	r.ask(r.over, q)
	node := object[corev1.Node](r, nodePath)
	if a, kept := r.write("node", http.MethodPatch, nodePath+"/status", strategic, r.difference(node, ready(node, corev1.ConditionTrue, "KubeletReady"))); a.code != http.StatusOK || kept != "" {
		r.Fatalf("the status is answered %+v", a)
	}
	node = object[corev1.Node](r, nodePath)
	pods := map[string]*corev1.Pod{}
	for _, name := range []string{"pod-0", "pod-1", "pod-2"} {
		pods[name] = object[corev1.Pod](r, podsPath+"/"+name)
	}
	if a, kept := r.write("node", http.MethodPost, leasesPath, jsonType, lease(time.Now(), "")); a.code != http.StatusCreated || kept != "" {
		r.Fatalf("the Lease is answered %+v", a)
	}
	version := object[coordinationv1.Lease](r, leasesPath+"/"+nodeName).ResourceVersion
	if a, kept := r.write("node", http.MethodPost, eventsPath, jsonType, event("kept-0", 1)); a.code != http.StatusCreated || kept != "" {
		r.Fatalf("the event is answered %+v", a)
	}

	r.cutOff(q)
	r.keeps(http.StatusOK, http.MethodPut, leasesPath+"/"+nodeName, jsonType, lease(time.Now(), version), `"resourceVersion":"`+version+`"`)
	r.keeps(http.StatusOK, http.MethodPatch, nodePath+"/status", strategic, r.difference(node, ready(node, corev1.ConditionFalse, "KubeletNotReady")), "KubeletNotReady")
	r.keeps(http.StatusOK, http.MethodPatch, nodePath+"/status", strategic, r.difference(node, ready(node, corev1.ConditionTrue, "KubeletReady")), "KubeletReady")
	for _, pod := range pods {
		r.keeps(http.StatusOK, http.MethodPatch, podsPath+"/"+pod.Name+"/status", strategic, r.phase(pod, corev1.PodRunning), `"phase":"Running"`)
	}
	r.keeps(http.StatusOK, http.MethodPatch, eventsPath+"/kept-0", strategic, []byte(`{"count":2}`), `"count":2`)
	r.keeps(http.StatusCreated, http.MethodPost, eventsPath, jsonType, event("kept-1", 1), `"kept-1"`)
	r.keeps(http.StatusCreated, http.MethodPost, eventsPath, jsonType, event("kept-2", 1), `"kept-2"`)
	for _, refused := range []struct {
		identity, method, path, contentType string
		body                                any
	}{
		{"node", http.MethodPatch, nodePath, strategic, []byte(`{"spec":{"unschedulable":true}}`)},
		{"node", http.MethodDelete, podsPath + "/pod-0", jsonType, []byte(`{}`)},
		{"node", http.MethodPatch, podsPath + "/nobody/status", strategic, []byte(`{"status":{}}`)},
		{"node", http.MethodPost, "/api/v1/namespaces/default/configmaps", jsonType, []byte(`{"metadata":{"name":"x"}}`)},
		{"node", http.MethodPatch, podsPath + "/pod-0/status?dryRun=All", strategic, []byte(`{"status":{}}`)},
		{"reader", http.MethodPost, eventsPath, jsonType, event("kept-3", 1)},
	} {
		if a, kept := r.write(refused.identity, refused.method, refused.path, refused.contentType, refused.body); a.code != http.StatusServiceUnavailable || kept != "" {
			r.Errorf("%s %s of %s is answered %d %s", refused.method, refused.path, refused.identity, a.code, short(a.body))
		}
	}
	r.killHub()
	r.startHub()
	if status := r.statusOf(); !strings.Contains(status, "writes: 7 wait for the cloud, the first for") {
		r.Errorf("atoll-hub status prints\n%s", status)
	}
	// Meanwhile one pod is gone, and one is another.
	r.kubectl("delete", "pod", "pod-1", "pod-2", "--force", "--grace-period=0")
	again := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod-2"}, Spec: pods["pod-2"].Spec}
	again.Spec.Volumes, again.Spec.Containers[0].VolumeMounts = nil, nil
	if _, err := r.admin.CoreV1().Pods(namespace).Create(r.Context(), again, metav1.CreateOptions{}); err != nil {
		r.Fatal(err)
	}
	// The kubelet goes on. Without that, the hub would send no status after its restart.
	last := time.Now().Truncate(time.Microsecond)
	r.eventually("the Lease is kept by the hub that was started again", func() error {
		if a, kept := r.write("node", http.MethodPut, leasesPath+"/"+nodeName, jsonType, lease(last, version)); a.code != http.StatusOK || kept == "" {
			return fmt.Errorf("it is answered %+v", a)
		}
		return nil
	})
	r.comeBack(q)
	r.eventually("all is sent", func() error {
		// The Lease is sent once or twice.
		if status := r.statusOf(); !strings.Contains(status, "writes: none waits for the cloud\n") || !strings.Contains(status, "replayed since the hub was started\nwrites: 2 refused") {
			return fmt.Errorf("atoll-hub status prints\n%s", status)
		}
		return nil
	})
	condition := object[corev1.Node](r, nodePath).Status.Conditions
	if len(condition) != 1 || condition[0].Status != corev1.ConditionTrue || condition[0].Reason != "KubeletReady" {
		r.Errorf("the Node has the conditions %+v", condition)
	}
	if pod := object[corev1.Pod](r, podsPath+"/pod-0"); pod.Status.Phase != corev1.PodRunning {
		r.Errorf("the pod is %s", pod.Status.Phase)
	}
	if pod := object[corev1.Pod](r, podsPath+"/pod-2"); pod.Status.Phase != corev1.PodPending || pod.UID == pods["pod-2"].UID {
		r.Errorf("the pod that came later is %s", pod.Status.Phase)
	}
	live := object[coordinationv1.Lease](r, leasesPath+"/"+nodeName)
	if !live.Spec.RenewTime.Time.Equal(last) {
		r.Errorf("the Lease was renewed at %s, want %s", live.Spec.RenewTime, last)
	}
	versions := []string{live.ResourceVersion}
	for i, count := range []int32{2, 1, 1} {
		e, err := r.admin.CoreV1().Events(namespace).Get(r.Context(), fmt.Sprint("kept-", i), metav1.GetOptions{})
		if err != nil || e.Count != count || e.Message != "it fails" {
			r.Fatalf("the event is %+v, %v", e, err)
		}
		versions = append(versions, e.ResourceVersion)
	}
	before := 0
	for _, version := range versions {
		n, err := strconv.Atoi(version)
		if err != nil || n <= before {
			r.Errorf("the Lease and the events have the versions %v: they were not sent in their order", versions)
		}
		before = n
	}
	// From now on writes go to the cloud. The Lease has another version there, as the kubelet learns.
	if a, kept := r.write("node", http.MethodPut, leasesPath+"/"+nodeName, jsonType, lease(time.Now(), version)); a.code != http.StatusConflict || kept != "" {
		r.Errorf("the Lease is answered %+v", a)
	}
	if a, kept := r.write("node", http.MethodPut, leasesPath+"/"+nodeName, jsonType, lease(time.Now(), live.ResourceVersion)); a.code != http.StatusOK || kept != "" {
		r.Errorf("the Lease is answered %+v", a)
	}
}
