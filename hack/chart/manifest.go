package chart

import (
	"cmp"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	helmchart "helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// Manifest describes the content of one file for `kubectl apply -f`.
type Manifest struct {
	// ChartDir is the directory of the chart.
	ChartDir string
	// Namespace is created and installed into.
	Namespace string
	// Values are the chart's values that differ from the defaults.
	Values map[string]any
}

// Write writes the objects of the chart, and their namespace, in an order in
// which they can be created one by one. The same chart and values give the same
// bytes.
func (m Manifest) Write(w io.Writer) error {
	chart, err := loader.LoadDir(m.ChartDir)
	if err != nil {
		return fmt.Errorf("loading the chart: %w", err)
	}
	files, err := renderFiles(chart, m.Namespace, m.Values, nil)
	if err != nil {
		return err
	}
	objects, err := decodeFiles(files)
	if err != nil {
		return err
	}
	objects = append(objects, namespaceOf(m.Namespace))
	slices.SortFunc(objects, func(a, b *unstructured.Unstructured) int {
		return cmp.Or(rank(a)-rank(b), strings.Compare(a.GetKind(), b.GetKind()),
			strings.Compare(a.GetNamespace(), b.GetNamespace()), strings.Compare(a.GetName(), b.GetName()))
	})
	if _, err := fmt.Fprintf(w, "# Atoll %s, to be installed with: kubectl apply -f\n# Rendered from the chart by: make manifest\n", chart.AppVersion()); err != nil {
		return fmt.Errorf("writing the manifest: %w", err)
	}
	for _, object := range objects {
		forgetHelm(object)
		text, err := yaml.Marshal(object.Object)
		if err != nil {
			return fmt.Errorf("encoding %s %q: %w", object.GetKind(), object.GetName(), err)
		}
		if _, err := fmt.Fprintf(w, "---\n%s", text); err != nil {
			return fmt.Errorf("writing the manifest: %w", err)
		}
	}
	return nil
}

// renderFiles returns the rendered templates by file name. Without
// capabilities, the cluster is one of Helm's own Kubernetes version.
func renderFiles(c *helmchart.Chart, namespace string, values map[string]any, capabilities *chartutil.Capabilities) (map[string]string, error) {
	release := chartutil.ReleaseOptions{Name: "atoll", Namespace: namespace, Revision: 1, IsInstall: true}
	scope, err := chartutil.ToRenderValues(c, values, release, capabilities)
	if err != nil {
		return nil, fmt.Errorf("checking the values of the chart: %w", err)
	}
	files, err := engine.Render(c, scope)
	if err != nil {
		return nil, fmt.Errorf("rendering the chart: %w", err)
	}
	return files, nil
}

// documents are those of a rendered file that hold more than comments.
func documents(text string) []string {
	var out []string
	for document := range strings.SplitSeq("\n"+text, "\n---") {
		blank := true
		for line := range strings.SplitSeq(document, "\n") {
			line = strings.TrimSpace(line)
			blank = blank && (line == "" || strings.HasPrefix(line, "#"))
		}
		if !blank {
			out = append(out, document)
		}
	}
	return out
}

func decodeFiles(files map[string]string) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	for name, text := range files {
		if path.Ext(name) != ".yaml" {
			continue
		}
		for _, document := range documents(text) {
			object := &unstructured.Unstructured{}
			if err := yaml.UnmarshalStrict([]byte(document), &object.Object); err != nil {
				return nil, fmt.Errorf("decoding %s: %w", name, err)
			}
			objects = append(objects, object)
		}
	}
	return objects, nil
}

// namespaceOf admits only pods that keep to the strictest of Kubernetes' own
// pod security levels, as all of ours do.
func namespaceOf(name string) *unstructured.Unstructured {
	namespace := &unstructured.Unstructured{}
	namespace.SetAPIVersion("v1")
	namespace.SetKind("Namespace")
	namespace.SetName(name)
	namespace.SetLabels(map[string]string{
		"app.kubernetes.io/part-of":          "atoll",
		"pod-security.kubernetes.io/enforce": "restricted",
	})
	return namespace
}

// rank: first what others need, last what makes the API server call somebody.
func rank(o *unstructured.Unstructured) int {
	switch o.GetKind() {
	case "Namespace":
		return 0
	case "CustomResourceDefinition":
		return 1
	case "ServiceAccount":
		return 2
	case "Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding":
		return 3
	case "ConfigMap", "Service":
		return 4
	case "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration":
		return 6
	default:
		return 5
	}
}

// forgetHelm takes off what is true only of a release that Helm manages.
func forgetHelm(o *unstructured.Unstructured) {
	labels, annotations := o.GetLabels(), o.GetAnnotations()
	delete(labels, "helm.sh/chart")
	delete(labels, "app.kubernetes.io/managed-by")
	delete(annotations, "helm.sh/resource-policy")
	o.SetLabels(labels)
	o.SetAnnotations(annotations)
}
