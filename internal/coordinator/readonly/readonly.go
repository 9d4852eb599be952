// Package readonly makes the API server of a coordinator one that only shows: a policy refuses every change,
// also by system:masters, and people with a certificate of the pool may read, and use log, exec, attach and
// port-forward. objects.yaml has all of it. It also makes the API server know NodePools.
package readonly

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/go-logr/logr"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// User is the user that Apply must be: the policy lets nobody else change anything.
const User = "atoll:coordinator"

const (
	// applyEvery is the time between two rounds, retryAfter that after one that has failed, and applyWithin bounds
	// one.
	applyEvery, retryAfter, applyWithin = 30 * time.Second, time.Second, 20 * time.Second
)

// objects are those to be applied, nodePools the CustomResourceDefinition of NodePools: make generate copies it.
var (
	//go:embed objects.yaml
	objects []byte
	//go:embed crds/apps.openyurt.io_nodepools.yaml
	nodePools []byte
)

// resources are those of the kinds of objects.
var resources = map[string]string{
	"ValidatingAdmissionPolicy": "validatingadmissionpolicies", "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
	"ClusterRole": "clusterroles", "ClusterRoleBinding": "clusterrolebindings",
	"CustomResourceDefinition": "customresourcedefinitions",
}

// secretsRole is the ClusterRole with what people may do with Secrets.
const secretsRole = "atoll.dev:people-secrets"

// runner has a client of User, and one of somebody else who may do everything.
type runner struct {
	own, other dynamic.Interface
	// hasSecrets tells whether people may read Secrets.
	hasSecrets func() bool
}

// Run applies the objects again and again until ctx is done. config is that of User, and hasSecrets tells whether the
// API server has Secrets.
func Run(ctx context.Context, config *rest.Config, hasSecrets func() bool, log logr.Logger) error {
	others := rest.CopyConfig(config)
	others.Impersonate = rest.ImpersonationConfig{UserName: User + "-try", Groups: []string{"system:masters"}}
	own, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client of the API server: %w", err)
	}
	other, err := dynamic.NewForConfig(others)
	if err != nil {
		return fmt.Errorf("making a client of the API server: %w", err)
	}
	r := &runner{own, other, hasSecrets}
	for last := "it was not tried yet"; ; {
		pause, reason := applyEvery, ""
		if err := r.apply(ctx); err != nil {
			pause, reason = retryAfter, err.Error()
		}
		if reason != last && ctx.Err() == nil {
			log.Info("Whether the API server is made read-only has changed", "isReadOnly", reason == "", "reason", reason)
			last = reason
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// apply applies the objects: first the policy, and once it refuses changes what people may do. The kinds that an API
// server does not have by itself come last: what hubs upload of them before is shown from then on.
func (r *runner) apply(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, applyWithin)
	defer cancel()
	decoder := yaml.NewYAMLOrJSONDecoder(io.MultiReader(bytes.NewReader(objects), bytes.NewReader(nodePools)), 4096)
	for isEnforced := false; ; {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(object)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading objects.yaml: %w", err)
		}
		gvk := object.GroupVersionKind()
		if gvk.Group == rbacv1.GroupName && !isEnforced {
			if err := r.tryChange(ctx); err != nil {
				return err
			}
			isEnforced = true
		}
		if object.GetName() == secretsRole && gvk.Kind == "ClusterRole" && !r.hasSecrets() {
			object.Object["rules"] = []any{}
		}
		resource := schema.GroupVersionResource{Group: gvk.Group, Version: gvk.Version, Resource: resources[gvk.Kind]}
		if _, err := r.own.Resource(resource).Apply(ctx, object.GetName(), object, metav1.ApplyOptions{FieldManager: User, Force: true}); err != nil {
			return fmt.Errorf("applying %s %q: %w", gvk.Kind, object.GetName(), err)
		}
	}
}

// tryChange returns an error unless the API server refuses a change by who may do everything.
func (r *runner) tryChange(ctx context.Context) error {
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"namespace": "default", "name": "atoll-change"},
	}}
	configMaps := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	_, err := r.other.Resource(configMaps).Namespace("default").Create(ctx, object, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if apierrors.IsForbidden(err) {
		return nil
	}
	if err == nil {
		return errors.New("the policy is not in force yet")
	}
	return fmt.Errorf("trying a change: %w", err)
}
