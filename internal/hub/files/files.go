// Package files reads small files that other programs replace while the hub runs, such as certificates and CAs,
// and writes small files that survive a power failure. The last valid content stays in use while a file is
// missing or damaged, and reading a value does not wait for the disk. The package must not know what the files
// are for.
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
	// maxSize is the most bytes of a file.
	maxSize = 1 << 20
	// lookEvery is the time between two checks whether files have changed.
	lookEvery = 2 * time.Second
)

// ErrNotRead is wrapped by the error of a value whose files were never read successfully.
var ErrNotRead = errors.New("not read yet")

// Value is the content of one or more files, as of the last time that all of them could be read. It is safe for
// concurrent use.
type Value[T any] struct {
	what  string
	paths []string
	parse func([][]byte) (T, error)
	log   logr.Logger

	reading sync.Mutex // held while files are read
	seen    []stamp    // the versions of the files that were read

	mu      sync.Mutex
	value   T
	has     bool
	problem error // the error of the last attempt
}

// stamp identifies a version of a file. The time alone does not: clocks jump, and have a limited resolution.
type stamp struct {
	changed time.Time
	size    int64
	info    os.FileInfo
}

// NewValue returns the value that parse computes from the contents of the files, in their order. what names the
// value in messages. Nothing is read before Read or Follow.
func NewValue[T any](what string, parse func([][]byte) (T, error), log logr.Logger, paths ...string) *Value[T] {
	return &Value[T]{what: what, paths: paths, parse: parse, log: log}
}

// Get returns the value. If it was never read, the error wraps ErrNotRead. Get does not wait for the disk.
func (v *Value[T]) Get() (T, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.has {
		return v.value, fmt.Errorf("%w: %w", ErrNotRead, v.problem)
	}
	return v.value, nil
}

// Read reads the files if one of them has changed. If that fails, the value does not change.
func (v *Value[T]) Read() error {
	v.reading.Lock()
	defer v.reading.Unlock()
	stamps, err := stampsOf(v.paths)
	if err == nil && equal(stamps, v.seen) {
		v.settle(nil) // a file may have been missing meanwhile
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
			v.log.Info("Reading a file failed", "reason", now, "theLastContentIsUsed", err == nil)
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

// Read reads a regular file of up to maxSize bytes.
func Read(path string) ([]byte, error) {
	info, err := os.Stat(path) // opening a pipe could block forever
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

// Write replaces a file by one with mode 0600. After a power failure the file has the old or the new content,
// and the new one if Write has returned.
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

// syncDirectory makes file names durable.
func syncDirectory(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
