// Package prepare makes what the containers of a coordinator's pod need of each other, before they start: in a
// volume in memory, which ends with the pod.
package prepare

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/atoll-k8s/atoll/internal/coordinator/readonly"
	"github.com/atoll-k8s/atoll/internal/machinery/certs"
)

// The files that Write writes, below its directory.
const (
	// ClientCAs has the CAs of the API server's clients: that of the pool, for people, and one of this pod only.
	ClientCAs = "clients.crt"
	// Kubeconfig is that of the writer, as readonly.User.
	Kubeconfig = "kubeconfig"
	// Authentication lets probes ask for the health of the API server, and nobody else without a certificate.
	Authentication = "authentication.yaml"
	// ServiceAccountCert has the public key of tokens, without which no API server starts.
	ServiceAccountCert = "service-account.crt"
	// ServiceAccountKey has the private one. No token is ever signed with it.
	ServiceAccountKey = "service-account.key"
	// FrontProxyCert is the certificate that the API server shows to the server of metrics.k8s.io.
	FrontProxyCert = "front-proxy.crt"
	// FrontProxyKey is its key.
	FrontProxyKey = "front-proxy.key"
	// FrontProxyCA is the CA that has signed it, and nothing else.
	FrontProxyCA = "front-proxy-ca.crt"
)

// backdate is how long before they are made the certificates begin to be valid: the clock of a node that has just started
// may be set back.
const backdate = 10 * time.Minute

// mastersGroup may do everything in an API server that its admission allows.
const mastersGroup = "system:masters"

// authentication is the AuthenticationConfiguration of the API server.
const authentication = `apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
anonymous: {enabled: true, conditions: [{path: /livez}, {path: /readyz}]}
`

// Options tell what the files are for.
type Options struct {
	// Directory is where they are written.
	Directory string
	// PoolCA is the file with the CA, or the CAs, of the pool.
	PoolCA string
	// Server is the URL of the API server for the other containers, and ServerName a name that its certificate has.
	Server, ServerName string
}

// Write writes the files.
func Write(o Options, now time.Time) error {
	trusted, err := os.ReadFile(o.PoolCA)
	if err != nil {
		return fmt.Errorf("reading the CA of the pool: %w", err)
	}
	if _, err := certs.ParseCert(trusted); err != nil {
		return fmt.Errorf("reading the CA of the pool, %s: %w", o.PoolCA, err)
	}
	ca, err := certs.NewCA(now)
	if err != nil {
		return err
	}
	// The certificates are made anew with each pod only, and trusted in this pod only.
	period := certs.Period{From: now.Add(-backdate), To: now.Add(certs.CALifetime)}
	own, err := certs.IssueFor(ca, certs.Leaf{CommonName: readonly.User, Groups: []string{mastersGroup}}, period)
	if err != nil {
		return err
	}
	tokens, err := certs.NewCA(now)
	if err != nil {
		return err
	}
	// It is another CA: the API server takes no client by it.
	proxyCA, err := certs.NewCA(now)
	if err != nil {
		return err
	}
	proxy, err := certs.IssueFor(proxyCA, certs.Leaf{CommonName: "atoll:front-proxy"}, period)
	if err != nil {
		return err
	}
	config := api.NewConfig()
	config.Clusters["coordinator"] = &api.Cluster{
		Server: o.Server, TLSServerName: o.ServerName, CertificateAuthority: o.PoolCA,
	}
	config.AuthInfos[readonly.User] = &api.AuthInfo{ClientCertificateData: own.Cert, ClientKeyData: own.Key}
	config.Contexts["coordinator"] = &api.Context{Cluster: "coordinator", AuthInfo: readonly.User}
	config.CurrentContext = "coordinator"
	kubeconfig, err := clientcmd.Write(*config)
	if err != nil {
		return fmt.Errorf("encoding the kubeconfig: %w", err)
	}
	for name, content := range map[string][]byte{
		ClientCAs: bytes.Join([][]byte{bytes.TrimSpace(trusted), ca.Cert}, []byte("\n")), Kubeconfig: kubeconfig,
		Authentication:     []byte(authentication),
		ServiceAccountCert: tokens.Cert, ServiceAccountKey: tokens.Key,
		FrontProxyCert: proxy.Cert, FrontProxyKey: proxy.Key, FrontProxyCA: proxyCA.Cert,
	} {
		if err := os.WriteFile(filepath.Join(o.Directory, name), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}
