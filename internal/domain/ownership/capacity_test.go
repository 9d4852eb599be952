package ownership

import (
	"testing"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

func TestCapacityOf(t *testing.T) {
	type keys = map[string]string
	tests := map[string]struct {
		annotations, labels keys
		want                Capacity
	}{
		"nothing is said":                  {nil, nil, Capacity{}},
		"other keys":                       {keys{"a": "b"}, keys{"c": "d"}, Capacity{}},
		"in annotations":                   {keys{gm.CapacitySwitchKey: "on", gm.CapacityCountKey: "2", gm.CapacityOnEmptyKey: "x"}, nil, Capacity{"on", "2", "x"}},
		"in labels":                        {nil, keys{gm.CapacitySwitchKey: "on", gm.CapacityCountKey: "2", gm.CapacityOnEmptyKey: "x"}, Capacity{"on", "2", "x"}},
		"some in each":                     {keys{gm.CapacityCountKey: "2"}, keys{gm.CapacitySwitchKey: "on"}, Capacity{"on", "2", ""}},
		"the annotation counts before all": {keys{gm.CapacityCountKey: "2"}, keys{gm.CapacityCountKey: "3", "app": "web"}, Capacity{"", "2", ""}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := CapacityOf(tc.annotations, tc.labels); got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}

// TestCapacityWorkload checks that only pods that are interchangeable are divided over
// capacity classes.
func TestCapacityWorkload(t *testing.T) {
	const statefulSet = "apps/v1/StatefulSet"
	tests := map[string]struct {
		owners []string
		wants  []bool // has a number of replicas
		want   int    // index, -1 is none
	}{
		"a pod without an owner": {nil, nil, -1},
		"a ReplicaSet":           {[]string{replicaSet}, []bool{true}, 0},
		"a Deployment":           {[]string{replicaSet, deployment}, []bool{true, true}, 1},
		"the owner of a Deployment, with replicas":       {[]string{replicaSet, deployment, "example.com/v1/Shop"}, []bool{true, true, true}, 2},
		"the owner of a Deployment, without":             {[]string{replicaSet, deployment, "example.com/v1/Shop"}, []bool{true, true, false}, 1},
		"a StatefulSet, whatever made it":                {[]string{statefulSet, "example.com/v1/Database"}, []bool{true, true}, 0},
		"another group's StatefulSet is as any other":    {[]string{"example.com/v1/StatefulSet", "example.com/v1/Database"}, []bool{true, true}, 1},
		"another kind of that group is too":              {[]string{"apps/v1/ReplicaSet", "example.com/v1/Database"}, []bool{true, true}, 1},
		"a Job":                                          {[]string{job}, []bool{true}, -1},
		"a Job that something with a number of pods has": {[]string{job, "example.com/v1/Shop"}, []bool{false, true}, -1},
		"a DaemonSet":                                    {[]string{"apps/v1/DaemonSet"}, []bool{false}, -1},
		"a direct owner without replicas":                {[]string{"example.com/v1/Agent", "example.com/v1/Shop"}, []bool{false, true}, -1},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			owners := chainOf(tc.owners...)
			for i, wants := range tc.wants {
				if wants {
					owners[i].Replicas = new(int32(3))
				}
			}
			var want *Object
			if tc.want >= 0 {
				want = owners[tc.want]
			}
			if got := CapacityWorkload(owners); got != want {
				t.Errorf("it is %+v, want %+v", got, want)
			}
		})
	}
}
