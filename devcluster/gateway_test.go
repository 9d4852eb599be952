package devcluster

import (
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// TestBehind: a copy of a kubeconfig has the same identity and another server, and the kubeconfig stays
// as it was.
func TestBehind(t *testing.T) {
	path := filepath.Join(t.TempDir(), "node.kubeconfig")
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: "https://127.0.0.1:6443", CertificateAuthorityData: []byte("a CA")}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: "token"}
	config.Contexts["c"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "c"
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	paths := map[string]bool{path: true}
	for _, e := range []Endpoint{{"https://127.0.0.1:1", "/hub-1/ca.crt"}, {"https://127.0.0.1:2", "/hub-2/ca.crt"}} {
		behind, err := Behind(path, e)
		if err != nil {
			t.Fatal(err)
		}
		if paths[behind] {
			t.Errorf("%s is written for two servers", behind)
		}
		paths[behind] = true
		got, err := clientcmd.LoadFromFile(behind)
		if err != nil {
			t.Fatal(err)
		}
		if c := got.Clusters["c"]; c.Server != e.URL || c.CertificateAuthority != e.CAFile || len(c.CertificateAuthorityData) > 0 {
			t.Errorf("for %v the cluster is %+v", e, c)
		}
		if got.AuthInfos["u"].Token != "token" {
			t.Errorf("for %v the identity is lost", e)
		}
	}
	if after, err := os.ReadFile(path); err != nil || string(after) != string(before) {
		t.Errorf("the kubeconfig was changed: %v", err)
	}
	if _, err := Behind(path+"x", Endpoint{}); err == nil {
		t.Error("a kubeconfig that is not there is no error")
	}
}
