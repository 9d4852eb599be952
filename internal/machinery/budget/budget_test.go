package budget

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"pgregory.net/rapid"
)

// TestOneNamespaceLeavesRoomForAnother: what does not fit is refused in its own namespace
// only, and fits once others are gone.
func TestOneNamespaceLeavesRoomForAnother(t *testing.T) {
	b := New(10<<10, 100<<10)
	read := 0
	for i := range 1000 {
		if b.Take("crowd", types.UID(fmt.Sprint(i)), 10<<10) == nil {
			read++
		}
	}
	if read == 0 || read > 10 {
		t.Errorf("%d objects of 10 KiB are read, and 100 KiB are allowed", read)
	}
	if err := b.Take("other", "o", 10<<10); err != nil {
		t.Errorf("an object of another namespace is left out: %v", err)
	}
	if b.Fits("999") {
		t.Error("there is room in a namespace that is full")
	}
	for i := range 999 {
		b.Drop(types.UID(fmt.Sprint(i)))
	}
	if !b.Fits("999") {
		t.Error("there is no room after the others were deleted")
	}
}

// TestTooLargeErrorNamesLimitAndRemedy: the two reasons differ, and name their numbers.
func TestTooLargeErrorNamesLimitAndRemedy(t *testing.T) {
	b := New(10<<10, 16<<10)
	for name, tc := range map[string]struct {
		size int64
		want string
	}{
		"one object":    {11 << 10, "it takes 11 KiB of memory once it is read, more than the 10 KiB that one object may take: make it shorter"},
		"the namespace": {8 << 10, `with it the objects of namespace "n" would take more than the 16 KiB of memory that they may take: delete some of them or make them shorter`},
	} {
		t.Run(name, func(t *testing.T) {
			if err := b.Take("n", "first", 9<<10); err != nil {
				t.Fatal(err)
			}
			err := b.Check("n", "", tc.size)
			var excess *Excess
			if !errors.As(err, &excess) || err.Error() != tc.want {
				t.Errorf("got %v, want %s", err, tc.want)
			}
		})
	}
}

// TestAnObjectMayAlwaysShrink: also in a namespace that has too much.
func TestAnObjectMayAlwaysShrink(t *testing.T) {
	b := New(10<<10, 16<<10)
	_ = b.Take("n", "a", 9<<10)
	_ = b.Take("n", "b", 9<<10) // is left out
	for _, uid := range []types.UID{"a", "b"} {
		if err := b.Check("n", uid, 9<<10); err != nil {
			t.Errorf("%s may not stay as it is: %v", uid, err)
		}
	}
	if b.Check("n", "b", 9<<10+1) == nil {
		t.Error("an object may grow where there is no room")
	}
}

// TestBudgetIsExact: whatever comes and goes, the sum of what is read stays within the
// bounds, and nothing is counted after everything is gone.
func TestBudgetIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := New(20<<10, 50<<10)
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			uid := types.UID(rapid.SampledFrom([]string{"1", "2", "3", "4", "5", "6"}).Draw(t, "uid"))
			namespace := string(rune('a' + uid[0]%2)) // an object stays in its namespace
			switch rapid.SampledFrom([]string{"take", "take", "drop"}).Draw(t, "step") {
			case "take":
				size := rapid.Int64Range(0, 30<<10).Draw(t, "size")
				checked := b.checkLocked(namespace, uid, size)
				if err := b.Take(namespace, uid, size); (err == nil) != (checked == nil) {
					t.Fatalf("take %v, check %v", err, checked)
				}
			case "drop":
				b.Drop(uid)
			}
			read, taken := map[string]int64{}, map[string]int64{}
			for _, e := range b.objects {
				taken[e.namespace] += e.takes()
				if e.read {
					read[e.namespace] += e.size
				}
			}
			for _, namespace := range []string{"a", "b"} {
				if read[namespace] > 50<<10 || taken[namespace] != b.taken[namespace] {
					t.Fatalf("%d bytes are read; %d are taken and %d counted", read[namespace], taken[namespace], b.taken[namespace])
				}
			}
		}
		for uid := range b.objects {
			b.Drop(uid)
		}
		if len(b.taken) > 0 {
			t.Fatalf("nothing is there, and this is counted: %v", b.taken)
		}
	})
}

func configMap(uid types.UID, size int) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "n", Name: "c-" + string(uid), UID: uid, ResourceVersion: "7", Generation: 3, Finalizers: []string{"a/b"},
			Labels: map[string]string{"kept": "yes"}, Annotations: map[string]string{"a": "b"}, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}},
		},
		Data: map[string]string{"text": strings.Repeat("x", size)},
	}
}

func transform(b *Budget) cache.TransformFunc {
	return Transform(b, func(c *corev1.ConfigMap) int64 { return SizeOf(c) }, func(*corev1.ConfigMap) *corev1.ConfigMap { return &corev1.ConfigMap{} })
}

// TestOmittedObjectCarriesTheReason: an object that does not fit keeps its metadata and says why it is
// left out. It stays so if the cache passes it again, and is read again when it is sent
// again and there is room.
func TestOmittedObjectCarriesTheReason(t *testing.T) {
	b := New(1<<20, 64<<10)
	pass := transform(b)
	through := func(obj any) *corev1.ConfigMap {
		t.Helper()
		out, err := pass(obj)
		if err != nil {
			t.Fatal(err)
		}
		return out.(*corev1.ConfigMap)
	}
	if first := through(configMap("1", 40<<10)); Unread(first) != nil || first.Annotations["a"] != "b" || first.ManagedFields != nil {
		t.Errorf("an object that fits is changed: %v, %v", first.ObjectMeta, Unread(first))
	}
	second := through(configMap("2", 40<<10))
	if why := Unread(second); why == nil || !strings.Contains(why.Error(), `the object is not read: with it the objects of namespace "n" would take more than the 64 KiB`) {
		t.Errorf("it does not say why it is left out: %v", why)
	}
	if len(second.Data) > 0 || second.Name != "c-2" || second.UID != "2" || second.ResourceVersion != "7" || second.Generation != 3 || second.Labels["kept"] == "" || len(second.Finalizers) != 1 {
		t.Errorf("it keeps the wrong parts: %v", second)
	}
	if again := through(second.DeepCopy()); Unread(again) == nil {
		t.Error("an empty object of the cache counts as one that was read")
	}
	b.DropDeleted().OnDelete(cache.DeletedFinalStateUnknown{Obj: configMap("1", 0)})
	if !b.Fits("2") {
		t.Error("there is no room after the first was deleted")
	}
	if again := through(configMap("2", 40<<10)); Unread(again) != nil || len(again.Data) == 0 {
		t.Errorf("it is not read although there is room: %v", Unread(again))
	}
}

// TestAnObjectThatIsMadeAgainCountsOnce: an informer that has missed the deletion reports it as
// an update, with another UID.
func TestAnObjectThatIsMadeAgainCountsOnce(t *testing.T) {
	b := New(1<<20, 64<<10)
	pass := transform(b)
	handler := b.DropDeleted()
	for i := range 5 {
		before, now := configMap(types.UID(fmt.Sprint("u", i)), 40<<10), configMap(types.UID(fmt.Sprint("u", i+1)), 40<<10)
		if _, err := pass(now); err != nil {
			t.Fatal(err)
		}
		handler.OnUpdate(before, now)
	}
	if n := len(b.objects); n != 1 {
		t.Errorf("%d objects are counted, and one is there", n)
	}
	handler.OnUpdate(configMap("u5", 1), configMap("u5", 2))
	if n := len(b.objects); n != 1 {
		t.Errorf("an update of the object makes it %d", n)
	}
}

// TestManyLabelsAreNotKept: metadata is what its author writes, too.
func TestManyLabelsAreNotKept(t *testing.T) {
	c := configMap("1", 0)
	for i := range 10_000 {
		c.Labels[fmt.Sprint("label-", i)] = "x"
		c.Finalizers = append(c.Finalizers, fmt.Sprint("a/", i))
		c.OwnerReferences = append(c.OwnerReferences, metav1.OwnerReference{Name: fmt.Sprint(i)})
	}
	out, err := transform(New(1<<10, 1<<20))(c)
	if err != nil {
		t.Fatal(err)
	}
	if size := SizeOf(out); size > 2<<10 {
		t.Errorf("an object that is left out takes %d bytes", size)
	}
}

// TestSizeOfMatchesHeapUse compares SizeOf with what the garbage collector sees.
func TestSizeOfMatchesHeapUse(t *testing.T) {
	labels := func() map[string]string {
		m := map[string]string{}
		for i := range 100 {
			m[fmt.Sprint("some-label-of-a-node-", i)] = strings.Repeat("v", 30)
		}
		return m
	}
	for name, make := range map[string]func() any{
		"a text": func() any { return configMap("u", 100<<10) },
		"labels": func() any { return &metav1.ObjectMeta{Labels: labels(), CreationTimestamp: metav1.Now()} },
		"containers": func() any {
			p := &corev1.Pod{}
			for i := range 100 {
				p.Spec.Containers = append(p.Spec.Containers, corev1.Container{
					Name: fmt.Sprint("container-", i), Env: []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}},
				})
			}
			return p
		},
	} {
		t.Run(name, func(t *testing.T) {
			const n = 50
			kept := [n]any{}
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			for i := range kept {
				kept[i] = make()
			}
			runtime.GC()
			runtime.ReadMemStats(&after)
			real := float64(after.HeapAlloc-before.HeapAlloc) / n
			if estimate := float64(SizeOf(kept[0])); estimate < real/2 || estimate > real*2 {
				t.Errorf("estimated %.0f bytes, and it takes %.0f", estimate, real)
			}
			runtime.KeepAlive(kept)
		})
	}
}
