package proxy

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/hub/identity"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// manyPods are pods whose list has hundreds of kilobytes, also when it is compressed. Each has its name in its image. The one of the given number is new and held, unless change changes that.
func manyPods(version, held int, change ...func(*corev1.Pod)) (pods []*corev1.Pod, images map[string]string) {
	random := rand.New(rand.NewPCG(1, uint64(version)))
	images = map[string]string{}
	for i := range 100 {
		name, labels, length := fmt.Sprintf("pod-%03d", i), map[string]string(nil), 4<<10
		if i == held {
			name, labels, length = fmt.Sprintf("new-%03d", i), unbound, 300<<10 // it arrives in many parts
		}
		image := fmt.Sprintf("%s:%d", name, version)
		made := pod(name, image, version, labels, func(p *corev1.Pod) {
			var text strings.Builder
			for text.Len() < length {
				text.WriteString(strconv.FormatUint(random.Uint64(), 36))
			}
			p.Annotations = map[string]string{"text": text.String()}
		})
		if i != held {
			images[name] = image
		} else {
			for _, c := range change {
				c(made)
			}
		}
		pods = append(pods, made)
	}
	return pods, images
}

// told tells how much of an answer has been written.
type told struct {
	*httptest.ResponseRecorder

	written chan int
}

// Write implements io.Writer.
func (t *told) Write(b []byte) (int, error) {
	n, err := t.ResponseRecorder.Write(b)
	t.written <- t.Body.Len()
	return n, err
}

// askAll asks for the pods of the node. brokeOff is true if the answer is not whole.
func (n *node) askAll(w http.ResponseWriter) (brokeOff bool) {
	n.Helper()
	return n.askFrom(w, podsOfNode)
}

// askFrom is askAll for some of them.
func (n *node) askFrom(w http.ResponseWriter, target string) (brokeOff bool) {
	n.Helper()
	defer func() {
		if r := recover(); r != nil {
			if err, _ := r.(error); !errors.Is(err, http.ErrAbortHandler) {
				panic(r)
			}
			brokeOff = true
		}
		n.Wait()
	}()
	r := httptest.NewRequestWithContext(n.Context(), http.MethodGet, target, nil)
	r.Header.Set("Accept", n.format.ContentType())
	r.Header.Set("Accept-Encoding", gzipped)
	n.answer(w, r, identity.OfNode())
	return false
}

// beginning returns what a client can decompress of the beginning of an answer.
func beginning(sent []byte) []byte {
	from, err := gzip.NewReader(bytes.NewReader(sent))
	if err != nil {
		return nil
	}
	text, _ := io.ReadAll(from)
	return text
}

// TestLongListsAreForwardedBeforeTheyEnd: the client has the beginning before the cloud has sent the end, and all of
// it is kept.
func TestLongListsAreForwardedBeforeTheyEnd(t *testing.T) {
	n := newNode(t, wire.Protobuf)
	cloud := &compressing{scripted: n.cloud}
	n.Proxy.Cloud = cloud
	pods, want := manyPods(1, -1)
	n.answers(1, pods...)
	if w := httptest.NewRecorder(); n.askAll(w) || !maps.Equal(n.pods(n.plainOf(w)), want) {
		t.Error("the first list is another one")
	}
	pods, want = manyPods(2, -1)
	n.answers(2, pods...)
	w := &told{httptest.NewRecorder(), make(chan int, 1000)}
	halfway := 0
	cloud.slow = func() {
		select {
		case halfway = <-w.written:
		case <-time.After(2 * time.Minute):
		}
	}
	if n.askAll(w) || !maps.Equal(n.pods(n.plainOf(w.ResponseRecorder)), want) {
		t.Error("the second list is another one")
	}
	if halfway == 0 || halfway >= w.Body.Len() {
		t.Errorf("when half had been sent, the client had %d bytes of %d", halfway, w.Body.Len())
	}
	n.cloud.set(true, nil)
	if w := httptest.NewRecorder(); n.askAll(w) || !maps.Equal(n.pods(w.Body.Bytes()), want) {
		t.Error("offline the list is another one")
	}
}

// TestHeldPodIsNeverForwardedInALongList: the client has nothing of it. The answer breaks off if the client has the
// beginning, and the next one is whole.
func TestHeldPodIsNeverForwardedInALongList(t *testing.T) {
	for _, held := range []int{0, 2, 50, 99} {
		n := newNode(t, wire.Protobuf)
		n.Proxy.Cloud = &compressing{scripted: n.cloud}
		count := n.counters()
		pods, first := manyPods(1, -1)
		n.answers(1, pods...)
		n.askAll(httptest.NewRecorder())
		pods, want := manyPods(2, held)
		n.answers(2, pods...)
		w := httptest.NewRecorder()
		brokeOff := n.askAll(w)
		if brokeOff != (held > 10) {
			t.Errorf("with pod %d held, the answer broke off: %t", held, brokeOff)
		}
		if got := count("atoll_hub_lists_broken_off_total")[""]; got == 1 != brokeOff {
			t.Errorf("with pod %d held, %v lists are counted as broken off", held, got)
		}
		name := fmt.Appendf(nil, "new-%03d", held)
		if text := beginning(w.Body.Bytes()); bytes.Contains(text, name) {
			t.Errorf("pod %d reached the client in %d bytes", held, len(text))
		} else if brokeOff && len(text) < 50<<10 {
			t.Errorf("the client has %d bytes: the test shows nothing", len(text))
		}
		kept := want
		if brokeOff {
			kept = first
		}
		n.cloud.set(true, nil)
		if w := httptest.NewRecorder(); n.askAll(w) || !maps.Equal(n.pods(w.Body.Bytes()), kept) {
			t.Errorf("with pod %d held, offline the list is another one", held)
		}
		n.cloud.set(false, nil)
		for range 2 { // as long as something is held, each list is seen whole
			if w := httptest.NewRecorder(); n.askAll(w) || !maps.Equal(n.pods(n.plainOf(w)), want) {
				t.Errorf("with pod %d held, the list after is another one", held)
			}
		}
	}
}

// TestDamagedForwardedListBreaksOff: they break off, and what was kept stays.
func TestDamagedForwardedListBreaksOff(t *testing.T) {
	for name, spoil := range spoilers {
		n := newNode(t, wire.Protobuf)
		cloud := &compressing{scripted: n.cloud}
		n.Proxy.Cloud = cloud
		pods, want := manyPods(1, -1)
		n.answers(1, pods...)
		n.askAll(httptest.NewRecorder())
		pods, _ = manyPods(2, -1)
		n.answers(2, pods...)
		cloud.spoil = spoil
		w := httptest.NewRecorder()
		brokeOff := n.askAll(w)
		if !brokeOff && w.Code == http.StatusOK {
			t.Errorf("%s passes by the gate", name)
		}
		if name == "a wrong checksum" && !brokeOff {
			t.Errorf("the client had nothing of what has %s: the test shows nothing", name)
		}
		n.cloud.set(true, nil)
		if w := httptest.NewRecorder(); n.askAll(w) || !maps.Equal(n.pods(w.Body.Bytes()), want) {
			t.Errorf("after %s, offline the list is another one", name)
		}
	}
}

// impatient is the writer of a client that leaves at the first part of its answer.
type impatient struct {
	*httptest.ResponseRecorder

	leave context.CancelFunc
}

func (l *impatient) Write(part []byte) (int, error) {
	l.leave()
	return l.ResponseRecorder.Write(part)
}

// TestAListWhoseClientLeavesIsNotCounted as one that broke off.
func TestAListWhoseClientLeavesIsNotCounted(t *testing.T) {
	for leaves, want := range map[bool]float64{false: 1, true: 0} {
		n := newNode(t, wire.Protobuf)
		count := n.counters()
		cloud := &compressing{scripted: n.cloud}
		n.Proxy.Cloud = cloud
		pods, _ := manyPods(1, -1)
		n.answers(1, pods...)
		n.askAll(httptest.NewRecorder())
		cloud.spoil = spoilers["a wrong checksum"]
		ctx, cancel := context.WithCancel(t.Context())
		w := &impatient{httptest.NewRecorder(), cancel}
		if !leaves {
			w.leave = func() {}
		}
		func() {
			defer func() {
				if recover() == nil {
					t.Error("a list that is damaged is whole")
				}
			}()
			r := httptest.NewRequestWithContext(ctx, http.MethodGet, podsOfNode, nil)
			r.Header.Set("Accept", n.format.ContentType())
			r.Header.Set("Accept-Encoding", gzipped)
			n.answer(w, r, identity.OfNode())
		}()
		cancel()
		if got := count("atoll_hub_lists_broken_off_total")[""]; got != want {
			t.Errorf("when its client leaves (%t), %v lists are counted, want %v", leaves, got, want)
		}
	}
}

// TestAllowedPodsDoNotBreakOffAForwardedList: a list with one never breaks off again and again.
func TestAllowedPodsDoNotBreakOffAForwardedList(t *testing.T) {
	for name, change := range map[string]func(*corev1.Pod){
		"ignores its policy": func(p *corev1.Pod) { p.Annotations[gm.MissingPolicyAnnotation] = gm.MissingPolicyIgnore },
		"is being deleted":   deleting,
		"is frozen":          begun,
	} {
		n := newNode(t, wire.Protobuf)
		n.Proxy.Cloud = &compressing{scripted: n.cloud}
		pods, want := manyPods(1, 50, change)
		want["new-050"] = pods[50].Spec.Containers[0].Image
		n.answers(1, pods...)
		for i := range 4 {
			if w := httptest.NewRecorder(); n.askAll(w) || !maps.Equal(n.pods(n.plainOf(w)), want) {
				t.Errorf("list %d with a pod that %s is not whole", i, name)
			}
		}
	}
}

// TestListWithAHeldPodInAChunkCompletes: a held pod in a further chunk does not make the list break off again and again.
func TestListWithAHeldPodInAChunkCompletes(t *testing.T) {
	n := newNode(t, wire.Protobuf)
	n.Proxy.Cloud = &compressing{scripted: n.cloud}
	n.cloud.set(false, func(r *http.Request) (int, string, io.ReadCloser) {
		held, list := -1, &corev1.PodList{}
		if list.ResourceVersion = "1"; r.URL.Query().Get("continue") != "" {
			held = 50
		} else {
			list.Continue = "more"
		}
		pods, _ := manyPods(1, held)
		for _, p := range pods {
			list.Items = append(list.Items, *p)
		}
		return http.StatusOK, n.format.ContentType(), io.NopCloser(bytes.NewReader(n.encode(list)))
	})
	for i := range 3 {
		for _, query := range []string{"&limit=500", "&limit=500&continue=more"} {
			if w := httptest.NewRecorder(); n.askFrom(w, podsOfNode+query) || w.Code != http.StatusOK {
				t.Errorf("list %d%s is %d, or not whole", i, query, w.Code)
			}
		}
	}
}

// TestBrokenOffListCountsAsNotDelivered: a pod of it that is not bound any more is held.
func TestBrokenOffListCountsAsNotDelivered(t *testing.T) {
	n := newNode(t, wire.Protobuf)
	n.Proxy.Cloud = &compressing{scripted: n.cloud}
	pods, _ := manyPods(1, -1)
	n.answers(1, pods...)
	n.askAll(httptest.NewRecorder())
	pods, _ = manyPods(2, 99)
	n.answers(2, append([]*corev1.Pod{pod("late", "one", 2, bound)}, pods...)...)
	if !n.askAll(httptest.NewRecorder()) {
		t.Fatal("the list did not break off")
	}
	n.answers(3, pod("late", "one", 3, unbound))
	if w := httptest.NewRecorder(); n.askAll(w) || len(n.pods(n.plainOf(w))) != 0 {
		t.Errorf("the pods are %v", n.pods(n.plainOf(w)))
	}
}

// leaving is a client that has gone.
type leaving struct {
	*httptest.ResponseRecorder
}

// Write implements io.Writer.
func (l leaving) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// TestForwardedListIsKeptAfterItsClientLeaves: the list is kept.
func TestForwardedListIsKeptAfterItsClientLeaves(t *testing.T) {
	n := newNode(t, wire.Protobuf)
	n.Proxy.Cloud = &compressing{scripted: n.cloud}
	pods, _ := manyPods(1, -1)
	n.answers(1, pods...)
	n.askAll(httptest.NewRecorder())
	pods, want := manyPods(2, -1)
	n.answers(2, pods...)
	n.askAll(leaving{httptest.NewRecorder()})
	n.cloud.set(true, nil)
	if w := httptest.NewRecorder(); n.askAll(w) || !maps.Equal(n.pods(w.Body.Bytes()), want) {
		t.Error("offline the list is another one")
	}
}
