package extender

import (
	"crypto/tls"
	"net/http"
	"time"

	"github.com/go-logr/logr"

	"github.com/atoll-k8s/atoll/internal/machinery/bounded"
)

const (
	// Port is the name of the extender's port in logs and metrics.
	Port = "extender"
	// callsAtOnce is the maximum number of concurrent requests on one HTTP/2 connection. If the
	// host of a replica is lost, kube-scheduler closes its connection to it only after about 45
	// seconds. Until then, requests on that connection time out. When callsAtOnce requests are
	// stuck on it, kube-scheduler opens a new connection, and may reach another replica.
	callsAtOnce = 4
	// maxConnections bounds the connections of all callers together, and 3/8 of it those
	// of one. A replica that does not lead needs one for each pod that is being created. A
	// connection before its handshake takes some 20 kB.
	maxConnections = 4096
	// maxBodies bounds the bodies of all requests in progress, in bytes. 3/8 of it, for one
	// kube-scheduler, is enough for the whole nodes of a request of 5,000 nodes.
	maxBodies = 224 << 20
)

// NewServer returns a server of the handler over mutual TLS, for every replica. config
// holds the server's certificate and requires a client certificate.
func NewServer(address string, config *tls.Config, handler http.Handler, log logr.Logger) *bounded.Port {
	return &bounded.Port{
		Name: Port, Address: address, TLS: config, Handler: bounded.Bodies(Port, maxBodies, handler),
		Connections: maxConnections, Streams: callsAtOnce,
		RequestTime: 30 * time.Second, ResponseTime: time.Minute,
		Linger: time.Second, Log: log,
	}
}
