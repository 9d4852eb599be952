package walls

import (
	"strings"
	"testing"
)

// world is an invented import graph: the imports of each package.
type world map[string][]string

// graph makes the transitive graph of w. Paths that start with "./" are in the module. tests
// are the packages whose imports are in their test files only.
func (w world) graph(tests ...string) graph {
	ours := func(name string) string {
		if rest, found := strings.CutPrefix(name, "./"); found {
			return module + "/" + rest
		}
		return name
	}
	g := graph{}
	add := func(name string) pkg {
		full := ours(name)
		if p, known := g[full]; known {
			return p
		}
		return pkg{
			ImportPath: full,
			Name:       full[strings.LastIndex(full, "/")+1:],
			DepOnly:    !isOurs(full),
			Standard:   isStandard(full),
		}
	}
	for name, imports := range w {
		p := add(name)
		for _, imported := range imports {
			other := add(imported)
			g[other.ImportPath] = other
			p.Imports = append(p.Imports, other.ImportPath)
		}
		g[p.ImportPath] = p
	}
	for _, name := range tests {
		p := g[ours(name)]
		p.TestImports, p.Imports = p.Imports, nil
		g[p.ImportPath] = p
	}
	for name, p := range g {
		p.Deps = g.reach(name)
		g[name] = p
	}
	return g
}

// reach returns every package that from imports, directly or indirectly.
func (g graph) reach(from string) []string {
	var found []string
	seen := map[string]bool{from: true}
	for queue := []string{from}; len(queue) > 0; queue = queue[1:] {
		for _, next := range g[queue[0]].Imports {
			if !seen[next] {
				seen[next] = true
				found = append(found, next)
				queue = append(queue, next)
			}
		}
	}
	return found
}

func TestEachWallDetectsItsBreach(t *testing.T) {
	tests := map[string]struct {
		world world
		// tests are the packages of world whose imports are in their test files only.
		tests []string
		// want is the name of the wall that must be breached, "" if none may be.
		want string
		// says is a text that the message must contain.
		says string
	}{
		"api imports domain": {
			world: world{"./api/apps/v1alpha1": {"./internal/domain/united"}},
			want:  "api stands alone", says: "api/apps/v1alpha1 imports " + module + "/internal/domain/united",
		},
		"api imports an API group of ours": {
			world: world{"./api/config/v1alpha1": {"./api/apps/v1alpha1", "k8s.io/apimachinery/pkg/apis/meta/v1"}},
		},
		"api links a client behind a library that it may import": {
			world: world{
				"./api/apps/v1alpha1":             {"k8s.io/apimachinery/pkg/runtime"},
				"k8s.io/apimachinery/pkg/runtime": {"k8s.io/client-go/rest"},
			},
			want: "api stands alone", says: "k8s.io/apimachinery/pkg/runtime → k8s.io/client-go/rest",
		},
		"domain imports a client": {
			world: world{"./internal/domain/placement": {"k8s.io/client-go/kubernetes"}},
			want:  "domain is pure", says: "placement imports k8s.io/client-go/kubernetes (not a library of domain)",
		},
		"domain imports controller-runtime": {
			world: world{"./internal/domain/placement": {"sigs.k8s.io/controller-runtime/pkg/client"}},
			want:  "domain is pure", says: "sigs.k8s.io/controller-runtime/pkg/client",
		},
		"domain logs": {
			world: world{"./internal/domain/override": {"log/slog"}},
			want:  "domain is pure", says: "log/slog (not pure)",
		},
		"domain logs with klog": {
			world: world{"./internal/domain/override": {"k8s.io/klog/v2"}},
			want:  "domain is pure", says: "k8s.io/klog/v2",
		},
		"domain logs with logr": {
			world: world{"./internal/domain/override": {"github.com/go-logr/logr"}},
			want:  "domain is pure", says: "github.com/go-logr/logr",
		},
		"domain throws dice": {
			world: world{"./internal/domain/placement": {"math/rand/v2"}},
			want:  "domain is pure", says: "math/rand/v2 (not pure)",
		},
		"domain throws Kubernetes' dice": {
			world: world{"./internal/domain/placement": {"k8s.io/apimachinery/pkg/util/rand"}},
			want:  "domain is pure", says: "not pure",
		},
		"domain talks HTTP": {
			world: world{"./internal/domain/connectivity": {"net/http"}},
			want:  "domain is pure", says: "net/http",
		},
		"domain takes a context": {
			world: world{"./internal/domain/connectivity": {"context"}},
			want:  "domain is pure", says: "context",
		},
		"domain reads files": {
			world: world{"./internal/domain/ownership": {"os"}},
			want:  "domain is pure", says: "os (not pure)",
		},
		"domain links a client behind its back": {
			world: world{
				"./internal/domain/placement":       {"github.com/distribution/reference"},
				"github.com/distribution/reference": {"k8s.io/client-go/tools/cache"},
			},
			want: "domain is pure", says: "links k8s.io/client-go/tools/cache",
		},
		"domain imports another domain package": {
			world: world{"./internal/domain/placement": {"./internal/domain/override"}},
			want:  "domain is pure", says: "domain packages import api and internal/domain/affinity, internal/domain/membership, internal/domain/webster only",
		},
		"a leaf of domain imports another": {
			world: world{"./internal/domain/webster": {"./internal/domain/affinity"}},
			want:  "domain is pure", says: "a leaf of domain imports api only",
		},
		"domain's tests import an adapter": {
			world: world{"./internal/domain/placement": {"./internal/extender"}},
			tests: []string{"./internal/domain/placement"},
			want:  "domain is pure", says: "imports in tests",
		},
		"domain imports what it may": {
			world: world{"./internal/domain/placement": {
				"./internal/domain/affinity", "./internal/domain/membership", "./internal/domain/webster",
				"./internal/domain/placement/divide", "./api/apps/v1alpha1",
				"k8s.io/api/core/v1", "k8s.io/apimachinery/pkg/labels", "github.com/distribution/reference",
				"time", "strings", "net/netip", "net/url",
			}},
		},
		"domain's tests read files and use builders": {
			world: world{"./internal/domain/placement": {"os", "math/rand", "testing", "./internal/testing/build", "pgregory.net/rapid"}},
			tests: []string{"./internal/domain/placement"},
		},
		"machinery knows a kind": {
			world: world{"./internal/machinery/phase": {"./api/apps/v1alpha1"}},
			want:  "machinery imports no kind",
		},
		"seats ask an adapter": {
			world: world{"./internal/seats": {"./internal/extender"}},
			want:  "shared packages import no adapter",
		},
		"policies ask a controller": {
			world: world{"./internal/policies": {"./internal/controller/policy"}},
			want:  "shared packages import no adapter",
		},
		"seats import what they may": {
			world: world{"./internal/seats": {"./internal/domain/placement", "./internal/owners", "./api/apps/v1alpha1", "k8s.io/client-go/tools/cache"}},
		},
		"a controller imports another": {
			world: world{"./internal/controller/nodepool": {"./internal/controller/nodegroup"}},
			want:  "adapters do not import each other", says: "controller/nodepool imports " + module + "/internal/controller/nodegroup",
		},
		"a controller imports a webhook": {
			world: world{"./internal/controller/nodepool": {"./internal/webhook/pod"}},
			want:  "adapters do not import each other",
		},
		"a controller imports the index of controllers": {
			world: world{"./internal/controller/nodepool": {"./internal/controller"}},
			want:  "adapters do not import each other",
		},
		"the extender imports the hub in a test": {
			world: world{"./internal/extender": {"./internal/hub/cache"}},
			tests: []string{"./internal/extender"},
			want:  "adapters do not import each other", says: "imports in tests",
		},
		"a controller's name begins like another's": {
			world: world{"./internal/controller/pool": {"./internal/controller/poolgovernance"}},
			want:  "adapters do not import each other",
		},
		"adapters import what they may": {
			world: world{
				"./internal/controller":          {"./internal/controller/nodepool", "./internal/controller/nodegroup"},
				"./internal/controller/nodepool": {"./internal/controller/nodepool/plan", "./internal/seats", "./internal/owners", "./internal/domain/membership", "./internal/machinery/phase", "./api/apps/v1alpha1", "sigs.k8s.io/controller-runtime"},
				"./internal/hub/proxy":           {"./internal/hub/cache", "net/http"},
				"./internal/extender":            {"./internal/seats", "net/http"},
			},
		},
		"a program is imported": {
			world: world{"./internal/owners": {"./cmd/atoll-manager/app"}},
			want:  "programs are the top",
		},
		"the hub links a manager": {
			world: world{
				"./internal/hub": {"sigs.k8s.io/controller-runtime/pkg/cluster"},
				"sigs.k8s.io/controller-runtime/pkg/cluster": {"sigs.k8s.io/controller-runtime/pkg/manager"},
			},
			want: "the hub stays small", says: "pkg/cluster → sigs.k8s.io/controller-runtime/pkg/manager",
		},
		"the hub's program links a webhook server": {
			world: world{"./cmd/atoll-hub": {"sigs.k8s.io/controller-runtime/pkg/webhook/admission"}},
			want:  "the hub stays small",
		},
		"the manager's program links both": {
			world: world{"./cmd/atoll-manager": {"sigs.k8s.io/controller-runtime/pkg/webhook", "sigs.k8s.io/controller-runtime/pkg/manager"}},
		},
		"a package is named helpers": {
			world: world{"./internal/seats/helpers": {"strings"}},
			want:  "no package for whatever is left over",
		},
		"a package is below one named util": {
			world: world{"./internal/util/maps": {"maps"}},
			want:  "no package for whatever is left over",
		},
		"a program imports the builders of tests": {
			world: world{"./internal/machinery/phase": {"./internal/testing/build"}},
			want:  "tests' tools stay in tests",
		},
		"the product links Kubernetes": {
			world: world{"./cmd/atoll-manager": {"k8s.io/kubernetes/pkg/scheduler"}},
			want:  "Kubernetes itself is no dependency of the product",
		},
		"the record of the hub sends requests": {
			world: world{"./internal/hub/record": {"./internal/hub/uplink"}},
			want:  "what the hub keeps does not answer requests", says: "internal/hub/uplink",
		},
		"the hub links etcd": {
			world: world{"./internal/hub/pool": {"go.etcd.io/etcd/client/v3"}},
			want:  "one program knows etcd",
		},
		"a coordinator's program links etcd": {
			world: world{"./cmd/atoll-coordinator": {"./internal/coordinator/writer"}, "./internal/coordinator/writer": {"go.etcd.io/etcd/client/v3"}},
		},
		"the product links the devcluster": {
			world: world{"./internal/testing/fixture": {"./devcluster"}},
			want:  "Kubernetes itself is no dependency of the product",
		},
	}
	bitten := map[string]bool{}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			breaches := check(test.world.graph(test.tests...))
			if test.want == "" {
				for _, breach := range breaches {
					t.Error(breach)
				}
				return
			}
			for _, breach := range breaches {
				if strings.HasPrefix(breach, `wall "`+test.want+`"`) && strings.Contains(breach, test.says) && strings.Contains(breach, "why: ") {
					bitten[test.want] = true
					return
				}
			}
			t.Errorf("wall %q is not breached; breaches: %q", test.want, breaches)
		})
	}
	for _, w := range walls {
		if !bitten[w.name] {
			t.Errorf("no case above breaches wall %q", w.name)
		}
	}
}
