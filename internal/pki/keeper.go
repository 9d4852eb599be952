package pki

import (
	"bytes"
	"context"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
)

const (
	// ServerSecret holds the CA with its key and the server certificate.
	ServerSecret = "atoll-manager-tls"
	// ClientSecret holds what kube-scheduler needs to call the extender:
	// ca.crt, tls.crt, tls.key.
	ClientSecret = "atoll-extender-client"
	// ClientName is the common name of the extender's client.
	ClientName = "atoll-kube-scheduler"
	// MutatingWebhooks is the configuration of the pod webhook, which gets the CA.
	MutatingWebhooks = "atoll-pods"
	// ValidatingWebhooks is the configuration of the policies' webhooks, which gets the CA.
	ValidatingWebhooks = "atoll-policies"

	caKeyField = "ca.key"
	caField    = "ca.crt"

	checkInterval = time.Minute
)

// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations,resourceNames=atoll-pods,verbs=get;patch
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=validatingwebhookconfigurations,resourceNames=atoll-policies,verbs=get;patch

// Keeper keeps certificates in Secrets of one namespace. Every replica runs
// one: whoever comes first makes what is missing, the others read it.
type Keeper struct {
	Client    kubernetes.Interface
	Namespace string
	// Names are the DNS names and IP addresses under which the server is reached.
	Names []string
	Clock clock.PassiveClock
	Log   logr.Logger

	current atomic.Pointer[bundle]
}

type bundle struct {
	caPEM  []byte
	roots  *x509.CertPool
	server *tls.Certificate
	client *tls.Certificate
	shared []byte // SharedKey
}

// Ensure makes or renews what is missing or due, and reads the rest.
func (k *Keeper) Ensure(ctx context.Context) error {
	var lastErr error
	for range 5 { // another replica may write at the same time
		if lastErr = k.ensure(ctx); !apierrors.IsConflict(lastErr) && !apierrors.IsAlreadyExists(lastErr) {
			return lastErr
		}
	}
	return lastErr
}

func (k *Keeper) ensure(ctx context.Context) error {
	now := k.Clock.Now()
	secret, err := k.Client.CoreV1().Secrets(k.Namespace).Get(ctx, ServerSecret, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("reading Secret %s/%s: %w", k.Namespace, ServerSecret, err)
	}
	exists := err == nil
	if !exists {
		secret = newSecret(k.Namespace, ServerSecret)
	}
	ca := Pair{Cert: secret.Data[caField], Key: secret.Data[caKeyField]}
	server := Pair{Cert: secret.Data[corev1.TLSCertKey], Key: secret.Data[corev1.TLSPrivateKeyKey]}
	leaf := Leaf{CommonName: "atoll-manager", Names: k.Names}
	if !freshCA(ca, now) || !Fresh(server, firstOf(ca), leaf, now) {
		if ca, server, err = renew(ca, leaf, now); err != nil {
			return err
		}
		secret.Data = map[string][]byte{
			caField: ca.Cert, caKeyField: ca.Key,
			corev1.TLSCertKey: server.Cert, corev1.TLSPrivateKeyKey: server.Key,
		}
		if err := k.write(ctx, secret, exists); err != nil {
			return err
		}
		k.Log.Info("Made certificates", "secret", ServerSecret)
	}
	client, err := k.ensureClient(ctx, ca, now)
	if err != nil {
		return err
	}
	return k.use(ca, server, client)
}

// renew keeps the CA while it can sign. A new CA's certificate stands before
// the old one's, so that what the old one signed stays trusted.
func renew(ca Pair, leaf Leaf, now time.Time) (newCA, server Pair, err error) {
	if !freshCA(ca, now) {
		old := ca.Cert
		if ca, err = NewCA(now); err != nil {
			return Pair{}, Pair{}, err
		}
		if cert, parseErr := parseCert(old); parseErr == nil && now.Before(cert.NotAfter) {
			ca.Cert = append(bytes.TrimSpace(ca.Cert), append([]byte("\n"), firstOf(Pair{Cert: old}).Cert...)...)
		}
	}
	server, err = Issue(ca, leaf, now)
	return ca, server, err
}

// firstOf is the pair with only the first certificate of a bundle.
func firstOf(p Pair) Pair {
	const end = "-----END CERTIFICATE-----"
	if i := bytes.Index(p.Cert, []byte(end)); i >= 0 {
		p.Cert = append(bytes.Clone(p.Cert[:i+len(end)]), '\n')
	}
	return p
}

func (k *Keeper) ensureClient(ctx context.Context, ca Pair, now time.Time) (Pair, error) {
	secret, err := k.Client.CoreV1().Secrets(k.Namespace).Get(ctx, ClientSecret, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return Pair{}, fmt.Errorf("reading Secret %s/%s: %w", k.Namespace, ClientSecret, err)
	}
	exists := err == nil
	if !exists {
		secret = newSecret(k.Namespace, ClientSecret)
	}
	client := Pair{Cert: secret.Data[corev1.TLSCertKey], Key: secret.Data[corev1.TLSPrivateKeyKey]}
	leaf := Leaf{CommonName: ClientName}
	if Fresh(client, firstOf(ca), leaf, now) && bytes.Equal(secret.Data[caField], ca.Cert) {
		return client, nil
	}
	if client, err = Issue(ca, leaf, now); err != nil {
		return Pair{}, err
	}
	secret.Data = map[string][]byte{
		caField: ca.Cert, corev1.TLSCertKey: client.Cert, corev1.TLSPrivateKeyKey: client.Key,
	}
	return client, k.write(ctx, secret, exists)
}

func newSecret(namespace, name string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Type:       corev1.SecretTypeTLS,
	}
}

func (k *Keeper) write(ctx context.Context, secret *corev1.Secret, exists bool) (err error) {
	if exists {
		_, err = k.Client.CoreV1().Secrets(k.Namespace).Update(ctx, secret, metav1.UpdateOptions{})
	} else {
		_, err = k.Client.CoreV1().Secrets(k.Namespace).Create(ctx, secret, metav1.CreateOptions{})
	}
	if err != nil {
		return fmt.Errorf("writing Secret %s/%s: %w", k.Namespace, secret.Name, err)
	}
	return nil
}

func (k *Keeper) use(ca, server, client Pair) error {
	if b := k.current.Load(); b != nil && bytes.Equal(b.caPEM, ca.Cert) &&
		bytes.Equal(b.server.Certificate[0], der(server.Cert)) && bytes.Equal(b.client.Certificate[0], der(client.Cert)) {
		return nil
	}
	serverCert, err := tls.X509KeyPair(server.Cert, server.Key)
	if err != nil {
		return fmt.Errorf("using the server certificate: %w", err)
	}
	clientCert, err := tls.X509KeyPair(client.Cert, client.Key)
	if err != nil {
		return fmt.Errorf("using the client certificate: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca.Cert) {
		return errors.New("using the CA: it holds no certificate")
	}
	shared, err := hkdf.Key(sha256.New, ca.Key, nil, "atoll.dev/shared-key", sha256.Size)
	if err != nil {
		return fmt.Errorf("deriving the shared key: %w", err)
	}
	k.current.Store(&bundle{caPEM: ca.Cert, roots: roots, server: &serverCert, client: &clientCert, shared: shared})
	return nil
}

// SharedKey is a secret that all replicas have and nobody else, for what one
// proves to another. It changes with the CA. nil before there is one.
func (k *Keeper) SharedKey() []byte {
	if b := k.current.Load(); b != nil {
		return b.shared
	}
	return nil
}

func der(certPEM []byte) []byte {
	cert, err := parseCert(certPEM)
	if err != nil {
		return nil
	}
	return cert.Raw
}

// InjectCA writes the CA into the webhook configurations. A configuration that
// does not exist is none of our business.
func (k *Keeper) InjectCA(ctx context.Context) error {
	ca := k.current.Load().caPEM
	var errs []error
	admission := k.Client.AdmissionregistrationV1()
	if c, err := admission.MutatingWebhookConfigurations().Get(ctx, MutatingWebhooks, metav1.GetOptions{}); err == nil {
		var have [][]byte
		for i := range c.Webhooks {
			have = append(have, c.Webhooks[i].ClientConfig.CABundle)
		}
		if patch := caPatch(ca, have); patch != nil {
			_, err = admission.MutatingWebhookConfigurations().Patch(ctx, MutatingWebhooks, types.JSONPatchType, patch, metav1.PatchOptions{})
			errs = append(errs, err)
		}
	} else if !apierrors.IsNotFound(err) {
		errs = append(errs, err)
	}
	if c, err := admission.ValidatingWebhookConfigurations().Get(ctx, ValidatingWebhooks, metav1.GetOptions{}); err == nil {
		var have [][]byte
		for i := range c.Webhooks {
			have = append(have, c.Webhooks[i].ClientConfig.CABundle)
		}
		if patch := caPatch(ca, have); patch != nil {
			_, err = admission.ValidatingWebhookConfigurations().Patch(ctx, ValidatingWebhooks, types.JSONPatchType, patch, metav1.PatchOptions{})
			errs = append(errs, err)
		}
	} else if !apierrors.IsNotFound(err) {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("writing the CA into webhook configurations: %w", err)
	}
	return nil
}

// caPatch is a JSON patch that gives every webhook the CA, or nil.
func caPatch(ca []byte, have [][]byte) []byte {
	type op struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value []byte `json:"value"`
	}
	var ops []op
	for i, bundle := range have {
		if !bytes.Equal(bundle, ca) {
			ops = append(ops, op{"add", fmt.Sprintf("/webhooks/%d/clientConfig/caBundle", i), ca})
		}
	}
	if len(ops) == 0 {
		return nil
	}
	patch, err := json.Marshal(ops)
	if err != nil {
		return nil
	}
	return patch
}

// Start renews certificates and repairs webhook configurations until ctx is done.
func (k *Keeper) Start(ctx context.Context) error {
	tick := time.NewTicker(checkInterval)
	defer tick.Stop()
	for {
		err := k.Ensure(ctx)
		if err == nil {
			err = k.InjectCA(ctx)
		}
		if err != nil && ctx.Err() == nil {
			k.Log.Error(err, "Keeping certificates failed; trying again", "interval", checkInterval.String())
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// NeedLeaderElection is false: every replica serves with the certificates.
func (k *Keeper) NeedLeaderElection() bool { return false }

// ServerTLS serves with the current certificate, TLS 1.3 only.
func (k *Keeper) ServerTLS(c *tls.Config) {
	c.MinVersion = tls.VersionTLS13
	c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		if b := k.current.Load(); b != nil {
			return b.server, nil
		}
		return nil, errors.New("no certificate yet")
	}
}

// PeerTLS is for calls to another replica, as kube-scheduler makes them: the
// server is held to the CA and to one of the names that every replica has.
func (k *Keeper) PeerTLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		ServerName: k.Names[0],
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if b := k.current.Load(); b != nil {
				return b.client, nil
			}
			return nil, errors.New("no certificate yet")
		},
		// The pool may change while the process runs, which RootCAs cannot:
		// the same verification is done here, with the pool as it is.
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection verifies
		VerifyConnection: func(s tls.ConnectionState) error {
			b := k.current.Load()
			if b == nil || len(s.PeerCertificates) == 0 {
				return errors.New("no CA yet, or no certificate from the server")
			}
			intermediates := x509.NewCertPool()
			for _, cert := range s.PeerCertificates[1:] {
				intermediates.AddCert(cert)
			}
			_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{
				DNSName: k.Names[0], Roots: b.roots, Intermediates: intermediates,
			})
			return err
		},
	}
}

// MutualTLS serves like ServerTLS, to clients only that hold a client
// certificate of the given name signed by the CA. HTTP/2 is offered: of HTTP/1
// kube-scheduler keeps two connections, and every further bind that is under
// way at the same time would be a TCP connection and a TLS handshake of its own.
func (k *Keeper) MutualTLS(clientName string) *tls.Config {
	c := &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, NextProtos: []string{"h2", "http/1.1"}}
	k.ServerTLS(c)
	serve := c.Clone()
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		b := k.current.Load()
		if b == nil {
			return nil, errors.New("no CA yet")
		}
		conn := serve.Clone()
		conn.ClientCAs = b.roots
		conn.VerifyConnection = func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 || s.PeerCertificates[0].Subject.CommonName != clientName {
				return fmt.Errorf("client certificate is not that of %q", clientName)
			}
			return nil
		}
		return conn, nil
	}
	return c
}
