// Package link is the network of the real nodes of a devcluster: one process that carries
// the packets of all links between nodes and to the control plane, each of which can be cut,
// delayed and made lossy. The kernels of many machines cannot delay packets themselves. The
// links are TUN devices, so nothing of them is left when the process ends.
package link

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// Leg is one of the two links of a node.
type Leg string

// The legs of a node: to the control plane and other pools, and to the other nodes of its
// pool.
const (
	Cloud Leg = "cloud"
	Pool  Leg = "pool"
)

// State is what a leg does with packets, in both directions. The zero value passes all on at
// once.
type State struct {
	Cut bool `json:"cut,omitempty"`
	// Delay is added to each packet. Between two nodes the delays of both add up.
	Delay time.Duration `json:"delay,omitempty"`
	// Loss is the part of the packets that get lost, from 0 to 1.
	Loss float64 `json:"loss,omitempty"`
}

// Node is a node of the network.
type Node struct {
	Name string `json:"name"`
	// PID is a process in the network namespace of the node.
	PID int `json:"pid"`
	// Pool is the pool whose nodes the node reaches over its second leg.
	Pool string `json:"pool"`
	// Address is that of the node, on both legs; Pods are those of its pods.
	Address netip.Addr   `json:"address"`
	Pods    netip.Prefix `json:"pods"`
	// OwnRoutes is true if a program of the nodes of its pool makes the routes to each other's pods.
	OwnRoutes bool `json:"ownRoutes,omitempty"`
}

func (n *Node) owns(a netip.Addr) bool { return a == n.Address || n.Pods.Contains(a) }

// port is where packets come from and go to: a leg of a node, or the control plane.
type port struct {
	node *Node // nil for the control plane
	leg  Leg
	// write sends a packet to the device; it does not keep it.
	write func(packet []byte)
	// close closes the device, and closed with it.
	close  func()
	closed chan struct{}

	state State // guarded by router.mu
	late  chan latePacket
	// waiting is the number of delayed packets that have not been sent.
	waiting atomic.Int32
}

type latePacket struct {
	at     time.Time
	packet []byte
}

// maxLate is the number of delayed packets of a port; further ones get lost.
const maxLate = 4096

// router decides where packets go. It is safe for concurrent use.
type router struct {
	mu    sync.RWMutex
	root  *port
	nodes map[string]*nodePorts
}

type nodePorts struct {
	cloud, pool *port
	// unplugged nodes have lost their power: nothing reaches them. Guarded by router.mu.
	unplugged bool
}

// close closes the devices of a node that was unplugged, removed or replaced.
func (n *nodePorts) close() {
	if n != nil {
		n.cloud.close()
		n.pool.close()
	}
}

func newRouter(root *port) *router { return &router{root: root, nodes: map[string]*nodePorts{}} }

func (n *nodePorts) leg(leg Leg) *port {
	switch leg {
	case Cloud:
		return n.cloud
	case Pool:
		return n.pool
	default:
		return nil
	}
}

// add adds a node in place of one of the same name, whose legs it has as they are, and returns
// that one, nil if there is none, and the others of its pool.
func (r *router) add(ports *nodePorts) (before *nodePorts, peers []*Node) {
	r.mu.Lock()
	defer r.mu.Unlock()
	node := ports.cloud.node
	if before = r.nodes[node.Name]; before != nil {
		ports.cloud.state, ports.pool.state = before.cloud.state, before.pool.state
	}
	r.nodes[node.Name] = ports
	return before, r.peersLocked(node)
}

// unplug lets nothing reach a node before it is added again, and returns its ports; nil if there
// is no such node.
func (r *router) unplug(name string) *nodePorts {
	r.mu.Lock()
	defer r.mu.Unlock()
	ports := r.nodes[name]
	if ports != nil {
		ports.unplugged = true
	}
	return ports
}

// remove removes a node, and returns it and the others of its pool; nil if there is no such node.
func (r *router) remove(name string) (removed *nodePorts, peers []*Node) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ports := r.nodes[name]
	if ports == nil {
		return nil, nil
	}
	delete(r.nodes, name)
	return ports, r.peersLocked(ports.cloud.node)
}

func (r *router) peersLocked(node *Node) (peers []*Node) {
	for name, other := range r.nodes {
		if o := other.cloud.node; name != node.Name && o.Pool == node.Pool {
			peers = append(peers, o)
		}
	}
	return peers
}

// set changes the state of a leg.
func (r *router) set(node string, leg Leg, s State) error {
	if s.Delay < 0 || s.Loss < 0 || s.Loss > 1 {
		return fmt.Errorf("setting the %s leg of node %q: delay %s and loss %g: the delay must not be negative, and the loss from 0 to 1", leg, node, s.Delay, s.Loss)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	ports := r.nodes[node]
	if ports == nil {
		return fmt.Errorf("setting the %s leg of node %q: there is no such node", leg, node)
	}
	p := ports.leg(leg)
	if p == nil {
		return fmt.Errorf("setting the leg %q of node %q: the legs are %s and %s", leg, node, Cloud, Pool)
	}
	p.state = s
	return nil
}

// target returns the port for a destination of packets from a port; nil if there is none.
func (r *router) target(from *port, to netip.Addr) *port {
	for _, ports := range r.nodes {
		n := ports.cloud.node
		if !n.owns(to) {
			continue
		}
		switch {
		case from.node == n, ports.unplugged:
			return nil
		case from.leg == Cloud:
			return ports.cloud
		case from.node.Pool == n.Pool:
			return ports.pool
		default:
			return nil
		}
	}
	if from.leg == Cloud && from.node != nil {
		return r.root
	}
	return nil
}

// pass sends a packet from a port on, or drops it.
func (r *router) pass(from *port, packet []byte) {
	to, valid := destination(packet)
	if !valid {
		return
	}
	r.mu.RLock()
	target := r.target(from, to)
	if target == nil {
		r.mu.RUnlock()
		return
	}
	a, b := from.state, target.state
	r.mu.RUnlock()
	if a.Cut || b.Cut || lost(a.Loss) || lost(b.Loss) {
		return
	}
	delay := a.Delay + b.Delay
	if delay == 0 && target.waiting.Load() == 0 { // else it would overtake
		target.write(packet)
		return
	}
	target.waiting.Add(1)
	select {
	case target.late <- latePacket{time.Now().Add(delay), append([]byte(nil), packet...)}:
	default:
		target.waiting.Add(-1)
	}
}

func lost(part float64) bool { return part > 0 && rand.Float64() < part }

// destination returns the destination of an IPv4 packet.
func destination(packet []byte) (netip.Addr, bool) {
	if len(packet) < 20 || packet[0]>>4 != 4 || int(binary.BigEndian.Uint16(packet[2:])) > len(packet) {
		return netip.Addr{}, false
	}
	return netip.AddrFrom4([4]byte(packet[16:20])), true
}

// sendLate sends delayed packets in their order until the device is closed.
func (p *port) sendLate() {
	for {
		select {
		case <-p.closed:
			return
		case late := <-p.late:
			time.Sleep(time.Until(late.at))
			p.write(late.packet)
			p.waiting.Add(-1)
		}
	}
}
