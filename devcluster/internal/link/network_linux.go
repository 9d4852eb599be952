package link

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// mtu is that of all devices: the usual one, so that pods see what they see elsewhere.
	mtu = 1500
	// networks is the number of clusters with real nodes that a machine can have at a time.
	networks = 64
	// firstNetwork is the second byte of the first cluster's addresses: 10.160.0.0/16.
	firstNetwork = 160
)

// Network are the links of a cluster.
type Network struct {
	*router
	base byte // second byte of all addresses
}

// ServerAddress is the address of the control plane in a network.
func (n *Network) ServerAddress() netip.Addr { return netip.AddrFrom4([4]byte{10, n.base, 0, 1}) }

// Range has the addresses of the control plane, of nodes and of pods.
func (n *Network) Range() netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, n.base, 0, 0}), 16)
}

// NewNetwork opens a network with addresses that no other interface of the machine has; server is
// that of the control plane, or "" for any. It ends with the process.
func NewNetwork(server string) (*Network, error) {
	used, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("listing the addresses of this machine: %w", err)
	}
	for i := range networks {
		n := &Network{base: byte(firstNetwork + i)}
		if overlaps(n.Range(), used) || server != "" && server != n.ServerAddress().String() {
			continue
		}
		file, err := open(fmt.Sprintf("atoll%d", i))
		if errors.Is(err, unix.EBUSY) {
			continue // another cluster's
		}
		if err != nil {
			return nil, err
		}
		root := newPort(nil, Cloud, file)
		n.router = newRouter(root)
		if err := configure(fmt.Sprintf("atoll%d", i), netip.PrefixFrom(n.ServerAddress(), n.Range().Bits()), nil); err != nil {
			return nil, err
		}
		go n.carry(root, file)
		return n, nil
	}
	if server != "" {
		return nil, fmt.Errorf("opening a network: the addresses around %s are in use on this machine", server)
	}
	return nil, fmt.Errorf("opening a network: all of 10.%d.0.0/16 to 10.%d.0.0/16 are in use on this machine", firstNetwork, firstNetwork+networks-1)
}

func overlaps(p netip.Prefix, used []net.Addr) bool {
	for _, a := range used {
		if other, err := netip.ParsePrefix(a.String()); err == nil && p.Overlaps(other.Masked()) {
			return true
		}
	}
	return false
}

// Add connects a node, in whose network namespace the process of node.PID runs, in place of
// one of the same name, whose legs it has as they are.
func (n *Network) Add(node Node) error {
	ports := &nodePorts{}
	files := map[*port]*os.File{}
	err := inNamespace(node.PID, func() error {
		for _, leg := range []Leg{Cloud, Pool} {
			file, err := open(string(leg))
			if err != nil {
				return err
			}
			p := newPort(&node, leg, file)
			files[p] = file
			routes := []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0)}
			if leg == Cloud {
				ports.cloud = p
			} else {
				ports.pool, routes = p, nil
			}
			if err := configure(string(leg), netip.PrefixFrom(node.Address, 32), routes); err != nil {
				return err
			}
		}
		return n.reachPeers(&node, node.Name)
	})
	if err != nil {
		for p := range files {
			p.close()
		}
		return fmt.Errorf("connecting node %q: %w", node.Name, err)
	}
	before, peers := n.add(ports)
	before.close()
	for p, file := range files {
		go n.carry(p, file)
	}
	for _, peer := range peers { // one that does not run gets its routes when it is connected again
		_ = inNamespace(peer.PID, func() error { return n.reachPeers(peer, peer.Name) })
	}
	return nil
}

// Unplug closes the devices of a node, which is about to lose its power: what holds them keeps
// its network namespace, whose kernel would close the connections of the processes that end.
// Afterwards nothing reaches the node, and nothing comes from it, before it is added again. It does
// nothing if there is no such node.
func (n *Network) Unplug(name string) { n.unplug(name).close() }

// Remove forgets a node, whose processes have ended, and the routes of its peers to it. It does
// nothing if there is no such node.
func (n *Network) Remove(name string) {
	removed, peers := n.remove(name)
	if removed == nil {
		return
	}
	removed.close()
	for _, peer := range peers { // one that does not run has no routes
		_ = inNamespace(peer.PID, func() error {
			link, err := netlink.LinkByName(string(Pool))
			if err != nil {
				return err
			}
			for _, to := range routesTo(removed.cloud.node) {
				_ = netlink.RouteDel(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(to), Scope: netlink.SCOPE_LINK})
			}
			return nil
		})
	}
}

// reachPeers adds the routes of a node to the other nodes of its pool. It must run in the
// network namespace of the node.
func (n *Network) reachPeers(node *Node, self string) error {
	link, err := netlink.LinkByName(string(Pool))
	if err != nil {
		return fmt.Errorf("finding the leg %q: %w", Pool, err)
	}
	n.mu.RLock()
	defer n.mu.RUnlock()
	for name, other := range n.nodes {
		o := other.cloud.node
		if name == self || o.Pool != node.Pool {
			continue
		}
		for _, to := range routesTo(o) {
			route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(to), Src: node.Address.AsSlice(), Scope: netlink.SCOPE_LINK}
			if err := netlink.RouteReplace(route); err != nil {
				return fmt.Errorf("adding the route to node %q: %w", name, err)
			}
		}
	}
	return nil
}

// routesTo returns the destinations by which a node is reached.
func routesTo(n *Node) []netip.Prefix {
	if n.OwnRoutes {
		return []netip.Prefix{netip.PrefixFrom(n.Address, 32)}
	}
	return []netip.Prefix{netip.PrefixFrom(n.Address, 32), n.Pods}
}

// carry passes on what a device sends until it is closed.
func (n *Network) carry(p *port, file *os.File) {
	defer p.close()
	go p.sendLate()
	packet := make([]byte, 64<<10)
	for {
		read, err := file.Read(packet)
		if err != nil {
			return
		}
		n.pass(p, packet[:read])
	}
}

func newPort(node *Node, leg Leg, file *os.File) *port {
	closed := make(chan struct{})
	return &port{
		node: node, leg: leg, late: make(chan latePacket, maxLate), closed: closed,
		close: sync.OnceFunc(func() {
			close(closed)
			_ = file.Close() // nothing is lost that was not to be
		}),
		write: func(packet []byte) {
			_, _ = file.Write(packet) // as on a wire: what does not arrive is sent again
		},
	}
}

// open opens a TUN device in the network namespace of the thread.
func open(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("opening /dev/net/tun: %w", err)
	}
	request, err := unix.NewIfreq(name)
	if err == nil {
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("making the network device %q: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// configure sets a device up with an address, and routes over it.
func configure(name string, address netip.Prefix, routes []netip.Prefix) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("finding the network device %q: %w", name, err)
	}
	whole := &net.IPNet{IP: address.Addr().AsSlice(), Mask: net.CIDRMask(address.Bits(), 32)}
	for what, err := range map[string]error{
		"address": netlink.AddrReplace(link, &netlink.Addr{IPNet: whole}),
		"mtu":     netlink.LinkSetMTU(link, mtu),
		"state":   netlink.LinkSetUp(link),
	} {
		if err != nil {
			return fmt.Errorf("setting the %s of network device %q: %w", what, name, err)
		}
	}
	for _, to := range routes {
		if err := netlink.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(to), Src: address.Addr().AsSlice(), Scope: netlink.SCOPE_LINK}); err != nil {
			return fmt.Errorf("adding a route over network device %q: %w", name, err)
		}
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Masked().Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), 32)}
}

// inNamespace calls f in the network namespace of a process.
func inNamespace(pid int, f func() error) error {
	namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return fmt.Errorf("finding a network namespace: %w", err)
	}
	defer namespace.Close()
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
			result <- fmt.Errorf("entering a network namespace: %w", err)
			return
		}
		result <- f()
	}()
	return <-result
}

// Serve serves the network's interface on a Unix socket until ctx is done:
//
//	GET    /                     an Info
//	POST   /nodes                a Node, to connect
//	DELETE /nodes/{node}         forgets it
//	DELETE /nodes/{node}/devices unplugs it
//	PUT    /nodes/{node}/{leg}   a State
func (n *Network) Serve(ctx context.Context, socket string) error {
	_ = os.Remove(socket) // of a process that was killed
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", socket)
	if err != nil {
		return fmt.Errorf("listening at %s: %w", socket, err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(Info{n.ServerAddress(), n.Range()}) // the client has gone if it fails
	})
	mux.HandleFunc("POST /nodes", func(w http.ResponseWriter, r *http.Request) {
		var node Node
		answer(w, r, &node, func() error { return n.Add(node) })
	})
	mux.HandleFunc("DELETE /nodes/{node}/devices", func(_ http.ResponseWriter, r *http.Request) { n.Unplug(r.PathValue("node")) })
	mux.HandleFunc("DELETE /nodes/{node}", func(_ http.ResponseWriter, r *http.Request) { n.Remove(r.PathValue("node")) })
	mux.HandleFunc("PUT /nodes/{node}/{leg}", func(w http.ResponseWriter, r *http.Request) {
		var state State
		answer(w, r, &state, func() error { return n.set(r.PathValue("node"), Leg(r.PathValue("leg")), state) })
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving at %s: %w", socket, err)
	}
	return nil
}

// answer decodes a request and does what it asks for.
func answer(w http.ResponseWriter, r *http.Request, into any, do func() error) {
	if err := json.NewDecoder(r.Body).Decode(into); err != nil {
		http.Error(w, "decoding the request: "+err.Error(), http.StatusBadRequest)
		return
	}
	if err := do(); err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
	}
}
