package hub

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"
	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/atoll-k8s/atoll/internal/governance"
	"github.com/atoll-k8s/atoll/internal/hub/access"
	"github.com/atoll-k8s/atoll/internal/hub/config"
	"github.com/atoll-k8s/atoll/internal/hub/inventory"
	"github.com/atoll-k8s/atoll/internal/hub/nodecert"
	"github.com/atoll-k8s/atoll/internal/hub/pool"
	"github.com/atoll-k8s/atoll/internal/hub/proxy"
	"github.com/atoll-k8s/atoll/internal/hub/uplink"
)

const (
	// dialWithin is the timeout for connecting to the coordinator of the pool, and for the response to a ping.
	// The coordinator is on a node nearby.
	dialWithin = 3 * time.Second
	// pingAfter is how long a connection may be silent before it is tested by a ping.
	pingAfter = 5 * time.Second
	// renewAccessFrom is the earliest part of its lifetime after which the certificate for the pool's API
	// server is renewed. It is about two thirds, so that the certificate stays valid during a long outage.
	renewAccessFrom = 0.6
)

// newPool returns the hub's part in the governance of its pool.
func newPool(nodeName string, discovery *pool.Discovery, p *proxy.Proxy, cloud *uplink.Uplink, node *nodeCertificate, people *poolAccess, log logr.Logger) *pool.Pool {
	return pool.New(pool.Options{
		NodeName: nodeName, Send: cloud.RoundTrip, IsRefused: func() bool { return people.Refusal() != nil },
		Source: inventory.New(p.Writes, discovery.AsksForSecrets), PoolSource: inventory.NewPool(p.Writes, discovery.Pool, p.FollowAsPool), Pool: discovery.Pool, Addresses: discovery.Addresses, Changed: discovery.Changed(),
		HasCloud: func() bool {
			e, _ := cloud.Evidence()
			return e.State == uplink.Online
		},
		Transport: poolTransport(discovery.CA, node.get), Log: log,
	})
}

// poolAccess is the port for the API server of the pool, and its serving certificate.
type poolAccess struct {
	*access.Port

	certificate *nodecert.Manager
}

// status returns the status of the port; nil if the pool has no coordinator.
func (a *poolAccess) status() *Access {
	address, problem := a.State()
	if errors.Is(problem, access.ErrNoCoordinator) {
		return nil
	}
	s := &Access{Address: address, Certificate: certificateOf(a.certificate.State())}
	if problem == nil {
		problem = a.Refusal()
	}
	if problem != nil {
		s.Problem = problem.Error()
	}
	return s
}

// newAccess returns the port at an address. It is closed while the pool has no coordinator.
func newAccess(c *config.Configuration, address string, discovery *pool.Discovery, p *proxy.Proxy, send sender, log logr.Logger) *poolAccess {
	ca := func() ([]byte, error) {
		if ca := discovery.CA(); ca != nil {
			return ca, nil
		}
		return nil, access.ErrNoCoordinator
	}
	certificate := nodecert.New(nodecert.Options{
		NodeName: c.NodeName, Directory: filepath.Join(c.Directory, "access"), Send: send, Now: time.Now, Log: log.WithName("nodecert"),
		Purpose: &nodecert.Purpose{
			Signer: governance.HubSigner, Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth},
			RenewFrom: renewAccessFrom,
			Wanted: func() ([]net.IP, *x509.CertPool, error) {
				text, err := ca()
				if err != nil {
					return nil, nil, err
				}
				roots, err := parsePool([][]byte{text})
				if err != nil {
					return nil, nil, fmt.Errorf("reading the CA of the pool: %w", err)
				}
				node, err := inventory.OwnNode(p.Record, c.NodeName)
				if err != nil {
					return nil, nil, err
				}
				addresses, err := governance.InternalIPs(node)
				return addresses, roots, err
			},
		},
	})
	return &poolAccess{access.New(access.Options{Address: address, CA: ca, Certificate: certificate.Current, Kubelet: p.Kubelet, Now: time.Now, Log: log}), certificate}
}

// poolTransport sends requests to a coordinator as the node. The coordinator's certificate must be signed by
// the CA that the pool has when the connection begins.
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
