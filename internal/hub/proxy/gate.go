package proxy

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/atoll-k8s/atoll/internal/hub/cache"
	"github.com/atoll-k8s/atoll/internal/hub/delivery"
	"github.com/atoll-k8s/atoll/internal/hub/request"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// maxPods limits how many delivered pods, and how many held pods, the gate remembers.
const maxPods = 10000

// gate holds pods that must not reach the node yet: see package delivery. The cached pods of the node have
// passed the gate.
type gate struct {
	mu        sync.Mutex
	delivered map[string]bool    // UIDs of pods that the node has received
	held      map[string]heldPod // by UID
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

// remember adds a UID to a map. If the map is full, it removes an arbitrary UID.
func remember[V any](in *map[string]V, uid string, value V) {
	if *in == nil {
		*in = map[string]V{}
	}
	_, is := (*in)[uid]
	if !is && len(*in) >= maxPods {
		for other := range *in {
			delete(*in, other)
			break
		}
	}
	if !is {
		uid = strings.Clone(uid) // the UID may be a substring, which would keep the whole text in memory
	}
	(*in)[uid] = value
}

// judge returns the verdict on a version of a pod, in either form. had reports whether the node's state of the
// collection contains the pod. It is called for few pods.
func (p *Proxy) judge(c *call, format wire.Format, object []byte, m *wire.Meta, had func() bool) (delivery.Verdict, error) {
	if m.Kind != "" && m.Kind != "Pod" && m.Kind != "PartialObjectMetadata" {
		return "", fmt.Errorf("its kind is %q", m.Kind)
	}
	if p.Pods != nil {
		p.Pods.Seen(format, m, object)
	}
	labels, err := policyLabels(format, object)
	if err != nil {
		return "", err
	}
	pod := delivery.Pod{Labels: labels, Deleting: m.Deleting}
	if why := delivery.Waiting(labels); why != "" { // only few pods need these checks
		if pod.Annotations, err = format.Annotations(object); err != nil {
			return "", err
		}
		if pod.Delivered = had() || p.gate.has(m.UID); !pod.Delivered {
			if pod.Delivered, err = isStarted(format, object); err != nil {
				return "", err
			}
		}
		if delivery.Decide(pod) == delivery.Hold {
			p.tell(c, m, why)
		}
	}
	verdict := delivery.Decide(pod)
	if verdict != delivery.Deliver {
		p.metrics.verdict(string(verdict))
	}
	if verdict != delivery.Hold {
		p.gate.deliver(m.UID)
	}
	return verdict, nil
}

// requiredPrefix is the prefix of the labels that may hold a pod.
var requiredPrefix = []byte("groupmanagement.kubeedge.io/required-")

// policyLabels returns the labels of a pod, or none if no label requires a policy. Protobuf contains the bytes
// of a label unchanged; searching them is faster than decoding all labels.
func policyLabels(format wire.Format, object []byte) (map[string]string, error) {
	if format == wire.Protobuf && !bytes.Contains(object, requiredPrefix) {
		return nil, nil
	}
	return format.Labels(object)
}

// deliver records that the node has received a pod.
func (g *gate) deliver(uid string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	remember(&g.delivered, uid, true)
	delete(g.held, uid)
}

func (g *gate) isHeld(uid string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, is := g.held[uid]
	return is
}

func (g *gate) has(uid string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.delivered[uid]
}

// forget removes a deleted pod.
func (g *gate) forget(uid string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.delivered, uid)
	delete(g.held, uid)
}

// started is the part of a pod that shows whether a kubelet has accepted it.
type started struct {
	Status struct {
		StartTime *metav1.Time `json:"startTime"`
	} `json:"status"`
}

// isStarted reports whether a kubelet has accepted a pod: the kubelet then sets status.startTime. So a pod that
// ran before the hub was installed, or before the hub lost its cache, counts as delivered.
func isStarted(format wire.Format, object []byte) (bool, error) {
	var s started
	switch format {
	case wire.JSON:
		if err := format.ReadFields(object, &s); err != nil {
			return false, fmt.Errorf("reading the status of a pod: %w", err)
		}
		return s.Status.StartTime != nil, nil
	default:
		if bytes.HasPrefix(object, []byte("k8s\x00")) {
			item, err := format.ItemOf(object, false)
			if err != nil {
				return false, err
			}
			object = item
		}
		pod := &corev1.Pod{}
		if err := pod.Unmarshal(object); err != nil {
			return false, fmt.Errorf("reading the status of a pod: %w", err)
		}
		return pod.Status.StartTime != nil, nil
	}
}

// listThroughGate forwards a list to the node without held pods.
func (p *Proxy) listThroughGate(w http.ResponseWriter, c *call, response *http.Response) {
	answer, err := receive(response)
	keeping := false
	defer func() {
		if !keeping {
			answer.release()
		}
	}()
	contentType := response.Header.Get("Content-Type")
	if err != nil {
		p.unavailable(w, c.Request, err)
		return
	}
	// A list in protobuf begins with its length, so all pods must be checked before the first byte is forwarded.
	list, changed, err := p.passable(c, contentType, answer.body)
	var passed []byte
	if err == nil && changed {
		passed, err = encodeList(list)
	}
	if err == nil {
		p.settleAfter(c, list)
	}
	switch {
	case err != nil:
		// For example a table, whose pods cannot be checked.
		p.refuse(w, c.Request, http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable, fmt.Sprintf("the hub cannot check which of these pods may reach the node: %v", err))
		return
	case changed:
		answer.passChanged(w, passed)
	default:
		answer.pass(w)
	}
	keeping = p.keepSized(c, len(answer.body), func(s *state) error {
		defer answer.release()
		return p.storeList(s, c, contentType, list)
	})
}

// passable returns a list as the node may receive it, and reports whether the gate has changed it.
func (p *Proxy) passable(c *call, contentType string, body []byte) (list *wire.List, changed bool, err error) {
	if list, err = decodeList(contentType, body); err != nil {
		return nil, false, err
	}
	changed, err = p.filter(c, list)
	return list, changed, err
}

// encodeList encodes a list whose items have changed.
func encodeList(list *wire.List) ([]byte, error) {
	var size wire.Size
	for i := range list.Items {
		size.Add(len(list.Items[i].Raw))
	}
	var text bytes.Buffer
	if length, err := list.Length(size); err == nil {
		text.Grow(int(length))
	}
	err := list.Encode(&text, size, raws(list.Items))
	return text.Bytes(), err
}

func raws(items []wire.Item) func(func([]byte, error) bool) {
	return func(yield func([]byte, error) bool) {
		for i := range items {
			if !yield(items[i].Raw, nil) {
				return
			}
		}
	}
}

// filter removes held pods from a list, and replaces frozen pods by their last delivered version and ended pods
// by their ended state (see shown). It reports whether that changed anything.
func (p *Proxy) filter(c *call, list *wire.List) (changed bool, err error) {
	before := p.before(c)
	defer before.close()
	passed := list.Items[:0]
	for _, item := range list.Items {
		var last []byte
		verdict, err := p.judge(c, list.Format, item.Raw, &item.Meta, func() bool {
			last = before.find(list.Format, &item.Meta)
			return last != nil
		})
		if err != nil {
			return false, err
		}
		switch {
		case verdict == delivery.Hold:
			changed = true
			continue
		case verdict == delivery.Freeze && last != nil:
			changed = true
			item.Raw = last
		}
		if p.keepsOfPod(item.Namespace, item.Name) {
			if shown := p.shownItem(&list.Header, item.Raw, pathOf(item.Namespace, item.Name)); shown != nil {
				changed = true
				item.Raw = shown
			}
		}
		passed = append(passed, item)
	}
	list.Items = passed
	return changed, nil
}

// beforeState is the state of a collection that the node has received. nil is an empty state.
type beforeState struct{ view *cache.View }

// before opens the state that the node has received of the collection of a request.
func (p *Proxy) before(c *call) *beforeState {
	view, err := p.Cache.View(c.key)
	if err != nil { // nothing is cached, or it cannot be read
		return nil
	}
	return &beforeState{view}
}

func (b *beforeState) close() {
	if b != nil {
		_ = b.view.Close()
	}
}

// find returns the version of a pod that the node has received; nil if the node has none with this UID.
func (b *beforeState) find(format wire.Format, m *wire.Meta) []byte {
	if b == nil {
		return nil
	}
	last, err := b.view.Get(id(m))
	if err != nil {
		return nil
	}
	if was, err := format.Meta(last); err != nil || was.UID != m.UID {
		return nil
	}
	return last
}

// getThroughGate forwards a pod to the node, or answers 404 if the pod is held.
func (p *Proxy) getThroughGate(w http.ResponseWriter, c *call, response *http.Response) {
	answer, err := receive(response)
	if err != nil {
		p.unavailable(w, c.Request, err)
		return
	}
	contentType, body := response.Header.Get("Content-Type"), answer.body
	format, err := wire.FormatOf(contentType)
	var m wire.Meta
	if err == nil {
		m, err = format.Meta(body)
	}
	var verdict delivery.Verdict
	if err == nil {
		verdict, err = p.judge(c, format, body, &m, func() bool { return false })
	}
	if err != nil {
		p.refuse(w, c.Request, http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable, fmt.Sprintf("the hub cannot check whether this pod may reach the node: %v", err))
		return
	}
	if verdict == delivery.Hold {
		p.refuse(w, c.Request, http.StatusNotFound, metav1.StatusReasonNotFound, fmt.Sprintf("pods %q not found: the hub holds this pod", c.what.Name))
		return
	}
	p.observeRead(c, contentType, body)
	if shown := p.shownText(format, body, c.what.Path); shown != nil {
		answer.passChanged(w, shown)
	} else {
		answer.pass(w)
	}
	p.keepSized(c, len(body), func(s *state) error {
		return p.storeDocument(s, c, &head{Code: response.StatusCode, ContentType: contentType}, body)
	})
}

// throughGate applies the gate to an event of a watch. It returns the event for the client, and false if the
// client must not get an event.
func (s *stream) throughGate(e wire.Event, m *wire.Meta) (wire.Event, bool, error) {
	switch e.Type {
	case watch.Deleted:
		s.gate.forget(m.UID)
		if s.Pods != nil {
			s.Pods.Gone(m.UID)
		}
		s.retirePod(m, "")
		return e, true, nil
	case watch.Added:
		s.retirePod(m, m.UID)
	case watch.Modified:
	default:
		return e, true, nil
	}
	var last []byte
	held := s.gate.isHeld(m.UID)
	verdict, err := s.judge(s.call, s.format, e.Object, m, func() bool {
		before := s.before(s.call)
		defer before.close()
		last = before.find(s.format, m)
		return last != nil
	})
	if err != nil {
		return e, false, err
	}
	shown := s.shownText(s.format, e.Object, pathOf(m.Namespace, m.Name))
	switch {
	case verdict == delivery.Deliver && held:
		e.Type = watch.Added // the client does not know the pod yet
	case verdict == delivery.Deliver && shown == nil:
		return e, true, nil
	case verdict == delivery.Deliver:
		e.Object = shown
	case verdict == delivery.Freeze && s.version == "": // the initial events must contain it
		e.Type = watch.Added
		if last != nil {
			if e.Object, err = s.format.ObjectOf(last, m.APIVersion, m.Kind); err != nil {
				return e, false, err
			}
		}
	default:
		return e, false, nil
	}
	e.Frame, err = s.format.AppendEvent(nil, e.Type, e.Object)
	return e, err == nil, err
}

// retirePod removes a pod that was cached by a get of its path, unless its UID is uid.
func (s *stream) retirePod(m *wire.Meta, uid string) {
	if s.seesAllPods(s.Recognizer.NodeName) {
		path := pathOf(m.Namespace, m.Name)
		s.retire(s.call, func(of string) (string, bool) { return uid, of == path })
	}
}
