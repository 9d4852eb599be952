package v1beta1

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"pgregory.net/rapid"
)

// full is a PodGroup with every field, as the API server writes it.
const full = `{"apiVersion":"scheduling.volcano.sh/v1beta1","kind":"PodGroup",` +
	`"metadata":{"annotations":{"a":"<b>"},"creationTimestamp":"2026-01-02T03:04:05Z","labels":{"c":"d"},` +
	`"managedFields":[{"apiVersion":"scheduling.volcano.sh/v1beta1","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{".":{},"f:queue":{}}},"manager":"m","operation":"Update","time":"2026-01-02T03:04:05Z"}],` +
	`"name":"podgroup-1","namespace":"n","resourceVersion":"7","uid":"u"},` +
	`"spec":{"minMember":3,"minResources":{"cpu":"1500m","nvidia.com/gpu":"2"},"minTaskMember":{"worker":2},` +
	`"networkTopology":{"highestTierAllowed":2,"highestTierName":"rack","mode":"soft"},"priorityClassName":"high","queue":"q",` +
	`"subGroupPolicy":[{"labelSelector":{"matchExpressions":[{"key":"k","operator":"In","values":["v"]}],"matchLabels":{"a":"b"}},` +
	`"matchLabelKeys":["role"],"minSubGroups":1,"name":"s","networkTopology":{"highestTierAllowed":1,"mode":"hard"},"subGroupSize":4}]},` +
	`"status":{"conditions":[{"lastTransitionTime":"2026-01-02T03:04:05Z","message":"m","reason":"r","status":"True","transitionID":"t","type":"Scheduled"}],` +
	`"failed":3,"phase":"Running","running":1,"succeeded":2}}`

// inHTML is how Go's encoder, and so the API server, writes < and >.
func inHTML(text string) string {
	return strings.NewReplacer("<", `\u003c`, ">", `\u003e`).Replace(text)
}

func read(t rapid.TB, data string) *PodGroup {
	t.Helper()
	group := &PodGroup{}
	if err := json.Unmarshal([]byte(data), group); err != nil {
		t.Fatalf("reading %s: %v", data, err)
	}
	return group
}

// write returns the PodGroup as the API server would write it.
func write(t rapid.TB, group *PodGroup) string {
	t.Helper()
	data, err := json.Marshal(group)
	if err != nil {
		t.Fatal(err)
	}
	data, err = canonical(data)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestPodGroupIsWrittenExactlyAsRead(t *testing.T) {
	for name, data := range map[string]string{
		"every field":                inHTML(full),
		"nothing":                    `{}`,
		"metadata only":              `{"metadata":{"name":"a"}}`,
		"empty structs":              `{"metadata":{},"spec":{},"status":{}}`,
		"null structs":               `{"metadata":null,"spec":null,"status":null}`,
		"explicit zeros":             `{"spec":{"minMember":0,"priorityClassName":"","queue":""},"status":{"failed":0,"phase":"","running":0,"succeeded":0}}`,
		"empty lists and maps":       `{"spec":{"minResources":{},"minTaskMember":{},"subGroupPolicy":[]},"status":{"conditions":[]}}`,
		"null lists, maps, pointers": `{"spec":{"minMember":null,"minResources":null,"minTaskMember":null,"networkTopology":null,"subGroupPolicy":null},"status":{"conditions":null}}`,
		"empty items":                `{"spec":{"networkTopology":{},"subGroupPolicy":[{},{"labelSelector":{},"matchLabelKeys":[],"networkTopology":{}}]},"status":{"conditions":[{},{"lastTransitionTime":null}]}}`,
		"null items":                 `{"spec":{"subGroupPolicy":[null,{"name":"a"}]},"status":{"conditions":[null]}}`,
		"pointers to zero":           `{"spec":{"networkTopology":{"highestTierAllowed":0},"subGroupPolicy":[{"minSubGroups":0,"subGroupSize":0}]}}`,
		"quantities in other words":  `{"spec":{"minResources":{"cpu":"1000m","memory":1073741824,"nvidia.com/gpu":"2.0"}}}`,
		"a time with a fraction":     `{"status":{"conditions":[{"lastTransitionTime":"2026-01-02T03:04:05.678+01:00"}]}}`,
		"unknown fields everywhere": `{"metadata":{"name":"a","newer":1},"new":1,"spec":{"minMember":2,"networkTopology":{"mode":"hard","new":[1,{"a":null}]},"new":{"b":{"a":1}},` +
			`"subGroupPolicy":[{"name":"a"},{"name":"b","networkTopology":{"new":true},"new":"x"}]},"status":{"conditions":[{"new":1.50,"type":"a"}],"new":12345678901234567890}}`,
		"keys in another case": `{"Spec":{"queue":"a"},"spec":{"MinMember":7,"QUEUE":"b","queue":"c"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			group := read(t, data)
			if got := write(t, group); got != data {
				t.Errorf("read    %s\nwritten %s", data, got)
			}
			if got := write(t, group.DeepCopy()); got != data {
				t.Errorf("read         %s\ncopy written %s", data, got)
			}
			if !equality.Semantic.DeepEqual(group, group.DeepCopy()) {
				t.Error("a copy is not equal")
			}
		})
	}
}

// TestPodGroupOfKnownFieldsPreservesNothing: a PodGroup whose fields are all known preserves
// nothing, because caches hold thousands of them.
func TestPodGroupOfKnownFieldsPreservesNothing(t *testing.T) {
	group := read(t, full)
	topology := 2
	size, count := int32(4), int32(1)
	want := &PodGroup{
		TypeMeta:   metav1.TypeMeta{APIVersion: "scheduling.volcano.sh/v1beta1", Kind: "PodGroup"},
		ObjectMeta: group.ObjectMeta,
		Spec: PodGroupSpec{
			MinMember: 3, MinTaskMember: map[string]int32{"worker": 2}, Queue: "q", PriorityClassName: "high",
			MinResources:    corev1.ResourceList{"cpu": resource.MustParse("1500m"), "nvidia.com/gpu": resource.MustParse("2")},
			NetworkTopology: &NetworkTopologySpec{Mode: NetworkTopologySoft, HighestTierAllowed: &topology, HighestTierName: "rack"},
			SubGroupPolicy: []SubGroupPolicySpec{{
				Name: "s", SubGroupSize: &size, MinSubGroups: &count, MatchLabelKeys: []string{"role"},
				NetworkTopology: &NetworkTopologySpec{Mode: NetworkTopologyHard, HighestTierAllowed: new(1)},
				LabelSelector: &metav1.LabelSelector{
					MatchLabels:      map[string]string{"a": "b"},
					MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "k", Operator: metav1.LabelSelectorOpIn, Values: []string{"v"}}},
				},
			}},
		},
		Status: PodGroupStatus{
			Phase: PhaseRunning, Running: 1, Succeeded: 2, Failed: 3,
			Conditions: []PodGroupCondition{{
				Type: "Scheduled", Status: corev1.ConditionTrue, TransitionID: "t", Reason: "r", Message: "m",
				LastTransitionTime: group.Status.Conditions[0].LastTransitionTime,
			}},
		},
	}
	if diff := cmp.Diff(want, group); diff != "" {
		t.Errorf("read (-want +got):\n%s", diff)
	}
	if at := group.Status.Conditions[0].LastTransitionTime; at.UTC().Format("15:04:05") != "03:04:05" {
		t.Errorf("the time is %v", at)
	}
}

func TestAChangeWritesItsFieldOnly(t *testing.T) {
	for name, tc := range map[string]struct {
		data   string
		change func(*PodGroup)
		want   string
	}{
		"a field beside unknown ones": {
			`{"spec":{"minMember":0,"new":1,"queue":"a"}}`, func(g *PodGroup) { g.Spec.Queue = "b" },
			`{"spec":{"minMember":0,"new":1,"queue":"b"}}`,
		},
		"an explicit zero": {
			`{"spec":{"minMember":0}}`, func(g *PodGroup) { g.Spec.MinMember = 2 }, `{"spec":{"minMember":2}}`,
		},
		"a field to zero": {
			`{"spec":{"minMember":2,"queue":"a"}}`, func(g *PodGroup) { g.Spec.MinMember = 0 }, `{"spec":{"queue":"a"}}`,
		},
		"an empty list": {
			`{"status":{"conditions":[]}}`, func(g *PodGroup) { g.Status.Conditions = []PodGroupCondition{{Type: "a"}} },
			`{"status":{"conditions":[{"type":"a"}]}}`,
		},
		"a quantity in other words": {
			`{"spec":{"minResources":{"cpu":"1000m","memory":"1024Mi"}}}`, func(g *PodGroup) { g.Spec.MinResources["cpu"] = resource.MustParse("2") },
			`{"spec":{"minResources":{"cpu":"2","memory":"1Gi"}}}`,
		},
		"a struct that was not there": {
			`{"metadata":{"name":"a"}}`, func(g *PodGroup) { g.Status.Phase = PhasePending }, `{"metadata":{"name":"a"},"status":{"phase":"Pending"}}`,
		},
		"a null struct": {
			`{"spec":null}`, func(g *PodGroup) { g.Spec.MinMember = 1 }, `{"spec":{"minMember":1}}`,
		},
		"the order of items": {
			`{"spec":{"subGroupPolicy":[{"name":"a","new":1},{"minSubGroups":0,"name":"b","new":2}]}}`,
			func(g *PodGroup) { slices.Reverse(g.Spec.SubGroupPolicy) },
			`{"spec":{"subGroupPolicy":[{"minSubGroups":0,"name":"b","new":2},{"name":"a","new":1}]}}`,
		},
		"an item among others": {
			`{"status":{"conditions":[{"new":1,"type":"a"},{"new":2,"type":"b"},{"new":3,"type":"c"}]}}`,
			func(g *PodGroup) { g.Status.Conditions = slices.Delete(g.Status.Conditions, 1, 2) },
			`{"status":{"conditions":[{"new":1,"type":"a"},{"new":3,"type":"c"}]}}`,
		},
		"a struct that is replaced": {
			`{"spec":{"minMember":0,"new":1},"status":{"new":1}}`, func(g *PodGroup) { g.Spec = PodGroupSpec{Queue: "a"} },
			`{"spec":{"queue":"a"},"status":{"new":1}}`,
		},
		"labels": {
			`{"metadata":{"labels":{"a":"b"},"name":"n"},"spec":{"new":1}}`, func(g *PodGroup) { g.Labels["c"] = "d" },
			`{"metadata":{"labels":{"a":"b","c":"d"},"name":"n"},"spec":{"new":1}}`,
		},
		"a field that is preserved": {
			`{"new":1,"newer":1}`, func(g *PodGroup) { delete(g.Preserved, "new") }, `{"newer":1}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			group := read(t, tc.data)
			unchanged := group.DeepCopy()
			tc.change(group)
			if got := write(t, group); got != tc.want {
				t.Errorf("written %s\nwant    %s", got, tc.want)
			}
			if got := write(t, unchanged); got != tc.data {
				t.Errorf("the change reached a copy made before: %s", got)
			}
		})
	}
}

// TestDecodeReplacesPreviousContent: a client may read into an object that it has read
// into before.
func TestDecodeReplacesPreviousContent(t *testing.T) {
	group := read(t, full)
	const next = `{"metadata":{"name":"b"},"spec":{"minMember":0}}`
	if err := json.Unmarshal([]byte(next), group); err != nil {
		t.Fatal(err)
	}
	if got := write(t, group); got != next {
		t.Errorf("read %s, written %s", next, got)
	}
}

func TestMalformedPodGroupIsRefused(t *testing.T) {
	for name, data := range map[string]string{
		"a list":                  `[]`,
		"a text":                  `"a"`,
		"a number as a queue":     `{"spec":{"queue":1}}`,
		"a text as minMember":     `{"spec":{"minMember":"1"}}`,
		"a quantity that is none": `{"spec":{"minResources":{"cpu":"much"}}}`,
		"half of it":              `{"spec":{"queue":"a"`,
	} {
		t.Run(name, func(t *testing.T) {
			if err := json.Unmarshal([]byte(data), &PodGroup{}); err == nil {
				t.Error("accepted")
			}
		})
	}
}

// TestClientCodecsKeepUnknownFields: fields survive a client's codec, alone and in a list, and the
// conversion between typed and untyped objects.
func TestClientCodecsKeepUnknownFields(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	codecs := serializer.NewCodecFactory(scheme)
	const one = `{"apiVersion":"scheduling.volcano.sh/v1beta1","kind":"PodGroup","metadata":{"name":"a"},"spec":{"minMember":0,"new":{"a":1}},"status":{}}`
	const list = `{"apiVersion":"scheduling.volcano.sh/v1beta1","items":[` + one + `],"kind":"PodGroupList","metadata":{"resourceVersion":"1"}}`

	for name, data := range map[string]string{"an object": one, "a list": list} {
		object, err := runtime.Decode(codecs.UniversalDeserializer(), []byte(data))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		written, err := runtime.Encode(codecs.LegacyCodec(GroupVersion), object)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if same, err := isSame([]byte(data), written); err != nil || !same {
			t.Errorf("%s: the codec has read %s\nand written %s (%v)", name, data, written, err)
		}
	}

	untyped, err := runtime.DefaultUnstructuredConverter.ToUnstructured(read(t, one))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := json.Marshal(untyped); err != nil || string(got) != one {
		t.Errorf("untyped it is %s (%v)", got, err)
	}
	var typed PodGroup
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(untyped, &typed); err != nil {
		t.Fatal(err)
	}
	if got := write(t, &typed); got != one {
		t.Errorf("typed again it is %s", got)
	}
}

// object is a JSON object. Its numbers are json.Numbers.
type object = map[string]any

// optional adds a value for a key, or its zero, or null, or nothing.
func optional[T any](t *rapid.T, into object, key string, value *rapid.Generator[T], zero any) {
	switch rapid.IntRange(0, 5).Draw(t, key+"?") {
	case 0:
		into[key] = nil
	case 1:
		into[key] = zero
	case 2, 3:
		into[key] = value.Draw(t, key)
	}
}

// strange are keys that no struct has. Some differ from a known key in case only.
var strange = []string{"new", "newer", "x<y", "Spec", "minmember", "MinMember", "PHASE", "items", "Preserved", "", "ключ"}

func anyNumber() *rapid.Generator[json.Number] {
	return rapid.SampledFrom([]json.Number{"0", "-0", "1", "1.0", "1.50", "1e3", "1E400", "9007199254740993", "12345678901234567890"})
}

func anyText() *rapid.Generator[string] {
	return rapid.SampledFrom([]string{"", "a", "0", "null", "<&>", "\u2028", "é", "\"\\\n"})
}

func anyValue(depth int) *rapid.Generator[any] {
	return rapid.Custom(func(t *rapid.T) any {
		kinds := 5
		if depth == 0 {
			kinds = 3
		}
		switch rapid.IntRange(0, kinds).Draw(t, "kind") {
		case 0:
			return nil
		case 1:
			return rapid.Bool().Draw(t, "bool")
		case 2:
			return anyNumber().Draw(t, "number")
		case 3:
			return anyText().Draw(t, "text")
		case 4:
			return rapid.SliceOfN(anyValue(depth-1), 0, 3).Draw(t, "list")
		default:
			return rapid.MapOfN(anyText(), anyValue(depth-1), 0, 3).Draw(t, "object")
		}
	})
}

// anyObject is an object of known fields and unknown ones.
func anyObject(known func(*rapid.T, object)) *rapid.Generator[object] {
	return rapid.Custom(func(t *rapid.T) object {
		out := rapid.MapOfN(rapid.SampledFrom(strange), anyValue(2), 0, 2).Draw(t, "unknown")
		known(t, out)
		return out
	})
}

func anyInt(highest int) *rapid.Generator[json.Number] {
	return rapid.Custom(func(t *rapid.T) json.Number {
		return json.Number(strconv.Itoa(rapid.IntRange(0, highest).Draw(t, "int")))
	})
}

func anyTopology() *rapid.Generator[object] {
	return anyObject(func(t *rapid.T, o object) {
		optional(t, o, "mode", rapid.SampledFrom([]string{"hard", "soft"}), "")
		optional(t, o, "highestTierAllowed", anyInt(9), json.Number("0"))
		optional(t, o, "highestTierName", anyText(), "")
	})
}

// listOf are lists of one to three items.
func listOf(items *rapid.Generator[object]) *rapid.Generator[[]any] {
	return rapid.SliceOfN(items.AsAny(), 1, 3)
}

func anyPodGroup() *rapid.Generator[object] {
	labels := rapid.MapOfN(anyText(), anyText(), 1, 3)
	quantities := rapid.MapOfN(rapid.SampledFrom([]string{"cpu", "memory", "a.b/c"}), rapid.SampledFrom([]any{"1", "1000m", "1.5", "1Gi", "1024Mi", json.Number("2"), json.Number("0.1")}), 1, 3)
	selector := anyObject(func(t *rapid.T, o object) {
		optional(t, o, "matchLabels", labels, object{})
		optional(t, o, "matchExpressions", listOf(anyObject(func(t *rapid.T, o object) {
			optional(t, o, "key", anyText(), "")
			optional(t, o, "operator", rapid.SampledFrom([]string{"In", "Exists"}), "")
			optional(t, o, "values", rapid.SliceOfN(anyText(), 1, 2), []any{})
		})), []any{})
	})
	subGroup := anyObject(func(t *rapid.T, o object) {
		optional(t, o, "name", anyText(), "")
		optional(t, o, "networkTopology", anyTopology(), object{})
		optional(t, o, "subGroupSize", anyInt(9), json.Number("0"))
		optional(t, o, "minSubGroups", anyInt(9), json.Number("0"))
		optional(t, o, "labelSelector", selector, object{})
		optional(t, o, "matchLabelKeys", rapid.SliceOfN(anyText(), 1, 2), []any{})
	})
	condition := anyObject(func(t *rapid.T, o object) {
		for _, key := range []string{"type", "status", "transitionID", "reason", "message"} {
			optional(t, o, key, anyText(), "")
		}
		optional(t, o, "lastTransitionTime", rapid.SampledFrom([]string{"2026-01-02T03:04:05Z", "2026-01-02T03:04:05.6Z", "2026-01-02T03:04:05+02:00"}), nil)
	})
	spec := anyObject(func(t *rapid.T, o object) {
		optional(t, o, "minMember", anyInt(1<<31-1), json.Number("0"))
		optional(t, o, "minTaskMember", rapid.MapOfN(anyText(), anyInt(9), 1, 2), object{})
		optional(t, o, "queue", anyText(), "")
		optional(t, o, "priorityClassName", anyText(), "")
		optional(t, o, "minResources", quantities, object{})
		optional(t, o, "networkTopology", anyTopology(), object{})
		optional(t, o, "subGroupPolicy", listOf(subGroup), []any{})
	})
	status := anyObject(func(t *rapid.T, o object) {
		optional(t, o, "phase", rapid.SampledFrom([]string{"Pending", "Running", "Later"}), "")
		optional(t, o, "conditions", listOf(condition), []any{})
		for _, key := range []string{"running", "succeeded", "failed"} {
			optional(t, o, key, anyInt(9), json.Number("0"))
		}
	})
	metadata := anyObject(func(t *rapid.T, o object) {
		optional(t, o, "name", anyText(), "")
		optional(t, o, "labels", labels, object{})
		optional(t, o, "annotations", labels, object{})
		optional(t, o, "generation", anyInt(9), json.Number("0"))
	})
	return anyObject(func(t *rapid.T, o object) {
		optional(t, o, "apiVersion", anyText(), "")
		optional(t, o, "kind", anyText(), "")
		optional(t, o, "metadata", metadata, object{})
		optional(t, o, "spec", spec, object{})
		optional(t, o, "status", status, object{})
	})
}

// encoded is an object as the API server writes it.
func encoded(t rapid.TB, o object) string {
	t.Helper()
	data, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// within returns the object of a key, made where there is none.
func within(o object, key string) object {
	inner, ok := o[key].(object)
	if !ok {
		inner = object{}
		o[key] = inner
	}
	return inner
}

// changes are made to the Go value, and to the JSON object that it was read from: both
// must have the same result.
var changes = map[string]struct {
	group  func(*PodGroup)
	object func(object)
}{
	"nothing": {func(*PodGroup) {}, func(object) {}},
	"spec.minMember": {
		func(g *PodGroup) { g.Spec.MinMember = -1 },
		func(o object) { within(o, "spec")["minMember"] = json.Number("-1") },
	},
	"spec.queue": {
		func(g *PodGroup) { g.Spec.Queue = "changed" },
		func(o object) { within(o, "spec")["queue"] = "changed" },
	},
	"spec.networkTopology.mode": {
		func(g *PodGroup) {
			if g.Spec.NetworkTopology == nil {
				g.Spec.NetworkTopology = &NetworkTopologySpec{}
			}
			g.Spec.NetworkTopology.Mode = "changed"
		},
		func(o object) { within(within(o, "spec"), "networkTopology")["mode"] = "changed" },
	},
	"the last item of spec.subGroupPolicy": {
		func(g *PodGroup) {
			if n := len(g.Spec.SubGroupPolicy); n > 1 {
				g.Spec.SubGroupPolicy = g.Spec.SubGroupPolicy[:n-1]
			}
		},
		func(o object) {
			spec, _ := o["spec"].(object)
			if list, _ := spec["subGroupPolicy"].([]any); len(list) > 1 {
				spec["subGroupPolicy"] = list[:len(list)-1]
			}
		},
	},
	"status.phase": {
		func(g *PodGroup) { g.Status.Phase = "changed" },
		func(o object) { within(o, "status")["phase"] = "changed" },
	},
}

// TestAnyPodGroupRoundTrips: whatever is read is written, and a change of one field
// changes no other.
func TestAnyPodGroupRoundTrips(t *testing.T) {
	names := slices.Sorted(maps.Keys(changes))
	rapid.Check(t, func(t *rapid.T) {
		o := anyPodGroup().Draw(t, "PodGroup")
		was := encoded(t, o)
		group := read(t, was)
		if got := write(t, group); got != was {
			t.Fatalf("read    %s\nwritten %s", was, got)
		}
		var indented bytes.Buffer
		if err := json.Indent(&indented, []byte(was), " ", "\t"); err != nil {
			t.Fatal(err)
		}
		if got := write(t, read(t, indented.String())); got != was {
			t.Fatalf("read with spaces %s\nwritten          %s", was, got)
		}

		name := rapid.SampledFrom(names).Draw(t, "change")
		changed := group.DeepCopy()
		changes[name].group(changed)
		changes[name].object(o)
		if got, want := write(t, changed), encoded(t, o); got != want {
			t.Fatalf("%s is changed in %s\nwritten %s\nwant    %s", name, was, got, want)
		}
		if got := write(t, group); got != was {
			t.Fatalf("a change of a copy made %s of %s", got, was)
		}
	})
}

func BenchmarkRead(b *testing.B) {
	for b.Loop() {
		var group PodGroup
		if err := json.Unmarshal([]byte(full), &group); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkWrite(b *testing.B) {
	group := &PodGroup{}
	if err := json.Unmarshal([]byte(full), group); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := json.Marshal(group); err != nil {
			b.Fatal(err)
		}
	}
}
