package cache

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
)

// Directory is the access to the files of a store. Tests replace it by one with faults.
type Directory interface {
	// List returns the names of the files.
	List() ([]string, error)
	// Create creates a file that does not exist yet.
	Create(name string) (File, error)
	// Open opens a file for reading, and for writing if the file system permits it.
	Open(name string) (File, error)
	Rename(from, to string) error
	Remove(name string) error
	// Sync makes names durable.
	Sync() error
	// Close releases the lock.
	Close() error
}

// File is a file of a Directory.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Size() (int64, error)
	// Sync makes the contents durable. Its error wraps errRemoved if another process has removed the file.
	Sync() error
}

const lockName = "lock"

// counters count the bytes written and the fsync calls.
type counters struct{ bytes, syncs atomic.Int64 }

// errRemoved means that another process has removed a file or the directory while the store uses it.
var errRemoved = errors.New("removed by another process while in use")

// openDirectory creates the directory if it is missing, and locks it.
func openDirectory(path string) (Directory, error) {
	opened, err := openRoot(path)
	if err != nil {
		return nil, err
	}
	return &osDirectory{path: path, opened: opened, written: &counters{}}, nil
}

// opened is a directory that is open and locked.
type opened struct {
	root *os.Root
	dir  *os.File
	lock *os.File
}

func openRoot(path string) (_ *opened, err error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	d := &opened{root: root}
	defer func() {
		if err != nil {
			_ = d.close()
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
	// The lock belongs to the open file: it also excludes a second store of this process, and ends with the
	// process.
	err = syscall.Flock(int(d.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, ErrLocked
	}
	if err != nil {
		return nil, fmt.Errorf("locking %s: %w", lockName, err)
	}
	return d, nil
}

func (d *opened) close() error {
	var errs []error
	for _, f := range []*os.File{d.lock, d.dir} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(append(errs, d.root.Close())...)
}

// openWritable opens a file for reading and writing, or only for reading if the file system is read-only: the
// logs are then readable, and a write returns an error.
func openWritable(root *os.Root, name string, flags int) (*os.File, error) {
	f, err := root.OpenFile(name, os.O_RDWR|flags, 0o600)
	if errors.Is(err, syscall.EROFS) {
		return root.Open(name)
	}
	return f, err
}

type osDirectory struct {
	path    string
	written *counters

	mu sync.RWMutex // held while opened is used
	*opened
}

// check returns an error if the directory is no longer at its path. It then creates the directory again, and
// later writes go there.
func (d *osDirectory) check() error {
	err := d.compare()
	if err == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	next, errOpen := openRoot(d.path)
	if errOpen == nil {
		_ = d.opened.close() // its files are deleted
		d.opened = next
	}
	return errors.Join(err, errOpen)
}

// compare returns an error if the directory is no longer at its path.
func (d *osDirectory) compare() error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	there, err := os.Stat(d.path)
	if err != nil {
		return fmt.Errorf("%w: %w", errRemoved, err)
	}
	own, err := d.dir.Stat()
	if err == nil && !os.SameFile(there, own) {
		err = fmt.Errorf("%s: %w", d.path, errRemoved)
	}
	return err
}

func (d *osDirectory) List() ([]string, error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
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

func (d *osDirectory) Create(name string) (File, error) {
	f, err := d.create(name)
	if errors.Is(err, fs.ErrNotExist) && d.check() != nil {
		return d.create(name)
	}
	return f, err
}

func (d *osDirectory) create(name string) (File, error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	f, err := d.root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	return osFile{f, d, d.opened}, nil
}

func (d *osDirectory) Open(name string) (File, error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	f, err := openWritable(d.root, name, 0)
	if err != nil {
		return nil, err
	}
	return osFile{f, d, d.opened}, nil
}

func (d *osDirectory) Rename(from, to string) error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.root.Rename(from, to)
}

func (d *osDirectory) Remove(name string) error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.root.Remove(name)
}

func (d *osDirectory) Sync() error {
	d.written.syncs.Add(1)
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.dir.Sync()
}

func (d *osDirectory) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.opened.close()
}

type osFile struct {
	*os.File

	in   *osDirectory
	with *opened // the value of in.opened when the file was opened
}

// WriteAt implements io.WriterAt.
func (f osFile) WriteAt(b []byte, offset int64) (int, error) {
	n, err := f.File.WriteAt(b, offset)
	f.in.written.bytes.Add(int64(n))
	return n, err
}

// Sync implements File. It returns an error for a deleted file: it is not durable, although fsync succeeds.
func (f osFile) Sync() error {
	f.in.written.syncs.Add(1)
	if err := f.File.Sync(); err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	err = f.in.check()
	f.in.mu.RLock()
	defer f.in.mu.RUnlock()
	if s, is := info.Sys().(*syscall.Stat_t); err == nil && (is && s.Nlink == 0 || f.with != f.in.opened) {
		err = fmt.Errorf("%s: %w", f.Name(), errRemoved)
	}
	return err
}

func (f osFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}
