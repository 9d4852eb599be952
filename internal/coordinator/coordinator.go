// Package coordinator is atoll-coordinator, the program in the pod of a pool's coordinator beside a stock
// kube-apiserver and etcd: it wires the packages below it. docs/pools.md tells what a coordinator is for.
//
//	records     which uploads are taken from whom
//	leadership  which hub of the pool leads
//	object      whether what is uploaded can be stored
//	writer      takes uploads, and puts them into etcd
//	usage       serves metrics.k8s.io: what nodes and pods use, for kubectl top
//	readonly    makes the API server one that only shows
//	prepare     what the containers of the pod need of each other
package coordinator

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/atoll-k8s/atoll/internal/coordinator/readonly"
	"github.com/atoll-k8s/atoll/internal/coordinator/usage"
	"github.com/atoll-k8s/atoll/internal/coordinator/writer"
	"github.com/atoll-k8s/atoll/internal/machinery/bounded"
	"github.com/atoll-k8s/atoll/internal/machinery/memory"
)

const (
	// maxConnections bounds those of all hubs, and maxStreams the requests at a time on each.
	maxConnections, maxStreams = 1024, 8
	// requestTime bounds how long a request may take to arrive, and responseTime until its answer is sent.
	requestTime, responseTime = 30 * time.Second, time.Minute
	// dialTimeout bounds a connection to etcd.
	dialTimeout = 5 * time.Second
)

// WriteOptions are those of Write. Paths are of files that may be replaced while it runs.
type WriteOptions struct {
	// Listen is the address and port at which hubs upload.
	Listen string
	// NodeName is the node of the pod, whose hub leads before others; "" if it is not known.
	NodeName string
	// Etcd is the endpoint of etcd.
	Etcd string
	// CertFile and KeyFile have the serving certificate, ClientCAFile the CAs of nodes' certificates, NodesFile the names
	// of the pool's nodes, one a line, and UploadFile what spec.upload of the YurtCoordinator has: nothing if there is
	// no such file.
	CertFile, KeyFile, ClientCAFile, NodesFile, UploadFile string
	// Kubeconfig is that of readonly.User, for the API server of the pod.
	Kubeconfig string
	// UsageListen is the address and port on loopback at which the API server of the pod asks for metrics.k8s.io, and
	// FrontProxyCAFile the CA of the certificate that it shows.
	UsageListen, FrontProxyCAFile string
	// HubCertFile and HubKeyFile have the certificate with which hubs are asked, and PoolCAFile the CA of the pool.
	HubCertFile, HubKeyFile, PoolCAFile string
	Log                                 logr.Logger
}

// Write runs the writer until ctx is done.
func Write(ctx context.Context, o WriteOptions) error {
	memory.Bound(memory.OfControlGroup(os.DirFS("/")))
	config, err := clientcmd.BuildConfigFromFlags("", o.Kubeconfig)
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{o.Etcd}, DialTimeout: dialTimeout, Logger: zap.NewNop(), DialOptions: []grpc.DialOption{
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 2, MaxDelay: time.Second}, MinConnectTimeout: dialTimeout}),
	}})
	if err != nil {
		return fmt.Errorf("making a client of etcd: %w", err)
	}
	defer etcd.Close()
	nodes, uploads := func() ([]string, error) { return readNodes(o.NodesFile) }, func() ([]string, error) { return readUploads(o.UploadFile) }
	w := writer.New(writer.NewEtcd(etcd), o.NodeName, nodes, uploads, writer.DefaultLimits, o.Log)
	port := &bounded.Port{
		Name: "uploads", Address: o.Listen, Handler: w.Handler(), Connections: maxConnections, NoOwnProbes: true, Streams: maxStreams,
		RequestTime: requestTime, ResponseTime: responseTime, Log: o.Log,
		// Files are read at each handshake: nobody has to notice that one was replaced.
		TLS: &tls.Config{MinVersion: tls.VersionTLS13, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return o.tls(o.ClientCAFile) }},
	}
	if _, err := o.tls(o.ClientCAFile); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var running sync.WaitGroup
	running.Go(func() { w.Run(ctx) })
	failed := make(chan error, 2)
	beside := func(run func() error) {
		running.Go(func() {
			failed <- run()
			cancel()
		})
	}
	beside(func() error { return readonly.Run(ctx, config, w.TakesSecrets, o.Log) })
	beside(func() error {
		return usage.Run(ctx, usage.Options{
			Listen: o.UsageListen, TLS: func() (*tls.Config, error) { return o.tls(o.FrontProxyCAFile) }, Config: config,
			CertFile: o.HubCertFile, KeyFile: o.HubKeyFile, CAFile: o.PoolCAFile,
			Nodes: nodes, Log: o.Log,
		})
	})
	err = port.Start(ctx)
	cancel()
	running.Wait()
	return errors.Join(err, <-failed, <-failed)
}

// tls returns the configuration for a handshake with clients whose certificates are of these CAs.
func (o *WriteOptions) tls(clientCAs string) (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("reading the serving certificate: %w", err)
	}
	text, err := os.ReadFile(clientCAs)
	if err != nil {
		return nil, fmt.Errorf("reading the CAs of clients: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s has no certificate", clientCAs)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: roots,
		NextProtos: []string{"h2", "http/1.1"},
	}, nil
}

// readNodes reads the names of nodes, one a line.
func readNodes(path string) ([]string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if len(bytes.TrimSpace(text)) == 0 {
		return nil, errors.New("the file is empty")
	}
	return strings.Fields(string(text)), nil
}

// readUploads reads what is to be uploaded beside what always is, one kind a line.
func readUploads(path string) ([]string, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return strings.Fields(string(text)), err
}
