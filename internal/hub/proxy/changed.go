package proxy

import (
	"bytes"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/atoll-k8s/atoll/internal/hub/cache"
	"github.com/atoll-k8s/atoll/internal/hub/request"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// change forwards a write. If it succeeds, change updates the caller's cached response to a get of the object,
// or removes it: a client that once read 404, and then creates the object, may never read it again.
func (p *Proxy) change(w http.ResponseWriter, c *call) {
	object := strings.TrimSuffix(c.URL.Path, "/"+c.what.Subresource)
	isOfAll := c.what.Name == "" // a creation, or the deletion of a collection
	creates := isOfAll && c.Method == http.MethodPost
	ofNodesPods := c.caller.IsNode && isPods(c) // the node's state of its pods comes only from the gate
	if c.what.Resource == "" || ofNodesPods || c.URL.Query().Has("dryRun") || len(p.keptOf(c, object, isOfAll)) == 0 && (isOfAll || !p.keepsList(c, object)) {
		p.pass(w, c)
		return
	}
	response, err := p.send(c, c.Request)
	if err != nil {
		p.unavailable(w, c.Request, err)
		return
	}
	defer response.Body.Close()
	answer := &buffer{limit: p.bytesOf(c)}
	passInto(w, response, answer)
	defer answer.release()
	if response.StatusCode/100 != 2 {
		return
	}
	if !isOfAll {
		p.changed.note(c.caller.Name + "\n" + object)
	}
	h, body := documentHead(response), []byte(nil)
	isObject := c.what.Subresource == "" || c.what.Subresource == "status" // not, for example, a Scale
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

// keptOf returns the keys of a caller's cached scopes for an object, or for all objects in a collection.
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

// keepsList reports whether a cached scope of the caller may contain an object.
func (p *Proxy) keepsList(c *call, object string) bool {
	read := &call{caller: c.caller, what: request.Of(&http.Request{Method: http.MethodGet, URL: &url.URL{Path: object}})}
	return slices.ContainsFunc(p.Cache.Scopes(), func(s cache.Scope) bool { return read.isPartOf(s.Key) })
}

// retire removes the cached single pods of the node that are deleted or replaced. uidOf returns the UID of the
// pod at a path, "" if the pod does not exist, and false if that is not known.
func (p *Proxy) retire(c *call, uidOf func(path string) (string, bool)) {
	for _, s := range p.Cache.Scopes() {
		parts := strings.SplitN(s.Key, "\n", 3)
		if parts[0] != c.caller.Name {
			continue
		}
		uid, is := uidOf(parts[1])
		if !is || p.isOf(s.Key, uid) {
			continue
		}
		p.keep(&call{Request: c.Request, caller: c.caller, what: c.what, key: s.Key}, func(st *state) error {
			*st = state{}
			return p.Cache.Remove(s.Key)
		})
	}
}

// isOf reports whether a cached document is the object with a UID, or, for the UID "", a 404.
func (p *Proxy) isOf(key, uid string) bool {
	view, err := p.Cache.Peek(key)
	if err != nil {
		return true // it is removed already
	}
	defer view.Close()
	h, err := decodeHead(view.Head())
	if err != nil || h.List != nil {
		return true
	}
	if h.Code != http.StatusOK {
		return uid == ""
	}
	body, err := view.Get(document)
	if err != nil {
		return true
	}
	format, err := wire.FormatOf(h.ContentType)
	if err != nil {
		return true
	}
	m, err := format.Meta(body)
	return err != nil || m.UID == uid
}
