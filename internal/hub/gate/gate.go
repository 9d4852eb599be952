// Package gate holds pods that must not reach the node yet: see package delivery. The cached pods of the node have
// passed the gate. It must not know how the hub answers requests.
package gate

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-k8s/atoll/internal/hub/delivery"
	"github.com/atoll-k8s/atoll/internal/hub/panics"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// maxPods limits how many delivered pods, and how many held pods, the gate remembers.
const maxPods = 10000

// Options are the parts that a Gate uses.
type Options struct {
	NodeName string
	// Send sends a request to the cloud as the node, and Go runs a task.
	Send func(*http.Request) (*http.Response, error)
	Go   func(task func())
	// Count is called with each verdict other than Deliver.
	Count  func(delivery.Verdict)
	Panics *panics.Catcher
	Log    logr.Logger
}

// Gate decides about the versions of pods, and sends an event for each held pod. It is safe for concurrent use.
type Gate struct {
	Options

	mu        sync.Mutex
	delivered map[string]bool    // UIDs of pods that the node has received
	held      map[string]heldPod // by UID
}

// New returns a Gate.
func New(o Options) *Gate {
	return &Gate{Options: o, delivered: map[string]bool{}, held: map[string]heldPod{}}
}

// Held is a pod that the hub holds back from the node.
type Held struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Reason    string    `json:"reason"`
	Since     time.Time `json:"since"`
}

// heldPod is a pod that the hub holds, with the state of its event.
type heldPod struct {
	Held

	version string // the last version from the cloud, and seen is when it came
	seen    time.Time
	tried   time.Time // when an event was last sent, and told when the API server last accepted one; zero means never
	told    time.Time
}

// Judge returns the verdict on a version of a pod, with or without its apiVersion and kind. had reports whether the
// node's state of the collection contains the pod. It is called for few pods.
func (g *Gate) Judge(ctx context.Context, format wire.Format, object []byte, m *wire.Meta, had func() bool) (delivery.Verdict, error) {
	if m.Kind != "" && m.Kind != "Pod" && m.Kind != "PartialObjectMetadata" {
		return "", fmt.Errorf("its kind is %q", m.Kind)
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
		if pod.Delivered = had() || g.wasDelivered(m.UID); !pod.Delivered {
			if pod.Delivered, err = isStarted(format, object); err != nil {
				return "", err
			}
		}
		if delivery.Decide(pod) == delivery.Hold {
			g.hold(ctx, m, why)
		}
	}
	verdict := delivery.Decide(pod)
	if verdict != delivery.Deliver {
		g.Count(verdict)
	}
	if verdict != delivery.Hold {
		g.deliver(m.UID)
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

// remember adds a UID to a map. If the map is full, it removes an arbitrary UID.
func remember[V any](in map[string]V, uid string, value V) {
	_, is := in[uid]
	if !is && len(in) >= maxPods {
		for other := range in {
			delete(in, other)
			break
		}
	}
	if !is {
		uid = strings.Clone(uid) // the UID may be a substring, which would keep the whole text in memory
	}
	in[uid] = value
}

// deliver records that the node has received a pod.
func (g *Gate) deliver(uid string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	remember(g.delivered, uid, true)
	delete(g.held, uid)
}

// wasDelivered reports whether the node has received a pod.
func (g *Gate) wasDelivered(uid string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.delivered[uid]
}

// IsHeld reports whether the gate holds a pod.
func (g *Gate) IsHeld(uid string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, is := g.held[uid]
	return is
}

// Forget removes a deleted pod.
func (g *Gate) Forget(uid string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.delivered, uid)
	delete(g.held, uid)
}

// Settle removes held pods that do not exist any more: those that the cloud has not sent since the given time,
// when it began to send all pods as of the given version.
func (g *Gate) Settle(since time.Time, version string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	maps.DeleteFunc(g.held, func(_ string, h heldPod) bool { return h.seen.Before(since) && wire.IsUpTo(h.version, version) })
}

// Held returns the held pods, sorted by namespace and name.
func (g *Gate) Held() []Held {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := make([]Held, 0, len(g.held))
	for _, h := range g.held {
		all = append(all, h.Held)
	}
	slices.SortFunc(all, func(a, b Held) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return all
}
