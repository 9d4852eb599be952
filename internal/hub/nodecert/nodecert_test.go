package nodecert

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-k8s/atoll/internal/machinery/certs"
)

const day = 24 * time.Hour

// cloud is an API server with its signer.
type cloud struct {
	*testing.T

	dir      string // of the node's files
	key      *ecdsa.PrivateKey
	requests map[string]*certificatesv1.CertificateSigningRequest
	// callers are who has asked, in turn without repetitions.
	callers []string
	// token is the bootstrap token that is accepted, and acceptsNode whether the node's certificate is.
	token       string
	acceptsNode bool
	away        error
	// decide is called with each request that is asked for.
	decide func(*certificatesv1.CertificateSigningRequest)
	serial int64
	// life is that of certificates.
	life time.Duration
}

func newCloud(t *testing.T) *cloud {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &cloud{T: t, dir: t.TempDir(), key: key, requests: map[string]*certificatesv1.CertificateSigningRequest{}, token: "abcdef.0123456789abcdef", acceptsNode: true, life: 10 * day}
	c.decide = c.approve
	c.writeToken(c.token)
	return c
}

func (c *cloud) kubeconfig() string { return filepath.Join(c.dir, "bootstrap.conf") }

func (c *cloud) writeToken(token string) {
	c.Helper()
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: b
clusters: [{name: c, cluster: {server: "https://elsewhere:6443"}}]
contexts: [{name: a, context: {cluster: c, user: other}}, {name: b, context: {cluster: c, user: tls-bootstrap-token-user}}]
users: [{name: other, user: {token: wrong}}, {name: tls-bootstrap-token-user, user: {token: %q}}]
`, token)
	if err := os.WriteFile(c.kubeconfig(), []byte(text), 0o600); err != nil {
		c.Fatal(err)
	}
}

// manager returns a Manager as after a start of the hub.
func (c *cloud) manager() *Manager {
	return New(Options{NodeName: "edge", Directory: filepath.Join(c.dir, "client"), Bootstrap: c.kubeconfig(), Send: c.send, Now: time.Now, Log: logr.Discard()})
}

// run runs a Manager for a while.
func (c *cloud) run(m *Manager, d time.Duration) {
	ctx, cancel := context.WithTimeout(c.Context(), d)
	defer cancel()
	m.Run(ctx)
}

func (c *cloud) send(r *http.Request, asNode bool) (*http.Response, error) {
	if c.away != nil {
		return nil, c.away
	}
	caller := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	if asNode {
		caller = "node"
	}
	if n := len(c.callers); n == 0 || c.callers[n-1] != caller {
		c.callers = append(c.callers, caller)
	}
	if asNode && !c.acceptsNode || !asNode && caller != c.token {
		return c.answer(http.StatusUnauthorized, metav1.Status{Message: "Unauthorized"})
	}
	if r.Method == http.MethodPost {
		csr := &certificatesv1.CertificateSigningRequest{}
		if err := json.NewDecoder(r.Body).Decode(csr); err != nil {
			c.Error(err)
		}
		c.requests[csr.Name] = csr
		return c.answer(http.StatusCreated, csr)
	}
	csr := c.requests[strings.TrimPrefix(r.URL.Path, path+"/")]
	if csr == nil {
		return c.answer(http.StatusNotFound, metav1.Status{Message: "not found"})
	}
	c.decide(csr)
	return c.answer(http.StatusOK, csr)
}

func (c *cloud) answer(code int, body any) (*http.Response, error) {
	text, err := json.Marshal(body)
	return &http.Response{StatusCode: code, Body: io.NopCloser(bytes.NewReader(text))}, err
}

// approve signs a request as kube-controller-manager does.
func (c *cloud) approve(csr *certificatesv1.CertificateSigningRequest) {
	request := c.requestOf(csr)
	if err := request.CheckSignature(); err != nil || csr.Spec.SignerName != "kubernetes.io/kube-apiserver-client-kubelet" ||
		!slices.Equal(csr.Spec.Usages, []certificatesv1.KeyUsage{"digital signature", "client auth"}) {
		c.Errorf("kube-controller-manager would not approve %+v: %v", csr.Spec, err)
	}
	c.sign(csr, request.Subject, request.PublicKey)
}

func (c *cloud) requestOf(csr *certificatesv1.CertificateSigningRequest) *x509.CertificateRequest {
	block, _ := pem.Decode(csr.Spec.Request)
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		c.Fatal(err)
	}
	return request
}

func (c *cloud) sign(csr *certificatesv1.CertificateSigningRequest, subject pkix.Name, public any) {
	c.serial++
	template := &x509.Certificate{
		SerialNumber: big.NewInt(c.serial), Subject: subject, NotBefore: time.Now(), NotAfter: time.Now().Add(c.life), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, c.key)
	if err != nil {
		c.Error(err)
		return
	}
	csr.Status = certificatesv1.CertificateSigningRequestStatus{
		Conditions: []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: "True"}}, Certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
	}
}

// serial returns the number of the certificate in use.
func serial(t *testing.T, m *Manager) int64 {
	t.Helper()
	pair, err := m.Current()
	if err != nil {
		t.Fatal(err)
	}
	return pair.Leaf.SerialNumber.Int64()
}

// TestACertificateIsRequestedWithTheToken: only the hub's user can read it on disk, and it is there after a
// restart without the cloud and without the token.
func TestACertificateIsRequestedWithTheToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCloud(t)
		m := c.manager()
		if _, err := m.Current(); err == nil {
			t.Error("there is a certificate already")
		}
		c.run(m, time.Minute)
		if serial(t, m) != 1 || !slices.Equal(c.callers, []string{c.token}) || len(c.requests) != 1 {
			t.Errorf("%v have asked for %d", c.callers, len(c.requests))
		}
		if expires, err := m.State(); err != nil || !expires.After(time.Now()) {
			t.Errorf("it expires at %s, %v", expires, err)
		}
		entries, err := os.ReadDir(filepath.Join(c.dir, "client"))
		if err != nil || len(entries) != 1 {
			t.Fatalf("there are %v, %v", entries, err)
		}
		if info, err := entries[0].Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v", info.Mode(), err)
		}
		c.away = errors.New("away")
		if err := os.Remove(c.kubeconfig()); err != nil {
			t.Fatal(err)
		}
		if serial(t, c.manager()) != 1 {
			t.Error("after a restart it is another one")
		}
	})
}

// TestACertificateIsRenewed: the node itself requests the new one, between 70 and 90 percent of the certificate's
// life. The old one is used until then.
func TestACertificateIsRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCloud(t)
		m := c.manager()
		c.run(m, time.Minute)
		c.token = "" // bootstrap tokens do not live long
		c.run(m, 69*day/10)
		if serial(t, m) != 1 {
			t.Error("it is renewed too early")
		}
		c.decide = func(*certificatesv1.CertificateSigningRequest) {} // nobody approves
		c.run(m, 22*day/10)
		if _, err := m.State(); serial(t, m) != 1 || err == nil || !strings.Contains(err.Error(), "kubectl certificate approve") {
			t.Errorf("the request waits: %v", err)
		}
		c.decide = c.approve
		c.run(m, 2*time.Minute)
		if serial(t, m) != 2 || c.callers[len(c.callers)-1] != "node" {
			t.Errorf("%v have asked", c.callers)
		}
		if serial(t, c.manager()) != 2 {
			t.Error("the new one is not kept")
		}
	})
}

// TestARestartMakesNoSecondRequest: the first request still waits for its approval.
func TestARestartMakesNoSecondRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCloud(t)
		c.decide = func(*certificatesv1.CertificateSigningRequest) {}
		for range 3 {
			c.run(c.manager(), time.Hour)
		}
		if len(c.requests) != 1 {
			t.Errorf("there are %d requests", len(c.requests))
		}
		c.decide = c.approve
		m := c.manager()
		c.run(m, time.Minute)
		if serial(t, m) != 1 {
			t.Error("it is not approved")
		}
	})
}

// TestRefusedCertificateRequestIsRepeatedLater: with another key, about every ten minutes.
func TestRefusedCertificateRequestIsRepeatedLater(t *testing.T) {
	for name, refuse := range map[string]func(*cloud, *certificatesv1.CertificateSigningRequest){
		"denied": func(_ *cloud, csr *certificatesv1.CertificateSigningRequest) {
			csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateDenied, Status: "True", Reason: "Stranger"}}
		},
		"failed": func(_ *cloud, csr *certificatesv1.CertificateSigningRequest) {
			csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateFailed}}
		},
		"signed for another node": func(c *cloud, csr *certificatesv1.CertificateSigningRequest) {
			c.sign(csr, pkix.Name{CommonName: "system:node:other", Organization: []string{nodes}}, c.requestOf(csr).PublicKey)
		},
		"signed without the group of nodes": func(c *cloud, csr *certificatesv1.CertificateSigningRequest) {
			c.sign(csr, pkix.Name{CommonName: "system:node:edge"}, c.requestOf(csr).PublicKey)
		},
		"signed for another key": func(c *cloud, csr *certificatesv1.CertificateSigningRequest) {
			c.sign(csr, pkix.Name{CommonName: "system:node:edge", Organization: []string{nodes}}, &c.key.PublicKey)
		},
		"not a certificate": func(_ *cloud, csr *certificatesv1.CertificateSigningRequest) {
			csr.Status.Certificate = []byte("certificate")
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCloud(t)
				c.decide = func(csr *certificatesv1.CertificateSigningRequest) { refuse(c, csr) }
				m := c.manager()
				c.run(m, time.Hour)
				if n := len(c.requests); n < 4 || n > 7 {
					t.Errorf("in an hour there were %d requests", n)
				}
				if _, err := m.Current(); err == nil {
					t.Error("there is a certificate")
				}
				c.decide = c.approve
				c.run(m, time.Hour)
				serial(t, m)
			})
		})
	}
}

// TestNoCertificateIsRequestedWithoutAToken: the reason names the file. The token is used once it is there.
func TestNoCertificateIsRequestedWithoutAToken(t *testing.T) {
	for name, text := range map[string]string{"no file": "", "no kubeconfig": "token: [", "no user": "current-context: a", "no token": "current-context: a\ncontexts: [{name: a, context: {user: u}}]\nusers: [{name: u}]"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCloud(t)
				if err := os.WriteFile(c.kubeconfig(), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
				if text == "" {
					if err := os.Remove(c.kubeconfig()); err != nil {
						t.Fatal(err)
					}
				}
				m := c.manager()
				c.run(m, time.Hour)
				if _, err := m.Current(); err == nil || !strings.Contains(err.Error(), "cloud.bootstrapKubeconfig") || len(c.callers) > 0 {
					t.Errorf("the reason is %v, %v have asked", err, c.callers)
				}
				c.writeToken(c.token)
				c.run(m, 2*time.Minute)
				serial(t, m)
			})
		})
	}
}

// TestExpiredBootstrapTokenIsReported: the reason says what to do, and a new token is used.
func TestExpiredBootstrapTokenIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCloud(t)
		c.token = "new"
		m := c.manager()
		c.run(m, time.Hour)
		if _, err := m.Current(); err == nil || !strings.Contains(err.Error(), "kubeadm token create") {
			t.Errorf("the reason is %v", err)
		}
		c.writeToken("new")
		c.run(m, 2*time.Minute)
		serial(t, m)
	})
}

// TestRejectedCertificateIsReplaced: if the certificate was rejected or has expired, the hub requests a new one
// with the token.
func TestRejectedCertificateIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCloud(t)
		c.life = day
		m := c.manager()
		c.run(m, time.Minute)
		c.away = errors.New("away")
		c.run(m, day+time.Hour)
		if _, err := m.Current(); err == nil || !strings.Contains(err.Error(), "certificate expired") {
			t.Errorf("the reason is %v", err)
		}
		m = c.manager() // after a restart, too
		if _, err := m.Current(); err == nil || !strings.Contains(err.Error(), "certificate expired") {
			t.Errorf("after a restart the reason is %v", err)
		}
		c.away, c.callers = nil, nil
		c.run(m, time.Minute)
		if serial(t, m) != 2 || !slices.Equal(c.callers, []string{c.token}) {
			t.Errorf("%v have asked", c.callers)
		}
		c.acceptsNode = false
		c.run(m, 91*day/100)
		if serial(t, m) != 3 {
			t.Error("it is not replaced")
		}
	})
}

// TestWrongClockDropsNoCertificate: a certificate that looks expired is valid again once the clock is right.
func TestWrongClockDropsNoCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCloud(t)
		c.run(c.manager(), time.Minute)
		c.away = errors.New("away")
		m := c.manager()
		ahead := 10 * 365 * day
		m.o.Now = func() time.Time { return time.Now().Add(ahead) }
		c.run(m, time.Hour)
		if _, err := m.Current(); err == nil {
			t.Error("it has not expired")
		}
		ahead = 0
		if serial(t, m) != 1 {
			t.Error("it is another one")
		}
		ahead = -10 * 365 * day
		if serial(t, m) != 1 {
			t.Error("one that is not valid yet does not count")
		}
	})
}

// TestDamagedCertificateFilesAreReplaced: the hub requests a new certificate.
func TestDamagedCertificateFilesAreReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCloud(t)
		c.run(c.manager(), time.Minute)
		good, err := os.ReadFile(filepath.Join(c.dir, "client", certFile))
		if err != nil {
			t.Fatal(err)
		}
		for cut := 0; cut < len(good); cut += 37 {
			for name, text := range map[string][]byte{certFile: good[:cut], pendingFile: good[cut:]} {
				if err := os.WriteFile(filepath.Join(c.dir, "client", name), text, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			m := c.manager()
			c.run(m, time.Minute)
			serial(t, m)
		}
	})
}

// TestCertificateIsUsedIfTheDiskCannotBeWritten: it is written once that is possible.
func TestCertificateIsUsedIfTheDiskCannotBeWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCloud(t)
		file := filepath.Join(c.dir, "client")
		if err := os.WriteFile(file, nil, 0o600); err != nil { // in the place of the directory
			t.Fatal(err)
		}
		m := c.manager()
		c.run(m, 6*day)
		if serial(t, m) != 1 || len(c.requests) != 1 {
			t.Errorf("there are %d requests", len(c.requests))
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		c.run(m, 2*time.Minute)
		if serial(t, c.manager()) != 1 {
			t.Error("it is not on disk")
		}
	})
}

func TestNoPartOfATokenIsInAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	if err := os.WriteFile(path, []byte("users: secret-token: x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readToken(path); err == nil || strings.Contains(err.Error(), "secret-token") {
		t.Errorf("the error is %v", err)
	}
}

// TestServingCertificateFollowsAddressesAndCA: the hub requests a serving certificate as the node, and requests
// it again once the addresses of the node or the CA are other ones.
func TestServingCertificateFollowsAddressesAndCA(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCloud(t)
		c.life = 5 * day
		ca, err := certs.NewCA(time.Now())
		if err != nil {
			t.Fatal(err)
		}
		trusted, addresses, unknown := ca.Cert, []string{"10.0.0.1"}, errors.New("no CA")
		c.decide = func(csr *certificatesv1.CertificateSigningRequest) {
			request := c.requestOf(csr)
			if csr.Spec.SignerName != "atoll.dev/x" || !slices.Equal(csr.Spec.Usages, []certificatesv1.KeyUsage{"server auth"}) || request.Subject.CommonName != "system:node:edge" || !slices.Equal(request.Subject.Organization, []string{"system:nodes"}) {
				t.Errorf("the request is %+v, %s", csr.Spec, request.Subject)
			}
			leaf := certs.Leaf{CommonName: request.Subject.CommonName, Groups: request.Subject.Organization}
			for _, ip := range request.IPAddresses {
				leaf.Names = append(leaf.Names, ip.String())
			}
			issued, err := certs.IssueTo(ca, request.PublicKey, leaf, certs.Period{From: time.Now(), To: time.Now().Add(c.life)})
			if err != nil {
				t.Error(err)
			}
			csr.Status.Certificate = issued
		}
		manager := func() *Manager {
			return New(Options{NodeName: "edge", Directory: filepath.Join(c.dir, "access"), Send: c.send, Now: time.Now, Log: logr.Discard(), Purpose: &Purpose{
				Signer: "atoll.dev/x", Usages: []certificatesv1.KeyUsage{"server auth"}, RenewFrom: 0.6,
				Wanted: func() (ips []net.IP, roots *x509.CertPool, err error) {
					for _, address := range addresses {
						ips = append(ips, net.ParseIP(address))
					}
					roots = x509.NewCertPool()
					roots.AppendCertsFromPEM(trusted)
					return ips, roots, unknown
				},
			}})
		}
		m := manager()
		c.run(m, 10*time.Minute)
		if _, err := m.Current(); err == nil || !strings.Contains(err.Error(), "no CA") || len(c.requests) > 0 {
			t.Errorf("without a CA there are %d requests, and the reason is %v", len(c.requests), err)
		}
		unknown = nil
		c.run(m, 2*time.Minute)
		leaf := func(what string, address string, requests int) *x509.Certificate {
			t.Helper()
			pair, err := m.Current()
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if got := fmt.Sprint(pair.Leaf.IPAddresses); got != "["+address+"]" || len(c.requests) != requests {
				t.Errorf("%s: the certificate is for %s, after %d requests", what, got, len(c.requests))
			}
			return pair.Leaf
		}
		first := leaf("at first", "10.0.0.1", 1)
		if !slices.Equal(c.callers, []string{"node"}) {
			t.Errorf("%v have asked", c.callers)
		}
		c.away = errors.New("away")
		m = manager()
		c.run(m, time.Hour)
		if !leaf("after a restart without the cloud", "10.0.0.1", 1).Equal(first) {
			t.Error("it is another one")
		}
		c.away, unknown = nil, errors.New("no CA")
		c.run(m, time.Hour)
		leaf("without a CA", "10.0.0.1", 1)
		unknown, addresses = nil, []string{"10.0.0.2"}
		c.run(m, 2*time.Minute)
		leaf("after a change of the address", "10.0.0.2", 2)
		old := ca
		if ca, err = certs.NewCA(time.Now()); err != nil {
			t.Fatal(err)
		}
		trusted = append(slices.Clone(ca.Cert), old.Cert...)
		c.run(m, 10*time.Minute)
		leaf("while the old CA is trusted", "10.0.0.2", 2)
		trusted = ca.Cert
		c.run(m, 2*time.Minute)
		third := leaf("with another CA", "10.0.0.2", 3)
		if ca, err = certs.NewCA(time.Now()); err != nil { // the hub does not know it yet
			t.Fatal(err)
		}
		c.run(m, 82*c.life/100)
		if !leaf("with a CA that nobody trusts", "10.0.0.2", len(c.requests)).Equal(third) {
			t.Error("it is one that nobody trusts")
		}
		if n := len(c.requests); n < 10 || n > 6*30 { // one in ten minutes, of 30 hours at most
			t.Errorf("there are %d requests", n)
		}
		trusted = ca.Cert
		c.run(m, 20*time.Minute)
		leaf("once the CA is known", "10.0.0.2", len(c.requests))
		renewed, _ := m.Current()
		if renewed.Leaf.Equal(third) {
			t.Error("it is not renewed")
		}
	})
}
