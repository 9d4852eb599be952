package devcluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"
)

// schedulerProcess describes a kube-scheduler process with the given name that runs as
// the user of the kubeconfig.
func (c *Cluster) schedulerProcess(name, kubeconfig string, config []byte) (processRecord, error) {
	data, err := completeSchedulerConfig(config, kubeconfig)
	if err != nil {
		return processRecord{}, err
	}
	path := c.schedulerConfigPath(name)
	if err := writeConfig(path, data); err != nil {
		return processRecord{}, err
	}
	args, health, err := c.serving(kubeconfig, "/readyz")
	if err != nil {
		return processRecord{}, err
	}
	p := c.component(Scheduler, append(args, "--config="+path), health)
	p.Again = true // it ends when it has lost its Lease
	if name != Scheduler {
		p.Name, p.Kind, p.Log = name, kindScheduler, c.LogPath(name)
	}
	return p, nil
}

func (c *Cluster) schedulerConfigPath(name string) string {
	return filepath.Join(c.record.Dir, "config", name+".yaml")
}

// completeSchedulerConfig sets the fields that a scheduler in this cluster needs and does
// not change the caller's other fields.
func completeSchedulerConfig(config []byte, kubeconfig string) ([]byte, error) {
	fields := map[string]any{}
	if err := yaml.Unmarshal(config, &fields); err != nil {
		return nil, fmt.Errorf("decoding the scheduler's configuration: %w", err)
	}
	if fields == nil {
		fields = map[string]any{}
	}
	setDefault(fields, "apiVersion", "kubescheduler.config.k8s.io/v1")
	setDefault(fields, "kind", "KubeSchedulerConfiguration")
	connection, err := object(fields, "clientConnection")
	if err != nil {
		return nil, err
	}
	connection["kubeconfig"] = kubeconfig
	setDefault(connection, "qps", schedulerQPS)
	setDefault(connection, "burst", schedulerBurst)
	election, err := object(fields, "leaderElection")
	if err != nil {
		return nil, err
	}
	setDefault(election, "leaderElect", false)
	data, err := yaml.Marshal(fields)
	if err != nil {
		return nil, fmt.Errorf("encoding the scheduler's configuration: %w", err)
	}
	return data, nil
}

func setDefault(fields map[string]any, key string, value any) {
	if _, ok := fields[key]; !ok {
		fields[key] = value
	}
}

// object returns the object under the key and creates it if there is none.
func object(fields map[string]any, key string) (map[string]any, error) {
	if fields[key] == nil {
		fields[key] = map[string]any{}
	}
	value, ok := fields[key].(map[string]any)
	if !ok {
		return nil, fmt.Errorf("decoding the scheduler's configuration: %s is not an object", key)
	}
	return value, nil
}

// RestartScheduler restarts the cluster's kube-scheduler with another
// KubeSchedulerConfiguration; nil means the default one. It returns when the scheduler is
// healthy. See Options.SchedulerConfig for the fields that are filled in.
func (c *Cluster) RestartScheduler(ctx context.Context, config []byte) error {
	data, err := completeSchedulerConfig(config, c.kubeconfigPath("system:"+Scheduler))
	if err != nil {
		return err
	}
	c.verbs.Lock()
	defer c.verbs.Unlock()
	p, err := c.readProcess(Scheduler)
	if err != nil {
		return err
	}
	if err := writeConfig(c.schedulerConfigPath(Scheduler), data); err != nil {
		return err
	}
	return c.restartLocked(ctx, p)
}

// StartScheduler starts a further kube-scheduler process with the given name, for
// [Cluster.Kill] and similar methods. Without a configuration it serves pods whose
// schedulerName is this name. A configuration must name its profiles itself, with names
// that no other running scheduler has.
func (c *Cluster) StartScheduler(ctx context.Context, name string, config []byte) error {
	return c.StartSchedulerAs(ctx, name, c.kubeconfigPath("system:"+Scheduler), config)
}

// StartSchedulerAs is StartScheduler for a scheduler that runs as another user than
// system:kube-scheduler: the user of the kubeconfig, for example one that
// [Cluster.ServiceAccountKubeconfig] returned.
func (c *Cluster) StartSchedulerAs(ctx context.Context, name, kubeconfig string, config []byte) error {
	if err := c.checkNewProcess(name); err != nil {
		return err
	}
	if len(config) == 0 {
		config = []byte("profiles: [{schedulerName: " + name + "}]")
	}
	p, err := c.schedulerProcess(name, kubeconfig, config)
	if err != nil {
		return err
	}
	return c.startNew(ctx, p)
}

// checkNewProcess refuses names that are taken or not valid as a file name.
func (c *Cluster) checkNewProcess(name string) error {
	if !nodeNamePattern.MatchString(name) {
		return fmt.Errorf("starting process %q: the name is not a DNS subdomain", name)
	}
	_, err := os.Stat(processPath(c.registryDir, name))
	if err == nil {
		return fmt.Errorf("starting process %q: it exists already; restart it instead", name)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("starting process %q: %w", name, err)
	}
	return nil
}
