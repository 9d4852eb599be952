package chart

import (
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// network answers who may reach whom once the policies are in force.
type network struct {
	*testing.T
	objects
}

func (n network) pod(name string) corev1.PodTemplateSpec {
	return get[*appsv1.Deployment](n.T, n.objects, "Deployment/"+name).Spec.Template
}

// reaches tells whether pods of one Deployment, or everybody else if from is
// "", reach a port of another.
func (n network) reaches(from, to string, port int32) bool {
	n.Helper()
	var out, in bool
	target := n.pod(to)
	peers := func(list []networkingv1.NetworkPolicyPeer, name string) bool {
		return len(list) == 0 || name != "" && slices.ContainsFunc(list, func(p networkingv1.NetworkPolicyPeer) bool {
			selector, err := metav1.LabelSelectorAsSelector(p.PodSelector)
			if err != nil {
				n.Fatal(err)
			}
			return p.NamespaceSelector == nil && selector.Matches(labels.Set(n.pod(name).Labels))
		})
	}
	if from == "" {
		out = true
	} else {
		for _, rule := range get[*networkingv1.NetworkPolicy](n.T, n.objects, "NetworkPolicy/"+from).Spec.Egress {
			out = out || opens(rule.Ports, target, port) && peers(rule.To, to)
		}
	}
	for _, rule := range get[*networkingv1.NetworkPolicy](n.T, n.objects, "NetworkPolicy/"+to).Spec.Ingress {
		in = in || opens(rule.Ports, target, port) && peers(rule.From, from)
	}
	return out && in
}

// opens tells whether a port, by number or by its name in the pod, is among those of a rule.
func opens(ports []networkingv1.NetworkPolicyPort, pod corev1.PodTemplateSpec, port int32) bool {
	return slices.ContainsFunc(ports, func(p networkingv1.NetworkPolicyPort) bool {
		if p.Protocol != nil && *p.Protocol != corev1.ProtocolTCP {
			return false
		}
		if p.Port.Type == intstr.Int {
			return p.Port.IntVal == port
		}
		return slices.ContainsFunc(pod.Spec.Containers[0].Ports, func(c corev1.ContainerPort) bool {
			return c.Name == p.Port.StrVal && c.ContainerPort == port
		})
	})
}

func TestNetworkPolicies(t *testing.T) {
	enabled := func(values map[string]any) network {
		if values == nil {
			values = map[string]any{}
		}
		policy, _ := values["networkPolicy"].(map[string]any)
		if policy == nil {
			policy = map[string]any{}
		}
		policy["enabled"] = true
		values["networkPolicy"] = policy
		return network{t, render(t, load(t), values)}
	}
	const manager, scheduler = "atoll-manager", "atoll-scheduler"
	n := enabled(isolated())
	for name, policy := range map[string]string{manager: "NetworkPolicy/" + manager, scheduler: "NetworkPolicy/" + scheduler} {
		spec := get[*networkingv1.NetworkPolicy](t, n.objects, policy).Spec
		selector, err := metav1.LabelSelectorAsSelector(&spec.PodSelector)
		if err != nil || selector.Empty() || !selector.Matches(labels.Set(n.pod(name).Labels)) || len(spec.PolicyTypes) != 2 {
			t.Errorf("%s selects %v (%v) for %v", policy, spec.PodSelector, err, spec.PolicyTypes)
		}
	}
	tests := map[string]struct {
		network
		from, to string
		port     int32
		want     bool
	}{
		"the API server calls the webhooks":            {n, "", manager, 9443, true},
		"the second scheduler asks the extender":       {n, scheduler, manager, 9444, true},
		"a replica hands on to the leader":             {n, manager, manager, 9444, true},
		"nobody else asks the extender":                {n, "", manager, 9444, false},
		"in the form Pinned a replica asks the leader": {enabled(form("Pinned", nil)), manager, manager, 9444, true},
		"and nobody else":                              {enabled(form("Pinned", nil)), "", manager, 9444, false},
		"metrics are read":                             {n, "", manager, 8080, true},
		"and those of the second scheduler":            {n, "", scheduler, 10259, true},
		"nobody else calls them where it is said who does": {
			enabled(map[string]any{"networkPolicy": map[string]any{"webhookFrom": []any{
				map[string]any{"ipBlock": map[string]any{"cidr": "10.0.0.1/32"}},
			}}}), "", manager, 9443, false,
		},
		"the second scheduler calls no webhook":                {n, scheduler, manager, 9443, false},
		"probes are the kubelet's only":                        {n, "", manager, 8081, false},
		"the cluster's own kube-scheduler asks, in form Plain": {enabled(plain()), "", manager, 9444, true},
		"a scheduler that runs elsewhere asks":                 {enabled(isolated("deploy", false)), "", manager, 9444, true},
		"metrics are read by nobody else than who is named": {
			enabled(map[string]any{"networkPolicy": map[string]any{"metricsFrom": []any{
				map[string]any{"namespaceSelector": map[string]any{}, "podSelector": map[string]any{"matchLabels": map[string]any{"app": "prometheus"}}},
			}}}), "", manager, 8080, false,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tc.reaches(tc.from, tc.to, tc.port); got != tc.want {
				t.Errorf("%q reaches port %d of %s: %t", tc.from, tc.port, tc.to, got)
			}
		})
	}
	for _, key := range []string{"NetworkPolicy/" + manager, "NetworkPolicy/" + scheduler} {
		var open []int32
		for _, rule := range get[*networkingv1.NetworkPolicy](t, n.objects, key).Spec.Egress {
			if len(rule.To) == 0 {
				for _, p := range rule.Ports {
					open = append(open, p.Port.IntVal)
				}
			}
		}
		if slices.Sort(open); !slices.Equal(open, []int32{53, 53, 443, 6443}) {
			t.Errorf("%s lets out to ports %v of anybody, want DNS and the API server", key, open)
		}
	}
	if got := enabled(plain()).objects["NetworkPolicy/"+scheduler]; got != nil {
		t.Error("there is a policy for a second scheduler that is not there")
	}
	extra := enabled(map[string]any{"networkPolicy": map[string]any{
		"apiServer":   map[string]any{"ports": []any{8443}, "peers": []any{map[string]any{"ipBlock": map[string]any{"cidr": "10.0.0.1/32"}}}},
		"extraEgress": []any{map[string]any{"ports": []any{map[string]any{"port": 1234}}}},
	}})
	egress := get[*networkingv1.NetworkPolicy](t, extra.objects, "NetworkPolicy/"+manager).Spec.Egress
	if len(egress) != 4 || egress[1].Ports[0].Port.IntVal != 8443 || egress[1].To[0].IPBlock.CIDR != "10.0.0.1/32" || egress[3].Ports[0].Port.IntVal != 1234 {
		t.Errorf("values are not honoured: %+v", egress)
	}
}
