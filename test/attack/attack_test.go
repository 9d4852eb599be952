package attack

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
	"github.com/atoll-k8s/atoll/internal/machinery/certs"
	"github.com/atoll-k8s/atoll/internal/manager"
	"github.com/atoll-k8s/atoll/internal/pki"
)

const (
	// waveTime is how long a wave lasts. The tenant creates Deployments meanwhile, one after
	// the other.
	waveTime = 5 * time.Second
	// patience is how long the tenant's pods may take. The machine has to run the attack,
	// the cluster and the pods.
	patience = 90 * time.Second
	replicas = 4
	// apart is a namespace whose pods never meet Atoll.
	apart = "apart"
)

// bed is a cluster with one replica of atoll-manager.
type bed struct {
	*testing.T
	cluster *devcluster.Cluster
	atoll   *atoll.Installation
	client  client.WithWatch
	target  target
	senders []int // the CPUs of the senders; nil means any
}

// TestTenantIsServedUnderEachAttack: under each wave the process stays below the memory limit of the
// chart, and a tenant's Deployment is placed by its policy.
func TestTenantIsServedUnderEachAttack(t *testing.T) {
	klog.SetLogger(logr.Discard())
	ctrl.SetLogger(logr.Discard())
	b := newBed(t)
	b.apart()
	b.tenant()
	before := b.memory("VmRSS")
	calm := b.inTurns("calm", 0, 10)
	t.Logf("without a wave: %s", calm)
	for i, w := range slices.Concat(waves, []wave{all}) {
		end := b.send(w.name)
		during := b.inTurns(fmt.Sprint("wave-", i), waveTime, 5)
		now, peak := b.memory("VmRSS"), b.memory("VmHWM")
		sent := end()
		managed, plain := during.over(calm)
		t.Logf("%-45s %6d served or ended, %6d refused; %s; changed by %.2f, without a policy by %.2f; memory %d MiB, so far at most %d MiB",
			w.name, sent.Done, sent.Failed, during, managed, plain, now, peak)
		if peak > atoll.MemoryLimit>>20 {
			t.Fatalf("under %s the memory of atoll-manager is %d MiB", w.name, peak)
		}
	}
	t.Logf("memory before: %d MiB", before)
}

// TestExtenderRejectsInvalidClientCertificates: only a client with a certificate that is valid now, of the
// right authority and for the right name, is answered.
func TestExtenderRejectsInvalidClientCertificates(t *testing.T) {
	klog.SetLogger(logr.Discard())
	ctrl.SetLogger(logr.Discard())
	b := newBed(t)
	var secret corev1.Secret
	if err := b.client.Get(t.Context(), client.ObjectKey{Namespace: atoll.Namespace, Name: pki.ServerSecret}, &secret); err != nil {
		t.Fatal(err)
	}
	ours := certs.Pair{Cert: secret.Data["ca.crt"], Key: secret.Data["ca.key"]}
	theirs, err := certs.NewCA(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	issue := func(ca certs.Pair, name string, at time.Time) *tls.Certificate {
		pair, err := certs.Issue(ca, certs.Leaf{CommonName: name}, at)
		if err != nil {
			t.Fatal(err)
		}
		certificate, err := tls.X509KeyPair(pair.Cert, pair.Key)
		if err != nil {
			t.Fatal(err)
		}
		return &certificate
	}
	now := time.Now()
	for name, tc := range map[string]struct {
		certificate *tls.Certificate
		served      bool
	}{
		"the certificate of kube-scheduler": {issue(ours, pki.ClientName, now), true},
		"none":                              {nil, false},
		"of another authority":              {issue(theirs, pki.ClientName, now), false},
		"of another name":                   {issue(ours, "somebody", now), false},
		"expired":                           {issue(ours, pki.ClientName, now.AddDate(-3, 0, 0)), false},
		"of a time to come":                 {issue(ours, pki.ClientName, now.AddDate(1, 0, 0)), false},
	} {
		t.Run(name, func(t *testing.T) {
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM(ours.Cert)
			config := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}
			if tc.certificate != nil {
				config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return tc.certificate, nil }
			}
			transport := &http.Transport{TLSClientConfig: config}
			defer transport.CloseIdleConnections()
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+b.target.Extender+"/assign", strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			response, err := transport.RoundTrip(request)
			if err == nil {
				_, _ = io.Copy(io.Discard, response.Body)
				_ = response.Body.Close()
			}
			if (err == nil) != tc.served {
				t.Errorf("answered: %v, %v", err == nil, err)
			}
		})
	}
}

func newBed(t *testing.T) *bed {
	t.Helper()
	b := &bed{T: t}
	var err error
	if b.cluster, err = devcluster.Start(t.Context(), devcluster.Options{Log: os.Stderr}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.cluster.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	values := map[string]any{"webhooks": map[string]any{"excludedNamespaces": []any{apart}}}
	if b.atoll, err = atoll.Install(t.Context(), b.cluster, atoll.Options{Log: os.Stderr, Values: values}); err != nil {
		t.Fatal(err)
	}
	if b.client, err = client.NewWithWatch(b.cluster.AdminConfig(), client.Options{Scheme: manager.Scheme()}); err != nil {
		t.Fatal(err)
	}
	trim := func(url string) string {
		url = strings.TrimSuffix(url, "/metrics")
		return url[strings.LastIndex(url, "/")+1:]
	}
	b.target = target{
		Webhooks: b.atoll.Webhooks[0], Extender: b.atoll.Extenders[0],
		Metrics: trim(b.atoll.MetricsURLs[0]), Probes: trim(b.atoll.HealthURL),
	}
	return b
}

// tenant creates two groups, and a policy that divides a workload's pods between them.
func (b *bed) tenant() {
	b.Helper()
	label := func(group string) func(int, *devcluster.NodeSpec) {
		return func(_ int, spec *devcluster.NodeSpec) { spec.Labels = map[string]string{"site": group} }
	}
	nodes := append(devcluster.NumberedNodes("hz-", 2, label("hz")), devcluster.NumberedNodes("bj-", 2, label("bj"))...)
	if err := b.cluster.AddNodes(b.Context(), nodes...); err != nil {
		b.Fatal(err)
	}
	objects := []client.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: apart}}, &gm.PropagationPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"},
		Spec: gm.PropagationSpec{
			PropagationStrategy: "StaticWeight",
			StaticWeight:        []gm.StaticNodeGroupWeight{{NodeGroupNames: []string{"hz"}, Weight: 3}, {NodeGroupNames: []string{"bj"}, Weight: 1}},
		},
	}}
	for _, group := range []string{"hz", "bj"} {
		objects = append(objects, &gm.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: group}, Spec: gm.NodeGroupSpec{MatchLabels: map[string]string{"site": group}}})
	}
	for _, o := range objects {
		if err := b.client.Create(b.Context(), o); err != nil {
			b.Fatal(err)
		}
	}
}

// deploys creates a Deployment, waits until its pods are available and divided as the policy
// says, and returns how long that took.
func (b *bed) deploys(name, when string) time.Duration {
	b.Helper()
	return b.deploy("default", name, when, map[string]string{gm.RequiredPropagationPolicyLabel: "p"}, b.placed)
}

// deploy creates a Deployment with these labels, waits until it is as it should be, and returns
// how long that took.
func (b *bed) deploy(namespace, name, when string, own map[string]string, check func(context.Context, *appsv1.Deployment) error) time.Duration {
	b.Helper()
	began := time.Now()
	labels := map[string]string{"app": name}
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: own},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(replicas)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "nginx:1"}}},
			},
		},
	}
	if err := b.client.Create(b.Context(), d); err != nil {
		b.Fatal(err)
	}
	if err := b.await(d, check); err != nil {
		b.Fatalf("%s: %v", when, err)
	}
	took := time.Since(began)
	if err := b.client.Delete(b.Context(), d, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
		b.Fatal(err)
	}
	return took
}

// await waits until a Deployment is as it should be, which it looks at whenever the Deployment
// changes, and each second.
func (b *bed) await(d *appsv1.Deployment, check func(context.Context, *appsv1.Deployment) error) error {
	ctx, cancel := context.WithTimeout(b.Context(), patience)
	defer cancel()
	changes, err := b.client.Watch(ctx, &appsv1.DeploymentList{}, client.InNamespace(d.Namespace), client.MatchingFields{"metadata.name": d.Name},
		&client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: d.ResourceVersion}})
	if err != nil {
		return err
	}
	defer changes.Stop()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		seen := check(ctx, d)
		if seen == nil {
			return nil
		}
		select {
		case event, open := <-changes.ResultChan():
			changed, ok := event.Object.(*appsv1.Deployment)
			if !open || !ok {
				return fmt.Errorf("the watch has ended: %v; %w", event.Object, seen)
			}
			d = changed
		case <-tick.C:
		case <-ctx.Done():
			return errors.Join(ctx.Err(), seen)
		}
	}
}

// times are how long Deployments took, in turns: of a tenant with and without a policy, and in
// a namespace whose pods never meet Atoll. What is slower there too is not because of Atoll: the
// machine runs the senders as well.
type times struct{ managed, plain, apart []time.Duration }

// inTurns creates Deployments for so long, and at least so many of each.
func (b *bed) inTurns(when string, during time.Duration, least int) (t times) {
	b.Helper()
	for n, began := 0, time.Now(); n < least || time.Since(began) < during; n++ {
		name := fmt.Sprintf("%s-%d", when, n)
		t.managed = append(t.managed, b.deploys(name, when))
		t.plain = append(t.plain, b.deploy("default", name+"-plain", when, nil, b.available))
		t.apart = append(t.apart, b.deploy(apart, name, when, nil, b.available))
	}
	for _, took := range [][]time.Duration{t.managed, t.plain, t.apart} {
		slices.Sort(took)
	}
	return t
}

func median(sorted []time.Duration) time.Duration { return sorted[len(sorted)/2] }

// over returns how the times changed: their medians ÷ those of Deployments that never meet
// Atoll, now ÷ before.
func (t times) over(before times) (managed, plain float64) {
	relative := func(took, apart []time.Duration) float64 { return float64(median(took)) / float64(median(apart)) }
	return relative(t.managed, t.apart) / relative(before.managed, before.apart), relative(t.plain, t.apart) / relative(before.plain, before.apart)
}

func (t times) String() string {
	round := func(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
	return fmt.Sprintf("a Deployment took %s (median; at most %s), without a policy %s, without Atoll %s",
		round(median(t.managed)), round(t.managed[len(t.managed)-1]), round(median(t.plain)), round(median(t.apart)))
}

// available returns an error unless the pods of a Deployment are available.
func (b *bed) available(_ context.Context, d *appsv1.Deployment) error {
	if d.Status.AvailableReplicas != replicas {
		return fmt.Errorf("%d of %d pods are available", d.Status.AvailableReplicas, replicas)
	}
	return nil
}

// placed returns an error unless the pods of a Deployment are available, and divided 3:1.
// Without Atoll they would be 2:2, one on each node.
func (b *bed) placed(ctx context.Context, d *appsv1.Deployment) error {
	if err := b.available(ctx, d); err != nil {
		return err
	}
	var pods corev1.PodList
	if err := b.client.List(ctx, &pods, client.InNamespace(d.Namespace), client.MatchingLabels(d.Spec.Selector.MatchLabels)); err != nil {
		return err
	}
	groups := map[string]int{}
	for i := range pods.Items {
		groups[strings.SplitN(pods.Items[i].Spec.NodeName, "-", 2)[0]]++
	}
	if groups["hz"] != 3 || groups["bj"] != 1 {
		return fmt.Errorf("the pods are in %v", groups)
	}
	return nil
}

// apart gives the last CPU to atoll-manager and to the senders, and the others to everything
// else, until the test ends: elsewhere senders do not take the CPU time of the control plane.
func (b *bed) apart() {
	b.Helper()
	if len(allowed) < 2 {
		b.Log("the senders share the CPUs of the control plane")
		return
	}
	rest, last := allowed[:len(allowed)-1], allowed[len(allowed)-1:]
	b.senders = last
	processes, err := b.cluster.Processes(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	errs := []error{keepOn(os.Getpid(), rest)}
	b.Cleanup(func() {
		if err := keepOn(os.Getpid(), allowed); err != nil {
			b.Error(err)
		}
	})
	for _, p := range processes {
		cpus := rest
		if p.Name == atoll.Manager {
			cpus = last
		}
		errs = append(errs, keepOn(p.PID, cpus))
	}
	if err := errors.Join(errs...); err != nil {
		b.Fatal(err)
	}
}

// memory reads a value of /proc/<pid>/status of atoll-manager, in MiB.
func (b *bed) memory(field string) int {
	b.Helper()
	processes, err := b.cluster.Processes(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	for _, p := range processes {
		if p.Name != atoll.Manager {
			continue
		}
		raw, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(p.PID), "status"))
		if err != nil {
			b.Fatal(err)
		}
		_, after, found := strings.Cut(string(raw), field+":")
		var kilobytes int
		if _, err := fmt.Sscan(after, &kilobytes); err != nil || !found {
			b.Fatalf("%s: %v", field, err)
		}
		return kilobytes >> 10
	}
	b.Fatal("atoll-manager does not run")
	return 0
}
