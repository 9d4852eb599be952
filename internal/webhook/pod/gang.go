package pod

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	"sigs.k8s.io/controller-runtime/pkg/log"

	scheduling "github.com/atoll-k8s/atoll/api/scheduling/v1beta1"
	"github.com/atoll-k8s/atoll/internal/assign"
	"github.com/atoll-k8s/atoll/internal/gangs"
)

// gangTimeout bounds the search for the owner that gets a pod's PodGroup. Caches answer
// at once. If an owner has to be read from the API server and that takes longer, the
// PodGroup controller writes the name later.
const gangTimeout = 300 * time.Millisecond

// Gangs finds the PodGroup of a new pod.
type Gangs struct {
	Resolver *gangs.Resolver
	Store    *gangs.Store
}

// nameGroup writes the name of its PodGroup into a pod of a gang scheduler. If the pod
// itself gets the PodGroup, the controller writes the name later, because the name
// contains the UID of the pod, which it does not have yet.
func (w *Webhook) nameGroup(ctx context.Context, pod *corev1.Pod, namespace string) {
	g := w.Gangs
	if g == nil || !g.Resolver.Handles(pod) || g.Resolver.Levels() == nil || !g.Store.Served() || !w.Walker.HasSynced() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, gangTimeout)
	defer cancel()
	choice, err := g.Resolver.Choose(ctx, objectOf(pod, namespace))
	if err != nil {
		log.FromContext(ctx).V(2).Info("Pod admitted without the name of its PodGroup", "why", err.Error())
		return
	}
	if choice.Index > 0 && fits(pod.Annotations, scheduling.GroupNameAnnotation, choice.Name()) {
		assign.Annotate(&pod.ObjectMeta, scheduling.GroupNameAnnotation, choice.Name())
	}
}

// fits returns true if the annotation can be added without exceeding the API server's
// limit for the size of all annotations together.
func fits(annotations map[string]string, key, value string) bool {
	size := len(key) + len(value)
	for k, v := range annotations {
		size += len(k) + len(v)
	}
	return size <= validation.TotalAnnotationSizeLimitB
}
