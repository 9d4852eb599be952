package endpoints

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/atoll-k8s/atoll/internal/hub/filter"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

func TestParseTopology(t *testing.T) {
	for value, want := range map[string][]Reach{
		"":                            nil,
		"  ":                          nil,
		"kubernetes.io/hostname":      {Node},
		"openyurt.io/nodepool":        {Pool},
		"kubernetes.io/zone":          {Pool},
		"topology.kubernetes.io/zone": {Zone},
		"*":                           {All},
		"kubernetes.io/hostname, openyurt.io/nodepool,topology.kubernetes.io/zone,*": {Node, Pool, Zone, All},
		"openyurt.io/nodepool,kubernetes.io/zone":                                    {Pool},
	} {
		if got, err := ParseTopology(value); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q is read as %v, %v, want %v", value, got, err, want)
		}
	}
	for value, says := range map[string]string{
		"kubernetes.io/hostname,":        `""`,
		",":                              `""`,
		"nodepool":                       "openyurt.io/nodepool",
		"kubernetes.io/hostname,unknown": `"unknown"`,
		"*,kubernetes.io/hostname":       "* must be the last key",
		strings.Repeat("*,", 1000):       "1024 bytes",
	} {
		if got, err := ParseTopology(value); err == nil || !strings.Contains(err.Error(), says) || got != nil {
			t.Errorf("%.40q is read as %v, %v", value, got, err)
		}
	}
}

// around are endpoints on the node a, on b in its pool, on c in its zone, elsewhere, and on no node.
var around = []string{"a/z1=1.0.0.1", "b/z2=1.0.0.2", "c/z1=1.0.0.3", "d/z3=1.0.0.4", "=1.0.0.5"}

// TestServiceUsesTheFirstTopologyKeyWithEndpoints: a key whose node, zone or pool is unknown removes no endpoint.
func TestServiceUsesTheFirstTopologyKeyWithEndpoints(t *testing.T) {
	all := []string{"1.0.0.1", "1.0.0.2", "1.0.0.3", "1.0.0.4", "1.0.0.5"}
	inPool := func(r *rig) { r.in("z1", "p", "a", "b") }
	for name, tc := range map[string]struct {
		topology  string
		place     func(*rig)
		endpoints []string // nil is around
		want      []string
		// ofEndpoints is what differs for Endpoints, which have no zones.
		ofEndpoints []string
	}{
		"no annotation":                     {"", inPool, nil, all, nil},
		"the node":                          {"kubernetes.io/hostname", inPool, nil, all[:1], nil},
		"the pool":                          {"openyurt.io/nodepool", inPool, nil, all[:2], nil},
		"the pool by OpenYurt's older name": {"kubernetes.io/zone", inPool, nil, all[:2], nil},
		"the zone":                          {"topology.kubernetes.io/zone", inPool, nil, []string{all[0], all[2]}, all},
		"all":                               {"*", inPool, nil, all, nil},
		"an annotation that is wrong":       {"nodepool", inPool, nil, all, nil},
		"none in the pool":                  {"openyurt.io/nodepool", inPool, around[2:], nil, nil},
		"none on the node, then the pool":   {"kubernetes.io/hostname,openyurt.io/nodepool", inPool, around[1:], all[1:2], nil},
		"one on the node, then the pool":    {"kubernetes.io/hostname,openyurt.io/nodepool", inPool, nil, all[:1], nil},
		"one on the node that is not ready, then the pool": {"kubernetes.io/hostname,openyurt.io/nodepool", inPool, []string{"!a=1.0.0.1", "b=1.0.0.2"}, all[:2], nil},
		"none that is ready":                        {"kubernetes.io/hostname,openyurt.io/nodepool", inPool, []string{"!a=1.0.0.1", "!b=1.0.0.2"}, all[:1], nil},
		"none on the node or in the pool, then all": {"kubernetes.io/hostname,openyurt.io/nodepool,*", inPool, around[2:], all[2:], nil},
		"none anywhere near":                        {"kubernetes.io/hostname,openyurt.io/nodepool", inPool, around[3:], nil, nil},
		"a node without a pool is alone in it":      {"openyurt.io/nodepool", func(r *rig) { r.in("z1", "") }, nil, all[:1], nil},
		"a node without a zone is alone in it":      {"topology.kubernetes.io/zone", func(r *rig) { r.in("", "p", "a", "b") }, nil, all[:1], all},
		"a node that its pool does not name yet":    {"openyurt.io/nodepool", func(r *rig) { r.in("z1", "p", "b") }, nil, all[:2], nil},
		"a pool whose nodes are not known":          {"openyurt.io/nodepool", func(r *rig) { r.in("z1", "p") }, nil, all, nil},
		"a pool that is not known, after the node":  {"kubernetes.io/hostname,openyurt.io/nodepool", func(r *rig) { r.in("z1", "p") }, around[1:], all[1:], nil},
		"a node that is not known":                  {"openyurt.io/nodepool", func(*rig) {}, nil, all, nil},
		"the node, when nothing is known of it":     {"kubernetes.io/hostname", func(*rig) {}, nil, all[:1], nil},
	} {
		for _, format := range formats {
			t.Run(name+" in "+format.String(), func(t *testing.T) {
				r := newRig(t, format).topology(tc.topology)
				tc.place(r)
				list := tc.endpoints
				if list == nil {
					list = around
				}
				var got discoveryv1.EndpointSlice
				was := sliceOf("web-1", list...)
				r.through(r.session("endpointslices"), was, &got)
				if !slices.Equal(addresses(&got), tc.want) {
					t.Errorf("the slice has %v, want %v", addresses(&got), tc.want)
				}
				got.Endpoints, was.Endpoints = nil, nil
				if diff := cmp.Diff(was, &got); diff != "" {
					t.Errorf("other fields change: %s", diff)
				}
				want := tc.want
				if tc.ofEndpoints != nil {
					want = tc.ofEndpoints
				}
				var old oldEndpoints
				r.through(r.session("endpoints"), endpointsOf(list...), &old)
				if !slices.Equal(addressesOf(&old), want) || len(want) == 0 && len(old.Subsets) > 0 {
					t.Errorf("the Endpoints have %v, want %v", old.Subsets, want)
				}
			})
		}
	}
}

// TestTopologyReachIsSharedByAllSlices: a slice with endpoints in the pool only is empty while another slice has
// some on the node.
func TestTopologyReachIsSharedByAllSlices(t *testing.T) {
	for _, format := range formats {
		r := newRig(t, format).in("z1", "p", "a", "b").topology("kubernetes.io/hostname,openyurt.io/nodepool,*")
		s := r.session("endpointslices")
		learn := func(object *discoveryv1.EndpointSlice) bool {
			raw := encode(t, format, object)
			m, err := format.Meta(raw)
			if err != nil {
				t.Fatal(err)
			}
			return s.Learn(format, &m, raw)
		}
		form := func(object *discoveryv1.EndpointSlice) []string {
			var got discoveryv1.EndpointSlice
			r.through(s, object, &got)
			return addresses(&got)
		}
		first, second, third := sliceOf("web-1", "b=1.0.0.2", "d=1.0.0.4"), sliceOf("web-2", "a=1.0.0.1"), sliceOf("web-3", "d=1.0.0.5")
		if got := form(first); !slices.Equal(got, []string{"1.0.0.2"}) {
			t.Errorf("%s: alone it has %v", format, got)
		}
		if !learn(second) || learn(third) {
			t.Errorf("%s: the forms of others do not change with the first endpoint on the node, or change with one elsewhere", format)
		}
		if got := form(first); len(got) > 0 {
			t.Errorf("%s: beside one on the node it has %v", format, got)
		}
		if got := form(third); len(got) > 0 {
			t.Errorf("%s: one elsewhere is there: %v", format, got)
		}
		m := wire.Meta{Namespace: "default", Name: "web-2"}
		if !s.Forget(&m) || s.Forget(&m) {
			t.Errorf("%s: the forms of others do not change when the one on the node is gone", format)
		}
		if got := form(first); !slices.Equal(got, []string{"1.0.0.2"}) {
			t.Errorf("%s: alone again it has %v", format, got)
		}
	}
}

// TestFilterAppliesToConfiguredClientsOnly: and only to Endpoints and EndpointSlices.
func TestFilterAppliesToConfiguredClientsOnly(t *testing.T) {
	f := newRig(t, wire.JSON).Filter
	for _, tc := range []struct {
		user, group, version, resource string
		want                           bool
	}{
		{proxyUser, "discovery.k8s.io", "v1", "endpointslices", true},
		{proxyUser, "", "v1", "endpoints", true},
		{proxyUser, "", "v1", "services", false},
		{proxyUser, "discovery.k8s.io", "v2", "endpointslices", false},
		{proxyUser, "example.com", "v1", "endpoints", false},
		{"", "discovery.k8s.io", "v1", "endpointslices", false},
		{"system:serviceaccount:default:kube-proxy", "discovery.k8s.io", "v1", "endpointslices", false},
	} {
		if got := f.Session(tc.user, tc.group, tc.version, tc.resource); (got != filter.Session(nil)) != tc.want {
			t.Errorf("%+v is filtered: %t", tc, got != nil)
		}
	}
}
