package proxy

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-k8s/atoll/internal/hub/cache"
	"github.com/atoll-k8s/atoll/internal/hub/request"
)

// repeatablePrefix distinguishes the scopes of requests that are repeatable from those of reads, which
// begin with a path.
const repeatablePrefix = "POST "

// maxQuestion bounds the body of a request that isRepeatable, in bytes.
const maxQuestion = 1 << 20

// isRepeatable reports whether a request that creates something only asks: for a token of a
// ServiceAccount, for who has a token, and for what somebody may do. Without these answers a kubelet
// starts no pod and lets nobody see into one.
func isRepeatable(method string, q *request.Request) bool {
	if method != http.MethodPost {
		return false
	}
	switch q.Group {
	case "":
		return q.Resource == "serviceaccounts" && q.Subresource == "token"
	case "authentication.k8s.io":
		return q.Resource == "tokenreviews"
	case "authorization.k8s.io":
		return strings.HasSuffix(q.Resource, "subjectaccessreviews")
	default:
		return false
	}
}

// repeat answers a request that isRepeatable. While the cloud is not reachable, the answer is that
// to the same request before. A token may have expired by then: its holder is known to the hub.
func (p *Proxy) repeat(w http.ResponseWriter, c *call) {
	body, err := io.ReadAll(http.MaxBytesReader(w, c.Body, maxQuestion))
	if err != nil {
		if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
			p.refuse(w, c.Request, http.StatusRequestEntityTooLarge, metav1.StatusReasonRequestEntityTooLarge, fmt.Sprintf("the body has more than %d bytes", tooLarge.Limit))
			return
		}
		panic(http.ErrAbortHandler) // the client has gone
	}
	sum := sha256.Sum256(body)
	c.key = strings.Join([]string{c.caller.Name, repeatablePrefix + c.URL.RequestURI(), c.Header.Get("Content-Type"), c.Header.Get("Accept"), hex.EncodeToString(sum[:])}, "\n")
	c.Body, c.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	response, err := p.send(c, c.Request) // once: it is a POST
	if err != nil {
		p.documentFromCache(w, c, err)
		return
	}
	defer response.Body.Close()
	answer, whole := passOn(w, response)
	switch response.StatusCode {
	case http.StatusOK, http.StatusCreated:
		p.keep(c, func(s *state) error {
			if !whole {
				return cache.ErrTooLarge
			}
			return p.storeDocument(s, c, &head{Code: response.StatusCode, ContentType: response.Header.Get("Content-Type")}, answer)
		})
	case http.StatusForbidden, http.StatusNotFound:
		p.drop(c)
	}
}
