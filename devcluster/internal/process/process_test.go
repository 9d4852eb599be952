package process

import (
	"path/filepath"
	"syscall"
	"testing"
)

func start(t *testing.T, l *Launcher, args ...string) (Identity, <-chan struct{}) {
	t.Helper()
	id, done, err := l.Start(Command{Path: "/bin/sh", Args: args, LogPath: filepath.Join(t.TempDir(), "log")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := id.Signal(syscall.SIGKILL); err != nil {
			t.Error(err)
		}
		<-done
	})
	return id, done
}

func newLauncher(t *testing.T) *Launcher {
	l := NewLauncher(true)
	t.Cleanup(l.Close)
	return l
}

func TestIdentityDetectsAReusedProcessID(t *testing.T) {
	id, done := start(t, newLauncher(t), "-c", "exec sleep 1000")
	if !id.Alive() {
		t.Fatal("a running process is not alive")
	}
	reused := Identity{PID: id.PID, StartTime: id.StartTime + 1}
	if reused.Alive() {
		t.Error("a process is taken for another with the same id")
	}
	if err := reused.Signal(syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	if !id.Alive() {
		t.Error("a process was killed in place of another")
	}
	if (Identity{}).Alive() {
		t.Error("the zero identity is alive")
	}
	if err := id.Signal(syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	<-done
	if id.Alive() {
		t.Error("a killed process is alive")
	}
}

func TestStoppedProcessesAreAlive(t *testing.T) {
	id, done := start(t, newLauncher(t), "-c", "exec sleep 1000")
	for _, signal := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGCONT, syscall.SIGSTOP} {
		if err := id.Signal(signal); err != nil {
			t.Fatal(err)
		}
		if !id.Alive() {
			t.Errorf("gone after %s", signal)
		}
	}
	if err := id.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-done
}

func TestEndedProcessesAreCollected(t *testing.T) {
	id, done := start(t, newLauncher(t), "-c", "exit 3")
	<-done
	if id.Alive() {
		t.Error("an ended process is alive")
	}
}

func TestClosedLauncherStartsNothing(t *testing.T) {
	l := NewLauncher(false)
	l.Close()
	l.Close()
	_, _, err := l.Start(Command{Path: "/bin/sh", LogPath: filepath.Join(t.TempDir(), "log")})
	if err == nil {
		t.Error("a closed launcher starts a process")
	}
}

func TestMissingProgramIsAnError(t *testing.T) {
	_, _, err := newLauncher(t).Start(Command{Path: "/no/such/program", LogPath: filepath.Join(t.TempDir(), "log")})
	if err == nil {
		t.Error("a missing program starts")
	}
}
