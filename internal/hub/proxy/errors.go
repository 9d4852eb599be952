package proxy

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-k8s/atoll/internal/hub/request"
	"github.com/atoll-k8s/atoll/internal/hub/uplink"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// errorAnswers sends the hub's own error responses.
type errorAnswers struct {
	metrics *metrics
	log     logr.Logger
}

// unavailable answers that the request could not be sent to the cloud.
func (a *errorAnswers) unavailable(w http.ResponseWriter, r *http.Request, err error) {
	if a.hasEnded(w, r) {
		return
	}
	if !isAway(err) {
		w.Header().Set("Retry-After", strconv.Itoa(retryAfter))
	}
	if !errors.Is(err, uplink.ErrOffline) {
		a.log.V(2).Info("Request to the cloud failed", "path", r.URL.Path, "error", err.Error())
	}
	a.refuse(w, r, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable,
		fmt.Sprintf("the hub cannot ask the cloud (%v), and has no cached response to this request", err))
}

// refuse answers with a Status, in the first accepted encoding that the hub supports.
func (a *errorAnswers) refuse(w http.ResponseWriter, r *http.Request, code int, reason metav1.StatusReason, message string) {
	a.metrics.request(request.Of(r).Kind, fromHub)
	format := wire.JSON
	for accepted := range strings.SplitSeq(r.Header.Get("Accept"), ",") {
		if f, err := wire.FormatOf(accepted); err == nil {
			format = f
			break
		}
	}
	w.Header().Del(AsOf) // this response is from the hub itself, not from the cache
	w.Header().Del("Warning")
	status := metav1.Status{Status: metav1.StatusFailure, Reason: reason, Message: message, Code: int32(code)}
	if code == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", strconv.Itoa(retryAfter))
	}
	if w.Header().Get("Retry-After") != "" {
		status.Details = &metav1.StatusDetails{RetryAfterSeconds: retryAfter}
	}
	body, err := format.EncodeStatus(status)
	if err != nil {
		http.Error(w, message, code)
		return
	}
	w.Header().Set("Content-Type", format.ContentType())
	w.WriteHeader(code)
	_, _ = w.Write(body)
}

// busy answers 429: too many requests of this kind are in progress.
func (a *errorAnswers) busy(w http.ResponseWriter, c *call) {
	if a.hasEnded(w, c.Request) {
		return
	}
	a.refuse(w, c.Request, http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, "too many requests of this kind are in progress in the hub")
}

// refuseQuestion rejects a request whose body could not be read completely.
func (a *errorAnswers) refuseQuestion(w http.ResponseWriter, c *call, err error) {
	tooLarge := (*http.MaxBytesError)(nil)
	switch {
	case errors.As(err, &tooLarge):
		a.refuse(w, c.Request, http.StatusRequestEntityTooLarge, metav1.StatusReasonRequestEntityTooLarge, fmt.Sprintf("the body has more than %d bytes", tooLarge.Limit))
	case errors.Is(err, os.ErrDeadlineExceeded):
		a.refuse(w, c.Request, http.StatusRequestTimeout, metav1.StatusReasonTimeout, fmt.Sprintf("the body did not arrive within %s", questionWithin))
	default:
		panic(http.ErrAbortHandler) // the client has disconnected
	}
}

// hasEnded reports whether a request has ended because its body did not arrive in time, and then answers it. If
// the client has disconnected, it panics with http.ErrAbortHandler.
func (a *errorAnswers) hasEnded(w http.ResponseWriter, r *http.Request) bool {
	if r.Context().Err() == nil {
		return false
	}
	if body, is := r.Context().Value(bodyKey{}).(*slowBody); is {
		select {
		case <-body.failed:
			if body.isLate {
				a.refuse(w, r, http.StatusRequestTimeout, metav1.StatusReasonTimeout, fmt.Sprintf("the body did not arrive within %s", bodyWithin))
				return true
			}
		case <-time.After(failedWithin): // the server may end the request before the failed read returns
		}
	}
	panic(http.ErrAbortHandler)
}
