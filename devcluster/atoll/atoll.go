// Package atoll installs Atoll in a devcluster as its users do: from the chart, with the
// ServiceAccount, the RBAC and the webhook configurations that the chart renders.
// atoll-manager runs as a process outside of the cluster, with the token of its
// ServiceAccount and never as administrator.
package atoll

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"helm.sh/helm/v3/pkg/chartutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/atoll-k8s/atoll/devcluster"
)

const (
	// Namespace is the namespace in which Atoll is installed.
	Namespace = "atoll-system"
	// Manager is the name of the manager's process, for the methods of the cluster.
	Manager = "atoll-manager"
	// Scheduler is the name of the second kube-scheduler's process and of its
	// ServiceAccount, Lease and profile, if there is one.
	Scheduler = "atoll-scheduler"

	// MemoryLimit is the limit, in bytes, that the chart sets for atoll-manager. Nothing
	// enforces it here.
	MemoryLimit = 512 << 20

	extenderSecret = "atoll-extender-client"
	// plainConfig is the ConfigMap for the cluster's own kube-scheduler.
	plainConfig = "atoll-kube-scheduler"
)

// Form is the chart's value scheduler.mode: who chooses the NodeGroup of a pod, and when.
type Form string

// The forms of the chart.
const (
	Pinned   Form = "Pinned"
	Isolated Form = "Isolated"
	Plain    Form = "Plain"
)

// Default is the chart's default form.
const Default = Pinned

// ParseForm reads the name of a form, in any case.
func ParseForm(name string) (Form, error) {
	for _, form := range []Form{Pinned, Isolated, Plain} {
		if strings.EqualFold(name, string(form)) {
			return form, nil
		}
	}
	return "", fmt.Errorf("there is no form %q: it is %s, %s or %s", name, Pinned, Isolated, Plain)
}

// Options describe the installation. The zero value is valid.
type Options struct {
	// Replicas of atoll-manager. Unset means 1. The first is named Manager, the others
	// ManagerReplica(1) and so on; the API server and kube-scheduler reach them through a
	// load balancer that runs as long as Install's context.
	Replicas int
	// ManagerArgs are further arguments of atoll-manager.
	ManagerArgs []string
	// Gangs enables PodGroups (the chart's gangs.enabled).
	Gangs bool
	// Values are further values of the chart.
	Values map[string]any
	// Form is the chart's default if it is not set. Pinned changes no kube-scheduler.
	// Isolated starts a second one, Scheduler, which calls the extender. Plain configures
	// the extender in the cluster's own.
	Form Form
	// Managed limits the extender, in the form Plain, to pods to which a policy applies.
	// If it is unset, kube-scheduler calls the extender for every pod.
	Managed bool
	// KeepScheduler does not configure the extender in the cluster's kube-scheduler, not
	// even in the form Plain.
	KeepScheduler bool
	// APIServer is the base URL under which atoll-manager reaches the API server, for
	// tests with a proxy in between. APIServerCA is the certificate authority of that
	// server, in PEM. Unset means those of the cluster.
	APIServer   string
	APIServerCA []byte
	// Within bounds the time of the installation after atoll-manager is built; the build
	// may be long on a machine with an empty cache. Unset means no bound.
	Within time.Duration
	// Log receives progress. Unset means none is shown.
	Log io.Writer
}

// Installation is Atoll in a cluster.
type Installation struct {
	// SchedulerConfig is the KubeSchedulerConfiguration that the chart renders,
	// for the cluster's own kube-scheduler or for the second one; nil in the form
	// Pinned.
	SchedulerConfig []byte
	// ExtenderURL is the URL at which atoll-manager serves kube-scheduler. TLSDir has
	// kube-scheduler's ca.crt, tls.crt and tls.key for it.
	ExtenderURL, TLSDir string
	// Extenders and Webhooks are the host:port of each replica's extender and webhooks.
	Extenders, Webhooks []string
	// HealthURL is the base of /healthz and /readyz of the first replica.
	HealthURL string
	// MetricsURLs are /metrics of each replica, over HTTPS to holders of a token that may read it.
	MetricsURLs []string
}

// Install builds atoll-manager, installs the chart, and starts the manager. Depending on
// the form it configures the extender in the cluster's kube-scheduler or starts a second
// one with it. It returns when all of them are ready.
func Install(ctx context.Context, c *devcluster.Cluster, o Options) (*Installation, error) {
	if o.Log == nil {
		o.Log = io.Discard
	}
	chosen := o.Form != ""
	if !chosen {
		o.Form = Default
	}
	source, err := sourceDir(ctx)
	if err != nil {
		return nil, err
	}
	binary, err := buildManager(ctx, source, o.Log)
	if err != nil {
		return nil, err
	}
	replicas, err := makeReplicas(max(1, o.Replicas))
	if err != nil {
		return nil, err
	}
	webhook, extender, err := addresses(ctx, replicas)
	if err != nil {
		return nil, err
	}
	if o.Within > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.Within)
		defer cancel()
	}
	in := &Installation{
		ExtenderURL: "https://" + extender,
		HealthURL:   fmt.Sprintf("http://127.0.0.1:%d", replicas[0].health),
		TLSDir:      filepath.Join(c.Dir(), "extender"),
	}
	for _, r := range replicas {
		in.Extenders = append(in.Extenders, fmt.Sprintf("localhost:%d", r.extender))
		in.Webhooks = append(in.Webhooks, fmt.Sprintf("localhost:%d", r.webhook))
		in.MetricsURLs = append(in.MetricsURLs, fmt.Sprintf("https://localhost:%d/metrics", r.metrics))
	}
	fmt.Fprintln(o.Log, "installing the chart")
	objects, err := render(filepath.Join(source, "charts", "atoll"), values(o, chosen, in, "https://"+webhook))
	if err != nil {
		return nil, err
	}
	if in.SchedulerConfig, err = schedulerConfigOf(objects, o); err != nil {
		return nil, err
	}
	if err := apply(ctx, c.AdminConfig(), objects); err != nil {
		return nil, err
	}
	for _, r := range replicas {
		if err := startManager(ctx, c, o, binary, r); err != nil {
			return nil, err
		}
	}
	if err := in.writeClientFiles(ctx, c); err != nil {
		return nil, err
	}
	return in, in.configureExtender(ctx, c, o)
}

// configureExtender configures the extender in the kube-scheduler that calls it.
func (in *Installation) configureExtender(ctx context.Context, c *devcluster.Cluster, o Options) error {
	switch {
	case o.Form == Isolated:
		fmt.Fprintf(o.Log, "starting %s under its ServiceAccount\n", Scheduler)
		kubeconfig, err := c.ServiceAccountKubeconfig(ctx, Namespace, Scheduler)
		if err != nil {
			return err
		}
		if err := c.StartSchedulerAs(ctx, Scheduler, kubeconfig, in.SchedulerConfig); err != nil {
			return fmt.Errorf("starting the second kube-scheduler (its log is %s): %w", c.LogPath(Scheduler), err)
		}
	case o.Form == Plain && !o.KeepScheduler:
		fmt.Fprintln(o.Log, "configuring the extender in kube-scheduler")
		if err := c.RestartScheduler(ctx, in.SchedulerConfig); err != nil {
			return fmt.Errorf("restarting kube-scheduler with the extender: %w", err)
		}
	}
	return nil
}

func values(o Options, chosen bool, in *Installation, webhookURL string) map[string]any {
	v := map[string]any{
		"manager":   map[string]any{"deploy": false},
		"endpoints": map[string]any{"webhook": webhookURL, "extender": in.ExtenderURL},
		// All programs run outside of the cluster.
		"scheduler": map[string]any{"asks": asks(o), "tlsDir": in.TLSDir, "kubeconfig": "", "deploy": false},
	}
	if chosen { // otherwise the chart's default applies
		v["scheduler"].(map[string]any)["mode"] = string(o.Form)
	}
	if o.Gangs {
		v["gangs"] = map[string]any{"enabled": true}
	}
	return chartutil.CoalesceTables(maps.Clone(o.Values), v) // values of o have priority, for each key
}

// asks returns the chart's value scheduler.asks: the pods for which the cluster's own
// kube-scheduler calls the extender.
func asks(o Options) string {
	if o.Managed {
		return "Managed"
	}
	return "All"
}

// markResource is the extended resource with which atoll-manager marks managed pods.
const markResource = "atoll.dev/managed"

// replica is one process of atoll-manager and the ports that it listens on.
type replica struct {
	name                               string
	webhook, extender, health, metrics int
}

// ManagerReplica is the name of the i-th replica's process, counted from 0.
func ManagerReplica(i int) string {
	if i == 0 {
		return Manager
	}
	return fmt.Sprintf("%s-%d", Manager, i)
}

func makeReplicas(n int) ([]replica, error) {
	replicas := make([]replica, n)
	for i := range replicas {
		r := &replicas[i]
		r.name = ManagerReplica(i)
		for _, port := range []*int{&r.webhook, &r.extender, &r.health, &r.metrics} {
			var err error
			if *port, err = devcluster.FreePort(); err != nil {
				return nil, err
			}
		}
	}
	return replicas, nil
}

// addresses returns the addresses of the webhooks for the API server and of the extender
// for kube-scheduler: those of the only replica, or of a load balancer for several.
func addresses(ctx context.Context, replicas []replica) (webhook, extender string, err error) {
	if len(replicas) == 1 {
		return fmt.Sprintf("localhost:%d", replicas[0].webhook), fmt.Sprintf("localhost:%d", replicas[0].extender), nil
	}
	var webhooks, extenders []string
	for _, r := range replicas {
		webhooks = append(webhooks, fmt.Sprintf("127.0.0.1:%d", r.webhook))
		extenders = append(extenders, fmt.Sprintf("127.0.0.1:%d", r.extender))
	}
	if webhook, err = balance(ctx, webhooks); err != nil {
		return "", "", err
	}
	extender, err = balance(ctx, extenders)
	return webhook, extender, err
}

func startManager(ctx context.Context, c *devcluster.Cluster, o Options, binary string, r replica) error {
	fmt.Fprintf(o.Log, "starting %s under its ServiceAccount\n", r.name)
	kubeconfig, err := c.ServiceAccountKubeconfig(ctx, Namespace, Manager)
	if err != nil {
		return err
	}
	if o.APIServer != "" {
		if kubeconfig, err = redirected(kubeconfig, o); err != nil {
			return err
		}
	}
	args := []string{
		fmt.Sprintf("--webhook-address=127.0.0.1:%d", r.webhook),
		fmt.Sprintf("--extender-address=127.0.0.1:%d", r.extender),
		fmt.Sprintf("--health-address=127.0.0.1:%d", r.health),
		fmt.Sprintf("--metrics-address=127.0.0.1:%d", r.metrics),
		"--names=localhost,127.0.0.1",
	}
	switch {
	case o.Form == Isolated:
		args = append(args, "--scheduler-name="+Scheduler)
	case o.Form == Pinned:
		args = append(args, "--assignment=Early")
	case o.Managed:
		args = append(args, "--mark-resource="+markResource)
	}
	if o.Gangs {
		args = append(args, "--gangs")
	}
	err = c.StartProcess(ctx, devcluster.ProcessSpec{
		Name: r.name, Path: binary,
		Env:       []string{"KUBECONFIG=" + kubeconfig, "POD_NAMESPACE=" + Namespace, "MEMORY_LIMIT=" + strconv.Itoa(MemoryLimit)},
		Args:      append(args, o.ManagerArgs...),
		HealthURL: fmt.Sprintf("http://127.0.0.1:%d/readyz", r.health),
		Again:     true, // as when it has lost its Lease
	})
	if err != nil {
		return fmt.Errorf("starting %s (its log is %s): %w", r.name, c.LogPath(r.name), err)
	}
	return nil
}

// redirected writes a copy of a kubeconfig with another server.
func redirected(kubeconfig string, o Options) (string, error) {
	config, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		return "", fmt.Errorf("reading the kubeconfig of atoll-manager: %w", err)
	}
	for _, cluster := range config.Clusters {
		cluster.Server, cluster.CertificateAuthorityData = o.APIServer, o.APIServerCA
	}
	path := kubeconfig + "-redirected"
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return "", fmt.Errorf("writing the kubeconfig of atoll-manager: %w", err)
	}
	return path, nil
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
