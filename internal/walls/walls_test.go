package walls

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/atoll-k8s/atoll"

// wall is one rule about imports. A package of the module in whose room it
// stands may not import what breach names.
type wall struct {
	name string
	// why is told to whoever runs into the wall: what would break, and where
	// the code belongs instead.
	why string
	// room says which packages of the module the wall surrounds, by path below
	// the module.
	room func(pkg string) bool
	// imports judges what a package of the room imports itself: it returns what
	// is wrong with it, or "". Paths below the module start with "./".
	imports func(pkg, imported string) string
	// testImports judges, likewise, what only its tests import.
	testImports func(pkg, imported string) string
	// named judges the path and the name of the package itself.
	named func(pkg, name string) string
	// links lists what the package must not lead to, over any number of
	// imports: a path and everything below it.
	links []string
}

// walls are the walls of docs/architecture.md, in its order.
var walls = []wall{
	{
		name: "api stands alone",
		why: "api is what users and other programs import to read and write our objects. Whatever it imports, they " +
			"compile too. Code that decides belongs to internal/domain, code that talks to a cluster to an adapter.",
		room: under("api"),
		imports: func(_, imported string) string {
			if isOurs(imported) && !under("api")(below(imported)) {
				return "api imports nothing of ours but api"
			}
			return notIn(imported, "api", apimachinery)
		},
		links: []string{"k8s.io/client-go", "sigs.k8s.io/controller-runtime"},
	},
	{
		name: "domain is pure",
		why: "internal/domain holds decisions as functions of what was observed, so that a test can try a thousand " +
			"cases a second and replay any of them. A client, a logger, a clock or chance in here ends that. Pass in " +
			"what was observed (the time too, as a value), return what to do, and do it in the caller.",
		room: under("internal/domain"),
		imports: func(pkg, imported string) string {
			switch {
			case isOurs(imported):
				return ofOursInDomain(pkg, below(imported))
			case isImpure(imported):
				return "not pure"
			case isStandard(imported):
				return ""
			}
			return notIn(imported, "domain", apimachinery, domainLibraries)
		},
		testImports: func(pkg, imported string) string {
			if isOurs(imported) && !under("internal/testing")(below(imported)) {
				return ofOursInDomain(pkg, below(imported))
			}
			return ""
		},
		links: []string{"k8s.io/client-go", "sigs.k8s.io/controller-runtime"},
	},
	{
		name: "machinery knows no kind",
		why: "internal/machinery is how every controller reconciles. If it knew one kind, all of them would depend on " +
			"that kind. Put what is about a kind beside its controller.",
		room: under("internal/machinery"),
		imports: func(_, imported string) string {
			if isOurs(imported) && !under("internal/machinery")(below(imported)) {
				return "machinery imports nothing of ours but machinery"
			}
			return ""
		},
	},
	{
		name: "what adapters ask knows no adapter",
		why: "internal/seats, internal/owners, internal/policies, internal/gangs and internal/assign are asked by controllers, webhooks and the extender. An " +
			"import the other way round would make one adapter reach into another through them.",
		room: under(asked...),
		imports: func(_, imported string) string {
			return ofOurs(imported, shared, asked)
		},
	},
	{
		name: "adapters do not know each other",
		why: "Kinds talk through the API server: what one controller needs from another is a field, a label or a condition " +
			"that users can see too. An import from one adapter to another is a hidden channel that no restart survives. " +
			"What two of them need belongs to internal/domain (decisions), internal/seats (who sits where), " +
			"internal/owners (whose pod it is), internal/policies (what it is bound to), internal/gangs (its PodGroup), internal/assign (seats at creation) or internal/machinery (how we reconcile).",
		room: isAdapter,
		imports: func(pkg, imported string) string {
			return ofOurs(imported, shared, asked, []string{adapterOf(pkg)})
		},
		testImports: func(pkg, imported string) string {
			return ofOurs(imported, shared, asked, []string{adapterOf(pkg), "internal/testing"})
		},
	},
	{
		name: "programs are the top",
		why:  "cmd is flags and wiring. What somebody wants to import from there is logic, and belongs into a room of internal.",
		room: func(pkg string) bool { return !under("cmd")(pkg) },
		imports: func(_, imported string) string {
			if under("cmd")(below(imported)) {
				return "nobody imports a program"
			}
			return ""
		},
	},
	{
		name: "the hub stays small",
		why: "atoll-hub runs on every edge node, beside a kubelet, in little memory. A controller manager or a webhook server " +
			"linked into it costs tens of megabytes on each of thousands of nodes. It needs a reverse proxy and a disk cache.",
		room: under("internal/hub", "cmd/atoll-hub"),
		links: []string{
			"sigs.k8s.io/controller-runtime/pkg/manager",
			"sigs.k8s.io/controller-runtime/pkg/builder",
			"sigs.k8s.io/controller-runtime/pkg/webhook",
			module + "/internal/controller",
			module + "/internal/webhook",
			module + "/internal/extender",
		},
	},
	{
		name: "no package for whatever is left over",
		why: "A package called util, common or helper says nothing about what belongs into it, so everything does, and in the " +
			"end everybody imports it. Name it after what it knows.",
		room: func(string) bool { return true },
		named: func(pkg, name string) string {
			for element := range strings.SplitSeq(path.Join(pkg, name), "/") {
				if slices.Contains(leftOver, strings.TrimSuffix(element, "_test")) {
					return "is named " + element
				}
			}
			return ""
		},
	},
	{
		name: "tests' tools stay in tests",
		why: "internal/testing builds objects and expectations for tests. In a program it would bring its shortcuts (defaults, " +
			"panics, fixed clocks) to production.",
		room: func(pkg string) bool { return !under("internal/testing")(pkg) },
		imports: func(_, imported string) string {
			if under("internal/testing")(below(imported)) {
				return "only tests import internal/testing"
			}
			return ""
		},
	},
	{
		name: "Kubernetes itself is no dependency of the product",
		why: "k8s.io/kubernetes promises no stable Go API and drags a hundred modules along, Helm no fewer. devcluster, test and " +
			"hack are modules of their own so that they may need them and the product does not.",
		room: func(string) bool { return true },
		links: []string{
			"k8s.io/kubernetes", "helm.sh/helm/v3", "go.etcd.io/etcd",
			module + "/devcluster", module + "/test", module + "/hack/chart",
		},
	},
}

// The third-party packages of the inner rooms. One that is pure (no I/O, no
// state, no clock) may be added together with a line in docs/dependencies.md.
var (
	// apimachinery: the types that every Kubernetes object is made of.
	apimachinery = []string{"k8s.io/api", "k8s.io/apimachinery", "k8s.io/apiextensions-apiserver/pkg/apis"}
	// domainLibraries: the grammar of image references, YAML, and the parts of
	// kube-scheduler's filters that are pure.
	domainLibraries = []string{"github.com/distribution/reference", "sigs.k8s.io/yaml", "k8s.io/component-helpers"}
)

// impure are the packages with which a function stops being one of its
// arguments. time is not among them: durations and instants are values. The
// linter forbids time.Now and its like in internal/domain.
var impure = []string{
	"context", "crypto/rand", "database/sql", "embed", "io/ioutil", "log", "math/rand", "net", "os", "plugin",
	"runtime", "syscall", "testing",
	"k8s.io/apimachinery/pkg/util/net", "k8s.io/apimachinery/pkg/util/rand", "k8s.io/apimachinery/pkg/util/wait",
	"k8s.io/apimachinery/pkg/watch",
}

// isImpure says whether a path is at or below one of impure. Addresses and
// URLs are values, whatever they stand below.
func isImpure(imported string) bool {
	return imported != "net/netip" && imported != "net/url" && slices.ContainsFunc(impure, covers(imported))
}

// Rooms of ours that others may import: shared by every room around them, and
// asked by the adapters and by each other.
var (
	shared = []string{"api", "internal/domain", "internal/machinery"}
	asked  = []string{"internal/seats", "internal/owners", "internal/policies", "internal/assign", "internal/gangs"}
)

// leaves are the domain packages that other domain packages may import. Each holds one
// thing that several decisions need.
var leaves = []string{"internal/domain/affinity", "internal/domain/membership", "internal/domain/webster"}

// adapters are the rooms in which every package below is an adapter of its own
// (one a kind, one a verb), or, with their own path as the unit, which are one.
var adapters = map[string]bool{
	"internal/controller": true,
	"internal/webhook":    true,
	"internal/kubectl":    true,
	"internal/extender":   false,
	"internal/hub":        false,
}

func isAdapter(pkg string) bool {
	for room := range adapters {
		if under(room)(pkg) {
			return true
		}
	}
	return false
}

// adapterOf returns the path that pkg shares with the rest of its adapter. The
// package at the top of a room of many adapters (the index that lists them)
// may import each of them.
func adapterOf(pkg string) string {
	for room, many := range adapters {
		if !under(room)(pkg) || pkg == room || !many {
			continue
		}
		kind, _, _ := strings.Cut(strings.TrimPrefix(pkg, room+"/"), "/")
		return room + "/" + kind
	}
	for room := range adapters {
		if under(room)(pkg) {
			return room
		}
	}
	return pkg
}

// ofOurs returns what is wrong with an import of a package of ours that is in
// none of the rooms.
func ofOurs(imported string, lists ...[]string) string {
	rooms := slices.Concat(lists...)
	if !isOurs(imported) || under(rooms...)(below(imported)) {
		return ""
	}
	return "of ours, only " + strings.Join(rooms, ", ")
}

// ofOursInDomain is ofOurs for internal/domain. Its packages do not import each other,
// except for the leaves; a leaf imports no other leaf.
func ofOursInDomain(pkg, imported string) string {
	own, _, _ := strings.Cut(strings.TrimPrefix(pkg, "internal/domain/"), "/")
	own = "internal/domain/" + own
	switch {
	case under("api", own)(imported):
		return ""
	case under(leaves...)(own):
		return "of ours, a leaf of domain imports api only"
	case under(leaves...)(imported):
		return ""
	}
	return "of ours, domain packages import api and " + strings.Join(leaves, ", ") + " only"
}

// notIn returns what is wrong with a package of a third party that no list names.
func notIn(imported, room string, lists ...[]string) string {
	if isOurs(imported) || isStandard(imported) || slices.ContainsFunc(slices.Concat(lists...), covers(imported)) {
		return ""
	}
	return "not a library of " + room
}

// under matches the rooms and everything below them.
func under(rooms ...string) func(string) bool {
	return func(pkg string) bool { return slices.ContainsFunc(rooms, covers(pkg)) }
}

// covers matches the paths that are imported or above it.
func covers(imported string) func(string) bool {
	return func(above string) bool {
		return imported == above || strings.HasPrefix(imported, above+"/")
	}
}

func isOurs(imported string) bool {
	return imported == module || strings.HasPrefix(imported, module+"/")
}

// below returns the path of a package of ours below the module, and any other
// path with a mark before it that no room starts with.
func below(imported string) string {
	if isOurs(imported) {
		return strings.TrimPrefix(strings.TrimPrefix(imported, module), "/")
	}
	return "//" + imported
}

// isStandard says whether a path is of the standard library: no dot in its
// first element.
func isStandard(imported string) bool {
	first, _, _ := strings.Cut(imported, "/")
	return !strings.Contains(first, ".")
}

// leftOver are names that say nothing.
var leftOver = []string{"util", "utils", "common", "commons", "helper", "helpers"}

// check returns every breach of a wall in g, sorted, each with its why.
func check(g graph) []string {
	var breaches []string
	for _, w := range walls {
		for _, p := range g.own() {
			self := below(p.ImportPath)
			if !w.room(self) {
				continue
			}
			for _, breach := range w.breachesOf(g, p, self) {
				breaches = append(breaches, fmt.Sprintf("wall %q: %s\n\twhy: %s", w.name, breach, w.why))
			}
		}
	}
	slices.Sort(breaches)
	return slices.Compact(breaches)
}

func (w wall) breachesOf(g graph, p pkg, self string) []string {
	var breaches []string
	judge := func(rule func(string, string) string, imports []string, how string) {
		if rule == nil {
			return
		}
		for _, imported := range imports {
			if imported == p.ImportPath {
				continue // An external test imports what it tests.
			}
			if wrong := rule(self, imported); wrong != "" {
				breaches = append(breaches, fmt.Sprintf("%s %s %s (%s)", self, how, imported, wrong))
			}
		}
	}
	judge(w.imports, p.Imports, "imports")
	judge(w.testImports, p.testImports(), "imports in tests")
	for _, dependency := range p.Deps {
		if slices.ContainsFunc(w.links, covers(dependency)) {
			breaches = append(breaches, fmt.Sprintf("%s links %s: %s", self, dependency,
				strings.Join(g.chain(p.ImportPath, dependency), " → ")))
			break // One example is enough; its neighbours come along with it.
		}
	}
	if w.named != nil {
		if wrong := w.named(self, p.Name); wrong != "" {
			breaches = append(breaches, self+" "+wrong)
		}
	}
	return breaches
}

// TestWalls checks the module as it is.
func TestWalls(t *testing.T) {
	const root = "../.."
	dependOnSources(t, root)
	g, err := loadGraph(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, breach := range check(g) {
		t.Error(breach)
	}
}
