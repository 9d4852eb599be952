package extender

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	clienttesting "k8s.io/client-go/testing"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/override"
	"github.com/atoll-k8s/atoll/internal/seats"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

var podResource = schema.GroupResource{Resource: "pods"}

func TestBindPatchesImagesBeforeTheBinding(t *testing.T) {
	objects := append(ground(build.Bound("", "o")), build.OverridePolicy("o", build.Registry("hz", "hz.io")), webPod(0))
	d := newFixture(t, objects...)
	d.filter(webPod(0), allNodes...)
	if err := d.bind(webPod(0), "node-hz"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"patch", "bind"}, d.writes); diff != "" {
		t.Errorf("wrong writes (-want +got):\n%s", diff)
	}
	pod, err := d.Pods.Tracker().Get(corev1.SchemeGroupVersion.WithResource("pods"), build.Namespace, "web-1-0")
	if err != nil {
		t.Fatal(err)
	}
	if got := pod.(*corev1.Pod).Spec.Containers[0].Image; got != "hz.io/nginx:1" {
		t.Errorf("the image is %s", got)
	}
	b := d.bindings[0]
	if b.Name != "web-1-0" || b.UID != "web-1-0" || b.Target.Kind != "Node" || b.Target.Name != "node-hz" {
		t.Errorf("the binding is %+v", b)
	}
	want := map[string]string{
		gm.RequiredPropagationPolicyLabel: "p", gm.BindingPropagationPolicyLabel: "p",
		gm.RequiredOverridePolicyLabel: "o", gm.BindingOverridePolicyLabel: "o", gm.NodeGroupLabel: "hz",
	}
	if diff := cmp.Diff(want, b.Labels); diff != "" {
		t.Errorf("wrong labels on the binding (-want +got):\n%s", diff)
	}
	cost := b.Annotations[corev1.PodDeletionCost]
	if _, err := strconv.ParseInt(cost, 10, 32); err != nil || cost != b.Annotations[gm.DeletionCostAnnotation] {
		t.Errorf("wrong deletion cost: %v", b.Annotations)
	}
}

// fixedHash annotates a pod with the hash of the overrides of a group.
func fixedHash(t *testing.T, policy *gm.OverridePolicy, group string) build.Option {
	t.Helper()
	rules, errs := override.Compile(policy.Spec)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	return build.Annotation(gm.OverridesAnnotation, rules.FixedHash(group))
}

func TestBind(t *testing.T) {
	ignore := build.Annotation(gm.MissingPolicyAnnotation, gm.MissingPolicyIgnore)
	notBound := build.Label(gm.BindingPropagationPolicyLabel, "")
	rule := build.OverridePolicy("o", build.Registry("hz", "hz.io"))
	fullGroup := []build.Object{webPod(5, build.On("node-hz")), webPod(6, build.On("node-hz")), webPod(7, build.On("node-hz"))}
	daemons := build.DaemonSet("agent", build.Bound("p", "o"))
	args := build.OverridePolicy("o", build.Args("hz", "c", "--hz"))
	overridden := fixedHash(t, args, "hz")
	ahead := webPod(0, build.Requires("p", "o"), build.Annotation(gm.AdmittedAnnotation, "true"), build.Created(time.Now().Add(time.Hour)))
	type labels map[string]string
	managed := labels{gm.RequiredPropagationPolicyLabel: "p", gm.BindingPropagationPolicyLabel: "p", gm.NodeGroupLabel: "hz"}
	tests := map[string]struct {
		objects []build.Object
		pod     *corev1.Pod
		node    string
		// uid is that of the request; "" for the pod's own.
		uid    types.UID
		writes []string
		labels labels
		fails  bool
		says   string
	}{
		"a pod without a reservation gets its seat now": {
			objects: append(ground(), webPod(0)), pod: webPod(0), node: "node-hz", writes: []string{"bind"}, labels: managed,
		},
		"a pod that the ledger has not observed is read": {
			objects: ground(), pod: webPod(0), node: "node-hz", writes: []string{"bind"}, labels: managed,
		},
		"an unmanaged pod is bound as it is": {
			objects: append(ground(), build.Pod("bare")), pod: build.Pod("bare"), node: "node-out", writes: []string{"bind"},
		},
		"a new pod that names a policy which its workload does not have here yet": {
			objects: append(ground(), ahead), pod: ahead, node: "node-hz", fails: true, says: errBehind.Error(),
		},
		"a group that filled up meanwhile": {
			objects: append(append(ground(), webPod(0)), fullGroup...), pod: webPod(0), node: "node-hz", fails: true,
		},
		"a node of no group": {
			objects: append(ground(), webPod(0)), pod: webPod(0), node: "node-out", fails: true,
		},
		"a policy that is not bound any more": {
			objects: append(ground(notBound), webPod(0)), pod: webPod(0), node: "node-hz", fails: true,
		},
		"a policy that is not bound any more, and a missing one is ignored": {
			objects: append(ground(notBound, ignore), webPod(0)), pod: webPod(0), node: "node-out", writes: []string{"bind"},
			labels: labels{gm.RequiredPropagationPolicyLabel: "p"},
		},
		"a missing policy is ignored, and images are overridden": {
			objects: append(ground(notBound, ignore, build.Bound("", "o")), rule, webPod(0)), pod: webPod(0), node: "node-hz", writes: []string{"patch", "bind"},
			labels: labels{gm.RequiredPropagationPolicyLabel: "p", gm.RequiredOverridePolicyLabel: "o", gm.BindingOverridePolicyLabel: "o", gm.NodeGroupLabel: "hz"},
		},
		"a deleted policy is ignored, and images are overridden": {
			objects: append(ground(build.Bound("gone", "o"), ignore), rule, webPod(0)), pod: webPod(0), node: "node-hz", writes: []string{"patch", "bind"},
			labels: labels{gm.RequiredPropagationPolicyLabel: "gone", gm.BindingPropagationPolicyLabel: "gone", gm.RequiredOverridePolicyLabel: "o", gm.BindingOverridePolicyLabel: "o", gm.NodeGroupLabel: "hz"},
		},
		"overrides that are not bound": {
			objects: append(ground(build.Requires("", "o")), rule, webPod(0)), pod: webPod(0), node: "node-hz", fails: true, says: TextOverrideNotBound,
		},
		"overrides that are not bound, and missing ones are ignored": {
			objects: append(ground(ignore, build.Requires("", "o")), webPod(0)), pod: webPod(0), node: "node-hz", writes: []string{"bind"},
			labels: labels{gm.RequiredPropagationPolicyLabel: "p", gm.BindingPropagationPolicyLabel: "p", gm.RequiredOverridePolicyLabel: "o", gm.NodeGroupLabel: "hz"},
		},
		"a pod that is on the node already is bound": {
			objects: append(ground(), webPod(0, build.On("node-hz"))), pod: webPod(0), node: "node-hz",
		},
		"a pod on another node is not bound again, although it has no policy": {
			objects: append(ground(), build.Pod("bare", build.On("node-bj"))), pod: build.Pod("bare"), node: "node-hz", fails: true, says: "node-bj",
		},
		"a pod that was replaced by another of its name": {
			objects: ground(), pod: webPod(0), uid: "older", node: "node-hz", fails: true,
		},
		"a pod that is gone": {
			objects: ground(), pod: build.Pod("gone"), node: "node-hz", fails: true,
		},
		"an owner that is gone": {
			objects: append(ground(), build.Pod("x", build.OwnedBy(build.ReplicaSet("gone")))), pod: build.Pod("x"), node: "node-hz", fails: true,
		},
		"images as they should be are not written": {
			objects: append(ground(build.Bound("", "o")), rule, webPod(0, build.With(func(p *corev1.Pod) { p.Spec.Containers[0].Image = "hz.io/nginx:1" }))),
			pod:     webPod(0), node: "node-hz", writes: []string{"bind"},
			labels: labels{gm.RequiredPropagationPolicyLabel: "p", gm.BindingPropagationPolicyLabel: "p", gm.RequiredOverridePolicyLabel: "o", gm.BindingOverridePolicyLabel: "o", gm.NodeGroupLabel: "hz"},
		},
		"an override policy that is gone": {
			objects: append(ground(build.Bound("", "o")), webPod(0)), pod: webPod(0), node: "node-hz", fails: true,
		},
		"a rule that cannot be applied": {
			objects: append(ground(build.Bound("", "o")), rule, webPod(0, build.Container("odd", "NO IMAGE"))), pod: webPod(0), node: "node-hz", fails: true,
		},
		"a pod that was created without overrides that cannot be applied later": {
			objects: append(ground(build.Bound("", "o")), args, webPod(0)), pod: webPod(0), node: "node-hz", fails: true, says: "will be recreated",
		},
		"a pod that was created with other rules": {
			objects: append(ground(build.Bound("", "o")), args, webPod(0, build.Seated("hz"), build.Annotation(gm.OverridesAnnotation, "other"))),
			pod:     webPod(0), node: "node-hz", fails: true, says: "will be recreated",
		},
		"a pod that was created with rules that were removed": {
			objects: append(ground(build.Bound("", "o")), rule, webPod(0, build.Seated("hz"), overridden)), pod: webPod(0), node: "node-hz", fails: true, says: "will be recreated",
		},
		"a pod that was created with its overrides": {
			objects: append(ground(build.Bound("", "o")), args, webPod(0, build.Seated("hz"), overridden)), pod: webPod(0), node: "node-hz", writes: []string{"bind"},
			labels: labels{gm.RequiredPropagationPolicyLabel: "p", gm.BindingPropagationPolicyLabel: "p", gm.RequiredOverridePolicyLabel: "o", gm.BindingOverridePolicyLabel: "o", gm.NodeGroupLabel: "hz"},
		},
		"a pod that has its seat cannot go to another group": {
			objects: append(ground(), webPod(0, build.Seated("hz"))), pod: webPod(0), node: "node-bj", fails: true,
		},
		"a pod that has its seat keeps it in a group that filled up meanwhile": {
			objects: append(append(ground(), webPod(0, build.Seated("hz"))), fullGroup...), pod: webPod(0), node: "node-hz", writes: []string{"bind"}, labels: managed,
		},
		"a missing policy is ignored, so the pod could not be created with its overrides": {
			objects: append(ground(notBound, ignore, build.Bound("", "o")), args, webPod(0)), pod: webPod(0), node: "node-hz", writes: []string{"bind"},
			labels: labels{gm.RequiredPropagationPolicyLabel: "p", gm.RequiredOverridePolicyLabel: "o", gm.BindingOverridePolicyLabel: "o", gm.NodeGroupLabel: "hz"},
		},
		"a pod of a DaemonSet that was created without overrides that cannot be applied later": {
			objects: append(ground(), args, daemons, build.Pod("agent-x", build.OwnedBy(daemons), build.Container("c", "agent:1"))),
			pod:     build.Pod("agent-x"), node: "node-hz", fails: true, says: "will be recreated",
		},
		"a pod of a DaemonSet that was created with its overrides": {
			objects: append(ground(), args, daemons, build.Pod("agent-x", build.OwnedBy(daemons), build.Container("c", "agent:1"), overridden)),
			pod:     build.Pod("agent-x"), node: "node-hz", writes: []string{"bind"},
			labels: labels{gm.RequiredPropagationPolicyLabel: "p", gm.BindingPropagationPolicyLabel: "p", gm.RequiredOverridePolicyLabel: "o", gm.BindingOverridePolicyLabel: "o", gm.NodeGroupLabel: "hz"},
		},
		"the pods of a DaemonSet need no seat, and get their images": {
			objects: append(ground(), rule, daemons, build.Pod("agent-x", build.OwnedBy(daemons), build.Container("c", "agent:1"))),
			pod:     build.Pod("agent-x"), node: "node-hz", writes: []string{"patch", "bind"},
			labels: labels{gm.RequiredPropagationPolicyLabel: "p", gm.BindingPropagationPolicyLabel: "p", gm.RequiredOverridePolicyLabel: "o", gm.BindingOverridePolicyLabel: "o", gm.NodeGroupLabel: "hz"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			d := newFixture(t, tc.objects...)
			if d.World.Ledger.Pod(tc.pod.UID) == nil && tc.pod.Name != "gone" {
				if err := d.Pods.Tracker().Add(tc.pod); err != nil {
					t.Fatal(err)
				}
			}
			if tc.uid != "" {
				tc.pod.UID = tc.uid
			}
			err := d.bind(tc.pod, tc.node)
			if (err != nil) != tc.fails {
				t.Fatalf("error is %v, want one: %t", err, tc.fails)
			}
			if err != nil && !strings.Contains(err.Error(), tc.says) {
				t.Errorf("error is %q and does not contain %q", err, tc.says)
			}
			if diff := cmp.Diff(tc.writes, d.writes); diff != "" {
				t.Errorf("wrong writes (-want +got):\n%s", diff)
			}
			if len(d.bindings) == 1 {
				if diff := cmp.Diff(map[string]string(tc.labels), d.bindings[0].Labels); diff != "" {
					t.Errorf("wrong labels on the binding (-want +got):\n%s", diff)
				}
			}
		})
	}
}

func TestRepeatedBindSucceeds(t *testing.T) {
	d := newFixture(t, append(ground(), webPod(0))...)
	if err := d.bind(webPod(0), "node-hz"); err != nil {
		t.Fatal(err)
	}
	d.World.Ledger.Observe(seats.Slim(webPod(0, build.On("node-hz"))))
	if err := d.bind(webPod(0), "node-hz"); err != nil {
		t.Errorf("the second time it fails: %v", err)
	}
	if diff := cmp.Diff([]string{"bind"}, d.writes); diff != "" {
		t.Errorf("wrong writes (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]int{"hz": 1}, d.seated()); diff != "" {
		t.Errorf("wrong seats (-want +got):\n%s", diff)
	}
}

func TestAPodOnAnotherNodeIsRefusedAndKeepsItsSeat(t *testing.T) {
	d := newFixture(t, append(ground(), webPod(0, build.On("node-bj")))...)
	if err := d.bind(webPod(0), "node-hz"); err == nil {
		t.Error("bound a second time, elsewhere")
	}
	if len(d.writes) != 0 {
		t.Errorf("written: %v", d.writes)
	}
	if diff := cmp.Diff(map[string]int{"bj": 1}, d.seated()); diff != "" {
		t.Errorf("wrong seats (-want +got):\n%s", diff)
	}
}

func TestAnswersToABinding(t *testing.T) {
	conflict := apierrors.NewConflict(podResource, "web-1-0", errors.New("already assigned"))
	tests := map[string]struct {
		answer error
		// live is the pod in the API server when the Binding is created.
		live  *corev1.Pod
		fails bool
		// unknown: the pod may be bound, so it keeps its seat.
		unknown bool
	}{
		"it is on this node already":               {conflict, webPod(0, build.On("node-hz")), false, false},
		"it is on this node after a timeout":       {apierrors.NewTimeoutError("slow", 1), webPod(0, build.On("node-hz")), false, false},
		"it is on this node after another timeout": {apierrors.NewServerTimeout(podResource, "create", 1), webPod(0, build.On("node-hz")), false, false},
		"it is on another node":                    {conflict, webPod(0, build.On("node-bj")), true, true},
		"it is on no node":                         {conflict, webPod(0), true, false},
		"another pod of its name is on this node":  {conflict, webPod(0, build.On("node-hz"), build.UID("younger")), true, false},
		"the API server fails":                     {apierrors.NewInternalError(errors.New("broken")), webPod(0), true, true},
		"nobody answers":                           {errors.New("connection reset"), webPod(0), true, true},
		"it may not be bound":                      {apierrors.NewForbidden(podResource, "web-1-0", nil), webPod(0), true, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			d := newFixture(t, append(ground(), webPod(0))...)
			d.bindError = tc.answer
			d.filter(webPod(0), allNodes...)
			if err := d.Pods.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), tc.live, build.Namespace); err != nil {
				t.Fatal(err)
			}
			if err := d.bind(webPod(0), "node-hz"); (err != nil) != tc.fails {
				t.Fatalf("error is %v, want one: %t", err, tc.fails)
			}
			want := map[string]int{"hz": 1}
			if tc.fails && !tc.unknown {
				want = map[string]int{}
			}
			if diff := cmp.Diff(want, d.seated()); diff != "" {
				t.Errorf("wrong seats (-want +got):\n%s", diff)
			}
		})
	}
}

func TestUnconfirmedBindingKeepsTheSeat(t *testing.T) {
	d := newFixture(t, append(ground(), webPod(0))...)
	d.bindError = apierrors.NewConflict(podResource, "web-1-0", errors.New("already assigned"))
	d.filter(webPod(0), allNodes...)
	d.Pods.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(podResource, "web-1-0", nil)
	})
	if err := d.bind(webPod(0), "node-hz"); err == nil {
		t.Error("bound")
	}
	if diff := cmp.Diff(map[string]int{"hz": 1}, d.seated()); diff != "" {
		t.Errorf("another pod would get the seat (-want +got):\n%s", diff)
	}
}

func TestASeatIsGivenBackWhenImagesCannotBeWritten(t *testing.T) {
	d := newFixture(t, append(ground(build.Bound("", "o")), build.OverridePolicy("o", build.Registry("hz", "hz.io")), webPod(0))...)
	d.Pods.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewInternalError(errors.New("broken"))
	})
	d.filter(webPod(0), allNodes...)
	if err := d.bind(webPod(0), "node-hz"); err == nil {
		t.Error("bound without its images")
	}
	if len(d.bindings) != 0 {
		t.Error("the Binding was created")
	}
	if diff := cmp.Diff(map[string]int{}, d.seated()); diff != "" {
		t.Errorf("wrong seats (-want +got):\n%s", diff)
	}
}

// TestSystemPodIsBoundWithUnchangedImages: in the namespaces of the system the API server
// refuses to change images. The pod must run all the same. Other errors are tried again.
func TestSystemPodIsBoundWithUnchangedImages(t *testing.T) {
	for name, tc := range map[string]struct {
		system bool
		err    error
		bound  bool
	}{
		"refused, in a namespace of the system": {true, apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "web-1-0", nil), true},
		"refused, elsewhere":                    {false, apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "web-1-0", nil), false},
		"broken, in a namespace of the system":  {true, apierrors.NewInternalError(errors.New("broken")), false},
	} {
		t.Run(name, func(t *testing.T) {
			d := newFixture(t, append(ground(build.Bound("", "o")), build.OverridePolicy("o", build.Registry("hz", "hz.io")), webPod(0))...)
			if tc.system {
				d.System = sets.New(webPod(0).Namespace)
			}
			d.Pods.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, tc.err })
			d.filter(webPod(0), allNodes...)
			if err := d.bind(webPod(0), "node-hz"); (err == nil) != tc.bound || (len(d.bindings) == 1) != tc.bound {
				t.Errorf("%d Bindings were created, the error is %v", len(d.bindings), err)
			}
		})
	}
}

func TestBindNeedsNames(t *testing.T) {
	d := newFixture(t)
	for name, args := range map[string]bindingArgs{
		"no name": {PodNamespace: "ns", Node: "n"}, "no namespace": {PodName: "p", Node: "n"}, "no node": {PodName: "p", PodNamespace: "ns"},
	} {
		body, err := json.Marshal(args)
		if err != nil {
			t.Fatal(err)
		}
		if w := d.send("bind", body); w.Code != 400 {
			t.Errorf("%s: answered %d: %s", name, w.Code, w.Body)
		}
	}
}

func TestAPodThatIsRefusedKeepsTheSeatThatItGotAtCreation(t *testing.T) {
	d := newFixture(t, append(ground(build.Bound("", "o")), build.OverridePolicy("o", build.Args("hz", "c", "--hz")), webPod(0, build.Seated("hz")), webPod(1))...)
	for i := range 2 {
		if err := d.bind(webPod(i), "node-hz"); err == nil {
			t.Errorf("pod %d was bound", i)
		}
	}
	if diff := cmp.Diff(map[string]int{"hz": 1}, d.seated()); diff != "" {
		t.Errorf("wrong seats (-want +got):\n%s", diff)
	}
}

// TestJobPodIsBoundWithoutItsOverrides: a Job's pod that lacks overrides is bound, because pods of Jobs
// are not recreated. A pod of a Deployment is not bound.
func TestJobPodIsBoundWithoutItsOverrides(t *testing.T) {
	job := build.Job("batch", build.Bound("p", "o"))
	pod := build.Pod("batch-0", build.OwnedBy(job), build.Container("c", "nginx:1"))
	d := newFixture(t, append(ground(build.Bound("", "o")), job, pod, webPod(0),
		build.OverridePolicy("o", build.Args("hz", "c", "--hz"), build.Registry("hz", "hz.io")))...)
	d.filter(pod, allNodes...)
	if err := d.bind(pod, "node-hz"); err != nil {
		t.Errorf("the pod waits for ever: %v", err)
	}
	if diff := cmp.Diff([]string{"patch", "bind"}, d.writes); diff != "" {
		t.Errorf("wrong writes (-want +got):\n%s", diff)
	}
	if err := d.bind(webPod(0), "node-hz"); err == nil {
		t.Error("the pod of a Deployment is bound, and was created without its arguments")
	}
}
