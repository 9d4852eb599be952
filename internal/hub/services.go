package hub

import (
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/go-logr/logr"

	"github.com/atoll-k8s/atoll/internal/hub/config"
	"github.com/atoll-k8s/atoll/internal/hub/endpoints"
	"github.com/atoll-k8s/atoll/internal/hub/files"
	"github.com/atoll-k8s/atoll/internal/hub/panics"
)

// newEndpoints returns the filter of Service endpoints. It stores the addresses of the node's pods in a file.
func newEndpoints(c *config.Configuration, caught *panics.Catcher, log logr.Logger) *endpoints.Filter {
	path := filepath.Join(c.Directory, "pods.json")
	kept, err := files.Read(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Error(err, "The saved pod addresses cannot be read; the cloud's addresses are used until the kubelet writes")
	}
	return endpoints.New(endpoints.Options{
		NodeName: c.NodeName, Clients: c.Services.Clients, Kept: kept, Panics: caught, Log: log,
		Save: func(text []byte) error { return files.Write(path, text) },
	})
}
