package gate

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/hub/delivery"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

func podWith(labels map[string]string) *corev1.Pod {
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "held", UID: "uid", ResourceVersion: "1", Labels: labels},
	}
}

// TestRequiredPolicyLabelsHoldPods: the two labels that require a policy hold a pod, the labels of a bound policy
// do not.
func TestRequiredPolicyLabelsHoldPods(t *testing.T) {
	for _, label := range []string{gm.RequiredPropagationPolicyLabel, gm.RequiredOverridePolicyLabel} {
		if delivery.Waiting(map[string]string{label: "x"}) == "" {
			t.Errorf("%s holds no pod", label)
		}
		pod := podWith(map[string]string{label: "x", "other": "y"})
		encoded := map[wire.Format]func() ([]byte, error){wire.JSON: func() ([]byte, error) { return json.Marshal(pod) }, wire.Protobuf: pod.Marshal}
		for format, encode := range encoded {
			text, err := encode()
			if err != nil {
				t.Fatal(err)
			}
			if labels, err := policyLabels(format, text); err != nil || labels[label] != "x" {
				t.Errorf("%s: the labels are %v, error %v", format, labels, err)
			}
		}
	}
	for _, label := range []string{gm.BindingPropagationPolicyLabel, gm.BindingOverridePolicyLabel} {
		if delivery.Waiting(map[string]string{label: "x"}) != "" {
			t.Errorf("%s alone holds a pod", label)
		}
	}
}

func TestReasonChangedDuringAnEventGetsItsOwnEvent(t *testing.T) {
	var events []corev1.Event
	g := New(Options{NodeName: "a", Log: logr.Discard(), Go: func(func()) {}, Count: func(delivery.Verdict) {}, Send: func(r *http.Request) (*http.Response, error) {
		var e corev1.Event
		if err := json.NewDecoder(r.Body).Decode(&e); err != nil {
			t.Error(err)
		}
		events = append(events, e)
		return &http.Response{StatusCode: http.StatusCreated, Body: io.NopCloser(strings.NewReader(""))}, nil
	}})
	judge := func(labels map[string]string) {
		text, err := json.Marshal(podWith(labels))
		if err != nil {
			t.Fatal(err)
		}
		m, err := wire.JSON.Meta(text)
		if err != nil {
			t.Fatal(err)
		}
		if verdict, err := g.Judge(t.Context(), wire.JSON, text, &m, func() bool { return false }); err != nil || verdict != delivery.Hold {
			t.Fatalf("the verdict is %s, error %v", verdict, err)
		}
	}
	labels := map[string]string{gm.RequiredPropagationPolicyLabel: "p", gm.RequiredOverridePolicyLabel: "o"}
	judge(labels)
	before := g.Held()[0]
	labels[gm.BindingPropagationPolicyLabel] = "p"
	judge(labels)
	g.sendEvent(t.Context(), "uid", before) // it has taken until now
	events = nil
	g.TellDue(t.Context(), time.Now().Add(2*tellAgain))
	if len(events) != 1 || !strings.Contains(events[0].Message, "OverridePolicy") {
		t.Errorf("the events are %+v", events)
	}
}
