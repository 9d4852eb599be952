package proxy

import (
	"context"
	"errors"
	"net/http"
	"net/http/httputil"
	"time"

	"github.com/atoll-k8s/atoll/internal/hub/request"
	"github.com/atoll-k8s/atoll/internal/hub/uplink"
)

const (
	// readWithin limits how long a read is retried, and readAgain is the time between two attempts.
	readWithin, readAgain = 15 * time.Second, 300 * time.Millisecond
)

// Cloud is the connection to the API servers: see uplink.Uplink.
type Cloud interface {
	RoundTrip(r *http.Request, asNode bool) (*http.Response, error)
	AwaitOnline(ctx context.Context) error
	AwaitReachable(ctx context.Context) (spread time.Duration, err error)
}

// sender sends requests to the cloud.
type sender struct {
	*Options

	limits   *limiters
	metrics  *metrics
	refusals *refusals
	errors   *errorAnswers
}

// send sends the request to the cloud, and records whether the cloud accepted the token.
func (s *sender) send(c *call, r *http.Request) (*http.Response, error) {
	r.RequestURI = ""
	if !c.caller.IsNode { // as the hub has read it: see identity.Recognizer
		r.Header.Set("Authorization", "Bearer "+c.caller.Token)
	}
	response, err := s.Cloud.RoundTrip(r, c.caller.IsNode)
	if err == nil {
		s.metrics.request(c.what.Kind, fromCloud)
		if c.caller.IsNode {
			s.metrics.answer(response.StatusCode)
		}
		if response.StatusCode/100 == 2 {
			s.refusals.end(c.key)
			s.refusals.end(c.ofAnyForm())
		}
	}
	if err != nil || c.caller.IsNode {
		return response, err
	}
	if response.StatusCode == http.StatusUnauthorized {
		s.Tokens.Refused(c.caller.Token, time.Now())
	} else if c.isProof(response) {
		s.Tokens.Accepted(c.caller.Token, time.Now())
	}
	c.body.answered(response)
	if response.StatusCode < http.StatusBadRequest {
		s.limits.leaveStrangers(c)
	}
	return response, nil
}

// isProof reports whether a response proves that the API server has accepted the token of the request. An API
// server may send a response other than success before it checks the token, and also the response to OPTIONS,
// which browsers send first. A request for another protocol may contain the token of another caller.
func (c *call) isProof(answer *http.Response) bool {
	return answer.StatusCode/100 == 2 && c.Method != http.MethodOptions && c.what.Kind != request.Stream
}

// read sends a request that changes nothing. A broken connection does not prove that the cloud is offline: read
// retries until it gets a response, or until the cloud is known to be offline, for at most readWithin.
func (s *sender) read(c *call, r *http.Request) (*http.Response, error) {
	for began := time.Now(); ; {
		response, err := s.send(c, r)
		if err == nil || isAway(err) || c.Context().Err() != nil || time.Since(began) > readWithin {
			return response, err
		}
		select {
		case <-c.Context().Done():
			return nil, err
		case <-time.After(readAgain):
		}
	}
}

// isAway reports whether an error means that the hub cannot send requests to the cloud at present: the cloud is
// offline, or, for requests of the node, the hub has no valid certificate.
func isAway(err error) bool {
	return errors.Is(err, uplink.ErrOffline) || errors.Is(err, uplink.ErrNoCertificate)
}

// pass forwards a request and its response. Nothing is cached.
func (s *sender) pass(w http.ResponseWriter, c *call) {
	(&httputil.ReverseProxy{
		Rewrite:       func(*httputil.ProxyRequest) {},
		Transport:     roundTripper(func(r *http.Request) (*http.Response, error) { return s.send(c, r) }),
		FlushInterval: -1,
		ErrorHandler:  func(w http.ResponseWriter, r *http.Request, err error) { s.errors.unavailable(w, r, err) },
	}).ServeHTTP(w, c.Request)
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
