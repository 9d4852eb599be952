package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/kubectl/plan"
)

// file writes objects into a file, as a person would.
func (f *fixture) file(objects ...client.Object) string {
	f.Helper()
	list := corev1.List{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "List"}}
	for _, o := range objects {
		kind, err := apiutil.GVKForObject(o, f.client.Scheme())
		if err != nil {
			f.Fatal(err)
		}
		o.GetObjectKind().SetGroupVersionKind(kind)
		raw, err := json.Marshal(o)
		if err != nil {
			f.Fatal(err)
		}
		list.Items = append(list.Items, runtime.RawExtension{Raw: raw})
	}
	raw, err := json.Marshal(list)
	if err != nil {
		f.Fatal(err)
	}
	path := filepath.Join(f.TempDir(), "objects.json")
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		f.Fatal(err)
	}
	return path
}

// plans runs plan for a file, and returns the plan and the exit code.
func (p person) plans(file string) (got plan.Plan, code int) {
	p.Helper()
	out, stderr, err := p.atoll("plan", "-f", file, "-o", "json")
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil || code == 1 {
		p.Fatalf("planning: exit code %d, %v: %s%s", code, err, out, stderr)
	}
	return got, code
}

// admin is somebody with all rights.
func (f *fixture) admin() person {
	f.Helper()
	admin := f.people()("nobody-else")
	admin.kubeconfig = f.cluster.KubeconfigPath()
	return admin
}

// watchLeaving returns the names of a workload's pods that were deleted since, in their order.
func (f *fixture) watchLeaving(app string) func() []string {
	f.Helper()
	var mu sync.Mutex
	var left []string
	w := f.watchPods(metav1.ListOptions{LabelSelector: "app=" + app}, func(_ watch.EventType, pod *corev1.Pod) {
		mu.Lock()
		defer mu.Unlock()
		if pod.DeletionTimestamp != nil && !slices.Contains(left, pod.Name) {
			left = append(left, pod.Name)
		}
	})
	return func() []string {
		w.cancel()
		<-w.done
		return left
	}
}

func namesOf(pods []plan.Pod) (names []string) {
	for _, pod := range pods {
		names = append(names, pod.Name)
	}
	return names
}

// atOnce makes a policy begin at once.
func atOnce(p *gm.PropagationPolicy) *gm.PropagationPolicy {
	p.Spec.Rescheduling.StabilizationSeconds = new(int32)
	return p
}

// TestKubectlAtollPlansMoves: for random policies, what plan prints is what happens when they
// are applied: the pods that leave, in that order, and the numbers in the end.
func TestKubectlAtollPlansMoves(t *testing.T) {
	inEachForm(t, func(t *testing.T, f *fixture) {
		admin := f.admin()
		groups := []string{"plan-a", "plan-b", "plan-c"}
		for _, group := range groups {
			f.group(group, 2)
		}
		seed := rand.Uint64() //nolint:gosec // a test's cases
		t.Logf("seed %d", seed)
		rng := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // a test's cases
		for i := range f.often() {
			f.part(fmt.Sprint(i), func(f *fixture) {
				admin := person{f, admin.program, admin.kubeconfig}
				app, replicas := fmt.Sprint("app-", i), int32(1+rng.IntN(12))
				random := func() *gm.PropagationPolicy {
					var pairs []any
					for _, group := range groups {
						pairs = append(pairs, group, 1+rng.IntN(4))
					}
					p := weights(app, pairs...)
					if rng.IntN(3) == 0 {
						p = rangesOf(app, append(pairs[:4:4], groups[2], 12)...)
					}
					p.Spec.Rescheduling.MaxUnavailable = int32(1 + rng.IntN(3))
					return atOnce(p)
				}
				d := deployment(app, replicas, app)
				f.create(random(), d)
				f.eventually(patience, "the policy is Satisfied", func() error {
					return errors.Join(f.allReady(app, int(replicas)), f.reason(app, gm.ReasonSatisfied))
				})
				next := random()
				next.Namespace = f.ns
				file, then := f.file(next), f.spread(app)
				p, code := admin.plans(file)
				var moves []string
				for _, w := range p.Workloads {
					moves, then = namesOf(w.Moves), map[string]int{}
					for _, g := range w.Groups {
						if g.Then > 0 {
							then[g.Name] = g.Then
						}
					}
				}
				if want := map[bool]int{true: 0, false: 2}[len(p.Workloads) == 0]; code != want {
					f.Errorf("exit code %d, want %d: %+v", code, want, p)
				}
				left := f.watchLeaving(app)
				f.run("kubectl apply --server-side --force-conflicts -f " + file)
				f.eventually(patience, "it is as planned", func() error {
					return errors.Join(f.spreadIs(app, then), f.reason(app, gm.ReasonSatisfied))
				})
				gone := left()
				if next.Spec.Rescheduling.MaxUnavailable > 1 { // which is next depends on which successor is Ready first
					slices.Sort(moves)
					slices.Sort(gone)
				}
				if diff := cmp.Diff(moves, gone); diff != "" {
					f.Errorf("other pods left than were planned (-planned +left):\n%s", diff)
				}
				f.remove(d) // otherwise the nodes fill up
			})
		}
	})
}

// TestKubectlAtollPlansWhatElseHappens: restarts, replacements, nodes that change their pool and
// group, what a rollout does, and what is in the way.
func TestKubectlAtollPlansWhatElseHappens(t *testing.T) {
	f := newFixture(t)
	admin := f.admin()
	f.group("else-a", 1)
	f.group("else-b", 1)
	as := func(f *fixture) person { return person{f, admin.program, admin.kubeconfig} }
	start := func(f *fixture, app string, replicas int32, modify ...func(*appsv1.Deployment)) {
		f.Helper()
		f.create(atOnce(weights(app, "else-a", 1, "else-b", 1)), deployment(app, replicas, app, modify...))
		f.eventually(patience, "the policy is Satisfied", func() error {
			return errors.Join(f.allReady(app, int(replicas)), f.reason(app, gm.ReasonSatisfied))
		})
	}
	next := func(f *fixture, app string, a, b int) *gm.PropagationPolicy {
		p := atOnce(weights(app, "else-a", a, "else-b", b))
		p.Namespace = f.ns
		return p
	}
	onlyOne := func(f *fixture, p plan.Plan) *plan.Workload {
		f.Helper()
		if len(p.Workloads) != 1 {
			f.Fatalf("want one workload: %+v", p)
		}
		return &p.Workloads[0]
	}
	f.part("restarts", func(f *fixture) {
		registry := overrides("registry", gm.RuleWithNodeGroup{TargetNodeGroup: []string{"else-a"}, Overriders: &gm.Overriders{
			ImageOverrider: []gm.ImageOverrider{{Component: gm.Registry, Operator: gm.OverriderOpReplace, Value: "a.io"}},
		}})
		f.create(overrides("registry"))
		start(f, "restarts", 4, requiresOverride("registry"))
		registry.Namespace = f.ns
		file := f.file(registry)
		p, code := as(f).plans(file)
		w := onlyOne(f, p)
		if code != 2 || len(w.Restarts) != 2 || len(w.Moves)+len(w.Replacements)+len(w.Blocked) > 0 || w.Restarts[0].Group != "else-a" ||
			w.Restarts[0].Images["app"] != (plan.Change{Now: "nginx:1.27", Then: "a.io/nginx:1.27"}) {
			f.Errorf("exit code %d: %+v", code, p)
		}
		left := f.watchLeaving("restarts")
		f.run("kubectl apply --server-side --force-conflicts -f " + file)
		f.eventually(patience, "the pods have the image", func() error {
			var changed []string
			for _, pod := range f.pods("restarts") {
				if pod.Spec.Containers[0].Image == "a.io/nginx:1.27" {
					changed = append(changed, pod.Name)
				}
			}
			want := namesOf(w.Restarts)
			slices.Sort(changed)
			slices.Sort(want)
			if diff := cmp.Diff(want, changed); diff != "" {
				return errors.New(diff)
			}
			return nil
		})
		if got := left(); len(got) > 0 {
			f.Errorf("%v left", got)
		}
	})
	f.part("what a plan does not know", func(f *fixture) {
		out, stderr, err := as(f).atoll("plan", "-f", "../../examples/uniteddeployment.yaml")
		if err != nil || out != "Nothing changes, as far as a plan knows.\nNot known: what UnitedDeployment ud-test changes\n" {
			f.Errorf("%v: %s%s", err, out, stderr)
		}
	})
	f.part("a namespace that is not there yet", func(f *fixture) {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: f.ns + "-new"}}
		d, p := deployment("first", 2, "first"), weights("first", "else-a", 1, "else-b", 1)
		d.Namespace, p.Namespace = namespace.Name, namespace.Name
		file := f.file(namespace, p, d)
		if out, stderr, err := as(f).atoll("plan", "-f", file); err == nil || !strings.Contains(stderr, "namespace from the provided object") {
			f.Errorf("-n is another namespace: %v: %s%s", err, out, stderr)
		}
		out, err := exec.CommandContext(f.ctx, admin.program, "--kubeconfig", admin.kubeconfig, "plan", "-f", file).Output()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 2 || !strings.Contains(string(out), "else-b                                        0      1") || !strings.Contains(string(out), "its namespace is not there yet") {
			f.Errorf("%v: %s", err, out)
		}
	})
	f.part("replacements", func(f *fixture) {
		f.create(overrides("verbose"))
		start(f, "replacements", 4, requiresOverride("verbose"))
		verbose := overrides("verbose", argsRule("else-a", "-v"))
		verbose.Namespace = f.ns
		file := f.file(verbose)
		p, code := as(f).plans(file)
		w := onlyOne(f, p)
		if code != 2 || len(w.Replacements) != 2 || len(w.Moves)+len(w.Restarts)+len(w.Blocked) > 0 {
			f.Errorf("exit code %d: %+v", code, p)
		}
		left := f.watchLeaving("replacements")
		f.run("kubectl apply --server-side --force-conflicts -f " + file)
		f.eventually(patience, "the pods are replaced", func() error {
			for _, pod := range f.pods("replacements") {
				if got, want := strings.Join(pod.Spec.Containers[0].Args, " "), map[string]string{"else-a": "-v"}[pod.Labels[gm.NodeGroupLabel]]; got != want {
					return fmt.Errorf("pod %s of group %s has arguments %q", pod.Name, pod.Labels[gm.NodeGroupLabel], got)
				}
			}
			return errors.Join(f.allReady("replacements", 4), f.overrideIs("verbose", gm.ReasonSatisfied))
		})
		if diff := cmp.Diff(namesOf(w.Replacements), left()); diff != "" {
			f.Errorf("other pods left than were planned (-planned +left):\n%s", diff)
		}
	})
	f.part("a pool that gives its node another group", func(f *fixture) {
		f.nodes(map[string]string{"site": f.ns}, "else-node")
		pool := &apps.NodePool{ObjectMeta: metav1.ObjectMeta{Name: f.ns}}
		pool.Spec.Selector = &apps.NodeSelector{MatchLabels: map[string]apps.LabelValue{"site": apps.LabelValue(f.ns)}}
		pool.Spec.Labels = map[string]apps.LabelValue{"zone": "z"}
		pool.Spec.Taints = []apps.NodePoolTaint{{Key: "example.com/site", Value: "s", Effect: corev1.TaintEffectNoExecute}}
		group := &gm.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: f.ns}, Spec: gm.NodeGroupSpec{MatchLabels: map[string]string{"zone": "z"}}}
		evicted := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "bare"}, Spec: corev1.PodSpec{NodeName: "else-node", Containers: []corev1.Container{{Name: "app", Image: "nginx:1.27"}}}}
		f.create(evicted)
		p, code := as(f).plans(f.file(pool, group))
		want := []plan.Node{{
			Name: "else-node", NodePool: &plan.Change{Then: f.ns}, NodeGroup: &plan.Change{Then: f.ns},
			Attributes: []string{"label zone=z", "taint example.com/site:NoExecute=s"}, Evicts: []string{f.ns + "/bare"},
		}}
		if diff := cmp.Diff(want, p.Nodes); diff != "" || code != 2 {
			f.Errorf("exit code %d (-want +got):\n%s", code, diff)
		}
	})
	f.part("a budget", func(f *fixture) {
		start(f, "budgeted", 4)
		f.budget("all", "budgeted", "100%", 4)
		file := f.file(next(f, "budgeted", 1, 3))
		p, code := as(f).plans(file)
		w := onlyOne(f, p)
		if code != 3 || len(w.Moves) != 1 || !slices.ContainsFunc(w.Blocked, func(why string) bool { return strings.Contains(why, `PodDisruptionBudget "all" allows no eviction`) }) {
			f.Errorf("exit code %d: %+v", code, p)
		}
		f.run("kubectl apply --server-side --force-conflicts -f " + file)
		f.eventually(patience, "it is blocked", func() error { return f.reason("budgeted", gm.ReasonBlockedByPDB) })
	})
	f.part("no room", func(f *fixture) {
		start(f, "large", 4, func(d *appsv1.Deployment) {
			d.Spec.Template.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("15")}
		})
		file := f.file(next(f, "large", 1, 3))
		p, code := as(f).plans(file)
		if w := onlyOne(f, p); code != 3 || len(w.Moves) > 0 || !strings.Contains(strings.Join(w.Blocked, " "), "else-b") {
			f.Errorf("exit code %d: %+v", code, p)
		}
		f.run("kubectl apply --server-side --force-conflicts -f " + file)
		f.eventually(patience, "it is blocked", func() error { return f.reason("large", gm.ReasonNoFeasibleTarget) })
		if err := f.spreadIs("large", map[string]int{"else-a": 2, "else-b": 2}); err != nil {
			f.Error(err)
		}
	})
	f.part("a rollout and more replicas", func(f *fixture) {
		start(f, "scaled", 4)
		d := deployment("scaled", 4, "scaled")
		d.Namespace = f.ns
		if p, code := as(f).plans(f.file(d, next(f, "scaled", 1, 1))); code != 0 {
			f.Errorf("nothing changes, and exit code %d: %+v", code, p)
		}
		more := deployment("scaled", 8, "scaled")
		more.Namespace = f.ns
		file := f.file(more)
		p, _ := as(f).plans(file)
		w := onlyOne(f, p)
		if diff := cmp.Diff([]plan.Group{{Name: "else-a", Now: 2, Then: 4}, {Name: "else-b", Now: 2, Then: 4}}, w.Groups); diff != "" || len(w.Moves)+len(w.Blocked) > 0 {
			f.Errorf("(-want +got):\n%s\n%+v", diff, p)
		}
		f.run("kubectl apply --server-side --force-conflicts -f " + file)
		f.eventually(patience, "it is as planned", func() error { return f.spreadIs("scaled", map[string]int{"else-a": 4, "else-b": 4}) })
		more.Spec.Template.Spec.Containers[0].Image = "nginx:1.28"
		if p, code := as(f).plans(f.file(more)); code != 2 || !onlyOne(f, p).Rollout {
			f.Errorf("exit code %d: %+v", code, p)
		}
	})
	f.part("a mistake and too few rights", func(f *fixture) {
		wrong := next(f, "scaled", 1, 1)
		wrong.Spec.StaticWeight[0].Weight = -1
		if _, stderr, err := as(f).atoll("plan", "-f", f.file(wrong)); err == nil || !strings.Contains(stderr, "would be refused") || !strings.Contains(stderr, "spec.staticWeightList[0].weight") {
			f.Errorf("%v: %s", err, stderr)
		}
		viewer := f.people()("planner")
		viewer.fixture = f
		f.mayView("planner")
		if _, stderr, err := viewer.atoll("plan", "-f", f.file(next(f, "scaled", 1, 1))); err == nil || !strings.Contains(stderr, "you may not list nodes") {
			f.Errorf("%v: %s", err, stderr)
		}
	})
}
