package extender

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// BenchmarkFilter measures a filter request as kube-scheduler sends it, by the number of
// nodes and of candidates.
func BenchmarkFilter(b *testing.B) {
	for _, size := range []struct{ nodes, candidates int }{{1000, 1000}, {5000, 1000}, {5000, 5000}} {
		b.Run(fmt.Sprintf("nodes=%d/candidates=%d", size.nodes, size.candidates), func(b *testing.B) {
			objects := ground(build.Replicas(1000))
			var names []string
			for i := range size.nodes {
				node := build.Node(fmt.Sprint("node-", i), build.InGroup([]string{"hz", "bj"}[i%2]))
				objects = append(objects, node)
				if i < size.candidates {
					names = append(names, node.Name)
				}
			}
			d := newFixture(b, objects...)
			pod := webPod(0)
			pod.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kube-controller-manager", FieldsV1: metav1.NewFieldsV1(managedFields)}}
			body, err := json.Marshal(extenderArgs{Pod: pod, NodeNames: &names})
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if w := d.send("filter", body); w.Code != http.StatusOK {
					b.Fatal(w.Body)
				}
			}
		})
	}
}

// managedFields has about the length of those of a pod with one container.
var managedFields = func() string {
	fields := map[string]any{}
	for i := range 40 {
		fields[fmt.Sprint("f:field-", i)] = map[string]any{".": map[string]any{}, "f:name": map[string]any{}}
	}
	raw, err := json.Marshal(fields)
	if err != nil {
		panic(err)
	}
	return string(raw)
}()
