// Package files reads small files that others replace while the hub runs, such as certificates and
// CAs, and writes small files that survive a loss of power. What is read once stays in use while its
// file is missing or damaged, and nobody who asks for it waits for the disk. It must not know what the
// files are for.
package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-logr/logr"
)

const (
	// maxSize bounds a file, in bytes.
	maxSize = 1 << 20
	// lookEvery is the time between two looks at whether files have changed.
	lookEvery = 2 * time.Second
)

// ErrNotRead is the error of a value that could not be read yet, wrapped.
var ErrNotRead = errors.New("it could not be read yet")

// Value is what one or more files contain, at the last time at which all of them could be read. It is
// safe for concurrent use.
type Value[T any] struct {
	what  string
	paths []string
	parse func([][]byte) (T, error)
	log   logr.Logger

	reading sync.Mutex // held while files are read
	seen    []stamp    // of the files that were read

	mu      sync.Mutex
	value   T
	has     bool
	problem error // of the last attempt
}

// stamp tells versions of a file apart. Its time alone does not: clocks jump, and have ticks.
type stamp struct {
	changed time.Time
	size    int64
	info    os.FileInfo
}

// NewValue returns the value that parse makes of the contents of files, in their order. what says in
// messages what it is. Nothing is read before Read or Follow.
func NewValue[T any](what string, parse func([][]byte) (T, error), log logr.Logger, paths ...string) *Value[T] {
	return &Value[T]{what: what, paths: paths, parse: parse, log: log}
}

// Get returns the value. Its error wraps ErrNotRead. It does not wait for the disk.
func (v *Value[T]) Get() (T, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.has {
		return v.value, fmt.Errorf("%w: %w", ErrNotRead, v.problem)
	}
	return v.value, nil
}

// Read reads the files if one of them is another one than before. If that fails the value stays.
func (v *Value[T]) Read() error {
	v.reading.Lock()
	defer v.reading.Unlock()
	stamps, err := stampsOf(v.paths)
	if err == nil && equal(stamps, v.seen) {
		v.settle(nil) // it may have been missing for a while
		return nil
	}
	var value T
	if err == nil {
		value, err = v.contents()
	}
	if err != nil {
		err = fmt.Errorf("reading %s: %w", v.what, err)
		v.settle(err)
		return err
	}
	v.mu.Lock()
	isChange := v.has
	v.value, v.has = value, true
	v.mu.Unlock()
	v.seen = stamps
	v.settle(nil)
	if isChange {
		v.log.Info("A file was read again", "what", v.what, "file", v.paths[0])
	}
	return nil
}

func (v *Value[T]) contents() (value T, err error) {
	texts := make([][]byte, len(v.paths))
	for i, path := range v.paths {
		if texts[i], err = Read(path); err != nil {
			return value, err
		}
	}
	if value, err = v.parse(texts); err != nil {
		err = fmt.Errorf("%s: %w", v.paths[0], err)
	}
	return value, err
}

func (v *Value[T]) settle(problem error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.problem = problem
}

// Follow reads the files when they change, until ctx is done.
func (v *Value[T]) Follow(ctx context.Context) {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	logged := ""
	for {
		now := ""
		if err := v.Read(); err != nil {
			now = err.Error()
		}
		if now != "" && now != logged {
			_, err := v.Get()
			v.log.Info("A file cannot be used", "reason", now, "theLastContentIsUsed", err == nil)
		}
		logged = now
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func stampsOf(paths []string) ([]stamp, error) {
	stamps := make([]stamp, len(paths))
	for i, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		stamps[i] = stamp{info.ModTime(), info.Size(), info}
	}
	return stamps, nil
}

func equal(a, b []stamp) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !a[i].changed.Equal(b[i].changed) || a[i].size != b[i].size || !os.SameFile(a[i].info, b[i].info) {
			return false
		}
	}
	return true
}

// Read reads a regular file of up to 1 MiB.
func Read(path string) ([]byte, error) {
	info, err := os.Stat(path) // to open a pipe could take forever
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxSize+1))
	if err == nil && len(text) > maxSize {
		err = fmt.Errorf("%s has more than %d bytes", path, maxSize)
	}
	return text, err
}

// Write replaces a file with one of mode 0600, so that after a loss of power it has the old or the new
// content, and the new one once Write has returned.
func Write(path string, content []byte) error {
	temporary := path + ".tmp"
	file, err := os.OpenFile(temporary, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := os.Rename(temporary, path); err != nil {
		return err
	}
	return syncDirectory(filepath.Dir(path))
}

// syncDirectory makes the names of files durable.
func syncDirectory(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
