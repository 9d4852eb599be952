package manager

import (
	"context"
	"encoding/json"
	"flag"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

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
		for _, kind := range ownKinds(true, true) {
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
func started(ctx context.Context, t *testing.T, api http.Handler) (c Config, ended <-chan error) {
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
	go func() { result <- Run(ctx, &rest.Config{Host: server.URL}, c) }()
	return c, result
}

// awaitQuestions waits until the kinds of Atoll, which are not served, have been asked for n
// times.
func (a *emptyAPI) awaitQuestions(t *testing.T, n int, ended <-chan error) {
	t.Helper()
	build.Eventually(t, "it asks for its kinds", func() bool {
		select {
		case err := <-ended:
			t.Fatalf("it ended while its kinds were not served: %v", err)
		default:
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.asked >= n
	})
}

// TestRunReadsNothingBeforeItsKindsAreServed: the caches of a kind that is not served
// cannot be made, so a manager that does not wait ends, and its container starts again and again.
func TestRunReadsNothingBeforeItsKindsAreServed(t *testing.T) {
	api := &emptyAPI{}
	_, ended := started(t.Context(), t, api)
	api.awaitQuestions(t, 2, ended)
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

// TestAReplicaThatWaitsForItsKindsIsLiveAndNotReady: the kubelet would otherwise restart it
// before the wait is over, and its log would not say why.
func TestAReplicaThatWaitsForItsKindsIsLiveAndNotReady(t *testing.T) {
	api := &emptyAPI{}
	c, ended := started(t.Context(), t, api)
	api.awaitQuestions(t, 1, ended)
	for path, want := range map[string]int{"/healthz": http.StatusOK, "/readyz": http.StatusInternalServerError} {
		answer, err := http.Get("http://" + c.HealthAddress + path)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("%s is %s, want %d: %s", path, answer.Status, want, body)
		}
	}
	api.mu.Lock()
	api.served = true
	api.mu.Unlock()
	<-ended
	if again, err := net.Listen("tcp", c.HealthAddress); err != nil {
		t.Errorf("the port of the probes is open after Run has ended: %v", err)
	} else {
		_ = again.Close()
	}
}

// TestAReplicaStopsWhileTheAPIServerDoesNotAnswer: no probe ends a replica that waits.
func TestAReplicaStopsWhileTheAPIServerDoesNotAnswer(t *testing.T) {
	secrets, asked, release := &emptyAPI{}, make(chan struct{}, 10), make(chan struct{})
	ctx, stop := context.WithCancel(t.Context())
	_, ended := started(ctx, t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/secrets") {
			secrets.ServeHTTP(w, r)
			return
		}
		asked <- struct{}{}
		<-release
	}))
	t.Cleanup(func() { close(release) }) // before the server is closed
	<-asked
	stop()
	select {
	case <-ended:
	case <-time.After(2 * time.Minute):
		t.Error("it does not stop")
	}
}
