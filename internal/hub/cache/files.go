package cache

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync/atomic"
	"syscall"
)

// directory is the access to the files of a store. Tests put one with faults in its place.
type directory interface {
	// List returns the names of the files.
	List() ([]string, error)
	// Create creates a file that does not exist yet.
	Create(name string) (file, error)
	// Open opens a file for reading, and for writing where that is permitted.
	Open(name string) (file, error)
	Rename(from, to string) error
	Remove(name string) error
	// Sync makes names durable.
	Sync() error
	// Close releases the lock.
	Close() error
}

type file interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Size() (int64, error)
	// Sync makes the contents durable.
	Sync() error
}

const lockName = "lock"

// counters count what is written to a disk.
type counters struct{ bytes, syncs atomic.Int64 }

// openDirectory creates the directory if it is missing, and locks it.
func openDirectory(path string) (_ directory, err error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	d := &osDirectory{root: root, written: &counters{}}
	defer func() {
		if err != nil {
			_ = d.Close()
		}
	}()
	if d.dir, err = root.Open("."); err != nil {
		return nil, err
	}
	info, err := d.dir.Stat()
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm() != 0o700 {
		if err := d.dir.Chmod(0o700); err != nil {
			return nil, err
		}
	}
	if d.lock, err = openWritable(root, lockName, os.O_CREATE); err != nil {
		return nil, err
	}
	// The lock belongs to the open file: it also keeps a second store of this process out,
	// and ends with the process.
	err = syscall.Flock(int(d.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, ErrLocked
	}
	if err != nil {
		return nil, fmt.Errorf("locking %s: %w", lockName, err)
	}
	return d, nil
}

// openWritable opens a file for reading and writing, or only for reading if the file system is
// read-only: the logs can still be read then, and a write returns an error.
func openWritable(root *os.Root, name string, flags int) (*os.File, error) {
	f, err := root.OpenFile(name, os.O_RDWR|flags, 0o600)
	if errors.Is(err, syscall.EROFS) {
		return root.Open(name)
	}
	return f, err
}

type osDirectory struct {
	root *os.Root
	dir  *os.File
	lock *os.File

	written *counters
}

func (d *osDirectory) List() ([]string, error) {
	entries, err := fs.ReadDir(d.root.FS(), ".")
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		if e.Type().IsRegular() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

func (d *osDirectory) Create(name string) (file, error) {
	f, err := d.root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	return osFile{f, d.written}, nil
}

func (d *osDirectory) Open(name string) (file, error) {
	f, err := openWritable(d.root, name, 0)
	if err != nil {
		return nil, err
	}
	return osFile{f, d.written}, nil
}

func (d *osDirectory) Rename(from, to string) error { return d.root.Rename(from, to) }

func (d *osDirectory) Remove(name string) error { return d.root.Remove(name) }

func (d *osDirectory) Sync() error {
	d.written.syncs.Add(1)
	return d.dir.Sync()
}

func (d *osDirectory) Close() error {
	var errs []error
	for _, f := range []*os.File{d.lock, d.dir} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(append(errs, d.root.Close())...)
}

type osFile struct {
	*os.File

	written *counters
}

// WriteAt implements io.WriterAt.
func (f osFile) WriteAt(b []byte, offset int64) (int, error) {
	n, err := f.File.WriteAt(b, offset)
	f.written.bytes.Add(int64(n))
	return n, err
}

// Sync implements file.
func (f osFile) Sync() error {
	f.written.syncs.Add(1)
	return f.File.Sync()
}

func (f osFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}
