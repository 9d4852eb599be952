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

// keySize is the size of an encryption key, and the least of what it is made from, in bytes.
const keySize = 32

// temporaryPrefix begins the names of caches that are gone with their hub.
const temporaryPrefix = "atoll-hub-"

// openCache opens the cache. If that is not possible, for example because the disk is read-only or the
// encryption key cannot be read, the hub serves with one that is gone with it. done closes it.
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
	log.Error(err, "What is answered is not kept over a restart of the hub")
	if c.EncryptionKeyFile != "" {
		options.Key = make([]byte, keySize)
		_, _ = rand.Read(options.Key) // it never fails
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
		return // the name of the directory is a pattern that is none
	}
	for _, path := range paths {
		info, err := os.Lstat(path)
		if err != nil || !info.IsDir() {
			continue // everybody may make a link here
		}
		if owner, is := info.Sys().(*syscall.Stat_t); !is || int64(owner.Uid) != int64(os.Getuid()) {
			continue
		}
		if err := cache.RemoveUnused(path); err != nil && !errors.Is(err, cache.ErrLocked) {
			log.Info("What may be a temporary cache of an earlier run is not removed", "reason", err.Error())
		}
	}
}

// openJournal opens the journal of writes. If that is not possible, for example because the disk is
// read-only or the encryption key cannot be read, there is none: writes are refused while the cloud is
// away.
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
		options.Log.Error(err, "Writes of the node are not kept while the cloud is away")
		return nil, nil
	}
	return writes, nil
}

// readKey makes the encryption key from the content of a file.
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
