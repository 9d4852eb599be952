package manager

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	testingclock "k8s.io/utils/clock/testing"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/owners"
	"github.com/atoll-k8s/atoll/internal/seats"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

func TestPodsThatBypassTheWebhookAreCounted(t *testing.T) {
	start := time.Unix(1_000_000, 0)
	managed, free := build.ReplicaSet("managed", build.Requires("p", "")), build.ReplicaSet("free")
	tests := map[string]struct {
		owner   build.Object
		options []build.Option
		// unseen is true if the watch brings the owner after the pod.
		unseen bool
		want   int
	}{
		"a pod of a workload that requires a policy":    {owner: managed, want: 1},
		"one whose owner is seen later":                 {owner: managed, unseen: true, want: 1},
		"one whose template carries the labels":         {owner: managed, options: []build.Option{build.Bound("p", "")}, want: 1},
		"one that passed the webhook":                   {owner: managed, options: []build.Option{build.Annotation(gm.AdmittedAnnotation, "true")}},
		"one from before the last renewal of the Lease": {owner: managed, options: []build.Option{build.Created(start.Add(-time.Minute))}},
		"one of a workload that requires nothing":       {owner: free},
		"one that is being deleted":                     {owner: managed, options: []build.Option{build.Deleting("example.com/f")}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			walker, clock := owners.NewWalker(build.NewAPI(t).Client()), testingclock.NewFakeClock(start)
			ledger, n := seats.NewLedger(clock), 0
			b := &bypasses{clock: clock, since: start, policyOwners: walker.PolicyOwnersOf, count: func() { n++ }}
			ledger.OnChange(b.observe)
			if !tc.unseen {
				walker.Put(build.Owner(tc.owner))
			}
			pod := build.Pod("pod", append([]build.Option{build.OwnedBy(tc.owner), build.Created(start)}, tc.options...)...)
			for range 3 { // later events of the same pod do not count
				ledger.Observe(seats.Slim(pod))
			}
			b.countDue()
			walker.Put(build.Owner(tc.owner))
			clock.Step(bypassDelay)
			b.countDue()
			b.countDue()
			if n != tc.want {
				t.Errorf("counted %d, want %d", n, tc.want)
			}
		})
	}
}

func TestPodsThatWaitToBeCountedAreBounded(t *testing.T) {
	b := &bypasses{clock: testingclock.NewFakeClock(time.Unix(1_000_000, 0))}
	for i := range maxWaiting + 10 {
		b.observe(nil, seats.Slim(build.Pod(fmt.Sprint("pod-", i))))
	}
	if n := len(b.waiting); n > maxWaiting {
		t.Errorf("%d wait", n)
	}
}

func TestWhenAReplicaWasAliveLast(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	lease := func(renewed *metav1.MicroTime) *coordinationv1.Lease {
		return &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: build.Namespace, Name: leaseName}, Spec: coordinationv1.LeaseSpec{RenewTime: renewed},
		}
	}
	before := metav1.NewMicroTime(now.Add(-time.Hour))
	later := metav1.NewMicroTime(now.Add(time.Hour))
	broken := fake.NewClientset()
	broken.PrependReactor("get", "leases", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("broken") })
	for name, tc := range map[string]struct {
		client *fake.Clientset
		want   time.Time
	}{
		"the time in the Lease":    {fake.NewClientset(lease(&before)), before.Time},
		"no Lease":                 {fake.NewClientset(), now},
		"a Lease without a time":   {fake.NewClientset(lease(nil)), now},
		"a time in the future":     {fake.NewClientset(lease(&later)), now},
		"the Lease cannot be read": {broken, now},
	} {
		t.Run(name, func(t *testing.T) {
			if got := lastAlive(context.Background(), tc.client, build.Namespace, now); !got.Equal(tc.want) {
				t.Errorf("%s, want %s", got, tc.want)
			}
		})
	}
}
