package governance

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestValidate(t *testing.T) {
	long := strings.Repeat("a", 254)
	for name, tc := range map[string]struct {
		ref  Ref
		says string // "" if it is valid
	}{
		"a node":                    {Ref{"nodes", "", "edge-1"}, ""},
		"a pod":                     {Ref{"pods", "default", "web-0"}, ""},
		"a colon":                   {Ref{"serviceaccounts", "default", "a:b"}, "name"},
		"a new line":                {Ref{"pods", "default", "a\nb"}, "name"},
		"an escape":                 {Ref{"pods", "default", "a\x1b[31m"}, "name"},
		"no UTF-8":                  {Ref{"pods", "default", "a\xff"}, "name"},
		"another resource":          {Ref{"events", "default", "e"}, `resource: "events"`},
		"a pod without a namespace": {Ref{"pods", "", "web-0"}, "namespace: pods need one"},
		"a node with a namespace":   {Ref{"nodes", "default", "edge-1"}, "namespace: nodes have none"},
		"a path as the namespace":   {Ref{"pods", "../minions", "edge-1"}, `namespace: "../minions"`},
		"a path as the name":        {Ref{"pods", "default", "../../minions/edge-1"}, `name: "../../minions/edge-1"`},
		"the parent as the name":    {Ref{"pods", "default", ".."}, `name: ".."`},
		"an escape in the name":     {Ref{"pods", "default", "a%2fb"}, `name: "a%2fb"`},
		"no name":                   {Ref{"pods", "default", ""}, `name: ""`},
		"a name that is too long":   {Ref{"pods", "default", long}, "name: "},
	} {
		t.Run(name, func(t *testing.T) {
			err := tc.ref.Validate()
			if (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
				t.Errorf("Validate is %v, want %q", err, tc.says)
			}
		})
	}
}

func TestKeysAreThoseOfAnAPIServer(t *testing.T) {
	for want, ref := range map[string]Ref{
		"/registry/minions/edge-1":                  {"nodes", "", "edge-1"},
		"/registry/pods/default/web-0":              {"pods", "default", "web-0"},
		"/registry/leases/kube-node-lease/edge-1":   {"leases", "kube-node-lease", "edge-1"},
		"/registry/serviceaccounts/default/builder": {"serviceaccounts", "default", "builder"},
		"/registry/configmaps/default/kube-root-ca": {"configmaps", "default", "kube-root-ca"},
		"/registry/secrets/default/tls":             {"secrets", "default", "tls"},
		"/registry/apps.openyurt.io/nodepools/edge": {"nodepools", "", "edge"},
		"/registry/namespaces/default":              {"namespaces", "", "default"},
		"/registry/services/specs/default/web":      {"services", "default", "web"},
		"/registry/endpointslices/default/web-x7":   {"endpointslices", "default", "web-x7"},
	} {
		if got := ref.Key(); got != want {
			t.Errorf("Key is %s, want %s", got, want)
		}
	}
}

// TestNoMessageHasATime: who leads and who is silent does not depend on what the clocks of nodes say. The renewTime of a
// report is the only one: it is compared with the one before, and forwarded as it is.
func TestNoMessageHasATime(t *testing.T) {
	var look func(of reflect.Type, path string)
	look = func(of reflect.Type, path string) {
		switch of.Kind() {
		case reflect.Slice, reflect.Pointer, reflect.Map:
			look(of.Elem(), path)
		case reflect.Struct:
			if of.PkgPath() == "time" || strings.HasSuffix(of.PkgPath(), "apis/meta/v1") {
				t.Errorf("%s is a time, and clocks differ", path)
				return
			}
			for i := range of.NumField() {
				if of == reflect.TypeFor[Report]() && of.Field(i).Name == "Renewed" {
					continue
				}
				look(of.Field(i).Type, path+"."+of.Field(i).Name)
			}
		}
	}
	for _, message := range []any{Beat{}, BeatAnswer{}, Inventory{}, InventoryAnswer{}} {
		look(reflect.TypeOf(message), reflect.TypeOf(message).Name())
	}
}

func TestDigest(t *testing.T) {
	items := []Item{
		{Ref{"nodes", "", "edge-1"}, "1", "7"}, {Ref{"pods", "default", "a"}, "2", "8"}, {Ref{"pods", "default", "b"}, "3", "9"},
	}
	want := (&Inventory{items}).Digest()
	shuffled := slices.Clone(items)
	rand.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	if got := (&Inventory{shuffled}).Digest(); got != want {
		t.Error("the order makes another digest")
	}
	for what, change := range map[string]func([]Item) []Item{
		"a version":     func(items []Item) []Item { items[1].Version = "10"; return items },
		"a uid":         func(items []Item) []Item { items[1].UID = "4"; return items },
		"a missing one": func(items []Item) []Item { return items[1:] },
	} {
		if got := (&Inventory{change(slices.Clone(items))}).Digest(); got == want {
			t.Errorf("%s makes no other digest", what)
		}
	}
}

func TestParseRef(t *testing.T) {
	for _, ref := range []Ref{{Resource: "nodes", Name: "edge"}, {Resource: "pods", Namespace: "default", Name: "web"}} {
		if got := ParseRef(ref.String()); got != ref {
			t.Errorf("%s is read as %+v", ref, got)
		}
	}
	for _, text := range []string{"", "nodes", "nodes/", "pods/default/../../minions/edge", "pods//web", "/pods/default/web"} {
		if got := ParseRef(text); got.Validate() == nil {
			t.Errorf("%q is read as %+v", text, got)
		}
	}
}
