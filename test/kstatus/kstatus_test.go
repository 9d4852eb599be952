// Package kstatus checks that tools which wait for objects, as Flux does, understand ours: they
// read conditions by the rules of kstatus.
package kstatus

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	lua "github.com/yuin/gopher-lua"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/yaml"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	capacity "github.com/atoll-k8s/atoll/api/capacity/v1alpha1"
	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/machinery/conditions"
)

// other is a reason of another condition, or of an event.
const other = status.Status("")

// api is what kstatus is to say of the objects of one package of api, by the reason of Ready.
var api = []struct {
	dir       string // below api/
	group     string
	isStalled func(reason string) bool
	want      map[string]status.Status
}{
	{"groupmanagement/v1alpha1", gm.GroupVersion.Group, gm.IsStalled, map[string]status.Status{
		gm.ReasonMembersReady: status.CurrentStatus, gm.ReasonSatisfied: status.CurrentStatus, gm.ReasonNotUsed: status.CurrentStatus,
		gm.ReasonInvalidSelector: status.FailedStatus, gm.ReasonInvalid: status.FailedStatus, gm.ReasonOverrideRefused: status.FailedStatus, gm.ReasonOverridesStopped: status.FailedStatus,
		gm.ReasonNoMembers: status.InProgressStatus, gm.ReasonMembersNotReady: status.InProgressStatus, gm.ReasonNodesNotSelected: status.InProgressStatus,
		gm.ReasonConverging: status.InProgressStatus, gm.ReasonNodeGroupsAway: status.InProgressStatus, gm.ReasonNodeGroupsMissing: status.InProgressStatus,
		gm.ReasonPodsWaiting: status.InProgressStatus, gm.ReasonBlockedByPDB: status.InProgressStatus, gm.ReasonNoFeasibleTarget: status.InProgressStatus,
		gm.ReasonNoPods: status.InProgressStatus, gm.ReasonPodsRefused: status.InProgressStatus, gm.ReasonOverrideNotTried: status.InProgressStatus, gm.ReasonObservationFailed: status.InProgressStatus,
		gm.ReasonNodesCannotJoin: other, gm.ReasonNodesCanJoin: other, gm.ReasonLabelGuardUnknown: other,
	}},
	{"apps/v1alpha1", apps.GroupVersion.Group, apps.IsStalled, map[string]status.Status{
		apps.ReasonNodesReady: status.CurrentStatus, apps.ReasonPodReady: status.CurrentStatus, apps.ReasonPodsReady: status.CurrentStatus,
		apps.ReasonInvalid: status.FailedStatus, apps.ReasonAnotherCoordinator: status.FailedStatus, apps.ReasonVersionNotSupported: status.FailedStatus,
		apps.ReasonPatchInvalid: status.FailedStatus, apps.ReasonNameTaken: status.FailedStatus, apps.ReasonProgressDeadlineExceeded: status.FailedStatus, apps.ReasonStopped: status.FailedStatus,
		apps.ReasonNoNodes: status.InProgressStatus, apps.ReasonNodesNotReady: status.InProgressStatus, apps.ReasonNodesLeft: status.InProgressStatus,
		apps.ReasonSyncing: status.InProgressStatus, apps.ReasonSyncFailed: status.InProgressStatus, apps.ReasonTaintsWait: status.InProgressStatus, apps.ReasonNodesContested: status.InProgressStatus,
		apps.ReasonPodsNotReady: status.InProgressStatus, apps.ReasonNodePoolMissing: status.InProgressStatus, apps.ReasonProvisioning: status.InProgressStatus, apps.ReasonDraining: status.InProgressStatus,
		apps.ReasonUpdating: status.InProgressStatus, apps.ReasonPaused: status.InProgressStatus, apps.ReasonRefused: status.InProgressStatus, apps.ReasonPodsRefused: status.InProgressStatus,
		apps.ReasonRevisionFailed: status.InProgressStatus, apps.ReasonObservationFailed: status.InProgressStatus,
		apps.ReasonFewNodes: status.InProgressStatus, apps.ReasonNodeAutonomy: status.InProgressStatus, apps.ReasonUnitedDeploymentMissing: status.InProgressStatus,
		apps.ReasonWriteFailed: status.InProgressStatus, apps.ReasonNotScheduled: status.InProgressStatus, apps.ReasonPodNotReady: status.InProgressStatus,
		apps.ReasonSynced: other, apps.ReasonTolerated: other, apps.ReasonNodesCanJoin: other, apps.ReasonLabelGuardUnknown: other, apps.ReasonUncontested: other,
		apps.ReasonJoinedNodePool: other, apps.ReasonMovedNodePool: other, apps.ReasonLeftNodePool: other, apps.ReasonNodePoolAttributesRepaired: other, apps.ReasonNodePoolRecordLost: other,
		apps.ReasonProvisioned: other, apps.ReasonUpdated: other, apps.ReasonPartitioned: other, apps.ReasonNoFailure: other,
		apps.ReasonDeployed: other, apps.ReasonIssued: other, apps.ReasonPoolSilent: other, apps.ReasonNotFrozen: other, apps.ReasonKubeletsAccept: other, apps.ReasonKubeletsRefuse: other,
	}},
	{"capacity/v1alpha1", capacity.GroupVersion.Group, capacity.IsStalled, map[string]status.Status{
		capacity.ReasonSatisfied: status.CurrentStatus, capacity.ReasonInvalid: status.FailedStatus,
		capacity.ReasonConverging: status.InProgressStatus, capacity.ReasonPodsWaiting: status.InProgressStatus, capacity.ReasonNoNodes: status.InProgressStatus,
		capacity.ReasonFellBack: status.InProgressStatus, capacity.ReasonNoRoom: status.InProgressStatus, capacity.ReasonBlockedByPDB: status.InProgressStatus,
		capacity.ReasonPinned: status.InProgressStatus, capacity.ReasonNotAdmitted: status.InProgressStatus, capacity.ReasonPodsRefused: status.InProgressStatus,
		capacity.ReasonObservationFailed: status.InProgressStatus,
	}},
}

// TestEachReason: an object is Current when it is Ready, Failed when only a person can help, and
// InProgress otherwise; until its last change was seen it is InProgress.
func TestEachReason(t *testing.T) {
	for _, a := range api {
		t.Run(a.dir, func(t *testing.T) {
			reasons := reasonsOf(t, a.dir)
			for reason := range a.want {
				if !reasons[reason] {
					t.Errorf("%s is no reason any more", reason)
				}
			}
			for reason := range reasons {
				want, is := a.want[reason]
				switch {
				case !is:
					t.Errorf("what kstatus is to say of reason %s is not told here", reason)
				case want != other:
					isReady := metav1.ConditionFalse
					if want == status.CurrentStatus {
						isReady = metav1.ConditionTrue
					}
					compare(t, reason, want, object(1, isReady, reason, a.isStalled(reason)))
					compare(t, reason+", and then a change", status.InProgressStatus, object(2, isReady, reason, a.isStalled(reason)))
				}
			}
		})
	}
}

// TestHealthOfArgoCD: the lines for Argo CD say the same as kstatus.
func TestHealthOfArgoCD(t *testing.T) {
	raw, err := os.ReadFile("../../examples/gitops/argocd-cm.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var configMap corev1.ConfigMap
	var kinds map[string]struct {
		Health string `json:"health.lua"`
	}
	if err := yaml.UnmarshalStrict(raw, &configMap); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal([]byte(configMap.Data["resource.customizations"]), &kinds); err != nil {
		t.Fatal(err)
	}
	want := map[status.Status]string{status.CurrentStatus: "Healthy", status.FailedStatus: "Degraded", status.InProgressStatus: "Progressing"}
	for _, a := range api {
		health := kinds[a.group+"/*"].Health
		for reason, is := range a.want {
			if is == other {
				continue
			}
			isReady := metav1.ConditionFalse
			if is == status.CurrentStatus {
				isReady = metav1.ConditionTrue
			}
			if got := healthOf(t, health, object(1, isReady, reason, a.isStalled(reason))); got != want[is] {
				t.Errorf("%s, %s: %q, want %q", a.group, reason, got, want[is])
			}
			if got := healthOf(t, health, object(2, isReady, reason, a.isStalled(reason))); got != "Progressing" {
				t.Errorf("%s, %s, and then a change: %q", a.group, reason, got)
			}
		}
	}
}

// healthOf runs a health check of Argo CD.
func healthOf(t *testing.T, health string, o *unstructured.Unstructured) string {
	t.Helper()
	l := lua.NewState()
	defer l.Close()
	l.SetGlobal("obj", luaOf(l, o.Object))
	if err := l.DoString(health); err != nil {
		t.Fatal(err)
	}
	result, is := l.Get(-1).(*lua.LTable)
	if !is {
		t.Fatalf("the check returns %s", l.Get(-1))
	}
	return lua.LVAsString(result.RawGetString("status"))
}

func luaOf(l *lua.LState, value any) lua.LValue {
	switch value := value.(type) {
	case string:
		return lua.LString(value)
	case int64:
		return lua.LNumber(value)
	case []any:
		table := l.NewTable()
		for _, item := range value {
			table.Append(luaOf(l, item))
		}
		return table
	case map[string]any:
		table := l.NewTable()
		for key, item := range value {
			table.RawSetString(key, luaOf(l, item))
		}
		return table
	}
	return lua.LNil
}

func compare(t *testing.T, what string, want status.Status, o *unstructured.Unstructured) {
	t.Helper()
	got, err := status.Compute(o)
	if err != nil || got.Status != want {
		t.Errorf("%s: %v, %v, want %s", what, got, err, want)
	}
}

// object has a status that was computed for generation 1.
func object(generation int64, isReady metav1.ConditionStatus, reason string, isStalled bool) *unstructured.Unstructured {
	var all []metav1.Condition
	conditions.SetReady(&all, 1, metav1.ConditionFalse, "Before", "an earlier state", true)
	conditions.SetReady(&all, 1, isReady, reason, "why", isStalled)
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Thing",
		"metadata": map[string]any{"name": "x", "namespace": "y", "generation": generation},
		"status":   map[string]any{"observedGeneration": int64(1)},
	}}
	var list []any
	for _, c := range all {
		list = append(list, map[string]any{"type": c.Type, "status": string(c.Status), "reason": c.Reason, "message": c.Message})
	}
	_ = unstructured.SetNestedSlice(o.Object, list, "status", "conditions")
	return o
}

// reasonsOf returns the values of all constants Reason… of a package of api.
func reasonsOf(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("../../api", dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no files in %s: %v", dir, err)
	}
	reasons := map[string]bool{}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			if spec, is := n.(*ast.ValueSpec); is && len(spec.Values) == 1 && strings.HasPrefix(spec.Names[0].Name, "Reason") {
				if literal, is := spec.Values[0].(*ast.BasicLit); is {
					value, _ := strconv.Unquote(literal.Value)
					reasons[value] = true
				}
			}
			return true
		})
	}
	return reasons
}
