package uniteddeployment

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/testing/build"
	"github.com/atoll-k8s/atoll/internal/testing/watched"
)

func TestWatches(t *testing.T) {
	version := func(n string) build.Option { return func(o build.Object) { o.SetResourceVersion(n) } }
	generation := func(n int64) build.Option { return func(o build.Object) { o.SetGeneration(n) } }
	ud := func(options ...build.Option) *apps.UnitedDeployment {
		ud := web("a", "b")
		version("1")(ud)
		for _, option := range options {
			option(ud)
		}
		return ud
	}
	controlled := func(o build.Object) { o.SetOwnerReferences([]metav1.OwnerReference{*controllerRef(web("a"))}) }
	labelled := build.Label(apps.UnitedDeploymentLabel, "web")
	revision := func(options ...build.Option) *appsv1.ControllerRevision {
		o := &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Namespace: build.Namespace, Name: "web-1"}}
		for _, option := range options {
			option(o)
		}
		return o
	}
	for name, tc := range map[string]struct {
		before, after client.Object
		want          string
	}{
		"a UnitedDeployment is created":                               {after: ud(), want: "ns/web"},
		"a UnitedDeployment is deleted":                               {before: ud(), want: "ns/web"},
		"its spec changes":                                            {before: ud(), after: ud(version("2"), generation(2)), want: "ns/web"},
		"its annotation changes":                                      {before: ud(), after: ud(version("2"), build.Annotation(apps.RollbackToAnnotation, "1")), want: "ns/web"},
		"its status changes":                                          {before: ud(), after: ud(version("2")), want: "ns/web"},
		"a resync brings the same version":                            {before: ud(), after: ud()},
		"a Deployment of a pool changes":                              {before: build.Deployment("web-a", controlled), after: build.Deployment("web-a", controlled), want: "ns/web"},
		"a Deployment of a pool is deleted":                           {before: build.Deployment("web-a", controlled), want: "ns/web"},
		"a StatefulSet of a pool is created":                          {after: build.StatefulSet("web-a", controlled), want: "ns/web"},
		"a DaemonSet of a pool is created":                            {after: build.DaemonSet("web-a", controlled), want: "ns/web"},
		"a Deployment loses its controller":                           {before: build.Deployment("web-a", controlled), after: build.Deployment("web-a"), want: "ns/web"},
		"a Deployment without a controller has the label":             {after: build.Deployment("web-a", labelled), want: "ns/web"},
		"a Deployment with the label is controlled by another object": {after: build.Deployment("web-a", labelled, build.OwnedBy(build.Deployment("other")))},
		"another Deployment":                                          {after: build.Deployment("other")},
		"a ControllerRevision is deleted":                             {before: revision(controlled), want: "ns/web"},
		"a ControllerRevision of a StatefulSet":                       {after: revision(build.OwnedBy(build.StatefulSet("db")))},
		"a NodePool of a pool is created":                             {after: build.NodePool("a"), want: "ns/web"},
		"a NodePool of a pool is deleted":                             {before: build.NodePool("b"), want: "ns/web"},
		"its taints change":                                           {before: build.NodePool("a"), after: build.NodePool("a", generation(2)), want: "ns/web"},
		"its status changes only":                                     {before: build.NodePool("a"), after: build.NodePool("a", version("2"))},
		"another NodePool":                                            {after: build.NodePool("c")},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, web("a", "b"))
			var queue watched.Queue
			if err := s.changed.Start(t.Context(), &queue); err != nil {
				t.Fatal(err)
			}
			queue.Send(t.Context(), s.watches(), tc.before, tc.after)
			if got := queue.Take(); got != tc.want {
				t.Errorf("%q is enqueued, want %q", got, tc.want)
			}
		})
	}
}
