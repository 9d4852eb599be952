package manager

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	toolscache "k8s.io/client-go/tools/cache"
	testingclock "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/owners"
	"github.com/atoll-k8s/atoll/internal/pki"
	"github.com/atoll-k8s/atoll/internal/seats"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// stage is a manager that only remembers what was given to it.
type stage struct {
	ctrl.Manager
	informers *informertest.FakeInformers
	added     int
}

func (s *stage) GetCache() cache.Cache { return s.informers }

func (s *stage) Add(manager.Runnable) error {
	s.added++
	return nil
}

// connected are parts whose ledger and walk are fed by hand.
func connected(t *testing.T) (*parts, *stage) {
	t.Helper()
	s := &stage{informers: &informertest.FakeInformers{Scheme: Scheme()}}
	client := build.NewAPI(t).Client()
	p := &parts{mgr: s, client: client, keeper: &pki.Keeper{}, walker: owners.NewWalker(client)}
	p.ledger = seats.NewLedger(testingclock.NewFakeClock(time.Unix(1_000_000, 0)))
	p.informer = seats.NewInformer(p.ledger, client, p.walker.Revision)
	if err := p.connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	return p, s
}

func TestConnectLetsTheWalkKnowPodsWithoutOwners(t *testing.T) {
	p, _ := connected(t)
	see := func(options ...build.Option) {
		p.ledger.Observe(seats.Slim(build.Pod("pod", options...)))
	}
	known := func() string {
		if o := p.walker.Get("pod"); o != nil {
			return fmt.Sprint(o.Kind, " ", o.Policies.RequiredPropagation, o.Policies.BindingPropagation, map[bool]string{true: " or none"}[o.IgnoreMissing])
		}
		return ""
	}
	expect := func(when, want string) {
		t.Helper()
		if got := known(); got != want {
			t.Errorf("%s the walk knows %q, want %q", when, got, want)
		}
	}
	see()
	expect("of a new pod", "Pod ")
	see(build.Requires("p", ""))
	expect("of a label that was put on", "Pod p")
	see(build.Bound("p", ""))
	expect("of a binding", "Pod pp")
	see(build.Bound("p", ""), build.Annotation(gm.MissingPolicyAnnotation, gm.MissingPolicyIgnore))
	expect("of what a missing policy means", "Pod pp or none")
	see(build.Bound("p", ""), build.Deleting("example.com/f"))
	expect("of a pod that is on its way out", "")
	see(build.Bound("p", ""))
	see(build.Bound("p", ""), build.OwnedBy(build.ReplicaSet("rs")))
	expect("of a pod that was adopted", "")
	see(build.Bound("p", ""))
	expect("of a pod that was let go", "Pod pp")
	p.ledger.Forget("pod")
	expect("of a pod that is gone", "")
	p.ledger.Observe(seats.Slim(build.Pod("pod", build.OwnedBy(build.ReplicaSet("rs")))))
	expect("of a pod with an owner", "")
}

func TestConnectLetsTheLedgerKnowNodes(t *testing.T) {
	p, s := connected(t)
	informer, err := s.informers.FakeInformerFor(t.Context(), &corev1.Node{})
	if err != nil {
		t.Fatal(err)
	}
	node := build.Node("n", build.InGroup("a"))
	informer.Add(node)
	if got := p.ledger.NodeGroup("n"); got != "a" {
		t.Errorf("a new node is in %q", got)
	}
	moved := build.Node("n", build.InGroup("b"))
	informer.Update(node, moved)
	if got := p.ledger.NodeGroup("n"); got != "b" {
		t.Errorf("a node that moved is in %q", got)
	}
	informer.Delete(moved)
	if p.ledger.HasMembers("b") {
		t.Error("a node that is gone is a member")
	}
	if s.added != 3 {
		t.Errorf("%d parts run, want the walk, the informer and the keeper", s.added)
	}
}

func TestLeadingEndsBeforeItBeginsWhenNothingIsListed(t *testing.T) {
	p, _ := connected(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- p.lead(ctx) }()
	if p.leading.Load() {
		t.Error("leads, and knows nothing")
	}
	cancel()
	if err := <-ended; err != nil || p.leading.Load() {
		t.Errorf("ended with %v, leading: %t", err, p.leading.Load())
	}
}

func TestSlimNodeKeepsWhatTheLedgerAndGroupsRead(t *testing.T) {
	node := build.Node("n", build.InGroup("a"), build.Annotation("a", "b"), build.With(func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "site", Effect: corev1.TaintEffectNoSchedule}}
		n.Status.Allocatable["example.com/gpu"] = resource.MustParse("1")
		n.Status.Allocatable["hugepages-1Gi"] = resource.Quantity{}
	}))
	want := seats.SlimNode(node)
	fat := node.DeepCopy()
	fat.Status.Conditions = append([]corev1.NodeCondition{{Type: corev1.NodeMemoryPressure}}, fat.Status.Conditions...)
	fat.Status.Capacity, fat.Status.NodeInfo.KernelVersion = fat.Status.Allocatable, "6"
	fat.Status.Images = []corev1.ContainerImage{{Names: []string{"image"}}}
	fat.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m"}}
	got, err := slimNode(fat)
	if err != nil {
		t.Fatal(err)
	}
	slim := got.(*corev1.Node)
	if diff := cmp.Diff(want, seats.SlimNode(slim)); diff != "" {
		t.Errorf("the ledger reads otherwise (-want +got):\n%s", diff)
	}
	if len(slim.Status.Images)+len(slim.ManagedFields)+len(slim.Status.Capacity)+len(slim.Status.NodeInfo.KernelVersion) != 0 || len(slim.Status.Conditions) != 1 {
		t.Errorf("kept what nobody reads: %+v", slim)
	}
	if _, kept := slim.Status.Allocatable["hugepages-1Gi"]; kept || len(slim.Status.Allocatable) != 4 {
		t.Errorf("kept what there is none of, or lost the rest: %v", slim.Status.Allocatable)
	}
	if slim.Annotations["a"] != "b" {
		t.Error("lost the annotations, which a NodePool repairs")
	}
	tombstone := toolscache.DeletedFinalStateUnknown{Key: "n"}
	if other, err := slimNode(tombstone); err != nil || other != any(tombstone) {
		t.Errorf("something that is no node became %v, %v", other, err)
	}
}

func TestSchemeKnowsOurKinds(t *testing.T) {
	for _, o := range []build.Object{&gm.NodeGroup{}, &gm.PropagationPolicy{}, &gm.OverridePolicy{}, &apps.NodePool{}, &corev1.Pod{}} {
		if _, _, err := Scheme().ObjectKinds(o); err != nil {
			t.Error(err)
		}
	}
}

func TestTheLeaderIsFoundInItsLease(t *testing.T) {
	client := fake.NewSimpleClientset()
	p := &parts{client: client, config: Config{Namespace: "mine", ExtenderAddress: ":9444", AdvertiseAddress: "fd00::1"}}
	lock, err := p.leaderLock()
	if err != nil {
		t.Fatal(err)
	}
	if got := p.leader.address(); got != "" {
		t.Errorf("before anybody looked %q leads", got)
	}
	identity := lock.Identity()
	if _, err := client.CoordinationV1().Leases("mine").Create(t.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: leaseName, Namespace: "mine"}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &identity},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- p.leader.Start(ctx) }()
	build.Eventually(t, "the leader is found", func() bool { return p.leader.address() == "[fd00::1]:9444" })
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("ended with %v", err)
	}
	p.config.ExtenderAddress = "nothing"
	if _, err := p.leaderLock(); err == nil {
		t.Error("an address without a port is accepted")
	}
}

func TestWhoHoldsTheLease(t *testing.T) {
	tests := map[string]struct {
		holder *string
		want   string
	}{
		"nobody has looked": {nil, ""},
		"it was given back": {new(""), ""},
		"a replica":         {new("10.0.0.1:9444_a-b-c"), "10.0.0.1:9444"},
		"two replicas on one machine differ in their ports": {new("127.0.0.1:1_x"), "127.0.0.1:1"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var l leaderWatch
			l.holder.Store(tc.holder)
			if got := l.address(); got != tc.want {
				t.Errorf("the leader is at %q, want %q", got, tc.want)
			}
		})
	}
}
