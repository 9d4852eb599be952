package pool

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/atoll-k8s/atoll/internal/governance"
)

// leases is a cloud with the Leases of nodes, which takes pulses and statuses of pods.
type leases struct {
	tokens

	// of has the renewTime and the delegated annotation of nodes, and version that of their last write.
	of      map[string]*[2]string
	version int
	// refuse is the code for writes with a path that ends like this.
	refuse map[string]int
	wrote  []string
	// because is why, and takes how long the cloud needs for a Lease.
	because string
	takes   time.Duration
	// each is how long it needs for each request; it then believes every version of a Lease.
	each time.Duration
}

func (c *leases) send(r *http.Request, asNode bool) (*http.Response, error) {
	name := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	isLease := strings.HasPrefix(r.URL.Path, "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/")
	if !isLease && name != "status" {
		return c.tokens.send(r, asNode)
	}
	if isLease || c.each > 0 {
		time.Sleep(max(c.takes, c.each))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	answer := func(code int, content any) (*http.Response, error) {
		text, err := json.Marshal(content)
		return &http.Response{StatusCode: code, Body: io.NopCloser(strings.NewReader(string(text)))}, err
	}
	for suffix, code := range c.refuse {
		if code != 0 && strings.HasSuffix(r.URL.Path, suffix) && r.Method != http.MethodGet {
			return answer(code, map[string]string{"message": c.because})
		}
	}
	body, _ := io.ReadAll(r.Body)
	if !isLease {
		c.wrote = append(c.wrote, r.URL.Path+" "+string(body))
		return answer(http.StatusOK, struct{}{})
	}
	lease := c.of[name]
	if lease == nil {
		return answer(http.StatusNotFound, map[string]string{"message": "not found"})
	}
	if r.Method == http.MethodPut {
		var put struct {
			Metadata struct {
				ResourceVersion string            `json:"resourceVersion"`
				Annotations     map[string]string `json:"annotations"`
			} `json:"metadata"`
			Spec struct {
				RenewTime      string `json:"renewTime"`
				HolderIdentity string `json:"holderIdentity"`
			} `json:"spec"`
		}
		if err := json.Unmarshal(body, &put); err != nil {
			return nil, err
		}
		if c.each == 0 && put.Metadata.ResourceVersion != fmt.Sprint(c.version) {
			return answer(http.StatusConflict, map[string]string{"message": "changed"})
		}
		if put.Spec.RenewTime <= lease[0] || put.Spec.HolderIdentity != name || put.Metadata.Annotations["kept"] != "yes" {
			return answer(http.StatusUnprocessableEntity, map[string]string{"message": string(body)})
		}
		c.version++
		*lease = [2]string{put.Spec.RenewTime, put.Metadata.Annotations[governance.DelegatedAnnotation]}
		c.wrote = append(c.wrote, name+" "+put.Spec.RenewTime)
	}
	return answer(http.StatusOK, map[string]any{
		"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
		"metadata": map[string]any{"name": name, "resourceVersion": fmt.Sprint(c.version), "annotations": map[string]string{"kept": "yes"}},
		"spec":     map[string]any{"holderIdentity": name, "renewTime": lease[0]},
	})
}

// set sets the code for writes with a path that ends like this; 0 lets them through.
func (c *leases) set(suffix string, code int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refuse[suffix] = code
}

func (c *leases) taken() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	wrote := c.wrote
	c.wrote = nil
	slices.Sort(wrote)
	return wrote
}

const cloudTime = "1999-01-01T00:00:00.000000Z"

func at(seconds int) metav1.MicroTime {
	base, _ := time.Parse(time.RFC3339Nano, cloudTime)
	return metav1.NewMicroTime(base.Add(time.Duration(seconds) * time.Second))
}

// newForwarder returns a hub that leads, and its cloud with the Leases of b and c.
func newForwarder(t *testing.T) (*leader, *leases) {
	l := newLeaderRig(t)
	c := &leases{tokens: tokens{token: "x", accepted: "x"}, of: map[string]*[2]string{"b": {cloudTime, ""}, "c": {cloudTime, ""}}, refuse: map[string]int{}}
	l.pool.options.Send = c.send
	l.coordinator.reports = map[string]governance.Report{}
	return l, c
}

func (l *leader) run(seconds int) {
	l.Helper()
	for range seconds / 2 {
		if err := l.next(); err != nil {
			l.Error(err)
		}
	}
}

// TestHeartbeatsAreForwardedOnce: the time in the Lease grows with each heartbeat, whatever the clock of the node
// says.
func TestHeartbeatsAreForwardedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, c := newForwarder(t)
		expect := func(want ...string) {
			t.Helper()
			l.run(20)
			if got := c.taken(); !slices.Equal(got, want) {
				t.Errorf("the cloud has got %q, want %q", got, want)
			}
		}
		expect()
		l.coordinator.reports["b"], l.coordinator.reports["c"] = governance.Report{Renewed: at(10)}, governance.Report{Renewed: at(-300)}
		expect("b 1999-01-01T00:00:10.000000Z", "c 1999-01-01T00:00:00.000001Z")
		if lease := c.of["c"]; lease[1] != lease[0] {
			t.Errorf("the Lease says that it is delegated for %q", lease[1])
		}
		expect()
		l.coordinator.reports["c"] = governance.Report{Renewed: at(-290)}
		expect("c 1999-01-01T00:00:00.000002Z")
		c.mu.Lock()
		c.version, *c.of["b"] = c.version+1, [2]string{"1999-01-01T00:01:00.000000Z", ""} // its kubelet has renewed it
		c.mu.Unlock()
		l.coordinator.reports["b"] = governance.Report{Renewed: at(20)}
		expect("b 1999-01-01T00:01:00.000001Z")
		delete(l.coordinator.reports, "b")
		expect()
		l.coordinator.reports["b"] = governance.Report{Renewed: metav1.NewMicroTime(time.Now().Add(time.Hour))}
		l.run(20)
		if got, now := c.of["b"][0], time.Now().UTC().Format(metav1.RFC3339Micro); got > now || got <= "1999-01-01T00:01:00.000001Z" {
			t.Errorf("at %s the Lease of a node whose clock is ahead says %s", now, got)
		}
		c.taken()
		l.coordinator.leads = false
		l.coordinator.reports["c"] = governance.Report{Renewed: at(300)}
		expect()
	})
}

// TestHeartbeatsDoNotWaitForStatuses: on a slow link, in a pool with many pods, a hub that has just begun to lead
// has all their statuses to send. They reach the cloud too.
func TestHeartbeatsDoNotWaitForStatuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, c := newForwarder(t)
		c.each = 500 * time.Millisecond
		s := &governance.Statuses{}
		for n := range 30 {
			s.Pods = append(s.Pods, governance.PodStatus{Namespace: "default", Name: fmt.Sprintf("p%d", n), UID: fmt.Sprint(n), Status: corev1.PodStatus{Phase: corev1.PodRunning}})
		}
		l.coordinator.statuses = s
		last, statuses, longest := map[string]time.Time{}, 0, time.Duration(0)
		for n := range 40 {
			name := fmt.Sprintf("n%03d", n)
			c.of[name], last[name] = &[2]string{cloudTime, ""}, time.Now()
		}
		for i := range 200 {
			for name := range last {
				l.coordinator.reports[name] = governance.Report{Renewed: at(i / 5 * 10), Digest: s.Digest()}
			}
			_ = l.next()
			for _, wrote := range c.taken() {
				if name, _, _ := strings.Cut(wrote, " "); strings.HasSuffix(name, "/status") {
					statuses++
				} else {
					longest = max(longest, time.Since(last[name]))
					last[name] = time.Now()
				}
			}
		}
		if longest > 30*time.Second {
			t.Errorf("a node had no heartbeat in the cloud for %s", longest)
		}
		if want := len(last) * len(s.Pods); statuses != want {
			t.Errorf("%d statuses came to the cloud, want %d", statuses, want)
		}
	})
}

// TestMissingLeaseDoesNotEndTheLead: the leader still renews the pool's Lease.
func TestMissingLeaseDoesNotEndTheLead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, c := newForwarder(t)
		l.run(40)
		c.take()
		delete(c.of, "b")
		for i := range 60 {
			l.coordinator.reports["b"] = governance.Report{Renewed: at(i * 2)}
			_ = l.next()
			if !l.coordinator.beats[len(l.coordinator.beats)-1].HasCloud {
				t.Fatal("the leader lets another hub lead")
			}
		}
		if got := strings.Count(c.take(), "PATCH"); got < 11 {
			t.Errorf("the pool had %d pulses in 120 s", got)
		}
	})
}

// TestChangedPodStatusesAreForwarded: only fields that a kubelet writes, and no status of a pod that has ended.
func TestChangedPodStatusesAreForwarded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, c := newForwarder(t)
		pod := func(name string, phase corev1.PodPhase, ready corev1.ConditionStatus) governance.PodStatus {
			return governance.PodStatus{Namespace: "default", Name: name, UID: "uid-" + name, Status: corev1.PodStatus{
				Phase: phase, PodIP: "10.0.0.1", PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "fd00::1"}}, HostIPs: []corev1.HostIP{{IP: "10.1.0.1"}}, NominatedNodeName: "x", Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}, {Type: "example.com/ready", Status: corev1.ConditionTrue}},
			}}
		}
		set := func(renewed int, pods ...governance.PodStatus) {
			statuses := &governance.Statuses{Pods: pods}
			l.coordinator.statuses = statuses
			l.coordinator.reports["b"] = governance.Report{Renewed: at(renewed), Digest: statuses.Digest()}
		}
		forwarded := func() (pods []string) {
			l.run(10)
			for _, wrote := range c.taken() {
				if path, body, is := strings.Cut(wrote, "/status "); is {
					pods = append(pods, path[strings.LastIndex(path, "/")+1:])
					if !strings.Contains(body, `"uid":"uid-`) || strings.Contains(body, "example.com") || strings.Contains(body, "nominated") || !strings.Contains(body, `"podIP":"10.0.0.1"`) {
						t.Errorf("the status is %s", body)
					}
					// It was started again since, with other addresses.
					after, err := strategicpatch.StrategicMergePatch([]byte(`{"status":{"hostIPs":[{"ip":"10.1.0.9"}],"podIPs":[{"ip":"10.0.0.9"},{"ip":"fd00::9"}]}}`), []byte(body), corev1.Pod{})
					if err != nil || !strings.Contains(string(after), `"podIPs":[{"ip":"10.0.0.1"},{"ip":"fd00::1"}]`) || !strings.Contains(string(after), `"hostIPs":[{"ip":"10.1.0.1"}]`) {
						t.Errorf("the pod is then %s, %v", after, err)
					}
				}
			}
			return pods
		}
		expect := func(want ...string) {
			t.Helper()
			if got := forwarded(); !slices.Equal(got, want) {
				t.Errorf("statuses are forwarded of %q, want %q", got, want)
			}
		}
		set(10, pod("web", corev1.PodRunning, corev1.ConditionFalse), pod("db", corev1.PodRunning, corev1.ConditionTrue), pod("job", corev1.PodFailed, corev1.ConditionFalse))
		expect("db", "web")
		set(20, pod("web", corev1.PodRunning, corev1.ConditionTrue), pod("db", corev1.PodRunning, corev1.ConditionTrue))
		expect("web")
		reads := l.coordinator.reads
		set(30, pod("web", corev1.PodRunning, corev1.ConditionTrue), pod("db", corev1.PodRunning, corev1.ConditionTrue))
		expect()
		if l.coordinator.reads != reads {
			t.Error("statuses that are known are read again")
		}
		for _, code := range []int{http.StatusNotFound, http.StatusConflict, http.StatusUnprocessableEntity, http.StatusBadRequest, http.StatusForbidden} { // it is gone, or another one, or somebody forbids it: said once
			c.set("/web/status", code)
			set(code, pod("web", corev1.PodRunning, corev1.ConditionFalse))
			expect()
			c.set("/web/status", 0)
			expect()
			set(code+1, pod("web", corev1.PodRunning, corev1.ConditionTrue))
			expect("web")
		}
		c.because = "pods is forbidden: " + governance.NotDelegated
		c.set("/web/status", http.StatusForbidden) // not yet: nobody abdicates, and it is sent again
		set(900, pod("web", corev1.PodRunning, corev1.ConditionFalse))
		expect()
		if l.run(20); !l.coordinator.beats[len(l.coordinator.beats)-1].HasCloud {
			t.Error("the hub abdicates, because statuses are refused")
		}
		c.set("/web/status", 0)
		expect("web")
		set(901, pod("web", corev1.PodRunning, corev1.ConditionTrue))
		expect("web")
		c.set("/web/status", http.StatusServiceUnavailable) // nor if it is never taken
		set(1000, pod("web", corev1.PodRunning, corev1.ConditionFalse))
		expect()
		if l.run(60); !l.coordinator.beats[len(l.coordinator.beats)-1].HasCloud || !strings.Contains(c.take(), "PATCH") {
			t.Error("the hub abdicates, or it does not say how the pool is, because a status is refused")
		}
		c.set("/web/status", 0)
		expect("web")
	})
}

// TestLeaderStepsDownIfTheCloudRefusesItsWrites: it does not renew the pool's Lease meanwhile.
func TestLeaderStepsDownIfTheCloudRefusesItsWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, c := newForwarder(t)
		l.run(20)
		c.taken()
		c.set("/b", http.StatusTooManyRequests)
		c.set("/c", http.StatusForbidden)
		l.coordinator.reports["b"], l.coordinator.reports["c"] = governance.Report{Renewed: at(10)}, governance.Report{Renewed: at(10)}
		hasCloud := func() bool { return l.coordinator.beats[len(l.coordinator.beats)-1].HasCloud }
		l.run(8)
		if !hasCloud() {
			t.Error("the hub abdicates at once")
		}
		c.take()
		l.run(8)
		if hasCloud() || strings.Contains(c.take(), "PATCH") {
			t.Error("the hub still leads, or it says how the pool is")
		}
		l.run(2)
		if hasCloud() {
			t.Error("the hub leads again at once")
		}
		c.set("/b", 0) // one of them is enough
		l.run(20)
		if !hasCloud() || len(c.taken()) == 0 || !strings.Contains(c.take(), "PATCH") {
			t.Error("the hub does not lead again")
		}
		l.run(20)
		if !hasCloud() {
			t.Error("one node that is refused ends the lead")
		}
	})
}

// TestNewLeaderForwardsHeartbeatsBeforeThePoolsLease: once the pool's Lease is renewed, a node without a
// forwarded heartbeat counts as dead.
func TestNewLeaderForwardsHeartbeatsBeforeThePoolsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, c := newForwarder(t)
		c.takes = 20 * time.Millisecond
		c.set("/b", http.StatusForbidden)
		l.coordinator.reports["b"] = governance.Report{Renewed: at(10)}
		l.run(120)
		if strings.Contains(c.take(), "PATCH") {
			t.Error("it says how the pool is")
		}
		c.set("/b", 0)
		l.run(30)
		if got := c.take(); !strings.Contains(got, "PATCH") {
			t.Errorf("it does not say how the pool is once a heartbeat was taken: %q", got)
		}
	})
}

// TestFormerLeaderForwardsNothing: also if its lead ends during a round.
func TestFormerLeaderForwardsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, c := newForwarder(t)
		l.run(20)
		c.take()
		c.taken()
		l.coordinator.reports["b"] = governance.Report{Renewed: at(10)}
		l.pool.mu.Lock()
		l.pool.reports = l.coordinator.reports
		l.pool.mu.Unlock()
		time.Sleep(governance.LeadFor) // no beat is answered
		c.take()
		c.taken()
		time.Sleep(30 * time.Second)
		if got := c.take() + strings.Join(c.taken(), " "); got != "" {
			t.Errorf("it says %q", got)
		}
	})
}
