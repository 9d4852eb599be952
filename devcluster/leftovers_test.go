package devcluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/atoll-k8s/atoll/devcluster/binaries"
	"github.com/atoll-k8s/atoll/devcluster/internal/process"
)

// childEnv makes the test binary start a cluster and wait to be killed. Its
// value says whether the kernel is to kill the cluster with it.
const childEnv = "DEVCLUSTER_TEST_CHILD"

func TestMain(m *testing.M) {
	if mode := os.Getenv(childEnv); mode != "" {
		runChild(mode)
	}
	os.Exit(m.Run())
}

// runChild never returns: it prints the cluster's name and waits.
func runChild(mode string) {
	real := strings.HasPrefix(mode, "real-")
	c, err := Start(context.Background(), Options{Log: os.Stderr, RealNodes: real, noDeathSignal: strings.HasSuffix(mode, "sweep")})
	switch {
	case err != nil:
	case real:
		err = c.AddRealNodes(context.Background(), RealNodeSpec{NodeSpec: NodeSpec{Name: "real"}})
	default:
		err = c.AddHollowNodes(context.Background(), NodeSpec{Name: "hollow"})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(c.Name())
	select {}
}

func TestLeftoversAreCleared(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a cluster")
	}
	isolate(t)
	t.Run("by a sweep", func(t *testing.T) {
		name, ids := killOwner(t, "sweep")
		for _, id := range ids {
			if !id.Alive() {
				t.Errorf("process %d ended with its owner, so the sweep is not tested", id.PID)
			}
		}
		swept, err := Sweep(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(swept, name) {
			t.Errorf("swept %v, want %s among them", swept, name)
		}
		expectGone(t, name, ids)
	})
	t.Run("by the kernel, and the files by a sweep", func(t *testing.T) {
		if runtime.GOOS != "linux" {
			t.Skip("only Linux kills children with their parent")
		}
		name, ids := killOwner(t, "kernel")
		goneByKernel(t, ids)
		if _, err := Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		expectGone(t, name, ids)
	})
}

// TestLeftoversOfRealNodesAreCleared: network devices, mounts, control groups and what runs in
// them, whether the kernel kills the node with its owner or not.
func TestLeftoversOfRealNodesAreCleared(t *testing.T) {
	if err := RealNodesMissing(); err != nil {
		t.Skip(err)
	}
	if testing.Short() {
		t.Skip("starts a cluster")
	}
	isolate(t)
	for _, mode := range []string{"real-kernel", "real-sweep"} {
		t.Run(mode, func(t *testing.T) {
			name, ids := killOwner(t, mode)
			c, err := Attach(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			if mode == "real-kernel" {
				goneByKernel(t, ids)
			}
			if _, err := Sweep(t.Context()); err != nil {
				t.Fatal(err)
			}
			expectGone(t, name, ids)
			if left := leftovers(t, c.Dir(), name); left != "" {
				t.Error(left)
			}
		})
	}
}

// isolate gives the test a cache of its own, in which nobody else sweeps, with
// the binaries of the shared one.
func isolate(t *testing.T) {
	t.Helper()
	set, err := binaries.Ensure(t.Context(), binaries.KubernetesVersions[0], t.Output())
	if err != nil {
		t.Fatal(err)
	}
	cache := t.TempDir()
	if err := os.MkdirAll(filepath.Join(cache, "devcluster"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Dir(set.Dir), filepath.Join(cache, "devcluster", "bin")); err != nil {
		t.Fatal(err)
	}
	t.Setenv(binaries.CacheDirEnv, cache)
}

// killOwner starts a cluster in a child, kills the child and returns what it left.
func killOwner(t *testing.T, mode string) (name string, ids []process.Identity) {
	t.Helper()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), childEnv+"="+mode)
	child.Stderr = os.Stderr
	output, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(output).ReadString('\n')
	if err != nil {
		t.Fatalf("child ended early: %v", errors.Join(err, child.Wait()))
	}
	name = strings.TrimSpace(line)
	c, err := Attach(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	statuses, err := c.Processes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, status := range statuses {
		id, err := process.Identify(status.PID)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	if len(ids) < 6 {
		t.Fatalf("the child's cluster has %d processes", len(ids))
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait() // it was killed
	return name, ids
}

// goneByKernel waits until all processes have ended without a sweep.
func goneByKernel(t *testing.T, ids []process.Identity) {
	t.Helper()
	eventually(t, "waiting for the kernel to kill the cluster", func(context.Context) error {
		for _, id := range ids {
			if id.Alive() {
				return fmt.Errorf("process %d is alive", id.PID)
			}
		}
		return nil
	})
}

func expectGone(t *testing.T, name string, ids []process.Identity) {
	t.Helper()
	for _, id := range ids {
		if id.Alive() {
			t.Errorf("process %d is alive", id.PID)
		}
	}
	cache, err := binaries.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"clusters", "data"} {
		if _, err := os.Stat(filepath.Join(cache, dir, name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("files of the cluster are left in %s: %v", dir, err)
		}
	}
}

// fakeCluster puts a cluster with one process into a registry of its own.
func fakeCluster(t *testing.T, change func(*record, *processRecord)) (record, process.Identity) {
	t.Helper()
	t.Setenv(binaries.CacheDirEnv, t.TempDir())
	id := startSleeper(t, nil)
	self, err := process.Self()
	if err != nil {
		t.Fatal(err)
	}
	r := record{Name: "fake", Dir: filepath.Join(t.TempDir(), "data"), Owner: self, Created: time.Now()}
	p := processRecord{Name: "sleeper", Kind: kindExtra, ID: id}
	change(&r, &p)
	if err := os.MkdirAll(r.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := claim(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	registry, err := registryDir()
	if err != nil {
		t.Fatal(err)
	}
	if err := writeJSON(processPath(filepath.Join(registry, r.Name), p.Name), p); err != nil {
		t.Fatal(err)
	}
	return r, id
}

func startSleeper(t *testing.T, env []string) process.Identity {
	t.Helper()
	launcher := process.NewLauncher(true)
	t.Cleanup(launcher.Close)
	id, done, err := launcher.Start(process.Command{
		Path: "/bin/sleep", Args: []string{"1000"}, Env: env, LogPath: filepath.Join(t.TempDir(), "log"),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := killAll(context.Background(), []process.Identity{id}); err != nil {
			t.Error(err)
		}
		<-done
	})
	return id
}

func TestSweepTakesLeftoversOnly(t *testing.T) {
	self, err := process.Self()
	if err != nil {
		t.Fatal(err)
	}
	gone := process.Identity{PID: self.PID, StartTime: self.StartTime + 1}
	tests := map[string]struct {
		change    func(*record, *processRecord)
		wantSwept bool
		wantAlive bool
	}{
		"a cluster whose owner runs stays": {
			change: func(*record, *processRecord) {}, wantAlive: true,
		},
		"a cluster whose owner is gone is swept": {
			change:    func(r *record, _ *processRecord) { r.Owner = gone },
			wantSwept: true,
		},
		"a persistent cluster whose owner is gone stays": {
			change:    func(r *record, _ *processRecord) { r.Owner, r.Persistent = gone, true },
			wantAlive: true,
		},
		"a process that got the id of an ended one lives": {
			change:    func(r *record, p *processRecord) { r.Owner = gone; p.ID.StartTime++ },
			wantSwept: true, wantAlive: true,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r, id := fakeCluster(t, test.change)
			swept, err := Sweep(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if got := len(swept) == 1; got != test.wantSwept {
				t.Errorf("swept %v, want swept = %t", swept, test.wantSwept)
			}
			if id.Alive() != test.wantAlive {
				t.Errorf("process alive = %t, want %t", id.Alive(), test.wantAlive)
			}
			if _, err := os.Stat(r.Dir); (err == nil) == test.wantSwept {
				t.Errorf("directory of the cluster: %v, want it gone = %t", err, test.wantSwept)
			}
		})
	}
}

func TestSweepFindsUnrecordedProcesses(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux shows the environment of processes")
	}
	self, err := process.Self()
	if err != nil {
		t.Fatal(err)
	}
	r, _ := fakeCluster(t, func(r *record, _ *processRecord) {
		r.Owner = process.Identity{PID: self.PID, StartTime: self.StartTime + 1}
	})
	registry, err := registryDir()
	if err != nil {
		t.Fatal(err)
	}
	unrecorded := startSleeper(t, []string{clusterMark + "=" + filepath.Join(registry, r.Name)})
	other := startSleeper(t, []string{clusterMark + "=" + filepath.Join(registry, "other")})
	if _, err := Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if unrecorded.Alive() {
		t.Error("an unrecorded process of a leftover lives")
	}
	if !other.Alive() {
		t.Error("a process of another cluster was killed")
	}
}

func TestNamesAreClaimedOnce(t *testing.T) {
	r, _ := fakeCluster(t, func(*record, *processRecord) {})
	if err := claim(t.Context(), r); err == nil {
		t.Error("a name is claimed twice")
	}
}

func TestSweepRemovesOldKeptDirectories(t *testing.T) {
	r, _ := fakeCluster(t, func(*record, *processRecord) {})
	cache, err := binaries.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	long := time.Now().Add(-2 * keptLifetime)
	for name, changed := range map[string]time.Time{"old": long, "new": time.Now(), r.Name: long} {
		dir := filepath.Join(cache, "data", name)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(dir, changed, changed); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(filepath.Join(cache, "data"))
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, entry := range entries {
		left = append(left, entry.Name())
	}
	if want := []string{r.Name, "new"}; !slices.Equal(left, want) {
		t.Errorf("left are %v, want the running cluster's and the new one: %v", left, want)
	}
}
