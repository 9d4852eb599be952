package hub

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/atoll-k8s/atoll/internal/machinery/certs"
)

// certificateFile is a client certificate that others renew in its files.
type certificateFile struct {
	cert, key string

	mu      sync.Mutex
	changed time.Time // when the file that was read had changed
	read    *tls.Certificate
}

// get returns the certificate as it is in its files now, or the last one that could be read.
func (f *certificateFile) get() (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	info, err := os.Stat(f.cert)
	if err == nil && f.read != nil && info.ModTime().Equal(f.changed) {
		return f.read, nil
	}
	var pair tls.Certificate
	if err == nil {
		pair, err = tls.LoadX509KeyPair(f.cert, f.key)
	}
	if err != nil {
		if f.read != nil {
			return f.read, nil
		}
		return nil, fmt.Errorf("reading the node's certificate: %w", err)
	}
	f.read, f.changed = &pair, info.ModTime()
	return f.read, nil
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
	err := errors.Join(writeFile(filepath.Join(dir, name+".key"), pair.Key), writeFile(filepath.Join(dir, name+".crt"), pair.Cert))
	if err != nil {
		return fmt.Errorf("keeping a certificate of the hub: %w", err)
	}
	return nil
}
