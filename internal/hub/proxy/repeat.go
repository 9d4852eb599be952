package proxy

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/atoll-k8s/atoll/internal/hub/cache"
	"github.com/atoll-k8s/atoll/internal/hub/objects"
	"github.com/atoll-k8s/atoll/internal/hub/record"
	"github.com/atoll-k8s/atoll/internal/hub/request"
)

// tokenSubresource is the subresource of a ServiceAccount that creates a token.
const tokenSubresource = "token"

const (
	// maxTokenRequest is how many bytes of the body of a TokenRequest are stored.
	maxTokenRequest = 4 << 10
	// maxQuestion is the size limit for the body of an isRepeatable request, in bytes.
	maxQuestion = 1 << 20
	// questionWithin is how long a client may take to send this body.
	questionWithin = 10 * time.Second
)

// isRepeatable reports whether a POST is a query: a TokenRequest, a TokenReview or a SubjectAccessReview.
// Without the responses to these a kubelet starts no pod, and allows no access to pods.
func isRepeatable(method string, q *request.Request) bool {
	if method != http.MethodPost {
		return false
	}
	switch q.Group {
	case "":
		return q.Resource == "serviceaccounts" && q.Subresource == tokenSubresource
	case "authentication.k8s.io":
		return q.Resource == "tokenreviews"
	case "authorization.k8s.io":
		return strings.HasSuffix(q.Resource, "subjectaccessreviews")
	default:
		return false
	}
}

// questions answers isRepeatable requests.
type questions struct{ *parts }

// answer answers an isRepeatable request. While offline, it returns the cached answer to the same request. A
// token in it may have expired; the hub still accepts it.
func (p *questions) answer(w http.ResponseWriter, c *call) {
	if c.ContentLength > maxQuestion {
		p.errors.refuseQuestion(w, c, &http.MaxBytesError{Limit: maxQuestion})
		return
	}
	if ofHub(p.parts, w, c) {
		return
	}
	q, done := p.question(w, c)
	defer done()
	response, err := p.sender.send(c, c.Request) // not repeated: it is a POST
	if err != nil {
		failed := q.failure()
		if failed == nil && p.limits.isKnown(c) { // otherwise there is no cached answer
			c.key, failed = q.key(c)
		}
		if failed != nil {
			p.errors.refuseQuestion(w, c, failed)
			return
		}
		documentFromCache(p.parts, w, c, err)
		return
	}
	defer response.Body.Close()
	answer := &buffer{limit: p.Record.Waiting(c.caller.Name + "\n")}
	passInto(w, response, answer)
	queued := false
	defer func() {
		if !queued {
			answer.release()
		}
	}()
	switch response.StatusCode {
	case http.StatusOK, http.StatusCreated, http.StatusForbidden, http.StatusNotFound:
	default: // the rest of the body is not needed
		return
	}
	if c.key, err = q.key(c); err != nil {
		return
	}
	switch response.StatusCode {
	case http.StatusOK, http.StatusCreated:
		if c.isDenied(answer) {
			drop(p.parts, c)
			return
		}
		p.acceptMinted(c, q, response, answer)
		p.refusals.end(c.key)
		queued = p.Record.Keep(c.key, 0, func(j *record.Job) error {
			defer answer.release()
			if answer.tooLarge {
				return cache.ErrTooLarge
			}
			return j.Document(record.HeadOf(response), answer.body)
		})
	case http.StatusForbidden, http.StatusNotFound:
		drop(p.parts, c)
	}
}

// isDenied reports whether the result of a review is negative. Such results are not cached: any client can
// cause any number of them, and without a result a kubelet denies access, too.
func (c *call) isDenied(answer *buffer) bool {
	if c.what.Subresource == tokenSubresource || answer.tooLarge {
		return false
	}
	object, _, err := objects.Codecs.UniversalDeserializer().Decode(answer.body, nil, nil)
	if err != nil {
		return false
	}
	switch review := object.(type) {
	case *authenticationv1.TokenReview:
		return !review.Status.Authenticated
	case *authorizationv1.SubjectAccessReview:
		return !review.Status.Allowed
	case *authorizationv1.LocalSubjectAccessReview:
		return !review.Status.Allowed
	case *authorizationv1.SelfSubjectAccessReview:
		return !review.Status.Allowed
	default:
		return false
	}
}

// acceptMinted records a token that the API server has just issued for itself as the audience: the token may
// not have been used yet when the cloud becomes unreachable. A request without an audience is for a token for
// the API server.
func (p *questions) acceptMinted(c *call, q *question, response *http.Response, answer *buffer) {
	if c.what.Subresource != tokenSubresource || response.StatusCode != http.StatusCreated || answer.tooLarge {
		return
	}
	asked, _, err := objects.Codecs.UniversalDeserializer().Decode(q.text(), nil, nil)
	request, isRequest := asked.(*authenticationv1.TokenRequest)
	made, _, errMade := objects.Codecs.UniversalDeserializer().Decode(answer.body, nil, nil)
	token, isToken := made.(*authenticationv1.TokenRequest)
	if err == nil && errMade == nil && isRequest && isToken && len(request.Spec.Audiences) == 0 && token.Status.Token != "" {
		p.Tokens.Accepted(token.Status.Token, time.Now())
	}
}

// question is the body of an isRepeatable request. It is forwarded to the cloud while it is read, before it is
// known whether the cloud accepts the caller. So only a hash of it is stored, and the first bytes of a
// TokenRequest.
type question struct {
	cancel context.CancelCauseFunc // of the request
	over   func()                  // removes the deadline for the body

	mu    sync.Mutex
	from  io.Reader
	sum   hash.Hash
	first []byte // the first maxTokenRequest bytes of a TokenRequest
	most  int    // the size limit of first
	err   error  // the error of the last read; io.EOF at the end
	ended bool   // the cloud cannot read it any more
}

// question makes the body of a request a question. Call done when the request is answered.
func (p *questions) question(w http.ResponseWriter, c *call) (q *question, done func()) {
	ctx, cancel := context.WithCancelCause(c.Context())
	controller := http.NewResponseController(w)
	_ = controller.SetReadDeadline(time.Now().Add(cmp.Or(p.slowAfter, questionWithin)))
	q = &question{
		cancel: cancel, over: func() { _ = controller.SetReadDeadline(time.Time{}) },
		from: http.MaxBytesReader(w, c.Body, maxQuestion), sum: sha256.New(),
	}
	if c.what.Subresource == tokenSubresource {
		q.most = maxTokenRequest
	}
	c.Request = c.WithContext(ctx)
	c.Body = io.NopCloser(q)
	return q, func() { q.end(); cancel(nil) }
}

// Read implements io.Reader, for the cloud.
func (q *question) Read(b []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ended {
		return 0, io.ErrClosedPipe
	}
	return q.readLocked(b)
}

func (q *question) readLocked(b []byte) (int, error) {
	if q.err != nil {
		return 0, q.err
	}
	n, err := q.from.Read(b)
	_, _ = q.sum.Write(b[:n]) // never fails
	q.first = append(q.first, b[:min(n, q.most-len(q.first))]...)
	q.err = err
	switch {
	case errors.Is(err, io.EOF):
		q.over()
	case err != nil:
		q.cancel(err) // the failure of the client is not evidence of an outage
	}
	return n, err
}

// end ends the sending: the body is not read after the request has ended.
func (q *question) end() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ended = true
}

// text returns the first bytes of the body of a TokenRequest.
func (q *question) text() []byte {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.first
}

// failure returns why the body could not be read; nil if there was no failure.
func (q *question) failure() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if errors.Is(q.err, io.EOF) {
		return nil
	}
	return q.err
}

// key returns the key of the scope of the request. It first reads the rest of the body that the cloud has not
// read.
func (q *question) key(c *call) (string, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ended = true
	for b := make([]byte, 4<<10); q.err == nil; {
		_, _ = q.readLocked(b)
	}
	if !errors.Is(q.err, io.EOF) {
		return "", q.err
	}
	return strings.Join([]string{c.caller.Name, record.QuestionPrefix + c.URL.RequestURI(), c.Header.Get("Content-Type"), c.Header.Get("Accept"), hex.EncodeToString(q.sum.Sum(nil))}, "\n"), nil
}
