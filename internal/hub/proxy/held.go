package proxy

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-k8s/atoll/internal/hub/request"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

const (
	// eventWithin is the timeout for sending an event.
	eventWithin = 10 * time.Second
	// tellEvery is the time between two checks for due events, tellAgain the least time between two attempts to
	// send one. tellAnew is the time after which a pod that is still held gets another event, because an API
	// server deletes events after an hour.
	tellEvery, tellAgain, tellAnew = time.Minute, 10 * time.Second, 30 * time.Minute
	// ReasonHeld is the reason of the event on a pod that is held.
	ReasonHeld = "HeldByHub"
)

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

// isDue reports whether an event must be sent.
func (h *heldPod) isDue(now time.Time) bool {
	return now.Sub(h.tried) >= tellAgain && (h.told.IsZero() || now.Sub(h.told) >= tellAnew)
}

// Held returns the held pods, sorted by namespace and name.
func (p *Proxy) Held() []Held {
	p.gate.mu.Lock()
	defer p.gate.mu.Unlock()
	all := make([]Held, 0, len(p.gate.held))
	for _, h := range p.gate.held {
		all = append(all, h.Held)
	}
	slices.SortFunc(all, func(a, b Held) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// tell records that a pod is held, and sends an event for it if one is due.
func (p *Proxy) tell(c *call, m *wire.Meta, why string) {
	now := time.Now()
	p.gate.mu.Lock()
	h, is := p.gate.held[m.UID]
	if !is {
		h.Held = Held{Namespace: strings.Clone(m.Namespace), Name: strings.Clone(m.Name), Since: now}
	}
	if h.Reason != why {
		h.Reason, h.told = why, time.Time{}
	}
	h.version, h.seen = strings.Clone(m.ResourceVersion), now
	due := h.isDue(now)
	if due {
		h.tried = now
	}
	remember(&p.gate.held, m.UID, h)
	p.gate.mu.Unlock()
	if due {
		uid, ctx := strings.Clone(m.UID), context.WithoutCancel(c.Context())
		p.queues.tasks.Go(func() { p.sendEvent(ctx, uid, h.Held) })
	}
}

// TellOfHeld sends events for held pods that failed before or are due again, until ctx is done.
func (p *Proxy) TellOfHeld(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(tellEvery):
		}
		p.tellDue(ctx, time.Now())
	}
}

// tellDue sends the events that are due at the given time.
func (p *Proxy) tellDue(ctx context.Context, now time.Time) {
	for uid, h := range p.gate.due(now) {
		p.sendEvent(ctx, uid, h)
	}
}

// due returns the held pods with a due event.
func (g *gate) due(now time.Time) map[string]Held {
	g.mu.Lock()
	defer g.mu.Unlock()
	due := map[string]Held{}
	for uid, h := range g.held {
		if h.isDue(now) {
			h.tried, due[uid] = now, h.Held
			g.held[uid] = h
		}
	}
	return due
}

// settle removes held pods that do not exist any more: those that the cloud has not sent since the given time,
// when it began to send all pods as of the given version.
func (g *gate) settle(since time.Time, version string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	maps.DeleteFunc(g.held, func(_ string, h heldPod) bool { return h.seen.Before(since) && wire.IsUpTo(h.version, version) })
}

// seesAllPods reports whether a request is for all pods of the node.
func (c *call) seesAllPods(nodeName string) bool {
	query := c.URL.Query()
	selector := query.Get("fieldSelector")
	return c.isGated() && c.what.Namespace == "" && c.what.Name == "" && query.Get("labelSelector") == "" &&
		(selector == "" || selector == "spec.nodeName="+nodeName)
}

// settleAfter removes the pods that are not in a list: held pods, and pods that are cached as single objects.
func (p *Proxy) settleAfter(c *call, list *wire.List) {
	if list.Continue != "" || request.PositionOf(c.URL.Query()).Continue != "" || !c.seesAllPods(p.Recognizer.NodeName) {
		return
	}
	p.gate.settle(c.began, list.ResourceVersion)
	var uids map[string]string
	p.retire(c, func(path string) (string, bool) {
		if !isPathOfPod(path) {
			return "", false
		}
		if uids == nil { // needed only if a pod is cached as a single object
			uids = make(map[string]string, len(list.Items))
			for i := range list.Items {
				uids[pathOf(list.Items[i].Namespace, list.Items[i].Name)] = list.Items[i].UID
			}
		}
		return uids[path], true
	})
}

// isPathOfPod reports whether a path is that of one pod.
func isPathOfPod(path string) bool {
	parts := strings.Split(path, "/")
	return len(parts) == 7 && parts[1] == "api" && parts[5] == "pods"
}

// sendEvent sends an event for a held pod.
func (p *Proxy) sendEvent(ctx context.Context, uid string, h Held) {
	now := metav1.Now()
	event := &corev1.Event{
		TypeMeta:       metav1.TypeMeta{APIVersion: "v1", Kind: "Event"},
		ObjectMeta:     metav1.ObjectMeta{Namespace: h.Namespace, Name: fmt.Sprintf("%s.%x", h.Name, now.UnixNano())},
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: h.Namespace, Name: h.Name, UID: types.UID(uid)},
		Type:           corev1.EventTypeWarning, Reason: ReasonHeld,
		Message:        fmt.Sprintf("The hub of node %s does not deliver the pod to its kubelet: %s", p.Recognizer.NodeName, h.Reason),
		Source:         corev1.EventSource{Component: "atoll-hub", Host: p.Recognizer.NodeName},
		FirstTimestamp: metav1.NewTime(h.Since), LastTimestamp: now, Count: 1,
	}
	if err := p.Panics.Do("sending a held pod's event", func() error { return p.createEvent(ctx, event) }); err != nil {
		p.Log.V(2).Info("Sending an event failed; retrying later", "pod", h.Namespace+"/"+h.Name, "error", err.Error())
		return
	}
	p.gate.mu.Lock()
	defer p.gate.mu.Unlock()
	if still, is := p.gate.held[uid]; is && still.Reason == h.Reason { // otherwise another event is due
		still.told = now.Time
		p.gate.held[uid] = still
	}
}

// createEvent creates an event as the node.
func (p *Proxy) createEvent(ctx context.Context, event *corev1.Event) error {
	body, err := json.Marshal(event)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, eventWithin)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "/api/v1/namespaces/"+event.Namespace+"/events", bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	response, err := p.Cloud.RoundTrip(r, true)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusCreated {
		return fmt.Errorf("the API server returned %s", response.Status)
	}
	return nil
}
