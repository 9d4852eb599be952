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

// The API server calls the webhook a second time for a pod that another webhook changed
// after the first call. The pod then has its seat and its overrides, and must not get
// them twice. The second call may reach any replica, also one that has just started to
// lead, so the pod carries a signed proof of the first call.

// proofTTL is how long a proof is valid. It is longer than an admission can take.
const proofTTL = 30 * time.Second

// prove adds the proof to a pod that has a seat, an admission, a capacity class or the
// reason for it, or that names its node.
func (w *Webhook) prove(pod *corev1.Pod, namespace string) {
	stamps := []string{
		pod.Annotations[gm.SeatAnnotation], pod.Annotations[gm.AdmissionAnnotation], pod.Labels[gm.CapacityClassLabel], pod.Annotations[gm.CapacityReasonAnnotation],
		pod.Annotations[gm.NamesNodeAnnotation],
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

// seenBefore returns true if the pod carries a valid proof. Annotations that a template
// sets, or that were copied from a pod of another owner or group, are no valid proof.
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

// proof returns the HMAC of the namespace, the owner, and all labels and annotations that
// only the webhook may write on a new pod.
func proof(key []byte, pod *corev1.Pod, namespace, until string) string {
	var owner types.UID
	for _, o := range pod.OwnerReferences {
		if o.Controller != nil && *o.Controller {
			owner = o.UID
		}
	}
	message, _ := json.Marshal([]string{ // a list of strings can always be encoded
		until, namespace, string(owner), pod.Labels[gm.NodeGroupLabel], pod.Labels[gm.CapacityClassLabel],
		pod.Annotations[gm.SeatAnnotation], pod.Annotations[gm.AdmissionAnnotation], pod.Annotations[gm.OriginalImagesAnnotation],
		pod.Annotations[gm.OverridesAnnotation], pod.Annotations[gm.CreatedForAnnotation], pod.Annotations[gm.UnassignedAnnotation],
		pod.Annotations[gm.CapacityReasonAnnotation], pod.Annotations[gm.NamesNodeAnnotation],
	})
	mac := hmac.New(sha256.New, key)
	_, _ = mac.Write(message)
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil)[:16])
}

// restore repairs a pod that was seen before. Another webhook may have removed the node
// affinity of the group or the class, added containers, or changed images.
func (w *Webhook) restore(ctx context.Context, pod *corev1.Pod, object *ownership.Object) {
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
	chain, err := w.Walker.Chain(ctx, object)
	if err != nil {
		return
	}
	a, err := w.Policies.AssignmentOnceBound(ctx, chain, w.Walker.Revision(object.Controller, pod.Labels))
	if err != nil {
		return
	}
	creation, err := w.Policies.Creation(ctx, a)
	if err != nil || creation.Rules == nil {
		return
	}
	if assign.RecordImages(pod, creation, group) == nil {
		_ = assign.OverrideImages(pod, creation, group) // on an error the controllers try again and report it
	}
	w.prove(pod, object.Namespace) // the original images, which the proof covers, may have changed
}
