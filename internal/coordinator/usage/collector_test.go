package usage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	metrics "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// pool is a source: nodes whose kubelets use half a core, with a pod each, pod-<node>.
type pool struct {
	began time.Time

	mu                sync.Mutex
	names             []string
	says              map[string]func(ctx context.Context) (string, error) // by node; nil for what a kubelet says
	reads             map[string]int
	running, together int
}

func newPool(names []string) *pool {
	return &pool{names: names, began: time.Now(), says: map[string]func(context.Context) (string, error){}, reads: map[string]int{}}
}

func (p *pool) say(node string, what func(context.Context) (string, error)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.says[node] = what
}

func (p *pool) has(names ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.names = names
}

func (p *pool) list() ([]string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.names), nil
}

func (p *pool) node(_ context.Context, name string) (*nodeInfo, error) {
	if strings.HasPrefix(name, "missing") {
		return nil, errors.New("it is not there")
	}
	return &nodeInfo{address: name, labels: map[string]string{"name": name}}, nil
}

func (p *pool) pods(_ context.Context, node string) (map[types.NamespacedName]map[string]string, error) {
	return map[types.NamespacedName]map[string]string{{Namespace: "default", Name: "pod-" + node}: {"of": node}}, nil
}

func (p *pool) text(ctx context.Context, name string) ([]byte, error) {
	p.mu.Lock()
	p.reads[name]++
	p.running++
	p.together = max(p.together, p.running)
	say := p.says[name]
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		p.running--
		p.mu.Unlock()
	}()
	if say == nil {
		say = func(context.Context) (string, error) { return p.measured("pod-" + name), nil }
	}
	text, err := say(ctx)
	if err != nil {
		return nil, err
	}
	return keep(strings.NewReader(text))
}

// measured is what a kubelet says of pods.
func (p *pool) measured(pods ...string) string {
	now := time.Now()
	values := func(name string, value float64, labels string) string {
		return fmt.Sprintf("%s%s %f %d\n", name, labels, value, now.UnixMilli())
	}
	used := now.Sub(p.began).Seconds() / 2
	text := values(nodeCPU, used, "") + values(nodeMemory, 1<<30, "")
	for _, pod := range pods {
		labels := fmt.Sprintf(`{container="c",namespace="default",pod=%q}`, pod)
		text += values(containerCPU, used, labels) + values(containerMemory, 1<<20, labels)
	}
	return text
}

func (p *pool) count() (all int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range p.reads {
		all += n
	}
	return all
}

// inBubble runs a test with a collector of these nodes, and with a clock of its own.
func inBubble(t *testing.T, names []string, do func(t *testing.T, p *pool, c *collector)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		p := newPool(names)
		c := newCollector(p, p.list, logr.Discard())
		var running sync.WaitGroup
		running.Go(func() { c.run(ctx) })
		do(t, p, c)
		cancel()
		running.Wait()
	})
}

// get asks as kube-apiserver does, without the prefix of the group.
func get(c *collector, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	handler(c).ServeHTTP(w, httptest.NewRequest(http.MethodGet, groupPath+path, nil))
	return w
}

// names returns what a list has, as namespace/name of each.
func names(t *testing.T, w *httptest.ResponseRecorder) string {
	t.Helper()
	var list metrics.PodMetricsList // of nodes, all but the usage is the same
	if err := json.Unmarshal(w.Body.Bytes(), &list); err != nil || w.Code != http.StatusOK {
		t.Errorf("the answer is %d %s, %v", w.Code, w.Body, err)
	}
	var all []string
	for i := range list.Items {
		all = append(all, strings.TrimPrefix(list.Items[i].Namespace+"/"+list.Items[i].Name, "/"))
	}
	return strings.Join(all, " ")
}

func TestUsageIsReadOnlyWhileRequested(t *testing.T) {
	inBubble(t, []string{"a", "b"}, func(t *testing.T, p *pool, c *collector) {
		time.Sleep(time.Hour)
		if n := p.count(); n != 0 {
			t.Fatalf("%d readings, and nobody has asked", n)
		}
		get(c, "") // kube-apiserver asks for this again and again
		time.Sleep(time.Minute)
		if n := p.count(); n != 0 {
			t.Fatalf("%d readings because of discovery", n)
		}
		w := get(c, "/nodes")
		if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") != "3" || !strings.Contains(w.Body.String(), "ask again in 15 s") {
			t.Errorf("the first answer is %d %v %s", w.Code, w.Header(), w.Body)
		}
		time.Sleep(6 * time.Second)
		if is := names(t, get(c, "/nodes")); is != "a b" {
			t.Errorf("after two readings there are the nodes %q", is)
		}
		time.Sleep(time.Hour)
		after := p.count()
		if most := 2 * (int(wantedFor/interval) + 3); after > most {
			t.Errorf("%d readings for two questions, want at most %d", after, most)
		}
		time.Sleep(time.Hour)
		if n := p.count(); n != after {
			t.Errorf("%d more readings, and nobody has asked", n-after)
		}
		if w := get(c, "/pods"); w.Code != http.StatusServiceUnavailable {
			t.Errorf("an hour later the answer is %d %s, of old readings", w.Code, w.Body)
		}
	})
}

func TestUsageIsAnsweredForNodesAndPods(t *testing.T) {
	inBubble(t, []string{"b", "a"}, func(t *testing.T, p *pool, c *collector) {
		get(c, "/nodes")
		time.Sleep(time.Minute)
		for path, want := range map[string]string{
			"/nodes": "a b", "/nodes?labelSelector=name%3Da": "a", "/nodes?labelSelector=name%21%3Da": "b", "/nodes?fieldSelector=metadata.name%3Db": "b",
			"/pods": "default/pod-a default/pod-b", "/pods?labelSelector=of+in+(a)": "default/pod-a", "/namespaces/default/pods": "default/pod-a default/pod-b",
			"/namespaces/other/pods": "", "/pods?fieldSelector=metadata.namespace%3Dother": "", "/pods?watch=0": "default/pod-a default/pod-b",
		} {
			if is := names(t, get(c, path)); is != want {
				t.Errorf("%s has %q, want %q", path, is, want)
			}
		}
		for path, want := range map[string]int{
			"/nodes/a": 200, "/nodes/c": 404, "/namespaces/default/pods/pod-a": 200, "/namespaces/other/pods/pod-a": 404, "/secrets": 404,
			"/nodes?labelSelector=%3D%3D": 400, "/nodes?fieldSelector=name": 400, "/pods?fieldSelector=spec.nodeName%3Da": 400, "/pods?watch=1": 405,
		} {
			if w := get(c, path); w.Code != want {
				t.Errorf("%s is answered with %d %s, want %d", path, w.Code, w.Body, want)
			}
		}
		var node metrics.NodeMetrics
		if err := json.Unmarshal(get(c, "/nodes/a").Body.Bytes(), &node); err != nil {
			t.Fatal(err)
		}
		if node.Kind != "NodeMetrics" || node.Usage.Cpu().MilliValue() != 500 || node.Usage.Memory().Value() != 1<<30 || node.Window.Duration != interval {
			t.Errorf("the node is %+v", node)
		}
		var pod metrics.PodMetrics
		if err := json.Unmarshal(get(c, "/namespaces/default/pods/pod-a").Body.Bytes(), &pod); err != nil {
			t.Fatal(err)
		}
		if pod.Kind != "PodMetrics" || len(pod.Containers) != 1 || pod.Containers[0].Name != "c" || pod.Containers[0].Usage.Cpu().MilliValue() != 500 {
			t.Errorf("the pod is %+v", pod)
		}
	})
}

func TestHubCannotReportPodsOfOtherNodes(t *testing.T) {
	inBubble(t, []string{"a", "b"}, func(t *testing.T, p *pool, c *collector) {
		p.say("a", func(context.Context) (string, error) {
			return strings.ReplaceAll(p.measured("pod-a", "pod-b", "pod-c"), "1048576.0", "7.0"), nil
		})
		get(c, "/nodes")
		time.Sleep(time.Minute)
		if is := names(t, get(c, "/pods")); is != "default/pod-a default/pod-b" {
			t.Errorf("there are the pods %q", is)
		}
		for pod, want := range map[string]string{"pod-a": `"memory":"7"`, "pod-b": `"memory":"1Mi"`} {
			if w := get(c, "/namespaces/default/pods/"+pod); !strings.Contains(w.Body.String(), want) {
				t.Errorf("%s is %s", pod, w.Body)
			}
		}
	})
}

func TestAHubThatHangsDelaysNoOther(t *testing.T) {
	all := []string{"hangs"}
	for i := range 40 {
		all = append(all, fmt.Sprintf("node-%02d", i))
	}
	inBubble(t, all, func(t *testing.T, p *pool, c *collector) {
		p.say("hangs", func(ctx context.Context) (string, error) {
			<-ctx.Done()
			return "", ctx.Err()
		})
		for _, name := range all[1:] { // a second each
			p.say(name, func(context.Context) (string, error) {
				time.Sleep(time.Second)
				return p.measured("pod-" + name), nil
			})
		}
		get(c, "/nodes")
		time.Sleep(readTime - time.Second) // 15 places, 40 nodes of a second
		if n := p.count(); n != len(all) {
			t.Errorf("%d of %d nodes were read while one hangs", n, len(all))
		}
		time.Sleep(10 * time.Second)
		if is := len(strings.Fields(names(t, get(c, "/nodes")))); is != 40 {
			t.Errorf("%d nodes are shown", is)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.together != maxReads {
			t.Errorf("%d nodes are read at a time, want %d", p.together, maxReads)
		}
	})
}

func TestOneNodeThatFailsHidesNoOther(t *testing.T) {
	inBubble(t, []string{"a", "garbage", "large", "missing", "panics", "refuses"}, func(t *testing.T, p *pool, c *collector) {
		refuses := func(context.Context) (string, error) { return "", errors.New("refused") }
		for name, say := range map[string]func(context.Context) (string, error){
			"garbage": func(context.Context) (string, error) { return nodeCPU + " {{{", nil },
			"large":   func(context.Context) (string, error) { return strings.Repeat(nodeCPU+" 1\n", 1<<20), nil },
			"panics":  func(context.Context) (string, error) { panic("in the reading of one node") },
			"refuses": refuses,
		} {
			p.say(name, say)
		}
		get(c, "/nodes")
		time.Sleep(6 * time.Second)
		if is := names(t, get(c, "/nodes")); is != "a" {
			t.Errorf("there are the nodes %q", is)
		}
		p.say("a", refuses)
		time.Sleep(keepFor - 20*time.Second)
		if is := names(t, get(c, "/nodes")); is != "a" {
			t.Errorf("for a while, there are the nodes %q", is)
		}
		time.Sleep(time.Minute)
		w := get(c, "/nodes")
		if says := w.Body.String(); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") != "" || !strings.Contains(says, "a: refused") || !strings.Contains(says, "and 3 more") {
			t.Errorf("later, the answer is %d %v %s", w.Code, w.Header(), says)
		}
	})
}

// TestNodeIsShownOnceItHasTwoMeasurements: a kubelet can answer the same measurement twice.
func TestNodeIsShownOnceItHasTwoMeasurements(t *testing.T) {
	inBubble(t, []string{"a", "slow"}, func(t *testing.T, p *pool, c *collector) {
		began := time.Now()
		text := p.measured("pod-slow")
		p.say("slow", func(context.Context) (string, error) {
			if time.Since(began) > 12*time.Second {
				return p.measured("pod-slow"), nil
			}
			return text, nil
		})
		get(c, "/nodes")
		time.Sleep(11 * time.Second)
		if w := get(c, "/nodes"); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
			t.Errorf("before it has measured again, the answer is %d %s", w.Code, w.Body)
		}
		time.Sleep(5 * time.Second)
		if is := names(t, get(c, "/nodes")); is != "a slow" {
			t.Errorf("there are the nodes %q", is)
		}
	})
}

func TestANodeThatLeavesThePoolIsForgotten(t *testing.T) {
	inBubble(t, []string{"a", "b"}, func(t *testing.T, p *pool, c *collector) {
		get(c, "/nodes")
		time.Sleep(6 * time.Second)
		p.has("b")
		time.Sleep(interval)
		if is := names(t, get(c, "/pods")); is != "default/pod-b" {
			t.Errorf("there are the pods %q", is)
		}
		p.has(make([]string, maxNodes+1)...)
		time.Sleep(keepFor + 2*interval)
		if w := get(c, "/nodes"); !strings.Contains(w.Body.String(), "more than 1024") {
			t.Errorf("of a pool that is too large, the answer is %d %s", w.Code, w.Body)
		}
	})
}
