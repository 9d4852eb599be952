package nodes

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/internal/domain/connectivity"
	"github.com/atoll-k8s/atoll/internal/governance"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// toleratedFor is how long the pods of TestConnectivityOnRealNodes stay on a node that is not Ready: 20 s, in the place of
// the five minutes that are usual, or $TOLERATED. All else has its usual times.
var toleratedFor = func() time.Duration {
	if usual, err := time.ParseDuration(os.Getenv("TOLERATED")); err == nil {
		return usual
	}
	return 20 * time.Second
}()

// TestConnectivityOnRealNodes: the cloud tells a dead node from a node that is cut off, as the table in
// docs/pools.md says.
func TestConnectivityOnRealNodes(t *testing.T) {
	tier.All(t, "it waits for timers of minutes")
	t.Parallel()
	r := &poolRig{offRig: &offRig{rig: startRig(t, nil), starts: 1}}
	r.addPool(poolNodes, nil)
	r.create(&apps.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "edge"}}, &apps.YurtCoordinator{ObjectMeta: metav1.ObjectMeta{Name: "edge"}, Spec: apps.YurtCoordinatorSpec{NodePool: "edge"}},
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 8080}}}})
	for _, node := range poolNodes {
		r.web(node)
	}
	r.isReady("")
	r.says(nil, apps.ReasonKubeletsAccept, "") // all hubs have found it
	r.parts(
		poolPart{"a node that is cut off keeps its pods and its endpoints", (*poolRig).testDelegated},
		poolPart{"a pod that nobody may change keeps its node Ready", (*poolRig).testNotWritten},
		poolPart{"a node that dies loses its pods", (*poolRig).testLost},
		poolPart{"a pool that is silent as a whole is frozen", (*poolRig).testFrozen},
		poolPart{"nothing is left after the coordinator is deleted", (*poolRig).testReleased},
	)
}

// web creates the pod of a node, which is evicted soon.
func (r *poolRig) web(node string) {
	r.Helper()
	away := func(key string) corev1.Toleration {
		return corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: ptr.To(int64(toleratedFor.Seconds()))}
	}
	r.create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-" + node, Labels: map[string]string{"app": "web"}}, Spec: corev1.PodSpec{
		NodeName: node, Tolerations: []corev1.Toleration{away(corev1.TaintNodeNotReady), away(corev1.TaintNodeUnreachable)},
		Containers: []corev1.Container{{Name: "web", Image: devcluster.PauseImage, Args: []string{"serve", ":8080"}, ImagePullPolicy: corev1.PullNever}},
	}})
	r.eventually("the pod of "+node+" is an endpoint", func() error { return r.isEndpoint(node, true) })
}

// probed creates a pod of the same Service which may not stay on a node that is not Ready at all, and which is ready as long as
// it answers.
func (r *poolRig) probed(node string) {
	r.Helper()
	now := func(key string) corev1.Toleration {
		return corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: ptr.To[int64](0)}
	}
	r.create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "probed", Labels: map[string]string{"app": "web"}}, Spec: corev1.PodSpec{
		NodeName: node, Tolerations: []corev1.Toleration{now(corev1.TaintNodeNotReady), now(corev1.TaintNodeUnreachable)},
		Containers: []corev1.Container{{
			Name: "web", Image: devcluster.PauseImage, Args: []string{"serve", ":8080"}, ImagePullPolicy: corev1.PullNever,
			ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(8080)}}, PeriodSeconds: 2, TimeoutSeconds: 5},
		}},
	}})
	r.eventually("it is an endpoint", func() error { return r.isEndpointOf("probed", true) })
}

// isEndpoint returns an error unless the pod of a node is an endpoint of its Service that is ready, or is none.
func (r *poolRig) isEndpoint(node string, want bool) error { return r.isEndpointOf("web-"+node, want) }

func (r *poolRig) isEndpointOf(pod string, want bool) error {
	var slices discoveryv1.EndpointSliceList
	if err := r.client.List(r.Context(), &slices, client.InNamespace("default"), client.MatchingLabels{discoveryv1.LabelServiceName: "web"}); err != nil {
		return err
	}
	is := false
	for _, slice := range slices.Items {
		for _, e := range slice.Endpoints {
			is = is || e.TargetRef != nil && e.TargetRef.Name == pod && e.Conditions.Ready != nil && *e.Conditions.Ready
		}
	}
	if is != want {
		return fmt.Errorf("the pod %s is an endpoint: %t", pod, is)
	}
	return nil
}

// evicted waits until the pod of a node is.
func (r *poolRig) evicted(node string) {
	r.Helper()
	select { // eventually does not wait for so long
	case <-time.After(toleratedFor / 2):
	case <-r.Context().Done():
	}
	r.eventually("its pod is evicted", func() error {
		var pod corev1.Pod
		if err := r.client.Get(r.Context(), client.ObjectKey{Namespace: "default", Name: "web-" + node}, &pod); err != nil || pod.DeletionTimestamp != nil {
			return client.IgnoreNotFound(err)
		}
		return fmt.Errorf("it is there")
	})
}

func (r *poolRig) node(name string) (*corev1.Node, error) {
	node := &corev1.Node{}
	return node, r.client.Get(r.Context(), client.ObjectKey{Name: name}, node)
}

// concludes waits until the cloud concludes a state of nodes.
func (r *poolRig) concludes(state connectivity.State, names ...string) {
	r.Helper()
	began := time.Now()
	r.eventually(fmt.Sprintf("%v are %s", names, state), func() error {
		for _, name := range names {
			node, err := r.node(name)
			if err != nil {
				return err
			}
			if got := connectivity.Parse(node.Annotations[connectivity.Annotation]).State; got != state {
				return fmt.Errorf("%s is %s", name, got)
			}
		}
		return nil
	})
	r.Logf("%v are %s after %s", names, state, time.Since(began).Round(time.Second))
}

// stays fails the test if, for a time, a pod of these nodes is deleted. With heartbeats, it must be an endpoint all the time,
// too, and the Lease of its node no older than kube-controller-manager waits in its default.
func (r *poolRig) stays(d time.Duration, heartbeats bool, names ...string) {
	r.Helper()
	oldest := time.Duration(0)
	err := wait.PollUntilContextTimeout(r.Context(), time.Second, d, true, func(ctx context.Context) (bool, error) {
		for _, name := range names {
			var pod corev1.Pod
			if err := r.client.Get(ctx, client.ObjectKey{Namespace: "default", Name: "web-" + name}, &pod); err != nil || pod.DeletionTimestamp != nil {
				return false, fmt.Errorf("the pod of %s is deleted: %w", name, err)
			}
			if err := r.isEndpoint(name, true); heartbeats && err != nil {
				return false, err
			}
			var lease coordinationv1.Lease
			if err := r.client.Get(ctx, client.ObjectKey{Namespace: "kube-node-lease", Name: name}, &lease); err != nil {
				return false, err
			}
			oldest = max(oldest, time.Since(lease.Spec.RenewTime.Time))
		}
		return false, nil
	})
	if !wait.Interrupted(err) {
		r.Fatal(err)
	}
	if r.Logf("the oldest Lease was %s old", oldest.Round(time.Second)); heartbeats && oldest > 40*time.Second {
		r.Errorf("a Lease was %s old", oldest)
	}
}

// back waits until nodes are as before.
func (r *poolRig) back(names ...string) {
	r.Helper()
	for _, name := range names {
		r.eventually("the node "+name+" is Ready", r.ready(name, corev1.ConditionTrue))
	}
	r.eventually("nothing of ours is left on them", func() error {
		for _, name := range names {
			node, err := r.node(name)
			if err != nil {
				return err
			}
			if connectivity.HasMarks(node) || len(node.Spec.Taints) > 0 {
				return fmt.Errorf("%s has the annotations %v, the labels %v and the taints %v", name, node.Annotations, node.Labels, node.Spec.Taints)
			}
			var pod corev1.Pod
			if err := r.client.Get(r.Context(), client.ObjectKey{Namespace: "default", Name: "web-" + name}, &pod); err != nil {
				return err
			}
			if _, has := pod.Annotations[connectivity.TolerationsAnnotation]; has || slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool { return t.TolerationSeconds == nil }) {
				return fmt.Errorf("the pod of %s has %v and tolerates %+v", name, pod.Annotations, pod.Spec.Tolerations)
			}
		}
		c, err := r.coordinator()
		if err == nil && len(c.Status.DelegatedNodes) > 0 {
			err = fmt.Errorf("delegated are %q", c.Status.DelegatedNodes)
		}
		return err
	})
}

func (r *poolRig) testDelegated() {
	node := r.other()
	r.probed(node)
	r.cut(true, node)
	r.concludes(connectivity.Delegated, node)
	r.eventually("the node is not Ready, because its pool speaks for it", func() error {
		n, err := r.node(node)
		if err != nil {
			return err
		}
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady && (c.Status != corev1.ConditionUnknown || c.Reason != connectivity.ReasonDelegated) {
				return fmt.Errorf("Ready is %s, %s", c.Status, c.Reason)
			}
		}
		c, err := r.coordinator()
		if err == nil && !slices.Equal(c.Status.DelegatedNodes, []string{node}) {
			err = fmt.Errorf("delegated are %q", c.Status.DelegatedNodes)
		}
		return err
	})
	r.stays(max(2*time.Minute, 2*toleratedFor), true, node)
	if err := r.PauseContainer(r.Context(), "default", "probed", "web"); err != nil {
		r.Fatal(err)
	}
	r.eventually("a pod that does not answer is no endpoint", func() error { return r.isEndpointOf("probed", false) })
	if err := r.isEndpoint(node, true); err != nil {
		r.Error(err)
	}
	if err := r.ResumeContainer(r.Context(), "default", "probed", "web"); err != nil {
		r.Fatal(err)
	}
	r.eventually("it answers again", func() error { return r.isEndpointOf("probed", true) })
	r.cut(false, node)
	r.eventually("its hub confirms that it was cut off", func() error {
		var lease coordinationv1.Lease
		err := r.client.Get(r.Context(), client.ObjectKey{Namespace: corev1.NamespaceNodeLease, Name: node}, &lease)
		if err == nil && lease.Annotations[governance.CutOffUntilAnnotation] == "" {
			err = fmt.Errorf("its Lease has %v", lease.Annotations)
		}
		return err
	})
	r.back(node)
	var probed corev1.Pod
	if err := r.client.Get(r.Context(), client.ObjectKey{Namespace: "default", Name: "probed"}, &probed); err != nil || probed.DeletionTimestamp != nil {
		r.Fatalf("the pod that may not stay on such a node at all is deleted: %v", err)
	}
	for _, t := range probed.Spec.Tolerations {
		if t.TolerationSeconds == nil || *t.TolerationSeconds != 0 {
			r.Errorf("afterwards it tolerates %+v", probed.Spec.Tolerations)
		}
	}
	r.kubectl("delete", "pod", "probed", "--now")
}

func (r *poolRig) testNotWritten() {
	node := r.other()
	meta, fail := metav1.ObjectMeta{Name: "not-this-pod"}, admissionv1.Fail
	policy := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: meta, Spec: admissionv1.ValidatingAdmissionPolicySpec{
		FailurePolicy: &fail,
		MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{admissionv1.Update}, Rule: admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
		}}}},
		Validations: []admissionv1.Validation{{Expression: fmt.Sprintf("object.metadata.name != 'web-%s'", node), Message: "nobody may change this pod"}},
	}}
	r.create(policy, &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: meta, Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
		PolicyName: meta.Name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
	}})
	r.eventually("nobody may change the pod", func() error {
		if _, err := r.tryKubectl("annotate", "pod", "web-"+node, "--overwrite", "--dry-run=server", "tried="+rand.Text()); err == nil {
			return errors.New("it can be changed")
		}
		return nil
	})
	is := func(ready corev1.ConditionStatus, isTold bool) {
		r.Helper()
		r.eventually(fmt.Sprintf("Ready is %s, and a condition tells of the pod: %t", ready, isTold), func() error {
			n, err := r.node(node)
			if err != nil {
				return err
			}
			told := slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
				return c.Type == connectivity.PodNotWritten && strings.Contains(c.Message, "Pod default/web-"+node+": ") && strings.Contains(c.Message, "nobody may change this pod")
			})
			if told != isTold {
				return fmt.Errorf("the conditions are %+v", n.Status.Conditions)
			}
			return r.ready(node, ready)()
		})
	}
	r.cut(true, node)
	r.concludes(connectivity.Delegated, node)
	is(corev1.ConditionTrue, true)
	r.stays(time.Minute, true, node)
	is(corev1.ConditionTrue, true)
	r.kubectl("delete", "validatingadmissionpolicies,validatingadmissionpolicybindings", meta.Name)
	is(corev1.ConditionUnknown, false)
	r.cut(false, node)
	r.back(node)
}

func (r *poolRig) testLost() {
	node := r.other()
	if err := r.Kill(r.Context(), node); err != nil {
		r.Fatal(err)
	}
	began := time.Now()
	r.concludes(connectivity.Lost, node)
	r.evicted(node)
	r.Logf("its pod is evicted after %s", time.Since(began).Round(time.Second))
	r.eventually("it is no endpoint", func() error { return r.isEndpoint(node, false) })
	if err := r.Restart(r.Context(), node); err != nil {
		r.Fatal(err)
	}
	r.eventually("the node "+node+" is back", r.ready(node, corev1.ConditionTrue))
	r.eventually("the pod that was evicted is gone", func() error {
		err := r.client.Get(r.Context(), client.ObjectKey{Namespace: "default", Name: "web-" + node}, &corev1.Pod{})
		if err == nil {
			err = errors.New("it is there still")
		}
		return client.IgnoreNotFound(err)
	})
	r.web(node)
	r.back(node)
}

func (r *poolRig) testFrozen() {
	r.cut(true, poolNodes...)
	r.concludes(connectivity.Frozen, poolNodes...)
	r.eventually("a condition says so", func() error {
		c, err := r.coordinator()
		if err != nil {
			return err
		}
		if frozen := meta.FindStatusCondition(c.Status.Conditions, apps.ConditionFrozen); frozen == nil || frozen.Status != metav1.ConditionTrue || !strings.Contains(frozen.Message, poolNodes[0]) {
			return fmt.Errorf("the condition is %+v", frozen)
		}
		return nil
	})
	r.stays(max(2*time.Minute, 2*toleratedFor), false, poolNodes...)
	r.cut(false, poolNodes...)
	r.back(poolNodes...)
}

func (r *poolRig) testReleased() {
	node := r.other()
	r.cut(true, node)
	r.concludes(connectivity.Delegated, node)
	r.kubectl("delete", "yurtcoordinator", "edge")
	r.eventually("nothing of ours is left on the node", func() error {
		n, err := r.node(node)
		if err == nil && connectivity.HasMarks(n) {
			err = fmt.Errorf("it has the annotations %v and the labels %v", n.Annotations, n.Labels)
		}
		return err
	})
	r.evicted(node) // as without us
	r.cut(false, node)
	r.eventually("the node "+node+" is back", r.ready(node, corev1.ConditionTrue))
	r.eventually("nothing is left anywhere", func() error {
		out := r.kubectl("get", "nodes,pods,leases", "-A", "-o", "yaml")
		for _, mark := range []string{
			connectivity.Annotation, connectivity.ExcludeLabel, connectivity.PodNotWritten, connectivity.TolerationsAnnotation, governance.DelegatedAnnotation, governance.PulseAnnotation,
			connectivity.ReasonDelegated, connectivity.ReasonUnobserved, connectivity.ReasonFrozen, connectivity.ReasonLost, connectivity.ReasonReleased,
		} {
			if n := strings.Count(out, mark); n > 0 {
				return fmt.Errorf("%s is there %d times:\n%s", mark, n, out)
			}
		}
		if taints := r.kubectl("get", "nodes", "-o", "jsonpath={.items[*].spec.taints}"); taints != "" {
			return fmt.Errorf("there are the taints %s", taints)
		}
		if left := r.kubectl("get", "leases", "-n", governance.Namespace, "-o", "name"); left != "" {
			return fmt.Errorf("there is %s", left)
		}
		return nil
	})
}
