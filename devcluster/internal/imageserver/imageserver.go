// Package imageserver is a registry that serves the images of a tar file to container runtimes.
// Nobody can push to it. It knows nothing of clusters.
package imageserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Handler answers pulls. Its keys are paths, such as /v2/nginx/manifests/1.27.
type Handler map[string]content

type content struct {
	kind   string // media type
	digest v1.Hash
	data   []byte
}

// Load reads the images of a tar file that package images has saved. The host in the name of an
// image does not count: the container runtime chooses by it which registry to ask.
func Load(tar string) (Handler, error) {
	open := func() (io.ReadCloser, error) { return os.Open(tar) }
	manifest, err := tarball.LoadManifest(open)
	if err != nil {
		return nil, fmt.Errorf("reading the images of %s: %w", tar, err)
	}
	h := Handler{}
	for _, descriptor := range manifest {
		for _, text := range descriptor.RepoTags {
			tag, err := name.NewTag(text)
			if err != nil {
				return nil, fmt.Errorf("reading the name of an image of %s: %w", tar, err)
			}
			image, err := tarball.Image(open, &tag)
			if err == nil {
				err = h.add(tag, image)
			}
			if err != nil {
				return nil, fmt.Errorf("reading image %s of %s: %w", text, tar, err)
			}
		}
	}
	return h, nil
}

// add adds an image: its manifest by tag and by digest, its configuration and its layers.
func (h Handler) add(tag name.Tag, image v1.Image) error {
	manifest, err := image.Manifest()
	if err != nil {
		return err
	}
	raw, err := image.RawManifest()
	if err != nil {
		return err
	}
	digest, err := image.Digest()
	if err != nil {
		return err
	}
	config, err := image.RawConfigFile()
	if err != nil {
		return err
	}
	layers, err := image.Layers()
	if err != nil {
		return err
	}
	at := "/v2/" + tag.RepositoryStr()
	h[at+"/manifests/"+tag.TagStr()] = content{string(manifest.MediaType), digest, raw}
	h[at+"/manifests/"+digest.String()] = content{string(manifest.MediaType), digest, raw}
	h[at+"/blobs/"+manifest.Config.Digest.String()] = content{string(manifest.Config.MediaType), manifest.Config.Digest, config}
	for i, layer := range layers {
		of := manifest.Layers[i]
		stream, err := layer.Compressed()
		if err != nil {
			return err
		}
		data, err := io.ReadAll(stream)
		if err := errors.Join(err, stream.Close()); err != nil {
			return err
		}
		h[at+"/blobs/"+of.Digest.String()] = content{string(of.MediaType), of.Digest, data}
	}
	return nil
}

// ServeHTTP answers GET and HEAD.
func (h Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		http.Error(w, "this registry only serves images", http.StatusMethodNotAllowed)
		return
	}
	if r.URL.Path == "/v2/" {
		return
	}
	c, found := h[r.URL.Path]
	if !found {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", c.kind)
	w.Header().Set("Docker-Content-Digest", c.digest.String())
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(c.data))
}

// Run serves the images of a tar file at an address until ctx is done.
func Run(ctx context.Context, tar, address string) error {
	handler, err := Load(tar)
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("serving images: %w", err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving images: %w", err)
	}
	return nil
}
