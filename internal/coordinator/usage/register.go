package usage

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	metrics "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/atoll-k8s/atoll/internal/coordinator/readonly"
	"github.com/atoll-k8s/atoll/internal/governance"
)

const (
	// applyEvery is the time between two rounds, applyAgain that after one that has failed, and applyWithin bounds one.
	applyEvery, applyAgain, applyWithin = 30 * time.Second, time.Second, 20 * time.Second
)

// registrar tells kube-apiserver where metrics.k8s.io is served.
type registrar struct {
	client dynamic.Interface
	caFile string
	port   int
	log    logr.Logger
}

func newRegistrar(o Options, port int) (*registrar, error) {
	client, err := dynamic.NewForConfig(o.Config)
	if err != nil {
		return nil, fmt.Errorf("making a client of the API server: %w", err)
	}
	return &registrar{client: client, caFile: o.CAFile, port: port, log: o.Log}, nil
}

// run applies the objects again and again until ctx is done.
func (r *registrar) run(ctx context.Context) {
	for last := "it was not tried yet"; ; {
		pause, reason := applyEvery, ""
		if err := r.apply(ctx); err != nil {
			pause, reason = applyAgain, err.Error()
		}
		if reason != last && ctx.Err() == nil {
			r.log.Info("Whether kube-apiserver is told of metrics.k8s.io has changed", "isTold", reason == "", "reason", reason)
			last = reason
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

func (r *registrar) apply(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, applyWithin)
	defer cancel()
	ca, err := readFile("the CA of the pool", r.caFile)
	if err != nil {
		return err
	}
	for _, o := range objectsOf(ca, r.port) {
		var client dynamic.ResourceInterface = r.client.Resource(o.resource)
		if o.namespace != "" {
			client = r.client.Resource(o.resource).Namespace(o.namespace)
		}
		if _, err := client.Apply(ctx, o.name, o.content(), metav1.ApplyOptions{FieldManager: readonly.User, Force: true}); err != nil {
			return fmt.Errorf("applying %s %q: %w", o.kind, o.name, err)
		}
	}
	return nil
}

// applied is an object in the store of the coordinator.
type applied struct {
	resource              schema.GroupVersionResource
	kind, namespace, name string
	spec                  map[string]any
}

func (a *applied) content() *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{}}
	o.SetAPIVersion(a.resource.GroupVersion().String())
	o.SetKind(a.kind)
	o.SetNamespace(a.namespace)
	o.SetName(a.name)
	if a.spec != nil {
		o.Object["spec"] = a.spec
	}
	return o
}

// objectsOf returns what leads kube-apiserver to the port: an APIService names a Service, and a Service that is not
// of pods is looked up by its external name. kube-apiserver wants a certificate for the name of the Service, which the
// coordinator's own certificate has.
func objectsOf(ca []byte, port int) []applied {
	parts := strings.Split(governance.UsageServer, ".")
	service, namespace := parts[0], parts[1]
	version := metrics.SchemeGroupVersion
	return []applied{
		{resource: schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}, kind: "Namespace", name: namespace},
		{
			resource: schema.GroupVersionResource{Version: "v1", Resource: "services"}, kind: "Service", namespace: namespace, name: service,
			// An address, and not localhost: it needs no file of hosts and no DNS.
			spec: map[string]any{"type": "ExternalName", "externalName": "127.0.0.1"},
		},
		{
			resource: schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}, kind: "APIService", name: version.Version + "." + version.Group,
			spec: map[string]any{
				"group": version.Group, "version": version.Version, "groupPriorityMinimum": int64(100), "versionPriority": int64(100),
				"caBundle": base64.StdEncoding.EncodeToString(ca),
				"service":  map[string]any{"namespace": namespace, "name": service, "port": int64(port)},
			},
		},
	}
}
