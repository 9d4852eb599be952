package atoll

import (
	"context"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"runtime"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/devcluster/images"
)

// Coordinator is the name of the program in the pods of coordinators.
const Coordinator = "atoll-coordinator"

// The images of coordinators in real nodes: those of the devcluster's own programs.
const (
	coordinatorImage = "devcluster.local/atoll-coordinator:1"
	etcdImage        = "devcluster.local/etcd:1"
	serverImage      = "devcluster.local/kube-apiserver"
)

// WithCoordinators adds to options what turns coordinators on, with the images of LoadCoordinator: the values of the
// chart, and the flags that the chart gives atoll-manager then.
func (o Options) WithCoordinators() Options {
	values := map[string]any{"coordinator": map[string]any{"enabled": true, "images": map[string]any{"etcd": etcdImage, "apiServer": serverImage}}}
	maps.Copy(values, o.Values)
	o.Values = values
	o.ManagerArgs = append(slices.Clone(o.ManagerArgs),
		"--coordinators", "--coordinator-image="+coordinatorImage, "--coordinator-etcd-image="+etcdImage, "--coordinator-apiserver-image="+serverImage)
	return o
}

// LoadCoordinator loads the images of coordinators into real nodes: the devcluster's own etcd and kube-apiserver, and
// atoll-coordinator.
func LoadCoordinator(ctx context.Context, c *devcluster.Cluster, log io.Writer, nodes ...string) error {
	source, err := sourceDir(ctx)
	if err != nil {
		return err
	}
	program, err := build(ctx, source, Coordinator, log)
	if err != nil {
		return err
	}
	named := map[string][]v1.Image{}
	for name, path := range map[string][2]string{
		coordinatorImage: {"/" + Coordinator, program}, etcdImage: {"/usr/local/bin/etcd", c.BinaryPath("etcd")},
		serverImage + ":" + c.KubernetesVersion(): {"/usr/local/bin/kube-apiserver", c.BinaryPath("kube-apiserver")},
	} {
		image, err := images.New(images.Spec{Programs: map[string]string{path[0]: path[1]}, Entrypoint: path[:1], Architecture: runtime.GOARCH, Fast: true})
		if err != nil {
			return err
		}
		named[name] = []v1.Image{image}
	}
	tar := filepath.Join(c.Dir(), "bin", "coordinator.tar")
	if err := images.Save(tar, named); err != nil {
		return err
	}
	fmt.Fprintln(log, "loading the images of coordinators into", nodes)
	return c.LoadImages(ctx, tar, nodes...)
}
