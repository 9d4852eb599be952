package proxy

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"strings"
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
	// maxQuestion is the size limit for the body of an isRepeatable request of a known caller, in bytes: it is in
	// memory. Tokens in reviews have up to about 16 KiB, and a user with 1000 groups about 40 KiB. With the limits
	// for requests, all callers but the node have 16 MiB.
	maxQuestion = 64 << 10
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
	if !p.limits.isKnown(c) { // the body takes no memory, and the cloud can reject the token before the body ends
		p.sender.pass(w, c)
		return
	}
	question, err := p.read(w, c)
	if err != nil {
		p.errors.refuseQuestion(w, c, err)
		return
	}
	if ofHub(p.parts, w, c, question) {
		return
	}
	sum := sha256.Sum256(question)
	key := strings.Join([]string{c.caller.Name, record.QuestionPrefix + c.URL.RequestURI(), c.Header.Get("Content-Type"), c.Header.Get("Accept"), hex.EncodeToString(sum[:])}, "\n")
	response, err := p.sender.send(c, c.Request) // not repeated: it is a POST
	c.key = key                                  // send would take a review that denies for an accepted read
	if err != nil {
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
	case http.StatusOK, http.StatusCreated:
		if c.isDenied(answer) {
			drop(p.parts, c)
			return
		}
		p.acceptMinted(c, question, response, answer)
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
func (p *questions) acceptMinted(c *call, question []byte, response *http.Response, answer *buffer) {
	if c.what.Subresource != tokenSubresource || response.StatusCode != http.StatusCreated || answer.tooLarge {
		return
	}
	asked, _, err := objects.Codecs.UniversalDeserializer().Decode(question, nil, nil)
	request, isRequest := asked.(*authenticationv1.TokenRequest)
	made, _, errMade := objects.Codecs.UniversalDeserializer().Decode(answer.body, nil, nil)
	token, isToken := made.(*authenticationv1.TokenRequest)
	if err == nil && errMade == nil && isRequest && isToken && len(request.Spec.Audiences) == 0 && token.Status.Token != "" {
		p.Tokens.Accepted(token.Status.Token, time.Now())
	}
}

// read reads the body of an isRepeatable request completely, before the request is sent: so a client that sends it
// slowly, or breaks off, is not evidence of an outage.
func (p *questions) read(w http.ResponseWriter, c *call) ([]byte, error) {
	controller := http.NewResponseController(w)
	_ = controller.SetReadDeadline(time.Now().Add(cmp.Or(p.slowAfter, questionWithin)))
	question, err := io.ReadAll(http.MaxBytesReader(w, c.Body, maxQuestion))
	if err != nil {
		return nil, err
	}
	_ = controller.SetReadDeadline(time.Time{})
	c.Body, c.ContentLength = io.NopCloser(bytes.NewReader(question)), int64(len(question))
	return question, nil
}
