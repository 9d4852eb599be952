// Package relay is a link to an address that can be cut, for tests of programs whose network fails.
// It knows TCP only.
package relay

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"
)

// State is what a link does with connections.
type State int

const (
	// Whole carries everything.
	Whole State = iota
	// Silent carries nothing and closes nothing, as a network does in which a cable is cut. New
	// connections are accepted by this machine and get no answer.
	Silent
	// Refused ends all connections, and refuses new ones, as the machine of a server that was stopped.
	Refused
)

// Relay carries connections to an address. It is safe for concurrent use.
type Relay struct {
	to       string
	listener net.Listener

	mu    sync.Mutex
	state State
	// changed is closed when the state changes.
	changed chan struct{}
	open    map[net.Conn]bool
	closed  bool
}

// New returns a link to an address, with one end on this machine.
func New(ctx context.Context, to string) (*Relay, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("making a link to %s: %w", to, err)
	}
	r := &Relay{to: to, listener: listener, changed: make(chan struct{}), open: map[net.Conn]bool{}}
	go r.accept()
	return r, nil
}

// Address is where clients connect.
func (r *Relay) Address() string { return r.listener.Addr().String() }

// Set changes what the link does, also with connections that are open.
func (r *Relay) Set(s State) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s == r.state {
		return
	}
	r.state = s
	close(r.changed)
	r.changed = make(chan struct{})
	if s == Refused {
		r.dropLocked()
	}
}

// Close ends all connections. The link carries nothing any more.
func (r *Relay) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	r.closed = true
	close(r.changed)
	r.dropLocked()
	return r.listener.Close()
}

func (r *Relay) dropLocked() {
	for conn := range r.open {
		_ = conn.Close()
	}
}

// add notes a connection that is to be closed with the link, and returns whether it may be open.
func (r *Relay) add(conn net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.state == Refused {
		return false
	}
	r.open[conn] = true
	return true
}

func (r *Relay) end(conn net.Conn) {
	_ = conn.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.open, conn)
}

func (r *Relay) accept() {
	for {
		conn, err := r.listener.Accept()
		if err != nil {
			return
		}
		go r.carry(conn)
	}
}

// dialWithin bounds the connection to the address.
const dialWithin = 10 * time.Second

func (r *Relay) carry(near net.Conn) {
	defer r.end(near)
	if !r.add(near) || !r.await() {
		return
	}
	far, err := net.DialTimeout("tcp", r.to, dialWithin)
	if err != nil {
		return
	}
	defer r.end(far)
	if !r.add(far) {
		return
	}
	done := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{near, far}, {far, near}} {
		go func() {
			defer func() { done <- struct{}{} }()
			r.copy(way[1], way[0])
		}()
	}
	<-done
}

// copy carries one direction of a connection until that ends.
func (r *Relay) copy(to, from net.Conn) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if !r.await() {
			return
		}
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// await waits while the link is silent, and returns whether it carries again.
func (r *Relay) await() bool {
	for {
		r.mu.Lock()
		state, changed, closed := r.state, r.changed, r.closed
		r.mu.Unlock()
		if closed || state != Silent {
			return !closed && state == Whole
		}
		<-changed
	}
}
