package rawclient

import (
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/atoll-k8s/atoll/devcluster"
)

// TestClient sends requests of a kubeconfig to an endpoint that stands for the server in it.
func TestClient(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/nobody" {
			http.Error(w, "not there", http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", r.Header.Get("Accept"))
		_, _ = w.Write([]byte(r.Header.Get("Authorization") + " " + r.URL.RequestURI()))
	}))
	defer server.Close()
	dir := t.TempDir()
	endpoint := devcluster.Endpoint{URL: server.URL, CAFile: filepath.Join(dir, "ca.crt")}
	if err := os.WriteFile(endpoint.CAFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: "https://nobody.example"}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: "secret"}
	config.Contexts["c"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "c"
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := clientcmd.WriteToFile(*config, kubeconfig); err != nil {
		t.Fatal(err)
	}
	c, err := New(kubeconfig, &endpoint, Protobuf)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	body, header, err := c.Read(t.Context(), "/api?x=1")
	if err != nil || string(body) != "Bearer secret /api?x=1" || header.Get("Content-Type") != Protobuf {
		t.Errorf("the answer is %q with %v: %v", body, header, err)
	}
	if header, err := c.Skip(t.Context(), "/api"); err != nil || header.Get("Content-Type") != Protobuf {
		t.Errorf("the headers are %v: %v", header, err)
	}
	_, _, err = c.Read(t.Context(), "/nobody")
	var status *StatusError
	if !errors.As(err, &status) || status.Code != http.StatusNotFound || !strings.Contains(err.Error(), "not there") {
		t.Errorf("the error is %v", err)
	}
	if _, err := New(filepath.Join(dir, "missing"), nil, JSON); err == nil {
		t.Error("a kubeconfig that is not there is no error")
	}
}
