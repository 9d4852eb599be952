package devcluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/atoll-k8s/atoll/devcluster/internal/process"
)

const (
	pollInterval = 50 * time.Millisecond
	pollTimeout  = 90 * time.Second
)

// eventually polls until the condition returns no error.
func eventually(t *testing.T, what string, condition func(ctx context.Context) error) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), pollInterval, pollTimeout, true, func(ctx context.Context) (bool, error) {
		last = condition(ctx)
		return last == nil, nil
	})
	if err != nil {
		t.Fatalf("%s: %v: %v", what, err, last)
	}
}

func startCluster(t *testing.T, options Options) *Cluster {
	t.Helper()
	options.Log = t.Output()
	began := time.Now()
	c, err := Start(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("Start took %s", time.Since(began).Round(time.Millisecond))
	t.Cleanup(func() {
		if err := c.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return c
}

func clientFor(t *testing.T, kubeconfig string) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	return newClient(t, config)
}

func newClient(t *testing.T, config *rest.Config) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestClusterLifecycle(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a cluster")
	}
	c := startCluster(t, Options{
		AuditLog: AuditMetadata, LowIdle: true,
		ComponentArgs: map[string][]string{
			// Kubelets renew their Leases every 10 s.
			ControllerManager: {"--node-monitor-grace-period=12s", "--node-monitor-period=500ms"},
			Kwok:              {"--node-lease-duration-seconds=8"},
		},
	})
	client := newClient(t, c.AdminConfig())

	step := func(name string, test func(*testing.T)) {
		if !t.Run(name, test) {
			t.FailNow()
		}
	}
	step("nodes of both kinds become Ready", func(t *testing.T) { testNodes(t, c, client) })
	step("a Deployment becomes Ready on both kinds", func(t *testing.T) { testDeployment(t, c, client) })
	step("a changed image restarts a simulated container once", func(t *testing.T) { testInPlaceImage(t, client) })
	step("readiness gates hold a simulated pod back", func(t *testing.T) { testReadinessGate(t, client) })
	step("delays and failures of simulated pods", func(t *testing.T) { testSimulatedPods(t, client) })
	step("hollow nodes change images and come back", func(t *testing.T) { testHollowNode(t, c, client) })
	step("a Job completes", func(t *testing.T) { testJob(t, client) })
	step("credentials are what they say", func(t *testing.T) { testCredentials(t, c, client) })
	step("the API server comes back with its data", func(t *testing.T) { testAPIServerRestart(t, c, client) })
	step("a paused scheduler places nothing", func(t *testing.T) { testPausedScheduler(t, c, client) })
	step("schedulers take another configuration", func(t *testing.T) { testSchedulers(t, c, client) })
	step("a scheduler that loses its Lease comes back", func(t *testing.T) { testSchedulerThatLosesItsLease(t, c, client) })
	step("kwok takes its nodes back after a restart", func(t *testing.T) { testKwokRestart(t, c, client) })
	step("the control plane idles cheaply", func(t *testing.T) { testLowIdle(t, c, client) })
	step("an extra process obeys the verbs", func(t *testing.T) { testExtraProcess(t, c) })
	step("attaching gives the same cluster", func(t *testing.T) { testAttach(t, c) })
	step("the audit log holds the writes", func(t *testing.T) { testAuditLog(t, c) })
	step("Stop leaves nothing", func(t *testing.T) { testStop(t, c) })
}

// testLowIdle checks that the option reaches the processes: what they use is not asserted.
func testLowIdle(t *testing.T, c *Cluster, client kubernetes.Interface) {
	for _, name := range []string{Etcd, APIServer, ControllerManager, Scheduler, Kwok} {
		p, err := c.readProcess(name)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(p.Env, "GOMAXPROCS=1") {
			t.Errorf("%s has more than one processor: its environment is %q", name, p.Env)
		}
	}
	metrics, err := client.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if off := `kubernetes_feature_enabled{name="SizeBasedListCostEstimate",stage="BETA"} 0`; !strings.Contains(string(metrics), off) {
		t.Errorf("the API server measures the sizes of lists: its metrics do not contain %s", off)
	}
}

func testNodes(t *testing.T, c *Cluster, client kubernetes.Interface) {
	taint := corev1.Taint{Key: "kind", Value: "hollow", Effect: corev1.TaintEffectNoSchedule}
	err := c.AddNodes(t.Context(), NumberedNodes("sim-", 3, func(_ int, s *NodeSpec) {
		s.Labels = map[string]string{"kind": "sim"}
	})...)
	if err != nil {
		t.Fatal(err)
	}
	err = c.AddHollowNodes(t.Context(), NodeSpec{
		Name: "hollow-0", Labels: map[string]string{"kind": "hollow"}, Taints: []corev1.Taint{taint},
		Capacity: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("16")},
	})
	if err != nil {
		t.Fatal(err)
	}
	node, err := client.CoreV1().Nodes().Get(t.Context(), "hollow-0", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if cpu := node.Status.Allocatable.Cpu().Value(); cpu != 16 {
		t.Errorf("hollow node has %d cpu, want 16", cpu)
	}
	if node.Labels["kind"] != "hollow" || len(node.Spec.Taints) != 1 || node.Spec.Taints[0].Key != "kind" {
		t.Errorf("hollow node has labels %v and taints %v", node.Labels, node.Spec.Taints)
	}
	if err := c.AddNodes(t.Context(), NodeSpec{Name: "sim-0"}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("adding a node twice: %v, want AlreadyExists", err)
	}
}

// deployment of n pods for the nodes labelled with the kind.
func deployment(name, kind string, n int32) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault},
		Spec: appsv1.DeploymentSpec{
			Replicas: &n,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       podSpec(kind),
			},
		},
	}
}

func podSpec(kind string) corev1.PodSpec {
	return corev1.PodSpec{
		NodeSelector: map[string]string{"kind": kind},
		Tolerations:  []corev1.Toleration{{Key: "kind", Operator: corev1.TolerationOpExists}},
		Containers:   []corev1.Container{{Name: "main", Image: "example.org/app:v1"}},
	}
}

func createDeployment(t *testing.T, client kubernetes.Interface, d *appsv1.Deployment) {
	t.Helper()
	if _, err := client.AppsV1().Deployments(d.Namespace).Create(t.Context(), d, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func waitAvailable(t *testing.T, client kubernetes.Interface, name string, want int32) {
	t.Helper()
	eventually(t, "waiting for deployment "+name, func(ctx context.Context) error {
		d, err := client.AppsV1().Deployments(metav1.NamespaceDefault).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if d.Status.AvailableReplicas != want {
			return fmt.Errorf("%d of %d replicas available", d.Status.AvailableReplicas, want)
		}
		return nil
	})
}

func testDeployment(t *testing.T, _ *Cluster, client kubernetes.Interface) {
	createDeployment(t, client, deployment("on-sim", "sim", 6))
	createDeployment(t, client, deployment("on-hollow", "hollow", 2))
	waitAvailable(t, client, "on-sim", 6)
	waitAvailable(t, client, "on-hollow", 2)
}

func createPod(t *testing.T, client kubernetes.Interface, name string, annotations map[string]string, spec corev1.PodSpec) {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault, Annotations: annotations},
		Spec:       spec,
	}
	if _, err := client.CoreV1().Pods(pod.Namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func podCondition(pod *corev1.Pod, kind corev1.PodConditionType) corev1.PodCondition {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == kind {
			return condition
		}
	}
	return corev1.PodCondition{}
}

// waitPod polls until the pod is as the check wants it and returns it.
func waitPod(t *testing.T, client kubernetes.Interface, name string, check func(*corev1.Pod) error) *corev1.Pod {
	t.Helper()
	var pod *corev1.Pod
	eventually(t, "waiting for pod "+name, func(ctx context.Context) error {
		var err error
		pod, err = client.CoreV1().Pods(metav1.NamespaceDefault).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		return check(pod)
	})
	return pod
}

func isPodReady(pod *corev1.Pod) error {
	if podCondition(pod, corev1.PodReady).Status != corev1.ConditionTrue {
		return fmt.Errorf("not ready: %s %v", pod.Status.Phase, pod.Status.Conditions)
	}
	return nil
}

func testAPIServerRestart(t *testing.T, c *Cluster, client kubernetes.Interface) {
	if err := c.Kill(t.Context(), APIServer); err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); err == nil {
		t.Error("a killed API server answers")
	}
	if err := c.Restart(t.Context(), APIServer); err != nil {
		t.Fatal(err)
	}
	nodes, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(nodes.Items) != 4 {
		t.Errorf("%d nodes after the restart, want 4", len(nodes.Items))
	}
	createDeployment(t, client, deployment("after-restart", "sim", 2))
	waitAvailable(t, client, "after-restart", 2)
}

func testStop(t *testing.T, c *Cluster) {
	statuses, err := c.Processes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var ids []process.Identity
	for _, status := range statuses {
		id, err := process.Identify(status.PID)
		if err != nil {
			t.Fatalf("%s: %v", status.Name, err)
		}
		if !status.Healthy {
			t.Errorf("%s is not healthy: %+v", status.Name, status)
		}
		ids = append(ids, id)
	}
	if len(ids) < 7 {
		t.Errorf("the cluster has %d processes: %v", len(ids), statuses)
	}
	for range 2 {
		if err := c.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range ids {
		if id.Alive() {
			t.Errorf("process %d is alive after Stop", id.PID)
		}
	}
	if left := process.WithEnv(clusterMark + "=" + c.registryDir); len(left) > 0 {
		t.Errorf("processes left: %v", left)
	}
	if _, err := os.Stat(c.Dir()); !os.IsNotExist(err) {
		t.Errorf("directory left: %v", err)
	}
	if _, err := Attach(t.Context(), c.Name()); err == nil {
		t.Error("attaching to a stopped cluster works")
	}
}

func testCredentials(t *testing.T, c *Cluster, admin kubernetes.Interface) {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot", Namespace: metav1.NamespaceDefault}}
	if _, err := admin.CoreV1().ServiceAccounts(account.Namespace).Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	robot, err := c.ServiceAccountKubeconfig(t.Context(), account.Namespace, account.Name)
	if err != nil {
		t.Fatal(err)
	}
	alice, err := c.Kubeconfig(t.Context(), "alice", "devs")
	if err != nil {
		t.Fatal(err)
	}
	for kubeconfig, want := range map[string]string{
		robot: "system:serviceaccount:default:robot",
		alice: "alice",
	} {
		client := clientFor(t, kubeconfig)
		review, err := client.AuthenticationV1().SelfSubjectReviews().Create(t.Context(),
			&authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if review.Status.UserInfo.Username != want {
			t.Errorf("user is %q, want %q", review.Status.UserInfo.Username, want)
		}
		if strings.Contains(strings.Join(review.Status.UserInfo.Groups, " "), mastersGroup) {
			t.Errorf("%s is in groups %v", want, review.Status.UserInfo.Groups)
		}
		if _, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("%s lists nodes: %v, want Forbidden", want, err)
		}
	}
	anonymous := newClient(t, rest.AnonymousClientConfig(c.AdminConfig()))
	if _, err := anonymous.Discovery().ServerVersion(); !apierrors.IsUnauthorized(err) {
		t.Errorf("anonymous request: %v, want Unauthorized", err)
	}
}

// TestAFailedStartKeepsItsLogsUntilTheNext: the name stays usable, without anybody's help.
func TestAFailedStartKeepsItsLogsUntilTheNext(t *testing.T) {
	options := Options{
		Name: "fails", Log: t.Output(),
		ComponentArgs: map[string][]string{APIServer: {"--no-such-argument"}},
	}
	data, err := dataDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(data, options.Name)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	for range 2 {
		if _, err := Start(t.Context(), options); err == nil || !strings.Contains(err.Error(), "unknown flag: --no-such-argument") {
			t.Fatalf("the start ends with %v", err)
		}
		if _, err := os.Stat(filepath.Join(dir, "logs", APIServer+".log")); err != nil {
			t.Error(err)
		}
	}
	options.Dir = dir
	if _, err := Start(t.Context(), options); err == nil || !strings.Contains(err.Error(), dir+" is not empty; choose another or remove it") {
		t.Errorf("a directory with somebody's files is taken: %v", err)
	}
}
