package images

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// program returns a file with this content.
func program(t *testing.T, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(file, []byte(content), 0o700); err != nil {
		t.Fatal(err)
	}
	return file
}

func build(t *testing.T, s Spec) v1.Image {
	t.Helper()
	image, err := New(s)
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// save writes images into a file and returns its content.
func save(t *testing.T, images map[string][]v1.Image) (string, map[string][]byte) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "images.tar")
	if err := Save(file, images); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return file, unpack(t, bytes.NewReader(content))
}

// unpack returns the files of a tar by their paths.
func unpack(t *testing.T, from io.Reader) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for r := tar.NewReader(from); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if !header.ModTime.Equal(time.Unix(0, 0)) || header.Uid != 0 || header.Gid != 0 || header.Uname != "" {
			t.Errorf("%s is of %s and of %d:%d: not the same on each machine", header.Name, header.ModTime, header.Uid, header.Gid)
		}
		if header.Typeflag != tar.TypeReg {
			continue
		}
		if files[header.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

// TestImagesOfTheSameProgramsAreEqual, and others are not; they run as nobody.
func TestImagesOfTheSameProgramsAreEqual(t *testing.T) {
	digest := func(content string) string {
		program := program(t, content)
		image := build(t, Spec{Programs: map[string]string{"/b": program, "/a": program}, Entrypoint: []string{"/a"}, Architecture: "arm64"})
		config, err := image.ConfigFile()
		if err != nil || config.Config.User != "65532:65532" || config.Architecture != "arm64" || config.OS != "linux" {
			t.Errorf("the configuration is %+v, %v", config, err)
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

// TestTheManagersImage: what is in it, who owns it and what it says about itself.
func TestTheManagersImage(t *testing.T) {
	made := time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("", 3600))
	image := build(t, Manager{
		Program: program(t, "program"), Beside: map[string]string{"atoll-hub": program(t, "hub")}, License: program(t, "licence"), Architecture: "amd64",
		Version: "1.2.3", Revision: "0123abcd", Created: made,
	}.Spec())
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if !config.Created.Equal(made) || config.Created.Location() != time.UTC {
		t.Errorf("created is %s, want %s in UTC", config.Created, made)
	}
	for label, want := range map[string]string{"title": "atoll-manager", "version": "1.2.3", "revision": "0123abcd", "licenses": "Apache-2.0"} {
		if got := config.Config.Labels["org.opencontainers.image."+label]; got != want {
			t.Errorf("label %s is %q, want %q", label, got, want)
		}
	}
	layers, err := image.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers, %v, want 1", len(layers), err)
	}
	if kind, err := layers[0].MediaType(); err != nil || kind != types.OCILayer {
		t.Errorf("the layer is %s, %v, want one compressed with gzip", kind, err)
	}
	content := mutate.Extract(image)
	defer content.Close()
	modes := map[string]int64{}
	for r := tar.NewReader(content); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		modes[header.Name] = header.Mode
	}
	if want := map[string]int64{"atoll-manager": 0o555, "atoll-hub": 0o555, "LICENSE": 0o444}; !maps.Equal(modes, want) {
		t.Errorf("the files are %v, want %v", modes, want)
	}
}

// TestAnArchiveIsReadBack: by tools for OCI layouts, with both platforms, and the same bytes each
// time.
func TestAnArchiveIsReadBack(t *testing.T) {
	file := program(t, "1")
	pair := func() []v1.Image {
		return []v1.Image{
			build(t, Spec{Programs: map[string]string{"/a": file}, Architecture: "amd64"}),
			build(t, Spec{Programs: map[string]string{"/a": file}, Architecture: "arm64"}),
		}
	}
	other := build(t, Spec{Programs: map[string]string{"/b": file}, Architecture: "amd64"})
	saved, files := save(t, map[string][]v1.Image{"registry.example/a:1": pair(), "b:2": {other}})
	again, _ := save(t, map[string][]v1.Image{"b:2": {other}, "registry.example/a:1": pair()})
	first, err := os.ReadFile(saved)
	if err != nil {
		t.Fatal(err)
	}
	if second, err := os.ReadFile(again); err != nil || !bytes.Equal(first, second) {
		t.Errorf("the second archive of the same images differs, %v", err)
	}
	if files["manifest.json"] != nil {
		t.Error("an archive with two platforms has Docker's manifest.json, which holds one")
	}

	root := t.TempDir()
	for at, content := range files {
		at = filepath.Join(root, filepath.FromSlash(at))
		if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all, err := layout.ImageIndexFromPath(root)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(all); err != nil {
		t.Error(err)
	}
	manifest, err := all.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]string{}
	for _, entry := range manifest.Manifests {
		index, err := all.ImageIndex(entry.Digest)
		if err != nil {
			t.Fatal(err)
		}
		of, err := index.IndexManifest()
		if err != nil {
			t.Fatal(err)
		}
		label := entry.Annotations["io.containerd.image.name"] + " " + entry.Annotations["org.opencontainers.image.ref.name"]
		for _, image := range of.Manifests {
			got[label] = append(got[label], image.Platform.String())
		}
	}
	want := map[string][]string{
		"docker.io/library/b:2 2": {"linux/amd64"},
		"registry.example/a:1 1":  {"linux/amd64", "linux/arm64"},
	}
	if !maps.EqualFunc(got, want, slices.Equal) {
		t.Errorf("the archive has %v, want %v", got, want)
	}
}

// TestSinglePlatformArchiveLoadsInAnyDocker: also by an image store that does not know OCI layouts.
func TestSinglePlatformArchiveLoadsInAnyDocker(t *testing.T) {
	image := build(t, Spec{Programs: map[string]string{"/a": program(t, "1")}, Architecture: "arm64"})
	file, files := save(t, map[string][]v1.Image{"atoll/a:1": {image}})
	saved, err := tarball.ImageFromPath(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	want, err := image.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := saved.ConfigName(); err != nil || got != want {
		t.Errorf("the configuration is %s, %v, want %s", got, err, want)
	}
	if err := validate.Image(saved); err != nil {
		t.Error(err)
	}
	var manifest tarball.Manifest
	if err := json.Unmarshal(files["manifest.json"], &manifest); err != nil {
		t.Fatal(err)
	}
	if tags := manifest[0].RepoTags; !slices.Equal(tags, []string{"docker.io/atoll/a:1"}) {
		t.Errorf("the tags are %v", tags)
	}
}

// TestInvalidImageSpecIsRefused: a program that is missing, or a name that is none.
func TestInvalidImageSpecIsRefused(t *testing.T) {
	if _, err := New(Spec{Programs: map[string]string{"/a": filepath.Join(t.TempDir(), "none")}}); err == nil {
		t.Error("a program that is missing is packed")
	}
	if err := Save(filepath.Join(t.TempDir(), "a.tar"), map[string][]v1.Image{"Not a name": {build(t, Spec{})}}); err == nil {
		t.Error("an impossible name is accepted")
	}
}
