package pool

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/hub/filter"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// cloud has the receivers of what is followed, by selector.
type cloud map[string]filter.Receiver

func (c cloud) follow(ctx context.Context, of filter.Collection, r filter.Receiver) {
	c[of.Selector] = r
	<-ctx.Done()
	delete(c, of.Selector)
}

func (c cloud) put(t *testing.T, selector string, object metav1.Object) {
	t.Helper()
	text, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	c[selector].Put(wire.JSON, &wire.Meta{Name: object.GetName()}, text)
	synctest.Wait()
}

func TestDiscoveryFollowsTheCoordinatorOfThePool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const node, edge, site = "fieldSelector=metadata.name%3Da", "fieldSelector=spec.nodePool%3Dedge", "fieldSelector=spec.nodePool%3Dsite"
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		c, d := cloud{}, NewDiscovery("a", logr.Discard())
		go d.Run(ctx, c.follow)
		synctest.Wait()
		expect := func(when string, ca string, addresses ...string) {
			t.Helper()
			if diff := cmp.Diff(strings.Join(addresses, " "), strings.Join(d.Addresses(), " ")); diff != "" || string(d.CA()) != ca {
				t.Errorf("%s: the CA is %q, the addresses %s", when, d.CA(), diff)
			}
		}
		inPool := func(name, pool string) *metav1.PartialObjectMetadata {
			return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{apps.NodePoolLabel: pool}}}
		}
		of := func(name, ca string, addresses ...string) *apps.YurtCoordinator {
			return &apps.YurtCoordinator{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: apps.YurtCoordinatorStatus{CABundle: []byte(ca), Addresses: addresses}}
		}
		expect("nothing is known", "")
		c.put(t, node, inPool("b", "site"))
		if len(c) != 1 {
			t.Errorf("another node is in a pool, and %v are followed", c)
		}
		c.put(t, node, inPool("a", "edge"))
		expect("no coordinator is known", "")
		c.put(t, edge, of("two", ""))
		expect("one that is not deployed", "")
		c.put(t, edge, of("one", "ca", "10.0.0.1", "fd00::2"))
		expect("one that is", "ca", "10.0.0.1:10271", "[fd00::2]:10271")
		c[edge].Failed(errors.New("the cloud is away"))
		c[edge].Put(wire.JSON, &wire.Meta{Name: "one"}, []byte("{"))
		c[edge].Replace(wire.JSON, []wire.Item{{Raw: []byte("[]")}})
		c[node].Replace(wire.JSON, nil)
		expect("nothing that can be read comes", "ca", "10.0.0.1:10271", "[fd00::2]:10271")
		c.put(t, edge, of("one", "new", "10.0.0.2"))
		expect("it has moved", "new", "10.0.0.2:10271")
		if d.AsksForSecrets() {
			t.Error("Secrets are asked for")
		}
		asking := of("one", "new", "10.0.0.2")
		asking.Spec.Upload = []apps.UploadKind{apps.UploadSecrets}
		c.put(t, edge, asking)
		idle := of("two", "")
		c.put(t, edge, idle)
		if !d.AsksForSecrets() {
			t.Error("Secrets are not asked for")
		}
		late := c[edge]
		c.put(t, node, inPool("a", "site"))
		expect("the node is in another pool", "")
		if d.AsksForSecrets() {
			t.Error("the one of the last pool asks for Secrets")
		}
		late.Put(wire.JSON, &wire.Meta{Name: "one"}, []byte(`{"status":{"caBundle":"Y2E=","addresses":["10.0.0.1"]}}`))
		expect("the one of the last pool", "")
		c.put(t, site, of("three", "site", "10.1.0.1"))
		expect("that of the new pool", "site", "10.1.0.1:10271")
		c[site].Delete(&wire.Meta{Name: "three"})
		expect("it is deleted", "")
		c.put(t, node, inPool("a", ""))
		if len(c) != 1 {
			t.Errorf("the node is in no pool, and %v are followed", c)
		}
	})
}
