package manager

import (
	"encoding/json"
	"flag"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// emptyAPI is an API server that stores nothing. Secrets can be created, and it serves the
// kinds of Atoll once served is true. It serves no other kind, so Run ends when it makes its
// caches.
type emptyAPI struct {
	mu     sync.Mutex
	served bool
	// asked counts the questions for the kinds of Atoll while they were not served.
	asked int
	// others are the paths of all requests but these and those for Secrets.
	others []string
}

func (a *emptyAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	groupVersion := strings.TrimPrefix(r.URL.Path, "/apis/")
	switch {
	case strings.Contains(r.URL.Path, "/secrets"):
		if r.Method == http.MethodPost {
			body, _ := io.ReadAll(r.Body)
			w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
			w.WriteHeader(http.StatusCreated)
			_, _ = w.Write(body)
			return
		}
	case groupVersion != gm.GroupVersion.String() && groupVersion != apps.GroupVersion.String():
		a.others = append(a.others, r.URL.Path)
	case a.served:
		list := &metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: groupVersion}
		for _, kind := range ownKinds(true) {
			list.APIResources = append(list.APIResources, metav1.APIResource{Kind: kind.Kind})
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(list)
		return
	default:
		a.asked++
	}
	http.NotFound(w, r)
}

// started runs Run against the API server, on free ports. The error of Run is sent to ended.
func started(t *testing.T, api http.Handler) (c Config, ended <-chan error) {
	t.Helper()
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	flags := flag.NewFlagSet("atoll-manager", flag.PanicOnError)
	c.AddFlags(flags)
	for _, address := range []*string{&c.HealthAddress, &c.WebhookAddress, &c.ExtenderAddress, &c.MetricsAddress} {
		free, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		*address = free.Addr().String()
		_ = free.Close()
	}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() { result <- Run(t.Context(), &rest.Config{Host: server.URL}, c) }()
	return c, result
}

// TestRunAsksForNothingElseBeforeItsKindsAreServed: the caches of a kind that is not served
// cannot be made, so a manager that does not wait ends, and its container starts again and again.
func TestRunAsksForNothingElseBeforeItsKindsAreServed(t *testing.T) {
	api := &emptyAPI{}
	_, ended := started(t, api)
	build.Eventually(t, "it asks for its kinds a second time", func() bool {
		select {
		case err := <-ended:
			t.Fatalf("it ended while its kinds were not served: %v", err)
		default:
		}
		api.mu.Lock()
		defer api.mu.Unlock()
		return api.asked > 1
	})
	api.mu.Lock()
	if len(api.others) > 0 {
		t.Errorf("it asked for %v while its kinds were not served", api.others)
	}
	api.served = true
	api.mu.Unlock()
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "making the manager") {
		t.Errorf("after its kinds were served it ended with: %v", err)
	}
}
