package e2e

import (
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/manager"
)

// warnedClient is a client of a person with all rights, and the warnings that it gets.
func (f *fixture) warnedClient() (client.Client, *warned) {
	f.Helper()
	config := f.impersonating("jane", "system:masters")
	warnings := &warned{}
	config.WarningHandler = warnings
	c, err := client.New(config, client.Options{Scheme: manager.Scheme()})
	if err != nil {
		f.Fatal(err)
	}
	return c, warnings
}

// take returns the warnings since the last call, one to a line.
func (w *warned) take() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := strings.Join(w.texts, "\n")
	w.texts = nil
	return all
}

// TestMistakesInNamesAreSaid at apply, and on the object: a policy or a NodeGroup that does not exist, and
// labels that are in the wrong place.
func TestMistakesInNamesAreSaid(t *testing.T) {
	f := newFixture(t)
	jane, warnings := f.warnedClient()
	create := func(o client.Object, want string) {
		t.Helper()
		o.SetNamespace(f.ns)
		if err := jane.Create(f.ctx, o); err != nil {
			t.Fatal(err)
		}
		if got := warnings.take(); got != want {
			t.Errorf("the warnings are\n%s\nwant\n%s", got, want)
		}
	}
	f.group("said-hz", 1)
	create(weights("shop", "said-hz", 1), "")
	create(weights("typo", "said-hz", 1, "said-hangzhuo", 1), `NodeGroups that do not exist: "said-hangzhuo"; until they do, the other NodeGroups get their share`)
	f.eventually(patience, "the policies are read", func() error {
		return client.IgnoreNotFound(f.reason("typo", gm.ReasonNotUsed))
	})
	missing := fmt.Sprintf(`PropagationPolicy "shopp" does not exist in namespace %q. Pods wait until it does; the namespace has "shop", "typo"`, f.ns)
	create(deployment("web", 1, "shopp"), missing)
	create(deployment("inside", 0, "", func(d *appsv1.Deployment) {
		d.Labels = nil
		d.Spec.Template.Labels = map[string]string{"app": "inside", gm.RequiredPropagationPolicyLabel: "shop"}
		d.Annotations = map[string]string{gm.RequiredOverridePolicyLabel: "o"}
	}), "spec.template.metadata.labels[groupmanagement.kubeedge.io/required-propagationpolicy] makes every revision a workload of its own there: write it into metadata.labels\n"+
		"metadata.annotations[groupmanagement.kubeedge.io/required-overridepolicy] has no effect: write it into metadata.labels")
	create(deployment("good", 1, "shop"), "")

	said := func(workload string) (notes []string) {
		list, err := f.kube.EventsV1().Events(f.ns).List(f.ctx, metav1.ListOptions{FieldSelector: "reason=PolicyMissing"})
		if err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			if list.Items[i].Regarding.Name == workload {
				notes = append(notes, list.Items[i].Note)
			}
		}
		return notes
	}
	f.eventually(patience, "an event on the workload names the policy", func() error {
		if notes := said("web"); len(notes) != 1 || notes[0] != missing {
			return fmt.Errorf("the events are %q", notes)
		}
		return nil
	})
	f.eventually(patience, "the pod of the other starts", func() error { return f.allReady("good", 1) })

	if err := jane.Delete(f.ctx, &gm.PropagationPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: "shop"}}); err != nil {
		t.Fatal(err)
	}
	f.eventually(patience, "a policy that is used is deleted", func() error {
		if notes := said("good"); len(notes) != 1 || !strings.HasPrefix(notes[0], `PropagationPolicy "shop" does not exist`) {
			return fmt.Errorf("the events are %q", notes)
		}
		return nil
	})
}

// TestDeletionOfANodeGroupWithPodsIsAsked: it is refused until it is confirmed, or no policy has pods there.
func TestDeletionOfANodeGroupWithPodsIsAsked(t *testing.T) {
	f := newFixture(t)
	f.group("ask-hz", 1)
	f.group("ask-sh", 1)
	f.create(weights("policy", "ask-hz", 1, "ask-sh", 1))
	f.create(deployment("app", 2, "policy"))
	f.eventually(patience, "a pod is in each group", func() error { return f.spreadIs("app", map[string]int{"ask-hz": 1, "ask-sh": 1}) })
	hz := &gm.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "ask-hz"}}
	f.eventually(patience, "the deletion is refused", func() error {
		err := f.client.Delete(f.ctx, hz, client.DryRunAll)
		if want := "kubectl annotate nodegroup ask-hz atoll.dev/confirm-deletion=true"; err == nil || !strings.Contains(err.Error(), want) {
			return fmt.Errorf("the answer is not %q: %w", want, err)
		}
		return nil
	})
	if err := f.client.Delete(f.ctx, hz); err == nil {
		t.Fatal("the group is deleted")
	}
	f.deleteNodeGroup("ask-hz")
	f.eventually(patience, "its pod is in the other group", func() error { return f.spreadIs("app", map[string]int{"ask-sh": 2}) })
}
