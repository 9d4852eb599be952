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
	// keepEvery is the time between two checks whether the serving certificate must be renewed or written.
	keepEvery = 10 * time.Second
)

// always is the validity of the CA. It includes every time that a clock may show, before it is set or after a
// jump, so no other CA is needed. The serving certificate has the same NotBefore.
var always = certs.Period{From: time.Unix(0, 0).UTC(), To: time.Date(2120, 1, 1, 0, 0, 0, 0, time.UTC)}

// serving is the certificate with which the hub serves clients. Its directory also has the CA that clients of
// the node trust: ca.crt. A missing or old certificate is created. Only newServing and run use the disk:
// clients do not wait for it.
type serving struct {
	dir  string
	leaf certs.Leaf
	now  func() time.Time
	log  logr.Logger
	// written is when the newest of the files was written. After a power failure the clock may show an earlier
	// time.
	written time.Time
	// unreadable is why the files cannot be read. They are then not written, because they may become readable
	// again.
	unreadable error

	mu      sync.Mutex
	ca      certs.Pair
	server  certs.Pair
	current *tls.Certificate
	renewAt time.Time
	// lost is the problem of the CA, notRenewed why the certificate could not be renewed, and notKept why it
	// could not be written; nil if there is no problem.
	lost, notRenewed, notKept error
	// caKept and serverKept are whether the CA and the certificate are in the files.
	caKept, serverKept bool
}

// newServing returns the certificate for an address.
func newServing(dir, listen string, now func() time.Time, log logr.Logger) (*serving, error) {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return nil, fmt.Errorf("parsing the address of the hub: %w", err)
	}
	s := &serving{dir: dir, leaf: certs.Leaf{CommonName: "atoll-hub", Names: []string{host, "localhost"}}, now: now, log: log}
	s.unreadable = os.MkdirAll(dir, 0o700)
	s.ca, s.server = s.read("ca"), s.read("tls")
	s.caKept, s.serverKept = true, true
	if err := s.findCA(); err != nil {
		return nil, err
	}
	if _, err := s.get(nil); err != nil {
		return nil, err
	}
	s.keep()
	if s.lost != nil {
		log.Error(s.lost, "The CA of the hub was lost")
	}
	return s, nil
}

// read reads a certificate and its key. A missing file gives an empty value.
func (s *serving) read(name string) certs.Pair {
	text := func(file string) []byte {
		path := filepath.Join(s.dir, file)
		text, err := files.Read(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.unreadable = errors.Join(s.unreadable, err)
		}
		if info, err := os.Stat(path); err == nil && info.ModTime().After(s.written) {
			s.written = info.ModTime()
		}
		return text
	}
	return certs.Pair{Cert: text(name + ".crt"), Key: text(name + ".key")}
}

// findCA uses the CA in the files if possible, because clients trust it. Otherwise it sets lost.
func (s *serving) findCA() error {
	nothing := len(s.ca.Cert)+len(s.ca.Key)+len(s.server.Cert)+len(s.server.Key) == 0
	if cert := certs.SigningCA(s.ca); cert != nil && (isFor(cert, always) || !certs.IsOwnCA(cert)) {
		return nil
	}
	if served := certs.Verified(s.server, s.ca, s.leaf); served != nil && certs.SigningCA(s.ca) == nil {
		s.lost = fmt.Errorf("the certificate is valid until %s and cannot be renewed, because %s is not the key of ca.crt; put the key back and restart the hub, or remove the directory, restart the hub, and give the new ca.crt to all clients",
			served.NotAfter.UTC().Format(time.RFC3339), filepath.Join(s.dir, "ca.key"))
		return nil
	}
	s.caKept = false
	// With the same key, clients that have read the earlier CA still trust the hub.
	ca, err := certs.NewCAFor(s.ca.Key, always)
	if err == nil && len(s.ca.Key) > 0 {
		s.log.Info("Creating a new certificate of the hub's CA with the same key", "file", filepath.Join(s.dir, "ca.crt"))
		if old := certs.SigningCA(s.ca); old == nil && len(s.server.Cert) > 0 && certs.Verified(s.server, ca, s.leaf) == nil {
			s.lost = s.anotherCA()
		}
		s.ca = ca
		return nil
	}
	if s.ca, err = certs.NewCAFor(nil, always); err != nil {
		return err
	}
	if !nothing || s.unreadable != nil {
		s.lost = s.anotherCA()
	}
	return nil
}

func (s *serving) anotherCA() error {
	return fmt.Errorf("the CA in %s was missing, damaged or cannot be read, and was replaced by a new one; let all clients read the new ca.crt, or put the old ca.crt and ca.key back and restart the hub", s.dir)
}

// isFor reports whether a certificate is valid for a period.
func isFor(cert *x509.Certificate, period certs.Period) bool {
	return cert.NotBefore.Equal(period.From) && cert.NotAfter.Equal(period.To)
}

// isNow reports whether a certificate is valid at a time.
func isNow(cert *x509.Certificate, at time.Time) bool {
	return !at.Before(cert.NotBefore) && !at.After(cert.NotAfter)
}

// get returns the certificate. It first renews it if it is due. If that fails, the last one stays in use.
func (s *serving) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != nil && s.now().Before(s.renewAt) {
		return s.current, nil
	}
	if err := s.renewLocked(); err != nil {
		if s.current == nil {
			return nil, err
		}
		if s.notRenewed == nil {
			s.log.Error(err, "Renewing the hub's certificate failed")
		}
		s.notRenewed = err
		return s.current, nil
	}
	s.notRenewed = nil
	return s.current, nil
}

// renewLocked uses the present certificate if it is new enough or cannot be renewed, otherwise a new one. The
// NotBefore of a certificate of an earlier version depends on the clock, and may be in the future.
func (s *serving) renewLocked() error {
	at := s.now()
	if at.Before(s.written) {
		at = s.written
	}
	if ca := certs.SigningCA(s.ca); ca != nil {
		cert := certs.Verified(s.server, s.ca, s.leaf)
		if cert == nil || cert.NotBefore.After(ca.NotBefore) || !at.Before(cert.NotAfter.Add(-renewBefore)) {
			server, err := certs.IssueFor(s.ca, s.leaf, certs.Period{From: ca.NotBefore, To: at.Add(certs.ServerLifetime)})
			if err != nil {
				return err
			}
			s.server, s.serverKept = server, false
		}
	} else if s.current != nil {
		return errors.New("the key of the CA is missing")
	}
	pair, err := tls.X509KeyPair(s.server.Cert, s.server.Key)
	if err != nil {
		return fmt.Errorf("reading the hub's certificate: %w", err)
	}
	s.current, s.renewAt = &pair, pair.Leaf.NotAfter.Add(-renewBefore)
	return nil
}

// run renews the certificate, and repeats failed writes, until ctx is done.
func (s *serving) run(ctx context.Context) {
	every(ctx, keepEvery, func() {
		_, _ = s.get(nil) // get logs its errors
		s.keep()
	})
}

// keep writes the CA and the certificate if the files have others. If this fails, both are created again after
// a restart.
func (s *serving) keep() {
	s.mu.Lock()
	ca, server, caKept, serverKept, before := s.ca, s.server, s.caKept, s.serverKept, s.notKept
	s.mu.Unlock()
	if caKept && serverKept {
		return
	}
	err := s.unreadable
	if err == nil && !caKept {
		err = s.write("ca", ca)
		caKept = err == nil
	}
	if err == nil && !serverKept {
		err = s.write("tls", server)
		serverKept = err == nil
	}
	if err != nil && before == nil {
		s.log.Error(err, "Storing the hub's certificate failed")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.caKept, s.notKept = caKept, err
	s.serverKept = serverKept && string(server.Cert) == string(s.server.Cert) // false if it was renewed meanwhile
}

func (s *serving) write(name string, pair certs.Pair) error {
	err := errors.Join(files.Write(filepath.Join(s.dir, name+".key"), pair.Key), files.Write(filepath.Join(s.dir, name+".crt"), pair.Cert))
	if err != nil {
		return fmt.Errorf("storing a certificate of the hub: %w", err)
	}
	return nil
}

// state returns when the certificate expires, and all problems in one line.
func (s *serving) state() (time.Time, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var problems []string
	if leaf := s.current.Leaf; !isNow(leaf, s.now()) {
		problems = append(problems, fmt.Sprintf("it is only valid from %s to %s", leaf.NotBefore.UTC().Format(time.RFC3339), leaf.NotAfter.UTC().Format(time.RFC3339)))
	}
	for _, err := range []error{s.lost, s.notRenewed} {
		if err != nil {
			problems = append(problems, err.Error())
		}
	}
	if s.notKept != nil {
		problems = append(problems, fmt.Sprintf("it is not stored; a restart creates a new one, perhaps with a new CA: %s", s.notKept))
	}
	if len(problems) == 0 {
		return s.current.Leaf.NotAfter, nil
	}
	return s.current.Leaf.NotAfter, errors.New(strings.ReplaceAll(strings.Join(problems, "; "), "\n", "; "))
}
