package hub

import (
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/go-logr/logr"

	"github.com/atoll-k8s/atoll/internal/hub/cache"
	"github.com/atoll-k8s/atoll/internal/hub/config"
	"github.com/atoll-k8s/atoll/internal/hub/files"
	"github.com/atoll-k8s/atoll/internal/hub/journal"
)

// keySize is the size of an encryption key, and the least size of its file, in bytes.
const keySize = 32

// temporaryPrefix is the prefix of the names of caches that are deleted when the hub exits.
const temporaryPrefix = "atoll-hub-"

// openCache opens the cache. If that fails, for example because the disk is read-only or the encryption key
// cannot be read, the hub uses a temporary cache, which is deleted when the hub exits. done closes the cache.
func openCache(dir string, c config.Cache, options cache.Options) (store *cache.Store, done func() error, err error) {
	log := options.Log
	removeTemporary(log)
	options.MaxBytes = c.MaxSize.Value()
	if c.EncryptionKeyFile != "" {
		options.Key, err = readKey(c.EncryptionKeyFile)
	}
	if err == nil {
		store, err = cache.Open(dir, options)
	}
	if err == nil {
		return store, store.Close, nil
	}
	if errors.Is(err, cache.ErrLocked) {
		return nil, nil, err
	}
	log.Error(err, "Opening the cache failed; using a temporary cache that is deleted when the hub exits")
	if c.EncryptionKeyFile != "" {
		options.Key = make([]byte, keySize)
		_, _ = rand.Read(options.Key) // never fails
	}
	temporary, errTemporary := os.MkdirTemp("", temporaryPrefix)
	if errTemporary == nil {
		store, errTemporary = cache.Open(temporary, options)
	}
	if errTemporary != nil {
		return nil, nil, errors.Join(err, errTemporary)
	}
	return store, func() error { return errors.Join(store.Close(), os.RemoveAll(temporary)) }, nil
}

// removeTemporary removes the temporary caches of hubs that were killed.
func removeTemporary(log logr.Logger) {
	paths, err := filepath.Glob(filepath.Join(os.TempDir(), temporaryPrefix+"*"))
	if err != nil {
		return // TempDir is not a valid glob
	}
	for _, path := range paths {
		info, err := os.Lstat(path)
		if err != nil || !info.IsDir() {
			continue // every user may create a link here
		}
		if owner, is := info.Sys().(*syscall.Stat_t); !is || int64(owner.Uid) != int64(os.Getuid()) {
			continue
		}
		if err := cache.RemoveUnused(path); err != nil && !errors.Is(err, cache.ErrLocked) {
			log.Info("Removing a directory that may be a temporary cache of an earlier run failed", "reason", err.Error())
		}
	}
}

// openJournal opens the journal of writes. If that fails, for example because the disk is read-only or the
// encryption key cannot be read, it returns nil: the hub then rejects writes while offline.
func openJournal(dir string, c config.Cache, options journal.Options) (writes *journal.Journal, err error) {
	if c.EncryptionKeyFile != "" {
		options.Key, err = readKey(c.EncryptionKeyFile)
	}
	if err == nil {
		writes, err = journal.Open(dir, options)
	}
	if errors.Is(err, cache.ErrLocked) {
		return nil, err
	}
	if err != nil {
		options.Log.Error(err, "Opening the journal failed; writes of the node are rejected while offline")
		return nil, nil
	}
	return writes, nil
}

// readKey derives the encryption key from the content of a file.
func readKey(path string) ([]byte, error) {
	secret, err := files.Read(path)
	if err != nil {
		return nil, fmt.Errorf("reading cache.encryptionKeyFile: %w", err)
	}
	if len(secret) < keySize {
		return nil, fmt.Errorf("reading cache.encryptionKeyFile: %s has %d bytes; write at least %d random ones into it", path, len(secret), keySize)
	}
	return hkdf.Key(sha256.New, secret, nil, "atoll-hub: what is kept", keySize)
}
