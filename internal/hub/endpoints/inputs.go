package endpoints

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/atoll-k8s/atoll/internal/hub/filter"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// Representations: for Services and Nodes the metadata is enough, which is smaller.
const (
	metadataList = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	metadata     = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	whole        = "application/json" // for a kind without protobuf
)

var services = filter.Collection{Path: "/api/v1/services", List: metadataList, Watch: metadata}

func nodeOf(name string) filter.Collection {
	return filter.Collection{Path: "/api/v1/nodes", Selector: byName(name), List: metadataList, Watch: metadata}
}

func poolOf(name string) filter.Collection {
	return filter.Collection{Path: "/apis/apps.openyurt.io/v1alpha1/nodepools", Selector: byName(name), List: whole, Watch: whole}
}

func byName(name string) string { return "fieldSelector=" + url.QueryEscape("metadata.name="+name) }

// serviceReceiver reads the topology of Services.
type serviceReceiver struct{ *Filter }

// Replace implements filter.Receiver.
func (r *serviceReceiver) Replace(format wire.Format, items []wire.Item) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.topology
	r.topology = map[service][]Reach{}
	for i := range items {
		r.putLocked(format, &items[i].Meta, items[i].Raw)
	}
	there := make(map[service]bool, len(items))
	for i := range items {
		there[service{items[i].Namespace, items[i].Name}] = true
	}
	maps.DeleteFunc(r.damaged, func(of service, _ string) bool { return !there[of] })
	r.observeLocked(inputServices, nil)
	if !maps.EqualFunc(before, r.topology, slices.Equal) {
		r.tellLocked()
	}
}

// putLocked reads the topology of one Service, and returns whether it has changed. An invalid annotation is
// ignored.
func (r *serviceReceiver) putLocked(format wire.Format, m *wire.Meta, object []byte) bool {
	of := service{m.Namespace, m.Name}
	annotations, err := format.Annotations(object)
	var keys []Reach
	value := annotations[TopologyAnnotation]
	if err == nil {
		keys, err = ParseTopology(value)
	}
	if logged, is := r.damaged[of]; err != nil && (!is || logged != value) {
		r.log.Info("Ignoring the invalid topology annotation of a Service: correct or remove it", "service", m.Namespace+"/"+m.Name, "annotation", TopologyAnnotation, "error", err.Error())
	}
	if err != nil && len(r.damaged) < maxServices {
		r.damaged[of] = value
	} else {
		delete(r.damaged, of)
	}
	before := r.topology[of]
	if len(keys) == 0 || before == nil && len(r.topology) >= maxServices {
		delete(r.topology, of)
	} else {
		r.topology[of] = keys
	}
	return !slices.Equal(before, r.topology[of])
}

// Put implements filter.Receiver.
func (r *serviceReceiver) Put(format wire.Format, m *wire.Meta, object []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.putLocked(format, m, object) {
		r.tellLocked()
	}
}

// Delete implements filter.Receiver.
func (r *serviceReceiver) Delete(m *wire.Meta) {
	r.mu.Lock()
	defer r.mu.Unlock()
	of := service{m.Namespace, m.Name}
	_, is := r.topology[of]
	delete(r.topology, of)
	delete(r.damaged, of)
	if is {
		r.tellLocked()
	}
}

// Failed implements filter.Receiver. The known topologies stay.
func (r *serviceReceiver) Failed(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.observeLocked(inputServices, err)
}

// nodeReceiver reads the pool and the zone of the node.
type nodeReceiver struct{ *Filter }

// Replace implements filter.Receiver.
func (r *nodeReceiver) Replace(format wire.Format, items []wire.Item) {
	for i := range items {
		r.Put(format, &items[i].Meta, items[i].Raw)
	}
	if len(items) == 0 { // the node is not registered yet
		r.Failed(fmt.Errorf("Node %q does not exist", r.place.Node))
	}
}

// Put implements filter.Receiver.
func (r *nodeReceiver) Put(format wire.Format, m *wire.Meta, object []byte) {
	labels, err := format.Labels(object)
	r.mu.Lock()
	defer r.mu.Unlock()
	if m.Name != r.place.Node {
		return
	}
	if err != nil {
		r.observeLocked(inputNode, err)
		return
	}
	before, now := r.place, r.place
	now.Known, now.Zone, now.Pool = true, labels[corev1.LabelTopologyZone], labels[poolLabel]
	if now.Pool != before.Pool {
		now.Members = nil
		delete(r.inputs, inputPool)
		if now.Pool != "" {
			r.inputs[inputPool] = &Input{Name: inputPool}
		}
		select {
		case r.pooled <- struct{}{}:
		default: // followPool has not read the last value yet
		}
	}
	r.place = now
	r.observeLocked(inputNode, nil)
	if before.Known != now.Known || before.Zone != now.Zone || before.Pool != now.Pool {
		r.tellLocked()
	}
}

// Delete implements filter.Receiver. The known values stay: the kubelet registers its node again.
func (r *nodeReceiver) Delete(*wire.Meta) {}

// Failed implements filter.Receiver.
func (r *nodeReceiver) Failed(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.observeLocked(inputNode, err)
}

// followPool follows the NodePool of the node, until ctx is done.
func (f *Filter) followPool(ctx context.Context, follow filter.Follower) {
	for {
		inner, cancel := context.WithCancel(ctx)
		f.mu.RLock()
		name := f.place.Pool
		f.mu.RUnlock()
		done := make(chan struct{})
		go func() {
			defer close(done)
			if name != "" {
				follow(inner, poolOf(name), &poolReceiver{f, name})
			}
		}()
		select {
		case <-ctx.Done():
		case <-f.pooled:
		}
		cancel()
		<-done
		if ctx.Err() != nil {
			return
		}
	}
}

// poolReceiver reads the nodes of a pool.
type poolReceiver struct {
	*Filter

	name string
}

// Replace implements filter.Receiver.
func (r *poolReceiver) Replace(format wire.Format, items []wire.Item) {
	for i := range items {
		r.Put(format, &items[i].Meta, items[i].Raw)
	}
	if len(items) == 0 {
		r.learn(nil, fmt.Errorf("NodePool %q in the node's label %s does not exist", r.name, poolLabel))
	}
}

// Put implements filter.Receiver.
func (r *poolReceiver) Put(_ wire.Format, m *wire.Meta, object []byte) {
	if m.Name != r.name {
		return
	}
	var pool struct {
		Status struct {
			Nodes []string `json:"nodes"`
		} `json:"status"`
	}
	if err := json.Unmarshal(object, &pool); err != nil {
		r.learn(nil, fmt.Errorf("reading the NodePool %q: %w", r.name, err))
		return
	}
	members := map[string]bool{}
	for _, name := range pool.Status.Nodes {
		members[name] = true
	}
	r.learn(members, nil)
}

// Delete implements filter.Receiver.
func (r *poolReceiver) Delete(*wire.Meta) { r.Replace(wire.JSON, nil) }

// Failed implements filter.Receiver. The members are cleared only if the API server refuses the NodePool to the
// node: the hub would not learn of changes.
func (r *poolReceiver) Failed(err error) {
	r.mu.RLock()
	members := r.place.Members
	r.mu.RUnlock()
	if errors.Is(err, filter.ErrRefused) {
		members = nil
		err = fmt.Errorf("%w; allow the group system:nodes to get, list and watch nodepools of apps.openyurt.io, as the chart does", err)
	}
	r.learn(members, err)
}

// learn sets the members of the pool; nil if they are not known.
func (r *poolReceiver) learn(members map[string]bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.place.Pool != r.name {
		return
	}
	before := r.place.Members
	r.place.Members = members
	r.observeLocked(inputPool, err)
	r.inputs[inputPool].Known = members != nil
	if (before == nil) != (members == nil) || !maps.Equal(before, members) {
		r.tellLocked()
	}
}
