package images

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// The annotations by which an archive names its images: the whole name, which containerd,
// Docker and Podman read, and the tag alone, which the specification of OCI layouts knows.
const (
	nameAnnotation = "io.containerd.image.name"
	tagAnnotation  = "org.opencontainers.image.ref.name"
)

// Save writes images into a tar file by their names. A name has an image for each platform.
//
// The file is an OCI layout: of the formats that containerd, Podman and skopeo read, it is the
// one that holds several platforms under one name. Docker reads it into its containerd image
// store only. Its older store reads a file manifest.json, which knows no platforms: it is in the
// archive if each name has one image.
func Save(file string, images map[string][]v1.Image) error {
	a := archive{
		files: map[string][]byte{"oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`)},
		index: v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex},
	}
	single := true
	for _, text := range slices.Sorted(maps.Keys(images)) {
		single = single && len(images[text]) == 1
		tag, err := name.NewTag(text)
		if err != nil {
			return fmt.Errorf("naming an image: %w", err)
		}
		if err := a.add(tag, images[text]); err != nil {
			return fmt.Errorf("reading image %q: %w", text, err)
		}
	}
	if !single {
		a.docker = nil
	}
	if err := a.write(file); err != nil {
		return fmt.Errorf("writing images to %s: %w", file, err)
	}
	return nil
}

// archive is the content of a file with images.
type archive struct {
	files  map[string][]byte
	index  v1.IndexManifest
	docker tarball.Manifest
}

// add adds the images of a name, and their index.
func (a *archive) add(tag name.Tag, images []v1.Image) error {
	index, err := Index(images...)
	if err != nil {
		return err
	}
	entry, err := partial.Descriptor(index)
	if err != nil {
		return err
	}
	manifest, err := index.RawManifest()
	if err != nil {
		return err
	}
	a.files[blob(entry.Digest)] = manifest
	entry.Annotations = map[string]string{nameAnnotation: fullName(tag), tagAnnotation: tag.TagStr()}
	a.index.Manifests = append(a.index.Manifests, *entry)
	for _, image := range images {
		if err := a.addImage(tag, image); err != nil {
			return err
		}
	}
	return nil
}

func (a *archive) addImage(tag name.Tag, image v1.Image) error {
	digest, err := image.Digest()
	if err != nil {
		return err
	}
	if a.files[blob(digest)], err = image.RawManifest(); err != nil {
		return err
	}
	config, err := image.ConfigName()
	if err != nil {
		return err
	}
	if a.files[blob(config)], err = image.RawConfigFile(); err != nil {
		return err
	}
	docker := tarball.Descriptor{Config: blob(config), RepoTags: []string{fullName(tag)}}
	layers, err := image.Layers()
	if err != nil {
		return err
	}
	for _, l := range layers {
		digest, err := l.Digest()
		if err != nil {
			return err
		}
		content, err := l.Compressed()
		if err != nil {
			return err
		}
		a.files[blob(digest)], err = io.ReadAll(content)
		if err := errors.Join(err, content.Close()); err != nil {
			return err
		}
		docker.Layers = append(docker.Layers, blob(digest))
	}
	a.docker = append(a.docker, docker)
	return nil
}

// write writes the archive, the same bytes for the same content.
func (a *archive) write(file string) (err error) {
	if a.files["index.json"], err = json.Marshal(a.index); err != nil {
		return err
	}
	if a.docker != nil {
		if a.files["manifest.json"], err = json.Marshal(a.docker); err != nil {
			return err
		}
	}
	to, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	w := tar.NewWriter(to)
	for _, dir := range []string{"blobs/", "blobs/sha256/"} {
		if err := w.WriteHeader(&tar.Header{Name: dir, Mode: 0o755, Typeflag: tar.TypeDir, Format: tar.FormatPAX}); err != nil {
			return err
		}
	}
	for _, at := range slices.Sorted(maps.Keys(a.files)) {
		if err := write(w, at, 0o644, a.files[at]); err != nil {
			return err
		}
	}
	return w.Close()
}

// blob returns the path of a blob in an OCI layout.
func blob(digest v1.Hash) string { return "blobs/" + digest.Algorithm + "/" + digest.Hex }

// fullName returns a name as kubelets ask their container runtime for it, with the parts that
// may be left out: a pod's image atoll-manager:1 is docker.io/library/atoll-manager:1.
func fullName(tag name.Tag) string {
	registry := tag.RegistryStr()
	if registry == name.DefaultRegistry {
		registry = "docker.io"
	}
	return registry + "/" + tag.RepositoryStr() + ":" + tag.TagStr()
}
