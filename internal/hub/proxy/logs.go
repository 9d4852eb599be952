package proxy

import (
	"encoding/json"
	"net/http"
	"net/http/httputil"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-k8s/atoll/internal/hub/kubelet"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// isOwnLog reports whether the node reads the log of a pod. API servers do not allow that, so the hub requests
// the log from the kubelet.
func isOwnLog(k *kubelet.Kubelet, c *call) bool {
	return k != nil && c.caller.IsNode && c.Method == http.MethodGet && c.what.Resource == "pods" && c.what.Subresource == "log"
}

// ownLog answers with the log of a pod from the kubelet.
func ownLog(p *parts, w http.ResponseWriter, c *call) {
	(&httputil.ReverseProxy{
		Rewrite: func(*httputil.ProxyRequest) {},
		Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			return p.Kubelet.Log(r.Context(), c.what.Namespace, c.what.Name, c.URL.Query())
		}),
		FlushInterval: -1,
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			code, text := kubelet.ReasonOf(err)
			reason := map[int]metav1.StatusReason{
				http.StatusNotFound: metav1.StatusReasonNotFound, http.StatusBadRequest: metav1.StatusReasonBadRequest, http.StatusServiceUnavailable: metav1.StatusReasonServiceUnavailable,
			}[code]
			p.errors.refuse(w, r, code, reason, text)
		},
	}).ServeHTTP(w, c.Request)
}

// ofHub answers a review of the kubelet that is about the hub itself. It returns false for all other reviews.
func ofHub(p *parts, w http.ResponseWriter, c *call, question []byte) bool {
	if p.Kubelet == nil || !c.caller.IsNode || c.what.Resource != "tokenreviews" && c.what.Resource != "subjectaccessreviews" {
		return false
	}
	review := p.Kubelet.Review(question)
	if review == nil {
		return false
	}
	body, err := json.Marshal(review)
	if err != nil {
		p.errors.unavailable(w, c.Request, err)
		return true
	}
	p.metrics.request(c.what.Kind, fromHub)
	w.Header().Set("Content-Type", wire.JSON.ContentType())
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write(body)
	return true
}
