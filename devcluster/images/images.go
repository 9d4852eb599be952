// Package images makes images of programs without an engine for containers: one layer with
// the programs, nothing else, and the same bytes for the same programs.
package images

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"path"
	"slices"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// nobody is the user and the group of all programs, unless a pod says otherwise.
const nobody = 65532

// Spec describes an image.
type Spec struct {
	// Programs are files of this machine by their absolute paths in the image.
	Programs map[string]string
	// Entrypoint is the command of the image.
	Entrypoint []string
	// Architecture is a GOARCH.
	Architecture string
	// Labels are those of the image.
	Labels map[string]string
}

// New returns an image.
func New(s Spec) (v1.Image, error) {
	content, err := layer(s.Programs)
	if err != nil {
		return nil, err
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil })
	if err != nil {
		return nil, fmt.Errorf("making the layer of an image: %w", err)
	}
	image, err := mutate.AppendLayers(empty.Image, l)
	if err != nil {
		return nil, fmt.Errorf("adding the layer of an image: %w", err)
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("reading the configuration of an image: %w", err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", s.Architecture
	file.Config.Entrypoint, file.Config.Labels = s.Entrypoint, s.Labels
	file.Config.User = fmt.Sprintf("%d:%d", nobody, nobody)
	file.Config.Env = []string{"PATH=/"}
	if image, err = mutate.ConfigFile(image, file); err != nil {
		return nil, fmt.Errorf("setting the configuration of an image: %w", err)
	}
	return image, nil
}

// layer returns a tar with the programs, in the order of their paths.
func layer(programs map[string]string) ([]byte, error) {
	var paths []string
	for at := range programs {
		paths = append(paths, at)
	}
	slices.Sort(paths)
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, at := range paths {
		content, err := os.ReadFile(programs[at])
		if err != nil {
			return nil, fmt.Errorf("reading a program of an image: %w", err)
		}
		header := &tar.Header{Name: path.Clean(at)[1:], Mode: 0o555, Size: int64(len(content)), Typeflag: tar.TypeReg, Format: tar.FormatPAX}
		if err := w.WriteHeader(header); err != nil {
			return nil, fmt.Errorf("writing the layer of an image: %w", err)
		}
		if _, err := w.Write(content); err != nil {
			return nil, fmt.Errorf("writing the layer of an image: %w", err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("writing the layer of an image: %w", err)
	}
	return out.Bytes(), nil
}

// Save writes images into a tar file, as `docker save` does, by their names.
func Save(file string, images map[string]v1.Image) error {
	tagged := map[name.Reference]v1.Image{}
	for text, image := range images {
		ref, err := name.NewTag(text, name.WithDefaultRegistry(""))
		if err != nil {
			return fmt.Errorf("naming an image: %w", err)
		}
		tagged[ref] = image
	}
	if err := tarball.MultiRefWriteToFile(file, tagged); err != nil {
		return fmt.Errorf("writing images to %s: %w", file, err)
	}
	return nil
}
