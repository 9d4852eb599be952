package hub

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net/http"
	"path/filepath"
	"time"
)

// testExpired: scenario 68. A certificate of the node that expires while the cloud is away locks nobody
// out, because nobody can renew it. When the cloud is back, it can be renewed with it.
func (r *rig) testExpired() {
	const lifetime = 20 * time.Second
	expires := time.Now().Add(lifetime)
	r.clients("node of before", "", r.certificate(r.node, time.Now().Add(-time.Minute), expires))
	q := question{"node of before", "/api/v1/nodes/" + r.node, "application/json"}
	online := r.ask(r.over, q)
	if online.code != http.StatusOK || online.asOf != "" {
		r.Fatalf("the answer is %+v", online)
	}
	r.cutOff(q)
	r.eventually("the certificate has expired", func() error {
		if left := time.Until(expires); left > 0 {
			return fmt.Errorf("%s are left", left)
		}
		return nil
	})
	if a := r.ask(r.over, q); a.code != http.StatusOK || a.body != online.body || a.asOf == "" {
		r.Errorf("offline, with an expired certificate, the answer is %+v", a)
	}
	r.comeBack(question{"node", q.path, q.accept})
	r.eventually("the cloud answers whoever has to renew the certificate", func() error {
		if a := r.ask(r.over, q); a.code != http.StatusOK || a.asOf != "" {
			return fmt.Errorf("the answer is %+v", a)
		}
		return nil
	})
}

// certificate returns a client certificate of a node, as the cluster signs them.
func (r *rig) certificate(node string, from, until time.Time) tls.Certificate {
	r.Helper()
	ca, err := tls.LoadX509KeyPair(filepath.Join(r.Dir(), "pki", "ca.crt"), filepath.Join(r.Dir(), "pki", "ca.key"))
	if err != nil {
		r.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		r.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}},
		NotBefore: from, NotAfter: until, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, ca.Leaf, key.Public(), ca.PrivateKey)
	if err != nil {
		r.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key}
}
