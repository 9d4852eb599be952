package gangs

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"

	scheduling "github.com/atoll-k8s/atoll/api/scheduling/v1beta1"
)

// Resource is how the API server serves PodGroups.
var Resource = scheduling.GroupVersion.WithResource("podgroups")

const (
	byGroup = "group" // the PodGroup that a pod names
	byOwner = "owner" // a pod's controller
	byUID   = "uid"
)

// Store holds the pods of gang schedulers and all PodGroups. Safe for concurrent use.
type Store struct {
	pods   []cache.SharedIndexInformer // one for each scheduler
	groups cache.SharedIndexInformer
	// unserved: the last list or watch of PodGroups was NotFound or Forbidden.
	unserved atomic.Bool

	podChanged  []func(old, new *Pod)
	groupChange []func(old, new *Group)
	servedAgain []func()
}

// NewStore returns an empty store. Start fills it.
func NewStore(client kubernetes.Interface, objects dynamic.Interface, schedulers []string) (*Store, error) {
	s := &Store{}
	for _, scheduler := range schedulers {
		selector := fields.OneTermEqualSelector("spec.schedulerName", scheduler)
		informer := cache.NewSharedIndexInformer(
			cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "pods", "", selector), &corev1.Pod{}, 0,
			cache.Indexers{byGroup: groupOfPod, byOwner: ownerOfPod, byUID: uidOfPod},
		)
		if err := informer.SetTransform(slimPod); err != nil {
			return nil, fmt.Errorf("watching pods of %s: %w", scheduler, err)
		}
		if _, err := informer.AddEventHandler(handlers(s.handlePod)); err != nil {
			return nil, fmt.Errorf("watching pods of %s: %w", scheduler, err)
		}
		s.pods = append(s.pods, informer)
	}
	s.groups = cache.NewSharedIndexInformer(s.listWatch(objects), &unstructured.Unstructured{}, 0, cache.Indexers{})
	if err := s.groups.SetTransform(slimGroup); err != nil {
		return nil, fmt.Errorf("watching PodGroups: %w", err)
	}
	if _, err := s.groups.AddEventHandler(handlers(s.handleGroup)); err != nil {
		return nil, fmt.Errorf("watching PodGroups: %w", err)
	}
	return s, nil
}

// handlers returns handlers that call changed: old is nil for a new object, new is nil
// for a deleted one.
func handlers[T any](changed func(old, new *T)) cache.ResourceEventHandlerFuncs {
	of := func(obj any) *T {
		if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = gone.Obj
		}
		t, _ := obj.(*T)
		return t
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { changed(nil, of(obj)) },
		UpdateFunc: func(old, obj any) { changed(of(old), of(obj)) },
		DeleteFunc: func(obj any) { changed(of(obj), nil) },
	}
}

// listWatch lists and watches PodGroups, and notes whether they are served.
func (s *Store) listWatch(objects dynamic.Interface) cache.ListerWatcher {
	client := objects.Resource(Resource)
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			list, err := client.List(ctx, options)
			s.note(err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			events, err := client.Watch(ctx, options)
			s.note(err)
			return events, err
		},
	}, objects)
}

// note records the result of a list or a watch of PodGroups, and logs when they become
// readable or unreadable.
func (s *Store) note(err error) {
	switch {
	case err == nil:
		if s.unserved.Swap(false) {
			ctrl.Log.WithName("gangs").Info("PodGroups can be read")
			for _, h := range s.servedAgain {
				h()
			}
		}
	case apierrors.IsNotFound(err) || apierrors.IsForbidden(err):
		if !s.unserved.Swap(true) {
			ctrl.Log.WithName("gangs").Info("PodGroups cannot be read: until then pods get none", "why", err.Error())
		}
	}
}

// Start fills the store until ctx is done.
func (s *Store) Start(ctx context.Context) error {
	var running sync.WaitGroup
	for _, informer := range append([]cache.SharedIndexInformer{s.groups}, s.pods...) {
		running.Go(func() { informer.RunWithContext(ctx) })
	}
	running.Wait()
	return nil
}

// NeedLeaderElection is false: the caches of a new leader are filled already.
func (s *Store) NeedLeaderElection() bool { return false }

// HasSynced reports whether pods and PodGroups have been listed, and PodGroups are served.
func (s *Store) HasSynced() bool {
	for _, informer := range s.pods {
		if !informer.HasSynced() {
			return false
		}
	}
	return s.Served()
}

// Served reports whether PodGroups have been listed and their last list or watch
// succeeded. While it is false no pod must be given the name of one.
func (s *Store) Served() bool { return s.groups.HasSynced() && !s.unserved.Load() }

// OnServed adds a handler that is called when PodGroups are served again. It must not
// block. Call it before Start.
func (s *Store) OnServed(h func()) { s.servedAgain = append(s.servedAgain, h) }

// OnPod adds a handler for changes of pods: old is nil for a new pod, new is nil for a
// deleted one. It must not block. Call it before Start.
func (s *Store) OnPod(h func(old, new *Pod)) { s.podChanged = append(s.podChanged, h) }

// OnGroup adds a handler for changes of PodGroups, with the rules of OnPod.
func (s *Store) OnGroup(h func(old, new *Group)) { s.groupChange = append(s.groupChange, h) }

func (s *Store) handlePod(old, new *Pod) {
	if old != nil && new != nil && samePod(old, new) {
		return
	}
	for _, h := range s.podChanged {
		h(old, new)
	}
}

func (s *Store) handleGroup(old, new *Group) {
	if old != nil && new != nil && sameGroup(old, new) {
		return
	}
	for _, h := range s.groupChange {
		h(old, new)
	}
}

// Pod returns a pod, or nil.
func (s *Store) Pod(key types.NamespacedName) *Pod {
	for _, informer := range s.pods {
		if obj, ok, _ := informer.GetIndexer().GetByKey(key.String()); ok {
			pod, _ := obj.(*Pod)
			return pod
		}
	}
	return nil
}

// Group returns a PodGroup, or nil.
func (s *Store) Group(key types.NamespacedName) *Group {
	obj, ok, _ := s.groups.GetIndexer().GetByKey(key.String())
	if !ok {
		return nil
	}
	group, _ := obj.(*Group)
	return group
}

// Naming returns the pods that name a PodGroup, in any phase.
func (s *Store) Naming(key types.NamespacedName) []*Pod { return s.indexed(byGroup, key.String()) }

// OwnedBy returns the pods of a namespace whose controller has the UID.
func (s *Store) OwnedBy(namespace string, controller types.UID) []*Pod {
	return slices.DeleteFunc(s.OwnedByAnywhere(controller), func(p *Pod) bool { return p.Namespace != namespace })
}

// OwnedByAnywhere returns the pods of all namespaces whose controller has the UID.
func (s *Store) OwnedByAnywhere(controller types.UID) []*Pod {
	return s.indexed(byOwner, string(controller))
}

// PodOf returns the pod with a UID, or nil.
func (s *Store) PodOf(uid types.UID) *Pod {
	for _, pod := range s.indexed(byUID, string(uid)) {
		return pod
	}
	return nil
}

func (s *Store) indexed(index, value string) (out []*Pod) {
	for _, informer := range s.pods {
		objects, _ := informer.GetIndexer().ByIndex(index, value)
		for _, obj := range objects {
			if pod, ok := obj.(*Pod); ok {
				out = append(out, pod)
			}
		}
	}
	return out
}

// Pods calls see with every pod.
func (s *Store) Pods(see func(*Pod)) {
	for _, informer := range s.pods {
		for _, obj := range informer.GetIndexer().List() {
			if pod, ok := obj.(*Pod); ok {
				see(pod)
			}
		}
	}
}

// Groups calls see with every PodGroup.
func (s *Store) Groups(see func(*Group)) {
	for _, obj := range s.groups.GetIndexer().List() {
		if group, ok := obj.(*Group); ok {
			see(group)
		}
	}
}

func groupOfPod(obj any) ([]string, error) {
	if pod, ok := obj.(*Pod); ok && pod.Group != "" {
		return []string{pod.GroupKey().String()}, nil
	}
	return nil, nil
}

func ownerOfPod(obj any) ([]string, error) {
	if pod, ok := obj.(*Pod); ok && pod.Controller != nil {
		return []string{string(pod.Controller.UID)}, nil
	}
	return nil, nil
}

func uidOfPod(obj any) ([]string, error) {
	if pod, ok := obj.(*Pod); ok {
		return []string{string(pod.UID)}, nil
	}
	return nil, nil
}

// PutPod stores a pod without a watch. For tests.
func (s *Store) PutPod(pod *corev1.Pod) {
	slim, _ := slimPod(pod)
	_ = s.pods[0].GetIndexer().Update(slim)
}

// PutGroup stores a PodGroup without a watch. For tests.
func (s *Store) PutGroup(group *Group) { _ = s.groups.GetIndexer().Update(group) }

// DropGroup removes a PodGroup. For tests.
func (s *Store) DropGroup(group *Group) { _ = s.groups.GetIndexer().Delete(group) }
