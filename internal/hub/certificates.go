package hub

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/atoll-k8s/atoll/internal/hub/config"
	"github.com/atoll-k8s/atoll/internal/hub/files"
	"github.com/atoll-k8s/atoll/internal/hub/nodecert"
	"github.com/atoll-k8s/atoll/internal/hub/panics"
)

// followed are the CAs in the configuration. Their files are read again when they change.
type followed struct {
	cloud, clients *files.Value[*x509.CertPool]
	panics         *panics.Catcher
}

// newFollowed reads the CAs. Without them the hub could verify neither clients nor API servers.
func newFollowed(c *config.Configuration, caught *panics.Catcher, log logr.Logger) (*followed, error) {
	f := &followed{
		panics:  caught,
		cloud:   files.NewValue("the CAs of cloud.caFile", parsePool, log, c.Cloud.CAFile),
		clients: files.NewValue("the CAs of clientCAFile", parsePool, log, c.ClientCAFile),
	}
	return f, errors.Join(f.cloud.Read(), f.clients.Read())
}

// cloudRoots returns the CAs of the API servers.
func (f *followed) cloudRoots() *x509.CertPool { return poolOf(f.cloud) }

func (f *followed) clientRoots() *x509.CertPool { return poolOf(f.clients) }

func poolOf(v *files.Value[*x509.CertPool]) *x509.CertPool {
	pool, err := v.Get()
	if err != nil {
		return x509.NewCertPool() // never, because newFollowed has read it; nil would mean the CAs of the system
	}
	return pool
}

// run follows the files until ctx is done. A file that hangs does not delay the other.
func (f *followed) run(ctx context.Context) {
	var wait sync.WaitGroup
	wait.Go(func() { f.panics.Keep(ctx, "following a file", f.cloud.Follow) })
	wait.Go(func() { f.panics.Keep(ctx, "following a file", f.clients.Follow) })
	wait.Wait()
}

func parsePool(texts [][]byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(texts[0]) {
		return nil, errors.New("no certificate in PEM")
	}
	return pool, nil
}

// nodeCertificate is the client certificate of the node: either in files that another program renews, or
// requested by the hub.
type nodeCertificate struct {
	get func() (*tls.Certificate, error)
	run func(context.Context)
	// state returns when the certificate expires (zero if there is none), and why there is none or why it was
	// not renewed.
	state func() (time.Time, error)
}

// sender sends a request to the cloud, as the node or with the credentials in its headers.
type sender = func(r *http.Request, asNode bool) (*http.Response, error)

// newNodeCertificate returns the certificate of the configuration. It may be missing until the kubelet or the
// hub has received one.
func newNodeCertificate(c *config.Configuration, send sender, log logr.Logger) *nodeCertificate {
	if c.Cloud.BootstrapKubeconfig != "" {
		m := nodecert.New(nodecert.Options{
			NodeName: c.NodeName, Directory: filepath.Join(c.Directory, "client"), Bootstrap: c.Cloud.BootstrapKubeconfig, Send: send, Now: time.Now, Log: log.WithName("nodecert"),
		})
		return &nodeCertificate{m.Current, m.Run, m.State}
	}
	parse := func(texts [][]byte) (*tls.Certificate, error) {
		pair, err := tls.X509KeyPair(texts[0], texts[1])
		return &pair, err
	}
	v := files.NewValue("the node's certificate", parse, log, c.Cloud.CertificateFile, c.Cloud.KeyFile)
	_ = v.Read() // Read logs its errors, and Follow retries
	valid := func() (*tls.Certificate, error) {
		pair, err := v.Get()
		if err == nil && time.Now().After(pair.Leaf.NotAfter) { // the cloud would answer every request of the node with 401
			return nil, fmt.Errorf("the certificate in cloud.certificateFile expired at %s: renew it", pair.Leaf.NotAfter.UTC().Format(time.RFC3339))
		}
		return pair, err
	}
	return &nodeCertificate{valid, v.Follow, func() (time.Time, error) {
		pair, err := v.Get()
		if err != nil {
			return time.Time{}, err
		}
		return pair.Leaf.NotAfter, nil
	}}
}
