package recorder

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	testingclock "k8s.io/utils/clock/testing"
)

// written is one event that passed.
type written struct {
	about, related *corev1.ObjectReference
	reason, note   string
}

// desk is a Recorder with a clock, and what it wrote.
type desk struct {
	*Recorder
	clock *testingclock.FakePassiveClock
	mu    sync.Mutex
	got   []written
}

// inner stores what passes.
type inner struct{ *desk }

func (d inner) Eventf(regarding, related runtime.Object, _, reason, _, note string, args ...any) {
	w := written{about: regarding.(*corev1.ObjectReference), reason: reason, note: fmt.Sprintf(note, args...)}
	if related != nil {
		w.related = related.(*corev1.ObjectReference)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.got = append(d.got, w)
}

func newDesk() *desk {
	d := &desk{clock: testingclock.NewFakePassiveClock(time.Unix(1_000_000, 0))}
	d.Recorder = New(inner{d}, scheme.Scheme, d.clock)
	return d
}

// pass moves the clock.
func (d *desk) pass(t time.Duration) { d.clock.SetTime(d.clock.Now().Add(t)) }

func (d *desk) emit(obj runtime.Object, reason string) {
	d.Eventf(obj, nil, corev1.EventTypeNormal, reason, "Do", "Did it")
}

// count returns how many events of a reason passed; "" is any.
func (d *desk) count(reason string) int {
	n := 0
	for _, w := range d.got {
		if reason == "" || w.reason == reason {
			n++
		}
	}
	return n
}

func node(name string, version int) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: fmt.Sprint(version)}}
}

func pod(namespace, name string) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: name}
}

// TestAFlappingObjectGetsFewEvents: a node that changes its pool a hundred times in a
// minute had two hundred events. Each event is about another version of the node.
func TestAFlappingObjectGetsFewEvents(t *testing.T) {
	d := newDesk()
	for i := range 600 { // an hour
		d.emit(node("n", i), "Moved")
		d.pass(6 * time.Second)
	}
	if got, most := d.count(""), reasonBurst+int(time.Hour/reasonEvery); got > most || got < most-2 {
		t.Errorf("%d events were written in an hour, want about %d", got, most)
	}
}

// TestManyReasonsOfOneObjectAreLimited: reasons beside each other do not multiply.
func TestManyReasonsOfOneObjectAreLimited(t *testing.T) {
	d := newDesk()
	for i := range 600 {
		for reason := range 10 {
			d.emit(node("n", i), fmt.Sprint(reason))
		}
		d.pass(6 * time.Second)
	}
	if got, most := d.count(""), objectBurst+int(time.Hour/objectEvery); got > most || got < most-objectBurst {
		t.Errorf("%d events were written in an hour, want about %d", got, most)
	}
	for reason := range 10 {
		if d.count(fmt.Sprint(reason)) == 0 {
			t.Errorf("reason %d was never written", reason)
		}
	}
}

// TestFlappingHidesNoOtherReasonOrObject: what flaps hides nothing else.
func TestFlappingHidesNoOtherReasonOrObject(t *testing.T) {
	d := newDesk()
	for i := range 1000 {
		d.emit(node("n", i), "Moved")
		d.emit(node("n", i), "Restored")
		d.emit(node("n", i), "Joined")
	}
	d.emit(node("n", 0), "RecordLost")
	d.emit(node("other", 0), "Moved")
	if d.count("RecordLost") != 1 {
		t.Error("an event with another reason was not written")
	}
	if last := d.got[len(d.got)-1]; last.about.Name != "other" {
		t.Error("an event about another node was not written")
	}
}

// TestANamespaceHasALimit: thousands of objects that flap are bounded together, they
// do not keep the first event of a new object from being written, and other namespaces
// are not affected.
func TestANamespaceHasALimit(t *testing.T) {
	d := newDesk()
	for range reasonBurst {
		for i := range maxObjects / 2 {
			d.emit(pod("tenant", fmt.Sprint("flaps-", i)), "Moved")
		}
	}
	if got := len(d.got); got != namespaceBurst {
		t.Fatalf("%d events were written at once, want %d", got, namespaceBurst)
	}
	d.emit(pod("other", "a"), "Moved")
	if got := len(d.got); got != namespaceBurst+1 {
		t.Error("an event of another namespace was not written")
	}
	d.got = nil
	for range 60 {
		for i := range maxObjects / 2 {
			d.emit(pod("tenant", fmt.Sprint("flaps-", i)), "Restored") // repeats: the objects are known
		}
		d.pass(time.Second)
	}
	if most := int(time.Minute / namespaceEvery); len(d.got) > most {
		t.Errorf("%d events were written in a minute, want at most %d", len(d.got), most)
	}
	d.emit(pod("tenant", "new"), "Moved")
	if last := d.got[len(d.got)-1]; last.about.Name != "new" {
		t.Error("the first event of a new object was not written")
	}
}

// TestNextEventCountsSuppressedOnes: the next event has their number, once.
func TestNextEventCountsSuppressedOnes(t *testing.T) {
	d := newDesk()
	for i := range reasonBurst + 31 {
		d.emit(node("n", i), "Moved")
	}
	d.pass(2 * reasonEvery)
	d.emit(node("n", 0), "Moved")
	d.emit(node("n", 0), "Moved")
	var notes []string
	for _, w := range d.got[reasonBurst-1:] {
		notes = append(notes, w.note)
	}
	want := []string{"Did it", "Did it (31 more events with this reason were not written)", "Did it"}
	if diff := cmp.Diff(want, notes); diff != "" {
		t.Error(diff)
	}
}

// TestTheTextIsOneBoundedLine: notes have errors of the API server and names that tenants
// chose; references to owners are texts that tenants wrote.
func TestTheTextIsOneBoundedLine(t *testing.T) {
	d := newDesk()
	long := strings.Repeat("ä\n\x1b[2J", 1<<18)
	owner := &corev1.ObjectReference{APIVersion: "a/v1" + long, Kind: "Kind" + long, Namespace: "ns", Name: "name" + long, UID: "uid"}
	for range reasonBurst + 5 {
		d.Eventf(owner, owner, corev1.EventTypeWarning, "Failed", "Do", "Failed: %s", long)
	}
	d.pass(reasonEvery)
	d.Eventf(owner, owner, corev1.EventTypeWarning, "Failed", "Do", "Failed: %s", long)
	if len(d.got) != reasonBurst+1 {
		t.Fatalf("%d events were written, want %d", len(d.got), reasonBurst+1)
	}
	for _, w := range d.got {
		for _, text := range []string{w.note, w.about.Kind, w.about.APIVersion, w.about.Name, w.related.Kind, w.related.APIVersion, w.related.Name} {
			if strings.ContainsAny(text, "\n\x1b") || !utf8.ValidString(text) {
				t.Fatalf("%.100q is not one printable line", text)
			}
		}
		if len(w.note) > maxNote || len(w.about.Kind) > maxName || len(w.about.Name) > maxName || len(w.related.APIVersion) > maxName {
			t.Errorf("the note has %d bytes, the kind %d, the name %d", len(w.note), len(w.about.Kind), len(w.about.Name))
		}
	}
	if last := d.got[len(d.got)-1].note; !strings.HasSuffix(last, "(5 more events with this reason were not written)") {
		t.Errorf("the note that was cut ends with %q", last[len(last)-60:])
	}
	if !strings.HasPrefix(owner.Kind, "Kind"+long[:10]) {
		t.Error("the caller's reference was changed")
	}
}

// TestEventsKeepTheResourceVersion: client-go makes a series of events about one
// version of an object, and drops the notes of all but the first.
func TestEventsKeepTheResourceVersion(t *testing.T) {
	d := newDesk()
	d.Eventf(node("n", 7), pod("ns", "p"), corev1.EventTypeNormal, "Moved", "Move", "Moved")
	want := written{
		about:   &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: "n", ResourceVersion: "7"},
		related: pod("ns", "p"), reason: "Moved", note: "Moved",
	}
	if diff := cmp.Diff([]written{want}, d.got, cmp.AllowUnexported(written{})); diff != "" {
		t.Error(diff)
	}
}

// TestMemoryIsBounded: names that are used once do not stay.
func TestMemoryIsBounded(t *testing.T) {
	d := newDesk()
	for i := range 3 * maxObjects {
		d.emit(pod(fmt.Sprint("ns-", i), "a"), "Moved")
	}
	if d.objects.Len() > maxObjects || d.namespaces.Len() > maxNamespaces {
		t.Errorf("%d objects and %d namespaces are kept", d.objects.Len(), d.namespaces.Len())
	}
}

// TestConcurrentEvents is for the race detector.
func TestConcurrentEvents(t *testing.T) {
	d := newDesk()
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			for i := range 100 {
				d.emit(node("n", i), "Moved")
			}
		})
	}
	wait.Wait()
	if len(d.got) != reasonBurst {
		t.Errorf("%d events were written, want %d", len(d.got), reasonBurst)
	}
}

// TestAnObjectOfAnUnknownKindIsNoEvent: nobody can find an event about it.
func TestAnObjectOfAnUnknownKindIsNoEvent(t *testing.T) {
	d := newDesk()
	d.Recorder = New(inner{d}, runtime.NewScheme(), d.clock)
	d.emit(node("n", 1), "Moved")
	if len(d.got) != 0 {
		t.Errorf("wrote %+v", d.got)
	}
}

// TestNormalEventsHideNoWarning: what a namespace uses up with events of type Normal, its
// warnings still have.
func TestNormalEventsHideNoWarning(t *testing.T) {
	d := newDesk()
	for i := range 2 * namespaceBurst {
		d.emit(pod("tenant", fmt.Sprint("new-", i)), "Moved")
	}
	written := len(d.got)
	d.Eventf(pod("tenant", "new-0"), nil, corev1.EventTypeWarning, "NodePoolMissing", "Join", "a warning")
	if len(d.got) != written+1 {
		t.Error("a warning was not written, because too many other events were")
	}
	if written != namespaceBurst {
		t.Errorf("%d events were written, want %d", written, namespaceBurst)
	}
}
