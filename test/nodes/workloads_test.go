package nodes

import (
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
)

// requiring returns the metadata of a workload that requires the policies of the example.
func requiring(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: "default", Labels: map[string]string{
		gm.RequiredPropagationPolicyLabel: "nginx-propagationpolicy", gm.RequiredOverridePolicyLabel: "nginx-overridepolicy",
	}}
}

// template returns pods with a label app, of one container with the image of the example.
func template(app string, container corev1.Container) corev1.PodTemplateSpec {
	container.Name, container.Image = app, "nginx:1.27"
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{container}},
	}
}

func (r *rig) create(objects ...client.Object) {
	r.Helper()
	for _, o := range objects {
		if err := r.client.Create(r.Context(), o); err != nil {
			r.Fatal(err)
		}
	}
}

// late runs a Deployment whose pods get their group from the second kube-scheduler, by the extender
// at the name of its Service.
func (r *rig) late() {
	r.Helper()
	policy := &gm.PropagationPolicy{}
	if err := r.client.Get(r.Context(), client.ObjectKey{Namespace: "default", Name: "nginx-propagationpolicy"}, policy); err != nil {
		r.Fatal(err)
	}
	policy.ObjectMeta = metav1.ObjectMeta{Namespace: "default", Name: "late"}
	policy.Spec.Assignment = gm.AssignmentLate
	pods := template("late", corev1.Container{})
	deployment := &appsv1.Deployment{ObjectMeta: requiring("late"), Spec: appsv1.DeploymentSpec{
		Replicas: new(int32(5)), Template: pods, Selector: &metav1.LabelSelector{MatchLabels: pods.Labels},
	}}
	deployment.Labels[gm.RequiredPropagationPolicyLabel] = policy.Name
	before := len(r.past())
	r.create(policy, deployment)
	r.eventually("the second kube-scheduler places pods", func() error {
		list := r.pods("default", "late")
		var others []string
		for _, pod := range list {
			if pod.Spec.SchedulerName == atoll.Scheduler {
				continue
			}
			if _, admitted := pod.Annotations[gm.AdmittedAnnotation]; admitted {
				r.Fatalf("pod %s is one of %s", pod.Name, pod.Spec.SchedulerName)
			}
			others = append(others, pod.Name+" of "+pod.Spec.SchedulerName)
		}
		if past := r.past()[before:]; len(others) > len(past) {
			r.Fatalf("the API server let %q past the webhook, and there are %q", past, others)
		}
		return r.divided(list)
	})
	r.kubectl("delete", "deployment/late", "propagationpolicy/late")
}

// testEditedImage: an edit of the image of a site restarts each container there once, in its pod.
func (r *rig) testEditedImage() {
	r.push("beijing", "1.28")
	r.tags["beijing"] = "1.28"
	for _, pod := range r.pods("default", "nginx") {
		if siteOf(pod.Spec.NodeName) == "beijing" {
			r.restarted[pod.UID] = true
		}
	}
	r.kubectl("patch", "overridepolicy", "nginx-overridepolicy", "--type=json",
		`-p=[{"op":"add","path":"/spec/overrideRules/0/imageOverrider/-","value":{"component":"Tag","operator":"replace","value":"1.28"}}]`)
	r.eventually("the containers run the other image", func() error {
		changed := 0
		for _, pod := range r.pods("default", "nginx") {
			status := pod.Status.ContainerStatuses[0]
			if siteOf(pod.Spec.NodeName) != "beijing" {
				continue
			}
			if !r.restarted[pod.UID] {
				r.Fatalf("pod %s was replaced", pod.Name)
			}
			if status.RestartCount == 1 && status.Image == r.image("beijing") {
				changed++
			}
		}
		if changed != want["beijing"] {
			return fmt.Errorf("%d containers do", changed)
		}
		return nil
	})
	r.example()
}

// testJob: the pods of a Job run in the groups, each once and with the image of its group.
func (r *rig) testJob() {
	url := "http://" + r.pods("default", "nginx")[0].Status.PodIP
	pods := template("report", corev1.Container{Command: []string{"/pause", "get", url}})
	pods.Spec.RestartPolicy = corev1.RestartPolicyNever
	job := &batchv1.Job{ObjectMeta: requiring("report"), Spec: batchv1.JobSpec{
		Completions: new(int32(5)), Parallelism: new(int32(5)), BackoffLimit: new(int32(0)), Template: pods,
	}}
	r.create(job)
	r.eventually("the Job is complete", func() error {
		if err := r.client.Get(r.Context(), client.ObjectKeyFromObject(job), job); err != nil {
			return err
		}
		if job.Status.Failed > 0 {
			r.Fatalf("%d pods have failed", job.Status.Failed)
		}
		if job.Status.Succeeded != 5 {
			return fmt.Errorf("%d of 5 pods have succeeded", job.Status.Succeeded)
		}
		return nil
	})
	got := map[string]int{}
	for _, pod := range r.pods("default", "report") {
		site := siteOf(pod.Spec.NodeName)
		got[site]++
		if image := pod.Status.ContainerStatuses[0].Image; image != r.image(site) {
			r.Errorf("pod %s on %s ran %s", pod.Name, pod.Spec.NodeName, image)
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		r.Errorf("its pods ran in %v", got)
	}
	r.kubectl("delete", "job", "report")
}

// testJobGoesOn: an edit of the image, even to one that nobody can pull, ends no container that may
// not be started again. The kubelet would end it before the pull, and the Job would be complete.
func (r *rig) testJobGoesOn() {
	policy := &gm.OverridePolicy{}
	if err := r.client.Get(r.Context(), client.ObjectKey{Namespace: "default", Name: "nginx-overridepolicy"}, policy); err != nil {
		r.Fatal(err)
	}
	policy.ObjectMeta = metav1.ObjectMeta{Namespace: "default", Name: "long"}
	pods := template("long", corev1.Container{})
	pods.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
	job := &batchv1.Job{ObjectMeta: requiring("long"), Spec: batchv1.JobSpec{
		Completions: new(int32(5)), Parallelism: new(int32(5)), BackoffLimit: new(int32(0)), Template: pods,
	}}
	job.Labels[gm.RequiredOverridePolicyLabel] = policy.Name
	r.create(policy, job)
	r.eventually("the Job runs", func() error { return r.divided(r.pods("default", "long")) })
	r.kubectl("patch", "overridepolicy", "long", "--type=json",
		`-p=[{"op":"replace","path":"/spec/overrideRules/0/imageOverrider/0/value","value":"nobody.registry.io"}]`)
	r.eventually("the policy tells that the pods stay", func() error {
		const want = "pods that run until they are done stay as they started"
		if out := r.kubectl("get", "overridepolicy", "long", "-o", "jsonpath={.status.conditions[*].message}"); !strings.Contains(out, want) {
			return fmt.Errorf("its conditions say %q", out)
		}
		return nil
	})
	if err := r.divided(r.pods("default", "long")); err != nil {
		r.Error(err)
	}
	r.kubectl("delete", "job/long", "overridepolicy/long")
}

// testVolumesAndDrain: each pod of a StatefulSet stays on the node with its volume. When a node is
// drained the example goes to the other node of the group, and the pod with a volume waits.
func (r *rig) testVolumesAndDrain() {
	on := []string{"bj-0", "hz-0"}
	r.localVolumes(on...)
	pods := template("db", corev1.Container{
		Command: []string{"/pause", "serve", ":80", "/data/names"}, VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}},
		ReadinessProbe: &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(80)}}},
	})
	r.create(&appsv1.StatefulSet{ObjectMeta: requiring("db"), Spec: appsv1.StatefulSetSpec{
		Replicas: new(int32(2)), PodManagementPolicy: appsv1.ParallelPodManagement, Template: pods,
		Selector: &metav1.LabelSelector{MatchLabels: pods.Labels},
		VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: new("local"), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{"storage": resource.MustParse("1Mi")}},
		}}},
	}})
	starts := map[string]int{"bj-0": 1, "hz-0": 1}
	r.database(starts)
	r.kubectl("delete", "pod", r.databaseOn("hz-0"))
	starts["hz-0"]++
	r.database(starts)

	r.kubectl("drain", "hz-0", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=3m")
	r.example()
	for _, pod := range r.pods("", "") {
		if pod.Spec.NodeName == "hz-0" {
			r.Errorf("pod %s is on the drained node", pod.Name)
		}
	}
	r.eventually("the pod with a volume waits", func() error {
		for _, pod := range r.pods("default", "db") {
			if pod.Spec.NodeName == "" && pod.Status.Phase == corev1.PodPending {
				return nil
			}
		}
		return fmt.Errorf("no pod waits")
	})
	r.kubectl("uncordon", "hz-0")
	starts["hz-0"]++
	r.database(starts)
	r.example()
}

// localVolumes makes a local volume on each node, for claims of the class local.
func (r *rig) localVolumes(nodes ...string) {
	r.Helper()
	r.create(&storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "local"}, Provisioner: "kubernetes.io/no-provisioner",
		VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer),
	})
	for _, node := range nodes {
		path, err := r.LocalVolume(node, "data")
		if err != nil {
			r.Fatal(err)
		}
		r.create(&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{"storage": resource.MustParse("1Mi")}, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			StorageClassName: "local", PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: path}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
			}}}},
		}})
	}
}

// databaseOn returns the name of the pod of the StatefulSet that is on a node.
func (r *rig) databaseOn(node string) string {
	r.Helper()
	for _, pod := range r.pods("default", "db") {
		if pod.Spec.NodeName == node {
			return pod.Name
		}
	}
	r.Fatalf("no pod of the StatefulSet is on %s", node)
	return ""
}

// database waits until the StatefulSet has a ready pod on each node, whose volume has the name of
// that pod as often as it has started.
func (r *rig) database(starts map[string]int) {
	r.Helper()
	r.eventually("each pod of the StatefulSet is on its node with its data", func() error {
		ready := 0
		for _, pod := range r.pods("default", "db") {
			times := starts[pod.Spec.NodeName]
			if pod.DeletionTimestamp != nil || len(pod.Status.ContainerStatuses) == 0 || !pod.Status.ContainerStatuses[0].Ready {
				return fmt.Errorf("pod %s is not ready", pod.Name)
			}
			site := siteOf(pod.Spec.NodeName)
			if image := pod.Status.ContainerStatuses[0].Image; image != r.image(site) {
				r.Fatalf("pod %s on %s runs %s", pod.Name, pod.Spec.NodeName, image)
			}
			out, err := r.tryKubectl("exec", pod.Name, "--", "/pause", "get", "http://127.0.0.1")
			if err != nil || out != strings.Repeat(pod.Name+"\n", times) {
				return fmt.Errorf("pod %s on %s, which has started %d times, answers %q, %w", pod.Name, pod.Spec.NodeName, times, out, err)
			}
			ready++
		}
		if ready != len(starts) {
			return fmt.Errorf("%d pods are ready", ready)
		}
		return nil
	})
}

// testPower: a node loses its power. Its pods of the example go to the other node of the group, its
// pod with a volume waits for the node, and when it is back all is as before.
func (r *rig) testPower() {
	r.kubectl("cordon", "hz-1")
	r.kubectl("rollout", "restart", "deployment/nginx")
	r.kubectl("rollout", "status", "deployment/nginx", "--timeout=5m")
	r.kubectl("uncordon", "hz-1")
	r.example() // on hz-0, as far as it is in hangzhou
	starts := map[string]int{"bj-0": 1, "hz-0": 3}
	if err := r.Kill(r.Context(), "hz-0"); err != nil {
		r.Fatal(err)
	}
	r.eventually("the example runs on the other node", func() error {
		pods := r.pods("default", "nginx")
		moved := 0
		for _, pod := range pods {
			if pod.Spec.NodeName == "hz-1" {
				moved++
			}
		}
		if moved != want["hangzhou"] {
			return fmt.Errorf("%d pods are there", moved)
		}
		return r.divided(pods)
	})
	if err := r.Restart(r.Context(), "hz-0"); err != nil {
		r.Fatal(err)
	}
	r.kubectl("wait", "node/hz-0", "--for=condition=Ready", "--timeout=2m")
	starts["hz-0"]++
	r.database(starts)
	r.example()
	r.kubectl("delete", "statefulset", "db")
	r.kubectl("delete", "persistentvolumeclaims", "--all")
	if err := r.RestartOn(r.Context(), "hz-1", devcluster.Containerd); err != nil {
		r.Fatal(err)
	}
	r.example()
}
