package hub

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/governance"
	"github.com/atoll-k8s/atoll/internal/hub/config"
	"github.com/atoll-k8s/atoll/internal/machinery/certs"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// signingCloud is a cloud that has the Node, in a pool that gets a coordinator, and signs each request.
type signingCloud struct {
	*testing.T

	ca       certs.Pair
	mu       sync.Mutex
	governed bool
	requests map[string]*certificatesv1.CertificateSigningRequest
}

func (c *signingCloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	const requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
	w.Header().Set("Content-Type", "application/json")
	c.mu.Lock()
	defer c.mu.Unlock()
	const node = `"metadata":{"name":"a","uid":"1","resourceVersion":"7","labels":{"apps.openyurt.io/nodepool":"edge"}}`
	switch {
	case r.URL.Query().Get("watch") == "true": // it ends at once, and is begun again
	case r.URL.Path == "/api/v1/nodes/a":
		_, _ = io.WriteString(w, `{"kind":"Node","apiVersion":"v1",`+node+`,"status":{"addresses":[{"type":"InternalIP","address":"127.0.0.1"}]}}`)
	case r.URL.Path == "/api/v1/nodes":
		_, _ = io.WriteString(w, `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"7"},"items":[{`+node+`}]}`)
	case r.URL.Path == "/apis/apps.openyurt.io/v1alpha1/yurtcoordinators":
		list := apps.YurtCoordinatorList{TypeMeta: metav1.TypeMeta{APIVersion: apps.GroupVersion.String(), Kind: "YurtCoordinatorList"}, ListMeta: metav1.ListMeta{ResourceVersion: "7"}}
		if c.governed {
			list.Items = []apps.YurtCoordinator{{
				ObjectMeta: metav1.ObjectMeta{Name: "edge", UID: "1", ResourceVersion: "7"}, Spec: apps.YurtCoordinatorSpec{NodePool: "edge"},
				Status: apps.YurtCoordinatorStatus{Addresses: []string{"127.0.0.1"}, CABundle: c.ca.Cert},
			}}
		}
		_ = json.NewEncoder(w).Encode(list)
	case strings.HasPrefix(r.URL.Path, requests+"/") && c.requests[r.URL.Path] != nil:
		_ = json.NewEncoder(w).Encode(c.requests[r.URL.Path])
	case r.URL.Path == requests && r.Method == http.MethodPost:
		csr := &certificatesv1.CertificateSigningRequest{}
		if err := json.NewDecoder(r.Body).Decode(csr); err != nil {
			c.Error(err)
		}
		block, _ := pem.Decode(csr.Spec.Request)
		request, err := x509.ParseCertificateRequest(block.Bytes)
		if err != nil || csr.Spec.SignerName != governance.HubSigner {
			c.Errorf("the request is %+v, %v", csr.Spec, err)
			return
		}
		leaf := certs.Leaf{CommonName: request.Subject.CommonName, Groups: request.Subject.Organization, Names: []string{request.IPAddresses[0].String()}}
		if csr.Status.Certificate, err = certs.IssueTo(c.ca, request.PublicKey, leaf, certs.Period{From: time.Now().Add(-time.Hour), To: time.Now().Add(time.Hour)}); err != nil {
			c.Error(err)
		}
		c.requests[requests+"/"+csr.Name] = csr
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(csr)
	case r.URL.Path == "/readyz":
		_, _ = io.WriteString(w, "ok")
	default:
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
	}
}

// TestPoolAccessPortOpensWithASignedCertificate: the cloud has signed a certificate for the address of the Node.
// After a restart without the cloud the port opens with the same certificate.
func TestPoolAccessPortOpensWithASignedCertificate(t *testing.T) {
	dir := t.TempDir()
	ca, err := certs.NewCA(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	_ = free.Close()
	signing := &signingCloud{T: t, ca: ca, requests: map[string]*certificatesv1.CertificateSigningRequest{}}
	cloud := httptest.NewTLSServer(signing)
	kubelets := func(c *config.Configuration) {
		c.Kubelet = config.Kubelet{Address: "127.0.0.1:1", CertificateFile: filepath.Join(dir, "kubelet.crt")}
	}
	client := func(leaf certs.Leaf) *http.Client {
		t.Helper()
		pair, err := certs.Issue(ca, leaf, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		own, err := tls.X509KeyPair(pair.Cert, pair.Key)
		if err != nil {
			t.Fatal(err)
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(ca.Cert)
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{own}}}
		t.Cleanup(transport.CloseIdleConnections)
		return &http.Client{Transport: transport, Timeout: time.Minute}
	}
	apiServer := client(certs.Leaf{CommonName: "kube-apiserver", Groups: []string{governance.APIServerGroup}})
	served := func(when string) {
		t.Helper()
		build.Eventually(t, when+" the port is served", func() bool {
			response, err := apiServer.Get("https://" + address + "/metrics/resource")
			if err != nil {
				return false
			}
			defer response.Body.Close()
			text, _ := io.ReadAll(response.Body)
			if response.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(text), "sending a request to the kubelet") { // which is not there
				t.Errorf("%s the answer is %s %s", when, response.Status, text)
			}
			return true
		})
	}
	r := tryHub(t, dir, cloud, trial{access: address}, kubelets)
	if _, err := net.Dial("tcp", address); err == nil {
		t.Error("without a coordinator the port is served")
	}
	signing.mu.Lock()
	signing.governed = true
	signing.mu.Unlock()
	node, err := tls.LoadX509KeyPair(filepath.Join(dir, "node.pem"), filepath.Join(dir, "node.pem"))
	if err != nil {
		t.Fatal(err)
	}
	kubelet := r.client.Transport.(*http.Transport).Clone()
	kubelet.TLSClientConfig.Certificates = []tls.Certificate{node}
	defer kubelet.CloseIdleConnections()
	build.Eventually(t, "the kubelet has read the Node", func() bool {
		response, err := (&http.Client{Transport: kubelet}).Get("https://" + r.address + "/api/v1/nodes/a")
		if err != nil {
			return false
		}
		_, _ = io.Copy(io.Discard, response.Body)
		return response.Body.Close() == nil && response.StatusCode == http.StatusOK
	})
	served("signed,")
	if _, err := client(certs.Leaf{CommonName: "alice", Groups: []string{governance.PeopleGroup}}).Get("https://" + address + "/metrics/resource"); err == nil {
		t.Error("a person is served")
	}
	r.end()
	cloud.CloseClientConnections()
	_ = cloud.Listener.Close()
	tryHub(t, dir, cloud, trial{access: address}, kubelets)
	served("after a restart without the cloud")
	if len(signing.requests) != 1 {
		t.Errorf("there are %d requests", len(signing.requests))
	}
}
