package proxy

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/atoll-k8s/atoll/internal/governance"
	"github.com/atoll-k8s/atoll/internal/hub/inventory"
	"github.com/atoll-k8s/atoll/internal/hub/objects"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// listed returns the inventory as texts, sorted, after it has checked that each body is the object.
func (n *node) listed(i *inventory.Inventory) (list []string) {
	n.Helper()
	items, err := i.Items()
	if err != nil {
		n.Fatal(err)
	}
	for _, item := range items {
		body, err := i.Body(item.Ref)
		if err != nil {
			n.Fatalf("%s: %v", item.Ref, err)
		}
		object, _, err := objects.Codecs.UniversalDeserializer().Decode(body, nil, nil)
		if err != nil {
			n.Fatalf("%s: %v", item.Ref, err)
		}
		m, err := meta.Accessor(object)
		if err != nil || m.GetName() != item.Name || m.GetNamespace() != item.Namespace || string(m.GetUID()) != item.UID || m.GetResourceVersion() != item.Version {
			n.Errorf("the body of %+v is %+v", item, object)
		}
		list = append(list, item.String()+"@"+item.Version)
	}
	slices.Sort(list)
	return list
}

// TestInventoryHasTheCloudsLastAnswers: for the Node, its pods, and the objects that the pods need.
func TestInventoryHasTheCloudsLastAnswers(t *testing.T) {
	for _, format := range []wire.Format{wire.JSON, wire.Protobuf} {
		t.Run(format.String(), func(t *testing.T) {
			n := newNode(t, format)
			versioned := func(namespace, name, version string) metav1.ObjectMeta {
				return metav1.ObjectMeta{Namespace: namespace, Name: name, ResourceVersion: version, UID: "1"}
			}
			const settings = "/api/v1/namespaces/default/configmaps/settings"
			cloud := &answering{Cloud: n.cloud, node: n, at: map[string]runtime.Object{
				"/api/v1/nodes/a": &corev1.Node{ObjectMeta: versioned("", "a", "3")},
				settings:          &corev1.ConfigMap{ObjectMeta: versioned("default", "settings", "4")},
				"/api/v1/namespaces/default/secrets/secret": &corev1.Secret{ObjectMeta: versioned("default", "secret", "4")},
				"/api/v1/namespaces/default/pods/alone":     pod("alone", "1", 4, nil),
				"/api/v1/services":                          &corev1.ServiceList{Items: []corev1.Service{{ObjectMeta: versioned("default", "kubernetes", "1")}}},
			}}
			n.Proxy.Cloud = cloud
			asked := false
			hasSecrets := func() bool { return asked }
			i := inventory.New(n.Writes, hasSecrets)
			if _, err := inventory.OwnNode(n.Record, "a"); err == nil {
				t.Error("there is a Node that nobody has read")
			}
			if _, err := i.Items(); err == nil {
				t.Error("before the kubelet has listed its pods, the node has nothing")
			}
			list := func(version string, pods ...corev1.Pod) {
				cloud.at["/api/v1/pods"] = &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: version}, Items: pods}
				n.ask(t.Context(), podsOfNode)
				n.Wait()
			}
			list("5", *pod("web", "1", 2, nil), *pod("db", "2", 5, nil))
			for path := range cloud.at {
				n.ask(t.Context(), path)
				n.askAs(reader, path)
			}
			n.Wait()
			want := []string{"configmaps/default/settings@4", "nodes/a@3", "pods/default/db@5", "pods/default/web@2"}
			if got := n.listed(i); !slices.Equal(got, want) {
				t.Errorf("the inventory is %q, want %q", got, want)
			}
			if got := n.listed(i); !slices.Equal(got, want) {
				t.Errorf("without a change, the inventory is %q, want %q", got, want)
			}
			if node, err := inventory.OwnNode(n.Record, "a"); err != nil || node.Name != "a" || node.ResourceVersion != "3" {
				t.Errorf("the Node is %+v, %v", node, err)
			}
			asked = true
			if got, want := n.listed(i), append(slices.Clone(want), "secrets/default/secret@4"); !slices.Equal(got, want) {
				t.Errorf("with Secrets, the inventory is %q, want %q", got, want)
			}
			asked = false
			list("7", *pod("web", "1", 7, nil))
			delete(cloud.at, settings)
			n.ask(t.Context(), settings)
			n.Wait()
			if got, want := n.listed(i), []string{"nodes/a@3", "pods/default/web@7"}; !slices.Equal(got, want) {
				t.Errorf("after a pod and a ConfigMap are gone, the inventory is %q, want %q", got, want)
			}
			if got, want := n.listed(inventory.New(n.Writes, hasSecrets)), n.listed(i); !slices.Equal(got, want) {
				t.Errorf("read anew it is %q, want %q", got, want)
			}
			if _, err := i.Body(governance.Ref{Resource: "pods", Namespace: "default", Name: "db"}); err == nil {
				t.Error("a pod that is gone has a body")
			}
		})
	}
}
