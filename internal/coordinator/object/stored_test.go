package object

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/atoll-k8s/atoll/internal/governance"
)

var edgeRef = governance.Ref{Resource: "nodes", Name: "edge-1"}

func edge(port int32) *corev1.Node {
	return &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: "edge-1", UID: "1", ResourceVersion: "7", Annotations: map[string]string{"a": "<b> & \u2028"}},
		Status: corev1.NodeStatus{
			Capacity:        corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")},
			Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: port}},
			NodeInfo:        corev1.NodeSystemInfo{KubeletVersion: "v1.36.3"},
			Images:          []corev1.ContainerImage{{Names: []string{"nginx"}, SizeBytes: 1}},
		},
	}
}

func TestStoredNodeHasThePortOfItsHub(t *testing.T) {
	for name, node := range map[string]*corev1.Node{"a port": edge(10250), "no port": edge(0), "a larger port": edge(65535)} {
		for encoding, body := range map[string][]byte{"JSON": asJSON(t, node), "protobuf": asProtobuf(t, node)} {
			before := bytes.Clone(body)
			stored, err := Stored(edgeRef, body)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(body, before) || !bytes.Equal(stored[:1], body[:1]) {
				t.Errorf("%s, %s: what was uploaded changes, or its encoding", name, encoding)
			}
			got, _, err := codecs.UniversalDeserializer().Decode(stored, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(edge(governance.HubPort), got); diff != "" {
				t.Errorf("%s, %s: (-want +got)\n%s", name, encoding, diff)
			}
			if _, err := Read(edgeRef, stored); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestStoredKeepsUnknownFields: fields of later versions, and numbers that no float64 has.
func TestStoredKeepsUnknownFields(t *testing.T) {
	for name, tc := range map[string]struct{ body, want string }{
		"later fields": {
			`{"kind":"Node","later":{"n":9007199254740993},"status":{"new":[1,{"x":null}],"daemonEndpoints":{"other":{"Port":1},"kubeletEndpoint":{"Port":10250,"port":2}}}}`,
			`{"kind":"Node","later":{"n":9007199254740993},"status":{"daemonEndpoints":{"kubeletEndpoint":{"Port":10262,"port":2},"other":{"Port":1}},"new":[1,{"x":null}]}}`,
		},
		"no status": {`{"kind":"Node"}`, `{"kind":"Node","status":{"daemonEndpoints":{"kubeletEndpoint":{"Port":10262}}}}`},
		"null":      {`{"status":null}`, `{"status":{"daemonEndpoints":{"kubeletEndpoint":{"Port":10262}}}}`},
	} {
		got, err := Stored(edgeRef, []byte(tc.body))
		if err != nil || string(got) != tc.want {
			t.Errorf("%s: got %s, %v", name, got, err)
		}
	}
	var envelope runtime.Unknown
	if err := envelope.Unmarshal(asProtobuf(t, edge(10250))[len(protobufPrefix):]); err != nil {
		t.Fatal(err)
	}
	later := []byte{100<<3&0x7f | 0x80, 100 >> 4, 7} // a varint in the field 100
	envelope.Raw = append(envelope.Raw, later...)
	body, err := envelope.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	stored, err := Stored(edgeRef, append(bytes.Clone(protobufPrefix), body...))
	if err != nil || !bytes.Contains(stored, append(later, portInProtobuf...)) {
		t.Errorf("a later field in protobuf is lost: %v", err)
	}
}

func TestStoredChangesNothingElse(t *testing.T) {
	for name, body := range map[string][]byte{"JSON": asJSON(t, web()), "protobuf": asProtobuf(t, web()), "no object": []byte("x")} {
		if got, err := Stored(webRef, body); err != nil || !bytes.Equal(got, body) {
			t.Errorf("a pod in %s changes: %v", name, err)
		}
	}
	for name, body := range map[string]string{
		"no JSON": `{"status":`, "a list": `[]`, "a status that is none": `{"status":1}`, "no protobuf": "k8s\x00\xff", "empty": "",
	} {
		got, err := Stored(edgeRef, []byte(body))
		if err == nil {
			_, err = Read(edgeRef, got)
		}
		if err == nil || !strings.Contains(err.Error(), "nodes/edge-1") {
			t.Errorf("%s: got %s, %v", name, got, err)
		}
	}
}

func FuzzStored(f *testing.F) {
	node, err := json.Marshal(edge(10250))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(node)
	f.Add([]byte("k8s\x00\x0a\x00"))
	f.Fuzz(func(t *testing.T, body []byte) {
		stored, err := Stored(edgeRef, body)
		if err != nil {
			return
		}
		// What could be read before can be read, with the port.
		if _, err := Read(edgeRef, body); err != nil {
			return
		}
		got, _, err := codecs.UniversalDeserializer().Decode(stored, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if node, is := got.(*corev1.Node); !is || node.Status.DaemonEndpoints.KubeletEndpoint.Port != governance.HubPort {
			t.Errorf("it is %+v", got)
		}
	})
}
