package pool

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-k8s/atoll/internal/governance"
)

const (
	// forwardEvery is the time between two rounds of forwarding, and atATime for how many nodes requests are
	// sent concurrently: on a slow link each takes a while.
	forwardEvery, atATime = time.Second, 8
	// abdicatesAfter is the time without any success after which a hub stops leading for restsFor, so that
	// another hub can lead. Then it may lead again, because there may be no other hub.
	abdicatesAfter, restsFor = 10 * time.Second, 10 * time.Second
	// statusesFor is how long statuses are sent before the next heartbeats: heartbeats must not wait for a pool
	// with many pods on a slow link. The remaining statuses are sent after the heartbeats.
	statusesFor = 2 * time.Second
	// refusedAgain is when statuses that the cloud does not accept yet are sent again.
	refusedAgain = 5 * time.Second
)

// readStatuses reads the statuses of nodes that do not reach the cloud, while the hub leads.
func (p *Pool) readStatuses(ctx context.Context) error {
	p.mu.Lock()
	reports, known := maps.Clone(p.reports), p.statuses
	p.mu.Unlock()
	statuses := map[string]*governance.Statuses{}
	var failed error
	for node, report := range reports {
		if report.Digest == "" {
			continue
		}
		if last := known[node]; last != nil && last.Digest() == report.Digest {
			statuses[node] = last
			continue
		}
		if p.now().Sub(p.beaten) > governance.BeatEvery {
			if _, err := p.beat(ctx); err != nil {
				return err
			}
		}
		read := &governance.Statuses{}
		code, reason, err := p.send(ctx, http.MethodGet, governance.StatusesPath+"/"+node, "", nil, read)
		if err != nil {
			failed = errors.Join(failed, err)
			break
		}
		if code != http.StatusOK {
			failed = errors.Join(failed, fmt.Errorf("reading the statuses of node %s: %d %s", node, code, reason))
			continue
		}
		statuses[node] = read
	}
	p.mu.Lock()
	p.statuses = statuses
	p.mu.Unlock()
	return failed
}

// abdicates reports whether the hub stops leading for a while, because the cloud accepts nothing that it
// forwards.
func (p *Pool) abdicates() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	since := p.now().Sub(p.failing)
	return !p.failing.IsZero() && since > abdicatesAfter && since < abdicatesAfter+restsFor
}

// settle sets since when the cloud accepts nothing; zero if mayPulse, or if it is not known.
func (p *Pool) settle(failing time.Time, mayPulse bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failing, p.mayPulse = failing, mayPulse
}

// forward sends the reports of nodes that do not reach the cloud, while the hub leads: each heartbeat once, and
// the status of a pod when it has changed.
func (p *Pool) forward(ctx context.Context, d *delegate) {
	f := &forwarder{delegate: d, of: map[string]*forwarded{}}
	ticker := time.NewTicker(forwardEvery)
	defer ticker.Stop()
	for logged := ""; ; {
		p.mu.Lock()
		reports, statuses, failing := maps.Clone(p.reports), p.statuses, p.failing
		p.mu.Unlock()
		f.pool = p.options.Pool()
		isLeading := p.lead.Leads() // false if the round that stops this goroutine has not ended
		var taken bool
		var err error
		if isLeading {
			taken, err = f.all(ctx, reports, statuses)
		}
		if ctx.Err() != nil {
			return
		}
		switch {
		case !isLeading:
		case taken || len(reports) == 0:
			p.settle(time.Time{}, true)
		case failing.IsZero():
			p.settle(p.now(), false)
		}
		text := ""
		if err != nil {
			text = err.Error()
		}
		if text != logged {
			p.options.Log.Info("The state of forwarding for other nodes changed", "isTaken", err == nil, "reason", text)
			logged = text
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// forwarder stores what was forwarded.
type forwarder struct {
	delegate *delegate
	pool     string
	of       map[string]*forwarded
	// turn counts the rounds.
	turn int
}

// forwarded is what was forwarded for a node.
type forwarded struct {
	// renewed is the time of the last heartbeat, and lease the Lease in the cloud; nil if it is not known.
	renewed metav1.MicroTime
	lease   *unstructured.Unstructured
	// pods has the digests of forwarded statuses, by UID. After the cloud has refused a status, none is sent
	// until again.
	pods  map[string][sha256.Size]byte
	again time.Time
	// next is the index of the last pod that was processed.
	next int
}

// all forwards new reports of nodes: first all heartbeats, then as many statuses as time permits. taken is true
// if the cloud accepted the heartbeat of a node, or there was nothing new, or it refused only heartbeats of
// nodes without a Lease. The error is the first error of a node.
func (f *forwarder) all(ctx context.Context, reports map[string]governance.Report, statuses map[string]*governance.Statuses) (taken bool, failed error) {
	for node, done := range f.of {
		if _, reports := reports[node]; !reports { // keep only the last heartbeat
			f.of[node] = &forwarded{renewed: done.renewed, pods: map[string][sha256.Size]byte{}}
		}
	}
	nodes := slices.Sorted(maps.Keys(reports))
	for _, node := range nodes {
		if f.of[node] == nil {
			f.of[node] = &forwarded{pods: map[string][sha256.Size]byte{}}
		}
	}
	beats := inParallel(nodes, func(node string) error { return f.heartbeat(ctx, node, f.of[node], reports[node].Renewed) })
	var heard []string
	ofLeader := false
	for i, node := range nodes {
		if err := beats[i]; err != nil {
			failed = cmp.Or(failed, fmt.Errorf("node %s: %w", node, err))
			ofLeader = ofLeader || !isCode(err, http.StatusNotFound, http.StatusUnprocessableEntity)
			continue
		}
		heard = append(heard, node)
	}
	taken = len(heard) > 0 || !ofLeader
	if len(heard) == 0 {
		return taken, failed
	}
	f.turn++
	at := f.turn % len(heard) // another node is first each time
	heard = append(heard[at:len(heard):len(heard)], heard[:at]...)
	until := time.Now().Add(statusesFor)
	sent := inParallel(heard, func(node string) error { return f.statuses(ctx, f.of[node], statuses[node], until) })
	for i, err := range sent {
		if err != nil {
			failed = cmp.Or(failed, fmt.Errorf("node %s: %w", heard[i], err))
		}
	}
	return taken, failed
}

// inParallel calls do for each node, for atATime nodes at a time.
func inParallel(nodes []string, do func(node string) error) []error {
	errs := make([]error, len(nodes))
	var running sync.WaitGroup
	room := make(chan struct{}, atATime)
	for i, node := range nodes {
		room <- struct{}{}
		running.Go(func() {
			defer func() { <-room }()
			errs[i] = do(node)
		})
	}
	running.Wait()
	return errs
}

// statuses forwards the changed statuses of a node's pods, until a time. The next call continues with the
// remaining ones.
func (f *forwarder) statuses(ctx context.Context, done *forwarded, statuses *governance.Statuses, until time.Time) (failed error) {
	if statuses == nil || time.Now().Before(done.again) {
		return nil
	}
	for range statuses.Pods {
		if time.Now().After(until) {
			return failed
		}
		done.next = (done.next + 1) % len(statuses.Pods)
		err := f.status(ctx, done, &statuses.Pods[done.next])
		if isCode(err, http.StatusForbidden) && strings.Contains(err.Error(), governance.NotDelegated) {
			done.again = time.Now().Add(refusedAgain)
			return failed
		}
		failed = errors.Join(failed, err)
	}
	return failed
}

func leasesOf(namespace string) string {
	return "/apis/" + coordinationv1.SchemeGroupVersion.String() + "/namespaces/" + namespace + "/leases/"
}

// heartbeat writes a heartbeat of a node into its Lease. The renewTime never goes back, whatever the clock of
// the node is.
func (f *forwarder) heartbeat(ctx context.Context, node string, done *forwarded, renewed metav1.MicroTime) error {
	if done.renewed.Equal(&renewed) {
		return nil
	}
	path := leasesOf(corev1.NamespaceNodeLease) + node
	if done.lease == nil {
		answer, err := f.delegate.do(ctx, f.pool, http.MethodGet, path, "", nil)
		if err != nil {
			return err
		}
		if err := done.read(answer); err != nil {
			return err
		}
	}
	lease := done.lease.DeepCopy()
	done.lease = nil // unknown until the cloud answers
	at := renewed.Time
	if now := time.Now(); at.After(now) { // kube-controller-manager ignores a Lease that is older than one it has seen
		at = now
	}
	last, _, _ := unstructured.NestedString(lease.Object, "spec", "renewTime")
	if before, err := time.Parse(time.RFC3339Nano, last); err == nil && !at.After(before) {
		at = before.Add(time.Microsecond)
	}
	text := at.UTC().Format(metav1.RFC3339Micro)
	if err := unstructured.SetNestedField(lease.Object, text, "spec", "renewTime"); err != nil {
		return err
	}
	annotations := lease.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[governance.DelegatedAnnotation] = text
	lease.SetAnnotations(annotations)
	body, err := lease.MarshalJSON()
	if err != nil {
		return err
	}
	answer, err := f.delegate.do(ctx, f.pool, http.MethodPut, path, "application/json", body)
	if err != nil { // for example a conflict, if the node has renewed the Lease itself
		return err
	}
	done.renewed = renewed
	return done.read(answer)
}

// read decodes a Lease from a response of the cloud.
func (d *forwarded) read(answer []byte) error {
	lease := &unstructured.Unstructured{}
	if err := lease.UnmarshalJSON(answer); err != nil {
		return fmt.Errorf("reading a Lease: %w", err)
	}
	d.lease = lease
	return nil
}

// ofKubelet are the pod conditions that the kubelet writes. Other conditions are written by controllers in the
// cloud.
var ofKubelet = map[corev1.PodConditionType]bool{
	corev1.PodReady: true, corev1.ContainersReady: true, corev1.PodInitialized: true, corev1.PodReadyToStartContainers: true,
}

// status writes the status of a pod. It does not write that a pod has ended: only the pod's node may write
// that, because it cannot be undone.
func (f *forwarder) status(ctx context.Context, done *forwarded, pod *governance.PodStatus) error {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return nil
	}
	var conditions []corev1.PodCondition
	for _, c := range pod.Status.Conditions {
		if ofKubelet[c.Type] {
			conditions = append(conditions, c)
		}
	}
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID},
		"status": struct {
			corev1.PodStatus

			PodIPs  []any `json:"podIPs,omitempty"`
			HostIPs []any `json:"hostIPs,omitempty"`
		}{corev1.PodStatus{
			Phase: pod.Status.Phase, Conditions: conditions, PodIP: pod.Status.PodIP, HostIP: pod.Status.HostIP,
			StartTime: pod.Status.StartTime, InitContainerStatuses: pod.Status.InitContainerStatuses, ContainerStatuses: pod.Status.ContainerStatuses,
		}, replacing(pod.Status.PodIPs), replacing(pod.Status.HostIPs)},
	})
	if err != nil {
		return err
	}
	digest := sha256.Sum256(body)
	if done.pods[pod.UID] == digest {
		return nil
	}
	_, err = f.delegate.do(ctx, f.pool, http.MethodPatch, "/api/v1/namespaces/"+pod.Namespace+"/pods/"+pod.Name+"/status", string(types.StrategicMergePatchType), body)
	if refused := (*refusedError)(nil); errors.As(err, &refused) && refused.code/100 == 4 && !isCode(err, http.StatusUnauthorized, http.StatusTooManyRequests) &&
		!strings.Contains(refused.text, governance.NotDelegated) {
		err = nil // the pod is deleted or replaced, or the cloud refuses this status
	}
	if err == nil {
		done.pods[pod.UID] = digest
	}
	return err
}

// replacing returns the value for a strategic merge patch that replaces a list. Old addresses of a pod or a
// node must not stay in the list.
func replacing[T any](ips []T) (list []any) {
	for _, ip := range ips {
		list = append(list, ip)
	}
	if len(list) > 0 {
		list = append(list, map[string]string{"$patch": "replace"})
	}
	return list
}

// isCode reports whether the cloud refused a request with one of these codes.
func isCode(err error, codes ...int) bool {
	var refused *refusedError
	return errors.As(err, &refused) && slices.Contains(codes, refused.code)
}
