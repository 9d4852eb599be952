package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
	"github.com/atoll-k8s/atoll/test/rawclient"
	"github.com/atoll-k8s/atoll/test/relay"
)

const (
	// readyWithin bounds the time until all is as it should be, while nothing is cut or killed.
	readyWithin = 2 * time.Minute
	poll        = 100 * time.Millisecond
	stopWithin  = 30 * time.Second
	// watcher is the ServiceAccount that watches ConfigMaps.
	watcher = "watcher"
)

// place is a node with its hub and the link to the cloud.
type place struct {
	node string
	hub  *atoll.HubProcess
	link *relay.Relay
	// pods is the follower of its pods, by which it is seen whether the hub knows that it is cut off.
	pods *follower
}

// rig is the cluster, its nodes, and who watches.
type rig struct {
	*report

	cluster *devcluster.Cluster
	client  kubernetes.Interface
	places  []*place
	lives   *lives
	// collections are the ConfigMaps, the red ones, and the pods of each node.
	collections []*collection
	clients     []*rawclient.Client
}

// nodeNames are the names of so many nodes.
func nodeNames(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("edge-%d", i))
	}
	return names
}

// newRig starts everything. The caller closes the rig, also after an error if it is not nil.
func newRig(ctx context.Context, o options, log io.Writer, r *report) (*rig, error) {
	cluster, err := devcluster.Start(ctx, devcluster.Options{Log: log, KeepDir: o.keep})
	if err != nil {
		return nil, err
	}
	g := &rig{report: r, cluster: cluster, lives: newLives()}
	if g.client, err = kubernetes.NewForConfig(cluster.AdminConfig()); err != nil {
		return g, fmt.Errorf("making a client: %w", err)
	}
	if err := g.addObjects(ctx); err != nil {
		return g, err
	}
	for _, node := range nodeNames(o.nodes) {
		p := &place{node: node}
		g.places = append(g.places, p)
		if p.link, err = relay.New(ctx, strings.TrimPrefix(cluster.AdminConfig().Host, "https://")); err != nil {
			return g, err
		}
		if p.hub, err = atoll.StartHub(ctx, cluster, node, "https://"+p.link.Address(), log); err != nil {
			return g, err
		}
		if err := cluster.AddHollowNodesBehind(ctx, p.hub.Endpoint, devcluster.NodeSpec{Name: node}); err != nil {
			return g, err
		}
		for i := range keepers {
			if _, err := g.client.CoreV1().Pods(namespace).Create(ctx, newPod(keeper(node, i), node), metav1.CreateOptions{}); err != nil {
				return g, fmt.Errorf("creating a pod: %w", err)
			}
		}
	}
	return g, g.addCollections(ctx)
}

// close stops everything.
func (g *rig) close() error {
	for _, c := range g.clients {
		c.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopWithin)
	defer cancel()
	err := g.cluster.Stop(ctx)
	for _, p := range g.places {
		if p.link != nil {
			err = errors.Join(err, p.link.Close())
		}
	}
	return err
}

// addObjects adds what pods and watchers need.
func (g *rig) addObjects(ctx context.Context) error {
	core, meta := g.client.CoreV1(), metav1.ObjectMeta{Name: settings}
	_, errNamespace := core.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	_, errConfig := core.ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"key": "value"}}, metav1.CreateOptions{})
	_, errMarker := core.ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: marker, Labels: map[string]string{colour: red}}}, metav1.CreateOptions{})
	_, errSecret := core.Secrets(namespace).Create(ctx, &corev1.Secret{ObjectMeta: meta, StringData: map[string]string{"key": "value"}}, metav1.CreateOptions{})
	_, errAccount := core.ServiceAccounts(namespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: watcher}}, metav1.CreateOptions{})
	_, errBinding := g.client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: watcher}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: watcher}},
	}, metav1.CreateOptions{})
	if err := errors.Join(errNamespace, errConfig, errMarker, errSecret, errAccount, errBinding); err != nil {
		return fmt.Errorf("creating objects: %w", err)
	}
	return g.eventually(ctx, "pods can be created", func(ctx context.Context) error {
		_, err := core.ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

// configsPath is that of all ConfigMaps, and podsPath that of the pods of a node. Both have a query.
func configsPath(selector string) string {
	return "/api/v1/namespaces/" + namespace + "/configmaps?labelSelector=" + selector
}

func podsPath(node string) string { return "/api/v1/pods?fieldSelector=spec.nodeName%3D" + node }

// addCollections adds the followers, each with a client of its own.
func (g *rig) addCollections(ctx context.Context) error {
	account, err := g.cluster.ServiceAccountKubeconfig(ctx, namespace, watcher)
	if err != nil {
		return err
	}
	add := func(c *collection, by *place, kubeconfig, path, accept string) (*follower, error) {
		name, endpoint := c.name+" from the API server", (*devcluster.Endpoint)(nil)
		if by != nil {
			name, endpoint = c.name+" through the hub of "+by.node, &by.hub.Endpoint
		}
		client, err := rawclient.New(kubeconfig, endpoint, accept)
		if err != nil {
			return nil, err
		}
		g.clients = append(g.clients, client)
		f, err := newFollower(name, client, path, accept)
		if by == nil {
			c.truth = f
		} else {
			c.others = append(c.others, f)
		}
		return f, err
	}
	for _, of := range []struct{ name, selector, accept string }{
		{"ConfigMaps", "", rawclient.JSON}, {"red ConfigMaps", colour + "%3D" + red, rawclient.Protobuf},
	} {
		c := &collection{name: of.name}
		g.collections = append(g.collections, c)
		for _, p := range append([]*place{nil}, g.places...) {
			if _, err := add(c, p, account, configsPath(of.selector), of.accept); err != nil {
				return err
			}
		}
	}
	for _, p := range g.places {
		kubeconfig, err := g.cluster.Kubeconfig(ctx, "system:node:"+p.node, "system:nodes")
		if err != nil {
			return err
		}
		c := &collection{name: "pods of " + p.node}
		g.collections = append(g.collections, c)
		if _, err := add(c, nil, g.cluster.KubeconfigPath(), podsPath(p.node), rawclient.Protobuf); err != nil {
			return err
		}
		if p.pods, err = add(c, p, kubeconfig, podsPath(p.node), rawclient.Protobuf); err != nil {
			return err
		}
	}
	return nil
}

// follow starts all followers, and the watch over pods, until ctx is done. The truth is there before
// the others.
func (g *rig) follow(ctx context.Context, group interface{ Go(func()) }) error {
	start := func(f *follower) { group.Go(func() { f.run(ctx) }) }
	for _, c := range g.collections {
		start(c.truth)
	}
	for _, c := range g.collections {
		err := g.eventually(ctx, c.truth.name+" are listed", func(context.Context) error {
			if version, err := c.truth.at(); version == 0 {
				return errors.Join(errors.New("they are not"), err)
			}
			return nil
		})
		if err != nil {
			return err
		}
		for _, f := range c.others {
			start(f)
		}
	}
	factory := informers.NewSharedInformerFactoryWithOptions(g.client, 0, informers.WithNamespace(namespace))
	see := func(o any) {
		if pod, ok := o.(*corev1.Pod); ok {
			g.violations(g.lives.see(pod))
		}
	}
	_, err := factory.Core().V1().Pods().Informer().AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: see, UpdateFunc: func(_, o any) { see(o) },
		DeleteFunc: func(o any) {
			if tombstone, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
				o = tombstone.Obj
			}
			if pod, ok := o.(*corev1.Pod); ok {
				g.violations(g.lives.gone(pod))
			}
		},
	})
	if err != nil {
		return fmt.Errorf("watching pods: %w", err)
	}
	factory.Start(ctx.Done())
	group.Go(func() {
		<-ctx.Done()
		factory.Shutdown()
	})
	return nil
}

// eventually calls a function until it succeeds.
func (g *rig) eventually(ctx context.Context, what string, is func(context.Context) error) error {
	for deadline := time.Now().Add(readyWithin); ; {
		last := is(ctx)
		switch {
		case last == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(deadline):
			return fmt.Errorf("it is not so that %s: %w", what, last)
		}
		pause(ctx, poll)
	}
}
