// Package doctor looks for what is wrong with an installation of Atoll.
package doctor

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/atoll-k8s/atoll/internal/domain/connectivity"
	"github.com/atoll-k8s/atoll/internal/machinery/certs"
)

// Report is the answer, and what -o json and -o yaml print.
type Report struct {
	Namespace  string `json:"namespace"`
	Version    string `json:"version"`
	Mode       string `json:"mode"`
	Kubernetes string `json:"kubernetes"`
	// Checks are in the order in which faults should be mended.
	Checks []Check `json:"checks"`
	// Unread tells which rights are missing to say more.
	Unread []string `json:"unread,omitempty"`
}

// Check is about one part of the installation.
type Check struct {
	Name string `json:"name"`
	// Good is what was seen; "" if there are faults, or if too little could be read.
	Good   string  `json:"good,omitempty"`
	Faults []Fault `json:"faults,omitempty"`
}

// Fault is something that is wrong.
type Fault struct {
	What string `json:"what"`
	// Command mends it, or shows more about it.
	Command string `json:"command"`
}

// Faulty reports whether anything is wrong.
func (r *Report) Faulty() bool {
	return slices.ContainsFunc(r.Checks, func(c Check) bool { return len(c.Faults) > 0 })
}

// How long something may take before it is a fault.
const (
	// clockTolerance is how far the clock of a node may be ahead of that of the API server.
	clockTolerance = 10 * time.Second
	// heartbeatAge is the age of a heartbeat up to which the kubelet counts as alive, as for
	// kube-controller-manager.
	heartbeatAge = 40 * time.Second
	// notTakenAfter is how long after a pod got its node its kubelet must have seen it; a kubelet
	// needs a second.
	notTakenAfter = 2 * time.Minute
	// expiresSoon is how long before its end a certificate should have been renewed.
	expiresSoon = 7 * 24 * time.Hour
)

// Of examines what was read.
func Of(o *Observed) Report {
	r := Report{Namespace: o.Namespace, Version: o.Version, Mode: o.Mode, Kubernetes: o.Server}
	for _, check := range []func() Check{
		o.objects, o.rights, o.definitions, o.manager, o.leader, o.webhooks, o.certificates, o.scheduling, o.versions, o.clocks, o.nodes,
	} {
		r.Checks = append(r.Checks, check())
	}
	return r
}

func (c *Check) fault(command, format string, args ...any) {
	c.Faults = append(c.Faults, Fault{fmt.Sprintf(format, args...), command})
}

// unless sets what is good, if there is no fault.
func (c *Check) unless(format string, args ...any) Check {
	if len(c.Faults) == 0 {
		c.Good = fmt.Sprintf(format, args...)
	}
	return *c
}

// again is the command that applies once more what was installed: by Helm, or from the file that make manifest
// writes.
func (o *Observed) again() string {
	if o.Release == "" {
		return "kubectl apply --server-side --force-conflicts -f dist/install.yaml"
	}
	return fmt.Sprintf("helm -n %s get manifest %s | kubectl apply --server-side --force-conflicts -f -", o.Namespace, o.Release)
}

const definition = "CustomResourceDefinition"

func isRight(o Object) bool { return strings.HasPrefix(o.APIVersion, "rbac.authorization.k8s.io/") }

func (o *Observed) objects() Check {
	return o.asInstalled("Objects", "all %d are there; webhooks and admission policies are as they were installed", func(object Object) bool { return object.Kind != definition && !isRight(object) })
}

func (o *Observed) rights() Check {
	return o.asInstalled("Rights", "all %d objects of RBAC are as they were installed", isRight)
}

// asInstalled compares objects with those that the chart has installed. good says of how many all is well.
func (o *Observed) asInstalled(name, good string, of func(Object) bool) Check {
	c := Check{Name: name}
	var missing, changed []string
	seen := 0
	for _, want := range o.Objects {
		if !of(want) || o.Unread[want] {
			continue
		}
		have := o.There[want]
		if have == nil {
			missing = append(missing, want.String())
			continue
		}
		if content, err := contentOf(have); want.Content != "" && (err != nil || content != want.Content) {
			changed = append(changed, want.String())
		}
		seen++
	}
	if len(missing) > 0 {
		c.fault(o.again(), "missing: %s", strings.Join(missing, ", "))
	}
	if len(changed) > 0 {
		c.fault(o.again(), "not as they were installed: %s", strings.Join(changed, ", "))
	}
	if seen == 0 {
		return c
	}
	return c.unless(good, seen)
}

func (o *Observed) definitions() Check {
	c := Check{Name: "Definitions"}
	for _, want := range o.Objects {
		if want.Kind != definition || o.Unread[want] {
			continue
		}
		have := o.There[want]
		if have == nil {
			c.fault(o.again(), "%s is missing", want)
			continue
		}
		if owner := have.GetLabels()["app.kubernetes.io/part-of"]; owner != "atoll" {
			c.fault("kubectl get crd "+want.Name+" -o yaml", "%s is another owner's: its label app.kubernetes.io/part-of is %q. Stop that owner before you take the definition over; or, for pools, install with pools.enabled=false (docs/beside.md)", want, owner)
			continue
		}
		crd := typed[apiextensionsv1.CustomResourceDefinition](o, definition, want.Name)
		if crd == nil {
			continue
		}
		for _, condition := range crd.Status.Conditions {
			if condition.Type != apiextensionsv1.Terminating && condition.Status == apiextensionsv1.ConditionFalse {
				c.fault("kubectl describe crd "+want.Name, "%s: %s", want, condition.Message)
			}
		}
	}
	return c.unless("the CustomResourceDefinitions are Atoll's, and are served")
}

// typed returns an object of the installation; nil if it is not there.
func typed[T any](o *Observed, kind, name string) *T {
	for object, have := range o.There {
		if object.Kind == kind && object.Name == name {
			into := new(T)
			if runtime.DefaultUnstructuredConverter.FromUnstructured(have.Object, into) == nil {
				return into
			}
		}
	}
	return nil
}

func (o *Observed) managers() *appsv1.Deployment {
	return typed[appsv1.Deployment](o, "Deployment", manager)
}

// podsOf is a command about the pods of a Deployment of the release.
func (o *Observed) podsOf(name string) string {
	return fmt.Sprintf("kubectl -n %s describe pods -l app.kubernetes.io/name=%s", o.Namespace, name)
}

func (o *Observed) manager() Check {
	c := Check{Name: "atoll-manager"}
	d := o.managers()
	if d == nil {
		if slices.ContainsFunc(o.Objects, func(object Object) bool { return object.Kind == "Deployment" && object.Name == manager }) {
			return c // it is missing, or may not be read
		}
		return c.unless("runs outside of the cluster")
	}
	want := int32(1)
	if d.Spec.Replicas != nil {
		want = *d.Spec.Replicas
	}
	switch ready := d.Status.ReadyReplicas; {
	case want == 0:
		c.fault(fmt.Sprintf("kubectl -n %s scale deployment %s --replicas=2", o.Namespace, manager), "it has 0 replicas")
	case ready < want:
		c.fault(o.podsOf(manager), "%d of %d replicas are Ready", ready, want)
	case d.Status.UpdatedReplicas < want:
		c.fault(fmt.Sprintf("kubectl -n %s rollout status deployment %s", o.Namespace, manager), "%d of %d replicas are of the newest revision", d.Status.UpdatedReplicas, want)
	}
	return c.unless("%d of %d replicas are Ready", d.Status.ReadyReplicas, want)
}

// led tells what is wrong with a Lease; "" if somebody renews it.
func (o *Observed) led(lease *coordinationv1.Lease) string {
	switch {
	case lease == nil:
		return "there is no Lease"
	case lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" || lease.Spec.RenewTime == nil || lease.Spec.LeaseDurationSeconds == nil:
		return "nobody holds the Lease"
	}
	// The clock of the API server is read in whole seconds.
	if age := o.Now.Sub(lease.Spec.RenewTime.Time); age > time.Duration(*lease.Spec.LeaseDurationSeconds+1)*time.Second {
		return fmt.Sprintf("%s renewed the Lease last %s ago", *lease.Spec.HolderIdentity, age.Round(time.Second))
	}
	return ""
}

func (o *Observed) leader() Check {
	c := Check{Name: "Leader"}
	if o.Hidden[&o.Leader] {
		return c
	}
	if problem := o.led(o.Leader); problem != "" {
		command := fmt.Sprintf("kubectl -n %s get lease %s -o yaml", o.Namespace, manager)
		if o.managers() != nil {
			command = fmt.Sprintf("kubectl -n %s logs deployment/%s --tail=50", o.Namespace, manager)
		}
		c.fault(command, "no replica of atoll-manager leads, so nothing is decided: %s", problem)
		return c
	}
	leader, _, _ := strings.Cut(*o.Leader.Spec.HolderIdentity, "_")
	return c.unless("%s leads", leader)
}

func (o *Observed) webhooks() Check {
	c := Check{Name: "Webhooks"}
	clients := map[string][]admissionv1.WebhookClientConfig{}
	if m := typed[admissionv1.MutatingWebhookConfiguration](o, "MutatingWebhookConfiguration", "atoll-pods"); m != nil {
		for i := range m.Webhooks {
			clients["mutatingwebhookconfiguration atoll-pods"] = append(clients["mutatingwebhookconfiguration atoll-pods"], m.Webhooks[i].ClientConfig)
		}
	}
	if v := typed[admissionv1.ValidatingWebhookConfiguration](o, "ValidatingWebhookConfiguration", "atoll-policies"); v != nil {
		for i := range v.Webhooks {
			clients["validatingwebhookconfiguration atoll-policies"] = append(clients["validatingwebhookconfiguration atoll-policies"], v.Webhooks[i].ClientConfig)
		}
	}
	service := false
	for _, name := range []string{"mutatingwebhookconfiguration atoll-pods", "validatingwebhookconfiguration atoll-policies"} {
		var wrong []string
		for i, one := range clients[name] {
			service = service || one.Service != nil
			if o.Secret != nil && !bytes.Equal(one.CABundle, o.Secret.Data["ca.crt"]) {
				wrong = append(wrong, fmt.Sprintf(`{"op":"add","path":"/webhooks/%d/clientConfig/caBundle","value":"'$(kubectl -n %s get secret %s -o jsonpath='{.data.ca\.crt}')'"}`, i, o.Namespace, clientSecret))
			}
		}
		if len(wrong) > 0 {
			c.fault(fmt.Sprintf("kubectl patch %s --type=json -p='[%s]'", name, strings.Join(wrong, ",")),
				"%s: caBundle is not the CA of atoll-manager, so the API server does not call it. atoll-manager mends this within a minute, if it runs and rbac.writeCABundle is true", name)
		}
	}
	if service && o.ready() == 0 && !o.Hidden[&o.Endpoints] {
		c.fault(o.podsOf(manager), "Service %s/%s has no endpoint that is Ready", o.Namespace, manager)
	}
	switch {
	case o.Unprobed || strings.Contains(fmt.Sprint(o.Probe), `admission webhook "nodegroups.groupmanagement.kubeedge.io" denied the request`):
	case o.Probe == nil:
		c.fault(`kubectl get --raw /metrics | grep '^apiserver_admission_webhook_\(fail_open\|request\).*groupmanagement'`,
			"the API server does not reach them: pods are created without their NodeGroup, and bad policies are accepted. Its log has the cause")
	default:
		c.fault("echo '"+invalid+"' | kubectl create --dry-run=server -f -", "the API server was asked to create an invalid NodeGroup, as a dry run, and did not ask them: %v", o.Probe)
	}
	if o.Unprobed {
		return c
	}
	return c.unless("the API server reaches them")
}

// ready counts the endpoints of atoll-manager's Service.
func (o *Observed) ready() (n int) {
	for i := range o.Endpoints.Items {
		for _, endpoint := range o.Endpoints.Items[i].Endpoints {
			if endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready {
				n++
			}
		}
	}
	return n
}

func (o *Observed) certificates() Check {
	c := Check{Name: "Certificates"}
	command := fmt.Sprintf("kubectl -n %s delete secret %s", o.Namespace, clientSecret)
	switch {
	case o.Hidden[&o.Secret]:
		return c
	case o.Secret == nil:
		c.fault(fmt.Sprintf("kubectl -n %s get secrets", o.Namespace), "there is no Secret %s/%s: atoll-manager makes it within a minute, if it runs", o.Namespace, clientSecret)
		return c
	}
	then := "; delete it, and atoll-manager makes a new one within a minute"
	if o.Mode == "Plain" {
		then += ", for you to copy to kube-scheduler, which must be restarted (docs/extender.md)"
	}
	until := time.Time{}
	for _, key := range []string{"ca.crt", corev1.TLSCertKey} {
		cert, err := certs.ParseCert(o.Secret.Data[key])
		switch {
		case err != nil:
			c.fault(command, "Secret %s/%s, %s: %v%s", o.Namespace, clientSecret, key, err, then)
		case cert.NotAfter.Before(o.Now):
			c.fault(command, "Secret %s/%s, %s: it expired at %s%s", o.Namespace, clientSecret, key, day(cert.NotAfter), then)
		case cert.NotAfter.Before(o.Now.Add(expiresSoon)):
			c.fault(command, "Secret %s/%s, %s: it expires at %s, and was not renewed%s", o.Namespace, clientSecret, key, day(cert.NotAfter), then)
		default:
			until = cert.NotAfter
		}
	}
	return c.unless("that of kube-scheduler for the extender is valid until %s", day(until))
}

func day(t time.Time) string { return t.UTC().Format(time.DateOnly) }

func (o *Observed) scheduling() Check {
	c := Check{Name: "Scheduling"}
	if d := o.managers(); d != nil && len(d.Spec.Template.Spec.Containers) > 0 {
		args := d.Spec.Template.Spec.Containers[0].Args
		for _, of := range []struct{ flag, mode string }{{"--assignment=Early", "Pinned"}, {"--scheduler-name=" + scheduler, "Isolated"}} {
			switch has := slices.Contains(args, of.flag); {
			case has && o.Mode != of.mode:
				c.fault(o.again(), "atoll-manager runs with %s, which is for the form %s and not for %s", of.flag, of.mode, o.Mode)
			case !has && o.Mode == of.mode:
				c.fault(o.again(), "atoll-manager runs without %s, which the form %s needs", of.flag, of.mode)
			}
		}
	}
	switch o.Mode {
	case "Isolated":
		if problem := o.led(o.Scheduler); problem != "" && !o.Hidden[&o.Scheduler] {
			c.fault(o.podsOf(scheduler), "the second kube-scheduler, atoll-scheduler, does not run, so late pods wait: %s", problem)
		}
	case "Plain":
		for i := range o.Schedulers.Items {
			pod := &o.Schedulers.Items[i]
			if !slices.ContainsFunc(pod.Spec.Containers, hasConfig) {
				c.fault(fmt.Sprintf("kubectl -n %s get configmap atoll-kube-scheduler -o jsonpath='{.data.config\\.yaml}'", o.Namespace),
					"Pod kube-system/%s runs without --config, so it does not call the extender. Give it the file that the command prints (docs/scheduler.md)", pod.Name)
			}
		}
	}
	if o.Mode != "Isolated" {
		for i := range o.Pods.Items {
			pod := &o.Pods.Items[i]
			if pod.Spec.SchedulerName == scheduler && pod.Spec.NodeName == "" {
				c.fault(fmt.Sprintf("kubectl -n %s get pod %s -o yaml", pod.Namespace, pod.Name),
					"pod %s/%s waits for atoll-scheduler, which the form %s does not have: recreate it, and take spec.schedulerName out of its template if it is there", pod.Namespace, pod.Name, o.Mode)
				break // one shows it
			}
		}
	}
	switch {
	case o.Hidden[&o.Pods], o.Mode == "Isolated" && o.Hidden[&o.Scheduler], o.Mode == "Plain" && o.Hidden[&o.Schedulers]:
		return c
	case o.Mode == "Plain" && len(o.Schedulers.Items) == 0:
		return c.unless("kube-scheduler runs outside of the cluster, so it is not known whether it calls the extender")
	}
	return c.unless("as the form %s needs it", o.Mode)
}

func hasConfig(c corev1.Container) bool {
	return slices.ContainsFunc(slices.Concat(c.Command, c.Args), func(arg string) bool { return arg == "--config" || strings.HasPrefix(arg, "--config=") })
}

func (o *Observed) versions() Check {
	c := Check{Name: "Versions"}
	if o.Own != o.Version && o.Own != "devel" {
		c.fault("kubectl krew upgrade atoll", "this kubectl-atoll is of version %s, and Atoll of %s: what it plans may differ from what happens", o.Own, o.Version)
	}
	for _, want := range o.Objects {
		have := o.There[want]
		if have == nil || want.Kind != definition && want.Kind != "Deployment" {
			continue
		}
		if is := have.GetLabels()["app.kubernetes.io/version"]; is != "" && is != o.Version && have.GetLabels()["app.kubernetes.io/part-of"] == "atoll" {
			c.fault(o.again(), "%s is of version %s, and Atoll of %s", want, is, o.Version)
		}
	}
	if d := typed[appsv1.Deployment](o, "Deployment", scheduler); d != nil && len(d.Spec.Template.Spec.Containers) > 0 {
		image := d.Spec.Template.Spec.Containers[0].Image
		_, tag, _ := strings.Cut(image[strings.LastIndex(image, "/")+1:], ":")
		its, err := version.ParseSemantic(tag)
		server, errServer := version.ParseSemantic(o.Server)
		if err == nil && errServer == nil && its.Major() == server.Major() && its.Minor() > server.Minor() {
			c.fault(fmt.Sprintf("kubectl -n %s set image deployment/%s kube-scheduler=%s:v%s", o.Namespace, scheduler, strings.TrimSuffix(image, ":"+tag), server.WithPreRelease("").WithBuildMetadata("")),
				"atoll-scheduler is kube-scheduler %s, newer than the API server, %s", tag, o.Server)
		}
	}
	return c.unless("Atoll %s, Kubernetes %s", o.Version, o.Server)
}

func (o *Observed) clocks() Check {
	c := Check{Name: "Clocks"}
	ahead := func(what string, lease *coordinationv1.Lease) {
		if lease == nil || lease.Spec.RenewTime == nil {
			return
		}
		if by := lease.Spec.RenewTime.Sub(o.Now); by > clockTolerance {
			c.fault("timedatectl set-ntp true", "the clock of %s is %s ahead of that of the API server: set it there", what, by.Round(time.Second))
		}
	}
	ahead("atoll-manager's node", o.Leader)
	for i := range o.Heartbeats.Items {
		lease := &o.Heartbeats.Items[i]
		if o.node(lease.Name) != nil {
			ahead("node "+lease.Name, lease)
		}
	}
	if o.Hidden[&o.Heartbeats] || o.Hidden[&o.Nodes] {
		return c
	}
	return c.unless("no node's clock is ahead of the API server's")
}

func (o *Observed) node(name string) *corev1.Node {
	for i := range o.Nodes.Items {
		if o.Nodes.Items[i].Name == name {
			return &o.Nodes.Items[i]
		}
	}
	return nil
}

// nodes finds kubelets that report and do not see their pods: what they read is old, as of an
// atoll-hub that serves what it has kept although the cloud can be reached.
func (o *Observed) nodes() Check {
	c := Check{Name: "Nodes"}
	alive := map[string]bool{}
	for i := range o.Heartbeats.Items {
		lease := &o.Heartbeats.Items[i]
		alive[lease.Name] = lease.Spec.RenewTime != nil && o.Now.Sub(lease.Spec.RenewTime.Time) <= heartbeatAge
	}
	named := map[string]bool{}
	for i := range o.Pods.Items {
		pod := &o.Pods.Items[i]
		name := pod.Spec.NodeName
		if named[name] || !alive[name] || pod.Status.StartTime != nil || o.Now.Sub(boundAt(pod)) < notTakenAfter {
			continue
		}
		if node := o.node(name); node == nil || !connectivity.IsReady(node) {
			continue
		}
		named[name] = true
		c.fault("journalctl --since=-10min -u atoll-hub -u kubelet",
			"node %s reports, and has not seen pod %s/%s since %s: its atoll-hub, if it has one, holds the pod or serves what is old; read the logs there", name, pod.Namespace, pod.Name, boundAt(pod).UTC().Format(time.TimeOnly))
	}
	if o.Hidden[&o.Nodes] || o.Hidden[&o.Pods] || o.Hidden[&o.Heartbeats] {
		return c
	}
	return c.unless("every kubelet that sends heartbeats has seen its pods")
}

// boundAt is when a pod got its node.
func boundAt(pod *corev1.Pod) time.Time {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionTrue {
			return condition.LastTransitionTime.Time
		}
	}
	return pod.CreationTimestamp.Time
}
