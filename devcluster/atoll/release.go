package atoll

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/devcluster/images"
)

// releaseName is the name of the release in Helm.
const releaseName = "atoll"

// Release is Atoll as users install it: a release of Helm, whose pods run on the real nodes of
// a cluster.
type Release struct {
	// Log receives progress. Unset means none is shown.
	Log io.Writer
	// Within bounds each change of the release. Unset means three minutes.
	Within time.Duration

	cluster *devcluster.Cluster
	config  *action.Configuration
	chart   *chart.Chart
	values  map[string]any
}

// NewRelease prepares a release of the chart in a source directory; "" is that of this module's
// Atoll. It builds the image of atoll-manager from the same source and loads it into the real
// nodes.
func NewRelease(ctx context.Context, c *devcluster.Cluster, source string, log io.Writer, nodes ...string) (*Release, error) {
	if log == nil {
		log = io.Discard
	}
	if source == "" {
		var err error
		if source, err = sourceDir(ctx); err != nil {
			return nil, err
		}
	}
	r := &Release{Log: log, Within: 3 * time.Minute, cluster: c}
	var err error
	if r.chart, err = loader.LoadDir(filepath.Join(source, "charts", "atoll")); err != nil {
		return nil, fmt.Errorf("loading the chart: %w", err)
	}
	binary, err := buildManager(ctx, source, log)
	if err != nil {
		return nil, err
	}
	beside := map[string]string{}
	for _, name := range []string{Hub, Coordinator} {
		if _, err := os.Stat(filepath.Join(source, "cmd", name)); errors.Is(err, fs.ErrNotExist) {
			continue // an earlier commit
		}
		if beside[name], err = build(ctx, source, name, log); err != nil {
			return nil, err
		}
	}
	spec := images.Manager{
		Program: binary, Beside: beside, License: filepath.Join(source, "LICENSE"), Architecture: runtime.GOARCH, Version: r.chart.AppVersion(),
	}.Spec()
	spec.Fast = true
	image, err := images.New(spec)
	if err != nil {
		return nil, err
	}
	scheduler, err := images.New(images.Spec{
		Programs: map[string]string{"/kube-scheduler": c.BinaryPath("kube-scheduler")}, Entrypoint: []string{"/kube-scheduler"}, Architecture: runtime.GOARCH, Fast: true,
	})
	if err != nil {
		return nil, err
	}
	digest, err := image.Digest()
	if err != nil {
		return nil, fmt.Errorf("reading the digest of the image: %w", err)
	}
	tag := digest.Hex[:12]
	tar := filepath.Join(c.Dir(), "bin", "atoll-manager-"+tag+".tar")
	if err := images.Save(tar, map[string][]v1.Image{
		"devcluster.local/atoll-manager:" + tag:                   {image},
		"registry.k8s.io/kube-scheduler:" + c.KubernetesVersion(): {scheduler}, // as the chart names it
	}); err != nil {
		return nil, err
	}
	fmt.Fprintln(log, "loading the image of atoll-manager into", nodes)
	if err := c.LoadImages(ctx, tar, nodes...); err != nil {
		return nil, err
	}
	r.values = map[string]any{
		"image":     map[string]any{"registry": "devcluster.local", "repository": "atoll-manager", "tag": tag, "pullPolicy": "Never"},
		"scheduler": map[string]any{"image": map[string]any{"tag": c.KubernetesVersion()}},
	}
	flags := genericclioptions.NewConfigFlags(false)
	kubeconfig, namespace := c.KubeconfigPath(), Namespace
	flags.KubeConfig, flags.Namespace = &kubeconfig, &namespace
	r.config = &action.Configuration{}
	if err := r.config.Init(flags, Namespace, "secret", func(string, ...any) {}); err != nil {
		return nil, fmt.Errorf("preparing Helm: %w", err)
	}
	return r, nil
}

// Install installs the release, and returns when its pods are ready.
func (r *Release) Install(ctx context.Context, values map[string]any) error {
	install := action.NewInstall(r.config)
	install.ReleaseName, install.Namespace, install.CreateNamespace = releaseName, Namespace, true
	install.Wait, install.Timeout = true, r.Within
	if _, err := install.RunWithContext(ctx, r.chart, r.with(values)); err != nil {
		return fmt.Errorf("installing the chart: %w", err)
	}
	return nil
}

// Upgrade changes the release to this chart and these values.
func (r *Release) Upgrade(ctx context.Context, values map[string]any) error {
	upgrade := action.NewUpgrade(r.config)
	upgrade.Namespace, upgrade.Wait, upgrade.Timeout = Namespace, true, r.Within
	if _, err := upgrade.RunWithContext(ctx, releaseName, r.chart, r.with(values)); err != nil {
		return fmt.Errorf("upgrading the release: %w", err)
	}
	return nil
}

// Rollback changes the release to the state before the last change.
func (r *Release) Rollback() error {
	rollback := action.NewRollback(r.config)
	rollback.Wait, rollback.Timeout = true, r.Within
	if err := rollback.Run(releaseName); err != nil {
		return fmt.Errorf("rolling the release back: %w", err)
	}
	return nil
}

// Uninstall removes the release, and returns when its objects are gone.
func (r *Release) Uninstall() error {
	uninstall := action.NewUninstall(r.config)
	uninstall.Wait, uninstall.Timeout = true, r.Within
	if _, err := uninstall.Run(releaseName); err != nil {
		return fmt.Errorf("uninstalling the release: %w", err)
	}
	return nil
}

// with returns values with those of the images.
func (r *Release) with(values map[string]any) map[string]any {
	return chartutil.CoalesceTables(maps.Clone(values), r.values) // values have priority, for each key
}
