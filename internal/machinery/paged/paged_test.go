package paged

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// server has so many pods, and fails from a page on if that is not 0.
type server struct {
	client.Reader
	pods, failsAt int
	largest       int
}

var errServer = errors.New("the server fails")

func (s *server) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	o := (&client.ListOptions{}).ApplyOptions(options)
	from, _ := strconv.Atoi(o.Continue)
	if s.failsAt > 0 && from >= s.failsAt {
		return errServer
	}
	pods := list.(*corev1.PodList)
	for i := from; i < min(s.pods, from+int(o.Limit)); i++ {
		pods.Items = append(pods.Items, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: fmt.Sprint(i)}})
	}
	if end := from + int(o.Limit); end < s.pods {
		pods.Continue = strconv.Itoa(end)
	}
	s.largest = max(s.largest, len(pods.Items))
	return nil
}

// TestEachPodIsVisitedOnce: in the order of the server, and no page is larger than size.
func TestEachPodIsVisitedOnce(t *testing.T) {
	for _, n := range []int{0, 1, size, size + 1, 3*size + 7} {
		s := &server{pods: n}
		var got []string
		err := Pods(t.Context(), From(s, client.InNamespace("n")), metav1.ListOptions{}, func(page []corev1.Pod) bool {
			for i := range page {
				got = append(got, page[i].Namespace+"/"+page[i].Name)
			}
			return true
		})
		var want []string
		for i := range n {
			want = append(want, fmt.Sprint("n/", i))
		}
		if err != nil || !slices.Equal(got, want) || s.largest > size {
			t.Errorf("%d pods: %v, %d were visited, %d at a time", n, err, len(got), s.largest)
		}
	}
}

// TestPagingEndsEarly: on an error, and when visit has seen enough.
func TestPagingEndsEarly(t *testing.T) {
	pages := 0
	visit := func(more bool) func([]corev1.Pod) bool {
		return func([]corev1.Pod) bool { pages++; return more }
	}
	if err := Pods(t.Context(), From(&server{pods: 5 * size, failsAt: 2 * size}), metav1.ListOptions{}, visit(true)); !errors.Is(err, errServer) || pages != 2 {
		t.Errorf("%v after %d pages", err, pages)
	}
	pages = 0
	if err := Pods(t.Context(), From(&server{pods: 5 * size}), metav1.ListOptions{}, visit(false)); err != nil || pages != 1 {
		t.Errorf("%v after %d pages", err, pages)
	}
}
