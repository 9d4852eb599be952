package endpoints

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"pgregory.net/rapid"

	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// podWith is a pod of the node with addresses.
func podWith(uid string, phase corev1.PodPhase, ips ...string) *corev1.Pod {
	p := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: uid, UID: types.UID(uid)}}
	p.Status.Phase = phase
	for i, ip := range ips {
		if i == 0 {
			p.Status.PodIP = ip
		}
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	return p
}

const strategic = "application/strategic-merge-patch+json"

// patchFrom is the patch that a kubelet sends: what differs from the version that it has read, and the UID.
func patchFrom(t failing, was, is *corev1.Pod) []byte {
	t.Helper()
	old, err := json.Marshal(corev1.Pod{Status: was.Status})
	if err != nil {
		t.Fatal(err)
	}
	next, err := json.Marshal(corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: is.UID}, Status: is.Status})
	if err != nil {
		t.Fatal(err)
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(old, next, corev1.Pod{})
	if err != nil {
		t.Fatal(err)
	}
	return patch
}

// kubelet lets the kubelet write the status of a pod, as it does: it reads the pod that the hub has, and
// sends what differs.
func (r *rig) kubelet(has, is *corev1.Pod) {
	r.Helper()
	r.Read(r.format, string(has.UID), encode(r, r.format, has))
	r.Written(http.MethodPatch, strategic, patchFrom(r, has, is))
}

// addressOf returns the addresses of an endpoint of a pod in a slice.
func (r *rig) addressOf(uid string, family discoveryv1.AddressType, was string) string {
	r.Helper()
	slice := sliceOf("web-1", "a//"+uid+"="+was)
	slice.AddressType = family
	var got discoveryv1.EndpointSlice
	r.through(r.session("endpointslices"), slice, &got)
	old := endpointsOf("a//" + uid + "=" + was)
	var gotOld oldEndpoints
	r.through(r.session("endpoints"), old, &gotOld)
	if of := addressesOf(&gotOld); !slices.Equal(of, addresses(&got)) {
		r.Errorf("the slice has %v, and the Endpoints %v", addresses(&got), of)
	}
	return addresses(&got)[0]
}

// seen is a version of the pod web in the cloud.
func (r *rig) seen(format wire.Format, version string, pod *corev1.Pod) {
	r.Helper()
	r.Seen(format, &wire.Meta{UID: "web", ResourceVersion: version}, encode(r, format, pod))
}

// TestEndpointsHaveTheKubeletsLatestPodAddress: until the pod in the cloud has it, or has a later one.
func TestEndpointsHaveTheKubeletsLatestPodAddress(t *testing.T) {
	for _, format := range formats {
		t.Run(format.String(), func(t *testing.T) {
			r := newRig(t, format)
			cloud := podWith("web", corev1.PodRunning, "10.0.0.1", "fd00::1")
			check := func(when, was, want string) {
				t.Helper()
				family := discoveryv1.AddressTypeIPv4
				if was[0] == 'f' {
					family = discoveryv1.AddressTypeIPv6
				}
				if got := r.addressOf("web", family, was); got != want {
					t.Errorf("%s the endpoint %s has the address %s, want %s", when, was, got, want)
				}
			}
			check("at first", "10.0.0.1", "10.0.0.1")
			before := r.Changed()
			r.kubelet(cloud, podWith("web", corev1.PodRunning, "10.0.0.2", "fd00::2"))
			select {
			case <-before:
			default:
				t.Error("nobody is told of a new address")
			}
			check("after a restart of the node", "10.0.0.1", "10.0.0.2")
			check("after a restart of the node", "fd00::1", "fd00::2")
			check("once the cloud has it", "10.0.0.2", "10.0.0.2")
			r.seen(format, "7", cloud) // of the time before
			check("when an old version comes", "10.0.0.1", "10.0.0.2")
			// The node restarts again, and the pod gets the address that the cloud has: the patch has none.
			is := podWith("web", corev1.PodRunning, "10.0.0.1", "fd00::1")
			is.Status.Message = "restarted"
			r.kubelet(cloud, is)
			check("with the first address again", "10.0.0.1", "10.0.0.1")
			r.kubelet(cloud, podWith("web", corev1.PodRunning, "10.0.0.3"))
			check("with one family only", "10.0.0.1", "10.0.0.3")
			check("with one family only", "fd00::1", "fd00::1")
			// The cloud gets it. Later the kubelet writes by another way, and the hub sees the pod only.
			r.seen(format, "9", podWith("web", corev1.PodRunning, "10.0.0.3"))
			check("once the pod in the cloud has it", "10.0.0.1", "10.0.0.3")
			r.seen(format, "10", podWith("web", corev1.PodRunning, "10.0.0.4"))
			check("after a time without the hub", "10.0.0.4", "10.0.0.4")
			// A list that is read meanwhile has the state of before.
			r.seen(format, "9", podWith("web", corev1.PodRunning, "10.0.0.3"))
			check("when a list is late", "10.0.0.4", "10.0.0.4")
			// And one is read early: it has what was written after the kubelet's write.
			r.kubelet(cloud, podWith("web", corev1.PodRunning, "10.0.0.5"))
			r.seen(format, "8", podWith("web", corev1.PodRunning, "10.0.0.5"))
			r.seen(format, "12", podWith("web", corev1.PodRunning, "10.0.0.6"))
			check("when a version of before the write has its address", "10.0.0.4", "10.0.0.5")
			r.seen(format, "11", podWith("web", corev1.PodRunning, "10.0.0.5"))
			check("when a list is early", "10.0.0.5", "10.0.0.6")
			// An address comes back. What the hub had seen before is not that write.
			r.kubelet(cloud, podWith("web", corev1.PodRunning, "10.0.0.7"))
			r.seen(format, "13", podWith("web", corev1.PodRunning, "10.0.0.7"))
			r.kubelet(cloud, podWith("web", corev1.PodRunning, "10.0.0.6"))
			r.seen(format, "13", podWith("web", corev1.PodRunning, "10.0.0.7"))
			r.seen(format, "12", podWith("web", corev1.PodRunning, "10.0.0.6"))
			check("when a list has the address of before", "10.0.0.7", "10.0.0.6")
			// What is no endpoint of that pod stays.
			if got := r.addressOf("other", discoveryv1.AddressTypeIPv4, "10.0.0.1"); got != "10.0.0.1" {
				t.Errorf("another pod has the address %s", got)
			}
			r.Gone("web")
			check("when the pod is gone", "10.0.0.1", "10.0.0.1")
		})
	}
}

// TestEndedPodsLoseTheKubeletsAddress: another pod can get that address.
func TestEndedPodsLoseTheKubeletsAddress(t *testing.T) {
	for name, is := range map[string]*corev1.Pod{
		"succeeded": podWith("web", corev1.PodSucceeded, "10.0.0.2"), "failed": podWith("web", corev1.PodFailed, "10.0.0.2"), "no address": podWith("web", corev1.PodPending),
	} {
		r := newRig(t, wire.JSON)
		cloud := podWith("web", corev1.PodRunning, "10.0.0.1")
		r.kubelet(cloud, podWith("web", corev1.PodRunning, "10.0.0.2"))
		r.kubelet(cloud, is)
		if got := r.addressOf("web", discoveryv1.AddressTypeIPv4, "10.0.0.1"); got != "10.0.0.1" {
			t.Errorf("%s: the endpoint has the address %s", name, got)
		}
	}
}

// TestAddressesAreReadFromUpdatesOfTheWholeStatus: in each format.
func TestAddressesAreReadFromUpdatesOfTheWholeStatus(t *testing.T) {
	for _, format := range formats {
		r := newRig(t, format)
		r.Written(http.MethodPut, format.ContentType(), encode(t, format, podWith("web", corev1.PodRunning, "10.0.0.2")))
		if got := r.addressOf("web", discoveryv1.AddressTypeIPv4, "10.0.0.1"); got != "10.0.0.2" {
			t.Errorf("%s: the endpoint has the address %s", format, got)
		}
	}
}

// TestUnreadablePodWritesAreIgnored: they change no address.
func TestUnreadablePodWritesAreIgnored(t *testing.T) {
	for _, body := range []string{
		"", "{", "null", "[]", `{"metadata":{"uid":1}}`, `{"metadata":{"uid":"web"}}`, `{"metadata":{"uid":"web"},"status":{"podIP":"x"}}`,
		`{"status":{"podIP":"10.0.0.2"}}`, `{"metadata":{"uid":"web"},"status":{"podIPs":[1]}}`, `{"metadata":{"uid":"web"},"status":{"podIPs":"10.0.0.2"}}`,
		`{"metadata":{"uid":"web"},"status":{"podIPs":[{"ip":"300.0.0.1"}]}}`,
	} {
		for _, method := range []string{http.MethodPatch, http.MethodPut} {
			for _, contentType := range []string{strategic, "application/merge-patch+json", "application/json", "application/vnd.kubernetes.protobuf", "application/cbor", "x", ""} {
				r := newRig(t, wire.JSON)
				r.Written(method, contentType, []byte(body))
				if got := r.addressOf("web", discoveryv1.AddressTypeIPv4, "10.0.0.1"); got != "10.0.0.1" {
					t.Errorf("%s %s %q: the endpoint has the address %s", method, contentType, body, got)
				}
			}
		}
	}
}

// TestOtherEndpointsAreNotRewritten: endpoints of other nodes, of other address families, of other kinds than
// pods, and those that are no IP address.
func TestOtherEndpointsAreNotRewritten(t *testing.T) {
	r := newRig(t, wire.JSON)
	r.kubelet(podWith("web", corev1.PodRunning, "10.0.0.1"), podWith("web", corev1.PodRunning, "10.0.0.2"))
	for _, text := range []string{"b//web=10.0.0.1", "a//web=fd00::1", "a//web=web.example.com", "a=10.0.0.1"} {
		was := sliceOf("web-1", text)
		var got discoveryv1.EndpointSlice
		r.through(r.session("endpointslices"), was, &got)
		if !slices.Equal(addresses(&got), addresses(was)) {
			t.Errorf("%s has the address %v", text, addresses(&got))
		}
	}
	service := sliceOf("web-1", "a//web=10.0.0.1")
	service.Endpoints[0].TargetRef.Kind = "VirtualMachine"
	var got discoveryv1.EndpointSlice
	if r.through(r.session("endpointslices"), service, &got); addresses(&got)[0] != "10.0.0.1" {
		t.Errorf("what is no pod has the address %v", addresses(&got))
	}
}

// TestAddressesAreReadFromEveryKubeletPatch: for any addresses before and after the patch.
func TestAddressesAreReadFromEveryKubeletPatch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ip := rapid.SampledFrom([]string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "fd00::1", "fd00::2"})
		ips := rapid.SliceOfNDistinct(ip, 0, 3, rapid.ID)
		r := newRig(t, wire.JSON)
		for range rapid.IntRange(1, 4).Draw(t, "writes") {
			has, want := ips.Draw(t, "has"), ips.Draw(t, "is")
			is := podWith("web", corev1.PodRunning, want...)
			is.Status.Message = rapid.SampledFrom([]string{"", "other"}).Draw(t, "message")
			r.kubelet(podWith("web", corev1.PodRunning, has...), is)
			if got := r.pods.entries["web"].Addresses; !slices.Equal(got, want) {
				t.Fatalf("from %v to %v the addresses are %v", has, want, got)
			}
		}
	})
}

// TestPodAddressesSurviveARestart: their number is bounded.
func TestPodAddressesSurviveARestart(t *testing.T) {
	p, err := newPods(nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range maxPods + 5 {
		uid := fmt.Sprint("uid-", i)
		p.reads(uid, nil)
		if _, err := p.written(http.MethodPatch, strategic, fmt.Appendf(nil, `{"metadata":{"uid":%q},"status":{"podIP":"10.0.0.1"}}`, uid)); err != nil {
			t.Fatal(err)
		}
	}
	if _, is := p.entries["uid-4"]; len(p.entries) != maxPods || len(p.read) != maxPods || is {
		t.Errorf("%d pods are remembered, the oldest: %t", len(p.entries), is)
	}
	text := p.encode()
	again, err := newPods(text)
	if err != nil || !maps.EqualFunc(again.entries, p.entries, func(a, b entry) bool { return slices.Equal(a.Addresses, b.Addresses) }) || again.order != p.order || len(text) > MaxKept {
		t.Errorf("%d of %d pods are kept in %d bytes: %v", len(again.entries), len(p.entries), len(text), err)
	}
	for i := range text {
		if damaged, err := newPods(text[:i]); err == nil || len(damaged.entries) > 0 || damaged.read == nil {
			t.Fatalf("a file that is cut at %d is read: %v", i, err)
		}
		if i > 300 {
			break
		}
	}
	for _, damaged := range []string{`{"pods":{"a":{"addresses":["x"]},"b":{}}}`, "null", "{}"} {
		if p, err := newPods([]byte(damaged)); err != nil || len(p.entries) > 0 {
			t.Errorf("%s is read as %v, %v", damaged, p.entries, err)
		}
	}
}
