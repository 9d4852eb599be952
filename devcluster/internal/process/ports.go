package process

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// Ports are chosen below the range of ports for outgoing connections, because a killed
// server's port must still be free when it restarts.
const (
	firstPort = 20000
	lastPort  = 29999
	// blockSize is how many ports a process claims at once.
	blockSize = 100
)

var (
	mu sync.Mutex // guards the variables below
	// next is the next port to return, and end the first port behind the last block that
	// this process has claimed.
	next, end int
	// claims are the listeners on the first port of each claimed block. They are open as
	// long as the process lives, so no other process returns a port of its blocks: one that
	// was returned may have no listener for a long time yet.
	claims []net.Listener
)

// FreePort returns a port of 127.0.0.1 without a listener. It never returns the same port
// twice within one process, and none that it has returned in another process that lives.
func FreePort() (int, error) {
	mu.Lock()
	defer mu.Unlock()
	for {
		for ; next < end; next++ {
			if listener, err := listen(next); err == nil { // what an ended process started may listen still
				port := next
				next++
				return port, listener.Close()
			}
		}
		if err := claimLocked(); err != nil {
			return 0, err
		}
	}
}

// claimLocked claims a block of ports that no living process has.
func claimLocked() error {
	const blocks = (lastPort + 1 - firstPort) / blockSize
	start := rand.IntN(blocks)
	for i := range blocks {
		first := firstPort + (start+i)%blocks*blockSize
		if listener, err := listen(first); err == nil {
			claims = append(claims, listener)
			next, end = first+1, first+blockSize
			return nil
		}
	}
	return fmt.Errorf("finding a free port: every block of %d ports from %d to %d is claimed by a process", blockSize, firstPort, lastPort)
}

func listen(port int) (net.Listener, error) {
	return net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
}
