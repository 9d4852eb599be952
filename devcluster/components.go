package devcluster

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"sigs.k8s.io/yaml"
)

const loopback = "127.0.0.1"

// Client limits of the control plane. They are so high that no limiter is the bottleneck.
const (
	controllerManagerQPS   = 500
	controllerManagerBurst = 1000
	schedulerQPS           = 5000
	schedulerBurst         = 5000
)

func (c *Cluster) serverURL() string {
	return fmt.Sprintf("https://%s:%d", c.serverAddress(), c.record.APIServerPort)
}

// serverAddress is where the API server listens. Real nodes do not reach the loopback network.
func (c *Cluster) serverAddress() string { return cmp.Or(c.record.Server, loopback) }

// component fills in the fields that the records of all components have in common.
func (c *Cluster) component(name string, args []string, health *healthCheck) processRecord {
	// On a machine that runs several clusters side by side, processors are scarcer than memory.
	env := []string{"GOGC=300"}
	if c.options.LowIdle {
		env = append(env, "GOMAXPROCS=1")
	}
	return processRecord{
		Name:   name,
		Kind:   kindComponent,
		Path:   filepath.Join(c.record.BinDir, name),
		Args:   append(args, c.options.ComponentArgs[name]...),
		Dir:    c.record.Dir,
		Log:    c.LogPath(name),
		Health: health,
		Env:    env,
	}
}

func (c *Cluster) etcdProcess() processRecord {
	client := fmt.Sprintf("https://%s:%d", loopback, c.record.EtcdPort)
	peer := fmt.Sprintf("https://%s:%d", loopback, c.record.EtcdPeerPort)
	return c.component(Etcd, []string{
		"--name=default",
		"--data-dir=" + filepath.Join(c.record.Dir, "etcd"),
		"--listen-client-urls=" + client,
		"--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer,
		"--initial-advertise-peer-urls=" + peer,
		"--initial-cluster=default=" + peer,
		"--cert-file=" + c.pkiPath("etcd.crt"),
		"--key-file=" + c.pkiPath("etcd.key"),
		"--trusted-ca-file=" + c.pkiPath("etcd-ca.crt"),
		"--client-cert-auth",
		"--peer-cert-file=" + c.pkiPath("etcd.crt"),
		"--peer-key-file=" + c.pkiPath("etcd.key"),
		"--peer-trusted-ca-file=" + c.pkiPath("etcd-ca.crt"),
		"--peer-client-cert-auth",
		"--unsafe-no-fsync",
		"--quota-backend-bytes=8589934592",
		"--log-level=warn",
	}, &healthCheck{
		URL:      client + "/health",
		CAFile:   c.pkiPath("etcd-ca.crt"),
		CertFile: c.pkiPath("etcd-client.crt"),
		KeyFile:  c.pkiPath("etcd-client.key"),
	})
}

func (c *Cluster) apiServerProcess() (processRecord, error) {
	reconciler := "none" // nobody uses the Service kubernetes
	if c.record.Server != "" {
		reconciler = "lease"
	}
	args := []string{
		"--bind-address=" + c.serverAddress(),
		"--advertise-address=" + c.serverAddress(),
		"--endpoint-reconciler-type=" + reconciler,
		"--secure-port=" + strconv.Itoa(c.record.APIServerPort),
		"--tls-cert-file=" + c.pkiPath("apiserver.crt"),
		"--tls-private-key-file=" + c.pkiPath("apiserver.key"),
		"--client-ca-file=" + c.pkiPath("ca.crt"),
		"--anonymous-auth=false",
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--allow-privileged",
		"--enable-aggregator-routing",
		"--etcd-servers=" + fmt.Sprintf("https://%s:%d", loopback, c.record.EtcdPort),
		"--etcd-cafile=" + c.pkiPath("etcd-ca.crt"),
		"--etcd-certfile=" + c.pkiPath("etcd-client.crt"),
		"--etcd-keyfile=" + c.pkiPath("etcd-client.key"),
		"--service-cluster-ip-range=10.96.0.0/16",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + c.pkiPath("service-account.crt"),
		"--service-account-signing-key-file=" + c.pkiPath("service-account.key"),
		"--kubelet-preferred-address-types=InternalIP",
		"--kubelet-client-certificate=" + c.pkiPath("kubelet-client.crt"),
		"--kubelet-client-key=" + c.pkiPath("kubelet-client.key"),
		"--requestheader-client-ca-file=" + c.pkiPath("front-proxy-ca.crt"),
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + c.pkiPath("front-proxy-client.crt"),
		"--proxy-client-key-file=" + c.pkiPath("front-proxy-client.key"),
	}
	if c.options.LowIdle {
		args = append(args, "--feature-gates=SizeBasedListCostEstimate=false")
	}
	if c.options.AuditLog != AuditOff {
		policy, err := c.writeAuditPolicy()
		if err != nil {
			return processRecord{}, err
		}
		args = append(args,
			"--audit-policy-file="+policy,
			"--audit-log-path="+c.AuditLogPath(),
			"--audit-log-maxsize=10000", // MB: readers follow one file
		)
	}
	return c.component(APIServer, args, &healthCheck{
		URL:      c.serverURL() + "/readyz",
		CAFile:   c.pkiPath("ca.crt"),
		CertFile: c.pkiPath("health-client.crt"),
		KeyFile:  c.pkiPath("health-client.key"),
	}), nil
}

// serving returns the arguments with which a component serves its health endpoint and
// lets the API server authorize all other requests, and the health check for it.
func (c *Cluster) serving(kubeconfig, healthPath string) ([]string, *healthCheck, error) {
	port, err := FreePort()
	if err != nil {
		return nil, nil, err
	}
	args := []string{
		"--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=" + loopback,
		"--secure-port=" + strconv.Itoa(port),
		"--tls-cert-file=" + c.pkiPath("component.crt"),
		"--tls-private-key-file=" + c.pkiPath("component.key"),
		"--client-ca-file=" + c.pkiPath("ca.crt"),
		"--requestheader-client-ca-file=" + c.pkiPath("front-proxy-ca.crt"),
	}
	return args, c.loopbackHealth(port, healthPath), nil
}

func (c *Cluster) loopbackHealth(port int, path string) *healthCheck {
	return &healthCheck{
		URL:    fmt.Sprintf("https://%s:%d%s", loopback, port, path),
		CAFile: c.pkiPath("ca.crt"),
	}
}

func (c *Cluster) controllerManagerProcess() (processRecord, error) {
	kubeconfig := c.kubeconfigPath("system:" + ControllerManager)
	args, health, err := c.serving(kubeconfig, "/healthz")
	if err != nil {
		return processRecord{}, err
	}
	args = append(args,
		"--kubeconfig="+kubeconfig,
		"--leader-elect=false",
		"--use-service-account-credentials",
		"--allocate-node-cidrs=false",
		"--root-ca-file="+c.pkiPath("ca.crt"),
		"--service-account-private-key-file="+c.pkiPath("service-account.key"),
		"--cluster-signing-cert-file="+c.pkiPath("ca.crt"),
		"--cluster-signing-key-file="+c.pkiPath("ca.key"),
		fmt.Sprintf("--kube-api-qps=%d", controllerManagerQPS),
		fmt.Sprintf("--kube-api-burst=%d", controllerManagerBurst),
	)
	return c.component(ControllerManager, args, health), nil
}

func (c *Cluster) kwokProcess() (processRecord, error) {
	port, err := FreePort()
	if err != nil {
		return processRecord{}, err
	}
	stages := filepath.Join(c.record.Dir, "config", "kwok.yaml")
	data, err := simulationConfig(c.options.PodStartDelay)
	if err != nil {
		return processRecord{}, err
	}
	if err := writeConfig(stages, data); err != nil {
		return processRecord{}, err
	}
	p := c.component(Kwok, []string{
		"--kubeconfig=" + c.kubeconfigPath("devcluster:"+Kwok, mastersGroup),
		"--config=" + stages,
		"--manage-all-nodes=false",
		"--manage-nodes-with-annotation-selector=" + simulatedAnnotation + "=" + simulatedValue,
		"--node-lease-duration-seconds=" + strconv.Itoa(nodeLeaseSeconds),
		"--cidr=10.128.0.0/9",
		"--server-address=" + loopback + ":" + strconv.Itoa(port),
		"--tls-cert-file=" + c.pkiPath("component.crt"),
		"--tls-private-key-file=" + c.pkiPath("component.key"),
	}, c.loopbackHealth(port, "/healthz"))
	// Keeps the component from reading a configuration in the home directory.
	p.Env = append(p.Env, "KWOK_WORKDIR="+filepath.Join(c.record.Dir, "kwok"))
	return p, nil
}

// AuditLogPath is the path of the API server's audit log, one JSON object per line, if
// Options.AuditLog is set. Reads, events, leases, and token and access reviews are not in
// it.
func (c *Cluster) AuditLogPath() string { return filepath.Join(c.record.Dir, "audit.log") }

func (c *Cluster) writeAuditPolicy() (string, error) {
	none := func(rule map[string]any) map[string]any {
		rule["level"] = "None"
		return rule
	}
	policy := map[string]any{
		"apiVersion": "audit.k8s.io/v1",
		"kind":       "Policy",
		"omitStages": []string{"RequestReceived", "ResponseStarted"},
		"rules": []any{
			none(map[string]any{"verbs": []string{"get", "list", "watch"}}),
			none(map[string]any{"resources": []any{
				map[string]any{"group": "", "resources": []string{"events"}},
				map[string]any{"group": "events.k8s.io"},
				map[string]any{"group": "coordination.k8s.io", "resources": []string{"leases"}},
				map[string]any{"group": "authentication.k8s.io"},
				map[string]any{"group": "authorization.k8s.io"},
			}}),
			map[string]any{"level": string(c.options.AuditLog)},
		},
	}
	data, err := yaml.Marshal(policy)
	if err != nil {
		return "", fmt.Errorf("encoding the audit policy: %w", err)
	}
	path := filepath.Join(c.record.Dir, "config", "audit-policy.yaml")
	return path, writeConfig(path, data)
}

func writeConfig(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("making the directory of configurations: %w", err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		return fmt.Errorf("writing configuration %s: %w", filepath.Base(path), err)
	}
	return nil
}
