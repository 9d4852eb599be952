package uplink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

const (
	// readyPath is where an API server reports whether it is ready.
	readyPath = "/readyz"
	// leasesPath is the path of the Leases of nodes.
	leasesPath = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/"
)

// Unready means that every answering API server reports not ready. The zero value means that one is ready, or
// that none has answered yet.
type Unready struct {
	// Since is the time of the first such report after the last time that a server was ready.
	Since time.Time
	// Reason is the last report.
	Reason error
}

// Unready returns whether every answering API server reports not ready.
func (u *Uplink) Unready() Unready {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.unready
}

// setUnready records what the API servers report; nil means that one is ready.
func (u *Uplink) setUnready(reason error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	was := !u.unready.Since.IsZero()
	u.unready.Reason = reason
	switch {
	case reason != nil && !was:
		u.unready.Since = time.Now()
		u.options.Log.Info("No API server is ready", "reason", reason.Error())
	case reason == nil && was:
		u.options.Log.Info("An API server is ready again", "after", time.Since(u.unready.Since).Round(time.Second).String())
		u.unready.Since = time.Time{}
	}
}

// ask probes the servers in turn until one is ready. If none is, it checks whether the answering ones serve the
// node nevertheless: one check of /readyz may fail for days, or a server may be shutting down, while all
// requests are served.
func (u *Uplink) ask(ctx context.Context) {
	servers := u.inTurn()
	unready, mute, err := u.askReady(ctx, servers)
	switch {
	case len(unready) > 0:
		u.setUnready(err)
		err = u.askLease(ctx, servers[0], append(unready, mute...))
	case len(mute) > 0:
		u.setUnready(nil)
		err = u.askLease(ctx, servers[0], mute)
	}
	if err != nil && !errors.Is(err, errUndecided) && ctx.Err() == nil {
		u.observe(servers[0], u.after(servers[0]), err)
	}
}

// errUndecided is returned by probes that are no evidence in either way.
var errUndecided = errors.New("the API servers refuse the probe")

// askReady returns the servers that report not ready, the servers that do not let this node read /readyz, and
// why none is ready. A server without anonymous requests answers only requests with a certificate.
func (u *Uplink) askReady(ctx context.Context, servers []int) (unready, mute []int, err error) {
	with, err := u.transports(true)
	if err != nil {
		if with, err = u.transports(false); err != nil {
			return nil, nil, errUndecided
		}
	}
	ctx, cancel := context.WithTimeout(ctx, u.answerWithin)
	defer cancel()
	var errs []error
	for _, at := range servers {
		code, err := u.question(ctx, at, readyPath, with.requests)
		switch {
		case err == nil && code < http.StatusBadRequest:
			u.setUnready(nil)
			u.observe(servers[0], at, nil)
			return nil, nil, nil
		case err == nil && code < http.StatusInternalServerError:
			mute = append(mute, at)
			err = fmt.Errorf("%s does not report whether it is ready: it answers %d", u.options.Servers[at].Host, code)
		case err == nil:
			unready = append(unready, at)
			err = fmt.Errorf("%s is not ready: it answers %d", u.options.Servers[at].Host, code)
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return unready, mute, errors.Join(errs...)
}

// askLease requests the Lease of the node, as the node, from servers of which none reports ready. It returns
// why no server returns the Lease. A server that is starting may return 403, because it has not loaded its
// authorization rules yet, or 429. This is no evidence in either way: such responses neither begin nor end an
// outage.
func (u *Uplink) askLease(ctx context.Context, first int, servers []int) error {
	with, err := u.transports(true)
	asNode := err == nil
	if !asNode {
		if with, err = u.transports(false); err != nil {
			return errUndecided
		}
	}
	ctx, cancel := context.WithTimeout(ctx, u.answerWithin)
	defer cancel()
	var errs []error
	undecided := false
	for _, at := range servers {
		code, err := u.question(ctx, at, leasesPath+u.options.NodeName, with.requests)
		if err == nil && asNode {
			u.judge(with.certificate, code)
		}
		switch {
		case err != nil:
			errs = append(errs, err)
		case code >= http.StatusInternalServerError:
			errs = append(errs, fmt.Errorf("%s is not ready, and answers %d to a request for the Lease of the node", u.options.Servers[at].Host, code))
		case code == http.StatusTooManyRequests, asNode && code == http.StatusForbidden:
			undecided = true
		default:
			u.observe(first, at, nil)
			return nil
		}
	}
	if undecided {
		return errUndecided
	}
	return errors.Join(errs...)
}

// question sends a probe to a server, and returns the status code.
func (u *Uplink) question(ctx context.Context, at int, path string, transport *http.Transport) (code int, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, path, nil)
	if err != nil {
		return 0, err
	}
	response, err := u.sendTo(at, request, transport)
	if err != nil {
		return 0, err
	}
	_, _ = io.CopyN(io.Discard, response.Body, maxDrain)
	_ = response.Body.Close()
	return response.StatusCode, nil
}
