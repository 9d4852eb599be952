package devcluster

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strconv"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/atoll-k8s/atoll/devcluster/images"
)

// ImageRegistry is the name of the process that [Cluster.ServeImages] starts.
const ImageRegistry = "image-registry"

// LoadImages loads images of a tar file, as [images.Save] and `docker save` write it, into real
// nodes.
func (c *Cluster) LoadImages(ctx context.Context, tar string, nodes ...string) error {
	for _, node := range nodes {
		if _, err := c.ctr(ctx, node, "images", "import", "--local", tar); err != nil {
			return fmt.Errorf("loading %s into node %q: %w", tar, node, err)
		}
	}
	return nil
}

// ServerAddress is the address of the API server. Real nodes reach programs of this machine that
// listen there.
func (c *Cluster) ServerAddress() string { return c.serverAddress() }

// UseRegistry makes real nodes pull images of a registry's host name from the server at url,
// such as "http://10.160.0.1:5000", also if they have others by then.
func (c *Cluster) UseRegistry(host, url string, nodes ...string) error {
	text := fmt.Sprintf("server = %[1]q\n[host.%[1]q]\n  capabilities = [\"pull\", \"resolve\"]\n", url)
	for _, node := range nodes {
		if err := writeConfig(filepath.Join(c.nodeDir(node), "registries", host, "hosts.toml"), []byte(text)); err != nil {
			return err
		}
	}
	return nil
}

// ServeImages starts a registry with the images, by the names that pods have for them, and
// returns its URL for [Cluster.UseRegistry]. The registry is a process of the cluster with the
// name [ImageRegistry]. The hosts in the names do not count.
func (c *Cluster) ServeImages(ctx context.Context, served map[string]v1.Image) (url string, err error) {
	tar := filepath.Join(c.record.Dir, "bin", "served.tar")
	named := map[string][]v1.Image{}
	for name, image := range served {
		named[name] = []v1.Image{image}
	}
	if err := images.Save(tar, named); err != nil {
		return "", err
	}
	port, err := FreePort()
	if err != nil {
		return "", err
	}
	address := net.JoinHostPort(c.serverAddress(), strconv.Itoa(port))
	url = "http://" + address
	return url, c.StartProcess(ctx, ProcessSpec{
		Name: ImageRegistry, Path: c.nodeProgram(), Args: []string{"registry", tar, address}, HealthURL: url + "/v2/",
	})
}
