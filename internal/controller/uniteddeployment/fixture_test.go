package uniteddeployment

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/events"
	testingclock "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/machinery/budget"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// site is a reconciler with a fake client.
type site struct {
	*Reconciler
	t      *testing.T
	clock  *testingclock.FakeClock
	events *events.FakeRecorder
	all    client.Client
	// writes are the writes since the test cleared them. mu guards it, and what refuse uses:
	// several writes may be requested at the same time.
	mu     sync.Mutex
	writes []string
	// refuse returns the error of a write; nil lets the write through.
	refuse func(write string) error
	// hidden are the names of Deployments that the cache does not have yet.
	hidden []string
	// leftOut: the cache has the workloads and the revisions without their content.
	leftOut bool
}

// slim is the transform of a cache in which nothing fits.
func slim[T client.Object](o, without T) T {
	left, _ := budget.Transform(budget.New(0, 0), func(T) int64 { return 1 }, func(T) T { return without })(o)
	return left.(T)
}

func newSite(t *testing.T, objects ...client.Object) *site {
	s := &site{t: t, clock: testingclock.NewFakeClock(time.Unix(1_000_000, 0)), events: events.NewFakeRecorder(1000)}
	written := func(verb string, o client.Object) error {
		write := fmt.Sprintf("%s %T %s", verb, o, o.GetName())
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.refuse != nil {
			if err := s.refuse(write); err != nil {
				return err
			}
		}
		s.writes = append(s.writes, write)
		return nil
	}
	raw := build.Client(interceptor.Funcs{}, objects...)
	s.all = raw
	s.Reconciler = &Reconciler{Live: raw, Recorder: s.events, Clock: s.clock, Client: interceptor.NewClient(raw, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if err := written("create", o); err != nil {
				return err
			}
			o.SetUID(types.UID(o.GetName()))
			o.SetGeneration(1)
			return c.Create(ctx, o, opts...)
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			if err := written("update", o); err != nil {
				return err
			}
			if d, ok := o.(*appsv1.Deployment); ok && !equality.Semantic.DeepEqual(d.Spec, s.deployment(d.Name).Spec) {
				d.Generation++
			}
			return c.Update(ctx, o, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
			if err := written("patch", o); err != nil {
				return err
			}
			return c.Patch(ctx, o, patch, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			if err := written("delete", o); err != nil {
				return err
			}
			return c.Delete(ctx, o, opts...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, name string, o client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			if err := written("patch "+name, o); err != nil {
				return err
			}
			return c.SubResource(name).Patch(ctx, o, patch, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if err := c.List(ctx, list, opts...); err != nil {
				return err
			}
			if d, ok := list.(*appsv1.DeploymentList); ok {
				d.Items = slices.DeleteFunc(d.Items, func(d appsv1.Deployment) bool { return slices.Contains(s.hidden, d.Name) })
				for i := range d.Items {
					if s.leftOut {
						d.Items[i] = *slim(d.Items[i].DeepCopy(), &appsv1.Deployment{})
					}
				}
			}
			if r, ok := list.(*appsv1.ControllerRevisionList); ok && s.leftOut {
				for i := range r.Items {
					r.Items[i] = *slim(r.Items[i].DeepCopy(), &appsv1.ControllerRevision{})
				}
			}
			return nil
		},
	})}
	return s
}

// web returns a UnitedDeployment of Deployments with one pod in each pool.
func web(pools ...string) *apps.UnitedDeployment {
	ud := &apps.UnitedDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: build.Namespace, Name: "web", UID: "web-uid", Generation: 1}}
	labels := map[string]string{"app": "web"}
	ud.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	ud.Spec.WorkloadTemplate.DeploymentTemplate = &apps.DeploymentTemplateSpec{Spec: appsv1.DeploymentSpec{Template: corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "nginx:1"}}},
	}}}
	for _, p := range pools {
		ud.Spec.Topology.Pools = append(ud.Spec.Topology.Pools, apps.Pool{Name: p, Replicas: new(intstr.FromInt32(1))})
	}
	return ud
}

// nodePools returns NodePools with these names.
func nodePools(names ...string) []client.Object {
	var out []client.Object
	for _, name := range names {
		out = append(out, &apps.NodePool{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	return out
}

// newUnited returns a site with a UnitedDeployment and its NodePools.
func newUnited(t *testing.T, pools ...string) *site {
	return newSite(t, append(nodePools(pools...), web(pools...))...)
}

func (s *site) pass() (ctrl.Result, error) {
	return s.Reconcile(s.t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Namespace: build.Namespace, Name: "web"}})
}

// rest reconciles until nothing is written. Deployments become complete after each pass.
func (s *site) rest() {
	s.t.Helper()
	for range 50 {
		s.writes = nil
		if _, err := s.pass(); err != nil {
			s.t.Fatal(err)
		}
		if len(s.writes) == 0 && !s.roll() {
			return
		}
	}
	s.t.Fatalf("not at rest; the last writes were %v", s.writes)
}

// roll makes the status of every Deployment complete, except that the named ones have no
// updated pods. It reports whether a status changed.
func (s *site) roll(but ...string) (changed bool) {
	s.t.Helper()
	for _, d := range s.deployments() {
		n := *d.Spec.Replicas
		want := appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: n, ReadyReplicas: n, UpdatedReplicas: n, AvailableReplicas: n}
		if slices.Contains(but, d.Name) {
			want.ReadyReplicas, want.UpdatedReplicas, want.AvailableReplicas = 0, 0, 0
		}
		if fmt.Sprint(d.Status) == fmt.Sprint(want) {
			continue
		}
		changed = true
		d.Status = want
		if err := s.all.Status().Update(s.t.Context(), &d); err != nil {
			s.t.Fatal(err)
		}
	}
	return changed
}

func (s *site) deployments() []appsv1.Deployment {
	s.t.Helper()
	var list appsv1.DeploymentList
	if err := s.all.List(s.t.Context(), &list); err != nil {
		s.t.Fatal(err)
	}
	return list.Items
}

func (s *site) deployment(name string) *appsv1.Deployment {
	s.t.Helper()
	d := &appsv1.Deployment{}
	if err := s.all.Get(s.t.Context(), client.ObjectKey{Namespace: build.Namespace, Name: name}, d); err != nil {
		s.t.Fatal(err)
	}
	return d
}

func (s *site) ud() *apps.UnitedDeployment {
	s.t.Helper()
	ud := &apps.UnitedDeployment{}
	if err := s.all.Get(s.t.Context(), client.ObjectKey{Namespace: build.Namespace, Name: "web"}, ud); err != nil {
		s.t.Fatal(err)
	}
	return ud
}

// change changes the UnitedDeployment as a user does.
func (s *site) change(change func(*apps.UnitedDeployment)) {
	s.t.Helper()
	ud := s.ud()
	change(ud)
	ud.Generation++
	if err := s.all.Update(s.t.Context(), ud); err != nil {
		s.t.Fatal(err)
	}
}

func release(image string) func(*apps.UnitedDeployment) {
	return func(ud *apps.UnitedDeployment) {
		ud.Spec.WorkloadTemplate.DeploymentTemplate.Spec.Template.Spec.Containers[0].Image = image
	}
}

// condition returns "status, reason" of a condition.
func (s *site) condition(kind string) string {
	s.t.Helper()
	c := meta.FindStatusCondition(s.ud().Status.Conditions, kind)
	if c == nil {
		return "none"
	}
	return fmt.Sprintf("%s, %s", c.Status, c.Reason)
}

// phases returns the phases of the pools, in order.
func (s *site) phases() string {
	s.t.Helper()
	var out []string
	for _, p := range s.ud().Status.Pools {
		out = append(out, string(p.Phase))
	}
	return fmt.Sprint(out)
}

// images returns the images of the Deployments, by name.
func (s *site) images() map[string]string {
	s.t.Helper()
	out := map[string]string{}
	for _, d := range s.deployments() {
		out[d.Name] = d.Spec.Template.Spec.Containers[0].Image
	}
	return out
}
