package coordinator

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestPod: what keeps a coordinator's pod from harming its node, and what its programs must be told.
func TestPod(t *testing.T) {
	pod := PodOf(Images{Own: "own", Etcd: "etcd", APIServer: "api"})
	if !*pod.SecurityContext.RunAsNonRoot || *pod.AutomountServiceAccountToken || !pod.HostNetwork {
		t.Errorf("the pod is %+v", pod.SecurityContext)
	}
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		s := c.SecurityContext
		if *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || c.Resources.Limits.Memory().IsZero() {
			t.Errorf("%s: %+v, %+v", c.Name, s, c.Resources)
		}
		if !strings.HasPrefix(c.Command[0], "/") {
			t.Errorf("%s: the program is looked for as %q", c.Name, c.Command[0])
		}
	}
	for container, flags := range map[string][]string{
		"etcd":             {"--listen-client-urls=unix://etcd.sock:0"},
		apiServerContainer: {"--secure-port=10270", "--etcd-servers=unix:///run/atoll/etcd.sock:0", "--client-ca-file=/run/atoll/clients.crt", "--authorization-mode=RBAC", "--kubelet-certificate-authority=/etc/atoll/ca.crt"},
		"writer":           {"--listen=:10271", "--client-ca-file=/etc/atoll/nodes.crt", "--nodes-file=/etc/atoll/nodes", "--upload-file=/etc/atoll/upload"},
	} {
		i := slices.IndexFunc(pod.Containers, func(c corev1.Container) bool { return c.Name == container })
		for _, flag := range flags {
			if !slices.Contains(pod.Containers[i].Command, flag) {
				t.Errorf("%s is not started with %s", container, flag)
			}
		}
	}
	// Two databases and the logs of etcd have room in the volume, and the volume in the memory of etcd's container.
	const quota, logs = 402653184, 200 << 20
	volume := pod.Volumes[0].EmptyDir.SizeLimit.Value()
	if volume < 2*quota+logs || pod.Containers[0].Resources.Limits.Memory().Value() < volume+256<<20 || !slices.Contains(pod.Containers[0].Command, "--quota-backend-bytes=402653184") {
		t.Errorf("the volume has %d bytes", volume)
	}
	if strategy := workloadOf(Images{}, nil).WorkloadTemplate.DeploymentTemplate.Spec.Strategy.RollingUpdate; strategy == nil || strategy.MaxSurge.IntValue() != 0 {
		t.Errorf("the strategy is %+v", strategy)
	}
}
