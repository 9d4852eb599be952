package pki

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/atoll-k8s/atoll/internal/machinery/certs"
)

const namespace = "atoll-system"

// replica is the Keeper of one replica, with its client, its clock and its log.
type replica struct {
	*Keeper
	t      *testing.T
	client *fake.Clientset
	clock  *testingclock.FakeClock

	mu  sync.Mutex
	log bytes.Buffer
}

func newReplica(t *testing.T, client *fake.Clientset) *replica {
	r := &replica{t: t, client: client, clock: testingclock.NewFakeClock(time.Now())}
	log := funcr.New(func(prefix, args string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		fmt.Fprintln(&r.log, prefix, args)
	}, funcr.Options{Verbosity: 10})
	r.Keeper = &Keeper{Client: client, Namespace: namespace, Names: []string{"atoll-manager.atoll-system.svc", "10.0.0.1"}, Clock: r.clock, Log: log}
	return r
}

func (r *replica) ensure() {
	r.t.Helper()
	if err := r.Ensure(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
}

func (r *replica) secret(name string) *corev1.Secret {
	r.t.Helper()
	s, err := r.client.CoreV1().Secrets(namespace).Get(r.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

// writes returns the requests that wrote since the last call.
func (r *replica) writes() []string {
	var out []string
	for _, a := range r.client.Actions() {
		if a.GetVerb() == "get" {
			continue
		}
		name := ""
		switch a := a.(type) {
		case clienttesting.CreateAction: // UpdateAction has the same methods
			name = a.GetObject().(metav1.Object).GetName()
		case clienttesting.PatchAction:
			name = a.GetName()
		}
		out = append(out, a.GetVerb()+" "+name)
	}
	r.client.ClearActions()
	return out
}

func pairOf(s *corev1.Secret) certs.Pair {
	return certs.Pair{Cert: s.Data[corev1.TLSCertKey], Key: s.Data[corev1.TLSPrivateKeyKey]}
}

func TestCertificatesAreMadeOnceAndUsedByTheNextReplica(t *testing.T) {
	client := fake.NewSimpleClientset()
	first := newReplica(t, client)
	first.ensure()
	if diff := cmp.Diff([]string{"create " + ServerSecret, "create " + ClientSecret}, first.writes()); diff != "" {
		t.Errorf("wrong writes (-want +got):\n%s", diff)
	}
	server, clientSecret := first.secret(ServerSecret), first.secret(ClientSecret)
	for _, s := range []*corev1.Secret{server, clientSecret} {
		if s.Type != corev1.SecretTypeTLS {
			t.Errorf("Secret %s is of type %s", s.Name, s.Type)
		}
	}
	if _, leaked := clientSecret.Data[caKeyField]; leaked {
		t.Error("kube-scheduler's Secret holds the CA's key")
	}
	second := newReplica(t, client)
	first.ensure()
	second.ensure()
	if got := first.writes(); len(got) != 0 {
		t.Errorf("writes although nothing was due: %v", got)
	}
	if !bytes.Equal(first.current.Load().caPEM, second.current.Load().caPEM) ||
		!bytes.Equal(first.current.Load().server.Certificate[0], second.current.Load().server.Certificate[0]) {
		t.Error("the second replica serves with other certificates than the first")
	}
}

func TestRenewal(t *testing.T) {
	const day = 24 * time.Hour
	both := []string{"update " + ServerSecret, "update " + ClientSecret}
	tests := map[string]struct {
		after  time.Duration
		change func(r *replica)
		want   []string
		newCA  bool
	}{
		"nothing before two thirds of the server certificate's life": {after: certs.ServerLifetime*2/3 - day},
		"the server certificate at two thirds":                       {after: certs.ServerLifetime * 2 / 3, want: []string{"update " + ServerSecret}},
		"the client certificate at two thirds, with the server's":    {after: certs.ClientLifetime * 2 / 3, want: both},
		"the CA and all that it signed at two thirds":                {after: certs.CALifetime * 2 / 3, want: both, newCA: true},
		"the server certificate when a name is added": {
			change: func(r *replica) { r.Names = append(r.Names, "new.example.com") },
			want:   []string{"update " + ServerSecret},
		},
		"everything when the server's Secret was emptied": {
			change: func(r *replica) { r.spoil(ServerSecret, func(data map[string][]byte) { clear(data) }) },
			want:   both, newCA: true,
		},
		"everything when the key does not belong to the CA": {
			change: func(r *replica) {
				other, err := certs.NewCA(r.clock.Now())
				if err != nil {
					r.t.Fatal(err)
				}
				r.spoil(ServerSecret, func(data map[string][]byte) { data[caKeyField] = other.Key })
			},
			want: both, newCA: true,
		},
		"the server certificate when it cannot be parsed": {
			change: func(r *replica) {
				r.spoil(ServerSecret, func(data map[string][]byte) { data[corev1.TLSCertKey] = []byte("no certificate") })
			},
			want: []string{"update " + ServerSecret},
		},
		"the server certificate when the key does not belong to it": {
			change: func(r *replica) {
				r.spoil(ServerSecret, func(data map[string][]byte) { data[corev1.TLSPrivateKeyKey] = data[caKeyField] })
			},
			want: []string{"update " + ServerSecret},
		},
		"the client certificate when its Secret has another CA": {
			change: func(r *replica) {
				r.spoil(ClientSecret, func(data map[string][]byte) { data[caField] = []byte("another") })
			},
			want: []string{"update " + ClientSecret},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := newReplica(t, fake.NewSimpleClientset())
			r.ensure()
			before := r.secret(ServerSecret)
			if tc.change != nil {
				tc.change(r)
			}
			r.clock.Step(tc.after)
			r.client.ClearActions()
			r.ensure()
			if diff := cmp.Diff(tc.want, r.writes()); diff != "" {
				t.Errorf("wrong writes (-want +got):\n%s", diff)
			}
			after := r.secret(ServerSecret)
			if changed := !bytes.Equal(before.Data[caKeyField], after.Data[caKeyField]); changed != tc.newCA {
				t.Errorf("the CA changed: %t, want %t", changed, tc.newCA)
			}
			ca := certs.First(certs.Pair{Cert: after.Data[caField], Key: after.Data[caKeyField]})
			if !certs.Fresh(pairOf(after), ca, certs.Leaf{CommonName: "atoll-manager", Names: r.Names}, r.clock.Now()) {
				t.Error("the server certificate is not fresh")
			}
			if !certs.Fresh(pairOf(r.secret(ClientSecret)), ca, certs.Leaf{CommonName: ClientName}, r.clock.Now()) {
				t.Error("the client certificate is not fresh")
			}
			if !bytes.Equal(r.secret(ClientSecret).Data[caField], after.Data[caField]) {
				t.Error("kube-scheduler's Secret holds another CA than the server's")
			}
			r.ensure()
			if got := r.writes(); len(got) != 0 {
				t.Errorf("writes although nothing is due any more: %v", got)
			}
		})
	}
}

func (r *replica) spoil(name string, change func(map[string][]byte)) {
	r.t.Helper()
	s := r.secret(name)
	change(s.Data)
	if _, err := r.client.CoreV1().Secrets(namespace).Update(r.t.Context(), s, metav1.UpdateOptions{}); err != nil {
		r.t.Fatal(err)
	}
}

func TestANewCAKeepsTheOldOneTrustedWhileItIsValid(t *testing.T) {
	r := newReplica(t, fake.NewSimpleClientset())
	r.ensure()
	oldServer, oldClient := pairOf(r.secret(ServerSecret)), pairOf(r.secret(ClientSecret))
	oldCA := r.secret(ServerSecret).Data[caField]

	r.clock.Step(certs.CALifetime * 2 / 3)
	r.ensure()
	bundle := r.secret(ServerSecret).Data[caField]
	if got := bytes.Count(bundle, []byte("BEGIN CERTIFICATE")); got != 2 {
		t.Fatalf("the bundle holds %d certificates, want those of the new and the old CA", got)
	}
	if _, err := certs.Issue(certs.Pair{Cert: bundle, Key: r.secret(ServerSecret).Data[caKeyField]}, certs.Leaf{CommonName: "x"}, r.clock.Now()); err != nil {
		t.Errorf("the first of the bundle cannot sign: %v", err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	for name, pair := range map[string]certs.Pair{
		"old server": oldServer, "old client": oldClient,
		"new server": pairOf(r.secret(ServerSecret)), "new client": pairOf(r.secret(ClientSecret)),
	} {
		cert, err := certs.ParseCert(pair.Cert)
		if err != nil {
			t.Fatal(err)
		}
		options := x509.VerifyOptions{Roots: roots, CurrentTime: cert.NotBefore.Add(time.Hour), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}
		if strings.HasPrefix(name, "new") {
			options.CurrentTime = r.clock.Now()
		}
		if _, err := cert.Verify(options); err != nil {
			t.Errorf("the bundle does not trust the %s certificate: %v", name, err)
		}
	}

	r.clock.Step(certs.CALifetime * 2 / 3) // the first CA is past its end
	r.ensure()
	bundle = r.secret(ServerSecret).Data[caField]
	if got := bytes.Count(bundle, []byte("BEGIN CERTIFICATE")); got != 2 || bytes.Contains(bundle, bytes.TrimSpace(oldCA)) {
		t.Errorf("the next bundle holds %d certificates, want two, without the expired one", got)
	}
}

func TestLostWriteRaceUsesTheWinnersSecret(t *testing.T) {
	secrets := corev1.SchemeGroupVersion.WithResource("secrets")
	resource := secrets.GroupResource()
	// race makes the winner write just before the loser does, and the write of the loser
	// fail with the error.
	race := func(t *testing.T, loser, winner *replica, verb string, answer error) {
		raced := false
		loser.client.PrependReactor(verb, "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
			if raced {
				return false, nil, nil
			}
			raced = true
			for _, name := range []string{ServerSecret, ClientSecret} {
				// A reactor runs under the lock of the clientset: it writes behind it.
				_ = loser.client.Tracker().Delete(secrets, namespace, name) // there is none yet, or an older one
				if err := loser.client.Tracker().Create(secrets, winner.secret(name), namespace); err != nil {
					t.Error(err)
				}
			}
			return true, nil, answer
		})
		loser.ensure()
		if !raced || !bytes.Equal(loser.current.Load().caPEM, winner.current.Load().caPEM) ||
			!bytes.Equal(loser.current.Load().server.Certificate[0], winner.current.Load().server.Certificate[0]) {
			t.Error("the loser does not use the certificates of the winner")
		}
	}
	t.Run("it created the Secret: its certificates are read", func(t *testing.T) {
		winner := newReplica(t, fake.NewSimpleClientset())
		winner.ensure()
		race(t, newReplica(t, fake.NewSimpleClientset()), winner, "create", apierrors.NewAlreadyExists(resource, ServerSecret))
	})
	t.Run("it renewed the Secret: its certificates are read", func(t *testing.T) {
		winner := newReplica(t, fake.NewSimpleClientset())
		winner.ensure()
		loser := newReplica(t, fake.NewSimpleClientset(winner.secret(ServerSecret), winner.secret(ClientSecret)))
		loser.ensure()
		winner.clock.Step(certs.ServerLifetime * 2 / 3)
		winner.ensure()
		loser.clock.Step(certs.ServerLifetime * 2 / 3)
		race(t, loser, winner, "update", apierrors.NewConflict(resource, ServerSecret, errors.New("changed meanwhile")))
	})
	t.Run("it always writes first: the retries end with the conflict", func(t *testing.T) {
		client, tries := fake.NewSimpleClientset(), 0
		client.PrependReactor("create", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
			tries++
			return true, nil, apierrors.NewAlreadyExists(resource, ServerSecret)
		})
		if err := newReplica(t, client).Ensure(t.Context()); !apierrors.IsAlreadyExists(err) || tries > 10 {
			t.Errorf("after %d tries: %v", tries, err)
		}
	})
}

func TestAnErrorOfTheAPIServerIsReturnedAndTheOldCertificateServesOn(t *testing.T) {
	client := fake.NewSimpleClientset()
	r := newReplica(t, client)
	r.ensure()
	before := r.current.Load()
	client.PrependReactor("get", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, ServerSecret, nil)
	})
	if err := r.Ensure(t.Context()); !apierrors.IsForbidden(err) {
		t.Errorf("error is %v, want Forbidden", err)
	}
	if r.current.Load() != before {
		t.Error("the certificates in use changed")
	}
}

// TestATimeoutIsReturned: a manager that took it for success would start without certificates.
func TestATimeoutIsReturned(t *testing.T) {
	for _, want := range []error{context.DeadlineExceeded, context.Canceled} {
		r := newReplica(t, fake.NewSimpleClientset())
		r.client.PrependReactor("get", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, fmt.Errorf("reading: %w", want)
		})
		if err := r.Ensure(t.Context()); !errors.Is(err, want) {
			t.Errorf("the error is %v, want one that wraps %v", err, want)
		}
	}
}

// handshake connects a client to a server and returns what failed on either side.
func handshake(t *testing.T, server *tls.Config, client *tls.Config) error {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	clientSaid := make(chan error, 1)
	go func() {
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			clientSaid <- err
			return
		}
		defer conn.Close()
		clientSaid <- tls.Client(conn, client).HandshakeContext(ctx)
	}()
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	serverSaid := tls.Server(conn, server).HandshakeContext(ctx)
	conn.Close()
	err = errors.Join(serverSaid, <-clientSaid)
	if errors.Is(err, context.DeadlineExceeded) {
		t.Fatal("the handshake hangs")
	}
	return err
}

func TestMutualTLS(t *testing.T) {
	r := newReplica(t, fake.NewSimpleClientset())
	r.ensure()
	secret := r.secret(ServerSecret)
	ca := certs.Pair{Cert: secret.Data[caField], Key: secret.Data[caKeyField]}
	issue := func(by certs.Pair, leaf certs.Leaf, at time.Time) []tls.Certificate {
		pair, err := certs.Issue(by, leaf, at)
		if err != nil {
			t.Fatal(err)
		}
		cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
		if err != nil {
			t.Fatal(err)
		}
		return []tls.Certificate{cert}
	}
	scheduler, err := tls.X509KeyPair(r.secret(ClientSecret).Data[corev1.TLSCertKey], r.secret(ClientSecret).Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := certs.NewCA(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.Cert)

	tests := map[string]struct {
		certificates []tls.Certificate
		maxVersion   uint16
		want         bool
	}{
		"kube-scheduler's certificate":                       {certificates: []tls.Certificate{scheduler}, want: true},
		"no certificate":                                     {},
		"another common name":                                {certificates: issue(ca, certs.Leaf{CommonName: "somebody"}, time.Now())},
		"a server certificate of the right name":             {certificates: issue(ca, certs.Leaf{CommonName: ClientName, Names: []string{"a.example.com"}}, time.Now())},
		"the manager's own server certificate":               {certificates: []tls.Certificate{*r.current.Load().server}},
		"the right name signed by another CA":                {certificates: issue(stranger, certs.Leaf{CommonName: ClientName}, time.Now())},
		"an expired certificate":                             {certificates: issue(ca, certs.Leaf{CommonName: ClientName}, time.Now().Add(-2*certs.ClientLifetime))},
		"kube-scheduler's certificate over too old a TLS":    {certificates: []tls.Certificate{scheduler}, maxVersion: tls.VersionTLS12},
		"kube-scheduler's certificate, connecting once more": {certificates: []tls.Certificate{scheduler}, want: true},
	}
	server := r.MutualTLS(ClientName)
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			config := &tls.Config{ServerName: "atoll-manager.atoll-system.svc", RootCAs: roots, MaxVersion: tc.maxVersion}
			config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				if len(tc.certificates) == 0 {
					return &tls.Certificate{}, nil
				}
				return &tc.certificates[0], nil // even if the server did not ask for its kind
			}
			if err := handshake(t, server, config); (err == nil) != tc.want {
				t.Errorf("the handshake ended with %v, want success: %t", err, tc.want)
			}
		})
	}
}

func TestPeersNeedACertificateOfTheCAForTheNameOfReplicas(t *testing.T) {
	client := fake.NewSimpleClientset()
	here, there := newReplica(t, client), newReplica(t, client)
	here.ensure()
	there.ensure()
	secret := here.secret(ServerSecret)
	ca := certs.Pair{Cert: secret.Data[caField], Key: secret.Data[caKeyField]}
	stranger, err := certs.NewCA(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	serving := func(by certs.Pair, leaf certs.Leaf) *tls.Config {
		pair, err := certs.Issue(by, leaf, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
		if err != nil {
			t.Fatal(err)
		}
		return &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequestClientCert}
	}
	tests := map[string]struct {
		server *tls.Config
		want   bool
	}{
		"another replica": {there.MutualTLS(ClientName), true},
		"a server of the name with a certificate of another CA": {serving(stranger, certs.Leaf{CommonName: "atoll-manager", Names: here.Names}), false},
		"a server of another name":                              {serving(ca, certs.Leaf{CommonName: "atoll-manager", Names: []string{"b.example.com"}}), false},
		"a server with a client certificate":                    {serving(ca, certs.Leaf{CommonName: ClientName}), false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if err := handshake(t, tc.server, here.PeerTLS()); (err == nil) != tc.want {
				t.Errorf("the handshake ended with %v, want success: %t", err, tc.want)
			}
		})
	}
	none := newReplica(t, client)
	if handshake(t, there.MutualTLS(ClientName), none.PeerTLS()) == nil {
		t.Error("a replica without certificates reached another")
	}
}

func TestServersFollowARenewalAndRefuseBeforeTheFirst(t *testing.T) {
	r := newReplica(t, fake.NewSimpleClientset())
	mutual, plain := r.MutualTLS(ClientName), &tls.Config{}
	r.ServerTLS(plain)
	client := &tls.Config{InsecureSkipVerify: true}
	for name, config := range map[string]*tls.Config{"mutual": mutual, "plain": plain} {
		if handshake(t, config, client) == nil {
			t.Errorf("%s: served without a certificate", name)
		}
	}
	var served []string
	client.VerifyConnection = func(s tls.ConnectionState) error {
		served = append(served, s.PeerCertificates[0].SerialNumber.String())
		return nil
	}
	for range 2 {
		r.ensure()
		if err := handshake(t, plain, client); err != nil {
			t.Fatal(err)
		}
		r.clock.Step(certs.ServerLifetime * 2 / 3)
	}
	if len(served) != 2 || served[0] == served[1] {
		t.Errorf("certificates served before and after a renewal: %v", served)
	}
}

func webhooks(cas ...[]byte) (*admissionv1.MutatingWebhookConfiguration, *admissionv1.ValidatingWebhookConfiguration) {
	mutating := &admissionv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: MutatingWebhooks}}
	validating := &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: ValidatingWebhooks}}
	for i, ca := range cas {
		name, config := fmt.Sprint("hook-", i), admissionv1.WebhookClientConfig{CABundle: ca}
		mutating.Webhooks = append(mutating.Webhooks, admissionv1.MutatingWebhook{Name: name, ClientConfig: config})
		validating.Webhooks = append(validating.Webhooks, admissionv1.ValidatingWebhook{Name: name, ClientConfig: config})
	}
	return mutating, validating
}

func TestInjectCA(t *testing.T) {
	foreign := &admissionv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "foreign"}, Webhooks: []admissionv1.MutatingWebhook{{Name: "hook"}},
	}
	mutating, validating := webhooks(nil, []byte("old"))
	r := newReplica(t, fake.NewSimpleClientset(mutating, validating, foreign))
	r.ensure()
	r.client.ClearActions()
	inject := func() []string {
		t.Helper()
		if err := r.InjectCA(t.Context()); err != nil {
			t.Fatal(err)
		}
		return r.writes()
	}
	if diff := cmp.Diff([]string{"patch " + MutatingWebhooks, "patch " + ValidatingWebhooks}, inject()); diff != "" {
		t.Errorf("wrong writes (-want +got):\n%s", diff)
	}
	ca := r.current.Load().caPEM
	m, err := r.client.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(t.Context(), MutatingWebhooks, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, hook := range m.Webhooks {
		if !bytes.Equal(hook.ClientConfig.CABundle, ca) {
			t.Errorf("webhook %s does not have the CA", hook.Name)
		}
	}
	v, err := r.client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(t.Context(), ValidatingWebhooks, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, hook := range v.Webhooks {
		if !bytes.Equal(hook.ClientConfig.CABundle, ca) {
			t.Errorf("webhook %s does not have the CA", hook.Name)
		}
	}
	r.client.ClearActions()
	if got := inject(); len(got) != 0 {
		t.Errorf("writes although nothing differs: %v", got)
	}
}

func TestInjectCAPatchesOnlyWhatDiffers(t *testing.T) {
	ca := []byte("the CA")
	tests := map[string]struct {
		have [][]byte
		want string
	}{
		"no webhook":           {nil, ""},
		"all webhooks have it": {[][]byte{ca, ca}, ""},
		"one has another CA":   {[][]byte{ca, []byte("old"), ca}, `[{"op":"add","path":"/webhooks/1/clientConfig/caBundle","value":"dGhlIENB"}]`},
		"one has none yet":     {[][]byte{nil}, `[{"op":"add","path":"/webhooks/0/clientConfig/caBundle","value":"dGhlIENB"}]`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := string(caPatch(ca, tc.have)); got != tc.want {
				t.Errorf("patch is %s, want %s", got, tc.want)
			}
		})
	}
}

func TestInjectCAWithoutConfigurationsAndWithErrors(t *testing.T) {
	_, validating := webhooks(nil)
	r := newReplica(t, fake.NewSimpleClientset(validating))
	r.ensure()
	r.client.ClearActions()
	r.client.PrependReactor("get", "mutatingwebhookconfigurations", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{}, MutatingWebhooks, nil)
	})
	if err := r.InjectCA(t.Context()); !apierrors.IsForbidden(err) {
		t.Errorf("error is %v, want Forbidden", err)
	}
	if diff := cmp.Diff([]string{"patch " + ValidatingWebhooks}, r.writes()); diff != "" {
		t.Errorf("one configuration stops the other (-want +got):\n%s", diff)
	}
	none := newReplica(t, fake.NewSimpleClientset())
	none.ensure()
	if err := none.InjectCA(t.Context()); err != nil {
		t.Errorf("configurations that do not exist are an error: %v", err)
	}
}

// TestForbiddenWebhookPatchNamesTheRemedy: without the right to write webhook configurations, which the chart
// can take away, the error says how it is given.
func TestForbiddenWebhookPatchNamesTheRemedy(t *testing.T) {
	mutating, validating := webhooks(nil)
	r := newReplica(t, fake.NewSimpleClientset(mutating, validating))
	r.ensure()
	r.client.PrependReactor("patch", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{}, "", nil)
	})
	err := r.InjectCA(t.Context())
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "install with rbac.writeCABundle=true until this succeeds") {
		t.Errorf("error is %v", err)
	}
}

// TestTheWebhooksOfAnotherInstallationAreLeftAlone: its replicas have another CA, so both would
// write theirs for ever, and pods would be created without the webhook in between. Nobody calls
// this replica, and its log says so.
func TestTheWebhooksOfAnotherInstallationAreLeftAlone(t *testing.T) {
	call := func(namespace string) *admissionv1.ServiceReference {
		return &admissionv1.ServiceReference{Namespace: namespace, Name: "atoll-manager"}
	}
	own, taken := webhooks(nil)
	own.Webhooks[0].ClientConfig.Service, taken.Webhooks[0].ClientConfig.Service = call(namespace), call("another")
	r := newReplica(t, fake.NewSimpleClientset(own, taken))
	r.ensure()
	r.client.ClearActions()
	err := r.InjectCA(t.Context())
	if diff := cmp.Diff([]string{"patch " + MutatingWebhooks}, r.writes()); diff != "" {
		t.Errorf("wrong writes (-want +got):\n%s", diff)
	}
	if err == nil || !strings.Contains(err.Error(), ValidatingWebhooks+" calls the Service another/atoll-manager") {
		t.Errorf("error is %v", err)
	}
}

// TestAReplicaThatMayNotReadItsWebhooksNamesTheCause: the file of another installation binds the
// roles to its own ServiceAccount.
func TestAReplicaThatMayNotReadItsWebhooksNamesTheCause(t *testing.T) {
	r := newReplica(t, fake.NewSimpleClientset())
	r.ensure()
	r.client.PrependReactor("get", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{}, "", nil)
	})
	if err := r.InjectCA(t.Context()); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "installation of Atoll in another namespace") {
		t.Errorf("error is %v", err)
	}
}

func TestStartKeepsEverythingAndEndsWithItsContext(t *testing.T) {
	mutating, validating := webhooks(nil)
	r := newReplica(t, fake.NewSimpleClientset(mutating, validating))
	injected := make(chan struct{})
	r.client.PrependReactor("patch", "validatingwebhookconfigurations", func(clienttesting.Action) (bool, runtime.Object, error) {
		close(injected)
		return false, nil, nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- r.Start(ctx) }()
	<-injected
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("ended with %v", err)
	}
	if r.NeedLeaderElection() {
		t.Error("replicas that do not lead would serve without certificates")
	}
}

func TestNoKeyIsEverLogged(t *testing.T) {
	client := fake.NewSimpleClientset()
	r := newReplica(t, client)
	var messages []string
	keep := func(err error) {
		if err != nil {
			messages = append(messages, err.Error())
		}
	}
	var secrets []string
	remember := func() {
		for _, name := range []string{ServerSecret, ClientSecret} {
			for field, value := range r.secret(name).Data {
				if block, _ := pem.Decode(value); block != nil && strings.HasSuffix(field, ".key") {
					secrets = append(secrets, string(value), base64.StdEncoding.EncodeToString(value), base64.StdEncoding.EncodeToString(block.Bytes)[:40])
				}
			}
		}
	}
	keep(r.Ensure(t.Context()))
	remember()
	r.clock.Step(certs.CALifetime * 2 / 3)
	keep(r.Ensure(t.Context()))
	remember()
	r.spoil(ServerSecret, func(data map[string][]byte) { // keys where certificates belong
		data[caField], data[corev1.TLSCertKey] = data[caKeyField], data[corev1.TLSPrivateKeyKey]
	})
	client.PrependReactor("update", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewInternalError(errors.New("no"))
	})
	keep(r.Ensure(t.Context()))
	_, err := certs.Issue(certs.Pair{Cert: r.secret(ServerSecret).Data[caKeyField], Key: r.secret(ServerSecret).Data[caKeyField]}, certs.Leaf{}, r.clock.Now())
	keep(err)

	if len(secrets) != 18 || r.log.Len() == 0 || len(messages) != 2 {
		t.Fatalf("%d secrets, %d bytes logged, %d errors: the test checks nothing", len(secrets), r.log.Len(), len(messages))
	}
	for _, secret := range secrets {
		if strings.Contains(r.log.String()+strings.Join(messages, ""), secret) {
			t.Error("a key is in the log or in an error")
		}
	}
}
