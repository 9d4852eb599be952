// Package rawclient reads from an API server, or from a hub, and decodes nothing: the bytes, headers
// and times of answers are what its users look at.
package rawclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/atoll-k8s/atoll/devcluster"
)

// The representations of objects.
const (
	JSON     = "application/json"
	Protobuf = "application/vnd.kubernetes.protobuf"
)

// Client sends reads over one connection. It is safe for concurrent use.
type Client struct {
	http               *http.Client
	url, token, accept string
}

// New returns a client with the identity of a kubeconfig, which reaches the API server by an endpoint;
// nil means directly. accept is the representation that it asks for.
func New(kubeconfig string, by *devcluster.Endpoint, accept string) (*Client, error) {
	if by != nil {
		var err error
		if kubeconfig, err = devcluster.Behind(kubeconfig, *by); err != nil {
			return nil, err
		}
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("reading a kubeconfig: %w", err)
	}
	tls, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, fmt.Errorf("reading a kubeconfig: %w", err)
	}
	return &Client{
		http: &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: tls}},
		url:  config.Host, token: config.BearerToken, accept: accept,
	}, nil
}

// Close closes the connection, if no request uses it.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// StatusError is the error of an answer other than 200.
type StatusError struct {
	Code int
	// Text is the beginning of the answer.
	Text string
}

// Error implements error.
func (e *StatusError) Error() string { return fmt.Sprintf("the answer is %d: %s", e.Code, e.Text) }

// maxText bounds what an error quotes of an answer, in bytes.
const maxText = 1000

// Send asks for a path, with its query. The caller closes the body of the answer.
func (c *Client) Send(ctx context.Context, path string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url+path, nil)
	if err != nil {
		return nil, fmt.Errorf("asking for %s: %w", path, err)
	}
	request.Header.Set("Accept", c.accept)
	if c.token != "" {
		request.Header.Set("Authorization", "Bearer "+c.token)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, fmt.Errorf("asking for %s: %w", path, err)
	}
	if response.StatusCode == http.StatusOK {
		return response, nil
	}
	text, _ := io.ReadAll(io.LimitReader(response.Body, maxText))
	err = fmt.Errorf("asking for %s: %w", path, &StatusError{response.StatusCode, string(text)})
	return nil, errors.Join(err, response.Body.Close())
}

// Read is Send, and reads the whole answer.
func (c *Client) Read(ctx context.Context, path string) (body []byte, header http.Header, err error) {
	response, err := c.Send(ctx, path)
	if err != nil {
		return nil, nil, err
	}
	defer response.Body.Close()
	if body, err = io.ReadAll(response.Body); err != nil {
		return nil, nil, fmt.Errorf("reading %s: %w", path, err)
	}
	return body, response.Header, nil
}

// Skip is Send, and drops the answer once all of it is there.
func (c *Client) Skip(ctx context.Context, path string) (http.Header, error) {
	response, err := c.Send(ctx, path)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	return response.Header, nil
}
