// Package pki makes and keeps the certificates with which the parts of Atoll
// trust each other: one CA, a server certificate for atoll-manager's webhooks
// and extender, and a client certificate for kube-scheduler. They live in
// Secrets, are made when missing and renewed at two thirds of their life.
//
// ECDSA P-256 throughout. No key is ever logged.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"time"

	"k8s.io/client-go/util/keyutil"
)

const (
	// CALifetime is how long a CA certificate is valid. kube-scheduler reads
	// its CA file only once, so the CA outlives any scheduler process.
	CALifetime = 10 * 365 * 24 * time.Hour
	// ServerLifetime is how long a server certificate is valid.
	ServerLifetime = 90 * 24 * time.Hour
	// ClientLifetime is how long a client certificate is valid. In some clusters
	// people copy kube-scheduler's by hand.
	ClientLifetime = 365 * 24 * time.Hour
	// backdate makes certificates valid on machines whose clocks are behind.
	backdate = 10 * time.Minute
)

// Pair is a certificate with its key, both PEM.
type Pair struct {
	Cert, Key []byte
}

// Leaf says what a certificate is for.
type Leaf struct {
	// CommonName names the holder.
	CommonName string
	// Names are the DNS names and IP addresses of a server; a certificate
	// without names is a client's.
	Names []string
}

// NewCA makes a CA that is valid from now on.
func NewCA(now time.Time) (Pair, error) {
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "atoll-ca"},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(CALifetime),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	return sign(template, nil, nil)
}

// Issue makes a certificate that the CA has signed.
func Issue(ca Pair, leaf Leaf, now time.Time) (Pair, error) {
	caCert, err := parseCert(ca.Cert)
	if err != nil {
		return Pair{}, fmt.Errorf("reading the CA: %w", err)
	}
	caKey, err := parseKey(ca.Key)
	if err != nil {
		return Pair{}, fmt.Errorf("reading the CA's key: %w", err)
	}
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: leaf.CommonName},
		NotBefore:   now.Add(-backdate),
		NotAfter:    now.Add(ClientLifetime),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if len(leaf.Names) > 0 {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		template.NotAfter = now.Add(ServerLifetime)
	}
	for _, name := range leaf.Names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	return sign(template, caCert, caKey)
}

func sign(template, parent *x509.Certificate, parentKey *ecdsa.PrivateKey) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("making a key: %w", err)
	}
	template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return Pair{}, fmt.Errorf("making a serial number: %w", err)
	}
	if parent == nil {
		parent, parentKey = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), parentKey)
	if err != nil {
		return Pair{}, fmt.Errorf("signing a certificate for %q: %w", template.Subject.CommonName, err)
	}
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return Pair{}, fmt.Errorf("encoding a key: %w", err)
	}
	return Pair{Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), Key: keyPEM}, nil
}

// Fresh tells whether the pair was signed by the CA for what the leaf says and
// is in the first two thirds of its life.
func Fresh(pair, ca Pair, leaf Leaf, now time.Time) bool {
	cert, err := parseCert(pair.Cert)
	if err != nil {
		return false
	}
	key, err := parseKey(pair.Key)
	if err != nil || !key.PublicKey.Equal(cert.PublicKey) {
		return false
	}
	caCert, err := parseCert(ca.Cert)
	if err != nil || cert.CheckSignatureFrom(caCert) != nil || cert.Subject.CommonName != leaf.CommonName {
		return false
	}
	for _, name := range leaf.Names {
		if cert.VerifyHostname(name) != nil {
			return false
		}
	}
	return young(cert, now)
}

// freshCA tells whether a CA can go on signing.
func freshCA(ca Pair, now time.Time) bool {
	cert, err := parseCert(ca.Cert)
	if err != nil || !cert.IsCA {
		return false
	}
	key, err := parseKey(ca.Key)
	return err == nil && key.PublicKey.Equal(cert.PublicKey) && young(cert, now)
}

func young(cert *x509.Certificate, now time.Time) bool {
	life := cert.NotAfter.Sub(cert.NotBefore)
	return !now.Before(cert.NotBefore) && now.Before(cert.NotBefore.Add(life*2/3))
}

func parseCert(data []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, errors.New("no PEM block of type CERTIFICATE")
	}
	return x509.ParseCertificate(block.Bytes)
}

func parseKey(data []byte) (*ecdsa.PrivateKey, error) {
	key, err := keyutil.ParsePrivateKeyPEM(data)
	if err != nil {
		return nil, err
	}
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("not an ECDSA key but a %T", key)
	}
	return ec, nil
}
