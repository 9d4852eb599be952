package serviceproxy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

const (
	// Domain is the domain of all names.
	Domain = "cluster.local"
	// timeToLive is how long a client may keep an answer, in seconds.
	timeToLive = 5
	// maxAddresses bounds the addresses of an answer, and maxAnswer all of it, in bytes: what a
	// client must be able to receive over UDP.
	maxAddresses = 25
	maxAnswer    = 512
)

// Names returns the addresses of each name, with a dot at its end: those of Services, and of the
// ready endpoints of headless ones, also by the names of their hosts.
func Names(services []*corev1.Service, slicesOf []*discoveryv1.EndpointSlice) map[string][]netip.Addr {
	names := map[string][]netip.Addr{}
	headless := map[string]bool{}
	for _, s := range services {
		name := fmt.Sprintf("%s.%s.svc.%s.", s.Name, s.Namespace, Domain)
		names[name] = nil
		if headless[name] = s.Spec.ClusterIP == corev1.ClusterIPNone; headless[name] {
			continue
		}
		if address, err := netip.ParseAddr(s.Spec.ClusterIP); err == nil && address.Is4() {
			names[name] = []netip.Addr{address}
		}
	}
	for _, slice := range slicesOf {
		name := fmt.Sprintf("%s.%s.svc.%s.", slice.Labels[discoveryv1.LabelServiceName], slice.Namespace, Domain)
		if slice.AddressType != discoveryv1.AddressTypeIPv4 || !headless[name] {
			continue
		}
		for _, e := range slice.Endpoints {
			if !value(e.Conditions.Ready, true) {
				continue
			}
			for _, text := range e.Addresses {
				address, err := netip.ParseAddr(text)
				if err != nil {
					continue
				}
				names[name] = append(names[name], address)
				if host := value(e.Hostname, ""); host != "" {
					names[host+"."+name] = append(names[host+"."+name], address)
				}
			}
		}
	}
	for name, addresses := range names {
		slices.SortFunc(addresses, netip.Addr.Compare)
		names[name] = slices.Compact(addresses)
	}
	return names
}

// Answer returns the answer to a message of a client, or nil if it is no question.
func Answer(message []byte, names map[string][]netip.Addr) []byte {
	var p dnsmessage.Parser
	header, err := p.Start(message)
	if err != nil || header.Response {
		return nil
	}
	question, err := p.Question()
	if err != nil {
		return nil
	}
	answer := dnsmessage.Message{
		Header: dnsmessage.Header{
			ID: header.ID, Response: true, Authoritative: true, OpCode: header.OpCode, RecursionDesired: header.RecursionDesired,
		},
		Questions: []dnsmessage.Question{question},
	}
	addresses, known := names[strings.ToLower(question.Name.String())]
	if !known {
		answer.RCode = dnsmessage.RCodeNameError
	}
	if question.Type == dnsmessage.TypeA && question.Class == dnsmessage.ClassINET {
		for _, address := range addresses[:min(len(addresses), maxAddresses)] {
			answer.Answers = append(answer.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: question.Name, Class: dnsmessage.ClassINET, TTL: timeToLive},
				Body:   &dnsmessage.AResource{A: address.As4()},
			})
		}
	}
	for {
		packed, err := answer.Pack()
		if err != nil {
			return nil
		}
		if len(packed) <= maxAnswer || len(answer.Answers) == 0 {
			return packed
		}
		answer.Answers = answer.Answers[:len(answer.Answers)-1] // of a long name
	}
}
