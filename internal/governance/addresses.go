package governance

import (
	"bytes"
	"fmt"
	"net"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// InternalIPs returns the addresses of a Node by which the API server of a coordinator reaches its hub, sorted: at least
// one.
func InternalIPs(node *corev1.Node) ([]net.IP, error) {
	var ips []net.IP
	for _, a := range node.Status.Addresses {
		if ip := net.ParseIP(a.Address); a.Type == corev1.NodeInternalIP && ip != nil && !ip.IsLinkLocalUnicast() {
			ips = append(ips, ip)
		}
	}
	if len(ips) == 0 {
		return nil, fmt.Errorf("the Node %s has no address of type InternalIP", node.Name)
	}
	slices.SortFunc(ips, func(a, b net.IP) int { return bytes.Compare(a, b) })
	return slices.CompactFunc(ips, net.IP.Equal), nil
}
