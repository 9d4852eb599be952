package proxy

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/atoll-k8s/atoll/internal/hub/cache"
	"github.com/atoll-k8s/atoll/internal/hub/identity"
	"github.com/atoll-k8s/atoll/internal/hub/inventory"
	"github.com/atoll-k8s/atoll/internal/hub/objects"
	"github.com/atoll-k8s/atoll/internal/hub/record"
	"github.com/atoll-k8s/atoll/internal/hub/uplink"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// answering is a cloud with an answer for each path.
type answering struct {
	Cloud

	node    *node
	at      map[string]runtime.Object
	offline bool
}

// RoundTrip implements Cloud.
func (a *answering) RoundTrip(r *http.Request, _ bool) (*http.Response, error) {
	if a.offline {
		return nil, uplink.ErrOffline
	}
	path := r.URL.Path
	if r.Method == http.MethodPost {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		path += " " + string(body)
	}
	answer := &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {a.node.format.ContentType()}}, Request: r}
	object := a.at[path]
	if object == nil {
		answer.StatusCode, object = http.StatusNotFound, &metav1.Status{}
	}
	version := schema.GroupVersion{Version: "v1"}
	switch object.(type) {
	case *authenticationv1.TokenRequest:
		version = authenticationv1.SchemeGroupVersion
	case *storagev1.VolumeAttachment, *storagev1.CSINode:
		version = storagev1.SchemeGroupVersion
	}
	var body bytes.Buffer
	if err := objects.Codecs.EncoderForVersion(a.node.info.Serializer, version).Encode(object, &body); err != nil {
		return nil, err
	}
	answer.Body = io.NopCloser(&body)
	return answer, nil
}

// pathsOf returns the paths of what is kept of the node, without the resource's version.
func (n *node) pathsOf() (paths []string) {
	for _, s := range n.Cache.Scopes() {
		parts := strings.Split(s.Key, "\n")
		path := parts[1]
		if name, is := strings.CutPrefix(parts[2], "fieldSelector=metadata.name%3D"); is {
			path += "/" + name
		}
		paths = append(paths, path)
	}
	slices.Sort(paths)
	return paths
}

// TestObjectsOfAPodAreKeptUntilThePodIsGone: these are the objects that a pod needs when the node restarts.
func TestObjectsOfAPodAreKeptUntilThePodIsGone(t *testing.T) {
	for _, format := range []wire.Format{wire.JSON, wire.Protobuf} {
		t.Run(format.String(), func(t *testing.T) {
			n := newNode(t, format)
			named := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "default", Name: name} }
			withAll := func(name string) *corev1.Pod {
				return pod(name, "1", 2, nil, func(p *corev1.Pod) {
					p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "pull-" + name}}
					p.Spec.Volumes = []corev1.Volume{
						{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "config-" + name}}}},
						{Name: "disk", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim-" + name}}},
						{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
					}
				})
			}
			const storage = "/apis/storage.k8s.io/v1"
			cloud := &answering{Cloud: n.cloud, node: n, at: map[string]runtime.Object{
				"/api/v1/nodes/a":       &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}},
				storage + "/csinodes/a": &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "a"}},
			}}
			n.Proxy.Cloud = cloud
			paths := func(name string) []string {
				const core = "/api/v1/namespaces/default"
				return []string{
					core + "/pods/" + name, core + "/secrets/pull-" + name, core + "/configmaps/config-" + name, core + "/persistentvolumeclaims/claim-" + name,
					core + "/persistentvolumeclaims/" + name + "-scratch", "/api/v1/persistentvolumes/volume-" + name, "/api/v1/namespaces/storage/secrets/stage-" + name,
					storage + "/volumeattachments/attachment-" + name,
				}
			}
			for _, name := range []string{"stays", "goes"} {
				p := paths(name)
				cloud.at[p[0]] = withAll(name)
				cloud.at[p[1]] = &corev1.Secret{ObjectMeta: named("pull-" + name)}
				cloud.at[strings.TrimSuffix(p[1], "/pull-"+name)] = &corev1.SecretList{Items: []corev1.Secret{{ObjectMeta: named("pull-" + name)}}}
				cloud.at[p[2]] = &corev1.ConfigMap{ObjectMeta: named("config-" + name)}
				cloud.at[p[3]] = &corev1.PersistentVolumeClaim{ObjectMeta: named("claim-" + name), Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "volume-" + name}}
				cloud.at[p[5]] = &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "volume-" + name}, Spec: corev1.PersistentVolumeSpec{
					PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{NodeStageSecretRef: &corev1.SecretReference{Namespace: "storage", Name: "stage-" + name}}},
				}}
				cloud.at[p[6]] = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "storage", Name: "stage-" + name}}
				cloud.at[p[7]] = &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "attachment-" + name}, Spec: storagev1.VolumeAttachmentSpec{
					Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To("volume-" + name)},
				}}
				cloud.at[tokenPath+" "+name] = &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
					BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", Name: name, UID: withAll(name).UID},
				}}
			}
			list := func(pods ...corev1.Pod) {
				cloud.at["/api/v1/pods"] = &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "2"}, Items: pods}
				n.ask(t.Context(), podsOfNode)
				n.Wait()
			}
			list(*withAll("stays"), *withAll("goes"))
			want := []string{"/api/v1/nodes/a", "/api/v1/pods", storage + "/csinodes/a"}
			n.ask(t.Context(), want[0])
			n.ask(t.Context(), want[2])
			for _, name := range []string{"stays", "goes"} {
				for _, path := range paths(name) {
					n.ask(t.Context(), path)
				}
				n.ask(t.Context(), "/api/v1/namespaces/default/secrets?fieldSelector=metadata.name%3Dpull-"+name)
				r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, tokenPath, strings.NewReader(name))
				r.Header.Set("Accept", format.ContentType())
				n.answer(httptest.NewRecorder(), r, identity.OfNode())
			}
			n.Wait()
			all := n.pathsOf()
			if wantAll := len(want) + 2*(len(paths(""))+2); len(all) != wantAll {
				t.Fatalf("kept are %d scopes, want %d: %q", len(all), wantAll, all)
			}
			retain := func(before time.Time) []string {
				if err := inventory.RetainSince(n.Record, "a", before); err != nil {
					t.Fatal(err)
				}
				n.Wait()
				return n.pathsOf()
			}
			if left := retain(time.Now().Add(time.Hour)); !slices.Equal(left, all) {
				t.Errorf("while the pods are there, left are %q of %q", left, all)
			}
			list(*withAll("stays"))
			n.Wait()
			all = slices.DeleteFunc(all, func(path string) bool { return path == paths("goes")[0] }) // at once
			if left := retain(time.Now().Add(-time.Hour)); !slices.Equal(left, all) {
				t.Errorf("of what was used just now, left are %q of %q", left, all)
			}
			cloud.offline = true // a hub that is cut off knows the pods as of before
			left := retain(time.Now().Add(time.Hour))
			want = append(append(want, paths("stays")...), "POST "+tokenPath, "/api/v1/namespaces/default/secrets/pull-stays")
			if slices.Sort(want); !slices.Equal(left, want) {
				t.Errorf("after one pod has gone, left are\n%s\nwant\n%s", strings.Join(left, "\n"), strings.Join(want, "\n"))
			}
		})
	}
}

// TestOtherCallersCannotEvictWhatTheNodeReads: neither one identity that requests more and more, nor many of
// them.
func TestOtherCallersCannotEvictWhatTheNodeReads(t *testing.T) {
	const most = 1 << 20
	n := newNodeOn(t, wire.JSON, cache.Options{MaxBytes: most, ShareOf: record.Shares(most, []string{"system:serviceaccount:kube-system:kube-proxy"})})
	n.answers(1, pod("a", "1", 1, nil))
	n.ask(t.Context(), podsOfNode)
	large := strings.Repeat("x", 100<<10)
	n.cloud.set(false, func(r *http.Request) (int, string, io.ReadCloser) {
		return http.StatusOK, "application/json", io.NopCloser(strings.NewReader(`{"kind":"ConfigMap","apiVersion":"v1","data":{"a":"` + large + `"}}`))
	})
	ask := func(name string, i int) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprint("/api/v1/namespaces/default/configmaps/", i), nil)
		n.answer(httptest.NewRecorder(), r, identity.Caller{Name: name, Token: "x"})
		n.Wait()
	}
	of := func() (node, proxy, others int) {
		for _, s := range n.Cache.Scopes() {
			switch {
			case record.IsOfNode(s.Key):
				node++
			case strings.Contains(s.Key, "kube-proxy"):
				proxy++
			default:
				others++
			}
		}
		return node, proxy, others
	}
	const kubeProxy = "subject:https://issuer#system:serviceaccount:kube-system:kube-proxy"
	ask(kubeProxy, 0)
	for i := range 30 {
		ask("subject:https://issuer#grows", i)
	}
	if node, proxy, others := of(); node != 1 || proxy != 1 || others != 2 {
		t.Errorf("beside one identity that asks for more and more, kept are %d scopes of the node, %d of kube-proxy, and %d of others", node, proxy, others)
	}
	for i := range 30 {
		ask(fmt.Sprint("subject:https://issuer#one-of-many-", i), i)
	}
	if node, proxy, others := of(); node != 1 || proxy != 1 || others < 5 || others > 9 {
		t.Errorf("beside many identities, kept are %d scopes of the node, %d of kube-proxy, and %d of others", node, proxy, others)
	}
}

// TestObjectsAreKeptForPodsOfTheNewestListOnly: a list that was read once in another format keeps no objects of
// deleted pods. ResourceClaims are removed with their pods.
func TestObjectsAreKeptForPodsOfTheNewestListOnly(t *testing.T) {
	n := newNode(t, wire.JSON)
	goes := pod("goes", "2", 2, nil, func(p *corev1.Pod) { p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "pull"}} })
	const secret, claim = "/api/v1/namespaces/default/secrets/pull", "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/gpu"
	cloud := &answering{Cloud: n.cloud, node: n, at: map[string]runtime.Object{
		secret: &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "pull"}},
		claim:  &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "gpu"}},
	}}
	n.Proxy.Cloud = cloud
	list := func(accept string, pods ...corev1.Pod) {
		cloud.at["/api/v1/pods"] = &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "2"}, Items: pods}
		n.accepting(identity.OfNode(), accept, podsOfNode)
	}
	list("application/json, */*", *goes)
	n.accepting(identity.OfNode(), "application/json", secret)
	n.accepting(identity.OfNode(), "application/json", claim)
	list("application/json")
	if err := inventory.RetainSince(n.Record, "a", time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	for _, path := range n.pathsOf() {
		if path == secret || path == claim {
			t.Errorf("%s stays", path)
		}
	}
}
