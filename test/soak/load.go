package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

const (
	namespace = "soak"
	// changeEvery is the time between two changes of ConfigMaps, and visitEvery that between two changes
	// of pods.
	changeEvery, visitEvery = 80 * time.Millisecond, 700 * time.Millisecond
	// configs is the number of names of ConfigMaps.
	configs = 40
	// keepers are the pods of each node that live all the time, and visitors the most that come and go.
	keepers, visitors = 5, 6
	// colour is a label of ConfigMaps that changes: red ones are a collection of their own.
	colour, red = "colour", "red"
	// marker is the ConfigMap that is changed to learn how far a follower is.
	marker = "marker"
)

// load changes objects all the time, at the API server.
type load struct {
	client kubernetes.Interface
	random *rand.Rand
	nodes  []string
	lives  *lives
	// there are the ConfigMaps that exist, and visiting the pods that come and go, by node, the oldest
	// first.
	there    map[string]bool
	visiting map[string][]string
	count    int
}

func newLoad(client kubernetes.Interface, seed uint64, nodes []string, l *lives) *load {
	return &load{client: client, random: rand.New(rand.NewPCG(seed, 2)), nodes: nodes, lives: l, there: map[string]bool{}, visiting: map[string][]string{}}
}

// run changes objects until ctx is done.
func (l *load) run(ctx context.Context) error {
	change, visit := time.NewTicker(changeEvery), time.NewTicker(visitEvery)
	defer change.Stop()
	defer visit.Stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			return nil
		case <-change.C:
			err = l.change(ctx)
		case <-visit.C:
			err = l.visit(ctx)
		}
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("changing objects: %w", err)
		}
	}
}

// change creates, changes or deletes a ConfigMap.
func (l *load) change(ctx context.Context) error {
	name, maps := fmt.Sprintf("config-%02d", l.random.IntN(configs)), l.client.CoreV1().ConfigMaps(namespace)
	colours := []string{red, "blue"}
	l.count++
	switch {
	case !l.there[name]:
		l.there[name] = true
		_, err := maps.Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{colour: colours[l.random.IntN(2)]}}, Data: map[string]string{"count": fmt.Sprint(l.count)},
		}, metav1.CreateOptions{})
		return err
	case l.random.IntN(5) == 0:
		delete(l.there, name)
		return maps.Delete(ctx, name, metav1.DeleteOptions{})
	default:
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}},"data":{"count":"%d"}}`, colour, colours[l.random.IntN(2)], l.count)
		_, err := maps.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	}
}

// visit lets a pod come or go, or changes one that stays.
func (l *load) visit(ctx context.Context) error {
	node, pods := l.nodes[l.random.IntN(len(l.nodes))], l.client.CoreV1().Pods(namespace)
	l.count++
	here := l.visiting[node]
	switch action := l.random.IntN(4); {
	case action == 0:
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"count":"%d"}}}`, l.count)
		_, err := pods.Patch(ctx, keeper(node, l.random.IntN(keepers)), types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	case len(here) > 0 && (action == 1 || len(here) >= visitors):
		l.visiting[node] = here[1:]
		l.lives.delete(namespace + "/" + here[0])
		return pods.Delete(ctx, here[0], metav1.DeleteOptions{GracePeriodSeconds: new(int64(1))})
	default:
		name := fmt.Sprintf("visitor-%s-%d", node, l.count)
		l.visiting[node] = append(here, name)
		_, err := pods.Create(ctx, newPod(name, node), metav1.CreateOptions{})
		return err
	}
}

// keeper is the name of a pod that lives all the time.
func keeper(node string, i int) string { return fmt.Sprintf("keeper-%s-%d", node, i) }

// settings is the ConfigMap and the Secret that pods need.
const settings = "settings"

// newPod returns a pod of a node, which no taint evicts: the node is away often.
func newPod(name, node string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}, Spec: corev1.PodSpec{
		NodeName: node, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		Containers: []corev1.Container{{Name: "main", Image: "nginx:1.27", VolumeMounts: []corev1.VolumeMount{{Name: "config", MountPath: "/config"}, {Name: "secret", MountPath: "/secret"}}}},
		Volumes: []corev1.Volume{
			{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: settings}}}},
			{Name: "secret", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: settings}}},
		},
	}}
}
