// Package kubelet sends requests to the kubelet of the node, online and offline: for logs, on behalf of callers
// with the node's certificate, and for more, on behalf of the API server of the node's pool. The hub
// authenticates to the kubelet with a token that it generates itself. The kubelet asks the API server, through
// the hub, to review the token and its permissions. The hub answers these reviews itself, for this token only.
// The token is never given to another program.
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

// user is the user name of the hub for the kubelet.
const user = "atoll:hub"

const (
	// greetWithin is the timeout of the TLS handshake with the kubelet. There is no timeout for a response:
	// when following the log of a quiet container, the kubelet sends nothing, not even headers.
	greetWithin = 10 * time.Second
	// maxReason is how many bytes are read of the body of an error response.
	maxReason = 4 << 10
)

var codecs = func() serializer.CodecFactory {
	scheme := runtime.NewScheme()
	utilruntime.Must(authenticationv1.AddToScheme(scheme))
	utilruntime.Must(authorizationv1.AddToScheme(scheme))
	return serializer.NewCodecFactory(scheme)
}()

// Kubelet is the kubelet of the node.
type Kubelet struct {
	nodeName, address string
	certificateFiles  []string
	// token is the hub's token for the kubelet, and uid is the UID of its user. Both are random, and in memory
	// only.
	token, uid string
	transport  *http.Transport
	// open is whether requests of the pool's API server are forwarded.
	open atomic.Bool
}

// New returns the kubelet at an address and port. Its serving certificate is the first certificate in the first
// file (PEM) that exists.
func New(nodeName, address string, certificateFiles ...string) *Kubelet {
	k := &Kubelet{nodeName: nodeName, address: address, certificateFiles: certificateFiles, token: rand.Text() + rand.Text(), uid: string(uuid.NewUUID())}
	k.transport = &http.Transport{
		TLSHandshakeTimeout: greetWithin, IdleConnTimeout: time.Minute,
		// The kubelet's certificate may be self-signed, without the IP address, or expired while it could not
		// be renewed. So verify compares it with the file.
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true, VerifyConnection: k.verify}, //nolint:gosec // see above
	}
	return k
}

// verify returns an error unless the certificate of a connection is the one in the file.
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
	return fmt.Errorf("the server at %s does not use the certificate in %s", k.address, file)
}

// RefusedError is the error of a request that the kubelet or the hub rejects, with the HTTP status code.
type RefusedError struct {
	Code int
	Text string
}

// Error implements error.
func (e *RefusedError) Error() string { return e.Text }

// Log returns the log of a container; query is from the request to an API server. A RefusedError has the
// kubelet's error message, for example that the pod does not exist on the node.
func (k *Kubelet) Log(ctx context.Context, namespace, pod string, query url.Values) (*http.Response, error) {
	container := query.Get("container")
	if container == "" {
		return nil, &RefusedError{http.StatusBadRequest, "the request has no container: use kubectl logs POD -c CONTAINER"}
	}
	for _, name := range []string{namespace, pod, container} {
		if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 { // it could change the path
			return nil, &RefusedError{http.StatusBadRequest, fmt.Sprintf("%q is not a valid name: %s", name, problems[0])}
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
		return nil, fmt.Errorf("sending a request to the kubelet: %w", err)
	}
	if response.StatusCode == http.StatusOK {
		return response, nil
	}
	if err := refusal(response); err != nil {
		return nil, err
	}
	return nil, &RefusedError{response.StatusCode, reasonIn(response)}
}

// reasonIn reads the error message of a kubelet's response.
func reasonIn(response *http.Response) string {
	defer response.Body.Close()
	reason, _ := io.ReadAll(io.LimitReader(response.Body, maxReason))
	return strings.TrimSpace(string(reason))
}

// refusal returns an error if a response means that the kubelet refuses the hub itself.
func refusal(response *http.Response) error {
	switch response.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Errorf("the kubelet refuses the hub (%s %s): it needs authentication.webhook.enabled and authorization.mode Webhook, and a kubeconfig that leads to the hub", response.Status, reasonIn(response))
	}
	return nil
}

// Try sends the kubelet a request of the kind that the pool's API server sends. It returns why the kubelet
// refuses the hub; nil if it accepts the hub, or cannot be reached.
func (k *Kubelet) Try(ctx context.Context) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+k.address+"/metrics/resource", nil)
	if err != nil {
		return nil // other requests report an invalid address
	}
	r.Header.Set("Authorization", "Bearer "+k.token)
	response, err := k.transport.RoundTrip(r)
	if err != nil {
		return nil // the kubelet does not run
	}
	defer response.Body.Close()
	return refusal(response)
}

// Open sets whether requests of the pool's API server are forwarded. A kubelet caches permissions for some
// minutes.
func (k *Kubelet) Open(is bool) { k.open.Store(is) }

// Pass forwards a request of the pool's API server to the kubelet, with the hub's token. The caller has checked
// the request. If that fails, Pass writes the error to the client.
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
			http.Error(w, "sending a request to the kubelet: "+err.Error(), http.StatusServiceUnavailable)
		},
	}).ServeHTTP(w, r)
}

// Review answers a TokenReview or a SubjectAccessReview of the kubelet that is about the hub. It returns nil
// for all other reviews: forward them to the API server.
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
		review.Spec.Token = "" // do not return the token
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

// allows reports whether the hub has a permission. The smallest permission for logs, exec, attach and
// port-forward in a kubelet is nodes/proxy.
func (k *Kubelet) allows(a *authorizationv1.ResourceAttributes) bool {
	if a == nil || a.Group != "" || a.Resource != "nodes" || a.Name != k.nodeName {
		return false
	}
	switch a.Verb + " " + a.Subresource {
	case "get proxy": // for logs, including those requested by the node itself
		return true
	case "create proxy", "get stats", "get metrics":
		return k.open.Load()
	}
	return false
}

// ReasonOf returns the status code and the message for the client of a failed request.
func ReasonOf(err error) (code int, text string) {
	if refused := (*RefusedError)(nil); errors.As(err, &refused) {
		return refused.Code, refused.Text
	}
	return http.StatusServiceUnavailable, err.Error()
}
