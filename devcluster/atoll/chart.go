package atoll

import (
	"context"
	"errors"
	"fmt"
	"path"
	"sort"
	"strings"
	"time"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/yaml"
)

// render renders the chart. Objects are sorted so that each comes after the objects that
// it needs.
func render(dir string, values map[string]any) ([]*unstructured.Unstructured, error) {
	chart, err := loader.LoadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("loading the chart: %w", err)
	}
	release := chartutil.ReleaseOptions{Name: "atoll", Namespace: Namespace, Revision: 1, IsInstall: true}
	context, err := chartutil.ToRenderValues(chart, values, release, nil)
	if err != nil {
		return nil, fmt.Errorf("checking the values of the chart: %w", err)
	}
	files, err := engine.Render(chart, context)
	if err != nil {
		return nil, fmt.Errorf("rendering the chart: %w", err)
	}
	namespace := &unstructured.Unstructured{}
	namespace.SetAPIVersion("v1")
	namespace.SetKind("Namespace")
	namespace.SetName(Namespace)
	objects := []*unstructured.Unstructured{namespace}
	for name, content := range files {
		if path.Ext(name) != ".yaml" {
			continue
		}
		for doc := range strings.SplitSeq("\n"+content, "\n---") {
			object := &unstructured.Unstructured{}
			if err := yaml.Unmarshal([]byte(doc), &object.Object); err != nil {
				return nil, fmt.Errorf("decoding %s: %w", name, err)
			}
			if len(object.Object) > 0 {
				objects = append(objects, object)
			}
		}
	}
	sort.SliceStable(objects, func(i, j int) bool { return rank(objects[i]) < rank(objects[j]) })
	return objects, nil
}

// The order is: namespaces, CustomResourceDefinitions, the rest, and last the objects
// that make the API server call a webhook.
func rank(o *unstructured.Unstructured) int {
	switch o.GetKind() {
	case "Namespace":
		return 0
	case "CustomResourceDefinition":
		return 1
	case "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration":
		return 3
	default:
		return 2
	}
}

// schedulerConfigOf returns the configuration of the kube-scheduler that calls the
// extender.
func schedulerConfigOf(objects []*unstructured.Unstructured, options Options) ([]byte, error) {
	name := map[Form]string{Isolated: Scheduler, Plain: plainConfig}[options.Form]
	if name == "" {
		return nil, nil
	}
	for _, o := range objects {
		if o.GetKind() == "ConfigMap" && o.GetName() == name {
			config, _, err := unstructured.NestedString(o.Object, "data", "config.yaml")
			if err != nil {
				return nil, fmt.Errorf("reading ConfigMap %s: %w", name, err)
			}
			return []byte(config), nil
		}
	}
	return nil, errors.New("the chart renders no configuration of kube-scheduler")
}

// apply applies objects as `kubectl apply --server-side` does, and waits for
// their kinds to be served.
func apply(ctx context.Context, config *rest.Config, objects []*unstructured.Unstructured) error {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	kinds, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(kinds))
	for _, o := range objects {
		mapping, err := mapper.RESTMapping(o.GroupVersionKind().GroupKind(), o.GroupVersionKind().Version)
		if err != nil {
			return fmt.Errorf("applying %s %q: %w", o.GetKind(), o.GetName(), err)
		}
		var resource dynamic.ResourceInterface = client.Resource(mapping.Resource)
		if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
			resource = client.Resource(mapping.Resource).Namespace(o.GetNamespace())
		}
		if _, err := resource.Apply(ctx, o.GetName(), o, metav1.ApplyOptions{FieldManager: "atoll-devcluster", Force: true}); err != nil {
			return fmt.Errorf("applying %s %q: %w", o.GetKind(), o.GetName(), err)
		}
		if o.GetKind() == "CustomResourceDefinition" {
			if err := waitEstablished(ctx, resource, o.GetName()); err != nil {
				return err
			}
		}
	}
	return nil
}

func waitEstablished(ctx context.Context, crds dynamic.ResourceInterface, name string) error {
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, 2*time.Minute, true, func(ctx context.Context) (bool, error) {
		crd, err := crds.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, unlessTransient(err)
		}
		conditions, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions")
		for _, c := range conditions {
			condition, _ := c.(map[string]any)
			if condition["type"] == "Established" && condition["status"] == "True" {
				return true, nil
			}
		}
		return false, nil
	})
	if err != nil {
		return fmt.Errorf("waiting for CustomResourceDefinition %q: %w", name, err)
	}
	return nil
}

// unlessTransient drops transient errors.
func unlessTransient(err error) error {
	if apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsTimeout(err) {
		return nil
	}
	return err
}
