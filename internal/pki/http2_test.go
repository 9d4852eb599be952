package pki

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// kube-scheduler binds many pods at a time.
func TestCallsAtTheSameTimeShareOneConnection(t *testing.T) {
	r := newReplica(t, fake.NewSimpleClientset())
	r.ensure()
	secret := r.secret(ClientSecret)
	scheduler, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(r.secret(ServerSecret).Data[caField])

	const calls = 16
	var under sync.WaitGroup // all calls are under way before the first is answered
	under.Add(calls)
	server := &http.Server{TLSConfig: r.MutualTLS(ClientName), Handler: http.HandlerFunc(func(_ http.ResponseWriter, request *http.Request) {
		if request.ProtoMajor == 2 {
			under.Done()
			under.Wait()
		}
	})}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.ServeTLS(listener, "", "") }()
	t.Cleanup(func() {
		_ = server.Close()
		<-served
	})
	var connections atomic.Int32
	transport := &http.Transport{
		ForceAttemptHTTP2: true,
		TLSClientConfig:   &tls.Config{ServerName: r.Names[0], RootCAs: roots, Certificates: []tls.Certificate{scheduler}},
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			connections.Add(1)
			return (&net.Dialer{}).DialContext(ctx, network, address)
		},
	}
	t.Cleanup(transport.CloseIdleConnections)
	get := func() {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+listener.Addr().String(), http.NoBody)
		if err != nil {
			t.Error(err)
			return
		}
		response, err := transport.RoundTrip(request)
		if err != nil {
			t.Error(err)
			return
		}
		_ = response.Body.Close()
		if response.ProtoMajor != 2 {
			t.Errorf("the server speaks %s", response.Proto)
		}
	}
	var pending sync.WaitGroup
	for range calls {
		pending.Go(get)
	}
	pending.Wait()
	// Calls that start at the same time may each dial a connection before one can be shared.
	before := connections.Load()
	under.Add(1)
	get()
	if connections.Load() != before {
		t.Error("one more call took one more connection")
	}
}
