package hub

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/atoll-k8s/atoll/internal/hub/config"
	"github.com/atoll-k8s/atoll/internal/hub/files"
	"github.com/atoll-k8s/atoll/internal/hub/nodecert"
	"github.com/atoll-k8s/atoll/internal/hub/panics"
	"github.com/atoll-k8s/atoll/internal/machinery/certs"
)

// followed are the CAs of the configuration. Their files are read again when they change.
type followed struct {
	cloud, clients *files.Value[*x509.CertPool]
	panics         *panics.Catcher
}

// newFollowed reads the CAs. Without them nobody could be recognized, and no API server.
func newFollowed(c *config.Configuration, caught *panics.Catcher, log logr.Logger) (*followed, error) {
	f := &followed{
		panics:  caught,
		cloud:   files.NewValue("the CAs of cloud.caFile", parsePool, log, c.Cloud.CAFile),
		clients: files.NewValue("the CAs of clientCAFile", parsePool, log, c.ClientCAFile),
	}
	return f, errors.Join(f.cloud.Read(), f.clients.Read())
}

// cloudRoots and clientRoots return the CAs of the API servers, and those of clients.
func (f *followed) cloudRoots() *x509.CertPool { return poolOf(f.cloud) }

func (f *followed) clientRoots() *x509.CertPool { return poolOf(f.clients) }

func poolOf(v *files.Value[*x509.CertPool]) *x509.CertPool {
	pool, err := v.Get()
	if err != nil {
		return x509.NewCertPool() // never: newFollowed has read it; and nil would be the CAs of the system
	}
	return pool
}

// run follows the files until ctx is done. One that hangs does not delay the other.
func (f *followed) run(ctx context.Context) {
	var wait sync.WaitGroup
	wait.Go(func() { f.panics.Keep(ctx, "following a file", f.cloud.Follow) })
	wait.Go(func() { f.panics.Keep(ctx, "following a file", f.clients.Follow) })
	wait.Wait()
}

func parsePool(texts [][]byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(texts[0]) {
		return nil, errors.New("it has no certificate in PEM")
	}
	return pool, nil
}

// nodeCertificate is the client certificate of the node: that of others, who renew it in its files, or
// one that the hub requests.
type nodeCertificate struct {
	get func() (*tls.Certificate, error)
	run func(context.Context)
	// state returns when it expires, zero if there is none, and what prevents that there is one, or a new
	// one.
	state func() (time.Time, error)
}

// newNodeCertificate returns the certificate of the configuration. It may be missing until the kubelet
// or the hub has got one. send sends a request to the cloud.
func newNodeCertificate(c *config.Configuration, send func(*http.Request, bool) (*http.Response, error), log logr.Logger) *nodeCertificate {
	if c.Cloud.BootstrapKubeconfig != "" {
		m := nodecert.New(nodecert.Options{
			NodeName: c.NodeName, Directory: filepath.Join(c.Directory, "client"), Bootstrap: c.Cloud.BootstrapKubeconfig, Send: send, Now: time.Now, Log: log.WithName("nodecert"),
		})
		return &nodeCertificate{m.Current, m.Run, m.State}
	}
	parse := func(texts [][]byte) (*tls.Certificate, error) {
		pair, err := tls.X509KeyPair(texts[0], texts[1])
		return &pair, err
	}
	v := files.NewValue("the node's certificate", parse, log, c.Cloud.CertificateFile, c.Cloud.KeyFile)
	_ = v.Read() // it is logged, and Follow reads on
	return &nodeCertificate{v.Get, v.Follow, func() (time.Time, error) {
		pair, err := v.Get()
		if err != nil {
			return time.Time{}, err
		}
		return pair.Leaf.NotAfter, nil
	}}
}

// serving is the certificate with which the hub serves, in a directory that also has the CA which
// clients of the node trust: ca.crt. What is missing, or not fresh, is made.
type serving struct {
	dir  string
	leaf certs.Leaf
	now  func() time.Time
	log  logr.Logger

	mu      sync.Mutex
	ca      certs.Pair
	server  certs.Pair
	current *tls.Certificate
}

// newServing returns the certificate for serving at an address.
func newServing(dir, listen string, now func() time.Time, log logr.Logger) (*serving, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the directory of the hub's certificates: %w", err)
	}
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return nil, fmt.Errorf("reading the address of the hub: %w", err)
	}
	s := &serving{dir: dir, leaf: certs.Leaf{CommonName: "atoll-hub", Names: []string{host, "localhost"}}, log: log}
	s.now = func() time.Time { return latest(now(), filepath.Join(dir, "ca.crt"), filepath.Join(dir, "tls.crt")) }
	s.ca, s.server = readPair(dir, "ca"), readPair(dir, "tls")
	if !certs.FreshCA(s.ca, s.now()) {
		if s.ca, err = certs.NewCA(s.now()); err == nil {
			err = writePair(dir, "ca", s.ca)
		}
		if err != nil {
			return nil, err
		}
	}
	_, err = s.get(nil)
	return s, err
}

// latest returns a time, or the latest at which one of the files was written, if that is later: after
// a loss of power the clock may be wrong until it is set, and clients trust the CA that is there.
func latest(at time.Time, files ...string) time.Time {
	for _, file := range files {
		if info, err := os.Stat(file); err == nil && info.ModTime().After(at) {
			at = info.ModTime()
		}
	}
	return at
}

// get returns the certificate, renewed if it is not fresh. If it cannot be renewed, the last one
// serves on.
func (s *serving) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != nil && certs.Fresh(s.server, s.ca, s.leaf, s.now()) {
		return s.current, nil
	}
	if err := s.renewLocked(); err != nil {
		if s.current == nil {
			return nil, err
		}
		s.log.Error(err, "The hub's certificate is not renewed")
	}
	return s.current, nil
}

func (s *serving) renewLocked() error {
	server := s.server
	if !certs.Fresh(server, s.ca, s.leaf, s.now()) {
		var err error
		if server, err = certs.Issue(s.ca, s.leaf, s.now()); err != nil {
			return err
		}
		if err := writePair(s.dir, "tls", server); err != nil { // it is made again after a restart
			s.log.Error(err, "The hub's certificate is not kept")
		}
	}
	pair, err := tls.X509KeyPair(server.Cert, server.Key)
	if err != nil {
		return fmt.Errorf("reading the hub's certificate: %w", err)
	}
	s.server, s.current = server, &pair
	return nil
}

// readPair reads a pair; it is empty if it cannot be read.
func readPair(dir, name string) certs.Pair {
	cert, _ := os.ReadFile(filepath.Join(dir, name+".crt"))
	key, _ := os.ReadFile(filepath.Join(dir, name+".key"))
	return certs.Pair{Cert: cert, Key: key}
}

func writePair(dir, name string, pair certs.Pair) error {
	err := errors.Join(files.Write(filepath.Join(dir, name+".key"), pair.Key), files.Write(filepath.Join(dir, name+".crt"), pair.Cert))
	if err != nil {
		return fmt.Errorf("keeping a certificate of the hub: %w", err)
	}
	return nil
}
