// Package leader sends requests from one replica of atoll-manager to the one that leads.
package leader

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// ErrNone: no replica leads at the moment.
var ErrNone = errors.New("no replica of atoll-manager leads at the moment")

// forwarded marks the requests of other replicas.
const forwarded = "X-Atoll-Forwarded"

// IsForwarded reports whether another replica has sent a request. Such a request must not be sent on: if each of
// two replicas takes the other for the leader, they would send it to each other without end.
func IsForwarded(r *http.Request) bool { return r.Header.Get(forwarded) != "" }

// Leader is the replica that leads. It is safe for concurrent use.
type Leader struct {
	// Address returns the host:port of the leader; "" while there is none.
	Address func() string
	// Transport connects to other replicas with mutual TLS.
	Transport http.RoundTripper
}

// Post posts a JSON body to a path of the leader, and returns its response, of at most limit bytes. It sends the
// request once: after an error, the leader may have received it. The error is ErrNone while there is no leader.
func (l *Leader) Post(ctx context.Context, path string, body []byte, limit int64) (reply []byte, status int, err error) {
	address := l.Address()
	if address == "" {
		return nil, 0, ErrNone
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+address+path, bytes.NewReader(body))
	if err != nil {
		return nil, 0, fmt.Errorf("asking the leader: %w", err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set(forwarded, "1")
	response, err := (&http.Client{Transport: l.Transport}).Do(request)
	if err != nil {
		return nil, 0, fmt.Errorf("asking the leader: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	reply, err = io.ReadAll(io.LimitReader(response.Body, limit))
	if err != nil {
		return nil, 0, fmt.Errorf("asking the leader: %w", err)
	}
	return reply, response.StatusCode, nil
}
