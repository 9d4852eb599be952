package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
)

// admission measures the time that the pod webhook adds to the creation of a pod.
var admission = benchmark{
	name: "webhook", unit: "ms", nodes: 10, pods: 200,
	about: `The time that the creation of one pod takes, at the median, with Atoll ÷ without its pod webhook. Pods are created one after the other.

- ` + "`bare`" + ` pods have no owner and no label of Atoll: the API server does not call the webhook for them. ` + "`controlled`" + ` pods have a ReplicaSet
  whose workload requires no policy: they pass the webhook unchanged. ` + "`managed`" + ` pods require a policy and get their labels.
- ` + "`hung`" + `: the only replica of atoll-manager is stopped (SIGSTOP), which is the worst case: its connections stay open without an answer. The API server
  waits for timeoutSeconds of the webhook, 2, and creates the pod. In a cluster the readiness probe takes such a replica out of the Service within 8 s.
- ` + "`gone`" + `: no replica runs, and connections are refused.`,
	variants: []variant{
		{name: "bare", a: "a bare pod, with the webhook", ideal: "≤ 1.1", b: "without it"},
		{name: "controlled", a: "a controlled pod, with the webhook", ideal: "≤ 2", b: "without it"},
		{name: "managed", a: "a managed pod, with the webhook", ideal: "≤ 2", b: "without it"},
		{name: "bare hung", a: "a bare pod, atoll-manager is stopped", ideal: "≤ 1.1", b: "without the webhook"},
		{name: "controlled hung", a: "a controlled pod, atoll-manager is stopped", ideal: "A ≤ 2,100 ms", b: "without the webhook"},
		{name: "bare gone", a: "a bare pod, atoll-manager does not run", ideal: "≤ 1.1", b: "without the webhook"},
		{name: "controlled gone", a: "a controlled pod, atoll-manager does not run", ideal: "≤ 2", b: "without the webhook"},
	},
	open: openAdmission,
}

const (
	// podWebhook is the MutatingWebhookConfiguration of pods.
	podWebhook = "atoll-pods"
	// webhookKnown is the maximum time until the API server sees that the configuration
	// was created or deleted.
	webhookKnown = 3 * time.Second
	// hungPods is the number of pods that are created while each waits for the webhook's
	// timeout.
	hungPods = 5
)

type admissionBench struct {
	*bed
	// sets are the owners of controlled and of managed pods.
	sets map[string]*appsv1.ReplicaSet
	// created counts pods, to give each its own name.
	created int
}

func openAdmission(ctx context.Context, o options, log io.Writer) (bench, error) {
	b, err := makeBed(ctx, settings{options: o, log: log})
	if err != nil {
		return nil, err
	}
	a := &admissionBench{bed: b, sets: map[string]*appsv1.ReplicaSet{}}
	if err := a.prepare(ctx); err != nil {
		return nil, errors.Join(err, a.close())
	}
	return a, nil
}

func (b *admissionBench) prepare(ctx context.Context) error {
	if err := b.createGroups(ctx); err != nil {
		return err
	}
	err := b.eventually(ctx, "the ServiceAccount of the namespace", func(ctx context.Context) (bool, error) {
		accounts, err := b.client.CoreV1().ServiceAccounts(namespace).List(ctx, metav1.ListOptions{})
		return err == nil && len(accounts.Items) > 0, err
	})
	if err != nil {
		return err
	}
	// Only this program may create, bind or delete pods.
	for _, name := range []string{devcluster.ControllerManager, devcluster.Scheduler} {
		if err := b.cluster.Kill(ctx, name); err != nil {
			return err
		}
	}
	for name, w := range map[string]workload{"controlled": {}, "managed": {policy: evenPolicy}} {
		if b.sets[name], err = b.createOwners(ctx, name, w, b.options.pods); err != nil {
			return err
		}
	}
	return nil
}

func (b *admissionBench) sides(_ context.Context, variant string) (a, without side, err error) {
	kind, state, _ := strings.Cut(variant, " ")
	a = side{name: variant, measure: func(ctx context.Context) (sample, error) { return b.in(ctx, state, kind) }}
	without = side{name: kind + ", no webhook", measure: func(ctx context.Context) (sample, error) { return b.without(ctx, kind) }}
	return a, without, nil
}

// in measures while atoll-manager is stopped or killed, and restarts it.
func (b *admissionBench) in(ctx context.Context, state, kind string) (s sample, err error) {
	n := b.options.pods
	switch state {
	case "hung":
		if kind != "bare" {
			n = hungPods
		}
		if err := b.cluster.Pause(ctx, atoll.Manager); err != nil {
			return s, err
		}
	case "gone":
		if err := b.cluster.Kill(ctx, atoll.Manager); err != nil {
			return s, err
		}
	}
	if state != "" { // a stopped manager has lost its Lease, and ends
		defer func() { err = errors.Join(err, b.cluster.Restart(ctx, atoll.Manager)) }()
	}
	return b.create(ctx, kind, n)
}

// without measures while the webhook is not configured.
func (b *admissionBench) without(ctx context.Context, kind string) (s sample, err error) {
	err = b.withoutWebhook(ctx, func() (err error) {
		s, err = b.create(ctx, kind, b.options.pods)
		return err
	})
	return s, err
}

// withoutWebhook calls a function while the webhook of pods is not configured.
func (b *bed) withoutWebhook(ctx context.Context, do func() error) (err error) {
	webhooks := b.client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	config, err := webhooks.Get(ctx, podWebhook, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading the webhook: %w", err)
	}
	if err := webhooks.Delete(ctx, podWebhook, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("deleting the webhook configuration: %w", err)
	}
	defer func() {
		again := &admissionregistrationv1.MutatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: podWebhook, Labels: config.Labels}, Webhooks: config.Webhooks,
		}
		_, failure := webhooks.Create(ctx, again, metav1.CreateOptions{})
		err = errors.Join(err, failure, rest(ctx, webhookKnown))
	}()
	if err := rest(ctx, webhookKnown); err != nil {
		return err
	}
	return do()
}

func rest(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// create creates pods of a kind, one after the other, and deletes them.
func (b *admissionBench) create(ctx context.Context, kind string, n int) (s sample, err error) {
	if _, err := b.createOne(ctx, kind); err != nil { // to open connections
		return s, err
	}
	before, err := usageOf(ctx, b.cluster)
	if err != nil {
		return s, err
	}
	times := make([]float64, n)
	var last *corev1.Pod
	for i := range times {
		began := time.Now()
		if last, err = b.createOne(ctx, kind); err != nil {
			return s, err
		}
		times[i] = float64(time.Since(began)) / float64(time.Millisecond)
	}
	after, err := usageOf(ctx, b.cluster)
	if err != nil {
		return s, err
	}
	used := after.since(before)
	s.rate, s.off, s.strangers = median(times), -1, used.strangers()
	s.facts = fmt.Sprintf("%d pods, labels of the last %v; %s", n, last.Labels, used)
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}
	if err := b.client.CoreV1().Pods(namespace).DeleteCollection(ctx, now, metav1.ListOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return s, fmt.Errorf("deleting pods: %w", err)
	}
	return s, nil
}

func (b *admissionBench) createOne(ctx context.Context, kind string) (*corev1.Pod, error) {
	b.created++
	set := b.sets[kind]
	bare := set == nil
	if bare {
		set = b.sets["controlled"]
	}
	pod := podOf(set, b.created)
	if bare {
		pod.OwnerReferences = nil
	}
	created, err := b.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("creating a pod: %w", err)
	}
	return created, nil
}
