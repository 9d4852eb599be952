package coordinator

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/governance"
)

const (
	// workloadName is the name of the UnitedDeployment and of the Service.
	workloadName = "coordinator"
	// nameLabel selects the pods of all coordinators, by nameValue.
	nameLabel, nameValue = "app.kubernetes.io/name", "atoll-coordinator"
	// maxPools is as many pools as a UnitedDeployment may have.
	maxPools = 1000
	// user runs all containers: they share files and sockets.
	user int64 = 65532
	// shared is where the containers share a volume in memory, and certificates where the pool's Secret is.
	shared, certificates = "/run/atoll", "/etc/atoll"
	// caAnnotation, on a pod, stands for the CAs with which it was started.
	caAnnotation = "atoll.dev/pool-ca"
	// apiServerContainer is the container whose image each pool chooses.
	apiServerContainer = "kube-apiserver"
	// topologyAnnotation, on a Service, lets clients reach endpoints in their own pool only, by the value topology.
	topologyAnnotation, topology = "openyurt.io/topologyKeys", "openyurt.io/nodepool"
	// awayAfter is how long the pod stays on a node that is not Ready, in seconds.
	awayAfter int64 = 30
)

// Images are those of the containers.
type Images struct {
	// Own is that of atoll-coordinator, and Etcd that of etcd.
	Own, Etcd string
	// APIServer is that of kube-apiserver, without a tag: the version is the tag.
	APIServer string
	// PullSecrets are Secrets of the namespace of coordinators.
	PullSecrets []corev1.LocalObjectReference
}

// secretOf returns the name of the Secret that the pod of a pool mounts.
func secretOf(pool string) string { return workloadName + "-" + pool }

// poolOf returns the part of the UnitedDeployment that is for one pool. With other CAs it is another one: the API server
// trusts those with which its pod was started.
func poolOf(name, image string, ca []byte) (apps.Pool, error) {
	type named map[string]any
	patch, err := json.Marshal(named{"spec": named{"template": named{
		"metadata": named{"annotations": named{caAnnotation: fmt.Sprintf("%.8x", sha256.Sum256(ca))}},
		"spec": named{
			"containers": []named{{"name": apiServerContainer, "image": image}},
			"volumes":    []named{{"name": "certificates", "secret": named{"secretName": secretOf(name)}}},
		},
	}}})
	if err != nil {
		return apps.Pool{}, fmt.Errorf("making the patch of pool %q: %w", name, err)
	}
	return apps.Pool{Name: name, Replicas: ptr.To(intstr.FromInt32(1)), Patch: &runtime.RawExtension{Raw: patch}}, nil
}

// workloadOf returns the spec of the UnitedDeployment. A pool that cannot be updated does not hold up others.
func workloadOf(images Images, pools []apps.Pool) apps.UnitedDeploymentSpec {
	labels := map[string]string{nameLabel: nameValue}
	return apps.UnitedDeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Topology: apps.Topology{Pools: pools},
		UpdateStrategy: apps.UnitedDeploymentUpdateStrategy{
			MaxUpdatingPools: ptr.To[int32](maxPools), OnFailure: apps.FailureContinue, ProgressDeadlineSeconds: ptr.To(apps.DefaultProgressDeadlineSeconds),
		},
		RevisionHistoryLimit: ptr.To[int32](2),
		WorkloadTemplate: apps.WorkloadTemplate{DeploymentTemplate: &apps.DeploymentTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec: appsv1.DeploymentSpec{
				// The old pod goes first. Recreate would wait for one on a dead node, which nobody can end.
				Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{
					MaxSurge: ptr.To(intstr.FromInt32(0)), MaxUnavailable: ptr.To(intstr.FromInt32(1)),
				}},
				Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: PodOf(images)},
			},
		}},
	}
}

// PodOf returns the pod of a coordinator. It uses the network of its node, so that hubs and people find it at an
// address that the cloud is not needed for.
func PodOf(images Images) corev1.PodSpec {
	away := func(key string) corev1.Toleration {
		return corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: ptr.To(awayAfter)}
	}
	memory := &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: ptr.To(resource.MustParse("1Gi"))}
	return corev1.PodSpec{
		HostNetwork: true, DNSPolicy: corev1.DNSDefault, AutomountServiceAccountToken: ptr.To(false), EnableServiceLinks: ptr.To(false),
		TerminationGracePeriodSeconds: ptr.To[int64](10), ImagePullSecrets: images.PullSecrets,
		Tolerations: []corev1.Toleration{away(corev1.TaintNodeNotReady), away(corev1.TaintNodeUnreachable)},
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To(user), RunAsGroup: ptr.To(user), FSGroup: ptr.To(user),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Volumes: []corev1.Volume{
			{Name: "shared", VolumeSource: corev1.VolumeSource{EmptyDir: memory}},
			// Each pool has its own, by its patch.
			{Name: "certificates", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: workloadName, DefaultMode: ptr.To[int32](0o440)}}},
		},
		InitContainers: []corev1.Container{
			container("prepare", images.Own, "16Mi", "128Mi", "/atoll-coordinator", "prepare", "--directory="+shared, "--pool-ca="+certificates+"/"+poolCA),
		},
		Containers: []corev1.Container{etcdOf(images), apiServerOf(images), writerOf(images)},
	}
}

func container(name, image, request, limit string, command ...string) corev1.Container {
	return corev1.Container{
		Name: name, Image: image, Command: command, TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("20m"), corev1.ResourceMemory: resource.MustParse(request)},
			Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(limit)},
		},
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
		VolumeMounts: []corev1.VolumeMount{{Name: "shared", MountPath: shared}, {Name: "certificates", MountPath: certificates, ReadOnly: true}},
	}
}

// etcdOf returns the container of etcd. Its files are in memory, and it listens on a socket there: nobody else on
// the node reaches it. It is in the working directory, because etcd takes no longer path.
func etcdOf(images Images) corev1.Container {
	c := container("etcd", images.Etcd, "192Mi", "1536Mi",
		"/usr/local/bin/etcd", "--name=coordinator", "--data-dir=data", "--unsafe-no-fsync", "--log-level=warn",
		// The volume has room for two databases, while one is compacted, and for the logs, of which each has 64 MiB.
		"--quota-backend-bytes=402653184", "--max-wals=1", "--max-snapshots=1",
		// It keeps so many writes in memory for other members, of which there are none.
		"--snapshot-count=100", "--snapshot-catchup-entries=1",
		"--listen-client-urls=unix://etcd.sock:0", "--advertise-client-urls=unix://etcd.sock:0",
		"--listen-peer-urls=unix://peer.sock:0", "--initial-advertise-peer-urls=unix://peer.sock:0", "--initial-cluster=coordinator=unix://peer.sock:0")
	c.WorkingDir = shared
	return c
}

// apiServerOf returns the container of kube-apiserver. People see what its etcd has, and it changes nothing.
func apiServerOf(images Images) corev1.Container {
	secret, files := certificates+"/", shared+"/"
	c := container(apiServerContainer, images.APIServer, "256Mi", "1Gi",
		"/usr/local/bin/kube-apiserver", fmt.Sprintf("--secure-port=%d", governance.APIPort), "--advertise-address=$(HOST_IP)",
		"--etcd-servers=unix://"+files+"etcd.sock:0", "--etcd-compaction-interval=1m",
		"--tls-cert-file="+secret+corev1.TLSCertKey, "--tls-private-key-file="+secret+corev1.TLSPrivateKeyKey, "--client-ca-file="+files+"clients.crt",
		"--authentication-config="+files+"authentication.yaml", "--authorization-mode=RBAC",
		"--kubelet-client-certificate="+secret+apiServerCert, "--kubelet-client-key="+secret+apiServerKey, "--kubelet-certificate-authority="+secret+poolCA,
		"--kubelet-preferred-address-types=InternalIP",
		"--proxy-client-cert-file="+files+"front-proxy.crt", "--proxy-client-key-file="+files+"front-proxy.key",
		"--service-account-issuer=https://"+governance.ServerName, "--service-account-key-file="+files+"service-account.crt",
		"--service-account-signing-key-file="+files+"service-account.key", "--service-cluster-ip-range=10.0.0.0/24",
		"--endpoint-reconciler-type=none", "--disable-admission-plugins=ServiceAccount", "--enable-priority-and-fairness=false", "--profiling=false")
	c.Env = []corev1.EnvVar{{Name: "HOST_IP", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "status.hostIP"}}}}
	// Its image gives the program this capability, and without the permission to use it the program does not start.
	c.SecurityContext.Capabilities.Add = []corev1.Capability{"NET_BIND_SERVICE"}
	c.Ports = []corev1.ContainerPort{{Name: "api", ContainerPort: governance.APIPort, HostPort: governance.APIPort, Protocol: corev1.ProtocolTCP}}
	probe := func(path string, period, failures int32) *corev1.Probe {
		return &corev1.Probe{
			ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromString("api"), Scheme: corev1.URISchemeHTTPS}},
			PeriodSeconds: period, FailureThreshold: failures, TimeoutSeconds: 5, SuccessThreshold: 1,
		}
	}
	c.StartupProbe, c.LivenessProbe, c.ReadinessProbe = probe("/livez", 2, 60), probe("/livez", 10, 6), probe("/readyz", 5, 3)
	return c
}

// writerOf returns the container that takes what hubs upload.
func writerOf(images Images) corev1.Container {
	secret, files := certificates+"/", shared+"/"
	c := container("writer", images.Own, "32Mi", "256Mi",
		"/atoll-coordinator", "write", fmt.Sprintf("--listen=:%d", governance.WriterPort), "--etcd=unix://"+files+"etcd.sock:0", "--kubeconfig="+files+"kubeconfig",
		"--tls-cert-file="+secret+corev1.TLSCertKey, "--tls-private-key-file="+secret+corev1.TLSPrivateKeyKey,
		"--client-ca-file="+secret+nodesCA, "--nodes-file="+secret+nodeNames, "--upload-file="+secret+uploadKinds,
		fmt.Sprintf("--usage-listen=127.0.0.1:%d", governance.UsagePort), "--front-proxy-ca-file="+files+"front-proxy-ca.crt",
		"--hub-client-certificate="+secret+apiServerCert, "--hub-client-key="+secret+apiServerKey, "--pool-ca-file="+secret+poolCA)
	c.Env = []corev1.EnvVar{{Name: "NODE_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "spec.nodeName"}}}}
	c.Ports = []corev1.ContainerPort{{Name: "upload", ContainerPort: governance.WriterPort, HostPort: governance.WriterPort, Protocol: corev1.ProtocolTCP}}
	return c
}

// serviceOf returns the Service of all coordinators. A hub gives the clients of its node only the
// endpoints in the node's own pool.
func serviceOf() *corev1.Service {
	port := func(name string, number int32) corev1.ServicePort {
		return corev1.ServicePort{Name: name, Port: number, TargetPort: intstr.FromString(name), Protocol: corev1.ProtocolTCP}
	}
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: governance.Namespace, Name: workloadName, Labels: map[string]string{nameLabel: nameValue},
			Annotations: map[string]string{topologyAnnotation: topology},
		},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{nameLabel: nameValue},
			Ports:    []corev1.ServicePort{port("api", governance.APIPort), port("upload", governance.WriterPort)},
		},
	}
}
