package journal

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestJournalRecoversFromARemovedDirectory: the directory is removed while the journal is open. A write without
// a file is not acknowledged. Once everything is written again, it is there after a restart.
func TestJournalRecoversFromARemovedDirectory(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	dir := filepath.Join(state, "writes")
	j, err := Open(dir, Options{SyncEvery: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Keep(context.Background(), entry(Event, "a", Whole, "1")); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(state); err != nil {
		t.Fatal(err)
	}
	if err := j.Keep(context.Background(), entry(Event, "a", Whole, "2")); err == nil || j.Summary().Problem == nil {
		t.Errorf("what has no file is kept: %v; the problem is %v", err, j.Summary().Problem)
	}
	if err := j.Keep(context.Background(), entry(Event, "a", Whole, "3")); err != nil || j.Summary().Problem != nil {
		t.Errorf("it is not written anew: %v; the problem is %v", err, j.Summary().Problem)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if j, err = Open(dir, Options{}); err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	if got := texts(j.Entries()); len(got) != 1 || got[0] != "a 3" {
		t.Errorf("after a restart there is %v", got)
	}
}
