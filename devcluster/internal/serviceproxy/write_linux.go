package serviceproxy

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// table is the name of the table with all rules.
const table = "services"

// The kernel's registers for values of rules, and the offsets of what is compared.
const (
	register1, register2 = 1, 2
	source               = 12 // in an IPv4 header
	destination          = 16
	destinationPort      = 2 // in the header of TCP and UDP
)

// toItself is the mark of connections of a pod to itself.
const toItself = 1

// Write replaces the rules of this network namespace at once.
func Write(rules []Rule) error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("speaking to the kernel's packet filter: %w", err)
	}
	t := &nftables.Table{Family: nftables.TableFamilyIPv4, Name: table}
	c.AddTable(t) // or else it could not be deleted the first time
	c.DelTable(t)
	c.AddTable(t)
	translate, refuse := c.AddChain(&nftables.Chain{Name: "translate", Table: t}), c.AddChain(&nftables.Chain{Name: "refuse", Table: t})
	hook := func(name string, kind nftables.ChainType, at *nftables.ChainHook, priority *nftables.ChainPriority, to *nftables.Chain) {
		chain := c.AddChain(&nftables.Chain{Name: name, Table: t, Type: kind, Hooknum: at, Priority: priority})
		c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: to.Name}}})
	}
	// Both for pods, and for programs of the node itself.
	hook("prerouting", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest, translate)
	hook("output", nftables.ChainTypeNAT, nftables.ChainHookOutput, nftables.ChainPriorityNATDest, translate)
	hook("forward", nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityFilter, refuse)
	// A pod that reaches itself through a Service must get the answer from somebody else.
	back := c.AddChain(&nftables.Chain{Name: "back", Table: t, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
	c.AddRule(&nftables.Rule{Table: t, Chain: back, Exprs: []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: register1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: register1, Data: binaryutil.NativeEndian.PutUint32(toItself)},
		&expr.Masq{},
	}})
	hook("local", nftables.ChainTypeFilter, nftables.ChainHookOutput, nftables.ChainPriorityFilter, refuse)
	toEndpoint := map[endpoint]string{}
	for _, r := range rules {
		if len(r.Endpoints) == 0 {
			c.AddRule(&nftables.Rule{Table: t, Chain: refuse, Exprs: append(matches(r), rejects(r)...)})
		}
		for i, e := range r.Endpoints {
			exprs := matches(r)
			if rest := len(r.Endpoints) - i; rest > 1 { // one of so many is left
				exprs = append(exprs,
					&expr.Numgen{Register: register1, Modulus: uint32(rest), Type: unix.NFT_NG_RANDOM},
					&expr.Cmp{Op: expr.CmpOpEq, Register: register1, Data: binaryutil.NativeEndian.PutUint32(0)})
			}
			to := endpoint{e, r.Protocol}
			if toEndpoint[to] == "" {
				toEndpoint[to] = fmt.Sprint("endpoint", len(toEndpoint))
				translateTo(c, t, toEndpoint[to], e)
			}
			c.AddRule(&nftables.Rule{Table: t, Chain: translate, Exprs: append(exprs, &expr.Verdict{Kind: expr.VerdictGoto, Chain: toEndpoint[to]})})
		}
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("writing the rules for Services: %w", err)
	}
	return nil
}

type endpoint struct {
	address  netip.AddrPort
	protocol corev1.Protocol
}

// translateTo adds a chain that changes the destination of a connection to an endpoint.
func translateTo(c *nftables.Conn, t *nftables.Table, name string, e netip.AddrPort) {
	chain := c.AddChain(&nftables.Chain{Name: name, Table: t})
	c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: []expr.Any{
		&expr.Payload{DestRegister: register1, Base: expr.PayloadBaseNetworkHeader, Offset: source, Len: 4},
		&expr.Cmp{Op: expr.CmpOpEq, Register: register1, Data: e.Addr().AsSlice()},
		&expr.Immediate{Register: register1, Data: binaryutil.NativeEndian.PutUint32(toItself)},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: register1},
	}})
	c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: []expr.Any{
		&expr.Immediate{Register: register1, Data: e.Addr().AsSlice()},
		&expr.Immediate{Register: register2, Data: binary.BigEndian.AppendUint16(nil, e.Port())},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: register1, RegProtoMin: register2},
	}})
}

// matches returns the condition that a packet is for the rule.
func matches(r Rule) []expr.Any {
	protocol := byte(unix.IPPROTO_TCP)
	if r.Protocol == corev1.ProtocolUDP {
		protocol = unix.IPPROTO_UDP
	}
	equals := func(data []byte) expr.Any {
		return &expr.Cmp{Op: expr.CmpOpEq, Register: register1, Data: data}
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register1}, equals([]byte{protocol}),
		&expr.Payload{DestRegister: register1, Base: expr.PayloadBaseNetworkHeader, Offset: destination, Len: 4}, equals(r.Address.Addr().AsSlice()),
		&expr.Payload{DestRegister: register1, Base: expr.PayloadBaseTransportHeader, Offset: destinationPort, Len: 2}, equals(binary.BigEndian.AppendUint16(nil, r.Address.Port())),
	}
}

// rejects returns the verdict for a Service without endpoints.
func rejects(r Rule) []expr.Any {
	if r.Protocol == corev1.ProtocolTCP {
		return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}}
	}
	return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH}}
}
