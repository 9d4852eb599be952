package uplink

import (
	"crypto/tls"
	"net/http"
	"time"
)

// RefusedSince returns since when the cloud refuses the node's certificate (401 for requests of the node); zero
// if it does not.
func (u *Uplink) RefusedSince() time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.refused
}

// judge decides by the status code of a response whether the cloud accepts the node's certificate. 429 and 5xx
// are ignored: a busy server answers 429 before it checks the certificate, and a load balancer can answer 5xx.
func (u *Uplink) judge(certificate *tls.Certificate, code int) {
	if code == http.StatusTooManyRequests || code >= http.StatusInternalServerError {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	isRefused, was := code == http.StatusUnauthorized, !u.refused.IsZero()
	switch {
	case certificate != u.node.certificate: // a late response to a request with the previous certificate
	case isRefused && !was:
		u.refused = time.Now()
		u.options.Log.Info("The cloud refuses the certificate of the node", "code", code)
	case !isRefused && was:
		u.options.Log.Info("The cloud accepts the certificate of the node again", "after", time.Since(u.refused).Round(time.Second).String())
		u.refused = time.Time{}
	}
}
