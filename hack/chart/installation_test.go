package chart

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// TestTheInstallationIsListed: kubectl atoll doctor finds what is missing by the ConfigMap
// atoll-installation, so every object is in it, with a hash if it is a right, an admission policy or webhooks.
func TestTheInstallationIsListed(t *testing.T) {
	for name, values := range map[string]map[string]any{
		"default": nil,
		"all": {
			"gangs": map[string]any{"enabled": true}, "coordinator": map[string]any{"enabled": true}, "networkPolicy": map[string]any{"enabled": true},
			"hub":       map[string]any{"enabled": true, "config": map[string]any{"cloud": map[string]any{"servers": []any{"https://10.0.0.1:6443"}}}},
			"scheduler": map[string]any{"mode": "Isolated"},
			"metrics": map[string]any{
				"serviceMonitor": map[string]any{"enabled": true}, "alerts": map[string]any{"enabled": true}, "dashboard": map[string]any{"enabled": true},
				"readers": []any{map[string]any{"namespace": "monitoring", "name": "prometheus"}},
			},
			"workloads": []any{map[string]any{"group": "apps.kruise.io", "version": "v1alpha1", "kind": "CloneSet"}},
		},
		"Plain, little": {
			"scheduler": map[string]any{"mode": "Plain"}, "pools": map[string]any{"enabled": false}, "crds": map[string]any{"install": false}, "manager": map[string]any{"deploy": false},
		},
	} {
		t.Run(name, func(t *testing.T) {
			all := render(t, load(t), values)
			listed := get[*corev1.ConfigMap](t, all, "ConfigMap/atoll-installation")
			var have []string
			for line := range strings.Lines(listed.Data["objects"]) {
				var o struct{ Kind, Namespace, Name, Content string }
				if err := json.Unmarshal([]byte(line), &o); err != nil {
					t.Fatalf("%v: %s", err, line)
				}
				key := o.Kind + "/" + o.Name
				if o.Namespace != "" && o.Namespace != namespace {
					key = o.Kind + "/" + o.Namespace + "/" + o.Name
				}
				have = append(have, key)
				hashed := strings.Contains(o.Kind, "Role") || strings.HasPrefix(o.Kind, "ValidatingAdmissionPolicy") || strings.HasSuffix(o.Kind, "WebhookConfiguration")
				if aggregated := key == "ClusterRole/atoll-podgroup-owner-reader"; (o.Content != "") != (hashed && !aggregated) {
					t.Errorf("%s has the hash %q", key, o.Content)
				}
			}
			delete(all, "ConfigMap/atoll-installation")
			want := slices.Sorted(maps.Keys(all))
			slices.Sort(have)
			if diff := cmp.Diff(want, have); diff != "" {
				t.Error(diff)
			}
			if mode := listed.Data["mode"]; listed.Data["version"] == "" || !slices.Contains([]string{"Pinned", "Isolated", "Plain"}, mode) {
				t.Errorf("version %q, mode %q", listed.Data["version"], mode)
			}
		})
	}
}
