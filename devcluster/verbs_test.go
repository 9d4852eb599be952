package devcluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

func testJob(t *testing.T, client kubernetes.Interface) {
	spec := podSpec("sim")
	spec.RestartPolicy = corev1.RestartPolicyNever
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "job", Namespace: metav1.NamespaceDefault},
		Spec:       batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: spec}},
	}
	if _, err := client.BatchV1().Jobs(job.Namespace).Create(t.Context(), job, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "waiting for the job", func(ctx context.Context) error {
		job, err := client.BatchV1().Jobs(metav1.NamespaceDefault).Get(ctx, "job", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if job.Status.Succeeded != 1 || job.Status.CompletionTime == nil {
			return fmt.Errorf("status %+v", job.Status)
		}
		return nil
	})
}

func testPausedScheduler(t *testing.T, c *Cluster, client kubernetes.Interface) {
	if err := c.Pause(t.Context(), Scheduler); err != nil {
		t.Fatal(err)
	}
	createPod(t, client, "while-paused", nil, podSpec("sim"))
	// Another scheduler places a pod made later: the paused one had its chance.
	if err := c.StartScheduler(t.Context(), "second", nil); err != nil {
		t.Fatal(err)
	}
	spec := podSpec("sim")
	spec.SchedulerName = "second"
	createPod(t, client, "by-second", nil, spec)
	waitPod(t, client, "by-second", isPodReady)
	waitPod(t, client, "while-paused", func(pod *corev1.Pod) error {
		if pod.Spec.NodeName != "" {
			t.Errorf("a paused scheduler placed a pod on %s", pod.Spec.NodeName)
		}
		return nil
	})
	if err := c.Resume(t.Context(), Scheduler); err != nil {
		t.Fatal(err)
	}
	waitPod(t, client, "while-paused", isPodReady)
}

func testSchedulers(t *testing.T, c *Cluster, client kubernetes.Interface) {
	config := []byte("profiles: [{schedulerName: default-scheduler}, {schedulerName: renamed}]")
	if err := c.RestartScheduler(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	spec := podSpec("sim")
	spec.SchedulerName = "renamed"
	createPod(t, client, "by-renamed", nil, spec)
	waitPod(t, client, "by-renamed", isPodReady)
	if err := c.RestartScheduler(t.Context(), []byte("clientConnection: 3")); err == nil {
		t.Error("a broken configuration is taken")
	}
	if err := c.RemoveProcess(t.Context(), "second"); err != nil {
		t.Error(err)
	}
	if err := c.RemoveProcess(t.Context(), Etcd); err == nil {
		t.Error("etcd can be removed")
	}
}

// testSchedulerThatLosesItsLease: a kube-scheduler that could not renew its Lease
// in time ends, and is started again.
func testSchedulerThatLosesItsLease(t *testing.T, c *Cluster, client kubernetes.Interface) {
	const name = "elected"
	config := []byte("profiles: [{schedulerName: " + name + "}]\n" +
		"leaderElection: {leaderElect: true, resourceName: kube-scheduler, resourceNamespace: kube-system, " +
		"leaseDuration: 4s, renewDeadline: 3s, retryPeriod: 1s}")
	if err := c.StartScheduler(t.Context(), name, config); err != nil {
		t.Fatal(err)
	}
	leads := func(ctx context.Context) error {
		lease, err := client.CoordinationV1().Leases("kube-system").Get(ctx, Scheduler, metav1.GetOptions{})
		if err == nil && (lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "another") {
			err = errors.New("it does not lead")
		}
		return err
	}
	eventually(t, "waiting for the scheduler to lead", leads)
	another := []byte(`{"spec":{"holderIdentity":"another"}}`)
	if _, err := client.CoordinationV1().Leases("kube-system").Patch(t.Context(), Scheduler, types.MergePatchType, another, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "waiting for the scheduler to lead again", leads)
	spec := podSpec("sim")
	spec.SchedulerName = name
	createPod(t, client, "by-elected", nil, spec)
	waitPod(t, client, "by-elected", isPodReady)
	if err := c.RemoveProcess(t.Context(), name); err != nil {
		t.Error(err)
	}
}

func testKwokRestart(t *testing.T, c *Cluster, client kubernetes.Interface) {
	lease := func(ctx context.Context) (*coordinationv1.Lease, error) {
		return client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, "sim-0", metav1.GetOptions{})
	}
	before, err := lease(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Restart(t.Context(), Kwok); err != nil {
		t.Fatal(err)
	}
	createPod(t, client, "after-kwok", nil, podSpec("sim"))
	waitPod(t, client, "after-kwok", isPodReady)
	eventually(t, "waiting for kwok to take the lease", func(ctx context.Context) error {
		now, err := lease(ctx)
		if err != nil {
			return err
		}
		if now.Spec.HolderIdentity == nil || *now.Spec.HolderIdentity == *before.Spec.HolderIdentity {
			return errors.New("the lease has no new holder")
		}
		return nil
	})
	if err := c.Pause(t.Context(), "sim-0"); err != nil {
		t.Fatal(err)
	}
	held, err := lease(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if *held.Spec.HolderIdentity != silencer {
		t.Errorf("holder of a paused node's lease is %s", *held.Spec.HolderIdentity)
	}
	eventually(t, "waiting for the silent node to become NotReady", func(ctx context.Context) error {
		node, err := client.CoreV1().Nodes().Get(ctx, "sim-0", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if isNodeUsable(node) {
			return errors.New("it is Ready")
		}
		return nil
	})
	if err := c.Resume(t.Context(), "sim-0"); err != nil {
		t.Fatal(err)
	}
}

func testExtraProcess(t *testing.T, c *Cluster) {
	attempts := 0
	err := c.StartProcess(t.Context(), ProcessSpec{
		Name: "extra", Path: "/bin/sh", Args: []string{"-c", "echo started $GREETING; exec sleep 1000"},
		Env: []string{"GREETING=hello"},
		Ready: func(context.Context) error {
			if attempts++; attempts < 3 {
				return errors.New("not yet")
			}
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if attempts != 3 {
		t.Errorf("ready was asked %d times, want 3", attempts)
	}
	for _, verb := range []func(context.Context, string) error{c.Pause, c.Resume, c.Kill, c.Restart} {
		if err := verb(t.Context(), "extra"); err != nil {
			t.Error(err)
		}
	}
	log, err := os.ReadFile(c.LogPath("extra"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(log, []byte("started hello")) {
		t.Errorf("log is %q", log)
	}
	err = c.StartProcess(t.Context(), ProcessSpec{Name: "failing", Path: "/bin/sh", Args: []string{"-c", "echo why; exit 1"},
		Ready: func(context.Context) error { return errors.New("never") }})
	if err == nil || !bytes.Contains([]byte(err.Error()), []byte("why")) {
		t.Errorf("error of a process that ends is %v, want its log", err)
	}
	if err := c.StartProcess(t.Context(), ProcessSpec{Name: "ends", Path: "/bin/sh", Args: []string{"-c", "echo run; sleep 1"}, Again: true}); err != nil {
		t.Fatal(err)
	}
	runs := func() int {
		log, _ := os.ReadFile(c.LogPath("ends"))
		return bytes.Count(log, []byte("run"))
	}
	eventually(t, "waiting for the process to be started again", func(context.Context) error {
		if n := runs(); n < 2 {
			return fmt.Errorf("it was started %d times", n)
		}
		return nil
	})
	if err := c.Kill(t.Context(), "ends"); err != nil {
		t.Error(err)
	}
	killed, err := c.readProcess("ends")
	if err != nil {
		t.Fatal(err)
	}
	n, ended := runs(), make(chan struct{})
	close(ended)
	c.startAgain(killed, ended)
	if now := runs(); now != n {
		t.Errorf("a process that was killed is started again: %d runs, %d before", now, n)
	}
	if err := c.RemoveProcess(t.Context(), "ends"); err != nil {
		t.Error(err)
	}
	if err := c.Kill(t.Context(), "no-such-thing"); err == nil {
		t.Error("killing an unknown process works")
	}
}

func testAttach(t *testing.T, c *Cluster) {
	attached, err := Attach(t.Context(), c.Name())
	if err != nil {
		t.Fatal(err)
	}
	if err := attached.Restart(t.Context(), ControllerManager); err != nil {
		t.Fatal(err)
	}
	nodes, err := newClient(t, attached.AdminConfig()).CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) != 4 {
		t.Errorf("attached cluster shows %d nodes: %v", len(nodes.Items), err)
	}
	infos, err := List()
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range infos {
		if info.Name == c.Name() && !info.Leftover && info.Dir == c.Dir() {
			return
		}
	}
	t.Errorf("list %v lacks %s", infos, c.Name())
}

func testAuditLog(t *testing.T, c *Cluster) {
	data, err := os.ReadFile(c.AuditLogPath())
	if err != nil {
		t.Fatal(err)
	}
	verbs := map[string]int{}
	for line := range bytes.Lines(data) {
		var event struct{ Verb string }
		if err := json.Unmarshal(line, &event); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		verbs[event.Verb]++
	}
	if verbs["create"] == 0 || verbs["patch"] == 0 || verbs["get"]+verbs["list"]+verbs["watch"] > 0 {
		t.Errorf("verbs in the audit log: %v", verbs)
	}
}
