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

// servingCertificate returns the certificate with which the hub serves at an address, from a
// directory that also has the CA which clients of the node trust: ca.crt. What is missing, or not
// fresh, is made.
func servingCertificate(dir, listen string, now time.Time) (tls.Certificate, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return tls.Certificate{}, fmt.Errorf("making the directory of the hub's certificates: %w", err)
	}
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("reading the address of the hub: %w", err)
	}
	leaf := certs.Leaf{CommonName: "atoll-hub", Names: []string{host, "localhost"}}
	ca, server := readPair(dir, "ca"), readPair(dir, "tls")
	if !certs.FreshCA(ca, now) {
		if ca, err = certs.NewCA(now); err != nil {
			return tls.Certificate{}, err
		}
		if err := writePair(dir, "ca", ca); err != nil {
			return tls.Certificate{}, err
		}
	}
	if !certs.Fresh(server, ca, leaf, now) {
		if server, err = certs.Issue(ca, leaf, now); err != nil {
			return tls.Certificate{}, err
		}
		if err := writePair(dir, "tls", server); err != nil {
			return tls.Certificate{}, err
		}
	}
	return tls.X509KeyPair(server.Cert, server.Key)
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
