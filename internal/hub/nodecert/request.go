package nodecert

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/keyutil"
	"sigs.k8s.io/yaml"

	"github.com/atoll-k8s/atoll/internal/hub/files"
)

const (
	// path is the path of CertificateSigningRequests.
	path = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
	// nodes is the organization of all nodes.
	nodes = "system:nodes"
	// maxAnswer is the size limit of a response, in bytes.
	maxAnswer = 1 << 20
)

// waitsError is the error of a request that is not approved, or not signed, yet.
type waitsError struct{ name string }

// Error implements error.
func (e *waitsError) Error() string {
	return fmt.Sprintf("the CertificateSigningRequest %[1]q waits for its approval (kubectl certificate approve %[1]s)", e.name)
}

// errRefused is the error of a request that will not get a certificate.
var errRefused = errors.New("no certificate is issued for the request")

// judge returns the certificate in the status of a request.
func judge(csr *certificatesv1.CertificateSigningRequest) (issued []byte, err error) {
	for _, c := range csr.Status.Conditions {
		if c.Status != corev1.ConditionFalse && (c.Type == certificatesv1.CertificateDenied || c.Type == certificatesv1.CertificateFailed) {
			return nil, fmt.Errorf("CertificateSigningRequest %q is %s (%s: %s): %w", csr.Name, c.Type, c.Reason, c.Message, errRefused)
		}
	}
	if len(csr.Status.Certificate) == 0 {
		return nil, &waitsError{csr.Name}
	}
	return csr.Status.Certificate, nil
}

// ensureRequest returns the request for a certificate of the key, and creates it if it does not exist. The name
// of a request is computed from its key and its purpose.
func (m *Manager) ensureRequest(ctx context.Context, key *ecdsa.PrivateKey) (*certificatesv1.CertificateSigningRequest, error) {
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, fmt.Errorf("encoding a key: %w", err)
	}
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: commonName(m.o.NodeName), Organization: []string{nodes}}}
	spec := certificatesv1.CertificateSigningRequestSpec{
		SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
		Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
	}
	identity, prefix := slices.Concat(public, []byte(m.o.NodeName)), "node-csr-"
	if p := m.o.Purpose; p != nil {
		if template.IPAddresses, _, err = p.Wanted(); err != nil {
			return nil, err
		}
		spec.SignerName, spec.Usages = p.Signer, p.Usages
		identity, prefix = fmt.Append(identity, p.Signer, template.IPAddresses), "hub-csr-"
	}
	sum := sha256.Sum256(identity)
	name := prefix + hex.EncodeToString(sum[:20])
	csr, err := m.call(ctx, http.MethodGet, path+"/"+name, nil)
	if code := (*codeError)(nil); !errors.As(err, &code) || code.code != http.StatusNotFound {
		return csr, err
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		return nil, fmt.Errorf("creating a certificate request: %w", err)
	}
	spec.Request = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	return m.call(ctx, http.MethodPost, path, &certificatesv1.CertificateSigningRequest{
		TypeMeta:   metav1.TypeMeta{APIVersion: certificatesv1.SchemeGroupVersion.String(), Kind: "CertificateSigningRequest"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       spec,
	})
}

// commonName is the common name of a node's certificate.
func commonName(node string) string { return "system:node:" + node }

// codeError is an error response of an API server.
type codeError struct {
	code    int
	message string
}

// Error implements error.
func (e *codeError) Error() string {
	return fmt.Sprintf("the API server answers %d: %s", e.code, e.message)
}

// call sends a request to an API server, with the client certificate of the node, or with the bootstrap token
// if there is no certificate or the API server does not accept it.
func (m *Manager) call(ctx context.Context, method, path string, body *certificatesv1.CertificateSigningRequest) (*certificatesv1.CertificateSigningRequest, error) {
	if m.o.Purpose != nil {
		return m.callAs(ctx, "", method, path, body)
	}
	if _, err := m.Current(); err == nil {
		csr, err := m.callAs(ctx, "", method, path, body)
		if code := (*codeError)(nil); !errors.As(err, &code) || code.code != http.StatusUnauthorized {
			return csr, err
		}
	}
	token, err := readToken(m.o.Bootstrap)
	if err != nil {
		return nil, err
	}
	csr, err := m.callAs(ctx, token, method, path, body)
	if code := (*codeError)(nil); errors.As(err, &code) && code.code == http.StatusUnauthorized {
		return nil, fmt.Errorf("the bootstrap token is not accepted; make a new one (kubeadm token create) and write it into %s: %w", m.o.Bootstrap, err)
	}
	return csr, err
}

// callAs sends a request with a token, or as the node if the token is "".
func (m *Manager) callAs(ctx context.Context, token, method, path string, body *certificatesv1.CertificateSigningRequest) (*certificatesv1.CertificateSigningRequest, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return nil, fmt.Errorf("encoding a CertificateSigningRequest: %w", err)
		}
	}
	r, err := http.NewRequestWithContext(ctx, method, path, bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("requesting a certificate: %w", err)
	}
	r.Header.Set("Accept", "application/json")
	r.Header.Set("Content-Type", "application/json")
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := m.o.Send(r, token == "")
	if err != nil {
		return nil, fmt.Errorf("requesting a certificate: %w", err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("requesting a certificate: %w", err)
	}
	if response.StatusCode/100 != 2 {
		var status metav1.Status
		if json.Unmarshal(answer, &status) != nil || status.Message == "" {
			status.Message = http.StatusText(response.StatusCode)
		}
		return nil, fmt.Errorf("requesting a certificate: %w", &codeError{response.StatusCode, status.Message})
	}
	csr := &certificatesv1.CertificateSigningRequest{}
	if err := json.Unmarshal(answer, csr); err != nil {
		return nil, fmt.Errorf("reading a CertificateSigningRequest: %w", err)
	}
	return csr, nil
}

// readToken reads the token of the current context of a kubeconfig.
func readToken(path string) (string, error) {
	text, err := files.Read(path)
	if err != nil {
		return "", fmt.Errorf("reading cloud.bootstrapKubeconfig: %w", err)
	}
	var config struct {
		CurrentContext string `json:"current-context"`
		Contexts       []struct {
			Name    string `json:"name"`
			Context struct {
				User string `json:"user"`
			} `json:"context"`
		} `json:"contexts"`
		Users []struct {
			Name string `json:"name"`
			User struct {
				Token string `json:"token"`
			} `json:"user"`
		} `json:"users"`
	}
	if err := yaml.Unmarshal(text, &config); err != nil {
		return "", fmt.Errorf("reading cloud.bootstrapKubeconfig %s: not a kubeconfig", path) // the error may contain the token
	}
	for _, c := range config.Contexts {
		for _, u := range config.Users {
			if c.Name == config.CurrentContext && u.Name == c.Context.User && u.User.Token != "" {
				return strings.TrimSpace(u.User.Token), nil
			}
		}
	}
	return "", fmt.Errorf("reading cloud.bootstrapKubeconfig %s: the user of its current context has no token", path)
}

func newKey() (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("generating a key: %w", err)
	}
	text, err := encodeKey(key)
	return key, text, err
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	text, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return nil, fmt.Errorf("encoding a key: %w", err)
	}
	return text, nil
}

func decodeKey(text []byte) (*ecdsa.PrivateKey, error) {
	key, err := keyutil.ParsePrivateKeyPEM(text)
	if err != nil {
		return nil, fmt.Errorf("reading a key: %w", err)
	}
	found, is := key.(*ecdsa.PrivateKey)
	if !is {
		return nil, errors.New("reading a key: not an ECDSA key")
	}
	return found, nil
}

// parsePair reads a certificate of the node and its key.
func parsePair(cert, key []byte, node string) (*tls.Certificate, error) {
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, err
	}
	subject := pair.Leaf.Subject
	if subject.CommonName != commonName(node) || !slices.Contains(subject.Organization, nodes) {
		return nil, fmt.Errorf("the certificate is for %q of %q, not for %q of %q", subject.CommonName, subject.Organization, commonName(node), nodes)
	}
	return &pair, nil
}
