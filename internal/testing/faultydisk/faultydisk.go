package cache

import "fmt"

// faulty is a directory whose changes fail on request of a test: see Options.Fail.
type faulty struct {
	directory

	fail func(op string) error
}

// call calls do, unless fail returns an error.
func (d *faulty) call(op string, do func() error) error {
	if err := d.fail(op); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return do()
}

// Create implements directory.
func (d *faulty) Create(name string) (f file, err error) {
	err = d.call("create", func() (err error) { f, err = d.directory.Create(name); return err })
	return &faultyFile{f, d}, err
}

// Open implements directory.
func (d *faulty) Open(name string) (file, error) {
	f, err := d.directory.Open(name)
	return &faultyFile{f, d}, err
}

// Rename implements directory.
func (d *faulty) Rename(from, to string) error {
	return d.call("rename", func() error { return d.directory.Rename(from, to) })
}

// Remove implements directory.
func (d *faulty) Remove(name string) error {
	return d.call("remove", func() error { return d.directory.Remove(name) })
}

// Sync implements directory.
func (d *faulty) Sync() error { return d.call("sync of names", d.directory.Sync) }

type faultyFile struct {
	file

	of *faulty
}

// WriteAt implements io.WriterAt.
func (f *faultyFile) WriteAt(b []byte, offset int64) (n int, err error) {
	err = f.of.call("write", func() (err error) { n, err = f.file.WriteAt(b, offset); return err })
	return n, err
}

// Sync implements file.
func (f *faultyFile) Sync() error { return f.of.call("sync", f.file.Sync) }
