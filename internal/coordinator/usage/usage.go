// Package usage serves metrics.k8s.io at the coordinator of a pool, for kubectl top: what nodes and pods use of CPU and
// memory, read from the kubelets through their hubs. The kube-apiserver of the pod aggregates it, and decides who may
// ask.
//
//	collector.go  which nodes are read, and when: only while somebody asks
//	text.go       the text of a kubelet
//	rates.go      usage from two readings
//	cluster.go    where nodes, pods and texts are read
//	serve.go      the answers
//	register.go   how kube-apiserver is told
package usage

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"

	"github.com/atoll-k8s/atoll/internal/machinery/bounded"
)

const (
	// maxConnections bounds those of all clients, and maxStreams the requests at a time on each.
	maxConnections, maxStreams = 64, 32
	// requestTime bounds how long a request may take to arrive, and responseTime until its answer is sent.
	requestTime, responseTime = 10 * time.Second, 30 * time.Second
	// listenAgain is the time until a port that is in use is tried again.
	listenAgain = 2 * time.Second
)

// Options configure Run. Paths are of files that may be replaced while it runs.
type Options struct {
	// Listen is the address and port at which kube-apiserver asks, on loopback.
	Listen string
	// TLS returns the configuration for a handshake, which lets in kube-apiserver only.
	TLS func() (*tls.Config, error)
	// Config is for the API server of the pod, as readonly.User.
	Config *rest.Config
	// CertFile and KeyFile have the certificate that the API server of the pod shows to hubs, and CAFile the CA of the pool.
	CertFile, KeyFile, CAFile string
	// Nodes returns the names of the pool's nodes.
	Nodes func() ([]string, error)
	Log   logr.Logger
}

// Run serves until ctx is done. A port that is in use is tried again; without it, kubectl top is all that is missing.
func Run(ctx context.Context, o Options) error {
	port, err := loopbackPort(o.Listen)
	if err != nil {
		return err
	}
	source, err := newCluster(o)
	if err != nil {
		return err
	}
	registrar, err := newRegistrar(o, port)
	if err != nil {
		return err
	}
	collector := newCollector(source, o.Nodes, o.Log)
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { collector.run(ctx) })
	running.Go(func() { registrar.run(ctx) })
	server := &bounded.Port{
		Name: "usage", Address: o.Listen, Handler: handler(collector), Connections: maxConnections, NoOwnProbes: true, Streams: maxStreams,
		RequestTime: requestTime, ResponseTime: responseTime, Log: o.Log,
		TLS: &tls.Config{MinVersion: tls.VersionTLS13, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return o.TLS() }},
	}
	for logged := ""; ; {
		err := server.Start(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if text := fmt.Sprint(err); text != logged {
			o.Log.Info("kubectl top does not work at this coordinator, and the port is tried again", "reason", text)
			logged = text
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(listenAgain):
		}
	}
}

// loopbackPort returns the port of an address that only this machine reaches.
func loopbackPort(address string) (port int, err error) {
	tcp, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return 0, fmt.Errorf("reading the address for metrics.k8s.io: %w", err)
	}
	if !tcp.IP.IsLoopback() {
		return 0, fmt.Errorf("the address for metrics.k8s.io, %q, is not one of loopback", address)
	}
	return tcp.Port, nil
}

func readFile(what, path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", what, err)
	}
	return text, nil
}
