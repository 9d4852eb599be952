package serviceproxy

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestNames: a Service has its cluster address, a headless one its ready endpoints, and a host of
// it its own.
func TestNames(t *testing.T) {
	service := func(name, address string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name}, Spec: corev1.ServiceSpec{ClusterIP: address}}
	}
	slice := func(of string, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "a", Labels: map[string]string{discoveryv1.LabelServiceName: of}},
			AddressType: discoveryv1.AddressTypeIPv4, Endpoints: endpoints,
		}
	}
	at := func(host, address string, ready bool) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{Hostname: &host, Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}
	}
	names := Names(
		[]*corev1.Service{service("web", "10.96.0.9"), service("db", corev1.ClusterIPNone), service("six", "fd00::1"), service("elsewhere", "")},
		[]*discoveryv1.EndpointSlice{
			slice("web", at("", "10.160.101.9", true)), slice("nobody", at("", "10.160.101.9", true)),
			slice("db", at("db-1", "10.160.101.3", true), at("db-0", "10.160.101.2", true), at("db-2", "10.160.101.4", false), at("", "no address", true)),
		})
	ask := func(name string, kind dnsmessage.Type) string {
		q := dnsmessage.Message{Header: dnsmessage.Header{ID: 7, RecursionDesired: true}, Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: kind, Class: dnsmessage.ClassINET}}}
		packed, err := q.Pack()
		if err != nil {
			t.Fatal(err)
		}
		var a dnsmessage.Message
		if err := a.Unpack(Answer(packed, names)); err != nil {
			t.Fatalf("the answer to %s: %v", name, err)
		}
		if !a.Response || a.ID != 7 || len(a.Questions) != 1 {
			t.Errorf("the answer to %s is %+v", name, a.Header)
		}
		out := a.RCode.String()
		for _, r := range a.Answers {
			if body, ok := r.Body.(*dnsmessage.AResource); ok {
				out += fmt.Sprint(" ", body.A)
			}
		}
		return out
	}
	for _, tc := range []struct {
		name string
		kind dnsmessage.Type
		want string
	}{
		{"web.a.svc.cluster.local.", dnsmessage.TypeA, "RCodeSuccess [10 96 0 9]"},
		{"Web.A.svc.cluster.local.", dnsmessage.TypeA, "RCodeSuccess [10 96 0 9]"},
		{"web.a.svc.cluster.local.", dnsmessage.TypeAAAA, "RCodeSuccess"},
		{"db.a.svc.cluster.local.", dnsmessage.TypeA, "RCodeSuccess [10 160 101 2] [10 160 101 3]"},
		{"db-1.db.a.svc.cluster.local.", dnsmessage.TypeA, "RCodeSuccess [10 160 101 3]"},
		{"db-2.db.a.svc.cluster.local.", dnsmessage.TypeA, "RCodeNameError"},
		{"six.a.svc.cluster.local.", dnsmessage.TypeA, "RCodeSuccess"},
		{"nobody.a.svc.cluster.local.", dnsmessage.TypeA, "RCodeNameError"},
		{"web.", dnsmessage.TypeA, "RCodeNameError"},
	} {
		if got := ask(tc.name, tc.kind); got != tc.want {
			t.Errorf("%s %s is answered %s, want %s", tc.name, tc.kind, got, tc.want)
		}
	}
}

// TestAnswersFitIntoAPacket: also for many endpoints; and what is no question has no answer.
func TestAnswersFitIntoAPacket(t *testing.T) {
	long := strings.Repeat("x", 63)
	var endpoints []discoveryv1.Endpoint
	for i := range 200 {
		endpoints = append(endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprint("10.160.101.", i)}})
	}
	names := Names([]*corev1.Service{{ObjectMeta: metav1.ObjectMeta{Namespace: long, Name: long}, Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone}}},
		[]*discoveryv1.EndpointSlice{{
			ObjectMeta:  metav1.ObjectMeta{Namespace: long, Labels: map[string]string{discoveryv1.LabelServiceName: long}},
			AddressType: discoveryv1.AddressTypeIPv4, Endpoints: endpoints,
		}})
	q := dnsmessage.Message{Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(long + "." + long + ".svc.cluster.local."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}}}
	packed, err := q.Pack()
	if err != nil {
		t.Fatal(err)
	}
	answer := Answer(packed, names)
	if len(answer) == 0 || len(answer) > 512 {
		t.Errorf("the answer has %d bytes", len(answer))
	}
	for _, message := range [][]byte{nil, {1, 2, 3}, packed[:len(packed)-3], answer} {
		if got := Answer(message, names); got != nil {
			t.Errorf("%v is answered %v", message, got)
		}
	}
}
