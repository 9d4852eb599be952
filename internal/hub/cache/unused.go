package cache

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// RemoveUnused removes the directory of a store whose process was killed. It returns ErrLocked if a store uses
// the directory. It does not remove a directory that contains a file which is not part of a store.
func RemoveUnused(path string) error {
	entries, err := os.ReadDir(path)
	if err != nil {
		return fmt.Errorf("removing a cache: %w", err)
	}
	for _, e := range entries {
		if _, _, ok := parseName(e.Name()); !e.Type().IsRegular() || !ok && e.Name() != lockName {
			return fmt.Errorf("removing a cache: %s contains the file %q, which is not part of a cache", path, e.Name())
		}
	}
	lock, err := os.Open(filepath.Join(path, lockName))
	if err == nil {
		defer lock.Close()
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return ErrLocked
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // it may have been killed before it created the lock
		return fmt.Errorf("removing a cache: %w", err)
	}
	for _, e := range entries {
		if err := os.Remove(filepath.Join(path, e.Name())); err != nil {
			return fmt.Errorf("removing a cache: %w", err)
		}
	}
	return os.Remove(path)
}
