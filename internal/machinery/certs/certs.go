// Package certs makes and judges certificates: a CA, and those of servers and clients that it
// signs. It knows neither where they are kept nor who uses them.
//
// All keys are ECDSA P-256. No key is ever logged.
package certs

import (
	"bytes"
	"crypto"
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
	"slices"
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
	// caName is the common name of a CA.
	caName = "atoll-ca"
)

// Pair is a certificate, or a bundle of certificates, with the key of the first one. All
// are PEM.
type Pair struct {
	Cert, Key []byte
}

// Leaf describes a certificate that is not a CA.
type Leaf struct {
	// CommonName is the common name of the holder: a client's user.
	CommonName string
	// Groups are the organizations of the holder: a client's groups.
	Groups []string
	// Names are the DNS names and IP addresses of a server. A certificate without names
	// is a client certificate.
	Names []string
}

// Period is from when to when a certificate is valid.
type Period struct{ From, To time.Time }

// within returns what of the period is in that of a certificate.
func (p Period) within(c *x509.Certificate) Period {
	if p.From.Before(c.NotBefore) {
		p.From = c.NotBefore
	}
	if p.To.After(c.NotAfter) {
		p.To = c.NotAfter
	}
	return p
}

// NewCA creates a CA that is valid from now on.
func NewCA(now time.Time) (Pair, error) {
	return NewCAFor(nil, Period{now.Add(-backdate), now.Add(CALifetime)})
}

// KeepCA returns a CA that can sign: the given one in the first two thirds of its lifetime, else a new one that is
// valid for lifetime. The new one is a bundle: the certificate of the old CA stays behind it as long as that is valid,
// so that what the old one has signed stays trusted.
func KeepCA(ca Pair, lifetime time.Duration, now time.Time) (Pair, error) {
	if FreshCA(ca, now) {
		return ca, nil
	}
	fresh, err := NewCAFor(nil, Period{now.Add(-backdate), now.Add(lifetime)})
	if err != nil {
		return Pair{}, err
	}
	if cert, err := ParseCert(ca.Cert); err == nil && now.Before(cert.NotAfter) {
		fresh.Cert = append(bytes.TrimSpace(fresh.Cert), append([]byte("\n"), First(ca).Cert...)...)
	}
	return fresh, nil
}

// First returns the pair with only the first certificate of its bundle, which is the one that the key belongs to.
func First(p Pair) Pair {
	const end = "-----END CERTIFICATE-----"
	if i := bytes.Index(p.Cert, []byte(end)); i >= 0 {
		p.Cert = append(bytes.Clone(p.Cert[:i+len(end)]), '\n')
	}
	return p
}

// NewCAFor creates a CA that is valid for a period. key is its key in PEM, or nil for a new one. Who
// trusts another CA of NewCA or NewCAFor with this key trusts what this one signs.
func NewCAFor(key []byte, period Period) (Pair, error) {
	var own *ecdsa.PrivateKey
	if key != nil {
		var err error
		if own, err = parseKey(key); err != nil {
			return Pair{}, fmt.Errorf("reading the CA's key: %w", err)
		}
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: caName},
		NotBefore:             period.From,
		NotAfter:              period.To,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	return sign(template, own, nil, nil)
}

// Issue creates a key and a certificate that the CA signs, valid from now on.
func Issue(ca Pair, leaf Leaf, now time.Time) (Pair, error) {
	return IssueFor(ca, leaf, periodOf(leaf, now))
}

func periodOf(leaf Leaf, now time.Time) Period {
	period := Period{now.Add(-backdate), now.Add(ClientLifetime)}
	if len(leaf.Names) > 0 {
		period.To = now.Add(ServerLifetime)
	}
	return period
}

// IssueUnder is Issue for a certificate that does not outlive its CA.
func IssueUnder(ca Pair, leaf Leaf, now time.Time) (Pair, error) {
	cert, err := ParseCert(ca.Cert)
	if err != nil {
		return Pair{}, fmt.Errorf("reading the CA: %w", err)
	}
	return IssueFor(ca, leaf, periodOf(leaf, now).within(cert))
}

// IssueFor creates a key and a certificate that the CA signs, valid for a period.
func IssueFor(ca Pair, leaf Leaf, period Period) (Pair, error) {
	caCert, caKey, err := parseCA(ca)
	if err != nil {
		return Pair{}, err
	}
	return sign(templateOf(leaf, period), nil, caCert, caKey)
}

// IssueTo creates a certificate that the CA signs, in PEM, for who has the key of a public one. It is valid no longer
// than the CA's own certificate.
func IssueTo(ca Pair, public crypto.PublicKey, leaf Leaf, period Period) ([]byte, error) {
	caCert, caKey, err := parseCA(ca)
	if err != nil {
		return nil, err
	}
	return signFor(templateOf(leaf, period.within(caCert)), public, caCert, caKey)
}

func parseCA(ca Pair) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	cert, err := ParseCert(ca.Cert)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the CA: %w", err)
	}
	key, err := parseKey(ca.Key)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the CA's key: %w", err)
	}
	return cert, key, nil
}

func templateOf(leaf Leaf, period Period) *x509.Certificate {
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: leaf.CommonName, Organization: leaf.Groups},
		NotBefore:   period.From,
		NotAfter:    period.To,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if len(leaf.Names) > 0 {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	}
	for _, name := range leaf.Names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	return template
}

// sign creates a certificate for a key; for a new one if key is nil. Without a parent the certificate
// is self-signed.
func sign(template *x509.Certificate, key *ecdsa.PrivateKey, parent *x509.Certificate, parentKey *ecdsa.PrivateKey) (Pair, error) {
	var err error
	if key == nil {
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	}
	if err != nil {
		return Pair{}, fmt.Errorf("making a key: %w", err)
	}
	if parent == nil {
		parent, parentKey = template, key
	}
	cert, err := signFor(template, key.Public(), parent, parentKey)
	if err != nil {
		return Pair{}, err
	}
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return Pair{}, fmt.Errorf("encoding a key: %w", err)
	}
	return Pair{Cert: cert, Key: keyPEM}, nil
}

// signFor creates a certificate for a public key, in PEM.
func signFor(template *x509.Certificate, public crypto.PublicKey, parent *x509.Certificate, parentKey *ecdsa.PrivateKey) (cert []byte, err error) {
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)); err != nil {
		return nil, fmt.Errorf("making a serial number: %w", err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, parentKey)
	if err != nil {
		return nil, fmt.Errorf("signing a certificate for %q: %w", template.Subject.CommonName, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

// Fresh returns true if the CA has signed the pair, it is for the common name, the groups and all
// names of the leaf, and it is in the first two thirds of its lifetime.
func Fresh(pair, ca Pair, leaf Leaf, now time.Time) bool {
	cert := Verified(pair, ca, leaf)
	return cert != nil && young(cert, now)
}

// Verified returns the certificate of the pair if the CA has signed it, it has its key, and it is for
// the common name, the groups and all names of the leaf; else nil. The time does not matter. The CA's key is not
// needed.
func Verified(pair, ca Pair, leaf Leaf) *x509.Certificate {
	cert := own(pair)
	if cert == nil {
		return nil
	}
	caCert, err := ParseCert(ca.Cert)
	if err != nil || cert.CheckSignatureFrom(caCert) != nil || cert.Subject.CommonName != leaf.CommonName || !slices.Equal(cert.Subject.Organization, leaf.Groups) {
		return nil
	}
	for _, name := range leaf.Names {
		if cert.VerifyHostname(name) != nil {
			return nil
		}
	}
	return cert
}

// FreshCA returns true if the CA can sign and is in the first two thirds of its lifetime.
func FreshCA(ca Pair, now time.Time) bool {
	cert := SigningCA(ca)
	return cert != nil && young(cert, now)
}

// SigningCA returns the certificate of the CA if it can sign, else nil. The time does not matter.
func SigningCA(ca Pair) *x509.Certificate {
	if cert := own(ca); cert != nil && cert.IsCA {
		return cert
	}
	return nil
}

// IsOwnCA returns true if a certificate is that of a CA of NewCA or NewCAFor.
func IsOwnCA(cert *x509.Certificate) bool {
	return cert.IsCA && cert.Subject.CommonName == caName && cert.CheckSignatureFrom(cert) == nil
}

// own returns the certificate of a pair if the key is its own, else nil.
func own(pair Pair) *x509.Certificate {
	cert, err := ParseCert(pair.Cert)
	if err != nil {
		return nil
	}
	key, err := parseKey(pair.Key)
	if err != nil || !key.PublicKey.Equal(cert.PublicKey) {
		return nil
	}
	return cert
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
