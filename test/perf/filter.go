package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/internal/machinery/certs"
	"github.com/atoll-k8s/atoll/internal/pki"
)

const (
	// calls is the number of requests in a round, not including those of the warm-up.
	calls, warmUpCalls = 1000, 50
	// part is the factor by which the small cluster is smaller. share is the share of the
	// large cluster's nodes that are candidates, in variants where not all nodes are.
	part, share = 5, 10
)

// filter measures how long one answer of the filter takes.
var filter = benchmark{
	name: "filter", unit: "ms at p99", nodes: 5000, pods: 10000,
	about: `The time that 99 of 100 filter requests do not exceed. They are sent one after the other over mutual TLS, as kube-scheduler does.

- 5,000 simulated nodes in 10 NodeGroups and 10,000 pods of one Deployment, all bound except the one in the request. Each answer
  keeps the nodes of the one group that lacks a pod.
- The limit for variants ` + "`managed`" + ` and ` + "`unmanaged`" + ` is 5 ms. Their peer is a server that reads the same request over mutual TLS and sends
  an answer of the same length without any computation: its time is the time of the transport.
- Variant ` + "`candidates`" + ` asks about a tenth of the nodes and about all of them: time is to grow with the candidates.
- Variant ` + "`cluster`" + ` sends the same number of candidates in this cluster and in one that is five times smaller: the time should not grow with the cluster.`,
	variants: []variant{
		{name: "managed", ideal: "A ≤ 5 ms", a: "all nodes are candidates", b: "a server that only reads and answers"},
		{name: "unmanaged", ideal: "A ≤ 5 ms", a: "a pod without a policy, all nodes are candidates", b: "a server that only reads and answers"},
		{name: "candidates", ideal: "< 1", a: "a tenth of the nodes are candidates", b: "all nodes are candidates"},
		{name: "cluster", ideal: "≤ 1.1", a: "so many candidates in the cluster", b: "as many in a cluster a fifth as large"},
	},
	open: openFilter,
}

type filterBench struct {
	large, small *fleet
	bare         *bareServer
}

func openFilter(ctx context.Context, o options, log io.Writer) (_ bench, err error) {
	f := &filterBench{}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.close())
		}
	}()
	if f.large, err = makeFleet(ctx, settings{options: o, log: log}); err != nil {
		return nil, err
	}
	fewer := o
	fewer.nodes, fewer.pods = o.nodes/part, o.pods/part
	if err = fewer.check(); err != nil {
		return nil, fmt.Errorf("making a cluster a fifth as large: %w", err)
	}
	if f.small, err = makeFleet(ctx, settings{options: fewer, log: log}); err != nil {
		return nil, err
	}
	f.bare, err = startBare(ctx)
	return f, err
}

func (f *filterBench) close() error {
	var errs []error
	for _, fleet := range []*fleet{f.large, f.small} {
		if fleet != nil {
			errs = append(errs, fleet.close())
		}
	}
	if f.bare != nil {
		errs = append(errs, f.bare.Close())
	}
	return errors.Join(errs...)
}

func (f *filterBench) sides(ctx context.Context, variant string) (a, b side, err error) {
	whole, few := f.large.options.nodes, f.large.options.nodes/share
	managed := f.side("managed", f.large, f.large.waiting, whole)
	tenth := f.side("tenth", f.large, f.large.waiting, few)
	switch variant {
	case "managed":
		b, err = f.bareSide(ctx, "bare", f.large.waiting, whole)
		return managed, b, err
	case "unmanaged":
		b, err = f.bareSide(ctx, "bare unmanaged", f.large.plain, whole)
		return f.side("unmanaged", f.large, f.large.plain, whole), b, err
	case "candidates":
		return tenth, managed, nil
	case "cluster":
		return tenth, f.side("small cluster", f.small, f.small.waiting, few), nil
	default:
		return a, b, fmt.Errorf("choosing sides: there is no variant %q", variant)
	}
}

// side sends the fleet's manager requests for a pod and n candidates, evenly from all
// groups.
func (f *filterBench) side(name string, fleet *fleet, pod *corev1.Pod, n int) side {
	return side{name: name, measure: func(ctx context.Context) (sample, error) {
		body, err := question(pod, fleet.candidates(n))
		if err != nil {
			return sample{}, err
		}
		a, err := newAsker(fleet.installed.ExtenderURL, fleet.installed.TLSDir)
		if err != nil {
			return sample{}, err
		}
		kept, err := a.kept(ctx, body)
		if err != nil {
			return sample{}, err
		}
		want := n / fleet.options.groups
		if pod == fleet.plain {
			want = n
		}
		if len(kept) != want {
			return sample{}, fmt.Errorf("asking about pod %q and %d nodes: the filter keeps %d, want %d", pod.Name, n, len(kept), want)
		}
		return timeCalls(ctx, fleet.cluster, a, body)
	}}
}

// bareSide sends the bare server the same requests, for an answer of the same length.
func (f *filterBench) bareSide(ctx context.Context, name string, pod *corev1.Pod, n int) (side, error) {
	body, err := question(pod, f.large.candidates(n))
	if err != nil {
		return side{}, err
	}
	a, err := newAsker(f.large.installed.ExtenderURL, f.large.installed.TLSDir)
	if err != nil {
		return side{}, err
	}
	reply, _, err := a.ask(ctx, body)
	if err != nil {
		return side{}, err
	}
	return side{name: name, measure: func(ctx context.Context) (sample, error) {
		f.bare.reply = reply
		return timeCalls(ctx, f.large.cluster, askerOf(f.bare.url, f.bare.client), body)
	}}, nil
}

// candidates returns n nodes, the same number from each group.
func (f *fleet) candidates(n int) []string {
	groups := f.options.groups
	size := f.options.nodes / groups
	names := make([]string, 0, n)
	for g := range groups {
		for i := range n / groups {
			names = append(names, nodeName(g*size+i))
		}
	}
	return names
}

// timeCalls sends the same request many times.
func timeCalls(ctx context.Context, cluster *devcluster.Cluster, a *asker, body []byte) (s sample, err error) {
	took := make([]time.Duration, 0, calls)
	for range warmUpCalls {
		if _, _, err := a.ask(ctx, body); err != nil {
			return s, err
		}
	}
	before, err := usageOf(ctx, cluster)
	if err != nil {
		return s, err
	}
	for range calls {
		_, one, err := a.ask(ctx, body)
		if err != nil {
			return s, err
		}
		took = append(took, one)
	}
	after, err := usageOf(ctx, cluster)
	if err != nil {
		return s, err
	}
	used := after.since(before)
	s.off, s.strangers = -1, used.strangers()
	s.rate = milliseconds(percentile(took, 0.99))
	s.facts = fmt.Sprintf("p50 %.2f ms, request of %d kB, %s", milliseconds(percentile(took, 0.5)), len(body)/1000, used)
	return s, nil
}

// bareServer sends the same answer to every request, over mutual TLS.
type bareServer struct {
	*http.Server
	url    string
	client *tls.Config
	// reply is the answer; it is set between requests.
	reply []byte
}

func startBare(ctx context.Context) (*bareServer, error) {
	now := time.Now()
	ca, err := certs.NewCA(now)
	if err != nil {
		return nil, err
	}
	issue := func(leaf certs.Leaf) (tls.Certificate, error) {
		pair, err := certs.Issue(ca, leaf, now)
		if err != nil {
			return tls.Certificate{}, err
		}
		return tls.X509KeyPair(pair.Cert, pair.Key)
	}
	server, err := issue(certs.Leaf{CommonName: "bare", Names: []string{"127.0.0.1"}})
	if err != nil {
		return nil, err
	}
	client, err := issue(certs.Leaf{CommonName: pki.ClientName})
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.Cert)
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listening: %w", err)
	}
	b := &bareServer{
		url:    "https://" + listener.Addr().String(),
		client: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{client}},
	}
	b.Server = &http.Server{
		ReadHeaderTimeout: time.Minute,
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{server}, ClientCAs: roots, ClientAuth: tls.RequireAndVerifyClientCert},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				return // the asker reports the error
			}
			w.Header().Set("Content-Length", strconv.Itoa(len(b.reply)))
			_, _ = w.Write(b.reply)
		}),
	}
	go func() { _ = b.ServeTLS(listener, "", "") }() // ends with Close
	return b, nil
}
