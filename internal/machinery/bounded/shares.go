package bounded

import (
	"container/list"
	"context"
	"net"
	"net/netip"
	"sync"
)

// Caller is the network address of a client, without its port. Of IPv6 it is the whole
// address too: the pods of a node and its kubelet often share a network, and most networks
// of pods drop packets whose source is not the pod's own address.
type Caller netip.Addr

// CallerOf returns the caller of a remote address, host:port. Addresses that cannot be
// read are one caller.
func CallerOf(remote string) Caller {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		return Caller{}
	}
	address, err := netip.ParseAddr(host)
	if err != nil {
		return Caller{}
	}
	return Caller(address.Unmap().WithZone(""))
}

// Shares divides an amount of something, such as connections or bytes, among callers. Three
// quarters are for everybody: a caller may take more of them only while it then holds no
// more than what is left of them, so each caller gets at most half of what the ones before
// it have left. The last quarter is for callers that hold little: at most a 256th of the
// total, or 1. So one caller takes at most 3/8 of the total, and of a total of at least 256 a
// caller that needs little is served while 64 others take all that they can. It is safe for
// concurrent use.
type Shares struct {
	total, open, little int64

	mu      sync.Mutex
	used    int64
	held    map[Caller]int64
	waiting list.List // of *claim, the oldest first
}

// claim is a call of Wait that waits.
type claim struct {
	caller  Caller
	n       int64
	granted chan struct{} // closed when the amount is taken
}

// NewShares returns Shares of a total that nobody holds.
func NewShares(total int64) *Shares {
	return &Shares{total: total, open: total - total/4, little: max(1, total/256), held: map[Caller]int64{}}
}

// Largest returns the largest amount that one caller can hold.
func (s *Shares) Largest() int64 { return s.open / 2 }

// Take takes an amount for a caller and returns true, or returns false if the caller may
// not have it now.
func (s *Shares) Take(caller Caller, n int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.takeLocked(caller, n)
}

func (s *Shares) takeLocked(caller Caller, n int64) bool {
	held := s.held[caller] + n
	if fits := held <= s.little && s.used+n <= s.total || held <= s.open-s.used-n; !fits {
		return false
	}
	s.used += n
	s.held[caller] += n
	return true
}

// Wait is Take, but waits until the caller may have the amount or ctx is done. A claim
// that has to wait does not delay those of other callers.
func (s *Shares) Wait(ctx context.Context, caller Caller, n int64) bool {
	s.mu.Lock()
	if s.takeLocked(caller, n) {
		s.mu.Unlock()
		return true
	}
	if n > s.Largest() {
		s.mu.Unlock()
		return false
	}
	c := &claim{caller: caller, n: n, granted: make(chan struct{})}
	element := s.waiting.PushBack(c)
	s.mu.Unlock()
	select {
	case <-c.granted:
		return true
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-c.granted: // in the meantime
		return true
	default:
		s.waiting.Remove(element)
		return false
	}
}

// Give returns an amount that the caller has taken.
func (s *Shares) Give(caller Caller, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used -= n
	if s.held[caller] -= n; s.held[caller] == 0 {
		delete(s.held, caller)
	}
	for e := s.waiting.Front(); e != nil; {
		next := e.Next()
		if c := e.Value.(*claim); s.takeLocked(c.caller, c.n) {
			s.waiting.Remove(e)
			close(c.granted)
		}
		e = next
	}
}

// Used returns the amount that all callers hold.
func (s *Shares) Used() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used
}
