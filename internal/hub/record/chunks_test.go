package record

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/atoll-k8s/atoll/internal/hub/cache"
)

// TestUnfinishedChunkedListsAreDropped: clients can begin any number of lists in chunks. Their files are bounded
// in size and time.
func TestUnfinishedChunkedListsAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := t.TempDir()
		store, err := cache.Open(path, cache.Options{})
		if err != nil {
			t.Fatal(err)
		}
		files := func() (n int) {
			entries, err := os.ReadDir(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				if strings.HasSuffix(e.Name(), ".tmp") {
					n++
				}
			}
			return n
		}
		all := &chunks{maxBytes: 5 << 20}
		begin := func(key, next string) {
			t.Helper()
			snapshot, err := store.Snapshot(key)
			if err == nil {
				err = snapshot.Add("a", make([]byte, 1<<20))
			}
			if err != nil {
				t.Fatal(err)
			}
			all.put(key, next, snapshot)
		}
		for i := range 10 {
			begin("one", fmt.Sprint(i))
		}
		if got := files(); got != 1 {
			t.Errorf("10 lists of one scope have %d files", got)
		}
		for i := range 10 {
			begin(fmt.Sprint(i), "next")
		}
		if got := files(); got != 4 {
			t.Errorf("lists of a little more than 1 MiB have %d files within 5 MiB", got)
		}
		if snapshot := all.take("9", "next"); snapshot == nil {
			t.Error("the last list cannot be continued")
		} else {
			snapshot.Abort()
		}
		time.Sleep(chunkWithin)
		synctest.Wait()
		if got := files(); got != 0 {
			t.Errorf("after %s, %d files are left", chunkWithin, got)
		}
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
}
