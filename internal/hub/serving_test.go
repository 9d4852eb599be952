package hub

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"k8s.io/client-go/util/keyutil"

	"github.com/atoll-k8s/atoll/internal/machinery/certs"
)

// servingRig is a directory of a serving certificate, with a client that has read ca.crt once and a
// clock that may be wrong.
type servingRig struct {
	*testing.T

	dir    string
	now    time.Time
	roots  *x509.CertPool
	logged bytes.Buffer
}

func newServingRig(t *testing.T) *servingRig {
	return &servingRig{T: t, dir: filepath.Join(t.TempDir(), "serving"), now: time.Now()}
}

// start starts a hub, and the client if there is none yet.
func (r *servingRig) start() *serving {
	r.Helper()
	r.logged.Reset()
	log := funcr.New(func(_, args string) { r.logged.WriteString(args + "\n") }, funcr.Options{})
	s, err := newServing(r.dir, "127.0.0.1:10261", func() time.Time { return r.now }, log)
	if err != nil {
		r.Fatal(err)
	}
	if r.roots == nil {
		r.readCA()
	}
	return s
}

// readCA starts the client anew.
func (r *servingRig) readCA() {
	r.Helper()
	text, err := os.ReadFile(filepath.Join(r.dir, "ca.crt"))
	if err != nil {
		r.Fatal(err)
	}
	r.roots = x509.NewCertPool()
	r.roots.AppendCertsFromPEM(text)
}

// verify returns why the client refuses the hub at a time.
func (r *servingRig) verify(s *serving, at time.Time) error {
	pair, err := s.get(&tls.ClientHelloInfo{})
	for _, name := range []string{"127.0.0.1", "localhost"} {
		if err == nil {
			_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: r.roots, DNSName: name, CurrentTime: at})
		}
	}
	return err
}

func (r *servingRig) write(name string, content []byte) {
	r.Helper()
	if err := os.WriteFile(filepath.Join(r.dir, name), content, 0o600); err != nil {
		r.Fatal(err)
	}
}

func (r *servingRig) remove(names ...string) {
	r.Helper()
	for _, name := range names {
		if err := os.Remove(filepath.Join(r.dir, name)); err != nil {
			r.Fatal(err)
		}
	}
}

// problem returns what the status says is wrong; "" if nothing is.
func (r *servingRig) problem(s *serving) string {
	if _, err := s.state(); err != nil {
		return err.Error()
	}
	return ""
}

// TestTheServingCertificateIsRenewed: the hub renews it while it runs. A new one is signed by the CA that clients
// trust, also after a restart.
func TestTheServingCertificateIsRenewed(t *testing.T) {
	dir, now := filepath.Join(t.TempDir(), "serving"), time.Now()
	clock := func() time.Time { return now }
	s, err := newServing(dir, "127.0.0.1:10261", clock, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	trusted, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(trusted)
	serial := func(s *serving) string {
		t.Helper()
		pair, err := s.get(&tls.ClientHelloInfo{})
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"127.0.0.1", "localhost"} {
			if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name, CurrentTime: now}); err != nil {
				t.Error(err)
			}
		}
		return pair.Leaf.SerialNumber.String()
	}
	first := serial(s)
	again, err := newServing(dir, "127.0.0.1:10261", clock, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	serial(again)
	now = now.Add(certs.ServerLifetime * 2 / 3)
	second := serial(s)
	if second == first {
		t.Error("the certificate is not renewed at two thirds of its life")
	}
	if err := os.RemoveAll(dir); err != nil { // nothing can be written any more
		t.Fatal(err)
	}
	now = now.Add(certs.ServerLifetime * 2 / 3)
	if serial(s) == second {
		t.Error("the certificate is not renewed without its directory")
	}
}

// TestWrongClockCreatesNoNewCA: after a loss of power the clock can be wrong. Clients trust the existing CA.
func TestWrongClockCreatesNoNewCA(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "serving")
	if _, err := newServing(dir, "127.0.0.1:10261", time.Now, logr.Discard()); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	s, err := newServing(dir, "127.0.0.1:10261", func() time.Time { return time.Unix(0, 0) }, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.get(nil); err != nil {
		t.Error(err)
	}
	if after, err := os.ReadFile(filepath.Join(dir, "ca.crt")); err != nil || string(after) != string(before) {
		t.Errorf("the CA is another one: %v", err)
	}
}

// TestServingCASurvivesClockJumps: clients that know the CA can connect once the clock is right, while the hub
// runs and after restarts.
func TestServingCASurvivesClockJumps(t *testing.T) {
	const day = 24 * time.Hour
	for name, jump := range map[string]time.Duration{
		"a month ahead": 30 * day, "half a year ahead": 182 * day, "9 years ahead": 9 * 365 * day, "40 years ahead": 40 * 365 * day,
		"a year back": -365 * day, "to the beginning": -time.Since(time.Unix(60, 0)),
	} {
		for _, order := range []string{"while it runs", "at a start", "at the first start"} {
			t.Run(name+" "+order, func(t *testing.T) {
				r := newServingRig(t)
				right := r.now
				var s *serving
				if order != "at the first start" {
					s = r.start()
				}
				r.now = right.Add(jump)
				if order != "while it runs" {
					s = r.start()
				}
				if err := r.verify(s, r.now); err != nil {
					t.Errorf("while the clock is wrong: %v", err)
				}
				r.now = right.Add(time.Hour)
				if err := r.verify(s, r.now); err != nil {
					t.Errorf("with the right clock: %v", err)
				}
				for range 2 {
					s = r.start()
					if err := r.verify(s, r.now); err != nil || r.problem(s) != "" {
						t.Errorf("after a restart: %v, %s", err, r.problem(s))
					}
				}
			})
		}
	}
}

// TestFutureCertificatesAreReissuedWithTheSameKey: a CA that an earlier version created while the clock was ahead
// is created again, with the same key. Clients that read a valid ca.crt before can still connect. The serving
// certificate that an earlier version stored is not used.
func TestFutureCertificatesAreReissuedWithTheSameKey(t *testing.T) {
	for name, made := range map[string]struct{ ca, leaf time.Duration }{
		"the certificate": {-time.Hour, 4000 * time.Hour}, "the CA too": {4000 * time.Hour, 4000 * time.Hour}, "none": {-time.Hour, -time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			r := newServingRig(t)
			if err := os.Mkdir(r.dir, 0o700); err != nil {
				t.Fatal(err)
			}
			ca, err := certs.NewCA(r.now.Add(made.ca))
			if err != nil {
				t.Fatal(err)
			}
			leaf, err := certs.Issue(ca, certs.Leaf{CommonName: "atoll-hub", Names: []string{"127.0.0.1", "localhost"}}, r.now.Add(made.leaf))
			if err != nil {
				t.Fatal(err)
			}
			for name, text := range map[string][]byte{"ca.crt": ca.Cert, "ca.key": ca.Key, "tls.crt": leaf.Cert, "tls.key": leaf.Key} {
				r.write(name, text)
			}
			if made.ca < 0 {
				r.readCA()
			}
			for range 2 {
				if s := r.start(); r.verify(s, r.now) != nil || r.problem(s) != "" {
					t.Errorf("%v, %s", r.verify(s, r.now), r.problem(s))
				}
			}
		})
	}
}

// TestClientsConnectAsLongAsTheKeyOfTheCAIsLeft: the log and the status say what a person must do. At a first
// start they say nothing.
func TestClientsConnectAsLongAsTheKeyOfTheCAIsLeft(t *testing.T) {
	another, err := certs.NewCA(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	const says = "let all clients read the new ca.crt"
	for name, tc := range map[string]struct {
		lose func(*servingRig)
		// trusted: clients that have read the CA before go on.
		trusted bool
		says    string
	}{
		"nothing":                  {func(*servingRig) {}, true, ""},
		"ca.crt":                   {func(r *servingRig) { r.remove("ca.crt") }, true, ""},
		"ca.crt is damaged":        {func(r *servingRig) { r.write("ca.crt", []byte("x")) }, true, ""},
		"ca.crt is empty":          {func(r *servingRig) { r.write("ca.crt", nil) }, true, ""},
		"ca.crt is of another key": {func(r *servingRig) { r.write("ca.crt", another.Cert) }, true, says},
		"ca.key":                   {func(r *servingRig) { r.remove("ca.key") }, false, says},
		"ca.key is damaged":        {func(r *servingRig) { r.write("ca.key", []byte("x")) }, false, says},
		"ca.key is empty":          {func(r *servingRig) { r.write("ca.key", nil) }, false, says},
		"both of them":             {func(r *servingRig) { r.remove("ca.crt", "ca.key") }, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := newServingRig(t)
			if r.start(); r.logged.Len() > 0 {
				t.Errorf("at the first start the log is %s", &r.logged)
			}
			tc.lose(r)
			s := r.start()
			if err := r.verify(s, r.now); (err == nil) != tc.trusted {
				t.Errorf("clients that have read the CA before: %v", err)
			}
			if says := r.problem(s); !strings.Contains(says, tc.says) || (says == "") != (tc.says == "") {
				t.Errorf("the status says %q", says)
			}
			if !strings.Contains(r.logged.String(), tc.says) {
				t.Errorf("the log is %s", &r.logged)
			}
			r.readCA()
			for range 2 {
				if err := r.verify(s, r.now); err != nil {
					t.Errorf("clients that read the CA now: %v", err)
				}
				s = r.start()
			}
			if says := r.problem(s); says != "" {
				t.Errorf("after another restart the status says %q", says)
			}
		})
	}
}

// TestUnreadableCAIsNotReplaced: it may become readable again. Clients then continue.
func TestUnreadableCAIsNotReplaced(t *testing.T) {
	r := newServingRig(t)
	r.start()
	key := filepath.Join(r.dir, "ca.key")
	if err := os.Rename(key, key+".old"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(key, 0o700); err != nil {
		t.Fatal(err)
	}
	s := r.start()
	if says := r.problem(s); !strings.Contains(says, "make it readable") || !strings.Contains(says, "not a regular file") || !strings.Contains(r.logged.String(), "make it readable") {
		t.Errorf("the status says %q, the log %s", says, &r.logged)
	}
	s.keep()
	if err := errors.Join(os.Remove(key), os.Rename(key+".old", key)); err != nil {
		t.Fatal(err)
	}
	s = r.start()
	if err := r.verify(s, r.now); err != nil || r.problem(s) != "" {
		t.Errorf("when it is readable: %v, and the status says %q", err, r.problem(s))
	}
}

// TestCAOfTheUserIsKept: whatever its validity is. While it is not valid, the status says so.
func TestCAOfTheUserIsKept(t *testing.T) {
	r := newServingRig(t)
	if err := os.Mkdir(r.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	cert, key := userCA(t, r.now.Add(-time.Hour), r.now.Add(24*time.Hour))
	r.write("ca.crt", cert)
	r.write("ca.key", key)
	s := r.start()
	right := r.now
	for at, says := range map[time.Duration]string{-time.Since(time.Unix(0, 0)): "its CA is only valid from", 0: "", 48 * time.Hour: "its CA is only valid from"} {
		r.now = right.Add(at)
		for _, s := range []*serving{s, r.start()} {
			if got := r.problem(s); !strings.Contains(got, says) || (got == "") != (says == "") {
				t.Errorf("after %s the status says %q", at, got)
			}
			r.now = right
			if err := r.verify(s, r.now); err != nil {
				t.Errorf("with the right clock again: %v", err)
			}
			r.now = right.Add(at)
		}
	}
	if text, err := os.ReadFile(filepath.Join(r.dir, "ca.crt")); err != nil || !bytes.Equal(text, cert) {
		t.Errorf("ca.crt is another one: %v", err)
	}
}

// userCA returns a CA that was not made by this project.
func userCA(t *testing.T, from, to time.Time) (cert, key []byte) {
	t.Helper()
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "our company"}, NotBefore: from, NotAfter: to,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, own.Public(), own)
	if err != nil {
		t.Fatal(err)
	}
	key, err = keyutil.MarshalPrivateKeyToPEM(own)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), key
}

// TestUnwritableDirectoryLeavesTheCAInMemory: the hub serves with it and reports the problem, and writes it once
// that is possible.
func TestUnwritableDirectoryLeavesTheCAInMemory(t *testing.T) {
	t.Run("a file", func(t *testing.T) {
		r := newServingRig(t)
		if err := os.WriteFile(r.dir, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		r.roots = x509.NewCertPool()
		s := r.start()
		r.roots.AppendCertsFromPEM(s.ca.Cert)
		if err := r.verify(s, r.now); err != nil {
			t.Error(err)
		}
		if !strings.Contains(r.logged.String(), "Storing the hub's CA failed") || !strings.Contains(r.problem(s), "not a directory") {
			t.Errorf("the log is %s, the status %s", &r.logged, r.problem(s))
		}
	})
	t.Run("writes fail", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newServingRig(t)
			if err := os.MkdirAll(filepath.Join(r.dir, "ca.key.tmp"), 0o700); err != nil { // in the way
				t.Fatal(err)
			}
			r.roots = x509.NewCertPool()
			s := r.start()
			r.roots.AppendCertsFromPEM(s.ca.Cert)
			if err := r.verify(s, r.now); err != nil || r.problem(s) == "" {
				t.Errorf("%v, and the status says %q", err, r.problem(s))
			}
			go s.run(t.Context())
			r.remove("ca.key.tmp")
			time.Sleep(keepEvery + time.Second)
			synctest.Wait()
			if problem := r.problem(s); problem != "" {
				t.Error(problem)
			}
			if err := r.verify(r.start(), r.now); err != nil {
				t.Errorf("after a restart: %v", err)
			}
		})
	})
}
