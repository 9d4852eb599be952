package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/internal/machinery/certs"
)

// admissionCost measures what the pod webhook adds to the creation of a pod,
// against a webhook that does nothing.
var admissionCost = benchmark{
	name: "admission", unit: "ms added", nodes: 100, pods: 600,
	about: `The time that the pod webhook adds to the creation of a pod ÷ the time that a webhook adds that answers at once and changes nothing.

- The added time is the time with a webhook minus the time without any, at the median (p50) or at the 99th percentile (p99). Pods are created by 1, 8 or 64
  writers; ` + "`managed`" + ` pods require a PropagationPolicy and get their seat, labels and node affinity, ` + "`divided`" + ` ones get their class of capacity, half
  of them on-demand, and ` + "`unmanaged`" + ` ones have a ReplicaSet whose workload asks for nothing.
- All are measured in turns of 100 pods. Pods of one namespace pass Atoll's webhook, pods of the second the other webhook, pods of the third none. The other
  webhook has the same conditions, TLS and timeout, and decodes its requests.
- ` + "`against a patch`" + ` compares with a webhook that also answers at once, always with the same patch, of the size of Atoll's. This measures the API server's own work on
  any patch, and on the larger pod.
- The form is Pinned. No scheduler, controller or kubelet handles the pods.`,
	variants: []variant{
		costVariant("managed", 1, 50), costVariant("managed", 1, 99), costVariant("managed", 8, 50), costVariant("managed", 8, 99), costVariant("managed", 64, 50), costVariant("managed", 64, 99),
		patchVariant("managed", 1, 50), patchVariant("managed", 1, 99), patchVariant("managed", 8, 50), patchVariant("managed", 8, 99), patchVariant("managed", 64, 50), patchVariant("managed", 64, 99),
		costVariant("divided", 1, 50), costVariant("divided", 1, 99), costVariant("divided", 8, 50), costVariant("divided", 8, 99), costVariant("divided", 64, 50), costVariant("divided", 64, 99),
		patchVariant("divided", 1, 50), patchVariant("divided", 1, 99), patchVariant("divided", 8, 50), patchVariant("divided", 8, 99), patchVariant("divided", 64, 50), patchVariant("divided", 64, 99),
		costVariant("unmanaged", 1, 50), costVariant("unmanaged", 1, 99), costVariant("unmanaged", 8, 50), costVariant("unmanaged", 8, 99), costVariant("unmanaged", 64, 50), costVariant("unmanaged", 64, 99),
	},
	open: openCost,
}

func costVariant(kind string, writers, percent int) variant {
	ideal := map[int]string{50: "≤ 1.3", 99: "≤ 1.5"}[percent]
	return variant{
		name: fmt.Sprintf("%s %d p%d", kind, writers, percent), ideal: ideal,
		a: fmt.Sprintf("our webhook, %s pods, writers: %d", kind, writers), b: "a webhook that does nothing",
	}
}

// patchVariant compares with a webhook that patches.
func patchVariant(kind string, writers, percent int) variant {
	v := costVariant(kind, writers, percent)
	v.name += patching
	v.b = "a webhook that always answers with the same patch"
	return v
}

const (
	// patching ends the names of variants that compare with a webhook that patches.
	patching = " against a patch"
	// block is the number of pods that are created before the next webhook has its turn.
	block = 100
	// The namespaces in addition to that of Atoll's webhook: those of the other webhooks,
	// and one without a webhook.
	idleNamespace, patchNamespace, bareNamespace = "perf-idle", "perf-patch", "perf-bare"
)

type costBench struct {
	*bed
	dirs []string // of the other webhooks
	// sets are the owners of pods by namespace, then kind.
	sets map[string]map[string]*appsv1.ReplicaSet
	// measured are the times of the last round by kind and writers; several variants read
	// them.
	measured map[string]*costs
	created  int
}

// costs are times by namespace.
type costs struct {
	times     map[string][]time.Duration
	used      map[string]usage
	strangers float64
	read      map[string]bool // by what was read
}

func openCost(ctx context.Context, o options, log io.Writer) (bench, error) {
	b, err := makeBed(ctx, settings{options: o, pinned: true, excluded: []string{idleNamespace, patchNamespace, bareNamespace}, log: log})
	if err != nil {
		return nil, err
	}
	c := &costBench{bed: b, sets: map[string]map[string]*appsv1.ReplicaSet{}, measured: map[string]*costs{}}
	if err := c.prepare(ctx); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

func (c *costBench) close() error {
	err := c.bed.close()
	for _, dir := range c.dirs {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return err
}

func (c *costBench) prepare(ctx context.Context) error {
	if err := c.createGroups(ctx); err != nil {
		return err
	}
	for _, name := range []string{idleNamespace, patchNamespace, bareNamespace} {
		if _, err := c.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("creating namespace %q: %w", name, err)
		}
	}
	for _, name := range []string{namespace, idleNamespace, patchNamespace, bareNamespace} {
		err := c.eventually(ctx, "the ServiceAccount of namespace "+name, func(ctx context.Context) (bool, error) {
			accounts, err := c.client.CoreV1().ServiceAccounts(name).List(ctx, metav1.ListOptions{})
			return err == nil && len(accounts.Items) > 0, err
		})
		if err != nil {
			return err
		}
	}
	// Only this program may create, bind or delete pods.
	for _, name := range []string{devcluster.ControllerManager, devcluster.Scheduler} {
		if err := c.cluster.Kill(ctx, name); err != nil {
			return err
		}
	}
	ours := map[string]*appsv1.ReplicaSet{}
	var err error
	for kind, w := range map[string]workload{
		"unmanaged": {}, "managed": {policy: evenPolicy}, "divided": {onDemand: c.options.pods / 2},
	} {
		if ours[kind], err = c.createOwners(ctx, kind, w, c.options.pods+2*block); err != nil {
			return err
		}
	}
	c.sets[namespace] = ours
	for _, name := range []string{idleNamespace, patchNamespace, bareNamespace} {
		c.sets[name] = map[string]*appsv1.ReplicaSet{}
		for kind, set := range ours {
			copied := set.DeepCopy()
			copied.Namespace = name
			copied.UID += types.UID("-" + name) // its pods do not pass Atoll's webhook
			c.sets[name][kind] = copied         // the API server does not check that the owner exists
		}
	}
	if err := c.startOther(ctx, idleNamespace, nil); err != nil {
		return err
	}
	if err := c.startOther(ctx, patchNamespace, []byte(samplePatch)); err != nil {
		return err
	}
	return rest(ctx, webhookKnown)
}

// samplePatch is the answer of Atoll's webhook for a pod like those of the benchmark.
const samplePatch = `[
{"op":"add","path":"/metadata/annotations","value":{"example.com/admitted":"true","example.com/seat":"6d1cf3cb-bfde-4cd6-a87e-9a0c2b9a1c52"}},
{"op":"add","path":"/metadata/labels/example.com~1nodegroup","value":"group-0"},
{"op":"add","path":"/metadata/labels/example.com~1required-propagationpolicy","value":"even"},
{"op":"add","path":"/metadata/labels/example.com~1binding-propagationpolicy","value":"even"},
{"op":"add","path":"/spec/affinity","value":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"example.com/nodegroup","operator":"In","values":["group-0"]}]}]}}}}]`

// startOther starts and configures a webhook for the pods of one namespace that answers
// at once, with a patch or none.
func (c *costBench) startOther(ctx context.Context, name string, patch []byte) error {
	now := time.Now()
	ca, err := certs.NewCA(now)
	if err != nil {
		return err
	}
	issued, err := certs.Issue(ca, certs.Leaf{CommonName: name, Names: []string{"127.0.0.1"}}, now)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", name)
	if err != nil {
		return fmt.Errorf("making a directory: %w", err)
	}
	c.dirs = append(c.dirs, dir)
	for file, content := range map[string][]byte{"tls.crt": issued.Cert, "tls.key": issued.Key, "ca.crt": ca.Cert, "patch.json": patch} {
		if err := os.WriteFile(filepath.Join(dir, file), content, 0o600); err != nil {
			return fmt.Errorf("writing for the webhook of namespace %s: %w", name, err)
		}
	}
	port, err := devcluster.FreePort()
	if err != nil {
		return err
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	// A separate process, as for Atoll's webhook, because a process that is running
	// already would answer faster.
	err = c.cluster.StartProcess(ctx, devcluster.ProcessSpec{
		Name: name, Path: program, Args: []string{"-webhook", dir, "-profile-address", address},
		HealthURL: "https://" + address + "/readyz", HealthCAFile: filepath.Join(dir, "ca.crt"),
	})
	if err != nil {
		return err
	}

	configs := c.client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	config, err := configs.Get(ctx, podWebhook, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading the webhook: %w", err)
	}
	other := config.Webhooks[0].DeepCopy()
	other.Name = name + ".example.com"
	other.ClientConfig = admissionregistrationv1.WebhookClientConfig{URL: new("https://" + address), CABundle: ca.Cert}
	other.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: name}}
	_, err = configs.Create(ctx, &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Webhooks: []admissionregistrationv1.MutatingWebhook{*other},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("configuring the webhook of namespace %s: %w", name, err)
	}
	return nil
}

// allow answers AdmissionReviews at once, with a patch or none.
func allow(patch []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
			http.Error(w, "an AdmissionReview is expected", http.StatusBadRequest)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		if len(patch) > 0 {
			review.Response.Patch, review.Response.PatchType = patch, new(admissionv1.PatchTypeJSONPatch)
		}
		review.Request = nil
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review) // the client has closed the connection
	}
}

// serveWebhook is the peer: a webhook that answers at once.
func serveWebhook(ctx context.Context, o options) error {
	patch, err := os.ReadFile(filepath.Join(o.webhook, "patch.json"))
	if err != nil {
		return fmt.Errorf("reading the answer: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/", allow(patch))
	mux.HandleFunc("/readyz", func(http.ResponseWriter, *http.Request) {})
	server := &http.Server{Addr: o.profile, Handler: mux, ReadHeaderTimeout: time.Minute}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	err = server.ListenAndServeTLS(filepath.Join(o.webhook, "tls.crt"), filepath.Join(o.webhook, "tls.key"))
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving: %w", err)
	}
	return nil
}

// racing measures all sides in the same round.
func (c *costBench) racing(_ context.Context, variant string) (*race, error) {
	other := idleNamespace
	if strings.HasSuffix(variant, patching) {
		other = patchNamespace
	}
	parts := strings.Fields(strings.TrimSuffix(variant, patching))
	if len(parts) != 3 {
		return nil, fmt.Errorf("choosing sides: there is no variant %q", variant)
	}
	kind := parts[0]
	writers, err := strconv.Atoi(parts[1])
	if err != nil {
		return nil, fmt.Errorf("choosing sides: there is no variant %q", variant)
	}
	p := map[string]float64{"p50": 0.5, "p99": 0.99}[parts[2]]
	return &race{a: variant, b: other, run: func(ctx context.Context) (pair, error) { return c.measure(ctx, kind, other, writers, p) }}, nil
}

func (c *costBench) measure(ctx context.Context, kind, other string, writers int, p float64) (result pair, err error) {
	key := fmt.Sprintf("%s %d", kind, writers)
	reading := fmt.Sprintf("%s %v", other, p)
	found := c.measured[key]
	if found == nil || found.read[reading] { // the next round
		if found, err = c.round(ctx, kind, writers); err != nil {
			return result, err
		}
		c.measured[key] = found
	}
	found.read[reading] = true
	at := func(name string) float64 { return milliseconds(percentile(found.times[name], p)) }
	bare := at(bareNamespace)
	result.a = sample{rate: at(namespace) - bare, off: -1, strangers: found.strangers, facts: fmt.Sprintf("%.2f ms, without any %.2f ms; with %s; without %s", at(namespace), bare, found.used[namespace], found.used[bareNamespace])}
	result.b = sample{rate: at(other) - bare, off: -1, strangers: found.strangers, facts: fmt.Sprintf("%.2f ms; %s", at(other), found.used[other])}
	return result, nil
}

// round creates pods in the namespaces in turns, and deletes them.
func (c *costBench) round(ctx context.Context, kind string, writers int) (*costs, error) {
	names := []string{namespace, idleNamespace, patchNamespace, bareNamespace}
	for _, name := range names { // to open connections
		if _, err := c.create(ctx, name, kind, writers, writers); err != nil {
			return nil, err
		}
	}
	before, err := usageOf(ctx, c.cluster)
	if err != nil {
		return nil, err
	}
	found := &costs{times: map[string][]time.Duration{}, used: map[string]usage{}, read: map[string]bool{}}
	for range c.options.pods / block {
		for _, name := range names {
			start, err := usageOf(ctx, c.cluster)
			if err != nil {
				return nil, err
			}
			times, err := c.create(ctx, name, kind, writers, block)
			if err != nil {
				return nil, err
			}
			end, err := usageOf(ctx, c.cluster)
			if err != nil {
				return nil, err
			}
			found.times[name] = append(found.times[name], times...)
			found.used[name] = found.used[name].plus(end.since(start))
		}
	}
	after, err := usageOf(ctx, c.cluster)
	if err != nil {
		return nil, err
	}
	found.strangers = after.since(before).strangers()
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}
	for _, name := range names {
		if err := c.client.CoreV1().Pods(name).DeleteCollection(ctx, now, metav1.ListOptions{}); err != nil {
			return nil, fmt.Errorf("deleting pods: %w", err)
		}
	}
	return found, c.waitIdle(ctx)
}

// create creates n pods, writers at a time, and returns the time of each creation.
func (c *costBench) create(ctx context.Context, name, kind string, writers, n int) ([]time.Duration, error) {
	first := c.created
	c.created += n
	numbers := make([]int, n)
	for i := range numbers {
		numbers[i] = i
	}
	times := make([]time.Duration, n)
	var mu sync.Mutex
	seats, gated := 0, 0
	err := inParallel(ctx, writers, numbers, func(ctx context.Context, i int) error {
		pod := podOf(c.sets[name][kind], first+i)
		began := time.Now()
		created, err := c.client.CoreV1().Pods(name).Create(ctx, pod, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("creating a pod: %w", err)
		}
		times[i] = time.Since(began)
		mu.Lock()
		defer mu.Unlock()
		if created.Spec.Affinity != nil {
			seats++
		}
		gated += len(created.Spec.SchedulingGates)
		return nil
	})
	want := 0
	if name == patchNamespace || name == namespace && kind != "unmanaged" {
		want = n
	}
	if err == nil && seats != want {
		err = fmt.Errorf("of %d %s pods in %s %d are pinned and %d wait at the gate, want %d pinned", n, kind, name, seats, gated, want)
	}
	return times, err
}
