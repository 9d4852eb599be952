package files

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
)

// joined reads files that have a text each; "half" cannot be used.
func joined(texts [][]byte) (string, error) {
	text := string(bytes.Join(texts, []byte("+")))
	if strings.Contains(text, "half") {
		return "", errors.New("it is damaged")
	}
	return text, nil
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestChangedFilesAreReadAgain: two files of one value are read together, and the last valid content stays.
func TestChangedFilesAreReadAgain(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	v := NewValue("texts", joined, logr.Discard(), a, b)
	if _, err := v.Get(); !errors.Is(err, ErrNotRead) {
		t.Errorf("before anything is read: %v", err)
	}
	expect := func(want string, isRead bool) {
		t.Helper()
		err := v.Read()
		if got, _ := v.Get(); got != want || (err == nil) != isRead {
			t.Errorf("the value is %q, %v, want %q", got, err, want)
		}
	}
	write(t, a, "1")
	if err := v.Read(); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "texts") {
		t.Errorf("one of two files: %v", err)
	}
	write(t, b, "2")
	expect("1+2", true)
	write(t, b, "3")
	expect("1+3", true)
	write(t, a, "half")
	expect("1+3", false)
	write(t, a, "4")
	expect("4+3", true)
	// One that is replaced by a link to another one of the same size and time, as a kubelet does.
	other := filepath.Join(dir, "other")
	write(t, other, "5")
	info, err := os.Stat(a)
	if err == nil {
		err = os.Chtimes(other, info.ModTime(), info.ModTime())
	}
	if err == nil {
		err = os.Remove(a)
	}
	if err == nil {
		err = os.Symlink(other, a)
	}
	if err != nil {
		t.Fatal(err)
	}
	expect("5+3", true)
	if err := os.Remove(b); err != nil {
		t.Fatal(err)
	}
	expect("5+3", false)
}

// TestAFileThatIsUnchangedIsNotRead: to look at it is cheap.
func TestAFileThatIsUnchangedIsNotRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	write(t, path, "1")
	times := 0
	v := NewValue("a text", func(texts [][]byte) (string, error) { times++; return joined(texts) }, logr.Discard(), path)
	for range 3 {
		if err := v.Read(); err != nil {
			t.Fatal(err)
		}
	}
	if times != 1 {
		t.Errorf("it was read %d times", times)
	}
}

// TestFollowReadsChangesAndLogsEachProblemOnce: it ends with its context.
func TestFollowReadsChangesAndLogsEachProblemOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	synctest.Test(t, func(t *testing.T) {
		var logged strings.Builder
		v := NewValue("a text", joined, funcr.New(func(_, args string) { logged.WriteString(args + "\n") }, funcr.Options{}), path)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); v.Follow(ctx) }()
		later := func() {
			time.Sleep(10 * lookEvery)
			synctest.Wait()
		}
		later()
		write(t, path, "1")
		later()
		if got, err := v.Get(); got != "1" || err != nil {
			t.Errorf("the value is %q, %v", got, err)
		}
		write(t, path, "half")
		later()
		if n := strings.Count(logged.String(), "Reading a file failed"); n != 2 {
			t.Errorf("two problems are logged %d times:\n%s", n, logged.String())
		}
		cancel()
		<-ended
	})
}

// TestReadRefusesAllButSmallRegularFiles: it does not wait for a pipe.
func TestReadRefusesAllButSmallRegularFiles(t *testing.T) {
	dir := t.TempDir()
	pipe, large := filepath.Join(dir, "pipe"), filepath.Join(dir, "large")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	write(t, large, strings.Repeat("a", maxSize+1))
	for _, path := range []string{pipe, large, dir, filepath.Join(dir, "missing")} {
		if _, err := Read(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestWriteReplacesAFileWithMode0600: it leaves no other file.
func TestWriteReplacesAFileWithMode0600(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	write(t, path+".tmp", "left by a loss of power, and longer")
	for _, text := range []string{"1", "2"} {
		if err := Write(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if got, err := Read(path); string(got) != text || err != nil {
			t.Errorf("it has %q, %v", got, err)
		}
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(dir); info.Mode().Perm() != 0o600 || len(entries) != 1 || err != nil {
		t.Errorf("its mode is %s, beside it are %v, %v", info.Mode(), entries, err)
	}
	if err := Write(filepath.Join(dir, "missing", "a"), nil); err == nil {
		t.Error("a file is written into a directory that is missing")
	}
}
