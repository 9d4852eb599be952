// Package serviceproxy is the part of kube-proxy that the real nodes of a devcluster need:
// connections to the cluster address of a Service go to one of its ready endpoints, chosen by
// chance. It speaks to the kernel itself, because kube-proxy needs programs that not every
// machine has. Node ports, external addresses, session affinity, traffic policies and IPv6
// are left out. It also answers questions for the names of Services, which in other clusters is
// the work of a DNS server in pods.
package serviceproxy

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// Rule is one port of a Service.
type Rule struct {
	Address  netip.AddrPort
	Protocol corev1.Protocol // TCP or UDP
	// Endpoints are the ready ones; connections are refused if there is none.
	Endpoints []netip.AddrPort
}

// Rules returns the rules for Services, ordered by address and protocol.
func Rules(services []*corev1.Service, slicesOf []*discoveryv1.EndpointSlice) (rules []Rule) {
	type key struct{ namespace, name string }
	byService := map[key][]*discoveryv1.EndpointSlice{}
	for _, slice := range slicesOf {
		if slice.AddressType == discoveryv1.AddressTypeIPv4 {
			k := key{slice.Namespace, slice.Labels[discoveryv1.LabelServiceName]}
			byService[k] = append(byService[k], slice)
		}
	}
	for _, s := range services {
		address, err := netip.ParseAddr(s.Spec.ClusterIP)
		if err != nil || !address.Is4() {
			continue // headless, external or IPv6
		}
		for _, port := range s.Spec.Ports {
			protocol := cmp.Or(port.Protocol, corev1.ProtocolTCP)
			if protocol != corev1.ProtocolTCP && protocol != corev1.ProtocolUDP {
				continue
			}
			rules = append(rules, Rule{
				Address: netip.AddrPortFrom(address, uint16(port.Port)), Protocol: protocol,
				Endpoints: endpoints(byService[key{s.Namespace, s.Name}], port.Name, protocol),
			})
		}
	}
	slices.SortFunc(rules, func(a, b Rule) int {
		return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Protocol, b.Protocol))
	})
	return rules
}

// endpoints returns the ready endpoints of a port, each once.
func endpoints(of []*discoveryv1.EndpointSlice, name string, protocol corev1.Protocol) (ready []netip.AddrPort) {
	for _, slice := range of {
		for _, port := range slice.Ports {
			if port.Port == nil || value(port.Name, "") != name || value(port.Protocol, corev1.ProtocolTCP) != protocol {
				continue
			}
			for _, e := range slice.Endpoints {
				if !value(e.Conditions.Ready, true) {
					continue
				}
				for _, text := range e.Addresses {
					if a, err := netip.ParseAddr(text); err == nil {
						ready = append(ready, netip.AddrPortFrom(a, uint16(*port.Port)))
					}
				}
			}
		}
	}
	slices.SortFunc(ready, netip.AddrPort.Compare)
	return slices.Compact(ready)
}

func value[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}
