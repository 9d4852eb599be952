package gate

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

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

// isDue reports whether an event must be sent.
func (h *heldPod) isDue(now time.Time) bool {
	return now.Sub(h.tried) >= tellAgain && (h.told.IsZero() || now.Sub(h.told) >= tellAnew)
}

// hold records that a pod is held, and sends an event for it if one is due.
func (g *Gate) hold(ctx context.Context, m *wire.Meta, why string) {
	now := time.Now()
	g.mu.Lock()
	h, is := g.held[m.UID]
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
	remember(g.held, m.UID, h)
	g.mu.Unlock()
	if due {
		uid := strings.Clone(m.UID)
		g.Go(func() { g.sendEvent(context.WithoutCancel(ctx), uid, h.Held) })
	}
}

// Run sends events for held pods that failed before or are due again, until ctx is done.
func (g *Gate) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(tellEvery):
		}
		g.TellDue(ctx, time.Now())
	}
}

// TellDue sends the events that are due at the given time.
func (g *Gate) TellDue(ctx context.Context, now time.Time) {
	for uid, h := range g.due(now) {
		g.sendEvent(ctx, uid, h)
	}
}

// due returns the held pods with a due event.
func (g *Gate) due(now time.Time) map[string]Held {
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

// sendEvent sends an event for a held pod.
func (g *Gate) sendEvent(ctx context.Context, uid string, h Held) {
	now := metav1.Now()
	event := &corev1.Event{
		TypeMeta:       metav1.TypeMeta{APIVersion: "v1", Kind: "Event"},
		ObjectMeta:     metav1.ObjectMeta{Namespace: h.Namespace, Name: fmt.Sprintf("%s.%x", h.Name, now.UnixNano())},
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: h.Namespace, Name: h.Name, UID: types.UID(uid)},
		Type:           corev1.EventTypeWarning, Reason: ReasonHeld,
		Message:        fmt.Sprintf("The hub of node %s does not deliver the pod to its kubelet: %s", g.NodeName, h.Reason),
		Source:         corev1.EventSource{Component: "atoll-hub", Host: g.NodeName},
		FirstTimestamp: metav1.NewTime(h.Since), LastTimestamp: now, Count: 1,
	}
	if err := g.Panics.Do("sending a held pod's event", func() error { return g.createEvent(ctx, event) }); err != nil {
		g.Log.V(2).Info("Sending an event failed; retrying later", "pod", h.Namespace+"/"+h.Name, "error", err.Error())
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if still, is := g.held[uid]; is && still.Reason == h.Reason { // otherwise another event is due
		still.told = now.Time
		g.held[uid] = still
	}
}

// createEvent creates an event as the node.
func (g *Gate) createEvent(ctx context.Context, event *corev1.Event) error {
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
	response, err := g.Send(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusCreated {
		return fmt.Errorf("the API server returned %s", response.Status)
	}
	return nil
}
