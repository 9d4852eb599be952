// Package imageserver is a registry that serves the images of a tar file to container runtimes.
// Nobody else can push to it. It knows nothing of clusters.
package imageserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Load returns a registry with the images of a tar file that package images has saved, each with
// one platform. The host in the name of an image does not count: the container runtime chooses by
// it which registry to ask.
func Load(ctx context.Context, tar string) (http.Handler, error) {
	full := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	address, end, err := serve(ctx, "127.0.0.1:0", full)
	if err != nil {
		return nil, err
	}
	defer end()
	open := func() (io.ReadCloser, error) { return os.Open(tar) }
	manifest, err := tarball.LoadManifest(open)
	if err != nil {
		return nil, fmt.Errorf("reading the images of %s: %w", tar, err)
	}
	for _, descriptor := range manifest {
		for _, text := range descriptor.RepoTags {
			if err := push(ctx, open, text, address); err != nil {
				return nil, fmt.Errorf("reading image %s of %s: %w", text, tar, err)
			}
		}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			http.Error(w, "this registry only serves images", http.StatusMethodNotAllowed)
			return
		}
		full.ServeHTTP(w, r)
	}), nil
}

// push pushes an image of a tar to the registry at an address.
func push(ctx context.Context, open tarball.Opener, text, address string) error {
	tag, err := name.NewTag(text)
	if err != nil {
		return err
	}
	image, err := tarball.Image(open, &tag)
	if err != nil {
		return err
	}
	to, err := name.NewTag(address+"/"+tag.RepositoryStr()+":"+tag.TagStr(), name.Insecure)
	if err != nil {
		return err
	}
	return remote.Write(to, image, remote.WithContext(ctx))
}

// Run serves the images of a tar file at an address until ctx is done.
func Run(ctx context.Context, tar, address string) error {
	handler, err := Load(ctx, tar)
	if err != nil {
		return err
	}
	_, end, err := serve(ctx, address, handler)
	if err != nil {
		return err
	}
	<-ctx.Done()
	end()
	return nil
}

// serve serves at an address, and returns it with the port that was chosen, until end is called.
func serve(ctx context.Context, at string, handler http.Handler) (address string, end func(), err error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", at)
	if err != nil {
		return "", nil, fmt.Errorf("serving images: %w", err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			fmt.Fprintln(os.Stderr, "serving images:", err)
		}
	}()
	return listener.Addr().String(), func() {
		_ = server.Close()
		<-ended
	}, nil
}
