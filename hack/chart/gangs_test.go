package chart

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// podGroups is Volcano's definition, as a key of objects.
const podGroups = "CustomResourceDefinition/podgroups.scheduling.volcano.sh"

// gangs are values with PodGroups, and with these values of theirs besides.
func gangs(values map[string]any) map[string]any {
	block := map[string]any{"enabled": true}
	for key, value := range values {
		block[key] = value
	}
	return map[string]any{"gangs": block}
}

// TestVolcanosDefinitionIsLeftAlone: the chart installs the definition of PodGroups
// only where the cluster has none but its own. One of Volcano's is no error, and is not
// rendered.
func TestVolcanosDefinitionIsLeftAlone(t *testing.T) {
	const name = "podgroups.scheduling.volcano.sh"
	ours := defined(name, "app.kubernetes.io/part-of", "atoll")
	with := func(values map[string]any, crds map[string]any) map[string]any {
		values["crds"] = crds
		return values
	}
	for title, tc := range map[string]struct {
		values map[string]any
		there  []runtime.Object
		want   bool
	}{
		"gangs are off":                        {},
		"gangs are off, and Atoll's is there":  {there: []runtime.Object{ours}},
		"a cluster without":                    {values: gangs(nil), want: true},
		"Atoll's own":                          {values: gangs(nil), there: []runtime.Object{ours}, want: true},
		"Volcano's":                            {values: gangs(nil), there: []runtime.Object{defined(name)}},
		"Volcano's, with labels":               {values: gangs(nil), there: []runtime.Object{defined(name, "app.kubernetes.io/part-of", "volcano")}},
		"Volcano's, though named to be taken":  {values: with(gangs(nil), map[string]any{"adopt": []any{name}}), there: []runtime.Object{defined(name)}},
		"a cluster without, and Never":         {values: gangs(map[string]any{"crd": "Never"})},
		"Atoll's own, and Never":               {values: gangs(map[string]any{"crd": "Never"}), there: []runtime.Object{ours}},
		"definitions are not ours to install":  {values: with(gangs(nil), map[string]any{"install": false})},
		"a definition of Volcano's Jobs alone": {values: gangs(nil), there: []runtime.Object{defined("jobs.batch.volcano.sh")}, want: true},
	} {
		t.Run(title, func(t *testing.T) {
			files, err := renderBeside(t, tc.values, tc.there...)
			if err != nil {
				t.Fatal(err)
			}
			rendered := files["atoll/templates/crds.yaml"]
			if got := strings.Contains(rendered, "\n  name: "+name+"\n"); got != tc.want {
				t.Errorf("the definition is rendered: %v, want %v", got, tc.want)
			}
			installs := tc.values == nil || tc.values["crds"] == nil || tc.values["crds"].(map[string]any)["install"] != false
			if got := strings.Contains(rendered, "\n  name: nodegroups.groupmanagement.kubeedge.io\n"); got != installs {
				t.Errorf("the other definitions are rendered: %v, want %v", got, installs)
			}
		})
	}
}

// TestAnothersDefinitionStillFails: what is said of PodGroups holds for no other kind.
func TestAnothersDefinitionStillFails(t *testing.T) {
	_, err := renderBeside(t, gangs(nil), defined("podgroups.scheduling.volcano.sh"), defined("nodepools.apps.openyurt.io"))
	if err == nil || strings.Contains(err.Error(), "podgroups") || !strings.Contains(err.Error(), "nodepools.apps.openyurt.io") {
		t.Errorf("the error is %v", err)
	}
}

// TestGangsAreToldToTheManager: with a flag for each value that is not its default.
func TestGangsAreToldToTheManager(t *testing.T) {
	for name, tc := range map[string]struct {
		values map[string]any
		want   []string
	}{
		"off":                            {nil, []string{"--assignment=Early"}},
		"off, with values":               {gangs(map[string]any{"enabled": false, "multiScheduler": true}), []string{"--assignment=Early"}},
		"on":                             {gangs(nil), []string{"--assignment=Early", "--gangs"}},
		"defaults that are written down": {gangs(map[string]any{"schedulerNames": []any{"volcano"}, "multiScheduler": false}), []string{"--assignment=Early", "--gangs"}},
		"every value": {
			gangs(map[string]any{
				"schedulerNames": []any{"volcano", "volcano-2"}, "multiScheduler": true,
				"config": map[string]any{"namespace": "batch", "name": "rules"},
			}),
			[]string{"--assignment=Early", "--gangs", "--gangs-schedulers=volcano,volcano-2", "--gangs-config=batch/rules", "--gangs-multi-scheduler"},
		},
		"another namespace": {
			gangs(map[string]any{"config": map[string]any{"namespace": "batch"}}),
			[]string{"--assignment=Early", "--gangs", "--gangs-config=batch/volcano-controller-configmap"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			deployment := get[*appsv1.Deployment](t, render(t, load(t), tc.values), "Deployment/atoll-manager")
			if got := deployment.Spec.Template.Spec.Containers[0].Args; !slices.Equal(got, tc.want) {
				t.Errorf("the arguments are %q, want %q", got, tc.want)
			}
		})
	}
}
