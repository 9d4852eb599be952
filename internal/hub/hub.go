// Package hub is atoll-hub, the only connection between a node and the API servers: it wires the
// packages below it.
//
//	request    what a request asks for
//	identity   who sends it
//	wire       the encodings of answers
//	cache      what was answered, on disk
//	delivery   which pods may reach the node
//	journal    writes of the node that wait for the cloud, on disk
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
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/atoll-k8s/atoll/internal/hub/cache"
	"github.com/atoll-k8s/atoll/internal/hub/config"
	"github.com/atoll-k8s/atoll/internal/hub/identity"
	"github.com/atoll-k8s/atoll/internal/hub/journal"
	"github.com/atoll-k8s/atoll/internal/hub/proxy"
	"github.com/atoll-k8s/atoll/internal/hub/uplink"
)

const (
	// headerWithin bounds how long a client may take for the headers of a request, and maxHeader their
	// size in bytes.
	headerWithin, maxHeader = 10 * time.Second, 64 << 10
	// closeWithin bounds how long requests may go on when the hub ends.
	closeWithin = 2 * time.Second
	// idleFor is how long a connection may have no request.
	idleFor = 2 * time.Minute
	// saveEvery is the time between two looks at whether tokens are new, and rewriteEvery how long the
	// times at which they were accepted may be wrong on disk.
	saveEvery, rewriteEvery = 10 * time.Second, time.Hour
	// secretSize is the size of the secret with which tokens are hashed, in bytes.
	secretSize = 32
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
	store, done, err := openCache(filepath.Join(c.Directory, "cache"), c.Cache.MaxSize.Value(), log.WithName("cache"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	writes, err := openJournal(filepath.Join(c.Directory, "writes"), log.WithName("journal"))
	if err != nil {
		return err
	}
	if writes != nil {
		defer func() { err = errors.Join(err, writes.Close()) }()
	}
	tokens, save := readTokens(filepath.Join(c.Directory, "tokens.json"), log)
	serving, err := newServing(filepath.Join(c.Directory, "serving"), c.Listen, time.Now, log)
	if err != nil {
		return err
	}
	p := &proxy.Proxy{
		Cloud: cloud, Cache: store, Tokens: tokens, Journal: writes, Log: log.WithName("proxy"), MaxBytes: c.Cache.MaxSize.Value(),
		Recognizer: &identity.Recognizer{NodeName: c.NodeName, ClientRoots: clientRoots, Now: time.Now, Online: func() bool {
			e, _ := cloud.Evidence()
			return e.State == uplink.Online
		}},
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", c.Listen)
	if err != nil {
		return fmt.Errorf("listening for clients: %w", err)
	}
	var handlers sync.WaitGroup
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			handlers.Add(1)
			defer handlers.Done()
			p.ServeHTTP(w, r)
		}),
		ReadHeaderTimeout: headerWithin, MaxHeaderBytes: maxHeader, IdleTimeout: idleFor,
		// The certificates of clients are judged for each request: see identity.Recognizer.
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: serving.get, ClientAuth: tls.RequestClientCert},
	}
	observed, err := observe(c.NodeName, cloud, p)
	if err != nil {
		return err
	}
	observer, err := (&net.ListenConfig{}).Listen(ctx, "tcp", c.Observe)
	if err != nil {
		return fmt.Errorf("listening for who observes the hub: %w", err)
	}
	observing := &http.Server{Handler: observed, ReadHeaderTimeout: headerWithin, WriteTimeout: time.Minute, MaxHeaderBytes: maxHeader}
	ended := make(chan struct{}, 4)
	go func() {
		defer func() { ended <- struct{}{} }()
		if err := observing.Serve(observer); !errors.Is(err, http.ErrServerClosed) {
			log.Error(err, "The hub cannot be observed any more")
		}
	}()
	go func() { defer func() { ended <- struct{}{} }(); cloud.Run(ctx) }()
	go func() { defer func() { ended <- struct{}{} }(); keepSaving(ctx, save) }()
	go func() { defer func() { ended <- struct{}{} }(); p.Replay(ctx) }()
	served := make(chan error, 1)
	go func() { served <- server.ServeTLS(listener, "", "") }()
	log.Info("The hub serves", "address", listener.Addr().String(), "node", c.NodeName)
	select {
	case <-ctx.Done():
	case err = <-served:
		err = fmt.Errorf("serving clients: %w", err)
	}
	cancel()
	within, stop := context.WithTimeout(context.Background(), closeWithin)
	defer stop()
	if server.Shutdown(within) != nil {
		_ = server.Close() // watches
	}
	handlers.Wait()
	p.Wait()
	_ = observing.Close()
	for range cap(ended) {
		<-ended
	}
	save()
	return err
}

// openCache opens the cache. If that is not possible, for example because the disk is read-only, the
// hub serves with one that is gone with it. done closes it.
func openCache(dir string, size int64, log logr.Logger) (store *cache.Store, done func() error, err error) {
	store, err = cache.Open(dir, cache.Options{MaxBytes: size, Log: log})
	if err == nil {
		return store, store.Close, nil
	}
	if errors.Is(err, cache.ErrLocked) {
		return nil, nil, err
	}
	log.Error(err, "What is answered is not kept over a restart of the hub")
	temporary, errTemporary := os.MkdirTemp("", "atoll-hub-")
	if errTemporary == nil {
		store, errTemporary = cache.Open(temporary, cache.Options{MaxBytes: size, Log: log})
	}
	if errTemporary != nil {
		return nil, nil, errors.Join(err, errTemporary)
	}
	return store, func() error { return errors.Join(store.Close(), os.RemoveAll(temporary)) }, nil
}

// openJournal opens the journal of writes. If that is not possible, for example because the disk is
// read-only, there is none: writes are refused while the cloud is away.
func openJournal(dir string, log logr.Logger) (*journal.Journal, error) {
	writes, err := journal.Open(dir, journal.Options{Log: log})
	if errors.Is(err, cache.ErrLocked) {
		return nil, err
	}
	if err != nil {
		log.Error(err, "Writes of the node are not kept while the cloud is away")
		return nil, nil
	}
	return writes, nil
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

// readTokens reads the tokens that are known from a file, and returns what writes it again, if they
// have changed. If the file has nothing to be read it is begun anew: the tokens are known again when
// the cloud accepts them. If it cannot be read for another reason it stays as it is, and is not
// written.
func readTokens(path string, log logr.Logger) (tokens *identity.Tokens, save func()) {
	var f tokensFile
	text, err := os.ReadFile(path)
	if err == nil && (json.Unmarshal(text, &f) != nil || len(f.Secret) != secretSize) {
		log.Info("The file of the tokens that the cloud has accepted is damaged, and is begun anew")
		f = tokensFile{}
	}
	writes := err == nil || errors.Is(err, fs.ErrNotExist)
	if !writes {
		log.Error(err, "Tokens that the cloud has accepted before are not known while it is away")
	}
	if f.Secret == nil {
		f.Secret = make([]byte, secretSize)
		_, _ = rand.Read(f.Secret) // it never fails
	}
	tokens = identity.NewTokens(f.Secret, f.Known)
	known := len(f.Known)
	var written time.Time
	return tokens, func() {
		now := tokens.Known()
		isDue := len(now) != known || time.Since(written) > rewriteEvery
		if !writes || len(now) == 0 || !isDue {
			return
		}
		text, err := json.Marshal(tokensFile{f.Secret, now})
		if err == nil {
			err = writeFile(path, text)
		}
		if err != nil {
			log.Error(err, "After a restart without the cloud, some tokens will not be known")
			return
		}
		known, written = len(now), time.Now()
	}
}

// keepSaving calls save from time to time until ctx is done.
func keepSaving(ctx context.Context, save func()) {
	ticker := time.NewTicker(saveEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			save()
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
