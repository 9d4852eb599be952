package record

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// Head is the head of a scope in the cache.
type Head struct {
	// Code and ContentType are the status code and the Content-Type of the response.
	Code        int    `json:"code"`
	ContentType string `json:"contentType"`
	// List is the encoded list without its items, and ItemsHaveType the field of its wire.Header. A scope
	// without List is a document: its only item is the body.
	List          []byte `json:"list,omitempty"`
	ItemsHaveType bool   `json:"itemsHaveType,omitempty"`
	// ResourceVersion is the version of the state, which includes all events up to this version.
	ResourceVersion string `json:"resourceVersion,omitempty"`
}

// HeadOf returns the head of a response: see Job.Document and Job.Collection.
func HeadOf(response *http.Response) *Head {
	return &Head{Code: response.StatusCode, ContentType: response.Header.Get("Content-Type")}
}

// headOfList returns the head of a list.
func headOfList(list *wire.Header, contentType string) *Head {
	empty := wire.List{Header: *list}
	empty.Continue, empty.RemainingItemCount = "", nil
	return &Head{
		Code: http.StatusOK, ContentType: contentType, List: empty.Encode(), ItemsHaveType: list.ItemsHaveType, ResourceVersion: list.ResourceVersion,
	}
}

func decodeHead(raw []byte) (*Head, error) {
	h := &Head{}
	if err := json.Unmarshal(raw, h); err != nil {
		return nil, fmt.Errorf("reading the head of a cached response: %w", err)
	}
	return h, nil
}

func (h *Head) encode() []byte {
	raw, err := json.Marshal(h)
	if err != nil {
		panic(err) // all its fields can be encoded
	}
	return raw
}

// IsList reports whether the scope is a list, not a document.
func (h *Head) IsList() bool { return h.List != nil }

// Header decodes the list of a head. The result has no items.
func (h *Head) Header() (*wire.Header, error) {
	format, err := wire.FormatOf(h.ContentType)
	if err != nil {
		return nil, err
	}
	list, err := format.DecodeList(h.List)
	if err != nil {
		return nil, err
	}
	list.ItemsHaveType, list.ResourceVersion = h.ItemsHaveType, h.ResourceVersion
	return &list.Header, nil
}
