package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/watch"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// hubClient reads as a client of a node, without decoding anything, so that both sides have as little
// of their own as possible.
type hubClient struct {
	http       *http.Client
	url, token string
}

// newHubClient returns a client with a kubeconfig, which reaches the API server by a hub, or directly.
func newHubClient(kubeconfig string, by *atoll.HubProcess) (*hubClient, error) {
	if by != nil {
		var err error
		if kubeconfig, err = devcluster.Behind(kubeconfig, by.Endpoint); err != nil {
			return nil, err
		}
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("reading a kubeconfig: %w", err)
	}
	tls, err := restclient.TLSConfigFor(config)
	if err != nil {
		return nil, fmt.Errorf("reading a kubeconfig: %w", err)
	}
	return &hubClient{
		http: &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: tls}}, url: config.Host, token: config.BearerToken,
	}, nil
}

// send asks for a path.
func (c *hubClient) send(ctx context.Context, path string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url+path, nil)
	if err != nil {
		return nil, fmt.Errorf("asking for %s: %w", path, err)
	}
	request.Header.Set("Accept", "application/vnd.kubernetes.protobuf")
	if c.token != "" {
		request.Header.Set("Authorization", "Bearer "+c.token)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, fmt.Errorf("asking for %s: %w", path, err)
	}
	if err := good(response); err != nil {
		return nil, errors.Join(err, response.Body.Close())
	}
	return response, nil
}

// read reads an answer to its end and returns its headers.
func (c *hubClient) read(ctx context.Context, path string) (http.Header, error) {
	response, err := c.send(ctx, path)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	return response.Header, nil
}

// maxEvent bounds one event of a watch, in bytes.
const maxEvent = 4 << 20

// hubWatch is an open watch.
type hubWatch struct {
	cancel context.CancelFunc
	done   chan struct{}

	mu sync.Mutex
	// arrived is when each event arrived, by the resource version of its object; bytes are those of all
	// these events.
	arrived map[string]time.Time
	bytes   int
	next    chan struct{} // closed when an event arrives
	err     error         // why it ended
}

// watch lists a collection, and watches it from there.
func (c *hubClient) watch(ctx context.Context, path string) (*hubWatch, error) {
	list, err := c.send(ctx, path)
	if err != nil {
		return nil, err
	}
	defer list.Body.Close()
	body, err := io.ReadAll(list.Body)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	decoded, err := wire.Protobuf.DecodeList(body)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	response, err := c.send(ctx, strings.Replace(path, "resourceVersion=0", "watch=1&resourceVersion="+decoded.ResourceVersion, 1))
	if err != nil {
		cancel()
		return nil, err
	}
	w := &hubWatch{cancel: cancel, done: make(chan struct{}), arrived: map[string]time.Time{}, next: make(chan struct{})}
	go w.follow(response.Body)
	return w, nil
}

func (w *hubWatch) follow(body io.ReadCloser) {
	defer close(w.done)
	defer body.Close()
	events := wire.Protobuf.NewEventReader(body, maxEvent)
	for {
		e, err := events.Next()
		at := time.Now()
		var m wire.Meta
		if err == nil && e.Type == watch.Bookmark {
			continue
		}
		if err == nil {
			m, err = wire.Protobuf.Meta(e.Object)
		}
		w.mu.Lock()
		if w.err = err; err == nil {
			w.arrived[m.ResourceVersion] = at
			w.bytes += len(e.Frame)
		}
		close(w.next)
		w.next = make(chan struct{})
		w.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// stop ends the watch.
func (w *hubWatch) stop() {
	w.cancel()
	<-w.done
}

// await waits for the event with a resource version and returns when it arrived.
func (w *hubWatch) await(ctx context.Context, version string) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, stepWithin)
	defer cancel()
	for {
		w.mu.Lock()
		at, has := w.arrived[version]
		next, err := w.next, w.err
		w.mu.Unlock()
		switch {
		case has:
			return at, nil
		case err != nil:
			return at, fmt.Errorf("watching: %w", err)
		}
		select {
		case <-ctx.Done():
			return at, fmt.Errorf("waiting for the event with the version %s: %w", version, ctx.Err())
		case <-next:
		}
	}
}

// size returns the number of events and of their bytes.
func (w *hubWatch) size() (events, bytes int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.arrived), w.bytes
}
