package devcluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/atoll-k8s/atoll/devcluster/internal/pki"
)

// tokenLifetime is how long the token in the kubeconfig of a service account is valid.
const tokenLifetime = 24 * time.Hour

const mastersGroup = "system:masters"

// serverHosts are the names and addresses in the API server's certificate.
var serverHosts = []string{
	"127.0.0.1", "localhost", "kubernetes", "kubernetes.default",
	"kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "10.96.0.1",
}

func (c *Cluster) pkiPath(file string) string { return filepath.Join(c.record.Dir, "pki", file) }

// makeCredentials writes all certificates and the components' kubeconfigs. etcd and the
// front proxy have certificate authorities of their own, so that they accept no user
// certificate of the cluster.
func (c *Cluster) makeCredentials() error {
	dir := filepath.Join(c.record.Dir, "pki")
	authorities := map[string]*pki.CA{}
	for _, name := range []string{"ca", "etcd-ca", "front-proxy-ca"} {
		ca, err := pki.NewCA("devcluster-" + name)
		if err != nil {
			return err
		}
		authorities[name] = ca
	}
	leaves := map[string]func() (pki.Pair, error){
		"ca":             authorities["ca"].Pair,
		"etcd-ca":        authorities["etcd-ca"].Pair,
		"front-proxy-ca": authorities["front-proxy-ca"].Pair,
		"apiserver": func() (pki.Pair, error) {
			return authorities["ca"].Server(APIServer, append(slices.Clone(serverHosts), c.serverAddress())...)
		},
		"component": func() (pki.Pair, error) { return authorities["ca"].Server("component", "127.0.0.1", "localhost") },
		"kubelet-client": func() (pki.Pair, error) {
			return authorities["ca"].Client("kube-apiserver-kubelet-client", mastersGroup)
		},
		"health-client":      func() (pki.Pair, error) { return authorities["ca"].Client("devcluster:health", mastersGroup) },
		"front-proxy-client": func() (pki.Pair, error) { return authorities["front-proxy-ca"].Client("front-proxy-client") },
		"etcd":               func() (pki.Pair, error) { return authorities["etcd-ca"].Server(Etcd, "127.0.0.1", "localhost") },
		"etcd-client":        func() (pki.Pair, error) { return authorities["etcd-ca"].Client(APIServer) },
		"service-account":    pki.NewKeyPair,
	}
	for name, make := range leaves {
		pair, err := make()
		if err != nil {
			return err
		}
		if err := pair.Write(dir, name); err != nil {
			return err
		}
	}
	c.ca = authorities["ca"]
	users := map[string][]string{
		"kubernetes-admin":            {mastersGroup},
		"system:" + ControllerManager: nil,
		"system:" + Scheduler:         nil,
		"devcluster:" + Kwok:          {mastersGroup},
	}
	for user, groups := range users {
		if _, err := c.Kubeconfig(context.Background(), user, groups...); err != nil {
			return err
		}
	}
	return nil
}

var unsafeInFileNames = regexp.MustCompile(`[^a-zA-Z0-9.-]+`)

// kubeconfigPath names the file after the user, with a hash of user and groups if the
// plain name would not be unique.
func (c *Cluster) kubeconfigPath(user string, groups ...string) string {
	if user == "kubernetes-admin" {
		return filepath.Join(c.record.Dir, "kubeconfig")
	}
	sum := sha256.Sum256([]byte(user + "\n" + strings.Join(groups, "\n")))
	name := unsafeInFileNames.ReplaceAllString(user, "-") + "-" + hex.EncodeToString(sum[:4])
	return filepath.Join(c.record.Dir, "kubeconfigs", name+".kubeconfig")
}

// Kubeconfig writes a kubeconfig with a client certificate for the user and groups,
// signed by the cluster's certificate authority, and returns its path. The cluster need
// not run. The user has only the rights that RBAC gives.
func (c *Cluster) Kubeconfig(_ context.Context, user string, groups ...string) (string, error) {
	if user == "" {
		return "", fmt.Errorf("making a kubeconfig: no user given")
	}
	pair, err := c.ca.Client(user, groups...)
	if err != nil {
		return "", err
	}
	path := c.kubeconfigPath(user, groups...)
	return path, c.writeKubeconfig(path, user, &clientcmdapi.AuthInfo{
		ClientCertificateData: pair.CertPEM,
		ClientKeyData:         pair.KeyPEM,
	})
}

// ServiceAccountKubeconfig writes a kubeconfig with a token of the service account, valid
// for 24 hours, and returns its path. The account must exist.
func (c *Cluster) ServiceAccountKubeconfig(ctx context.Context, namespace, name string) (string, error) {
	seconds := int64(tokenLifetime / time.Second)
	token, err := c.client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}},
		metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("requesting a token of service account %s/%s: %w", namespace, name, err)
	}
	user := "system:serviceaccount:" + namespace + ":" + name
	path := c.kubeconfigPath(user)
	return path, c.writeKubeconfig(path, user, &clientcmdapi.AuthInfo{Token: token.Status.Token})
}

func (c *Cluster) writeKubeconfig(path, user string, auth *clientcmdapi.AuthInfo) error {
	config := clientcmdapi.NewConfig()
	config.Clusters[c.record.Name] = &clientcmdapi.Cluster{
		Server:                   c.serverURL(),
		CertificateAuthorityData: c.ca.CertPEM(),
	}
	config.AuthInfos[user] = auth
	config.Contexts[c.record.Name] = &clientcmdapi.Context{Cluster: c.record.Name, AuthInfo: user}
	config.CurrentContext = c.record.Name
	data, err := clientcmd.Write(*config)
	if err != nil {
		return fmt.Errorf("encoding the kubeconfig of %q: %w", user, err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("making the directory of kubeconfigs: %w", err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		return fmt.Errorf("writing the kubeconfig of %q: %w", user, err)
	}
	return nil
}
