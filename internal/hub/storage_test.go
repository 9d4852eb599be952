package hub

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/atoll-k8s/atoll/internal/hub/cache"
	"github.com/atoll-k8s/atoll/internal/hub/config"
)

// storage is a cache with a key file.
type storage struct {
	*testing.T

	dir    string
	config config.Cache
	log    logr.Logger
	logged bytes.Buffer
}

func newStorage(t *testing.T) *storage {
	s := &storage{T: t, dir: filepath.Join(t.TempDir(), "cache"), config: config.Cache{
		MaxSize: resource.NewQuantity(16<<20, resource.BinarySI), EncryptionKeyFile: filepath.Join(t.TempDir(), "key"),
	}}
	s.log = funcr.New(func(_, args string) { s.logged.WriteString(args + "\n") }, funcr.Options{})
	t.Setenv("TMPDIR", t.TempDir())
	return s
}

func (s *storage) key(content string) {
	s.Helper()
	if err := os.WriteFile(s.config.EncryptionKeyFile, []byte(content), 0o600); err != nil {
		s.Fatal(err)
	}
}

// with opens the cache for what use does.
func (s *storage) with(use func(*cache.Store)) {
	s.Helper()
	store, done, err := openCache(s.dir, s.config, cache.Options{Log: s.log})
	if err != nil {
		s.Fatal(err)
	}
	use(store)
	if err := done(); err != nil {
		s.Error(err)
	}
}

func (s *storage) put(store *cache.Store) {
	s.Helper()
	if _, err := store.Replace("who\nwhat", []byte("head"), func(yield func(string, []byte) bool) { yield("id", []byte("the content of a Secret")) }); err != nil {
		s.Error(err)
	}
}

// has reports whether what put has stored is there.
func (s *storage) has(store *cache.Store) bool {
	view, err := store.View("who\nwhat")
	if err != nil {
		return false
	}
	defer view.Close()
	value, err := view.Get("id")
	return err == nil && string(value) == "the content of a Secret"
}

// contains reports whether a file below a directory has a text.
func contains(t *testing.T, dir, text string) bool {
	t.Helper()
	found := false
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		found = found || bytes.Contains(content, []byte(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestCacheOnDiskIsEncrypted: the key is the content of a file. The cache is there after a restart.
func TestCacheOnDiskIsEncrypted(t *testing.T) {
	s := newStorage(t)
	s.key(strings.Repeat("k", 32))
	s.with(s.put)
	for _, text := range []string{"Secret", "what", "head"} {
		if contains(t, s.dir, text) {
			t.Errorf("%q is on disk", text)
		}
	}
	s.with(func(store *cache.Store) {
		if !s.has(store) {
			t.Error("it is not there after a restart")
		}
	})
}

// TestChangedKeyClearsTheCache: the log says so.
func TestChangedKeyClearsTheCache(t *testing.T) {
	for name, change := range map[string]func(*storage){
		"another key":    func(s *storage) { s.key(strings.Repeat("x", 32)) },
		"no key":         func(s *storage) { s.config.EncryptionKeyFile = "" },
		"a key at first": func(s *storage) { s.key(strings.Repeat("k", 33)) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStorage(t)
			s.key(strings.Repeat("k", 32))
			if name == "a key at first" {
				plain := s.config
				plain.EncryptionKeyFile = ""
				encrypted := s.config
				s.config = plain
				s.with(s.put)
				s.config = encrypted
			} else {
				s.with(s.put)
			}
			change(s)
			s.with(func(store *cache.Store) {
				if s.has(store) {
					t.Error("it can be read")
				}
				s.put(store)
			})
			if !strings.Contains(s.logged.String(), "starting with an empty cache") {
				t.Errorf("the log is %s", &s.logged)
			}
			s.logged.Reset()
			s.with(func(store *cache.Store) {
				if !s.has(store) || s.logged.Len() > 0 {
					t.Errorf("the new one is not kept: %s", &s.logged)
				}
			})
		})
	}
}

// TestUnreadableKeyLeavesTheCacheOnDiskUnchanged: the hub serves with a temporary cache, and uses the old one
// once the key is there again.
func TestUnreadableKeyLeavesTheCacheOnDiskUnchanged(t *testing.T) {
	s := newStorage(t)
	s.key(strings.Repeat("k", 32))
	s.with(s.put)
	for name, change := range map[string]func() error{
		"no file":        func() error { return os.Remove(s.config.EncryptionKeyFile) },
		"too short":      func() error { return os.WriteFile(s.config.EncryptionKeyFile, []byte("secret"), 0o600) },
		"a directory":    func() error { return os.Mkdir(s.config.EncryptionKeyFile, 0o700) },
		"it is too long": func() error { return os.WriteFile(s.config.EncryptionKeyFile, make([]byte, 2<<20), 0o600) },
	} {
		if err := os.RemoveAll(s.config.EncryptionKeyFile); err != nil {
			t.Fatal(err)
		}
		if name == "no file" {
			s.key("there")
		}
		if err := change(); err != nil {
			t.Fatal(err)
		}
		s.logged.Reset()
		s.with(func(store *cache.Store) {
			if s.has(store) {
				t.Errorf("%s: it can be read", name)
			}
			s.put(store)
			if !s.has(store) {
				t.Errorf("%s: the hub keeps nothing while it runs", name)
			}
			if contains(t, os.Getenv("TMPDIR"), "Secret") {
				t.Errorf("%s: it is on disk", name)
			}
		})
		if !strings.Contains(s.logged.String(), "cache.encryptionKeyFile") {
			t.Errorf("%s: the log is %s", name, &s.logged)
		}
	}
	if err := os.RemoveAll(s.config.EncryptionKeyFile); err != nil {
		t.Fatal(err)
	}
	s.key(strings.Repeat("k", 32))
	s.with(func(store *cache.Store) {
		if !s.has(store) {
			t.Error("with its key it is not there any more")
		}
	})
}

// TestTemporaryCachesOfEarlierRunsAreRemoved: a directory that is in use or has only a similar name stays, and so
// does the target of a link.
func TestTemporaryCachesOfEarlierRunsAreRemoved(t *testing.T) {
	s := newStorage(t)
	s.key(strings.Repeat("k", 32))
	at := func(name string) string { return filepath.Join(os.Getenv("TMPDIR"), name) }
	leave := func(dir string) *cache.Store {
		t.Helper()
		store, err := cache.Open(dir, cache.Options{Log: logr.Discard()})
		if err != nil {
			t.Fatal(err)
		}
		s.put(store)
		return store
	}
	outside := filepath.Join(t.TempDir(), "outside")
	for _, dir := range []string{at("atoll-hub-1"), outside} {
		if err := leave(dir).Close(); err != nil { // as after a kill, the files stay, and the lock is free
			t.Fatal(err)
		}
	}
	used := leave(at("atoll-hub-2"))
	defer used.Close()
	for _, dir := range []string{"atoll-hub-3", "atoll-hub-4"} {
		if err := os.Mkdir(at(dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(at("atoll-hub-4/notes"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, at("atoll-hub-5")); err != nil {
		t.Fatal(err)
	}
	s.with(s.put)
	for dir, want := range map[string]bool{at("atoll-hub-1"): false, at("atoll-hub-2"): true, at("atoll-hub-3"): false, at("atoll-hub-4/notes"): true, at("atoll-hub-5"): true, outside: true} {
		if _, err := os.Lstat(dir); (err == nil) != want {
			t.Errorf("%s is there: %t", filepath.Base(dir), err == nil)
		}
	}
	if !s.has(used) {
		t.Error("what is in use is damaged")
	}
}
