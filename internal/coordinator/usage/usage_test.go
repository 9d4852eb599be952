package usage

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"

	"github.com/atoll-k8s/atoll/internal/governance"
	"github.com/atoll-k8s/atoll/internal/machinery/certs"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

func newCA(t *testing.T) certs.Pair {
	t.Helper()
	ca, err := certs.NewCA(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func issue(t *testing.T, ca certs.Pair, leaf certs.Leaf) (certs.Pair, tls.Certificate) {
	t.Helper()
	pair, err := certs.Issue(ca, leaf, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	both, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	return pair, both
}

func rootsOf(t *testing.T, ca certs.Pair) *x509.CertPool {
	t.Helper()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca.Cert) {
		t.Fatal("the CA has no certificate")
	}
	return roots
}

// files writes files, and returns the paths of them.
func files(t *testing.T, contents map[string][]byte) func(name string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range contents {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return func(name string) string { return filepath.Join(dir, name) }
}

func TestHubIsAskedAsByTheAPIServer(t *testing.T) {
	ca, other := newCA(t), newCA(t)
	own, _ := issue(t, ca, certs.Leaf{CommonName: "atoll:coordinator-edge", Groups: []string{governance.APIServerGroup}})
	path := files(t, map[string][]byte{"ca.crt": ca.Cert, "own.crt": own.Cert, "own.key": own.Key})
	c := &cluster{o: Options{CertFile: path("own.crt"), KeyFile: path("own.key"), CAFile: path("ca.crt")}}
	for name, tc := range map[string]struct {
		signer certs.Pair
		names  []string
		answer http.HandlerFunc
		want   string // of the error; "" for none
	}{
		"a hub": {ca, []string{"127.0.0.1"}, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/metrics/resource" || r.TLS.PeerCertificates[0].Subject.Organization[0] != governance.APIServerGroup {
				t.Errorf("a hub is asked for %s by %v", r.URL, r.TLS.PeerCertificates[0].Subject)
			}
			fmt.Fprint(w, kubelet)
		}, ""},
		"by another CA":    {other, []string{"127.0.0.1"}, nil, "certificate"},
		"of another node":  {ca, []string{"10.0.0.7"}, nil, "certificate"},
		"it refuses":       {ca, []string{"127.0.0.1"}, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "not you", http.StatusForbidden) }, `403: "not you\n"`},
		"it leads away":    {ca, []string{"127.0.0.1"}, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/other", http.StatusFound) }, "answers 302"},
		"it ends too soon": {ca, []string{"127.0.0.1"}, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "EOF"},
	} {
		_, cert := issue(t, tc.signer, certs.Leaf{CommonName: "hub", Names: tc.names})
		server := httptest.NewUnstartedServer(tc.answer)
		server.Config.ErrorLog = nil
		server.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: rootsOf(t, ca)}
		server.StartTLS()
		lines, err := c.text(t.Context(), server.Listener.Addr().String())
		server.Close()
		switch {
		case tc.want == "" && (err != nil || !strings.Contains(string(lines), nodeCPU)):
			t.Errorf("%s: %q, %v", name, lines, err)
		case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
			t.Errorf("%s: the error is %v, want %q", name, err, tc.want)
		}
	}
}

func TestTheServerIsForKubeAPIServerOnly(t *testing.T) {
	ca, proxy, other := newCA(t), newCA(t), newCA(t)
	_, serving := issue(t, ca, certs.Leaf{CommonName: "coordinator", Names: []string{governance.ServerName}})
	_, front := issue(t, proxy, certs.Leaf{CommonName: "atoll:front-proxy"})
	_, person := issue(t, ca, certs.Leaf{CommonName: "alice", Groups: []string{governance.PeopleGroup}})
	_, stranger := issue(t, other, certs.Leaf{CommonName: "atoll:front-proxy"})
	var applied atomic.Bool
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.Method == http.MethodPatch && strings.Contains(r.URL.Path, "/apiservices/v1beta1.metrics.k8s.io") && strings.Contains(string(body), `"caBundle"`) {
			applied.Store(true)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(body)
	}))
	defer api.Close()
	blocker, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := blocker.Addr().String()
	o := Options{
		Listen: address, Config: &rest.Config{Host: api.URL}, CAFile: files(t, map[string][]byte{"ca.crt": ca.Cert})("ca.crt"),
		TLS: func() (*tls.Config, error) {
			return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{serving}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: rootsOf(t, proxy)}, nil
		},
		Nodes: func() ([]string, error) { return nil, errors.New("none") }, Log: logr.Discard(),
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, o) }()
	asks := func(as ...tls.Certificate) (int, error) {
		transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: rootsOf(t, ca), ServerName: governance.ServerName, Certificates: as}}
		client := &http.Client{Transport: transport, Timeout: 5 * time.Second}
		response, err := client.Get("https://" + address + groupPath)
		if err != nil {
			return 0, err
		}
		return response.StatusCode, response.Body.Close()
	}
	build.Eventually(t, "while the port is in use, the objects are applied", applied.Load)
	if err := blocker.Close(); err != nil {
		t.Fatal(err)
	}
	build.Eventually(t, "a port that is free again is served", func() bool {
		code, err := asks(front)
		return err == nil && code == http.StatusOK
	})
	for name, as := range map[string][]tls.Certificate{"nobody": nil, "a person": {person}, "a stranger": {stranger}} {
		if code, err := asks(as...); err == nil {
			t.Errorf("%s is answered with %d", name, code)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestServerListensOnLoopbackOnly(t *testing.T) {
	for _, address := range []string{":10272", "0.0.0.0:10272", "10.0.0.1:10272", "[::]:10272", "127.0.0.1", ""} {
		if err := Run(t.Context(), Options{Listen: address, Config: &rest.Config{}}); err == nil {
			t.Errorf("%q is taken", address)
		}
	}
	if port, err := loopbackPort("127.0.0.1:10272"); err != nil || port != governance.UsagePort {
		t.Errorf("the port is %d, %v", port, err)
	}
}
