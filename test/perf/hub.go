package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
	"github.com/atoll-k8s/atoll/internal/hub"
	"github.com/atoll-k8s/atoll/internal/hub/proxy"
	"github.com/atoll-k8s/atoll/test/rawclient"
	"github.com/atoll-k8s/atoll/test/relay"
)

// hubBenchmark compares requests through atoll-hub with the same requests sent to the API server.
var hubBenchmark = benchmark{
	name: "hub", nodes: 10, pods: 1000,
	about: `Requests through [the hub](hub.md) ÷ the same requests sent to the API server. Both have the same clients, over TLS and HTTP/2, with protobuf.

- ` + "`get`" + `: GET of the Node by its kubelet, one after the other, p50. ` + "`list`" + `: LIST of the 1,000 pods of the node by its kubelet, through the delivery gate.
  ` + "`list others`" + `: LIST of 1,000 ConfigMaps by a ServiceAccount. One of them
  changes before each LIST, so that the hub stores each answer.
- ` + "`watch`" + `: from the sending of a change of one of the 1,000 pods until the kubelet's watch has the event, p50.
- ` + "`throughput`" + `: GETs of the Node a second by 64 clients, each with a connection of its own.
- ` + "`plain …`" + `: a proxy of Go's standard library that only passes the same requests on, over the same TLS and HTTP/2: what a second connection costs at least.
- ` + "`offline …`" + `: a second hub, whose API server refuses connections, answers from its cache; the peer is the API server.
- ` + "`written`" + `: bytes written to disk for each event of a watch ÷ bytes of the event. Ten ConfigMaps of 1 KB change in turns, so that logs are also rewritten.
- ` + "`syncs`" + `: calls of fsync a second while ten collections change all the time ÷ the ten collections.
- ` + "`start`" + `: from the start of the process, with 10,000 objects in ten lists on its disk, to its first answer. ` + "`binary`" + `: its file, as ` + "`go build`" + ` makes it.`,
	variants: []variant{
		{name: "get", stage: "reads", unit: "ms", ideal: "≤ 1.3", a: "GET of the Node through the hub", b: "sent to the API server"},
		{name: "list", stage: "reads", unit: "ms", ideal: "≤ 1.15", a: "LIST of 1,000 pods of the node through the hub", b: "sent to the API server"},
		{name: "list others", stage: "reads", unit: "ms", ideal: "≤ 1.15", a: "LIST of 1,000 ConfigMaps through the hub", b: "sent to the API server"},
		{name: "watch", stage: "reads", unit: "ms", ideal: "≤ 1.2", a: "change until its event through the hub", b: "from the API server"},
		{name: "throughput", stage: "reads", unit: "GET/s", ideal: "≥ 0.8", a: "64 connections to the hub", b: "to the API server"},
		{name: "plain get", stage: "reads", unit: "ms", ideal: "–", a: "GET of the Node through a plain proxy", b: "sent to the API server"},
		{name: "plain list", stage: "reads", unit: "ms", ideal: "–", a: "LIST of 1,000 pods of the node through a plain proxy", b: "sent to the API server"},
		{name: "plain throughput", stage: "reads", unit: "GET/s", ideal: "–", a: "64 connections to a plain proxy", b: "to the API server"},
		{name: "offline get", stage: "reads", unit: "ms", ideal: "< 1", a: "GET of the Node from the hub without a cloud", b: "from the API server"},
		{name: "offline list", stage: "reads", unit: "ms", ideal: "< 1", a: "LIST of 1,000 pods from the hub without a cloud", b: "from the API server"},
		{name: "written", stage: "writes", unit: "bytes", ideal: "≤ 3", a: "written to disk for each event", b: "the event"},
		{name: "syncs", stage: "writes", unit: "/s", ideal: "≤ 1.1", a: "calls of fsync", b: "collections that change"},
		{name: "start", stage: "start", unit: "ms", ideal: "≤ 1", a: "start to the first answer, with 10,000 objects", b: "the limit"},
		{name: "binary", stage: "start", unit: "MB", ideal: "≤ 1", a: "atoll-hub", b: "the limit"},
	},
	open: openHub,
}

const (
	// nearNode is the node whose hub reaches the API server, and farNode the one whose hub can be cut
	// off.
	nearNode, farNode = "near", "far"
	// hubShards is the number of lists of ConfigMaps that the hub of farNode has, each with as many as
	// there are pods of a node.
	hubShards = 9
	// shardLabel is on the ConfigMaps: their list. smallShard is a list of ten.
	shardLabel, smallShard = "shard", "small"
	smallSize              = 10
	// hubReader is the ServiceAccount that reads ConfigMaps.
	hubReader = "reader"
	hubPods   = "pod"
)

type hubBench struct {
	*bed
	near, far *atoll.HubProcess
	plain     devcluster.Endpoint
	// link is that of the far hub to the API server.
	link *relay.Relay
	// clients are those of nodes and of the reader, direct and through each hub.
	clients map[string]*rawclient.Client
	// crowd are 64 clients that are near, direct, through the hub and through the plain proxy.
	crowd map[string][]*rawclient.Client
	// changed counts the changes of objects, to make each another one.
	changed int
}

func openHub(ctx context.Context, o options, log io.Writer) (bench, error) {
	cluster, err := devcluster.Start(ctx, devcluster.Options{Log: log, KeepDir: o.keep})
	if err != nil {
		return nil, err
	}
	h := &hubBench{bed: &bed{options: o, log: log, cluster: cluster}, clients: map[string]*rawclient.Client{}, crowd: map[string][]*rawclient.Client{}}
	if err := h.prepare(ctx); err != nil {
		return nil, errors.Join(err, h.close())
	}
	return h, nil
}

func (h *hubBench) close() error {
	if h.link != nil {
		_ = h.link.Close()
	}
	for _, c := range slices.Concat(slices.Collect(maps.Values(h.clients)), h.crowd[direct], h.crowd[through], h.crowd[plainName]) {
		c.Close()
	}
	return h.bed.close()
}

func (h *hubBench) prepare(ctx context.Context) (err error) {
	config := h.cluster.AdminConfig()
	if h.client, err = kubernetes.NewForConfig(config); err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	server := strings.TrimPrefix(config.Host, "https://")
	if h.link, err = relay.New(ctx, server); err != nil {
		return err
	}
	if err := h.addObjects(ctx); err != nil {
		return err
	}
	if h.near, err = atoll.StartHub(ctx, h.cluster, nearNode, "", h.log); err != nil {
		return err
	}
	if h.far, err = atoll.StartHub(ctx, h.cluster, farNode, "https://"+h.link.Address(), h.log); err != nil {
		return err
	}
	if err := h.addClients(ctx); err != nil {
		return err
	}
	if err := h.fillFar(ctx); err != nil {
		return err
	}
	return h.waitIdle(ctx)
}

// addObjects adds nodes and their pods, and ConfigMaps. Nothing changes them afterwards but this
// program.
func (h *hubBench) addObjects(ctx context.Context) error {
	core := h.client.CoreV1()
	if _, err := core.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating namespace %q: %w", namespace, err)
	}
	if _, err := core.ServiceAccounts(namespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: hubReader}}, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating a ServiceAccount: %w", err)
	}
	_, err := h.client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: hubReader}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: hubReader}},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("giving a ServiceAccount its rights: %w", err)
	}
	if err := h.awaitAccount(ctx); err != nil {
		return err
	}
	for _, name := range []string{devcluster.ControllerManager, devcluster.Scheduler, devcluster.Kwok} {
		if err := h.cluster.Kill(ctx, name); err != nil {
			return err
		}
	}
	var pods []*corev1.Pod
	for _, node := range []string{nearNode, farNode} {
		if _, err := core.Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("creating node %q: %w", node, err)
		}
		for i := range h.options.pods {
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%s-%d", hubPods, node, i), Namespace: namespace},
				Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "main", Image: "nginx:1.27"}}},
			}
			furnish(&pod.Spec.Containers[0])
			pods = append(pods, pod)
		}
	}
	if err := createAll(ctx, pods, core.Pods(namespace).Create); err != nil {
		return err
	}
	var configs []*corev1.ConfigMap
	add := func(shard string, n int) {
		for i := range n {
			configs = append(configs, &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", shard, i), Namespace: namespace, Labels: map[string]string{shardLabel: shard}},
				Data:       map[string]string{"text": strings.Repeat("a setting ", 100)},
			})
		}
	}
	for i := range hubShards {
		add(shardName(i), h.options.pods)
	}
	add(smallShard, smallSize)
	return createAll(ctx, configs, core.ConfigMaps(namespace).Create)
}

func shardName(i int) string { return fmt.Sprintf("shard-%d", i) }

// awaitAccount waits until pods can be created.
func (b *bed) awaitAccount(ctx context.Context) error {
	return b.eventually(ctx, "the ServiceAccount of the namespace", func(ctx context.Context) (bool, error) {
		_, err := b.client.CoreV1().ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{})
		return err == nil, nil
	})
}

// createAll creates objects, many at a time.
func createAll[T metav1.Object](ctx context.Context, objects []T, create func(context.Context, T, metav1.CreateOptions) (T, error)) error {
	return inParallel(ctx, writers, objects, func(ctx context.Context, object T) error {
		if _, err := create(ctx, object, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("creating %q: %w", object.GetName(), err)
		}
		return nil
	})
}

// The clients, by who and how.
const (
	direct, through = "direct", "hub"
	nearDirect      = nearNode + " " + direct
	nearThrough     = nearNode + " " + through
	nearPlain       = nearNode + " " + plainName
	farThrough      = farNode + " " + through
	readerDirect    = hubReader + " " + direct
	readerThrough   = hubReader + " " + through
	readerFar       = hubReader + " far"
	crowdSize       = 64
)

func (h *hubBench) addClients(ctx context.Context) error {
	reader, err := h.cluster.ServiceAccountKubeconfig(ctx, namespace, hubReader)
	if err != nil {
		return err
	}
	near, err := h.cluster.Kubeconfig(ctx, "system:node:"+nearNode, "system:nodes")
	if err != nil {
		return err
	}
	if err := h.startPlain(ctx, near); err != nil {
		return err
	}
	far, err := h.cluster.Kubeconfig(ctx, "system:node:"+farNode, "system:nodes")
	if err != nil {
		return err
	}
	for name, of := range map[string]struct {
		kubeconfig string
		by         *devcluster.Endpoint
	}{
		nearDirect: {near, nil}, nearThrough: {near, &h.near.Endpoint}, nearPlain: {near, &h.plain}, farThrough: {far, &h.far.Endpoint},
		readerDirect: {reader, nil}, readerThrough: {reader, &h.near.Endpoint}, readerFar: {reader, &h.far.Endpoint},
	} {
		if h.clients[name], err = rawclient.New(of.kubeconfig, of.by, rawclient.Protobuf); err != nil {
			return err
		}
	}
	for range crowdSize {
		for way, by := range map[string]*devcluster.Endpoint{direct: nil, through: &h.near.Endpoint, plainName: &h.plain} {
			c, err := rawclient.New(near, by, rawclient.Protobuf)
			if err != nil {
				return err
			}
			h.crowd[way] = append(h.crowd[way], c)
		}
	}
	return nil
}

// fillFar asks the far hub everything that it is to have, and waits until it has it on disk.
func (h *hubBench) fillFar(ctx context.Context) error {
	if _, err := h.clients[farThrough].Skip(ctx, nodePath(farNode)); err != nil {
		return err
	}
	if _, err := h.clients[farThrough].Skip(ctx, podsPath(farNode)); err != nil {
		return err
	}
	for i := range hubShards {
		if _, err := h.clients[readerFar].Skip(ctx, shardPath(shardName(i))); err != nil {
			return err
		}
	}
	want := (1 + hubShards) * h.options.pods
	return h.eventually(ctx, "the hub to have all on disk", func(ctx context.Context) (bool, error) {
		s, err := hub.ReadStatus(ctx, h.far.Observe)
		if err != nil {
			return false, err
		}
		has := 0
		for _, scope := range s.Cache {
			has += scope.Items
		}
		return has > want, nil // with the Node
	})
}

// cutOff lets the far hub's API server refuse connections, and waits until the hub answers from its
// cache.
func (h *hubBench) cutOff(ctx context.Context) error {
	h.link.Set(relay.Refused)
	return h.eventually(ctx, "the hub to answer from its cache", func(ctx context.Context) (bool, error) {
		header, err := h.clients[farThrough].Skip(ctx, nodePath(farNode))
		return err == nil && header.Get(proxy.AsOf) != "", nil
	})
}

func nodePath(node string) string { return "/api/v1/nodes/" + node }

// podsPath is what a kubelet lists.
func podsPath(node string) string {
	return "/api/v1/pods?fieldSelector=spec.nodeName%3D" + node + "&resourceVersion=0"
}

func shardPath(shard string) string {
	return "/api/v1/namespaces/" + namespace + "/configmaps?labelSelector=" + shardLabel + "%3D" + shard + "&resourceVersion=0"
}

// observed measures with what the processes used meanwhile.
func (b *bed) observed(ctx context.Context, do func(context.Context) (rate float64, facts string, err error)) (s sample, err error) {
	before, err := usageOf(ctx, b.cluster)
	if err != nil {
		return s, err
	}
	rate, facts, err := do(ctx)
	if err != nil {
		return s, err
	}
	after, err := usageOf(ctx, b.cluster)
	if err != nil {
		return s, err
	}
	used := after.since(before)
	return sample{rate: rate, off: -1, strangers: used.strangers(), facts: fmt.Sprintf("%s; %s", facts, used)}, nil
}

// limit is a side that is a number.
func limit(name string, value float64) side {
	return side{name: name + " limit", measure: func(context.Context) (sample, error) { return sample{rate: value, off: -1}, nil }}
}
