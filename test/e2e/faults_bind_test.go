package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// reservedSeats returns the number of reserved seats of pods that are not observed yet.
func (f *fixture) reservedSeats() float64 {
	f.Helper()
	return f.metric("atoll_seats_held", `state="reserved"`)
}

// TestFaultPodThatIsNeverBound is scenario 44: a pod has a seat in a group, and its
// binding fails three times: its images cannot be written, the API server refuses the
// binding, or the API server fails during it. kube-scheduler gets an error with Atoll's
// text, and tries again. Once the group's node accepts no pods the pod goes to the other
// group that lacks pods, the next pod gets the free seat, and no seat stays reserved.
func TestFaultPodThatIsNeverBound(t *testing.T) {
	tier.All(t, "waits for kube-scheduler's growing pauses: 1.5 min")
	f := newFaultyFixture(t)
	f.group("never-a", 1)
	f.group("never-b", 1)
	policy := weights("policy", "never-a", 3, "never-b", 2)
	f.create(policy)
	rules := overrides("images")
	for _, group := range []string{"never-a", "never-b"} {
		rules.Spec.OverrideRules = append(rules.Spec.OverrideRules, gm.RuleWithNodeGroup{
			TargetNodeGroup: []string{group}, Overriders: &gm.Overriders{ImageOverrider: []gm.ImageOverrider{
				{Component: gm.Registry, Operator: gm.OverriderOpReplace, Value: group + ".io"},
			}},
		})
	}
	f.create(rules)
	// The second pod is created when the first one is Ready, so the first one has the
	// choice of two groups that lack a pod each. Each part has its own owner, so that the
	// records of an owner's waiting pods have no effect on the next part.
	fresh := func(f *fixture) (replicas func(n int)) {
		app := &appsv1.StatefulSet{ObjectMeta: requiring("app"), Spec: appsv1.StatefulSetSpec{
			Replicas: new(int32), Selector: selecting("app"), Template: restarted(template("app")),
		}}
		app.Labels[gm.RequiredOverridePolicyLabel] = "images"
		f.create(app)
		f.eventually(patience, "the workload is bound to its policies", func() error {
			var now appsv1.StatefulSet
			if err := f.client.Get(f.ctx, types.NamespacedName{Namespace: f.ns, Name: "app"}, &now); err != nil {
				return err
			}
			if now.Labels[gm.BindingPropagationPolicyLabel] == "" || now.Labels[gm.BindingOverridePolicyLabel] == "" {
				return fmt.Errorf("labels are %v", now.Labels)
			}
			return nil
		})
		return func(n int) { f.patch(app, map[string]any{"spec": map[string]any{"replicas": n}}) }
	}

	const attempts = 3
	for _, tc := range []struct {
		name, method, resource string
		code                   int
		says                   string
		// kept: the seat stays reserved for half a minute, because the binding may have
		// succeeded. Then the pod is recreated with its group, and goes to the other
		// group when it has waited there for rescheduleAfterSeconds.
		kept bool
	}{
		{"its images cannot be written", http.MethodPatch, "pods", http.StatusForbidden, "overriding images of pod %s/app-0: ", false},
		{"the binding is refused", http.MethodPost, "pods/binding", http.StatusForbidden, "binding pod %s/app-0 to node never-a-0: ", false},
		{"the binding fails", http.MethodPost, "pods/binding", http.StatusInternalServerError, "binding pod %s/app-0 to node never-a-0: ", true},
	} {
		f.part(tc.name, func(f *fixture) {
			replicas := fresh(f)
			if tc.kept {
				f.patch(policy, map[string]any{"spec": map[string]any{"rescheduleAfterSeconds": 10}})
			}
			var failed, written atomic.Int32
			f.api.does(func(w http.ResponseWriter, r *http.Request, forward http.HandlerFunc) {
				if r.Method != tc.method || resourceOf(r) != tc.resource || !strings.Contains(r.URL.Path, "/"+f.ns+"/") {
					forward(w, r)
					return
				}
				body, err := io.ReadAll(r.Body)
				if err != nil {
					hangUp()
				}
				r.Body = io.NopCloser(bytes.NewReader(body))
				// The group is visible in the binding's node, or in the registry of the
				// image.
				switch {
				case bytes.Contains(body, []byte("never-a")):
					failed.Add(1)
					refuse(w, tc.code, "Forbidden")
				default:
					written.Add(1)
					forward(w, r)
				}
			})
			replicas(2)
			f.eventually(2*patience, "the pod was not bound three times", func() error {
				if n := failed.Load(); n < attempts {
					return fmt.Errorf("%d times so far; %v", n, f.spread("app"))
				}
				return nil
			})
			if n := written.Load(); n != 0 || f.bound("app") != 0 {
				f.Errorf("the pod was tried in another group than the one whose turn it was")
			}
			f.eventually(patience, "the pod says why, in our words", func() error {
				pods := f.pods("app")
				if len(pods) != 1 {
					return fmt.Errorf("%d pods", len(pods))
				}
				for _, c := range pods[0].Status.Conditions {
					if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonSchedulerError && strings.Contains(c.Message, fmt.Sprintf(tc.says, f.ns)) {
						return nil
					}
				}
				return fmt.Errorf("conditions are %+v", pods[0].Status.Conditions)
			})
			f.cordon(true, "never-a-0")
			waits := 1
			if tc.kept {
				replicas(1)
				waits = 0
			}
			f.eventually(3*patience, "the pod is in the other group, the next one waits", func() error {
				if n := len(f.pods("app")); n != 1+waits {
					return fmt.Errorf("%d pods", n)
				}
				if n := f.unschedulable("app"); n != waits {
					return fmt.Errorf("%d pods are refused", n)
				}
				return f.spreadIs("app", map[string]int{"never-b": 1})
			})
			first := f.uids("app")[0]
			for _, pod := range f.pods("app") {
				if pod.Spec.NodeName != "" {
					first = string(pod.UID)
				}
			}
			f.api.does(nil)
			f.eventually(patience, "no seat is reserved", func() error {
				if n := f.reservedSeats(); n != 0 {
					return fmt.Errorf("%v are", n)
				}
				return nil
			})
			f.cordon(false, "never-a-0")
			if !tc.kept {
				f.settled("app", map[string]int{"never-a": 1, "never-b": 1})
				if !slices.Contains(f.uids("app"), first) {
					f.Error("the pod that was bound first was moved")
				}
			}
			if n := f.reservedSeats(); n != 0 {
				f.Errorf("%v seats are reserved", n)
			}
			replicas(0)
			f.eventually(patience, "the pods go", func() error {
				if n := len(f.pods("app")); n != 0 {
					return fmt.Errorf("%d are left", n)
				}
				return nil
			})
			if err := f.client.Delete(f.ctx, &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: "app"}}); err != nil {
				f.Fatal(err)
			}
		})
	}
}
