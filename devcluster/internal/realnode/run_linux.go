package realnode

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// lookEvery is the time between two looks at whether a program may be started.
	lookEvery = 20 * time.Millisecond
	// againAfter is how long after its end a program is started again.
	againAfter = time.Second
	// controlGroups is where hierarchies of control groups are mounted.
	controlGroups = "/sys/fs/cgroup"
)

// Enter moves this process, the first one of its namespaces, into the control group of the
// node and that into a namespace of its own, and executes the program anew with the
// arguments: a namespace of control groups is one of a thread.
func Enter(c *Config, args []string) error {
	runtime.LockOSThread()
	paths, err := hierarchies()
	if err != nil {
		return err
	}
	for _, path := range paths {
		group := filepath.Join(path, c.CGroup)
		if err := makeGroup(path, group, isVersion2()); err != nil {
			return fmt.Errorf("making a control group of node %q: %w", c.Name, err)
		}
		if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte("0"), 0o644); err != nil {
			return fmt.Errorf("entering a control group of node %q: %w", c.Name, err)
		}
	}
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("making a namespace of control groups: %w", err)
	}
	return fmt.Errorf("executing the first process of node %q: %w", c.Name, unix.Exec("/proc/self/exe", args, os.Environ()))
}

// hierarchies returns where hierarchies of control groups are mounted: version 2 alone, or
// the controllers of version 1.
func hierarchies() ([]string, error) {
	if isVersion2() {
		return []string{controlGroups}, nil
	}
	entries, err := os.ReadDir(controlGroups)
	if err != nil {
		return nil, fmt.Errorf("listing hierarchies of control groups: %w", err)
	}
	var paths []string
	for _, e := range entries {
		path := filepath.Join(controlGroups, e.Name())
		var fs unix.Statfs_t
		if e.IsDir() && unix.Statfs(path, &fs) == nil && fs.Type == unix.CGROUP_SUPER_MAGIC {
			paths = append(paths, path)
		}
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("finding control groups: none is mounted below %s", controlGroups)
	}
	return paths, nil
}

func isVersion2() bool {
	var fs unix.Statfs_t
	return unix.Statfs(controlGroups, &fs) == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC
}

// makeGroup makes a control group and those above it. In the hierarchy of CPUs of version 1 a new
// group may use none before it is told.
func makeGroup(root, group string, version2 bool) error {
	relative, err := filepath.Rel(root, group)
	if err != nil {
		return err
	}
	at := root
	for part := range strings.SplitSeq(relative, "/") {
		parent := at
		at = filepath.Join(at, part)
		if err := os.Mkdir(at, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		if version2 {
			continue
		}
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			if value, err := os.ReadFile(filepath.Join(parent, file)); err == nil {
				if err := os.WriteFile(filepath.Join(at, file), value, 0o644); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// checks counts the groups that CanMakeGroups has made: callers may run side by side.
var checks atomic.Int64

// CanMakeGroups returns nil if this process may make control groups. It is safe for concurrent use.
func CanMakeGroups() error {
	paths, err := hierarchies()
	if err != nil {
		return err
	}
	for _, root := range paths {
		group := filepath.Join(root, fmt.Sprintf("atoll-check-%d-%d", os.Getpid(), checks.Add(1)))
		if err := makeGroup(root, group, isVersion2()); err != nil {
			return err
		}
		if err := unix.Rmdir(group); err != nil {
			return err
		}
	}
	return nil
}

// RemoveGroups removes the control groups below a path, whose processes have ended.
func RemoveGroups(path string) error {
	paths, err := hierarchies()
	if err != nil {
		return err
	}
	var errs []error
	for _, root := range paths {
		errs = append(errs, removeTree(filepath.Join(root, path)))
	}
	return errors.Join(errs...)
}

func removeTree(group string) error {
	entries, err := os.ReadDir(group)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(filepath.Join(group, e.Name())); err != nil {
				return err
			}
		}
	}
	// Processes that were killed leave their group a little later.
	for range 100 {
		if err = unix.Rmdir(group); err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		time.Sleep(lookEvery)
	}
	return fmt.Errorf("removing control group %s: %w", group, err)
}

// Run is the first process of the node. It returns when ctx is done, which ends all others.
func Run(ctx context.Context, c *Config) error {
	if err := prepare(c); err != nil {
		return err
	}
	if err := awaitNetwork(ctx); err != nil {
		return err
	}
	s := &services{config: c, started: map[int]chan struct{}{}}
	go s.reap()
	for i := range c.Programs {
		go s.keep(ctx, &c.Programs[i])
	}
	<-ctx.Done()
	return nil
}

// prepare makes the mounts and settings of the node's namespaces.
func prepare(c *Config) error {
	// Nothing that is mounted here is seen outside, and goes when the node's processes end.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	type mount struct {
		kind, at, data string
		flags          uintptr
	}
	mounts := []mount{{"proc", "/proc", "", 0}, {"tmpfs", "/run", "mode=755", 0}}
	paths, err := hierarchies()
	if err != nil {
		return err
	}
	version2 := isVersion2()
	for _, path := range paths {
		// The same hierarchy is mounted nowhere twice on top of itself.
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmounting %s: %w", path, err)
		}
		if version2 {
			mounts = append(mounts, mount{"cgroup2", path, "", 0})
			continue
		}
		data := filepath.Base(path)
		if data == "systemd" {
			data = "none,name=systemd"
		}
		mounts = append(mounts, mount{"cgroup", path, data, 0})
	}
	for _, m := range mounts {
		if err := unix.Mount(m.kind, m.at, m.kind, m.flags, m.data); err != nil {
			return fmt.Errorf("mounting %s at %s: %w", m.kind, m.at, err)
		}
	}
	if version2 {
		if err := delegate(); err != nil {
			return err
		}
	}
	// Containers may see what is mounted below the kubelet's directory later.
	if err := os.Mkdir(Mount, 0o700); err != nil {
		return fmt.Errorf("mounting the node's directory: %w", err)
	}
	if err := unix.Mount(c.Dir, Mount, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mounting the node's directory: %w", err)
	}
	if err := unix.Mount("", Mount, "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("sharing the node's directory: %w", err)
	}
	if err := unix.Sethostname([]byte(c.Name)); err != nil {
		return fmt.Errorf("setting the name of the host: %w", err)
	}
	for setting, value := range map[string]string{
		"net/ipv4/ip_forward":             "1", // between pods and legs
		"net/ipv4/conf/all/rp_filter":     "0", // a peer may be reached by either leg
		"net/ipv4/conf/default/rp_filter": "0",
	} {
		if err := os.WriteFile(filepath.Join("/proc/sys", setting), []byte(value), 0o644); err != nil {
			return fmt.Errorf("setting %s: %w", setting, err)
		}
	}
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return fmt.Errorf("setting the loopback device up: %w", err)
	}
	return nil
}

// delegate lets groups below the root of the node's namespace have controllers: in version 2
// the root may then have no processes.
func delegate() error {
	own := filepath.Join(controlGroups, "node")
	if err := os.Mkdir(own, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("making the control group of the node's programs: %w", err)
	}
	if err := os.WriteFile(filepath.Join(own, "cgroup.procs"), []byte("0"), 0o644); err != nil {
		return fmt.Errorf("entering the control group of the node's programs: %w", err)
	}
	controllers, err := os.ReadFile(filepath.Join(controlGroups, "cgroup.controllers"))
	if err != nil {
		return fmt.Errorf("reading the controllers of the node: %w", err)
	}
	for _, name := range strings.Fields(string(controllers)) {
		if err := os.WriteFile(filepath.Join(controlGroups, "cgroup.subtree_control"), []byte("+"+name), 0o644); err != nil {
			return fmt.Errorf("delegating the controller %s: %w", name, err)
		}
	}
	return nil
}

// awaitNetwork waits until the node has its legs.
func awaitNetwork(ctx context.Context) error {
	for {
		if cloud, err := net.InterfaceByName("cloud"); err == nil && cloud.Flags&net.FlagUp != 0 {
			if _, err := net.InterfaceByName("pool"); err == nil {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(lookEvery):
		}
	}
}

// services are the programs of the node. It is also the parent of all processes whose own
// has ended.
type services struct {
	config *Config
	mu     sync.Mutex // held while a program is started, so that reap knows it
	// started has a channel for each program that runs, by process id, which is closed when
	// it has ended.
	started map[int]chan struct{}
}

// reap collects all children that have ended.
func (s *services) reap() {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		if errors.Is(err, unix.ECHILD) {
			time.Sleep(lookEvery)
			continue
		}
		if err != nil {
			continue
		}
		s.mu.Lock()
		if done := s.started[pid]; done != nil {
			close(done)
			delete(s.started, pid)
		}
		s.mu.Unlock()
	}
}

// keep runs a program again and again.
func (s *services) keep(ctx context.Context, p *Program) {
	for ctx.Err() == nil {
		if _, err := os.Stat(s.config.Hold(p.Name)); err == nil || p.After != "" && !exists(p.After) {
			time.Sleep(lookEvery)
			continue
		}
		done, err := s.start(p)
		if err != nil {
			fmt.Fprintf(os.Stderr, "starting %s: %v\n", p.Name, err)
		} else {
			<-done
		}
		time.Sleep(againAfter)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func (s *services) start(p *Program) (done chan struct{}, err error) {
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	pid, err := syscall.ForkExec(p.Path, append([]string{p.Path}, p.Args...), &syscall.ProcAttr{
		Dir: s.config.Dir, Env: p.Env, Files: []uintptr{0, log.Fd(), log.Fd()}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return nil, err
	}
	done = make(chan struct{})
	s.started[pid] = done
	return done, nil
}
