package proxy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-k8s/atoll/internal/hub/cache"
	"github.com/atoll-k8s/atoll/internal/hub/journal"
	"github.com/atoll-k8s/atoll/internal/hub/ownwrites"
	"github.com/atoll-k8s/atoll/internal/hub/record"
	"github.com/atoll-k8s/atoll/internal/hub/request"
)

// Kept is the header of the response to a journaled write: the time of the write.
const Kept = "Atoll-Kept"

// maxStatus limits the write of a pod's status that is passed to Pods, in bytes.
const maxStatus = 2 << 20

// writes answers requests other than reads.
type writes struct{ *parts }

// answer answers a write.
func (p *writes) answer(w http.ResponseWriter, c *call) {
	p.observe(c)
	if isRepeatable(c.Method, &c.what) {
		(&questions{p.parts}).answer(w, c)
		return
	}
	if c.caller.IsNode {
		if o := p.Writes.Of(c.Request, &c.what); o != nil {
			p.own(w, c, o)
			return
		}
	}
	p.change(w, c)
}

// own answers a write of the node about itself, which may be journaled. While the journal has entries of its object, it is journaled
// even if the cloud is reachable: so writes of an object reach the cloud in their order.
func (p *writes) own(w http.ResponseWriter, c *call, o *ownwrites.Write) {
	body, err := io.ReadAll(io.LimitReader(c.Body, ownwrites.MaxBody+1))
	if err != nil {
		panic(http.ErrAbortHandler) // the client has disconnected
	}
	if len(body) > ownwrites.MaxBody {
		c.Body = io.NopCloser(io.MultiReader(bytes.NewReader(body), c.Body))
		p.sender.pass(w, c)
		return
	}
	c.Body, c.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	if o.Kind != journal.Event {
		p.Replay.Heard(time.Now())
	}
	o.Named(body)
	if o.Object != "" && len(p.Journal.Of(o.Object)) > 0 {
		p.keep(w, c, o, body, errors.New("earlier writes of the same object have not been sent yet"))
		return
	}
	response, err := p.sender.send(c, c.Request)
	switch {
	case isAway(err) && c.Context().Err() == nil:
		p.keep(w, c, o, body, err)
		return
	case err != nil:
		p.errors.unavailable(w, c.Request, err)
		return
	}
	defer response.Body.Close()
	answer, whole := passOn(w, response)
	if whole && response.StatusCode/100 == 2 {
		p.Writes.Answered(o, response.Header.Get("Content-Type"), answer)
	}
}

// keep journals a write, and answers like the API server: with the changed object. reason is why the write
// is not forwarded.
func (p *writes) keep(w http.ResponseWriter, c *call, o *ownwrites.Write, body []byte, reason error) {
	at := time.Now().Round(0)
	answer, format, err := p.Writes.Keep(o, body, at)
	refusal := (*ownwrites.Conflict)(nil)
	switch {
	case err != nil && c.Context().Err() != nil:
		panic(http.ErrAbortHandler) // the client has disconnected
	case errors.As(err, &refusal):
		p.errors.refuse(w, c.Request, http.StatusConflict, refusal.Reason, refusal.Error())
		return
	case err != nil:
		p.Log.V(2).Info("Journaling a write failed", "path", c.URL.Path, "error", err.Error())
		p.errors.refuse(w, c.Request, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable,
			fmt.Sprintf("the hub does not forward this write (%v), and cannot journal it: %v", reason, err))
		return
	}
	p.metrics.request(request.Write, fromJournal)
	p.Replay.Hurry()
	w.Header().Set(Kept, at.UTC().Format(time.RFC3339))
	w.Header().Set("Content-Type", format.ContentType())
	code := http.StatusOK
	if c.Method == http.MethodPost {
		code = http.StatusCreated
	}
	w.WriteHeader(code)
	_, _ = w.Write(answer)
}

// change forwards a write. If it succeeds, change updates the caller's cached response to a get of the object,
// or removes it: a client that once read 404, and then creates the object, may never read it again.
func (p *writes) change(w http.ResponseWriter, c *call) {
	object := strings.TrimSuffix(c.URL.Path, "/"+c.what.Subresource)
	isOfAll := c.what.Name == "" // a creation, or the deletion of a collection
	creates := isOfAll && c.Method == http.MethodPost
	ofNodesPods := c.caller.IsNode && isPods(&c.what) // the node's state of its pods comes only from the gate
	if c.what.Resource == "" || ofNodesPods || c.URL.Query().Has("dryRun") || len(p.keptOf(c, object, isOfAll)) == 0 && (isOfAll || !p.keepsList(c, object)) {
		p.sender.pass(w, c)
		return
	}
	response, err := p.sender.send(c, c.Request)
	if err != nil {
		p.errors.unavailable(w, c.Request, err)
		return
	}
	defer response.Body.Close()
	answer := &buffer{limit: p.Record.Waiting(c.caller.Name + "\n")}
	passInto(w, response, answer)
	defer answer.release()
	if response.StatusCode/100 != 2 {
		return
	}
	if !isOfAll {
		p.changed.note(c.caller.Name + "\n" + object)
	}
	h, body := record.HeadOf(response), []byte(nil)
	isObject := c.what.Subresource == "" || c.what.Subresource == "status" // not, for example, a Scale
	if c.Method != http.MethodDelete && !answer.tooLarge && isObject {
		h.Code, body = http.StatusOK, bytes.Clone(answer.body)
	}
	if creates {
		name, err := ownwrites.NameIn(h.ContentType, answer.body)
		if err != nil || name == "" {
			return
		}
		object += "/" + name
	}
	get := request.Of(&http.Request{Method: http.MethodGet, URL: &url.URL{Path: object}, Header: http.Header{"Accept": c.Header.Values("Accept")}})
	for _, key := range p.keptOf(c, object, isOfAll && !creates) {
		if body == nil || key != record.KeyOf(c.caller, &get) {
			p.Record.Remove(key, 0)
			continue
		}
		p.Record.Keep(key, 0, func(j *record.Job) error { return j.Document(h, body) })
	}
}

// keptOf returns the keys of a caller's cached scopes for an object, or for all objects in a collection.
func (p *writes) keptOf(c *call, object string, below bool) (keys []string) {
	prefix := c.caller.Name + "\n" + object + "\n"
	if below {
		prefix = c.caller.Name + "\n" + object + "/"
	}
	for _, s := range p.Cache.Scopes() {
		if strings.HasPrefix(s.Key, prefix) {
			keys = append(keys, s.Key)
		}
	}
	return keys
}

// keepsList reports whether a cached scope of the caller may contain an object.
func (p *writes) keepsList(c *call, object string) bool {
	read := &call{caller: c.caller, what: request.Of(&http.Request{Method: http.MethodGet, URL: &url.URL{Path: object}})}
	return slices.ContainsFunc(p.Cache.Scopes(), func(s cache.Scope) bool { return read.isPartOf(s.Key) })
}

// observe passes a write of a pod's status by the kubelet to Pods.
func (p *writes) observe(c *call) {
	isStatus := c.what.Group == "" && c.what.Resource == "pods" && c.what.Subresource == "status"
	if p.Pods == nil || !c.caller.IsNode || !isStatus || c.Method != http.MethodPatch && c.Method != http.MethodPut {
		return
	}
	body, err := io.ReadAll(io.LimitReader(c.Body, maxStatus+1))
	if err == nil && len(body) <= maxStatus {
		p.Pods.Written(c.Method, c.Header.Get("Content-Type"), body)
	}
	c.Body = &joined{io.MultiReader(bytes.NewReader(body), &failing{c.Body, err}), c.Body}
}

// joined is a body whose first part was read already.
type joined struct {
	io.Reader
	io.Closer
}

// failing returns the error of an earlier read, or reads on if there was none.
type failing struct {
	io.Reader

	err error
}

// Read implements io.Reader.
func (f *failing) Read(b []byte) (int, error) {
	if f.err != nil {
		return 0, f.err
	}
	return f.Reader.Read(b)
}
