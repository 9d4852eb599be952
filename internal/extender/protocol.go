package extender

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/machinery/bounded"
	"github.com/atoll-k8s/atoll/internal/owners"
)

// maxBody is the maximum size of a request in bytes. The largest requests of kube-scheduler
// have whole Node objects: 72 MB were measured for 5,000 nodes.
const maxBody = 128 << 20

// firstRead is the maximum number of bytes that are allocated because of a request's
// Content-Length, before the body is read.
const firstRead = 1 << 20

// The types below are those of the protocol (k8s.io/kube-scheduler/extender/v1), reduced to
// what is needed: the metadata of a pod and the name of a node. Other fields of a pod are
// not decoded; nodes are kept as they were sent.
type filterArgs struct {
	Pod       *podMeta
	Nodes     *nodeList
	NodeNames nodeNames
}

// nodeNames is a list of node names. It can be as long as the cluster has nodes and is most
// of a request. All names share one string, and the slice is reused by the next request.
type nodeNames struct {
	list []string
	// given: the request has node names, and not whole nodes.
	given bool
}

// UnmarshalJSON decodes a list of strings. It is fast for strings without escapes, and node
// names have none; it decodes everything else with encoding/json.
func (n *nodeNames) UnmarshalJSON(raw []byte) error {
	n.given = string(raw) != "null"
	if len(raw) == 0 || raw[0] != '[' || bytes.IndexByte(raw, '\\') >= 0 {
		return json.Unmarshal(raw, &n.list) // null, a list with escapes, or not a list
	}
	names := slices.Grow(n.list[:0], bytes.Count(raw, []byte{','})+1)
	for rest := string(raw[1 : len(raw)-1]); rest != ""; {
		// raw is valid JSON. So if there are only commas and spaces between the quoted parts,
		// these are the strings of the list.
		between, after, opened := strings.Cut(rest, `"`)
		name, next, _ := strings.Cut(after, `"`)
		if between != "," && strings.Trim(between, ", \t\r\n") != "" {
			return json.Unmarshal(raw, &n.list) // it returns the error
		}
		if opened {
			names = append(names, name)
		}
		rest = next
	}
	n.list = names
	return nil
}

type podMeta struct {
	Metadata struct {
		Name            string                  `json:"name"`
		Namespace       string                  `json:"namespace"`
		UID             types.UID               `json:"uid"`
		Labels          map[string]string       `json:"labels"`
		Annotations     map[string]string       `json:"annotations"`
		OwnerReferences []metav1.OwnerReference `json:"ownerReferences"`
	} `json:"metadata"`
}

// object returns the pod as the start of a walk up its owners.
func (p *podMeta) object() *ownership.Object {
	return &ownership.Object{
		GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Pod"),
		Namespace:        p.Metadata.Namespace, Name: p.Metadata.Name, UID: p.Metadata.UID,
		Policies:      ownership.PoliciesOf(p.Metadata.Labels),
		IgnoreMissing: ownership.IgnoresMissing(p.Metadata.Annotations),
		Seat:          types.UID(p.Metadata.Annotations[gm.SeatAnnotation]),
		Controller:    owners.ControllerOf(p.Metadata.OwnerReferences),
	}
}

type nodeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []json.RawMessage `json:"items"`
}

type nodeMeta struct {
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
}

type filterResult struct {
	Nodes                      *nodeList         `json:",omitempty"`
	NodeNames                  *[]string         `json:",omitempty"`
	FailedNodes                map[string]string `json:",omitempty"`
	FailedAndUnresolvableNodes map[string]string `json:",omitempty"`
	Error                      string            `json:",omitempty"`
}

type hostPriority struct {
	Host  string
	Score int64
}

type bindingArgs struct {
	PodName, PodNamespace string
	PodUID                types.UID
	Node                  string
}

type bindingResult struct {
	Error string
}

type preemptionArgs struct {
	Pod                   *podMeta
	NodeNameToVictims     map[string]json.RawMessage
	NodeNameToMetaVictims map[string]metaVictims
}

type metaVictims struct {
	Pods             []json.RawMessage
	NumPDBViolations int64
}

type preemptionResult struct {
	NodeNameToMetaVictims map[string]metaVictims `json:",omitempty"`
}

// names returns the names of the request's nodes, in order. If the request has whole nodes,
// full are these nodes as they were sent.
func (a *filterArgs) names() (names []string, full []json.RawMessage, err error) {
	if a.NodeNames.given {
		return a.NodeNames.list, nil, nil
	}
	if a.Nodes == nil {
		return nil, nil, nil
	}
	names = make([]string, len(a.Nodes.Items))
	for i, raw := range a.Nodes.Items {
		var n nodeMeta
		if err := json.Unmarshal(raw, &n); err != nil {
			return nil, nil, fmt.Errorf("decoding node %d: %w", i, err)
		}
		names[i] = n.Metadata.Name
	}
	return names, a.Nodes.Items, nil
}

// buffers are reused by one request after the other: allocating them for each request would
// cause most of the garbage.
type buffers struct {
	buffer        bytes.Buffer
	names, groups []string
}

var bufferPool = sync.Pool{New: func() any { return new(buffers) }}

// release returns the buffers to the pool, unless they have grown too large to keep.
func (b *buffers) release() {
	if b.buffer.Cap() > 2*firstRead || cap(b.names) > firstRead/16 {
		return
	}
	clear(b.names[:cap(b.names)])
	clear(b.groups[:cap(b.groups)])
	b.names, b.groups = b.names[:0], b.groups[:0]
	bufferPool.Put(b)
}

// decode reads a request's JSON. If that fails, it answers the request and returns false.
func (b *buffers) decode(w http.ResponseWriter, r *http.Request, into any) bool {
	return b.read(w, r) && b.unmarshal(w, b.buffer.Bytes(), into)
}

// read reads a request's body into the buffer. If that fails, it answers the request and
// returns false.
func (b *buffers) read(w http.ResponseWriter, r *http.Request) bool {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "the scheduler extender protocol uses POST", http.StatusMethodNotAllowed)
		return false
	}
	if status, err := readBody(w, r, &b.buffer); err != nil {
		http.Error(w, err.Error(), status)
		return false
	}
	return true
}

// unmarshal decodes raw. If that fails, it answers the request and returns false.
func (b *buffers) unmarshal(w http.ResponseWriter, raw []byte, into any) bool {
	if err := json.Unmarshal(raw, into); err != nil {
		http.Error(w, "decoding the request: "+err.Error(), http.StatusBadRequest)
		return false
	}
	return true
}

// decodeFilter is decode for a request with node names. These are most of the request, and
// encoding/json would scan them three times; decodeFilter scans them once if it can.
func (b *buffers) decodeFilter(w http.ResponseWriter, r *http.Request) (args filterArgs, ok bool) {
	if !b.read(w, r) {
		return args, false
	}
	head, names := splitNames(b.buffer.Bytes())
	if names != nil && json.Unmarshal(head, &args) == nil && args.NodeNames.read(names, b.names) {
		b.names = args.NodeNames.list
		return args, true
	}
	args = filterArgs{NodeNames: nodeNames{list: b.names}}
	ok = b.unmarshal(w, b.buffer.Bytes(), &args)
	b.names = args.NodeNames.list
	return args, ok
}

var lastField = []byte(`,"NodeNames":[`)

// splitNames splits a request in two: an object without the names, and the list of names.
// kube-scheduler writes the names last and without spaces; for other requests names is nil.
//
// The last occurrence of lastField begins the list. It is not part of a string, because
// quotes in a string have a backslash before them. If it is in a nested object, head is not
// valid JSON, and the caller decodes the whole request instead.
func splitNames(raw []byte) (head, names []byte) {
	raw = bytes.TrimRight(raw, "\n")
	i := bytes.LastIndex(raw, lastField)
	if i < 0 || !bytes.HasSuffix(raw, []byte("]}")) {
		return nil, nil
	}
	head = append(make([]byte, 0, i+1), raw[:i]...)
	return append(head, '}'), raw[i+len(lastField)-1 : len(raw)-1]
}

// read decodes a list of strings that has no spaces and no escapes. It reuses the
// slice. It returns false for any other list.
func (n *nodeNames) read(raw []byte, reused []string) bool {
	if bytes.IndexByte(raw, '\\') >= 0 {
		return false
	}
	names := reused[:0]
	for rest := string(raw[1 : len(raw)-1]); rest != ""; {
		if rest[0] != '"' {
			return false
		}
		name, after, closed := strings.Cut(rest[1:], `"`)
		if !closed || after != "" && (after[0] != ',' || len(after) == 1) {
			return false
		}
		names = append(names, name)
		if after == "" {
			break
		}
		rest = after[1:]
	}
	n.list, n.given = names, true
	return true
}

// readBody reads a request's body. If that fails, it returns the status for the response.
func readBody(w http.ResponseWriter, r *http.Request, into *bytes.Buffer) (status int, err error) {
	if r.ContentLength > maxBody {
		w.Header().Set("Connection", "close") // the body is not read
		return http.StatusRequestEntityTooLarge, fmt.Errorf("reading the request: %d bytes are more than %d", r.ContentLength, maxBody)
	}
	into.Reset()
	into.Grow(int(min(max(r.ContentLength, 0), firstRead)) + bytes.MinRead)
	if _, err = into.ReadFrom(http.MaxBytesReader(w, r.Body, maxBody)); err != nil {
		status = http.StatusBadRequest
		if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
			status = http.StatusRequestEntityTooLarge
		}
		if errors.Is(err, bounded.ErrBusy) {
			status = http.StatusServiceUnavailable // kube-scheduler retries
		}
		return status, fmt.Errorf("reading the request: %w", err)
	}
	return http.StatusOK, nil
}

// encode answers with JSON and its Content-Length. Without that, a response above 2 kB is
// sent in chunks, and kube-scheduler does not read the last one. It could then not reuse
// the connection: each request would need a new TCP connection and TLS handshake.
func (b *buffers) encode(w http.ResponseWriter, reply any) {
	b.buffer.Reset()
	if err := json.NewEncoder(&b.buffer).Encode(reply); err != nil {
		http.Error(w, "encoding the reply: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(b.buffer.Len()))
	// The write fails if kube-scheduler has closed the connection. It retries.
	_, _ = w.Write(b.buffer.Bytes())
}
