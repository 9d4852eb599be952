package e2e

import (
	"errors"
	"flag"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	scheduling "github.com/atoll-k8s/atoll/api/scheduling/v1beta1"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// requests counts the requests of atoll-manager to the API server, by verb and resource,
// until the returned function is called.
func (f *fixture) requests() (counted func() map[string]int) {
	f.Helper()
	var mu sync.Mutex
	counts := map[string]int{}
	f.api.does(func(w http.ResponseWriter, r *http.Request, forward http.HandlerFunc) {
		resource, verb := resourceOf(r), strings.ToLower(r.Method)
		switch {
		case isWatch(r):
			verb = "watch"
		case r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/"+resource):
			verb = "list"
		}
		// Requests in other namespaces are not counted; lists of all namespaces are.
		// Requests for webhooks and certificates are not counted either: they are made at
		// intervals, independent of pods.
		upkeep := strings.HasSuffix(resource, "webhookconfigurations") || resource == "secrets" || resource == "leases"
		ours := strings.Contains(r.URL.Path, "/namespaces/"+f.ns+"/") || !strings.Contains(r.URL.Path, "/namespaces/")
		if ours && !upkeep && resource != "events" && resource != "" && verb != "watch" && !strings.Contains(resource, "accessreviews") {
			mu.Lock()
			counts[verb+" "+resource]++
			mu.Unlock()
		}
		forward(w, r)
	})
	return func() map[string]int {
		f.api.does(nil)
		mu.Lock()
		defer mu.Unlock()
		return counts
	}
}

// counted returns the requests of atoll-manager during a step, of which it calls the first
// with attempt 0. If a process of atoll-manager ends meanwhile, the requests of this
// attempt and of the next do not count: a leader ends that a busy machine keeps from
// renewing its Lease, nobody does its work for a while, and the next leader lists pods.
func (f *fixture) counted(step func(attempt int)) map[string]int {
	f.Helper()
	settled := true
	for attempt := range 7 {
		before := f.managers()
		counted := f.requests()
		step(attempt)
		counts := counted()
		same := slices.Equal(before, f.managers())
		if same && settled {
			return counts
		}
		f.Logf("not counted, because processes of atoll-manager ended: %v", counts)
		settled = same
	}
	f.Fatal("processes of atoll-manager end again and again: their logs tell why")
	return nil
}

// managers returns the ids of the processes of atoll-manager, when all of them are healthy.
func (f *fixture) managers() (ids []int) {
	f.Helper()
	f.eventually(patience, "each atoll-manager is healthy", func() error {
		all, err := f.cluster.Processes(f.ctx)
		ids = nil
		for _, p := range all {
			if !strings.HasPrefix(p.Name, "atoll-manager") {
				continue
			}
			if !p.Healthy {
				err = errors.Join(err, fmt.Errorf("%s is not", p.Name))
			}
			ids = append(ids, p.PID)
		}
		if len(ids) == 0 {
			err = errors.Join(err, errors.New("there is none"))
		}
		return err
	})
	return ids
}

// admittedUnseen returns how many pods the API server has admitted without an answer of
// atoll-manager's webhook, since the API server started. On a busy machine an answer may
// take longer than the API server waits.
func (f *fixture) admittedUnseen() (n int) {
	f.Helper()
	raw, err := f.kube.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(f.ctx)
	if err != nil {
		f.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		if !strings.HasPrefix(line, `apiserver_admission_webhook_fail_open_count{name="pods.groupmanagement.kubeedge.io"`) {
			continue
		}
		value, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndex(line, "}")+1:]), 64)
		if err != nil {
			f.Fatal(err)
		}
		n += int(value)
	}
	return n
}

// TestGangsCostLittle: 500 pods of a Deployment cost one creation of a PodGroup, no list
// of pods, and reads only of owners that the watch has not delivered yet; also one patch
// for each pod that is admitted without the webhook.
func TestGangsCostLittle(t *testing.T) {
	tier.All(t, "1,000 pods, with calls counted: a minute")
	for name, webhook := range map[string]bool{"with the webhook": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			f := gangs(t, bothConfigs["podgroupLevel"])
			if !webhook {
				defer f.loseWebhook()()
			}
			var webs []client.Object
			missed := 0
			counts := f.counted(func(attempt int) {
				before := f.admittedUnseen()
				defer func() { missed = f.admittedUnseen() - before }()
				began, web := time.Now(), deployment(fmt.Sprint("web-", attempt), 500, "", volcanos)
				webs = append(webs, web)
				f.create(web)
				f.eventually(patience, "all are named", func() error {
					return errors.Join(f.named(web.Name, 500, web), f.ownedBy(webs...))
				})
				t.Logf("after %s", time.Since(began).Round(time.Millisecond))
			})
			most := map[string]int{"post podgroups": 1, "get replicasets": 1, "get deployments": 1, "patch pods": missed}
			if !webhook {
				most["patch pods"] = 500
				if missed < 500 {
					t.Errorf("%d pods are admitted without the webhook, want at least 500", missed)
				}
			}
			for what, n := range counts {
				if n > most[what] {
					t.Errorf("%d times %s, at most %d: %v; %d pods were admitted without the webhook", n, what, most[what], counts, missed)
				}
			}
		})
	}
}

// TestGangsUnrelatedReplicaSetsCauseNoCalls: 5,000 changes of the status of ReplicaSets whose pods do
// not belong to Volcano cause no call.
func TestGangsUnrelatedReplicaSetsCauseNoCalls(t *testing.T) {
	tier.All(t, "5,000 writes are counted: a minute")
	f := gangs(t, bothConfigs["podgroupLevel"])
	sets := make([]*appsv1.ReplicaSet, 50)
	for i := range sets {
		d := deployment(fmt.Sprintf("other-%d", i), 0, "")
		sets[i] = &appsv1.ReplicaSet{
			ObjectMeta: metav1.ObjectMeta{Name: d.Name},
			Spec:       appsv1.ReplicaSetSpec{Replicas: new(int32(0)), Selector: d.Spec.Selector, Template: d.Spec.Template},
		}
		f.create(sets[i])
	}
	var webs []client.Object
	counts := f.counted(func(attempt int) {
		var writers sync.WaitGroup
		for _, set := range sets {
			writers.Go(func() {
				for i := range 100 {
					raw := fmt.Sprintf(`{"status":{"conditions":[{"type":"Test","status":"True","message":"%d of %d"}]}}`, i, attempt)
					if _, err := f.kube.AppsV1().ReplicaSets(f.ns).Patch(f.ctx, set.Name, types.MergePatchType, []byte(raw), metav1.PatchOptions{}, "status"); err != nil {
						t.Error(err)
					}
				}
			})
		}
		writers.Wait()
		web := deployment(fmt.Sprint("web-", attempt), 1, "", volcanos)
		webs = append(webs, web)
		f.create(web) // later events are handled after them
		f.eventually(patience, "all is done", func() error { return errors.Join(f.named(web.Name, 1, web), f.ownedBy(webs...)) })
	})
	for what, n := range counts {
		if what != "post podgroups" && what != "get replicasets" && what != "get deployments" || n > 1 {
			t.Errorf("%d times %s", n, what)
		}
	}
}

// TestGangsForbiddenOwner: if an owner may not be read, the owner below it has the
// PodGroup, and an event on the ConfigMap names the missing permission; once the
// permission is given, new pods are in the owner's PodGroup.
func TestGangsForbiddenOwner(t *testing.T) {
	tier.All(t, "waits for caches of permissions: 40 s")
	f := gangs(t, "podgroupLevel: [{apiVersion: e2e.example.com/v1, kind: Barge, adjust-level: 0}, {apiVersion: e2e.example.com/v1, kind: Ghost}]")
	for _, kind := range []string{"Barge"} {
		definition := stageDefinition()
		for _, change := range []struct {
			value any
			path  []string
		}{
			{"barges.e2e.example.com", []string{"metadata", "name"}},
			{map[string]any{"kind": kind, "plural": "barges", "singular": "barge", "listKind": "BargeList"}, []string{"spec", "names"}},
		} {
			if err := unstructured.SetNestedField(definition.Object, change.value, change.path...); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.client.Create(f.ctx, definition); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	barge := object("e2e.example.com/v1", "Barge", "barge", nil)
	f.eventually(patience, "Barges are served", func() error {
		barge.SetNamespace(f.ns)
		return client.IgnoreAlreadyExists(f.client.Create(f.ctx, barge))
	})
	set := typed(f, &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: "set", OwnerReferences: controlledBy(barge)},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: new(int32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "set"}},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "set"}}, Spec: gangPod("", "", nil).Spec},
		},
	})
	f.create(set)
	f.eventually(patience, "the owner below has the PodGroup", func() error { return errors.Join(f.named("set", 1, set), f.ownedBy(set)) })
	f.rulesEvent("PodGroupRulesProblem", "atoll-manager is not allowed to get barges.e2e.example.com: label a ClusterRole")
	f.rulesEvent("PodGroupRulesProblem", `does not serve a kind Ghost in group "e2e.example.com"`)
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "barges-for-podgroups", Labels: map[string]string{"atoll.dev/podgroup-owner-reader": "true"}},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{"e2e.example.com"}, Resources: []string{"barges"}, Verbs: []string{"get", "list", "watch"}}},
	}
	if err := f.client.Create(f.ctx, role); err != nil {
		t.Fatal(err)
	}
	f.Cleanup(func() { _ = f.client.Delete(f.ctx, role) })
	f.eventually(patience, "new pods are in the owner's", func() error {
		for _, pod := range f.pods("set") {
			if gangOf(&pod) == scheduling.PodGroupNamePrefix+string(barge.GetUID()) {
				return nil
			}
		}
		if err := f.client.DeleteAllOf(f.ctx, &corev1.Pod{}, client.InNamespace(f.ns), client.GracePeriodSeconds(0)); err != nil {
			return err
		}
		return errors.New("they are not")
	})
	f.eventually(patience, "the other PodGroup is collected", func() error { return f.ownedBy(barge) })
}

// names is the number of StatefulSets that have the same name one after the other.
var names = flag.Int("names", 40, "StatefulSets of one name that TestGangsSameNames makes, one after the other")

// TestGangsSameNames: StatefulSets have the same name one after the other. No pod ever
// names the PodGroup of an earlier one (volcano #5331).
func TestGangsSameNames(t *testing.T) {
	tier.All(t, "repeats a race of creations and deletions: 30 s")
	f := gangs(t, bothConfigs["podgroupLevel"])
	var wrong sync.Map
	seen := f.watchPods(metav1.ListOptions{LabelSelector: "app=db"}, func(_ watch.EventType, pod *corev1.Pod) {
		if got := gangOf(pod); got != "" && got != scheduling.PodGroupNamePrefix+string(pod.OwnerReferences[0].UID) {
			wrong.Store(pod.UID, got)
		}
	})
	lost := f.loseWebhook // every other time the controller names the pods
	found := func() {}
	for i := range *names {
		switch i {
		case *names / 4, *names * 3 / 4:
			found = lost()
		case *names / 2:
			found()
		}
		set := &appsv1.StatefulSet{
			ObjectMeta: metav1.ObjectMeta{Name: "db"},
			Spec: appsv1.StatefulSetSpec{
				Replicas: new(int32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}},
				Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "db"}}, Spec: gangPod("", "", nil).Spec},
			},
		}
		f.create(set)
		f.eventually(patience, "there is a pod", func() error {
			if len(f.pods("db")) == 0 {
				return errors.New("none")
			}
			return nil
		})
		if err := f.client.Delete(f.ctx, set, client.PropagationPolicy(metav1.DeletePropagationForeground)); err != nil {
			t.Fatal(err)
		}
		f.eventually(patience, "it is gone", func() error {
			if err := f.client.Get(f.ctx, client.ObjectKeyFromObject(set), set); !apierrors.IsNotFound(err) {
				return fmt.Errorf("it is there: %w", err)
			}
			return nil
		})
	}
	found()
	seen.stop()
	wrong.Range(func(uid, group any) bool {
		t.Errorf("pod %s names %s", uid, group)
		return true
	})
	f.eventually(patience, "no PodGroup is left", func() error { return f.ownedBy() })
}

// TestGangsOfVolcanoAreAdopted: PodGroups that Volcano's controller made for ReplicaSets
// are kept for their running pods; when these are deleted the PodGroups are deleted.
func TestGangsOfVolcanoAreAdopted(t *testing.T) {
	f := gangs(t, "")
	defer f.loseWebhook()()
	web := deployment("web", 2, "", volcanos)
	// As on a cluster where Volcano was first: it uses the same names.
	f.create(web)
	var set *appsv1.ReplicaSet
	f.eventually(patience, "the ReplicaSet has its PodGroup", func() error {
		var list appsv1.ReplicaSetList
		if err := f.client.List(f.ctx, &list, client.InNamespace(f.ns)); err != nil || len(list.Items) != 1 {
			return fmt.Errorf("%d ReplicaSets: %w", len(list.Items), err)
		}
		set = typed(f, &list.Items[0])
		return errors.Join(f.named("web", 2, set), f.ownedBy(set))
	})
	group := f.groups()[0]
	// A PodGroup of Volcano has no annotation of Atoll, and the whole owner reference of
	// the pods.
	f.patch(&group, map[string]any{"metadata": map[string]any{
		"labels": map[string]any{scheduling.ManagedByLabel: nil},
		"ownerReferences": []any{map[string]any{
			"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": set.Name, "uid": set.UID, "controller": true, "blockOwnerDeletion": true,
		}},
		"annotations": map[string]any{scheduling.AppliedAnnotation: nil},
	}, "spec": map[string]any{"queue": "kept"}})
	(&gangScheduler{f: f}).run()
	f.eventually(patience, "the pods run", func() error { return f.allReady("web", 2) })
	before := map[types.UID]bool{}
	for _, pod := range f.pods("web") {
		before[pod.UID] = true
	}
	f.rules(bothConfigs["podgroupLevel"])
	f.eventually(patience, "it is adopted", func() error {
		g := f.groups()
		if len(g) != 1 || g[0].UID != group.UID || g[0].Labels[scheduling.ManagedByLabel] != scheduling.ManagedByAtoll || g[0].Spec.Queue != "kept" {
			return fmt.Errorf("the PodGroups are %+v", g)
		}
		return nil
	})
	for _, pod := range f.pods("web") {
		if !before[pod.UID] {
			t.Errorf("pod %s is another", pod.Name)
		}
	}
	f.release("web", "nginx:1.28")
	f.eventually(patience, "it is rolled out", func() error { return f.rolledOut("web") })
	f.eventually(patience, "the Deployment has the only PodGroup", func() error { return errors.Join(f.named("web", 2, web), f.ownedBy(web)) })
}

// TestGangsStrangeOwners: cluster-scoped owners, owners in another namespace, mirrors of
// static pods, cycles, a hundred owners: there is no PodGroup that the garbage collector
// would delete again, and no loop (fault F24).
func TestGangsStrangeOwners(t *testing.T) {
	f := gangs(t, "podgroupLevel: [{apiversion: '*', kind: workflow, adjust-level: 0}]")
	counted := f.requests()
	node := typed(f, &corev1.Node{})
	if err := f.client.Get(f.ctx, types.NamespacedName{Name: "gang-0"}, node); err != nil {
		t.Fatal(err)
	}
	node = typed(f, node)
	ofNode := gangPod("of-node", "of-node", node)

	other := ganged.fixture(t)
	abroad := workflow("abroad")
	other.create(abroad)
	ofAbroad := gangPod("of-abroad", "of-abroad", abroad)

	mirror := gangPod("mirror", "mirror", nil)
	mirror.Annotations[corev1.MirrorPodAnnotationKey] = "x"
	mirror.Spec.NodeName = "gang-0"

	var top client.Object
	for i := range 100 {
		flow := object("argoproj.io/v1alpha1", "Workflow", fmt.Sprintf("flow-%d", i), top)
		f.create(flow)
		top = flow
	}
	ofMany := gangPod("of-many", "of-many", top)

	a := workflow("a")
	f.create(a)
	b := object("argoproj.io/v1alpha1", "Workflow", "b", a)
	f.create(b)
	f.patch(a, map[string]any{"metadata": map[string]any{"ownerReferences": []any{map[string]any{
		"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "b", "uid": string(b.GetUID()), "controller": true,
	}}}})
	ofCycle := gangPod("of-cycle", "of-cycle", b)
	f.create(mirror, ofMany, ofCycle, ofNode)
	f.eventually(patience, "those that can have theirs", func() error {
		return errors.Join(f.named("of-many", 1, top), f.named("of-cycle", 1, b), f.named("of-node", 1, node))
	})
	// The garbage collector deletes a pod whose owner is in another namespace; until then
	// the pod itself has its PodGroup.
	f.create(ofAbroad)
	f.eventually(patience, "the pod with an owner abroad is gone, or has its own", func() error {
		pods := f.pods("of-abroad")
		if len(pods) == 0 {
			return nil
		}
		return f.named("of-abroad", 1, nil)
	})
	if got := gangOf(&f.pods("mirror")[0]); got != "" {
		t.Errorf("the pod of a file names %s", got)
	}
	there := func() error {
		for _, owner := range []client.Object{top, b, node} {
			var g scheduling.PodGroup
			if err := f.client.Get(f.ctx, types.NamespacedName{Namespace: f.ns, Name: scheduling.PodGroupNamePrefix + string(owner.GetUID())}, &g); err != nil {
				return err
			}
		}
		return nil
	}
	f.eventually(patience, "each has its PodGroup", there)
	f.always(5*time.Second, "it stays", there)
	if n := counted()["post podgroups"]; n > 8 {
		t.Errorf("%d PodGroups were made", n)
	}
	f.rulesEvent("PodGroupRulesProblem", "has more than 10 owners, or a cycle of owners")
}

// TestGangsOwnerReferencesAreEnforced: PodGroups are created also where no client may
// block the deletion of owners (volcano #2024).
func TestGangsOwnerReferencesAreEnforced(t *testing.T) {
	f := gangs(t, bothConfigs["podgroupLevel"])
	web := typed(f, deployment("web", 1, "", volcanos))
	f.create(web)
	f.eventually(patience, "it has its PodGroup", func() error { return f.ownedBy(web) })
	blocking := object("scheduling.volcano.sh/v1beta1", "PodGroup", "blocking", typed(f, web))
	blocking.SetNamespace(f.ns)
	refs := blocking.GetOwnerReferences()
	refs[0].BlockOwnerDeletion = new(true)
	blocking.SetOwnerReferences(refs)
	if err := f.asManager().Create(f.ctx, blocking); !apierrors.IsForbidden(err) {
		t.Errorf("blocking the deletion of an owner is not enforced here: %v", err)
	}
}

// TestGangsOfSeveralSchedulers: if schedulers divide pods by the name of their
// controller, no owner above it gets a PodGroup, and an event on the ConfigMap reports
// it.
func TestGangsOfSeveralSchedulers(t *testing.T) {
	tier.All(t, "a cluster of its own: a minute")
	f := newFixtureOfItsOwn(t, atoll.Options{Gangs: true, ManagerArgs: []string{"--gangs-multi-scheduler"}})
	f.nodes(nil, "gang-0", "gang-1", "gang-2")
	f.rules("podgroupLevel: [{apiversion: apps/v1, kind: deployment, adjust-level: 0}]")
	(&gangScheduler{f: f}).run()
	web := deployment("web", 2, "", volcanos)
	f.create(web)
	f.eventually(patience, "it runs", func() error { return f.allReady("web", 2) })
	if g := f.groups(); len(g) != 1 || g[0].OwnerReferences[0].Kind != "ReplicaSet" {
		t.Errorf("the PodGroups are %+v", g)
	}
	f.rulesEvent("PodGroupRulesProblem", "a rule that chooses an owner above the controller")
}

// TestGangsLeaderKilled: the leader is killed during 1,000 creations. Each owner has one
// PodGroup, and each pod names that of its owner.
func TestGangsLeaderKilled(t *testing.T) {
	f := gangs(t, bothConfigs["podgroupLevel"])
	const each = 10
	owners := 100
	if testing.Short() {
		owners = 20
	}
	apps := make([]*appsv1.Deployment, owners)
	states := f.watchPodGroups()
	for i := range apps {
		apps[i] = deployment(fmt.Sprintf("app-%d", i), each, "", volcanos)
	}
	for i, app := range apps {
		f.create(app)
		if i == owners/3 {
			f.killForNow(f.leader())
		}
	}
	f.eventually(patience, "each owner has one PodGroup, and each pod names it", func() error {
		var all []client.Object
		for _, app := range apps {
			all = append(all, app)
		}
		if err := f.ownedBy(all...); err != nil {
			return err
		}
		for _, app := range apps {
			if err := f.named(app.Name, each, app); err != nil {
				return err
			}
		}
		return nil
	})
	made := map[types.UID]bool{}
	for _, u := range states() {
		made[u.GetUID()] = true
	}
	if len(made) != owners {
		t.Errorf("%d PodGroups were made in all, want %d", len(made), owners)
	}
}

// TestGangsRefusedPodGroupIsRetried: a closed queue and a terminating namespace refuse PodGroups. One
// event reports it, and the creation is tried again with growing intervals.
func TestGangsRefusedPodGroupIsRetried(t *testing.T) {
	tier.All(t, "waits for growing pauses")
	f := gangs(t, bothConfigs["podgroupLevel"])
	var refused atomic.Int64
	f.api.does(func(w http.ResponseWriter, r *http.Request, forward http.HandlerFunc) {
		if r.Method == http.MethodPost && resourceOf(r) == "podgroups" && strings.Contains(r.URL.Path, f.ns) {
			refused.Add(1)
			refuse(w, http.StatusForbidden, "Forbidden")
			return
		}
		forward(w, r)
	})
	web := deployment("web", 1, "", volcanos)
	f.create(web)
	var events int
	f.always(10*time.Second, "it is reported once", func() error {
		list, err := f.kube.EventsV1().Events(f.ns).List(f.ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		events = 0
		for _, e := range list.Items {
			if e.Reason == "PodGroupRefused" && e.Regarding.Name == "web" {
				events++
			}
		}
		if events > 1 {
			return fmt.Errorf("%d events", events)
		}
		return nil
	})
	if n := refused.Load(); events != 1 || n < 2 || n > 40 {
		t.Errorf("%d events, and %d tries in ten seconds", events, n)
	}
	f.api.does(nil)
	f.eventually(patience, "it is made when it may be", func() error { return f.ownedBy(web) })
}

// TestGangsKilledBetweenTwoWrites is fault F7: atoll-manager is killed before and after
// each of its writes. The end result is the same as without.
func TestGangsKilledBetweenTwoWrites(t *testing.T) {
	tier.All(t, "kills atoll-manager around each of its writes, in clusters of its own: 1.5 min")
	f := gangs(t, bothConfigs["podgroupLevel"])
	defer f.loseWebhook()()
	for i, tc := range []struct {
		method, resource string
		done             bool
	}{
		{http.MethodPatch, "pods", false}, {http.MethodPatch, "pods", true}, {http.MethodPost, "podgroups", false},
		{http.MethodPost, "podgroups", true}, {http.MethodPatch, "podgroups", false}, {http.MethodPatch, "podgroups", true},
		{http.MethodDelete, "podgroups", false}, {http.MethodDelete, "podgroups", true},
	} {
		t.Run(fmt.Sprintf("%s %s %t", tc.method, tc.resource, tc.done), func(t *testing.T) {
			f := &fixture{T: t, ctx: f.ctx, ns: f.ns, environment: f.environment}
			web := deployment(fmt.Sprintf("web-%d", i), 2, "", volcanos)
			reached := make(chan struct{})
			var once sync.Once
			hold := func() {
				f.api.does(func(w http.ResponseWriter, r *http.Request, forward http.HandlerFunc) {
					if r.Method != tc.method || resourceOf(r) != tc.resource || !strings.Contains(r.URL.Path, "/"+f.ns+"/") {
						forward(w, r)
						return
					}
					once.Do(func() {
						if tc.done {
							forwarded(r, forward)
						}
						close(reached)
					})
					<-r.Context().Done()
					hangUp()
				})
			}
			if tc.method == http.MethodPost || tc.resource == "pods" {
				hold()
			}
			f.create(web)
			switch tc.method + tc.resource {
			case http.MethodPatch + "podgroups":
				f.eventually(patience, "it is there", func() error { return errors.Join(f.named(web.Name, 2, web), f.ownedBy(web)) })
				hold()
				f.annotateGroup(web.Name, "2")
			case http.MethodDelete + "podgroups":
				f.eventually(patience, "it is there", func() error { return errors.Join(f.named(web.Name, 2, web), f.ownedBy(web)) })
				hold()
				f.scale(web.Name, 0)
			}
			select {
			case <-reached:
			case <-time.After(patience):
				t.Fatal("the write was not reached")
			}
			leader := f.leader()
			f.kill(leader)
			f.api.does(nil)
			f.restart(leader)
			if tc.method == http.MethodDelete {
				f.eventually(patience, "it is collected", func() error { return f.ownedBy() })
				return
			}
			f.eventually(patience, "it is as it is to be", func() error {
				if err := errors.Join(f.named(web.Name, 2, web), f.ownedBy(web)); err != nil {
					return err
				}
				if got := f.groups()[0].Spec.MinMember; tc.resource == "podgroups" && tc.method == http.MethodPatch && got != 2 {
					return fmt.Errorf("minMember is %d", got)
				}
				return nil
			})
			f.remove(web)
			f.eventually(patience, "nothing is left", func() error { return f.ownedBy() })
		})
	}
}

// annotateGroup sets the annotation for minMember.
func (f *fixture) annotateGroup(app, minMember string) {
	f.Helper()
	f.annotate(app, map[string]any{scheduling.MinMemberAnnotation: minMember})
}

// TestGangsInAStorm is fault F8: the API server fails writes, ends watches and loses
// their versions.
func TestGangsInAStorm(t *testing.T) {
	tier.All(t, "30 s of failing writes")
	f := gangs(t, bothConfigs["podgroupLevel"])
	defer f.loseWebhook()()
	converge := func(app string) time.Duration {
		began := time.Now()
		web := deployment(app, 20, "", volcanos)
		f.create(web)
		f.eventually(patience, "it is grouped", func() error { return errors.Join(f.named(app, 20, web), f.ownedBy(web)) })
		f.annotateGroup(app, "3")
		f.eventually(patience, "it follows", func() error {
			if got := f.groups()[0].Spec.MinMember; got != 3 {
				return fmt.Errorf("minMember is %d", got)
			}
			return nil
		})
		f.remove(web)
		f.eventually(patience, "it goes", func() error { return f.ownedBy() })
		return time.Since(began)
	}
	clean := converge("clean")
	stop, failures := f.storm()
	storm := converge("stormy")
	stop()
	t.Logf("converged in %s, and in %s while %d writes failed", clean, storm, failures())
	if failures() == 0 || storm > 2*clean+patience {
		t.Errorf("took %s, clean %s, with %d failed writes", storm, clean, failures())
	}
}

// TestGangsEmptyLists is F8 and F9 for pods: the API server returns empty lists while
// atoll-manager starts. No PodGroup is deleted because of that.
func TestGangsEmptyLists(t *testing.T) {
	tier.All(t, "atoll-manager starts three times: 35 s")
	f := gangs(t, bothConfigs["podgroupLevel"])
	(&gangScheduler{f: f}).run()
	web, flow := deployment("web", 2, "", volcanos), workflow("flow")
	f.create(web, flow)
	single := gangPod("single", "single", nil)
	step := gangPod("step", "step", flow) // has its own PodGroup: the level is -1
	f.create(single, step)
	check := func() error {
		return errors.Join(f.named("web", 2, web), f.named("single", 1, nil), f.named("step", 1, nil), f.ownedBy(web, single, step))
	}
	f.eventually(patience, "they have their PodGroups", check)
	before := f.groups()
	f.api.does(func(w http.ResponseWriter, r *http.Request, forward http.HandlerFunc) {
		if resourceOf(r) != "pods" || r.Method != http.MethodGet || !strings.Contains(r.URL.RawQuery, "schedulerName") {
			forward(w, r)
			return
		}
		switch {
		case !isWatch(r) && r.URL.Query().Get("limit") == "":
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprintf(w, `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}`)
		case !isWatch(r):
			forward(w, r)
		case r.URL.Query().Get("sendInitialEvents") == "true":
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprint(w, `{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"1","annotations":{"k8s.io/initial-events-end":"true"}}}}`+"\n")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		default:
			<-r.Context().Done() // nothing changes
		}
	})
	began := time.Now()
	f.killForNow(f.leader())()
	f.api.server.CloseClientConnections()
	f.leads(began)
	f.always(12*time.Second, "they stay", check)
	f.api.does(nil)
	f.api.server.CloseClientConnections()
	f.always(3*time.Second, "they stay", check)
	for i, g := range f.groups() {
		if g.UID != before[i].UID {
			t.Errorf("PodGroup %s was recreated", g.Name)
		}
	}
}

// TestGangsPodGroupCRDIsDeleted: the definition of PodGroups is deleted and created again.
// Meanwhile no pod gets a PodGroup, every replica is ready, and other workloads are not
// affected.
func TestGangsPodGroupCRDIsDeleted(t *testing.T) {
	tier.All(t, "a cluster of its own, for 45 s")
	f := gangs(t, bothConfigs["podgroupLevel"])
	f.classes(1, 1)
	web := deployment("web", 2, "", volcanos)
	f.create(web)
	f.eventually(patience, "it has its PodGroup", func() error { return f.ownedBy(web) })
	definition := &unstructured.Unstructured{}
	definition.SetAPIVersion("apiextensions.k8s.io/v1")
	definition.SetKind("CustomResourceDefinition")
	if err := f.client.Get(f.ctx, types.NamespacedName{Name: "podgroups.scheduling.volcano.sh"}, definition); err != nil {
		t.Fatal(err)
	}
	if err := f.client.Delete(f.ctx, definition.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	define := sync.OnceFunc(func() {
		definition.SetResourceVersion("")
		definition.SetUID("")
		unstructured.RemoveNestedField(definition.Object, "status")
		f.eventually(patience, "PodGroups are defined again", func() error {
			return client.IgnoreAlreadyExists(f.client.Create(f.ctx, definition.DeepCopy()))
		})
		f.eventually(patience, "PodGroups are served again", func() error {
			return f.client.List(f.ctx, &scheduling.PodGroupList{}, client.InNamespace(f.ns))
		})
	})
	defer define()
	f.eventually(patience, "pods are not named any more", func() error {
		pod := gangPod("", "probe", nil)
		pod.GenerateName = "probe-"
		f.create(pod)
		late := deployment(fmt.Sprintf("late-%d", time.Now().UnixNano()), 1, "", volcanos)
		f.create(late)
		f.eventually(patience, "the pod is there", func() error {
			if len(f.pods(late.Name)) == 0 {
				return errors.New("none")
			}
			return nil
		})
		if gangOf(&f.pods(late.Name)[0]) != "" {
			f.remove(late)
			return errors.New("they are")
		}
		return nil
	})
	began := time.Now()
	f.killForNow(f.leader())() // a replica that starts now is ready, and leads
	f.leads(began)
	f.create(split("divided", 4, "1"))
	f.eventuallyDivided("divided", 1, 3)
	resp, err := http.Get(f.atoll.HealthURL + "/readyz")
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("the replica is not ready: %v %v", resp, err)
	}
	resp.Body.Close()
	define()
	f.eventually(patience, "every pod has its PodGroup", func() error {
		pods, err := f.kube.CoreV1().Pods(f.ns).List(f.ctx, metav1.ListOptions{FieldSelector: "spec.schedulerName=volcano"})
		if err != nil {
			return err
		}
		groups := map[string]bool{}
		for _, g := range f.groups() {
			groups[g.Name] = true
		}
		for _, pod := range pods.Items {
			if !groups[gangOf(&pod)] {
				return fmt.Errorf("pod %s names %q, which is not there", pod.Name, gangOf(&pod))
			}
		}
		return nil
	})
}

// TestGangsOwnersOfAGroupThatHangs: pods name owners of an API group that does not
// answer, as if an aggregated API server is down. The next leader leads all the same, and
// other pods get their PodGroups.
func TestGangsOwnersOfAGroupThatHangs(t *testing.T) {
	tier.All(t, "its limit of 25 s until a replica leads can be missed on a busy machine")
	f := gangs(t, bothConfigs["podgroupLevel"])
	var asked atomic.Int64
	f.api.does(func(w http.ResponseWriter, r *http.Request, forward http.HandlerFunc) {
		if strings.HasPrefix(r.URL.Path, "/apis/hang.example.com") {
			asked.Add(1)
			<-r.Context().Done()
			return
		}
		forward(w, r)
	})
	for i := range 20 {
		odd := gangPod(fmt.Sprintf("odd-%d", i), "odd", nil)
		odd.OwnerReferences = []metav1.OwnerReference{{APIVersion: "hang.example.com/v1", Kind: fmt.Sprintf("Thing%d", i), Name: "x", UID: "x-x", Controller: new(true)}}
		f.create(odd)
	}
	f.eventually(patience, "it is asked", func() error {
		if asked.Load() == 0 {
			return errors.New("nobody has")
		}
		return nil
	})
	began := time.Now()
	f.killForNow(f.leader())
	f.leads(began)
	f.nodeGroup(&gm.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "gang-group"}, Spec: gm.NodeGroupSpec{Nodes: []string{"gang-0"}}})
	web := deployment("web", 3, "", volcanos)
	f.create(web)
	f.eventually(25*time.Second, "the next leader leads", func() error {
		return errors.Join(f.contains("gang-group", "gang-0"), f.named("web", 3, web), f.ownedBy(web))
	})
}

// TestGangsDeletedByHand: a PodGroup that is deleted right after its creation, and an
// annotation that is removed from a pod, are restored within seconds (volcano #5972).
func TestGangsDeletedByHand(t *testing.T) {
	f := gangs(t, bothConfigs["podgroupLevel"])
	web := deployment("web", 1, "", volcanos)
	f.create(web)
	f.eventually(patience, "it has its PodGroup", func() error { return f.ownedBy(web) })
	for range 3 {
		group := f.groups()[0]
		if err := f.client.Delete(f.ctx, &group); err != nil {
			t.Fatal(err)
		}
		f.eventually(patience, "it is made again", func() error { return f.ownedBy(web) })
	}
	pod := f.pods("web")[0]
	f.patch(&pod, map[string]any{"metadata": map[string]any{"annotations": map[string]any{scheduling.GroupNameAnnotation: nil}}})
	f.eventually(patience, "the pod names it again", func() error { return f.named("web", 1, web) })
	f.patch(&pod, map[string]any{"metadata": map[string]any{"annotations": map[string]any{scheduling.GroupNameAnnotation: nil}}})
	f.eventually(patience, "and again", func() error { return f.named("web", 1, web) })
}
