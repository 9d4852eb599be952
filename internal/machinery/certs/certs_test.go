package certs

import (
	"testing"
	"time"
)

func TestIssue(t *testing.T) {
	ca, err := NewCA(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Issue(Pair{Cert: ca.Cert, Key: []byte("no key")}, Leaf{CommonName: "x"}, time.Now()); err == nil {
		t.Error("signed without the CA's key")
	}
	pair, err := Issue(ca, Leaf{CommonName: "server", Names: []string{"a.example.com", "10.0.0.1", "::1"}}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	cert, err := ParseCert(pair.Cert)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a.example.com", "10.0.0.1", "::1"} {
		if err := cert.VerifyHostname(name); err != nil {
			t.Error(err)
		}
	}
	if cert.VerifyHostname("b.example.com") == nil || cert.IsCA {
		t.Error("the certificate is valid for a name that was not requested")
	}
	if cert.NotBefore.After(time.Now().Add(-5 * time.Minute)) {
		t.Errorf("valid from %s only: machines whose clocks are slow refuse it", cert.NotBefore)
	}
}
