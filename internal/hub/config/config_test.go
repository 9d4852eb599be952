package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const smallest = `apiVersion: hub.atoll.dev/v1alpha1
kind: HubConfiguration
nodeName: edge-1
clientCAFile: /etc/kubernetes/pki/ca.crt
cloud:
  servers: ["https://10.0.0.1:6443"]
  caFile: /etc/kubernetes/pki/ca.crt
  certificateFile: /var/lib/kubelet/pki/kubelet-client-current.pem
`

func TestMissingConfigFieldsGetDefaults(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hub.yaml")
	if err := os.WriteFile(path, []byte(smallest), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if c.Listen != "127.0.0.1:10261" || c.Directory != "/var/lib/atoll-hub" || c.Cloud.ReturnWithin.Duration != 10*time.Second ||
		c.Cache.MaxSize.String() != "256Mi" || c.Cloud.KeyFile != c.Cloud.CertificateFile || len(c.Services.Clients) != 3 {
		t.Errorf("the configuration is %+v", c)
	}
	if c, err = Parse([]byte(smallest + "services: {clients: []}\n")); err != nil || len(c.Services.Clients) != 0 {
		t.Errorf("without clients the configuration is %+v, %v", c, err)
	}
	if _, err := Read(path + ".missing"); err == nil {
		t.Error("a file that is missing is read")
	}
}

func TestEncryptionKeyDefaultsToASystemdCredential(t *testing.T) {
	dir := t.TempDir()
	key := filepath.Join(dir, "atoll-hub.key")
	if err := os.WriteFile(key, []byte("a key"), 0o600); err != nil {
		t.Fatal(err)
	}
	for directory, want := range map[string]string{dir: key, "": "", t.TempDir(): ""} {
		t.Setenv("CREDENTIALS_DIRECTORY", directory)
		c, err := Parse([]byte(smallest))
		if err != nil || c.Cache.EncryptionKeyFile != want {
			t.Errorf("with CREDENTIALS_DIRECTORY=%q the key is in %q, %v", directory, c.Cache.EncryptionKeyFile, err)
		}
	}
}

// TestConfigErrorsHaveAStableOrder: the text for a wrong configuration is the same each time.
func TestConfigErrorsHaveAStableOrder(t *testing.T) {
	const wrong = "apiVersion: hub.atoll.dev/v1alpha1\nkind: HubConfiguration\nlisten: x\nobserve: x\ndirectory: x\nclientCAFile: x\ncloud: {caFile: x, certificateFile: x}\n"
	_, first := Parse([]byte(wrong))
	for range 50 {
		if _, err := Parse([]byte(wrong)); err == nil || err.Error() != first.Error() {
			t.Fatalf("the error is\n%v\nand was\n%v", err, first)
		}
	}
}

// TestNodeNameDefaultsToEnvironmentOrHostName: without nodeName in the file, NODE_NAME counts, and else the host
// name in lower case, as for a kubelet.
func TestNodeNameDefaultsToEnvironmentOrHostName(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for environment, want := range map[string]string{"edge-2": "edge-2", "": strings.ToLower(host)} {
		t.Setenv("NODE_NAME", environment)
		c, err := Parse([]byte(strings.Replace(smallest, "nodeName: edge-1", "", 1)))
		if err != nil || c.NodeName != want {
			t.Errorf("with NODE_NAME=%q the node is %q, %v", environment, c.NodeName, err)
		}
		if c, err := Parse([]byte(smallest)); err != nil || c.NodeName != "edge-1" {
			t.Errorf("the name in the file is not used: %v", err)
		}
	}
}

func TestBootstrapKubeconfigReplacesTheCertificate(t *testing.T) {
	text := strings.Replace(smallest, "certificateFile: /var/lib/kubelet/pki/kubelet-client-current.pem", "bootstrapKubeconfig: /etc/kubernetes/bootstrap-kubelet.conf", 1)
	if c, err := Parse([]byte(text)); err != nil || c.Cloud.CertificateFile+c.Cloud.KeyFile != "" {
		t.Errorf("the configuration is %+v, %v", c, err)
	}
}

// TestConfigErrorsNameEveryWrongField: one error has all of them.
func TestConfigErrorsNameEveryWrongField(t *testing.T) {
	for name, tc := range map[string]struct {
		change []string // of the smallest file
		says   []string
	}{
		"a field that is not known":    {[]string{"nodeName: edge-1", "nodeName: edge-1\nnodename: x"}, []string{"nodename"}},
		"another kind":                 {[]string{"HubConfiguration", "KubeletConfiguration"}, []string{"apiVersion, kind"}},
		"a name that no node has":      {[]string{"nodeName: edge-1", "nodeName: Edge_1"}, []string{"nodeName"}},
		"no servers":                   {[]string{`["https://10.0.0.1:6443"]`, "[]"}, []string{"cloud.servers", "1 to 16"}},
		"a server without TLS":         {[]string{"https://", "http://"}, []string{"cloud.servers[0]"}},
		"a server with a path":         {[]string{":6443", ":6443/api"}, []string{"cloud.servers[0]"}},
		"a port without an address":    {[]string{"nodeName: edge-1", "nodeName: edge-1\nlisten: \":1\""}, []string{"listen"}},
		"a path that is relative":      {[]string{"/var/lib/kubelet", "kubelet"}, []string{"cloud.certificateFile", "cloud.keyFile"}},
		"a relative kubeconfig":        {[]string{"certificateFile: /var", "bootstrapKubeconfig: var"}, []string{"cloud.bootstrapKubeconfig"}},
		"a relative key":               {[]string{"cloud:", "cache: {encryptionKeyFile: key}\ncloud:"}, []string{"cache.encryptionKeyFile"}},
		"no certificate":               {[]string{"  certificateFile: /var/lib/kubelet/pki/kubelet-client-current.pem", ""}, []string{"cloud.certificateFile, cloud.bootstrapKubeconfig"}},
		"two certificates":             {[]string{"cloud:", "cloud:\n  bootstrapKubeconfig: /a"}, []string{"cloud.certificateFile, cloud.bootstrapKubeconfig"}},
		"a key without a certificate":  {[]string{"certificateFile", "keyFile"}, []string{"cloud.keyFile"}},
		"a return that takes too long": {[]string{"cloud:", "cloud:\n  returnWithin: 10m"}, []string{"cloud.returnWithin"}},
		"a cache that is too small":    {[]string{"cloud:", "cache: {maxSize: 1Mi}\ncloud:"}, []string{"cache.maxSize"}},
		"a client without a name":      {[]string{"cloud:", "services: {clients: [a, \"\"]}\ncloud:"}, []string{"services.clients[1]"}},
		"two mistakes":                 {[]string{"nodeName: edge-1", "nodeName: Edge_1\nlisten: x", "https://", "http://"}, []string{"nodeName", "listen", "cloud.servers[0]"}},
		"invalid YAML":                 {[]string{"kind:", "kind: ["}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]byte(strings.NewReplacer(tc.change...).Replace(smallest)))
			if err == nil {
				t.Fatal("it is accepted")
			}
			for _, text := range tc.says {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("the error %q does not name %s", err, text)
				}
			}
		})
	}
}
