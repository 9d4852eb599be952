package nodepool

import (
	"context"
	"slices"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/united"
	"github.com/atoll-k8s/atoll/internal/machinery/paged"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
)

const (
	// holdMost is how long a NoExecute taint waits for tolerations.
	holdMost = 5 * time.Minute
	// holdEvery is how often pools are checked for taints that need not wait any more.
	holdEvery = 2 * time.Second
)

// +kubebuilder:rbac:roleName=atoll-manager-pools,groups=apps,resources=deployments;statefulsets;daemonsets,verbs=list;watch
// +kubebuilder:rbac:roleName=atoll-manager-pools,groups="",resources=pods,verbs=list

// hold is the state of a pool whose NoExecute taints may have to wait.
type hold struct {
	mu sync.Mutex
	// since is when the first taint began to wait; zero if none waits.
	since time.Time
	// looked is when delay was computed, for taints.
	looked time.Time
	taints []corev1.Taint
	delay  delay
}

// holds caches the delay of each pool, so that it is computed once for all nodes of the
// pool. It is safe for concurrent use.
type holds struct {
	mu     sync.Mutex
	byPool map[string]*hold
}

// of returns the hold of a pool. It creates one if there is none.
func (h *holds) of(pool string) *hold {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.byPool == nil {
		h.byPool = map[string]*hold{}
	}
	if h.byPool[pool] == nil {
		h.byPool[pool] = &hold{}
	}
	return h.byPool[pool]
}

// forget removes a pool of which no taint waits.
func (h *holds) forget(pool string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.byPool, pool)
}

// delay is why NoExecute taints of a pool wait. The zero value means that none waits.
type delay struct {
	// until is when the taints are put on nodes at the latest.
	until time.Time
	// workloads are the workloads whose pods do not tolerate the taints, as
	// "namespace/name". failed is the error if the workloads could not be read.
	workloads []string
	failed    error
}

// waits reports whether the taints wait.
func (d *delay) waits() bool { return len(d.workloads) > 0 || d.failed != nil }

// retry returns an error that repeats the pass when the delay may be over; nil if none waits.
func (d *delay) retry(now time.Time) error {
	if !d.waits() {
		return nil
	}
	return phase.Wait("pods that do not tolerate a NoExecute taint", min(holdEvery, d.until.Sub(now)))
}

// delayOf returns whether NoExecute taints must wait before they are put on nodes of a pool,
// because they would evict pods of UnitedDeployments. They also wait if the workloads cannot
// be read. Nothing else that a pool gives waits.
func (r *Reconciler) delayOf(ctx context.Context, pool string, taints []corev1.Taint) delay {
	if len(taints) == 0 {
		return delay{}
	}
	h := r.holds.of(pool)
	h.mu.Lock()
	defer h.mu.Unlock()
	now := r.Clock.Now()
	if now.Sub(h.looked) >= holdEvery/2 || !slices.EqualFunc(h.taints, taints, sameTaint) {
		h.delay = delay{}
		h.delay.workloads, h.delay.failed = r.untolerating(ctx, pool, taints)
		h.looked, h.taints = now, taints
	}
	if !h.delay.waits() {
		return delay{}
	}
	if h.since.IsZero() {
		h.since = r.waitsSince(ctx, pool, now)
	}
	if h.delay.until = h.since.Add(holdMost); !h.delay.until.After(now) {
		return delay{}
	}
	return h.delay
}

// sameTaint reports whether two taints are equal, ignoring the time at which they were added.
func sameTaint(a, b corev1.Taint) bool { return a.MatchTaint(&b) && a.Value == b.Value }

// waitsSince returns when taints of a pool began to wait. It reads the status, because they
// may have begun to wait under another process.
func (r *Reconciler) waitsSince(ctx context.Context, pool string, now time.Time) time.Time {
	p := &apps.NodePool{}
	if err := r.Client.Get(ctx, client.ObjectKey{Name: pool}, p); err != nil {
		return now
	}
	c := meta.FindStatusCondition(p.Status.Conditions, apps.ConditionTaintsTolerated)
	if c == nil || c.Status == metav1.ConditionTrue || c.LastTransitionTime.After(now) {
		return now
	}
	return c.LastTransitionTime.Time
}

// untolerating returns the workloads of UnitedDeployments in a pool whose pod template does
// not tolerate all of the taints. If there is none, it returns the first workload that still
// has a running pod which does not tolerate them.
func (r *Reconciler) untolerating(ctx context.Context, pool string, taints []corev1.Taint) ([]string, error) {
	workloads, err := r.workloadsOf(ctx, pool)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, w := range workloads {
		if template, _ := united.TemplateOf(w); !united.Tolerates(template.Spec.Tolerations, taints) {
			out = append(out, w.GetNamespace()+"/"+w.GetName())
		}
	}
	if len(out) > 0 {
		slices.Sort(out)
		return out, nil
	}
	for _, w := range workloads {
		_, labelSelector := united.TemplateOf(w)
		selector, err := metav1.LabelSelectorAsSelector(labelSelector)
		if err != nil {
			return nil, err
		}
		holds := false
		list := paged.From(r.Live, client.InNamespace(w.GetNamespace()), client.MatchingLabelsSelector{Selector: selector})
		err = paged.Pods(ctx, list, metav1.ListOptions{}, func(pods []corev1.Pod) bool {
			holds = slices.ContainsFunc(pods, func(pod corev1.Pod) bool {
				return pod.DeletionTimestamp == nil && !united.Tolerates(pod.Spec.Tolerations, taints)
			})
			return !holds
		})
		if err != nil {
			return nil, err
		}
		if holds {
			return []string{w.GetNamespace() + "/" + w.GetName()}, nil
		}
	}
	return nil, nil
}

// workloadsOf lists the workloads of UnitedDeployments in a pool from the cache. The caller
// must not change them.
func (r *Reconciler) workloadsOf(ctx context.Context, pool string) ([]united.Workload, error) {
	options := []client.ListOption{client.MatchingLabels{apps.PoolNameLabel: pool}, client.UnsafeDisableDeepCopy}
	var deployments appsv1.DeploymentList
	var statefulSets appsv1.StatefulSetList
	var daemonSets appsv1.DaemonSetList
	for _, list := range []client.ObjectList{&deployments, &statefulSets, &daemonSets} {
		if err := r.Client.List(ctx, list, options...); err != nil {
			return nil, err
		}
	}
	var out []united.Workload
	add := func(w united.Workload) {
		if owner := metav1.GetControllerOfNoCopy(w); owner != nil && owner.Kind == "UnitedDeployment" && owner.APIVersion == apps.GroupVersion.String() {
			out = append(out, w)
		}
	}
	for i := range deployments.Items {
		add(&deployments.Items[i])
	}
	for i := range statefulSets.Items {
		add(&statefulSets.Items[i])
	}
	for i := range daemonSets.Items {
		add(&daemonSets.Items[i])
	}
	return out, nil
}
