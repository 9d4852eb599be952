package atoll

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"runtime"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/devcluster/binaries"
	"github.com/atoll-k8s/atoll/devcluster/images"
)

// Coordinator is the name of the program in the pods of coordinators.
const Coordinator = "atoll-coordinator"

// LoadCoordinator loads the images of coordinators into real nodes: the devcluster's own etcd and kube-apiserver, and
// atoll-coordinator. It returns the values of the chart with them, and the flags that the chart gives atoll-manager then,
// for [Options].
func LoadCoordinator(ctx context.Context, c *devcluster.Cluster, log io.Writer, nodes ...string) (values map[string]any, args []string, err error) {
	source, err := sourceDir(ctx)
	if err != nil {
		return nil, nil, err
	}
	program, err := build(ctx, source, Coordinator, log)
	if err != nil {
		return nil, nil, err
	}
	const own, etcd, server = "devcluster.local/atoll-coordinator", "devcluster.local/etcd", "devcluster.local/kube-apiserver"
	named := map[string][]v1.Image{}
	for name, path := range map[string][2]string{
		own + ":1": {"/" + Coordinator, program}, etcd + ":1": {"/usr/local/bin/etcd", c.BinaryPath("etcd")},
		server + ":" + binaries.KubernetesVersion: {"/usr/local/bin/kube-apiserver", c.BinaryPath("kube-apiserver")},
	} {
		image, err := images.New(images.Spec{Programs: map[string]string{path[0]: path[1]}, Entrypoint: path[:1], Architecture: runtime.GOARCH, Fast: true})
		if err != nil {
			return nil, nil, err
		}
		named[name] = []v1.Image{image}
	}
	tar := filepath.Join(c.Dir(), "bin", "coordinator.tar")
	if err := images.Save(tar, named); err != nil {
		return nil, nil, err
	}
	fmt.Fprintln(log, "loading the images of coordinators into", nodes)
	if err := c.LoadImages(ctx, tar, nodes...); err != nil {
		return nil, nil, err
	}
	return map[string]any{"coordinator": map[string]any{"enabled": true, "images": map[string]any{"etcd": etcd + ":1", "apiServer": server}}},
		[]string{"--coordinators", "--coordinator-image=" + own + ":1", "--coordinator-etcd-image=" + etcd + ":1", "--coordinator-apiserver-image=" + server}, nil
}
