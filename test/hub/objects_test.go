package hub

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// many is how many objects of each kind are compared, and manyLabel is on all of them.
const many, manyLabel = 200, "many"

// texts are values that are written in more than one way, or look like something else.
var texts = []string{
	"", "plain", `"double" and 'single'`, "two\nlines\n", "a tab\tand a \\", "ünïcödé 你好 🏝 ", "<b>&amp;</b>", "\u2028 and \u0085", "007", "1e3", "0x1F", "yes", "null", "~",
	" spaces ", "# no comment", "a: b", "- item", "{}", "[1, 2]", "%s", "2026-01-01", strings.Repeat("long ", 100), strings.Repeat("no-space", 40),
}

// variation makes objects whose fields differ, the same ones each time.
type variation struct{ *rand.Rand }

func pick[T any](v variation, from ...T) T { return from[v.IntN(len(from))] }

func (v variation) text() string { return pick(v, texts...) }

func (v variation) bytes() []byte {
	all := make([]byte, v.IntN(100))
	for i := range all {
		all[i] = byte(v.IntN(256))
	}
	return all
}

func (v variation) meta(name string) metav1.ObjectMeta {
	m := metav1.ObjectMeta{Name: name, Labels: map[string]string{manyLabel: "yes"}}
	if v.IntN(4) > 0 {
		m.Labels["example.com/value"] = pick(v, "", "1", "true", "null", "1.0", "a.b_c-d")
		m.Annotations = map[string]string{"text": v.text(), "example.com/Other_key": v.text()}
	} else if v.IntN(2) > 0 {
		m.Annotations = map[string]string{}
	}
	if v.IntN(5) == 0 {
		m.Finalizers = []string{"example.com/keep"}
	}
	return m
}

func (v variation) configMap(name string) *corev1.ConfigMap {
	o := &corev1.ConfigMap{ObjectMeta: v.meta(name), Immutable: pick(v, nil, ptr.To(true), ptr.To(false))}
	for i := range v.IntN(4) {
		if o.Data == nil {
			o.Data, o.BinaryData = map[string]string{}, map[string][]byte{}
		}
		o.Data[fmt.Sprint("key.", i)] = v.text()
		o.BinaryData[fmt.Sprint("_binary-", i)] = v.bytes()
	}
	return o
}

func (v variation) secret(name string) *corev1.Secret {
	o := &corev1.Secret{ObjectMeta: v.meta(name), Immutable: pick(v, nil, ptr.To(true)), Data: map[string][]byte{"key": v.bytes(), "empty": {}}}
	switch v.IntN(4) {
	case 0:
		o.Type, o.Data[corev1.BasicAuthUsernameKey] = corev1.SecretTypeBasicAuth, []byte(v.text())
	case 1:
		o.Type, o.Data[corev1.DockerConfigJsonKey] = corev1.SecretTypeDockerConfigJson, []byte(`{"auths":{"example.com":{"auth":"YTpi"}}}`)
	case 2:
		o.Type = "example.com/own"
	}
	return o
}

func (v variation) serviceAccount(name string) *corev1.ServiceAccount {
	return &corev1.ServiceAccount{
		ObjectMeta: v.meta(name), AutomountServiceAccountToken: pick(v, nil, ptr.To(true), ptr.To(false)),
		Secrets: pick(v, nil, []corev1.ObjectReference{{Name: "a"}, {Kind: "Secret", Name: "b"}}), ImagePullSecrets: pick(v, nil, []corev1.LocalObjectReference{{Name: "registry"}}),
	}
}

// pod returns one of the node that names a ServiceAccount, a ConfigMap and a Secret of its own name.
func (v variation) pod(name string) *corev1.Pod {
	own := corev1.LocalObjectReference{Name: name}
	c := corev1.Container{
		Name: "c", Image: pick(v, "nginx", "example.com:5000/a/b@sha256:"+strings.Repeat("0a", 32), "nginx:1.27"), Command: pick(v, nil, []string{"sh", "-c", v.text()}),
		Env:       []corev1.EnvVar{{Name: "TEXT", Value: v.text()}, {Name: "NODE", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}}},
		EnvFrom:   []corev1.EnvFromSource{{Prefix: "A_", ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: own}}},
		Ports:     pick(v, nil, []corev1.ContainerPort{{Name: "web", ContainerPort: 80}, {Name: "dns", ContainerPort: 53, Protocol: corev1.ProtocolUDP}}),
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(pick(v, "1m", "0.001", "1e-3"))}},
		ReadinessProbe: pick(v, nil, &corev1.Probe{
			PeriodSeconds: 3600, ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/?a=\"b\"&c", Port: pick(v, intstr.FromInt32(80), intstr.FromString("web"))}},
		}),
	}
	p := &corev1.Pod{ObjectMeta: v.meta(name), Spec: corev1.PodSpec{
		NodeName: nodeName, ServiceAccountName: name, AutomountServiceAccountToken: ptr.To(false), Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		Containers: []corev1.Container{c}, TerminationGracePeriodSeconds: pick[*int64](v, nil, ptr.To[int64](0)),
		HostAliases: pick(v, nil, []corev1.HostAlias{{IP: "2001:db8::1", Hostnames: []string{"six.example.com"}}}),
		Volumes:     pick(v, nil, []corev1.Volume{{Name: "e", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: ptr.To(resource.MustParse("1Gi"))}}}}),
	}}
	switch v.IntN(4) {
	case 0:
		p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{own}
	case 1:
		p.Spec.Containers[0].Env = append(p.Spec.Containers[0].Env, corev1.EnvVar{Name: "S", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: own, Key: "key", Optional: ptr.To(true)}}})
	case 2:
		p.Spec.Containers[0].EnvFrom = append(p.Spec.Containers[0].EnvFrom, corev1.EnvFromSource{Prefix: "S_", SecretRef: &corev1.SecretEnvSource{LocalObjectReference: own}})
	default:
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "s", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name, DefaultMode: ptr.To[int32](0o400)}}})
	}
	return p
}

func (v variation) service(name string) *corev1.Service {
	o := &corev1.Service{ObjectMeta: v.meta(name), Spec: corev1.ServiceSpec{
		Ports: []corev1.ServicePort{
			{Name: "web", Port: 80, TargetPort: pick(v, intstr.FromInt32(8080), intstr.FromString("web")), AppProtocol: pick(v, nil, ptr.To("kubernetes.io/h2c"))},
			{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP},
		},
		ExternalIPs: pick(v, nil, []string{"2001:db8::2"}), PublishNotReadyAddresses: v.IntN(2) > 0,
	}}
	switch v.IntN(4) { // the addresses of a cluster are few
	case 0:
		o.Spec.ClusterIP = corev1.ClusterIPNone
	case 1:
		o.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.com"}
	case 2:
		o.Spec.SessionAffinity, o.Spec.SessionAffinityConfig = corev1.ServiceAffinityClientIP, &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr.To[int32](7)}}
	default:
		o.Spec.Type, o.Spec.LoadBalancerSourceRanges = corev1.ServiceTypeLoadBalancer, []string{"2001:db8::/32"}
	}
	return o
}

func (v variation) endpointSlice(name string) *discoveryv1.EndpointSlice {
	o := &discoveryv1.EndpointSlice{ObjectMeta: v.meta(name), Ports: pick(v, nil,
		[]discoveryv1.EndpointPort{{}},
		[]discoveryv1.EndpointPort{{Name: ptr.To("web"), Port: ptr.To[int32](80), AppProtocol: ptr.To("http")}, {Name: ptr.To("dns"), Port: ptr.To[int32](53), Protocol: ptr.To(corev1.ProtocolUDP)}},
	)}
	o.AddressType = pick(v, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6)
	for i := range v.IntN(5) {
		e := discoveryv1.Endpoint{
			Addresses:  []string{map[discoveryv1.AddressType]string{discoveryv1.AddressTypeIPv4: fmt.Sprint("10.1.2.", i+1), discoveryv1.AddressTypeIPv6: fmt.Sprint("2001:db8::", i+1)}[o.AddressType]},
			Conditions: discoveryv1.EndpointConditions{Ready: pick(v, nil, ptr.To(true), ptr.To(false)), Terminating: pick(v, nil, ptr.To(false))},
			Hostname:   pick(v, nil, ptr.To("web-0")), NodeName: pick(v, nil, ptr.To(nodeName)), Zone: pick(v, nil, ptr.To("a")),
			TargetRef: pick(v, nil, &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: "web-0", UID: "1"}),
		}
		if v.IntN(2) > 0 {
			e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "a"}, {Name: "b"}}, ForNodes: pick(v, nil, []discoveryv1.ForNode{{Name: nodeName}})}
		}
		o.Endpoints = append(o.Endpoints, e)
	}
	return o
}

// testObjects compares many objects of each kind, whose fields differ. Of Nodes, Leases and NodePools there is as much as
// there are nodes behind a hub and pools: one. A kubelet reads no ServiceAccounts, so the test does as the node.
func (r *poolRig) testObjects() {
	r.asksForSecrets(true)
	r.kubectl("create", "clusterrole", "nodes-read-accounts", "--verb=get", "--resource=serviceaccounts")
	r.kubectl("create", "clusterrolebinding", "nodes-read-accounts", "--clusterrole=nodes-read-accounts", "--group=system:nodes")
	core, v := r.admin.CoreV1(), variation{rand.New(rand.NewPCG(1, 2))}
	must := func(_ any, err error) {
		r.Helper()
		if err != nil {
			r.Fatal(err)
		}
	}
	for i := range many {
		name, by := fmt.Sprintf("many-%03d", i), metav1.CreateOptions{FieldManager: pick(v, "kubectl", "a \"manager\"", "ünïcödé")}
		must(core.Namespaces().Create(r.Context(), &corev1.Namespace{ObjectMeta: v.meta(name)}, by))
		must(core.ConfigMaps(namespace).Create(r.Context(), v.configMap(name), by))
		must(core.Secrets(namespace).Create(r.Context(), v.secret(name), by))
		must(core.ServiceAccounts(namespace).Create(r.Context(), v.serviceAccount(name), by))
		must(core.Services(namespace).Create(r.Context(), v.service(name), by))
		must(r.admin.DiscoveryV1().EndpointSlices(namespace).Create(r.Context(), v.endpointSlice(name), by))
		must(core.Pods(namespace).Create(r.Context(), v.pod(name), by))
		if i%10 == 0 { // a second manager of fields
			must(core.Services(namespace).Patch(r.Context(), name, types.MergePatchType, []byte(`{"metadata":{"annotations":{"second":"1"}}}`), metav1.PatchOptions{FieldManager: "second"}))
		}
		accept := pick(v, "application/json", "application/vnd.kubernetes.protobuf")
		r.eventually("the node reads a ServiceAccount", func() error { // once its API server knows of the pod
			if a := r.ask(r.over, question{"node", "/api/v1/namespaces/" + namespace + "/serviceaccounts/" + name, accept}); a.code != http.StatusOK {
				return fmt.Errorf("the answer is %+v", a)
			}
			return nil
		})
	}
	began := time.Now()
	for _, kind := range []struct{ resource, name string }{
		{"configmaps", "ConfigMap"}, {"secrets", "Secret"}, {"serviceaccounts", "ServiceAccount"}, {"pods", "Pod"},
		{"namespaces", "Namespace"}, {"services", "Service"}, {"endpointslices", "EndpointSlice"},
	} {
		out := r.same("get", kind.resource, "-A", "-l", manyLabel+"=yes", "-o", "yaml", "--show-managed-fields")
		if got := strings.Count(out, "\n  kind: "+kind.name+"\n"); got != many {
			r.Errorf("%d objects of the kind %s were compared, want %d", got, kind.name, many)
		}
		r.Logf("%s: %d bytes are the same after %s", kind.resource, len(out), time.Since(began).Round(100*time.Millisecond))
	}
	r.same("get", "nodepools", "edge", "-o", "yaml", "--show-managed-fields")
	r.same("get", "leases", "-n", "kube-node-lease", nodeName, "-o", "yaml", "--show-managed-fields")
	r.nodeIsTheSame()
}
