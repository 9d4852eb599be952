package hub

import (
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/atoll-k8s/atoll/internal/hub/cache"
	"github.com/atoll-k8s/atoll/internal/hub/config"
	"github.com/atoll-k8s/atoll/internal/hub/identity"
	"github.com/atoll-k8s/atoll/internal/machinery/certs"
)

// TestTheNodeCertificateIsReadAgain: this is for a certificate that another program renews. The file may be
// missing at first. While it cannot be read, the last certificate is used.
func TestTheNodeCertificateIsReadAgain(t *testing.T) {
	ca, err := certs.NewCA(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "node.pem")
	write := func(t *testing.T, name string) {
		t.Helper()
		pair, err := certs.Issue(ca, certs.Leaf{CommonName: name}, time.Now())
		if err == nil {
			err = os.WriteFile(path, append(pair.Cert, pair.Key...), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		c := &config.Configuration{Cloud: config.Cloud{CertificateFile: path, KeyFile: path}}
		n := newNodeCertificate(c, nil, logr.Discard())
		if _, err := n.get(); err == nil {
			t.Error("a file that is missing is a certificate")
		}
		go n.run(t.Context())
		expect := func(name string) {
			t.Helper()
			time.Sleep(3 * time.Second)
			synctest.Wait()
			pair, err := n.get()
			if err != nil {
				t.Fatal(err)
			}
			if expires, err := n.state(); pair.Leaf.Subject.CommonName != name || err != nil || !expires.Equal(pair.Leaf.NotAfter) {
				t.Errorf("the certificate is that of %s until %s, %v, want %s", pair.Leaf.Subject.CommonName, expires, err, name)
			}
		}
		write(t, "first")
		expect("first")
		write(t, "second")
		expect("second")
		if err := os.WriteFile(path, []byte("half of a file"), 0o600); err != nil {
			t.Fatal(err)
		}
		expect("second")
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		expect("second")
		write(t, "third")
		expect("third")
	})
}

// TestTheCAsAreReadAgain: while a file is damaged, its last CAs are used.
func TestTheCAsAreReadAgain(t *testing.T) {
	dir := t.TempDir()
	c := &config.Configuration{Cloud: config.Cloud{CAFile: filepath.Join(dir, "cloud.crt")}, ClientCAFile: filepath.Join(dir, "clients.crt")}
	if _, err := newFollowed(c, nil, logr.Discard()); err == nil || !strings.Contains(err.Error(), "cloud.caFile") || !strings.Contains(err.Error(), "clientCAFile") {
		t.Errorf("files that are missing: %v", err)
	}
	newCA := func(path string) *x509.CertPool {
		t.Helper()
		ca, err := certs.NewCA(time.Now())
		if err == nil {
			err = os.WriteFile(path, ca.Cert, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(ca.Cert)
		return pool
	}
	cloud, clients := newCA(c.Cloud.CAFile), newCA(c.ClientCAFile)
	synctest.Test(t, func(t *testing.T) {
		f, err := newFollowed(c, nil, logr.Discard())
		if err != nil {
			t.Fatal(err)
		}
		go f.run(t.Context())
		expect := func() {
			t.Helper()
			time.Sleep(3 * time.Second)
			synctest.Wait()
			if !f.cloudRoots().Equal(cloud) || !f.clientRoots().Equal(clients) {
				t.Error("the CAs are not those of the files")
			}
		}
		expect()
		cloud = newCA(c.Cloud.CAFile)
		expect()
		if err := os.WriteFile(c.Cloud.CAFile, []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
		clients = newCA(c.ClientCAFile) // the damaged file does not stop this one
		expect()
		cloud = newCA(c.Cloud.CAFile)
		expect()
	})
}

// TestKnownTokensSurviveARestart: a damaged file is replaced.
func TestKnownTokensSurviveARestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.json")
	tokens, save := readTokens(path, logr.Discard())
	tokens.Accepted("a", time.Now())
	save()
	again, save := readTokens(path, logr.Discard())
	if !again.Knows("a") || again.Knows("b") {
		t.Error("after a restart the token is not known")
	}
	again.Accepted("b", time.Now())
	save()
	if again, _ = readTokens(path, logr.Discard()); !again.Knows("a") || !again.Knows("b") {
		t.Error("a later token is not known")
	}
	if err := os.WriteFile(path, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	anew, save := readTokens(path, logr.Discard())
	if anew.Knows("a") {
		t.Error("a token of a damaged file is known")
	}
	anew.Accepted("c", time.Now())
	save()
	if again, _ = readTokens(path, logr.Discard()); !again.Knows("c") {
		t.Error("a damaged file is not begun anew")
	}
}

// TestTokensFileDropsRefusedTokens: new tokens are written to the file, and refused tokens are not known after
// a restart.
func TestTokensFileDropsRefusedTokens(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.json")
	tokens, save := readTokens(path, logr.Discard())
	tokens.Accepted("old", time.Now())
	save()
	refuse(tokens, "old")
	tokens.Accepted("new", time.Now())
	save()
	if again, _ := readTokens(path, logr.Discard()); !again.Knows("new") || again.Knows("old") {
		t.Errorf("after a restart the new token is known: %t, the old one: %t", again.Knows("new"), again.Knows("old"))
	}
	refuse(tokens, "new")
	save()
	if again, _ := readTokens(path, logr.Discard()); again.Knows("new") {
		t.Error("after a restart the last token is known, which was refused")
	}
}

// TestAcceptedTokenIsOnDiskWithinASecond: so a hub that is killed knows the tokens it has just answered. Many
// tokens cause at most one write a second.
func TestAcceptedTokenIsOnDiskWithinASecond(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.json")
	synctest.Test(t, func(t *testing.T) {
		tokens, save := readTokens(path, logr.Discard())
		saves := 0
		go keepTokens(t.Context(), tokens, func() { saves++; save() })
		onDisk := func(token string) bool {
			synctest.Wait()
			then, _ := readTokens(path, logr.Discard())
			return then.Knows(token)
		}
		if tokens.Accepted("first", time.Now()); !onDisk("first") {
			t.Error("a token is not on disk once it was accepted")
		}
		for i := range 1000 { // in ten seconds
			tokens.Accepted(fmt.Sprint(i), time.Now())
			time.Sleep(10 * time.Millisecond)
		}
		if time.Sleep(time.Second); !onDisk("999") {
			t.Error("a second after it was accepted, a token is not on disk")
		}
		if saves > 13 {
			t.Errorf("in eleven seconds the tokens were written %d times", saves)
		}
		refuse(tokens, "first")
		if time.Sleep(time.Second); onDisk("first") {
			t.Error("a second after it was refused, a token is on disk")
		}
	})
}

// TestUnreadableTokensFileIsKept: it may be readable again.
func TestUnreadableTokensFileIsKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.json")
	if err := os.Mkdir(path, 0o700); err != nil { // reading it is an error
		t.Fatal(err)
	}
	tokens, save := readTokens(path, logr.Discard())
	tokens.Accepted("a", time.Now())
	save()
	if info, err := os.Stat(path); err != nil || !info.IsDir() || !tokens.Knows("a") {
		t.Errorf("the file was written: %v", err)
	}
}

// TestUnusableCacheDirectoryGetsATemporaryCache: a directory that another hub uses is an error.
func TestUnusableCacheDirectoryGetsATemporaryCache(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", t.TempDir())
	small := config.Cache{MaxSize: resource.NewQuantity(16<<20, resource.BinarySI)}
	store, done, err := openCache(filepath.Join(file, "cache"), small, cache.Options{Log: logr.Discard()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Replace("a", nil, func(func(string, []byte) bool) {}); err != nil {
		t.Error(err)
	}
	if err := done(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(os.Getenv("TMPDIR")); err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v", left, err)
	}
	dir := t.TempDir()
	_, done, err = openCache(dir, small, cache.Options{Log: logr.Discard()})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := openCache(dir, small, cache.Options{Log: logr.Discard()}); !errors.Is(err, cache.ErrLocked) {
		t.Errorf("a second hub: %v", err)
	}
	if err := done(); err != nil {
		t.Error(err)
	}
}

// refuse refuses a token for long enough that it is forgotten.
func refuse(tokens *identity.Tokens, token string) {
	now := time.Now()
	tokens.Refused(token, now)
	tokens.Refused(token, now.Add(time.Hour))
}
