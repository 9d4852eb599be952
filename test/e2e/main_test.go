// Package e2e shows Atoll's behaviour on a real etcd, kube-apiserver,
// kube-controller-manager and kube-scheduler, with nodes that are simulated or
// hollow. Atoll is installed from its chart and runs under its own
// ServiceAccount.
//
// All tests share one cluster, one after the other: each has nodes, NodeGroups
// and a namespace of its own and leaves none behind. What every cluster writes
// is watched from start to end (package invariants), and a run that breaks an
// invariant fails.
package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
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
	atoll   *atoll.Installation
	client  client.WithWatch
	kube    kubernetes.Interface
	watch   *watcher
	// api and extender stand between atoll-manager and the API server, and
	// between the second kube-scheduler and atoll-manager, in the cluster of
	// faults; nil in others.
	api, extender *relay
}

// env is what all tests share that do not ask for one of their own.
var env environment

func TestMain(m *testing.M) {
	flag.Parse()
	ctrl.SetLogger(logr.Discard())
	os.Exit(run(m))
}

func run(m *testing.M) (code int) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	var done func() error
	env, done, err = newEnvironment(ctx, atoll.Options{}, false)
	defer func() {
		if err := done(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if err := faults.end(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}()
	return m.Run()
}

// evictionsPerSecond is atoll-manager's pace in the tests: it bounds nothing.
const evictionsPerSecond = 100

// newEnvironment starts a cluster and installs Atoll. The returned function
// ends both, and is there on errors too. It tells what of the invariants was
// broken in the meantime. relayed puts relays before and behind atoll-manager.
func newEnvironment(ctx context.Context, o atoll.Options, relayed bool) (e environment, done func() error, err error) {
	done = func() error { return nil }
	e.cluster, err = devcluster.Start(ctx, devcluster.Options{
		PodStartDelay: 300 * time.Millisecond, AuditLog: devcluster.AuditMetadata,
		KeepDir: os.Getenv("KEEP") != "", Log: os.Stderr,
	})
	if err != nil {
		return e, done, err
	}
	done = func() error { return e.cluster.Stop(context.Background()) }
	o.Log = os.Stderr
	o.ManagerArgs = append([]string{"--zap-log-level=2", fmt.Sprintf("--evictions-per-second=%d", evictionsPerSecond)}, o.ManagerArgs...)
	if relayed {
		if e.api, err = relayAPI(e.cluster); err != nil {
			return e, done, err
		}
		o.APIServer, o.APIServerCA = e.api.URL, e.api.authority()
	}
	if e.atoll, err = atoll.Install(ctx, e.cluster, o); err != nil {
		return e, done, err
	}
	if relayed {
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
	if e.watch, err = watchOver(e); err != nil {
		return e, done, err
	}
	done = func() error { return errors.Join(e.watch.end(), e.cluster.Stop(context.Background())) }
	return e, done, nil
}
