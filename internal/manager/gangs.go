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

// discoveryTimeout bounds one discovery request.
const discoveryTimeout = 3 * time.Second

// gangParts are the components that only PodGroups need. No other component waits for
// them.
type gangParts struct {
	resolver   *gangs.Resolver
	store      *gangs.Store
	controller *podgroup.Reconciler
}

// reconciler returns the controller of PodGroups; nil without --gangs.
func (g *gangParts) reconciler() *podgroup.Reconciler {
	if g == nil {
		return nil
	}
	return g.controller
}

// addGangs creates the components for PodGroups, with --gangs. It must be called before
// the walker gets its first object.
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
	// Discovery has a client with a timeout of its own: everybody who may create pods
	// can make it request an API group whose server does not answer.
	limited := rest.CopyConfig(config)
	limited.Timeout = discoveryTimeout
	kinds, err := discovery.NewDiscoveryClientForConfig(limited)
	if err != nil {
		return fmt.Errorf("making a client of discovery: %w", err)
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
