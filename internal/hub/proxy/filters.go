package proxy

import (
	"bytes"
	"iter"
	"strings"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/atoll-k8s/atoll/internal/hub/cache"
	"github.com/atoll-k8s/atoll/internal/hub/delivery"
	"github.com/atoll-k8s/atoll/internal/hub/ownwrites"
	"github.com/atoll-k8s/atoll/internal/hub/record"
	"github.com/atoll-k8s/atoll/internal/hub/request"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// A read goes from its source (the cloud, or the cache) through at most one objectFilter to its sinks (the client, and
// for objects of the cloud the record). Without a filter the bytes of the cloud pass untouched.

// objectFilter changes or holds objects on their way to the client of one request.
type objectFilter interface {
	// list filters objects of the cloud, and returns those for the client and those for the record. forClient is l
	// itself if the client gets l unchanged. Only the results may be used afterwards, because list may change l.
	list(l *wire.List) (forClient, forRecord *wire.List, err error)
	// cached filters objects of the cache in place.
	cached(l *wire.List)
	// event returns the frame of an event for the client; nil if the client must not get an event. It may change
	// e, which then is for the record. isInitial is true while the client does not have all initial events.
	event(format wire.Format, e *wire.Event, m *wire.Meta, isInitial bool) (frame []byte, err error)
}

// filterFor returns the filter of a request; nil if it has none.
func filterFor(p *parts, c *call) objectFilter {
	if c.isGated() {
		return &gateFilter{p, c}
	}
	if p.Filter == nil || c.what.Kind != request.List && c.what.Kind != request.Watch {
		return nil
	}
	if t := newTopology(p, c); t != nil {
		return t
	}
	return nil
}

// batch are the objects of a list, or the only object of a get as a list of one.
type batch struct {
	*wire.List

	isSingle bool
}

// decodeBatch decodes a response to a list or a get.
func decodeBatch(c *call, contentType string, body []byte) (*batch, error) {
	format, err := wire.FormatOf(contentType)
	if err != nil {
		return nil, err
	}
	if c.what.Kind != request.Get {
		list, err := format.DecodeList(body)
		return &batch{list, false}, err
	}
	m, err := format.Meta(body)
	if err != nil {
		return nil, err
	}
	item, err := format.ItemOf(body, false)
	header := wire.Header{Format: format, APIVersion: m.APIVersion, Kind: m.Kind + "List"}
	return &batch{&wire.List{Header: header, Items: []wire.Item{{Meta: m, Raw: item}}}, true}, err
}

// cachedBatch reads all objects of a state into memory.
func cachedBatch(c *call, state *record.State) (*batch, error) {
	if !state.Head.IsList() {
		body, err := state.Document()
		if err != nil {
			return nil, err
		}
		return decodeBatch(c, state.Head.ContentType, body)
	}
	header, err := state.Head.Header()
	if err != nil {
		return nil, err
	}
	b := &batch{&wire.List{Header: *header, Items: make([]wire.Item, 0, state.Len())}, false}
	for item, err := range itemsOf(state, header) {
		if err != nil {
			return nil, err
		}
		item.Raw = bytes.Clone(item.Raw)
		b.Items = append(b.Items, item)
	}
	return b, nil
}

// itemsOf yields the objects of a list from the cache. The bytes of each are valid until the next one. It ends with an
// error.
func itemsOf(state *record.State, header *wire.Header) iter.Seq2[wire.Item, error] {
	apiVersion, kind := header.ItemKind()
	return func(yield func(wire.Item, error) bool) {
		for value, err := range state.Values() {
			item := wire.Item{Raw: value}
			if err == nil {
				item.Meta, err = header.Format.Meta(value)
			}
			if !header.ItemsHaveType {
				item.APIVersion, item.Kind = apiVersion, kind
			}
			if !yield(item, err) || err != nil {
				return
			}
		}
	}
}

// encode returns the body of a response with these objects.
func (b *batch) encode() ([]byte, error) {
	if b.isSingle {
		item := &b.Items[0]
		return b.Format.ObjectOf(item.Raw, item.APIVersion, item.Kind)
	}
	return b.Encode(), nil
}

// gateFilter holds pods back from the node, and shows it the pods that have ended as ended: see package gate and
// ownwrites.Writes.Shown.
type gateFilter struct {
	*parts

	call *call
}

// isGated reports whether the response to a request may contain pods for the node.
func (c *call) isGated() bool {
	return c.caller.IsNode && c.what.Group == "" && c.what.Resource == "pods" && c.what.Subresource == "" &&
		(c.what.Kind == request.Get || c.what.Kind == request.List || c.what.Kind == request.Watch)
}

// wouldPassTheGate returns why the response to a request could bring pods to the node without a check by the
// gate; "" if it could not.
func (c *call) wouldPassTheGate() string {
	switch {
	case c.isGated() && strings.Contains(strings.Join(c.Header.Values("Accept"), ","), "as=Table"):
		return "tables are not supported"
	case c.caller.IsNode && c.what.Kind == request.Stream && c.what.Group == "" && c.what.Resource == "pods":
		return "protocols other than HTTP are not supported"
	default:
		return ""
	}
}

// seesAllPods reports whether a request is for all pods of the node.
func (c *call) seesAllPods(nodeName string) bool {
	query := c.URL.Query()
	selector := query.Get("fieldSelector")
	return c.isGated() && c.what.Namespace == "" && c.what.Name == "" && query.Get("labelSelector") == "" &&
		(selector == "" || selector == "spec.nodeName="+nodeName)
}

// list implements objectFilter: it removes held pods, replaces frozen pods by their last delivered version, and pods
// that have ended by their ended state. The record gets what the client gets.
func (f *gateFilter) list(l *wire.List) (forClient, forRecord *wire.List, err error) {
	before, err := f.Cache.Peek(f.call.key) // the node's state; nil is an empty state
	if err == nil {
		defer before.Close()
	}
	passed, changed := l.Items[:0], false
	for _, item := range l.Items {
		var last []byte
		verdict, err := f.judge(l.Format, item.Raw, &item.Meta, func() bool {
			last = lastOf(before, l.Format, &item.Meta)
			return last != nil
		})
		switch {
		case err != nil:
			return nil, nil, err
		case verdict == delivery.Hold:
			changed = true
			continue
		case verdict == delivery.Freeze && last != nil:
			changed = true
			item.Raw = last
		}
		changed = f.show(l, &item) || changed
		passed = append(passed, item)
	}
	filtered := &wire.List{Header: l.Header, Items: passed}
	f.settle(filtered)
	if !changed {
		filtered = l
	}
	return filtered, filtered, nil
}

// judge tells Pods of a version of a pod, and returns the verdict of the gate.
func (f *gateFilter) judge(format wire.Format, object []byte, m *wire.Meta, had func() bool) (delivery.Verdict, error) {
	if f.Pods != nil && (m.Kind == "" || m.Kind == "Pod" || m.Kind == "PartialObjectMetadata") {
		f.Pods.Seen(format, m, object)
	}
	return f.Gate.Judge(f.call.Context(), format, object, m, had)
}

// lastOf returns the version of a pod in a state; nil if the state has none with this UID.
func lastOf(state *cache.View, format wire.Format, m *wire.Meta) []byte {
	if state == nil {
		return nil
	}
	last, err := state.Get(record.ID(m))
	if err != nil {
		return nil
	}
	if was, err := format.Meta(last); err != nil || was.UID != m.UID {
		return nil
	}
	return last
}

// show replaces a pod that has ended by its ended state, and reports whether it did.
func (f *gateFilter) show(l *wire.List, item *wire.Item) bool {
	if !f.Writes.Has(item.Namespace, item.Name) {
		return false
	}
	text, err := l.Format.ObjectOf(item.Raw, item.APIVersion, item.Kind)
	if err != nil {
		return false
	}
	if text = f.Writes.ShownText(l.Format, &item.Meta, text); text == nil {
		return false
	}
	raw, err := l.Format.ItemOf(text, l.ItemsHaveType)
	if err == nil {
		item.Raw = raw
	}
	return err == nil
}

// cached implements objectFilter: cached pods have passed the gate.
func (f *gateFilter) cached(l *wire.List) {
	for i := range l.Items {
		f.show(l, &l.Items[i])
	}
}

// settle removes what is known of pods that are not in a list of all pods of the node: held pods, and pods that are
// cached as single objects. It does nothing for a list of the hub's own (see relist), which the node does not get.
func (f *gateFilter) settle(l *wire.List) {
	if f.call.began.IsZero() || l.Continue != "" || request.PositionOf(f.call.URL.Query()).Continue != "" || !f.call.seesAllPods(f.Recognizer.NodeName) {
		return
	}
	f.Gate.Settle(f.call.began, l.ResourceVersion)
	var uids map[string]string
	f.Record.Retire(f.call.caller, func(path string) (string, bool) {
		if parts := strings.Split(path, "/"); len(parts) != 7 || parts[1] != "api" || parts[5] != "pods" {
			return "", false
		}
		if uids == nil { // needed only if a pod is cached as a single object
			uids = make(map[string]string, len(l.Items))
			for i := range l.Items {
				uids[ownwrites.PathOfPod(l.Items[i].Namespace, l.Items[i].Name)] = l.Items[i].UID
			}
		}
		return uids[path], true
	})
}

// event implements objectFilter.
func (f *gateFilter) event(format wire.Format, e *wire.Event, m *wire.Meta, isInitial bool) (frame []byte, err error) {
	switch e.Type {
	case watch.Deleted:
		f.Gate.Forget(m.UID)
		if f.Pods != nil {
			f.Pods.Gone(m.UID)
		}
		f.retire(m, "")
		return e.Frame, nil
	case watch.Added:
		f.retire(m, m.UID)
	case watch.Modified:
	case watch.Bookmark:
		f.settleAt(format, e, m)
		return e.Frame, nil
	default:
		return e.Frame, nil
	}
	var last []byte
	wasHeld := f.Gate.IsHeld(m.UID)
	verdict, err := f.judge(format, e.Object, m, func() bool {
		before, err := f.Cache.Peek(f.call.key)
		if err != nil {
			return false
		}
		defer before.Close()
		last = lastOf(before, format, m)
		return last != nil
	})
	if err != nil {
		return nil, err
	}
	shown := f.Writes.ShownText(format, m, e.Object)
	switch {
	case verdict == delivery.Deliver && wasHeld:
		e.Type = watch.Added // the client does not know the pod yet
	case verdict == delivery.Deliver && shown == nil:
		return e.Frame, nil
	case verdict == delivery.Deliver:
		e.Object = shown
	case verdict == delivery.Freeze && isInitial: // the initial events must contain it
		e.Type = watch.Added
		if last != nil {
			if e.Object, err = format.ObjectOf(last, m.APIVersion, m.Kind); err != nil {
				return nil, err
			}
		}
	default:
		return nil, nil
	}
	e.Frame, err = format.AppendEvent(nil, e.Type, e.Object)
	return e.Frame, err
}

// settleAt removes held pods that do not exist any more, if a bookmark ends the initial events of a watch of all pods.
func (f *gateFilter) settleAt(format wire.Format, bookmark *wire.Event, m *wire.Meta) {
	if last, err := format.IsEndOfList(bookmark.Object); err == nil && last && f.call.seesAllPods(f.Recognizer.NodeName) {
		f.Gate.Settle(f.call.began, m.ResourceVersion)
	}
}

// retire removes a pod that was cached by a get of its path, unless its UID is uid.
func (f *gateFilter) retire(m *wire.Meta, uid string) {
	if f.call.seesAllPods(f.Recognizer.NodeName) {
		path := ownwrites.PathOfPod(m.Namespace, m.Name)
		f.Record.Retire(f.call.caller, func(of string) (string, bool) { return uid, of == path })
	}
}
