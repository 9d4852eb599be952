// Package hub tests atoll-hub, as a process with its configuration file, between clients and a real
// API server, over a link that can be cut.
package hub

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/internal/hub/proxy"
	"github.com/atoll-k8s/atoll/test/relay"
)

const (
	nodeName  = "edge"
	namespace = "default"
	patience  = 4 * time.Minute // bounds each wait, also on a slow and busy machine
)

// rig is a cluster, a hub of one node, and the link between them.
type rig struct {
	*testing.T
	*devcluster.Cluster

	node    string
	dir     string
	admin   kubernetes.Interface
	server  *url.URL // the API server
	link    *relay.Relay
	address string // of the hub
	observe string // its second one
	program string
	hub     *exec.Cmd
	// direct and over are clients of the API server and of the hub, by identity.
	direct, over map[string]*http.Client
	tokens       map[string]string
}

func startCluster(t *testing.T, options devcluster.Options) *devcluster.Cluster {
	t.Helper()
	options.Log = os.Stderr
	c, err := devcluster.Start(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return c
}

// newRig starts a hub of a node.
func newRig(t *testing.T, c *devcluster.Cluster, node string) *rig {
	t.Helper()
	r := &rig{T: t, Cluster: c, node: node, dir: t.TempDir(), direct: map[string]*http.Client{}, over: map[string]*http.Client{}, tokens: map[string]string{}}
	config := c.AdminConfig()
	var err error
	if r.admin, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	if r.server, err = url.Parse(config.Host); err != nil {
		t.Fatal(err)
	}
	if r.link, err = relay.New(t.Context(), r.server.Host); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.link.Close() })
	r.address, r.observe = freeAddress(t), freeAddress(t)
	r.program = filepath.Join(r.dir, "atoll-hub")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", r.program, "github.com/atoll-k8s/atoll/cmd/atoll-hub")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	certificate := r.nodeConfig(node)
	r.configure(node, "certificateFile", "node.pem", certificate.CAData, append(append([]byte{}, certificate.CertData...), certificate.KeyData...))
	r.startHub()
	t.Cleanup(r.killHub)
	pair, err := tls.X509KeyPair(certificate.CertData, certificate.KeyData)
	if err != nil {
		t.Fatal(err)
	}
	r.clients("node", "", pair)
	r.clients("nobody", "")
	return r
}

// configure writes the configuration of a hub, the CA, and the file by which the hub proves to be the
// node: field is the field of the configuration that names it.
func (r *rig) configure(node, field, file string, ca, content []byte) {
	r.Helper()
	for name, content := range map[string][]byte{
		"ca.crt": ca, file: content,
		"hub.yaml": fmt.Appendf(nil, `apiVersion: hub.atoll.dev/v1alpha1
kind: HubConfiguration
nodeName: %s
listen: %s
observe: %s
directory: %s/state
clientCAFile: %[4]s/ca.crt
cloud:
  servers: ["https://%[5]s"]
  caFile: %[4]s/ca.crt
  %[6]s: %[4]s/%[7]s
  returnWithin: 1s
`, node, r.address, r.observe, r.dir, r.link.Address(), field, file),
	} {
		if err := os.WriteFile(filepath.Join(r.dir, name), content, 0o600); err != nil {
			r.Fatal(err)
		}
	}
}

// nodeConfig is that of a node's kubelet.
func (r *rig) nodeConfig(name string) *rest.Config {
	r.Helper()
	path, err := r.Kubeconfig(r.Context(), "system:node:"+name, "system:nodes")
	if err != nil {
		r.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err == nil {
		err = rest.LoadTLSFiles(config)
	}
	if err != nil {
		r.Fatal(err)
	}
	return config
}

// clients adds clients of an identity: a token, or a certificate.
func (r *rig) clients(identity, token string, pair ...tls.Certificate) {
	r.Helper()
	r.tokens[identity] = token
	for ca, clients := range map[string]map[string]*http.Client{
		filepath.Join(r.dir, "ca.crt"): r.direct, filepath.Join(r.dir, "state", "serving", "ca.crt"): r.over,
	} {
		text, err := os.ReadFile(ca)
		if err != nil {
			r.Fatal(err)
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(text)
		clients[identity] = &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: pair}}}
		r.Cleanup(clients[identity].CloseIdleConnections)
	}
}

// serviceAccount adds clients of a ServiceAccount that has a role in the cluster; "" is none.
func (r *rig) serviceAccount(name, role string) {
	r.Helper()
	if _, err := r.admin.CoreV1().ServiceAccounts(namespace).Create(r.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		r.Fatal(err)
	}
	if role != "" {
		r.kubectl("create", "clusterrolebinding", name, "--clusterrole="+role, "--serviceaccount="+namespace+":"+name)
	}
	r.clients(name, strings.TrimSpace(r.kubectl("create", "token", "-n", namespace, name)))
}

func (r *rig) kubectl(args ...string) string {
	r.Helper()
	cmd := exec.CommandContext(r.Context(), r.BinaryPath("kubectl"), append([]string{"--kubeconfig=" + r.KubeconfigPath()}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.Fatalf("kubectl %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// startHub starts the hub, and waits until it serves.
func (r *rig) startHub() {
	r.Helper()
	log, err := os.OpenFile(filepath.Join(r.dir, "hub.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		r.Fatal(err)
	}
	defer log.Close()
	r.hub = exec.Command(r.program, "--config="+filepath.Join(r.dir, "hub.yaml"))
	r.hub.Stdout, r.hub.Stderr = log, log
	if err := r.hub.Start(); err != nil {
		r.Fatal(err)
	}
	r.eventually("the hub serves", func() error {
		conn, err := net.Dial("tcp", r.address)
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

// killHub ends the hub as a loss of its process does.
func (r *rig) killHub() {
	_ = r.hub.Process.Kill()
	_ = r.hub.Wait()
	if r.Failed() {
		log, _ := os.ReadFile(filepath.Join(r.dir, "hub.log"))
		r.Logf("the hub's log:\n%s", log)
	}
}

func (r *rig) eventually(what string, check func() error) {
	r.Helper()
	var last error
	err := wait.PollUntilContextTimeout(r.Context(), 50*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		last = check()
		return last == nil, nil
	})
	if err != nil {
		r.Fatalf("it is not so that %s: %v", what, last)
	}
}

// question is a request without a body.
type question struct {
	identity, path, accept string
}

// answer is what matters of an answer.
type answer struct {
	code        int
	contentType string
	body        string
	asOf        string
	err         error
}

func (r *rig) ask(clients map[string]*http.Client, q question) (a answer) {
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	response, err := r.open(ctx, clients, q)
	if err != nil {
		return answer{err: err}
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Header.Get("Content-Type"), string(body), response.Header.Get(proxy.AsOf), err}
}

func (r *rig) open(ctx context.Context, clients map[string]*http.Client, q question) (*http.Response, error) {
	host := r.server.Host
	if len(clients) > 0 && clients[q.identity] == r.over[q.identity] {
		host = r.address
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+host+q.path, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", q.accept)
	if token := r.tokens[q.identity]; token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	return clients[q.identity].Do(request)
}

func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// cutOff cuts the link, and waits until the hub has noticed: it answers from its cache.
func (r *rig) cutOff(q question) {
	r.Helper()
	r.link.Set(relay.Silent)
	r.eventually("the hub answers from its cache", func() error {
		if a := r.ask(r.over, q); a.err != nil || a.asOf == "" {
			return fmt.Errorf("it answers %+v", a)
		}
		return nil
	})
}

// comeBack restores the link, and waits until the cloud answers again.
func (r *rig) comeBack(q question) {
	r.Helper()
	r.link.Set(relay.Whole)
	r.eventually("the cloud answers", func() error {
		if a := r.ask(r.over, q); a.err != nil || a.asOf != "" || a.code != http.StatusOK {
			return fmt.Errorf("the answer is %+v", a)
		}
		return nil
	})
}

// short cuts a text for a message.
func short(text string) string {
	if len(text) > 300 {
		return text[:300] + "…"
	}
	return string(bytes.ToValidUTF8([]byte(text), []byte("?")))
}
