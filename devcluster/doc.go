// Package devcluster runs real Kubernetes clusters on one machine: etcd, the
// API server, the controller manager and the scheduler as processes on
// loopback, with simulated nodes in any number, hollow kubelets and real
// nodes.
//
// It serves tests and, through the command of the same name, people:
//
//	cluster, err := devcluster.Start(ctx, devcluster.Options{Log: os.Stderr})
//	defer cluster.Stop(context.Background())
//	err = cluster.AddNodes(ctx, devcluster.NumberedNodes("node-", 1000)...)
//	client, err := kubernetes.NewForConfig(cluster.AdminConfig())
//
// Every process can be killed, paused, resumed and restarted by its name. The next start
// finds and removes everything that a killed run left behind.
//
// The package needs the Go toolchain: the first start builds the programs (see package
// binaries). Only real nodes need more, namely Linux, root, TUN devices and a C compiler: see
// [RealNodesMissing]. The package must not depend on Atoll: programs are installed into a cluster
// through the Kubernetes API or [Cluster.StartProcess].
package devcluster
