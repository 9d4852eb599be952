package images

import (
	"os"
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// TestImagesOfTheSameProgramsAreEqual, and others are not; they run as nobody.
func TestImagesOfTheSameProgramsAreEqual(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	digest := func(content string) string {
		if err := os.WriteFile(program, []byte(content), 0o700); err != nil {
			t.Fatal(err)
		}
		image, err := New(Spec{Programs: map[string]string{"/b": program, "/a": program}, Entrypoint: []string{"/a"}, Architecture: "arm64"})
		if err != nil {
			t.Fatal(err)
		}
		config, err := image.ConfigFile()
		if err != nil || config.Config.User != "65532:65532" || config.Architecture != "arm64" || config.OS != "linux" {
			t.Errorf("the configuration is %+v, %v", config, err)
		}
		tar := filepath.Join(dir, "image.tar")
		if err := Save(tar, map[string]v1.Image{"example.com/a:1": image}); err != nil {
			t.Fatal(err)
		}
		saved, err := tarball.ImageFromPath(tar, nil)
		if err != nil {
			t.Fatal(err)
		}
		want, err := image.ConfigName()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := saved.ConfigName(); err != nil || got != want {
			t.Errorf("saved is %s, %v, want %s", got, err, want)
		}
		hash, err := image.Digest()
		if err != nil {
			t.Fatal(err)
		}
		return hash.String()
	}
	first, again, other := digest("1"), digest("1"), digest("2")
	if first != again || first == other {
		t.Errorf("digests are %s, %s and %s", first, again, other)
	}
}

// TestAnImageOfNothingIsRefused: a program that is missing, or a name that is none.
func TestAnImageOfNothingIsRefused(t *testing.T) {
	if _, err := New(Spec{Programs: map[string]string{"/a": filepath.Join(t.TempDir(), "none")}}); err == nil {
		t.Error("a program that is missing is packed")
	}
	image, err := New(Spec{})
	if err != nil {
		t.Fatal(err)
	}
	if err := Save(filepath.Join(t.TempDir(), "a.tar"), map[string]v1.Image{"Not a name": image}); err == nil {
		t.Error("an impossible name is accepted")
	}
}
