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
	// forwardEvery is the time between two looks at what is to be forwarded, and atATime for how many nodes at a time that
	// is done: on a slow link each takes a while.
	forwardEvery, atATime = time.Second, 8
	// abdicatesAfter is after how long without any success a hub lets another one lead, and restsFor for how long: there may
	// be no other one.
	abdicatesAfter, restsFor = 10 * time.Second, 10 * time.Second
	// statusesFor is for how long statuses are sent before the next heartbeats are: these must not wait for a pool of many
	// pods on a slow link. What is left is sent after them.
	statusesFor = 2 * time.Second
	// refusedAgain is when statuses that the cloud does not take yet are sent again.
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

// abdicates reports whether the hub lets another one lead, because the cloud takes nothing from it for others.
func (p *Pool) abdicates() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	since := p.now().Sub(p.failing)
	return !p.failing.IsZero() && since > abdicatesAfter && since < abdicatesAfter+restsFor
}

// settle notes since when nothing is taken; zero if mayPulse, or nobody knows yet.
func (p *Pool) settle(failing time.Time, mayPulse bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failing, p.mayPulse = failing, mayPulse
}

// forward tells the cloud, while the hub leads, what nodes say that do not reach it: each heartbeat once, and each status
// of a pod when it has changed.
func (p *Pool) forward(ctx context.Context, d *delegate) {
	f := &forwarder{delegate: d, of: map[string]*forwarded{}}
	ticker := time.NewTicker(forwardEvery)
	defer ticker.Stop()
	for logged := ""; ; {
		p.mu.Lock()
		reports, statuses, failing := maps.Clone(p.reports), p.statuses, p.failing
		p.mu.Unlock()
		f.pool = p.options.Pool()
		isLeading := p.lead.Leads() // if not, the round is not over that ends this
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
			p.options.Log.Info("Whether the cloud takes what is forwarded for other nodes has changed", "isTaken", err == nil, "reason", text)
			logged = text
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// forwarder knows what was forwarded.
type forwarder struct {
	delegate *delegate
	pool     string
	of       map[string]*forwarded
	// turn counts the rounds.
	turn int
}

// forwarded is what was forwarded of a node.
type forwarded struct {
	// renewed is that of the last heartbeat, and lease the Lease as the cloud has it; nil if that is not known.
	renewed metav1.MicroTime
	lease   *unstructured.Unstructured
	// pods has the digests of statuses, by UID. After the cloud has refused one, none is sent until again.
	pods  map[string][sha256.Size]byte
	again time.Time
	// next is the index of the pod that was looked at last.
	next int
}

// all forwards what is new of nodes: first all heartbeats, then statuses, as many as there is time for. taken tells whether
// the cloud has taken the heartbeat of one node, or there was nothing new, or all that it has refused was about nodes without a
// Lease; the error is that of one node.
func (f *forwarder) all(ctx context.Context, reports map[string]governance.Report, statuses map[string]*governance.Statuses) (taken bool, failed error) {
	for node, done := range f.of {
		if _, reports := reports[node]; !reports { // when it reports again, only what it said last is known
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
	at := f.turn % len(heard) // no node is the last one each time
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

// inParallel does something for each node, for atATime of them at a time.
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

// statuses forwards those of a node's pods that have changed, until a time. The next call begins with those that are left.
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

// heartbeat writes a heartbeat of a node into its Lease. The time there never goes back, whatever the clock of the node says.
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
	done.lease = nil // until the cloud has answered
	at := renewed.Time
	if now := time.Now(); at.After(now) { // kube-controller-manager believes no Lease that is older than one it has seen
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
	if err != nil { // also if the node has renewed it by itself meanwhile
		return err
	}
	done.renewed = renewed
	return done.read(answer)
}

// read reads a Lease that the cloud has answered.
func (d *forwarded) read(answer []byte) error {
	lease := &unstructured.Unstructured{}
	if err := lease.UnmarshalJSON(answer); err != nil {
		return fmt.Errorf("reading a Lease: %w", err)
	}
	d.lease = lease
	return nil
}

// ofKubelet are the conditions of a pod that its kubelet writes. Others are of other writers, in the cloud.
var ofKubelet = map[corev1.PodConditionType]bool{
	corev1.PodReady: true, corev1.ContainersReady: true, corev1.PodInitialized: true, corev1.PodReadyToStartContainers: true,
}

// status writes the status of a pod. One that is over stays as the cloud has it until its node says so itself: nobody else
// can take it back.
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
		err = nil // the pod is gone, or another one has its name, or somebody else forbids this status
	}
	if err == nil {
		done.pods[pod.UID] = digest
	}
	return err
}

// replacing returns what a strategic merge patch has for a list that is to be replaced: addresses that a pod had before it was
// started again, or its node before it was cut off, must go.
func replacing[T any](ips []T) (list []any) {
	for _, ip := range ips {
		list = append(list, ip)
	}
	if len(list) > 0 {
		list = append(list, map[string]string{"$patch": "replace"})
	}
	return list
}

// isCode reports whether the cloud has refused a request with one of these codes.
func isCode(err error, codes ...int) bool {
	var refused *refusedError
	return errors.As(err, &refused) && slices.Contains(codes, refused.code)
}
