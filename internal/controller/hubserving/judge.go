package hubserving

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"fmt"
	"net"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/atoll-k8s/atoll/internal/governance"
)

const (
	// userPrefix begins the names of nodes as users, and nodesGroup is the group of all of them.
	userPrefix, nodesGroup = "system:node:", "system:nodes"
)

// alternativeNames is the only extension that a request may have.
var alternativeNames = asn1.ObjectIdentifier{2, 5, 29, 17}

// refusedError says what is wrong with a request.
type refusedError struct{ text string }

// Error implements error.
func (e *refusedError) Error() string { return e.text }

func refusedf(format string, args ...any) error { return &refusedError{fmt.Sprintf(format, args...)} }

// requester returns the name of the node that has made a request. The API server has written who it was.
func requester(csr *certificatesv1.CertificateSigningRequest) (string, error) {
	name, isNode := strings.CutPrefix(csr.Spec.Username, userPrefix)
	if !isNode || name == "" || !slices.Contains(csr.Spec.Groups, nodesGroup) {
		return "", refusedf("%q is not a node", csr.Spec.Username)
	}
	return name, nil
}

// judge returns the request of a node for a certificate of its own addresses, or a refusedError. Only addresses are
// signed, no names: the API server of a pool uses no others, and with a name a node could be taken for the coordinator.
func judge(csr *certificatesv1.CertificateSigningRequest, node *corev1.Node, pool []corev1.Node) (*x509.CertificateRequest, error) {
	name, err := requester(csr)
	if err != nil {
		return nil, err
	}
	if name != node.Name {
		return nil, refusedf("the node %q asks for the node %q", name, node.Name)
	}
	if usages := slices.Sorted(slices.Values(csr.Spec.Usages)); !slices.Equal(usages, []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}) {
		return nil, refusedf("spec.usages: must be %q and %q", certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth)
	}
	block, rest := pem.Decode(csr.Spec.Request)
	if block == nil || block.Type != "CERTIFICATE REQUEST" || len(bytes.TrimSpace(rest)) > 0 {
		return nil, refusedf("spec.request: must be one CERTIFICATE REQUEST in PEM")
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err == nil {
		err = request.CheckSignature()
	}
	if err != nil {
		return nil, refusedf("spec.request: %v", err)
	}
	return request, judgeRequest(request, csr.Spec.Username, node, pool)
}

func judgeRequest(request *x509.CertificateRequest, user string, node *corev1.Node, pool []corev1.Node) error {
	if _, is := request.PublicKey.(*ecdsa.PublicKey); !is {
		return refusedf("the key must be an ECDSA key")
	}
	if subject := request.Subject; subject.CommonName != user || !slices.Equal(subject.Organization, []string{nodesGroup}) || len(subject.Names) != 2 {
		return refusedf("the subject is %q: must be the common name %q and the organization %q", subject, user, nodesGroup)
	}
	for _, extension := range request.Extensions {
		if !extension.Id.Equal(alternativeNames) {
			return refusedf("the extension %s is not allowed", extension.Id)
		}
	}
	if len(request.DNSNames)+len(request.EmailAddresses)+len(request.URIs) > 0 {
		return refusedf("only IP addresses are signed, no names")
	}
	if len(request.IPAddresses) == 0 {
		return refusedf("there is no IP address")
	}
	own, err := governance.InternalIPs(node)
	if err != nil {
		return refusedf("%v", err)
	}
	for _, ip := range request.IPAddresses {
		if !slices.ContainsFunc(own, ip.Equal) {
			return refusedf("%s is no InternalIP of the Node %q", ip, node.Name)
		}
		if !ip.IsGlobalUnicast() {
			return refusedf("%s is not the address of one machine", ip)
		}
		if other := otherHolder(pool, node, ip); other != "" {
			return refusedf("%s is also an InternalIP of the Node %q", ip, other)
		}
	}
	return nil
}

// otherHolder returns another node that has an address, or "". A node writes its addresses itself, so nobody knows whose it
// is: it is signed for neither.
func otherHolder(pool []corev1.Node, than *corev1.Node, ip net.IP) string {
	for i := range pool {
		if pool[i].Name == than.Name {
			continue
		}
		if ips, err := governance.InternalIPs(&pool[i]); err == nil && slices.ContainsFunc(ips, ip.Equal) {
			return pool[i].Name
		}
	}
	return ""
}
