package serviceproxy

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestRules: each port of a Service with a cluster address leads to the ready endpoints of that
// port, each once.
func TestRules(t *testing.T) {
	service := func(name, address string, ports ...corev1.ServicePort) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name}, Spec: corev1.ServiceSpec{ClusterIP: address, Ports: ports}}
	}
	slice := func(service, port string, number int32, kind discoveryv1.AddressType, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "a", Labels: map[string]string{discoveryv1.LabelServiceName: service}},
			AddressType: kind, Ports: []discoveryv1.EndpointPort{{Name: &port, Port: &number}}, Endpoints: endpoints,
		}
	}
	at := func(address string, ready *bool) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: ready}}
	}
	rules := Rules([]*corev1.Service{
		service("web", "10.96.0.9", corev1.ServicePort{Name: "http", Port: 80}, corev1.ServicePort{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP}),
		service("headless", corev1.ClusterIPNone, corev1.ServicePort{Port: 80}),
		service("external", "", corev1.ServicePort{Port: 80}),
		service("six", "fd00::1", corev1.ServicePort{Port: 80}),
		service("nobody", "10.96.0.8", corev1.ServicePort{Port: 80}, corev1.ServicePort{Port: 90, Protocol: corev1.ProtocolSCTP}),
	}, []*discoveryv1.EndpointSlice{
		slice("web", "http", 8080, discoveryv1.AddressTypeIPv4, at("10.160.101.3", new(true)), at("10.160.101.2", nil), at("10.160.101.4", new(false))),
		slice("web", "http", 8080, discoveryv1.AddressTypeIPv4, at("10.160.101.2", new(true)), at("no address", new(true))),
		slice("web", "other", 9090, discoveryv1.AddressTypeIPv4, at("10.160.101.2", new(true))),
		slice("web", "http", 8080, discoveryv1.AddressTypeIPv6, at("fd00::2", new(true))),
		slice("another", "http", 8080, discoveryv1.AddressTypeIPv4, at("10.160.101.5", new(true))),
	})
	const want = "[{10.96.0.8:80 TCP []} {10.96.0.9:53 UDP []} {10.96.0.9:80 TCP [10.160.101.2:8080 10.160.101.3:8080]}]"
	if got := fmt.Sprint(rules); got != want {
		t.Errorf("the rules are %s, want %s", got, want)
	}
}
