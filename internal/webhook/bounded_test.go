package webhook

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// plainServer registers webhooks with a plain mux.
type plainServer struct {
	webhook.Server
	mux *http.ServeMux
}

func (s plainServer) Register(path string, hook http.Handler) { s.mux.Handle(path, hook) }

func serve(t *testing.T) (*Bounded, *httptest.Server) {
	t.Helper()
	mux := http.NewServeMux()
	b := &Bounded{Server: plainServer{mux: mux}}
	b.Register("/hook", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		fmt.Fprintf(w, "%d %v", n, err)
	}))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return b, server
}

func post(t *testing.T, server *httptest.Server, body io.Reader) (int, string) {
	t.Helper()
	response, err := http.Post(server.URL+"/hook", "application/json", body) //nolint:noctx // the server ends with the test
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(answer)
}

// TestBodiesThatNeverEndTakeNoMemory: many callers send nearly all of a large body, and
// then nothing more. Those above the bound are refused at once, the others after the
// deadline. A large Content-Length alone blocks no other request.
func TestBodiesThatNeverEndTakeNoMemory(t *testing.T) {
	b, server := serve(t)
	const callers = 2 * maxBodies / maxBody
	begin := func(body []byte) net.Conn {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if _, err := fmt.Fprintf(conn, "POST /hook HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", maxBody); err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Write(body) // a refused body is not read to its end
		return conn
	}
	for range callers {
		begin([]byte("half"))
	}
	if code, answer := post(t, server, strings.NewReader("whole")); code != http.StatusOK || answer != "5 <nil>" {
		t.Errorf("beside requests with a large Content-Length the next one is answered %d %s", code, answer)
	}
	refused := map[string]int{}
	var mu sync.Mutex
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			conn := begin(make([]byte, maxBody-1))
			line := make([]byte, len("HTTP/1.1 503"))
			_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
			_, _ = io.ReadFull(conn, line)
			mu.Lock()
			defer mu.Unlock()
			refused[string(line)]++
		})
	}
	all.Wait()
	if refused["HTTP/1.1 400"] > maxBodies/(maxBody-1) || refused["HTTP/1.1 200"] > 0 {
		t.Errorf("of %d requests without end %v are refused", callers, refused)
	}
	build.Eventually(t, "all bytes are released", func() bool { return b.held.Load() == 0 })
	if code, answer := post(t, server, strings.NewReader("whole")); code != http.StatusOK || answer != "5 <nil>" {
		t.Errorf("afterwards the next one is answered %d %s", code, answer)
	}
}

func TestBodiesAreBounded(t *testing.T) {
	_, server := serve(t)
	long := bytes.Repeat([]byte("x"), maxBody+1)
	if code, _ := post(t, server, bytes.NewReader(long)); code != http.StatusRequestEntityTooLarge {
		t.Errorf("a body that is too long is answered %d", code)
	}
	if code, _ := post(t, server, io.MultiReader(bytes.NewReader(long))); code != http.StatusRequestEntityTooLarge {
		t.Errorf("a body that is too long, without a Content-Length, is answered %d", code)
	}
	if code, answer := post(t, server, bytes.NewReader(long[:maxBody])); code != http.StatusOK || answer != fmt.Sprint(maxBody, " <nil>") {
		t.Errorf("a body of the largest size is answered %d %s", code, answer)
	}
}
