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

// gangPatience bounds the search for the owner that has a pod's PodGroup. Caches answer
// at once; where an owner has to be read and that takes longer, the controller writes
// the name later.
const gangPatience = 300 * time.Millisecond

// Gangs says to which PodGroup a new pod belongs.
type Gangs struct {
	Resolver *gangs.Resolver
	Store    *gangs.Store
}

// nameGroup writes the name of its PodGroup into a pod whose scheduler wants one. The
// pod's own UID is not known yet: where the pod itself is to have the PodGroup, the
// controller names it.
func (w *Webhook) nameGroup(ctx context.Context, pod *corev1.Pod, namespace string) {
	g := w.Gangs
	if g == nil || !g.Resolver.Handles(pod) || g.Resolver.Levels() == nil || !g.Store.Served() || !w.Walker.HasSynced() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, gangPatience)
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

// fits tells whether an annotation may be added: the API server refuses a pod that has
// more of them than it takes.
func fits(annotations map[string]string, key, value string) bool {
	size := len(key) + len(value)
	for k, v := range annotations {
		size += len(k) + len(v)
	}
	return size <= validation.TotalAnnotationSizeLimitB
}
