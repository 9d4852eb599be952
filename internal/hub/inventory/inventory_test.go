package inventory

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/go-logr/logr"

	"github.com/atoll-k8s/atoll/internal/hub/cache"
	"github.com/atoll-k8s/atoll/internal/hub/journal"
	"github.com/atoll-k8s/atoll/internal/hub/ownwrites"
	"github.com/atoll-k8s/atoll/internal/hub/record"
	"github.com/atoll-k8s/atoll/internal/hub/request"
)

// TestInventoryHasTheLease: it is the Lease that the kubelet wrote last, because the kubelet does not read it
// again.
func TestInventoryHasTheLease(t *testing.T) {
	store, err := cache.Open(t.TempDir(), cache.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	w := &ownwrites.Writes{NodeName: "a", Journal: &journal.Journal{}, Record: record.New(store, 0, nil, logr.Discard())}
	i := New(w, func() bool { return false })
	if _, _, err := i.ownLease(); err == nil {
		t.Error("there is a Lease that nobody has written")
	}
	lease := `{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"namespace":"kube-node-lease","name":"a","uid":"1","resourceVersion":"9"}}`
	put := httptest.NewRequest(http.MethodPut, ownwrites.LeasePath("a"), nil)
	what := request.Of(put)
	w.Answered(w.Of(put, &what), "application/json", []byte(lease))
	item, body, err := i.ownLease()
	if err != nil || item.String() != "leases/kube-node-lease/a" || item.UID != "1" || item.Version != "9" || string(body) != lease {
		t.Errorf("the Lease is %+v, %s, %v", item, body, err)
	}
}
