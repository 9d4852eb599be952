package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/atoll-k8s/atoll/internal/hub/journal"
	"github.com/atoll-k8s/atoll/internal/hub/request"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// Kept is the header of the response to a journaled write: the time of the write.
const Kept = "Atoll-Kept"

const (
	// maxWrite is the size limit for the body of a journaled write, and maxTarget for its path and query, in
	// bytes.
	maxWrite, maxTarget = 1 << 20, 2 << 10
	// keepWithin is how long a write waits for the disk.
	keepWithin = 5 * time.Second
	// maxUserAgent is how many bytes of the user agent are stored.
	maxUserAgent = 256
)

// ownWrite is a write of the node about itself. Such writes are journaled while offline.
type ownWrite struct {
	kind journal.Kind
	gvk  schema.GroupVersionKind
	// collections are the paths of the lists that may contain the object, and object is its own path; "" for an
	// object that is created with the name in the body.
	collections []string
	object      string
}

// ownWriteOf returns the ownWrite of a request; nil if the request must not be journaled.
func (p *Proxy) ownWriteOf(c *call) *ownWrite {
	q := &c.what
	if p.Journal == nil || !c.caller.IsNode || q.Version != "v1" || c.URL.Query().Has("dryRun") || len(c.URL.RequestURI()) > maxTarget {
		return nil
	}
	o := &ownWrite{}
	all := "/api/v1/" + q.Resource
	if q.Group != "" {
		all = "/apis/" + q.Group + "/v1/" + q.Resource
	}
	collection, subresource := all, ""
	if q.Namespace != "" {
		collection = strings.TrimSuffix(all, q.Resource) + "namespaces/" + q.Namespace + "/" + q.Resource
	}
	creates := c.Method == http.MethodPost && q.Name == ""
	changes := (c.Method == http.MethodPut || c.Method == http.MethodPatch) && q.Name != ""
	changesOwn := changes && q.Name == p.Recognizer.NodeName
	switch q.Group + "/" + q.Resource {
	case coordinationv1.GroupName + "/leases":
		o.kind, o.gvk = journal.Lease, coordinationv1.SchemeGroupVersion.WithKind("Lease")
		if q.Namespace != corev1.NamespaceNodeLease || !creates && !changesOwn {
			return nil
		}
	case "/nodes":
		o.kind, o.gvk, subresource = journal.Status, corev1.SchemeGroupVersion.WithKind("Node"), "/status"
		if !changesOwn {
			return nil
		}
	case "/pods": // statusAfter checks that the pod is on this node
		o.kind, o.gvk, subresource = journal.Status, corev1.SchemeGroupVersion.WithKind("Pod"), "/status"
		if !changes || q.Namespace == "" {
			return nil
		}
	case "/events", eventsv1.GroupName + "/events":
		o.kind, o.gvk = journal.Event, schema.GroupVersionKind{Group: q.Group, Version: q.Version, Kind: "Event"}
		if q.Namespace == "" || !creates && !changes {
			return nil
		}
	default:
		return nil
	}
	path := collection
	if q.Name != "" {
		o.object = collection + "/" + q.Name
		path = o.object + subresource
	}
	if c.URL.Path != path { // an API server may parse such a path differently
		return nil
	}
	o.collections = []string{all, collection}
	return o
}

// write answers a write that may be journaled. While the journal has entries of its object, it is journaled
// even if the cloud is reachable: so writes of an object reach the cloud in their order.
func (p *Proxy) write(w http.ResponseWriter, c *call, o *ownWrite) {
	body, err := io.ReadAll(io.LimitReader(c.Body, maxWrite+1))
	if err != nil {
		panic(http.ErrAbortHandler) // the client has disconnected
	}
	if len(body) > maxWrite {
		c.Body = io.NopCloser(io.MultiReader(bytes.NewReader(body), c.Body))
		p.pass(w, c)
		return
	}
	c.Body, c.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	if o.kind != journal.Event {
		p.Replay.Heard(time.Now())
	}
	if c.Method == http.MethodPost {
		if name, err := nameIn(c.Header.Get("Content-Type"), body); err == nil && name != "" {
			o.object = o.collections[1] + "/" + name
		}
	}
	if o.object != "" && len(p.Journal.Of(o.object)) > 0 {
		p.keepWrite(w, c, o, body, errors.New("earlier writes of the same object have not been sent yet"))
		return
	}
	response, err := p.send(c, c.Request)
	switch {
	case isAway(err) && c.Context().Err() == nil:
		p.keepWrite(w, c, o, body, err)
		return
	case err != nil:
		p.unavailable(w, c.Request, err)
		return
	}
	defer response.Body.Close()
	answer, whole := passOn(w, response)
	if whole && response.StatusCode/100 == 2 && o.kind != journal.Status {
		contentType := response.Header.Get("Content-Type")
		if name, err := nameIn(contentType, answer); err == nil {
			p.recent.put(o.collections[1]+"/"+name, contentType, answer)
		}
	}
}

// nameIn returns the name in the metadata of an object.
func nameIn(contentType string, body []byte) (string, error) {
	format, err := wire.FormatOf(contentType)
	if err != nil {
		return "", err
	}
	m, err := format.Meta(body)
	return m.Name, err
}

// conflict is the error of a write that an API server would refuse, because the object differs from the one
// that the client means.
type conflict struct {
	reason  metav1.StatusReason
	message string
}

// Error implements error.
func (e *conflict) Error() string { return e.message }

// keepWrite journals a write, and answers like the API server: with the changed object. reason is why the write
// is not forwarded.
func (p *Proxy) keepWrite(w http.ResponseWriter, c *call, o *ownWrite, body []byte, reason error) {
	at := time.Now().Round(0)
	answer, format, err := p.tryKeep(c, o, body, at)
	refusal := (*conflict)(nil)
	switch {
	case err != nil && c.Context().Err() != nil:
		panic(http.ErrAbortHandler) // the client has disconnected
	case errors.As(err, &refusal):
		p.refuse(w, c.Request, http.StatusConflict, refusal.reason, refusal.message)
		return
	case err != nil:
		p.Log.V(2).Info("Journaling a write failed", "path", c.URL.Path, "error", err.Error())
		p.refuse(w, c.Request, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable,
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

// tryKeep journals a write, and returns the response body and its format.
func (p *Proxy) tryKeep(c *call, o *ownWrite, body []byte, at time.Time) ([]byte, wire.Format, error) {
	format, err := accepted(c.Header)
	if err != nil {
		return nil, 0, err
	}
	agent := c.Header.Get("User-Agent")
	e := journal.Entry{
		Kind: o.kind, Method: c.Method, Target: c.URL.RequestURI(), ContentType: c.Header.Get("Content-Type"),
		UserAgent: agent[:min(len(agent), maxUserAgent)], Body: body, At: at,
	}
	var after typed
	switch o.kind {
	case journal.Lease:
		after, err = p.leaseAfter(c, o, &e)
	case journal.Event:
		after, err = p.eventAfter(c, o, &e)
	default:
		after, err = p.statusAfter(c, o, &e)
	}
	if err != nil {
		return nil, 0, err
	}
	answer, err := encode(format, after, o.gvk)
	if err != nil {
		return nil, 0, err
	}
	ctx, cancel := context.WithTimeout(c.Context(), keepWithin)
	defer cancel()
	return answer, format, p.Journal.Keep(ctx, e)
}

// statusAfter completes the entry for a write of a status, and returns the object with this write applied.
func (p *Proxy) statusAfter(c *call, o *ownWrite, e *journal.Entry) (typed, error) {
	newest, read, err := p.known(c, o)
	if err != nil {
		return nil, err
	}
	if pod, is := newest.(*corev1.Pod); is && pod.Spec.NodeName != p.Recognizer.NodeName {
		return nil, fmt.Errorf("the pod is not on node %s", p.Recognizer.NodeName)
	}
	e.Object = o.object
	if c.Method == http.MethodPut {
		e.Extent = journal.Whole
		object, err := decode(e.ContentType, e.Body, o.gvk)
		if err == nil {
			err = checkIdentity(object.GetName(), string(object.GetUID()), object.GetResourceVersion(), newest)
		}
		if err != nil {
			return nil, err
		}
	} else {
		head, err := checkPatch(e, newest)
		if err != nil {
			return nil, err
		}
		e.Extent = head.extentOf(e.ContentType, o.gvk)
		shown := p.shown(read, o.object) // the kubelet computed the difference from this version
		older, isPod := shown.(*corev1.Pod)
		if pod, is := newest.(*corev1.Pod); is && isPod && e.Extent == journal.Difference && older.UID == pod.UID && (shown != read || older.ResourceVersion != pod.ResourceVersion) {
			if e.Body, err = rebased(older, pod, e.Body); err != nil {
				return nil, err
			}
		}
	}
	entries, err := p.Journal.With(*e)
	if err != nil {
		return nil, err
	}
	return withEntries(newest, o.gvk, entries)
}

// checkPatch returns the head of a patch, if the patch can be applied to an object.
func checkPatch(e *journal.Entry, object typed) (patchHead, error) {
	if !isPatch(e.ContentType) {
		return patchHead{}, fmt.Errorf("the hub does not apply patches of type %q", e.ContentType)
	}
	head, err := headOfPatch(e.Body)
	if err != nil {
		return head, err
	}
	return head, checkIdentity(object.GetName(), head.Metadata.UID, head.Metadata.ResourceVersion, object)
}

// checkIdentity checks the preconditions of a write: the object and its version are those that the client has
// read. The hub may have an older version than the client.
func checkIdentity(name, uid, version string, object typed) error {
	switch {
	case name != object.GetName():
		return fmt.Errorf("the body has the name %q", name)
	case uid != "" && uid != string(object.GetUID()):
		return &conflict{metav1.StatusReasonConflict, fmt.Sprintf("Precondition failed: UID in precondition: %s, UID in object meta: %s", uid, object.GetUID())}
	case version != "" && version != object.GetResourceVersion() && !wire.IsUpTo(object.GetResourceVersion(), version):
		return &conflict{metav1.StatusReasonConflict, fmt.Sprintf("the object has been modified: its version is %s", object.GetResourceVersion())}
	default:
		return nil
	}
}

// firstVersion is the resourceVersion in the response to a journaled creation of a Lease. No object in the
// cloud has it, so the kubelet's first update there conflicts, and the kubelet reads the Lease again.
const firstVersion = "1"

// leaseAfter completes the entry for a write of the node's Lease, and returns the Lease with this write
// applied.
func (p *Proxy) leaseAfter(c *call, o *ownWrite, e *journal.Entry) (typed, error) {
	e.Object = o.collections[1] + "/" + p.Recognizer.NodeName
	after, err := p.wholeAfter(c, o, e)
	if err != nil {
		return nil, err
	}
	lease, is := after.(*coordinationv1.Lease)
	switch {
	case !is || lease.Spec.RenewTime == nil || lease.Spec.LeaseDurationSeconds == nil:
		return nil, errors.New("the Lease has no renewTime or no leaseDurationSeconds")
	case lease.Name != p.Recognizer.NodeName:
		return nil, fmt.Errorf("the Lease %q is not the Lease of this node", lease.Name)
	case c.Method == http.MethodPost:
		lease.ResourceVersion = firstVersion
	}
	lease.Namespace = corev1.NamespaceNodeLease
	e.Method, e.Target, e.ContentType = http.MethodPut, e.Object, wire.JSON.ContentType()
	e.Body, err = json.Marshal(lease)
	return lease, err
}

// wholeAfter returns a Lease or an event with a write applied.
func (p *Proxy) wholeAfter(c *call, o *ownWrite, e *journal.Entry) (typed, error) {
	if c.Method != http.MethodPatch {
		return decode(e.ContentType, e.Body, o.gvk)
	}
	known, err := p.remembered(o.object, o.gvk)
	if err != nil {
		return nil, err
	}
	if _, err := checkPatch(e, known); err != nil {
		return nil, err
	}
	return patched(known, o.gvk, e.ContentType, e.Body)
}

// eventAfter completes the entry for a write of an event, and returns the event with this write applied.
func (p *Proxy) eventAfter(c *call, o *ownWrite, e *journal.Entry) (typed, error) {
	after, err := p.wholeAfter(c, o, e)
	if err != nil {
		return nil, err
	}
	if after.GetNamespace() == "" {
		after.SetNamespace(c.what.Namespace)
	}
	if c.Method == http.MethodPost && after.GetName() == "" && after.GetGenerateName() != "" {
		after.SetName(generatedName(after.GetGenerateName()))
	}
	name := after.GetName()
	switch {
	case name == "" || strings.Contains(name, "/"):
		return nil, errors.New("the event has no name")
	case c.what.Name != "" && c.what.Name != name || after.GetNamespace() != c.what.Namespace:
		return nil, fmt.Errorf("the path does not match the event %s/%s", after.GetNamespace(), name)
	case c.Method == http.MethodPost && after.GetResourceVersion() != "":
		return nil, errors.New("an event to be created must not have a resourceVersion")
	case c.Method == http.MethodPost && len(p.Journal.Of(o.collections[1]+"/"+name)) > 0:
		return nil, &conflict{metav1.StatusReasonAlreadyExists, fmt.Sprintf("events %q already exists", name)}
	case c.Method == http.MethodPost:
		after.SetUID("") // the API server will set it
	}
	e.Object = o.collections[1] + "/" + name
	// A PUT of an event creates it if it does not exist, and does no harm if it is sent twice.
	e.Method, e.Target, e.ContentType = http.MethodPut, e.Object, wire.JSON.ContentType()
	e.Body, err = bodyOfEvent(after)
	return after, err
}

// bodyOfEvent returns the body of an event to send. Only its writer changes an event, so it needs no
// precondition.
func bodyOfEvent(event typed) ([]byte, error) {
	sent, is := event.DeepCopyObject().(typed)
	if !is {
		return nil, errors.New("not an event")
	}
	sent.SetUID("")
	sent.SetResourceVersion("")
	sent.SetCreationTimestamp(metav1.Time{})
	sent.SetManagedFields(nil)
	return json.Marshal(sent)
}

// generatedName generates a name like the API server: k8s.io/apiserver/pkg/storage/names.
func generatedName(base string) string {
	const length, random = 63, 5
	return base[:min(len(base), length-random)] + rand.String(random)
}
