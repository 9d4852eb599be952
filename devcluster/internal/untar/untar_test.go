package untar

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// packed returns a tar of entries. Those of files have their own names as content.
func packed(t *testing.T, headers ...tar.Header) *bytes.Buffer {
	t.Helper()
	var content bytes.Buffer
	w := tar.NewWriter(&content)
	for _, h := range headers {
		text := ""
		if h.Typeflag == tar.TypeReg {
			text = h.Name
		}
		h.Size = int64(len(text))
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &content
}

// TestUnpack: directories, and files with their modes, also in directories that the tar does not
// have, and in place of longer files. Links and what git adds are left out.
func TestUnpack(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "old"), []byte("longer than its name"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := Unpack(dir, packed(t,
		tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"comment": "0123"}},
		tar.Header{Typeflag: tar.TypeDir, Name: "empty/", Mode: 0o755},
		tar.Header{Typeflag: tar.TypeReg, Name: "below/it/program", Mode: 0o700},
		tar.Header{Typeflag: tar.TypeReg, Name: "./old", Mode: 0o600},
		tar.Header{Typeflag: tar.TypeSymlink, Name: "symbolic", Linkname: "old"},
		tar.Header{Typeflag: tar.TypeLink, Name: "hard", Linkname: "old"},
	))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"below/it/program": "below/it/program", "old": "./old"} {
		if content, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(content) != want {
			t.Errorf("%s has the content %q, %v", name, content, err)
		}
	}
	for name, want := range map[string]fs.FileMode{"empty": fs.ModeDir | 0o755, "below/it": fs.ModeDir | 0o755, "below/it/program": 0o700} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode() != want {
			t.Errorf("%s is %v, %v, want the mode %v", name, info, err, want)
		}
	}
	for _, name := range []string{"symbolic", "hard"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the link %s is unpacked: %v", name, err)
		}
	}
}

// TestUnpackStaysInItsDirectory: paths that lead out are refused.
func TestUnpackStaysInItsDirectory(t *testing.T) {
	for name, header := range map[string]tar.Header{
		"a file above":                   {Typeflag: tar.TypeReg, Name: "../out"},
		"a file above a directory":       {Typeflag: tar.TypeReg, Name: "below/../../out"},
		"a directory above":              {Typeflag: tar.TypeDir, Name: "../out/"},
		"a file through a link":          {Typeflag: tar.TypeReg, Name: "link/out"},
		"a directory through a link":     {Typeflag: tar.TypeDir, Name: "link/out/"},
		"a file in place of a link":      {Typeflag: tar.TypeReg, Name: "file"},
		"a file with an absolute path":   {Typeflag: tar.TypeReg, Name: "/out"},
		"a directory with such a path":   {Typeflag: tar.TypeDir, Name: "/out/"},
		"the directory above as a file":  {Typeflag: tar.TypeReg, Name: ".."},
		"a file in place of a directory": {Typeflag: tar.TypeReg, Name: "."},
	} {
		t.Run(name, func(t *testing.T) {
			above := t.TempDir()
			dir := filepath.Join(above, "in")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			for link, to := range map[string]string{"link": above, "file": filepath.Join(above, "out")} {
				if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
					t.Fatal(err)
				}
			}
			header.Mode = 0o755
			if err := Unpack(dir, packed(t, header)); err == nil {
				t.Error("no error")
			}
			if _, err := os.Lstat(filepath.Join(above, "out")); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("outside of the directory is a file: %v", err)
			}
		})
	}
}

// TestInvalidTarIsAnError: what is no tar, or ends in the middle of a file, is an error.
func TestInvalidTarIsAnError(t *testing.T) {
	whole := packed(t, tar.Header{Typeflag: tar.TypeReg, Name: "file", Mode: 0o600}).Bytes()
	for name, content := range map[string][]byte{"no tar": bytes.Repeat([]byte("x"), 1024), "cut": whole[:514]} {
		if err := Unpack(t.TempDir(), bytes.NewReader(content)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if err := Unpack(filepath.Join(t.TempDir(), "missing"), bytes.NewReader(whole)); err == nil {
		t.Error("a missing directory: no error")
	}
}
