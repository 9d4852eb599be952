package usage

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	metrics "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// groupPath is the path of all that is served.
var groupPath = "/apis/" + metrics.SchemeGroupVersion.String()

var (
	nodesResource = metrics.SchemeGroupVersion.WithResource("nodes").GroupResource()
	podsResource  = metrics.SchemeGroupVersion.WithResource("pods").GroupResource()
)

// retryAfter is after how many seconds a client asks again that has asked too early. kubectl does so by itself, up to
// ten times: longer than firstRounds take.
const retryAfter = 3

// handler returns the handler of metrics.k8s.io/v1beta1.
func handler(c *collector) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+groupPath, answer(func(*http.Request) (any, error) { return discovery(), nil }))
	mux.HandleFunc("GET "+groupPath+"/nodes", answer(c.listNodes))
	mux.HandleFunc("GET "+groupPath+"/nodes/{name}", answer(c.getNode))
	mux.HandleFunc("GET "+groupPath+"/pods", answer(c.listPods))
	mux.HandleFunc("GET "+groupPath+"/namespaces/{namespace}/pods", answer(c.listPods))
	mux.HandleFunc("GET "+groupPath+"/namespaces/{namespace}/pods/{name}", answer(c.getPod))
	return mux
}

func discovery() *metav1.APIResourceList {
	verbs := metav1.Verbs{"get", "list"}
	return &metav1.APIResourceList{
		TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: metrics.SchemeGroupVersion.String(),
		APIResources: []metav1.APIResource{{Name: "nodes", Kind: "NodeMetrics", Verbs: verbs}, {Name: "pods", Kind: "PodMetrics", Namespaced: true, Verbs: verbs}},
	}
}

// answer returns a handler that sends what do returns, in JSON.
func answer(do func(r *http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		code := http.StatusOK
		body, err := do(r)
		if err != nil {
			status := statusOf(err)
			body, code = status, int(status.Code)
			if status.Details != nil && status.Details.RetryAfterSeconds > 0 {
				w.Header().Set("Retry-After", strconv.Itoa(int(status.Details.RetryAfterSeconds)))
			}
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(body)
	}
}

func statusOf(err error) *metav1.Status {
	var early *notYet
	var status apierrors.APIStatus
	if errors.As(err, &early) {
		unavailable := apierrors.NewServiceUnavailable(err.Error())
		if early.isSoon {
			unavailable.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: retryAfter}
		}
		status = unavailable
	} else if !errors.As(err, &status) {
		status = apierrors.NewInternalError(err)
	}
	s := status.Status()
	s.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	return &s
}

// selection is what a list asks for.
type selection struct {
	labels labels.Selector
	fields fields.Selector
}

func selectionOf(r *http.Request) (*selection, error) {
	query := r.URL.Query()
	if watch, _ := strconv.ParseBool(query.Get("watch")); watch {
		return nil, apierrors.NewMethodNotSupported(podsResource, "watch")
	}
	byLabels, err := labels.Parse(query.Get("labelSelector"))
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the labelSelector: %v", err))
	}
	byFields, err := fields.ParseSelector(query.Get("fieldSelector"))
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the fieldSelector: %v", err))
	}
	for _, f := range byFields.Requirements() {
		if f.Field != "metadata.name" && f.Field != "metadata.namespace" {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("the fieldSelector: %q is not supported, only metadata.name and metadata.namespace", f.Field))
		}
	}
	return &selection{labels: byLabels, fields: byFields}, nil
}

func (s *selection) has(m *metav1.ObjectMeta) bool {
	return s.labels.Matches(labels.Set(m.Labels)) && s.fields.Matches(fields.Set{"metadata.name": m.Name, "metadata.namespace": m.Namespace})
}

func (c *collector) listNodes(r *http.Request) (any, error) {
	selected, err := selectionOf(r)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	nodes, err := c.ask(now)
	if err != nil {
		return nil, err
	}
	list := &metrics.NodeMetricsList{TypeMeta: typeOf("NodeMetricsList"), Items: []metrics.NodeMetrics{}}
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		if m := nodeMetrics(name, nodes[name], now); m != nil && selected.has(&m.ObjectMeta) {
			list.Items = append(list.Items, *m)
		}
	}
	return list, nil
}

func (c *collector) getNode(r *http.Request) (any, error) {
	now := time.Now()
	nodes, err := c.ask(now)
	if err != nil {
		return nil, err
	}
	name := r.PathValue("name")
	if n := nodes[name]; n != nil {
		if m := nodeMetrics(name, n, now); m != nil {
			return m, nil
		}
	}
	return nil, apierrors.NewNotFound(nodesResource, name)
}

func (c *collector) listPods(r *http.Request) (any, error) {
	selected, err := selectionOf(r)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	nodes, err := c.ask(now)
	if err != nil {
		return nil, err
	}
	list := &metrics.PodMetricsList{TypeMeta: typeOf("PodMetricsList"), Items: []metrics.PodMetrics{}}
	for _, m := range podMetrics(nodes, now) {
		if namespace := r.PathValue("namespace"); (namespace == "" || m.Namespace == namespace) && selected.has(&m.ObjectMeta) {
			list.Items = append(list.Items, *m)
		}
	}
	slices.SortFunc(list.Items, func(a, b metrics.PodMetrics) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return list, nil
}

func (c *collector) getPod(r *http.Request) (any, error) {
	now := time.Now()
	nodes, err := c.ask(now)
	if err != nil {
		return nil, err
	}
	key := types.NamespacedName{Namespace: r.PathValue("namespace"), Name: r.PathValue("name")}
	if m := podMetrics(nodes, now)[key]; m != nil {
		return m, nil
	}
	return nil, apierrors.NewNotFound(podsResource, key.Name)
}

func typeOf(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{Kind: kind, APIVersion: metrics.SchemeGroupVersion.String()}
}

// nodeMetrics returns what is shown of a node, or nil.
func nodeMetrics(name string, n *nodeUsage, now time.Time) *metrics.NodeMetrics {
	if !n.node.isShown(now) {
		return nil
	}
	return &metrics.NodeMetrics{
		TypeMeta: typeOf("NodeMetrics"), ObjectMeta: metav1.ObjectMeta{Name: name, Labels: n.labels, CreationTimestamp: metav1.Time{Time: now}},
		Timestamp: metav1.Time{Time: n.node.since}, Window: metav1.Duration{Duration: n.node.window}, Usage: n.node.usage(),
	}
}

// podMetrics returns what is shown of all pods. A pod of the same name may have been on another node before: the
// later reading is taken.
func podMetrics(nodes map[string]*nodeUsage, now time.Time) map[types.NamespacedName]*metrics.PodMetrics {
	pods := map[types.NamespacedName]*metrics.PodMetrics{}
	inOrder := slices.SortedFunc(maps.Values(nodes), func(a, b *nodeUsage) int { return a.read.Compare(b.read) })
	for _, n := range inOrder {
		for key, pod := range n.pods {
			m := &metrics.PodMetrics{
				TypeMeta:   typeOf("PodMetrics"),
				ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, Labels: pod.labels, CreationTimestamp: metav1.Time{Time: now}},
			}
			for _, name := range slices.Sorted(maps.Keys(pod.containers)) {
				if s := pod.containers[name]; s.isShown(now) {
					m.Containers = append(m.Containers, metrics.ContainerMetrics{Name: name, Usage: s.usage()})
					m.Timestamp, m.Window = metav1.Time{Time: s.since}, metav1.Duration{Duration: s.window}
				}
			}
			if len(m.Containers) > 0 {
				pods[key] = m
			}
		}
	}
	return pods
}
