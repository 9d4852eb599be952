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

// env is what all tests share.
var env struct {
	cluster *devcluster.Cluster
	atoll   *atoll.Installation
	client  client.WithWatch
	kube    kubernetes.Interface
}

func TestMain(m *testing.M) {
	flag.Parse()
	ctrl.SetLogger(logr.Discard())
	os.Exit(run(m))
}

func run(m *testing.M) (code int) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	cluster, err := devcluster.Start(ctx, devcluster.Options{PodStartDelay: 300 * time.Millisecond, KeepDir: os.Getenv("KEEP") != "", Log: os.Stderr})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if err := cluster.Stop(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}()
	env.cluster = cluster
	env.atoll, err = atoll.Install(ctx, cluster, atoll.Options{
		Log: os.Stderr, ManagerArgs: []string{"--zap-log-level=2", "--evictions-per-second=100"},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if env.client, err = client.NewWithWatch(cluster.AdminConfig(), client.Options{Scheme: manager.Scheme()}); err == nil {
		env.kube, err = kubernetes.NewForConfig(cluster.AdminConfig())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}
