package manager

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
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

// addPorts adds the servers of probes, metrics and profiles. They serve before the caches
// are filled, on every replica.
func (p *parts) addPorts(ctx context.Context) error {
	ports := []*bounded.Port{p.probes()}
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
		port.Connections, port.RequestTime, port.Log = smallPort, smallTime, ctrl.Log.WithName(port.Name)
		listener, err := port.Listen(ctx)
		if err != nil {
			return err
		}
		// controller-runtime starts a server of this type before the caches.
		errs = append(errs, p.mgr.Add(&manager.Server{Name: port.Name, Server: port.Server(), Listener: listener, ShutdownTimeout: new(smallTime)}))
	}
	return errors.Join(errs...)
}

// probes returns the port of the kubelet's probes. A replica is live if it serves HTTP, and
// Ready if it can answer webhooks, whether it leads or not. Neither depends on the further
// kinds that users add: see owners.Walker.HasSynced.
func (p *parts) probes() *bounded.Port {
	live := &healthz.Handler{Checks: map[string]healthz.Checker{"ping": healthz.Ping}}
	ready := &healthz.Handler{Checks: map[string]healthz.Checker{
		"webhooks": p.mgr.GetWebhookServer().StartedChecker(),
		"caches":   p.listed,
		"locks":    p.responsive,
	}}
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
