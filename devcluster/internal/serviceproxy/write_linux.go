package serviceproxy

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// table is the name of the table with all rules.
const table = "services"

// The kernel's registers have 4 bytes. The key of a set or map is in adjacent ones, each part at
// the beginning of its register.
const (
	addressRegister  = unix.NFT_REG32_00
	protocolRegister = unix.NFT_REG32_01
	portRegister     = unix.NFT_REG32_02
	numberRegister   = unix.NFT_REG32_03

	endpointAddressRegister = addressRegister
	endpointPortRegister    = unix.NFT_REG32_01
)

// Offsets in the header of IPv4, and in that of TCP and UDP.
const (
	source          = 12
	destination     = 16
	destinationPort = 2
)

const (
	// destinationChanged is IPS_DST_NAT of <linux/netfilter/nf_conntrack_common.h>.
	destinationChanged = 1 << 5
	// portUnreachable is ICMP_PORT_UNREACH of <linux/icmp.h>.
	portUnreachable = 3
)

const (
	// maxElements is how many elements of a set a message carries: an attribute has 64 KiB at most.
	maxElements = 500
	// bufferSize bounds all messages of a write, which the kernel takes as one, and its answers. It
	// is a limit only: some 50 bytes are needed for each port and for each of its endpoints.
	bufferSize = 64 << 20
)

var (
	keyTypes    = []nftables.SetDatatype{nftables.TypeIPAddr, nftables.TypeInetProto, nftables.TypeInetService}
	portKey     = nftables.MustConcatSetType(keyTypes...)
	endpointKey = nftables.MustConcatSetType(append(keyTypes, nftables.TypeInteger)...)
	endpointTo  = nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInetService)
	bothEnds    = nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeIPAddr)
)

// Write replaces the rules of this network namespace at once. The table has few rules, whatever the
// number of Services: they look packets up in sets and maps.
//
//	services   address . protocol . port            : goto the chain for that number of endpoints
//	endpoints  address . protocol . port . number   : address . port, of the endpoint with that number
//	refused    address . protocol . port            without endpoints
//	itself     address . address                    of each endpoint
func Write(rules []Rule) error {
	buffer := func(c *netlink.Conn) error {
		if err := c.SetReadBuffer(bufferSize); err != nil {
			return err
		}
		return c.SetWriteBuffer(bufferSize)
	}
	c, err := nftables.New(nftables.WithSockOptions(buffer))
	if err != nil {
		return fmt.Errorf("speaking to the kernel's packet filter: %w", err)
	}
	if err := add(c, rules); err != nil {
		return fmt.Errorf("making the rules for Services: %w", err)
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("writing the rules for Services: %w", err)
	}
	return nil
}

// add adds the messages that write the table.
func add(c *nftables.Conn, rules []Rule) error {
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
	hook("local", nftables.ChainTypeFilter, nftables.ChainHookOutput, nftables.ChainPriorityFilter, refuse)
	back := c.AddChain(&nftables.Chain{Name: "back", Table: t, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})

	services := &nftables.Set{Table: t, Name: "services", IsMap: true, Concatenation: true, KeyType: portKey, DataType: nftables.TypeVerdict}
	endpoints := &nftables.Set{Table: t, Name: "endpoints", IsMap: true, Concatenation: true, KeyType: endpointKey, DataType: endpointTo}
	refused := &nftables.Set{Table: t, Name: "refused", Concatenation: true, KeyType: portKey}
	itself := &nftables.Set{Table: t, Name: "itself", Concatenation: true, KeyType: bothEnds}
	for _, set := range []*nftables.Set{services, endpoints, refused, itself} {
		if err := c.AddSet(set, nil); err != nil {
			return err
		}
	}
	c.AddRule(&nftables.Rule{Table: t, Chain: translate, Exprs: append(loadPort(), find(services, unix.NFT_REG_VERDICT))})
	for protocol, reject := range map[byte]*expr.Reject{
		unix.IPPROTO_TCP: {Type: unix.NFT_REJECT_TCP_RST},
		unix.IPPROTO_UDP: {Type: unix.NFT_REJECT_ICMP_UNREACH, Code: portUnreachable},
	} {
		c.AddRule(&nftables.Rule{Table: t, Chain: refuse, Exprs: append(loadPort(),
			&expr.Cmp{Op: expr.CmpOpEq, Register: protocolRegister, Data: []byte{protocol}}, isIn(refused), reject)})
	}
	// A pod that reaches itself through a Service must get the answer from somebody else.
	c.AddRule(&nftables.Rule{Table: t, Chain: back, Exprs: []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATUS, Register: unix.NFT_REG32_00},
		&expr.Bitwise{SourceRegister: unix.NFT_REG32_00, DestRegister: unix.NFT_REG32_00, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(destinationChanged), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: unix.NFT_REG32_00, Data: make([]byte, 4)},
		&expr.Payload{DestRegister: unix.NFT_REG32_00, Base: expr.PayloadBaseNetworkHeader, Offset: source, Len: 4},
		&expr.Payload{DestRegister: unix.NFT_REG32_01, Base: expr.PayloadBaseNetworkHeader, Offset: destination, Len: 4},
		isIn(itself), &expr.Masq{},
	}})

	elements := map[*nftables.Set][]nftables.SetElement{}
	chosen := map[int]string{} // the chain that chooses one of so many endpoints
	addresses := map[netip.Addr]bool{}
	for _, r := range rules {
		key, many := portOf(r), len(r.Endpoints)
		if many == 0 {
			elements[refused] = append(elements[refused], nftables.SetElement{Key: key})
			continue
		}
		if chosen[many] == "" {
			chosen[many] = fmt.Sprint("one-of-", many)
			choose(c, c.AddChain(&nftables.Chain{Name: chosen[many], Table: t}), endpoints, many)
		}
		elements[services] = append(elements[services], nftables.SetElement{Key: key, VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: chosen[many]}})
		for i, e := range r.Endpoints {
			numbered := slices.Concat(key, binaryutil.NativeEndian.PutUint32(uint32(i)))
			elements[endpoints] = append(elements[endpoints], nftables.SetElement{Key: numbered, Val: slices.Concat(e.Addr().AsSlice(), port(e))})
			if a := e.Addr(); !addresses[a] {
				addresses[a] = true
				elements[itself] = append(elements[itself], nftables.SetElement{Key: slices.Concat(a.AsSlice(), a.AsSlice())})
			}
		}
	}
	for set, all := range elements {
		for some := range slices.Chunk(all, maxElements) {
			if err := c.SetAddElements(set, some); err != nil {
				return err
			}
		}
	}
	return nil
}

// choose lets a chain change the destination of a connection to one of so many endpoints, by
// chance.
func choose(c *nftables.Conn, chain *nftables.Chain, endpoints *nftables.Set, many int) {
	c.AddRule(&nftables.Rule{Table: chain.Table, Chain: chain, Exprs: append(loadPort(),
		&expr.Numgen{Register: numberRegister, Modulus: uint32(many), Type: unix.NFT_NG_RANDOM},
		find(endpoints, endpointAddressRegister),
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: endpointAddressRegister, RegProtoMin: endpointPortRegister},
	)})
}

// loadPort loads what the keys of all maps begin with.
func loadPort() []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: addressRegister, Base: expr.PayloadBaseNetworkHeader, Offset: destination, Len: 4},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: protocolRegister},
		&expr.Payload{DestRegister: portRegister, Base: expr.PayloadBaseTransportHeader, Offset: destinationPort, Len: 2},
	}
}

// portOf is the key that loadPort loads for a packet to a rule's address.
func portOf(r Rule) []byte {
	protocol := byte(unix.IPPROTO_TCP)
	if r.Protocol == corev1.ProtocolUDP {
		protocol = unix.IPPROTO_UDP
	}
	return slices.Concat(r.Address.Addr().AsSlice(), []byte{protocol, 0, 0, 0}, port(r.Address))
}

// port returns a port as it is in a register.
func port(a netip.AddrPort) []byte {
	return append(binary.BigEndian.AppendUint16(nil, a.Port()), 0, 0)
}

// isIn ends a rule if its key is not in the set.
func isIn(set *nftables.Set) *expr.Lookup {
	return &expr.Lookup{SourceRegister: addressRegister, SetID: set.ID, SetName: set.Name}
}

// find loads what a map has for the key of a rule, and ends the rule if it has nothing.
func find(in *nftables.Set, to uint32) *expr.Lookup {
	return &expr.Lookup{SourceRegister: addressRegister, SetID: in.ID, SetName: in.Name, IsDestRegSet: true, DestRegister: to}
}
