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
	"github.com/atoll-k8s/atoll/internal/domain/connectivity"
	"github.com/atoll-k8s/atoll/internal/owners"
	"github.com/atoll-k8s/atoll/internal/pki"
	"github.com/atoll-k8s/atoll/internal/seats"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// fakeManager is a manager that only counts the runnables that are added.
type fakeManager struct {
	ctrl.Manager
	informers *informertest.FakeInformers
	added     int
}

func (s *fakeManager) GetCache() cache.Cache { return s.informers }

func (s *fakeManager) Add(manager.Runnable) error {
	s.added++
	return nil
}

// connected returns parts whose ledger and walker get their objects from the test.
func connected(t *testing.T) (*parts, *fakeManager) {
	t.Helper()
	s := &fakeManager{informers: &informertest.FakeInformers{Scheme: Scheme()}}
	client := build.NewAPI(t).Client()
	p := &parts{mgr: s, client: client, keeper: &pki.Keeper{}, walker: owners.NewWalker(client)}
	p.ledger = seats.NewLedger(testingclock.NewFakeClock(time.Unix(1_000_000, 0)))
	p.informer = seats.NewInformer(p.ledger, client, p.walker.Revision)
	if err := p.connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	return p, s
}

func TestConnectPassesPodsWithoutOwnersToTheWalker(t *testing.T) {
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
			t.Errorf("%s: the walker has %q, want %q", when, got, want)
		}
	}
	see()
	expect("a new pod", "Pod ")
	see(build.Requires("p", ""))
	expect("a label was added", "Pod p")
	see(build.Bound("p", ""))
	expect("the pod was bound", "Pod pp")
	see(build.Bound("p", ""), build.Annotation(gm.MissingPolicyAnnotation, gm.MissingPolicyIgnore))
	expect("a missing policy is ignored", "Pod pp or none")
	see(build.Bound("p", ""), build.Deleting("example.com/f"))
	expect("the pod is being deleted", "")
	see(build.Bound("p", ""))
	see(build.Bound("p", ""), build.OwnedBy(build.ReplicaSet("rs")))
	expect("the pod was adopted", "")
	see(build.Bound("p", ""))
	expect("the pod was released", "Pod pp")
	p.ledger.Forget("pod")
	expect("the pod is deleted", "")
	p.ledger.Observe(seats.Slim(build.Pod("pod", build.OwnedBy(build.ReplicaSet("rs")))))
	expect("a pod with an owner", "")
}

func TestConnectPassesNodesToTheLedger(t *testing.T) {
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
		t.Error("a deleted node is a member")
	}
	if s.added != 3 {
		t.Errorf("%d runnables were added, want the walker, the informer and the keeper", s.added)
	}
}

func TestReplicaDoesNotLeadBeforeItHasListed(t *testing.T) {
	p, _ := connected(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- p.lead(ctx) }()
	if p.leading.Load() {
		t.Error("leads before anything is listed")
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
	fat.Status.Conditions = append([]corev1.NodeCondition{{Type: corev1.NodeMemoryPressure}, {Type: connectivity.PodNotWritten}}, fat.Status.Conditions...)
	fat.Status.Capacity, fat.Status.NodeInfo.KernelVersion = fat.Status.Allocatable, "6"
	fat.Status.Images = []corev1.ContainerImage{{Names: []string{"image"}}}
	fat.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m"}}
	got, err := slimNode(fat)
	if err != nil {
		t.Fatal(err)
	}
	slim := got.(*corev1.Node)
	if diff := cmp.Diff(want, seats.SlimNode(slim)); diff != "" {
		t.Errorf("the ledger reads another node (-want +got):\n%s", diff)
	}
	if len(slim.Status.Images)+len(slim.ManagedFields)+len(slim.Status.Capacity)+len(slim.Status.NodeInfo.KernelVersion) != 0 || len(slim.Status.Conditions) != 2 {
		t.Errorf("kept fields that are not read: %+v", slim)
	}
	if _, kept := slim.Status.Allocatable["hugepages-1Gi"]; kept || len(slim.Status.Allocatable) != 4 {
		t.Errorf("kept a quantity of 0, or lost another: %v", slim.Status.Allocatable)
	}
	if slim.Annotations["a"] != "b" {
		t.Error("lost the annotations, which the NodePool controller reads")
	}
	tombstone := toolscache.DeletedFinalStateUnknown{Key: "n"}
	if other, err := slimNode(tombstone); err != nil || other != any(tombstone) {
		t.Errorf("an object that is not a node became %v, %v", other, err)
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
		t.Errorf("before the Lease was read %q leads", got)
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

func TestLeaderAddressFromTheLeaseHolder(t *testing.T) {
	tests := map[string]struct {
		holder *string
		want   string
	}{
		"not read yet": {nil, ""},
		"released":     {new(""), ""},
		"a replica":    {new("10.0.0.1:9444_a-b-c"), "10.0.0.1:9444"},
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
