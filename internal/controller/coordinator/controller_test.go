package coordinator

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/events"
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

type cluster string

func (c cluster) ServerVersion() (*version.Info, error) {
	return &version.Info{GitVersion: string(c)}, nil
}

// site is a reconciler with a fake client.
type site struct {
	*Reconciler
	t      *testing.T
	all    client.WithWatch
	clock  *testingclock.FakeClock
	events *events.FakeRecorder
	writes []string
	// tokens are the requests of tokens, and accounts begins the UIDs of ServiceAccounts.
	tokens   []*authenticationv1.TokenRequest
	accounts string
	// refuse returns the error of a write; nil lets the write through.
	refuse func(write string) error
}

// newSite returns a site with the pool edge of three nodes, and a cluster whose API server knows clients.
func newSite(t *testing.T, objects ...client.Object) *site {
	s := &site{t: t, clock: testingclock.NewFakeClock(time.Unix(1_800_000_000, 0)), events: events.NewFakeRecorder(1000)}
	for i, name := range []string{"a", "b", "c"} {
		objects = append(objects, node(name, fmt.Sprintf("10.0.0.%d", i+1)))
	}
	objects = append(objects, pool("edge", "a", "b", "c"), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: authenticationConfigMap}, Data: map[string]string{clientCAField: "the CA of nodes"},
	})
	objects = append(objects, &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: delegatesPolicy}}, &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: delegatesPolicy}})
	s.all = build.Client(interceptor.Funcs{}, objects...)
	written := func(verb string, o client.Object) error {
		write := fmt.Sprintf("%s %T %s", verb, o, o.GetName())
		if s.refuse != nil {
			if err := s.refuse(write); err != nil {
				return err
			}
		}
		s.writes = append(s.writes, write)
		return nil
	}
	s.start(interceptor.NewClient(s.all, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if err := written("create", o); err != nil {
				return err
			}
			o.SetUID(types.UID("uid of " + o.GetName()))
			if _, is := o.(*corev1.ServiceAccount); is {
				o.SetUID(types.UID(s.accounts) + o.GetUID())
			}
			if service, is := o.(*corev1.Service); is {
				service.Spec.ClusterIP = "10.96.0.7"
			}
			return c.Create(ctx, o, opts...)
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			if err := written("update", o); err != nil {
				return err
			}
			return c.Update(ctx, o, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			err := c.Get(ctx, client.ObjectKeyFromObject(o), o)
			if err == nil {
				err = written("delete", o)
			}
			if err != nil {
				return err
			}
			return c.Delete(ctx, o) // the fake client has no preconditions
		},
		SubResourceCreate: func(_ context.Context, _ client.Client, name string, o, body client.Object, _ ...client.SubResourceCreateOption) error {
			if err := written("create "+name, o); err != nil {
				return err
			}
			request, is := body.(*authenticationv1.TokenRequest)
			if !is {
				return fmt.Errorf("%T is created", body)
			}
			s.tokens = append(s.tokens, request)
			request.Status.Token, request.Status.ExpirationTimestamp = fmt.Sprint("token ", len(s.tokens)), metav1.NewTime(s.clock.Now().Add(time.Duration(*request.Spec.ExpirationSeconds)*time.Second))
			return nil
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, name string, o client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			if err := written("patch "+name, o); err != nil {
				return err
			}
			return c.SubResource(name).Patch(ctx, o, patch, opts...)
		},
	}))
	return s
}

// start starts the reconciler anew.
func (s *site) start(c client.Client) {
	s.Reconciler = &Reconciler{
		Client: c, Live: s.all, Versions: cluster("v1.36.3"), Recorder: s.events, Clock: s.clock,
		Images: Images{Own: "atoll", Etcd: "etcd", APIServer: "kube-apiserver"},
	}
}

func node(name, address string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{apps.NodePoolLabel: "edge"}}}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name}, {Type: corev1.NodeInternalIP, Address: address}}
	return n
}

func pool(name string, nodes ...string) *apps.NodePool {
	return &apps.NodePool{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: apps.NodePoolStatus{Nodes: nodes, ObservedGeneration: 1}}
}

func of(name, pool string, age int64) *apps.YurtCoordinator {
	return &apps.YurtCoordinator{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid of " + name), Generation: 1, CreationTimestamp: metav1.Unix(1_700_000_000-age, 0)},
		Spec:       apps.YurtCoordinatorSpec{NodePool: pool},
	}
}

func (s *site) pass(name string) (ctrl.Result, error) {
	return s.Reconcile(s.t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: name}})
}

// rest reconciles coordinators until nothing is written.
func (s *site) rest(names ...string) {
	s.t.Helper()
	for range 10 {
		s.writes = nil
		for _, name := range names {
			if _, err := s.pass(name); err != nil {
				s.t.Fatal(err)
			}
		}
		if len(s.writes) == 0 {
			return
		}
		s.clock.Step(time.Second)
	}
	s.t.Fatalf("not at rest; the last writes were %v", s.writes)
}

func (s *site) get(object client.Object, namespace, name string) bool {
	s.t.Helper()
	err := s.all.Get(s.t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, object)
	if client.IgnoreNotFound(err) != nil {
		s.t.Fatal(err)
	}
	return err == nil
}

// secret returns the data of a Secret; nil if there is none.
func (s *site) data(name string) map[string][]byte {
	s.t.Helper()
	secret := &corev1.Secret{}
	s.get(secret, governance.Namespace, name)
	return secret.Data
}

func (s *site) status(name string) apps.YurtCoordinatorStatus {
	s.t.Helper()
	c := &apps.YurtCoordinator{}
	s.get(c, "", name)
	return c.Status
}

// conditions returns "status, reason" of Pending, CertsReady and Ready.
func (s *site) conditions(name string) string {
	s.t.Helper()
	var all []string
	for _, kind := range []string{apps.ConditionPending, apps.ConditionCertsReady, apps.ConditionReady} {
		c := meta.FindStatusCondition(s.status(name).Conditions, kind)
		if c == nil {
			return "none"
		}
		all = append(all, fmt.Sprintf("%s %s %s", c.Type, c.Status, c.Reason))
	}
	return strings.Join(all, ", ")
}

// pools returns the pools of the UnitedDeployment with their images, as the patches have them.
func (s *site) pools() (all []string) {
	s.t.Helper()
	ud := &apps.UnitedDeployment{}
	s.get(ud, governance.Namespace, workloadName)
	for _, p := range ud.Spec.Topology.Pools {
		_, rest, _ := strings.Cut(string(p.Patch.Raw), `"image":"`)
		image, _, _ := strings.Cut(rest, `"`)
		all = append(all, p.Name+" "+image)
	}
	return all
}

// runs puts the pod of a pool's coordinator on a node, in the place of the one before.
func (s *site) runs(pool, node string, ready corev1.ConditionStatus) {
	s.t.Helper()
	if err := s.all.DeleteAllOf(s.t.Context(), &corev1.Pod{}, client.InNamespace(governance.Namespace), client.MatchingLabels{apps.PoolNameLabel: pool}); err != nil {
		s.t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: governance.Namespace, Name: "coordinator-" + pool + "-" + node, Labels: map[string]string{nameLabel: nameValue, apps.PoolNameLabel: pool}}}
	pod.Spec.NodeName = node
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}
	if err := s.all.Create(s.t.Context(), pod); err != nil {
		s.t.Fatal(err)
	}
}

// verify fails the test unless a certificate is signed by one of the CAs, for these names.
func (s *site) verify(ca, cert []byte, usage x509.ExtKeyUsage, names ...string) *x509.Certificate {
	s.t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	parsed, err := certs.ParseCert(cert)
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := parsed.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: s.clock.Now(), KeyUsages: []x509.ExtKeyUsage{usage}}); err != nil {
		s.t.Error(err)
	}
	for _, name := range names {
		if err := parsed.VerifyHostname(name); err != nil {
			s.t.Error(err)
		}
	}
	if life := parsed.NotAfter.Sub(parsed.NotBefore); life > 366*24*time.Hour {
		s.t.Errorf("the certificate of %s is valid for %s", parsed.Subject, life)
	}
	return parsed
}

func TestDeployed(t *testing.T) {
	s := newSite(t, of("one", "edge", 0))
	s.rest("one")
	if got := s.pools(); !slices.Equal(got, []string{"edge kube-apiserver:v1.36.3"}) {
		t.Errorf("the pools are %q", got)
	}
	if got, want := s.conditions("one"), "Pending False Deployed, CertsReady False NotScheduled, Ready False NotScheduled"; got != want {
		t.Errorf("the conditions are %s", got)
	}
	if s.data("coordinator-edge") != nil || s.data("kubeconfig-edge") != nil {
		t.Error("there are certificates for a pod that is on no node")
	}
	s.runs("edge", "b", corev1.ConditionFalse)
	s.rest("one")
	if got, want := s.conditions("one"), "Pending False Deployed, CertsReady True Issued, Ready False PodNotReady"; got != want {
		t.Errorf("the conditions are %s", got)
	}
	s.runs("edge", "b", corev1.ConditionTrue)
	s.rest("one")
	status := s.status("one")
	if got, want := s.conditions("one"), "Pending False Deployed, CertsReady True Issued, Ready True PodReady"; got != want {
		t.Errorf("the conditions are %s", got)
	}
	if diff := cmp.Diff([]string{"10.0.0.2", "10.0.0.1", "10.0.0.3"}, status.Addresses); diff != "" || status.NodeName != "b" || status.Version != "v1.36.3" || status.KubeconfigSecret != "kubeconfig-edge" {
		t.Errorf("the status is %+v", status)
	}
	ca, own := s.data("ca-edge"), s.data("coordinator-edge")
	if string(status.CABundle) != string(ca["ca.crt"]) || string(own["ca.crt"]) != string(ca["ca.crt"]) || own["ca.key"] != nil {
		t.Error("the CA is another one, or its key is in the pod")
	}
	s.verify(ca["ca.crt"], own["tls.crt"], x509.ExtKeyUsageServerAuth, governance.ServerName, "10.96.0.7", "10.0.0.2", "127.0.0.1")
	if cert := s.verify(ca["ca.crt"], own["apiserver.crt"], x509.ExtKeyUsageClientAuth); !slices.Equal(cert.Subject.Organization, []string{governance.APIServerGroup}) {
		t.Errorf("for hubs the API server is %s", cert.Subject)
	}
	if string(own["nodes"]) != "a\nb\nc" || string(own["nodes.crt"]) != "the CA of nodes" {
		t.Errorf("the nodes are %q, their CA %q", own["nodes"], own["nodes.crt"])
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(s.data("kubeconfig-edge")["kubeconfig"])
	if err != nil {
		t.Fatal(err)
	}
	if config.Host != "https://10.0.0.2:10270" || config.ServerName != governance.ServerName || string(config.CAData) != string(ca["ca.crt"]) {
		t.Errorf("the kubeconfig is for %s as %s", config.Host, config.ServerName)
	}
	if cert := s.verify(ca["ca.crt"], config.CertData, x509.ExtKeyUsageClientAuth); !slices.Equal(cert.Subject.Organization, []string{governance.PeopleGroup}) {
		t.Errorf("people are %s", cert.Subject)
	}
	if result, err := s.pass("one"); err != nil || result.RequeueAfter != againAfter {
		t.Errorf("the next pass is after %s, %v", result.RequeueAfter, err)
	}
}

// TestUploadIsTold to the writer, by a file that is there only while something is asked for.
func TestUploadIsTold(t *testing.T) {
	s := newSite(t, of("one", "edge", 0))
	s.runs("edge", "b", corev1.ConditionTrue)
	s.rest("one")
	ask := func(want string, kinds ...apps.UploadKind) {
		t.Helper()
		c := &apps.YurtCoordinator{}
		s.get(c, "", "one")
		c.Spec.Upload = kinds
		if err := s.all.Update(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		s.rest("one")
		if got, has := s.data("coordinator-edge")["upload"]; string(got) != want || has != (want != "") {
			t.Errorf("the file is %q, want %q", got, want)
		}
	}
	ask("")
	ask("Secrets\n", apps.UploadSecrets)
	ask("")
}

func TestCertificatesAreMadeAnew(t *testing.T) {
	s := newSite(t, of("one", "edge", 0))
	s.runs("edge", "b", corev1.ConditionTrue)
	s.rest("one")
	type state struct{ ca, server, client, people string }
	now := func() state {
		own := s.data("coordinator-edge")
		return state{string(s.data("ca-edge")["ca.crt"]), string(own["tls.crt"]), string(own["apiserver.crt"]), string(s.data("kubeconfig-edge")["tls.crt"])}
	}
	first := now()
	s.runs("edge", "c", corev1.ConditionTrue)
	s.rest("one")
	moved := now()
	if moved.server == first.server || moved.ca != first.ca || moved.client != first.client || moved.people != first.people {
		t.Error("after a move more is new than the serving certificate, or that is not")
	}
	s.verify([]byte(moved.ca), []byte(moved.server), x509.ExtKeyUsageServerAuth, "10.0.0.3")
	s.clock.Step(59 * 24 * time.Hour)
	s.rest("one")
	if now() != moved {
		t.Error("certificates are made anew in the first two thirds of their lives")
	}
	s.clock.Step(2 * 24 * time.Hour)
	s.rest("one")
	renewed := now()
	if renewed.server == moved.server || renewed.ca != moved.ca || renewed.people != moved.people {
		t.Error("after 61 days more is new than the serving certificate, or that is not")
	}
	s.clock.Step(190 * 24 * time.Hour)
	s.rest("one")
	last := now()
	if last.ca == renewed.ca || last.server == renewed.server || last.client == renewed.client || last.people == renewed.people {
		t.Error("after two thirds of the life of the CA not all is new")
	}
	s.verify([]byte(last.ca), []byte(last.server), x509.ExtKeyUsageServerAuth)
	s.verify([]byte(last.ca), []byte(renewed.people), x509.ExtKeyUsageClientAuth) // a kubeconfig that somebody has copied
	s.verify([]byte(last.ca), []byte(renewed.client), x509.ExtKeyUsageClientAuth)
	if string(s.status("one").CABundle) != last.ca {
		t.Error("hubs are not told of the new CA")
	}
	if _, err := certs.ParseCert([]byte(last.ca)); err != nil || !strings.HasPrefix(renewed.ca, strings.TrimSpace(string(certs.First(certs.Pair{Cert: []byte(last.ca)}).Cert))) {
		t.Error("the next CA signs before everybody has heard of it")
	}
	s.clock.Step(31 * 24 * time.Hour)
	s.rest("one")
	rolled := now()
	if rolled.server == last.server || rolled.client == last.client || rolled.people == last.people || strings.HasPrefix(rolled.ca, strings.TrimSpace(renewed.ca)) {
		t.Error("31 days later the next CA does not sign")
	}
	// A hub, an API server and a person that have heard nothing since: each trusts the other.
	s.verify([]byte(last.ca), []byte(rolled.server), x509.ExtKeyUsageServerAuth)
	s.verify([]byte(last.ca), []byte(rolled.client), x509.ExtKeyUsageClientAuth)
	s.verify([]byte(last.ca), []byte(rolled.people), x509.ExtKeyUsageClientAuth)
	s.verify([]byte(rolled.ca), []byte(last.people), x509.ExtKeyUsageClientAuth)
	if key := s.data("ca-edge")[nextKey]; key != nil {
		t.Error("the key of the next CA is left")
	}
}

// TestClocksThatDiffer: what the manager signs counts at once on machines whose clocks are up to five minutes wrong.
func TestClocksThatDiffer(t *testing.T) {
	s := newSite(t, of("one", "edge", 0))
	s.runs("edge", "b", corev1.ConditionTrue)
	s.rest("one")
	own := s.data("coordinator-edge")
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(s.data("ca-edge")["ca.crt"])
	for who, cert := range map[string][]byte{"the API server, to people": own["tls.crt"], "the API server, to hubs": own["apiserver.crt"], "a person": s.data("kubeconfig-edge")["tls.crt"]} {
		parsed, err := certs.ParseCert(cert)
		if err != nil {
			t.Fatal(err)
		}
		for _, wrong := range []time.Duration{-5 * time.Minute, 5 * time.Minute} {
			if _, err := parsed.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: s.clock.Now().Add(wrong), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
				t.Errorf("where the clock is wrong by %s, %s is not known: %v", wrong, who, err)
			}
		}
	}
}

func TestPending(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*site, *apps.YurtCoordinator)
		want   string
	}{
		"no such pool":           {func(_ *site, c *apps.YurtCoordinator) { c.Spec.NodePool = "nowhere" }, apps.ReasonNodePoolMissing},
		"two nodes":              {func(_ *site, c *apps.YurtCoordinator) { c.Spec.NodePool = "small" }, apps.ReasonFewNodes},
		"an unsupported version": {func(_ *site, c *apps.YurtCoordinator) { c.Spec.Version = "v1.20.0" }, apps.ReasonVersionNotSupported},
		"an older coordinator":   {func(_ *site, c *apps.YurtCoordinator) { c.CreationTimestamp = metav1.Unix(1_750_000_000, 0) }, apps.ReasonAnotherCoordinator},
	} {
		t.Run(name, func(t *testing.T) {
			c := of("one", "edge", 0)
			objects := []client.Object{pool("small", "a", "b")}
			if tc.want == apps.ReasonAnotherCoordinator {
				objects = append(objects, of("two", "edge", 0))
			}
			tc.change(nil, c)
			s := newSite(t, append(objects, c)...)
			s.rest("one")
			if got, want := s.conditions("one"), fmt.Sprintf("Pending True %[1]s, CertsReady False %[1]s, Ready False %[1]s", tc.want); got != want {
				t.Errorf("the conditions are %s, want %s", got, want)
			}
			if event := <-s.events.Events; !strings.HasPrefix(event, "Warning "+tc.want) {
				t.Errorf("the event is %s", event)
			}
			if s.data("ca-nowhere") != nil || s.data("ca-small") != nil {
				t.Error("there is a CA")
			}
		})
	}
}

// TestWithoutTheKindOfItsWorkload it waits until that is there.
func TestWithoutTheKindOfItsWorkload(t *testing.T) {
	for name, missing := range map[string]error{
		"the API server does not know it": apierrors.NewGenericServerResponse(http.StatusNotFound, "post", schema.GroupResource{Resource: "uniteddeployments"}, "", "", 0, true),
		"nor does discovery":              &meta.NoKindMatchError{GroupKind: schema.GroupKind{Kind: "UnitedDeployment"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, of("one", "edge", 0))
			s.refuse = func(write string) error {
				if strings.HasPrefix(write, "create *v1alpha1.UnitedDeployment") {
					return missing
				}
				return nil
			}
			for range 3 {
				if _, err := s.pass("one"); err == nil {
					t.Fatal("it is not tried again")
				}
			}
			if got, want := s.conditions("one"), fmt.Sprintf("Pending True %[1]s, CertsReady False %[1]s, Ready False %[1]s", apps.ReasonUnitedDeploymentMissing); got != want {
				t.Errorf("the conditions are %s, want %s", got, want)
			}
			s.refuse = nil
			s.rest("one")
			if got := s.conditions("one"); !strings.HasPrefix(got, "Pending False") || len(s.pools()) != 1 {
				t.Errorf("with its kind the conditions are %s, and its pools %q", got, s.pools())
			}
		})
	}
}

// TestTheNodesOfANewPoolAreAwaited: the condition of a coordinator that is applied together with its pool does not say that
// it has none.
func TestTheNodesOfANewPoolAreAwaited(t *testing.T) {
	fresh := pool("site")
	fresh.Status.ObservedGeneration = 0
	s := newSite(t, fresh, of("one", "site", 0))
	if result, err := s.pass("one"); err != nil || result.RequeueAfter != countedAfter || len(s.events.Events) > 0 {
		t.Errorf("the next pass is after %s, %v, and there are %d events", result.RequeueAfter, err, len(s.events.Events))
	}
	if got := s.conditions("one"); got != "none" {
		t.Errorf("the conditions are %s", got)
	}
}

func TestWhyNotReady(t *testing.T) {
	status := func(statuses ...corev1.ContainerStatus) *corev1.Pod {
		return &corev1.Pod{Status: corev1.PodStatus{ContainerStatuses: statuses}}
	}
	for want, pod := range map[string]*corev1.Pod{
		"have not started yet":    status(),
		"waits: CrashLoopBackOff": status(corev1.ContainerStatus{Name: "etcd", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}}),
		"its probe yet":           status(corev1.ContainerStatus{Name: "etcd", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}),
		"does not hear":           status(corev1.ContainerStatus{Name: "etcd", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}),
	} {
		if got := whyNotReady(pod); !strings.Contains(got, want) {
			t.Errorf("it says %q, want %q", got, want)
		}
	}
}

// TestAutonomyKeepsOut a new coordinator, and does not end one: a node could do that to its pool.
func TestAutonomyKeepsOut(t *testing.T) {
	for _, deployed := range []bool{false, true} {
		s := newSite(t, of("one", "edge", 0))
		if deployed {
			s.runs("edge", "b", corev1.ConditionTrue)
			s.rest("one")
		}
		autonomous := node("c", "10.0.0.3")
		autonomous.Annotations = map[string]string{autonomyAnnotations[1]: "1h"}
		if err := s.all.Update(t.Context(), autonomous); err != nil {
			t.Fatal(err)
		}
		s.rest("one")
		if got := s.conditions("one"); !strings.HasPrefix(got, "Pending True NodeAutonomy") {
			t.Errorf("the conditions are %s", got)
		}
		if (s.data("ca-edge") != nil) != deployed || (len(s.pools()) > 0) != deployed || (s.status("one").CABundle != nil) != deployed {
			t.Errorf("deployed before: %t, now its pools are %v", deployed, s.pools())
		}
	}
}

// TestAnotherCAMakesThePodAnew: its API server trusts the CAs with which it was started. The Secrets may be gone because
// somebody deleted the CA, or because the YurtCoordinator was deleted and made again.
func TestAnotherCAMakesThePodAnew(t *testing.T) {
	s := newSite(t, of("one", "edge", 0))
	s.runs("edge", "b", corev1.ConditionTrue)
	s.rest("one")
	patch := func() string {
		ud := &apps.UnitedDeployment{}
		s.get(ud, governance.Namespace, workloadName)
		return string(ud.Spec.Topology.Pools[0].Patch.Raw)
	}
	before := patch()
	if err := s.all.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: governance.Namespace, Name: "ca-edge"}}); err != nil {
		t.Fatal(err)
	}
	s.rest("one")
	if patch() == before {
		t.Error("the pod stays, and trusts a CA that is gone")
	}
}

// TestAFailedReadOfTheServiceIssuesNothing: a certificate without its address would be made anew again and again.
func TestAFailedReadOfTheServiceIssuesNothing(t *testing.T) {
	s := newSite(t, of("one", "edge", 0))
	s.runs("edge", "b", corev1.ConditionTrue)
	s.rest("one")
	before := string(s.data("coordinator-edge")["tls.crt"])
	s.Live = interceptor.NewClient(s.all, interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
		if _, is := o.(*corev1.Service); is {
			return errors.New("the API server is busy")
		}
		return c.Get(ctx, key, o, opts...)
	}})
	if _, err := s.pass("one"); err == nil {
		t.Error("there is no error")
	}
	if string(s.data("coordinator-edge")["tls.crt"]) != before {
		t.Error("the certificate was made anew")
	}
}

func TestSeveral(t *testing.T) {
	s := newSite(t, of("one", "edge", 0), of("two", "site", 0), of("three", "edge", -5), pool("site", "d", "e", "f"))
	s.runs("edge", "b", corev1.ConditionTrue)
	s.rest("one", "two", "three")
	if got := s.pools(); !slices.Equal(got, []string{"edge kube-apiserver:v1.36.3", "site kube-apiserver:v1.36.3"}) {
		t.Errorf("the pools are %q", got)
	}
	if s.data("coordinator-edge") == nil {
		t.Error("the one that waits has deleted the certificates of the other")
	}
	if err := s.all.Delete(t.Context(), of("two", "site", 0)); err != nil {
		t.Fatal(err)
	}
	s.rest("two")
	if got := s.pools(); !slices.Equal(got, []string{"edge kube-apiserver:v1.36.3"}) {
		t.Errorf("after the deletion of one the pools are %q", got)
	}
	if err := s.all.Delete(t.Context(), of("one", "edge", 0)); err != nil {
		t.Fatal(err)
	}
	s.rest("one", "three")
	if got := s.pools(); !slices.Equal(got, []string{"edge kube-apiserver:v1.36.3"}) || !strings.Contains(s.conditions("three"), "Ready True") {
		t.Errorf("the next one of the pool does not have it: %q, %s", got, s.conditions("three"))
	}
	if err := s.all.Delete(t.Context(), of("three", "edge", 0)); err != nil {
		t.Fatal(err)
	}
	s.rest("") // as after a start: nothing tells of one that is gone but the UnitedDeployment
	if s.get(&apps.UnitedDeployment{}, governance.Namespace, workloadName) || s.get(&corev1.Service{}, governance.Namespace, workloadName) {
		t.Error("the UnitedDeployment or the Service is left")
	}
}

// TestOwners: what belongs to a coordinator is deleted by Kubernetes after it.
func TestOwners(t *testing.T) {
	s := newSite(t, of("one", "edge", 0))
	s.runs("edge", "b", corev1.ConditionTrue)
	s.rest("one")
	var secrets corev1.SecretList
	if err := s.all.List(t.Context(), &secrets); err != nil {
		t.Fatal(err)
	}
	for i := range secrets.Items {
		if owner := secrets.Items[i].OwnerReferences; len(owner) != 1 || owner[0].UID != "uid of one" || owner[0].Kind != "YurtCoordinator" {
			t.Errorf("the owner of %s is %v", secrets.Items[i].Name, owner)
		}
	}
	if len(secrets.Items) != 4 {
		t.Errorf("there are %d Secrets", len(secrets.Items))
	}
}

// TestAPoolThatShrinks keeps its coordinator, and a version that is not possible leaves it as it is.
func TestAPoolThatShrinks(t *testing.T) {
	s := newSite(t, of("one", "edge", 0))
	s.runs("edge", "b", corev1.ConditionTrue)
	s.rest("one")
	change := func(object client.Object, do func()) {
		t.Helper()
		s.get(object, "", object.GetName())
		do()
		if err := s.all.Update(t.Context(), object); err != nil {
			t.Fatal(err)
		}
		do() // the answer has the status as it was
		if err := s.all.Status().Update(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	edge, c := pool("edge"), of("one", "edge", 0)
	change(edge, func() { edge.Status.Nodes = []string{"b"} })
	change(c, func() { c.Spec.Version = "v1.20.0" })
	s.rest("one")
	if got := s.pools(); !slices.Equal(got, []string{"edge kube-apiserver:v1.36.3"}) {
		t.Errorf("the pools are %q", got)
	}
	if got := s.conditions("one"); got != "Pending True VersionNotSupported, CertsReady True Issued, Ready True PodReady" {
		t.Errorf("the conditions are %s", got)
	}
	if status := s.status("one"); status.Version != "v1.36.3" || !slices.Equal(status.Addresses, []string{"10.0.0.2"}) {
		t.Errorf("the status is %+v", status)
	}
}

// TestStoppedBetweenWrites: whichever write is the last one of a manager, the next one comes to the same end, and what
// was written is not made anew.
func TestStoppedBetweenWrites(t *testing.T) {
	for n := 0; ; n++ {
		s := newSite(t, of("one", "edge", 0))
		s.runs("edge", "b", corev1.ConditionTrue)
		writes := 0
		s.refuse = func(string) error {
			if writes++; writes > n {
				return errors.New("stopped")
			}
			return nil
		}
		_, err := s.pass("one")
		stopped := err != nil
		ca := s.data("ca-edge")["ca.crt"]
		s.refuse = nil
		s.start(s.Client)
		s.rest("one")
		if !strings.Contains(s.conditions("one"), "Ready True") || ca != nil && string(ca) != string(s.data("ca-edge")["ca.crt"]) {
			t.Errorf("after %d writes: the conditions are %s", n, s.conditions("one"))
		}
		if !stopped {
			if n < 5 {
				t.Errorf("a pass has only %d writes", n)
			}
			return
		}
	}
}

func TestNothingIsHiddenWhenAReadFails(t *testing.T) {
	s := newSite(t, of("one", "edge", 0))
	s.runs("edge", "b", corev1.ConditionTrue)
	s.rest("one")
	before := s.status("one")
	configMap := &corev1.ConfigMap{}
	s.get(configMap, "kube-system", authenticationConfigMap)
	delete(configMap.Data, clientCAField)
	if err := s.all.Update(t.Context(), configMap); err != nil {
		t.Fatal(err)
	}
	if _, err := s.pass("one"); err == nil {
		t.Error("there is no error")
	}
	after := s.status("one")
	if !strings.HasPrefix(s.conditions("one"), "Pending Unknown") || !slices.Equal(after.Addresses, before.Addresses) || string(after.CABundle) != string(before.CABundle) {
		t.Errorf("the status is %+v", after)
	}
	if s.data("coordinator-edge")["nodes.crt"] == nil || len(s.pools()) != 1 {
		t.Error("something was taken away")
	}
}

func TestWatches(t *testing.T) {
	c, s := of("one", "edge", 0), newSite(t, of("one", "edge", 0), of("two", "edge", 0), of("other", "site", 0))
	moved := node("a", "10.0.0.9")
	labelled := node("a", "10.0.0.1")
	labelled.Labels["other"] = "label"
	ready := node("a", "10.0.0.1")
	ready.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse}}
	readier := pool("edge", "a", "b", "c")
	readier.Status.ReadyNode = 3
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: governance.Namespace, Name: "p", Labels: map[string]string{apps.PoolNameLabel: "site"}}}
	shared := &apps.UnitedDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: governance.Namespace, Name: workloadName}}
	for name, tc := range map[string]struct {
		before, after client.Object
		want          string
	}{
		"a coordinator is created":          {after: c, want: "one"},
		"it is deleted":                     {before: c, want: "one two"},
		"a node changes its address":        {before: node("a", "10.0.0.1"), after: moved, want: "one two"},
		"the cloud loses a node":            {before: ready, after: node("a", "10.0.0.1"), want: "one two"},
		"a node changes another label":      {before: node("a", "10.0.0.1"), after: labelled},
		"a node joins the pool":             {before: pool("edge", "a"), after: pool("edge", "a", "b"), want: "one two"},
		"a node of the pool becomes Ready":  {before: pool("edge", "a", "b", "c"), after: readier},
		"a pod of a coordinator changes":    {before: pod, after: pod.DeepCopy(), want: "other"},
		"the UnitedDeployment is found":     {after: shared, want: ""},
		"another UnitedDeployment is found": {after: &apps.UnitedDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: workloadName}}},
	} {
		t.Run(name, func(t *testing.T) {
			var q watched.Queue
			q.Send(t.Context(), s.watches(), tc.before, tc.after)
			if got := q.Take(); got != tc.want {
				t.Errorf("it enqueues %q, want %q", got, tc.want)
			}
		})
	}
}
