package page

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	capacity "github.com/atoll-k8s/atoll/api/capacity/v1alpha1"
	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	scheduling "github.com/atoll-k8s/atoll/api/scheduling/v1beta1"
	"github.com/atoll-k8s/atoll/internal/kubectl/read"
)

const (
	// drawInterval is the shortest time between two pictures: a person sees no more than five a second.
	drawInterval = 200 * time.Millisecond
	// pingInterval is how often it is tried whether the API server answers.
	pingInterval = 3 * time.Second
	// refusedFor is how long a refusal of a watch counts: client-go tries again within a minute.
	refusedFor = 90 * time.Second
)

// watcher keeps what the person may read.
type watcher struct {
	observed Observed
	reader   *read.Reader
	cache    cache.Cache
	// watched are the lists that are read from the cache. replicaSets and jobs are two of them.
	watched           map[client.ObjectList]client.Object
	replicaSets, jobs *metav1.PartialObjectMetadataList
	// dirty says that something has changed, refused why a watch was refused, and away why the picture may be old.
	dirty         chan struct{}
	refused, away chan string
}

// Watch watches what the person may read, and keeps the picture of a feed. It returns when ctx is done, or
// when the first lists fail. Namespaced kinds are watched in one namespace, or in all for "".
func Watch(ctx context.Context, config *rest.Config, r *read.Reader, namespace string, feed *Feed) error {
	w := &watcher{
		reader: r, dirty: make(chan struct{}, 1), refused: make(chan string), away: make(chan string), observed: Observed{Reading: true},
		replicaSets: read.MetadataOf("apps/v1", "ReplicaSetList"), jobs: read.MetadataOf("batch/v1", "JobList"),
	}
	scheme, err := read.Scheme()
	if err != nil {
		return err
	}
	options := cache.Options{Scheme: scheme, DefaultTransform: cache.TransformStripManagedFields(), DefaultWatchErrorHandler: w.watchFailed}
	if namespace != "" {
		options.DefaultNamespaces = map[string]cache.Config{namespace: {}}
	}
	if w.cache, err = cache.New(config, options); err != nil {
		return fmt.Errorf("connecting to %s: %w", config.Host, err)
	}
	prepared := make(chan error, 1)
	go w.ping(ctx, config)
	go func() { prepared <- w.prepare(ctx, namespace) }()
	for {
		if err := w.draw(ctx, feed); err != nil {
			return err
		}
		select {
		case <-time.After(drawInterval):
		case <-ctx.Done():
			return nil
		}
		select {
		case err := <-prepared:
			if err != nil {
				return err
			}
			w.observed.Reading, w.observed.Unread = false, r.Unread()
		case <-w.dirty:
		case w.observed.Away = <-w.away:
		case <-ctx.Done():
			return nil
		}
	}
}

// prepare fills the cache.
func (w *watcher) prepare(ctx context.Context, namespace string) error {
	o := &w.observed
	w.watched = map[client.ObjectList]client.Object{
		&o.Groups: &gm.NodeGroup{}, &o.Propagations: &gm.PropagationPolicy{}, &o.Pools: &apps.NodePool{}, &o.Splits: &capacity.CapacitySplit{},
		&o.PodGroups: &scheduling.PodGroup{}, &o.Nodes: &corev1.Node{}, &o.Pods: &corev1.Pod{}, w.replicaSets: objectOf(w.replicaSets), w.jobs: objectOf(w.jobs),
	}
	changed := func() {
		select {
		case w.dirty <- struct{}{}:
		default: // it is known already
		}
	}
	for list, object := range w.watched {
		of := namespace
		switch list.(type) {
		case *gm.NodeGroupList, *apps.NodePoolList, *corev1.NodeList:
			of = "" // they are in no namespace
		}
		may, err := w.reader.Serves(ctx, list, client.InNamespace(of))
		if err != nil {
			return err
		}
		if !may {
			delete(w.watched, list)
			continue
		}
		informer, err := w.cache.GetInformer(ctx, object, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watching %T: %w", object, err)
		}
		if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { changed() }, UpdateFunc: func(any, any) { changed() }, DeleteFunc: func(any) { changed() },
		}); err != nil {
			return fmt.Errorf("watching %T: %w", object, err)
		}
	}
	go func() { _ = w.cache.Start(ctx) }() // it ends with ctx, and has no other error once it runs
	if !w.cache.WaitForCacheSync(ctx) {
		return context.Cause(ctx)
	}
	return nil
}

// draw makes the picture of what the cache has.
func (w *watcher) draw(ctx context.Context, feed *Feed) error {
	o := &w.observed
	if o.Reading { // prepare has the lists
		o = &Observed{Reading: true, Away: o.Away}
	} else {
		for list := range w.watched {
			if err := w.cache.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
				return fmt.Errorf("reading what was watched: %w", err)
			}
		}
		o.Between = slices.Concat(w.replicaSets.Items, w.jobs.Items)
	}
	picture, err := Of(o)
	if err != nil {
		return err
	}
	feed.Set(picture)
	return nil
}

// watchFailed tells of a watch that is refused: what is shown of its kind gets old. All else is tried again,
// and ping notices if the API server is away.
func (w *watcher) watchFailed(ctx context.Context, _ *toolscache.Reflector, err error) {
	if !apierrors.IsForbidden(err) {
		return
	}
	select {
	case w.refused <- err.Error():
	case <-ctx.Done():
	}
}

// ping tells, whenever it changes, why what is shown may be old: the API server does not answer, or it has refused a
// watch within refusedFor; "" if neither.
func (w *watcher) ping(ctx context.Context, config *rest.Config) {
	config = rest.CopyConfig(config)
	config.Timeout = pingInterval
	server, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return // the cache could not be made either
	}
	last, refusal, refusedAt := "", "", time.Time{}
	for {
		now := ""
		if time.Since(refusedAt) < refusedFor {
			now = refusal
		}
		if _, err := server.ServerVersion(); err != nil {
			now = "the API server does not answer: " + err.Error()
		}
		if now != last {
			select {
			case w.away <- now:
				last = now
			case <-ctx.Done():
				return
			}
		}
		select {
		case <-time.After(pingInterval):
		case refusal = <-w.refused:
			refusedAt = time.Now()
		case <-ctx.Done():
			return
		}
	}
}

func objectOf(list *metav1.PartialObjectMetadataList) *metav1.PartialObjectMetadata {
	object := &metav1.PartialObjectMetadata{}
	object.APIVersion, object.Kind = list.APIVersion, strings.TrimSuffix(list.Kind, "List")
	return object
}
