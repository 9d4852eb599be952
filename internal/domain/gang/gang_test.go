package gang

import (
	"encoding/json"
	"fmt"
	"maps"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	scheduling "github.com/atoll-k8s/atoll/api/scheduling/v1beta1"
)

type notes = map[string]string

func TestMinMember(t *testing.T) {
	tests := map[string]struct {
		pod     notes
		owners  []notes
		members *int32
		want    int32
		problem bool
	}{
		"no annotation":                 {nil, nil, new(int32(5)), 1, false},
		"an annotation of an owner":     {nil, []notes{{scheduling.MinMemberAnnotation: "3"}}, new(int32(5)), 3, false},
		"the nearest wins":              {notes{scheduling.MinMemberAnnotation: "2"}, []notes{{scheduling.MinMemberAnnotation: "3"}}, nil, 2, false},
		"no more than there are pods":   {nil, []notes{{scheduling.MinMemberAnnotation: "4"}}, new(int32(1)), 1, false},
		"nor less than one":             {nil, []notes{{scheduling.MinMemberAnnotation: "4"}}, new(int32(0)), 1, false},
		"an unknown number of members":  {nil, []notes{{scheduling.MinMemberAnnotation: "4"}}, nil, 4, false},
		"none at all is one":            {nil, []notes{{scheduling.MinMemberAnnotation: "0"}}, nil, 1, false},
		"below none":                    {nil, []notes{{scheduling.MinMemberAnnotation: "-2"}}, nil, 1, true},
		"junk":                          {nil, []notes{{scheduling.MinMemberAnnotation: "many"}}, nil, 1, true},
		"more than a number can be":     {nil, []notes{{scheduling.MinMemberAnnotation: "9999999999"}}, new(int32(7)), 1, true},
		"the nearest wins, junk or not": {nil, []notes{{scheduling.MinMemberAnnotation: "many"}, {scheduling.MinMemberAnnotation: "2"}}, nil, 1, true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := Want(Pod{Annotations: tc.pod}, tc.owners, tc.members)
			if got.MinMember != tc.want || (len(got.Problems) > 0) != tc.problem {
				t.Errorf("minMember is %d with problems %v, want %d", got.MinMember, got.Problems, tc.want)
			}
		})
	}
}

func TestWant(t *testing.T) {
	pod := Pod{
		Annotations: notes{
			scheduling.RevocableZoneAnnotation: "*", scheduling.JDBMinAvailableAnnotation: "2", "volcano.sh/task-spec": "worker",
			scheduling.NetworkTopologyModeAnnotation: "Soft", scheduling.NetworkTopologyHighestTierAnnotation: "2",
		},
		Labels:            map[string]string{scheduling.PreemptableKey: "true"},
		PriorityClassName: "high",
		Usage:             corev1.ResourceList{"cpu": resource.MustParse("500m"), "requests.cpu": resource.MustParse("500m"), "count/pods": resource.MustParse("1")},
	}
	near := notes{scheduling.QueueNameAnnotation: "teams", "volcano.sh/sla-waiting-time": "1h", scheduling.JDBMaxUnavailableAnnotation: "1", scheduling.RevocableZoneAnnotation: "rz1"}
	far := notes{scheduling.QueueNameAnnotation: "far", scheduling.MinMemberAnnotation: "3", "volcano.sh/sla-waiting-time": "2h", "volcano.sh/other": "x"}
	tier := 2
	want := PodGroup{
		MinMember: 3, Queue: "teams", PriorityClassName: "high",
		MinResources:    corev1.ResourceList{"cpu": resource.MustParse("1500m"), "requests.cpu": resource.MustParse("1500m"), "count/pods": resource.MustParse("3")},
		NetworkTopology: &scheduling.NetworkTopologySpec{Mode: scheduling.NetworkTopologySoft, HighestTierAllowed: &tier},
		Annotations: notes{
			"volcano.sh/sla-waiting-time": "1h", "volcano.sh/other": "x", scheduling.RevocableZoneAnnotation: "*", scheduling.JDBMinAvailableAnnotation: "2",
		},
		Labels: map[string]string{scheduling.PreemptableKey: "true"},
	}
	if diff := cmp.Diff(want, Want(pod, []notes{near, far}, nil), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("wrong PodGroup (-want +got):\n%s", diff)
	}
}

func TestInvalidGangAnnotationsAreReported(t *testing.T) {
	tests := map[string]notes{
		"a queue that can have no such name": {scheduling.QueueNameAnnotation: "No Queue"},
		"a mode that there is not":           {scheduling.NetworkTopologyModeAnnotation: "loose"},
		"a tier that is none":                {scheduling.NetworkTopologyHighestTierAnnotation: "top"},
		"a tier below all":                   {scheduling.NetworkTopologyHighestTierAnnotation: "-1"},
	}
	for name, annotations := range tests {
		t.Run(name, func(t *testing.T) {
			got := Want(Pod{Annotations: annotations}, nil, nil)
			if len(got.Problems) != 1 || got.Queue != "" || got.NetworkTopology != nil && got.NetworkTopology.HighestTierAllowed != nil {
				t.Errorf("got %+v, want one problem and nothing of it used", got)
			}
		})
	}
}

func TestNearestBudgetAnnotationWins(t *testing.T) {
	least, most := notes{scheduling.JDBMinAvailableAnnotation: "1"}, notes{scheduling.JDBMaxUnavailableAnnotation: "2"}
	for name, tc := range map[string]struct {
		pod  notes
		near notes
		far  notes
		want notes
	}{
		"the pod's most, and an owner's least": {most, least, nil, most},
		"the pod's least, and an owner's most": {least, most, nil, least},
		"of owners the nearest":                {nil, most, least, most},
		"one with both":                        {nil, notes{scheduling.JDBMinAvailableAnnotation: "1", scheduling.JDBMaxUnavailableAnnotation: "2"}, nil, least},
	} {
		t.Run(name, func(t *testing.T) {
			got := Want(Pod{Annotations: tc.pod}, []notes{tc.near, tc.far}, nil)
			if diff := cmp.Diff(tc.want, got.Annotations); diff != "" {
				t.Errorf("wrong annotations (-want +got):\n%s", diff)
			}
		})
	}
}

// TestModesInAnyCase checks that the case of annotations that people write does not
// matter.
func TestModesInAnyCase(t *testing.T) {
	for text, want := range map[string]scheduling.NetworkTopologyMode{
		"hard": scheduling.NetworkTopologyHard, "Hard": scheduling.NetworkTopologyHard, "SOFT": scheduling.NetworkTopologySoft,
	} {
		got := Want(Pod{Annotations: notes{scheduling.NetworkTopologyModeAnnotation: text}}, nil, nil)
		if len(got.Problems) > 0 || got.NetworkTopology == nil || got.NetworkTopology.Mode != want {
			t.Errorf("%s: %+v with problems %v", text, got.NetworkTopology, got.Problems)
		}
	}
}

func TestTierZeroIsValid(t *testing.T) {
	got := Want(Pod{Annotations: notes{scheduling.NetworkTopologyHighestTierAnnotation: "0"}}, nil, nil)
	if len(got.Problems) > 0 || got.NetworkTopology == nil || got.NetworkTopology.HighestTierAllowed == nil || *got.NetworkTopology.HighestTierAllowed != 0 {
		t.Errorf("got %+v", got)
	}
}

func TestIsExtendedResource(t *testing.T) {
	for name, want := range map[corev1.ResourceName]bool{
		"nvidia.com/gpu": true, "cpu": false, "hugepages-2Mi": false, "pods": false,
		"kubernetes.io/batch": false, "scheduling.kubernetes.io/x": false, "requests.nvidia.com/gpu": false,
	} {
		if got := isExtended(name); got != want {
			t.Errorf("%s is: %t, want %t", name, got, want)
		}
	}
}

func TestChangesWithOneFieldAreNotEmpty(t *testing.T) {
	one := map[string]any{"a": "b"}
	for _, c := range []Changes{{Spec: one}, {Labels: one}, {Annotations: one}} {
		if c.None() {
			t.Errorf("%+v is none", c)
		}
	}
}

func TestUsageOf(t *testing.T) {
	list := func(pairs ...string) corev1.ResourceList {
		out := corev1.ResourceList{}
		for i := 0; i < len(pairs); i += 2 {
			out[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
		}
		return out
	}
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: list("cpu", "2")}}},
		Containers: []corev1.Container{
			{Resources: corev1.ResourceRequirements{Requests: list("cpu", "500m", "memory", "1Gi", "nvidia.com/gpu", "1"), Limits: list("memory", "2Gi", "nvidia.com/gpu", "1")}},
			{Resources: corev1.ResourceRequirements{Requests: list("cpu", "500m", "ephemeral-storage", "1Gi"), Limits: list("ephemeral-storage", "3Gi")}},
		},
		Overhead: list("cpu", "100m"),
	}}
	want := list("cpu", "2100m", "requests.cpu", "2100m", "memory", "1Gi", "requests.memory", "1Gi", "limits.memory", "2Gi",
		"ephemeral-storage", "1Gi", "requests.ephemeral-storage", "1Gi", "limits.ephemeral-storage", "3Gi",
		"nvidia.com/gpu", "1", "requests.nvidia.com/gpu", "1", "pods", "1", "count/pods", "1")
	if diff := cmp.Diff(want, UsageOf(pod)); diff != "" {
		t.Errorf("wrong usage (-want +got):\n%s", diff)
	}
}

// TestUsageKeepsABoundedNumberOfResources: users write their names, and may write any number.
func TestUsageKeepsABoundedNumberOfResources(t *testing.T) {
	many := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), "zzz.io/x": resource.MustParse("1")}
	for i := range 1000 {
		many[corev1.ResourceName(fmt.Sprintf("example.com/r%04d", i))] = resource.MustParse("1")
	}
	usage := UsageOf(&corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: many}}}}})
	want := corev1.ResourceList{"pods": resource.MustParse("1"), "count/pods": resource.MustParse("1"), "cpu": resource.MustParse("1"), "requests.cpu": resource.MustParse("1")}
	for i := range maxResources {
		name := corev1.ResourceName(fmt.Sprintf("example.com/r%04d", i))
		want[name], want["requests."+name] = resource.MustParse("1"), resource.MustParse("1")
	}
	if diff := cmp.Diff(want, usage); diff != "" {
		t.Errorf("wrong usage (-want +got):\n%s", diff)
	}
}

// TestChangesLeaveWhatOthersWrote checks that a merge patch of the changes gives the keys
// their wanted values and changes nothing else.
func TestChangesLeaveWhatOthersWrote(t *testing.T) {
	values := rapid.MapOfN(rapid.SampledFrom([]string{"a", "b", "c", "d"}), rapid.SampledFrom([]any{"x", "y", float64(1), map[string]any{"k": "1"}, map[string]any{"l": "2"}}), 0, 4)
	rapid.Check(t, func(t *rapid.T) {
		last := &Applied{Spec: values.Draw(t, "last")}
		want := &Applied{Spec: values.Draw(t, "want")}
		others := values.Draw(t, "others")
		now := maps.Clone(last.Spec)
		maps.Copy(now, others) // edits and additions by others
		changes := want.Changes(last, &Applied{Spec: now})
		if cmp.Equal(want.Spec, last.Spec) != changes.None() {
			t.Fatalf("changes are %v from %v to %v", changes, last.Spec, want.Spec)
		}
		before, _ := json.Marshal(now)
		patch, _ := json.Marshal(changes.Spec)
		raw, err := jsonpatch.MergePatch(before, patch)
		if err != nil {
			t.Fatal(err)
		}
		after := map[string]any{}
		if err := json.Unmarshal(raw, &after); err != nil {
			t.Fatal(err)
		}
		for key := range map[string]bool{"a": true, "b": true, "c": true, "d": true} {
			is, wanted, wanting := after[key], want.Spec[key], false
			if was, had := last.Spec[key]; had || want.Spec[key] != nil {
				wanting = !cmp.Equal(was, wanted)
			}
			switch _, isMap := wanted.(map[string]any); {
			case wanting && isMap:
				for k, v := range wanted.(map[string]any) {
					if m, ok := is.(map[string]any); !ok || m[k] != v {
						t.Fatalf("%s is %v, want %v", key, is, wanted)
					}
				}
			case wanting && !cmp.Equal(is, wanted):
				t.Fatalf("%s is %v, want %v (last %v)", key, is, wanted, last.Spec[key])
			case !wanting && !cmp.Equal(is, now[key]):
				t.Fatalf("%s is %v, but others wrote %v", key, is, now[key])
			}
		}
	})
}

// TestChangesRemoveKeysOfTheOldValue checks values that are objects: a merge patch would
// keep keys that the new value does not have.
func TestChangesRemoveKeysOfTheOldValue(t *testing.T) {
	type object = map[string]any
	last := &Applied{Spec: object{
		"networkTopology": object{"mode": "soft", "highestTierAllowed": float64(2)}, "minResources": object{"cpu": "1", "memory": "1Gi"}, "queue": "a",
	}}
	want := &Applied{Spec: object{"networkTopology": object{"mode": "hard"}, "minResources": object{"cpu": "1", "pods": "2"}, "queue": object{"name": "b"}}}
	changes := object{
		"networkTopology": object{"mode": "hard", "highestTierAllowed": nil}, "minResources": object{"cpu": "1", "memory": nil, "pods": "2"}, "queue": object{"name": "b"},
	}
	if diff := cmp.Diff(changes, want.Changes(last, nil).Spec); diff != "" {
		t.Errorf("wrong changes (-want +got):\n%s", diff)
	}
}

func TestAdoptionChangesOnlyWantedFields(t *testing.T) {
	now := &Applied{Spec: map[string]any{"minMember": float64(1), "queue": "theirs"}, Labels: notes{"app": "x"}}
	want := &Applied{Spec: map[string]any{"minMember": float64(2)}, Annotations: notes{"volcano.sh/a": "1"}}
	changes := want.Changes(nil, now)
	if diff := cmp.Diff(&Changes{Spec: map[string]any{"minMember": float64(2)}, Annotations: map[string]any{"volcano.sh/a": "1"}}, changes, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("wrong changes (-want +got):\n%s", diff)
	}
}

func TestAppliedRoundTripsThroughTheAnnotation(t *testing.T) {
	want := Want(Pod{PriorityClassName: "p", Usage: corev1.ResourceList{"cpu": resource.MustParse("1")}, Annotations: notes{scheduling.PreemptableKey: "true"}}, nil, new(int32(2)))
	applied, err := want.Applied()
	if err != nil {
		t.Fatal(err)
	}
	text, err := applied.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if changes := applied.Changes(ParseApplied(text), nil); !changes.None() {
		t.Errorf("what was written is to be written again: %+v", changes)
	}
	for _, junk := range []string{"", "{", `"x"`, `{"spec": 1}`} {
		if ParseApplied(junk) != nil {
			t.Errorf("%q is read", junk)
		}
	}
}

func TestNames(t *testing.T) {
	if got := OwnerOf(Name("4711")); got != "4711" {
		t.Errorf("the PodGroup of 4711 is that of %q", got)
	}
	if got := OwnerOf("somebody-elses"); got != "" {
		t.Errorf("a name of others has the owner %q", got)
	}
}

// TestFilters checks that Annotations and Labels leave out other keys, which would only
// use memory in every replica.
func TestFilters(t *testing.T) {
	all := notes{
		scheduling.MinMemberAnnotation: "3", scheduling.QueueNameAnnotation: "q", scheduling.InheritedPrefix + "sla-waiting-time": "1h",
		scheduling.PreemptableKey: "true", scheduling.CooldownTimeKey: "1m", "app": "web",
	}
	annotations, labels := maps.Clone(all), notes{scheduling.PreemptableKey: "true", scheduling.CooldownTimeKey: "1m"}
	delete(annotations, "app")
	if diff := cmp.Diff(annotations, Annotations(all)); diff != "" {
		t.Errorf("wrong annotations (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(labels, Labels(all)); diff != "" {
		t.Errorf("wrong labels (-want +got):\n%s", diff)
	}
	if other := (notes{"app": "web"}); Annotations(other) != nil || Labels(other) != nil {
		t.Errorf("%v and %v are kept, which no PodGroup uses", Annotations(other), Labels(other))
	}
}

// TestDependentsFirst checks objects that are being deleted in the foreground: objects
// created for them are deleted too.
func TestDependentsFirst(t *testing.T) {
	now := metav1.Now()
	for name, tc := range map[string]struct {
		meta metav1.ObjectMeta
		want bool
	}{
		"it stays":                   {metav1.ObjectMeta{}, false},
		"it is to go in that way":    {metav1.ObjectMeta{Finalizers: []string{metav1.FinalizerDeleteDependents}}, false},
		"it goes in another way":     {metav1.ObjectMeta{DeletionTimestamp: &now, Finalizers: []string{metav1.FinalizerOrphanDependents}}, false},
		"it goes after what it owns": {metav1.ObjectMeta{DeletionTimestamp: &now, Finalizers: []string{"example.com/a", metav1.FinalizerDeleteDependents}}, true},
	} {
		if got := DependentsFirst(&tc.meta); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
