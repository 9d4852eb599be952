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

// forwardedHeader marks a call that another replica has handed on. It is never
// handed on again: two replicas that disagree about who leads would pass it
// back and forth.
const forwardedHeader = "X-Atoll-Forwarded"

// Forwarder hands calls on to the replica that leads.
type Forwarder struct {
	// Leader is the host:port of the leader's extender; "" while nobody is
	// known to lead.
	Leader func() string
	// Transport speaks mutual TLS to other replicas.
	Transport http.RoundTripper
}

// errNoLeader: kube-scheduler tries again.
var errNoLeader = errors.New("no replica of atoll-manager leads at the moment")

// forward answers a call with what the leader says to it, or with 503. A call
// is handed on once: if the leader may have taken it, it is not repeated.
func (f *Forwarder) forward(w http.ResponseWriter, r *http.Request) {
	if f == nil || r.Header.Get(forwardedHeader) != "" || f.Leader() == "" {
		unavailable(w, errNoLeader)
		return
	}
	var body bytes.Buffer // of its own: it may be sent for longer than the answer takes
	if status, err := readBody(w, r, &body); err != nil {
		http.Error(w, err.Error(), status)
		return
	}
	reply, status, err := f.ask(r, f.Leader(), body.Bytes())
	if err != nil {
		unavailable(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(reply)))
	w.WriteHeader(status)
	_, _ = w.Write(reply) // a failed write means that the scheduler has gone away
}

func unavailable(w http.ResponseWriter, err error) {
	http.Error(w, err.Error()+"; try again", http.StatusServiceUnavailable)
}

func (f *Forwarder) ask(r *http.Request, leader string, body []byte) (reply []byte, status int, err error) {
	request, err := http.NewRequestWithContext(r.Context(), r.Method, "https://"+leader+r.URL.Path, bytes.NewReader(body))
	if err != nil {
		return nil, 0, fmt.Errorf("asking the leader: %w", err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set(forwardedHeader, "1")
	client := &http.Client{Transport: f.Transport, Timeout: forwardTimeout}
	response, err := client.Do(request)
	if err != nil {
		return nil, 0, fmt.Errorf("asking the leader: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	reply, err = io.ReadAll(io.LimitReader(response.Body, maxBody))
	if err != nil {
		return nil, 0, fmt.Errorf("asking the leader: %w", err)
	}
	return reply, response.StatusCode, nil
}

// forwardTimeout bounds a call that is handed on; kube-scheduler itself waits
// as long as its configuration says.
const forwardTimeout = 30 * time.Second
