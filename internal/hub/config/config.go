// Package config defines the configuration file of atoll-hub: its fields, their defaults and their validation.
package config

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

const (
	// APIVersion is the apiVersion of the file.
	APIVersion = "hub.atoll.dev/v1alpha1"
	// Kind is the kind of the file.
	Kind = "HubConfiguration"
)

// Configuration is the content of the file. Paths must be absolute.
type Configuration struct {
	metav1.TypeMeta `json:",inline"`

	// nodeName is the name of the Node that the hub runs on. Default: $NODE_NAME; if that is not set, the host
	// name in lower case, as for a kubelet.
	NodeName string `json:"nodeName,omitempty"`
	// cloud configures the connection to the API servers.
	Cloud Cloud `json:"cloud"`
	// listen is the address and port at which the hub serves clients of the node, over TLS.
	// Default: 127.0.0.1:10261. It should be a loopback address.
	Listen string `json:"listen,omitempty"`
	// observe is the address and port of /healthz, /status and /metrics, over HTTP without authentication.
	// Default: 127.0.0.1:10267. It should be a loopback address.
	Observe string `json:"observe,omitempty"`
	// clientCAFile has the CAs of the node's client certificate, in PEM: the same file as the kubelet's
	// authentication.x509.clientCAFile. Required.
	ClientCAFile string `json:"clientCAFile"`
	// directory is where the hub stores its cache and its certificates. It is created with mode 0700. Default:
	// /var/lib/atoll-hub.
	Directory string `json:"directory,omitempty"`
	// kubelet configures the connection to the kubelet of the node, for the logs of its pods.
	Kubelet Kubelet `json:"kubelet,omitempty"`
	// cache limits the cache on disk.
	Cache Cache `json:"cache,omitempty"`
	// services configures the filtering of Service endpoints.
	Services Services `json:"services,omitempty"`
}

// Services configures the filtering of Service endpoints.
type Services struct {
	// clients are the users that route traffic to Services: they get only the endpoints that the topology of a
	// Service allows, with the current addresses of the node's pods. An empty list disables filtering. At most
	// 64. Default: system:kube-proxy, system:serviceaccount:kube-system:kube-proxy and
	// system:serviceaccount:kube-system:coredns.
	Clients []string `json:"clients,omitempty"`
}

// Cloud configures the connection to the API servers.
type Cloud struct {
	// servers are the URLs of API servers, https without a path. At least 1, at most 16. The first that answers
	// is used.
	Servers []string `json:"servers"`
	// caFile has the CAs of the servers' certificates, in PEM. Required.
	CAFile string `json:"caFile"`
	// certificateFile and keyFile are the client certificate of the node and its key, in PEM. keyFile may be
	// omitted if certificateFile has both, like the kubelet's kubelet-client-current.pem. Both are read again
	// when they change, and may be missing at first. Exactly one of certificateFile and bootstrapKubeconfig is
	// required.
	CertificateFile string `json:"certificateFile,omitempty"`
	KeyFile         string `json:"keyFile,omitempty"`
	// bootstrapKubeconfig is a kubeconfig with a bootstrap token, such as kubeadm's bootstrap-kubelet.conf. The
	// hub requests a certificate of the node with the token, and renews it. Only the token of the file is used.
	BootstrapKubeconfig string `json:"bootstrapKubeconfig,omitempty"`
	// returnWithin is the time over which watches are spread that continue when the cloud is reachable again.
	// From 0s to 5m. Default: 10s.
	ReturnWithin *metav1.Duration `json:"returnWithin,omitempty"`
}

// Kubelet configures the connection to the kubelet of the node.
type Kubelet struct {
	// address is the address and port at which the kubelet serves. Default: 127.0.0.1:10250.
	Address string `json:"address,omitempty"`
	// certificateFile has the kubelet's serving certificate, in PEM. It is read for each new connection.
	// Default: /var/lib/kubelet/pki/kubelet-server-current.pem if it exists, otherwise kubelet.crt in the same
	// directory.
	CertificateFile string `json:"certificateFile,omitempty"`
}

// Cache limits the cache on disk.
type Cache struct {
	// maxSize is the maximum size of all files of the cache. At least 16Mi. Default: 256Mi.
	MaxSize *resource.Quantity `json:"maxSize,omitempty"`
	// encryptionKeyFile is a file with at least 32 random bytes. The key that encrypts the cache is derived
	// from it. If the content changes, the hub starts with an empty cache. Default: no encryption.
	EncryptionKeyFile string `json:"encryptionKeyFile,omitempty"`
}

const (
	maxServers = 16
	maxReturn  = 5 * time.Minute
	minCache   = 16 << 20
	maxClients = 64
)

// Read reads a file, sets the defaults and validates the result.
func Read(path string) (*Configuration, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the configuration: %w", err)
	}
	c, err := Parse(text)
	if err != nil {
		return nil, fmt.Errorf("reading the configuration %s: %w", path, err)
	}
	return c, nil
}

// Parse parses the text of a file, sets the defaults and validates the result.
func Parse(text []byte) (*Configuration, error) {
	c := &Configuration{}
	document, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return nil, err
	}
	unknown, err := json.UnmarshalStrict(document, c) // the names of fields have cases
	if err := errors.Join(append(unknown, err)...); err != nil {
		return nil, err
	}
	c.setDefaults()
	return c, c.validate()
}

func (c *Configuration) setDefaults() {
	if c.NodeName == "" {
		c.NodeName = defaultNodeName()
	}
	if c.Listen == "" {
		c.Listen = "127.0.0.1:10261"
	}
	if c.Observe == "" {
		c.Observe = "127.0.0.1:10267"
	}
	if c.Directory == "" {
		c.Directory = "/var/lib/atoll-hub"
	}
	if c.Kubelet.Address == "" {
		c.Kubelet.Address = "127.0.0.1:10250"
	}
	if c.Cloud.ReturnWithin == nil {
		c.Cloud.ReturnWithin = &metav1.Duration{Duration: 10 * time.Second}
	}
	if c.Cache.MaxSize == nil {
		c.Cache.MaxSize = resource.NewQuantity(256<<20, resource.BinarySI)
	}
	if c.Services.Clients == nil {
		c.Services.Clients = []string{"system:kube-proxy", "system:serviceaccount:kube-system:kube-proxy", "system:serviceaccount:kube-system:coredns"}
	}
	if c.Cloud.KeyFile == "" {
		c.Cloud.KeyFile = c.Cloud.CertificateFile
	}
	if c.Cache.EncryptionKeyFile == "" {
		c.Cache.EncryptionKeyFile = defaultKeyFile()
	}
}

// credential is the name of the systemd credential with the key: see systemd-creds(1).
const credential = "atoll-hub.key"

// defaultKeyFile returns the path of the credential with the key; "" if systemd does not provide it.
func defaultKeyFile() string {
	path := filepath.Join(os.Getenv("CREDENTIALS_DIRECTORY"), credential)
	if !fileIsThere(path) || !filepath.IsAbs(path) {
		return ""
	}
	return path
}

// CertificateFiles returns the candidate files for the kubelet's serving certificate; the first that exists is
// used. By default: the certificate signed through the API server, which is created after the hub's first
// start, and the kubelet's self-signed one.
func (k *Kubelet) CertificateFiles() []string {
	const directory = "/var/lib/kubelet/pki/"
	if k.CertificateFile == "" {
		return []string{directory + "kubelet-server-current.pem", directory + "kubelet.crt"}
	}
	return []string{k.CertificateFile}
}

func fileIsThere(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func defaultNodeName() string {
	if name := os.Getenv("NODE_NAME"); name != "" {
		return name
	}
	name, _ := os.Hostname() // validate rejects an empty name
	return strings.ToLower(strings.TrimSpace(name))
}

// validate returns all errors of the configuration.
func (c *Configuration) validate() error {
	var errs []error
	wrong := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: "+format, append([]any{field}, args...)...))
	}
	if c.APIVersion != APIVersion || c.Kind != Kind {
		wrong("apiVersion, kind", "must be %s and %s", APIVersion, Kind)
	}
	if problems := validation.IsDNS1123Subdomain(c.NodeName); len(problems) > 0 {
		wrong("nodeName", "%q is not the name of a node: %s", c.NodeName, problems[0])
	}
	if n := len(c.Cloud.Servers); n == 0 || n > maxServers {
		wrong("cloud.servers", "must have 1 to %d URLs", maxServers)
	}
	for i, server := range c.Cloud.Servers {
		u, err := url.Parse(server)
		if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Path != "" && u.Path != "/" {
			wrong(fmt.Sprintf("cloud.servers[%d]", i), "%q is not of the form https://host:port", server)
		}
	}
	addresses := []struct{ field, address string }{{"listen", c.Listen}, {"observe", c.Observe}, {"kubelet.address", c.Kubelet.Address}}
	for _, f := range addresses {
		if _, err := netip.ParseAddrPort(f.address); err != nil {
			wrong(f.field, "%q is not of the form address:port", f.address)
		}
	}
	if (c.Cloud.CertificateFile == "") == (c.Cloud.BootstrapKubeconfig == "") {
		wrong("cloud.certificateFile, cloud.bootstrapKubeconfig", "exactly one of them must be set")
	}
	if c.Cloud.KeyFile != "" && c.Cloud.CertificateFile == "" {
		wrong("cloud.keyFile", "it has no cloud.certificateFile")
	}
	for _, f := range []struct {
		field, path string
		isOptional  bool
	}{
		{"cloud.caFile", c.Cloud.CAFile, false}, {"clientCAFile", c.ClientCAFile, false}, {"directory", c.Directory, false},
		{"cloud.certificateFile", c.Cloud.CertificateFile, true}, {"cloud.keyFile", c.Cloud.KeyFile, true},
		{"cloud.bootstrapKubeconfig", c.Cloud.BootstrapKubeconfig, true}, {"cache.encryptionKeyFile", c.Cache.EncryptionKeyFile, true},
		{"kubelet.certificateFile", c.Kubelet.CertificateFile, true},
	} {
		if (!f.isOptional || f.path != "") && !filepath.IsAbs(f.path) {
			wrong(f.field, "%q is not an absolute path", f.path)
		}
	}
	if d := c.Cloud.ReturnWithin.Duration; d < 0 || d > maxReturn {
		wrong("cloud.returnWithin", "%s is not from 0s to %s", d, maxReturn)
	}
	if c.Cache.MaxSize.Value() < minCache {
		wrong("cache.maxSize", "%s is less than 16Mi", c.Cache.MaxSize)
	}
	if len(c.Services.Clients) > maxClients {
		wrong("services.clients", "has more than %d users", maxClients)
	}
	for i, user := range c.Services.Clients {
		if user == "" {
			wrong(fmt.Sprintf("services.clients[%d]", i), "must be the name of a user, for example system:serviceaccount:kube-system:kube-proxy")
		}
	}
	return errors.Join(errs...)
}
