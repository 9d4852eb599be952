package object

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/atoll-k8s/atoll/internal/governance"
)

var webRef = governance.Ref{Resource: "pods", Namespace: "default", Name: "web-0"}

func web() *corev1.Pod {
	fromSettings := corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "env-from"}}
	fromSecret := corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "secret-env-from"}}
	secretKey := &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "secret-env"}}}
	key := &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "env"}}}
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-0", UID: "1", ResourceVersion: "7"},
		Spec: corev1.PodSpec{
			NodeName: "edge-1", ServiceAccountName: "builder", ImagePullSecrets: []corev1.LocalObjectReference{{Name: "registry"}},
			Volumes: []corev1.Volume{
				{Name: "a", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "volume"}}}},
				{Name: "b", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
					{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "projected"}}},
					{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "secret-projected"}}},
				}}}},
				{Name: "c", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "secret-volume"}}},
			},
			InitContainers: []corev1.Container{{Name: "init", Env: []corev1.EnvVar{{Name: "A", ValueFrom: key}, {Name: "B", ValueFrom: secretKey}}}},
			Containers:     []corev1.Container{{Name: "c", Env: []corev1.EnvVar{{Name: "A", ValueFrom: key}}, EnvFrom: []corev1.EnvFromSource{{ConfigMapRef: &fromSettings}, {SecretRef: &fromSecret}}}},
			EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
				Name: "debug", EnvFrom: []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "../odd"}}}},
			}}},
		},
	}
}

func asJSON(t *testing.T, object any) []byte {
	t.Helper()
	body, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

func asProtobuf(t *testing.T, object runtime.Object) []byte {
	t.Helper()
	var body bytes.Buffer
	if err := protobuf.NewSerializer(nil, nil).Encode(object, &body); err != nil {
		t.Fatal(err)
	}
	return body.Bytes()
}

func TestReadPodFindsTheObjectsThatItNames(t *testing.T) {
	names := func(resource string, names ...string) (refs []governance.Ref) {
		for _, name := range names {
			refs = append(refs, governance.Ref{Resource: resource, Namespace: "default", Name: name})
		}
		return refs
	}
	want := &Object{
		UID: "1", Version: 7, NodeName: "edge-1",
		Names: slices.Concat(
			names("serviceaccounts", "builder"), names("configmaps", "env", "env-from", "projected", "volume"),
			names("secrets", "registry", "secret-env", "secret-env-from", "secret-projected", "secret-volume")),
	}
	for name, body := range map[string][]byte{"JSON": asJSON(t, web()), "protobuf": asProtobuf(t, web())} {
		got, err := Read(webRef, body)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got.Memory > 1000 {
			got.Memory = 0 // about what it takes
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestReadRefusesInvalidObjects(t *testing.T) {
	changed := func(change func(*corev1.Pod)) []byte {
		pod := web()
		change(pod)
		return asJSON(t, pod)
	}
	inProtobuf := func(change func(*corev1.Pod)) []byte {
		pod := web()
		change(pod)
		return asProtobuf(t, pod)
	}
	protobufPod := asProtobuf(t, web())
	for name, tc := range map[string]struct {
		ref  governance.Ref
		body []byte
		says string
	}{
		"nothing":                  {webRef, nil, "neither JSON nor protobuf"},
		"YAML":                     {webRef, []byte("apiVersion: v1\nkind: Pod\n"), "neither JSON nor protobuf"},
		"an item of a list":        {webRef, changed(func(p *corev1.Pod) { p.TypeMeta = metav1.TypeMeta{} }), "'Kind' is missing"},
		"half of it":               {webRef, changed(func(*corev1.Pod) {})[:100], "reading pods/default/web-0"},
		"half of it in protobuf":   {webRef, protobufPod[:len(protobufPod)/2], "reading pods/default/web-0"},
		"more behind it":           {webRef, append(changed(func(*corev1.Pod) {}), '{'), "reading pods/default/web-0"},
		"another kind":             {webRef, asJSON(t, &coordinationv1.Lease{TypeMeta: metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"}}), "is a Lease of coordination.k8s.io/v1, not a Pod of v1"},
		"a list":                   {webRef, asJSON(t, &corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}), "is a PodList of v1"},
		"a kind that is not known": {webRef, []byte(`{"apiVersion":"apps/v1","kind":"Deployment"}`), "no kind"},
		"another name":             {webRef, changed(func(p *corev1.Pod) { p.Name = "web-1" }), `has the name "web-1"`},
		"another namespace":        {webRef, changed(func(p *corev1.Pod) { p.Namespace = "other" }), `the namespace "other"`},
		"no uid":                   {webRef, changed(func(p *corev1.Pod) { p.UID = "" }), "metadata.uid: must have 1 to 128 bytes"},
		"a long uid": {webRef, changed(func(p *corev1.Pod) {
			p.UID = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
		}), "metadata.uid: must have 1 to 128 bytes"},
		"no version":         {webRef, changed(func(p *corev1.Pod) { p.ResourceVersion = "" }), `metadata.resourceVersion: ""`},
		"an invalid version": {webRef, changed(func(p *corev1.Pod) { p.ResourceVersion = "-1" }), `metadata.resourceVersion: "-1"`},
		"a field's owner that JSON cannot have": {webRef, inProtobuf(func(p *corev1.Pod) {
			p.ManagedFields = []metav1.ManagedFieldsEntry{{FieldsV1: metav1.NewFieldsV1("{")}}
		}), "cannot be shown"},
		"a port that is neither number nor name": {webRef, inProtobuf(func(p *corev1.Pod) {
			p.Spec.Containers[0].LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.IntOrString{Type: 7}}}}
		}), "cannot be shown"},
		"a year that no client reads": {webRef, inProtobuf(func(p *corev1.Pod) {
			p.CreationTimestamp = metav1.Date(12026, 1, 1, 0, 0, 0, 0, time.UTC)
		}), "cannot be shown"},
		"very many empty containers": {webRef, inProtobuf(func(p *corev1.Pod) { p.Spec.Containers = make([]corev1.Container, 50000) }), "of memory"},
		"very many ConfigMaps": {webRef, inProtobuf(func(p *corev1.Pod) {
			for i := range maxNames + 1 {
				p.Spec.Containers[0].EnvFrom = append(p.Spec.Containers[0].EnvFrom, corev1.EnvFromSource{
					ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: fmt.Sprint("c-", i)}},
				})
			}
		}), "more than 256"},
		"a field of another type": {webRef, []byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web-0","namespace":"default","uid":"1","resourceVersion":"7"},"spec":{"containers":7}}`), "reading pods/default/web-0"},
		"a name that is a path":   {governance.Ref{Resource: "pods", Namespace: "default", Name: "../a"}, changed(func(*corev1.Pod) {}), "is not the name of an object"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Read(tc.ref, tc.body); err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("Read says %v, want %q", err, tc.says)
			}
		})
	}
}

// TestErrorsContainNothingOfASecret: decoders quote what they cannot read, and their errors are logged.
func TestErrorsContainNothingOfASecret(t *testing.T) {
	ref := governance.Ref{Resource: "secrets", Namespace: "default", Name: "tls"}
	good := &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "tls", UID: "1", ResourceVersion: "7"}, Data: map[string][]byte{"key": []byte("password")},
	}
	for _, body := range [][]byte{asJSON(t, good), asProtobuf(t, good)} {
		if got, err := Read(ref, body); err != nil || got.Version != 7 {
			t.Errorf("a Secret is %+v, %v", got, err)
		}
	}
	for name, body := range map[string]string{
		"no kind":            `{"apiVersion":"v1","data":{"key":"password"}}`,
		"no version":         `{"kind":"Secret","data":{"key":"password"}}`,
		"no base64":          `{"apiVersion":"v1","kind":"Secret","data":{"key":"pass word"}}`,
		"another type":       `{"apiVersion":"v1","kind":"Secret","data":"password"}`,
		"a time":             `{"apiVersion":"v1","kind":"Secret","metadata":{"creationTimestamp":"password"}}`,
		"no JSON":            `{"apiVersion":"v1","kind":"Secret","data":{"key":password}}`,
		"another kind":       `{"apiVersion":"v1","kind":"Password","data":{}}`,
		"half of it, binary": string(asProtobuf(t, good)[:60]),
	} {
		_, err := Read(ref, []byte(body))
		if err == nil {
			t.Errorf("%s: it is read", name)
		} else if text := strings.ToLower(err.Error()); strings.Contains(text, "pass") || strings.Contains(text, "cgfzc") || !strings.Contains(text, "secrets/default/tls") {
			t.Errorf("%s: the error is %v", name, err)
		}
	}
}

// FuzzRead: no uploaded body causes a panic.
func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"v1","kind":"Pod"}`))
	f.Add([]byte("k8s\x00\n\t\n\x02v1\x12\x03Pod"))
	f.Fuzz(func(_ *testing.T, body []byte) { _, _ = Read(webRef, body) })
}

// TestReadNodePool: unknown fields are accepted. Fields that the API server could not read are refused.
func TestReadNodePool(t *testing.T) {
	ref := governance.Ref{Resource: "nodepools", Name: "edge"}
	body := func(rest string) []byte {
		return []byte(`{"apiVersion":"apps.openyurt.io/v1alpha1","kind":"NodePool","metadata":{"name":"edge","uid":"1","resourceVersion":"7"}` + rest + `}`)
	}
	if got, err := Read(ref, body(`,"spec":{"type":"Edge","later":1},"status":{"readyNode":3}`)); err != nil || got.UID != "1" || got.Version != 7 {
		t.Errorf("the object is %+v, %v", got, err)
	}
	protobuf, err := (&runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "apps.openyurt.io/v1alpha1", Kind: "NodePool"}, Raw: []byte{10, 0}}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		body []byte
		says string
	}{
		"another type":            {body(`,"spec":{"labels":7}`), "reading nodepools/edge"},
		"a number without a type": {body(`,"later":1e999`), "reading nodepools/edge"},
		"a list":                  {body(`,"items":[]`), "has items"},
		"very many fields":        {body(`,"later":[` + strings.Repeat(`{"a":0},`, 120_000) + `{}]`), "of memory"},
		"protobuf":                {append([]byte("k8s\x00"), protobuf...), "reading nodepools/edge"},
		"another version":         {bytes.Replace(body(""), []byte("v1alpha1"), []byte("v1beta1"), 1), "reading nodepools/edge"},
		"another kind":            {bytes.Replace(body(""), []byte("NodePool"), []byte("YurtCoordinator"), 1), "not a NodePool"},
	} {
		if _, err := Read(ref, tc.body); err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: Read says %v, want %q", name, err, tc.says)
		}
	}
}

func TestReadAcceptsObjectsOfThePool(t *testing.T) {
	meta := metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "1", ResourceVersion: "7"}
	for resource, object := range map[string]runtime.Object{
		"services":       &corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: meta, Spec: corev1.ServiceSpec{ClusterIP: "10.0.0.1"}},
		"endpointslices": &discoveryv1.EndpointSlice{TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}, ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4},
		"namespaces":     &corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "1", ResourceVersion: "7"}},
	} {
		ref := governance.Ref{Resource: resource, Namespace: "default", Name: "web"}
		if resource == "namespaces" {
			ref.Namespace = ""
		}
		for _, body := range [][]byte{asJSON(t, object), asProtobuf(t, object)} {
			if got, err := Read(ref, body); err != nil || got.UID != "1" || got.Version != 7 {
				t.Errorf("%s: the object is %+v, %v", ref, got, err)
			}
		}
	}
}
