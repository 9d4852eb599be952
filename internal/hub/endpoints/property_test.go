package endpoints

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	discoveryv1 "k8s.io/api/discovery/v1"
	"pgregory.net/rapid"

	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// anyEndpoint is an endpoint as at reads it.
var anyEndpoint = rapid.Custom(func(t *rapid.T) string {
	return rapid.SampledFrom([]string{"", "!"}).Draw(t, "ready") + rapid.SampledFrom([]string{"", "a", "b", "c", "d"}).Draw(t, "node") + "/" +
		rapid.SampledFrom([]string{"", "z1", "z2"}).Draw(t, "zone") + "/" + rapid.SampledFrom([]string{"", "p1", "p2", "p3"}).Draw(t, "pod") + "=" +
		rapid.SampledFrom([]string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}).Draw(t, "address")
})

// anyRig is a filter that knows some things.
func anyRig(t *rapid.T, format wire.Format) *rig {
	r := newRig(t, format)
	if rapid.Bool().Draw(t, "node is known") {
		var members []string
		if rapid.Bool().Draw(t, "members are known") {
			members = rapid.SliceOfDistinct(rapid.SampledFrom([]string{"a", "b", "c"}), rapid.ID).Draw(t, "members")
		}
		r.in(rapid.SampledFrom([]string{"", "z1", "z2"}).Draw(t, "zone of the node"), "p", members...)
	}
	keys := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"kubernetes.io/hostname", "openyurt.io/nodepool", "topology.kubernetes.io/zone"}), 0, 3, rapid.ID).Draw(t, "keys")
	if rapid.Bool().Draw(t, "all at last") {
		keys = append(keys, "*")
	}
	r.topology(strings.Join(keys, ","))
	for _, uid := range rapid.SliceOfDistinct(rapid.SampledFrom([]string{"p1", "p2"}), rapid.ID).Draw(t, "pods of the node") {
		r.pods.put(uid, entry{Addresses: []string{rapid.SampledFrom([]string{"10.0.0.1", "10.0.0.9", "fd00::1"}).Draw(t, "new address")}})
	}
	return r
}

// TestFilteredEndpointsAreEqualInAllFormats: they are a subset of the object's endpoints, and filtering them
// again changes nothing.
func TestFilteredEndpointsAreEqualInAllFormats(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := rapid.SliceOfN(anyEndpoint, 0, 6).Draw(t, "endpoints")
		r := anyRig(t, wire.JSON)
		var forms []*discoveryv1.EndpointSlice
		var old []*oldEndpoints
		for _, format := range formats {
			r.format = format
			for _, again := range []bool{false, true} {
				slice, endpoints := sliceOf("web-1", list...), endpointsOf(list...)
				if again {
					slice, endpoints = forms[len(forms)-1], old[len(old)-1]
				}
				var got discoveryv1.EndpointSlice
				r.through(r.session("endpointslices"), slice, &got)
				forms = append(forms, &got)
				var gotOld oldEndpoints
				r.through(r.session("endpoints"), endpoints, &gotOld)
				old = append(old, &gotOld)
			}
		}
		for i := range forms {
			if diff := cmp.Diff(addressesInOrder(forms[0]), addressesInOrder(forms[i])); diff != "" {
				t.Fatalf("form %d of a slice differs: %s", i, diff)
			}
			if diff := cmp.Diff(addressesOf(old[0]), addressesOf(old[i])); diff != "" {
				t.Fatalf("form %d of Endpoints differs: %s", i, diff)
			}
		}
		if len(forms[0].Endpoints) > len(list) {
			t.Fatalf("%v becomes %v", list, forms[0].Endpoints)
		}
	})
}

func addressesInOrder(s *discoveryv1.EndpointSlice) (list []string) {
	for _, e := range s.Endpoints {
		list = append(list, fmt.Sprint(e.Addresses, e.NodeName != nil && *e.NodeName == "a"))
	}
	return list
}

func TestUnreadableObjectsPassUnchanged(t *testing.T) {
	for _, format := range formats {
		r := newRig(t, format).topology("kubernetes.io/hostname,openyurt.io/nodepool")
		r.pods.put("web", entry{Addresses: []string{"10.0.0.2"}})
		raw := encode(t, format, sliceOf("web-1", "a//web=10.0.0.1", "b=10.0.0.5"))
		m, err := format.Meta(raw)
		if err != nil {
			t.Fatal(err)
		}
		texts := [][]byte{nil, []byte("x"), []byte("{}"), []byte("[]"), []byte("null"), []byte(`{"endpoints":7}`), []byte(`{"endpoints":["x"]}`), []byte(`{"endpoints":[{"nodeName":7}]}`)}
		for i := range raw {
			texts = append(texts, raw[:i])
			damaged := bytes.Clone(raw)
			damaged[i] ^= 0x15
			texts = append(texts, damaged)
		}
		for _, resource := range []string{"endpointslices", "endpoints"} {
			s := r.session(resource)
			for _, text := range texts {
				was := bytes.Clone(text)
				s.Learn(format, &m, text)
				form := s.Form(format, &m, text)
				if !bytes.Equal(was, text) {
					t.Fatalf("%s in %s: the object itself is changed", resource, format)
				}
				if isCut := len(text) < len(raw); isCut && format != wire.Protobuf && !bytes.Equal(form, was) {
					t.Errorf("%s in %s: %q becomes %q", resource, format, was, form)
				}
			}
		}
	}
}

// TestNumbersKeepTheirPrecision: numbers stay as they were written.
func TestNumbersKeepTheirPrecision(t *testing.T) {
	r := newRig(t, wire.JSON).topology("kubernetes.io/hostname")
	raw := []byte(`{"kind":"EndpointSlice","apiVersion":"discovery.k8s.io/v1","metadata":{"namespace":"default","name":"web-1","generation":9007199254740993,"labels":{"kubernetes.io/service-name":"web"}},"endpoints":[{"addresses":["10.0.0.5"]}]}`)
	m := wire.Meta{Namespace: "default", Name: "web-1"}
	form := r.session("endpointslices").Form(wire.JSON, &m, raw)
	if !bytes.Contains(form, []byte("9007199254740993")) || !json.Valid(form) || bytes.Contains(form, []byte("10.0.0.5")) {
		t.Errorf("the form is %s", form)
	}
}
