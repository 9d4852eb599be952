package e2e

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// The tests of the form Pinned, in which no scheduler calls the extender: only
// differences to the other forms.

// TestPinnedPodsNeedNoExtender: the division is exact, pods keep their scheduler,
// and the extender is not called; it is not even served.
func TestPinnedPodsNeedNoExtender(t *testing.T) {
	f := newFixture(t)
	f.group("lonely-a", 2)
	f.group("lonely-b", 3)
	policy := weights("policy", "lonely-a", 3, "lonely-b", 2)
	policy.Spec.Assignment = gm.AssignmentLate // is read as Early: no scheduler calls the extender
	f.create(policy)
	deleted := f.watchDeletions("app")
	f.create(deployment("app", 50, "policy"), deployment("free", 10, ""))
	f.settled("app", map[string]int{"lonely-a": 30, "lonely-b": 20})
	f.eventually(patience, "pods without a policy are bound", func() error { return f.boundAre("free", 10) })
	f.scheduledBy("app", corev1.DefaultSchedulerName)
	for _, pod := range f.pods("app") {
		if pod.Annotations[gm.SeatAnnotation] == "" || pod.Labels[gm.NodeGroupLabel] == "" {
			t.Errorf("pod %s is not pinned: %v", pod.Name, pod.Annotations)
		}
	}
	if n := deleted(); n != 0 {
		t.Errorf("%d pods were deleted on the way", n)
	}
}

// TestPinnedPodsGoToNewcomers: an autoscaler makes a node for a pod whose group has no
// room. It has the labels of the cloud, which define the group. The pod is bound there
// while atoll-manager is down, and counts in its group when atoll-manager is back.
func TestPinnedPodsGoToNewcomers(t *testing.T) {
	tier.All(t, "waits for a killed leader: 25 s")
	f := newFixture(t)
	f.group("scaled", 1)
	f.group("steady", 1)
	policy := weights("policy", "scaled", 1, "steady", 1)
	policy.Spec.RescheduleAfterSeconds = new(int32)
	f.create(policy)
	f.create(deployment("app", 2, "policy"))
	f.settled("app", map[string]int{"scaled": 1, "steady": 1})
	f.cordon(true, "scaled-0")
	f.scale("app", 4)
	f.eventually(patience, "one waits in its group", func() error {
		if n := f.pinnedAndRefused("app"); n != 1 {
			return fmt.Errorf("%d wait", n)
		}
		return f.boundAre("app", 3)
	})
	evicted := f.watchEvictions("app")
	restart := f.killForNow(atoll.Manager)
	f.nodes(map[string]string{"test-group": "scaled"}, "scaled-new")
	f.eventually(patience, "the pod that waited is on the new node", func() error { return f.boundAre("app", 4) })
	var node corev1.Node
	if err := f.client.Get(f.ctx, types.NamespacedName{Name: "scaled-new"}, &node); err != nil || node.Labels[gm.NodeGroupLabel] != "" {
		t.Errorf("the node is labelled %v (%v)", node.Labels, err)
	}
	restart()
	f.settled("app", map[string]int{"scaled": 2, "steady": 2})
	f.eventually(patience, "the policy is satisfied", func() error { return f.reason("policy", gm.ReasonSatisfied) })
	if n := evicted(); n != 0 {
		t.Errorf("%d pods were evicted", n)
	}
}

// TestPinnedPodsAtTheGateAreNotRecreated: the policy comes after the
// pods, which wait at the gate. They are pinned at the gate, oldest first, and not
// recreated; neither are pods of a Job.
func TestPinnedPodsAtTheGateAreNotRecreated(t *testing.T) {
	f := newFixture(t)
	f.group("place-a", 1)
	f.group("place-b", 1)
	deleted := f.watchDeletions("app")
	f.create(deployment("app", 10, "policy"))
	f.eventually(patience, "all wait at the gate", func() error {
		if n := f.atTheGate("app"); n != 10 {
			return fmt.Errorf("%d wait", n)
		}
		return nil
	})
	f.create(weights("policy", "place-a", 3, "place-b", 2))
	f.settled("app", map[string]int{"place-a": 6, "place-b": 4})
	if n := deleted(); n != 0 {
		t.Errorf("%d pods were recreated", n)
	}
}

// TestPinnedPodsFollowTheirOwnAffinity: a pod whose own node selector and affinity allow one
// group only goes there at once, however many pods the others lack.
func TestPinnedPodsFollowTheirOwnAffinity(t *testing.T) {
	f := newFixture(t)
	f.group("may-a", 1)
	f.group("may-b", 1)
	f.create(weights("policy", "may-a", 1, "may-b", 1))
	deleted := f.watchDeletions("app")
	f.create(deployment("app", 4, "policy", func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.NodeSelector = map[string]string{"test-group": "may-b"}
	}))
	f.settled("app", map[string]int{"may-b": 4})
	if n := deleted(); n != 0 { // as pods on loan, and surplus ones, would be
		t.Errorf("%d pods were recreated", n)
	}
}

// TestPinnedManagerKilledMidBurst is scenario 10 in the form in which pods have their
// group before kube-scheduler sees them. Existing pods are bound while atoll-manager is
// down, each in its group, and so are pods without a policy. Pods that are created
// meanwhile are placed on any node, and moved when atoll-manager is back.
func TestPinnedManagerKilledMidBurst(t *testing.T) {
	f := newFixture(t)
	f.group("goes-a", 2)
	f.group("goes-b", 2)
	f.nodes(nil, "goes-none-0")
	f.create(weights("policy", "goes-a", 3, "goes-b", 2))
	f.eventually(patience, "the policy is in force", func() error { return f.reason("policy", gm.ReasonNotUsed) })
	const before, all = 60, 100
	f.create(deployment("burst", before, "policy"))
	f.eventually(patience, "a part of the pods is created", func() error {
		if n := len(f.pods("burst")); n < before/3 {
			return fmt.Errorf("%d pods", n)
		}
		return nil
	})
	unseen := f.breaks("I5", "pods that no webhook saw go anywhere")
	restart := f.killForNow(atoll.Manager)
	f.create(deployment("free", 3, ""))
	f.scale("burst", all)
	f.eventually(patience, "every pod is bound without us", func() error {
		return errors.Join(f.boundAre("burst", all), f.boundAre("free", 3))
	})
	pinned := 0
	groups := f.groupsOfNodes()
	for _, pod := range f.pods("burst") {
		if group := pod.Labels[gm.NodeGroupLabel]; group != "" {
			pinned++
			if is := groups[pod.Spec.NodeName]; is != group {
				t.Errorf("pod %s is pinned to %s and is in %q", pod.Name, group, is)
			}
		}
	}
	if pinned == 0 || pinned > before {
		t.Errorf("%d of %d pods are pinned: this was no burst", pinned, all)
	}
	t.Logf("%d of %d pods are pinned, without the others they are %v", pinned, all, f.spread("burst"))
	f.eventually(patience, "all run", func() error { return f.allReady("burst", all) })
	watch := f.watchAvailability("burst", all)
	restart()
	f.settled("burst", map[string]int{"goes-a": 60, "goes-b": 40})
	unseen()
	if worst, moved := watch(); worst < all-1 {
		t.Errorf("at the worst moment %d of %d were available, %d were moved", worst, all, moved)
	}
}

// TestForgedAdmissionsHoldSeatsBriefly: any client that reaches the webhook's port can
// send requests for pods that are never created. The seats that these reserve are bounded
// for each workload and are free again within seconds; nothing is written.
func TestForgedAdmissionsHoldSeatsBriefly(t *testing.T) {
	tier.All(t, "compares seats with the seconds that 200 requests took")
	f := newFixture(t)
	f.group("forged-a", 1)
	f.group("forged-b", 1)
	f.create(weights("policy", "forged-a", 1, "forged-b", 1))
	f.create(deployment("app", 2, "policy"))
	f.settled("app", map[string]int{"forged-a": 1, "forged-b": 1})
	sets, err := f.kube.AppsV1().ReplicaSets(f.ns).List(f.ctx, metav1.ListOptions{})
	if err != nil || len(sets.Items) != 1 {
		t.Fatalf("there are %d ReplicaSets (%v)", len(sets.Items), err)
	}
	replicaSet := &sets.Items[0]
	pod := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: f.ns, GenerateName: "app-", Labels: replicaSet.Spec.Template.Labels,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(replicaSet, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))},
		},
		Spec: replicaSet.Spec.Template.Spec,
	}
	before, began := f.metric("atoll_seats_held", `state="reserved"`), time.Now()
	var seated atomic.Int64
	var asking sync.WaitGroup
	for range 20 {
		asking.Go(func() {
			for range 10 {
				if answer := f.review(pod); bytes.Contains(answer.Patch, []byte("forged-")) {
					seated.Add(1)
				}
			}
		})
	}
	asking.Wait()
	// The reservations end after ten seconds, and the seats can be reserved again.
	most := int64(22 * (1 + time.Since(began)/(10*time.Second)))
	if n := f.metric("atoll_seats_held", `state="reserved"`) - before; n > 22 || seated.Load() > most {
		t.Errorf("200 forged requests got %d seats, and %v are held", seated.Load(), n)
	}
	if n := len(f.pods("app")); n != 2 {
		t.Errorf("there are %d pods", n)
	}
	f.eventually(patience, "the seats come back", func() error {
		if n := f.metric("atoll_seats_held", `state="reserved"`) - before; n > 0 {
			return fmt.Errorf("%v are held", n)
		}
		return nil
	})
	f.scale("app", 6)
	f.settled("app", map[string]int{"forged-a": 3, "forged-b": 3})
}

// review sends the pod webhook a request like the API server's.
func (f *fixture) review(pod *corev1.Pod) *admissionv1.AdmissionResponse {
	f.Helper()
	var config admissionregistrationv1.MutatingWebhookConfiguration
	if err := f.client.Get(f.ctx, types.NamespacedName{Name: "atoll-pods"}, &config); err != nil {
		f.Fatal(err)
	}
	ca, err := os.ReadFile(filepath.Join(f.atoll.TLSDir, "ca.crt"))
	if err != nil {
		f.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	raw, err := json.Marshal(pod)
	if err != nil {
		f.Fatal(err)
	}
	body, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID: uuid.NewUUID(), Namespace: f.ns, Operation: admissionv1.Create, Object: runtime.RawExtension{Raw: raw},
			Kind:     metav1.GroupVersionKind{Version: "v1", Kind: "Pod"},
			Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"},
		},
	})
	if err != nil {
		f.Fatal(err)
	}
	request, err := http.NewRequestWithContext(f.ctx, http.MethodPost, *config.Webhooks[0].ClientConfig.URL, bytes.NewReader(body))
	if err != nil {
		f.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		f.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(response.Body).Decode(&review); err != nil || review.Response == nil {
		f.Fatalf("the webhook answers %s: %v", response.Status, err)
	}
	return review.Response
}
