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
	// renewBefore is how long before its end the serving certificate is renewed.
	renewBefore = certs.ServerLifetime / 3
	// keepEvery is the time between two looks at whether the serving certificate is to be renewed, or
	// written.
	keepEvery = 10 * time.Second
)

// always is how long the CA is valid: whatever a clock says, before it is set or after a jump, makes no
// other CA. The serving certificate is valid from the same time on.
var always = certs.Period{From: time.Unix(0, 0).UTC(), To: time.Date(2120, 1, 1, 0, 0, 0, 0, time.UTC)}

// serving is the certificate with which the hub serves, in a directory that also has the CA which
// clients of the node trust: ca.crt. What is missing, or not fresh, is made. Only newServing and run use
// the disk: no client waits for it.
type serving struct {
	dir  string
	leaf certs.Leaf
	now  func() time.Time
	log  logr.Logger
	// written is when the newest of the files was written. After a loss of power the clock may be behind it.
	written time.Time
	// unreadable is why the files are not written either: they may be readable again.
	unreadable error

	mu      sync.Mutex
	ca      certs.Pair
	server  certs.Pair
	current *tls.Certificate
	renewAt time.Time
	// lost is what is wrong with the CA, notRenewed why there is no newer certificate, and notKept why the
	// files have another one; nil if all is well.
	lost, notRenewed, notKept error
	// caKept and serverKept tell that the files have the CA and the certificate.
	caKept, serverKept bool
}

// newServing returns the certificate for serving at an address.
func newServing(dir, listen string, now func() time.Time, log logr.Logger) (*serving, error) {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return nil, fmt.Errorf("reading the address of the hub: %w", err)
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

// read reads a pair. What is missing is empty.
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

// findCA uses the CA of the files as long as that is possible, because clients trust it, and says why it
// is not.
func (s *serving) findCA() error {
	nothing := len(s.ca.Cert)+len(s.ca.Key)+len(s.server.Cert)+len(s.server.Key) == 0
	if cert := certs.SigningCA(s.ca); cert != nil && (isFor(cert, always) || !certs.IsOwnCA(cert)) {
		return nil
	}
	if served := certs.Verified(s.server, s.ca, s.leaf); served != nil && certs.SigningCA(s.ca) == nil {
		s.lost = fmt.Errorf("the certificate serves until %s, and cannot be renewed, because %s is not the key of ca.crt; put the key back and restart the hub, or remove the directory, restart the hub, and give the new ca.crt to all clients",
			served.NotAfter.UTC().Format(time.RFC3339), filepath.Join(s.dir, "ca.key"))
		return nil
	}
	s.caKept = false
	// With the same key, clients that have read the CA before go on.
	ca, err := certs.NewCAFor(s.ca.Key, always)
	if err == nil && len(s.ca.Key) > 0 {
		s.log.Info("The certificate of the hub's CA is made anew with its key", "file", filepath.Join(s.dir, "ca.crt"))
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
	return fmt.Errorf("the CA in %s was missing, damaged or cannot be read, and is another one now; let all clients read the new ca.crt, or put the old ca.crt and ca.key back and restart the hub", s.dir)
}

// isFor reports whether a certificate is valid for a period.
func isFor(cert *x509.Certificate, period certs.Period) bool {
	return cert.NotBefore.Equal(period.From) && cert.NotAfter.Equal(period.To)
}

// isNow reports whether a certificate is valid at a time.
func isNow(cert *x509.Certificate, at time.Time) bool {
	return !at.Before(cert.NotBefore) && !at.After(cert.NotAfter)
}

// get returns the certificate, renewed if it is not fresh. If it cannot be renewed, the last one
// serves on.
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
			s.log.Error(err, "The hub's certificate is not renewed")
		}
		s.notRenewed = err
		return s.current, nil
	}
	s.notRenewed = nil
	return s.current, nil
}

// renewLocked uses the certificate that is there, if it is fresh or cannot be renewed, or a new one. One
// that an earlier version made begins to be valid when a clock said so, which may be a time to come.
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
		return errors.New("the key of the CA is lost")
	}
	pair, err := tls.X509KeyPair(s.server.Cert, s.server.Key)
	if err != nil {
		return fmt.Errorf("reading the hub's certificate: %w", err)
	}
	s.current, s.renewAt = &pair, pair.Leaf.NotAfter.Add(-renewBefore)
	return nil
}

// run renews the certificate, and writes what could not be written, until ctx is done.
func (s *serving) run(ctx context.Context) {
	every(ctx, keepEvery, func() {
		_, _ = s.get(nil) // it is logged
		s.keep()
	})
}

// keep writes the CA and the certificate, if the files have others. If it fails they are made again
// after a restart.
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
		s.log.Error(err, "The hub's certificate is not kept")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.caKept, s.notKept = caKept, err
	s.serverKept = serverKept && string(server.Cert) == string(s.server.Cert) // else it was renewed meanwhile
}

func (s *serving) write(name string, pair certs.Pair) error {
	err := errors.Join(files.Write(filepath.Join(s.dir, name+".key"), pair.Key), files.Write(filepath.Join(s.dir, name+".crt"), pair.Cert))
	if err != nil {
		return fmt.Errorf("keeping a certificate of the hub: %w", err)
	}
	return nil
}

// state returns when the certificate expires, and what is wrong, in one line.
func (s *serving) state() (time.Time, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var problems []string
	if leaf := s.current.Leaf; !isNow(leaf, s.now()) {
		problems = append(problems, fmt.Sprintf("it is valid from %s only until %s", leaf.NotBefore.UTC().Format(time.RFC3339), leaf.NotAfter.UTC().Format(time.RFC3339)))
	}
	for _, err := range []error{s.lost, s.notRenewed} {
		if err != nil {
			problems = append(problems, err.Error())
		}
	}
	if s.notKept != nil {
		problems = append(problems, fmt.Sprintf("after a restart it is another one, perhaps with another CA: %s", s.notKept))
	}
	if len(problems) == 0 {
		return s.current.Leaf.NotAfter, nil
	}
	return s.current.Leaf.NotAfter, errors.New(strings.ReplaceAll(strings.Join(problems, "; "), "\n", "; "))
}
