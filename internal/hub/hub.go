// Package hub is atoll-hub, the only connection between a node and the API servers: it wires the
// packages below it.
//
//	request    what a request asks for
//	identity   who sends it
//	limits     what one client, and all together, may take
//	wire       the encodings of answers
//	cache      what was answered, on disk
//	files      small files: those that others replace, and its own
//	panics     catches panics outside of requests
//	nodecert   the certificates of the node that the hub requests itself
//	delivery   which pods may reach the node
//	filter     what the proxy and filters of objects know of each other
//	endpoints  which endpoints of Services clients get, with which addresses
//	journal    writes of the node that wait for the cloud, on disk
//	kubelet    what the hub asks the kubelet
//	uplink     whether the cloud is reachable, and the connections to it
//	pool       where the coordinator of the node's pool is, and what it is told
//	access     the port for the coordinator's API server: logs and exec for people
//	proxy      the answers
//	config     the configuration file
package hub

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	stdlog "log"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/atoll-k8s/atoll/internal/governance"
	"github.com/atoll-k8s/atoll/internal/hub/cache"
	"github.com/atoll-k8s/atoll/internal/hub/config"
	"github.com/atoll-k8s/atoll/internal/hub/files"
	"github.com/atoll-k8s/atoll/internal/hub/identity"
	"github.com/atoll-k8s/atoll/internal/hub/journal"
	"github.com/atoll-k8s/atoll/internal/hub/kubelet"
	"github.com/atoll-k8s/atoll/internal/hub/limits"
	"github.com/atoll-k8s/atoll/internal/hub/panics"
	"github.com/atoll-k8s/atoll/internal/hub/pool"
	"github.com/atoll-k8s/atoll/internal/hub/proxy"
	"github.com/atoll-k8s/atoll/internal/hub/uplink"
	"github.com/atoll-k8s/atoll/internal/machinery/memory"
)

const (
	// headerWithin bounds how long a client may take for the headers of a request, and maxHeader their
	// size in bytes.
	headerWithin, maxHeader = 10 * time.Second, 64 << 10
	// maxUnread bounds what of the requests of a connection is received before it is read, in bytes.
	maxUnread = 256 << 10
	// closeWithin bounds how long requests may go on when the hub ends.
	closeWithin = 2 * time.Second
	// idleFor is how long a connection may have no request.
	idleFor = 2 * time.Minute
	// saveAfter is the least time between two writes of the known tokens, saveEvery the most between two
	// attempts, and rewriteEvery how long the times at which they were accepted may be wrong on disk.
	saveAfter, saveEvery, rewriteEvery = time.Second, 10 * time.Second, time.Hour
	// renewWithin is for how long after an outage, or the hub's own start, a certificate that has expired is accepted:
	// its client renews it with it.
	renewWithin = time.Hour
	// secretSize is the size of the secret with which tokens are hashed, in bytes.
	secretSize = 32
)

// Run runs the hub until ctx is done. It serves before the cloud is reachable.
func Run(ctx context.Context, c *config.Configuration, log logr.Logger) error {
	return run(ctx, c, log, trial{})
}

// trial is what a test changes of a hub. Nothing of it is set outside tests.
type trial struct {
	// fail makes the disk fail: see cache.Options.
	fail func(op string) error
	// takeWithin is the hub's instead of limits.TakeWithin.
	takeWithin time.Duration
	// access is the address of the port for the pool's API server.
	access string
}

// http2 bounds what a connection of HTTP/2 holds. What a client has sent and nobody reads yet is in memory: of each
// connection that much. A connection that takes nothing any more would hold all that is sent on it, for ever.
func (t trial) http2() *http.HTTP2Config {
	return &http.HTTP2Config{
		MaxReceiveBufferPerConnection: maxUnread, MaxReceiveBufferPerStream: maxUnread / 4,
		WriteByteTimeout: cmp.Or(t.takeWithin, limits.TakeWithin),
	}
}

// run is Run with what a test changes.
func run(ctx context.Context, c *config.Configuration, log logr.Logger, changed trial) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	memory.Bound(memory.OfControlGroup(os.DirFS("/")))
	if err := os.MkdirAll(c.Directory, 0o700); err != nil {
		return fmt.Errorf("making the hub's directory: %w", err)
	}
	caught := panics.New(log)
	followed, err := newFollowed(c, caught, log)
	if err != nil {
		return err
	}
	var servers []*url.URL
	for _, text := range c.Cloud.Servers {
		server, err := url.Parse(text)
		if err != nil {
			return fmt.Errorf("reading the URL of an API server: %w", err)
		}
		servers = append(servers, server)
	}
	var cloud *uplink.Uplink
	send := func(r *http.Request, asNode bool) (*http.Response, error) { return cloud.RoundTrip(r, asNode) }
	node := newNodeCertificate(c, send, log)
	cloud = uplink.New(uplink.Options{
		Servers: servers, Roots: followed.cloudRoots, NodeCertificate: node.get, NodeName: c.NodeName, Return: c.Cloud.ReturnWithin.Duration, Log: log.WithName("uplink"),
	})
	store, done, err := openCache(filepath.Join(c.Directory, "cache"), c.Cache, cache.Options{
		ShareOf: proxy.Shares(c.Cache.MaxSize.Value(), c.Services.Clients), Panics: caught, Log: log.WithName("cache"), Fail: changed.fail,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	writes, err := openJournal(filepath.Join(c.Directory, "writes"), c.Cache, journal.Options{Panics: caught, Log: log.WithName("journal"), Fail: changed.fail})
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
	services := newEndpoints(c, caught, log.WithName("services"))
	p := &proxy.Proxy{
		Filter: services, Pods: services, Panics: caught, Kubelet: kubelet.New(c.NodeName, c.Kubelet.Address, c.Kubelet.CertificateFiles()...),
		Cloud: cloud, Cache: store, Tokens: tokens, Journal: writes, Log: log.WithName("proxy"), MaxBytes: c.Cache.MaxSize.Value(),
		Recognizer: &identity.Recognizer{NodeName: c.NodeName, Tokens: tokens, ClientRoots: followed.clientRoots, Now: time.Now, Renews: func() bool {
			e, _ := cloud.Evidence()
			return e.State == uplink.Online && time.Since(e.Returned) > renewWithin
		}},
	}
	p.LearnKept()
	discovery := pool.NewDiscovery(c.NodeName, log.WithName("pool"))
	people := newAccess(c, cmp.Or(changed.access, fmt.Sprintf(":%d", governance.HubPort)), discovery, p, send, log.WithName("access"))
	governed := newPool(c.NodeName, discovery, p, cloud, node, people, log.WithName("pool"))
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", c.Listen)
	if err != nil {
		return fmt.Errorf("listening for clients: %w", err)
	}
	var handlers sync.WaitGroup
	requests, endRequests := context.WithCancel(context.WithoutCancel(ctx))
	defer endRequests()
	clients := limits.NewConnections(maxStrangers, maxOfIdentity, maxOthers)
	p.Trust = trusting(clients, p.Recognizer)
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			handlers.Add(1)
			defer handlers.Done()
			p.ServeHTTP(w, withRequest(r))
		}),
		ReadHeaderTimeout: headerWithin, MaxHeaderBytes: maxHeader, IdleTimeout: idleFor,
		BaseContext: func(net.Listener) context.Context { return requests },
		ConnContext: clients.Open, ConnState: clients.Change, ErrorLog: stdlog.New(errorLog{log}, "", 0),
		HTTP2: changed.http2(),
		// The certificates of clients are judged for each request: see identity.Recognizer.
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: serving.get, ClientAuth: tls.RequestClientCert},
	}
	observed, err := (&parts{c.NodeName, cloud, node, serving, p, services, governed, people, caught}).observe()
	if err != nil {
		return err
	}
	observer, err := (&net.ListenConfig{}).Listen(ctx, "tcp", c.Observe)
	if err != nil {
		return fmt.Errorf("listening for who observes the hub: %w", err)
	}
	observing := newObserving(observed, log)
	var background sync.WaitGroup
	background.Go(func() {
		if err := observing.Serve(observer); !errors.Is(err, http.ErrServerClosed) {
			log.Error(err, "The hub cannot be observed any more")
		}
	})
	tasks := map[string]func(context.Context){
		"asking the cloud": cloud.Run, "following files": followed.run, "the certificate of the node": node.run, "the serving certificate": serving.run, "sending kept writes": p.Replay,
		"telling of held pods":                 p.TellOfHeld,
		"keeping what kubectl reads first":     p.KeepDiscovery,
		"following Services":                   func(ctx context.Context) { services.Run(ctx, p.Follow) },
		"removing what pods had that are gone": func(ctx context.Context) { every(ctx, proxy.RetainEvery, p.Retain) },
		"finding the pool's coordinator":       func(ctx context.Context) { discovery.Run(ctx, p.Follow) },
		"telling the pool's coordinator":       governed.Run,
		"serving the pool's API server":        people.Run,
		"the certificate of that port":         people.certificate.Run,
		"keeping tokens":                       func(ctx context.Context) { keepTokens(ctx, tokens, save) },
	}
	for what, run := range tasks {
		background.Go(func() { caught.Keep(ctx, what, run) })
	}
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
	endRequests() // exec, attach and port-forward, which the server does not know any more
	handlers.Wait()
	_ = observing.Close()
	background.Wait()
	services.Flush()
	p.Wait()
	save()
	return err
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
	known := f.Known
	var written time.Time
	return tokens, func() {
		now := tokens.Known()
		same := maps.EqualFunc(now, known, func(time.Time, time.Time) bool { return true }) // the same tokens
		if !writes || same && (len(now) == 0 || time.Since(written) <= rewriteEvery) {
			return
		}
		text, err := json.Marshal(tokensFile{f.Secret, now})
		if err == nil {
			err = files.Write(path, text)
		}
		if err != nil {
			log.Error(err, "After a restart without the cloud, some tokens will not be known")
			return
		}
		known, written = now, time.Now()
	}
}

// keepTokens calls save soon after tokens have changed, and from time to time, until ctx is done.
func keepTokens(ctx context.Context, tokens *identity.Tokens, save func()) {
	again := time.NewTicker(saveEvery)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tokens.Changed():
		case <-again.C:
		}
		save()
		select {
		case <-ctx.Done():
			return
		case <-time.After(saveAfter):
		}
	}
}

// every calls do from time to time until ctx is done.
func every(ctx context.Context, interval time.Duration, do func()) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			do()
		}
	}
}
