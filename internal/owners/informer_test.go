package owners

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// start runs the walker's watches until the test ends, and waits for the first lists.
func start(t *testing.T, w *Walker) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		if err := w.Start(ctx); err != nil {
			t.Errorf("the walker ended: %v", err)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-stopped // every watch ends with its context
	})
	build.Eventually(t, "every kind is listed", w.HasSynced)
}

func TestInformersKeepTheCacheLikeTheAPIServer(t *testing.T) {
	owner := build.Deployment("owner")
	cron := &batchv1.CronJob{}
	cron.Namespace, cron.Name, cron.UID, cron.Generation = build.Namespace, "cron", "cron", 1
	objects := []build.Object{
		owner,
		build.Deployment("d", build.Bound("p", "o"), build.Replicas(7), build.Annotation(gm.MissingPolicyAnnotation, gm.MissingPolicyIgnore)),
		build.ReplicaSet("rs", build.OwnedBy(owner), build.Replicas(0)),
		build.StatefulSet("sts", build.Requires("p", "")),
		build.DaemonSet("ds", build.SelectsBy("app", "example.com/tier")),
		build.Job("job", build.OwnedBy(cron), build.Replicas(3)),
		cron,
		build.ReplicaSet("failing", build.SelectsBy("app"), build.With(func(rs *appsv1.ReplicaSet) {
			rs.Status.Conditions = []appsv1.ReplicaSetCondition{{Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue, Message: "no"}}
		})),
		build.Deployment("stopped", build.Annotation(gm.OverridesStoppedAnnotation, "3 pods")),
		build.Deployment("leaving", build.Deleting("foregroundDeletion")),
	}
	api := build.NewAPI(t, objects...)
	w := NewWalker(api.Client())
	if w.HasSynced() {
		t.Error("synced before anything was listed")
	}
	start(t, w)
	for _, o := range objects {
		if diff := cmp.Diff(build.Owner(o), w.Get(o.GetUID())); diff != "" {
			t.Errorf("%s is cached wrongly (-want +got):\n%s", o.GetName(), diff)
		}
	}

	api.Put(build.Deployment("late", build.Requires("p", "")))
	build.Eventually(t, "a new object is seen", func() bool { return w.Get("late") != nil })
	api.Put(build.Deployment("late", build.Requires("q", "")))
	build.Eventually(t, "a changed label is seen", func() bool { return len(w.Requiring(Propagation, build.Namespace, "q")) == 1 })
	api.Delete(build.Deployment("late"))
	build.Eventually(t, "a deletion is seen", func() bool { return w.Get("late") == nil })
	if got := w.Requiring(Propagation, build.Namespace, "q"); len(got) != 0 {
		t.Errorf("%v were deleted and require a policy", names(got))
	}
}

func TestUnsetReplicasDefaultToOne(t *testing.T) {
	for name, o := range map[string]build.Object{
		"Deployment":  build.Deployment("o", build.With(func(d *appsv1.Deployment) { d.Spec.Replicas = nil })),
		"ReplicaSet":  build.ReplicaSet("o", build.With(func(rs *appsv1.ReplicaSet) { rs.Spec.Replicas = nil })),
		"StatefulSet": build.StatefulSet("o", build.With(func(s *appsv1.StatefulSet) { s.Spec.Replicas = nil })),
		"Job":         build.Job("o", build.With(func(j *batchv1.Job) { j.Spec.Parallelism = nil })),
	} {
		t.Run(name, func(t *testing.T) {
			w := NewWalker(build.NewAPI(t).Client())
			if err := informerOf(w, name).Update(o); err != nil {
				t.Fatal(err)
			}
			if got := w.Get("o").Replicas; got == nil || *got != 1 {
				t.Errorf("unset replicas are %v", got)
			}
		})
	}
}

func informerOf(w *Walker, kind string) *informer {
	for _, f := range w.informers {
		if f.kind.Kind == kind {
			return f
		}
	}
	return nil
}

func TestReplaceDropsMissingObjectsOfItsKindOnly(t *testing.T) {
	w := NewWalker(build.NewAPI(t).Client())
	type change struct{ Old, New string }
	var changes []change
	w.OnChange(func(old, new *ownership.Object) {
		var c change
		if old != nil {
			c.Old = old.Name
		}
		if new != nil {
			c.New = new.Name
		}
		changes = append(changes, c)
	})
	deployments, replicaSets := informerOf(w, "Deployment"), informerOf(w, "ReplicaSet")
	if err := replicaSets.Replace([]any{build.ReplicaSet("rs")}, "1"); err != nil {
		t.Fatal(err)
	}
	for _, list := range [][]any{
		{build.Deployment("a"), build.Deployment("b", build.Requires("p", ""))},
		{build.Deployment("a"), build.Deployment("c")},
	} {
		if err := deployments.Replace(list, "1"); err != nil {
			t.Fatal(err)
		}
	}
	for uid, want := range map[string]bool{"a": true, "b": false, "c": true, "rs": true} {
		if got := w.Get(build.Deployment(uid).UID) != nil; got != want {
			t.Errorf("%s is cached: %t, want %t", uid, got, want)
		}
	}
	want := []change{{"", "a"}, {"", "b"}, {"", "c"}, {"", "rs"}, {"a", "a"}, {"b", ""}}
	if diff := cmp.Diff(want, changes, cmpopts.SortSlices(func(a, b change) bool { return a.Old+"\x00"+a.New < b.Old+"\x00"+b.New })); diff != "" {
		t.Errorf("wrong calls of handlers (-want +got):\n%s", diff)
	}
}

func TestInformersRefuseOtherTypes(t *testing.T) {
	f := informerOf(NewWalker(build.NewAPI(t).Client()), "Deployment")
	if f.Add("no object") == nil || f.Update("no object") == nil || f.Delete("no object") == nil {
		t.Error("something that is not an object was stored")
	}
	if err := f.Replace([]any{"no object"}, "1"); err != nil || !f.synced.Load() {
		t.Errorf("one entry that is not an object stops a list: %v", err)
	}
}

func TestControllerOf(t *testing.T) {
	yes, no := true, false
	tests := map[string]struct {
		refs []metav1.OwnerReference
		want string
	}{
		"no owner":                              {nil, ""},
		"an owner that is no controller":        {[]metav1.OwnerReference{{Name: "a"}, {Name: "b", Controller: &no}}, ""},
		"the controller among owners is picked": {[]metav1.OwnerReference{{Name: "a"}, {Name: "b", Controller: &yes, APIVersion: "apps/v1", Kind: "ReplicaSet"}}, "apps/v1, Kind=ReplicaSet b"},
		"an owner of the core group":            {[]metav1.OwnerReference{{Name: "n", Controller: &yes, APIVersion: "v1", Kind: "Node"}}, "/v1, Kind=Node n"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := ""
			if ref := ControllerOf(tc.refs); ref != nil {
				got = ref.GroupVersionKind.String() + " " + ref.Name
			}
			if got != tc.want {
				t.Errorf("controller is %q, want %q", got, tc.want)
			}
		})
	}
}

// TestReflectorStoresSlimOwners: the reflector holds slim objects until a list is
// complete.
func TestReflectorStoresSlimOwners(t *testing.T) {
	w := NewWalker(build.NewAPI(t).Client())
	var store cache.ReflectorStore = informerOf(w, "Deployment")
	transforming, ok := store.(cache.TransformingStore)
	if !ok {
		t.Fatal("the reflector collects whole objects")
	}
	slim, err := transforming.Transformer()(build.Deployment("slim", build.Requires("p", "")))
	if _, is := slim.(*ownership.Object); !is || err != nil {
		t.Fatalf("the reflector collects %T, error %v", slim, err)
	}
	if err := store.Replace([]any{slim, build.Deployment("whole", build.Requires("p", ""))}, "1"); err != nil {
		t.Fatal(err)
	}
	if got := w.Requiring(Propagation, build.Namespace, "p"); len(got) != 2 {
		t.Errorf("%v require the policy, want both", names(got))
	}
	if o, err := transforming.Transformer()("no object"); o != nil || err == nil {
		t.Errorf("something that is not an object became %v, error %v", o, err)
	}
}

func TestOfJob(t *testing.T) {
	w := NewWalker(build.NewAPI(t).Client())
	job, deployment := build.Job("job"), build.Deployment("d")
	below, beside := build.ReplicaSet("below", build.OwnedBy(job)), build.ReplicaSet("beside", build.OwnedBy(deployment))
	for _, o := range []build.Object{job, deployment, below, beside} {
		w.Put(build.Owner(o))
	}
	for name, tc := range map[string]struct {
		pod  build.Object
		want bool
	}{
		"of a Job":            {build.Pod("p", build.OwnedBy(job)), true},
		"of what a Job owns":  {build.Pod("p", build.OwnedBy(below)), true},
		"of a Deployment":     {build.Pod("p", build.OwnedBy(beside)), false},
		"of nothing":          {build.Pod("p"), false},
		"of a Job not seen":   {build.Pod("p", build.OwnedBy(build.Job("unknown"))), true},
		"of something unseen": {build.Pod("p", build.OwnedBy(build.ReplicaSet("unknown"))), false},
	} {
		if got := w.OfJob(build.Owner(tc.pod).Controller); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
