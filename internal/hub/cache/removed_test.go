package cache

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
)

// TestStoreRecoversFromRemovedFiles: a write without a file is not reported as durable, the loss is logged once,
// and later writes are in the directory again.
func TestStoreRecoversFromRemovedFiles(t *testing.T) {
	for name, remove := range map[string]func(dir string) error{
		"the directory":          os.RemoveAll,
		"the parent directory":   func(dir string) error { return os.RemoveAll(filepath.Dir(dir)) },
		"the directory is moved": func(dir string) error { return os.Rename(dir, dir+".old") },
		"another directory is in its place": func(dir string) error {
			return errors.Join(os.Rename(dir, dir+".old"), os.Mkdir(dir, 0o700))
		},
		"the files": func(dir string) error {
			names, err := filepath.Glob(filepath.Join(dir, "*"))
			for _, name := range names {
				err = errors.Join(err, os.Remove(name))
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "state", "cache")
			logged := 0
			log := funcr.New(func(_, args string) {
				if strings.Contains(args, "removed files of the cache") {
					logged++
				}
			}, funcr.Options{})
			s, err := Open(dir, Options{SyncEvery: time.Millisecond, Log: log})
			if err != nil {
				t.Fatal(err)
			}
			var writers []*Writer
			for _, key := range []string{"a", "b"} {
				w, err := s.Replace(key, nil, func(yield func(string, []byte) bool) { yield("before", []byte(key)) })
				if err == nil {
					err = w.Flush(context.Background())
				}
				if err != nil {
					t.Fatal(err)
				}
				writers = append(writers, w)
			}
			if !s.Removed().IsZero() {
				t.Error("files are removed at the start")
			}
			if err := remove(dir); err != nil {
				t.Fatal(err)
			}
			for _, w := range writers {
				err := w.Put("lost", nil, nil)
				if err == nil {
					err = w.Flush(context.Background())
				}
				if !errors.Is(err, errRemoved) {
					t.Errorf("what has no file is durable: %v", err)
				}
			}
			if s.Removed().IsZero() || logged != 1 {
				t.Errorf("it is noticed at %s, and logged %d times", s.Removed(), logged)
			}
			// One is continued, one is new.
			w, _, err := s.Resume("a")
			if err == nil {
				err = w.Put("after", []byte("a"), nil)
			}
			if err == nil {
				writers[1], err = s.Replace("b", nil, func(yield func(string, []byte) bool) { yield("after", []byte("b")) })
			}
			if err := errors.Join(err, w.Flush(context.Background()), writers[1].Flush(context.Background()), s.Close()); err != nil {
				t.Fatal(err)
			}
			if s, err = Open(dir, Options{}); err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			for _, key := range []string{"a", "b"} {
				view, err := s.View(key)
				if err != nil {
					t.Fatal(err)
				}
				if value, err := view.Get("after"); err != nil || string(value) != key {
					t.Errorf("after a restart %s has %q, %v", key, value, err)
				}
				view.Close()
			}
		})
	}
}
