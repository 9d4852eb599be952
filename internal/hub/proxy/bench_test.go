package proxy

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-k8s/atoll/internal/hub/cache"
	"github.com/atoll-k8s/atoll/internal/hub/identity"
	"github.com/atoll-k8s/atoll/internal/hub/uplink"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// rig is a cloud that answers with what is in memory, and what stands between it and a client, over TLS
// and HTTP/2.
type rig struct {
	*testing.B

	cloud   *httptest.Server
	objects atomic.Pointer[map[string]twoForms]
}

// twoForms is an answer of an API server. One of more than 128 KiB is compressed for who accepts that.
type twoForms struct{ plain, compressed []byte }

func inTwoForms(b *testing.B, body []byte) twoForms {
	b.Helper()
	a := twoForms{plain: body}
	if len(body) > 128<<10 {
		var text bytes.Buffer
		w, err := gzip.NewWriterLevel(&text, gzip.BestSpeed)
		if err == nil {
			_, err = w.Write(body)
		}
		if err == nil {
			err = w.Close()
		}
		if err != nil {
			b.Fatal(err)
		}
		a.compressed = text.Bytes()
	}
	return a
}

func newRig(b *testing.B) *rig {
	b.Helper()
	r := &rig{B: b}
	r.cloud = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		a, is := (*r.objects.Load())[q.URL.Path]
		if !is {
			http.NotFound(w, q)
			return
		}
		h := w.Header()
		for name, value := range map[string]string{
			"Audit-Id": "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0", "Cache-Control": "no-cache, private", "Content-Type": wire.Protobuf.ContentType(),
			"X-Kubernetes-Pf-Flowschema-Uid": "1e2d3c4b-4b5a-6978-8796-a5b4c3d2e1f0", "X-Kubernetes-Pf-Prioritylevel-Uid": "2d3c4b5a-4b5a-6978-8796-a5b4c3d2e1f0",
		} {
			h.Set(name, value)
		}
		body := a.plain
		if a.compressed != nil && strings.Contains(q.Header.Get("Accept-Encoding"), "gzip") {
			h.Set("Content-Encoding", "gzip")
			h.Set("Vary", "Accept-Encoding")
			body = a.compressed
		}
		for len(body) > 0 { // as a compressing writer does
			n := min(len(body), 4<<10)
			_, _ = w.Write(body[:n])
			body = body[n:]
		}
	}))
	r.cloud.EnableHTTP2 = true
	r.cloud.StartTLS()
	b.Cleanup(r.cloud.Close)
	return r
}

func (r *rig) roots() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(r.cloud.Certificate())
	return pool
}

// client returns a client of a server of this rig.
func (r *rig) client() *http.Client {
	return &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: r.roots()}}}
}

// serve serves a handler with the certificate of the cloud, and returns its URL.
func (r *rig) serve(handler http.Handler) string {
	r.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.Fatal(err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute, TLSConfig: &tls.Config{Certificates: r.cloud.TLS.Certificates}}
	go func() { _ = server.ServeTLS(listener, "", "") }()
	r.Cleanup(func() { _ = server.Close() })
	return "https://" + listener.Addr().String()
}

// hub returns the URL of a hub in which all callers are the given one.
func (r *rig) hub(caller identity.Caller) string {
	r.Helper()
	store, err := cache.Open(r.TempDir(), cache.Options{Log: logr.Discard()})
	if err != nil {
		r.Fatal(err)
	}
	to, err := url.Parse(r.cloud.URL)
	if err != nil {
		r.Fatal(err)
	}
	roots, certificate := r.roots(), &r.cloud.TLS.Certificates[0]
	up := uplink.New(uplink.Options{
		Servers: []*url.URL{to}, Roots: func() *x509.CertPool { return roots },
		NodeCertificate: func() (*tls.Certificate, error) { return certificate, nil }, Log: logr.Discard(),
	})
	tokens := identity.NewTokens([]byte("secret"), nil)
	p := New(Options{Cloud: up, Cache: store, Tokens: tokens, Log: logr.Discard(), Recognizer: &identity.Recognizer{NodeName: "a", Tokens: tokens}})
	r.Cleanup(func() {
		p.Wait()
		if err := store.Close(); err != nil {
			r.Error(err)
		}
	})
	return r.serve(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) { p.answer(w, q, caller) }))
}

// plain returns the URL of a proxy that does nothing but pass requests on.
func (r *rig) plain() string {
	to, err := url.Parse(r.cloud.URL)
	if err != nil {
		r.Fatal(err)
	}
	return r.serve(&httputil.ReverseProxy{Rewrite: func(q *httputil.ProxyRequest) { q.SetURL(to) }, Transport: r.client().Transport})
}

// cpu returns the CPU time of this process.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkReads compares reads of a client that are sent to a cloud, to a proxy that only passes them on, and to a hub. The CPU time is
// that of all three together. An object changes before each read of a list, and the time to store it counts.
func BenchmarkReads(b *testing.B) {
	pods := &corev1.PodList{}
	for i := range 1000 {
		pods.Items = append(pods.Items, *benchPod(i))
	}
	version := 1000
	list := func() []byte {
		version++
		pods.ResourceVersion = fmt.Sprint(version)
		pods.Items[version%1000].ResourceVersion = pods.ResourceVersion
		raw, err := pods.Marshal()
		if err != nil {
			b.Fatal(err)
		}
		raw, err = wire.Protobuf.ObjectOf(raw, "v1", "PodList")
		if err != nil {
			b.Fatal(err)
		}
		return raw
	}
	var several []twoForms
	for range 8 {
		several = append(several, inTwoForms(b, list()))
	}
	node, err := pods.Items[0].Marshal()
	if err == nil {
		node, err = wire.Protobuf.ObjectOf(node, "v1", "Node")
	}
	if err != nil {
		b.Fatal(err)
	}
	for _, of := range []struct {
		name, path string
		caller     identity.Caller
	}{
		{"get", "/api/v1/nodes/a", identity.OfNode()}, {"list", "/api/v1/pods", identity.OfNode()}, {"list others", "/api/v1/pods", reader},
	} {
		for _, by := range []string{"direct", "plain", "hub"} {
			b.Run(of.name+"/"+by, func(b *testing.B) {
				r := newRig(b)
				answers := make([]map[string]twoForms, len(several))
				for i := range several {
					answers[i] = map[string]twoForms{"/api/v1/nodes/a": {plain: node}, "/api/v1/pods": several[i]}
				}
				r.objects.Store(&answers[0])
				to := r.cloud.URL
				switch by {
				case "plain":
					to = r.plain()
				case "hub":
					to = r.hub(of.caller)
				}
				client := r.client()
				ask := func() {
					q, err := http.NewRequestWithContext(context.Background(), http.MethodGet, to+of.path, nil)
					if err != nil {
						b.Fatal(err)
					}
					q.Header.Set("Accept", wire.Protobuf.ContentType())
					response, err := client.Do(q)
					if err != nil {
						b.Fatal(err)
					}
					defer response.Body.Close()
					if _, err := io.Copy(io.Discard, response.Body); err != nil || response.StatusCode != http.StatusOK {
						b.Fatal(response.Status, err)
					}
				}
				for range 10 {
					ask()
				}
				began, i := cpu(b), 0
				b.ReportAllocs()
				for b.Loop() {
					i++
					r.objects.Store(&answers[i%len(answers)])
					ask()
				}
				b.ReportMetric(float64((cpu(b)-began).Microseconds())/float64(b.N), "cpu-us/op")
			})
		}
	}
}

// benchPod returns a pod of about the size that one of a Deployment has.
func benchPod(i int) *corev1.Pod {
	p := pod(fmt.Sprintf("cart-%d", i), "registry.example.com/team/cart:v1.2.3", i+1, nil)
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "cart-5d9f", UID: "af1c8fd4-3c2a-4f63-9f6e-0d7d4a1f3b11"}}
	f := &metav1.FieldsV1{}
	f.SetRawBytes([]byte(`{"f:metadata":{"f:labels":{".":{},"f:app":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{".":{},"f:image":{},"f:resources":{".":{},"f:limits":{".":{},"f:memory":{}}}}}}}`))
	for _, manager := range []string{"kube-controller-manager", "kubelet"} {
		p.ManagedFields = append(p.ManagedFields, metav1.ManagedFieldsEntry{Manager: manager, Operation: "Update", APIVersion: "v1", FieldsType: "FieldsV1", FieldsV1: f})
	}
	for j := range 2 {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: fmt.Sprintf("sidecar-%d", j), Image: "registry.example.com/team/sidecar:v1.2.3", Command: []string{"/bin/sidecar", "--verbose"}})
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: "Ready", Status: "True", LastTransitionTime: metav1.Unix(1_700_000_000, 0)})
	}
	return p
}
