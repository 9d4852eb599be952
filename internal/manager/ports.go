package manager

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"

	"github.com/atoll-k8s/atoll/internal/machinery/bounded"
	"github.com/atoll-k8s/atoll/internal/pki"
)

// The ports for people and for the kubelet have few clients, and each of these needs one or
// two connections. The kubelet opens a new one for each probe, and it restarts a replica
// that it cannot reach, so many strangers together must not fill the port.
const (
	smallPort = 2048
	// scrapes bounds the requests for metrics that are answered at a time, 3/8 of it those
	// of one client. For each, the API server reviews a token.
	scrapes = 8
	// smallTime bounds how long a request and its answer take.
	smallTime = 10 * time.Second
)

// serverTLS returns the configuration of a server with the certificate of the keeper.
func serverTLS(keeper *pki.Keeper) *tls.Config {
	c := &tls.Config{MinVersion: tls.VersionTLS13}
	keeper.ServerTLS(c)
	return c
}

// addPorts adds the servers of metrics and profiles. They serve before the caches are filled,
// on every replica. From now on the readiness probe asks whether this replica can answer
// webhooks, whether it leads or not. That does not depend on the further kinds that users add:
// see owners.Walker.HasSynced.
func (p *parts) addPorts(ctx context.Context) error {
	p.ready.Store(&healthz.Handler{Checks: map[string]healthz.Checker{
		"webhooks": p.mgr.GetWebhookServer().StartedChecker(),
		"caches":   p.listed,
		"locks":    p.responsive,
	}})
	var ports []*bounded.Port
	if p.config.MetricsAddress != "0" {
		scraped, err := p.metrics()
		if err != nil {
			return err
		}
		ports = append(ports, scraped)
	}
	if p.config.ProfileAddress != "" {
		ports = append(ports, p.profile())
	}
	var errs []error
	for _, port := range ports {
		listener, err := listenSmall(ctx, port)
		if err != nil {
			return err
		}
		// controller-runtime starts a server of this type before the caches.
		errs = append(errs, p.mgr.Add(&manager.Server{Name: port.Name, Server: port.Server(), Listener: listener, ShutdownTimeout: new(smallTime)}))
	}
	return errors.Join(errs...)
}

// listenSmall opens a port that has few clients.
func listenSmall(ctx context.Context, port *bounded.Port) (net.Listener, error) {
	port.Connections, port.RequestTime, port.Log = smallPort, smallTime, ctrl.Log.WithName(port.Name)
	return port.Listen(ctx)
}

// serveProbes serves the kubelet's probes until ctx is done or stop is called, which returns
// when they are not served any more. The manager does not exist yet, and may have to wait
// before it can be made.
func (p *parts) serveProbes(ctx context.Context) (stop func(), err error) {
	p.ready.Store(&healthz.Handler{Checks: map[string]healthz.Checker{
		"kinds": func(*http.Request) error { return errors.New("waiting for the CustomResourceDefinitions of Atoll") },
	}})
	port := p.probes()
	listener, err := listenSmall(ctx, port)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := port.Serve(ctx, listener); err != nil {
			port.Log.Error(err, "Probes are not served any more, so the kubelet will restart this replica")
		}
	}()
	return func() {
		cancel()
		<-ended
	}, nil
}

// probes returns the port of the kubelet's probes. A replica is live if it serves HTTP.
func (p *parts) probes() *bounded.Port {
	live := &healthz.Handler{Checks: map[string]healthz.Checker{"ping": healthz.Ping}}
	ready := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.ready.Load().ServeHTTP(w, r) })
	mux := http.NewServeMux()
	for path, handler := range map[string]http.Handler{"/healthz": live, "/readyz": ready} {
		mux.Handle(path, http.StripPrefix(path, handler))
		mux.Handle(path+"/", http.StripPrefix(path, handler)) // a single check
	}
	return &bounded.Port{Name: "probes", Address: p.config.HealthAddress, Handler: bounded.InTurn(bounded.SharedTurns(), mux), Once: true, ResponseTime: smallTime}
}

// metrics returns the port of the metrics, for clients with a token that may read them.
func (p *parts) metrics() (*bounded.Port, error) {
	filter, err := filters.WithAuthenticationAndAuthorization(p.mgr.GetConfig(), p.mgr.GetHTTPClient())
	if err != nil {
		return nil, fmt.Errorf("preparing the authentication of clients for metrics: %w", err)
	}
	handler, err := filter(ctrl.Log.WithName("metrics"), promhttp.HandlerFor(metrics.Registry, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError}))
	if err != nil {
		return nil, fmt.Errorf("preparing the authentication of clients for metrics: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", bounded.AtOnce("metrics", scrapes, handler))
	return &bounded.Port{Name: "metrics", Address: p.config.MetricsAddress, TLS: serverTLS(p.keeper), Handler: mux, ResponseTime: smallTime}, nil
}

// profile returns the port of net/http/pprof. A profile takes as long as its request asks.
func (p *parts) profile() *bounded.Port {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return &bounded.Port{Name: "profile", Address: p.config.ProfileAddress, Handler: mux}
}
