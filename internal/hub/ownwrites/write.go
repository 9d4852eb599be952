// Package ownwrites journals the writes of the node about itself while the cloud is offline: its Lease, the
// statuses of its Node and its pods, and events. It answers such writes like an API server, with the changed
// object. It must not know how the hub answers other requests.
package ownwrites

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
	"github.com/atoll-k8s/atoll/internal/hub/objects"
	"github.com/atoll-k8s/atoll/internal/hub/record"
	"github.com/atoll-k8s/atoll/internal/hub/request"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

const (
	// MaxBody is the size limit for the body of a journaled write, and maxTarget for its path and query, in
	// bytes.
	MaxBody, maxTarget = 1 << 20, 2 << 10
	// keepWithin is how long a write waits for the disk.
	keepWithin = 5 * time.Second
	// maxUserAgent is how many bytes of the user agent are stored.
	maxUserAgent = 256
)

// Writes journals writes of the node. It is safe for concurrent use.
type Writes struct {
	NodeName string
	// Journal stores the writes. If it is nil, none is journaled.
	Journal *journal.Journal
	Record  *record.Recorder
	// IsSilent reports whether the kubelet has stopped writing.
	IsSilent func() bool

	recent recent
}

// Write is a write of the node about itself.
type Write struct {
	Kind journal.Kind
	// Object is the path of the object; "" for an object that is created with the name in the body: see Named.
	Object string

	request *http.Request
	what    *request.Request
	gvk     schema.GroupVersionKind
	// collections are the paths of the lists that may contain the object: of all namespaces, and of its own.
	collections []string
}

// Of returns the Write of a request of the node; nil if the request must not be journaled.
func (w *Writes) Of(r *http.Request, q *request.Request) *Write {
	if w.Journal == nil || q.Version != "v1" || r.URL.Query().Has("dryRun") || len(r.URL.RequestURI()) > maxTarget {
		return nil
	}
	o := &Write{request: r, what: q}
	all := "/api/v1/" + q.Resource
	if q.Group != "" {
		all = "/apis/" + q.Group + "/v1/" + q.Resource
	}
	collection, subresource := all, ""
	if q.Namespace != "" {
		collection = strings.TrimSuffix(all, q.Resource) + "namespaces/" + q.Namespace + "/" + q.Resource
	}
	creates := r.Method == http.MethodPost && q.Name == ""
	changes := (r.Method == http.MethodPut || r.Method == http.MethodPatch) && q.Name != ""
	changesOwn := changes && q.Name == w.NodeName
	switch q.Group + "/" + q.Resource {
	case coordinationv1.GroupName + "/leases":
		o.Kind, o.gvk = journal.Lease, coordinationv1.SchemeGroupVersion.WithKind("Lease")
		if q.Namespace != corev1.NamespaceNodeLease || !creates && !changesOwn {
			return nil
		}
	case "/nodes":
		o.Kind, o.gvk, subresource = journal.Status, corev1.SchemeGroupVersion.WithKind("Node"), "/status"
		if !changesOwn {
			return nil
		}
	case "/pods": // statusAfter checks that the pod is on this node
		o.Kind, o.gvk, subresource = journal.Status, corev1.SchemeGroupVersion.WithKind("Pod"), "/status"
		if !changes || q.Namespace == "" {
			return nil
		}
	case "/events", eventsv1.GroupName + "/events":
		o.Kind, o.gvk = journal.Event, schema.GroupVersionKind{Group: q.Group, Version: q.Version, Kind: "Event"}
		if q.Namespace == "" || !creates && !changes {
			return nil
		}
	default:
		return nil
	}
	path := collection
	if q.Name != "" {
		o.Object = collection + "/" + q.Name
		path = o.Object + subresource
	}
	if r.URL.Path != path { // an API server may parse such a path differently
		return nil
	}
	o.collections = []string{all, collection}
	return o
}

// Named sets the object of a write that creates one.
func (o *Write) Named(body []byte) {
	if o.request.Method != http.MethodPost {
		return
	}
	if name, err := NameIn(o.request.Header.Get("Content-Type"), body); err == nil && name != "" {
		o.Object = o.collections[1] + "/" + name
	}
}

// Answered records the response of the cloud to a write.
func (w *Writes) Answered(o *Write, contentType string, body []byte) {
	if o.Kind == journal.Status {
		return
	}
	if name, err := NameIn(contentType, body); err == nil {
		w.recent.put(o.collections[1]+"/"+name, contentType, body)
	}
}

// NameIn returns the name in the metadata of an object.
func NameIn(contentType string, body []byte) (string, error) {
	format, err := wire.FormatOf(contentType)
	if err != nil {
		return "", err
	}
	m, err := format.Meta(body)
	return m.Name, err
}

// Conflict is the error of a write that an API server would refuse, because the object differs from the one
// that the client means.
type Conflict struct {
	Reason  metav1.StatusReason
	message string
}

// Error implements error.
func (e *Conflict) Error() string { return e.message }

// Keep journals a write at the given time, and returns the response body and its format. The error is a Conflict
// if an API server would refuse the write.
func (w *Writes) Keep(o *Write, body []byte, at time.Time) ([]byte, wire.Format, error) {
	r := o.request
	format, err := objects.Accepted(r.Header)
	if err != nil {
		return nil, 0, err
	}
	agent := r.Header.Get("User-Agent")
	e := journal.Entry{
		Kind: o.Kind, Method: r.Method, Target: r.URL.RequestURI(), ContentType: r.Header.Get("Content-Type"),
		UserAgent: agent[:min(len(agent), maxUserAgent)], Body: body, At: at,
	}
	var after objects.Typed
	switch o.Kind {
	case journal.Lease:
		after, err = w.leaseAfter(o, &e)
	case journal.Event:
		after, err = w.eventAfter(o, &e)
	default:
		after, err = w.statusAfter(o, &e)
	}
	if err != nil {
		return nil, 0, err
	}
	answer, err := objects.Encode(format, after, o.gvk)
	if err != nil {
		return nil, 0, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), keepWithin)
	defer cancel()
	return answer, format, w.Journal.Keep(ctx, e)
}

// statusAfter completes the entry for a write of a status, and returns the object with this write applied.
func (w *Writes) statusAfter(o *Write, e *journal.Entry) (objects.Typed, error) {
	newest, read, err := w.known(o)
	if err != nil {
		return nil, err
	}
	if pod, is := newest.(*corev1.Pod); is && pod.Spec.NodeName != w.NodeName {
		return nil, fmt.Errorf("the pod is not on node %s", w.NodeName)
	}
	e.Object = o.Object
	if o.request.Method == http.MethodPut {
		e.Extent = journal.Whole
		object, err := objects.Decode(e.ContentType, e.Body, o.gvk)
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
		e.Extent = head.ExtentOf(e.ContentType, o.gvk)
		shown := w.Shown(read) // the kubelet computed the difference from this version
		older, isPod := shown.(*corev1.Pod)
		if pod, is := newest.(*corev1.Pod); is && isPod && e.Extent == journal.Difference && older.UID == pod.UID && (shown != read || older.ResourceVersion != pod.ResourceVersion) {
			if e.Body, err = objects.Rebased(older, pod, e.Body); err != nil {
				return nil, err
			}
		}
	}
	entries, err := w.Journal.With(*e)
	if err != nil {
		return nil, err
	}
	return objects.WithEntries(newest, o.gvk, entries)
}

// checkPatch returns the head of a patch, if the patch can be applied to an object.
func checkPatch(e *journal.Entry, object objects.Typed) (objects.PatchHead, error) {
	if !objects.IsPatch(e.ContentType) {
		return objects.PatchHead{}, fmt.Errorf("the hub does not apply patches of type %q", e.ContentType)
	}
	head, err := objects.HeadOfPatch(e.Body)
	if err != nil {
		return head, err
	}
	return head, checkIdentity(object.GetName(), head.Metadata.UID, head.Metadata.ResourceVersion, object)
}

// checkIdentity checks the preconditions of a write: the object and its version are those that the client has
// read. The hub may have an older version than the client.
func checkIdentity(name, uid, version string, object objects.Typed) error {
	switch {
	case name != object.GetName():
		return fmt.Errorf("the body has the name %q", name)
	case uid != "" && uid != string(object.GetUID()):
		return &Conflict{metav1.StatusReasonConflict, fmt.Sprintf("Precondition failed: UID in precondition: %s, UID in object meta: %s", uid, object.GetUID())}
	case version != "" && version != object.GetResourceVersion() && !wire.IsUpTo(object.GetResourceVersion(), version):
		return &Conflict{metav1.StatusReasonConflict, fmt.Sprintf("the object has been modified: its version is %s", object.GetResourceVersion())}
	default:
		return nil
	}
}

// firstVersion is the resourceVersion in the response to a journaled creation of a Lease. No object in the
// cloud has it, so the kubelet's first update there conflicts, and the kubelet reads the Lease again.
const firstVersion = "1"

// leaseAfter completes the entry for a write of the node's Lease, and returns the Lease with this write
// applied.
func (w *Writes) leaseAfter(o *Write, e *journal.Entry) (objects.Typed, error) {
	e.Object = o.collections[1] + "/" + w.NodeName
	after, err := w.wholeAfter(o, e)
	if err != nil {
		return nil, err
	}
	lease, is := after.(*coordinationv1.Lease)
	switch {
	case !is || lease.Spec.RenewTime == nil || lease.Spec.LeaseDurationSeconds == nil:
		return nil, errors.New("the Lease has no renewTime or no leaseDurationSeconds")
	case lease.Name != w.NodeName:
		return nil, fmt.Errorf("the Lease %q is not the Lease of this node", lease.Name)
	case o.request.Method == http.MethodPost:
		lease.ResourceVersion = firstVersion
	}
	lease.Namespace = corev1.NamespaceNodeLease
	e.Method, e.Target, e.ContentType = http.MethodPut, e.Object, wire.JSON.ContentType()
	e.Body, err = json.Marshal(lease)
	return lease, err
}

// wholeAfter returns a Lease or an event with a write applied.
func (w *Writes) wholeAfter(o *Write, e *journal.Entry) (objects.Typed, error) {
	if o.request.Method != http.MethodPatch {
		return objects.Decode(e.ContentType, e.Body, o.gvk)
	}
	known, err := w.remembered(o.Object, o.gvk)
	if err != nil {
		return nil, err
	}
	if _, err := checkPatch(e, known); err != nil {
		return nil, err
	}
	return objects.Patched(known, o.gvk, e.ContentType, e.Body)
}

// eventAfter completes the entry for a write of an event, and returns the event with this write applied.
func (w *Writes) eventAfter(o *Write, e *journal.Entry) (objects.Typed, error) {
	after, err := w.wholeAfter(o, e)
	if err != nil {
		return nil, err
	}
	if after.GetNamespace() == "" {
		after.SetNamespace(o.what.Namespace)
	}
	if o.request.Method == http.MethodPost && after.GetName() == "" && after.GetGenerateName() != "" {
		after.SetName(generatedName(after.GetGenerateName()))
	}
	name := after.GetName()
	switch {
	case name == "" || strings.Contains(name, "/"):
		return nil, errors.New("the event has no name")
	case o.what.Name != "" && o.what.Name != name || after.GetNamespace() != o.what.Namespace:
		return nil, fmt.Errorf("the path does not match the event %s/%s", after.GetNamespace(), name)
	case o.request.Method == http.MethodPost && after.GetResourceVersion() != "":
		return nil, errors.New("an event to be created must not have a resourceVersion")
	case o.request.Method == http.MethodPost && len(w.Journal.Of(o.collections[1]+"/"+name)) > 0:
		return nil, &Conflict{metav1.StatusReasonAlreadyExists, fmt.Sprintf("events %q already exists", name)}
	case o.request.Method == http.MethodPost:
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
func bodyOfEvent(event objects.Typed) ([]byte, error) {
	sent, is := event.DeepCopyObject().(objects.Typed)
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
