package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
	"github.com/atoll-k8s/atoll/internal/governance"
	"github.com/atoll-k8s/atoll/test/rawclient"
)

// delegation measures how the heartbeats of nodes that are cut off come through a pool.
var delegation = benchmark{
	name: "delegation", nodes: 200, pods: 200,
	about: `[Heartbeats of nodes that are cut off](pools.md#when-nodes-are-cut-off), in a pool of 200 nodes whose coordinator runs as processes: two nodes have an atoll-hub and the cloud, the hubs of the others are simulated. Each node has a heartbeat every 10 s.

- ` + "`oldest`" + `: the oldest Lease in the cloud of a node that is cut off, in two minutes ÷ the limit of 40 s.
- ` + "`requests`" + `: the requests for Leases that the cloud's API server gets in these minutes ÷ one for each heartbeat.
- ` + "`leader dies`" + `: from the death of the hub that leads until the next heartbeat comes to the cloud ÷ the limit of 30 s. Of the kills, the longest counts: 20 of them with ` + "`-rounds 20`" + `. The oldest Lease meanwhile is beside it.`,
	variants: []variant{
		{name: "oldest", unit: "s", ideal: "≤ 1", a: "the oldest Lease of a node that is cut off", b: "the limit"},
		{name: "requests", unit: "requests/s", ideal: "≤ 1.1", a: "requests for Leases", b: "heartbeats"},
		{name: "leader dies", unit: "s", ideal: "≤ 1", a: "the leader's death until the next heartbeat in the cloud", b: "the limit"},
	},
	open: openDelegation,
}

const (
	// leaseLimit is how old a Lease may be, and followedLimit how long a leader may be missed.
	leaseLimit, followedLimit = 40 * time.Second, 30 * time.Second
	// kubeletBeats is the time between two heartbeats of a node.
	kubeletBeats = 10 * time.Second
	delegatedFor = 2 * time.Minute
	edgePool     = "edge"
)

// delegationBench has two hubs that may lead, and simulated hubs of nodes that are cut off.
type delegationBench struct {
	*hubUploadsBench

	leaders []string
	stopAll context.CancelFunc
	running sync.WaitGroup
}

func openDelegation(ctx context.Context, o options, log io.Writer) (bench, error) {
	cluster, err := devcluster.Start(ctx, devcluster.Options{Log: log, KeepDir: o.keep})
	if err != nil {
		return nil, err
	}
	d := &delegationBench{leaders: []string{poolNode, loneNode}, hubUploadsBench: &hubUploadsBench{
		coordinatorBench: &coordinatorBench{bed: &bed{options: o, log: log, cluster: cluster}, running: map[string]*exec.Cmd{}},
		programs:         map[string]*atoll.HubProcess{}, clients: map[string]*rawclient.Client{},
	}}
	all, cancel := context.WithCancel(ctx)
	d.stopAll = cancel
	err = d.prepare(ctx)
	if err == nil {
		err = d.govern(ctx, d.leaders...)
	}
	if err == nil {
		err = d.speak(ctx)
	}
	for _, node := range d.leaders {
		if err == nil {
			err = d.addHub(ctx, node)
		}
	}
	if err != nil {
		return nil, errors.Join(err, d.close())
	}
	for _, h := range d.hubs[len(d.leaders):] {
		d.running.Go(func() { d.beat(all, h) })
	}
	return d, nil
}

func (d *delegationBench) close() error {
	d.stopAll()
	d.running.Wait()
	return d.hubUploadsBench.close()
}

// speak lets the hubs of the pool speak for its nodes, as atoll-manager does, and gives each node its Lease.
func (d *delegationBench) speak(ctx context.Context) error {
	name := governance.Delegate(edgePool)
	meta := metav1.ObjectMeta{Namespace: governance.Namespace, Name: name}
	core, auth, leases := d.client.CoreV1(), d.client.RbacV1(), d.client.CoordinationV1()
	_, err := core.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: governance.Namespace}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		err = nil
	}
	if err == nil {
		_, err = core.ServiceAccounts(meta.Namespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: meta}, metav1.CreateOptions{})
	}
	var request *authenticationv1.TokenRequest
	if err == nil {
		request, err = core.ServiceAccounts(meta.Namespace).CreateToken(ctx, name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	}
	if err != nil {
		return fmt.Errorf("making a token: %w", err)
	}
	_, secretErr := core.Secrets(meta.Namespace).Create(ctx, &corev1.Secret{ObjectMeta: meta, Data: map[string][]byte{governance.TokenField: []byte(request.Status.Token)}}, metav1.CreateOptions{})
	_, pulseErr := leases.Leases(meta.Namespace).Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: meta.Namespace, Name: governance.Pulse(edgePool)}}, metav1.CreateOptions{})
	_, roleErr := auth.ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{
		{Verbs: []string{"get", "update", "patch"}, APIGroups: []string{coordinationv1.GroupName}, Resources: []string{"leases"}},
		{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{name}},
	}}, metav1.CreateOptions{})
	_, bindErr := auth.ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: meta.Namespace, Name: name}, {Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: "system:nodes"}},
	}, metav1.CreateOptions{})
	var all []*coordinationv1.Lease
	for _, h := range d.hubs {
		all = append(all, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: h.name}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &h.name, RenewTime: &metav1.MicroTime{Time: time.Now()}}})
	}
	return errors.Join(secretErr, pulseErr, roleErr, bindErr, createAll(ctx, all, leases.Leases(corev1.NamespaceNodeLease).Create))
}

// beat beats as the hub of a node that is cut off does, whose kubelet goes on.
func (d *delegationBench) beat(ctx context.Context, h *benchHub) {
	beat := governance.Beat{Session: h.name}
	began := time.Now()
	offset := time.Duration(slices.Index(d.hubs, h)) * kubeletBeats / time.Duration(len(d.hubs))
	for ctx.Err() == nil {
		beat.Number++
		renewed := began.Add((time.Since(began) + offset).Truncate(kubeletBeats) - offset)
		beat.Report = &governance.Report{Renewed: metav1.NewMicroTime(renewed)}
		_ = h.send(ctx, governance.BeatPath, beat, nil) // what is not taken is seen by its Lease
		_ = pause(ctx, governance.BeatEvery)
	}
}

func (d *delegationBench) sides(_ context.Context, variant string) (a, b side, err error) {
	limit := func(limit time.Duration) side {
		return side{name: fmt.Sprintf("the limit of %s", limit), measure: func(context.Context) (sample, error) { return sample{rate: limit.Seconds(), off: -1}, nil }}
	}
	switch variant {
	case "oldest":
		return side{name: "oldest", measure: func(ctx context.Context) (sample, error) {
			oldest, _, err := d.watch(ctx, delegatedFor)
			return sample{rate: oldest.Seconds(), off: -1}, err
		}}, limit(leaseLimit), nil
	case "requests":
		heartbeats := float64(len(d.hubs)-len(d.leaders)) / kubeletBeats.Seconds()
		return side{name: "requests", measure: func(ctx context.Context) (sample, error) {
			_, requests, err := d.watch(ctx, delegatedFor)
			return sample{rate: requests, off: -1}, err
		}}, side{name: "heartbeats", measure: func(context.Context) (sample, error) { return sample{rate: heartbeats, off: -1}, nil }}, nil
	default:
		return side{name: "leader dies", measure: d.leaderDies}, limit(followedLimit), nil
	}
}

// leases returns when the Leases of the nodes that are cut off were written last by their pool, by their own times: the newest
// and the oldest one.
func (d *delegationBench) leases(ctx context.Context) (newest, oldest time.Time, err error) {
	list, err := d.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return newest, oldest, fmt.Errorf("listing Leases: %w", err)
	}
	oldest = time.Now()
	for i := range list.Items {
		if slices.Contains(d.leaders, list.Items[i].Name) {
			continue
		}
		renewed := list.Items[i].Spec.RenewTime.Time
		if list.Items[i].Annotations[governance.DelegatedAnnotation] == "" {
			renewed = time.Time{} // no heartbeat has come yet
		}
		if renewed.After(newest) {
			newest = renewed
		}
		if renewed.Before(oldest) {
			oldest = renewed
		}
	}
	return newest, oldest, nil
}

// watch returns the greatest age of a Lease in some time, and the requests for Leases in a second.
func (d *delegationBench) watch(ctx context.Context, during time.Duration) (oldest time.Duration, requests float64, err error) {
	if err := d.eventually(ctx, "all heartbeats to come to the cloud", func(ctx context.Context) (bool, error) {
		_, oldest, err := d.leases(ctx)
		return err == nil && time.Since(oldest) < kubeletBeats+5*time.Second, err
	}); err != nil {
		return 0, 0, err
	}
	before, err := d.leaseRequests(ctx)
	if err != nil {
		return 0, 0, err
	}
	for began := time.Now(); time.Since(began) < during; {
		_, last, err := d.leases(ctx)
		if err != nil {
			return 0, 0, err
		}
		oldest = max(oldest, time.Since(last))
		if err := pause(ctx, time.Second); err != nil {
			return 0, 0, err
		}
	}
	after, err := d.leaseRequests(ctx)
	return oldest, (after - before) / during.Seconds(), err
}

var leaseRequest = regexp.MustCompile(`(?m)^apiserver_request_total\{[^}]*resource="leases"[^}]*verb="(?:PUT|GET|PATCH)"[^}]*\} ([0-9.e+]+)$`)

// leaseRequests returns how many requests for single Leases the cloud's API server has got.
func (d *delegationBench) leaseRequests(ctx context.Context) (sum float64, err error) {
	text, err := d.metrics(ctx)
	if err != nil {
		return 0, err
	}
	for _, found := range leaseRequest.FindAllStringSubmatch(text, -1) {
		n, err := strconv.ParseFloat(found[1], 64)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

// leaderDies kills the hub that leads, and waits until the next heartbeat is in the cloud. The hub is started again then.
func (d *delegationBench) leaderDies(ctx context.Context) (s sample, err error) {
	s.off = -1
	leader := ""
	if err := d.eventually(ctx, "both hubs to be there, and one to lead", func(ctx context.Context) (bool, error) {
		pulse, err := d.client.CoordinationV1().Leases(governance.Namespace).Get(ctx, governance.Pulse(edgePool), metav1.GetOptions{})
		if err != nil || pulse.Spec.HolderIdentity == nil || pulse.Spec.RenewTime == nil {
			return false, err
		}
		leader = *pulse.Spec.HolderIdentity
		_, oldest, err := d.leases(ctx)
		return err == nil && d.programs[leader] != nil && time.Since(pulse.Spec.RenewTime.Time) < 2*governance.PulseEvery && time.Since(oldest) < kubeletBeats+5*time.Second, err
	}); err != nil {
		return s, err
	}
	name := d.programs[leader].Name
	if err := d.cluster.Kill(ctx, name); err != nil {
		return s, err
	}
	died, oldest := time.Now(), time.Duration(0)
	for {
		newest, last, err := d.leases(ctx)
		if err != nil {
			return s, err
		}
		if oldest = max(oldest, time.Since(last)); newest.After(died) {
			break
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return s, err
		}
		if time.Since(died) > 2*time.Minute {
			return s, fmt.Errorf("nobody follows the hub of node %q", leader)
		}
	}
	s.rate = time.Since(died).Seconds()
	rest, _, err := d.watch(ctx, 2*kubeletBeats)
	s.facts = fmt.Sprintf("oldest Lease %.0f s", max(oldest, rest).Seconds())
	return s, errors.Join(err, d.cluster.Restart(ctx, name))
}
