// Package atoll installs Atoll in a devcluster as its users do: from the chart,
// with the ServiceAccount, the RBAC and the webhook configurations that the
// chart renders. atoll-manager runs as a process beside the cluster, with the
// token of its ServiceAccount and never as admin.
package atoll

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/atoll-k8s/atoll/devcluster"
)

const (
	// Namespace is where Atoll is installed.
	Namespace = "atoll-system"
	// Manager is the name of the manager's process, for the cluster's verbs.
	Manager = "atoll-manager"

	extenderSecret  = "atoll-extender-client"
	schedulerConfig = "atoll-kube-scheduler"
)

// Options say how to install. The zero value is useful.
type Options struct {
	// ManagerArgs are further arguments of atoll-manager.
	ManagerArgs []string
	// Values are further values of the chart.
	Values map[string]any
	// KeepScheduler leaves the cluster's kube-scheduler without the extender.
	KeepScheduler bool
	// Log receives progress. Unset means none is shown.
	Log io.Writer
}

// Installation is Atoll in a cluster.
type Installation struct {
	// SchedulerConfig is the KubeSchedulerConfiguration that the chart renders.
	SchedulerConfig []byte
	// ExtenderURL is where atoll-manager serves kube-scheduler, and TLSDir
	// holds ca.crt, tls.crt and tls.key for it.
	ExtenderURL, TLSDir string
	// HealthURL is the base of /healthz and /readyz.
	HealthURL string
	// MetricsURL is /metrics, over HTTPS to holders of a token that may read it.
	MetricsURL string
}

// Install builds atoll-manager, installs the chart, starts the manager and
// gives the cluster's kube-scheduler the extender. It returns when all of them
// are ready.
func Install(ctx context.Context, c *devcluster.Cluster, o Options) (*Installation, error) {
	if o.Log == nil {
		o.Log = io.Discard
	}
	source, err := sourceDir(ctx)
	if err != nil {
		return nil, err
	}
	binary, err := buildManager(ctx, source, o.Log)
	if err != nil {
		return nil, err
	}
	ports := make([]int, 4)
	for i := range ports {
		if ports[i], err = devcluster.FreePort(); err != nil {
			return nil, err
		}
	}
	in := &Installation{
		ExtenderURL: fmt.Sprintf("https://localhost:%d", ports[1]),
		HealthURL:   fmt.Sprintf("http://127.0.0.1:%d", ports[2]),
		MetricsURL:  fmt.Sprintf("https://localhost:%d/metrics", ports[3]),
		TLSDir:      filepath.Join(c.Dir(), "extender"),
	}
	fmt.Fprintln(o.Log, "installing the chart")
	objects, err := render(filepath.Join(source, "charts", "atoll"), values(o, in, fmt.Sprintf("https://localhost:%d", ports[0])))
	if err != nil {
		return nil, err
	}
	if in.SchedulerConfig, err = schedulerConfigOf(objects); err != nil {
		return nil, err
	}
	if err := apply(ctx, c.AdminConfig(), objects); err != nil {
		return nil, err
	}
	if err := startManager(ctx, c, o, in, binary, ports); err != nil {
		return nil, err
	}
	if o.KeepScheduler {
		return in, in.writeClientFiles(ctx, c)
	}
	fmt.Fprintln(o.Log, "giving kube-scheduler the extender")
	if err := in.writeClientFiles(ctx, c); err != nil {
		return nil, err
	}
	if err := c.RestartScheduler(ctx, in.SchedulerConfig); err != nil {
		return nil, fmt.Errorf("restarting kube-scheduler with the extender: %w", err)
	}
	return in, nil
}

func values(o Options, in *Installation, webhookURL string) map[string]any {
	v := map[string]any{
		"manager":   map[string]any{"deploy": false},
		"endpoints": map[string]any{"webhook": webhookURL, "extender": in.ExtenderURL},
		"scheduler": map[string]any{"tlsDir": in.TLSDir, "kubeconfig": ""},
	}
	for key, value := range o.Values {
		v[key] = value
	}
	return v
}

func startManager(ctx context.Context, c *devcluster.Cluster, o Options, in *Installation, binary string, ports []int) error {
	fmt.Fprintln(o.Log, "starting atoll-manager under its ServiceAccount")
	kubeconfig, err := c.ServiceAccountKubeconfig(ctx, Namespace, Manager)
	if err != nil {
		return err
	}
	err = c.StartProcess(ctx, devcluster.ProcessSpec{
		Name: Manager, Path: binary,
		Env: []string{"KUBECONFIG=" + kubeconfig, "POD_NAMESPACE=" + Namespace},
		Args: append([]string{
			fmt.Sprintf("--webhook-address=127.0.0.1:%d", ports[0]),
			fmt.Sprintf("--extender-address=127.0.0.1:%d", ports[1]),
			fmt.Sprintf("--health-address=127.0.0.1:%d", ports[2]),
			fmt.Sprintf("--metrics-address=127.0.0.1:%d", ports[3]), "--names=localhost",
		}, o.ManagerArgs...),
		HealthURL: in.HealthURL + "/readyz",
	})
	if err != nil {
		return fmt.Errorf("starting atoll-manager (its log is %s): %w", c.LogPath(Manager), err)
	}
	return nil
}

// writeClientFiles waits for the manager's certificates for kube-scheduler and
// writes them to TLSDir.
func (in *Installation) writeClientFiles(ctx context.Context, c *devcluster.Cluster) error {
	client, err := kubernetes.NewForConfig(c.AdminConfig())
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	var secret *corev1.Secret
	err = wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
		secret, err = client.CoreV1().Secrets(Namespace).Get(ctx, extenderSecret, metav1.GetOptions{})
		return err == nil, nil
	})
	if err != nil {
		return fmt.Errorf("waiting for Secret %s/%s: %w", Namespace, extenderSecret, err)
	}
	if err := os.MkdirAll(in.TLSDir, 0o700); err != nil {
		return fmt.Errorf("writing kube-scheduler's certificates: %w", err)
	}
	var errs []error
	for _, name := range []string{"ca.crt", corev1.TLSCertKey, corev1.TLSPrivateKeyKey} {
		errs = append(errs, os.WriteFile(filepath.Join(in.TLSDir, name), secret.Data[name], 0o600))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("writing kube-scheduler's certificates: %w", err)
	}
	return nil
}
