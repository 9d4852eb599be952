// Command atoll-coordinator runs in the pod of a pool's coordinator: prepare before the other containers
// start, write beside them. See docs/pools.md.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/atoll-k8s/atoll/internal/coordinator"
	"github.com/atoll-k8s/atoll/internal/coordinator/prepare"
	"github.com/atoll-k8s/atoll/internal/governance"
	"github.com/atoll-k8s/atoll/internal/machinery/logs"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := run(ctx, os.Args[1:])
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "atoll-coordinator:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	verb := ""
	if len(args) > 0 {
		verb, args = args[0], args[1:]
	}
	flags := flag.NewFlagSet("atoll-coordinator "+verb, flag.ExitOnError)
	switch verb {
	case "prepare":
		var o prepare.Options
		flags.StringVar(&o.Directory, "directory", "/run/atoll", "where the files are written; it should be in memory")
		flags.StringVar(&o.PoolCA, "pool-ca", "/etc/atoll/pool/ca.crt", "the file with the CA of the pool")
		flags.StringVar(&o.Server, "server", "https://127.0.0.1:10270", "the URL of the API server in this pod")
		flags.StringVar(&o.ServerName, "server-name", governance.ServerName, "a name that the API server's certificate has")
		_ = flags.Parse(args) // it exits
		return prepare.Write(o, time.Now())
	case "write":
		var logging zap.Options
		logging.BindFlags(flags)
		var o coordinator.WriteOptions
		flags.StringVar(&o.Listen, "listen", ":10271", "the address and port at which hubs upload")
		flags.StringVar(&o.NodeName, "node-name", os.Getenv("NODE_NAME"), "the node of this pod, whose hub leads before others; $NODE_NAME by default")
		flags.StringVar(&o.Etcd, "etcd", "unix:///run/atoll/etcd.sock:0", "the endpoint of etcd")
		flags.StringVar(&o.CertFile, "tls-cert-file", "/etc/atoll/server/tls.crt", "the file with the serving certificate")
		flags.StringVar(&o.KeyFile, "tls-private-key-file", "/etc/atoll/server/tls.key", "the file with its key")
		flags.StringVar(&o.ClientCAFile, "client-ca-file", "/etc/atoll/nodes/ca.crt", "the file with the CAs of nodes' certificates")
		flags.StringVar(&o.NodesFile, "nodes-file", "/etc/atoll/nodes/names", "the file with the names of the pool's nodes, one a line")
		flags.StringVar(&o.UploadFile, "upload-file", "/etc/atoll/upload", "the file with the kinds in spec.upload of the YurtCoordinator, one a line; none if it does not exist")
		flags.StringVar(&o.Kubeconfig, "kubeconfig", "/run/atoll/kubeconfig", "the kubeconfig for the API server in this pod, as prepare has written it")
		flags.StringVar(&o.UsageListen, "usage-listen", "127.0.0.1:10272", "the address and port, on loopback, at which the API server in this pod asks for metrics.k8s.io")
		flags.StringVar(&o.FrontProxyCAFile, "front-proxy-ca-file", "/run/atoll/front-proxy-ca.crt", "the file with the CA of the certificate that it shows there, as prepare has written it")
		flags.StringVar(&o.HubCertFile, "hub-client-certificate", "/etc/atoll/apiserver.crt", "the file with the certificate of the API server for hubs")
		flags.StringVar(&o.HubKeyFile, "hub-client-key", "/etc/atoll/apiserver.key", "the file with its key")
		flags.StringVar(&o.PoolCAFile, "pool-ca-file", "/etc/atoll/ca.crt", "the file with the CA of the pool")
		_ = flags.Parse(args) // it exits
		o.Log = logs.Bound(zap.New(zap.UseFlagOptions(&logging)))
		logs.Redirect(o.Log)
		return coordinator.Write(ctx, o)
	default:
		return fmt.Errorf("there is no verb %q; prepare makes the files that the pod's containers share, and write takes uploads", verb)
	}
}
