package uplink

import (
	"crypto/tls"
	"net/http"
	"time"
)

// RefusedSince returns since when the cloud answers requests of the node with 401, zero if it does not: it
// refuses the certificate.
func (u *Uplink) RefusedSince() time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.refused
}

// judge notes by the code of an answer whether the cloud accepts the certificate of the node. A busy server
// answers 429 before it looks at the certificate, and 5xx may be of whatever stands before the servers.
func (u *Uplink) judge(certificate *tls.Certificate, code int) {
	if code == http.StatusTooManyRequests || code >= http.StatusInternalServerError {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	isRefused, was := code == http.StatusUnauthorized, !u.refused.IsZero()
	switch {
	case certificate != u.node.certificate: // a late answer to the one before
	case isRefused && !was:
		u.refused = time.Now()
		u.options.Log.Info("The cloud refuses the certificate of the node", "code", code)
	case !isRefused && was:
		u.options.Log.Info("The cloud accepts the certificate of the node again", "after", time.Since(u.refused).Round(time.Second).String())
		u.refused = time.Time{}
	}
}
