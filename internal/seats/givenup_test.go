package seats

import (
	"testing"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

func TestGivenUp(t *testing.T) {
	own, other := build.OwnedBy(build.ReplicaSet("web-1")), build.OwnedBy(build.ReplicaSet("other"))
	created := build.Annotation(gm.CreatedForAnnotation, "web-1")
	tests := map[string]struct {
		options []build.Option
		want    bool
	}{
		"a pod that was not overridden":       {nil, false},
		"a pod that belongs to its owner":     {[]build.Option{created, own}, false},
		"a pod without an owner":              {[]build.Option{created}, true},
		"a pod that belongs to another owner": {[]build.Option{created, other}, true},
		"a terminating pod without an owner":  {[]build.Option{created, build.Deleting("")}, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := Slim(build.Pod("a", tc.options...)).GivenUp(); got != tc.want {
				t.Errorf("given up: %v, want %v", got, tc.want)
			}
		})
	}
}
