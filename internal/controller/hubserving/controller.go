// Package hubserving signs the serving certificates of the hubs' pool ports: CertificateSigningRequests for the signer
// governance.HubSigner.
//
//   - observe: reads the request, the Node of who has made it, the other nodes of its pool, and the CA of the pool.
//   - decide: judge says what is wrong with the request.
//   - act: denies it, or approves it and signs it with the CA of the pool. A request of a pool without a CA waits.
//
// It must not know what a coordinator is, nor how the CA of a pool is made.
package hubserving

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/governance"
	"github.com/atoll-k8s/atoll/internal/machinery/certs"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/machinery/watch"
)

const (
	// againAfter is the time between two looks at whether a pool has a CA.
	againAfter = 30 * time.Second
	// lifetime is how long a certificate is valid, if its request does not ask for less.
	lifetime = 90 * 24 * time.Hour
	// backdate is how long before it is signed a certificate begins to be valid, for clocks that are slow.
	backdate = 10 * time.Minute
	// reason is that of the conditions.
	reason = "AtollHubServing"
)

// Reconciler approves, signs and denies requests.
type Reconciler struct {
	// Client has the requests of this signer only.
	Client client.Client
	// Live reads from the API server: the cache has no addresses of nodes, and no Secrets.
	Live  client.Reader
	Clock clock.PassiveClock
}

// +kubebuilder:rbac:roleName=atoll-manager-coordinator,groups=certificates.k8s.io,resources=certificatesigningrequests,verbs=get;list;watch
// +kubebuilder:rbac:roleName=atoll-manager-coordinator,groups=certificates.k8s.io,resources=certificatesigningrequests/approval;certificatesigningrequests/status,verbs=update
// +kubebuilder:rbac:roleName=atoll-manager-coordinator,groups=certificates.k8s.io,resources=signers,resourceNames=atoll.dev/hub-serving,verbs=approve;sign
// +kubebuilder:rbac:roleName=atoll-manager-coordinator,groups="",resources=nodes,verbs=get;list
// +kubebuilder:rbac:roleName=atoll-manager-coordinator,groups="",namespace=atoll-pools,resources=secrets,verbs=get

// SetupWithManager registers the controller.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	return watch.Add(ctrl.NewControllerManagedBy(mgr).Named("hubserving"), r.watches()).Complete(phase.Backoff[ctrl.Request](r))
}

func (r *Reconciler) watches() []watch.Watch {
	return []watch.Watch{{Object: &certificatesv1.CertificateSigningRequest{}}}
}

// Reconcile decides one request.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	csr := &certificatesv1.CertificateSigningRequest{}
	if err := r.Client.Get(ctx, req.NamespacedName, csr); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if csr.Spec.SignerName != governance.HubSigner || isOver(csr) {
		return ctrl.Result{}, nil
	}
	return phase.Run(ctx, csr, r.decide)
}

// isOver reports whether nothing is left to decide.
func isOver(csr *certificatesv1.CertificateSigningRequest) bool {
	return len(csr.Status.Certificate) > 0 || has(csr, certificatesv1.CertificateDenied) || has(csr, certificatesv1.CertificateFailed)
}

func has(csr *certificatesv1.CertificateSigningRequest, kind certificatesv1.RequestConditionType) bool {
	return slices.ContainsFunc(csr.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool { return c.Type == kind })
}

// decide denies a request, or approves and signs it.
func (r *Reconciler) decide(ctx context.Context, csr *certificatesv1.CertificateSigningRequest) error {
	node, err := r.nodeOf(ctx, csr)
	if err != nil {
		return r.refuse(ctx, csr, err)
	}
	var others corev1.NodeList
	pool := node.Labels[apps.NodePoolLabel]
	if pool == "" {
		return phase.Wait("the node's pool", againAfter)
	}
	if err := r.Live.List(ctx, &others, client.MatchingLabels{apps.NodePoolLabel: pool}); err != nil {
		return fmt.Errorf("listing the nodes of pool %q: %w", pool, err)
	}
	request, err := judge(csr, node, others.Items)
	if err != nil {
		return r.refuse(ctx, csr, err)
	}
	ca, err := r.caOf(ctx, pool)
	if err != nil {
		return err
	}
	return r.sign(ctx, csr, request, ca)
}

// nodeOf returns the Node that has made a request. A refusedError says that there is none.
func (r *Reconciler) nodeOf(ctx context.Context, csr *certificatesv1.CertificateSigningRequest) (*corev1.Node, error) {
	name, err := requester(csr)
	if err != nil {
		return nil, err
	}
	node := &corev1.Node{}
	if err := r.Live.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, refusedf("there is no Node %q", name)
		}
		return nil, fmt.Errorf("reading node %q: %w", name, err)
	}
	return node, nil
}

// caOf returns the CA of a pool.
func (r *Reconciler) caOf(ctx context.Context, pool string) (certs.Pair, error) {
	secret := &corev1.Secret{}
	key := client.ObjectKey{Namespace: governance.Namespace, Name: governance.CASecret(pool)}
	if err := r.Live.Get(ctx, key, secret); err != nil {
		if apierrors.IsNotFound(err) {
			return certs.Pair{}, phase.Wait("the CA of the pool", againAfter)
		}
		return certs.Pair{}, fmt.Errorf("reading Secret %s: %w", key, err)
	}
	ca := certs.Pair{Cert: secret.Data["ca.crt"], Key: secret.Data["ca.key"]}
	if certs.SigningCA(ca) == nil {
		return certs.Pair{}, fmt.Errorf("reading Secret %s: the first certificate of ca.crt is not a CA with the key ca.key", key)
	}
	return ca, nil
}

// refuse denies a request if err says that it is wrong. One that somebody else has approved fails instead.
func (r *Reconciler) refuse(ctx context.Context, csr *certificatesv1.CertificateSigningRequest, err error) error {
	if wrong := (*refusedError)(nil); !errors.As(err, &wrong) {
		return err
	}
	kind, subresource := certificatesv1.CertificateDenied, "approval"
	if has(csr, certificatesv1.CertificateApproved) {
		kind, subresource = certificatesv1.CertificateFailed, "status"
	}
	r.setCondition(csr, kind, err.Error())
	if err := r.Client.SubResource(subresource).Update(ctx, csr); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("denying CertificateSigningRequest %q: %w", csr.Name, err)
	}
	log.FromContext(ctx).Info("A request for a hub's serving certificate is denied", "certificateSigningRequest", csr.Name, "requester", csr.Spec.Username, "why", err.Error())
	return nil
}

func (r *Reconciler) setCondition(csr *certificatesv1.CertificateSigningRequest, kind certificatesv1.RequestConditionType, message string) {
	now := metav1.NewTime(r.Clock.Now())
	csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: message, LastUpdateTime: now, LastTransitionTime: now,
	})
}

// sign approves a request, and writes its certificate.
func (r *Reconciler) sign(ctx context.Context, csr *certificatesv1.CertificateSigningRequest, request *x509.CertificateRequest, ca certs.Pair) error {
	if !has(csr, certificatesv1.CertificateApproved) {
		r.setCondition(csr, certificatesv1.CertificateApproved, "the addresses are those of the Node")
		if err := r.Client.SubResource("approval").Update(ctx, csr); err != nil {
			return fmt.Errorf("approving CertificateSigningRequest %q: %w", csr.Name, err)
		}
	}
	leaf := certs.Leaf{CommonName: request.Subject.CommonName, Groups: request.Subject.Organization}
	for _, ip := range request.IPAddresses {
		leaf.Names = append(leaf.Names, ip.String())
	}
	now, life := r.Clock.Now(), lifetime
	if seconds := csr.Spec.ExpirationSeconds; seconds != nil {
		life = min(life, time.Duration(*seconds)*time.Second)
	}
	issued, err := certs.IssueTo(ca, request.PublicKey, leaf, certs.Period{From: now.Add(-backdate), To: now.Add(life)})
	if err != nil {
		return fmt.Errorf("signing CertificateSigningRequest %q: %w", csr.Name, err)
	}
	csr.Status.Certificate = issued
	if err := r.Client.Status().Update(ctx, csr); err != nil {
		return fmt.Errorf("writing the certificate of CertificateSigningRequest %q: %w", csr.Name, err)
	}
	log.FromContext(ctx).Info("A hub has a serving certificate for its pool", "certificateSigningRequest", csr.Name, "requester", csr.Spec.Username)
	return nil
}
