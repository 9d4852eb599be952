package manager

import (
	"errors"
	"fmt"
	"time"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/atoll-k8s/atoll/internal/controller/podgroup"
	"github.com/atoll-k8s/atoll/internal/gangs"
	"github.com/atoll-k8s/atoll/internal/owners"
)

// askTimeout bounds one question how a kind is served.
const askTimeout = 3 * time.Second

// gangParts are what PodGroups need beside the rest. Nothing else waits for them.
type gangParts struct {
	resolver   *gangs.Resolver
	store      *gangs.Store
	controller *podgroup.Reconciler
}

// deps is the controller of PodGroups; nil where nobody wants any.
func (g *gangParts) deps() *podgroup.Reconciler {
	if g == nil {
		return nil
	}
	return g.controller
}

// addGangs makes what PodGroups need, before anything is fed.
func (p *parts) addGangs(config *rest.Config) error {
	if !p.config.Gangs {
		return nil
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client of PodGroups: %w", err)
	}
	meta, err := metadata.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client of metadata: %w", err)
	}
	// A client of its own: whoever may create pods can have it ask about a group that hangs.
	asking := rest.CopyConfig(config)
	asking.Timeout = askTimeout
	kinds, err := discovery.NewDiscoveryClientForConfig(asking)
	if err != nil {
		return fmt.Errorf("making a client of kinds: %w", err)
	}
	lineage := owners.NewLineage(p.walker, meta, kinds)
	store, err := gangs.NewStore(p.client, objects, p.config.gangSchedulers())
	if err != nil {
		return err
	}
	resolver := &gangs.Resolver{Lineage: lineage, Schedulers: p.config.gangSchedulers(), AtMostDirectOwner: p.config.GangMultiScheduler}
	rules := &podgroup.Rules{
		Client: p.client, Discovery: kinds, ConfigMap: p.config.gangConfig(), Resolver: resolver, Leads: p.leads,
	}
	p.gangs = &gangParts{resolver, store, &podgroup.Reconciler{
		Pods: p.client, Objects: objects, Lineage: lineage, Walker: p.walker, Store: store, Resolver: resolver, Rules: rules, Clock: clock.RealClock{},
	}}
	return errors.Join(p.mgr.Add(lineage), p.mgr.Add(store), p.mgr.Add(rules))
}
