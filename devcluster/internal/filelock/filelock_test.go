package filelock

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
)

func TestLockIsExclusive(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := Lock(t.Context(), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := Lock(ctx, path, cancel); !errors.Is(err, context.Canceled) {
		t.Errorf("taking a held lock: %v, want Canceled", err)
	}
	second, err := Lock(t.Context(), path, unlock)
	if err != nil {
		t.Fatalf("taking a lock that is given back meanwhile: %v", err)
	}
	second()
}
