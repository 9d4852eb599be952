package governance

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestInternalIPs(t *testing.T) {
	for name, tc := range map[string]struct {
		addresses []corev1.NodeAddress
		want      string // "" if there is none
	}{
		"none":                       {nil, ""},
		"no IP":                      {[]corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "10.0.0.1"}, {Type: corev1.NodeExternalIP, Address: "1.2.3.4"}, {Type: corev1.NodeInternalIP, Address: "edge"}}, ""},
		"two families, in any order": {[]corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "fd00::1"}, {Type: corev1.NodeInternalIP, Address: "10.0.0.1"}, {Type: corev1.NodeHostName, Address: "edge"}}, "[10.0.0.1 fd00::1]"},
		"one twice":                  {[]corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}, {Type: corev1.NodeInternalIP, Address: "::ffff:10.0.0.1"}}, "[10.0.0.1]"},
	} {
		ips, err := InternalIPs(&corev1.Node{Status: corev1.NodeStatus{Addresses: tc.addresses}})
		if got := fmt.Sprint(ips); (err != nil) != (tc.want == "") || err == nil && got != tc.want {
			t.Errorf("%s: got %s, %v, want %s", name, got, err, tc.want)
		}
	}
}
