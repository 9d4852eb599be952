package hubserving

import (
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	testingclock "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/governance"
	"github.com/atoll-k8s/atoll/internal/machinery/certs"
	"github.com/atoll-k8s/atoll/internal/testing/build"
	"github.com/atoll-k8s/atoll/internal/testing/watched"
)

// site is a reconciler with a fake client.
type site struct {
	*Reconciler
	t *testing.T
	// writes are the subresources that were written, and answer is what the next write is answered.
	writes []string
	answer error
	clock  *testingclock.FakeClock
}

func newSite(t *testing.T, objects ...client.Object) *site {
	s := &site{t: t, clock: testingclock.NewFakeClock(time.Now())}
	c := build.Client(interceptor.Funcs{
		SubResourceUpdate: func(ctx context.Context, c client.Client, name string, o client.Object, opts ...client.SubResourceUpdateOption) error {
			if err := s.answer; err != nil {
				s.answer = nil
				return err
			}
			s.writes = append(s.writes, name)
			return c.SubResource(name).Update(ctx, o, opts...)
		},
	}, objects...)
	s.Reconciler = &Reconciler{Client: c, Live: c, Clock: s.clock}
	return s
}

// pass reconciles the request "a", and returns it.
func (s *site) pass() (*certificatesv1.CertificateSigningRequest, ctrl.Result, error) {
	s.t.Helper()
	key := client.ObjectKey{Name: "a"}
	result, err := s.Reconcile(s.t.Context(), ctrl.Request{NamespacedName: key})
	csr := &certificatesv1.CertificateSigningRequest{}
	if err := s.Client.Get(s.t.Context(), key, csr); err != nil {
		s.t.Fatal(err)
	}
	return csr, result, err
}

func newCA(t *testing.T, life time.Duration) (certs.Pair, *corev1.Secret) {
	t.Helper()
	ca, err := certs.NewCAFor(nil, certs.Period{From: time.Now().Add(-time.Hour), To: time.Now().Add(life)})
	if err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{Data: map[string][]byte{"ca.crt": ca.Cert, "ca.key": ca.Key}}
	secret.Namespace, secret.Name = governance.Namespace, governance.CASecret("site")
	return ca, secret
}

func conditions(csr *certificatesv1.CertificateSigningRequest) (kinds []string) {
	for _, c := range csr.Status.Conditions {
		kinds = append(kinds, string(c.Type))
	}
	return kinds
}

// TestARequestOfANodeIsSigned by the CA of its pool, for its own address and as a server, for as long as it asks, at most
// 90 days and as long as the CA lives.
func TestARequestOfANodeIsSigned(t *testing.T) {
	const day = 24 * time.Hour
	for name, tc := range map[string]struct {
		asks     int32 // seconds; 0 is nothing
		ca, want time.Duration
	}{
		"for the default": {0, 3650 * day, 90 * day}, "for an hour": {3600, 3650 * day, time.Hour}, "for a year": {31536000, 3650 * day, 90 * day},
		"for longer than the CA lives": {0, 10 * day, 10 * day},
	} {
		t.Run(name, func(t *testing.T) {
			ca, secret := newCA(t, tc.ca)
			csr := requestOf(t, "a", func(f *forged) {
				if tc.asks > 0 {
					f.csr.Spec.ExpirationSeconds = &tc.asks
				}
			})
			s := newSite(t, csr, nodeAt("edge", "10.0.0.1"), nodeAt("other", "10.0.0.2"), secret)
			got, result, err := s.pass()
			if err != nil || result.RequeueAfter != 0 || !slices.Equal(conditions(got), []string{"Approved"}) || !slices.Equal(s.writes, []string{"approval", "status"}) {
				t.Fatalf("it ends with %+v, %v, the conditions %+v, and the writes %v", result, err, got.Status.Conditions, s.writes)
			}
			leaf, err := certs.ParseCert(got.Status.Certificate)
			if err != nil {
				t.Fatal(err)
			}
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM(ca.Cert)
			for _, wrong := range []time.Duration{0, -5 * time.Minute, 5 * time.Minute} { // the clock of the coordinator's node
				if _, err := leaf.Verify(x509.VerifyOptions{
					Roots: roots, DNSName: "10.0.0.1", CurrentTime: s.clock.Now().Add(wrong), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
				}); err != nil {
					t.Errorf("where the clock is wrong by %s: %v", wrong, err)
				}
			}
			if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err == nil {
				t.Error("it is a client certificate too")
			}
			block, _ := pem.Decode(csr.Spec.Request)
			request, err := x509.ParseCertificateRequest(block.Bytes)
			if err != nil {
				t.Fatal(err)
			}
			if public, is := leaf.PublicKey.(*ecdsa.PublicKey); !is || !public.Equal(request.PublicKey) || leaf.IsCA || leaf.KeyUsage != x509.KeyUsageDigitalSignature || len(leaf.DNSNames) > 0 || leaf.Subject.CommonName != "system:node:edge" {
				t.Errorf("the certificate is %+v", leaf)
			}
			if diff := leaf.NotAfter.Sub(s.clock.Now().Add(tc.want)); diff < -2*time.Second || diff > 2*time.Second {
				t.Errorf("it is valid until %s", leaf.NotAfter)
			}
			s.writes = nil
			if _, _, err := s.pass(); err != nil || len(s.writes) > 0 {
				t.Errorf("a second pass writes %v, %v", s.writes, err)
			}
		})
	}
}

func TestWhatIsNotSigned(t *testing.T) {
	_, secret := newCA(t, time.Hour)
	own, other := nodeAt("edge", "10.0.0.1"), nodeAt("other", "10.0.0.2")
	damaged := secret.DeepCopy()
	damaged.Data["ca.key"] = []byte("x")
	apart := nodeAt("edge", "10.0.0.1")
	delete(apart.Labels, apps.NodePoolLabel)
	foreign := func(f *forged) { f.template.Subject.CommonName = "system:node:other" }
	for name, tc := range map[string]struct {
		change  func(*forged)
		objects []client.Object
		answer  error
		want    string // the condition
		says    string
		waits   bool
		fails   bool
	}{
		"a wrong request":                        {change: foreign, objects: []client.Object{own, secret}, want: "Denied", says: "the subject is"},
		"a wrong request of a pool without a CA": {change: foreign, objects: []client.Object{own}, want: "Denied", says: "the subject is"},
		"a person's request":                     {change: func(f *forged) { f.csr.Spec.Username = "alice" }, objects: []client.Object{own, secret}, want: "Denied", says: `"alice" is not a node`},
		"an address that two nodes have":         {objects: []client.Object{own, nodeAt("twin", "10.0.0.1"), secret}, want: "Denied", says: `of the Node "twin"`},
		"no such node":                           {objects: []client.Object{other, secret}, want: "Denied", says: `there is no Node "edge"`},
		"a wrong request that was approved": {change: func(f *forged) {
			foreign(f)
			f.csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue}}
		}, objects: []client.Object{own, secret}, want: "Approved Failed", says: "the subject is"},
		"no CA yet":     {objects: []client.Object{own}, waits: true},
		"no pool":       {objects: []client.Object{apart, secret}, waits: true},
		"a damaged CA":  {objects: []client.Object{own, damaged}, fails: true},
		"a write fails": {objects: []client.Object{own, secret}, answer: errors.New("away"), fails: true},
		"somebody denied it": {change: func(f *forged) {
			f.csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateDenied, Status: corev1.ConditionTrue}}
		}, objects: []client.Object{own, secret}, want: "Denied"},
		"another signer": {change: func(f *forged) { f.csr.Spec.SignerName = certificatesv1.KubeletServingSignerName }, objects: []client.Object{own, secret}},
		"it was changed": {objects: []client.Object{own, secret}, answer: apierrors.NewConflict(schema.GroupResource{Resource: "certificatesigningrequests"}, "a", nil), waits: true},
	} {
		t.Run(name, func(t *testing.T) {
			objects := []client.Object{requestOf(t, "a", tc.change)}
			for _, o := range tc.objects {
				objects = append(objects, o.DeepCopyObject().(client.Object))
			}
			s := newSite(t, objects...)
			s.answer = tc.answer
			csr, result, err := s.pass()
			if len(csr.Status.Certificate) > 0 || strings.Join(conditions(csr), " ") != tc.want || (err != nil) != tc.fails || (result.RequeueAfter > 0) != tc.waits {
				t.Errorf("it ends with %+v, %v, and %+v", result, err, csr.Status)
			}
			if tc.says != "" && !strings.Contains(csr.Status.Conditions[len(csr.Status.Conditions)-1].Message, tc.says) {
				t.Errorf("the conditions are %+v", csr.Status.Conditions)
			}
		})
	}
}

// TestARequestThatSomebodyElseApproved is signed.
func TestARequestThatSomebodyElseApproved(t *testing.T) {
	_, secret := newCA(t, time.Hour)
	s := newSite(t, requestOf(t, "a", func(f *forged) {
		f.csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue}}
	}), nodeAt("edge", "10.0.0.1"), secret)
	if csr, _, err := s.pass(); err != nil || len(csr.Status.Certificate) == 0 || len(csr.Status.Conditions) != 1 {
		t.Errorf("it ends with %v and %+v", err, csr.Status)
	}
}

func TestWatches(t *testing.T) {
	var queue watched.Queue
	queue.Send(t.Context(), newSite(t).watches(), nil, requestOf(t, "a", nil))
	if got := queue.Take(); got != "a" {
		t.Errorf("%q are enqueued", got)
	}
}
