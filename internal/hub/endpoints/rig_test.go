package endpoints

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-k8s/atoll/internal/hub/filter"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

const proxyUser = "system:serviceaccount:kube-system:kube-proxy"

var formats = []wire.Format{wire.JSON, wire.Protobuf}

// failing is a test, or a property that is checked.
type failing interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
}

var scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, discoveryv1.AddToScheme} {
		if err := add(s); err != nil {
			panic(err)
		}
	}
	return s
}()

// encode encodes an object as the API server does.
func encode(t failing, format wire.Format, object runtime.Object) []byte {
	t.Helper()
	var text bytes.Buffer
	info, _ := runtime.SerializerInfoForMediaType(serializer.NewCodecFactory(scheme).SupportedMediaTypes(), format.ContentType())
	if err := info.Serializer.Encode(object, &text); err != nil {
		t.Fatal(err)
	}
	return bytes.TrimSuffix(text.Bytes(), []byte("\n"))
}

// decode decodes an object in the object form.
func decode(t failing, format wire.Format, object []byte, into runtime.Object) {
	t.Helper()
	info, _ := runtime.SerializerInfoForMediaType(serializer.NewCodecFactory(scheme).SupportedMediaTypes(), format.ContentType())
	if _, _, err := info.Serializer.Decode(object, nil, into); err != nil {
		t.Fatalf("%v: %q", err, object)
	}
}

// rig is a filter of the node a, and a session of each kind.
type rig struct {
	failing
	*Filter

	format wire.Format
}

func newRig(t failing, format wire.Format) *rig {
	return &rig{t, New(Options{NodeName: "a", Clients: []string{proxyUser}, Save: func([]byte) error { return nil }, Log: logr.Discard()}), format}
}

// in puts the node into a zone and a pool with members; "" is none.
func (r *rig) in(zone, pool string, members ...string) *rig {
	labels := map[string]string{}
	if zone != "" {
		labels[corev1.LabelTopologyZone] = zone
	}
	if pool != "" {
		labels[poolLabel] = pool
	}
	node := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"}, ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: labels}}
	r.put(&nodeReceiver{r.Filter}, node)
	if members != nil {
		text, err := json.Marshal(map[string]any{"status": map[string]any{"nodes": members}})
		if err != nil {
			r.Fatal(err)
		}
		(&poolReceiver{r.Filter, pool}).Put(wire.JSON, &wire.Meta{Name: pool}, text)
	}
	return r
}

// topology gives the Service web an annotation.
func (r *rig) topology(value string) *rig {
	r.put(&serviceReceiver{r.Filter}, serviceWith("web", value))
	return r
}

func serviceWith(name, topology string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"}, ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: name, ResourceVersion: "1", Annotations: map[string]string{TopologyAnnotation: topology},
	}}
}

func (r *rig) put(to filter.Receiver, object runtime.Object) {
	r.Helper()
	raw := encode(r, wire.JSON, object)
	m, err := wire.JSON.Meta(raw)
	if err != nil {
		r.Fatal(err)
	}
	to.Put(wire.JSON, &m, raw)
}

// session returns one of kube-proxy.
func (r *rig) session(resource string) filter.Session {
	group := ""
	if resource == "endpointslices" {
		group = "discovery.k8s.io"
	}
	return r.Session(proxyUser, group, "v1", resource)
}

// through returns an object as a client gets it, in the object form and as an item.
func (r *rig) through(s filter.Session, object, into runtime.Object) (form []byte) {
	r.Helper()
	raw := encode(r, r.format, object)
	m, err := r.format.Meta(raw)
	if err != nil {
		r.Fatal(err)
	}
	s.Learn(r.format, &m, raw)
	form = s.Form(r.format, &m, raw)
	decode(r, r.format, form, into)
	item, err := r.format.ItemOf(raw, false)
	if err != nil {
		r.Fatal(err)
	}
	item = s.Form(r.format, &m, bytes.Clone(item))
	if want, err := r.format.ItemOf(form, false); err != nil || !bytes.Equal(item, want) {
		r.Errorf("in %s the item form is %q, %v, and the object form %q", r.format, item, err, want)
	}
	return form
}

// at is an endpoint: node/zone/pod=address, with ! if it is not ready. What is left out is not set.
func at(text string) discoveryv1.Endpoint {
	text, notReady := strings.CutPrefix(text, "!")
	place, address, _ := strings.Cut(text, "=")
	e := discoveryv1.Endpoint{Addresses: []string{address}}
	parts := append(strings.Split(place, "/"), "", "")
	if parts[0] != "" {
		e.NodeName = &parts[0]
	}
	if parts[1] != "" {
		e.Zone = &parts[1]
	}
	if parts[2] != "" {
		e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: parts[2], UID: types.UID(parts[2])}
	}
	ready := !notReady
	e.Conditions.Ready = &ready
	return e
}

func sliceOf(name string, list ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		TypeMeta:    metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name, ResourceVersion: "7", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Port: new(int32(80))}},
	}
	for _, text := range list {
		s.Endpoints = append(s.Endpoints, at(text))
	}
	return s
}

// oldEndpoints and oldSubset are deprecated, and clients ask for them.
type (
	oldEndpoints = corev1.Endpoints      //nolint:staticcheck // as above
	oldSubset    = corev1.EndpointSubset //nolint:staticcheck // as above
)

func endpointsOf(list ...string) *oldEndpoints {
	e := &oldEndpoints{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Endpoints"}, ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", ResourceVersion: "7"}}
	subset := oldSubset{Ports: []corev1.EndpointPort{{Port: 80}}}
	for _, text := range list {
		one := at(text)
		address := corev1.EndpointAddress{IP: one.Addresses[0], NodeName: one.NodeName, TargetRef: one.TargetRef}
		if *one.Conditions.Ready {
			subset.Addresses = append(subset.Addresses, address)
		} else {
			subset.NotReadyAddresses = append(subset.NotReadyAddresses, address)
		}
	}
	e.Subsets = []oldSubset{subset}
	return e
}

// addresses returns those of a slice.
func addresses(s *discoveryv1.EndpointSlice) (list []string) {
	for _, e := range s.Endpoints {
		list = append(list, e.Addresses...)
	}
	slices.Sort(list)
	return list
}

// addressesOf returns those of Endpoints.
func addressesOf(e *oldEndpoints) (list []string) {
	for _, subset := range e.Subsets {
		for _, a := range slices.Concat(subset.Addresses, subset.NotReadyAddresses) {
			list = append(list, a.IP)
		}
	}
	slices.Sort(list)
	return list
}
