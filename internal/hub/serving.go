package hub

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/atoll-k8s/atoll/internal/hub/files"
	"github.com/atoll-k8s/atoll/internal/machinery/certs"
)

const (
	// renewBefore is how long before its expiry the serving certificate is renewed.
	renewBefore = certs.ServerLifetime / 3
	// keepEvery is the time between two attempts to write the CA.
	keepEvery = 10 * time.Second
)

// always is the validity of the CA. It includes every time that a clock may show, before it is set or after a
// jump, so no other CA is needed. The serving certificate has the same NotBefore.
var always = certs.Period{From: time.Unix(0, 0).UTC(), To: time.Date(2120, 1, 1, 0, 0, 0, 0, time.UTC)}

// serving is the certificate with which the hub serves clients. It is in memory only: each start of the hub issues
// another one. The CA that signs it is on disk, because clients of the node trust ca.crt. Only newServing and run
// use the disk: clients do not wait for it.
type serving struct {
	dir  string
	leaf certs.Leaf
	now  func() time.Time
	log  logr.Logger
	ca   certs.Pair
	cert *x509.Certificate // of the CA
	// lost is why clients that have read ca.crt before may not trust the hub. unreadable is why the files cannot be
	// read: they are then not written, because they may become readable again. Both are nil if there is no problem.
	lost, unreadable error

	mu      sync.Mutex
	current *tls.Certificate
	renewAt time.Time
	// notKept is why the CA could not be written; nil if it is in the files.
	notKept error
}

// newServing returns the certificate for an address.
func newServing(dir, listen string, now func() time.Time, log logr.Logger) (*serving, error) {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return nil, fmt.Errorf("parsing the address of the hub: %w", err)
	}
	s := &serving{dir: dir, leaf: certs.Leaf{CommonName: "atoll-hub", Names: []string{host, "localhost"}}, now: now, log: log}
	s.unreadable = os.MkdirAll(dir, 0o700)
	s.ca = certs.Pair{Cert: s.read("ca.crt"), Key: s.read("ca.key")}
	s.cert = certs.SigningCA(s.ca)
	if s.cert == nil || certs.IsOwnCA(s.cert) && (!s.cert.NotBefore.Equal(always.From) || !s.cert.NotAfter.Equal(always.To)) {
		if err := s.createCA(); err != nil {
			return nil, err
		}
		s.cert = certs.SigningCA(s.ca)
		s.keep()
	}
	if s.lost != nil {
		log.Error(s.lost, "The CA of the hub was lost")
	}
	_, err = s.get(nil)
	return s, err
}

// read reads a file. A missing file gives an empty value.
func (s *serving) read(name string) []byte {
	text, err := files.Read(filepath.Join(s.dir, name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.unreadable = errors.Join(s.unreadable, err)
	}
	return text
}

// createCA replaces the CA, with the same key if possible: clients that have read the earlier ca.crt then still
// trust the hub. Otherwise it sets lost, except if there was no CA.
func (s *serving) createCA() (err error) {
	old := s.ca
	another := fmt.Errorf("the CA in %s was missing or damaged, and was replaced by a new one; let all clients read the new ca.crt, or put the old ca.crt and ca.key back and restart the hub", s.dir)
	if len(old.Key) > 0 {
		if s.ca, err = certs.NewCAFor(old.Key, always); err == nil {
			s.log.Info("Creating a new certificate of the hub's CA with the same key", "file", filepath.Join(s.dir, "ca.crt"))
			if _, err := certs.ParseCert(old.Cert); err == nil && s.cert == nil { // ca.crt has another key
				s.lost = another
			}
			return nil
		}
	}
	switch {
	case s.unreadable != nil:
		s.lost = fmt.Errorf("the CA in %s cannot be read, so clients do not trust the hub; make it readable and restart the hub", s.dir)
	case len(old.Cert)+len(old.Key) > 0:
		s.lost = another
	}
	s.ca, err = certs.NewCAFor(nil, always)
	return err
}

// get returns the certificate. It first renews it if it is due: also if the clock was behind when it was issued, and
// is now set.
func (s *serving) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if s.current != nil && now.Before(s.renewAt) {
		return s.current, nil
	}
	issued, err := certs.IssueFor(s.ca, s.leaf, certs.Period{From: s.cert.NotBefore, To: now.Add(certs.ServerLifetime)})
	if err != nil {
		return nil, fmt.Errorf("issuing the hub's certificate: %w", err)
	}
	pair, err := tls.X509KeyPair(issued.Cert, issued.Key)
	if err != nil {
		return nil, fmt.Errorf("reading the hub's certificate: %w", err)
	}
	s.current, s.renewAt = &pair, pair.Leaf.NotAfter.Add(-renewBefore)
	return s.current, nil
}

// run repeats a failed write of the CA until ctx is done.
func (s *serving) run(ctx context.Context) {
	every(ctx, keepEvery, func() {
		if s.notKept != nil { // after newServing only run changes it
			s.keep()
		}
	})
}

// keep writes the CA. If this fails, a restart creates another one.
func (s *serving) keep() {
	err := s.unreadable
	if err == nil {
		err = errors.Join(files.Write(filepath.Join(s.dir, "ca.key"), s.ca.Key), files.Write(filepath.Join(s.dir, "ca.crt"), s.ca.Cert))
	}
	if err != nil && s.notKept == nil {
		s.log.Error(err, "Storing the hub's CA failed")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notKept = err
}

// state returns when the certificate expires, and all problems in one line.
func (s *serving) state() (time.Time, error) {
	leaf, err := s.get(nil)
	if err != nil {
		return time.Time{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var problems []string
	if now := s.now(); now.Before(s.cert.NotBefore) || now.After(s.cert.NotAfter) { // a CA of the user
		problems = append(problems, fmt.Sprintf("its CA is only valid from %s to %s", s.cert.NotBefore.UTC().Format(time.RFC3339), s.cert.NotAfter.UTC().Format(time.RFC3339)))
	}
	if s.lost != nil {
		problems = append(problems, s.lost.Error())
	}
	if s.notKept != nil {
		problems = append(problems, fmt.Sprintf("its CA is not stored, and a restart creates another one: %s", s.notKept))
	}
	if len(problems) == 0 {
		return leaf.Leaf.NotAfter, nil
	}
	return leaf.Leaf.NotAfter, errors.New(strings.ReplaceAll(strings.Join(problems, "; "), "\n", "; "))
}
