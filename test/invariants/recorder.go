package invariants

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

const (
	// again is the delay before a kind that could not be listed or watched is tried
	// again.
	again = 200 * time.Millisecond
	// settle is the maximum time that a stopping Recorder waits for the last writes.
	settle = 30 * time.Second
)

// Recorder keeps every version of every object that is judged, from its start
// until it is stopped.
type Recorder struct {
	client client.WithWatch
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu sync.Mutex // guards the fields below
	h  *History
	// seen are the current versions, by kind and key.
	seen map[string]map[any]stored
}

// stored is the last version of an object.
type stored struct {
	rv     uint64
	object Object
}

// kinds are the list types of the judged kinds, by name.
func kinds() map[string]client.ObjectList {
	return map[string]client.ObjectList{
		"pods":                &corev1.PodList{},
		"nodes":               &corev1.NodeList{},
		"propagationpolicies": &gm.PropagationPolicyList{},
		"overridepolicies":    &gm.OverridePolicyList{},
		"deployments":         &appsv1.DeploymentList{},
		"replicasets":         &appsv1.ReplicaSetList{},
		"statefulsets":        &appsv1.StatefulSetList{},
		"daemonsets":          &appsv1.DaemonSetList{},
		"jobs":                &batchv1.JobList{},
		"cronjobs":            &batchv1.CronJobList{},
		"uniteddeployments":   &apps.UnitedDeploymentList{},
	}
}

// Record starts a Recorder and returns once it has listed everything. The end of ctx also
// ends the recording; without Stop the last moments may be missing.
func Record(ctx context.Context, c client.WithWatch) (*Recorder, error) {
	ctx, cancel := context.WithCancel(ctx)
	r := &Recorder{client: c, cancel: cancel, h: NewHistory(), seen: map[string]map[any]stored{}}
	for kind, list := range kinds() {
		rv, err := r.list(ctx, kind, list)
		if err != nil {
			cancel()
			r.done.Wait()
			return nil, err
		}
		r.done.Go(func() { r.follow(ctx, kind, list, rv) })
	}
	return r, nil
}

// Stop waits until all existing objects are recorded, ends the recording, and returns the
// history. Objects that were created and deleted in the last moments may be missing.
func (r *Recorder) Stop(ctx context.Context) (*History, error) {
	err := r.settled(ctx)
	r.cancel()
	r.done.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.h, err
}

// settled returns when the recorder has the state of the API server.
func (r *Recorder) settled(ctx context.Context) error {
	for kind, list := range kinds() {
		var last error
		err := wait.PollUntilContextTimeout(ctx, again/4, settle, true, func(ctx context.Context) (bool, error) {
			last = r.compare(ctx, kind, list)
			return last == nil, nil
		})
		if err != nil {
			return fmt.Errorf("waiting until all %s are recorded: %w", kind, errors.Join(err, last))
		}
	}
	return nil
}

// compare returns an error that names the first object of a kind that is not recorded
// yet.
func (r *Recorder) compare(ctx context.Context, kind string, list client.ObjectList) error {
	items, _, err := r.read(ctx, list)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	present := map[any]bool{}
	for _, item := range items {
		o, rv, err := convert(item)
		if err != nil {
			return err
		}
		present[o.key()] = true
		if r.seen[kind][o.key()].rv < rv {
			return fmt.Errorf("version %d of %v is missing", rv, o.key())
		}
	}
	for key := range r.seen[kind] {
		if !present[key] {
			return fmt.Errorf("the end of %v is missing", key)
		}
	}
	return nil
}

// follow watches one kind until ctx is done. A watch that ends is continued from its last
// version. Only if the API server does not have that version any more is the kind listed
// again, and the history has a gap.
func (r *Recorder) follow(ctx context.Context, kind string, list client.ObjectList, rv string) {
	for ctx.Err() == nil {
		next, err := r.watch(ctx, kind, list, rv)
		rv = next
		if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			next, err = r.relist(ctx, kind, list, rv)
			if err == nil {
				rv = next
				continue
			}
		}
		if err != nil {
			select {
			case <-ctx.Done():
			case <-time.After(again):
			}
		}
	}
}

// watch records until the watch ends, and returns the last resourceVersion.
func (r *Recorder) watch(ctx context.Context, kind string, list client.ObjectList, rv string) (string, error) {
	w, err := r.client.Watch(ctx, list.DeepCopyObject().(client.ObjectList), &client.ListOptions{
		Raw: &metav1.ListOptions{ResourceVersion: rv, AllowWatchBookmarks: true},
	})
	if err != nil {
		return rv, err
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		if event.Type == watch.Error {
			return rv, apierrors.FromObject(event.Object)
		}
		accessor, err := meta.Accessor(event.Object)
		if err != nil {
			return rv, err
		}
		rv = accessor.GetResourceVersion()
		if event.Type == watch.Bookmark {
			continue
		}
		if err := r.event(kind, event); err != nil {
			return rv, err
		}
	}
	return rv, nil
}

func (r *Recorder) event(kind string, event watch.Event) error {
	o, rv, err := convert(event.Object)
	if err != nil {
		return err
	}
	stamp := Stamp{RV: rv, Seen: time.Now()}
	r.mu.Lock()
	defer r.mu.Unlock()
	if event.Type == watch.Deleted {
		r.h.Gone(stamp, o)
		delete(r.seen[kind], o.key())
		return nil
	}
	r.h.Put(stamp, o)
	r.seen[kind][o.key()] = stored{rv, o}
	return nil
}

// list records the objects that exist at the start.
func (r *Recorder) list(ctx context.Context, kind string, list client.ObjectList) (rv string, err error) {
	items, rv, err := r.read(ctx, list)
	if err != nil {
		return "", fmt.Errorf("listing %s: %w", kind, err)
	}
	return rv, r.replace(kind, items, rv, false)
}

// relist records the existing objects after a watch was lost for too long.
func (r *Recorder) relist(ctx context.Context, kind string, list client.ObjectList, from string) (rv string, err error) {
	items, rv, err := r.read(ctx, list)
	if err != nil {
		return "", err
	}
	r.mu.Lock()
	r.h.Gaps = append(r.h.Gaps, Gap{What: kind, From: number(from), To: number(rv)})
	r.mu.Unlock()
	return rv, r.replace(kind, items, rv, true)
}

func (r *Recorder) replace(kind string, items []runtime.Object, listRV string, gap bool) error {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	before, after := r.seen[kind], map[any]stored{}
	for _, item := range items {
		o, rv, err := convert(item)
		if err != nil {
			return err
		}
		after[o.key()] = stored{rv, o}
		if before[o.key()].rv != rv {
			r.h.Put(Stamp{RV: rv, Seen: now, Gap: gap}, o)
		}
	}
	for key, was := range before {
		if _, still := after[key]; !still {
			r.h.Gone(Stamp{RV: number(listRV), Seen: now, Gap: true}, was.object)
		}
	}
	r.seen[kind] = after
	return nil
}

func (r *Recorder) read(ctx context.Context, list client.ObjectList) (items []runtime.Object, rv string, err error) {
	list = list.DeepCopyObject().(client.ObjectList)
	if err := r.client.List(ctx, list); err != nil {
		return nil, "", err
	}
	items, err = meta.ExtractList(list)
	return items, list.GetResourceVersion(), err
}

func convert(item runtime.Object) (Object, uint64, error) {
	o := slim(item)
	accessor, err := meta.Accessor(item)
	if o == nil || err != nil {
		return nil, 0, fmt.Errorf("recording a %T: it is none of the kinds that are judged", item)
	}
	return o, number(accessor.GetResourceVersion()), nil
}

// number returns a resourceVersion as the number that etcd assigned.
func number(rv string) uint64 {
	n, _ := strconv.ParseUint(rv, 10, 64)
	return n
}
