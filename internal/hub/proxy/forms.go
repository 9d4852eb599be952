package proxy

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/atoll-k8s/atoll/internal/hub/cache"
	"github.com/atoll-k8s/atoll/internal/hub/inventory"
	"github.com/atoll-k8s/atoll/internal/hub/objects"
	"github.com/atoll-k8s/atoll/internal/hub/record"
	"github.com/atoll-k8s/atoll/internal/hub/request"
	"github.com/atoll-k8s/atoll/internal/hub/table"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// People read the same objects with kubectl, in JSON and as tables, that programs read in other forms. This file
// makes responses for people from the cached responses for programs of the same identity.

// tableKind is the parameter of a media type that requests a table. includeObject is the query parameter that
// says which part of the object a row contains.
const tableKind, includeObject = "as=table", "includeObject"

// sameAge is the largest difference in age between two states that were read at the same time: each is stored
// after its response was sent.
const sameAge = time.Second

// maxForm limits the size of a cached scope from which a response in another form is made, in bytes: several
// copies of the content are in memory then.
const maxForm = 8 << 20

// wantsTable reports whether a client prefers a table, like kubectl.
func (c *call) wantsTable() bool {
	isObject := c.what.Kind == request.Get && c.what.Name != "" && c.what.Subresource == ""
	return (c.what.Kind == request.List || isObject) && strings.Contains(c.accepts()[0], tableKind)
}

// accepts returns the media types that the client of a read accepts, the preferred one first: see
// request.Request.
func (c *call) accepts() []string {
	return strings.Split(append(strings.Split(c.what.Scope, "\n"), "", "", "")[2], ",")
}

// form is a cached state from which a response can be made.
type form struct {
	cache.Scope

	head    *record.Head
	objects []runtime.Object // the objects of the state that the request reads
}

// isAsLateAs reports whether a state may be the response to a request for this version or a later one. A single
// object has no version of the state, and may always be the response.
func (f *form) isAsLateAs(version string) bool {
	return version == "" || version == "0" || f.head.ResourceVersion == "" || wire.IsUpTo(version, f.head.ResourceVersion)
}

// newestForm returns the caller's newest cached state, in any form, that contains the content of a read.
func (p *reads) newestForm(c *call) (*form, error) {
	scopes := p.Cache.Scopes()
	slices.SortStableFunc(scopes, func(a, b cache.Scope) int { return b.Written.Compare(a.Written) })
	var changed time.Time
	isRefused := false
	if c.what.Kind == request.Get {
		isRefused, changed = p.refusals.isNoted(c.ofAnyForm()), p.changed.noted(c.ofAnyForm())
	}
	for _, s := range scopes {
		if isRefused || s.Written.Before(changed) || !c.isPartOf(s.Key) || s.Bytes > maxForm || strings.Contains(s.Key, ";"+tableKind) {
			continue
		}
		h, list, err := inventory.Objects(p.Record, s.Key)
		if err != nil || h.Code != http.StatusOK {
			continue // the hub does not know the kind, or the object did not exist
		}
		list = slices.DeleteFunc(list, func(object runtime.Object) bool {
			m, err := meta.Accessor(object)
			return err != nil || c.what.Namespace != "" && m.GetNamespace() != c.what.Namespace || c.what.Name != "" && m.GetName() != c.what.Name
		})
		if len(list) > 0 || c.what.Kind == request.List {
			return &form{s, h, list}, nil
		}
	}
	return nil, fmt.Errorf("another form: %w", cache.ErrNotFound)
}

// isPartOf reports whether a scope of the caller contains the content of a read. It must be the same collection,
// or the collection of all namespaces, with the same selectors. For an object it may be any collection that may
// contain the object.
func (c *call) isPartOf(key string) bool {
	parts := strings.Split(key, "\n")
	if len(parts) < 4 || parts[0] != c.caller.Name {
		return false
	}
	collection := strings.TrimSuffix(c.what.Path, "/"+c.what.Name)
	all := strings.Replace(collection, "/namespaces/"+c.what.Namespace+"/", "/", 1)
	if c.what.Kind == request.Get {
		return len(parts) == 5 && parts[1] == c.what.Path || len(parts) == 4 && (parts[1] == collection || parts[1] == all)
	}
	query := c.URL.Query()
	for _, name := range append(request.Positions(), includeObject) {
		query.Del(name)
	}
	return len(parts) == 4 && parts[2] == query.Encode() && (parts[1] == collection || parts[1] == all)
}

// ofAnyForm returns the key of a read for all forms: the caller and the path.
func (c *call) ofAnyForm() string { return c.caller.Name + "\n" + c.what.Path }

// fromOtherForm answers a request of a person from a cached state in another form, if the request itself is not
// cached, or, for a table of pods, if its cached response is older. It returns false if it has not answered the
// request.
func (p *reads) fromOtherForm(w http.ResponseWriter, c *call, reason error) bool {
	isTable := c.wantsTable()
	isJSON := slices.Contains([]string{wire.JSON.ContentType(), "*/*", ""}, c.accepts()[0])
	if c.what.Resource == "" || c.what.Subresource != "" || !isTable && !isJSON || !p.limits.isKnown(c) || !isAway(reason) {
		return false
	}
	_, isTopology := filterFor(p.parts, c).(*topology)
	position := request.PositionOf(c.URL.Query())
	if position.Continue != "" || position.Exact || !isTable && isTopology {
		return false
	}
	var kept time.Time
	if state, err := p.Record.Peek(c.key); err == nil {
		kept = state.Written()
		_ = state.Close()
		// The cached table of the cloud may have columns that the hub does not know, and a cached object of a
		// newer version may have fields that the hub does not know.
		if isTable && !isPods(&c.what) || isJSON && !c.isForTable {
			return false
		}
	}
	isAnswered := true // also if the request gets no slot
	p.limits.fromCacheInTurn(w, c, func() {
		f, err := p.newestForm(c)
		if isAnswered = err == nil && f.Key != c.key && f.Written.Sub(kept) > sameAge && f.isAsLateAs(position.ResourceVersion); !isAnswered {
			return
		}
		if err := p.writeForm(w, c, f, isTable); err != nil {
			p.errors.unavailable(w, c.Request, err)
		}
	})
	return isAnswered
}

func (c *call) included() table.Include { return table.Include(c.URL.Query().Get(includeObject)) }

func isPods(what *request.Request) bool { return what.Group == "" && what.Resource == "pods" }

// writeForm answers with a state, as a table or in JSON.
func (p *reads) writeForm(w http.ResponseWriter, c *call, f *form, isTable bool) error {
	for i, object := range f.objects {
		if pod, is := object.(objects.Typed); is && c.isGated() {
			f.objects[i] = p.Writes.Shown(pod)
		}
	}
	var answer any
	switch {
	case isTable:
		t, err := table.Of(f.objects, f.head.ResourceVersion, c.included(), time.Now())
		if err != nil {
			return err
		}
		answer = t
	case c.what.Kind == request.Get:
		answer = f.objects[0]
	default:
		list, err := f.head.Header()
		if err != nil {
			return err
		}
		answer = struct {
			metav1.TypeMeta `json:",inline"`
			metav1.ListMeta `json:"metadata"`

			Items []runtime.Object `json:"items"`
		}{
			metav1.TypeMeta{APIVersion: list.APIVersion, Kind: list.Kind}, metav1.ListMeta{ResourceVersion: f.head.ResourceVersion}, append([]runtime.Object{}, f.objects...),
		}
	}
	body, err := json.Marshal(answer)
	if err != nil {
		return err
	}
	p.metrics.request(c.what.Kind, fromCache)
	dated(w, c, f.Written)
	w.Header().Set("Content-Type", wire.JSON.ContentType())
	_, _ = w.Write(body)
	return nil
}

// podsAsTable answers the node's request for a table of pods. The hub cannot read the table of an API server. So
// it reads the pods themselves, applies the gate, and prints them.
func (p *reads) podsAsTable(w http.ResponseWriter, c *call) {
	accepts := wire.JSON.ContentType()
	if f, err := p.newestForm(c); err == nil && c.what.Kind == request.List {
		if parts := strings.Split(f.Key, "\n"); parts[1] == c.what.Path {
			accepts = parts[3] // the kubelet's scope: no other scope has to be cached
		}
	}
	inner := &call{Request: c.Clone(c.Context()), caller: c.caller, began: c.began, isForTable: true}
	inner.Header.Set("Accept", accepts)
	inner.Header.Del("Accept-Encoding")
	query := c.URL.Query()
	for _, name := range []string{includeObject, "limit"} {
		query.Del(name)
	}
	inner.URL = &url.URL{Path: c.URL.Path, RawQuery: query.Encode()}
	inner.what = request.Of(inner.Request)
	inner.key = record.KeyOf(c.caller, &inner.what)
	body := &limited{}
	answer := &ownAnswer{header: http.Header{}, body: body, begun: make(chan struct{})}
	p.answer(answer, inner)
	t, err := tableOf(answer, body, c.included())
	switch {
	case answer.code == http.StatusOK && err != nil:
		p.errors.unavailable(w, c.Request, err)
	case answer.code != http.StatusOK:
		answer.header.Del("Content-Length")
		for name, values := range answer.header {
			w.Header()[name] = values
		}
		text := body.Bytes()
		if status, err := statusIn(answer.header.Get("Content-Type"), text); err == nil {
			w.Header().Set("Content-Type", wire.JSON.ContentType())
			text = status
		}
		w.WriteHeader(answer.code)
		_, _ = w.Write(text)
	default:
		if at, err := time.Parse(time.RFC3339, answer.header.Get(AsOf)); err == nil {
			dated(w, c, at)
		}
		w.Header().Set("Content-Type", wire.JSON.ContentType())
		_, _ = w.Write(t)
	}
}

// statusIn converts the Status in a response to JSON.
func statusIn(contentType string, text []byte) ([]byte, error) {
	format, err := wire.FormatOf(contentType)
	if err != nil {
		return nil, err
	}
	status, err := format.DecodeStatus(text)
	if err != nil {
		return nil, err
	}
	return wire.JSON.EncodeStatus(status)
}

// tableOf prints the pods of a response as a table.
func tableOf(answer *ownAnswer, body *limited, include table.Include) ([]byte, error) {
	if answer.code != http.StatusOK {
		return nil, nil
	}
	if body.tooLarge {
		return nil, errTooLarge
	}
	object, _, err := objects.Codecs.UniversalDeserializer().Decode(body.Bytes(), nil, nil)
	if err != nil {
		return nil, err
	}
	list := []runtime.Object{object}
	var version string
	switch o := object.(type) {
	case metav1.ListInterface:
		version = o.GetResourceVersion()
		if list, err = meta.ExtractList(object); err != nil {
			return nil, err
		}
	case metav1.Object:
		version = o.GetResourceVersion()
	default:
		return nil, errors.New("the response is not an object")
	}
	t, err := table.Of(list, version, include, time.Now())
	if err != nil {
		return nil, err
	}
	return json.Marshal(t)
}
