package proxy

import (
	"bytes"
	"net/http"
	"net/url"
	"strings"

	"github.com/atoll-k8s/atoll/internal/hub/request"
)

// change passes a write on. If it succeeds, what is kept of the object for its client is what the client has
// made it: a client that read that something is not there, and creates it, may never read it again.
func (p *Proxy) change(w http.ResponseWriter, c *call) {
	object := strings.TrimSuffix(c.URL.Path, "/"+c.what.Subresource)
	isOfAll := c.what.Name == "" // a creation, or the deletion of a collection
	creates := isOfAll && c.Method == http.MethodPost
	if c.what.Resource == "" || c.what.Group == "" && c.what.Resource == "pods" || c.URL.Query().Has("dryRun") || len(p.keptOf(c, object, isOfAll)) == 0 {
		p.pass(w, c)
		return
	}
	response, err := p.send(c, c.Request)
	if err != nil {
		p.unavailable(w, c.Request, err)
		return
	}
	defer response.Body.Close()
	answer := &kept{of: p.roomOf(c)}
	passInto(w, response, answer)
	defer answer.release()
	if response.StatusCode/100 != 2 {
		return
	}
	h, body := documentHead(response), []byte(nil)
	isObject := c.what.Subresource == "" || c.what.Subresource == "status" // and no Scale
	if c.Method != http.MethodDelete && !answer.tooLarge && isObject {
		h.Code, body = http.StatusOK, bytes.Clone(answer.body)
	}
	if creates {
		name, err := nameIn(h.ContentType, answer.body)
		if err != nil || name == "" {
			return
		}
		object += "/" + name
	}
	get := request.Of(&http.Request{Method: http.MethodGet, URL: &url.URL{Path: object}, Header: http.Header{"Accept": c.Header.Values("Accept")}})
	for _, key := range p.keptOf(c, object, isOfAll && !creates) {
		read := &call{Request: c.Request, caller: c.caller, what: get, key: key}
		p.keep(read, func(s *state) error {
			if body != nil && key == c.caller.Name+"\n"+get.Scope {
				return p.storeDocument(s, read, h, body)
			}
			*s = state{}
			return p.Cache.Remove(key)
		})
	}
}

// keptOf returns the keys of what is kept for a caller of an object, or of all objects in a collection.
func (p *Proxy) keptOf(c *call, object string, below bool) (keys []string) {
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
