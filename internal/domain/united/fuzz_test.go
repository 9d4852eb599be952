package united

import (
	"encoding/json"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
)

// FuzzBuild: for any UnitedDeployment, Build returns a workload that selects its own pods,
// or an error, and the same result when it is called again.
func FuzzBuild(f *testing.F) {
	f.Add([]byte(`{"selector":{"matchLabels":{"app":"x"}},"workloadTemplate":{"deploymentTemplate":{"spec":{"template":{}}}},"topology":{"pools":[{"name":"a"}]}}`), []byte(`{"spec":{"template":{"spec":{"containers":[{"name":"c"}]}}}}`))
	f.Add([]byte(`{"selector":{"matchExpressions":[{"key":"a","operator":"In","values":["b"]}]},"workloadTemplate":{"statefulSetTemplate":{"spec":{"updateStrategy":{"rollingUpdate":{}}}}},"topology":{"pools":[{"name":"a","nodeSelectorTerm":{"matchFields":[{}]},"partition":3}]}}`), []byte(`{"spec":{"template":{"$patch":"delete"}}}`))
	f.Add([]byte(`{"selector":null,"workloadTemplate":{"daemonSetTemplate":{"metadata":{"labels":{"a":"b"}},"spec":{"template":{"spec":{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":null}}}}}}}},"topology":{"pools":[{"name":"","tolerations":[{}]}]}}`), []byte(`{"metadata":{"labels":null}}`))
	f.Add([]byte(`{}`), []byte(`{"spec":null}`))
	f.Fuzz(func(t *testing.T, spec, patch []byte) {
		var s apps.UnitedDeploymentSpec
		if json.Unmarshal(spec, &s) != nil {
			return
		}
		for i := range s.Topology.Pools {
			pool := &s.Topology.Pools[i]
			if len(patch) > 0 {
				pool.Patch = &runtime.RawExtension{Raw: patch}
			}
			r := BuildInput{Namespace: "ns", Owner: "ud", Template: &s.WorkloadTemplate, Revision: "r", Selector: s.Selector, Pool: pool, Replicas: 1}
			w, err := Build(r)
			if err != nil {
				continue
			}
			again, err := Build(r)
			if err != nil || again.GetAnnotations()[apps.PoolRevisionAnnotation] != w.GetAnnotations()[apps.PoolRevisionAnnotation] {
				t.Fatalf("the second time it is another (error %v)", err)
			}
			if !IsAdoptable(w, s.Selector) && w.GetLabels()[apps.PoolNameLabel] != "" {
				t.Fatal("it is not of its pool")
			}
			Overlay(w, again)
			if _, err := WrittenHash(w); err != nil {
				t.Fatal(err)
			}
			FailureOf(w)
			ChildOf(w)
			if d, ok := w.(*appsv1.Deployment); ok && *d.Spec.Replicas != 1 {
				t.Fatalf("it has %d replicas", *d.Spec.Replicas)
			}
		}
	})
}
