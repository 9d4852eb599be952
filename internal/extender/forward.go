package extender

import (
	"bytes"
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/atoll-k8s/atoll/internal/machinery/leader"
)

// forwardTimeout is the timeout of a forwarded request. kube-scheduler has its own timeout,
// which is set in its configuration.
const forwardTimeout = 30 * time.Second

// forward answers a request with the leader's response, or with 503: kube-scheduler retries.
func forward(to *leader.Leader, w http.ResponseWriter, r *http.Request) {
	if to == nil || leader.IsForwarded(r) || to.Address() == "" {
		unavailable(w, leader.ErrNone)
		return
	}
	var body bytes.Buffer // not from the pool: the transport may read it after the response has come
	if status, err := readBody(w, r, &body); err != nil {
		http.Error(w, err.Error(), status)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), forwardTimeout)
	defer cancel()
	reply, status, err := to.Post(ctx, r.URL.Path, body.Bytes(), maxBody)
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
