package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCopy packs a directory and a file and unpacks both, as kubectl cp does in two containers.
func TestCopy(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	if err := os.MkdirAll(filepath.Join(from, "below"), 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(from, "below", "file")
	if err := os.WriteFile(file, []byte("content"), 0o640); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{from, file} {
		var packed bytes.Buffer
		if err := archive([]string{"cf", "-", path}, nil, &packed); err != nil {
			t.Fatal(err)
		}
		target := filepath.Join(to, filepath.Base(path)+"-target")
		if err := os.Mkdir(target, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := archive([]string{"-xmf", "-", "-C", target}, &packed, nil); err != nil {
			t.Fatal(err)
		}
		copied := filepath.Join(target, file)
		if content, err := os.ReadFile(copied); err != nil || string(content) != "content" {
			t.Errorf("the copy has %q, %v", content, err)
		}
		if info, err := os.Stat(copied); err != nil || info.Mode().Perm() != 0o640 {
			t.Errorf("the copy is %v, %v", info, err)
		}
	}
}

// TestTarRefuses what it does not know.
func TestTarRefuses(t *testing.T) {
	if err := archive([]string{"tf", "-"}, nil, nil); err == nil || !strings.Contains(err.Error(), "tar tf -") {
		t.Errorf("an unknown verb: %v", err)
	}
	if err := archive([]string{"cf", "-", filepath.Join(t.TempDir(), "missing")}, nil, &bytes.Buffer{}); err == nil {
		t.Error("a file that is missing is packed")
	}
}
