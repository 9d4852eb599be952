package pool

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"sync"

	"github.com/go-logr/logr"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/governance"
	"github.com/atoll-k8s/atoll/internal/hub/filter"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// metadata is the representation for Nodes: only the labels are needed. whole is for a kind without protobuf.
const (
	metadataList = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	metadata     = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	whole        = "application/json"
)

// Discovery finds the coordinator of the node's pool: by the label of the Node, and the YurtCoordinator for
// that pool. Both are read through the proxy, so the cached versions are available offline.
type Discovery struct {
	nodeName string
	log      logr.Logger
	// moved has an element when the pool of the node has changed, and changed when a coordinator of the pool
	// has.
	moved, changed chan struct{}

	mu sync.RWMutex
	// pool is the pool of the node; "" if the node has none, or if it is not known.
	pool string
	// coordinators are the YurtCoordinators for the pool, by name.
	coordinators map[string]apps.YurtCoordinator
	problem      string
}

// NewDiscovery returns a Discovery. Run does the work.
func NewDiscovery(nodeName string, log logr.Logger) *Discovery {
	return &Discovery{nodeName: nodeName, log: log, moved: make(chan struct{}, 1), changed: make(chan struct{}, 1)}
}

// Pool returns the name of the node's pool; "" if the node has none, or if it is not known.
func (d *Discovery) Pool() string {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.pool
}

// Addresses returns the possible addresses of the coordinator, as host:port: its last one, and then those of
// the other nodes of the pool. It returns none if the pool has no coordinator.
func (d *Discovery) Addresses() []string {
	status := d.current().Status
	all := make([]string, 0, len(status.Addresses))
	for _, address := range status.Addresses {
		all = append(all, net.JoinHostPort(address, strconv.Itoa(governance.WriterPort)))
	}
	return all
}

// Changed returns a channel that has an element when a coordinator of the pool has changed.
func (d *Discovery) Changed() <-chan struct{} { return d.changed }

// CA returns the CAs of the pool, in PEM; nil if it has no coordinator.
func (d *Discovery) CA() []byte { return d.current().Status.CABundle }

// AsksForSecrets reports whether the coordinator needs the Secrets of pods.
func (d *Discovery) AsksForSecrets() bool {
	return slices.Contains(d.current().Spec.Upload, apps.UploadSecrets)
}

// current returns the deployed coordinator: only that one has a CA.
func (d *Discovery) current() apps.YurtCoordinator {
	d.mu.RLock()
	defer d.mu.RUnlock()
	for _, name := range slices.Sorted(maps.Keys(d.coordinators)) {
		if c := d.coordinators[name]; len(c.Status.CABundle) > 0 && len(c.Status.Addresses) > 0 {
			return c
		}
	}
	return apps.YurtCoordinator{}
}

// Run follows the Node and the coordinators of its pool until ctx is done.
func (d *Discovery) Run(ctx context.Context, follow filter.Follower) {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() {
		follow(ctx, filter.Collection{Path: "/api/v1/nodes", Selector: selector("metadata.name", d.nodeName), List: metadataList, Watch: metadata}, &nodeReceiver{d})
	})
	for ctx.Err() == nil {
		inner, cancel := context.WithCancel(ctx)
		pool := d.Pool()
		var following sync.WaitGroup
		if pool != "" {
			following.Go(func() {
				follow(inner, filter.Collection{
					Path: "/apis/apps.openyurt.io/v1alpha1/yurtcoordinators", Selector: selector("spec.nodePool", pool), List: whole, Watch: whole,
				}, &coordinatorReceiver{d, pool})
			})
		}
		select {
		case <-ctx.Done():
		case <-d.moved:
		}
		cancel()
		following.Wait()
	}
}

func selector(field, value string) string {
	return "fieldSelector=" + url.QueryEscape(field+"="+value)
}

// nodeReceiver reads the pool of the node. The known pool stays while the Node cannot be read, or is registered
// again.
type nodeReceiver struct{ *Discovery }

// Replace implements filter.Receiver.
func (r *nodeReceiver) Replace(format wire.Format, items []wire.Item) {
	for i := range items {
		r.Put(format, &items[i].Meta, items[i].Raw)
	}
}

// Put implements filter.Receiver.
func (r *nodeReceiver) Put(format wire.Format, m *wire.Meta, object []byte) {
	labels, err := format.Labels(object)
	if err != nil || m.Name != r.nodeName {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if pool := labels[apps.NodePoolLabel]; pool != r.pool {
		r.pool, r.coordinators = pool, nil
		select {
		case r.moved <- struct{}{}:
		default: // Run has not read the last value yet
		}
	}
}

// Delete implements filter.Receiver.
func (r *nodeReceiver) Delete(*wire.Meta) {}

// Failed implements filter.Receiver. Other receivers of the Node report the error.
func (r *nodeReceiver) Failed(error) {}

// coordinatorReceiver reads the coordinators of a pool.
type coordinatorReceiver struct {
	*Discovery

	of string
}

// Replace implements filter.Receiver.
func (r *coordinatorReceiver) Replace(_ wire.Format, items []wire.Item) {
	all := map[string]apps.YurtCoordinator{}
	for i := range items {
		c, err := coordinatorOf(items[i].Raw)
		if err != nil {
			r.Failed(err)
			return
		}
		all[items[i].Name] = c
	}
	r.learn(func() { r.coordinators = all })
}

// Put implements filter.Receiver.
func (r *coordinatorReceiver) Put(_ wire.Format, m *wire.Meta, object []byte) {
	c, err := coordinatorOf(object)
	if err != nil {
		r.Failed(err)
		return
	}
	r.learn(func() {
		if r.coordinators == nil {
			r.coordinators = map[string]apps.YurtCoordinator{}
		}
		r.coordinators[m.Name] = c
	})
}

// Delete implements filter.Receiver.
func (r *coordinatorReceiver) Delete(m *wire.Meta) {
	r.learn(func() { delete(r.coordinators, m.Name) })
}

// Failed implements filter.Receiver. The known coordinators stay: they are needed most while offline.
func (r *coordinatorReceiver) Failed(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if text := err.Error(); text != r.problem {
		r.problem = text
		r.log.V(2).Info("Reading the coordinators of the pool failed", "pool", r.of, "reason", text)
	}
}

// learn calls do unless the node has moved to another pool.
func (r *coordinatorReceiver) learn(do func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pool == r.of {
		r.problem = ""
		do()
		select {
		case r.changed <- struct{}{}:
		default:
		}
	}
}

func coordinatorOf(object []byte) (c apps.YurtCoordinator, err error) {
	if err := json.Unmarshal(object, &c); err != nil {
		return c, fmt.Errorf("reading a YurtCoordinator: %w", err)
	}
	return c, nil
}
