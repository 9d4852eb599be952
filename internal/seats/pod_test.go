package seats

import (
	"reflect"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/capacity"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// TestSlimReadsEachFieldOfAPod: each field is read from its own part of the pod, and from no other.
func TestSlimReadsEachFieldOfAPod(t *testing.T) {
	condition := func(kind corev1.PodConditionType, status corev1.ConditionStatus, reason, message string) build.Option {
		return build.With(func(p *corev1.Pod) {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{
				Type: kind, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.Unix(7, 0),
			})
		})
	}
	refused := func(text string) build.Option {
		return condition(corev1.PodScheduled, corev1.ConditionFalse, corev1.PodReasonUnschedulable, "0/5 nodes are available: 5 "+text+".")
	}
	phase := func(phase corev1.PodPhase) build.Option {
		return build.With(func(p *corev1.Pod) { p.Status.Phase = phase })
	}
	volume := func(source corev1.VolumeSource) build.Option {
		return build.With(func(p *corev1.Pod) { p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: source}} })
	}
	gate := func(name string) build.Option {
		return build.With(func(p *corev1.Pod) {
			p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: name})
		})
	}
	cost := func(value, ours string) build.Option {
		return build.With(func(p *corev1.Pod) {
			p.Annotations = map[string]string{corev1.PodDeletionCost: value, gm.DeletionCostAnnotation: ours}
		})
	}
	tests := map[string]struct {
		options []build.Option
		field   string
		want    any
	}{
		"it runs":                         {nil, "Active", true},
		"it terminates":                   {[]build.Option{build.Deleting("x")}, "Active", false},
		"what terminates is not finished": {[]build.Option{build.Deleting("x")}, "Finished", false},
		"it has succeeded":                {[]build.Option{phase(corev1.PodSucceeded)}, "Finished", true},
		"it has failed":                   {[]build.Option{phase(corev1.PodFailed)}, "Finished", true},
		"what is finished is not active":  {[]build.Option{phase(corev1.PodFailed)}, "Active", false},
		"pending is not finished":         {[]build.Option{phase(corev1.PodPending)}, "Finished", false},
		"ready":                           {[]build.Option{condition(corev1.PodReady, corev1.ConditionTrue, "", "")}, "Ready", true},
		"not ready":                       {[]build.Option{condition(corev1.PodReady, corev1.ConditionFalse, "", "")}, "Ready", false},
		"initialized is not ready":        {[]build.Option{condition(corev1.PodInitialized, corev1.ConditionTrue, "", "")}, "Ready", false},
		"no node was found":               {[]build.Option{refused("x")}, "Unschedulable", true},
		"since when":                      {[]build.Option{refused("x")}, "UnschedulableSince", time.Unix(7, 0)},
		"it waits at a gate":              {[]build.Option{condition(corev1.PodScheduled, corev1.ConditionFalse, corev1.PodReasonSchedulingGated, "")}, "Unschedulable", false},
		"it was scheduled":                {[]build.Option{condition(corev1.PodScheduled, corev1.ConditionTrue, corev1.PodReasonUnschedulable, "")}, "Unschedulable", false},
		"nothing was refused":             {[]build.Option{refused("Insufficient cpu")}, "Refused", false},
		"another group's turn":            {[]build.Option{refused(TextOtherGroup)}, "Refused", true},
		"outside of groups":               {[]build.Option{refused(TextOutsideGroups)}, "Refused", true},
		"our gate":                        {[]build.Option{gate("other"), gate(gm.PolicyGate)}, "Gated", true},
		"our gate before another":         {[]build.Option{gate(gm.PolicyGate), gate("other")}, "Gated", true},
		"another's gate":                  {[]build.Option{gate("other")}, "Gated", false},
		"no cost":                         {nil, "HasCost", false},
		"no cost is not ours":             {nil, "OwnCost", false},
		"a cost":                          {[]build.Option{cost("-7", "")}, "DeletionCost", int32(-7)},
		"a cost of another client":        {[]build.Option{cost("7", "6")}, "OwnCost", false},
		"our cost":                        {[]build.Option{cost("7", "7")}, "OwnCost", true},
		"a cost that is not a number":     {[]build.Option{cost("much", "much")}, "HasCost", false},
		"a cost that is too high":         {[]build.Option{cost("2147483648", "2147483648")}, "HasCost", false},
		"a claim":                         {[]build.Option{volume(corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}})}, "Claims", true},
		"a claim of its own":              {[]build.Option{volume(corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}})}, "Claims", true},
		"a volume that is no claim":       {[]build.Option{volume(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})}, "Claims", false},
		"no pod is preempted for it":      {nil, "Nominated", false},
		"pods are preempted for it":       {[]build.Option{build.With(func(p *corev1.Pod) { p.Status.NominatedNodeName = "n" })}, "Nominated", true},
		"it passed no webhook":            {nil, "Admitted", false},
		"it passed the webhook":           {[]build.Option{build.Annotation(gm.AdmittedAnnotation, "x")}, "Admitted", true},
		"it was not created for its node": {[]build.Option{build.Annotation(gm.CapacityReasonAnnotation, "x")}, "NamesNode", false},
		"it was created for its node":     {[]build.Option{build.Annotation(gm.CapacityReasonAnnotation, capacity.NamesNode)}, "NamesNode", true},
		"no seat":                         {nil, "Seat", types.UID("")},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := Slim(build.Pod("p", tc.options...))
			if got := reflect.ValueOf(*pod).FieldByName(tc.field).Interface(); !reflect.DeepEqual(got, tc.want) {
				t.Errorf("%s is %v, want %v", tc.field, got, tc.want)
			}
		})
	}
}

// TestContainerCountsAsRestartingAfterImageChange: a container whose image was changed in place counts as
// restarting until its restartCount has increased.
func TestContainerCountsAsRestartingAfterImageChange(t *testing.T) {
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	pod := build.Pod("p",
		build.Annotation(gm.RestartingAnnotation, `{"init":0,"same":2,"more":2}`), build.Annotation(gm.OriginalImagesAnnotation, `{"same":"base:1"}`),
		build.With(func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "init", Image: "i:1"}}
			p.Spec.Containers = []corev1.Container{{Name: "same", Image: "a:1"}, {Name: "more", Image: "b:1"}, {Name: "new", Image: "c:1"}, {Name: "other", Image: "d:1"}}
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "init", RestartCount: 1}}
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "same", RestartCount: 2, State: running}, {Name: "more", RestartCount: 3}, {Name: "other", RestartCount: 9, State: running}}
		}))
	got := Slim(pod)
	want := []Container{
		{Name: "init", Init: true, Image: "i:1", Restarts: 1},
		{Name: "same", Image: "a:1", Restarts: 2, Running: true, Restarting: true},
		{Name: "more", Image: "b:1", Restarts: 3},
		{Name: "new", Image: "c:1"},
		{Name: "other", Image: "d:1", Restarts: 9, Running: true},
	}
	if !reflect.DeepEqual(got.Containers, want) {
		t.Errorf("containers are %+v\nwant %+v", got.Containers, want)
	}
	if !reflect.DeepEqual(got.Originals, map[string]string{"same": "base:1"}) {
		t.Errorf("originals are %v", got.Originals)
	}
}

// TestWhichContainersCannotStart: those whose image the kubelet cannot pull, and those that wait for
// one of them. A container that ran before, or may be started at any moment, is none.
func TestWhichContainersCannotStart(t *testing.T) {
	waits := func(name, reason string) corev1.ContainerStatus {
		return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}}
	}
	ran, again := waits("a", "ImagePullBackOff"), waits("a", "ErrImagePull")
	ran.LastTerminationState.Terminated, again.RestartCount = &corev1.ContainerStateTerminated{}, 1
	for name, tc := range map[string]struct {
		init, statuses []corev1.ContainerStatus
		want           []string
	}{
		"no status yet":                {},
		"being created":                {statuses: []corev1.ContainerStatus{waits("a", "ContainerCreating"), waits("b", "ContainerCreating")}},
		"one cannot be pulled":         {statuses: []corev1.ContainerStatus{waits("a", "ErrImagePull"), waits("b", "ContainerCreating")}, want: []string{"a"}},
		"it ended before":              {statuses: []corev1.ContainerStatus{ran}},
		"it was started again before":  {statuses: []corev1.ContainerStatus{again}},
		"it crashes":                   {statuses: []corev1.ContainerStatus{waits("a", "CrashLoopBackOff")}},
		"all wait for the first":       {init: []corev1.ContainerStatus{waits("first", "ImagePullBackOff")}, statuses: []corev1.ContainerStatus{waits("a", "PodInitializing"), waits("b", "PodInitializing")}, want: []string{"first", "a", "b"}},
		"the first is about to start":  {init: []corev1.ContainerStatus{waits("first", "PodInitializing")}, statuses: []corev1.ContainerStatus{waits("a", "PodInitializing"), waits("b", "PodInitializing")}},
		"another status has no effect": {init: []corev1.ContainerStatus{waits("unknown", "ImagePullBackOff")}, statuses: []corev1.ContainerStatus{waits("a", "PodInitializing")}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, c := range Slim(build.Pod("p", build.With(func(p *corev1.Pod) {
				p.Spec.InitContainers = []corev1.Container{{Name: "first"}}
				p.Spec.Containers = []corev1.Container{{Name: "a"}, {Name: "b"}}
				p.Status.InitContainerStatuses, p.Status.ContainerStatuses = tc.init, tc.statuses
			}))).Containers {
				if c.Unpulled {
					got = append(got, c.Name)
				}
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("%v cannot start, want %v", got, tc.want)
			}
		})
	}
}

// TestPinnedAndGivenUpPods: which pods are pinned or given up.
func TestPinnedAndGivenUpPods(t *testing.T) {
	for _, seat := range []types.UID{"", "s"} {
		for _, group := range []string{"", "g"} {
			if got, want := (&Pod{Seat: seat, GroupStamp: group}).Pinned(), seat != "" && group != ""; got != want {
				t.Errorf("seat %q, group %q: pinned: %t", seat, group, got)
			}
		}
	}
	web, other := build.ReplicaSet("web"), build.ReplicaSet("other")
	created := build.Annotation(gm.CreatedForAnnotation, string(web.GetUID()))
	for name, tc := range map[string]struct {
		options []build.Option
		want    bool
	}{
		"its owner's":                  {[]build.Option{created, build.OwnedBy(web)}, false},
		"without an owner":             {[]build.Option{created}, true},
		"another's":                    {[]build.Option{created, build.OwnedBy(other)}, true},
		"not overridden":               {nil, false},
		"it terminates":                {[]build.Option{created, build.Deleting("x")}, false},
		"another's from the beginning": {[]build.Option{build.OwnedBy(other)}, false},
	} {
		if got := Slim(build.Pod("p", tc.options...)).GivenUp(); got != tc.want {
			t.Errorf("%s: given up: %t", name, got)
		}
	}
}

// TestNodeNameFromDaemonSetAffinity: it is the node that a DaemonSet names in the affinity of its pod.
func TestNodeNameFromDaemonSetAffinity(t *testing.T) {
	demand := func(key string, operator corev1.NodeSelectorOperator, values ...string) build.Option {
		return build.With(func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{Key: key, Operator: operator, Values: values}}}},
			}}}
		})
	}
	daemons := build.OwnedBy(build.DaemonSet("agent"))
	for name, tc := range map[string]struct {
		options []build.Option
		want    string
	}{
		"a DaemonSet's":    {[]build.Option{daemons, demand(metav1.ObjectNameField, corev1.NodeSelectorOpIn, "n")}, "n"},
		"a ReplicaSet's":   {[]build.Option{build.OwnedBy(build.ReplicaSet("web")), demand(metav1.ObjectNameField, corev1.NodeSelectorOpIn, "n")}, ""},
		"without an owner": {[]build.Option{demand(metav1.ObjectNameField, corev1.NodeSelectorOpIn, "n")}, ""},
		"without a demand": {[]build.Option{daemons}, ""},
		"by another field": {[]build.Option{daemons, demand("metadata.uid", corev1.NodeSelectorOpIn, "n")}, ""},
		"any node but one": {[]build.Option{daemons, demand(metav1.ObjectNameField, corev1.NodeSelectorOpNotIn, "n")}, ""},
		"several nodes":    {[]build.Option{daemons, demand(metav1.ObjectNameField, corev1.NodeSelectorOpIn, "n", "o")}, ""},
	} {
		if got := NodeOf(build.Pod("p", tc.options...)); got != tc.want {
			t.Errorf("%s: it is for %q, want %q", name, got, tc.want)
		}
	}
}

// TestUserCostExcludesOwnDeletionCost: a deletion cost that somebody else has written is not ours to
// change.
func TestUserCostExcludesOwnDeletionCost(t *testing.T) {
	for _, has := range []bool{false, true} {
		for _, own := range []bool{false, true} {
			if got, want := (&Pod{HasCost: has, OwnCost: own}).UserCost(), has && !own; got != want {
				t.Errorf("a cost: %t, ours: %t, the user's: %t", has, own, got)
			}
		}
	}
}

// TestTheObjectOfAPod: the object is the start of a walk up the owners, also for a
// terminating pod.
func TestTheObjectOfAPod(t *testing.T) {
	for name, tc := range map[string]struct {
		options  []build.Option
		deleting bool
	}{"runs": {nil, false}, "terminates": {[]build.Option{build.Deleting("x")}, true}} {
		o := Slim(build.Pod(name, append(tc.options, build.OwnedBy(build.ReplicaSet("web")), build.Seated("a"))...)).Object()
		if o.Kind != "Pod" || o.Namespace != "ns" || o.Name != name || o.UID != types.UID(name) || o.Controller.Name != "web" || o.Seat == "" || o.Deleting != tc.deleting {
			t.Errorf("the object of a pod that %s is %+v", name, o)
		}
	}
}
