package hub

import (
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/keyutil"

	"github.com/atoll-k8s/atoll/internal/hub"
	"github.com/atoll-k8s/atoll/test/relay"
)

// testBootstrap: a hub requests the certificate of its node with a token, serves while that waits for
// its approval, has it after a restart without the cloud, and renews it as the node.
func (r *rig) testBootstrap() {
	const other = "edge-2"
	services := question{"node", "/api/v1/services", "application/json"}
	two := *r
	two.dir, two.address, two.observe = r.TempDir(), freeAddress(r.T), freeAddress(r.T)
	two.direct, two.over, two.tokens = map[string]*http.Client{}, map[string]*http.Client{}, map[string]string{}
	r.serviceAccount("bootstrapper", "system:node-bootstrapper")
	two.writeBootstrap(other, r.tokens["bootstrapper"])
	two.startHub()
	r.Cleanup(func() { two.killHub() })
	node := r.nodeConfig(other)
	pair, err := tls.X509KeyPair(node.CertData, node.KeyData)
	if err != nil {
		r.Fatal(err)
	}
	two.clients("node", "", pair)
	two.clients("reader", r.tokens["reader"])

	r.eventually("the request waits for its approval, and the hub says which", func() error {
		if problem := two.readStatus().Certificate.Problem; !strings.Contains(problem, "kubectl certificate approve node-csr-") {
			return fmt.Errorf("the problem is %q", problem)
		}
		return nil
	})
	if a := two.ask(two.over, question{"reader", "/api/v1/namespaces/default/pods", "application/json"}); a.code != http.StatusOK {
		r.Errorf("others are answered %+v", a)
	}
	if a := two.ask(two.over, services); a.code != http.StatusServiceUnavailable || !strings.Contains(a.body, "waits for its approval") {
		r.Errorf("the node is answered %+v", a)
	}
	_, name, _ := strings.Cut(strings.TrimSuffix(two.readStatus().Certificate.Problem, ")"), "approve ")
	r.kubectl("certificate", "approve", name)
	two.isAnswered("with the certificate that was approved", services)
	expires := two.readStatus().Certificate.Expires

	two.eventually("certificate and answer are on disk", func() error {
		left, err := filepath.Glob(filepath.Join(two.dir, "state", "client", "pending.key"))
		isKept := slices.ContainsFunc(two.readStatus().Cache, func(s hub.Scope) bool { return s.Request == services.path })
		if err == nil && (len(left) > 0 || !isKept) {
			err = fmt.Errorf("the request is over: %t, the answer is kept: %t", len(left) == 0, isKept)
		}
		return err
	})
	two.killHub()
	r.link.Set(relay.Silent)
	two.startHub()
	r.eventually("the node is answered from the cache", func() error {
		if a := two.ask(two.over, services); a.code != http.StatusOK || a.asOf == "" {
			return fmt.Errorf("it is answered %+v", a)
		}
		return nil
	})
	if c := two.readStatus().Certificate; !c.Expires.Equal(expires) || c.Problem != "" {
		r.Errorf("after a restart without the cloud the certificate is %+v", c)
	}
	r.link.Set(relay.Whole)
	two.isAnswered("after the outage", services)

	// One of which nine tenths are over, and no token any more.
	two.killHub()
	r.kubectl("create", "clusterrolebinding", "renewal", "--clusterrole=system:certificates.k8s.io:certificatesigningrequests:selfnodeclient", "--group=system:nodes")
	for _, err := range []error{os.Remove(filepath.Join(two.dir, "bootstrap.conf")), os.WriteFile(filepath.Join(two.dir, "state", "client", "node.pem"), r.oldCertificate(other), 0o600)} {
		if err != nil {
			r.Fatal(err)
		}
	}
	two.startHub()
	r.eventually("the certificate is renewed", func() error {
		if c := two.readStatus().Certificate; !c.Expires.After(time.Now().Add(24 * time.Hour)) {
			return fmt.Errorf("it is %+v", c)
		}
		return nil
	})
	two.isAnswered("with the certificate that was renewed", services)
	requests, err := r.admin.CertificatesV1().CertificateSigningRequests().List(r.Context(), metav1.ListOptions{})
	if err != nil {
		r.Fatal(err)
	}
	users := map[string]int{}
	for _, csr := range requests.Items {
		users[csr.Spec.Username]++
	}
	if len(users) != 2 || users["system:serviceaccount:default:bootstrapper"] != 1 || users["system:node:"+other] != 1 {
		r.Errorf("certificates were requested by %v", users)
	}
}

// writeBootstrap writes the files of a hub that requests its certificate.
func (r *rig) writeBootstrap(node, token string) {
	r.Helper()
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.Clusters["c"] = &clientcmdapi.Cluster{Server: "https://" + r.link.Address()}
	kubeconfig.AuthInfos["tls-bootstrap-token-user"] = &clientcmdapi.AuthInfo{Token: token}
	kubeconfig.Contexts["c"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "tls-bootstrap-token-user"}
	kubeconfig.CurrentContext = "c"
	text, err := clientcmd.Write(*kubeconfig)
	if err != nil {
		r.Fatal(err)
	}
	r.configure(node, "bootstrapKubeconfig", "bootstrap.conf", r.nodeConfig(node).CAData, text)
}

func (r *rig) readStatus() *hub.Status {
	r.Helper()
	var s *hub.Status
	r.eventually("the hub tells its status", func() (err error) {
		s, err = hub.ReadStatus(r.Context(), r.observe)
		return err
	})
	return s
}

func (r *rig) isAnswered(when string, q question) {
	r.Helper()
	r.eventually("the cloud answers "+when, func() error {
		if a := r.ask(r.over, q); a.code != http.StatusOK || a.asOf != "" {
			return fmt.Errorf("the answer is %+v", a)
		}
		return nil
	})
}

// oldCertificate returns a certificate of a node, and its key, that is to be renewed.
func (r *rig) oldCertificate(node string) []byte {
	r.Helper()
	pair := r.certificate(node, time.Now().Add(-20*time.Hour), time.Now().Add(time.Hour))
	key, err := keyutil.MarshalPrivateKeyToPEM(pair.PrivateKey)
	if err != nil {
		r.Fatal(err)
	}
	return append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}), key...)
}
