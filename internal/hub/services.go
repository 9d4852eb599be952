package hub

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/go-logr/logr"

	"github.com/atoll-k8s/atoll/internal/hub/config"
	"github.com/atoll-k8s/atoll/internal/hub/endpoints"
)

// newEndpoints returns the filter of Service endpoints, which keeps the addresses of the node's pods in
// a file.
func newEndpoints(c *config.Configuration, log logr.Logger) *endpoints.Filter {
	path := filepath.Join(c.Directory, "pods.json")
	kept, err := readBounded(path, endpoints.MaxKept)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Error(err, "The addresses of the node's pods are those that the cloud has, until the kubelet writes them again")
	}
	return endpoints.New(endpoints.Options{
		NodeName: c.NodeName, Clients: c.Services.Clients, Kept: kept, Log: log,
		Save: func(text []byte) error { return writeFile(path, text) },
	})
}

// readBounded reads a file of up to most bytes.
func readBounded(path string, most int64) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, fmt.Errorf("%s is no regular file", path))
	}
	text, err := io.ReadAll(io.LimitReader(file, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("%s has more than %d bytes", path, most)
	}
	if err != nil {
		return nil, err
	}
	return text, nil
}
