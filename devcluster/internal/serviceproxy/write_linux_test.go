package serviceproxy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// namespace runs functions on a thread that has a network namespace of its own.
type namespace struct {
	t     *testing.T
	calls chan func()
	tid   int
}

func newNamespace(t *testing.T) *namespace {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a network namespace needs root")
	}
	n := &namespace{t: t, calls: make(chan func())}
	t.Cleanup(func() { close(n.calls) })
	entered := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread and its namespace end with the goroutine
		n.tid = unix.Gettid()
		entered <- unix.Unshare(unix.CLONE_NEWNET)
		for call := range n.calls {
			call()
		}
	}()
	if err := <-entered; err != nil {
		t.Fatal(err)
	}
	return n
}

// try returns what f returns in the namespace.
func (n *namespace) try(f func() error) error {
	result := make(chan error)
	n.calls <- func() { result <- f() }
	return <-result
}

// do fails the test if f fails in the namespace.
func (n *namespace) do(f func() error) {
	n.t.Helper()
	if err := n.try(f); err != nil {
		n.t.Fatal(err)
	}
}

// up gives a device an address and sets it up.
func up(device string, address string) error {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return err
	}
	a, err := netlink.ParseAddr(address)
	if err != nil {
		return err
	}
	return errors.Join(netlink.AddrAdd(link, a), netlink.LinkSetUp(link))
}

// route adds a route over a device.
func route(device, to string, via, source net.IP) error {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return err
	}
	_, destination, err := net.ParseCIDR(to)
	if err != nil {
		return err
	}
	return netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: destination, Gw: via, Src: source})
}

// serve answers at an address of the namespace with that address, over TCP and UDP.
func (n *namespace) serve(address string) netip.AddrPort {
	n.t.Helper()
	n.do(func() error {
		listener, err := net.Listen("tcp4", address)
		if err != nil {
			return err
		}
		packets, err := net.ListenPacket("udp4", address)
		if err != nil {
			return err
		}
		n.t.Cleanup(func() { _, _ = listener.Close(), packets.Close() })
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				_, _ = io.WriteString(conn, address)
				_ = conn.Close()
			}
		}()
		go func() {
			for {
				_, client, err := packets.ReadFrom(make([]byte, 16))
				if err != nil {
					return
				}
				_, _ = packets.WriteTo([]byte(address), client)
			}
		}()
		return nil
	})
	return netip.MustParseAddrPort(address)
}

// ask returns what answers at an address, within a second.
func (n *namespace) ask(network, address string) (answer string, err error) {
	err = n.try(func() error {
		conn, err := net.DialTimeout(network, address, time.Minute)
		if err != nil {
			return err
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			return err
		}
		if _, err := io.WriteString(conn, "?"); err != nil {
			return err
		}
		buffer := make([]byte, 64)
		read, err := conn.Read(buffer)
		answer = string(buffer[:read])
		return err
	})
	return answer, err
}

// nodeAndPod returns the namespaces of a node and of a pod on it.
func nodeAndPod(t *testing.T) (node, pod *namespace) {
	t.Helper()
	node, pod = newNamespace(t), newNamespace(t)
	node.do(func() error {
		link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "pod"}, PeerName: "eth0", PeerNamespace: netlink.NsPid(pod.tid)}
		return errors.Join(
			up("lo", "10.160.1.1/32"), netlink.LinkAdd(link), up("pod", "10.160.101.1/24"), route("lo", "10.96.0.0/16", nil, net.IPv4(10, 160, 1, 1)),
			os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o600))
	})
	pod.do(func() error {
		return errors.Join(up("lo", "127.0.0.1/8"), up("eth0", "10.160.101.2/24"), route("eth0", "0.0.0.0/0", net.IPv4(10, 160, 101, 1), nil))
	})
	return node, pod
}

// TestConnectionsGoToEachEndpoint as often, from the node and from a pod; also from the pod to
// itself.
func TestConnectionsGoToEachEndpoint(t *testing.T) {
	node, pod := nodeAndPod(t)
	inPod := pod.serve("10.160.101.2:8080")
	all := []netip.AddrPort{node.serve("10.160.1.1:8080"), node.serve("10.160.1.1:8081"), inPod}
	var rules []Rule
	for _, protocol := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP} {
		rules = append(rules,
			Rule{netip.MustParseAddrPort("10.96.0.1:80"), protocol, all},
			Rule{netip.MustParseAddrPort("10.96.0.1:81"), protocol, []netip.AddrPort{inPod}})
	}
	node.do(func() error { return Write(rules) })
	for from, n := range map[string]*namespace{"the node": node, "the pod": pod} {
		for _, network := range []string{"tcp4", "udp4"} {
			answers := map[string]int{}
			for range 300 {
				answer, err := n.ask(network, "10.96.0.1:80")
				if err != nil {
					t.Fatalf("from %s over %s: %v", from, network, err)
				}
				answers[answer]++
			}
			for _, e := range all { // 100 are expected, and 60 are five standard deviations less
				if got := answers[e.String()]; got < 60 {
					t.Errorf("from %s over %s, endpoint %s has %d of 300 connections", from, network, e, got)
				}
			}
			if answer, err := n.ask(network, "10.96.0.1:81"); err != nil || answer != inPod.String() {
				t.Errorf("from %s over %s, the pod's Service answers %q, %v", from, network, answer, err)
			}
		}
	}
}

// TestServicesWithoutEndpointsRefuse at once.
func TestServicesWithoutEndpointsRefuse(t *testing.T) {
	node, pod := nodeAndPod(t)
	address := netip.MustParseAddrPort("10.96.0.2:80")
	node.do(func() error {
		return Write([]Rule{{address, corev1.ProtocolTCP, nil}, {address, corev1.ProtocolUDP, nil}})
	})
	for from, n := range map[string]*namespace{"the node": node, "the pod": pod} {
		for _, network := range []string{"tcp4", "udp4"} {
			answer, err := n.ask(network, address.String())
			// The kernel tells a program of the node already when it sends over UDP.
			refused := errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.EPERM) && network == "udp4" && n == node
			if !refused { // at once, not by a timeout
				t.Errorf("from %s over %s, the answer is %q, %v", from, network, answer, err)
			}
		}
	}
}

// manyRules returns the rules of so many Services with 20 ports each, with 3 endpoints each; every
// fifth Service has none.
func manyRules(services int) (rules []Rule) {
	for s := range services {
		var endpoints []netip.AddrPort
		for e := range 3 {
			if s%5 > 0 {
				endpoints = append(endpoints, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 160, byte(101 + e), byte(s)}), 8080))
			}
		}
		for port := range 20 {
			rules = append(rules, Rule{
				Address:  netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, byte(s)}), uint16(port+1)),
				Protocol: []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP}[port%2], Endpoints: endpoints,
			})
		}
	}
	return rules
}

// TestManyServices: 4,000 ports of Services fit into the kernel's table, and fewer replace them.
func TestManyServices(t *testing.T) {
	n := newNamespace(t)
	for _, services := range []int{200, 10, 0} {
		began := time.Now()
		n.do(func() error { return Write(manyRules(services)) })
		t.Logf("%d Services are written after %s", services, time.Since(began).Round(time.Millisecond))
		ports := 20 * services
		want := fmt.Sprint(map[string]int{"services": ports * 4 / 5, "endpoints": ports * 4 / 5 * 3, "refused": ports / 5, "itself": services * 4 / 5 * 3})
		n.do(func() error {
			got, err := sizes()
			if err == nil && fmt.Sprint(got) != want {
				err = fmt.Errorf("of %d Services, the table has %v, want %s", services, got, want)
			}
			return err
		})
	}
}

// sizes returns the number of elements of each set of the table.
func sizes() (map[string]int, error) {
	c, err := nftables.New()
	if err != nil {
		return nil, err
	}
	sets, err := c.GetSets(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: table})
	if err != nil {
		return nil, err
	}
	sizes := map[string]int{}
	for _, set := range sets {
		elements, err := c.GetSetElements(set)
		if err != nil {
			return nil, err
		}
		sizes[set.Name] = len(elements)
	}
	return sizes, nil
}
