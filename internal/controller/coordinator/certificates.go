package coordinator

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/governance"
	"github.com/atoll-k8s/atoll/internal/machinery/certs"
)

const (
	// caLifetime is how long the CA of a pool is valid, and announced how long the next one is known before it signs.
	caLifetime, announced = 365 * 24 * time.Hour, 30 * 24 * time.Hour
	// caKey, in the Secret with the CA, has its key. nextCert and nextKey are those of the next CA, if there is one.
	caKey, nextCert, nextKey = "ca.key", "next.crt", "next.key"
	// poolCA has the CAs of the pool, apiServerCert and apiServerKey what the API server shows to hubs, nodesCA the CAs of
	// nodes' certificates, nodeNames the names of the pool's nodes, one a line, and uploadKinds those of spec.upload, one
	// a line; there is no such field without any.
	poolCA, apiServerCert, apiServerKey, nodesCA, nodeNames, uploadKinds = "ca.crt", "apiserver.crt", "apiserver.key", "nodes.crt", "nodes", "upload"
	// kubeconfigField has the kubeconfig in people's Secret. The fields of its certificate are those of a TLS Secret.
	kubeconfigField = "kubeconfig"
)

// kubeconfigOf returns the name of the Secret with people's kubeconfig.
func kubeconfigOf(pool string) string { return "kubeconfig-" + pool }

// certifyCA writes the Secret with the CA of a coordinator that is deployed. Of one that is not, it deletes all Secrets.
func (r *Reconciler) certifyCA(ctx context.Context, s *scope) error {
	if s.coordinator == nil || !s.isObserved {
		return nil
	}
	pool := s.coordinator.Spec.NodePool
	if !s.decision.IsDeployed {
		for _, name := range []string{kubeconfigOf(pool), secretOf(pool), governance.CASecret(pool)} {
			if err := r.remove(ctx, s, name); err != nil {
				return err
			}
		}
		return nil
	}
	secret, err := r.secret(ctx, governance.CASecret(pool))
	if err != nil {
		return err
	}
	data, err := rollover(secret.Data, r.Clock.Now())
	if err == nil {
		err = r.write(ctx, s, secret, data)
	}
	if err == nil {
		s.ca, s.caKey = data[poolCA], data[caKey]
	}
	return err
}

// rollover returns the data of the Secret with the CA of a pool. After two thirds of its life the next CA is made, which
// everybody trusts from then on, and which signs once announced has passed: so that a hub that is cut off has most
// likely heard of it before. What the last CA has signed stays trusted as long as it is valid.
func rollover(data map[string][]byte, now time.Time) (map[string][]byte, error) {
	current := certs.Pair{Cert: data[poolCA], Key: data[caKey]}
	next := certs.Pair{Cert: data[nextCert], Key: data[nextKey]}
	cert, following := certs.SigningCA(current), certs.SigningCA(next)
	fresh := func() (certs.Pair, error) {
		return certs.NewCAFor(nil, certs.Period{From: now.Add(-time.Hour), To: now.Add(caLifetime)})
	}
	switch {
	case cert == nil || now.After(cert.NotAfter):
		made, err := fresh()
		return map[string][]byte{poolCA: made.Cert, caKey: made.Key}, err
	case following != nil && now.After(following.NotBefore.Add(announced)):
		return map[string][]byte{poolCA: joined(next.Cert, certs.First(current).Cert), caKey: next.Key}, nil
	case following == nil && !certs.FreshCA(current, now):
		made, err := fresh()
		return map[string][]byte{poolCA: joined(current.Cert, made.Cert), caKey: current.Key, nextCert: made.Cert, nextKey: made.Key}, err
	}
	return data, nil
}

func joined(a, b []byte) []byte { return append(append(bytes.TrimSpace(a), '\n'), b...) }

// certify writes the other Secrets, once the pod of the coordinator is on a node.
func (r *Reconciler) certify(ctx context.Context, s *scope) error {
	if s.ca == nil || s.pod == nil || s.address() == "" || s.clusterIP == "" {
		return nil
	}
	ca, now := certs.Pair{Cert: s.ca, Key: s.caKey}, r.Clock.Now()
	if err := r.certifyPod(ctx, s, ca, now); err != nil {
		return err
	}
	if err := r.certifyPeople(ctx, s, ca, now); err != nil {
		return err
	}
	s.certified = true
	return nil
}

// certifyPod writes the Secret that the pod mounts.
func (r *Reconciler) certifyPod(ctx context.Context, s *scope, ca certs.Pair, now time.Time) error {
	secret, err := r.secret(ctx, secretOf(s.coordinator.Spec.NodePool))
	if err != nil {
		return err
	}
	server, err := keep(ca, certs.Pair{Cert: secret.Data[corev1.TLSCertKey], Key: secret.Data[corev1.TLSPrivateKeyKey]}, certs.Leaf{
		CommonName: workloadName, Names: []string{governance.ServerName, governance.UsageServer, s.clusterIP, s.address(), "127.0.0.1"},
	}, now)
	if err != nil {
		return err
	}
	own, err := keep(ca, certs.Pair{Cert: secret.Data[apiServerCert], Key: secret.Data[apiServerKey]}, certs.Leaf{
		CommonName: "atoll:" + secretOf(s.coordinator.Spec.NodePool), Groups: []string{governance.APIServerGroup},
	}, now)
	if err != nil {
		return err
	}
	data := map[string][]byte{
		corev1.TLSCertKey: server.Cert, corev1.TLSPrivateKeyKey: server.Key, apiServerCert: own.Cert, apiServerKey: own.Key,
		poolCA: ca.Cert, nodesCA: s.nodesCA, nodeNames: []byte(strings.Join(s.nodes, "\n")),
	}
	for _, kind := range s.coordinator.Spec.Upload {
		data[uploadKinds] = append(data[uploadKinds], kind+"\n"...)
	}
	return r.write(ctx, s, secret, data)
}

// certifyPeople writes the Secret with people's kubeconfig.
func (r *Reconciler) certifyPeople(ctx context.Context, s *scope, ca certs.Pair, now time.Time) error {
	pool := s.coordinator.Spec.NodePool
	secret, err := r.secret(ctx, kubeconfigOf(pool))
	if err != nil {
		return err
	}
	user := "atoll:people-of-" + pool
	people, err := keep(ca, certs.Pair{Cert: secret.Data[corev1.TLSCertKey], Key: secret.Data[corev1.TLSPrivateKeyKey]}, certs.Leaf{CommonName: user, Groups: []string{governance.PeopleGroup}}, now)
	if err != nil {
		return err
	}
	config := api.NewConfig()
	config.Clusters[pool] = &api.Cluster{
		Server: "https://" + net.JoinHostPort(s.address(), strconv.Itoa(governance.APIPort)), CertificateAuthorityData: ca.Cert,
		// The certificate for another address comes to a pod that has moved a moment later.
		TLSServerName: governance.ServerName,
	}
	config.AuthInfos[user] = &api.AuthInfo{ClientCertificateData: people.Cert, ClientKeyData: people.Key}
	config.Contexts[pool] = &api.Context{Cluster: pool, AuthInfo: user}
	config.CurrentContext = pool
	text, err := clientcmd.Write(*config)
	if err != nil {
		return fmt.Errorf("encoding the kubeconfig: %w", err)
	}
	return r.write(ctx, s, secret, map[string][]byte{
		kubeconfigField: text, corev1.TLSCertKey: people.Cert, corev1.TLSPrivateKeyKey: people.Key,
	})
}

// keep returns the pair if the CA has signed it for the leaf and it is not due, else a new one.
func keep(ca, pair certs.Pair, leaf certs.Leaf, now time.Time) (certs.Pair, error) {
	if certs.Fresh(pair, certs.First(ca), leaf, now) {
		return pair, nil
	}
	return certs.IssueUnder(ca, leaf, now)
}

// secret reads a Secret of the namespace of coordinators. If there is none, what it returns has no UID.
func (r *Reconciler) secret(ctx context.Context, name string) (*corev1.Secret, error) {
	secret := &corev1.Secret{}
	err := r.Live.Get(ctx, client.ObjectKey{Namespace: governance.Namespace, Name: name}, secret)
	if apierrors.IsNotFound(err) {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: governance.Namespace, Name: name, Labels: map[string]string{nameLabel: nameValue}}, Type: corev1.SecretTypeOpaque}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading Secret %s/%s: %w", governance.Namespace, name, err)
	}
	return secret, nil
}

// write writes a Secret if it differs. It belongs to the coordinator: it is deleted with it.
func (r *Reconciler) write(ctx context.Context, s *scope, secret *corev1.Secret, data map[string][]byte) (err error) {
	owner := ownerOf(s.coordinator)
	if maps.EqualFunc(secret.Data, data, bytes.Equal) && equality.Semantic.DeepEqual(secret.OwnerReferences, owner) {
		return nil
	}
	secret.Data, secret.OwnerReferences = data, owner
	if secret.UID == "" {
		err = r.Client.Create(ctx, secret)
	} else {
		err = r.Client.Update(ctx, secret)
	}
	if err != nil {
		return fmt.Errorf("writing Secret %s/%s: %w", secret.Namespace, secret.Name, err)
	}
	return nil
}

// remove deletes a Secret of the coordinator. Those of another one for the same pool stay.
func (r *Reconciler) remove(ctx context.Context, s *scope, name string) error {
	secret, err := r.secret(ctx, name)
	if err != nil || secret.UID == "" || !equality.Semantic.DeepEqual(secret.OwnerReferences, ownerOf(s.coordinator)) {
		return err
	}
	if err := r.Client.Delete(ctx, secret, client.Preconditions{UID: &secret.UID}); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting Secret %s/%s: %w", secret.Namespace, name, err)
	}
	return nil
}

func ownerOf(c *apps.YurtCoordinator) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: apps.GroupVersion.String(), Kind: "YurtCoordinator", Name: c.Name, UID: c.UID}}
}
