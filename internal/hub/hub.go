// Package hub is atoll-hub, the only connection between a node and the API servers. It wires the packages below
// it:
//
//	request    parses requests
//	identity   determines the callers of requests
//	limits     limits for each client and for all together
//	wire       the encodings of responses
//	cache      the cached responses, on disk
//	files      small files: those that other programs replace, and the hub's own
//	panics     recovers from panics
//	nodecert   the certificates of the node that the hub requests itself
//	delivery   which pods may reach the node
//	filter     the interfaces between the proxy and filters of objects
//	endpoints  filters the endpoints of Services for clients
//	replay     sends the writes of the journal
//	journal    writes of the node that wait for the cloud, on disk
//	kubelet    requests to the kubelet
//	uplink     whether the cloud is reachable, and the connections to it
//	pool       the coordinator of the node's pool
//	access     the port for the coordinator's API server: logs and exec for users
//	proxy      answers requests, from the cloud or the cache
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
	"github.com/atoll-k8s/atoll/internal/hub/inventory"
	"github.com/atoll-k8s/atoll/internal/hub/journal"
	"github.com/atoll-k8s/atoll/internal/hub/kubelet"
	"github.com/atoll-k8s/atoll/internal/hub/limits"
	"github.com/atoll-k8s/atoll/internal/hub/panics"
	"github.com/atoll-k8s/atoll/internal/hub/pool"
	"github.com/atoll-k8s/atoll/internal/hub/proxy"
	"github.com/atoll-k8s/atoll/internal/hub/record"
	"github.com/atoll-k8s/atoll/internal/hub/replay"
	"github.com/atoll-k8s/atoll/internal/hub/uplink"
	"github.com/atoll-k8s/atoll/internal/machinery/memory"
)

const (
	// headerWithin is how long a client may take to send the headers of a request, and maxHeader their size
	// limit in bytes.
	headerWithin, maxHeader = 10 * time.Second, 64 << 10
	// maxUnread is how many bytes of the requests of a connection are received before they are read.
	maxUnread = 256 << 10
	// closeWithin is how long requests may continue when the hub exits.
	closeWithin = 2 * time.Second
	// idleFor is how long a connection may be idle.
	idleFor = 2 * time.Minute
	// saveAfter is the least time between two writes of the known tokens, saveEvery the longest time between
	// two attempts, and rewriteEvery how old the times of acceptance on disk may be.
	saveAfter, saveEvery, rewriteEvery = time.Second, 10 * time.Second, time.Hour
	// renewWithin is how long after an outage, or after the start of the hub, an expired certificate is
	// accepted, so that its client can renew it.
	renewWithin = time.Hour
	// secretSize is the size of the secret for hashing tokens, in bytes.
	secretSize = 32
)

// Run runs the hub until ctx is done. It serves before the cloud is reachable.
func Run(ctx context.Context, c *config.Configuration, log logr.Logger) error {
	return run(ctx, c, log, trial{})
}

// trial has the changes of a test to a hub. It is empty outside tests.
type trial struct {
	// wrap is for both caches: see cache.Options.
	wrap func(cache.Directory) cache.Directory
	// takeWithin replaces limits.TakeWithin.
	takeWithin time.Duration
	// access is the address of the port for the pool's API server.
	access string
}

// http2 limits the memory of an HTTP/2 connection. Data that the client has sent and nobody has read yet is in
// memory. WriteByteTimeout closes connections whose client reads nothing: otherwise they would hold the unread
// responses for ever.
func (t trial) http2() *http.HTTP2Config {
	return &http.HTTP2Config{
		MaxReceiveBufferPerConnection: maxUnread, MaxReceiveBufferPerStream: maxUnread / 4,
		WriteByteTimeout: cmp.Or(t.takeWithin, limits.TakeWithin),
	}
}

// run is Run with the changes of a test.
func run(ctx context.Context, c *config.Configuration, log logr.Logger, changed trial) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	memory.Bound(memory.OfControlGroup(os.DirFS("/")))
	if err := os.MkdirAll(c.Directory, 0o700); err != nil {
		return fmt.Errorf("creating the hub's directory: %w", err)
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
		ShareOf: record.Shares(c.Cache.MaxSize.Value(), c.Services.Clients), Panics: caught, Log: log.WithName("cache"), Wrap: changed.wrap,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	writes, err := openJournal(filepath.Join(c.Directory, "writes"), c.Cache, journal.Options{Panics: caught, Log: log.WithName("journal"), Wrap: changed.wrap})
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
	replayer := &replay.Replayer{Cloud: cloud, Journal: writes, Panics: caught, Log: log.WithName("replay")}
	p := proxy.New(proxy.Options{
		Filter: services, Pods: services, Panics: caught, Kubelet: kubelet.New(c.NodeName, c.Kubelet.Address, c.Kubelet.CertificateFiles()...),
		Cloud: cloud, Cache: store, Tokens: tokens, Journal: writes, Replay: replayer, Log: log.WithName("proxy"), MaxBytes: c.Cache.MaxSize.Value(),
		Recognizer: &identity.Recognizer{NodeName: c.NodeName, Tokens: tokens, ClientRoots: followed.clientRoots, Now: time.Now, Renews: func() bool {
			e, _ := cloud.Evidence()
			return e.State == uplink.Online && time.Since(e.Returned) > renewWithin
		}},
	})
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
		// Client certificates are verified for each request: see identity.Recognizer.
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: serving.get, ClientAuth: tls.RequestClientCert},
	}
	observed, err := (&parts{c.NodeName, cloud, node, serving, p, services, governed, people, caught}).observe()
	if err != nil {
		return err
	}
	observer, err := (&net.ListenConfig{}).Listen(ctx, "tcp", c.Observe)
	if err != nil {
		return fmt.Errorf("listening on the observe address: %w", err)
	}
	observing := newObserving(observed, log)
	var background sync.WaitGroup
	background.Go(func() {
		if err := observing.Serve(observer); !errors.Is(err, http.ErrServerClosed) {
			log.Error(err, "Serving the observe address failed")
		}
	})
	tasks := map[string]func(context.Context){
		"probing the cloud": cloud.Run, "following files": followed.run, "the certificate of the node": node.run, "the serving certificate": serving.run, "sending journaled writes": replayer.Run,
		"reporting held pods":           p.Gate.Run,
		"caching discovery for kubectl": p.KeepDiscovery,
		"following Services":            func(ctx context.Context) { services.Run(ctx, p.Follow) },
		"removing objects of deleted pods": func(ctx context.Context) {
			every(ctx, inventory.RetainEvery, func() { inventory.Retain(p.Record, c.NodeName) })
		},
		"finding the pool's coordinator":  func(ctx context.Context) { discovery.Run(ctx, p.Follow) },
		"updating the pool's coordinator": governed.Run,
		"serving the pool's API server":   people.Run,
		"the certificate of that port":    people.certificate.Run,
		"saving known tokens":             func(ctx context.Context) { keepTokens(ctx, tokens, save) },
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
		_ = server.Close() // ends watches
	}
	endRequests() // exec, attach and port-forward: Shutdown does not end them
	handlers.Wait()
	_ = observing.Close()
	background.Wait()
	services.Flush()
	p.Wait()
	save()
	return err
}

// tokensFile is the content of the file with the known tokens.
type tokensFile struct {
	Secret []byte               `json:"secret"`
	Known  map[string]time.Time `json:"known"`
}

// readTokens reads the known tokens from a file, and returns a function that writes the file if they have
// changed. If the content is damaged, it starts with no known tokens: a token is known again when the cloud
// accepts it. If the file cannot be read for another reason, it is not changed.
func readTokens(path string, log logr.Logger) (tokens *identity.Tokens, save func()) {
	var f tokensFile
	text, err := os.ReadFile(path)
	if err == nil && (json.Unmarshal(text, &f) != nil || len(f.Secret) != secretSize) {
		log.Info("The file with the known tokens is damaged; starting without known tokens")
		f = tokensFile{}
	}
	writes := err == nil || errors.Is(err, fs.ErrNotExist)
	if !writes {
		log.Error(err, "Reading the known tokens failed; tokens that the cloud accepted earlier are rejected while offline")
	}
	if f.Secret == nil {
		f.Secret = make([]byte, secretSize)
		_, _ = rand.Read(f.Secret) // never fails
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
			log.Error(err, "Saving the known tokens failed; after an offline restart, some tokens are rejected")
			return
		}
		known, written = now, time.Now()
	}
}

// keepTokens calls save soon after tokens have changed, and every saveEvery, until ctx is done.
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

// every calls do in intervals until ctx is done.
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
