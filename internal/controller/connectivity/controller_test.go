package connectivity

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/tools/events"
	testingclock "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	decide "github.com/atoll-k8s/atoll/internal/domain/connectivity"
	"github.com/atoll-k8s/atoll/internal/governance"
	"github.com/atoll-k8s/atoll/internal/testing/build"
	"github.com/atoll-k8s/atoll/internal/testing/watched"
)

const (
	beatEvery = 10 * time.Second
	grace     = 50 * time.Second
	minute    = time.Minute
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

// machine is a node as it is at the place where it stands.
type machine struct {
	// isCut: it does not reach the cloud. isDead: it has no power.
	isCut, isDead bool
	// heard is when kube-controller-manager saw its Lease change last.
	heard time.Time
	beat  string
}

// site is the controller, with nodes that write Leases, the hubs of their pools, and what kube-controller-manager does. Its
// clock is a fake one.
type site struct {
	*Reconciler
	t        *testing.T
	all      client.WithWatch
	clock    *testingclock.FakeClock
	events   *events.FakeRecorder
	machines map[string]*machine
	// noPulse are pools without a hub that leads.
	noPulse map[string]bool
	queue   watched.Queue
	// mu guards what requests use: nodes are looked at side by side.
	mu sync.Mutex
	// isChanged: something was written since the watches last had all. last are the objects as they had them, and again
	// when passes are due by the clock.
	isChanged bool
	last      map[string]client.Object
	again     map[string]time.Time
	// writes are those of the controller but for its probe, and looks how often it has read pods from the API server.
	writes []string
	looks  int
	passes map[string]int
	// refuse returns the error of a read or a write; nil lets it through.
	refuse func(request string) error
	// stopAfter is after how many writes the manager is stopped, and started anew a second later; -1 for never.
	stopAfter int
}

// lookAt begins the request for the pods of a node from the API server.
const lookAt = "list pods of "

// newSite returns a site with the pool edge of three nodes with a pod each, and its coordinator.
func newSite(t *testing.T) *site {
	s := &site{
		t: t, clock: testingclock.NewFakeClock(time.Unix(1_800_000_000, 0)), events: events.NewFakeRecorder(1000), machines: map[string]*machine{},
		noPulse: map[string]bool{}, last: map[string]client.Object{}, again: map[string]time.Time{}, passes: map[string]int{}, stopAfter: -1,
	}
	s.all = build.Client(interceptor.Funcs{})
	s.addPool("edge", "a", "b", "c")
	s.start()
	s.run(30 * time.Second)
	s.writes, s.looks = nil, 0
	return s
}

// addPool adds a pool with a coordinator.
func (s *site) addPool(name string, nodes ...string) {
	s.t.Helper()
	s.create(&apps.YurtCoordinator{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: apps.YurtCoordinatorSpec{NodePool: name}, Status: apps.YurtCoordinatorStatus{CABundle: []byte("ca")}})
	for _, node := range nodes {
		s.machines[node] = &machine{}
		s.create(build.Node(node, build.Label(apps.NodePoolLabel, name)),
			&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: node}},
			pod("web-"+node, node))
	}
}

func pod(name, node string, options ...build.Option) *corev1.Pod {
	return build.Pod(name, append([]build.Option{build.On(node), build.With(func(p *corev1.Pod) {
		for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
			p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(300))})
		}
		p.Status = corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &metav1.Time{Time: time.Unix(1_700_000_000, 0)}, Conditions: []corev1.PodCondition{
			{Type: corev1.ContainersReady, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: corev1.ConditionTrue},
		}}
	})}, options...)...)
}

// start starts the manager anew.
func (s *site) start() {
	refused := func(text string) error {
		if s.refuse != nil {
			return s.refuse(text)
		}
		return nil
	}
	request := func(text string) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if strings.HasPrefix(text, lookAt) {
			s.looks++
		}
		return refused(text)
	}
	written := func(verb string, o client.Object) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.isChanged = true
		if o.GetName() == probeName {
			return nil
		}
		write := fmt.Sprintf("%s %s %s", verb, strings.TrimPrefix(fmt.Sprintf("%T", o), "*v1."), o.GetName())
		if s.stopAfter == 0 {
			return errors.New("stopped")
		}
		if err := refused(write); err != nil {
			return err
		}
		s.stopAfter = max(-1, s.stopAfter-1)
		s.writes = append(s.writes, write)
		return nil
	}
	read := interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if err := request(fmt.Sprintf("list %T", list)); err != nil {
				return err
			}
			return c.List(ctx, list, opts...)
		},
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if err := request(fmt.Sprintf("get %T %s", o, key.Name)); err != nil {
				return err
			}
			return c.Get(ctx, key, o, opts...)
		},
	}
	live := read
	live.Get = func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
		if err := request("read " + key.Name); err != nil {
			return err
		}
		return c.Get(ctx, key, o, opts...)
	}
	live.List = func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
		var options client.ListOptions
		options.ApplyOptions(opts)
		node, _ := options.FieldSelector.RequiresExactMatch("spec.nodeName")
		if err := request(lookAt + node); err != nil {
			return err
		}
		pods := list.(*corev1.PodList)
		err := c.List(ctx, pods)
		pods.Items = slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return p.Spec.NodeName != node })
		return err
	}
	read.Create = func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
		if err := written("create", o); err != nil {
			return err
		}
		return c.Create(ctx, o, opts...)
	}
	read.Patch = func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
		if err := written("patch", o); err != nil {
			return err
		}
		return c.Patch(ctx, o, patch, opts...)
	}
	read.SubResourcePatch = func(ctx context.Context, c client.Client, name string, o client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
		if err := written(name, o); err != nil {
			return err
		}
		return c.SubResource(name).Patch(ctx, o, patch, opts...)
	}
	s.Reconciler = &Reconciler{Client: interceptor.NewClient(s.all, read), Live: interceptor.NewClient(s.all, live), Recorder: s.events, Clock: s.clock, Grace: grace, pools: map[string]*pool{}}
	clear(s.last)
	clear(s.again)
	s.isChanged = true
}

// run lets time pass, second by second.
func (s *site) run(d time.Duration) {
	s.t.Helper()
	for end := s.clock.Now().Add(d); s.clock.Now().Before(end); {
		s.clock.Step(time.Second)
		now := s.clock.Now()
		if now.Unix()%int64(probeEvery.Seconds()) == 0 {
			if err := s.writeProbe(s.t.Context()); err != nil {
				s.t.Fatal(err)
			}
		}
		if now.Unix()%int64(beatEvery.Seconds()) == 0 {
			s.beat()
		}
		if now.Unix()%5 == 0 {
			s.kubernetes()
		}
		s.deliver()
		if s.stopAfter == 0 {
			s.stopAfter = -1
			s.start()
			s.deliver()
		}
	}
}

// poolOfNode returns the label of a node, and its members returns the nodes that have a label.
func (s *site) members(pool string) (nodes []string) {
	for name := range s.machines {
		if poolOf(s.node(name)) == pool {
			nodes = append(nodes, name)
		}
	}
	slices.Sort(nodes)
	return nodes
}

// beat writes the Leases of all nodes that can: by themselves, or through their pool.
func (s *site) beat() {
	leads := map[string]bool{}
	var coordinators apps.YurtCoordinatorList
	if err := s.all.List(s.t.Context(), &coordinators); err != nil {
		s.t.Fatal(err)
	}
	for i := range coordinators.Items {
		pool := coordinators.Items[i].Spec.NodePool
		leads[pool] = !s.noPulse[pool] && slices.ContainsFunc(s.members(pool), func(node string) bool { return !s.machines[node].isCut && !s.machines[node].isDead })
		if leads[pool] {
			s.pulse(pool)
		}
	}
	for name, m := range s.machines {
		node := s.node(name)
		switch {
		case m.isDead, m.isCut && !leads[poolOf(node)]:
		case m.isCut:
			s.renew(name, true)
		default:
			s.renew(name, false)
			if !decide.IsReady(node) { // the kubelet's
				node.Status.Conditions[0] = corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}
				s.update(node, true)
			}
		}
	}
}

func (s *site) renew(name string, isDelegated bool) {
	lease := s.lease(name)
	lease.Spec.RenewTime = &metav1.MicroTime{Time: s.clock.Now()}
	if isDelegated {
		metav1.SetMetaDataAnnotation(&lease.ObjectMeta, governance.DelegatedAnnotation, beatOf(lease))
	}
	s.update(lease, false)
}

func (s *site) pulse(pool string) {
	state := &governance.PoolState{}
	for _, node := range s.members(pool) {
		if s.machines[node].isDead {
			state.Outside = append(state.Outside, node)
		}
	}
	text, err := json.Marshal(state)
	if err != nil {
		s.t.Fatal(err)
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: governance.Namespace, Name: governance.Pulse(pool)}}
	err = s.all.Get(s.t.Context(), client.ObjectKeyFromObject(lease), lease)
	lease.Spec.RenewTime = &metav1.MicroTime{Time: s.clock.Now()}
	metav1.SetMetaDataAnnotation(&lease.ObjectMeta, governance.PulseAnnotation, string(text))
	if err != nil {
		s.create(lease)
	} else {
		s.update(lease, false)
	}
}

// kubernetes does what kube-controller-manager does: silent nodes are not Ready, nor are their pods; nodes that are not Ready
// have a taint.
func (s *site) kubernetes() {
	for name, m := range s.machines {
		node := s.node(name)
		if beat := beatOf(s.lease(name)); beat != m.beat || m.heard.IsZero() {
			m.beat, m.heard = beat, s.clock.Now()
		}
		if s.clock.Now().Sub(m.heard) >= grace && decide.IsReady(node) {
			node.Status.Conditions[0].Status, node.Status.Conditions[0].Reason = corev1.ConditionUnknown, "NodeStatusUnknown"
			s.update(node, true)
			for _, p := range s.pods(name) {
				if notReady := decide.NotReady(&p, s.clock.Now()); notReady != nil {
					s.update(notReady, true)
				}
			}
		}
		if decide.IsReady(node) != decide.HasTaints(node) {
			continue
		}
		node.Spec.Taints = nil
		if !decide.IsReady(node) {
			node.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute}}
		}
		s.update(node, false)
	}
}

// deliver sends what has changed through the watches, and does the passes that are due.
func (s *site) deliver() {
	s.t.Helper()
	for range 10 {
		var due []string
		if s.isChanged {
			s.isChanged = false
			for _, list := range []client.ObjectList{&corev1.NodeList{}, &coordinationv1.LeaseList{}, &apps.YurtCoordinatorList{}} {
				s.send(list)
			}
			due = strings.Split(s.queue.Take(), " ")
		}
		for pool, at := range s.again {
			if !s.clock.Now().Before(at) {
				due = append(due, pool)
			}
		}
		slices.Sort(due)
		for _, pool := range slices.Compact(due) {
			s.pass(pool)
		}
		if !s.isChanged {
			return
		}
	}
}

func (s *site) send(list client.ObjectList) {
	if err := s.all.List(s.t.Context(), list); err != nil {
		s.t.Fatal(err)
	}
	kind := fmt.Sprintf("%T", list)
	gone := map[string]client.Object{}
	for key, o := range s.last {
		if strings.HasPrefix(key, kind) {
			gone[key] = o
		}
	}
	changed := func(o client.Object) {
		key := kind + " " + client.ObjectKeyFromObject(o).String()
		before := s.last[key]
		delete(gone, key)
		s.last[key] = o
		switch {
		case before == nil:
			s.queue.Send(s.t.Context(), s.watches(), nil, o)
		case before.GetResourceVersion() != o.GetResourceVersion():
			s.queue.Send(s.t.Context(), s.watches(), before, o)
		}
	}
	switch list := list.(type) {
	case *corev1.NodeList:
		for i := range list.Items {
			changed(&list.Items[i])
		}
	case *coordinationv1.LeaseList:
		for i := range list.Items {
			changed(&list.Items[i])
		}
	case *apps.YurtCoordinatorList:
		for i := range list.Items {
			changed(&list.Items[i])
		}
	}
	for key, o := range gone {
		delete(s.last, key)
		s.queue.Send(s.t.Context(), s.watches(), o, nil)
	}
}

// pass is one pass over a pool.
func (s *site) pass(pool string) {
	s.passes[pool]++
	delete(s.again, pool)
	result, err := s.Reconcile(s.t.Context(), requestOf(pool))
	if err != nil {
		s.again[pool] = s.clock.Now().Add(time.Second)
	} else if result.RequeueAfter > 0 {
		s.again[pool] = s.clock.Now().Add(result.RequeueAfter)
	}
}

func (s *site) create(objects ...client.Object) {
	s.t.Helper()
	for _, o := range objects {
		if err := s.all.Create(s.t.Context(), o); err != nil {
			s.t.Fatal(err)
		}
	}
	s.isChanged = true
}

func (s *site) update(o client.Object, isStatus bool) {
	s.t.Helper()
	write := s.all.Update
	if isStatus {
		write = func(ctx context.Context, o client.Object, _ ...client.UpdateOption) error {
			return s.all.Status().Update(ctx, o)
		}
	}
	if err := write(s.t.Context(), o); err != nil {
		s.t.Fatal(err)
	}
	s.isChanged = true
}

func (s *site) node(name string) *corev1.Node {
	s.t.Helper()
	node := &corev1.Node{}
	if err := s.all.Get(s.t.Context(), client.ObjectKey{Name: name}, node); err != nil {
		s.t.Fatal(err)
	}
	return node
}

func (s *site) lease(node string) *coordinationv1.Lease {
	s.t.Helper()
	lease := &coordinationv1.Lease{}
	if err := s.all.Get(s.t.Context(), leaseOf(node), lease); err != nil {
		s.t.Fatal(err)
	}
	return lease
}

func (s *site) pods(node string) []corev1.Pod {
	s.t.Helper()
	var pods corev1.PodList
	if err := s.all.List(s.t.Context(), &pods); err != nil {
		s.t.Fatal(err)
	}
	return slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return p.Spec.NodeName != node })
}

func (s *site) deleteCoordinator(name string) {
	s.t.Helper()
	if err := s.all.Delete(s.t.Context(), &apps.YurtCoordinator{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
		s.t.Fatal(err)
	}
	s.isChanged = true
}

// is returns a node and its pods in words.
func (s *site) is(name string) string {
	s.t.Helper()
	node := s.node(name)
	words := []string{string(decide.Parse(node.Annotations[decide.Annotation]).State)}
	if _, has := node.Annotations[decide.Annotation]; has {
		words = append(words, "marked")
	}
	if node.Labels[decide.ExcludeLabel] != "" {
		words = append(words, "label")
	}
	ready := node.Status.Conditions[0]
	words = append(words, string(ready.Status))
	if ready.Reason != "KubeletReady" && ready.Reason != "" {
		words = append(words, ready.Reason)
	}
	for _, c := range node.Status.Conditions {
		if c.Type == decide.PodNotWritten {
			subject, _, _ := strings.Cut(c.Message, ":")
			words = append(words, "| not written: "+subject)
		}
	}
	for _, p := range s.pods(name) {
		text := p.Name
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status != corev1.ConditionTrue {
				text += " not Ready"
			}
		}
		for i, t := range p.Spec.Tolerations {
			if t.TolerationSeconds == nil {
				text += " kept"
				break
			}
			if i == 0 {
				text += fmt.Sprintf(" %ds", *t.TolerationSeconds)
			}
		}
		if p.Annotations[decide.TolerationsAnnotation] != "" {
			text += " annotated"
		}
		words = append(words, "| "+text)
	}
	if s.lease(name).Annotations[governance.DelegatedAnnotation] != "" {
		words = append(words, "| Lease annotated")
	}
	return strings.Join(words, " ")
}

// wants fails the test unless a node and its pods are so.
func (s *site) wants(name, want string) {
	s.t.Helper()
	if diff := cmp.Diff(want, s.is(name)); diff != "" {
		s.t.Errorf("%s: %s", name, diff)
	}
}

// said returns the events since the last call, sorted.
func (s *site) said() (all []string) {
	for {
		select {
		case event := <-s.events.Events:
			all = append(all, event)
		default:
			slices.Sort(all)
			return all
		}
	}
}

const (
	untouched = "Direct True | web-a 300s"
	delegated = "Delegated marked label Unknown DelegatedByPool | web-a kept annotated | Lease annotated"
	lost      = "Lost marked Unknown NodeLost | web-a not Ready 300s | Lease annotated"
)

func TestANodeThatIsCutOffAndComesBack(t *testing.T) {
	s := newSite(t)
	s.create(pod("daemon-a", "a", build.OwnedBy(build.DaemonSet("daemon"))))
	s.machines["a"].isCut = true
	s.run(20 * time.Second)
	if len(s.writes) > 0 {
		t.Errorf("after two heartbeats through the pool: %v", s.writes)
	}
	s.run(10 * time.Second)
	if diff := cmp.Diff([]string{"patch Node a", "patch Pod web-a", "status Node a"}, s.writes); diff != "" {
		t.Error(diff)
	}
	s.wants("a", strings.Replace(delegated, "| web-a", "| daemon-a 300s | web-a", 1))
	s.wants("b", "Direct True | web-b 300s")

	// A pod comes, and kube-controller-manager is started anew, which marks all pods.
	late := pod("web-a-late", "a")
	late.Status.Conditions[1].Status = corev1.ConditionFalse
	s.create(late)
	s.run(lookEvery)
	s.wants("a", strings.Replace(strings.Replace(delegated, "| Lease", "| web-a-late kept annotated | Lease", 1), "| web-a", "| daemon-a 300s | web-a", 1))

	s.machines["a"].isCut = false
	s.run(beatEvery)
	s.wants("a", "Direct marked label True | daemon-a 300s | web-a kept annotated | web-a-late kept annotated | Lease annotated")
	s.run(70 * time.Second)
	s.wants("a", "Direct True | daemon-a 300s | web-a 300s | web-a-late 300s | Lease annotated")
	want := []string{"Normal HeardDirectly Direct, was Delegated: the node reaches the cloud itself", "Warning DelegatedByPool Delegated, was Direct: the node is cut off"}
	said := s.said()
	if !slices.EqualFunc(said, want, strings.HasPrefix) {
		t.Errorf("events are %q", said)
	}
}

func TestANodeThatDiesWhileItIsCutOff(t *testing.T) {
	s := newSite(t)
	s.machines["a"].isCut = true
	s.run(40 * time.Second)
	s.wants("a", delegated)
	s.machines["a"].isDead = true
	s.run(40 * time.Second)
	if !strings.HasPrefix(s.is("a"), "Delegated marked label") {
		t.Errorf("before the grace is over it is %s", s.is("a"))
	}
	s.run(20 * time.Second)
	s.wants("a", lost)
	s.machines["a"].isCut, s.machines["a"].isDead = false, false
	s.run(2 * minute)
	s.wants("a", "Direct True | web-a not Ready 300s | Lease annotated") // the kubelet's to write
}

func TestAPoolThatIsSilentIsFrozenBeforeKubernetesActs(t *testing.T) {
	s := newSite(t)
	for _, m := range s.machines {
		m.isCut = true
	}
	s.run(45 * time.Second)
	for _, name := range s.members("edge") {
		s.wants(name, "Frozen marked True | web-"+name+" kept annotated")
	}
	s.run(10 * minute)
	s.wants("a", "Frozen marked Unknown NodeStatusUnknown | web-a not Ready kept annotated") // kube-controller-manager's
	for _, m := range s.machines {
		m.isCut = false
	}
	s.run(2 * minute)
	s.wants("a", "Direct True | web-a not Ready 300s")
}

// away brings the node a into a state.
func (s *site) away(state decide.State) {
	s.t.Helper()
	a := s.machines["a"]
	a.isCut = true
	switch state {
	case decide.Direct: // after one heartbeat through the pool
		s.run(beatEvery)
	case decide.Delegated:
		s.run(30 * time.Second)
	case decide.Unobserved:
		s.run(40 * time.Second)
		s.noPulse["edge"] = true
		s.run(80 * time.Second)
	case decide.Frozen:
		s.machines["b"].isCut, s.machines["c"].isCut = true, true
		s.run(45 * time.Second)
	case decide.Lost:
		s.run(40 * time.Second)
		a.isDead = true
		s.run(80 * time.Second)
	}
	if !strings.HasPrefix(s.is("a"), string(state)) {
		s.t.Fatalf("it is %s, want %s", s.is("a"), state)
	}
}

// TestWithoutACoordinatorNothingIsLeft, in whichever state it is deleted, and whether or not the node is back then.
func TestWithoutACoordinatorNothingIsLeft(t *testing.T) {
	for _, state := range []decide.State{decide.Direct, decide.Delegated, decide.Unobserved, decide.Frozen, decide.Lost} {
		for _, isBack := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, back: %t", state, isBack), func(t *testing.T) {
				s := newSite(t)
				s.away(state)
				s.deleteCoordinator("edge")
				if isBack {
					for _, m := range s.machines {
						m.isCut, m.isDead = false, false
					}
				}
				s.run(7 * minute)
				for _, name := range s.members("edge") {
					for _, ours := range []string{"marked", "label", "annotated", "kept", "DelegatedByPool", "NodeLost"} {
						if strings.Contains(s.is(name), ours) {
							t.Errorf("%s is left with %s", name, s.is(name))
						}
					}
				}
				if s.pools["edge"] != nil {
					t.Error("the pool is still listened to")
				}
			})
		}
	}
}

func TestANodeThatLeavesItsPoolIsReleased(t *testing.T) {
	s := newSite(t)
	s.away(decide.Delegated)
	node := s.node("a")
	delete(node.Labels, apps.NodePoolLabel)
	s.update(node, false)
	s.run(10 * time.Second)
	s.wants("a", "Direct Unknown NodeStatusUnknown | web-a not Ready 300s")
	if s.pools[""] != nil && s.pools[""].Nodes["a"] != nil || s.pools["edge"].Nodes["a"] != nil {
		t.Error("it is still listened to")
	}
}

// TestStoppedBetweenWrites: whichever write is the last one of a manager, the next one comes to the same end.
func TestStoppedBetweenWrites(t *testing.T) {
	for n := 1; ; n++ {
		s := newSite(t)
		s.stopAfter = n
		s.away(decide.Delegated)
		s.run(10 * time.Second) // a manager that starts begins to count anew
		s.wants("a", delegated)
		s.machines["a"].isDead = true
		s.run(90 * time.Second)
		s.wants("a", lost)
		s.machines["a"].isCut, s.machines["a"].isDead = false, false
		s.run(90 * time.Second)
		s.wants("a", "Direct True | web-a not Ready 300s | Lease annotated")
		s.away(decide.Delegated)
		s.run(10 * time.Second)
		s.wants("a", delegated)
		s.deleteCoordinator("edge")
		s.run(10 * time.Second)
		s.wants("a", "Direct Unknown NodeStatusUnknown | web-a not Ready 300s")
		if t.Failed() {
			t.Fatalf("stopped after %d writes", n)
		}
		if s.stopAfter > 0 {
			if n < 10 {
				t.Errorf("there are only %d writes", n)
			}
			return
		}
	}
}

// TestAPodThatCannotBeWrittenKeepsItsNodeReady: the node would get a taint, by which the pod would be evicted.
func TestAPodThatCannotBeWrittenKeepsItsNodeReady(t *testing.T) {
	s := newSite(t)
	s.create(pod("other", "a"))
	s.refuse = func(request string) error {
		if request == "patch Pod web-a" {
			return errors.New("the webhook says no: " + strings.Repeat("ü", 1000))
		}
		return nil
	}
	s.away(decide.Delegated)
	s.run(minute)
	s.wants("a", "Delegated marked label True | not written: Pod "+build.Namespace+"/web-a | other kept annotated | web-a 300s | Lease annotated")
	i := slices.IndexFunc(s.said(), func(e string) bool {
		return strings.HasPrefix(e, "Warning PodNotWritten Pod "+build.Namespace+"/web-a: tolerations without limit: the webhook says no: ü") && strings.HasSuffix(e, "ü…")
	})
	if i < 0 {
		t.Error("no event says which pod, and why")
	}
	s.refuse = nil
	s.run(lookEvery)
	s.wants("a", "Delegated marked label Unknown DelegatedByPool | other kept annotated | web-a kept annotated | Lease annotated")
}

// TestAPodThatCannotBeWrittenKeepsNoOther of a node that is dead, or whose pool has no coordinator any more.
func TestAPodThatCannotBeWrittenKeepsNoOther(t *testing.T) {
	for _, refused := range []string{"status Pod web-a", "patch Pod web-a"} {
		t.Run(refused, func(t *testing.T) {
			s := newSite(t)
			s.create(pod("other", "a"))
			s.away(decide.Delegated)
			s.run(minute)
			s.refuse = func(request string) error {
				if request == refused {
					return errors.New("the webhook says no")
				}
				return nil
			}
			s.machines["a"].isDead = true
			s.run(3 * minute)
			left := map[bool]string{true: "web-a 300s", false: "web-a not Ready kept annotated"}[refused == "status Pod web-a"]
			s.wants("a", "Lost marked Unknown NodeLost | not written: Pod "+build.Namespace+"/web-a | other not Ready 300s | "+left+" | Lease annotated")
			s.refuse = nil
			s.run(lookEvery)
			s.wants("a", "Lost marked Unknown NodeLost | other not Ready 300s | web-a not Ready 300s | Lease annotated")
		})
	}
}

// TestAPodThatCannotBeWrittenIsToldUntilItIs, also of a node that is back, or whose pool has no coordinator any more.
func TestAPodThatCannotBeWrittenIsToldUntilItIs(t *testing.T) {
	for _, isDeleted := range []bool{false, true} {
		t.Run(fmt.Sprintf("the coordinator is deleted: %t", isDeleted), func(t *testing.T) {
			s := newSite(t)
			s.away(decide.Delegated)
			s.run(minute)
			why := "no"
			s.refuse = func(request string) error {
				if request == "patch Pod web-a" {
					return errors.New(why)
				}
				return nil
			}
			told := func() (message string) {
				for _, c := range s.node("a").Status.Conditions {
					if c.Type == decide.PodNotWritten {
						message = c.Message
					}
				}
				return message
			}
			if isDeleted {
				s.deleteCoordinator("edge")
			}
			s.machines["a"].isCut = false
			s.run(2 * minute)
			if !strings.HasSuffix(told(), ": no") {
				t.Errorf("the condition says %q", told())
			}
			writes := len(s.writes)
			why = "still not"
			s.run(2 * minute)
			if !strings.HasSuffix(told(), ": still not") {
				t.Errorf("later the condition says %q", told())
			}
			if n := strings.Count(strings.Join(s.writes[writes:], "\n"), "status Node a"); n != 1 {
				t.Errorf("the condition was written %d times", n)
			}
			s.refuse = nil
			s.run(2 * minute)
			if told() != "" || strings.Contains(s.is("a"), "kept") || isDeleted && s.pools["edge"] != nil {
				t.Errorf("in the end the node is %s", s.is("a"))
			}
		})
	}
}

// TestANodeWhoseKubeletWritesReachesTheCloud, whatever its pool says about it.
func TestANodeWhoseKubeletWritesReachesTheCloud(t *testing.T) {
	s := newSite(t)
	s.away(decide.Delegated) // the pool renews its Lease
	s.run(minute)
	s.wants("a", delegated)
	s.clock.Step(time.Second)
	node := s.node("a")
	node.Status.Conditions[0] = corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: metav1.NewTime(s.clock.Now())}
	s.update(node, true)
	s.run(2 * time.Second)
	if state := decide.Parse(s.node("a").Annotations[decide.Annotation]).State; state != decide.Direct {
		t.Errorf("it is %s", state)
	}
	s.run(3 * minute)
	if got := s.is("a"); !strings.Contains(got, "True") || strings.Contains(got, "kept") {
		t.Errorf("it is %s, while its pool renews its Lease", got)
	}
}

// TestANodeThatIsBackConfirmsItsPool: it is Delegated again as soon as it is cut off again.
func TestANodeThatIsBackConfirmsItsPool(t *testing.T) {
	s := newSite(t)
	s.away(decide.Delegated)
	s.run(minute)
	s.wants("a", delegated)
	s.machines["a"].isCut = false
	s.run(2 * time.Second)
	node := s.node("a")
	node.Status.Conditions[0] = corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: metav1.NewTime(s.clock.Now())}
	s.update(node, true)
	lease := s.lease("a")
	metav1.SetMetaDataAnnotation(&lease.ObjectMeta, governance.CutOffUntilAnnotation, "2027-01-15T08:00:00Z")
	s.update(lease, false)
	s.run(10 * time.Second)
	if state := decide.Parse(s.node("a").Annotations[decide.Annotation]).State; state != decide.Direct {
		t.Errorf("it is back, and %s", state)
	}
	s.machines["a"].isCut = true
	s.run(30 * time.Second)
	s.wants("a", delegated)
}

// TestAPodThatIsInvalidHoldsUpNobody: what makes it so is its author's, who must not decide whether a node is Ready for all.
func TestAPodThatIsInvalidHoldsUpNobody(t *testing.T) {
	s := newSite(t)
	s.refuse = func(request string) error {
		if request == "patch Pod web-a" {
			return apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "web-a", field.ErrorList{field.TooLong(field.NewPath("metadata", "annotations"), "", 262144)})
		}
		return nil
	}
	s.away(decide.Delegated)
	s.run(minute)
	s.wants("a", "Delegated marked label Unknown DelegatedByPool | not written: Pod "+build.Namespace+"/web-a | web-a 300s | Lease annotated")
	s.machines["a"].isCut = false
	s.run(2 * minute)
	if is := s.is("a"); strings.Contains(is, "marked") || strings.Contains(is, "not written") {
		t.Errorf("a node that is back is %s", is)
	}
}

func TestConflictsAreTriedAgain(t *testing.T) {
	s := newSite(t)
	refused := map[string]bool{}
	s.refuse = func(request string) error {
		if strings.HasPrefix(request, "read") || strings.HasPrefix(request, "get") || strings.HasPrefix(request, "list") || refused[request] {
			return nil
		}
		refused[request] = true
		return apierrors.NewConflict(schema.GroupResource{Resource: "x"}, "x", errors.New("it was changed"))
	}
	s.machines["a"].isCut = true
	s.run(35 * time.Second)
	s.wants("a", delegated)
	if len(refused) != 3 || len(s.said()) != 1 {
		t.Errorf("refused %v", refused)
	}
}

// TestWhatIsWrittenWasNotChangedMeanwhile: each write has the resourceVersion of what was read.
func TestWhatIsWrittenWasNotChangedMeanwhile(t *testing.T) {
	s := newSite(t)
	changed := map[string]bool{}
	s.refuse = func(request string) error {
		if strings.HasPrefix(request, "patch Pod") && !changed[request] {
			changed[request] = true
			p := s.pods("a")[0]
			p.Spec.Tolerations = nil
			s.update(&p, false)
		}
		return nil
	}
	s.away(decide.Delegated)
	s.wants("a", delegated)
	if len(s.pods("a")[0].Spec.Tolerations) != 2 || !strings.Contains(s.pods("a")[0].Annotations[decide.TolerationsAnnotation], `"tolerationSeconds":0`) {
		t.Errorf("the pod is %+v", s.pods("a")[0])
	}
}

// value returns the value of a gauge or a counter.
func value(t *testing.T, m prometheus.Metric) float64 {
	t.Helper()
	var written dto.Metric
	if err := m.Write(&written); err != nil {
		t.Fatal(err)
	}
	return written.GetGauge().GetValue() + written.GetCounter().GetValue()
}

func TestMetrics(t *testing.T) {
	s := newSite(t)
	transitions := value(t, transitionsTotal.WithLabelValues(string(decide.Delegated)))
	s.away(decide.Delegated)
	if got := value(t, transitionsTotal.WithLabelValues(string(decide.Delegated))) - transitions; got != 1 {
		t.Errorf("%v transitions are counted", got)
	}
	for state, want := range map[decide.State]float64{decide.Direct: 2, decide.Delegated: 1, decide.Lost: 0} {
		if got := value(t, nodesGauge.WithLabelValues("edge", string(state))); got != want {
			t.Errorf("%v nodes are %s, want %v", got, state, want)
		}
	}
	s.deleteCoordinator("edge")
	s.run(10 * time.Second)
	if n := nodesGauge.DeletePartialMatch(prometheus.Labels{"pool": "edge"}); n != 0 {
		t.Errorf("the pool has %d series without a coordinator", n)
	}
}

// TestAtRest: while all nodes speak for themselves nothing is written or read, and heartbeats start no pass.
func TestAtRest(t *testing.T) {
	s := newSite(t)
	passes := s.passes["edge"]
	s.run(10 * minute)
	if len(s.writes) > 0 || s.looks > 0 {
		t.Errorf("writes are %v, looks %d", s.writes, s.looks)
	}
	s.renew("a", false)
	s.pulse("edge")
	s.send(&coordinationv1.LeaseList{})
	if got := s.queue.Take(); got != "" {
		t.Errorf("a heartbeat and a pulse start passes over %s", got)
	}
	if n := s.passes["edge"] - passes; n > 10*60/5 {
		t.Errorf("there were %d passes in 10 minutes", n)
	}
}

// TestLooksAreFew: nodes that are Delegated are read as often as lookEvery says, however many heartbeats come.
func TestLooksAreFew(t *testing.T) {
	s := newSite(t)
	names := []string{}
	for i := range 10 {
		names = append(names, fmt.Sprintf("n%02d", i))
	}
	s.addPool("hill", append(names, "leader")...)
	s.run(minute)
	for _, name := range names {
		s.machines[name].isCut = true
	}
	s.run(minute)
	s.looks, s.writes = 0, nil
	s.run(minute)
	if most := 10 * 60 / int(lookEvery.Seconds()); s.looks > most || s.looks < most/2 || len(s.writes) > 0 {
		t.Errorf("%d looks in a minute, want at most %d; writes %v", s.looks, most, s.writes)
	}
}

// TestAPoolDoesNotDisturbAnother, nor a node another one of its pool, when neither can be read or written.
func TestAPoolDoesNotDisturbAnother(t *testing.T) {
	for _, verb := range []string{"list pods of a", "read a", "patch Node a", "patch Pod web-a"} {
		s := newSite(t)
		s.addPool("hill", "x", "y")
		s.run(30 * time.Second)
		s.refuse = func(request string) error {
			if request == verb {
				return errors.New("it is broken")
			}
			return nil
		}
		for _, name := range []string{"a", "b", "x"} {
			s.machines[name].isCut = true
		}
		s.run(40 * time.Second)
		for _, name := range []string{"b", "x"} {
			s.wants(name, strings.ReplaceAll(delegated, "web-a", "web-"+name))
		}
		if strings.Contains(s.is("a"), "DelegatedByPool") {
			t.Errorf("%q: the node is %s", verb, s.is("a"))
		}
		s.refuse = nil
		s.run(30 * time.Second)
		s.wants("a", delegated)
	}
}

// TestWhatFailedAndIsMootIsForgotten: it would be tried ten times a second.
func TestWhatFailedAndIsMootIsForgotten(t *testing.T) {
	s := newSite(t)
	s.refuse = func(request string) error {
		if request == "patch Node a" {
			return errors.New("it is broken")
		}
		return nil
	}
	s.machines["a"].isCut = true
	s.run(30 * time.Second)
	s.machines["a"].isCut = false
	s.run(20 * time.Second)
	s.refuse, s.looks = nil, 0
	passes := s.passes["edge"]
	s.run(minute)
	if n := s.passes["edge"] - passes; n > 30 || s.looks > 0 {
		t.Errorf("%d passes and %d looks in a minute", n, s.looks)
	}
	s.wants("a", untouched+" | Lease annotated")
}

// TestReadsThatFailUndoNothing: a coordinator that cannot be read is not one that is deleted.
func TestReadsThatFailUndoNothing(t *testing.T) {
	for _, read := range []string{"list *v1alpha1.YurtCoordinatorList", "list *v1.NodeList", "get *v1.Lease a", "read a", "list pods of a"} {
		s := newSite(t)
		s.away(decide.Delegated)
		s.writes = nil
		s.refuse = func(request string) error {
			if request == read {
				return errors.New("it is broken")
			}
			return nil
		}
		s.run(minute)
		if len(s.writes) > 0 {
			t.Errorf("%q: writes are %v", read, s.writes)
		}
		s.wants("a", delegated)
		s.refuse = nil
		s.run(2 * lookEvery)
		s.machines["a"].isCut = false
		s.run(2 * minute)
		s.wants("a", untouched+" | Lease annotated")
	}
}

// TestAnOutageOfTheAPIServerIsNoSilence: the probe does not come back either.
func TestAnOutageOfTheAPIServerIsNoSilence(t *testing.T) {
	s := newSite(t)
	s.clock.Step(10 * minute)
	for _, m := range s.machines {
		m.heard = s.clock.Now()
	}
	s.deliver()
	s.run(beatEvery)
	if len(s.writes) > 0 {
		t.Errorf("writes are %v", s.writes)
	}
}

func TestWhatWatchesEnqueue(t *testing.T) {
	s := newSite(t)
	node := build.Node("a", build.Label(apps.NodePoolLabel, "edge"))
	changed := func(change func(*corev1.Node)) *corev1.Node {
		n := node.DeepCopy()
		change(n)
		return n
	}
	for what, tc := range map[string]struct {
		before, after client.Object
		want          string
	}{
		"a node comes":       {nil, node, "edge"},
		"a node goes":        {node, nil, "edge"},
		"a node moves":       {node, changed(func(n *corev1.Node) { n.Labels[apps.NodePoolLabel] = "hill" }), "edge hill"},
		"a node is NotReady": {node, changed(func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse }), "edge"},
		"a node has a taint": {node, changed(func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoExecute}}
		}), "edge"},
		"a mark is taken off":     {changed(func(n *corev1.Node) { n.Annotations = map[string]string{decide.Annotation: "x"} }), node, "edge"},
		"the status is written":   {node, changed(func(n *corev1.Node) { n.Status.Images = []corev1.ContainerImage{{}} }), ""},
		"a coordinator is new":    {nil, &apps.YurtCoordinator{Spec: apps.YurtCoordinatorSpec{NodePool: "edge"}}, "edge"},
		"a Lease of other things": {nil, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "a"}, Spec: coordinationv1.LeaseSpec{RenewTime: &metav1.MicroTime{}}}, ""},
		"a Lease of no node":      {nil, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: "z"}, Spec: coordinationv1.LeaseSpec{RenewTime: &metav1.MicroTime{}}}, ""},
		"a pulse of no pool":      {nil, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: governance.Namespace, Name: governance.Pulse("moor")}, Spec: coordinationv1.LeaseSpec{RenewTime: &metav1.MicroTime{}}}, ""},
	} {
		s.queue.Send(t.Context(), s.watches(), tc.before, tc.after)
		if got := s.queue.Take(); got != tc.want {
			t.Errorf("%s: enqueues %q, want %q", what, got, tc.want)
		}
	}
}

// TestPulsesThatSayNothingCount: a coordinator that has just begun does not know yet who is outside, and nobody is.
func TestPulsesThatSayNothingCount(t *testing.T) {
	for text, want := range map[string][]string{"": {"a", "b"}, "{": {"a", "b"}, `{}`: {"a", "b"}, `{"outside":["b"]}`: {"a"}} {
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{governance.PulseAnnotation: text}}}
		got := insideOf(map[string]*decide.Node{"a": nil, "b": nil}, stateIn(lease))
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q: %s", text, diff)
		}
	}
}
