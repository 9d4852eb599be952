// Package e2e shows Atoll's behaviour on a real etcd, kube-apiserver,
// kube-controller-manager and kube-scheduler, with nodes that are simulated or
// hollow. Atoll is installed from its chart and runs under its own
// ServiceAccount.
//
// Tests share clusters, one after the other: each has nodes, NodeGroups and a
// namespace of its own and leaves none behind. Most run in one that is as the
// chart installs it: in its default form, and with the default pace of
// evictions. What is promised about placing pods is tested in every form, in
// clusters side by side (inEachForm). Faults have a cluster of their own, and so
// has what needs two replicas. What every cluster writes is watched from start
// to end (package invariants), and a run that breaks an invariant fails.
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
	"k8s.io/client-go/kubernetes"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
	"github.com/atoll-k8s/atoll/internal/manager"
)

// environment is a cluster with Atoll in it.
type environment struct {
	cluster *devcluster.Cluster
	// form is the one in which Atoll is installed.
	form   atoll.Form
	atoll  *atoll.Installation
	client client.WithWatch
	kube   kubernetes.Interface
	watch  *watcher
	// pace is how many pods atoll-manager may evict in a second.
	pace float64
	// api and extender stand between atoll-manager and the API server, and
	// between the second kube-scheduler and atoll-manager, and webhooks between
	// the API server and atoll-manager, in the cluster of faults; nil in others.
	api, extender *relay
	webhooks      *pipe
}

func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", strconv.Itoa(len(forms))); err != nil { // unless the command line says otherwise
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

// forms are those in which what Atoll promises about placing pods is tested, and
// how a test gets its corner of a cluster in each.
var forms = map[atoll.Form]func(*testing.T) *fixture{
	atoll.Pinned:   newFixture, // the chart's default
	atoll.Isolated: isolated.fixture,
	atoll.Plain:    plain.fixture,
}

// inEachForm runs a test in each form, side by side: mostly it waits.
func inEachForm(t *testing.T, test func(t *testing.T, f *fixture)) {
	t.Helper()
	for form, fixture := range forms {
		t.Run(string(form), func(t *testing.T) {
			t.Parallel()
			test(t, fixture(t))
		})
	}
}

// lateCluster is a cluster that is there once a test has asked for it, for all
// tests that do. They stand together in files, so that it can end with the last
// of them: a cluster that nobody uses costs a tenth of two cores.
type lateCluster struct {
	options atoll.Options
	relayed bool
	// users is how many tests there are. With another number the cluster ends
	// later, or is made once more; with 0 it ends with the last test of all.
	users int

	mu     sync.Mutex // guards what is below
	env    environment
	done   func() error
	err    error
	used   int
	broken error // what was found broken when it ended
}

func (c *lateCluster) start() (environment, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		c.env, c.done, c.err = newEnvironment(context.Background(), c.options, c.relayed)
	}
	return c.env, c.err
}

// end ends the cluster, if there is one, and tells what was broken in it.
func (c *lateCluster) end() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endLocked()
	return c.broken
}

func (c *lateCluster) endLocked() {
	if c.done != nil {
		c.broken = errors.Join(c.broken, c.done())
		c.done = nil
	}
}

// fixture is a fixture in the cluster.
func (c *lateCluster) fixture(t *testing.T) *fixture {
	t.Helper()
	e, err := c.start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // after what the fixture cleans up
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.used++; c.used == c.users {
			c.endLocked()
		}
	})
	return newFixtureIn(t, e)
}

// common is as the chart installs it, and what tests share that do not ask for
// another.
var common lateCluster

// isolated is a cluster in which a second kube-scheduler asks the extender, and
// plain one in which the only one does: there a manager that is started again
// leads within seconds.
var (
	isolated = lateCluster{options: atoll.Options{Form: atoll.Isolated}}
	plain    = lateCluster{options: atoll.Options{Form: atoll.Plain, ManagerArgs: []string{"--leader-elect-lease-duration=4s"}}}
)

// pairs are clusters with two replicas of atoll-manager.
var pairs = map[atoll.Form]*lateCluster{
	atoll.Pinned:   {options: atoll.Options{Form: atoll.Pinned, Replicas: 2}, users: 2},
	atoll.Isolated: {options: atoll.Options{Form: atoll.Isolated, Replicas: 2}, users: 2},
	atoll.Plain:    {options: atoll.Options{Form: atoll.Plain, Replicas: 2}, users: 1},
}

// paceOf is how many pods atoll-manager may evict in a second by its arguments.
func paceOf(args []string) float64 {
	pace := 1.0 // its default
	for _, arg := range args {
		if value, ok := strings.CutPrefix(arg, "--evictions-per-second="); ok {
			pace, _ = strconv.ParseFloat(value, 64)
		}
	}
	return pace
}

// argsFor are what a component is told beside what every cluster's is. Where there are
// PodGroups, the API server lets nobody block the deletion of an owner who may not
// update its finalizers.
func argsFor(o atoll.Options) map[string][]string {
	if !o.Gangs {
		return nil
	}
	return map[string][]string{devcluster.APIServer: {"--enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement"}}
}

// newEnvironment starts a cluster and installs Atoll. The returned function
// ends both, and is there on errors too. It tells what of the invariants was
// broken in the meantime. relayed puts relays before and behind atoll-manager.
func newEnvironment(ctx context.Context, o atoll.Options, relayed bool) (e environment, done func() error, err error) {
	done = func() error { return nil }
	e.cluster, err = devcluster.Start(ctx, devcluster.Options{
		PodStartDelay: 300 * time.Millisecond, AuditLog: devcluster.AuditMetadata,
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
	if e.watch, err = watchOver(e); err != nil {
		return e, done, err
	}
	done = func() error {
		return errors.Join(e.namespacesGo(context.Background()), e.watch.end(), e.cluster.Stop(context.Background()))
	}
	return e, done, nil
}
