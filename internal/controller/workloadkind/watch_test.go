package workloadkind

import (
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/atoll-k8s/atoll/internal/testing/build"
	"github.com/atoll-k8s/atoll/internal/testing/watched"
)

func TestWatches(t *testing.T) {
	other := func(o build.Object) { o.SetName("other") }
	elsewhere := func(o build.Object) { o.SetNamespace("elsewhere") }
	const request = build.Namespace + "/" + ConfigMapName
	for name, tc := range map[string]struct {
		before, after client.Object
		want          string
	}{
		"the ConfigMap is created":                      {after: config(widget), want: request},
		"the ConfigMap changes":                         {before: config(widget), after: config(gadget), want: request},
		"the ConfigMap is deleted":                      {before: config(widget), want: request},
		"another ConfigMap":                             {after: config(widget, other)},
		"a ConfigMap of the name, in another namespace": {after: config(widget, elsewhere)},
	} {
		t.Run(name, func(t *testing.T) {
			r := &Reconciler{Namespace: build.Namespace}
			var queue watched.Queue
			queue.Send(t.Context(), r.watches(), tc.before, tc.after)
			if got := queue.Take(); got != tc.want {
				t.Errorf("%q is enqueued, want %q", got, tc.want)
			}
		})
	}
}
