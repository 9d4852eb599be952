package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/atoll-k8s/atoll/internal/machinery/bounded"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// certificate returns a server configuration with a certificate of its own.
func certificate(t *testing.T) *tls.Config {
	t.Helper()
	certified := httptest.NewTLSServer(nil)
	certified.Close() // only its certificate is needed
	return &tls.Config{Certificates: certified.TLS.Certificates, MinVersion: tls.VersionTLS13}
}

// serve runs a server whose webhook at /hook answers with the length of the body. Its
// address is known once StartedChecker succeeds.
func serve(t *testing.T) *Server {
	t.Helper()
	s := NewServer("127.0.0.1:0", certificate(t), logr.Discard())
	s.Register("/hook", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		fmt.Fprintf(w, "%d %v", n, err)
	}))
	run(t, s)
	return s
}

func run(t *testing.T, s *Server) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	build.Eventually(t, "the server has started", func() bool { return s.StartedChecker()(nil) == nil })
}

// dial connects from one of the addresses of this host: 127.0.0.<from>.
func dial(t *testing.T, s *Server, from byte) net.Conn {
	t.Helper()
	conn, err := tryDial(t, s, from)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// tryDial is dial for a caller that has so many requests that its handshake may be refused.
func tryDial(t *testing.T, s *Server, from byte) (net.Conn, error) {
	t.Helper()
	dialer := tls.Dialer{
		NetDialer: &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, from)}},
		Config:    &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13}, //nolint:gosec // the server is this process
	}
	conn, err := dialer.DialContext(t.Context(), "tcp", s.address)
	if err != nil {
		return nil, fmt.Errorf("connecting from 127.0.0.%d: %w", from, err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn, nil
}

// begin sends the headers of a request with a Content-Length, and a part of its body.
func begin(t *testing.T, conn net.Conn, length int, body []byte) {
	t.Helper()
	if _, err := fmt.Fprintf(conn, "POST /hook HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", length); err != nil {
		t.Fatal(err)
	}
	_, _ = conn.Write(body) // a refused body is not read to its end
}

// status returns the status of the answer on a connection; 0 if there is none.
func status(conn net.Conn) int {
	_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
	var code int
	line := make([]byte, len("HTTP/1.1 503"))
	if _, err := io.ReadFull(conn, line); err != nil {
		return 0
	}
	_, _ = fmt.Sscanf(string(line), "HTTP/1.1 %d", &code)
	return code
}

// post sends a whole request from an address of its own.
func post(t *testing.T, s *Server, from byte, length int64, body io.Reader) (int, string) {
	t.Helper()
	transport := &http.Transport{DialTLSContext: func(context.Context, string, string) (net.Conn, error) { return dial(t, s, from), nil }}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+s.address+"/hook", body)
	if err != nil {
		t.Fatal(err)
	}
	request.ContentLength = length
	response, err := transport.RoundTrip(request)
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

// served fails the test unless a small request from an address is answered by the webhook.
func served(t *testing.T, s *Server, from byte, when string) {
	t.Helper()
	if code, answer := post(t, s, from, -1, strings.NewReader(`{"a":1}`)); code != http.StatusOK || answer != "7 <nil>" {
		t.Errorf("%s, another caller is answered %d %s", when, code, answer)
	}
}

// TestBodiesThatNeverEndTakeNoMemory: a caller sends nearly all of a large body again and
// again, and never the end. It gets 3/8 of the memory, the rest of its requests is
// refused at once, and another caller is served meanwhile. A large Content-Length alone
// takes nothing.
func TestBodiesThatNeverEndTakeNoMemory(t *testing.T) {
	s := serve(t)
	const callers = 2 * maxBodies / maxBody
	for range callers {
		begin(t, dial(t, s, 2), maxBody, []byte("half"))
	}
	if used := s.bodies.Used(); used > callers*firstRead {
		t.Errorf("%d requests with a large Content-Length take %d bytes", callers, used)
	}
	served(t, s, 2, "beside requests with a large Content-Length")
	answers := map[int]int{}
	var mu sync.Mutex
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			conn, err := tryDial(t, s, 2)
			if err != nil {
				return // refused before the handshake, which takes no memory either
			}
			begin(t, conn, maxBody, make([]byte, maxBody-1))
			code := status(conn)
			mu.Lock()
			defer mu.Unlock()
			answers[code]++
		})
	}
	build.Eventually(t, "a caller has its share", func() bool { return s.bodies.Used() > s.bodies.Largest()/2 })
	served(t, s, 3, "while a caller has its share")
	if used := s.bodies.Used(); used > s.bodies.Largest() {
		t.Errorf("the bodies of one caller take %d bytes", used)
	}
	all.Wait()
	if answers[http.StatusOK] > 0 { // how many have a place, one after the other, depends on the machine
		t.Errorf("of %d requests without end %v are answered", callers, answers)
	}
	build.Eventually(t, "all bytes are released", func() bool { return s.bodies.Used() == 0 })
	served(t, s, 2, "afterwards")
}

func TestBodiesAreBounded(t *testing.T) {
	s := serve(t)
	largest := append(append([]byte(`"`), bytes.Repeat([]byte("x"), maxBody-2)...), '"')
	if code, answer := post(t, s, 2, maxBody, bytes.NewReader(largest)); code != http.StatusOK || answer != fmt.Sprint(maxBody, " <nil>") {
		t.Errorf("a body of the largest size is answered %d %s", code, answer)
	}
	if code, answer := post(t, s, 2, -1, bytes.NewReader(largest)); code != http.StatusOK || answer != fmt.Sprint(maxBody, " <nil>") {
		t.Errorf("a body of the largest size, without a Content-Length, is answered %d %s", code, answer)
	}
	if code, _ := post(t, s, 2, -1, bytes.NewReader(append(largest, ' '))); code != http.StatusRequestEntityTooLarge {
		t.Errorf("a body that is too long, without a Content-Length, is answered %d", code)
	}
	announced := dial(t, s, 2)
	begin(t, announced, maxBody+1, nil) // nothing of it is sent
	if code := status(announced); code != http.StatusRequestEntityTooLarge {
		t.Errorf("a body that is announced as too long is answered %d", code)
	}
	if used := s.bodies.Used() + s.decoded.Used(); used != 0 {
		t.Errorf("%d bytes are not released", used)
	}
}

// TestRequestsThatGrowWhenDecodedAreRefused before they are decoded.
func TestRequestsThatGrowWhenDecodedAreRefused(t *testing.T) {
	s := serve(t)
	for name, tc := range map[string]struct {
		body string
		want int
	}{
		"a pod of usual size":          {`{"spec":{"containers":[` + strings.Repeat(`{"name":"c","env":[{"name":"a","value":"b"}]},`, 100) + `{}]}}`, http.StatusOK},
		"as deep as allowed":           {strings.Repeat("[", 256) + strings.Repeat("]", 256), http.StatusOK},
		"too deep":                     {strings.Repeat("[", 257) + strings.Repeat("]", 257), http.StatusRequestEntityTooLarge},
		"deep and without an end":      {strings.Repeat(`{"a":`, 1_000_000), http.StatusRequestEntityTooLarge},
		"brackets in a text":           {`"` + strings.Repeat(`[{\"`, 1000) + `"`, http.StatusOK},
		"many small elements":          {`[` + strings.Repeat("{},", 2_000_000) + `{}]`, http.StatusRequestEntityTooLarge},
		"many numbers":                 {`[` + strings.Repeat("1,", 3_000_000) + `1]`, http.StatusRequestEntityTooLarge},
		"many members":                 {`{` + strings.Repeat(`"":1,`, 1_000_000) + `"":1}`, http.StatusRequestEntityTooLarge},
		"many small elements, spaced":  {`[` + strings.Repeat(" {} ,", 1_000_000) + `{}]`, http.StatusRequestEntityTooLarge},
		"many texts":                   {`[` + strings.Repeat(`"",`, 1_000_000) + `""]`, http.StatusRequestEntityTooLarge},
		"a long text":                  {`"` + strings.Repeat("x", 1<<20) + `"`, http.StatusOK},
		"a text that does not end":     {`"` + strings.Repeat(`\`, 1001), http.StatusOK}, // its webhook refuses it
		"more closed than was opened":  {`]]}}{}`, http.StatusOK},
		"the names of a large cluster": {`{"nodes":[` + strings.Repeat(`"a-name-of-a-node",`, 5000) + `""]}`, http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			if code, answer := post(t, s, 2, int64(len(tc.body)), strings.NewReader(tc.body)); code != tc.want {
				t.Errorf("answered %d %.100s, want %d", code, answer, tc.want)
			}
		})
	}
	if used := s.bodies.Used() + s.decoded.Used(); used != 0 {
		t.Errorf("%d bytes are not released", used)
	}
}

// TestACallerCannotTakeAllMemoryForDecodedRequests: requests that are being decoded wait for
// each other, for a time. Those of another caller do not wait for them.
func TestACallerCannotTakeAllMemoryForDecodedRequests(t *testing.T) {
	s := NewServer("127.0.0.1:0", certificate(t), logr.Discard())
	hold := make(chan struct{})
	defer close(hold)
	s.Register("/hook", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		if n > 1000 {
			<-hold
		}
		fmt.Fprintf(w, "%d %v", n, err)
	}))
	run(t, s)
	heavy := `[` + strings.Repeat("{},", 22_000) + `{}]` // about 48 MiB, more than a half of the share
	var conns []net.Conn
	for range 6 {
		conn := dial(t, s, 2)
		begin(t, conn, len(heavy), []byte(heavy))
		conns = append(conns, conn)
	}
	build.Eventually(t, "a caller has its share", func() bool { return s.decoded.Used() > s.decoded.Largest()/3 })
	served(t, s, 3, "while a caller has its share")
	refused := 0
	for _, conn := range conns {
		_ = conn.SetReadDeadline(time.Now().Add(3 * waitTimeout))
		line := make([]byte, len("HTTP/1.1 503"))
		if _, err := io.ReadFull(conn, line); err == nil && string(line) == "HTTP/1.1 503" {
			refused++
		}
	}
	if refused != 5 {
		t.Errorf("%d of 6 requests are refused, want 5", refused)
	}
	if used := s.decoded.Used(); used > s.decoded.Largest() {
		t.Errorf("one caller has %d bytes", used)
	}
}

// TestStartedCheckerRarelyConnects: anybody who reaches the probes can call it.
func TestStartedCheckerRarelyConnects(t *testing.T) {
	s := serve(t)
	check := s.StartedChecker()
	if err := check(nil); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.address = "127.0.0.1:1" // nobody listens there
	s.checked = time.Now().Add(time.Hour)
	s.mu.Unlock()
	for range 10 {
		if err := check(nil); err != nil {
			t.Fatalf("the last result is not used: %v", err)
		}
	}
	s.mu.Lock()
	s.checked = time.Time{}
	s.mu.Unlock()
	if err := check(nil); err == nil {
		t.Error("a server that cannot be reached is ready")
	}
	if err := NewServer(":0", certificate(t), logr.Discard()).StartedChecker()(nil); err == nil {
		t.Error("a server that was not started is ready")
	}
}

// TestWebhookWeightCountsAgainstTheLimit: requests count against the limit with the weights of
// their webhook.
func TestWebhookWeightCountsAgainstTheLimit(t *testing.T) {
	s := NewServer("127.0.0.1:0", certificate(t), logr.Discard())
	s.Register("/hook", heavyHook{})
	run(t, s)
	if code, _ := post(t, s, 2, -1, strings.NewReader(`["",""]`)); code != http.StatusRequestEntityTooLarge {
		t.Errorf("answered %d", code)
	}
}

type heavyHook struct{}

func (heavyHook) Weights() bounded.Weights { return bounded.Weights{Text: maxDecoded / 4} }

func (heavyHook) ServeHTTP(http.ResponseWriter, *http.Request) {}

// TestWebhookContextEndsWithTheCallersTimeout: its context ends the time that it has after the request came.
func TestWebhookContextEndsWithTheCallersTimeout(t *testing.T) {
	s := NewServer("127.0.0.1:0", certificate(t), logr.Discard())
	s.Register("/hook", timedHook{})
	run(t, s)
	before := time.Now()
	code, answer := post(t, s, 1, 2, strings.NewReader("{}"))
	until, err := time.Parse(time.RFC3339Nano, answer)
	if code != http.StatusOK || err != nil || until.Before(before.Add(time.Minute)) || until.After(time.Now().Add(time.Minute)) {
		t.Errorf("the answer is %d %q, want a minute after the request came (%v)", code, answer, err)
	}
}

// timedHook answers with the end of its time.
type timedHook struct{}

func (timedHook) AnswersWithin() time.Duration { return time.Minute }

func (timedHook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	until, _ := r.Context().Deadline()
	fmt.Fprint(w, until.Format(time.RFC3339Nano))
}

// TestLargeRequestsTakeTurns: a webhook gets one large request at a time if there are two
// places, and small ones do not wait for it. What a webhook does outside of its turn, such as to
// wait for another process, delays no other request.
func TestLargeRequestsTakeTurns(t *testing.T) {
	const requests = 6
	for _, outside := range []bool{false, true} {
		t.Run(fmt.Sprint("outside ", outside), func(t *testing.T) {
			s := NewServer("127.0.0.1:0", certificate(t), logr.Discard())
			s.turns = bounded.NewTurns(2)
			s.turns.Longest = time.Hour
			var now, most atomic.Int64
			release := make(chan struct{})
			hold := func() {
				at := now.Add(1)
				for seen := most.Load(); at > seen && !most.CompareAndSwap(seen, at); seen = most.Load() {
				}
				<-release
				now.Add(-1)
			}
			s.Register("/hook", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				n, err := io.Copy(io.Discard, r.Body)
				switch {
				case n < 1000:
				case outside:
					bounded.Outside(r.Context(), hold)
				default:
					hold()
				}
				fmt.Fprintf(w, "%d %v", n, err)
			}))
			run(t, s)
			isLarge := `[` + strings.Repeat("{},", 1_100) + `{}]` // about 2.2 MiB, just large
			var all sync.WaitGroup
			for i := range requests {
				all.Go(func() {
					code, answer := post(t, s, byte(10+i), int64(len(isLarge)), strings.NewReader(isLarge))
					if code != http.StatusOK && (outside || code != http.StatusServiceUnavailable) { // others have waited for too long
						t.Errorf("answered %d %s", code, answer)
					}
				})
			}
			want := int64(1)
			if outside {
				want = requests
			}
			build.Eventually(t, "large requests have reached their webhook", func() bool { return now.Load() >= want })
			served(t, s, 2, "while a webhook has large requests")
			close(release)
			all.Wait()
			if got := most.Load(); got != want {
				t.Errorf("the webhook got %d large requests at a time, want %d", got, want)
			}
		})
	}
}

// TestAClientThatReadsSlowlyKeepsNoTurn: its answer is longer than what the network holds.
func TestAClientThatReadsSlowlyKeepsNoTurn(t *testing.T) {
	s := NewServer("127.0.0.1:0", certificate(t), logr.Discard())
	s.turns = bounded.NewTurns(2)
	s.turns.Longest = time.Hour
	var answers atomic.Int64
	long := strings.Repeat("x", 16<<20)
	s.Register("/hook", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		if n == 7 {
			fmt.Fprintf(w, "%d %v", n, err)
			return
		}
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, long)
		answers.Add(1)
	}))
	run(t, s)
	var conns []net.Conn
	for range 4 {
		conn := dial(t, s, 2)
		begin(t, conn, 2, []byte("{}"))
		conns = append(conns, conn)
	}
	build.Eventually(t, "all are answered", func() bool { return answers.Load() == int64(len(conns)) })
	served(t, s, 3, "while clients do not read their answers")
	if code := status(conns[0]); code != http.StatusTeapot {
		t.Errorf("answered %d", code)
	}
}

// TestHangingSmallRequestBlocksNoOther: for example because it waits for a lock.
func TestHangingSmallRequestBlocksNoOther(t *testing.T) {
	s := NewServer("127.0.0.1:0", certificate(t), logr.Discard())
	s.turns = bounded.NewTurns(2)
	s.turns.Longest = time.Hour
	var hanging atomic.Int64
	release := make(chan struct{})
	s.Register("/hook", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		if n == 2 {
			hanging.Add(1)
			<-release
		}
		fmt.Fprintf(w, "%d %v", n, err)
	}))
	run(t, s)
	defer close(release)
	for range 4 {
		begin(t, dial(t, s, 2), 2, []byte("{}"))
	}
	build.Eventually(t, "all hang", func() bool { return hanging.Load() == 4 })
	served(t, s, 3, "while small requests hang")
}
