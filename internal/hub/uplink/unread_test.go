package uplink

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// TestUnreadAnswersTakeBoundedMemory: little of an answer is received before its client reads, unless the client
// is the node.
func TestUnreadAnswersTakeBoundedMemory(t *testing.T) {
	written := make(chan int)
	c := &cloud{Server: httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		total, part := 0, make([]byte, 32<<10)
		for {
			_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Second))
			if _, err := w.Write(part); err != nil {
				written <- total
				return
			}
			total += len(part)
		}
	}))}
	c.EnableHTTP2 = true
	c.StartTLS()
	defer c.Close()
	u := newStill(t, anyCertificate, c)
	for _, asNode := range []bool{false, true} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "/api/v1/pods", nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := u.RoundTrip(r, asNode)
		if err != nil {
			t.Fatal(err)
		}
		n := <-written
		_ = response.Body.Close()
		if asNode == (n < 2*maxUnread) {
			t.Errorf("as the node %t: %d bytes are received", asNode, n)
		}
	}
}
