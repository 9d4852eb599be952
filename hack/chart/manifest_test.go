package chart

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	podsecurity "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

// install returns the objects of the manifest, decoded with strict field validation.
func install(t *testing.T, values map[string]any) (string, []runtime.Object) {
	t.Helper()
	var text bytes.Buffer
	if err := (Manifest{ChartDir: chartDir, Namespace: namespace, Values: values}).Write(&text); err != nil {
		t.Fatal(err)
	}
	var objects []runtime.Object
	for _, document := range documents(text.String()) {
		object, _, err := strict.Decode([]byte(document), nil, nil)
		if err != nil {
			t.Fatalf("decoding a document: %v\n%s", err, document)
		}
		objects = append(objects, object)
	}
	return text.String(), objects
}

func TestManifestHoldsWhatTheChartRenders(t *testing.T) {
	for name, values := range map[string]map[string]any{
		"the default": nil,
		"Pinned":      form("Pinned", nil),
		"Plain":       plain(),
		"everything": {
			"gangs":         map[string]any{"enabled": true},
			"networkPolicy": map[string]any{"enabled": true},
			"metrics": map[string]any{
				"serviceMonitor": map[string]any{"enabled": true}, "dashboard": map[string]any{"enabled": true},
				"readers": []any{map[string]any{"namespace": "monitoring", "name": "prometheus"}},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, installed := install(t, values)
			var got []string
			for _, object := range installed {
				got = append(got, keyOf(t, object))
			}
			want := append(render(t, load(t), values).keys(), "Namespace/"+namespace)
			slices.Sort(got)
			if slices.Sort(want); !slices.Equal(got, want) {
				t.Errorf("the manifest holds %v\nthe chart renders %v", got, want)
			}
		})
	}
}

func TestManifestCanBeAppliedFromTopToBottom(t *testing.T) {
	_, installed := install(t, nil)
	seen := map[string]bool{}
	needs := func(object runtime.Object, keys ...string) {
		for _, key := range keys {
			if !seen[key] {
				t.Errorf("%s comes before %s", keyOf(t, object), key)
			}
		}
	}
	for i, object := range installed {
		accessor, err := meta.Accessor(object)
		if err != nil {
			t.Fatal(err)
		}
		if ns := accessor.GetNamespace(); ns != "" && ns != "kube-system" {
			needs(object, "Namespace/"+ns)
		}
		switch o := object.(type) {
		case *appsv1.Deployment:
			needs(object, "ServiceAccount/"+o.Spec.Template.Spec.ServiceAccountName)
		case *rbacv1.RoleBinding:
			needs(object, "ServiceAccount/"+o.Subjects[0].Name)
		}
		if strings.HasSuffix(object.GetObjectKind().GroupVersionKind().Kind, "WebhookConfiguration") && i < len(installed)-2 {
			t.Errorf("%s comes before what answers it", keyOf(t, object))
		}
		seen[keyOf(t, object)] = true
		// kubectl apply keeps a copy in an annotation; all annotations together have at
		// most 256 KiB.
		if text, err := json.Marshal(object); err != nil || len(text) > 200_000 {
			t.Errorf("%s has %d bytes (%v): kubectl apply cannot take it", keyOf(t, object), len(text), err)
		}
	}
}

// TestManifestHasNoTraceOfHelm: the manifest has no trace of Helm, and rendering it again
// gives the same bytes.
func TestManifestHasNoTraceOfHelm(t *testing.T) {
	first, _ := install(t, nil)
	if second, _ := install(t, nil); first != second {
		t.Error("rendered again, it differs")
	}
	for line := range strings.Lines(first) {
		if strings.Contains(strings.ToLower(line), "helm") {
			t.Errorf("it speaks of Helm: %s", line)
		}
	}
}

func TestManifestsNamespaceAdmitsItsPods(t *testing.T) {
	_, installed := install(t, nil)
	level := podsecurity.LevelVersion{Version: podsecurity.LatestVersion()}
	for _, object := range installed {
		if ns, ok := object.(*corev1.Namespace); ok {
			level.Level = podsecurity.Level(ns.Labels["pod-security.kubernetes.io/enforce"])
		}
	}
	if level.Level != podsecurity.LevelRestricted {
		t.Errorf("the namespace admits %q", level.Level)
	}
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range installed {
		if d, ok := object.(*appsv1.Deployment); ok {
			result := policy.AggregateCheckResults(evaluator.EvaluatePod(level, &d.Spec.Template.ObjectMeta, &d.Spec.Template.Spec))
			if !result.Allowed {
				t.Errorf("%s: %s", d.Name, result.ForbiddenDetail())
			}
		}
	}
}
