package attack

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"
)

const (
	// callers is the number of addresses that attack: 127.0.0.2 and those after it.
	callers = 8
	// each is the number of connections that one address uses at a time.
	each = 24
	// pause is how long a client waits after its connection was refused or has failed.
	pause = 20 * time.Millisecond
)

// target is the host:port of each port of a replica.
type target struct{ Webhooks, Extender, Metrics, Probes string }

func (t target) all() []string { return []string{t.Webhooks, t.Extender, t.Metrics, t.Probes} }

// wave is one way to attack.
type wave struct {
	name string
	// clients returns what one connection of each address does, again and again.
	clients func(target) []attacker
}

// attacker attacks once, from an address.
type attacker func(ctx context.Context, from net.Addr) error

// all is a wave of all others at a time.
var all = wave{"all of these", func(t target) []attacker {
	var clients []attacker
	for _, w := range waves {
		clients = append(clients, w.clients(t)...)
	}
	return clients
}}

// waves are the ways to attack, one after the other.
var waves = []wave{
	{"connections on which nothing is sent", func(t target) []attacker { return forEach(t.all(), idle) }},
	{"a byte a second instead of a handshake", func(t target) []attacker { return forEach(t.all(), drip(false, "")) }},
	{"a byte a second instead of headers", func(t target) []attacker {
		return []attacker{drip(true, "POST /mutate-pods HTTP/1.1\r\nX: ")(t.Webhooks), drip(true, "GET /metrics HTTP/1.1\r\nX: ")(t.Metrics), drip(false, "GET /readyz HTTP/1.1\r\nX: ")(t.Probes)}
	}},
	{"bodies that never end", func(t target) []attacker {
		return []attacker{drip(true, head("/mutate-pods", 7<<20)+strings.Repeat("x", 7<<20-100))(t.Webhooks)}
	}},
	{"bodies without an end in sight", func(t target) []attacker {
		return []attacker{endless(t.Webhooks)}
	}},
	{"the largest bodies", func(t target) []attacker {
		return []attacker{post(t.Webhooks, podsPath, `{"request":{"object":{"spec":{"nodeName":"`+strings.Repeat("x", 7<<20-100)+`"}}}}`)}
	}},
	{"deep JSON", func(t target) []attacker {
		return []attacker{
			post(t.Webhooks, podsPath, strings.Repeat("[", 7<<20)),
			post(t.Webhooks, groupsPath, strings.Repeat(`{"a":`, 1<<20)),
			post(t.Webhooks, podsPath, `{"request":`+strings.Repeat("[", 250)+strings.Repeat("]", 250)+`}`),
		}
	}},
	{"many small elements", func(t target) []attacker {
		return []attacker{
			post(t.Webhooks, podsPath, podOf(2_000_000)),
			post(t.Webhooks, podsPath, podOf(20_000)), // as many as a request may have
			post(t.Webhooks, podsPath, podOf(2_000)),
			post(t.Webhooks, groupsPath, groupOf(20_000)),
			post(t.Webhooks, groupsPath, groupOf(200_000)),
		}
	}},
	{"small requests, each with a handshake", func(t target) []attacker {
		return []attacker{
			post(t.Webhooks, podsPath, podOf(1)), post(t.Webhooks, podsPath, podOf(700)), // as many as a small one may have
			post(t.Webhooks, podsPath, podOf(1_400)), post(t.Webhooks, groupsPath, groupOf(1)),
		}
	}},
	{"reviews of pods whose owners nobody knows", func(t target) []attacker {
		return []attacker{ownedByNobody(t.Webhooks)}
	}},
	{"refused requests, many on a connection", func(t target) []attacker {
		return []attacker{
			pipeline(true, t.Webhooks, "GET /nowhere HTTP/1.1\r\nHost: a\r\n\r\n"),
			pipeline(true, t.Webhooks, "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n"),
			pipeline(true, t.Webhooks, head(podsPath, 2)+"{}"),
			pipeline(true, t.Metrics, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"),
		}
	}},
	{"probes, many on a connection", func(t target) []attacker {
		return []attacker{
			pipeline(false, t.Probes, "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"),
			pipeline(false, t.Probes, "GET /readyz?verbose HTTP/1.1\r\nHost: a\r\n\r\n"),
			pipeline(false, t.Probes, "GET /nowhere HTTP/1.1\r\nHost: a\r\n\r\n"),
		}
	}},
	{"scrapes without a valid token, and probes", func(t target) []attacker {
		return []attacker{
			get(true, t.Metrics, "/metrics", "not-a-token"), get(true, t.Metrics, "/metrics", strings.Repeat("x", 8000)),
			get(false, t.Probes, "/readyz?verbose", ""), get(false, t.Probes, "/healthz", ""),
		}
	}},
}

// The paths of the webhooks of pods and of NodeGroups.
const (
	podsPath   = "/mutate-pods"
	groupsPath = "/validate-policies/nodegroup"
)

// podOf returns a review of a pod with as many containers.
func podOf(containers int) string {
	return `{"request":{"uid":"1","namespace":"default","object":{"metadata":{"labels":{"groupmanagement.kubeedge.io/required-propagationpolicy":"p"}},"spec":{"containers":[` +
		strings.Repeat("{},", containers-1) + `{}]}}}}`
}

// groupOf returns a review of a NodeGroup with as many labels, which the schema would refuse.
func groupOf(labels int) string {
	var b strings.Builder
	b.WriteString(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1","operation":"CREATE","object":{"apiVersion":"groupmanagement.kubeedge.io/v1alpha1","kind":"NodeGroup","metadata":{"name":"a"},"spec":{"matchLabels":{`)
	for i := range labels {
		fmt.Fprintf(&b, `"%x":"",`, i)
	}
	return b.String() + `"a/b":""}}}}}`
}

func head(path string, length int) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", path, length)
}

func forEach(ports []string, attack func(port string) attacker) []attacker {
	var all []attacker
	for _, port := range ports {
		all = append(all, attack(port))
	}
	return all
}

// dial connects, and ends the connection with ctx.
func dial(ctx context.Context, secure bool, from net.Addr, port string) (net.Conn, error) {
	dialer := &net.Dialer{LocalAddr: from, Timeout: 5 * time.Second}
	conn, err := dialer.DialContext(ctx, "tcp4", port)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	if !secure {
		return conn, nil
	}
	//nolint:gosec // an attacker does not care who answers
	encrypted := tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
	if err := encrypted.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return encrypted, nil
}

// idle keeps a connection open until the server closes it.
func idle(port string) attacker {
	return func(ctx context.Context, from net.Addr) error {
		conn, err := dial(ctx, false, from, port)
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = io.Copy(io.Discard, conn)
		return err
	}
}

// drip sends a text and then a byte each second, until the server closes the connection.
func drip(secure bool, text string) func(port string) attacker {
	return func(port string) attacker {
		return func(ctx context.Context, from net.Addr) error {
			conn, err := dial(ctx, secure, from, port)
			if err != nil {
				return err
			}
			defer conn.Close()
			closed := make(chan struct{})
			go func() {
				defer close(closed)
				_, _ = io.Copy(io.Discard, conn)
			}()
			if _, err := io.WriteString(conn, text); err != nil {
				return err
			}
			for {
				select {
				case <-closed:
					return nil
				case <-time.After(time.Second):
				}
				if _, err := io.WriteString(conn, "x"); err != nil {
					return err
				}
			}
		}
	}
}

// endless sends a body in chunks until the server closes the connection.
func endless(port string) attacker {
	chunk := fmt.Sprintf("%x\r\n%s\r\n", 64<<10, strings.Repeat("x", 64<<10))
	return func(ctx context.Context, from net.Addr) error {
		conn, err := dial(ctx, true, from, port)
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = io.WriteString(conn, "POST "+podsPath+" HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
		for err == nil {
			_, err = io.WriteString(conn, chunk)
		}
		return err
	}
}

// post sends a whole request, and reads the answer slowly.
func post(port, path, body string) attacker {
	return exchange(true, port, head(path, len(body))+body)
}

// ownedByNobody sends reviews of pods, many on a connection, each of another ReplicaSet that does
// not exist.
func ownedByNobody(port string) attacker {
	return func(ctx context.Context, from net.Addr) error {
		conn, err := dial(ctx, true, from, port)
		if err != nil {
			return err
		}
		defer conn.Close()
		answers := bufio.NewReader(conn)
		for range 100 {
			uid := uuid.NewUUID()
			body := fmt.Sprintf(`{"request":{"uid":"1","namespace":"ns-%d","object":{"metadata":{"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"a","uid":%q,"controller":true}]},"spec":{"containers":[{"name":"c"}]}}}}`, rand.IntN(1000), uid)
			if _, err := io.WriteString(conn, head(podsPath, len(body))+body); err != nil {
				return err
			}
			answer, err := http.ReadResponse(answers, nil)
			if err != nil {
				return err
			}
			if _, err := io.Copy(io.Discard, answer.Body); err != nil {
				return err
			}
			_ = answer.Body.Close()
		}
		return nil
	}
}

func get(secure bool, port, path, token string) attacker {
	return exchange(secure, port, "GET "+path+" HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer "+token+"\r\nConnection: close\r\n\r\n")
}

func exchange(secure bool, port, request string) attacker {
	return func(ctx context.Context, from net.Addr) error {
		conn, err := dial(ctx, secure, from, port)
		if err != nil {
			return err
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, request); err != nil {
			return err
		}
		_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		_, err = conn.Read(make([]byte, 1))
		return err
	}
}

// pipeline sends the same request again and again without waiting for answers, until the server
// closes the connection.
func pipeline(secure bool, port, request string) attacker {
	many := []byte(strings.Repeat(request, 200))
	return func(ctx context.Context, from net.Addr) error {
		conn, err := dial(ctx, secure, from, port)
		if err != nil {
			return err
		}
		defer conn.Close()
		go func() {
			_, _ = io.Copy(io.Discard, conn)
			_ = conn.Close() // so the next write fails
		}()
		for err == nil {
			_, err = conn.Write(many)
		}
		return nil
	}
}

// attack runs the clients from all addresses until ctx is done. It returns a function that
// waits for their end and returns what became of what they sent.
func attack(ctx context.Context, clients []attacker) (wait func() sent) {
	var running sync.WaitGroup
	var done, failed atomic.Int64
	for caller := range callers {
		from := &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(2+caller))}
		for i := range max(each, len(clients)) {
			run := clients[i%len(clients)]
			running.Go(func() {
				for ctx.Err() == nil {
					if run(ctx, from) == nil {
						done.Add(1)
						continue
					}
					failed.Add(1)
					select {
					case <-ctx.Done():
					case <-time.After(pause):
					}
				}
			})
		}
	}
	return func() sent {
		running.Wait()
		return sent{done.Load(), failed.Load()}
	}
}
