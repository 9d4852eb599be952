package devcluster

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/atoll-k8s/atoll/devcluster/internal/link"
	"github.com/atoll-k8s/atoll/devcluster/internal/pki"
	"github.com/atoll-k8s/atoll/devcluster/internal/realnode"
)

// TestNodeProgramsUseKubernetesIdentities: Kubernetes itself binds rights to these users, and
// those of the Service proxy are to list and watch (see system:node-proxier).
func TestNodeProgramsUseKubernetesIdentities(t *testing.T) {
	ca, err := pki.NewCA("test")
	if err != nil {
		t.Fatal(err)
	}
	c := &Cluster{record: record{Name: "fake", Dir: t.TempDir()}, ca: ca}
	n := &realNode{
		Config: realnode.Config{Name: "a-0", Dir: c.nodeDir("a-0")},
		Link:   link.Node{Name: "a-0", Address: netip.MustParseAddr("10.160.1.1"), Pods: netip.MustParsePrefix("10.160.101.0/24")},
	}
	if err := c.writeNodeFiles(t.Context(), n, &RealNodeSpec{}); err != nil {
		t.Fatal(err)
	}
	users := map[string]string{}
	for _, program := range n.Programs {
		for _, arg := range program.Args {
			if path := strings.TrimPrefix(arg, "--kubeconfig="); filepath.Ext(path) == ".kubeconfig" {
				users[program.Name] = userOf(t, path)
			}
		}
	}
	want := map[string]string{Kubelet: "system:node:a-0 [system:nodes]", ServiceProxy: "system:kube-proxy []"}
	if fmt.Sprint(users) != fmt.Sprint(want) {
		t.Errorf("the users of the programs are %v, want %v", users, want)
	}
}

// userOf returns the user and the groups of a kubeconfig with a client certificate.
func userOf(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(data)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(config.CertData)
	if block == nil {
		t.Fatalf("%s has no client certificate", path)
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(certificate.Subject.CommonName, " ", certificate.Subject.Organization)
}
