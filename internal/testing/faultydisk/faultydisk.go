// Package faultydisk lets the disk of a cache fail. Only tests use it.
package faultydisk

import (
	"fmt"

	"github.com/atoll-k8s/atoll/internal/hub/cache"
)

// Of returns a cache.Options.Wrap. fail is called before each change on disk; if it returns an error, the change is
// not made, and fails with this error. A nil fail lets nothing fail.
func Of(fail func(op string) error) func(cache.Directory) cache.Directory {
	if fail == nil {
		return nil
	}
	return func(d cache.Directory) cache.Directory { return &faulty{d, fail} }
}

// faulty is a directory whose changes fail.
type faulty struct {
	cache.Directory

	fail func(op string) error
}

// call calls do, unless fail returns an error.
func (d *faulty) call(op string, do func() error) error {
	if err := d.fail(op); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return do()
}

// Create implements cache.Directory.
func (d *faulty) Create(name string) (f cache.File, err error) {
	err = d.call("create", func() (err error) { f, err = d.Directory.Create(name); return err })
	return &faultyFile{f, d}, err
}

// Open implements cache.Directory.
func (d *faulty) Open(name string) (cache.File, error) {
	f, err := d.Directory.Open(name)
	return &faultyFile{f, d}, err
}

// Rename implements cache.Directory.
func (d *faulty) Rename(from, to string) error {
	return d.call("rename", func() error { return d.Directory.Rename(from, to) })
}

// Remove implements cache.Directory.
func (d *faulty) Remove(name string) error {
	return d.call("remove", func() error { return d.Directory.Remove(name) })
}

// Sync implements cache.Directory.
func (d *faulty) Sync() error { return d.call("sync of names", d.Directory.Sync) }

type faultyFile struct {
	cache.File

	of *faulty
}

// WriteAt implements io.WriterAt.
func (f *faultyFile) WriteAt(b []byte, offset int64) (n int, err error) {
	err = f.of.call("write", func() (err error) { n, err = f.File.WriteAt(b, offset); return err })
	return n, err
}

// Sync implements cache.File.
func (f *faultyFile) Sync() error { return f.of.call("sync", f.File.Sync) }
