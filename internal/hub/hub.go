// Package hub is atoll-hub, the only connection between a node and the API servers: it wires the
// packages below it.
//
//	request    what a request asks for
//	identity   who sends it
//	wire       the encodings of answers
//	cache      what was answered, on disk
//	uplink     whether the cloud is reachable, and the connections to it
//	proxy      the answers
//	config     the configuration file
package hub

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"

	"github.com/atoll-k8s/atoll/internal/hub/cache"
	"github.com/atoll-k8s/atoll/internal/hub/config"
	"github.com/atoll-k8s/atoll/internal/hub/identity"
	"github.com/atoll-k8s/atoll/internal/hub/proxy"
	"github.com/atoll-k8s/atoll/internal/hub/uplink"
)

const (
	// headerWithin bounds how long a client may take for the headers of a request, and maxHeader their
	// size in bytes.
	headerWithin, maxHeader = 10 * time.Second, 64 << 10
	// closeWithin bounds how long requests may go on when the hub ends.
	closeWithin = 2 * time.Second
	// saveEvery is the time between two looks at whether the known tokens have changed.
	saveEvery = 10 * time.Second
)

// Run runs the hub until ctx is done. It serves before the cloud is reachable.
func Run(ctx context.Context, c *config.Configuration, log logr.Logger) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := os.MkdirAll(c.Directory, 0o700); err != nil {
		return fmt.Errorf("making the hub's directory: %w", err)
	}
	roots, err := readPool(c.Cloud.CAFile)
	if err != nil {
		return err
	}
	clientRoots, err := readPool(c.ClientCAFile)
	if err != nil {
		return err
	}
	certificate := &certificateFile{cert: c.Cloud.CertificateFile, key: c.Cloud.KeyFile}
	var servers []*url.URL
	for _, text := range c.Cloud.Servers {
		server, err := url.Parse(text)
		if err != nil {
			return fmt.Errorf("reading the URL of an API server: %w", err)
		}
		servers = append(servers, server)
	}
	cloud := uplink.New(uplink.Options{Servers: servers, Roots: roots, NodeCertificate: certificate.get, Return: c.Cloud.ReturnWithin.Duration, Log: log.WithName("uplink")})
	store, err := cache.Open(filepath.Join(c.Directory, "cache"), cache.Options{MaxBytes: c.Cache.MaxSize.Value(), Log: log.WithName("cache")})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	tokens, save, err := readTokens(filepath.Join(c.Directory, "tokens.json"))
	if err != nil {
		return err
	}
	serving, err := servingCertificate(filepath.Join(c.Directory, "serving"), c.Listen, time.Now())
	if err != nil {
		return err
	}
	p := &proxy.Proxy{
		Cloud: cloud, Cache: store, Tokens: tokens, Log: log.WithName("proxy"),
		Recognizer: &identity.Recognizer{NodeName: c.NodeName, ClientRoots: clientRoots, Now: time.Now, Offline: func() bool {
			e, _ := cloud.Evidence()
			return e.State == uplink.Offline
		}},
	}
	defer p.Wait()
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", c.Listen)
	if err != nil {
		return fmt.Errorf("listening for clients: %w", err)
	}
	server := &http.Server{
		Handler: p, ReadHeaderTimeout: headerWithin, MaxHeaderBytes: maxHeader,
		// The certificates of clients are judged for each request: see identity.Recognizer.
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{serving}, ClientAuth: tls.RequestClientCert},
	}
	ended := make(chan struct{}, 2)
	go func() { defer func() { ended <- struct{}{} }(); cloud.Run(ctx) }()
	go func() { defer func() { ended <- struct{}{} }(); keepSaving(ctx, save, log) }()
	context.AfterFunc(ctx, func() {
		within, done := context.WithTimeout(context.Background(), closeWithin)
		defer done()
		if err := server.Shutdown(within); err != nil {
			_ = server.Close() // watches
		}
	})
	log.Info("The hub serves", "address", listener.Addr().String(), "node", c.NodeName)
	err = server.ServeTLS(listener, "", "")
	cancel()
	<-ended
	<-ended
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving clients: %w", err)
	}
	return save()
}

func readPool(path string) (*x509.CertPool, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading CAs: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("reading CAs: %s has no certificate in PEM", path)
	}
	return pool, nil
}

// tokensFile is what is kept of identity.Tokens.
type tokensFile struct {
	Secret []byte               `json:"secret"`
	Known  map[string]time.Time `json:"known"`
}

// readTokens reads the tokens that are known from a file, and returns what writes it again. A file
// that cannot be read is begun anew: the tokens are known again when the cloud accepts them.
func readTokens(path string) (*identity.Tokens, func() error, error) {
	var f tokensFile
	if text, err := os.ReadFile(path); err != nil || json.Unmarshal(text, &f) != nil || len(f.Secret) != 32 {
		f = tokensFile{Secret: make([]byte, 32)}
		if _, err := rand.Read(f.Secret); err != nil {
			return nil, nil, fmt.Errorf("making a secret: %w", err)
		}
	}
	tokens := identity.NewTokens(f.Secret, f.Known)
	written := ""
	save := func() error {
		text, err := json.Marshal(tokensFile{f.Secret, tokens.Known()})
		if err != nil || string(text) == written {
			return err
		}
		if err := writeFile(path, text); err != nil {
			return fmt.Errorf("keeping which tokens the cloud accepts: %w", err)
		}
		written = string(text)
		return nil
	}
	return tokens, save, save()
}

// keepSaving calls save from time to time until ctx is done.
func keepSaving(ctx context.Context, save func() error, log logr.Logger) {
	ticker := time.NewTicker(saveEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if err := save(); err != nil {
			log.Error(err, "After a restart without the cloud, some tokens will not be known")
		}
	}
}

// writeFile replaces a file with mode 0600, so that after a loss of power it has the old or the new
// content.
func writeFile(path string, content []byte) error {
	temporary := path + ".tmp"
	file, err := os.OpenFile(temporary, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}
