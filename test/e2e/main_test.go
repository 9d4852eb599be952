// Package e2e shows Atoll's behaviour on a real etcd, kube-apiserver,
// kube-controller-manager and kube-scheduler, with nodes that are simulated or
// hollow. Atoll is installed from its chart and runs under its own
// ServiceAccount.
//
// Tests share clusters, one after the other, or in parallel if they wait until nodes are away: each
// has nodes, NodeGroups and a namespace of its own and removes them at its end. Most run in a cluster with the chart's default
// installation: in the default form, and with the default rate of evictions. Promises
// about placing pods are tested in parallel clusters, in every form (inEachForm), or at
// the creation of pods and at kube-scheduler's calls (inBothWays). Tests of faults, and
// tests that need two replicas, have clusters of their own. Package invariants watches all
// writes of every cluster from start to end, and a run that breaks an invariant fails.
package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
	"github.com/atoll-k8s/atoll/internal/manager"
)

// environment is a cluster with Atoll in it.
type environment struct {
	cluster *devcluster.Cluster
	// form is the form in which Atoll is installed.
	form   atoll.Form
	atoll  *atoll.Installation
	client client.WithWatch
	kube   kubernetes.Interface
	watch  *watcher
	// pace is the number of pods that atoll-manager may evict in a second.
	pace float64
	// In the cluster of faults, api is the relay between atoll-manager and the API
	// server, extender the one between the second kube-scheduler and atoll-manager, and
	// webhooks the one between the API server and atoll-manager. In other clusters they
	// are nil.
	api, extender *relay
	webhooks      *pipe
}

func TestMain(m *testing.M) {
	// Tests that run in parallel wait most of the time. The command line may set another value.
	if err := flag.Set("test.parallel", strconv.Itoa(5*len(forms))); err != nil {
		panic(err)
	}
	flag.Parse()
	ctrl.SetLogger(logr.Discard())
	os.Exit(run(m))
}

func run(m *testing.M) (code int) {
	code = m.Run()
	clusters := []*lateCluster{&common, &isolated, &plain, &faults, &trio, &ganged}
	for _, pair := range pairs {
		clusters = append(clusters, pair)
	}
	for _, cluster := range clusters {
		if err := cluster.end(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	return code
}

// forms are the forms in which pods are placed, each with the function that returns a
// fixture in a cluster of the form.
var forms = map[atoll.Form]func(*testing.T) *fixture{
	atoll.Pinned:   newFixture, // the chart's default
	atoll.Isolated: isolated.fixture,
	atoll.Plain:    plain.fixture,
}

// inEachForm runs a test in all forms in parallel, because most of the time it waits.
func inEachForm(t *testing.T, test func(t *testing.T, f *fixture)) {
	t.Helper()
	inForms(t, test, atoll.Pinned, atoll.Isolated, atoll.Plain)
}

// inBothWays runs a test where pods get their group when they are created, and where they
// get it from kube-scheduler's calls. Isolated and Plain are the same to atoll-manager then.
func inBothWays(t *testing.T, test func(t *testing.T, f *fixture)) {
	t.Helper()
	inForms(t, test, atoll.Pinned, atoll.Plain)
}

func inForms(t *testing.T, test func(t *testing.T, f *fixture), in ...atoll.Form) {
	t.Helper()
	for _, form := range in {
		t.Run(string(form), func(t *testing.T) {
			t.Parallel()
			test(t, forms[form](t))
		})
	}
}

// often returns how many times a test repeats what goes wrong only sometimes: 20 in the
// form that is the chart's default, and 5 in another; 2 in make test.
func (f *fixture) often() int {
	switch {
	case testing.Short():
		return 2
	case f.form == atoll.Default:
		return 20
	}
	return 5
}

// lateCluster is a cluster that starts when a test first needs it, for all tests that need
// it, and ends after the last test.
type lateCluster struct {
	options atoll.Options
	relayed bool

	mu   sync.Mutex // guards the fields below
	env  environment
	done func() error
	err  error
}

func (c *lateCluster) start() (environment, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		c.env, c.done, c.err = newEnvironment(context.Background(), c.options, c.relayed)
	}
	return c.env, c.err
}

// end ends the cluster, if there is one, and returns the violations of invariants in it.
func (c *lateCluster) end() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		return nil
	}
	return c.done()
}

// fixture returns a fixture in the cluster.
func (c *lateCluster) fixture(t *testing.T) *fixture {
	t.Helper()
	e, err := c.start()
	if err != nil {
		t.Fatal(err)
	}
	return newFixtureIn(t, e)
}

// common is the cluster with the chart's default installation, for tests that need no
// other.
var common lateCluster

// isolated is a cluster in which a second kube-scheduler calls the extender, and plain
// one in which the only kube-scheduler does. In both a restarted manager leads within
// seconds.
var (
	isolated = lateCluster{options: atoll.Options{Form: atoll.Isolated, ManagerArgs: []string{"--leader-elect-lease-duration=8s"}}}
	plain    = lateCluster{options: atoll.Options{Form: atoll.Plain, ManagerArgs: []string{"--leader-elect-lease-duration=4s"}}}
)

// pairs are clusters with two replicas of atoll-manager.
var pairs = map[atoll.Form]*lateCluster{
	atoll.Pinned:   {options: atoll.Options{Form: atoll.Pinned, Replicas: 2}},
	atoll.Isolated: {options: atoll.Options{Form: atoll.Isolated, Replicas: 2}},
	atoll.Plain:    {options: atoll.Options{Form: atoll.Plain, Replicas: 2}},
}

// paceOf returns the number of pods that atoll-manager may evict in a second, from its
// arguments.
func paceOf(args []string) float64 {
	pace := 1.0 // its default
	for _, arg := range args {
		if value, ok := strings.CutPrefix(arg, "--evictions-per-second="); ok {
			pace, _ = strconv.ParseFloat(value, 64)
		}
	}
	return pace
}

// argsFor returns the additional arguments of a component. In a cluster with PodGroups,
// the API server refuses owner references with blockOwnerDeletion from clients that may
// not update the owner's finalizers.
func argsFor(o atoll.Options) map[string][]string {
	if !o.Gangs {
		return nil
	}
	return map[string][]string{devcluster.APIServer: {"--enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement"}}
}

// newEnvironment starts a cluster and installs Atoll. The returned function ends both,
// and is not nil even with an error. It returns the violations of invariants. relayed
// adds relays before and behind atoll-manager.
func newEnvironment(ctx context.Context, o atoll.Options, relayed bool) (e environment, done func() error, err error) {
	done = func() error { return nil }
	e.cluster, err = devcluster.Start(ctx, devcluster.Options{
		LowIdle: true, PodStartDelay: 300 * time.Millisecond, AuditLog: devcluster.AuditMetadata,
		KeepDir: os.Getenv("KEEP") != "", Log: os.Stderr, ComponentArgs: argsFor(o),
	})
	if err != nil {
		return e, done, err
	}
	done = func() error { return e.cluster.Stop(context.Background()) }
	if e.form = o.Form; e.form == "" {
		e.form = atoll.Default
	}
	o.Log = os.Stderr
	o.ManagerArgs = append([]string{"--zap-log-level=2"}, o.ManagerArgs...)
	e.pace = paceOf(o.ManagerArgs)
	if relayed {
		if e.api, err = relayAPI(e.cluster); err != nil {
			return e, done, err
		}
		o.APIServer, o.APIServerCA = e.api.URL, e.api.authority()
	}
	if e.atoll, err = atoll.Install(ctx, e.cluster, o); err != nil {
		return e, done, err
	}
	if relayed && e.form == atoll.Isolated {
		if e.extender, err = relayExtender(ctx, e); err != nil {
			return e, done, err
		}
	}
	if e.client, err = client.NewWithWatch(e.cluster.AdminConfig(), client.Options{Scheme: manager.Scheme()}); err != nil {
		return e, done, err
	}
	if e.kube, err = kubernetes.NewForConfig(e.cluster.AdminConfig()); err != nil {
		return e, done, err
	}
	if relayed {
		if e.webhooks, err = relayWebhooks(ctx, e); err != nil {
			return e, done, err
		}
	}
	if testing.Short() {
		if err := waitForWebhooks(ctx, e); err != nil {
			return e, done, err
		}
	}
	if e.watch, err = watchOver(e); err != nil {
		return e, done, err
	}
	done = func() error {
		return errors.Join(e.namespacesGo(context.Background()), e.watch.end(), e.cluster.Stop(context.Background()))
	}
	return e, done, nil
}

// waitForWebhooks makes the API server wait for the pod webhook for 20 s, not for 2 s. The
// webhook fails open, so a pod that is created on a machine that is busy for 2 s would go
// anywhere, and be moved afterwards.
func waitForWebhooks(ctx context.Context, e environment) error {
	configurations := e.kube.AdmissionregistrationV1().MutatingWebhookConfigurations()
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		config, err := configurations.Get(ctx, "atoll-pods", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for i := range config.Webhooks {
			config.Webhooks[i].TimeoutSeconds = new(int32(20))
		}
		_, err = configurations.Update(ctx, config, metav1.UpdateOptions{})
		return err
	})
}
