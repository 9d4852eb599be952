// Package certs makes and judges certificates: a CA, and those of servers and clients that it
// signs. It knows neither where they are kept nor who uses them.
//
// All keys are ECDSA P-256. No key is ever logged.
package certs

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
	// CALifetime is how long a CA certificate is valid. kube-scheduler reads its CA file
	// only when it starts, so a CA has to be valid longer than any kube-scheduler runs.
	CALifetime = 10 * 365 * 24 * time.Hour
	// ServerLifetime is how long a server certificate is valid.
	ServerLifetime = 90 * 24 * time.Hour
	// ClientLifetime is how long a client certificate is valid. It is longer than
	// ServerLifetime because in some clusters people copy this certificate by hand.
	ClientLifetime = 365 * 24 * time.Hour
	// backdate is how long before its creation a certificate begins to be valid, so that
	// machines whose clocks are slow accept it.
	backdate = 10 * time.Minute
)

// Pair is a certificate, or a bundle of certificates, with the key of the first one. All
// are PEM.
type Pair struct {
	Cert, Key []byte
}

// Leaf describes a certificate that is not a CA.
type Leaf struct {
	// CommonName is the common name of the holder.
	CommonName string
	// Names are the DNS names and IP addresses of a server. A certificate without names
	// is a client certificate.
	Names []string
}

// NewCA creates a CA that is valid from now on.
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

// Issue creates a key and a certificate that the CA signs.
func Issue(ca Pair, leaf Leaf, now time.Time) (Pair, error) {
	caCert, err := ParseCert(ca.Cert)
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

// sign creates a key and a certificate for it. Without a parent the certificate is
// self-signed.
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

// Fresh returns true if the CA has signed the pair, it is for the common name and all
// names of the leaf, and it is in the first two thirds of its lifetime.
func Fresh(pair, ca Pair, leaf Leaf, now time.Time) bool {
	cert, err := ParseCert(pair.Cert)
	if err != nil {
		return false
	}
	key, err := parseKey(pair.Key)
	if err != nil || !key.PublicKey.Equal(cert.PublicKey) {
		return false
	}
	caCert, err := ParseCert(ca.Cert)
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

// FreshCA returns true if the CA can sign and is in the first two thirds of its lifetime.
func FreshCA(ca Pair, now time.Time) bool {
	cert, err := ParseCert(ca.Cert)
	if err != nil || !cert.IsCA {
		return false
	}
	key, err := parseKey(ca.Key)
	return err == nil && key.PublicKey.Equal(cert.PublicKey) && young(cert, now)
}

// young returns true in the first two thirds of a certificate's lifetime.
func young(cert *x509.Certificate, now time.Time) bool {
	life := cert.NotAfter.Sub(cert.NotBefore)
	return !now.Before(cert.NotBefore) && now.Before(cert.NotBefore.Add(life*2/3))
}

// ParseCert returns the first certificate of a PEM text.
func ParseCert(data []byte) (*x509.Certificate, error) {
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
