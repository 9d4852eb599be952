// Package governance is what the hubs of a pool and the pool's coordinator say to each other: which objects
// hubs upload, and how the messages about them look. The rules are in docs/pools.md. It must not know
// connections, clocks or storage.
//
// A hub beats, with the digest of its inventory. If the coordinator does not know this digest, the hub
// sends the inventory: all objects that the coordinator should have of its node. The coordinator removes
// the others of the node, and answers which objects it does not have in that version. The hub then uploads
// those, some at a time. A hub sends its inventory once a minute in any case. So both sides are in step again
// after any restart, and nothing has to be remembered.
//
// One of the hubs leads, if any has the cloud: the answer to its beat says so. It has a second inventory, of
// what belongs to the whole pool.
package governance

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"mime/multipart"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

const (
	// Namespace is that of all coordinators, and of the Secrets with their certificates.
	Namespace = "atoll-pools"
	// ServerName is the name in the certificate of each coordinator. Its CA tells which pool it is of.
	ServerName = "coordinator." + Namespace + ".svc"
	// UsageServer is the name under which the API server of a coordinator looks for metrics.k8s.io: <service>.<namespace>.svc
	// of a namespace that no cloud has, so that no uploaded Service takes its place.
	UsageServer = "usage.atoll-coordinator.svc"
	// PeopleGroup is the organization of people's certificates: they may read, and use log, exec, attach and
	// port-forward (docs/sources.md, N10).
	PeopleGroup = "openyurt:coordinators"
	// APIServerGroup is the organization of the certificate with which the API server of a coordinator asks the
	// hubs' pool ports.
	APIServerGroup = "atoll:pool-apiservers"
	// HubSigner is the signer of the serving certificates of the hubs' pool ports. They are signed by the CA of the
	// pool.
	HubSigner = "atoll.dev/hub-serving"
	// APIPort is the port of the API server of a coordinator.
	APIPort = 10270
	// WriterPort is the port of a coordinator for uploads.
	WriterPort = 10271
	// UsagePort is the port, on loopback, at which the API server of a coordinator asks for metrics.k8s.io.
	UsagePort = 10272
	// HubPort is the port of a hub for the API server of its pool's coordinator.
	HubPort = 10262
	// BeatEvery is the time between two beats of a hub.
	BeatEvery = 2 * time.Second
	// SilentAfter is how long a node that has sent no beat keeps its objects from other nodes.
	SilentAfter = 40 * time.Second
	// LeadFor is how long a hub leads, from when it has sent the beat that was answered so.
	LeadFor = 6 * time.Second
	// LeadMargin is for how much longer than LeadFor a coordinator lets nobody else lead: clocks do not run equally fast.
	LeadMargin = 500 * time.Millisecond
	// OutsideAfter is how long a node of the pool has sent no beat if it counts as outside.
	OutsideAfter = 20 * time.Second
	// PulseEvery is the time between two pulses: writes of the Lease by which the hub that leads tells the cloud how
	// the pool is.
	PulseEvery = 10 * time.Second
	// PulseAnnotation, on that Lease, has the PoolState.
	PulseAnnotation = "atoll.dev/pool-state"
	// ReportFor is how long a report of a node may be forwarded, from when it was received.
	ReportFor = 15 * time.Second
	// DelegatedAnnotation, on the Lease of a node, has the renewTime that the hub that leads has written for the node. As
	// long as both are equal, the node is delegated: a kubelet that renews its Lease by itself keeps the annotation.
	DelegatedAnnotation = "atoll.dev/delegated"
	// CutOffUntilAnnotation, on the Lease of a node, has when the node last reached the cloud again after its pool had spoken
	// for it. Its own hub writes it: no pool may.
	CutOffUntilAnnotation = "atoll.dev/cut-off-until"
	// TokenField is that of the Secret of the delegate which has its token.
	TokenField = "token"
	// MaxItems bounds the objects of the inventory of a node.
	MaxItems = 1024
	// MaxPoolItems bounds the objects of the inventory of a pool.
	MaxPoolItems = 10_000
	// MaxObject bounds an object, in bytes.
	MaxObject = 1 << 20
	// NotDelegated is why the cloud refuses the status of a pod, as a policy of the chart says it, until it has concluded
	// that it hears of the node through its pool.
	NotDelegated = "the cloud does not hear of the node through its pool"
	// MaxMessage bounds a beat, the inventory of a node and the answers, in bytes.
	MaxMessage = 1 << 20
	// MaxPoolMessage bounds the inventory of a pool and its answer, and the statuses of a node, in bytes.
	MaxPoolMessage = 4 << 20
	// BeatPath is where a Beat is sent to, by POST.
	BeatPath = "/v1/beat"
	// InventoryPath is where an Inventory is sent to, by POST.
	InventoryPath = "/v1/inventory"
	// PoolInventoryPath is where the hub that leads sends the Inventory of the pool to, by POST.
	PoolInventoryPath = "/v1/pool-inventory"
	// StatusesPath is where Statuses are sent to, by POST, and StatusesPath/<node> where the hub that leads reads them.
	StatusesPath = "/v1/statuses"
	// UploadPath is where objects are sent to, by POST: see EncodeUploads.
	UploadPath = "/v1/objects"
	// EnoughAtOnce is the size of the objects of one upload, in bytes, at which no further one is added.
	EnoughAtOnce = 64 << 10
)

// CASecret returns the name of the Secret with the CA of a pool: ca.crt, whose first certificate is the one that
// signs, and the others are trusted as long as they are valid, and ca.key.
func CASecret(pool string) string { return "ca-" + pool }

// Delegate returns the name, in Namespace, of the ServiceAccount as which the hub that leads a pool speaks for the pool
// in the cloud, and of the Secret with its token, which all nodes of the pool may read.
func Delegate(pool string) string { return "delegate-" + pool }

// pulsePrefix begins the names of pulses.
const pulsePrefix = "pool-"

// Pulse returns the name, in Namespace, of the Lease with the pulse of a pool.
func Pulse(pool string) string { return pulsePrefix + pool }

// PoolOfPulse returns the pool of a Lease in Namespace; "" if it is no pulse.
func PoolOfPulse(lease string) string {
	pool, is := strings.CutPrefix(lease, pulsePrefix)
	if !is {
		return ""
	}
	return pool
}

// Kind is a kind of objects that hubs upload.
type Kind struct {
	// APIVersion and Kind are those of its objects.
	APIVersion, Kind string
	// IsNamespaced tells whether its objects are in namespaces.
	IsNamespaced bool
	// IsOfNode tells whether each of its objects is of one node, and only that one may upload it. IsOfPool tells whether
	// they are of the whole pool, and only the hub that leads may upload them. Other objects are of all nodes
	// with a pod that names them.
	IsOfNode, IsOfPool bool
	// prefix is where an API server keeps the objects in etcd.
	prefix string
}

// kinds are those of each resource, and resources their order: what pods name comes after the pods.
var (
	kinds = map[string]Kind{
		"nodes":           {APIVersion: "v1", Kind: "Node", IsOfNode: true, prefix: "minions"},
		"leases":          {APIVersion: "coordination.k8s.io/v1", Kind: "Lease", IsNamespaced: true, IsOfNode: true, prefix: "leases"},
		"pods":            {APIVersion: "v1", Kind: "Pod", IsNamespaced: true, IsOfNode: true, prefix: "pods"},
		"serviceaccounts": {APIVersion: "v1", Kind: "ServiceAccount", IsNamespaced: true, prefix: "serviceaccounts"},
		"configmaps":      {APIVersion: "v1", Kind: "ConfigMap", IsNamespaced: true, prefix: "configmaps"},
		"secrets":         {APIVersion: "v1", Kind: "Secret", IsNamespaced: true, prefix: "secrets"},
		"nodepools":       {APIVersion: "apps.openyurt.io/v1alpha1", Kind: "NodePool", IsOfPool: true, prefix: "apps.openyurt.io/nodepools"},
		"namespaces":      {APIVersion: "v1", Kind: "Namespace", IsOfPool: true, prefix: "namespaces"},
		"services":        {APIVersion: "v1", Kind: "Service", IsNamespaced: true, IsOfPool: true, prefix: "services/specs"},
		"endpointslices":  {APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice", IsNamespaced: true, IsOfPool: true, prefix: "endpointslices"},
	}
	resources = []string{"nodes", "leases", "pods", "serviceaccounts", "configmaps", "secrets", "nodepools", "namespaces", "services", "endpointslices"}
)

// Secrets is the resource that is uploaded only where the YurtCoordinator asks for it.
const Secrets = "secrets"

// KindOf returns the kind of a resource.
func KindOf(resource string) (Kind, bool) {
	kind, known := kinds[resource]
	return kind, known
}

// Ref names an object. Namespace is "" for a kind without namespaces.
type Ref struct {
	Resource  string `json:"resource"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// Compare orders names as they are uploaded.
func (r Ref) Compare(other Ref) int {
	return cmp.Or(
		cmp.Compare(slices.Index(resources, r.Resource), slices.Index(resources, other.Resource)),
		cmp.Compare(r.Namespace, other.Namespace), cmp.Compare(r.Name, other.Name),
	)
}

// Validate returns what is wrong with a name. Only a valid one has a Key.
func (r Ref) Validate() error {
	kind, known := kinds[r.Resource]
	if !known {
		return fmt.Errorf("resource: %q is not one that hubs upload", r.Resource)
	}
	if kind.IsNamespaced != (r.Namespace != "") {
		return fmt.Errorf("namespace: %s %s", r.Resource, map[bool]string{true: "need one", false: "have none"}[kind.IsNamespaced])
	}
	if r.Namespace != "" && len(validation.IsDNS1123Label(r.Namespace)) > 0 {
		return fmt.Errorf("namespace: %q is not the name of one", r.Namespace)
	}
	if len(validation.IsDNS1123Subdomain(r.Name)) > 0 { // so are the names of all kinds that are uploaded
		return fmt.Errorf("name: %q is not the name of an object", r.Name)
	}
	return nil
}

// Key returns where an API server keeps the object in etcd.
func (r Ref) Key() string { return "/registry/" + kinds[r.Resource].prefix + r.suffix() }

func (r Ref) suffix() string {
	if r.Namespace == "" {
		return "/" + r.Name
	}
	return "/" + r.Namespace + "/" + r.Name
}

// String returns the name as people read it.
func (r Ref) String() string { return r.Resource + r.suffix() }

// ParseRef reads what String returns. Of another text, the result is not valid.
func ParseRef(text string) Ref {
	switch parts := strings.Split(text, "/"); len(parts) {
	case 2:
		return Ref{Resource: parts[0], Name: parts[1]}
	case 3:
		return Ref{Resource: parts[0], Namespace: parts[1], Name: parts[2]}
	}
	return Ref{Resource: text}
}

// Item is an object in an inventory.
type Item struct {
	Ref

	// UID and Version are the object's uid and resourceVersion in the cloud.
	UID     string `json:"uid"`
	Version string `json:"version"`
}

// Beat is what a hub says every BeatEvery.
type Beat struct {
	// Session is another one for each start of the hub, and Number grows with each beat of a session: one that
	// arrives late is known by it.
	Session string `json:"session"`
	Number  uint64 `json:"number"`
	// HasCloud tells whether the hub reaches the cloud. One that does not, does not lead from when it sends this.
	HasCloud bool `json:"hasCloud"`
	// Digest is that of its inventory, and PoolDigest that of the inventory of the pool; "" if it has none.
	Digest     string `json:"digest"`
	PoolDigest string `json:"poolDigest,omitempty"`
	// IsRefused tells whether the kubelet of the node refuses the hub, so that people have no logs and exec there.
	IsRefused bool `json:"isRefused,omitempty"`
	// Report is what the node has to say to the cloud, which it does not reach; nil if it reaches the cloud, or its
	// kubelet is silent.
	Report *Report `json:"report,omitempty"`
}

// Report is a heartbeat of a node that does not reach the cloud.
type Report struct {
	// Renewed is the renewTime that the kubelet has written last, by the clock of the node.
	Renewed metav1.MicroTime `json:"renewed"`
	// Digest is that of its Statuses; "" if it has none.
	Digest string `json:"digest,omitempty"`
}

// Statuses are those of the pods of a node that the cloud does not have.
type Statuses struct {
	Pods []PodStatus `json:"pods"`
}

// PodStatus is the whole status of a pod, as the kubelet wants it.
type PodStatus struct {
	Namespace string           `json:"namespace"`
	Name      string           `json:"name"`
	UID       string           `json:"uid"`
	Status    corev1.PodStatus `json:"status"`
}

// Digest returns a digest of the statuses, in their order; "" if there are none.
func (s *Statuses) Digest() string {
	if len(s.Pods) == 0 {
		return ""
	}
	text, err := json.Marshal(s)
	if err != nil { // no status has what JSON has not
		return ""
	}
	digest := sha256.Sum256(text)
	return hex.EncodeToString(digest[:])
}

// BeatAnswer is the answer to a Beat.
type BeatAnswer struct {
	// IsKnown is true if the last inventory of the node, since the coordinator has read its records, had the digest.
	IsKnown bool `json:"isKnown"`
	// IsPoolKnown is true if the last inventory of the pool, whoever has sent it, had the PoolDigest.
	IsPoolKnown bool `json:"isPoolKnown,omitempty"`
	// Leads is true if the hub leads, for LeadFor from when it has sent the beat. A later answer replaces this one.
	Leads bool `json:"leads,omitempty"`
	// IsLed is true if some hub leads, this one or another.
	IsLed bool `json:"isLed,omitempty"`
	// Pool is how the pool is, if the hub leads; nil if the coordinator does not know it yet.
	Pool *PoolState `json:"pool,omitempty"`
	// NeedsStatuses is true if the coordinator does not have the Statuses of the node's Report.
	NeedsStatuses bool `json:"needsStatuses,omitempty"`
	// Reports are those of all nodes that may be forwarded, by node, if the hub leads.
	Reports map[string]Report `json:"reports,omitempty"`
}

// maxNamed bounds each list of a PoolState. With the longest names, both fit into an annotation.
const maxNamed = 400

// PoolState is how a pool is, as its coordinator sees it. The lists are sorted, and have the first 400 names.
type PoolState struct {
	// Outside are the nodes that have sent no beat for OutsideAfter.
	Outside []string `json:"outside,omitempty"`
	// Refused are the nodes whose kubelets refuse their hubs.
	Refused []string `json:"refused,omitempty"`
}

// NewPoolState returns the state with these nodes, in any order.
func NewPoolState(outside, refused []string) *PoolState {
	first := func(names []string) []string {
		slices.Sort(names)
		return names[:min(len(names), maxNamed)]
	}
	return &PoolState{Outside: first(outside), Refused: first(refused)}
}

// Inventory has all objects that a coordinator should have of a node, or all of the pool.
type Inventory struct {
	Items []Item `json:"items"`
}

// InventoryAnswer is the answer to an Inventory.
type InventoryAnswer struct {
	// Missing are the objects of the inventory that the coordinator does not have in that or a later version.
	Missing []Ref `json:"missing"`
}

// Upload is an object that a hub uploads.
type Upload struct {
	Ref

	// Body is the object as the cloud has answered it, in JSON or protobuf, of up to MaxObject.
	Body []byte
}

// EncodeUploads returns the body of a request with objects, and its content type: a form, with one field for each object, of
// the object's name.
func EncodeUploads(uploads []Upload) (contentType string, body []byte, err error) {
	var b bytes.Buffer
	form := multipart.NewWriter(&b)
	for _, u := range uploads {
		field, err := form.CreateFormField(u.String())
		if err == nil {
			_, err = field.Write(u.Body)
		}
		if err != nil {
			return "", nil, err
		}
	}
	err = form.Close()
	return form.FormDataContentType(), b.Bytes(), err
}

// UploadAnswer is the answer to an upload. It has a result for each of the first objects. The others were not read, because
// these took a while, and have to be sent again.
type UploadAnswer struct {
	Results []UploadResult `json:"results"`
}

// UploadResult is what came of one object.
type UploadResult struct {
	// Code is 200 if the object is stored. Else it is the code, of HTTP, of a refusal, and Reason says why.
	Code   int    `json:"code"`
	Reason string `json:"reason,omitempty"`
}

// Digest returns a digest of an inventory, whatever its order.
func (i *Inventory) Digest() string {
	items := slices.Clone(i.Items)
	slices.SortFunc(items, func(a, b Item) int { return a.Compare(b.Ref) })
	digest := sha256.New()
	for _, item := range items {
		_, _ = fmt.Fprintf(digest, "%q %q %q\n", item.String(), item.UID, item.Version)
	}
	return hex.EncodeToString(digest.Sum(nil))
}

// Version reads a resourceVersion. Since Kubernetes 1.35 they are promised to be numbers that grow.
func Version(text string) (uint64, error) {
	version, err := strconv.ParseUint(text, 10, 64)
	if err != nil || version == 0 {
		return 0, fmt.Errorf("resourceVersion: %q is not a number from 1 on", text)
	}
	return version, nil
}
