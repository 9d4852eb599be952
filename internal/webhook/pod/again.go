package pod

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/assign"
	"github.com/atoll-k8s/atoll/internal/domain/capacity"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/domain/placement"
)

// The API server shows a pod again that another webhook changed after us. It has
// its seat and its overrides, and neither can be given twice. Any replica may be
// asked, one that leads since a moment ago too, so the pod carries the proof itself.

// proofTTL is how long a pod is known again: longer than an admission can take.
const proofTTL = 30 * time.Second

// prove marks a pod that got what it gets once, so that it is known if it comes again.
func (w *Webhook) prove(pod *corev1.Pod, namespace string) {
	stamps := []string{
		pod.Annotations[gm.SeatAnnotation], pod.Annotations[gm.AdmissionAnnotation], pod.Labels[gm.CapacityClassLabel], pod.Annotations[gm.CapacityReasonAnnotation],
	}
	if !slices.ContainsFunc(stamps, func(stamp string) bool { return stamp != "" }) {
		return
	}
	key := w.Key()
	if key == nil {
		return
	}
	until := strconv.FormatInt(w.Clock.Now().Add(proofTTL).Unix(), 36)
	pod.Annotations[gm.AdmittedAnnotation] = until + "." + proof(key, pod, namespace, until)
}

// seenBefore tells whether a pod is one that prove has marked a moment ago. A
// template that carries our stamps was never given them, and those of another
// owner's pod, or for another group, prove nothing.
func (w *Webhook) seenBefore(pod *corev1.Pod, namespace string) bool {
	until, mac, ok := strings.Cut(pod.Annotations[gm.AdmittedAnnotation], ".")
	if !ok {
		return false
	}
	seconds, err := strconv.ParseInt(until, 36, 64)
	key := w.Key()
	if err != nil || key == nil || w.Clock.Now().After(time.Unix(seconds, 0)) {
		return false
	}
	return hmac.Equal([]byte(mac), []byte(proof(key, pod, namespace, until)))
}

// proof is the code of all that only we write on a pod that is being created.
func proof(key []byte, pod *corev1.Pod, namespace, until string) string {
	var owner types.UID
	for _, o := range pod.OwnerReferences {
		if o.Controller != nil && *o.Controller {
			owner = o.UID
		}
	}
	said, _ := json.Marshal([]string{ // strings always encode
		until, namespace, string(owner), pod.Labels[gm.NodeGroupLabel], pod.Labels[gm.CapacityClassLabel],
		pod.Annotations[gm.SeatAnnotation], pod.Annotations[gm.AdmissionAnnotation], pod.Annotations[gm.OriginalImagesAnnotation],
		pod.Annotations[gm.OverridesAnnotation], pod.Annotations[gm.CreatedForAnnotation], pod.Annotations[gm.UnassignedAnnotation],
		pod.Annotations[gm.CapacityReasonAnnotation],
	})
	mac := hmac.New(sha256.New, key)
	_, _ = mac.Write(said)
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil)[:16])
}

// again makes a pod that was seen before whole: others may have taken the group's
// node affinity away from it, added containers, or given it images.
func (w *Webhook) again(ctx context.Context, pod *corev1.Pod, object *ownership.Object) {
	if class := capacity.ParseClass(pod.Labels[gm.CapacityClassLabel]); class != capacity.None && w.Policies.Classes() != nil {
		w.Policies.Classes().Restrict(&pod.Spec, class)
	}
	group := pod.Labels[gm.NodeGroupLabel]
	if pod.Annotations[gm.SeatAnnotation] == "" || group == "" {
		return
	}
	if !placement.Pinned(&pod.Spec, gm.NodeGroupLabel, group) {
		placement.Repin(&pod.Spec, gm.NodeGroupLabel, group, w.Policies.Newcomers(ctx, group)...)
	}
	a, err := w.Policies.Prospect(ctx, object, w.Walker.Revision(object.Controller, pod.Labels))
	if err != nil {
		return
	}
	creation, err := w.Policies.Creation(ctx, a)
	if err != nil || creation.Rules == nil {
		return
	}
	if assign.Rebase(pod, creation, group) == nil {
		_ = assign.DressImages(pod, creation, group) // else the controllers look again, and tell of it
	}
	w.prove(pod, object.Namespace) // what images start from may have changed
}
