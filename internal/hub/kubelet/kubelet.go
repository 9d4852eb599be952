// Package kubelet reaches the kubelet of the node, with and without the cloud: its logs for who has the node's
// certificate, and more for the API server of the node's pool.
// The kubelet is asked with a token that the hub has made, and asks the API server whose that is and what it may.
// These questions come through the hub, which answers them itself, for this token only: nobody else ever has it.
package kubelet

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	stdlog "log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation"
)

// user is whom the kubelet takes the hub for.
const user = "atoll:hub"

const (
	// greetWithin bounds how long the kubelet may take for the handshake of TLS. How long it may take for an answer is
	// not bounded: to a request that follows a quiet container it sends nothing, not even headers.
	greetWithin = 10 * time.Second
	// maxReason bounds what is read of why the kubelet refuses a request, in bytes.
	maxReason = 4 << 10
)

var codecs = func() serializer.CodecFactory {
	scheme := runtime.NewScheme()
	utilruntime.Must(authenticationv1.AddToScheme(scheme))
	utilruntime.Must(authorizationv1.AddToScheme(scheme))
	return serializer.NewCodecFactory(scheme)
}()

// Kubelet is that of the node.
type Kubelet struct {
	nodeName, address string
	certificateFiles  []string
	// token is shown to the kubelet, and uid is that of its user. Both are random, and in memory only.
	token, uid string
	transport  *http.Transport
	// open tells that requests of the pool's API server are passed on.
	open atomic.Bool
}

// New returns the kubelet of a node. It serves at an address and port, with the first certificate of the first file in
// PEM that is there.
func New(nodeName, address string, certificateFiles ...string) *Kubelet {
	k := &Kubelet{nodeName: nodeName, address: address, certificateFiles: certificateFiles, token: rand.Text() + rand.Text(), uid: string(uuid.NewUUID())}
	k.transport = &http.Transport{
		TLSHandshakeTimeout: greetWithin, IdleConnTimeout: time.Minute,
		// Its certificate is signed by nobody whom others know, may be of a name only, and may have expired while
		// nobody could renew it: it is compared.
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true, VerifyConnection: k.verify}, //nolint:gosec // see above
	}
	return k
}

// verify returns an error unless the certificate of a connection is that of the file.
func (k *Kubelet) verify(c tls.ConnectionState) error {
	var file string
	var text []byte
	err := fs.ErrNotExist
	for _, file = range k.certificateFiles {
		if text, err = os.ReadFile(file); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("reading the kubelet's serving certificate: %w", err)
	}
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		if want, err := x509.ParseCertificate(block.Bytes); err == nil && len(c.PeerCertificates) > 0 && c.PeerCertificates[0].Equal(want) {
			return nil
		}
		break
	}
	return fmt.Errorf("who serves at %s has not the certificate of %s", k.address, file)
}

// RefusedError is the error of a request that the kubelet refuses.
type RefusedError struct {
	Code int
	Text string
}

// Error implements error.
func (e *RefusedError) Error() string { return e.Text }

// Log returns what a container has written; query is that of the request to an API server. A RefusedError is what
// the kubelet says, for example that there is no such pod on the node.
func (k *Kubelet) Log(ctx context.Context, namespace, pod string, query url.Values) (*http.Response, error) {
	container := query.Get("container")
	if container == "" {
		return nil, &RefusedError{http.StatusBadRequest, "the request names no container: kubectl logs POD -c CONTAINER"}
	}
	for _, name := range []string{namespace, pod, container} {
		if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 { // it would be another path
			return nil, &RefusedError{http.StatusBadRequest, fmt.Sprintf("%q is no name: %s", name, problems[0])}
		}
	}
	query.Del("container")
	target := (&url.URL{Scheme: "https", Host: k.address, RawQuery: query.Encode()}).JoinPath("containerLogs", namespace, pod, container)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+k.token)
	response, err := k.transport.RoundTrip(r)
	if err != nil {
		return nil, fmt.Errorf("asking the kubelet: %w", err)
	}
	if response.StatusCode == http.StatusOK {
		return response, nil
	}
	if err := refusal(response); err != nil {
		return nil, err
	}
	return nil, &RefusedError{response.StatusCode, reasonIn(response)}
}

// reasonIn reads why the kubelet has refused a request.
func reasonIn(response *http.Response) string {
	defer response.Body.Close()
	reason, _ := io.ReadAll(io.LimitReader(response.Body, maxReason))
	return strings.TrimSpace(string(reason))
}

// refusal returns the error of an answer if the kubelet refuses the hub itself.
func refusal(response *http.Response) error {
	switch response.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Errorf("the kubelet refuses the hub (%s %s): it needs authentication.webhook.enabled and authorization.mode Webhook, and a kubeconfig that leads to the hub", response.Status, reasonIn(response))
	}
	return nil
}

// Try asks the kubelet for what the pool's API server asks it for, too, and returns why the kubelet refuses the hub; nil if it
// does not, or cannot be asked.
func (k *Kubelet) Try(ctx context.Context) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+k.address+"/metrics/resource", nil)
	if err != nil {
		return nil // the address is that of all requests
	}
	r.Header.Set("Authorization", "Bearer "+k.token)
	response, err := k.transport.RoundTrip(r)
	if err != nil {
		return nil // it does not run
	}
	defer response.Body.Close()
	return refusal(response)
}

// Open says whether requests of the pool's API server are passed on. A kubelet remembers for some minutes what it was
// allowed.
func (k *Kubelet) Open(is bool) { k.open.Store(is) }

// Pass passes a request of the pool's API server on, which its caller has checked, with the hub's token. It writes why a
// request fails.
func (k *Kubelet) Pass(w http.ResponseWriter, r *http.Request) {
	(&httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host, p.Out.Host = "https", k.address, ""
			for name := range p.Out.Header {
				if strings.HasPrefix(name, "Impersonate-") || strings.HasPrefix(name, "X-Remote-") {
					p.Out.Header.Del(name)
				}
			}
			p.Out.Header.Set("Authorization", "Bearer "+k.token)
		},
		Transport: k.transport, FlushInterval: -1, ModifyResponse: refusal, ErrorLog: stdlog.New(io.Discard, "", 0), // the client gets the error
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, "asking the kubelet: "+err.Error(), http.StatusServiceUnavailable)
		},
	}).ServeHTTP(w, r)
}

// Review answers a TokenReview or a SubjectAccessReview of the kubelet that is about the hub. It returns nil for all
// others, which are for the API server.
func (k *Kubelet) Review(question []byte) runtime.Object {
	if !bytes.Contains(question, []byte(k.token)) && !bytes.Contains(question, []byte(k.uid)) {
		return nil
	}
	object, _, err := codecs.UniversalDeserializer().Decode(question, nil, nil)
	if err != nil {
		return nil
	}
	switch review := object.(type) {
	case *authenticationv1.TokenReview:
		if review.Spec.Token != k.token {
			return nil
		}
		review.APIVersion, review.Kind = authenticationv1.SchemeGroupVersion.String(), "TokenReview"
		review.Spec.Token = "" // nobody has to read it again
		review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: user, UID: k.uid}, Audiences: review.Spec.Audiences}
		return review
	case *authorizationv1.SubjectAccessReview:
		if review.Spec.User != user || review.Spec.UID != k.uid {
			return nil
		}
		review.APIVersion, review.Kind = authorizationv1.SchemeGroupVersion.String(), "SubjectAccessReview"
		review.Status.Allowed = k.allows(review.Spec.ResourceAttributes)
		return review
	}
	return nil
}

// allows reports whether the hub needs a right. A kubelet has none that is smaller than nodes/proxy for logs, exec,
// attach and port-forward.
func (k *Kubelet) allows(a *authorizationv1.ResourceAttributes) bool {
	if a == nil || a.Group != "" || a.Resource != "nodes" || a.Name != k.nodeName {
		return false
	}
	switch a.Verb + " " + a.Subresource {
	case "get proxy": // logs, also those for the node itself
		return true
	case "create proxy", "get stats", "get metrics":
		return k.open.Load()
	}
	return false
}

// ReasonOf returns the code and the text for a client whose request failed.
func ReasonOf(err error) (code int, text string) {
	if refused := (*RefusedError)(nil); errors.As(err, &refused) {
		return refused.Code, refused.Text
	}
	return http.StatusServiceUnavailable, err.Error()
}
