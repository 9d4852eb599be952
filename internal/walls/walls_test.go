package walls

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/atoll-k8s/atoll"

// wall is one rule about the packages of the module.
type wall struct {
	name string
	// why is part of the failure message: what would break, and where the code belongs
	// instead.
	why string
	// room reports whether the rule is about a package, by its path below the module.
	room func(pkg string) bool
	// imports checks a direct import of a package in the room. It returns what is wrong with
	// the import, "" if nothing is. imported is a full import path.
	imports func(pkg, imported string) string
	// testImports is the same for imports of the package's test files.
	testImports func(pkg, imported string) string
	// named checks the path and the name of the package itself.
	named func(pkg, name string) string
	// links are packages that the package must not import over any number of steps. A path
	// includes everything below it.
	links []string
}

// walls are the walls of docs/architecture.md, in its order.
var walls = []wall{
	{
		name: "api stands alone",
		why: "api is what users and other programs import to read and write our objects. They compile everything that it " +
			"imports. Decisions belong to internal/domain, access to a cluster belongs to an adapter.",
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
		why: "internal/domain holds decisions as pure functions of what was observed, so that a test can try thousands of " +
			"cases a second and repeat any of them. With a client, a logger, a clock or random numbers it cannot. Pass in " +
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
		name: "machinery imports no kind",
		why: "internal/machinery is code that every controller uses to reconcile. If it imported one kind, all controllers " +
			"would depend on that kind. Put code about a kind beside its controller.",
		room: under("internal/machinery"),
		imports: func(_, imported string) string {
			if isOurs(imported) && !under("internal/machinery")(below(imported)) {
				return "machinery imports nothing of ours but machinery"
			}
			return ""
		},
	},
	{
		name: "shared packages import no adapter",
		why: "Controllers, webhooks and the extender import internal/seats, internal/owners, internal/policies, internal/gangs, internal/assign and internal/survey. " +
			"With an import in the other direction, one adapter would depend on another through them.",
		room: under(services...),
		imports: func(_, imported string) string {
			return ofOurs(imported, shared, services)
		},
	},
	{
		name: "adapters do not import each other",
		why: "Kinds communicate through the API server: what one controller needs from another is a field, a label or a " +
			"condition, which users can see too. State that one adapter passes to another in memory is hidden from them and lost at a restart. " +
			"Code that two adapters need belongs to internal/domain (decisions), internal/seats (the ledger of seats), " +
			"internal/owners (the owners of pods), internal/policies (compiled policies), internal/gangs (PodGroups), internal/assign (seats at creation), internal/survey (observations of workloads) or internal/machinery (how controllers reconcile).",
		room: isAdapter,
		imports: func(pkg, imported string) string {
			return ofOurs(imported, shared, services, []string{adapterOf(pkg)})
		},
		testImports: func(pkg, imported string) string {
			return ofOurs(imported, shared, services, []string{adapterOf(pkg), "internal/testing"})
		},
	},
	{
		name: "programs are the top",
		why:  "cmd is flags and wiring. Code that another package needs is logic, and belongs to a package of internal.",
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
		why: "atoll-hub runs on every edge node, beside a kubelet, with little memory. A controller manager or a webhook server " +
			"in it costs tens of megabytes on each of thousands of nodes. It needs a reverse proxy and a disk cache only.",
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
		name: "what the hub keeps does not answer requests",
		why: "These packages have the state that outlives a request. Package proxy puts them together, and gives them what they " +
			"need as functions. If one of them sent requests or answered them, reads would go several ways again.",
		room:  under("internal/hub/record", "internal/hub/gate", "internal/hub/objects", "internal/hub/ownwrites", "internal/hub/inventory"),
		links: []string{module + "/internal/hub/proxy", module + "/internal/hub/uplink"},
	},
	{
		name: "one program knows etcd",
		why: "atoll-coordinator writes into the etcd of a pool's coordinator. Everything else talks to API servers, which check " +
			"what is written and tell others of it.",
		room:  func(pkg string) bool { return !under("internal/coordinator", "cmd/atoll-coordinator")(pkg) },
		links: []string{"go.etcd.io/etcd"},
	},
	{
		name: "no package for whatever is left over",
		why: "A name like util, common or helper does not say what belongs in the package, so anything is added, and in the " +
			"end every package imports it. Name the package after its content.",
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
		why: "internal/testing makes objects and environments for tests. In a program, its shortcuts (defaults, panics, fixed " +
			"clocks) would run in production.",
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
		why: "k8s.io/kubernetes has no stable Go API and depends on a hundred modules, and so does Helm. devcluster, test and " +
			"hack are separate modules, so that they can use both without a dependency of the product.",
		room: func(string) bool { return true },
		links: []string{
			"k8s.io/kubernetes", "helm.sh/helm/v3", "go.etcd.io/etcd/server/v3",
			module + "/devcluster", module + "/test", module + "/hack/chart",
		},
	},
}

// The third-party packages that api and domain may import. A package that is pure (no I/O, no
// state, no clock) may be added, together with a line in docs/dependencies.md.
var (
	// apimachinery: the types that every Kubernetes object is made of.
	apimachinery = []string{"k8s.io/api", "k8s.io/apimachinery", "k8s.io/apiextensions-apiserver/pkg/apis"}
	// domainLibraries: the grammar of image references, YAML, and the parts of
	// kube-scheduler's filters that are pure.
	domainLibraries = []string{"github.com/distribution/reference", "sigs.k8s.io/yaml", "k8s.io/component-helpers"}
)

// impure are packages whose functions depend on more than their arguments. time is not among
// them, because durations and instants are values; the linter forbids time.Now and the like
// in internal/domain.
var impure = []string{
	"context", "crypto/rand", "database/sql", "embed", "io/ioutil", "log", "math/rand", "net", "os", "plugin",
	"runtime", "syscall", "testing",
	"k8s.io/apimachinery/pkg/util/net", "k8s.io/apimachinery/pkg/util/rand", "k8s.io/apimachinery/pkg/util/wait",
	"k8s.io/apimachinery/pkg/watch",
}

// isImpure reports whether a path is one of impure or below one. net/netip and net/url are
// not: addresses and URLs are values.
func isImpure(imported string) bool {
	return imported != "net/netip" && imported != "net/url" && slices.ContainsFunc(impure, covers(imported))
}

// shared are the rooms that adapters and services may import. services are the rooms that
// adapters and other services may import.
var (
	shared   = []string{"api", "internal/domain", "internal/machinery"}
	services = []string{"internal/seats", "internal/owners", "internal/policies", "internal/assign", "internal/gangs", "internal/governance", "internal/survey"}
)

// leaves are the domain packages that other domain packages may import. Each holds one
// thing that several decisions need.
var leaves = []string{"internal/domain/affinity", "internal/domain/membership", "internal/domain/webster"}

// adapters are the rooms of adapters. true means that every package directly below the room
// is a separate adapter (one for each kind or verb), false that the room is one adapter.
var adapters = map[string]bool{
	"internal/controller":  true,
	"internal/webhook":     true,
	"internal/kubectl":     false,
	"internal/extender":    false,
	"internal/hub":         false,
	"internal/coordinator": false,
}

func isAdapter(pkg string) bool {
	for room := range adapters {
		if under(room)(pkg) {
			return true
		}
	}
	return false
}

// adapterOf returns the path of the adapter that pkg is part of. For the top package of a room
// with many adapters, the index that lists them, it returns the room, so that the index may
// import each of them.
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

// ofOurs returns an error text if imported is a package of the module and in none of the
// rooms.
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

// notIn returns an error text if imported is a third-party package and in none of the lists.
func notIn(imported, room string, lists ...[]string) string {
	if isOurs(imported) || isStandard(imported) || slices.ContainsFunc(slices.Concat(lists...), covers(imported)) {
		return ""
	}
	return "not a library of " + room
}

// under returns a function that reports whether a path is one of the rooms or below one.
func under(rooms ...string) func(string) bool {
	return func(pkg string) bool { return slices.ContainsFunc(rooms, covers(pkg)) }
}

// covers returns a function that reports whether a path is imported or above it.
func covers(imported string) func(string) bool {
	return func(above string) bool {
		return imported == above || strings.HasPrefix(imported, above+"/")
	}
}

func isOurs(imported string) bool {
	return imported == module || strings.HasPrefix(imported, module+"/")
}

// below returns the path of a package of the module relative to the module. It puts "//"
// before any other path, so that it is in no room.
func below(imported string) string {
	if isOurs(imported) {
		return strings.TrimPrefix(strings.TrimPrefix(imported, module), "/")
	}
	return "//" + imported
}

// isStandard reports whether a path is of the standard library: its first element has no dot.
func isStandard(imported string) bool {
	first, _, _ := strings.Cut(imported, "/")
	return !strings.Contains(first, ".")
}

// leftOver are names that do not describe the content of a package.
var leftOver = []string{"util", "utils", "common", "commons", "helper", "helpers"}

// check returns every breach of a wall in g, sorted, each with the wall's reason.
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
			break // One is enough: the others usually come with the same import.
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
