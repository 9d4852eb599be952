package records

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/atoll-k8s/atoll/internal/governance"
)

var (
	noon  = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	large = Limits{NodeObjects: 100, NodeBytes: 1 << 20, PoolObjects: 100, PoolBytes: 1 << 20, Bytes: 1 << 20}

	web      = governance.Ref{Resource: "pods", Namespace: "default", Name: "web-0"}
	settings = governance.Ref{Resource: "configmaps", Namespace: "default", Name: "settings"}
	service  = governance.Ref{Resource: "services", Namespace: "default", Name: "web"}
)

// stored has the pod web of the node a, which names settings, and a Service that the hub of a has uploaded.
func stored() *Set {
	return New(large, map[governance.Ref]Record{
		web:      {UID: "1", Version: 10, Node: "a", Bytes: 100, Names: []governance.Ref{settings}},
		settings: {UID: "2", Version: 5, Node: "a", Bytes: 50},
		service:  {UID: "5", Version: 4, Node: "a", Bytes: 20},
	}, noon)
}

func TestUploadIsCheckedAgainstWhatIsStored(t *testing.T) {
	lease := governance.Ref{Resource: "leases", Namespace: "kube-node-lease", Name: "a"}
	for name, tc := range map[string]struct {
		ref     governance.Ref
		record  Record
		leads   bool
		boundTo string
		after   time.Duration // since noon, when the coordinator started
		limits  Limits
		want    Reason
	}{
		"the node itself":                    {ref: governance.Ref{Resource: "nodes", Name: "a"}, record: Record{UID: "3", Version: 1, Node: "a"}},
		"another node":                       {ref: governance.Ref{Resource: "nodes", Name: "b"}, record: Record{UID: "3", Version: 1, Node: "a"}, want: Forbidden},
		"its Lease":                          {ref: lease, record: Record{UID: "3", Version: 1, Node: "a"}},
		"another node's Lease":               {ref: lease, record: Record{UID: "3", Version: 1, Node: "b"}, want: Forbidden},
		"a Lease of its name elsewhere":      {ref: governance.Ref{Resource: "leases", Namespace: "default", Name: "a"}, record: Record{UID: "3", Version: 1, Node: "a"}, want: Forbidden},
		"a later version":                    {ref: web, record: Record{UID: "1", Version: 11, Node: "a"}, boundTo: "a"},
		"the same version":                   {ref: web, record: Record{UID: "1", Version: 10, Node: "a"}, boundTo: "a"},
		"an older version":                   {ref: web, record: Record{UID: "1", Version: 9, Node: "a"}, boundTo: "a", want: Stale},
		"a pod made anew":                    {ref: web, record: Record{UID: "9", Version: 11, Node: "a"}, boundTo: "a"},
		"a pod that was there before":        {ref: web, record: Record{UID: "9", Version: 9, Node: "a"}, boundTo: "a", want: Stale},
		"a pod that is bound elsewhere":      {ref: governance.Ref{Resource: "pods", Namespace: "default", Name: "new"}, record: Record{UID: "9", Version: 9, Node: "a"}, boundTo: "b", want: Forbidden},
		"a pod that is not bound":            {ref: governance.Ref{Resource: "pods", Namespace: "default", Name: "new"}, record: Record{UID: "9", Version: 9, Node: "a"}, want: Forbidden},
		"another node's pod":                 {ref: web, record: Record{UID: "1", Version: 11, Node: "b"}, boundTo: "b", want: Forbidden},
		"another node's pod, made anew here": {ref: web, record: Record{UID: "9", Version: 11, Node: "b"}, boundTo: "b", want: Forbidden},
		"a pod made anew, and the other node is silent": {
			ref: web, record: Record{UID: "9", Version: 11, Node: "b"}, boundTo: "b", after: governance.SilentAfter,
		},
		"the same pod, and the other node is silent": {
			ref: web, record: Record{UID: "1", Version: 11, Node: "b"}, boundTo: "b", after: governance.SilentAfter, want: Forbidden,
		},
		"a ConfigMap that a pod names":  {ref: settings, record: Record{UID: "2", Version: 6, Node: "a"}},
		"a ConfigMap that no pod names": {ref: governance.Ref{Resource: "configmaps", Namespace: "default", Name: "other"}, record: Record{UID: "2", Version: 6, Node: "a"}, want: Forbidden},
		"a ConfigMap of another namespace": {
			ref: governance.Ref{Resource: "configmaps", Namespace: "other", Name: "settings"}, record: Record{UID: "2", Version: 6, Node: "a"}, want: Forbidden,
		},
		"a Service, and the hub leads":         {ref: service, record: Record{UID: "5", Version: 6, Node: "b"}, leads: true},
		"a Service, and the hub does not lead": {ref: service, record: Record{UID: "5", Version: 6, Node: "b"}, want: Forbidden},
		"another node's pod, by the leader":    {ref: web, record: Record{UID: "1", Version: 11, Node: "b"}, leads: true, boundTo: "b", want: Forbidden},
		"an older Service":                     {ref: service, record: Record{UID: "5", Version: 3, Node: "b"}, leads: true, want: Stale},
		"too many objects of the pool": {
			ref: governance.Ref{Resource: "namespaces", Name: "x"}, record: Record{UID: "6", Version: 6, Node: "a"}, leads: true, limits: Limits{PoolObjects: 1, PoolBytes: 1000, Bytes: 1000}, want: Full,
		},
		"too many bytes of the pool":   {ref: service, record: Record{UID: "5", Version: 6, Node: "b", Bytes: 31}, leads: true, limits: Limits{PoolObjects: 1, PoolBytes: 30, Bytes: 1000}, want: Full},
		"all bytes of the pool":        {ref: service, record: Record{UID: "5", Version: 6, Node: "b", Bytes: 30}, leads: true, limits: Limits{PoolObjects: 1, PoolBytes: 30, Bytes: 1000}},
		"too many objects":             {ref: lease, record: Record{UID: "3", Version: 1, Node: "a"}, limits: Limits{NodeObjects: 2, NodeBytes: 1000, Bytes: 1000}, want: Full},
		"as many objects as the limit": {ref: settings, record: Record{UID: "2", Version: 6, Node: "a"}, limits: Limits{NodeObjects: 2, NodeBytes: 1000, Bytes: 1000}},
		"too many bytes of a node":     {ref: web, record: Record{UID: "1", Version: 11, Node: "a", Bytes: 151}, boundTo: "a", limits: Limits{NodeObjects: 2, NodeBytes: 200, Bytes: 1000}, want: Full},
		"all bytes of a node":          {ref: web, record: Record{UID: "1", Version: 11, Node: "a", Bytes: 150}, boundTo: "a", limits: Limits{NodeObjects: 2, NodeBytes: 200, Bytes: 1000}},
		"too many bytes of all":        {ref: web, record: Record{UID: "1", Version: 11, Node: "a", Bytes: 151}, boundTo: "a", limits: Limits{NodeObjects: 2, NodeBytes: 1000, Bytes: 200}, want: Full},
	} {
		t.Run(name, func(t *testing.T) {
			b := stored()
			if tc.limits != (Limits{}) {
				b.limits = tc.limits
			}
			var got Reason
			var refusal *Refusal
			if err := b.Check(tc.ref, tc.record, tc.leads, tc.boundTo, noon.Add(tc.after)); errors.As(err, &refusal) {
				got = refusal.Reason
			}
			if got != tc.want {
				t.Errorf("the upload is refused for %q, want %q", got, tc.want)
			}
		})
	}
}

// TestUploadedBytesPerSecondAreBounded: all objects can be uploaded and replaced once, and then only so many
// bytes in a second.
func TestUploadedBytesPerSecondAreBounded(t *testing.T) {
	limits := Limits{NodeObjects: 10, NodeBytes: 32 << 20, PoolObjects: 10, PoolBytes: 32 << 20, Bytes: 256 << 20}
	for name, tc := range map[string]struct {
		ref   governance.Ref
		leads bool
	}{"of a node": {ref: web}, "of the pool": {ref: service, leads: true}} {
		t.Run(name, func(t *testing.T) {
			s, version := New(limits, nil, noon), uint64(0)
			upload := func(now time.Time) (taken int) {
				for ; ; taken++ {
					version++
					record := Record{UID: "1", Version: version, Node: "a", Bytes: 1 << 20}
					if err := s.Check(tc.ref, record, tc.leads, "a", now); err != nil {
						return taken
					}
					s.Put(tc.ref, record)
				}
			}
			for _, step := range []struct {
				after time.Duration
				want  int
			}{{0, 48}, {time.Second, 0}, {4 * time.Second, 1}, {40 * time.Second, 9}, {time.Hour, 48}} {
				if got := upload(noon.Add(step.after)); got != step.want {
					t.Errorf("after %v, %d versions are taken, want %d", step.after, got, step.want)
				}
			}
			if err := s.Check(governance.Ref{Resource: "nodes", Name: "b"}, Record{UID: "2", Version: 1, Node: "b", Bytes: 1 << 20}, false, "", noon); err != nil {
				t.Errorf("another node: %v", err)
			}
		})
	}
}

func TestInventoryGivesMissingAndRemovedObjects(t *testing.T) {
	item := func(ref governance.Ref, uid, version string) governance.Item {
		return governance.Item{Ref: ref, UID: uid, Version: version}
	}
	node, other := governance.Ref{Resource: "nodes", Name: "a"}, governance.Ref{Resource: "pods", Namespace: "default", Name: "other"}
	for name, tc := range map[string]struct {
		node            string
		items           []governance.Item
		missing, remove []governance.Ref
		want            Reason
	}{
		"nothing":                 {node: "a", remove: []governance.Ref{web, settings}},
		"nothing of another node": {node: "b"},
		"what is there":           {node: "a", items: []governance.Item{item(web, "1", "10"), item(settings, "2", "5")}},
		"an older version":        {node: "a", items: []governance.Item{item(web, "1", "9"), item(settings, "2", "5")}},
		"a later version, and more, in order": {
			node: "a", items: []governance.Item{item(settings, "2", "6"), item(other, "7", "1"), item(web, "1", "11"), item(node, "3", "4")},
			missing: []governance.Ref{node, other, web, settings},
		},
		"a pod made anew":             {node: "a", items: []governance.Item{item(web, "9", "12"), item(settings, "2", "5")}, missing: []governance.Ref{web}},
		"a ConfigMap that is gone":    {node: "a", items: []governance.Item{item(web, "1", "10")}, remove: []governance.Ref{settings}},
		"objects of other nodes":      {node: "b", items: []governance.Item{item(web, "1", "11"), item(node, "3", "4")}},
		"an invalid name":             {node: "a", items: []governance.Item{item(governance.Ref{Resource: "pods", Namespace: "default", Name: "../a"}, "1", "1")}, want: Forbidden},
		"a version that is no number": {node: "a", items: []governance.Item{item(web, "1", "x")}, want: Forbidden},
		"a Service":                   {node: "a", items: []governance.Item{item(service, "5", "4")}, want: Forbidden},
		"more items than the limit":   {node: "a", items: make([]governance.Item, governance.MaxItems+1), want: Full},
	} {
		t.Run(name, func(t *testing.T) {
			b := stored()
			missing, remove, err := b.Inventory(tc.node, &governance.Inventory{Items: tc.items}, noon)
			var got Reason
			var refusal *Refusal
			if errors.As(err, &refusal) {
				got = refusal.Reason
			}
			if diff := cmp.Diff(tc.missing, missing) + cmp.Diff(tc.remove, remove) + cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestNextLeaderTakesOverThePoolsObjects: an object that is deleted in the cloud is removed, whichever hub has
// uploaded it.
func TestNextLeaderTakesOverThePoolsObjects(t *testing.T) {
	b := stored()
	other := governance.Ref{Resource: "namespaces", Name: "other"}
	first := &governance.Inventory{Items: []governance.Item{{Ref: service, UID: "5", Version: "4"}, {Ref: other, UID: "6", Version: "7"}}}
	if missing, remove, err := b.PoolInventory("b", first, noon); !slices.Equal(missing, []governance.Ref{other}) || len(remove) > 0 || err != nil {
		t.Errorf("missing are %v, to be removed %v, %v", missing, remove, err)
	}
	b.Put(other, Record{UID: "6", Version: 7, Node: "b"})
	if !b.IsPoolKnown(first.Digest()) {
		t.Error("the inventory is not known")
	}
	older := &governance.Inventory{Items: []governance.Item{{Ref: other, UID: "6", Version: "6"}}}
	if missing, remove, err := b.PoolInventory("b", older, noon); len(missing) > 0 || !slices.Equal(remove, []governance.Ref{service}) || err != nil {
		t.Errorf("missing are %v, to be removed %v, %v", missing, remove, err)
	}
	if _, remove, err := b.Inventory("b", &governance.Inventory{}, noon); len(remove) > 0 || err != nil {
		t.Errorf("with the node's own inventory are to be removed %v, %v", remove, err)
	}
	for _, items := range [][]governance.Item{{{Ref: web, UID: "1", Version: "11"}}, make([]governance.Item, governance.MaxPoolItems+1)} {
		if _, _, err := b.PoolInventory("a", &governance.Inventory{Items: items}, noon); err == nil {
			t.Errorf("an inventory of %d items is taken", len(items))
		}
	}
	if remove := b.Keep(func(node string) bool { return node == "a" }); !slices.Equal(remove, []governance.Ref{other}) || b.IsPoolKnown(older.Digest()) {
		t.Errorf("when the node leaves, %v is to be removed", remove)
	}
}

// TestSharedConfigMapIsUploadedByTheOtherNode: it is removed once the node that has uploaded it does not have it
// any more. Another node that still has it uploads it again.
func TestSharedConfigMapIsUploadedByTheOtherNode(t *testing.T) {
	b := stored()
	second := governance.Ref{Resource: "pods", Namespace: "default", Name: "web-1"}
	b.Put(second, Record{UID: "8", Version: 12, Node: "b", Names: []governance.Ref{settings}})
	ofB := &governance.Inventory{Items: []governance.Item{{Ref: second, UID: "8", Version: "12"}, {Ref: settings, UID: "2", Version: "5"}}}
	if missing, remove, err := b.Inventory("b", ofB, noon); len(missing)+len(remove) > 0 || err != nil {
		t.Errorf("missing are %v, to be removed %v, %v", missing, remove, err)
	}
	ofA := &governance.Inventory{Items: []governance.Item{{Ref: web, UID: "1", Version: "10"}}}
	if _, remove, _ := b.Inventory("a", ofA, noon); !slices.Equal(remove, []governance.Ref{settings}) {
		t.Errorf("to be removed are %v, want the ConfigMap", remove)
	}
	b.Remove(settings)
	if b.Beat("b", ofB.Digest(), noon) {
		t.Error("the other node is not asked for it")
	}
	if missing, _, _ := b.Inventory("b", ofB, noon); !slices.Equal(missing, []governance.Ref{settings}) {
		t.Errorf("missing are %v, want the ConfigMap", missing)
	}
	b.Put(settings, Record{UID: "2", Version: 5, Node: "b"})
	if orphans := b.Remove(web); len(orphans) > 0 {
		t.Errorf("orphans are %v while a pod names it", orphans)
	}
	if orphans := b.Put(second, Record{UID: "8", Version: 13, Node: "b"}); !slices.Equal(orphans, []governance.Ref{settings}) {
		t.Errorf("orphans are %v, want the ConfigMap that no pod names", orphans)
	}
}

// TestSecretsAreAcceptedOnlyWhileRequested: once they are not requested any more, the stored ones are removed.
func TestSecretsAreAcceptedOnlyWhileRequested(t *testing.T) {
	secret := governance.Ref{Resource: "secrets", Namespace: "default", Name: "tls"}
	record := Record{UID: "7", Version: 6, Node: "a", Bytes: 30}
	pod := Record{UID: "1", Version: 10, Node: "a", Bytes: 100, Names: []governance.Ref{secret}}
	inventory := &governance.Inventory{Items: []governance.Item{{Ref: web, UID: "1", Version: "10"}, {Ref: secret, UID: "7", Version: "6"}}}
	s := New(large, map[governance.Ref]Record{web: pod, secret: record}, noon)
	tell := func(when string, wantMissing ...governance.Ref) {
		t.Helper()
		missing, remove, err := s.Inventory("a", inventory, noon)
		if err != nil || len(remove) > 0 || !slices.Equal(missing, wantMissing) {
			t.Errorf("%s: an inventory with it has missing %v, remove %v, %v", when, missing, remove, err)
		}
	}
	refused := func() bool {
		var refusal *Refusal
		return errors.As(s.Check(secret, record, false, "", noon), &refusal) && refusal.Reason == Forbidden
	}
	if !refused() {
		t.Error("it is taken before that is asked for")
	}
	tell("not asked for")
	if remove := s.TakeSecrets(true); len(remove) > 0 || refused() {
		t.Errorf("asked for, it is refused, or %v go", remove)
	}
	if s.Beat("a", inventory.Digest(), noon) {
		t.Error("the node does not tell again that it has one")
	}
	tell("asked for and there")
	if s.TakeSecrets(true); !s.Beat("a", inventory.Digest(), noon) {
		t.Error("asked for as before, the node tells again")
	}
	remove := s.TakeSecrets(false)
	if !slices.Equal(remove, []governance.Ref{secret}) || !refused() {
		t.Errorf("not asked for any more, %v go", remove)
	}
	s.Remove(secret)
	tell("not asked for any more")
	s.TakeSecrets(true)
	tell("asked for again", secret)
}

// TestEmptyInventoryKeepsNodeAndLease: a hub that was started again without the cloud does not know them.
func TestEmptyInventoryKeepsNodeAndLease(t *testing.T) {
	b := New(large, map[governance.Ref]Record{
		{Resource: "nodes", Name: "a"}: {UID: "1", Version: 1, Node: "a"}, {Resource: "leases", Namespace: "kube-node-lease", Name: "a"}: {UID: "2", Version: 2, Node: "a"},
	}, noon)
	if _, remove, _ := b.Inventory("a", &governance.Inventory{}, noon); len(remove) > 0 {
		t.Errorf("to be removed are %v", remove)
	}
}

func TestBeatTellsWhetherTheInventoryIsKnown(t *testing.T) {
	b := stored()
	inventory := &governance.Inventory{Items: []governance.Item{{Ref: web, UID: "1", Version: "10"}}}
	if b.Beat("a", inventory.Digest(), noon) {
		t.Error("an inventory is known that was not sent")
	}
	if _, _, err := b.Inventory("a", inventory, noon); err != nil {
		t.Fatal(err)
	}
	if !b.Beat("a", inventory.Digest(), noon) || b.Beat("b", inventory.Digest(), noon) {
		t.Error("the inventory is not known of the node that has sent it, and only of it")
	}
	late := noon.Add(governance.SilentAfter)
	b.Beat("a", "", late)
	if err := b.Check(web, Record{UID: "9", Version: 11, Node: "b"}, false, "b", late.Add(governance.SilentAfter-1)); err == nil {
		t.Error("a node that beats loses its pod")
	}
}

func TestObjectsOfNodesThatHaveLeftAreRemoved(t *testing.T) {
	b := stored()
	b.Put(governance.Ref{Resource: "nodes", Name: "b"}, Record{UID: "4", Version: 4, Node: "b"})
	remove := b.Keep(func(node string) bool { return node == "b" })
	if !slices.Equal(remove, []governance.Ref{web, settings, service}) {
		t.Errorf("to be removed are %v, want what the other node has uploaded", remove)
	}
}

// TestRecordsMatchAModelOverRandomUploads: the model has a few lines.
func TestRecordsMatchAModelOverRandomUploads(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := Limits{NodeObjects: 4, NodeBytes: 60, PoolObjects: 3, PoolBytes: 40, Bytes: 100}
		b := New(limits, nil, noon)
		now := noon
		model := map[governance.Ref]Record{}
		var remove func(ref governance.Ref)
		remove = func(ref governance.Ref) {
			delete(model, ref)
			for _, orphan := range b.Remove(ref) {
				remove(orphan)
			}
		}
		nodes := rapid.SampledFrom([]string{"a", "b", "c"})
		leader := "a"
		refs := func(t *rapid.T, resource string) governance.Ref {
			return governance.Ref{Resource: resource, Namespace: "default", Name: fmt.Sprint("n-", rapid.IntRange(0, 2).Draw(t, "name"))}
		}
		t.Repeat(map[string]func(*rapid.T){
			"upload": func(t *rapid.T) {
				ref := refs(t, rapid.SampledFrom([]string{"pods", "configmaps", "services", "endpointslices"}).Draw(t, "resource"))
				record := Record{
					UID: strconv.Itoa(rapid.IntRange(1, 3).Draw(t, "uid")), Version: uint64(rapid.IntRange(1, 20).Draw(t, "version")),
					Node: nodes.Draw(t, "node"), Bytes: int64(rapid.IntRange(1, 30).Draw(t, "bytes")),
				}
				if ref.Resource == "pods" && rapid.Bool().Draw(t, "names") {
					record.Names = []governance.Ref{refs(t, "configmaps")}
				}
				before, found := model[ref]
				if err := b.Check(ref, record, record.Node == leader, record.Node, now); err != nil {
					return
				}
				if isOfPool(ref) && record.Node != leader {
					t.Fatalf("%s uploads %s, and does not lead", record.Node, ref)
				}
				if found && record.Version < before.Version {
					t.Fatalf("version %d replaces %d", record.Version, before.Version)
				}
				if found && ref.Resource == "pods" && before.Node != record.Node && before.UID == record.UID {
					t.Fatalf("the node %s takes a pod of %s", record.Node, before.Node)
				}
				orphans := b.Put(ref, record)
				model[ref] = record
				for _, orphan := range orphans {
					remove(orphan)
				}
			},
			"inventory": func(t *rapid.T) {
				node := nodes.Draw(t, "node")
				inventory := &governance.Inventory{}
				for ref, record := range model {
					if record.Node == node && !isOfPool(ref) && rapid.Bool().Draw(t, "keep") {
						inventory.Items = append(inventory.Items, governance.Item{Ref: ref, UID: record.UID, Version: strconv.FormatUint(record.Version, 10)})
					}
				}
				missing, gone, err := b.Inventory(node, inventory, now)
				if err != nil || len(missing) > 0 {
					t.Fatalf("what is stored is missing: %v, %v", missing, err)
				}
				for _, ref := range gone {
					if isOfPool(ref) {
						t.Fatalf("%s removes %s with an inventory of its own", node, ref)
					}
					remove(ref)
				}
				for ref, record := range model {
					if ref.Resource == "pods" && record.Node == node && !slices.ContainsFunc(inventory.Items, func(item governance.Item) bool { return item.Ref == ref }) {
						t.Fatalf("%s stays, although %s does not have it", ref, node)
					}
				}
			},
			"inventory of the pool": func(t *rapid.T) {
				inventory, gone := &governance.Inventory{}, 0
				for ref, record := range model {
					switch {
					case !isOfPool(ref):
					case rapid.Bool().Draw(t, "keep"):
						inventory.Items = append(inventory.Items, governance.Item{Ref: ref, UID: record.UID, Version: strconv.FormatUint(record.Version, 10)})
					default:
						gone++
					}
				}
				missing, removed, err := b.PoolInventory(leader, inventory, now)
				if err != nil || len(missing) > 0 || len(removed) != gone {
					t.Fatalf("of %d objects that are gone %d are removed, and what is stored is missing: %v, %v", gone, len(removed), missing, err)
				}
				for _, ref := range removed {
					remove(ref)
				}
			},
			"another leader": func(t *rapid.T) { leader = nodes.Draw(t, "leader") },
			"restart":        func(*rapid.T) { b = New(limits, maps.Clone(model), now) },
			"time":           func(*rapid.T) { now = now.Add(governance.SilentAfter / 2) },
			"": func(t *rapid.T) {
				var bytes int64
				objects, bytesOf := map[string]int{}, map[string]int64{}
				for ref, record := range model {
					bytes += record.Bytes
					owner := record.Node
					if isOfPool(ref) {
						owner = ""
					}
					objects[owner]++
					bytesOf[owner] += record.Bytes
					if ref.Resource == "configmaps" && !slices.ContainsFunc(slices.Collect(maps.Values(model)), func(r Record) bool { return slices.Contains(r.Names, ref) }) {
						t.Fatalf("%s is stored, and no pod names it", ref)
					}
				}
				if len(b.records) != len(model) || b.bytes != bytes {
					t.Fatalf("there are %d objects of %d bytes, want %d of %d", len(b.records), b.bytes, len(model), bytes)
				}
				if objects[""] > limits.PoolObjects || bytesOf[""] > limits.PoolBytes || b.pool.objects != objects[""] || b.pool.bytes != bytesOf[""] {
					t.Fatalf("the pool has %d objects of %d bytes, and the set says %+v", objects[""], bytesOf[""], b.pool)
				}
				for node := range objects {
					if node != "" && (objects[node] > limits.NodeObjects || bytesOf[node] > limits.NodeBytes) || bytes > limits.Bytes {
						t.Fatalf("%s has %d objects of %d bytes, of %d in all", node, objects[node], bytesOf[node], bytes)
					}
				}
			},
		})
	})
}
