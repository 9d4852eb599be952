// Package writer takes what the hubs of a pool upload, and puts it into the etcd of the pool's coordinator, byte
// for byte as the cloud has answered it, except for the kubelet's port of a Node, behind the back of the API
// server there: through its API nothing could be created with the uid, the age and the status that an object has
// in the cloud.
//
// What may be put there is decided by records and object. All changes are made one after the other, each as
// a transaction that fails if etcd is another one than was loaded.
package writer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/sets"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/coordinator/leadership"
	"github.com/atoll-k8s/atoll/internal/coordinator/object"
	"github.com/atoll-k8s/atoll/internal/coordinator/records"
	"github.com/atoll-k8s/atoll/internal/governance"
	"github.com/atoll-k8s/atoll/internal/machinery/conditions"
)

const (
	// storeWithin bounds the time that etcd may take for one change, and loadWithin that for all records.
	storeWithin, loadWithin = 5 * time.Second, 30 * time.Second
	// lookEvery is the time between two looks at whether etcd is still the one that was loaded, and at which nodes
	// the pool has.
	lookEvery = time.Second
	// uploadFor is after how long no further object of an upload is stored: its hub has to beat.
	uploadFor = governance.BeatEvery / 2
	// maxReason bounds why an object is refused, in bytes: a name in it may be as long as the request.
	maxReason = 1024
)

// DefaultLimits are those of a coordinator for 200 nodes and 2,000 pods, with much to spare. kube-apiserver takes about
// three times of that, and has 1 GiB.
var DefaultLimits = records.Limits{
	NodeObjects: governance.MaxItems, NodeBytes: 32 << 20, PoolObjects: governance.MaxPoolItems, PoolBytes: 160 << 20, Bytes: 256 << 20,
}

// Storage keeps objects with their records: see Etcd.
type Storage interface {
	// Load returns the records of all objects.
	Load(ctx context.Context) (map[governance.Ref]records.Record, error)
	// Put stores an object with its record. Remove removes objects and their records.
	Put(ctx context.Context, ref governance.Ref, record records.Record, body []byte) error
	Remove(ctx context.Context, refs []governance.Ref) error
	// Check returns an error if the storage is not what Load has read and Put and Remove have changed since.
	Check(ctx context.Context) error
}

// Writer is the handler of the writer's port. Run keeps it up to date.
type Writer struct {
	storage Storage
	nodes   func() ([]string, error)
	uploads func() ([]string, error)
	limits  records.Limits
	log     logr.Logger
	now     func() time.Time

	// busy has the nodes with a request in progress. A hub has one at a time; so the memory of bodies is bounded by the
	// size of the pool.
	busy sync.Map
	// pool are the names of the pool's nodes; nil before they were read.
	pool atomic.Pointer[sets.Set[string]]
	// takesSecrets tells whether the YurtCoordinator asks for Secrets; not before that was read.
	takesSecrets atomic.Bool
	// turn is held by whoever uses stored. A channel, so that nobody waits longer than for their request.
	turn chan struct{}
	// stored is nil while the storage has to be loaded.
	stored *records.Set

	mu         sync.Mutex
	leadership *leadership.Leadership
	sessions   *leadership.Sessions
}

// New returns a writer to a storage. own is the node of the coordinator, "" if it is not known, nodes returns the names
// of the nodes of the pool, and uploads what spec.upload of the YurtCoordinator has.
func New(storage Storage, own string, nodes, uploads func() ([]string, error), limits records.Limits, log logr.Logger) *Writer {
	w := &Writer{storage: storage, nodes: nodes, uploads: uploads, limits: limits, log: log, now: time.Now, turn: make(chan struct{}, 1)}
	w.leadership, w.sessions = leadership.New(own, w.now()), leadership.NewSessions(w.now())
	return w
}

// Run follows the nodes of the pool and the storage until ctx is done.
func (w *Writer) Run(ctx context.Context) {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	logged := ""
	for {
		text := ""
		if err := w.look(ctx); err != nil {
			text = err.Error()
		}
		if text != "" && text != logged {
			w.log.Info("The writer cannot work as it should, and tries again each second", "reason", text)
		}
		logged = text
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// look reads the nodes of the pool and what is asked for, removes what is of others or not asked for, and checks the
// storage.
func (w *Writer) look(ctx context.Context) error {
	uploads, uploadsErr := w.uploads() // first: without the nodes no request is answered
	if uploadsErr == nil {
		w.takesSecrets.Store(slices.Contains(uploads, string(apps.UploadSecrets)))
	} else { // it stays as it was
		uploadsErr = fmt.Errorf("reading what the YurtCoordinator asks for: %w", uploadsErr)
	}
	names, err := w.nodes()
	if err == nil {
		pool := sets.New(names...)
		w.pool.Store(&pool)
	} else { // the last ones stay
		err = fmt.Errorf("reading the nodes of the pool: %w", err)
	}
	return errors.Join(uploadsErr, err, w.with(ctx, func(ctx context.Context, s *records.Set) error {
		if err := w.storage.Check(ctx); err != nil {
			return err
		}
		if err := w.remove(ctx, s, s.TakeSecrets(w.takesSecrets.Load())); err != nil {
			return err
		}
		if pool := w.pool.Load(); pool != nil {
			return w.remove(ctx, s, s.Keep(pool.Has))
		}
		return nil
	}))
}

// with calls do with the records, which nobody else uses meanwhile. After an error that is no refusal, nobody knows
// whether the storage was changed: it is loaded again.
func (w *Writer) with(ctx context.Context, do func(context.Context, *records.Set) error) error {
	select {
	case w.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-w.turn }()
	ctx = context.WithoutCancel(ctx) // a client that goes away leaves nothing half done
	if w.stored == nil {
		within, cancel := context.WithTimeout(ctx, loadWithin)
		defer cancel()
		loaded, err := w.storage.Load(within)
		if err != nil {
			return err
		}
		w.stored = records.New(w.limits, loaded, w.now())
		w.stored.TakeSecrets(w.takesSecrets.Load())
		w.log.Info("The records of the stored objects were read", "objects", len(loaded))
	}
	within, cancel := context.WithTimeout(ctx, storeWithin)
	defer cancel()
	err := do(within, w.stored)
	if refusal := (*records.Refusal)(nil); err != nil && !errors.As(err, &refusal) {
		w.stored = nil
	}
	return err
}

// TakesSecrets reports whether the YurtCoordinator asks for Secrets.
func (w *Writer) TakesSecrets() bool { return w.takesSecrets.Load() }

// remove removes objects, and what no pod names any more then.
func (w *Writer) remove(ctx context.Context, s *records.Set, refs []governance.Ref) error {
	for len(refs) > 0 {
		if err := w.storage.Remove(ctx, refs); err != nil {
			return err
		}
		var orphans []governance.Ref
		for _, ref := range refs {
			orphans = append(orphans, s.Remove(ref)...)
		}
		refs = orphans
	}
	return nil
}

// Handler returns the handler of the writer's port. Its server must have verified the certificates of clients.
func (w *Writer) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+governance.BeatPath, ofNode(w, w.beat))
	mux.HandleFunc("POST "+governance.InventoryPath, ofNode(w, w.inventory))
	mux.HandleFunc("POST "+governance.PoolInventoryPath, ofNode(w, w.poolInventory))
	mux.HandleFunc("POST "+governance.StatusesPath, ofNode(w, w.putStatuses))
	mux.HandleFunc("GET "+governance.StatusesPath+"/{node}", ofNode(w, w.getStatuses))
	mux.HandleFunc("POST "+governance.UploadPath, ofNode(w, w.upload))
	return mux
}

// malformed is the error of a request that cannot be read.
type malformed struct{ error }

// ofNode returns the handler of requests of the pool's nodes. answer is sent in JSON.
func ofNode[T any](w *Writer, do func(node string, r *http.Request) (answer T, err error)) http.HandlerFunc {
	return func(rw http.ResponseWriter, r *http.Request) {
		node, err := w.nodeOf(r)
		var answer T
		if err == nil {
			if _, isBusy := w.busy.LoadOrStore(node, true); isBusy {
				err = fmt.Errorf("another request of the node %s is in progress", node)
			} else {
				defer w.busy.Delete(node) // once it is answered
				answer, err = do(node, r)
			}
		}
		if err != nil {
			code := codeOf(err)
			w.log.V(2).Info("A request is refused", "path", r.URL.Path, "code", code, "reason", err.Error())
			http.Error(rw, err.Error(), code)
			return
		}
		rw.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(rw).Encode(answer)
	}
}

// codeOf returns the code of an answer: 503 for an error that is no refusal.
func codeOf(err error) int {
	var refusal *records.Refusal
	switch {
	case errors.As(err, &refusal):
		return map[records.Reason]int{records.Forbidden: http.StatusForbidden, records.Stale: http.StatusConflict, records.Full: http.StatusInsufficientStorage, records.Malformed: http.StatusUnprocessableEntity}[refusal.Reason]
	case errors.As(err, &malformed{}):
		return http.StatusUnprocessableEntity
	}
	return http.StatusServiceUnavailable
}

// nodeOf returns the node of the pool that sends a request.
func (w *Writer) nodeOf(r *http.Request) (string, error) {
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return "", &records.Refusal{Reason: records.Forbidden, Message: "a client certificate of a node is needed"}
	}
	cert := r.TLS.PeerCertificates[0]
	name, isNode := strings.CutPrefix(cert.Subject.CommonName, "system:node:")
	if !isNode || !slices.Contains(cert.Subject.Organization, "system:nodes") {
		return "", &records.Refusal{Reason: records.Forbidden, Message: fmt.Sprintf("%q is not the certificate of a node", cert.Subject.CommonName)}
	}
	if w.now().After(cert.NotAfter) { // it was valid when the connection began
		return "", &records.Refusal{Reason: records.Forbidden, Message: fmt.Sprintf("the certificate of the node %s has expired", name)}
	}
	pool := w.pool.Load()
	if pool == nil {
		return "", errors.New("the nodes of the pool are not known yet")
	}
	if !pool.Has(name) {
		return "", &records.Refusal{Reason: records.Forbidden, Message: fmt.Sprintf("the node %s is not in the pool of this coordinator", name)}
	}
	return name, nil
}

// read reads the JSON of a request, of up to limit bytes.
func read(r *http.Request, limit int64, into any) error {
	body, err := body(r, limit)
	if err == nil {
		err = json.Unmarshal(body, into)
	}
	if err != nil {
		return malformed{fmt.Errorf("reading the request: %w", err)}
	}
	return nil
}

func body(r *http.Request, limit int64) ([]byte, error) {
	return io.ReadAll(http.MaxBytesReader(nil, r.Body, limit))
}

func (w *Writer) beat(node string, r *http.Request) (answer governance.BeatAnswer, err error) {
	var beat governance.Beat
	if err := read(r, governance.MaxMessage, &beat); err != nil {
		return answer, err
	}
	w.mu.Lock()
	answer.NeedsStatuses = w.sessions.Beat(node, &beat, w.now())
	if answer.Leads = w.leadership.Beat(node, &beat, w.now()); answer.Leads {
		answer.Pool, answer.Reports = w.sessions.State(*w.pool.Load(), w.now()), w.sessions.Reports(w.now())
	}
	answer.IsLed = w.leadership.IsLed(w.now())
	w.mu.Unlock()
	return answer, w.with(r.Context(), func(_ context.Context, s *records.Set) error {
		answer.IsKnown, answer.IsPoolKnown = s.Beat(node, beat.Digest, w.now()), s.IsPoolKnown(beat.PoolDigest)
		return nil
	})
}

// leads reports whether the hub of a node leads.
func (w *Writer) leads(node string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.leadership.Leads(node, w.now())
}

// putStatuses notes the statuses of the pods of a node.
func (w *Writer) putStatuses(node string, r *http.Request) (answer struct{}, err error) {
	content, err := body(r, governance.MaxPoolMessage)
	if err != nil {
		return answer, malformed{fmt.Errorf("reading the request: %w", err)}
	}
	statuses := &governance.Statuses{}
	if err := json.Unmarshal(content, statuses); err != nil {
		return answer, malformed{fmt.Errorf("reading the request: %w", err)}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.sessions.Put(node, statuses, int64(len(content))) {
		return answer, &records.Refusal{Reason: records.Full, Message: "the statuses of all nodes would take too much memory"}
	}
	return answer, nil
}

// getStatuses returns the statuses of the pods of a node to the hub that leads: of those that the node has uploaded, and
// no others.
func (w *Writer) getStatuses(node string, r *http.Request) (answer governance.Statuses, err error) {
	if !w.leads(node) {
		return answer, &records.Refusal{Reason: records.Forbidden, Message: fmt.Sprintf("the hub of the node %s does not lead", node)}
	}
	of := r.PathValue("node")
	w.mu.Lock()
	statuses := w.sessions.Statuses(of)
	w.mu.Unlock()
	if statuses == nil {
		return answer, nil
	}
	err = w.with(r.Context(), func(_ context.Context, s *records.Set) error {
		for _, pod := range statuses.Pods {
			if s.IsOf(governance.Ref{Resource: "pods", Namespace: pod.Namespace, Name: pod.Name}, of, pod.UID) {
				answer.Pods = append(answer.Pods, pod)
			}
		}
		return nil
	})
	return answer, err
}

func (w *Writer) inventory(node string, r *http.Request) (answer governance.InventoryAnswer, err error) {
	return w.compare(node, r, governance.MaxMessage, (*records.Set).Inventory)
}

func (w *Writer) poolInventory(node string, r *http.Request) (answer governance.InventoryAnswer, err error) {
	mustLead := func() error {
		if !w.leads(node) {
			return &records.Refusal{Reason: records.Forbidden, Message: fmt.Sprintf("the hub of the node %s does not lead", node)}
		}
		return nil
	}
	if err := mustLead(); err != nil { // before the body, which may be large
		return answer, err
	}
	return w.compare(node, r, governance.MaxPoolMessage, func(s *records.Set, node string, inventory *governance.Inventory, now time.Time) (missing, remove []governance.Ref, err error) {
		if err := mustLead(); err != nil {
			return nil, nil, err
		}
		return s.PoolInventory(node, inventory, now)
	})
}

// compare reads an inventory, compares it, and removes what it does not have.
func (w *Writer) compare(
	node string, r *http.Request, limit int64, with func(*records.Set, string, *governance.Inventory, time.Time) (missing, remove []governance.Ref, err error),
) (answer governance.InventoryAnswer, err error) {
	var inventory governance.Inventory
	if err := read(r, limit, &inventory); err != nil {
		return answer, err
	}
	err = w.with(r.Context(), func(ctx context.Context, s *records.Set) error {
		missing, remove, err := with(s, node, &inventory, w.now())
		if err != nil {
			return err
		}
		answer.Missing = missing
		return w.remove(ctx, s, remove)
	})
	return answer, err
}

// upload stores objects, one after the other, so that others have their turn between them.
func (w *Writer) upload(node string, r *http.Request) (answer governance.UploadAnswer, err error) {
	r.Body = http.MaxBytesReader(nil, r.Body, 2*governance.MaxObject)
	objects, err := r.MultipartReader()
	for began := w.now(); err == nil && w.now().Sub(began) < uploadFor && len(answer.Results) < governance.MaxItems; {
		var field *multipart.Part
		if field, err = objects.NextRawPart(); errors.Is(err, io.EOF) {
			return answer, nil
		}
		var content []byte
		if err == nil {
			content, err = io.ReadAll(field)
		}
		if err != nil {
			break
		}
		result := governance.UploadResult{Code: http.StatusOK}
		if err := w.put(r.Context(), node, governance.ParseRef(field.FormName()), content); err != nil {
			result.Code, result.Reason = codeOf(err), conditions.Truncate(err.Error(), maxReason)
			if result.Code == http.StatusServiceUnavailable {
				return answer, err
			}
		}
		answer.Results = append(answer.Results, result)
	}
	if err != nil {
		return answer, malformed{fmt.Errorf("reading the request: %w", err)}
	}
	return answer, nil
}

// put stores an object.
func (w *Writer) put(ctx context.Context, node string, ref governance.Ref, content []byte) error {
	if len(content) > governance.MaxObject {
		return malformed{fmt.Errorf("it is too large: it has %d bytes, more than %d", len(content), governance.MaxObject)}
	}
	return w.with(ctx, func(ctx context.Context, s *records.Set) error {
		var o *object.Object
		stored, err := object.Stored(ref, content)
		if err == nil {
			o, err = object.Read(ref, stored) // one at a time: it may take many times the memory of content
		}
		if err != nil {
			return &records.Refusal{Reason: records.Malformed, Message: err.Error()}
		}
		record := records.Record{UID: o.UID, Version: o.Version, Node: node, Bytes: max(int64(len(stored)), o.Memory), Names: o.Names}
		for _, name := range o.Names {
			record.Bytes += int64(len(name.Key()))
		}
		if err := s.Check(ref, record, w.leads(node), o.NodeName, w.now()); err != nil {
			return err
		}
		if s.Has(ref, o.UID, o.Version) {
			return nil
		}
		if err := w.storage.Put(ctx, ref, record, stored); err != nil {
			return err
		}
		return w.remove(ctx, s, s.Put(ref, record))
	})
}
