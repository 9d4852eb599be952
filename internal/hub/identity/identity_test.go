package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"errors"
	"fmt"
	"math/big"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

var now = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// authority is a CA.
type authority struct {
	t    *testing.T
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t}
	a.key, a.cert = a.sign(&x509.Certificate{Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(10, 0, 0)})
	return a
}

func (a *authority) sign(template *x509.Certificate) (*ecdsa.PrivateKey, *x509.Certificate) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(1)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return key, cert
}

func (a *authority) client(name, organization string, until time.Time, usage x509.ExtKeyUsage) *x509.Certificate {
	a.t.Helper()
	_, cert := a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: name, Organization: []string{organization}}, NotBefore: now.Add(-time.Hour), NotAfter: until, ExtKeyUsage: []x509.ExtKeyUsage{usage},
	})
	return cert
}

// TestOnlyTheNodeCertificateProvesTheNode: certificates of other subjects, CAs and usages do not. An expired
// certificate of the node counts while the cloud is offline.
func TestOnlyTheNodeCertificateProvesTheNode(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	client, later := x509.ExtKeyUsageClientAuth, now.Add(time.Hour)
	_, notYet := ca.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: "system:node:a", Organization: []string{"system:nodes"}}, NotBefore: now.Add(time.Minute), NotAfter: later, ExtKeyUsage: []x509.ExtKeyUsage{client},
	})
	for name, tc := range map[string]struct {
		cert    *x509.Certificate
		offline bool
		want    bool
	}{
		"its certificate":                       {ca.client("system:node:a", "system:nodes", later, client), false, true},
		"no certificate":                        {nil, false, false},
		"a certificate of another node":         {ca.client("system:node:b", "system:nodes", later, client), false, false},
		"a certificate of a person":             {ca.client("admin", "system:masters", later, client), false, false},
		"a certificate of another organization": {ca.client("system:node:a", "people", later, client), false, false},
		"a certificate of another CA":           {other.client("system:node:a", "system:nodes", later, client), false, false},
		"a certificate of a server":             {ca.client("system:node:a", "system:nodes", later, x509.ExtKeyUsageServerAuth), false, false},
		"one that has expired":                  {ca.client("system:node:a", "system:nodes", now.Add(-time.Minute), client), false, false},
		"one that has expired, offline":         {ca.client("system:node:a", "system:nodes", now.Add(-time.Minute), client), true, true},
		"one that is not valid yet":             {notYet, false, false},
		"one that is not valid yet, offline":    {notYet, true, true},
		"another node's that has expired":       {ca.client("system:node:b", "system:nodes", now.Add(-time.Minute), client), true, false},
		"one of another CA that has expired":    {other.client("system:node:a", "system:nodes", now.Add(-time.Minute), client), true, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := Recognizer{NodeName: "a", Tokens: NewTokens([]byte("secret"), nil), ClientRoots: func() *x509.CertPool { return roots }, Renews: func() bool { return !tc.offline }, Now: func() time.Time { return now }}
			q := httptest.NewRequest("GET", "/", nil)
			q.TLS = &tls.ConnectionState{}
			if tc.cert != nil {
				q.TLS.PeerCertificates = []*x509.Certificate{tc.cert}
			}
			caller, err := r.Recognize(q)
			if caller.IsNode != tc.want || (err == nil) != tc.want || err != nil && !errors.Is(err, ErrNobody) {
				t.Errorf("the caller is %+v, %v", caller, err)
			}
			q.Header.Set("Authorization", "Bearer x")
			if caller, err := r.Recognize(q); err != nil || caller.IsNode || caller.Token != "x" {
				t.Errorf("with a token, the caller is %+v, %v", caller, err)
			}
		})
	}
}

// TestACertificateIsVerifiedOnce: the result is cached until the certificate or its CA expires, and while the CA
// is trusted.
func TestACertificateIsVerifiedOnce(t *testing.T) {
	ca, forger := newAuthority(t), newAuthority(t)
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	cert := ca.client("system:node:a", "system:nodes", now.Add(time.Hour), x509.ExtKeyUsageClientAuth)
	at, online := now, true
	r := Recognizer{NodeName: "a", Tokens: NewTokens([]byte("secret"), nil), ClientRoots: func() *x509.CertPool { return roots }, Renews: func() bool { return online }, Now: func() time.Time { return at }}
	is := func(chain ...*x509.Certificate) bool {
		q := httptest.NewRequest("GET", "/", nil)
		q.TLS = &tls.ConnectionState{PeerCertificates: chain}
		caller, err := r.Recognize(q)
		return err == nil && caller.IsNode
	}
	for range 2 {
		if !is(cert) || len(r.verified) != 1 {
			t.Fatalf("the node is not recognized, or %d certificates are remembered, want 1", len(r.verified))
		}
	}
	if is(forger.client("system:node:a", "system:nodes", now.Add(time.Hour), x509.ExtKeyUsageClientAuth)) || len(r.verified) != 1 {
		t.Error("what is remembered serves a certificate of another CA")
	}
	at = now.Add(2 * time.Hour)
	if is(cert) {
		t.Error("a certificate that has expired is remembered as valid")
	}
	if online = false; !is(cert) {
		t.Error("without the cloud, the node is not recognized by a certificate that has expired")
	}
	at = now.Add(-2 * time.Hour)
	if online = true; is(cert) {
		t.Error("before it is valid, a certificate is remembered as valid")
	}
	at = now
	for range 2 * maxVerified {
		if !is(ca.client("system:node:a", "system:nodes", now.Add(time.Hour), x509.ExtKeyUsageClientAuth)) {
			t.Fatal("a new certificate of the node is not recognized")
		}
	}
	if len(r.verified) > maxVerified {
		t.Errorf("%d certificates are remembered", len(r.verified))
	}

	// Another CA, and the first one again.
	first := roots
	roots = x509.NewCertPool()
	if is(cert) {
		t.Error("without its CA, a certificate is remembered as valid")
	}
	if roots = first; !is(cert) {
		t.Error("the node is not recognized once its CA is back")
	}

	// A CA that ends before the certificate.
	short := newAuthority(t)
	short.cert.NotAfter = now.Add(time.Minute)
	roots.AddCert(short.cert)
	long := short.client("system:node:a", "system:nodes", now.Add(time.Hour), x509.ExtKeyUsageClientAuth)
	if !is(long) {
		t.Fatal("the node is not recognized")
	}
	if at = now.Add(2 * time.Minute); is(long) {
		t.Error("a certificate is remembered as valid whose CA has expired")
	}
}

// TestCallerNameComesFromTheToken: a JWT gives issuer and subject, any other token its keyed hash. Headers that
// an API server reads differently give no caller.
func TestCallerNameComesFromTheToken(t *testing.T) {
	jwt := func(payload string) string {
		return "e30." + base64.RawURLEncoding.EncodeToString([]byte(payload)) + ".signature"
	}
	r := Recognizer{Tokens: NewTokens([]byte("secret"), nil)}
	name := func(header string) string {
		q := httptest.NewRequest("GET", "/", nil)
		q.Header.Set("Authorization", header)
		caller, err := r.Recognize(q)
		if err != nil && !errors.Is(err, ErrNobody) {
			t.Error(err)
		}
		return caller.Name
	}
	const subject = "subject:https://a#system:serviceaccount:b:c"
	for header, want := range map[string]string{
		"Bearer " + jwt(`{"iss":"https://a","sub":"system:serviceaccount:b:c","exp":1}`): subject,
		"bearer " + jwt(`{"iss":"https://a","sub":"system:serviceaccount:b:c","exp":2}`): subject,
		// An API server reads no token, or another one, from these.
		"Bearer  " + jwt(`{"iss":"https://a","sub":"system:serviceaccount:b:c"}`):       "",
		"Bearer " + jwt(`{"iss":"https://a","sub":"system:serviceaccount:b:c"}`) + " x": "",
		"Bearer\t" + jwt(`{"iss":"https://a","sub":"system:serviceaccount:b:c"}`):       "",
		"Basic YTpi": "", "Bearer": "", "Bearer ": "", "Bearer a,b": "",
	} {
		if got := name(header); got != want {
			t.Errorf("%s is %q, want %q", header, got, want)
		}
	}
	q := httptest.NewRequest("GET", "/", nil)
	q.Header["Authorization"] = []string{"Bearer a", "Bearer b"}
	if caller, err := r.Recognize(q); err == nil {
		t.Errorf("two tokens are %+v", caller)
	}
	for _, token := range []string{"opaque", "a.b.c", jwt("{}"), jwt("no json")} {
		if got := name("Bearer " + token); len(got) != len("token:")+64 || got == name("Bearer "+token+"x") {
			t.Errorf("%s is %q", token, got)
		}
	}
	person := `{"iss":"https://a","sub":"jane","groups":["admins","staff"],"exp":%d,"iat":%d,"jti":"%d"}`
	jane := name("Bearer " + jwt(fmt.Sprintf(person, 1, 1, 1)))
	if again := name("Bearer " + jwt(fmt.Sprintf(person, 2, 2, 2))); again != jane || !strings.HasPrefix(jane, "subject:https://a+") {
		t.Errorf("the next token of %q is %q", jane, again)
	}
	if fewer := name("Bearer " + jwt(`{"iss":"https://a","sub":"jane","groups":["staff"]}`)); fewer == jane {
		t.Errorf("with fewer groups she is %q, too", fewer)
	}
	if user := (Caller{Name: jane}).User("n"); user != "jane" {
		t.Errorf("her name is %q", user)
	}
	was := name("Bearer opaque")
	if r.Tokens = NewTokens([]byte("another"), nil); name("Bearer opaque") == was {
		t.Error("the hash of a token has no secret")
	}
}

// TestTokensAreKnownOnceAccepted: also after a restart. What is stored of a token is not enough to use it.
func TestTokensAreKnownOnceAccepted(t *testing.T) {
	tokens := NewTokens([]byte("secret"), nil)
	if tokens.Knows("a") {
		t.Error("a token that nobody accepted is known")
	}
	if !tokens.Accepted("a", now) || tokens.Accepted("a", now) {
		t.Error("a token is new once")
	}
	again := NewTokens([]byte("secret"), tokens.Known())
	if !again.Knows("a") || again.Knows("b") {
		t.Error("after a restart other tokens are known")
	}
	if NewTokens([]byte("another"), tokens.Known()).Knows("a") {
		t.Error("what is kept is enough to know a token")
	}
	again.Refused("a", now)
	again.Refused("a", now.Add(forgetAfter-time.Second))
	if !again.Knows("a") {
		t.Error("an API server that starts refuses a token for a moment, and it is forgotten")
	}
	again.Accepted("a", now)
	again.Refused("a", now.Add(forgetAfter))
	if !again.Knows("a") {
		t.Error("it was accepted in between, and is forgotten")
	}
	again.Refused("a", now.Add(2*forgetAfter))
	if again.Knows("a") {
		t.Error("a token that was refused is known")
	}
	for i := range maxTokens + 5 {
		again.Accepted(fmt.Sprint(i), now.Add(time.Duration(i)))
	}
	if again.Knows("4") || !again.Knows("5") || len(again.Known()) != maxTokens {
		t.Errorf("of %d tokens the oldest are kept", len(again.Known()))
	}
}
