package nodes

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster"
)

// creation creates pods all the time, in each round one without a policy, and one of the example,
// whose Deployment replaces a pod that is deleted. It sees all states of the example's pods that
// the API server tells.
type creation struct {
	cancel context.CancelFunc
	ended  sync.WaitGroup

	mu      sync.Mutex
	wrong   []string
	past    map[types.UID]string // bound pods of the example that have not passed the webhook
	created int                  // pods of both sorts
	longest time.Duration        // of the creation of a pod
}

const (
	// betweenRounds leaves two CPUs time for other things than to start and end containers.
	betweenRounds = 2 * time.Second
	// plain is the namespace of the pods without a policy, of which the last keepPlain stay. While there are
	// maxPlain, on a machine that takes longer than a round to start and end a pod, no more are made: they would
	// keep it from ever doing it.
	plain               = "plain"
	keepPlain, maxPlain = 3, 8
)

func (r *rig) createPods() *creation {
	r.Helper()
	kube, err := kubernetes.NewForConfig(r.AdminConfig())
	if err != nil {
		r.Fatal(err)
	}
	r.kubectl("create", "namespace", plain)
	ctx, cancel := context.WithCancel(r.Context())
	c := &creation{cancel: cancel, past: map[types.UID]string{}}
	factory := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace("default"))
	judge := func(obj any) {
		if pod, ok := obj.(*corev1.Pod); ok {
			c.judge(r, pod)
		}
	}
	if _, err := factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: judge, UpdateFunc: func(_, obj any) { judge(obj) },
	}); err != nil {
		r.Fatal(err)
	}
	factory.Start(ctx.Done())
	c.ended.Go(func() {
		<-ctx.Done()
		factory.Shutdown()
	})
	c.ended.Go(func() {
		i := 0
		wait.UntilWithContext(ctx, func(ctx context.Context) {
			if err := c.round(ctx, kube, i); err != nil && ctx.Err() == nil {
				c.fail("%v", err)
			}
			i++
		}, betweenRounds)
	})
	return c
}

func (c *creation) fail(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if text := fmt.Sprintf(format, args...); !slices.Contains(c.wrong, text) {
		c.wrong = append(c.wrong, text)
	}
}

// judge checks that a pod of the example is only bound in its group, and with its image. One that went past the
// webhook may have another image, which never runs.
func (c *creation) judge(r *rig, pod *corev1.Pod) {
	if pod.Spec.NodeName == "" {
		return
	}
	site := siteOf(pod.Spec.NodeName)
	if image := pod.Spec.Containers[0].Image; image != r.image(site) {
		why := fmt.Sprintf("pod %s is bound to %s with the image %s", pod.Name, pod.Spec.NodeName, image)
		if _, admitted := pod.Annotations[gm.AdmittedAnnotation]; admitted {
			c.fail("%s", why)
			return
		}
		c.mu.Lock()
		c.past[pod.UID] = why
		c.mu.Unlock()
	}
	for _, s := range pod.Status.ContainerStatuses {
		if s.RestartCount > 0 || s.ContainerID != "" && s.Image != r.image(site) {
			c.fail("a container of pod %s on %s runs %s, restarted %d times", pod.Name, pod.Spec.NodeName, s.Image, s.RestartCount)
		}
	}
}

// round creates a pod of each sort.
func (c *creation) round(ctx context.Context, kube kubernetes.Interface, i int) error {
	there, err := kube.CoreV1().Pods(plain).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing the pods without a policy: %w", err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("plain-%d", i)}, Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "pause", Image: devcluster.PauseImage, ImagePullPolicy: corev1.PullNever}},
	}}
	options := metav1.CreateOptions{}
	if len(there.Items) >= maxPlain {
		options.DryRun = []string{metav1.DryRunAll} // the webhooks are called all the same
	}
	began := time.Now()
	if _, err := kube.CoreV1().Pods(plain).Create(ctx, pod, options); err != nil {
		return fmt.Errorf("creating a pod without a policy: %w", err)
	}
	c.mu.Lock()
	c.created++
	c.longest = max(c.longest, time.Since(began))
	c.mu.Unlock()
	stay := slices.DeleteFunc(there.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
	slices.SortFunc(stay, func(a, b corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	if options.DryRun == nil && len(stay) >= keepPlain {
		if err := kube.CoreV1().Pods(plain).Delete(ctx, stay[0].Name, metav1.DeleteOptions{}); err != nil {
			return fmt.Errorf("deleting a pod without a policy: %w", err)
		}
	}
	list, err := kube.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=nginx"})
	if err != nil {
		return fmt.Errorf("listing the pods of the example: %w", err)
	}
	slices.SortFunc(list.Items, func(a, b corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	for _, pod := range list.Items {
		if pod.DeletionTimestamp == nil && len(pod.Status.ContainerStatuses) > 0 && pod.Status.ContainerStatuses[0].Ready {
			c.mu.Lock()
			c.created++ // by its ReplicaSet
			c.mu.Unlock()
			if err := kube.CoreV1().Pods("default").Delete(ctx, pod.Name, metav1.DeleteOptions{}); err != nil {
				return fmt.Errorf("deleting a pod of the example: %w", err)
			}
			return nil
		}
	}
	return nil
}

// past returns the lines of the API server's log about calls of the pod webhook that failed, and that it did without.
// On a machine that is very busy it has no answer in time.
func (r *rig) past() []string {
	r.Helper()
	text, err := os.ReadFile(r.LogPath(devcluster.APIServer))
	if err != nil {
		r.Fatal(err)
	}
	var past []string
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "failing open pods.groupmanagement.kubeedge.io: ") {
			past = append(past, strings.TrimSpace(line))
		}
	}
	return past
}

// noneWasAskedAtItsEnd fails the test if a replica that ended refused the API server, or closed a connection that it
// used. since is the number of failed calls that are not looked at. If other calls had no answer in time, the machine
// was too busy to tell.
func (r *rig) noneWasAskedAtItsEnd(since int) {
	r.Helper()
	past := r.past()[since:]
	if slices.ContainsFunc(past, func(line string) bool {
		return strings.HasSuffix(line, "deadline exceeded") || strings.HasSuffix(line, "currently unable to handle the request")
	}) {
		r.Logf("the API server had no answer in time: %q", past)
		return
	}
	for _, line := range past {
		r.Errorf("a pod went past the webhook: %s", line)
	}
}

// stop ends it, waits until the pods without a policy run, and fails the test if anything was
// wrong.
func (c *creation) stop(r *rig) {
	r.Helper()
	c.cancel()
	c.ended.Wait()
	for _, wrong := range c.wrong {
		r.Error(wrong)
	}
	past := r.past()
	if len(c.past) > len(past) {
		r.Errorf("the API server let %q past the webhook, and %q", past, slices.Sorted(maps.Values(c.past)))
	}
	r.Logf("%d pods were created, the slowest in %s; %d went past the webhook", c.created, c.longest.Round(time.Millisecond), len(past))
	r.eventually("pods without a policy run", func() error {
		running := 0
		for _, pod := range r.pods(plain, "") {
			if pod.DeletionTimestamp == nil && pod.Status.Phase == corev1.PodRunning {
				running++
			}
		}
		if running < keepPlain || running != len(r.pods(plain, "")) { // the last round may have deleted none
			return fmt.Errorf("%d run, want %d", running, keepPlain)
		}
		return nil
	})
	r.kubectl("delete", "namespace", plain)
}
