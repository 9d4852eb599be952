package chart

import (
	"path"
	"sort"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	helmchart "helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	schedulerv1 "k8s.io/kube-scheduler/config/v1"
)

const (
	chartDir  = "../../charts/atoll"
	namespace = "the-release-namespace"
)

// strict refuses a document with a field that its type does not have.
var strict = newStrictDecoder()

func newStrictDecoder() runtime.Decoder {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme, schedulerv1.AddToScheme, monitoringv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
}

// load reads the chart from disk. Options change it before it is rendered.
func load(t *testing.T, options ...func(*helmchart.Chart)) *helmchart.Chart {
	t.Helper()
	c, err := loader.LoadDir(chartDir)
	if err != nil {
		t.Fatalf("loading the chart: %v", err)
	}
	for _, option := range options {
		option(c)
	}
	return c
}

// withFile replaces the file of the chart that has the same name.
func withFile(name, data string) func(*helmchart.Chart) {
	return func(c *helmchart.Chart) {
		kept := []*helmchart.File{{Name: name, Data: []byte(data)}}
		for _, file := range c.Files {
			if file.Name != name {
				kept = append(kept, file)
			}
		}
		c.Files = kept
	}
}

// renderText returns the rendered templates by file name.
func renderText(c *helmchart.Chart, values map[string]any) (map[string]string, error) {
	capabilities := chartutil.DefaultCapabilities.Copy()
	capabilities.KubeVersion = chartutil.KubeVersion{Version: "v1.36.3", Major: "1", Minor: "36"}
	return renderFiles(c, namespace, values, capabilities)
}

// objects are the objects of a rendered chart, by "Kind/name" or, in another namespace
// than the release's, "Kind/namespace/name".
type objects map[string]runtime.Object

func render(t *testing.T, c *helmchart.Chart, values map[string]any) objects {
	t.Helper()
	files, err := renderText(c, values)
	if err != nil {
		t.Fatal(err)
	}
	got := objects{}
	for name, text := range files {
		if path.Ext(name) != ".yaml" {
			continue
		}
		for _, document := range documents(text) {
			object, _, err := strict.Decode([]byte(document), nil, nil)
			if err != nil {
				t.Fatalf("decoding a document of %s: %v\n%s", name, err, document)
			}
			key := keyOf(t, object)
			if _, twice := got[key]; twice {
				t.Errorf("%s is rendered twice", key)
			}
			got[key] = object
		}
	}
	return got
}

func keyOf(t *testing.T, object runtime.Object) string {
	t.Helper()
	accessor, err := meta.Accessor(object)
	if err != nil {
		t.Fatal(err)
	}
	kind := object.GetObjectKind().GroupVersionKind().Kind
	if ns := accessor.GetNamespace(); ns != "" && ns != namespace {
		return kind + "/" + ns + "/" + accessor.GetName()
	}
	return kind + "/" + accessor.GetName()
}

// get returns the object of a key as its type.
func get[T runtime.Object](t *testing.T, from objects, key string) T {
	t.Helper()
	object, ok := from[key].(T)
	if !ok {
		t.Fatalf("%s is not rendered; there are %v", key, from.keys())
	}
	return object
}

func (o objects) keys() []string {
	var keys []string
	for key := range o {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}

func gvr(group, version, resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: group, Version: version, Resource: resource}
}
