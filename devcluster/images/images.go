// Package images makes images of programs without an engine for containers: one layer with
// the programs, nothing else, and the same bytes for the same programs. It writes images into
// files and knows no registry.
package images

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// nobody is the user and the group of all programs, unless a pod says otherwise.
const nobody = 65532

// Spec describes an image for one architecture.
type Spec struct {
	// Programs are files of this machine by their absolute paths in the image.
	Programs map[string]string
	// Texts are further files, like Programs. They cannot be executed.
	Texts map[string]string
	// Entrypoint is the command of the image.
	Entrypoint []string
	// Architecture is a GOARCH.
	Architecture string
	// Labels are those of the image.
	Labels map[string]string
	// Created is the time that the image gives as that of its making. The zero time stands
	// for 1970: the time of the build would make each image another one.
	Created time.Time
	// Fast stores the content instead of compressing it, for nodes on this machine.
	Fast bool
}

// New returns an image.
func New(s Spec) (v1.Image, error) {
	content, err := layer(s)
	if err != nil {
		return nil, err
	}
	// Registries expect compressed layers. The compressed bytes are kept, because they are
	// read more than once.
	level := gzip.DefaultCompression
	if s.Fast {
		level = gzip.NoCompression
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil },
		tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(level), tarball.WithCompressedCaching)
	if err != nil {
		return nil, fmt.Errorf("making the layer of an image: %w", err)
	}
	created := v1.Time{Time: time.Unix(0, 0).UTC()}
	if !s.Created.IsZero() {
		created.Time = s.Created.UTC()
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err := mutate.Append(base, mutate.Addendum{Layer: l, History: v1.History{Created: created}})
	if err != nil {
		return nil, fmt.Errorf("adding the layer of an image: %w", err)
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("reading the configuration of an image: %w", err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Created = "linux", s.Architecture, created
	file.Config.Entrypoint, file.Config.Labels = s.Entrypoint, s.Labels
	// A number: kubelets refuse names where runAsNonRoot is asked for.
	file.Config.User = fmt.Sprintf("%d:%d", nobody, nobody)
	file.Config.Env = []string{"PATH=/"}
	if image, err = mutate.ConfigFile(image, file); err != nil {
		return nil, fmt.Errorf("setting the configuration of an image: %w", err)
	}
	return image, nil
}

// Index returns an index of images that are the same but for their platforms.
func Index(images ...v1.Image) (v1.ImageIndex, error) {
	var of []mutate.IndexAddendum
	for _, image := range images {
		file, err := image.ConfigFile()
		if err != nil {
			return nil, fmt.Errorf("reading the configuration of an image: %w", err)
		}
		of = append(of, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: file.Platform()}})
	}
	return mutate.AppendManifests(empty.Index, of...), nil
}

// layer returns a tar with the files of an image, in the order of their paths. The files have
// no times, and root owns them.
func layer(s Spec) ([]byte, error) {
	files := maps.Clone(s.Texts)
	if files == nil {
		files = map[string]string{}
	}
	maps.Copy(files, s.Programs)
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, at := range slices.Sorted(maps.Keys(files)) {
		content, err := os.ReadFile(files[at])
		if err != nil {
			return nil, fmt.Errorf("reading a file of an image: %w", err)
		}
		mode := int64(0o444)
		if _, ok := s.Programs[at]; ok {
			mode = 0o555
		}
		if err := write(w, path.Clean(at)[1:], mode, content); err != nil {
			return nil, fmt.Errorf("writing the layer of an image: %w", err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("writing the layer of an image: %w", err)
	}
	return out.Bytes(), nil
}

// write adds a file to a tar.
func write(w *tar.Writer, at string, mode int64, content []byte) error {
	header := &tar.Header{Name: at, Mode: mode, Size: int64(len(content)), Typeflag: tar.TypeReg, Format: tar.FormatPAX}
	if err := w.WriteHeader(header); err != nil {
		return err
	}
	_, err := w.Write(content)
	return err
}
