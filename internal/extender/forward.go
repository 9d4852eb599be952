package extender

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

// forwardedHeader marks a request that another replica has forwarded. Such a request is not
// forwarded again: if each of two replicas takes the other for the leader, they would
// forward it to each other without end.
const forwardedHeader = "X-Atoll-Forwarded"

// Forwarder sends requests to the leader.
type Forwarder struct {
	// Leader returns the host:port of the leader's extender; "" while there is none.
	Leader func() string
	// Transport connects to other replicas with mutual TLS.
	Transport http.RoundTripper
}

// errNoLeader is answered with 503: kube-scheduler retries.
var errNoLeader = errors.New("no replica of atoll-manager leads at the moment")

// forward answers a request with the leader's response, or with 503. It sends the request
// to the leader once, and does not repeat it if that fails: the leader may have received
// it.
func (f *Forwarder) forward(w http.ResponseWriter, r *http.Request) {
	if f == nil || r.Header.Get(forwardedHeader) != "" || f.Leader() == "" {
		unavailable(w, errNoLeader)
		return
	}
	var body bytes.Buffer // not from the pool: the transport may read it after the response has come
	if status, err := readBody(w, r, &body); err != nil {
		http.Error(w, err.Error(), status)
		return
	}
	reply, status, err := f.send(r, f.Leader(), body.Bytes())
	if err != nil {
		unavailable(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(reply)))
	w.WriteHeader(status)
	_, _ = w.Write(reply) // the write fails if kube-scheduler has closed the connection
}

// unavailable answers 503.
func unavailable(w http.ResponseWriter, err error) {
	http.Error(w, err.Error()+"; try again", http.StatusServiceUnavailable)
}

// send posts a request to the leader and returns its response.
func (f *Forwarder) send(r *http.Request, leader string, body []byte) (reply []byte, status int, err error) {
	request, err := http.NewRequestWithContext(r.Context(), r.Method, "https://"+leader+r.URL.Path, bytes.NewReader(body))
	if err != nil {
		return nil, 0, fmt.Errorf("forwarding the request to the leader: %w", err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set(forwardedHeader, "1")
	client := &http.Client{Transport: f.Transport, Timeout: forwardTimeout}
	response, err := client.Do(request)
	if err != nil {
		return nil, 0, fmt.Errorf("forwarding the request to the leader: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	reply, err = io.ReadAll(io.LimitReader(response.Body, maxBody))
	if err != nil {
		return nil, 0, fmt.Errorf("forwarding the request to the leader: %w", err)
	}
	return reply, response.StatusCode, nil
}

// forwardTimeout is the timeout of a forwarded request. kube-scheduler has its own timeout,
// which is set in its configuration.
const forwardTimeout = 30 * time.Second
