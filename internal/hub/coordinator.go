package hub

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/go-logr/logr"

	"github.com/atoll-k8s/atoll/internal/governance"
	"github.com/atoll-k8s/atoll/internal/hub/pool"
	"github.com/atoll-k8s/atoll/internal/hub/proxy"
)

const (
	// dialWithin bounds the start of a connection to the coordinator of the pool, and the answer to a ping on it. A
	// node of the pool is near.
	dialWithin = 3 * time.Second
	// pingAfter is when a silent connection is tried.
	pingAfter = 5 * time.Second
)

// newPool returns the hub's part in the governance of its pool.
func newPool(discovery *pool.Discovery, p *proxy.Proxy, node *nodeCertificate, log logr.Logger) *pool.Pool {
	return pool.New(pool.Options{Source: p.NewInventory(), Addresses: discovery.Addresses, Changed: discovery.Changed(), Transport: poolTransport(discovery.CA, node.get), Log: log})
}

// poolTransport sends requests to a coordinator as the node. The coordinator's certificate must be signed by the pool's
// CA, as it is when the connection begins.
func poolTransport(ca func() []byte, certificate func() (*tls.Certificate, error)) *http.Transport {
	return &http.Transport{
		ForceAttemptHTTP2: true, MaxIdleConns: 1, IdleConnTimeout: idleFor,
		HTTP2: &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: dialWithin},
		DialTLSContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			roots, err := parsePool([][]byte{ca()})
			if err != nil {
				return nil, fmt.Errorf("reading the CA of the pool: %w", err)
			}
			ctx, cancel := context.WithTimeout(ctx, dialWithin)
			defer cancel()
			dialer := &tls.Dialer{Config: &tls.Config{
				MinVersion: tls.VersionTLS13, RootCAs: roots, ServerName: governance.ServerName, NextProtos: []string{"h2", "http/1.1"},
				GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return certificate() },
			}}
			return dialer.DialContext(ctx, network, address)
		},
	}
}
