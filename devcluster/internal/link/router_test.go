package link

import (
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// network is a router whose devices record what they get.
type network struct {
	*router

	mu  sync.Mutex
	got map[*port][]time.Time
}

func newNetwork() *network {
	n := &network{got: map[*port][]time.Time{}}
	n.router = newRouter(n.port(nil, Cloud))
	for name, pool := range map[string]string{"a1": "a", "a2": "a", "b1": "b"} {
		i := byte(len(n.nodes) + 1)
		node := &Node{Name: name, Pool: pool, Address: netip.AddrFrom4([4]byte{10, 160, 1, i}), Pods: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 160, 100 + i, 0}), 24)}
		n.nodes[name] = &nodePorts{cloud: n.port(node, Cloud), pool: n.port(node, Pool)}
	}
	return n
}

func (n *network) port(node *Node, leg Leg) *port {
	p := &port{node: node, leg: leg, late: make(chan latePacket, maxLate), closed: make(chan struct{})}
	p.close = sync.OnceFunc(func() { close(p.closed) })
	p.write = func([]byte) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.got[p] = append(n.got[p], time.Now())
	}
	return p
}

// packetTo returns an IPv4 packet without content.
func packetTo(a netip.Addr) []byte {
	packet := make([]byte, 20)
	packet[0], packet[3] = 0x45, 20
	to := a.As4()
	copy(packet[16:], to[:])
	return packet
}

// TestPacketsStayOnTheLegTheyArrivedOn: within a pool over either leg, between pools and to the
// control plane over the cloud only.
func TestPacketsStayOnTheLegTheyArrivedOn(t *testing.T) {
	n := newNetwork()
	a1, a2, b1 := n.nodes["a1"], n.nodes["a2"], n.nodes["b1"]
	server := netip.MustParseAddr("10.160.0.1")
	pod := func(p *nodePorts) netip.Addr { return p.cloud.node.Pods.Addr().Next() }
	for name, tc := range map[string]struct {
		from *port
		to   netip.Addr
		want *port
	}{
		"node to server":                      {a1.cloud, server, n.root},
		"server to node":                      {n.root, a1.cloud.node.Address, a1.cloud},
		"server to pod":                       {n.root, pod(b1), b1.cloud},
		"within a pool":                       {a1.pool, a2.cloud.node.Address, a2.pool},
		"to a pod of the pool":                {a1.pool, pod(a2), a2.pool},
		"within a pool, over the cloud":       {a1.cloud, pod(a2), a2.cloud},
		"to another pool":                     {a1.cloud, pod(b1), b1.cloud},
		"to another pool, over the pool's":    {a1.pool, pod(b1), nil},
		"to the server, over the pool's":      {a1.pool, server, nil},
		"to itself":                           {a1.cloud, pod(a1), nil},
		"from the server to an unknown place": {n.root, netip.MustParseAddr("10.160.9.9"), nil},
	} {
		if got := n.target(tc.from, tc.to); got != tc.want {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
	}
}

// TestANodeIsRemoved: nothing goes to it any more, and a node in another pool may have its address.
func TestANodeIsRemoved(t *testing.T) {
	n := newNetwork()
	a1, a2, b1 := n.nodes["a1"], n.nodes["a2"], n.nodes["b1"]
	removed, peers := n.remove("a2")
	if removed != a2 || len(peers) != 1 || peers[0] != a1.cloud.node {
		t.Errorf("removed is %+v, with the peers %+v", removed, peers)
	}
	if got := n.target(a1.pool, a2.cloud.node.Address); got != nil {
		t.Errorf("packets to a removed node go to %+v", got)
	}
	again := *a2.cloud.node
	again.Name, again.Pool = "b2", "b"
	ports := &nodePorts{cloud: n.port(&again, Cloud), pool: n.port(&again, Pool)}
	if _, peers := n.add(ports); len(peers) != 1 || peers[0] != b1.cloud.node {
		t.Errorf("the peers of a new node are %+v", peers)
	}
	if got := n.target(b1.pool, a2.cloud.node.Address); got != ports.pool {
		t.Errorf("packets to the new node go to %+v", got)
	}
	if removed, _ := n.remove("a2"); removed != nil {
		t.Errorf("%+v is removed twice", removed)
	}
}

// TestALegIsCutDelayedOrLossy in both directions, and the other leg of the node is not.
func TestALegIsCutDelayedOrLossy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		a1, a2 := n.nodes["a1"], n.nodes["a2"]
		for _, p := range []*port{n.root, a1.cloud, a1.pool, a2.pool} {
			go p.sendLate()
			t.Cleanup(p.close)
		}
		server, node, peer := netip.MustParseAddr("10.160.0.1"), a1.cloud.node.Address, a2.cloud.node.Address
		// arrive returns how many of so many packets arrive, in both directions, and how late.
		arrive := func(many int) (there, back, aside int, late []time.Duration) {
			clear(n.got)
			began := time.Now()
			for range many {
				n.pass(a1.cloud, packetTo(server))
				n.pass(n.root, packetTo(node))
				n.pass(a1.pool, packetTo(peer))
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			for _, at := range slices.Concat(n.got[n.root], n.got[a1.cloud]) {
				late = append(late, at.Sub(began))
			}
			return len(n.got[n.root]), len(n.got[a1.cloud]), len(n.got[a2.pool]), late
		}
		for name, tc := range map[string]struct {
			state       State
			least, most int // of 1,000
		}{
			"whole":   {State{}, 1000, 1000},
			"cut":     {State{Cut: true}, 0, 0},
			"delayed": {State{Delay: 100 * time.Millisecond}, 1000, 1000},
			"lossy":   {State{Loss: 0.3}, 550, 850},
		} {
			if err := n.set("a1", Cloud, tc.state); err != nil {
				t.Fatal(err)
			}
			there, back, aside, late := arrive(1000)
			if min(there, back) < tc.least || max(there, back) > tc.most || aside != 1000 {
				t.Errorf("%s: %d and %d packets arrive, and %d over the other leg", name, there, back, aside)
			}
			if wrong := slices.ContainsFunc(late, func(d time.Duration) bool { return d != tc.state.Delay }); wrong {
				t.Errorf("%s: packets arrive after %v", name, slices.Max(late))
			}
		}
	})
}

// TestDelayedPacketsKeepTheirOrder: when the delay of a leg is removed, no packet overtakes one
// that was delayed before.
func TestDelayedPacketsKeepTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		a1, late := n.nodes["a1"], time.Second
		go n.root.sendLate()
		t.Cleanup(n.root.close)
		if err := n.set("a1", Cloud, State{Delay: late}); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		n.pass(a1.cloud, packetTo(netip.MustParseAddr("10.160.0.1")))
		synctest.Wait() // until it is on its way
		if err := n.set("a1", Cloud, State{}); err != nil {
			t.Fatal(err)
		}
		n.pass(a1.cloud, packetTo(netip.MustParseAddr("10.160.0.1")))
		time.Sleep(time.Minute)
		synctest.Wait()
		for _, at := range n.got[n.root] {
			if after := at.Sub(began); after != late {
				t.Errorf("a packet arrives after %s, want %s", after, late)
			}
		}
		n.pass(a1.cloud, packetTo(netip.MustParseAddr("10.160.0.1")))
		if got := len(n.got[n.root]); got != 3 {
			t.Errorf("%d packets have arrived, want 3: the last one at once", got)
		}
	})
}

// TestUnpluggedNodeGetsNoPackets: nothing reaches it before it is there again, with its legs as they were.
func TestUnpluggedNodeGetsNoPackets(t *testing.T) {
	n := newNetwork()
	a1, a2 := n.nodes["a1"], n.nodes["a2"]
	if err := n.set("a2", Cloud, State{Cut: true}); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time it has none
		n.unplug("a2").close()
	}
	n.unplug("nobody").close()
	for _, p := range []*port{a2.cloud, a2.pool} {
		select {
		case <-p.closed:
		default:
			t.Errorf("the device of the leg %s is open", p.leg)
		}
	}
	for _, from := range []*port{n.root, a1.cloud, a1.pool} {
		if got := n.target(from, a2.cloud.node.Address); got != nil {
			t.Errorf("packets to a node without power go to %+v", got)
		}
	}
	if err := n.set("a2", Pool, State{Loss: 1}); err != nil {
		t.Fatal(err)
	}
	again := &nodePorts{cloud: n.port(a2.cloud.node, Cloud), pool: n.port(a2.cloud.node, Pool)}
	if before, _ := n.add(again); before != a2 {
		t.Errorf("added in place of %+v", before)
	}
	if !again.cloud.state.Cut || again.pool.state.Loss != 1 {
		t.Errorf("the legs are %+v and %+v", again.cloud.state, again.pool.state)
	}
	if got := n.target(n.root, a2.cloud.node.Address); got != again.cloud {
		t.Errorf("packets to the node go to %+v", got)
	}
}

// TestInvalidLegSettingsAreRefused: invalid settings of a leg are refused with an error that says
// what is wrong.
func TestInvalidLegSettingsAreRefused(t *testing.T) {
	n := newNetwork()
	for name, err := range map[string]error{
		"node": n.set("nobody", Cloud, State{}), "leg": n.set("a1", "third", State{}),
		"loss": n.set("a1", Pool, State{Loss: 2}), "delay": n.set("a1", Pool, State{Delay: -1}),
	} {
		if err == nil {
			t.Errorf("an impossible %s is accepted", name)
		}
	}
	for _, packet := range [][]byte{nil, {0x60}, make([]byte, 20), append([]byte{0x45, 0, 1, 0}, make([]byte, 16)...)} {
		n.pass(n.nodes["a1"].cloud, packet)
	}
	if len(n.got) > 0 {
		t.Error("what is no IPv4 packet is passed on")
	}
}
