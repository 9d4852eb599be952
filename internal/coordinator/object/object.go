// Package object reads uploaded objects: whether one is what it is said to be, and an API server can read it
// from etcd and show it. One value that cannot be shown makes every list of its kind fail. It is pure.
package object

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/governance"
	"github.com/atoll-k8s/atoll/internal/machinery/budget"
)

// codecs read the objects as an API server reads those that it has stored.
var codecs = func() serializer.CodecFactory {
	scheme := runtime.NewScheme()
	utilruntime.Must(corev1.AddToScheme(scheme))
	utilruntime.Must(coordinationv1.AddToScheme(scheme))
	utilruntime.Must(discoveryv1.AddToScheme(scheme))
	utilruntime.Must(apps.AddToScheme(scheme))
	return serializer.NewCodecFactory(scheme)
}()

const (
	// maxMemory bounds what an object takes in the memory of an API server, in bytes. A megabyte on the wire may be a
	// hundred times that.
	maxMemory = 8 << 20
	// maxNames bounds what a pod names.
	maxNames = 256
	// maxUID bounds a UID, in bytes. Those of an API server have 36.
	maxUID = 128
)

// protobufPrefix begins an object in protobuf; one in JSON begins with a brace.
var protobufPrefix = []byte("k8s\x00")

// Object is what has to be known of an uploaded object.
type Object struct {
	UID     string
	Version uint64
	// Memory is about what it takes in the memory of an API server, in bytes.
	Memory int64
	// NodeName is the node that a pod is bound to.
	NodeName string
	// Names are the ConfigMaps, the Secrets and the ServiceAccount that a pod names, each once, in order.
	Names []governance.Ref
}

// Read reads an object that is uploaded as ref. It has its apiVersion and kind, in JSON or protobuf.
func Read(ref governance.Ref, body []byte) (*Object, error) {
	if err := ref.Validate(); err != nil {
		return nil, err
	}
	if !bytes.HasPrefix(body, []byte("{")) && !bytes.HasPrefix(body, protobufPrefix) {
		return nil, fmt.Errorf("%s is neither JSON nor protobuf", ref)
	}
	decoded, gvk, err := codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", ref, told(ref, err))
	}
	kind, _ := governance.KindOf(ref.Resource)
	if want := schema.FromAPIVersionAndKind(kind.APIVersion, kind.Kind); *gvk != want {
		return nil, fmt.Errorf("%s is a %s of %s, not a %s of %s", ref, gvk.Kind, gvk.GroupVersion(), want.Kind, want.GroupVersion())
	}
	size := budget.SizeOf(decoded)
	if _, is := decoded.(*apps.NodePool); is { // which an API server reads without knowing its type, with all fields
		whole, _, err := unstructured.UnstructuredJSONScheme.Decode(body, nil, nil)
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", ref, err)
		}
		if _, is := whole.(*unstructured.Unstructured); !is {
			return nil, fmt.Errorf("%s has items: an API server could read a list", ref)
		}
		size = max(size, budget.SizeOf(whole))
	}
	if size > maxMemory {
		return nil, fmt.Errorf("%s takes %d bytes of memory, more than %d", ref, size, maxMemory)
	}
	// Protobuf can carry what JSON cannot.
	text, err := json.Marshal(decoded)
	if err == nil {
		_, _, err = codecs.UniversalDeserializer().Decode(text, nil, nil)
	}
	if err != nil {
		return nil, fmt.Errorf("%s cannot be shown: %w", ref, told(ref, err))
	}
	if node, is := decoded.(*corev1.Node); is && node.Status.DaemonEndpoints.KubeletEndpoint.Port != governance.HubPort {
		return nil, fmt.Errorf("%s has the port %d for its kubelet, which its hub does not have", ref, node.Status.DaemonEndpoints.KubeletEndpoint.Port)
	}
	m, err := meta.Accessor(decoded)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", ref, err)
	}
	if m.GetName() != ref.Name || m.GetNamespace() != ref.Namespace {
		return nil, fmt.Errorf("%s has the name %q and the namespace %q", ref, m.GetName(), m.GetNamespace())
	}
	if len(m.GetUID()) == 0 || len(m.GetUID()) > maxUID || !utf8.ValidString(string(m.GetUID())) {
		return nil, fmt.Errorf("%s: metadata.uid: must have 1 to %d bytes", ref, maxUID)
	}
	version, err := governance.Version(m.GetResourceVersion())
	if err != nil {
		return nil, fmt.Errorf("%s: metadata.%w", ref, err)
	}
	o := &Object{UID: string(m.GetUID()), Version: version, Memory: size}
	if pod, is := decoded.(*corev1.Pod); is {
		o.NodeName, o.Names = pod.Spec.NodeName, named(pod)
	}
	if len(o.Names) > maxNames {
		return nil, fmt.Errorf("%s names %d ConfigMaps and Secrets, more than %d", ref, len(o.Names), maxNames)
	}
	return o, nil
}

// errUntold stands for why a Secret cannot be decoded.
var errUntold = errors.New("it is not told why, because that could tell what is in it")

// told returns the error of a decoder, which may quote what it has read, for logs and answers.
func told(ref governance.Ref, err error) error {
	if ref.Resource == governance.Secrets {
		return errUntold
	}
	return err
}

// named returns what a pod names.
func named(pod *corev1.Pod) []governance.Ref {
	var names []governance.Ref
	add := func(resource, name string) {
		ref := governance.Ref{Resource: resource, Namespace: pod.Namespace, Name: name}
		if ref.Validate() == nil {
			names = append(names, ref)
		}
	}
	account := pod.Spec.ServiceAccountName
	if account == "" {
		account = "default"
	}
	add("serviceaccounts", account)
	for _, secret := range pod.Spec.ImagePullSecrets {
		add(governance.Secrets, secret.Name)
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.ConfigMap != nil {
			add("configmaps", v.ConfigMap.Name)
		}
		if v.Secret != nil {
			add(governance.Secrets, v.Secret.SecretName)
		}
		if v.Projected == nil {
			continue
		}
		for i := range v.Projected.Sources {
			if source := v.Projected.Sources[i].ConfigMap; source != nil {
				add("configmaps", source.Name)
			}
			if source := v.Projected.Sources[i].Secret; source != nil {
				add(governance.Secrets, source.Name)
			}
		}
	}
	ofContainer := func(env []corev1.EnvVar, from []corev1.EnvFromSource) {
		for i := range env {
			if value := env[i].ValueFrom; value != nil && value.ConfigMapKeyRef != nil {
				add("configmaps", value.ConfigMapKeyRef.Name)
			}
			if value := env[i].ValueFrom; value != nil && value.SecretKeyRef != nil {
				add(governance.Secrets, value.SecretKeyRef.Name)
			}
		}
		for i := range from {
			if from[i].ConfigMapRef != nil {
				add("configmaps", from[i].ConfigMapRef.Name)
			}
			if from[i].SecretRef != nil {
				add(governance.Secrets, from[i].SecretRef.Name)
			}
		}
	}
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			ofContainer(containers[i].Env, containers[i].EnvFrom)
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		ofContainer(pod.Spec.EphemeralContainers[i].Env, pod.Spec.EphemeralContainers[i].EnvFrom)
	}
	slices.SortFunc(names, governance.Ref.Compare)
	return slices.Compact(names)
}
