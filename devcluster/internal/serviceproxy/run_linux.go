package serviceproxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
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
// ctx is done; they stay afterwards. Meanwhile it answers clients that ask for the names of
// Services, at port 53 of an address, over UDP.
func Run(ctx context.Context, kubeconfig, address string) error {
	var names atomic.Pointer[map[string][]netip.Addr]
	names.Store(&map[string][]netip.Addr{})
	if err := answerNames(ctx, net.JoinHostPort(address, "53"), &names); err != nil {
		return err
	}
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
		now := Names(list, endpoints)
		names.Store(&now)
		if err := Write(Rules(list, endpoints)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			time.Sleep(againAfter)
			change()
		}
	}
}

// answerNames answers questions for names at host:port until ctx is done.
func answerNames(ctx context.Context, at string, names *atomic.Pointer[map[string][]netip.Addr]) error {
	var config net.ListenConfig
	conn, err := config.ListenPacket(ctx, "udp4", at)
	if err != nil {
		return fmt.Errorf("listening for questions about names: %w", err)
	}
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	go func() {
		message := make([]byte, 512)
		for {
			n, client, err := conn.ReadFrom(message)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				continue // for example because a client has gone
			}
			if answer := Answer(message[:n], *names.Load()); answer != nil {
				_, _ = conn.WriteTo(answer, client)
			}
		}
	}()
	return nil
}
