// Package pki keeps the certificates of Atoll: one CA, a server certificate for atoll-manager's
// webhooks and extender, and a client certificate for kube-scheduler. They are kept in Secrets,
// created if they are missing, and renewed after two thirds of their lifetime.
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
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/clock"

	"github.com/atoll-k8s/atoll/internal/machinery/certs"
)

const (
	// ServerSecret holds the CA with its key and the server certificate.
	ServerSecret = "atoll-manager-tls"
	// ClientSecret holds what kube-scheduler needs to call the extender:
	// ca.crt, tls.crt, tls.key.
	ClientSecret = "atoll-extender-client"
	// ClientName is the common name of the extender's client.
	ClientName = "atoll-kube-scheduler"
	// MutatingWebhooks is the name of the configuration of the pod webhook.
	MutatingWebhooks = "atoll-pods"
	// ValidatingWebhooks is the name of the configuration of the policies' webhooks.
	ValidatingWebhooks = "atoll-policies"

	caKeyField = "ca.key"
	caField    = "ca.crt"

	// checkInterval is how often Start checks certificates and webhook configurations.
	checkInterval = time.Minute
)

// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations,resourceNames=atoll-pods,verbs=get
// +kubebuilder:rbac:roleName=atoll-manager-ca,groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations,resourceNames=atoll-pods,verbs=patch
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=validatingwebhookconfigurations,resourceNames=atoll-policies,verbs=get
// +kubebuilder:rbac:roleName=atoll-manager-ca,groups=admissionregistration.k8s.io,resources=validatingwebhookconfigurations,resourceNames=atoll-policies,verbs=patch

// Keeper keeps certificates in Secrets of one namespace. Every replica runs a Keeper.
// The first one creates what is missing, and the others read it. All methods are safe
// for concurrent use.
type Keeper struct {
	Client    kubernetes.Interface
	Namespace string
	// Names are the DNS names and IP addresses of the server certificate. There must be
	// at least one.
	Names []string
	Clock clock.PassiveClock
	Log   logr.Logger

	// current holds the certificates in use; nil before the first Ensure. A bundle is
	// never changed, only replaced.
	current atomic.Pointer[bundle]
}

// bundle holds the certificates of both Secrets in the form in which TLS uses them.
type bundle struct {
	caPEM  []byte
	roots  *x509.CertPool
	server *tls.Certificate
	client *tls.Certificate
	shared []byte // SharedKey
}

// Ensure creates certificates that are missing, renews those that are due, and reads the
// others. After it has succeeded once, the TLS configurations of the Keeper can be used.
func (k *Keeper) Ensure(ctx context.Context) error {
	otherWrote := func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }
	var last error
	// OnError is for the pauses only. It takes a timeout of the request for one of its own,
	// and returns nil then.
	_ = retry.OnError(retry.DefaultRetry, otherWrote, func() error {
		last = k.ensure(ctx)
		return last
	})
	return last
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
	ca := certs.Pair{Cert: secret.Data[caField], Key: secret.Data[caKeyField]}
	server := certs.Pair{Cert: secret.Data[corev1.TLSCertKey], Key: secret.Data[corev1.TLSPrivateKeyKey]}
	leaf := certs.Leaf{CommonName: "atoll-manager", Names: k.Names}
	if !certs.FreshCA(ca, now) || !certs.Fresh(server, certs.First(ca), leaf, now) {
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
		k.Log.Info("Created certificates", "secret", ServerSecret)
	}
	client, err := k.ensureClient(ctx, ca, now)
	if err != nil {
		return err
	}
	return k.use(ca, server, client)
}

// renew issues a server certificate, and a new CA if the old one is due.
func renew(ca certs.Pair, leaf certs.Leaf, now time.Time) (newCA, server certs.Pair, err error) {
	if ca, err = certs.KeepCA(ca, certs.CALifetime, now); err != nil {
		return certs.Pair{}, certs.Pair{}, err
	}
	server, err = certs.Issue(ca, leaf, now)
	return ca, server, err
}

// ensureClient returns the client certificate of the extender, renewed if it is due or if
// the CA has changed.
func (k *Keeper) ensureClient(ctx context.Context, ca certs.Pair, now time.Time) (certs.Pair, error) {
	secret, err := k.Client.CoreV1().Secrets(k.Namespace).Get(ctx, ClientSecret, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return certs.Pair{}, fmt.Errorf("reading Secret %s/%s: %w", k.Namespace, ClientSecret, err)
	}
	exists := err == nil
	if !exists {
		secret = newSecret(k.Namespace, ClientSecret)
	}
	client := certs.Pair{Cert: secret.Data[corev1.TLSCertKey], Key: secret.Data[corev1.TLSPrivateKeyKey]}
	leaf := certs.Leaf{CommonName: ClientName}
	if certs.Fresh(client, certs.First(ca), leaf, now) && bytes.Equal(secret.Data[caField], ca.Cert) {
		return client, nil
	}
	if client, err = certs.Issue(ca, leaf, now); err != nil {
		return certs.Pair{}, err
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

// use makes the certificates the current ones, unless they are already.
func (k *Keeper) use(ca, server, client certs.Pair) error {
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

// SharedKey returns a secret key that only the replicas have, so that one replica can
// verify what another has signed. It changes with the CA. It is nil before the first
// Ensure.
func (k *Keeper) SharedKey() []byte {
	if b := k.current.Load(); b != nil {
		return b.shared
	}
	return nil
}

// der returns the DER encoding of the first certificate; nil if there is none.
func der(certPEM []byte) []byte {
	cert, err := certs.ParseCert(certPEM)
	if err != nil {
		return nil
	}
	return cert.Raw
}

// InjectCA writes the CA into the webhook configurations, where it differs. It ignores
// configurations that do not exist, and writes into none of another installation. Ensure must
// have succeeded before.
func (k *Keeper) InjectCA(ctx context.Context) error {
	ca := k.current.Load().caPEM
	admission := k.Client.AdmissionregistrationV1()
	var mutating, validating []admissionv1.WebhookClientConfig
	m, errMutating := admission.MutatingWebhookConfigurations().Get(ctx, MutatingWebhooks, metav1.GetOptions{})
	if errMutating == nil {
		for i := range m.Webhooks {
			mutating = append(mutating, m.Webhooks[i].ClientConfig)
		}
	}
	errMutating = k.inject(MutatingWebhooks, ca, mutating, errMutating, func(patch []byte) error {
		_, err := admission.MutatingWebhookConfigurations().Patch(ctx, MutatingWebhooks, types.JSONPatchType, patch, metav1.PatchOptions{})
		return err
	})
	v, errValidating := admission.ValidatingWebhookConfigurations().Get(ctx, ValidatingWebhooks, metav1.GetOptions{})
	if errValidating == nil {
		for i := range v.Webhooks {
			validating = append(validating, v.Webhooks[i].ClientConfig)
		}
	}
	errValidating = k.inject(ValidatingWebhooks, ca, validating, errValidating, func(patch []byte) error {
		_, err := admission.ValidatingWebhookConfigurations().Patch(ctx, ValidatingWebhooks, types.JSONPatchType, patch, metav1.PatchOptions{})
		return err
	})
	if err := errors.Join(errMutating, errValidating); err != nil {
		return fmt.Errorf("writing the CA into webhook configurations: %w", err)
	}
	return nil
}

// inject writes the CA into one configuration, if it differs for one of its webhooks. read is
// the error of reading them.
func (k *Keeper) inject(name string, ca []byte, webhooks []admissionv1.WebhookClientConfig, read error, write func(patch []byte) error) error {
	switch {
	case apierrors.IsNotFound(read):
		return nil
	case apierrors.IsForbidden(read):
		// The cluster-wide roles of the chart are bound to one namespace.
		return fmt.Errorf("%w (the chart gives this right; an installation of Atoll in another namespace takes it over)", read)
	case read != nil:
		return read
	}
	bundles := make([][]byte, 0, len(webhooks))
	for i := range webhooks {
		// Two installations would write their CAs in turns for ever.
		if s := webhooks[i].Service; s != nil && s.Namespace != k.Namespace {
			return fmt.Errorf("%s calls the Service %s/%s: the webhooks of this cluster belong to the installation of Atoll in namespace %s, so nobody calls the one in %s; keep only one of them",
				name, s.Namespace, s.Name, s.Namespace, k.Namespace)
		}
		bundles = append(bundles, webhooks[i].CABundle)
	}
	patch := caPatch(ca, bundles)
	if patch == nil {
		return nil
	}
	return withWayOut(write(patch))
}

// withWayOut adds to a refusal how the right to write is given. The chart's value takes it
// away between two renewals of the CA.
func withWayOut(err error) error {
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("%w (install with rbac.writeCABundle=true until this succeeds)", err)
	}
	return err
}

// caPatch returns a JSON patch that sets the CA of each webhook of a configuration. The
// bundles are the present ones, in order. It returns nil if all of them are equal to ca.
func caPatch(ca []byte, bundles [][]byte) []byte {
	type op struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value []byte `json:"value"`
	}
	var ops []op
	for i, bundle := range bundles {
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

// Start implements manager.Runnable. It renews certificates and repairs the webhook
// configurations every checkInterval, until ctx is done.
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

// ServerTLS changes c so that it serves with the current certificate, and TLS 1.3 only.
func (k *Keeper) ServerTLS(c *tls.Config) {
	c.MinVersion = tls.VersionTLS13
	c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		if b := k.current.Load(); b != nil {
			return b.server, nil
		}
		return nil, errors.New("no certificate yet")
	}
}

// PeerTLS returns the client configuration for requests to other replicas. It uses the
// same client certificate as kube-scheduler. It accepts a server with a certificate of
// the CA for Names[0], which every replica has.
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
		// RootCAs cannot change while the process runs, but the CA can. So VerifyConnection
		// does the same verification with the current CA.
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

// MutualTLS returns a server configuration like that of ServerTLS which accepts only
// clients with a client certificate of the CA for the given common name.
//
// It offers HTTP/2. With HTTP/1 kube-scheduler keeps only two idle connections, and each
// further concurrent bind would need a TCP connection and a TLS handshake of its own.
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
