package command

import (
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/atoll-k8s/atoll/internal/kubectl/doctor"
	"github.com/atoll-k8s/atoll/internal/kubectl/explain"
	"github.com/atoll-k8s/atoll/internal/kubectl/plan"
	"github.com/atoll-k8s/atoll/internal/kubectl/status"
	"github.com/atoll-k8s/atoll/internal/kubectl/top"
	"github.com/atoll-k8s/atoll/internal/kubectl/tree"
)

var update = flag.Bool("update", false, "write the files of testdata")

const (
	noNodes = "you may not list nodes: no role that is always there has the right; kubectl create clusterrole node-viewer --verb=get,list,watch --resource=nodes makes one"
	shopp   = `PropagationPolicy "shopp", which Deployment web requires, is not in namespace default; there is "shop"`
	label   = "kubectl -n default label deployment.apps web groupmanagement.kubeedge.io/required-propagationpolicy=shop --overwrite"
)

// outputs are what each verb prints for people.
var outputs = map[string]func(io.Writer) error{
	"explain-pod": func(w io.Writer) error {
		return writeExplanation(w, &explain.Explanation{
			Namespace: "default", Pod: "web-6f7c8d5b9-q2x4l",
			Facts: []explain.Fact{
				{About: "Owner", Text: "Deployment web › ReplicaSet web-6f7c8d5b9"},
				{About: "Policy", Text: "PropagationPolicy shop: weights hangzhou 3, beijing 2, shanghai 1, guangzhou 1"},
				{About: "Override", Text: "OverridePolicy registry, spec.overrideRules[0]: images hangzhou.registry.io/nginx:1.27"},
				{About: "Override", Text: "OverridePolicy registry, spec.overrideRules[1]: args --site=hangzhou"},
			},
			Waits: &explain.Obstacle{Why: shopp, Command: label}, Unread: []string{noNodes},
		})
	},
	"explain-workload": func(w io.Writer) error {
		return writeWorkload(w, &explain.Workload{
			Namespace: "default", Kind: "Deployment", Name: "web",
			Facts: []explain.Fact{{About: "Policy", Text: "PropagationPolicy shop: weights hangzhou 3, beijing 2"}, {About: "Pods", Text: "3 of 9 are Ready"}},
			Waits: []explain.Waiting{
				{Obstacle: explain.Obstacle{Why: shopp, Command: label}, Pods: []string{"web-6f7c8d5b9-q2x4l", "web-6f7c8d5b9-8zk7c"}},
				{Obstacle: explain.Obstacle{Why: "all nodes of NodeGroup \"beijing\" are cordoned", Command: "kubectl uncordon beijing-0"}, Pods: []string{"web-6f7c8d5b9-x5d2z"}},
				{Obstacle: explain.Obstacle{Why: "a quota forbids more pods", Command: "kubectl -n default describe replicaset web-6f7c8d5b9"}},
			},
			Stays: &explain.Obstacle{Why: `pods are surplus and stay for now: PodDisruptionBudget "web" allows no eviction`, Command: "kubectl -n default describe pdb web"},
			More:  3,
		})
	},
	"plan": func(w io.Writer) error {
		p := plan.Plan{
			Workloads: []plan.Workload{{
				Kind: "Deployment", Namespace: "default", Name: "web", PropagationPolicy: "shop", OverridePolicy: "registry", AtATime: 1,
				Groups:   []plan.Group{{Name: "beijing", Now: 5, Then: 3}, {Name: "hangzhou", Now: 5, Then: 7}, {Now: 1}},
				Moves:    []plan.Pod{{Name: "web-6f7c8d5b9-q2x4l", Group: "beijing"}, {Name: "web-6f7c8d5b9-8zk7c"}},
				Restarts: []plan.Pod{{Name: "web-6f7c8d5b9-x5d2z", Group: "hangzhou", Images: map[string]plan.Change{"nginx": {Now: "nginx:1.27", Then: "hangzhou.registry.io/nginx:1.27"}}}},
				Blocked:  []string{`PodDisruptionBudget "web" allows no eviction now: kubectl describe pdb -n default web`},
			}},
			Unknown: []string{"what UnitedDeployment store changes"},
		}
		_, err := io.WriteString(w, p.Text())
		return err
	},
	"plan-nothing": func(w io.Writer) error { _, err := io.WriteString(w, (&plan.Plan{}).Text()); return err },
	"status": func(w io.Writer) error {
		return writeStatus(w, &status.Status{Namespace: "default", Sections: []status.Section{
			{Name: "Workloads", Good: 1, Total: 2, Problems: []status.Problem{{Name: "default/web", Reason: "PolicyNotFound", Why: "there is no PropagationPolicy shopp", Command: "kubectl atoll explain deployment/web -n default"}}},
			{Name: "PropagationPolicies", Good: 1, Total: 2, Problems: []status.Problem{{Name: "default/new", Why: "atoll-manager has written no status yet", Command: "kubectl get pods -A -l app.kubernetes.io/name=atoll-manager"}}},
			{Name: "NodeGroups", Good: 2, Total: 2, Facts: []string{"hangzhou 2 of 2 nodes Ready", "beijing 2 of 3 nodes Ready"}},
			{Name: "YurtCoordinators", Good: 1, Total: 1, Problems: []status.Problem{{Name: "site", Reason: "OutsidePool", Why: "they do not reach it: beijing-2"}}},
		}, Unread: []string{noNodes}})
	},
	"status-nothing": func(w io.Writer) error { return writeStatus(w, &status.Status{}) },
	"top-groups": func(w io.Writer) error {
		use := func(requests, allocatable string) top.Use {
			return top.Use{Requests: resource.MustParse(requests), Allocatable: resource.MustParse(allocatable)}
		}
		return writeTop(w, &top.Top{Groups: []top.Group{
			{Name: "hangzhou", Nodes: 20, NodesReady: 19, Wanted: 120, Pods: 118, Ready: 117, CPU: use("120500m", "640"), Memory: use("240Gi", "5120Gi")},
			{Name: "beijing", CPU: use("0", "0"), Memory: use("0", "0")},
		}})
	},
	"tree": func(w io.Writer) error {
		pod := func(name, note string) *tree.Branch { return &tree.Branch{Kind: "Pod", Name: name, Note: note} }
		return writeTree(w, &tree.Branch{Kind: "Deployment", Name: "web", Pods: 3, Ready: 2, Branches: []*tree.Branch{
			{Kind: "Revision", Name: "6f7c8d5b9", Pods: 3, Ready: 2, Branches: []*tree.Branch{
				{Kind: "NodeGroup", Name: "hangzhou", Pods: 2, Ready: 2, Branches: []*tree.Branch{
					{Kind: "Node", Name: "hangzhou-0", Pods: 2, Ready: 2, Branches: []*tree.Branch{pod("web-6f7c8d5b9-q2x4l", "on-demand"), pod("web-6f7c8d5b9-8zk7c", "")}},
				}},
				{Kind: "NodeGroup", Name: "none", Pods: 1, Branches: []*tree.Branch{
					{Kind: "Node", Name: "none yet", Pods: 1, Branches: []*tree.Branch{pod("web-6f7c8d5b9-x5d2z", "SchedulingGated")}},
				}},
			}},
		}})
	},
	"doctor": func(w io.Writer) error {
		return writeReport(w, &doctor.Report{
			Namespace: "atoll-system", Version: "0.1.0", Mode: "Pinned", Kubernetes: "v1.36.3",
			Checks: []doctor.Check{
				{Name: "Objects", Faults: []doctor.Fault{{What: "missing: ValidatingAdmissionPolicy atoll-manager-nodes", Command: "helm -n atoll-system get manifest atoll | kubectl apply --server-side --force-conflicts -f -"}}},
				{Name: "Rights", Good: "all 24 objects of RBAC are as they were installed"},
				{Name: "Definitions", Faults: []doctor.Fault{{What: `nodepools.apps.openyurt.io is another owner's: its label app.kubernetes.io/part-of is "yurt-manager". Stop that owner before you take the definition over; or, for pools, install with pools.enabled=false (docs/beside.md)`, Command: "kubectl get crd nodepools.apps.openyurt.io -o yaml"}}},
				{Name: "Nodes"},
			},
			Unread: []string{noNodes},
		})
	},
}

// TestOutputs: what people see, where no terminal is, and on one of 80 columns. go test ./command -update writes the
// files anew.
func TestOutputs(t *testing.T) {
	for name, write := range outputs {
		var text strings.Builder
		if err := write(&text); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for file, got := range map[string]string{name + ".txt": text.String(), name + ".80.txt": wrap(text.String(), 80)} {
			path := filepath.Join("testdata", file)
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("%s: -want +got\n%s", path, diff)
			}
		}
	}
}
