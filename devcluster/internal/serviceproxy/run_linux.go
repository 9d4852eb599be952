package serviceproxy

import (
	"context"
	"fmt"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

// againAfter is the time between two attempts to write the rules.
const againAfter = time.Second

// Run keeps the rules of this network namespace as Services and their endpoints are, until
// ctx is done. They stay afterwards.
func Run(ctx context.Context, kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("reading the kubeconfig of the proxy: %w", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making the client of the proxy: %w", err)
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	services, endpointSlices := factory.Core().V1().Services(), factory.Discovery().V1().EndpointSlices()
	changed := make(chan struct{}, 1)
	change := func() {
		select {
		case changed <- struct{}{}:
		default: // a write is due already
		}
	}
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { change() }, UpdateFunc: func(any, any) { change() }, DeleteFunc: func(any) { change() },
	}
	for _, informer := range []cache.SharedIndexInformer{services.Informer(), endpointSlices.Informer()} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			return fmt.Errorf("watching Services and their endpoints: %w", err)
		}
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	change()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
		list, err := services.Lister().List(labels.Everything())
		if err != nil {
			return fmt.Errorf("listing Services: %w", err)
		}
		endpoints, err := endpointSlices.Lister().List(labels.Everything())
		if err != nil {
			return fmt.Errorf("listing endpoints: %w", err)
		}
		if err := Write(Rules(list, endpoints)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			time.Sleep(againAfter)
			change()
		}
	}
}
