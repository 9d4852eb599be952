package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
	"github.com/atoll-k8s/atoll/devcluster/images"
)

// maxRealNodes bounds -real-nodes: a node takes about 120 MB of memory, and its pods.
const maxRealNodes = 20

// usageOfReal is what can be done with real nodes only.
const usageOfReal = `
  kubectl logs deployment/nginx                   # and exec, attach, cp, port-forward
  (cd devcluster && go build -o ../bin/ ./cmd/devcluster)
  alias devcluster="$PWD/bin/devcluster --name playground"
  devcluster cut hangzhou-0 cloud                 # docs/real-nodes.md has more
  devcluster restore hangzhou-0 cloud
`

// publicImages are those that every node can pull, by the names in the examples. Each has a second
// tag for a rollout.
var publicImages = []string{"nginx:1.27", "nginx:1.28", "store:1", "store:2"}

// siteImages are those in the registry of each site. Only its nodes can pull them.
var siteImages = []string{"nginx:1.27", "nginx:1.28"}

func registryOf(site string) string { return site + ".registry.io" }

func nodesText(real int) string {
	switch real {
	case 0:
		return "simulated nodes"
	case 1:
		return "1 real node"
	default:
		return fmt.Sprintf("%d real nodes", real)
	}
}

// refuseReal returns an error if the playground cannot have real nodes.
func refuseReal(r request) error {
	if r.form == atoll.Plain {
		return errors.New("-form=Plain needs simulated nodes: kube-scheduler runs outside of the real ones, and cannot reach the Service of the extender there; choose -form=Pinned or -form=Isolated, or leave out -real-nodes")
	}
	if err := devcluster.RealNodesMissing(); err != nil {
		return fmt.Errorf("-real-nodes=%d: %w; without the flag the nodes are simulated", r.real, err)
	}
	return nil
}

func countReal(ctx context.Context, cluster *devcluster.Cluster) (n int, err error) {
	processes, err := cluster.Processes(ctx)
	for _, p := range processes {
		if p.Kind == "real-node" {
			n++
		}
	}
	return n, err
}

// realSpecs divides n nodes over the sites in turn, hangzhou first.
func realSpecs(n int) (specs []devcluster.RealNodeSpec, bySite map[string][]string) {
	bySite = map[string][]string{}
	for i := range n {
		site := sites[i%len(sites)].name
		index := i / len(sites)
		node := fmt.Sprintf("%s-%d", site, index)
		specs = append(specs, devcluster.RealNodeSpec{NodeSpec: devcluster.NodeSpec{Name: node, Labels: labels(site, index)}, Pool: site})
		bySite[site] = append(bySite[site], node)
	}
	return specs, bySite
}

// furnishReal adds real nodes and a registry that they pull from, and installs Atoll by Helm, in
// pods.
func furnishReal(ctx context.Context, cluster *devcluster.Cluster, r request) error {
	specs, bySite := realSpecs(r.real)
	fmt.Fprintln(os.Stderr, "adding", nodesText(r.real))
	if err := cluster.AddRealNodes(ctx, specs...); err != nil {
		return err
	}
	if err := serveImages(ctx, cluster, bySite); err != nil {
		return err
	}
	var nodes []string
	for _, spec := range specs {
		nodes = append(nodes, spec.Name)
	}
	release, err := atoll.NewRelease(ctx, cluster, "", os.Stderr, nodes...)
	if err != nil {
		return err
	}
	release.Within = within
	fmt.Fprintln(os.Stderr, "installing the chart by Helm, and waiting for its pods")
	return release.Install(ctx, map[string]any{
		"gangs":     map[string]any{"enabled": true},
		"scheduler": map[string]any{"mode": string(r.form)},
	})
}

// serveImages makes the images of the examples available without the internet. All are the
// smallest one of the devcluster, which answers HTTP with the name of its pod.
func serveImages(ctx context.Context, cluster *devcluster.Cluster, bySite map[string][]string) error {
	served := map[string]v1.Image{}
	for _, name := range publicImages {
		image, err := exampleImage(cluster, name)
		if err != nil {
			return err
		}
		served[name] = image
	}
	for _, name := range siteImages {
		image, err := exampleImage(cluster, "site/"+name)
		if err != nil {
			return err
		}
		for site := range bySite {
			served[registryOf(site)+"/"+name] = image
		}
	}
	url, err := cluster.ServeImages(ctx, served)
	if err != nil {
		return err
	}
	for site, nodes := range bySite {
		for _, host := range []string{"docker.io", registryOf(site)} {
			if err := cluster.UseRegistry(host, url, nodes...); err != nil {
				return err
			}
		}
	}
	return nil
}

// exampleImage returns an image that differs from those with another label: a kubelet reports an
// image by any of the names that it has on the node.
func exampleImage(cluster *devcluster.Cluster, label string) (v1.Image, error) {
	program := filepath.Join(cluster.Dir(), "bin", "devcluster-pause")
	return images.New(images.Spec{
		Programs:   map[string]string{"/pause": program, "/tar": program}, // kubectl cp needs tar
		Entrypoint: []string{"/pause", "serve", ":80"}, Architecture: runtime.GOARCH, Fast: true, Labels: map[string]string{"example": label},
	})
}
