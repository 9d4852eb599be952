package process

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
)

// Command describes the process to start.
type Command struct {
	// Path is the executable, Args its arguments without the executable's name.
	Path string
	Args []string
	// Env is the whole environment, as "KEY=value".
	Env []string
	// Dir is the working directory.
	Dir string
	// LogPath is the file to which standard output and standard error are appended.
	LogPath string
	// Apart gives the process namespaces of its own for processes, mounts, the network, names
	// and System V objects (Linux only). All processes in them end with it.
	Apart bool
}

// Run runs the command. The kernel kills it when this process ends for any reason (Linux only).
func Run(cmd *exec.Cmd) error {
	runtime.LockOSThread() // it must not end before the command: see Launcher
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = bound()
	return cmd.Run()
}

// Launcher starts processes from one operating system thread that exists until Close,
// because Linux sends a child's parent death signal when the thread that started it ends.
type Launcher struct {
	dieWithParent bool
	requests      chan func()
	stopped       chan struct{}
	closeOnce     sync.Once
}

// NewLauncher starts a launcher. With dieWithParent, the kernel kills the children when
// this process ends for any reason (Linux only).
func NewLauncher(dieWithParent bool) *Launcher {
	l := &Launcher{
		dieWithParent: dieWithParent,
		requests:      make(chan func()),
		stopped:       make(chan struct{}),
	}
	go l.run()
	return l
}

// run never unlocks its thread: when it returns, the thread ends with it.
func (l *Launcher) run() {
	runtime.LockOSThread()
	for {
		select {
		case request := <-l.requests:
			request()
		case <-l.stopped:
			return
		}
	}
}

// Start starts the command and returns its identity and a channel that is
// closed when the process has ended and was collected.
func (l *Launcher) Start(command Command) (Identity, <-chan struct{}, error) {
	type result struct {
		id   Identity
		done <-chan struct{}
		err  error
	}
	results := make(chan result, 1)
	request := func() {
		id, done, err := l.start(command)
		results <- result{id, done, err}
	}
	select {
	case l.requests <- request:
	case <-l.stopped:
		return Identity{}, nil, errors.New("starting a process: the launcher is closed")
	}
	r := <-results
	return r.id, r.done, r.err
}

func (l *Launcher) start(command Command) (Identity, <-chan struct{}, error) {
	log, err := os.OpenFile(command.LogPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return Identity{}, nil, fmt.Errorf("opening log of %s: %w", command.Path, err)
	}
	defer log.Close()
	cmd := exec.Command(command.Path, command.Args...)
	cmd.Env = command.Env
	cmd.Dir = command.Dir
	cmd.Stdout = log
	cmd.Stderr = log
	cmd.SysProcAttr = attributes(l.dieWithParent, command.Apart)
	if err := cmd.Start(); err != nil {
		return Identity{}, nil, fmt.Errorf("starting %s: %w", command.Path, err)
	}
	// Not collected yet, so the id still belongs to this child even if it has ended.
	id, err := Identify(cmd.Process.Pid)
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return Identity{}, nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait() // how it ended is in its log
	}()
	return id, done, nil
}

// Close ends the launcher's thread. Before Close, kill the children that were started
// with dieWithParent. Children of other launchers are not affected.
func (l *Launcher) Close() {
	l.closeOnce.Do(func() { close(l.stopped) })
}
