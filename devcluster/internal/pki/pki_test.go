package pki

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func parse(t *testing.T, pair Pair) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(pair.CertPEM)
	if block == nil {
		t.Fatal("no PEM block")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func newCA(t *testing.T, name string) *CA {
	t.Helper()
	ca, err := NewCA(name)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func verify(ca *CA, cert *x509.Certificate, usage x509.ExtKeyUsage) error {
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	_, err := cert.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{usage}})
	return err
}

func TestClientCertificate(t *testing.T) {
	ca := newCA(t, "one")
	pair, err := ca.Client("alice", "devs", "ops")
	if err != nil {
		t.Fatal(err)
	}
	cert := parse(t, pair)
	groups := slices.Sorted(slices.Values(cert.Subject.Organization)) // the encoding reorders them
	if cert.Subject.CommonName != "alice" || !slices.Equal(groups, []string{"devs", "ops"}) {
		t.Errorf("subject is %v", cert.Subject)
	}
	if err := verify(ca, cert, x509.ExtKeyUsageClientAuth); err != nil {
		t.Error(err)
	}
	if err := verify(ca, cert, x509.ExtKeyUsageServerAuth); err == nil {
		t.Error("a client certificate serves")
	}
	if err := verify(newCA(t, "one"), cert, x509.ExtKeyUsageClientAuth); err == nil {
		t.Error("another authority of the same name is accepted")
	}
}

func TestServerCertificate(t *testing.T) {
	ca := newCA(t, "one")
	if _, err := ca.Server("nobody"); err == nil {
		t.Error("a server certificate without hosts is signed")
	}
	pair, err := ca.Server("server", "127.0.0.1", "localhost")
	if err != nil {
		t.Fatal(err)
	}
	cert := parse(t, pair)
	if err := verify(ca, cert, x509.ExtKeyUsageServerAuth); err != nil {
		t.Error(err)
	}
	for _, host := range []string{"127.0.0.1", "localhost"} {
		if err := cert.VerifyHostname(host); err != nil {
			t.Error(err)
		}
	}
	if err := cert.VerifyHostname("example.org"); err == nil {
		t.Error("the certificate is good for another host")
	}
}

func TestAuthorityIsWrittenAndLoaded(t *testing.T) {
	ca := newCA(t, "one")
	pair, err := ca.Pair()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "pki")
	if err := pair.Write(dir, "ca"); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, "ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("key has mode %s", info.Mode())
	}
	loaded, err := LoadCA(filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	signed, err := loaded.Client("bob")
	if err != nil {
		t.Fatal(err)
	}
	if err := verify(ca, parse(t, signed), x509.ExtKeyUsageClientAuth); err != nil {
		t.Error(err)
	}
	if _, err := tls.X509KeyPair(signed.CertPEM, signed.KeyPEM); err != nil {
		t.Error(err)
	}
	if _, err := LoadCA(filepath.Join(dir, "ca.key"), filepath.Join(dir, "ca.key")); err == nil {
		t.Error("a key is loaded as a certificate")
	}
}

func TestKeyPair(t *testing.T) {
	pair, err := NewKeyPair()
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(pair.CertPEM)
	if block == nil || block.Type != "PUBLIC KEY" {
		t.Fatalf("public key is %q", pair.CertPEM)
	}
}
