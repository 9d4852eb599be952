package prepare

import (
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/atoll-k8s/atoll/internal/machinery/certs"
)

func TestPrepareWritesCAsCertificatesAndAKubeconfig(t *testing.T) {
	directory, now := t.TempDir(), time.Now()
	pool, err := certs.NewCA(now)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Directory: directory, PoolCA: filepath.Join(directory, "pool.crt"), Server: "https://127.0.0.1:10270", ServerName: "coordinator.atoll-pools.svc"}
	if err := Write(o, now); err == nil {
		t.Error("there is no CA of the pool, and no error")
	}
	if err := os.WriteFile(o.PoolCA, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Write(o, now); err == nil {
		t.Error("the CA of the pool is no certificate, and there is no error")
	}
	if err := os.WriteFile(o.PoolCA, pool.Cert, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Write(o, now); err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(directory, Kubeconfig))
	if err != nil {
		t.Fatal(err)
	}
	if config.Host != o.Server || config.ServerName != o.ServerName || config.CAFile != o.PoolCA {
		t.Errorf("the kubeconfig is for %s as %s with %s", config.Host, config.ServerName, config.CAFile)
	}
	roots := x509.NewCertPool()
	text, err := os.ReadFile(filepath.Join(directory, ClientCAs))
	if err != nil || !roots.AppendCertsFromPEM(text) {
		t.Fatalf("reading the CAs of clients: %v", err)
	}
	person, err := certs.Issue(pool, certs.Leaf{CommonName: "alice", Groups: []string{"openyurt:coordinators"}}, now)
	if err != nil {
		t.Fatal(err)
	}
	for who, pem := range map[string][]byte{"the writer": config.CertData, "a person": person.Cert} {
		cert, err := certs.ParseCert(pem)
		if err != nil {
			t.Fatal(err)
		}
		for _, at := range []time.Time{now, now.Add(-5 * time.Minute)} { // the clock is set back
			if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
				t.Errorf("%s is not known at %s: %v", who, at, err)
			}
		}
	}
	proxy, err := os.ReadFile(filepath.Join(directory, FrontProxyCert))
	if err != nil {
		t.Fatal(err)
	}
	cert, err := certs.ParseCert(proxy)
	if err != nil {
		t.Fatal(err)
	}
	usages := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: usages}); err == nil {
		t.Error("the API server takes the certificate that it shows to the server of metrics.k8s.io")
	}
	proxies := x509.NewCertPool()
	if text, err := os.ReadFile(filepath.Join(directory, FrontProxyCA)); err != nil || !proxies.AppendCertsFromPEM(text) {
		t.Fatalf("reading the CA of the front proxy: %v", err)
	}
	if _, err := cert.Verify(x509.VerifyOptions{Roots: proxies, CurrentTime: now.Add(-5 * time.Minute), KeyUsages: usages}); err != nil {
		t.Errorf("the server of metrics.k8s.io does not take the API server: %v", err)
	}
	entries, err := os.ReadDir(directory)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if info, err := entry.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has the mode %v, %v", entry.Name(), info.Mode(), err)
		}
	}
}
