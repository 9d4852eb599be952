package nodes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
	"github.com/atoll-k8s/atoll/internal/domain/connectivity"
)

// matrixNodes are those of the pool of TestFailureMatrix.
var matrixNodes = []string{"pool-0", "pool-1", "pool-2", "pool-3"}

// matrixRig is a pool of four nodes, in which roles are the node of the coordinator, whose hub leads, and three others.
type matrixRig struct {
	*poolRig

	roles []string
	// began is when the failure began.
	began time.Time
	// unreached is a node that its pool does not reach; "" for none.
	unreached string
}

// failure is a row of the matrix.
type failure struct {
	about string
	// begin makes it. Links, nodes and programs that are away then are put back by the rig.
	begin func(*matrixRig)
	// want are the states that the cloud concludes, by role; "-" for one that does not matter.
	want string
	// hold is how long that is watched; 30 s if it is 0.
	hold time.Duration
}

const (
	direct, delegated, frozen, lost = "Direct", "Delegated", "Frozen", "Lost"
)

// failures are the rows. Where a follower is cut off before something else happens, the cloud has concluded that it is
// Delegated.
var failures = []failure{
	{"the link of a follower is cut", func(m *matrixRig) { m.cutOff(1) }, "Direct Delegated Direct Direct", 2 * time.Minute},
	{"the link of the coordinator's node is cut, whose hub leads", func(m *matrixRig) { m.cutOff(0) }, "Delegated Direct Direct Direct", 4 * time.Minute},
	{"the links of all are cut", func(m *matrixRig) { m.cutOff(0, 1, 2, 3) }, "Frozen Frozen Frozen Frozen", 2 * time.Minute},
	{"the links of all are cut, and atoll-manager is killed", func(m *matrixRig) {
		m.cutOff(0, 1, 2, 3)
		m.concludes(connectivity.Frozen, m.roles...)
		m.killManager()
	}, "Frozen Frozen Frozen Frozen", 2 * time.Minute},
	{"a follower does not reach its pool", func(m *matrixRig) {
		m.unreached = m.roles[1]
		m.leg(devcluster.Pool, devcluster.LegState{Cut: true}, 1)
	}, "Direct Direct Direct Direct", 90 * time.Second},
	{"a follower reaches neither", func(m *matrixRig) {
		m.leg(devcluster.Pool, devcluster.LegState{Cut: true}, 1)
		m.cutOff(1)
	}, "Direct Lost Direct Direct", 0},
	{"the link of a follower is cut for 5 s in each 10", func(m *matrixRig) {
		for range 9 {
			m.cutOff(1)
			m.sleep(5 * time.Second)
			m.leg(devcluster.Cloud, devcluster.LegState{}, 1)
			m.sleep(5 * time.Second)
		}
	}, "Direct Direct Direct Direct", 0},
	{"the link of a follower loses 30 % of all packets", func(m *matrixRig) { m.leg(devcluster.Cloud, devcluster.LegState{Loss: 0.3}, 1) }, "Direct - Direct Direct", 2 * time.Minute},
	{"a follower dies", func(m *matrixRig) { m.dies(1) }, "Direct Lost Direct Direct", 0},
	{"the kubelet of a follower dies, and its hub does not", func(m *matrixRig) {
		if err := m.KillOn(m.Context(), m.roles[1], devcluster.Kubelet); err != nil {
			m.Fatal(err)
		}
	}, "Direct Lost Direct Direct", 0},
	{"a follower dies, and atoll-manager is killed", func(m *matrixRig) {
		m.dies(1)
		m.sleep(30 * time.Second) // it is silent, and nothing is concluded
		m.killManager()
	}, "Direct Lost Direct Direct", 0},
	{"the coordinator's node dies, whose hub leads", func(m *matrixRig) { m.dies(0) }, "Lost Direct Direct Direct", 0},
	{"a follower is cut off, and the coordinator's node dies", after((*matrixRig).dies, 0), "Lost Delegated Direct Direct", time.Minute},
	{"… and the coordinator's pod is deleted", after(func(m *matrixRig, _ ...int) {
		m.kubectl("delete", "pod", "-n", "atoll-pools", "-l", "app.kubernetes.io/name=atoll-coordinator", "--wait=false")
	}), "Direct Delegated Direct Direct", time.Minute},
	{"… and the coordinator's etcd is killed", after(killed("etcd")), "Direct Delegated Direct Direct", time.Minute},
	{"… and the writer is killed", after(killed("writer")), "Direct Delegated Direct Direct", time.Minute},
	{"… and the coordinator's kube-apiserver is killed", after(killed("kube-apiserver")), "Direct Delegated Direct Direct", time.Minute},
	{"… and the writer hangs", after(func(m *matrixRig, _ ...int) {
		if err := m.PauseContainer(m.Context(), "atoll-pools", m.pod(), "writer"); err != nil {
			m.Fatal(err)
		}
	}), "Direct Delegated Direct Direct", 4 * time.Minute},
	{"… and the hub that leads hangs for 20 s", after(func(m *matrixRig, _ ...int) {
		if err := m.PauseOn(m.Context(), m.roles[0], atoll.Hub); err != nil {
			m.Fatal(err)
		}
		m.sleep(20 * time.Second)
		if err := m.ResumeOn(m.Context(), m.roles[0], atoll.Hub); err != nil {
			m.Fatal(err)
		}
	}), "Direct Delegated Direct Direct", time.Minute},
	{"… and its own hub is started again", after(func(m *matrixRig, _ ...int) {
		if err := m.RestartOn(m.Context(), m.roles[1], atoll.Hub); err != nil {
			m.Fatal(err)
		}
	}), "Direct Delegated Direct Direct", time.Minute},
	{"… and its kubelet dies", after(func(m *matrixRig, _ ...int) {
		if err := m.KillOn(m.Context(), m.roles[1], devcluster.Kubelet); err != nil {
			m.Fatal(err)
		}
	}), "Direct Lost Direct Direct", 0},
	{"… and it dies", after((*matrixRig).dies, 1), "Direct Lost Direct Direct", 0},
	{"two followers are cut off, and the third dies", func(m *matrixRig) {
		m.cutOff(1, 2)
		m.dies(3)
	}, "Direct Delegated Delegated Lost", time.Minute},
	{"a follower is cut off, and atoll-manager is killed", after(func(m *matrixRig, _ ...int) { m.killManager() }), "Direct Delegated Direct Direct", time.Minute},
	{"… and kube-controller-manager is started again", after(func(m *matrixRig, _ ...int) {
		if err := m.Restart(m.Context(), devcluster.ControllerManager); err != nil {
			m.Fatal(err)
		}
	}), "Direct Delegated Direct Direct", time.Minute},
	{"… and the cloud's kube-apiserver is away for a minute", after(func(m *matrixRig, _ ...int) {
		if err := m.Kill(m.Context(), devcluster.APIServer); err != nil {
			m.Fatal(err)
		}
		m.sleep(time.Minute)
		if err := m.Restart(m.Context(), devcluster.APIServer); err != nil {
			m.Fatal(err)
		}
	}), "Direct Delegated Direct Direct", time.Minute},
}

// after returns what does something once a follower is Delegated.
func after(do func(*matrixRig, ...int), roles ...int) func(*matrixRig) {
	return func(m *matrixRig) {
		m.cutOff(1)
		m.concludes(connectivity.Delegated, m.roles[1])
		m.began = time.Now()
		do(m, roles...)
	}
}

func killed(container string) func(*matrixRig, ...int) {
	return func(m *matrixRig, _ ...int) {
		if err := m.KillContainer(m.Context(), "atoll-pools", m.pod(), container); err != nil {
			m.Fatal(err)
		}
	}
}

func (m *matrixRig) killManager() {
	m.kubectl("delete", "pod", "-n", atoll.Namespace, "-l", "app.kubernetes.io/name=atoll-manager", "--force", "--grace-period=0")
}

// pod returns the name of the coordinator's.
func (m *matrixRig) pod() string {
	return m.kubectl("get", "pods", "-n", "atoll-pools", "-l", "app.kubernetes.io/name=atoll-coordinator", "-o", "jsonpath={.items[0].metadata.name}")
}

func (m *matrixRig) leg(leg devcluster.Leg, state devcluster.LegState, roles ...int) {
	m.Helper()
	for _, role := range roles {
		if err := m.SetLeg(m.Context(), m.roles[role], leg, state); err != nil {
			m.Fatal(err)
		}
	}
}

func (m *matrixRig) cutOff(roles ...int) {
	m.Helper()
	m.leg(devcluster.Cloud, devcluster.LegState{Cut: true}, roles...)
}

func (m *matrixRig) dies(roles ...int) {
	m.Helper()
	for _, role := range roles {
		if err := m.Kill(m.Context(), m.roles[role]); err != nil {
			m.Fatal(err)
		}
	}
}

func (m *matrixRig) sleep(d time.Duration) {
	select {
	case <-time.After(d):
	case <-m.Context().Done():
	}
}

// TestFailureMatrix makes each failure on real nodes, and measures what it does to pods, endpoints and people, in which time,
// and that nothing of it is left afterwards. make matrix runs it, for more than an hour, and writes the table into docs.
func TestFailureMatrix(t *testing.T) {
	file := os.Getenv("MATRIX")
	if file == "" {
		t.Skip("left to make matrix: it takes more than an hour")
	}
	r := &poolRig{offRig: &offRig{rig: startRig(t, nil), starts: 1}}
	r.addPool(matrixNodes, nil)
	r.create(&apps.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "edge"}}, &apps.YurtCoordinator{ObjectMeta: metav1.ObjectMeta{Name: "edge"}, Spec: apps.YurtCoordinatorSpec{NodePool: "edge"}},
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 8080}}}})
	for _, node := range matrixNodes {
		r.web(node)
	}
	for _, f := range failures {
		if !t.Run(f.about, func(t *testing.T) {
			row := (&matrixRig{poolRig: r.in(t)}).run(&f)
			if t.Log("\n" + row); t.Failed() {
				return
			}
			if err := writeRow(file, f.about, row); err != nil {
				t.Error(err)
			}
		}) {
			r.restore()
			if err := writeRow(file, f.about, ""); err != nil {
				t.Error(err)
			}
		}
	}
}

// matrixHead begins the table.
const matrixHead = `# What failures do to a pool

Each failure was made on four real nodes of a pool with a [coordinator](pools.md), with the real programs of Kubernetes, by ` + "`make matrix`" + `. All times are those that are usual, but pods tolerate a node that is not Ready for 20 s, not for 300 s. Each node has a pod, which is an endpoint of a Service. A *follower* is a node whose hub does not lead. "…" is a follower that is cut off from the cloud, and that the cloud has concluded to be Delegated.

- *concluded*: what the cloud concludes of the nodes concerned, counted from the failure. All others stay as they are.
- *pods*, *endpoints*: what becomes of them. Where a row says "stay", each pod was there and an endpoint in each second.
- *oldest Lease*: of a node that is neither Lost nor Frozen; kube-controller-manager waits 50 s.
- *people*: until they see the pool, and read a log, through the coordinator.
- *clean again*: from the failure's end until no taint, label, annotation or condition of it is left.

| failure | concluded | pods | endpoints | oldest Lease | people | clean again |
|---|---|---|---|---|---|---|
`

// writeRow puts a row into the table, or removes it. Others that are there stay.
func writeRow(file, about, row string) error {
	before, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	rows := map[string]string{}
	for line := range strings.Lines(string(before)) {
		if cells := strings.SplitN(line, " | ", 2); len(cells) == 2 {
			rows[strings.TrimPrefix(cells[0], "| ")] = line
		}
	}
	rows[about] = row
	table := matrixHead
	for _, f := range failures {
		table += rows[f.about]
	}
	return os.WriteFile(file, []byte(table), 0o644) //nolint:gosec // it is for docs
}

// restore ends a failure that has failed the test, so that the next one begins as if it had not been.
func (r *poolRig) restore() {
	for _, node := range matrixNodes {
		for _, leg := range []devcluster.Leg{devcluster.Cloud, devcluster.Pool} {
			if err := r.SetLeg(r.Context(), node, leg, devcluster.LegState{}); err != nil {
				r.Fatal(err)
			}
		}
		r.powerUp(node)
	}
	for _, node := range matrixNodes {
		r.eventually("the node "+node+" is back", r.ready(node, corev1.ConditionTrue))
		r.kubectl("delete", "pod", "web-"+node, "--now", "--ignore-not-found")
		r.web(node)
	}
	r.back(matrixNodes...)
	r.settled(matrixNodes...)
}

// powerUp starts a node again, whether it died, or its kubelet alone, or none of it.
func (r *poolRig) powerUp(node string) {
	r.Helper()
	if err := errors.Join(r.Restart(r.Context(), node), r.RestartOn(r.Context(), node, devcluster.Kubelet)); err != nil {
		r.Fatal(err)
	}
}

// run makes a failure and undoes it, and returns its row.
func (m *matrixRig) run(f *failure) string {
	m.isReady("")
	m.says(nil, apps.ReasonKubeletsAccept, "")
	m.roles = []string{m.on}
	for _, node := range matrixNodes {
		if node != m.on {
			m.roles = append(m.roles, node)
		}
	}
	m.T.Cleanup(func() {
		if m.Failed() {
			m.Log(m.poolState())
		}
	})
	o := m.observe()
	m.began = time.Now()
	f.begin(m)
	concluded := m.conclude(f)
	m.sleep(max(f.hold, 30*time.Second))
	m.conclude(f) // still, or again
	states := strings.Fields(f.want)
	for role, state := range states {
		if state == lost {
			m.eventually("the pod of "+m.roles[role]+" is evicted", func() error {
				if _, evicted := o.of(m.roles[role], func(s *observed) time.Time { return s.deleted }); !evicted {
					return fmt.Errorf("it is there")
				}
				return nil
			})
		}
	}
	// People use the coordinator from the third node.
	asked := time.Now()
	switch states[0] {
	case delegated, lost:
		m.isReady(m.roles[0])
	case direct:
		m.isReady("")
	}
	alive := m.alive(states)
	m.sees(m.roles[2], alive...)
	alive = slices.DeleteFunc(alive, func(node string) bool { return node == m.unreached })
	m.eventually("people read a log", func() error {
		_, err := m.people(m.roles[2], "logs", "web-"+alive[1])
		return err
	})
	people := fmt.Sprintf("after %s", time.Since(asked).Round(time.Second))
	pods, endpoints, oldest := o.end(m, states)
	return fmt.Sprintf("| %s | %s | %s | %s | %s | %s | %s |\n", f.about, concluded, pods, endpoints, oldest, people, m.undo(states))
}

// alive returns the nodes that are not lost.
func (m *matrixRig) alive(states []string) (nodes []string) {
	for role, state := range states {
		if state != lost {
			nodes = append(nodes, m.roles[role])
		}
	}
	return nodes
}

// conclude waits for the states, and returns when they came.
func (m *matrixRig) conclude(f *failure) string {
	m.Helper()
	asked := time.Now()
	var all []string
	for _, state := range []string{delegated, frozen, lost} {
		var nodes []string
		for role, want := range strings.Fields(f.want) {
			if want == state {
				nodes = append(nodes, m.roles[role])
			}
		}
		if len(nodes) > 0 {
			m.concludes(connectivity.State(state), nodes...)
			said := state + " still"
			if took := time.Since(m.began).Round(time.Second); time.Since(asked) > time.Second || took > 10*time.Second {
				said = fmt.Sprintf("%s after %s", state, took)
			}
			all = append(all, said)
		}
	}
	if len(all) == 0 {
		return "nothing"
	}
	return strings.Join(all, ", ")
}

// undo puts everything back, and returns how long it takes until nothing of it is left.
func (m *matrixRig) undo(states []string) string {
	m.Helper()
	m.leg(devcluster.Cloud, devcluster.LegState{}, 0, 1, 2, 3)
	m.leg(devcluster.Pool, devcluster.LegState{}, 0, 1, 2, 3)
	began := time.Now()
	for role, state := range states {
		if state != lost {
			continue
		}
		node := m.roles[role]
		m.powerUp(node)
		m.eventually("the node "+node+" is back", m.ready(node, corev1.ConditionTrue))
		m.eventually("the pod that was evicted is gone", func() error {
			err := m.client.Get(m.Context(), client.ObjectKey{Namespace: "default", Name: "web-" + node}, &corev1.Pod{})
			if err == nil {
				err = fmt.Errorf("it is there still")
			}
			return client.IgnoreNotFound(err)
		})
		m.web(node)
	}
	m.back(m.roles...)
	took := time.Since(began).Round(time.Second)
	m.settled(m.roles...)
	return fmt.Sprintf("after %s", took)
}

// observed is what was seen of a node and its pod; times are zero for what was not seen.
type observed struct {
	pod                  types.UID
	deleted, notEndpoint time.Time
	oldest               time.Duration
}

// observation looks each second at what must not happen meanwhile.
type observation struct {
	stop func()
	mu   sync.Mutex
	all  map[string]*observed
}

func (m *matrixRig) observe() *observation {
	ctx, cancel := context.WithCancel(m.Context())
	done := make(chan struct{})
	o := &observation{all: map[string]*observed{}, stop: func() { cancel(); <-done }}
	for _, node := range matrixNodes {
		var pod corev1.Pod
		if err := m.client.Get(ctx, client.ObjectKey{Namespace: "default", Name: "web-" + node}, &pod); err != nil {
			m.Fatal(err)
		}
		o.all[node] = &observed{pod: pod.UID}
	}
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			o.look(ctx, m)
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}()
	return o
}

// look looks once. While the API server is away, there is nothing to see.
func (o *observation) look(ctx context.Context, m *matrixRig) {
	var pods corev1.PodList
	var slicesOf discoveryv1.EndpointSliceList
	var leases coordinationv1.LeaseList
	if m.client.List(ctx, &pods, client.InNamespace("default")) != nil || m.client.List(ctx, &slicesOf, client.InNamespace("default")) != nil ||
		m.client.List(ctx, &leases, client.InNamespace(corev1.NamespaceNodeLease)) != nil {
		return
	}
	is, endpoints := map[types.UID]bool{}, map[string]bool{}
	for i := range pods.Items {
		is[pods.Items[i].UID] = pods.Items[i].DeletionTimestamp == nil
	}
	for _, slice := range slicesOf.Items {
		for _, e := range slice.Endpoints {
			if e.NodeName != nil && e.Conditions.Ready != nil && *e.Conditions.Ready {
				endpoints[*e.NodeName] = true
			}
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for node, seen := range o.all {
		if !is[seen.pod] && seen.deleted.IsZero() {
			seen.deleted = time.Now()
		}
		if !endpoints[node] && seen.notEndpoint.IsZero() {
			seen.notEndpoint = time.Now()
		}
	}
	for i := range leases.Items {
		if seen := o.all[leases.Items[i].Name]; seen != nil && leases.Items[i].Spec.RenewTime != nil {
			seen.oldest = max(seen.oldest, time.Since(leases.Items[i].Spec.RenewTime.Time))
		}
	}
}

// of returns when something of a node was seen.
func (o *observation) of(node string, what func(*observed) time.Time) (at time.Time, found bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	at = what(o.all[node])
	return at, !at.IsZero()
}

// end ends the observation, and returns what the row says of it. What must not have happened fails the test.
func (o *observation) end(m *matrixRig, states []string) (pods, endpoints, oldest string) {
	m.Helper()
	o.stop()
	after := func(at time.Time) string { return at.Sub(m.began).Round(time.Second).String() }
	evicted, removed, most := map[string]bool{}, map[string]bool{}, time.Duration(0)
	for role, state := range states {
		node, seen := m.roles[role], o.all[m.roles[role]]
		switch {
		case state == lost:
			evicted["evicted after "+after(seen.deleted)] = true
			removed["removed after "+after(seen.notEndpoint)] = true
			if seen.notEndpoint.IsZero() {
				m.Errorf("the pod of %s is an endpoint still", node)
			}
			continue
		case !seen.deleted.IsZero():
			m.Errorf("the pod of %s, which is %s, was deleted after %s", node, state, after(seen.deleted))
		case state == frozen && !seen.notEndpoint.IsZero():
			removed["not ready after "+after(seen.notEndpoint)] = true
		case !seen.notEndpoint.IsZero():
			m.Errorf("the pod of %s, which is %s, was no endpoint after %s", node, state, after(seen.notEndpoint))
		}
		if state != frozen {
			most = max(most, seen.oldest)
		}
	}
	said := func(all map[string]bool) string {
		if len(all) == 0 {
			return "stay"
		}
		return strings.Join(slices.Sorted(maps.Keys(all)), ", ")
	}
	if oldest = most.Round(time.Second).String(); most == 0 {
		oldest = "–"
	}
	return said(evicted), said(removed), oldest
}
