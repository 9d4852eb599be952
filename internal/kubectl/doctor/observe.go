package doctor

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/atoll-k8s/atoll/internal/kubectl/read"
)

const (
	// installation is the ConfigMap in which the chart says what it has installed.
	installation = "atoll-installation"
	// clientSecret has the certificate with which kube-scheduler calls the extender, and the CA of
	// the webhooks.
	clientSecret = "atoll-extender-client"
	manager      = "atoll-manager"
	scheduler    = "atoll-scheduler"
)

// Object is an object that the chart has installed.
type Object struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace"`
	Name       string `json:"name"`
	// Content is a hash of what Kubernetes keeps as it was applied; "" if that is nothing.
	Content string `json:"content"`
}

func (o Object) String() string {
	if o.Namespace != "" {
		return o.Kind + " " + o.Namespace + "/" + o.Name
	}
	return o.Kind + " " + o.Name
}

// Observed is what was read.
type Observed struct {
	Namespace string
	// Version and Mode are those of the chart that was installed; Own is the version of this
	// program, and Server that of the API server.
	Version, Mode, Own, Server string
	// Release is the name of the release in Helm; "" if the chart was applied as a file.
	Release string
	// Objects are those of the chart; There are those of them that exist, and Unread those that
	// the person may not read.
	Objects []Object
	There   map[Object]*unstructured.Unstructured
	Unread  map[Object]bool
	// Now is the time by the clock of the API server.
	Now time.Time
	// Probe is the answer of the API server to a NodeGroup that only the webhook refuses.
	Probe error
	// Unprobed is true if the person may not create a NodeGroup.
	Unprobed bool
	// Secret is clientSecret, Leader and Scheduler are the Leases of atoll-manager and atoll-scheduler;
	// nil if there is none.
	Secret            *corev1.Secret
	Leader, Scheduler *coordinationv1.Lease
	Endpoints         discoveryv1.EndpointSliceList
	Schedulers        corev1.PodList
	Pods              corev1.PodList
	Nodes             corev1.NodeList
	Heartbeats        coordinationv1.LeaseList
	// Hidden are those of these fields that the person may not read, by their address.
	Hidden map[any]bool
}

// Observe reads what an installation consists of, in the namespace of its release. own is the version
// of this program. It writes nothing: the one object that it sends is sent as a dry run.
func Observe(ctx context.Context, r *read.Reader, config *rest.Config, namespace, own string) (*Observed, error) {
	o := &Observed{Namespace: namespace, Own: own, There: map[Object]*unstructured.Unstructured{}, Unread: map[Object]bool{}, Hidden: map[any]bool{}}
	if err := o.readInstallation(ctx, r); err != nil {
		return nil, err
	}
	clock, err := o.askServer(ctx, config)
	if err != nil {
		return nil, err
	}
	for _, want := range o.Objects {
		object := &unstructured.Unstructured{}
		object.SetAPIVersion(want.APIVersion)
		object.SetKind(want.Kind)
		found, err := r.Get(ctx, client.ObjectKey{Namespace: want.Namespace, Name: want.Name}, object)
		switch {
		case err != nil:
			return nil, err
		case found:
			o.There[want] = object
		case r.Forbidden("get", want.Namespace, object):
			o.Unread[want] = true
		}
	}
	secret := &corev1.Secret{}
	if found, err := r.Get(ctx, client.ObjectKey{Namespace: namespace, Name: clientSecret}, secret); err != nil {
		return nil, err
	} else if found {
		o.Secret = secret
	}
	o.Hidden[&o.Secret] = r.Forbidden("get", namespace, secret)
	for _, read := range []struct {
		list    client.ObjectList
		options []client.ListOption
	}{
		{&o.Endpoints, []client.ListOption{client.InNamespace(namespace), client.MatchingLabels{discoveryv1.LabelServiceName: manager}}},
		{&o.Schedulers, []client.ListOption{client.InNamespace("kube-system"), client.MatchingLabels{"component": "kube-scheduler"}}},
		{&o.Pods, []client.ListOption{client.MatchingFields{"status.phase": string(corev1.PodPending)}}},
		{&o.Nodes, nil},
		{&o.Heartbeats, []client.ListOption{client.InNamespace(corev1.NamespaceNodeLease)}},
	} {
		if err := r.List(ctx, read.list, read.options...); err != nil {
			return nil, err
		}
		var of client.ListOptions
		of.ApplyOptions(read.options)
		o.Hidden[read.list] = r.Forbidden("list", of.Namespace, read.list)
	}
	for name, into := range map[string]**coordinationv1.Lease{manager: &o.Leader, scheduler: &o.Scheduler} {
		lease := &coordinationv1.Lease{}
		if found, err := r.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, lease); err != nil {
			return nil, err
		} else if found {
			*into = lease
		}
		o.Hidden[into] = r.Forbidden("get", namespace, lease)
	}
	o.Now, err = clock() // after the Leases, whose age it tells
	return o, err
}

// readInstallation reads what the chart says that it has installed.
func (o *Observed) readInstallation(ctx context.Context, r *read.Reader) error {
	m := &corev1.ConfigMap{}
	found, err := r.Get(ctx, client.ObjectKey{Namespace: o.Namespace, Name: installation}, m)
	if err != nil {
		return err
	}
	if !found {
		if unread := r.Unread(); len(unread) > 0 {
			return fmt.Errorf("%s", unread[0])
		}
		return fmt.Errorf("there is no ConfigMap %s in namespace %s: Atoll is not installed there, or was by an older chart; -n names another namespace", installation, o.Namespace)
	}
	o.Version, o.Mode, o.Release = m.Data["version"], m.Data["mode"], m.Annotations["meta.helm.sh/release-name"]
	for lines := bufio.NewScanner(strings.NewReader(m.Data["objects"])); lines.Scan(); {
		var object Object
		if err := json.Unmarshal(lines.Bytes(), &object); err != nil {
			return fmt.Errorf("ConfigMap %s/%s, data.objects: %w", o.Namespace, installation, err)
		}
		o.Objects = append(o.Objects, object)
	}
	return nil
}

// invalid is a NodeGroup that the schema allows and the webhook refuses.
const invalid = `{"apiVersion":"groupmanagement.kubeedge.io/v1alpha1","kind":"NodeGroup","metadata":{"name":"atoll-doctor"},"spec":{"matchLabels":{"no/valid/key":""}}}`

// askServer reads the version of the API server, and tries whether it reaches the webhooks. It
// returns a function that reads the clock of the API server, in whole seconds.
func (o *Observed) askServer(ctx context.Context, config *rest.Config) (clock func() (time.Time, error), err error) {
	config = rest.CopyConfig(config)
	var date string
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			response, err := next.RoundTrip(request)
			if err == nil {
				date = response.Header.Get("Date")
			}
			return response, err
		})
	})
	server, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", config.Host, err)
	}
	version, err := server.ServerVersion()
	if err != nil {
		return nil, fmt.Errorf("reading the version of the API server: %w", err)
	}
	o.Server = version.GitVersion
	o.Probe = server.RESTClient().Post().AbsPath("/apis/groupmanagement.kubeedge.io/v1alpha1/nodegroups").
		Param("dryRun", "All").SetHeader("Content-Type", runtime.ContentTypeJSON).Body([]byte(invalid)).Do(ctx).Error()
	o.Unprobed = apierrors.IsForbidden(o.Probe)
	return func() (time.Time, error) {
		if _, err := server.ServerVersion(); err != nil {
			return time.Time{}, fmt.Errorf("reading the clock of the API server: %w", err)
		}
		now, err := http.ParseTime(date)
		if err != nil {
			return time.Time{}, fmt.Errorf("reading the clock of the API server: %w", err)
		}
		return now, nil
	}, nil
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// contentOf is the hash that the chart has of an object's content.
func contentOf(o *unstructured.Unstructured) (string, error) {
	spec, _, _ := unstructured.NestedMap(o.Object, "spec")
	constraints, _ := spec["matchConstraints"].(map[string]any)
	content := filled(map[string]any{
		"rules": o.Object["rules"], "subjects": o.Object["subjects"], "roleRef": o.Object["roleRef"],
		"webhooks": each(o.Object["webhooks"], webhookContent), "resourceRules": each(constraints["resourceRules"], unscoped),
		"validations": spec["validations"], "validationActions": spec["validationActions"], "policyName": spec["policyName"],
		"matchConditions": spec["matchConditions"], "variables": spec["variables"],
	})
	data, err := json.Marshal(content)
	if err != nil {
		return "", fmt.Errorf("encoding %s %s: %w", o.GetKind(), o.GetName(), err)
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])[:16], nil
}

// webhookContent is what the hash of a webhook is about.
func webhookContent(webhook map[string]any) map[string]any {
	config, _ := webhook["clientConfig"].(map[string]any)
	service, _ := config["service"].(map[string]any)
	content := filled(map[string]any{
		"name": webhook["name"], "failurePolicy": webhook["failurePolicy"], "matchConditions": webhook["matchConditions"],
		"namespaceSelector": webhook["namespaceSelector"], "objectSelector": webhook["objectSelector"],
		"url": config["url"], "service": without(service, "port"),
	})
	content["rules"] = each(webhook["rules"], unscoped)
	return content
}

func unscoped(rule map[string]any) map[string]any { return without(rule, "scope") }

func without(content map[string]any, key string) map[string]any {
	content = maps.Clone(content)
	delete(content, key)
	return content
}

// each changes the objects of a list.
func each(list any, change func(map[string]any) map[string]any) []any {
	objects, _ := list.([]any)
	changed := make([]any, 0, len(objects))
	for _, o := range objects {
		object, _ := o.(map[string]any)
		changed = append(changed, change(object))
	}
	return changed
}

// filled takes out what is empty.
func filled(content map[string]any) map[string]any {
	maps.DeleteFunc(content, func(_ string, value any) bool {
		switch value := value.(type) {
		case []any:
			return len(value) == 0
		case map[string]any:
			return len(value) == 0
		}
		return value == nil
	})
	return content
}
