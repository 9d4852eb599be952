package hubserving

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/governance"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// nodeAt is a node of the pool site with addresses.
func nodeAt(name string, addresses ...string) *corev1.Node {
	return build.Node(name, build.Label(apps.NodePoolLabel, "site"), build.With(func(n *corev1.Node) {
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name}, {Type: corev1.NodeExternalIP, Address: "1.2.3.4"}}
		for _, address := range addresses {
			n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: address})
		}
	}))
}

// forged is what a test changes of a request.
type forged struct {
	template *x509.CertificateRequest
	csr      *certificatesv1.CertificateSigningRequest
	key      crypto.Signer
}

// requestOf returns a request of the node edge, of which something is changed.
func requestOf(t *testing.T, name string, change func(*forged)) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	f := &forged{
		key: key,
		template: &x509.CertificateRequest{
			Subject: pkix.Name{CommonName: "system:node:edge", Organization: []string{"system:nodes"}}, IPAddresses: []net.IP{net.ParseIP("10.0.0.1")},
		},
		csr: &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: governance.HubSigner, Usages: []certificatesv1.KeyUsage{certificatesv1.UsageServerAuth, certificatesv1.UsageDigitalSignature},
			Username: "system:node:edge", Groups: []string{"system:nodes", "system:authenticated"},
		}},
	}
	f.csr.Name = name
	if change != nil {
		change(f)
	}
	if f.csr.Spec.Request == nil {
		der, err := x509.CreateCertificateRequest(rand.Reader, f.template, f.key)
		if err != nil {
			t.Fatal(err)
		}
		f.csr.Spec.Request = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	}
	return f.csr
}

func TestJudge(t *testing.T) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	extension := func(id asn1.ObjectIdentifier, value any) pkix.Extension {
		text, err := asn1.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		return pkix.Extension{Id: id, Value: text}
	}
	edge := nodeAt("edge", "10.0.0.1", "fd00::1", "10.0.0.3", "127.0.0.1", "0.0.0.0")
	other := nodeAt("other", "10.0.0.2", "10.0.0.3")
	other.CreationTimestamp = metav1.NewTime(edge.CreationTimestamp.Add(time.Hour))
	pool := []corev1.Node{*edge, *other}
	for name, tc := range map[string]struct {
		change func(*forged)
		want   string // "" if it is signed
	}{
		"its own address":         {nil, ""},
		"both of its addresses":   {func(f *forged) { f.template.IPAddresses = append(f.template.IPAddresses, net.ParseIP("fd00::1")) }, ""},
		"a person":                {func(f *forged) { f.csr.Spec.Username = "alice" }, `"alice" is not a node`},
		"a node without a name":   {func(f *forged) { f.csr.Spec.Username = "system:node:" }, "is not a node"},
		"a node's name, no group": {func(f *forged) { f.csr.Spec.Groups = []string{"system:authenticated"} }, "is not a node"},
		"by another node":         {func(f *forged) { f.csr.Spec.Username = "system:node:other" }, `the node "other" asks`},
		"for another node":        {func(f *forged) { f.template.Subject.CommonName = "system:node:other" }, "the subject is"},
		"no common name":          {func(f *forged) { f.template.Subject.CommonName = "" }, "the subject is"},
		"another organization":    {func(f *forged) { f.template.Subject.Organization = []string{"system:masters"} }, "the subject is"},
		"the API server's group":  {func(f *forged) { f.template.Subject.Organization = []string{governance.APIServerGroup} }, "the subject is"},
		"one organization more":   {func(f *forged) { f.template.Subject.Organization = append(f.template.Subject.Organization, "x") }, "the subject is"},
		"no organization":         {func(f *forged) { f.template.Subject.Organization = nil }, "the subject is"},
		"more of a subject":       {func(f *forged) { f.template.Subject.OrganizationalUnit = []string{"x"} }, "the subject is"},
		"two common names": {func(f *forged) {
			f.template.Subject.ExtraNames = []pkix.AttributeTypeAndValue{{Type: asn1.ObjectIdentifier{2, 5, 4, 3}, Value: "system:node:other"}, {Type: asn1.ObjectIdentifier{2, 5, 4, 3}, Value: "system:node:edge"}}
		}, "the subject is"},
		"another node's address":   {func(f *forged) { f.template.IPAddresses = []net.IP{net.ParseIP("10.0.0.2")} }, `10.0.0.2 is no InternalIP of the Node "edge"`},
		"one address too many":     {func(f *forged) { f.template.IPAddresses = append(f.template.IPAddresses, net.ParseIP("10.0.0.9")) }, "10.0.0.9 is no InternalIP"},
		"an address that two have": {func(f *forged) { f.template.IPAddresses = []net.IP{net.ParseIP("10.0.0.3")} }, `10.0.0.3 is also an InternalIP of the Node "other"`},
		"an external address":      {func(f *forged) { f.template.IPAddresses = []net.IP{net.ParseIP("1.2.3.4")} }, "1.2.3.4 is no InternalIP"},
		"loopback":                 {func(f *forged) { f.template.IPAddresses = []net.IP{net.ParseIP("127.0.0.1")} }, "not the address of one machine"},
		"all addresses":            {func(f *forged) { f.template.IPAddresses = []net.IP{net.ParseIP("0.0.0.0")} }, "not the address of one machine"},
		"no address":               {func(f *forged) { f.template.IPAddresses = nil }, "there is no IP address"},
		"the node's name":          {func(f *forged) { f.template.DNSNames = []string{"edge"} }, "no names"},
		"a wildcard":               {func(f *forged) { f.template.DNSNames = []string{"*.atoll-pools.svc"} }, "no names"},
		"the coordinator":          {func(f *forged) { f.template.DNSNames, f.template.IPAddresses = []string{governance.ServerName}, nil }, "no names"},
		"an e-mail address":        {func(f *forged) { f.template.EmailAddresses = []string{"a@b"} }, "no names"},
		"a URI":                    {func(f *forged) { f.template.URIs = []*url.URL{{Scheme: "spiffe", Host: "a"}} }, "no names"},
		"a CA": {func(f *forged) {
			f.template.ExtraExtensions = []pkix.Extension{extension(asn1.ObjectIdentifier{2, 5, 29, 19}, struct{ CA bool }{true})}
		}, "the extension 2.5.29.19"},
		"usages in the request": {func(f *forged) {
			f.template.ExtraExtensions = []pkix.Extension{extension(asn1.ObjectIdentifier{2, 5, 29, 37}, []asn1.ObjectIdentifier{{1, 3, 6, 1, 5, 5, 7, 3, 2}})}
		}, "the extension 2.5.29.37"},
		"client auth too":      {func(f *forged) { f.csr.Spec.Usages = append(f.csr.Spec.Usages, certificatesv1.UsageClientAuth) }, "spec.usages"},
		"cert sign too":        {func(f *forged) { f.csr.Spec.Usages = append(f.csr.Spec.Usages, certificatesv1.UsageCertSign) }, "spec.usages"},
		"key encipherment too": {func(f *forged) { f.csr.Spec.Usages = append(f.csr.Spec.Usages, certificatesv1.UsageKeyEncipherment) }, "spec.usages"},
		"client auth": {func(f *forged) {
			f.csr.Spec.Usages = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}
		}, "spec.usages"},
		"no usages":  {func(f *forged) { f.csr.Spec.Usages = nil }, "spec.usages"},
		"an RSA key": {func(f *forged) { f.key = rsaKey }, "must be an ECDSA key"},
		"no PEM":     {func(f *forged) { f.csr.Spec.Request = []byte("x") }, "must be one CERTIFICATE REQUEST"},
		"a certificate": {func(f *forged) {
			f.csr.Spec.Request = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")})
		}, "must be one CERTIFICATE REQUEST"},
		"no request in it": {func(f *forged) {
			f.csr.Spec.Request = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: []byte("x")})
		}, "spec.request"},
		"two requests": {func(f *forged) {
			f.csr.Spec.Request = slices.Concat(requestOf(t, "a", nil).Spec.Request, requestOf(t, "b", nil).Spec.Request)
		}, "must be one CERTIFICATE REQUEST"},
		"a wrong signature": {func(f *forged) {
			block, _ := pem.Decode(requestOf(t, "a", nil).Spec.Request)
			block.Bytes[len(block.Bytes)-1] ^= 1
			f.csr.Spec.Request = pem.EncodeToMemory(block)
		}, "spec.request"},
	} {
		t.Run(name, func(t *testing.T) {
			request, err := judge(requestOf(t, "a", tc.change), edge, pool)
			var refused *refusedError
			if (tc.want == "") != (err == nil) || err != nil && (!strings.Contains(err.Error(), tc.want) || !errors.As(err, &refused)) {
				t.Errorf("judge says %v, want %q", err, tc.want)
			}
			if err == nil && request == nil {
				t.Error("there is no request")
			}
		})
	}
	if _, err := judge(requestOf(t, "a", nil), nodeAt("edge"), nil); err == nil || !strings.Contains(err.Error(), "no address of type InternalIP") {
		t.Errorf("of a Node without an address, judge says %v", err)
	}
}

func FuzzJudge(f *testing.F) {
	f.Add([]byte("-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n"))
	edge := nodeAt("edge", "10.0.0.1")
	f.Fuzz(func(t *testing.T, text []byte) {
		csr := requestOf(t, "a", func(f *forged) { f.csr.Spec.Request = append([]byte{}, text...) })
		if _, err := judge(csr, edge, nil); err == nil {
			t.Error("it is signed")
		}
	})
}
