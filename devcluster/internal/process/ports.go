package process

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// Ports are chosen below the range of ports for outgoing connections, because a killed
// server's port must still be free when it restarts.
const (
	firstPort    = 20000
	lastPort     = 29999
	portAttempts = 200
)

var (
	mu sync.Mutex // guards handedOut
	// handedOut are the ports that FreePort has returned in this process; some may have
	// no listener yet.
	handedOut = map[int]bool{}
)

// FreePort returns a port of 127.0.0.1 without a listener. It never returns the same port
// twice within one process.
func FreePort() (int, error) {
	mu.Lock()
	defer mu.Unlock()
	for range portAttempts {
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		if handedOut[port] {
			continue
		}
		listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			continue
		}
		if err := listener.Close(); err != nil {
			return 0, fmt.Errorf("closing the probe of port %d: %w", port, err)
		}
		handedOut[port] = true
		return port, nil
	}
	return 0, errors.New("finding a free port: none of " + strconv.Itoa(portAttempts) + " tried is free")
}
