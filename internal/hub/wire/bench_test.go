package wire

import (
	"bytes"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// realisticPods are pods of about the size that a Deployment's pods have on a node.
func realisticPods(n int) *corev1.PodList {
	list := pods(n, listMetaOf("", nil))
	for i := range list.Items {
		pod := &list.Items[i]
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "cart-5d9f", UID: "af1c8fd4-3c2a-4f63-9f6e-0d7d4a1f3b11"}}
		fields := []byte(`{"f:metadata":{"f:labels":{".":{},"f:app":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{".":{},"f:image":{},"f:resources":{".":{},"f:limits":{".":{},"f:memory":{}}}}}}}`)
		for _, manager := range []string{"kube-controller-manager", "kubelet"} {
			f := &metav1.FieldsV1{}
			f.SetRawBytes(fields)
			pod.ManagedFields = append(pod.ManagedFields, metav1.ManagedFieldsEntry{Manager: manager, Operation: "Update", APIVersion: "v1", FieldsType: "FieldsV1", FieldsV1: f})
		}
		for j := range 2 {
			pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{
				Name: fmt.Sprintf("sidecar-%d", j), Image: "registry.example.com/team/sidecar:v1.2.3", Command: []string{"/bin/sidecar", "--verbose"},
				Env:       []corev1.EnvVar{{Name: "NODE_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}}},
				Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}},
			})
			pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: "Ready", Status: "True", LastTransitionTime: metav1.Unix(1_700_000_000, 0)})
		}
	}
	return list
}

// forEachFormat runs a benchmark with 1,000 pods in each format.
func forEachFormat(b *testing.B, f func(b *testing.B, format Format, body []byte)) {
	for _, format := range formats {
		body := encode(b, format.String(), realisticPods(1000))
		b.Run(format.String(), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(body)))
			f(b, format, body)
		})
	}
}

func BenchmarkDecodeList(b *testing.B) {
	forEachFormat(b, func(b *testing.B, format Format, body []byte) {
		for b.Loop() {
			if _, err := format.DecodeList(body); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkDecodeTyped is for comparison: a client's decoder.
func BenchmarkDecodeTyped(b *testing.B) {
	forEachFormat(b, func(b *testing.B, format Format, body []byte) {
		like := pods(0, metav1.ListMeta{})
		for b.Loop() {
			decode(b, format, body, like)
		}
	})
}

// BenchmarkMeta reads the metadata of each item.
func BenchmarkMeta(b *testing.B) {
	forEachFormat(b, func(b *testing.B, format Format, body []byte) {
		list, err := format.DecodeList(body)
		if err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			for _, item := range list.Items {
				if _, err := format.Meta(item.Raw); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
}

func BenchmarkEncodeList(b *testing.B) {
	forEachFormat(b, func(b *testing.B, format Format, body []byte) {
		list, err := format.DecodeList(body)
		if err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			list.Encode()
		}
	})
}

// BenchmarkEvents reads an event for each item.
func BenchmarkEvents(b *testing.B) {
	forEachFormat(b, func(b *testing.B, format Format, body []byte) {
		list, err := format.DecodeList(body)
		if err != nil {
			b.Fatal(err)
		}
		var stream []byte
		for _, item := range list.Items {
			object, err := format.ObjectOf(item.Raw, item.APIVersion, item.Kind)
			if err != nil {
				b.Fatal(err)
			}
			if stream, err = format.AppendEvent(stream, watch.Added, object); err != nil {
				b.Fatal(err)
			}
		}
		for b.Loop() {
			r := format.NewEventReader(bytes.NewReader(stream), 1<<20)
			for range list.Items {
				if _, err := r.Next(); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
}
