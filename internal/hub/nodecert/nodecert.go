// Package nodecert requests certificates of the node from the API servers, and renews them. It requests the
// client certificate as a kubelet does: by a CertificateSigningRequest, first with a bootstrap token and later
// with the certificate itself. It requests certificates of other signers always as the node. The package must
// not know how the API servers are reached.
//
// It does not use k8s.io/client-go/util/certificate. That package needs the clients of all kinds: 13 MB of
// program and 10 MB of memory on each node. At its start it also forgets a certificate that looks expired,
// which any certificate does if the clock is wrong after a power failure, and it fails if its file is damaged.
package nodecert

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/atoll-k8s/atoll/internal/hub/files"
)

const (
	// lookEvery is the time between two checks whether the certificate is due, and the longest time between two
	// checks whether a request is approved. askAfter is the time until the first check of a request.
	lookEvery, askAfter = time.Minute, 5 * time.Second
	// againAfter is the time until a failed attempt is repeated. It doubles up to maxAgain. After a refusal it
	// is afterRefusal, because each attempt leaves a CertificateSigningRequest in the API server.
	againAfter, maxAgain, afterRefusal = 2 * time.Second, 30 * time.Second, 10 * time.Minute
	// answerWithin is how long to wait for a response.
	answerWithin = 15 * time.Second
	// renewFrom is the earliest part of its lifetime after which a certificate is renewed. A random part of up
	// to renewSpread is added, so that the nodes of a cluster do not renew at the same time.
	renewFrom, renewSpread = 0.7, 0.2
)

// The files in the directory of a Manager.
const (
	certFile    = "node.pem"    // the certificate, and its key
	pendingFile = "pending.key" // the key of the request in progress
)

// Options configure a Manager.
type Options struct {
	// NodeName is the name of the node.
	NodeName string
	// Directory is where the certificate is stored. It is created with mode 0700.
	Directory string
	// Bootstrap is the path of a kubeconfig with a bootstrap token. It is read only when there is no usable
	// certificate.
	Bootstrap string
	// Purpose is the purpose of the certificate; nil for the client certificate of the node. Bootstrap is not
	// used with a purpose.
	Purpose *Purpose
	// Send sends a request to an API server: as the node, with its client certificate, or with the credentials
	// in its headers.
	Send func(r *http.Request, asNode bool) (*http.Response, error)
	// Now is the clock.
	Now func() time.Time
	Log logr.Logger
}

// Purpose is the purpose of a certificate other than the client certificate of the node.
type Purpose struct {
	Signer string
	Usages []certificatesv1.KeyUsage
	// Wanted returns the addresses for the certificate, and the CAs that clients trust. While it returns an
	// error, no certificate is requested.
	Wanted func() (addresses []net.IP, roots *x509.CertPool, err error)
	// RenewFrom is the part of its lifetime after which a certificate is renewed.
	RenewFrom float64
}

// Manager requests, stores and renews one certificate of the node. It is safe for concurrent use.
type Manager struct {
	o Options
	// repeats is how many attempts before the last one had the same outcome. wasWaiting is whether the request
	// was waiting for approval at the last attempt. Only Run uses repeats, wasWaiting, share and pending.
	repeats    int
	wasWaiting bool
	// share is the part of the lifetime of the current certificate after which it is renewed.
	share float64
	// pending is the key of the request in progress; nil if there is none.
	pending *ecdsa.PrivateKey

	mu      sync.Mutex
	current *tls.Certificate
	unsaved []byte // the certificate and its key, if they are not on disk
	problem error  // why there is no certificate, or no renewed one
}

// New returns a Manager with the stored certificate, if there is one.
func New(o Options) *Manager {
	m := &Manager{o: o}
	m.share = m.nextShare()
	text, err := files.Read(m.path(certFile))
	if err == nil {
		var pair *tls.Certificate
		if pair, err = parsePair(text, text, o.NodeName); err == nil {
			m.current = pair
			return m
		}
	}
	m.problem = errors.New("not requested yet")
	if !errors.Is(err, os.ErrNotExist) {
		o.Log.Error(err, "The stored certificate of the node cannot be read; requesting a new one", "file", m.path(certFile))
	}
	return m
}

func (m *Manager) nextShare() float64 {
	from := renewFrom
	if m.o.Purpose != nil {
		from = m.o.Purpose.RenewFrom
	}
	return from + rand.Float64()*renewSpread
}

func (m *Manager) path(name string) string { return filepath.Join(m.o.Directory, name) }

// Current returns the certificate. An expired certificate is an error, but is not removed: it is valid again if
// the clock is set back.
func (m *Manager) Current() (*tls.Certificate, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.current == nil:
		return nil, m.problem
	case isExpired(m.current.Leaf, m.o.Now()):
		why := m.problem
		if why == nil {
			why = errors.New("not renewed")
		}
		return nil, fmt.Errorf("the certificate expired at %s: %w", m.current.Leaf.NotAfter.UTC().Format(time.RFC3339), why)
	}
	return m.current, nil
}

// State returns when the certificate expires (zero if there is none), and why there is no certificate or it was
// not renewed (nil if there is no problem).
func (m *Manager) State() (expires time.Time, problem error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.current != nil {
		expires = m.current.Leaf.NotAfter
	}
	return expires, m.problem
}

// Run requests the certificate, and renews it, until ctx is done.
func (m *Manager) Run(ctx context.Context) {
	for {
		pause := lookEvery
		switch isDue, err := m.isDue(); {
		case err != nil:
			pause = againAfter
		case isDue:
			pause = m.attempt(ctx)
		}
		m.save()
		timer := time.NewTimer(pause + rand.N(pause/5+1))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

func isExpired(leaf *x509.Certificate, now time.Time) bool { return now.After(leaf.NotAfter) }

// renewAt returns when a certificate is due: after the given part of its lifetime.
func renewAt(leaf *x509.Certificate, share float64) time.Time {
	return leaf.NotBefore.Add(time.Duration(share * float64(leaf.NotAfter.Sub(leaf.NotBefore))))
}

// isDue reports whether a certificate must be requested now. The error is from Wanted.
func (m *Manager) isDue() (bool, error) {
	if p := m.o.Purpose; p != nil {
		if _, _, err := p.Wanted(); err != nil {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.problem = err
			return false, err
		}
	}
	m.mu.Lock()
	current := m.current
	m.mu.Unlock()
	isDue := current == nil || !m.o.Now().Before(renewAt(current.Leaf, m.share)) || m.o.Purpose.misfit(current.Leaf) != nil
	if m.o.Purpose != nil && !isDue {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.problem = nil
	}
	return isDue, nil
}

// misfit returns why a certificate cannot be used for a purpose; nil if it can, or if Wanted fails. It does not
// check whether the certificate has expired.
func (p *Purpose) misfit(leaf *x509.Certificate) error {
	if p == nil {
		return nil
	}
	addresses, roots, unknown := p.Wanted()
	if unknown != nil {
		return nil //nolint:nilerr // the current certificate stays in use
	}
	if !slices.EqualFunc(addresses, leaf.IPAddresses, net.IP.Equal) {
		return fmt.Errorf("the certificate is for the addresses %v, not for %v", leaf.IPAddresses, addresses)
	}
	_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: leaf.NotBefore, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	return err
}

// attempt makes one attempt, and returns the time until the next one.
func (m *Manager) attempt(ctx context.Context) time.Duration {
	err := m.request(ctx)
	if ctx.Err() != nil {
		return lookEvery
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	isNew := err != nil && (m.problem == nil || m.problem.Error() != err.Error())
	m.problem = err
	var waits *waitsError
	isWaiting := errors.As(err, &waits)
	if m.repeats++; err == nil || isWaiting != m.wasWaiting {
		m.repeats = 0
	}
	m.wasWaiting = isWaiting
	doubled := func(from, limit time.Duration) time.Duration { return min(from<<min(m.repeats, 10), limit) }
	switch {
	case err == nil:
		m.o.Log.Info("The node has a new certificate", "expires", m.current.Leaf.NotAfter)
		return lookEvery
	case isWaiting:
		if isNew {
			m.o.Log.Info("The request for a certificate of the node waits for its approval", "certificateSigningRequest", waits.name)
		}
		return doubled(askAfter, lookEvery)
	}
	if isNew {
		m.o.Log.Error(err, "Requesting a certificate of the node failed")
	}
	if errors.Is(err, errRefused) {
		return afterRefusal
	}
	return doubled(againAfter, maxAgain)
}

// request creates the CertificateSigningRequest, or reads it, and uses the certificate if it is issued.
func (m *Manager) request(ctx context.Context) error {
	key, err := m.pendingKey()
	if err != nil {
		return err
	}
	csr, err := m.ensureRequest(ctx, key)
	if err != nil {
		return err
	}
	issued, err := judge(csr)
	if err != nil {
		if errors.Is(err, errRefused) {
			m.forgetPending()
		}
		return err
	}
	keyText, err := encodeKey(key)
	if err != nil {
		return err
	}
	pair, err := parsePair(issued, keyText, m.o.NodeName)
	if err != nil {
		m.forgetPending()
		return fmt.Errorf("reading the certificate of CertificateSigningRequest %q: %w: %w", csr.Name, errRefused, err)
	}
	m.mu.Lock()
	isOld := m.current != nil && m.current.Leaf.Equal(pair.Leaf)
	m.mu.Unlock()
	if isOld || isExpired(pair.Leaf, m.o.Now()) {
		m.forgetPending()
		return fmt.Errorf("reading the certificate of CertificateSigningRequest %q: it is not a new one: %w", csr.Name, errRefused)
	}
	if err := m.o.Purpose.misfit(pair.Leaf); err != nil {
		m.forgetPending()
		return fmt.Errorf("reading the certificate of CertificateSigningRequest %q: %w: %w", csr.Name, errRefused, err)
	}
	m.mu.Lock()
	m.current, m.unsaved = pair, append(append([]byte{}, issued...), keyText...)
	m.share = m.nextShare()
	m.mu.Unlock()
	m.save()
	return nil
}

// pendingKey returns the key of the request in progress. The key is stored, so that a restart does not create a
// second request.
func (m *Manager) pendingKey() (*ecdsa.PrivateKey, error) {
	if m.pending != nil {
		return m.pending, nil
	}
	if text, err := files.Read(m.path(pendingFile)); err == nil {
		if key, err := decodeKey(text); err == nil {
			m.pending = key
			return key, nil
		}
	}
	key, text, err := newKey()
	if err != nil {
		return nil, err
	}
	if err := m.write(pendingFile, text); err != nil {
		m.o.Log.Error(err, "Storing the key of a request failed; after a restart, the certificate is requested again")
	}
	m.pending = key
	return key, nil
}

func (m *Manager) forgetPending() {
	m.pending = nil
	if err := os.Remove(m.path(pendingFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		m.o.Log.Error(err, "Removing the key of a finished request failed")
	}
}

// save writes the certificate if it is not on disk. If that fails, the certificate stays in use and is written
// later. The key of its request is removed afterwards, so that a power failure leaves at least one of them.
func (m *Manager) save() {
	m.mu.Lock()
	text := m.unsaved
	m.mu.Unlock()
	if text == nil {
		return
	}
	if err := m.write(certFile, text); err != nil {
		m.o.Log.Error(err, "Storing the certificate of the node failed")
		return
	}
	m.mu.Lock()
	m.unsaved = nil
	m.mu.Unlock()
	m.forgetPending()
}

func (m *Manager) write(name string, text []byte) error {
	if err := os.MkdirAll(m.o.Directory, 0o700); err != nil {
		return fmt.Errorf("creating the directory of the node's certificate: %w", err)
	}
	if err := files.Write(m.path(name), text); err != nil {
		return fmt.Errorf("storing the node's certificate: %w", err)
	}
	return nil
}
