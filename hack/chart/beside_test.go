package chart

import (
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	appsv1 "k8s.io/api/apps/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"
)

// definitions are the CustomResourceDefinitions of a cluster.
type definitions []runtime.Object

// GetClientFor implements engine.ClientProvider.
func (d definitions) GetClientFor(string, string) (dynamic.NamespaceableResourceInterface, bool, error) {
	return fake.NewSimpleDynamicClient(runtime.NewScheme(), d...).Resource(gvr("apiextensions.k8s.io", "v1", "customresourcedefinitions")), false, nil
}

// defined returns a CustomResourceDefinition with labels: key, value, key, value.
func defined(name string, labels ...string) *unstructured.Unstructured {
	crd := &unstructured.Unstructured{Object: map[string]any{}}
	crd.SetAPIVersion("apiextensions.k8s.io/v1")
	crd.SetKind("CustomResourceDefinition")
	crd.SetName(name)
	if len(labels) > 0 {
		crd.SetLabels(map[string]string{labels[0]: labels[1]})
	}
	return crd
}

// renderBeside renders the chart for a cluster that has these definitions.
func renderBeside(t *testing.T, values map[string]any, there ...runtime.Object) (map[string]string, error) {
	t.Helper()
	c := load(t)
	release := chartutil.ReleaseOptions{Name: "atoll", Namespace: namespace, Revision: 1, IsInstall: true}
	scope, err := chartutil.ToRenderValues(c, values, release, nil)
	if err != nil {
		t.Fatal(err)
	}
	return engine.RenderWithClientProvider(c, scope, definitions(there))
}

// TestForeignCRDFailsTheInstall: if the cluster has a definition of the same name
// that is not Atoll's, nothing is rendered, and the error names the possible owner and
// the way out.
func TestForeignCRDFailsTheInstall(t *testing.T) {
	const nodePools, uniteds = "nodepools.apps.openyurt.io", "uniteddeployments.apps.openyurt.io"
	adopt := func(names ...any) map[string]any { return map[string]any{"crds": map[string]any{"adopt": names}} }
	for name, tc := range map[string]struct {
		values map[string]any
		there  []runtime.Object
		// want are parts of the error; empty means no error.
		want []string
	}{
		"a cluster without": {},
		"Atoll's own":       {there: []runtime.Object{defined(nodePools, "app.kubernetes.io/part-of", "atoll")}},
		"OpenYurt's": {there: []runtime.Object{defined(nodePools), defined(uniteds, "app.kubernetes.io/part-of", "openyurt")},
			want: []string{nodePools + ", " + uniteds, "Nothing was changed", "OpenYurt", "pools.enabled=false", "crds.adopt={" + nodePools + "," + uniteds + "}", "docs/beside.md"}},
		"OpenYurt's, and pools are left to it": {values: map[string]any{"pools": map[string]any{"enabled": false}}, there: []runtime.Object{defined(nodePools)}},
		"OpenYurt's, of which one is taken over": {values: adopt(nodePools), there: []runtime.Object{defined(nodePools), defined(uniteds)},
			want: []string{"of Atoll's: " + uniteds + ".", "crds.adopt={" + uniteds + "}"}},
		"OpenYurt's, taken over":              {values: adopt(nodePools, uniteds), there: []runtime.Object{defined(nodePools), defined(uniteds)}},
		"somebody's NodeGroups":               {there: []runtime.Object{defined("nodegroups.groupmanagement.kubeedge.io")}, want: []string{"nodegroups.groupmanagement.kubeedge.io. Nothing was changed. To let"}},
		"definitions are not ours to install": {values: map[string]any{"crds": map[string]any{"install": false}}, there: []runtime.Object{defined(nodePools)}},
		"kinds of other groups":               {there: []runtime.Object{defined("nodegroups.apps.kubeedge.io"), defined("propagationpolicies.policy.karmada.io")}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := renderBeside(t, tc.values, tc.there...)
			if (err != nil) != (tc.want != nil) {
				t.Fatalf("the error is %v", err)
			}
			for _, part := range tc.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("it does not say %q: %v", part, err)
				}
			}
		})
	}
}

// TestWithoutPools: their definitions are not installed, and atoll-manager does not read
// the kinds.
func TestWithoutPools(t *testing.T) {
	got := render(t, load(t), map[string]any{"pools": map[string]any{"enabled": false}})
	for _, object := range got {
		if crd, ok := object.(*apiextensionsv1.CustomResourceDefinition); ok && crd.Spec.Group == "apps.openyurt.io" {
			t.Errorf("%s is rendered", crd.Name)
		}
	}
	if got["CustomResourceDefinition/nodegroups.groupmanagement.kubeedge.io"] == nil {
		t.Error("the definitions of groups are gone too")
	}
	args := strings.Join(get[*appsv1.Deployment](t, got, "Deployment/atoll-manager").Spec.Template.Spec.Containers[0].Args, " ")
	if !strings.Contains(args, "--pools=false") {
		t.Errorf("the arguments are %s", args)
	}
	args = strings.Join(get[*appsv1.Deployment](t, render(t, load(t), nil), "Deployment/atoll-manager").Spec.Template.Spec.Containers[0].Args, " ")
	if strings.Contains(args, "--pools") {
		t.Errorf("by default, the arguments are %s", args)
	}
}

// TestNotesNameKindsOfTheSameName: of KubeEdge and Karmada, where they are.
func TestNotesNameKindsOfTheSameName(t *testing.T) {
	const hint = "kubectl get nodegroups.groupmanagement.kubeedge.io    # not nodegroups.apps.kubeedge.io"
	for name, tc := range map[string]struct {
		there []runtime.Object
		want  bool
	}{
		"a cluster without": {},
		"KubeEdge's":        {[]runtime.Object{defined("nodegroups.apps.kubeedge.io")}, true},
	} {
		t.Run(name, func(t *testing.T) {
			files, err := renderBeside(t, nil, tc.there...)
			if err != nil {
				t.Fatal(err)
			}
			notes := files["atoll/templates/NOTES.txt"]
			if notes == "" || strings.Contains(notes, hint) != tc.want || strings.Contains(notes, "Other kinds") != tc.want {
				t.Errorf("the notes are:\n%s", notes)
			}
		})
	}
}
