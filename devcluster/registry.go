package devcluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
	"time"

	"github.com/atoll-k8s/atoll/devcluster/binaries"
	"github.com/atoll-k8s/atoll/devcluster/internal/filelock"
	"github.com/atoll-k8s/atoll/devcluster/internal/process"
	"github.com/atoll-k8s/atoll/devcluster/internal/realnode"
)

// The registry is a directory in the cache with one directory for each cluster:
// record.json describes the cluster, processes/<name>.json each of its processes. All
// processes that attach to a cluster read and write the same files, and Sweep finds
// leftovers by them.

// clusterMark is the environment variable that identifies a process of a cluster even if
// its record was never written.
const clusterMark = "ATOLL_DEVCLUSTER"

// keptLifetime is how long the kept directory of a stopped cluster stays in the cache.
const keptLifetime = 7 * 24 * time.Hour

// record describes one cluster. It does not change after it is written, except that Server
// and NodesDir are added once they are known.
type record struct {
	Name       string           `json:"name"`
	Kubernetes string           `json:"kubernetes"`
	Dir        string           `json:"dir"`
	KeepDir    bool             `json:"keepDir,omitempty"`
	Persistent bool             `json:"persistent,omitempty"`
	Owner      process.Identity `json:"owner"`
	Created    time.Time        `json:"created"`
	BinDir     string           `json:"binDir"`
	// APIServerPort and EtcdPort are ports of 127.0.0.1.
	APIServerPort int `json:"apiServerPort"`
	EtcdPort      int `json:"etcdPort"`
	EtcdPeerPort  int `json:"etcdPeerPort"`
	// Server is the address of the API server that real nodes reach, and NodesDir has their
	// programs; both are "" in a cluster that cannot have real nodes.
	Server   string `json:"server,omitempty"`
	NodesDir string `json:"nodesDir,omitempty"`
}

// Info describes a cluster in the result of [List].
type Info struct {
	// Name is the argument of [Attach].
	Name string
	// Dir has the cluster's data and logs.
	Dir string
	// Created is the time when the start began.
	Created time.Time
	// Persistent clusters outlive their owner.
	Persistent bool
	// Leftover is true if the owner ended without stopping the cluster.
	Leftover bool
}

func (r record) isLeftover() bool { return !r.Persistent && !r.Owner.Alive() }

func registryDir() (string, error) {
	cache, err := binaries.CacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "clusters")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("making the registry of clusters: %w", err)
	}
	return dir, nil
}

// dataDir has the directories of the clusters that get none by Options.Dir.
func dataDir() (string, error) {
	cache, err := binaries.CacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, "data"), nil
}

// lockRegistry serialises the adding and removing of clusters.
func lockRegistry(ctx context.Context) (registry string, unlock func(), err error) {
	registry, err = registryDir()
	if err != nil {
		return "", nil, err
	}
	unlock, err = filelock.Lock(ctx, filepath.Join(registry, ".lock"), nil)
	if err != nil {
		return "", nil, err
	}
	return registry, unlock, nil
}

// claim adds the cluster to the registry and fails if the name is taken.
func claim(ctx context.Context, r record) error {
	registry, unlock, err := lockRegistry(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	dir := filepath.Join(registry, r.Name)
	if _, err := os.Stat(dir); err == nil {
		return fmt.Errorf("claiming the name %q: a cluster of that name runs; choose another or take it down first", r.Name)
	}
	if err := os.MkdirAll(filepath.Join(dir, "processes"), 0o700); err != nil {
		return fmt.Errorf("adding cluster %q to the registry: %w", r.Name, err)
	}
	return writeJSON(filepath.Join(dir, "record.json"), r)
}

// readRecord returns [fs.ErrNotExist], wrapped, if there is no such cluster.
func readRecord(registry, name string) (record, error) {
	var r record
	if err := readJSON(filepath.Join(registry, name, "record.json"), &r); err != nil {
		return record{}, fmt.Errorf("reading the record of cluster %q: %w", name, err)
	}
	return r, nil
}

func clusterNames(registry string) ([]string, error) {
	entries, err := os.ReadDir(registry)
	if err != nil {
		return nil, fmt.Errorf("listing clusters: %w", err)
	}
	var names []string
	for _, entry := range entries {
		if entry.IsDir() {
			names = append(names, entry.Name())
		}
	}
	return names, nil
}

// List returns all clusters of this user, leftovers included, by name.
func List() ([]Info, error) {
	registry, err := registryDir()
	if err != nil {
		return nil, err
	}
	names, err := clusterNames(registry)
	if err != nil {
		return nil, err
	}
	var infos []Info
	for _, name := range names {
		r, err := readRecord(registry, name)
		if err != nil {
			continue // being added or removed right now
		}
		infos = append(infos, Info{
			Name: r.Name, Dir: r.Dir, Created: r.Created,
			Persistent: r.Persistent, Leftover: r.isLeftover(),
		})
	}
	sort.Slice(infos, func(i, j int) bool { return infos[i].Name < infos[j].Name })
	return infos, nil
}

// Sweep kills and removes the clusters whose owner has ended without stopping
// them, and returns their names. [Start] sweeps first.
func Sweep(ctx context.Context) ([]string, error) {
	registry, unlock, err := lockRegistry(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	names, err := clusterNames(registry)
	if err != nil {
		return nil, err
	}
	var swept []string
	var failures []error
	for _, name := range names {
		r, err := readRecord(registry, name)
		if errors.Is(err, fs.ErrNotExist) {
			// Its owner was killed while it added or removed the record; both happen
			// under the lock.
			failures = append(failures, os.RemoveAll(filepath.Join(registry, name)))
			continue
		}
		if err != nil {
			failures = append(failures, err)
			continue
		}
		if !r.isLeftover() {
			continue
		}
		if err := remove(ctx, registry, r); err != nil {
			failures = append(failures, err)
			continue
		}
		swept = append(swept, name)
	}
	failures = append(failures, removeKept(registry))
	return swept, errors.Join(failures...)
}

// removeKept removes directories that failed starts and Options.KeepDir left in the cache
// longer than keptLifetime ago.
func removeKept(registry string) error {
	data, err := dataDir()
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(data)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("listing kept directories: %w", err)
	}
	var failures []error
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil || time.Since(info.ModTime()) < keptLifetime {
			continue
		}
		if _, err := os.Stat(filepath.Join(registry, entry.Name())); errors.Is(err, fs.ErrNotExist) {
			failures = append(failures, os.RemoveAll(filepath.Join(data, entry.Name())))
		}
	}
	return errors.Join(failures...)
}

// Remove stops the cluster with that name, in any state and whichever process started it,
// and removes its files.
func Remove(ctx context.Context, name string) error {
	registry, unlock, err := lockRegistry(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	r, err := readRecord(registry, name)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing cluster %q: there is no cluster with this name: %w", name, fs.ErrNotExist)
	}
	if err != nil {
		return err
	}
	return remove(ctx, registry, r)
}

// remove kills the cluster's running processes and deletes its files. The caller holds
// the registry's lock.
func remove(ctx context.Context, registry string, r record) error {
	dir := filepath.Join(registry, r.Name)
	records, err := readProcesses(dir)
	if err != nil {
		return err
	}
	var rest, etcd []process.Identity
	for _, p := range records {
		if p.Name == Etcd {
			etcd = append(etcd, p.ID)
			continue
		}
		rest = append(rest, p.ID)
	}
	for _, group := range [][]process.Identity{rest, etcd} {
		if err := killAll(ctx, group); err != nil {
			return fmt.Errorf("stopping cluster %q: %w", r.Name, err)
		}
	}
	// A process without a record is not started again, neither by a Cluster of this process nor
	// by one of another.
	if err := os.RemoveAll(filepath.Join(dir, "processes")); err != nil {
		return fmt.Errorf("removing the records of the processes of cluster %q: %w", r.Name, err)
	}
	if err := killAll(ctx, process.WithEnv(clusterMark+"="+dir)); err != nil {
		return fmt.Errorf("stopping unrecorded processes of cluster %q: %w", r.Name, err)
	}
	if r.NodesDir != "" {
		if err := realnode.RemoveGroups(controlGroup(dir)); err != nil {
			return fmt.Errorf("stopping the nodes of cluster %q: %w", r.Name, err)
		}
	}
	if !r.KeepDir {
		if err := os.RemoveAll(r.Dir); err != nil {
			return fmt.Errorf("removing the directory of cluster %q: %w", r.Name, err)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("removing cluster %q from the registry: %w", r.Name, err)
	}
	return nil
}

// killAll kills the processes and returns when all are gone.
func killAll(ctx context.Context, ids []process.Identity) error {
	self := os.Getpid()
	for _, id := range ids {
		if id.PID == self {
			continue
		}
		if err := id.Signal(syscall.SIGKILL); err != nil {
			return err
		}
	}
	for _, id := range ids {
		if id.PID == self {
			continue
		}
		if err := waitGone(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// waitGone polls, because the process may not be a child of this process.
func waitGone(ctx context.Context, id process.Identity) error {
	for id.Alive() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for process %d to end: %w", id.PID, ctx.Err())
		case <-time.After(goneInterval):
		}
	}
	return nil
}

func processPath(dir, name string) string {
	return filepath.Join(dir, "processes", name+".json")
}

func readProcesses(dir string) ([]processRecord, error) {
	entries, err := os.ReadDir(filepath.Join(dir, "processes"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing processes: %w", err)
	}
	var records []processRecord
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), ".json") {
			continue
		}
		var p processRecord
		err := readJSON(filepath.Join(dir, "processes", entry.Name()), &p)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("reading the record of a process: %w", err)
		}
		records = append(records, p)
	}
	return records, nil
}

func readJSON(path string, into any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, into)
}

// writeJSON replaces the file at once, so that readers never see half of it.
func writeJSON(path string, value any) error {
	data, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding %s: %w", filepath.Base(path), err)
	}
	temporary := fmt.Sprintf("%s.%d.tmp", path, os.Getpid())
	if err := os.WriteFile(temporary, data, 0o600); err != nil {
		return fmt.Errorf("writing %s: %w", filepath.Base(path), err)
	}
	if err := os.Rename(temporary, path); err != nil {
		return fmt.Errorf("replacing %s: %w", filepath.Base(path), err)
	}
	return nil
}
