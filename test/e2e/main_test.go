// Package e2e shows Atoll's behaviour on a real etcd, kube-apiserver,
// kube-controller-manager and kube-scheduler, with nodes that are simulated or
// hollow. Atoll is installed from its chart and runs under its own
// ServiceAccount.
//
// All tests share one cluster, one after the other: each has nodes, NodeGroups
// and a namespace of its own and leaves none behind.
package e2e

import (
	"context"
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
	env, done, err = newEnvironment(ctx, atoll.Options{})
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
	return m.Run()
}

// newEnvironment starts a cluster and installs Atoll. The returned function
// ends both, and is there on errors too.
func newEnvironment(ctx context.Context, o atoll.Options) (e environment, done func() error, err error) {
	done = func() error { return nil }
	e.cluster, err = devcluster.Start(ctx, devcluster.Options{PodStartDelay: 300 * time.Millisecond, KeepDir: os.Getenv("KEEP") != "", Log: os.Stderr})
	if err != nil {
		return e, done, err
	}
	done = func() error { return e.cluster.Stop(context.Background()) }
	o.Log, o.ManagerArgs = os.Stderr, append([]string{"--zap-log-level=2", "--evictions-per-second=100"}, o.ManagerArgs...)
	if e.atoll, err = atoll.Install(ctx, e.cluster, o); err != nil {
		return e, done, err
	}
	if e.client, err = client.NewWithWatch(e.cluster.AdminConfig(), client.Options{Scheme: manager.Scheme()}); err == nil {
		e.kube, err = kubernetes.NewForConfig(e.cluster.AdminConfig())
	}
	return e, done, err
}
