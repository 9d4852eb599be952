package devcluster

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/atoll-k8s/atoll/devcluster/internal/realnode"
)

// Gateway is a program of a real node by which its kubelet, with the node's certificate, and its
// Service proxy, with a token, reach the API server. It runs as the node's other programs do: see
// [Cluster.KillOn].
type Gateway struct {
	// Name is that of the program on the node.
	Name string
	// Path is the program.
	Path string
	// Configure returns its arguments, and the content of its configuration file.
	Configure func(GatewayValues) (args []string, config []byte)
	// URL is where it serves on the node, over TLS.
	URL string
	// CAFile is the file below GatewayValues.Directory that has the CA of its certificate once it
	// serves. Until then the other programs end, and are started again.
	CAFile string
}

// GatewayValues are what the configuration of a gateway is made of. Paths are those on the node.
type GatewayValues struct {
	NodeName string
	// Server is the URL of the API server, and CAFile has the CA of its certificate and of clients'.
	Server, CAFile string
	// CertificateFile has the client certificate of the node and its key.
	CertificateFile string
	// Kubelet is the address and port of the kubelet, and KubeletCertificateFile has its serving certificate. Both are
	// "" for a hollow node.
	Kubelet, KubeletCertificateFile string
	// Directory is for the gateway's own files; they survive a loss of power.
	Directory string
	// ConfigFile is its configuration file.
	ConfigFile string
}

// Endpoint is a server by which clients reach the API server.
type Endpoint struct {
	// URL is where it serves, and CAFile the file that has the CA of its certificate.
	URL, CAFile string
}

// lead makes a kubeconfig one that reaches the API server by the endpoint, and encodes it.
func (e Endpoint) lead(config *clientcmdapi.Config) ([]byte, error) {
	for _, cluster := range config.Clusters {
		cluster.Server, cluster.CertificateAuthorityData, cluster.CertificateAuthority = e.URL, nil, e.CAFile
	}
	return clientcmd.Write(*config)
}

// Behind writes a copy of a kubeconfig, beside it, that reaches the API server by an endpoint, and
// returns its path. There is one copy of each kubeconfig for each URL.
func Behind(kubeconfig string, e Endpoint) (string, error) {
	config, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		return "", fmt.Errorf("reading the kubeconfig %s: %w", kubeconfig, err)
	}
	text, err := e.lead(config)
	if err != nil {
		return "", fmt.Errorf("encoding the kubeconfig for %s: %w", e.URL, err)
	}
	path := kubeconfig + "." + unsafeInFileNames.ReplaceAllString(e.URL, "-")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return "", fmt.Errorf("writing the kubeconfig for %s: %w", e.URL, err)
	}
	return path, nil
}

// kubeletPort is where kubelets serve, and kubeletPKI the directory of their own certificates.
const kubeletPort, kubeletPKI = "10250", "kubelet-pki"

// throughGateway writes the configurations of a node's gateway, and the kubeconfigs of the kubelet
// and of the Service proxy behind it, and returns the program, and where it serves.
func (c *Cluster) throughGateway(ctx context.Context, n *realNode, g *Gateway, kubeconfig string) (of realnode.Program, on Endpoint, kubelet, proxy string, err error) {
	direct, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		return of, on, "", "", fmt.Errorf("reading the kubeconfig of node %q: %w", n.Name, err)
	}
	auth := direct.AuthInfos[direct.Contexts[direct.CurrentContext].AuthInfo]
	values := GatewayValues{
		NodeName: n.Name, Server: c.serverURL(), CAFile: c.pkiPath("ca.crt"),
		Kubelet: net.JoinHostPort(n.Link.Address.String(), kubeletPort), KubeletCertificateFile: filepath.Join(realnode.Mount, kubeletPKI, "kubelet.crt"),
		CertificateFile: filepath.Join(realnode.Mount, "node.pem"), Directory: filepath.Join(realnode.Mount, "gateway"), ConfigFile: filepath.Join(realnode.Mount, "gateway.yaml"),
	}
	args, config := g.Configure(values)
	proxyConfig, err := c.accountConfig(ctx, KubeProxy, stockServices[0].rules)
	if err != nil {
		return of, on, "", "", err
	}
	on = Endpoint{URL: g.URL, CAFile: filepath.Join(values.Directory, g.CAFile)}
	ofKubelet, err := on.lead(direct)
	if err != nil {
		return of, on, "", "", fmt.Errorf("writing the kubeconfig of node %q: %w", n.Name, err)
	}
	ofProxy, err := on.lead(proxyConfig)
	if err != nil {
		return of, on, "", "", fmt.Errorf("writing the kubeconfig of the Service proxy of node %q: %w", n.Name, err)
	}
	for name, content := range map[string][]byte{
		"node.pem": slices.Concat(auth.ClientCertificateData, auth.ClientKeyData), "gateway.yaml": config,
		"kubelet.kubeconfig": ofKubelet, "proxy.kubeconfig": ofProxy,
	} {
		if err := os.WriteFile(filepath.Join(n.Dir, name), content, 0o600); err != nil {
			return of, on, "", "", fmt.Errorf("writing %s of node %q: %w", name, n.Name, err)
		}
	}
	return realnode.Program{Name: g.Name, Path: g.Path, Args: args}, on, filepath.Join(realnode.Mount, "kubelet.kubeconfig"), filepath.Join(realnode.Mount, "proxy.kubeconfig"), nil
}
