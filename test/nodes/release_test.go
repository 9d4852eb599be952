package nodes

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
)

// earlier is the commit from which Atoll is upgraded: before its rights were bounded by
// ValidatingAdmissionPolicies and its ports by turns, so that an upgrade changes
// most objects of the chart.
const earlier = "fad3094b620ee290aa210ce9838f62c2388cc808"

// groups are the files of the example.
func groups(file string) string { return filepath.Join("..", "..", "examples", "groups", file) }

// TestTheChartOnRealNodes: Atoll is installed by Helm with two replicas, is used for the example
// in examples/groups with real registries, and is upgraded, rolled back, changed to another form
// and removed. While it changes, pods are created all the time. Then the example and other
// workloads meet what happens to nodes. make test has the installation, the example, an edited
// image, a drain and the removal.
func TestTheChartOnRealNodes(t *testing.T) {
	t.Parallel() // much of its time it waits, as the tests of a hub do
	r := newRig(t)
	for site := range sites {
		r.registry(site)
		r.push(site, r.tags[site])
	}
	now := r.release("")
	now.Within = patience
	if testing.Short() {
		r.part("installed", func(r *rig) { r.install(now) })
	} else {
		r.upgrades(now)
	}
	if t.Failed() {
		return
	}
	r.example()
	r.part("an image that is edited", (*rig).testEditedImage)
	if !testing.Short() {
		r.part("a Job", (*rig).testJob)
		r.part("a Job whose image is edited", (*rig).testJobGoesOn)
	}
	r.part("local volumes and a drain", (*rig).testVolumesAndDrain)
	if testing.Short() {
		r.kubectl("delete", "statefulset", "db")
		r.kubectl("delete", "persistentvolumeclaims", "--all")
	} else {
		r.part("power", (*rig).testPower)
	}
	r.part("removed", func(r *rig) {
		r.kubectl("delete", "-f", groups("deployment.yaml"), "-f", groups("02-policies.yaml"))
		r.putBack(now)
		r.nothingIsLeft()
	})
	if testing.Short() {
		return
	}
	r.part("installed again", func(r *rig) {
		names := r.kubectl("get", "customresourcedefinitions", "-o", "name")
		r.kubectl(append([]string{"delete"}, strings.Fields(names)...)...)
		r.changes("installed", func() error { return now.Install(r.Context(), nil) })
		r.replicas("atoll-manager", 2)
	})
}

// install installs a release, and the example with it.
func (r *rig) install(release *atoll.Release) {
	r.Helper()
	r.changes("installed", func() error { return release.Install(r.Context(), nil) })
	r.apply(groups("01-nodegroups.yaml"), groups("02-policies.yaml"), r.labelled(groups("deployment.yaml")))
	r.example()
	for site, p := range r.registries {
		if p.of("nginx", r.tags[site]) == 0 {
			r.Errorf("nothing was pulled from the registry of %s", site)
		}
	}
}

// upgrades installs Atoll at an earlier commit, upgrades it, rolls it back and changes its form,
// while pods are created all the time.
func (r *rig) upgrades(now *atoll.Release) {
	r.Helper()
	before := r.release(earlier)
	before.Within = patience
	r.part("installed at an earlier commit", func(r *rig) { r.install(before) })
	if r.Failed() {
		return
	}
	pods := r.createPods()
	r.part("upgraded", func(r *rig) {
		r.changes("upgraded", func() error { return now.Upgrade(r.Context(), nil) })
		r.replicas("atoll-manager", 2)
	})
	r.part("rolled back and upgraded again", func(r *rig) {
		r.changes("rolled back", now.Rollback)
		r.changes("upgraded", func() error { return now.Upgrade(r.Context(), nil) })
		r.replicas("atoll-manager", 2)
	})
	r.part("changed to another form and back", func(r *rig) {
		since := len(r.past()) // from now on no replica is of the earlier commit, whose replicas end at once
		isolated := map[string]any{"scheduler": map[string]any{"mode": string(atoll.Isolated)}}
		r.changes("Isolated", func() error { return now.Upgrade(r.Context(), isolated) })
		r.replicas("atoll-manager", 2)
		r.replicas("atoll-scheduler", 2)
		r.late()
		r.changes("Pinned", now.Rollback)
		r.replicas("atoll-manager", 2)
		r.noneWasAskedAtItsEnd(since)
	})
	pods.stop(r)
}

// release returns Atoll at a commit; "" is that of the tests.
func (r *rig) release(commit string) *atoll.Release {
	r.Helper()
	var source string
	if commit != "" {
		var err error
		if source, err = atoll.SourceAt(r.Context(), commit); err != nil {
			r.Fatal(err)
		}
	}
	release, err := atoll.NewRelease(r.Context(), r.Cluster, source, os.Stderr, r.nodes...)
	if err != nil {
		r.Fatal(err)
	}
	return release
}

// changes fails the test if a change of the release fails, and logs its duration.
func (r *rig) changes(what string, change func() error) {
	r.Helper()
	began := time.Now()
	if err := change(); err != nil {
		r.Fatalf("%s: %v\n%s", what, err, r.kubectl("-n", atoll.Namespace, "describe", "pods"))
	}
	r.Logf("%s after %s", what, time.Since(began).Round(time.Millisecond))
}

// apply applies files.
func (r *rig) apply(files ...string) {
	r.Helper()
	args := []string{"apply"}
	for _, file := range files {
		args = append(args, "-f", file)
	}
	r.kubectl(args...)
}

// labelled returns a copy of the example's Deployment that requires its policies, and serves HTTP.
func (r *rig) labelled(file string) string {
	r.Helper()
	return r.local("deployment.yaml", "label", "--local", "-f", file, "-o", "yaml",
		gm.RequiredPropagationPolicyLabel+"=nginx-propagationpolicy", gm.RequiredOverridePolicyLabel+"=nginx-overridepolicy")
}

// local writes what kubectl prints into a file.
func (r *rig) local(name string, args ...string) string {
	r.Helper()
	file := filepath.Join(r.TempDir(), name)
	if err := os.WriteFile(file, []byte(r.kubectl(args...)), 0o600); err != nil {
		r.Fatal(err)
	}
	return file
}

// putBack removes Atoll while there are NodeGroups and a NodePool, and puts back what they have given to
// nodes, as docs/install.md says.
func (r *rig) putBack(release *atoll.Release) {
	r.Helper()
	program := filepath.Join(r.TempDir(), "kubectl-atoll")
	build := exec.CommandContext(r.Context(), "go", "build", "-o", program, ".")
	build.Dir = filepath.Join("..", "..", "cmd", "kubectl-atoll")
	if out, err := build.CombinedOutput(); err != nil {
		r.Fatalf("building kubectl-atoll: %v\n%s", err, out)
	}
	uninstall := func(args ...string) (string, error) {
		cmd := exec.CommandContext(r.Context(), program, append([]string{"uninstall", "--kubeconfig", r.Cluster.KubeconfigPath()}, args...)...)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	given := func() string {
		return r.kubectl("get", "nodes", "-o", `jsonpath={range .items[*]}{.metadata.labels} {.metadata.annotations} {.spec.taints}{"\n"}{end}`)
	}
	pool := filepath.Join(r.TempDir(), "pool.yaml")
	if err := os.WriteFile(pool, []byte(`
apiVersion: apps.openyurt.io/v1alpha1
kind: NodePool
metadata: {name: left}
spec:
  selector: {matchLabels: {kubernetes.io/os: linux}}
  labels: {left-label: "yes"}
  annotations: {left-annotation: "yes"}
  taints: [{key: left-taint, effect: PreferNoSchedule}]
`), 0o600); err != nil {
		r.Fatal(err)
	}
	r.apply(pool)
	r.eventually("the nodes have what the pool gives", func() error {
		if got := given(); strings.Count(got, "left-label") < 2*len(r.nodes) || strings.Count(got, "left-taint") < len(r.nodes) {
			return fmt.Errorf("the nodes are\n%s", got)
		}
		return nil
	})
	if out, err := uninstall("--yes"); err == nil || !strings.Contains(out, "atoll-manager runs in namespace "+atoll.Namespace) {
		r.Errorf("while atoll-manager runs: error %v\n%s", err, out)
	}
	r.changes("removed", release.Uninstall)
	r.kubectl("delete", "nodepools", "--all", "--wait=false") // it waits for its finalizer
	if out, err := uninstall(); err != nil || !strings.Contains(out, "left-label") || !strings.Contains(out, "To put it back") {
		r.Errorf("what is left: error %v\n%s", err, out)
	}
	if out, err := uninstall("--yes"); err != nil {
		r.Errorf("putting back: %v\n%s", err, out)
	}
	for _, ours := range []string{"left-", "nodepool", "nodegroup", "atoll.dev/"} {
		if got := given(); strings.Contains(got, ours) {
			r.Errorf("the nodes have %s:\n%s", ours, got)
		}
	}
	r.kubectl("delete", "nodegroups", "--all", "--timeout=1m")
	r.kubectl("wait", "nodepool/left", "--for=delete", "--timeout=1m")
	if out, err := uninstall(); err != nil || !strings.Contains(out, "Nothing of Atoll is left") {
		r.Errorf("at the end: error %v\n%s", err, out)
	}
}

// nothingIsLeft fails the test if anything of the release is there after it was removed, of any
// kind, but what docs/install.md says.
func (r *rig) nothingIsLeft() {
	r.Helper()
	kinds := func(namespaced bool) string {
		return strings.Join(strings.Fields(r.kubectl("api-resources", "--verbs=list", fmt.Sprintf("--namespaced=%t", namespaced), "-o", "name")), ",")
	}
	inNamespace, ofCluster := kinds(true), kinds(false)
	stay := map[string]bool{
		"namespace/" + atoll.Namespace: true,
		"secret/atoll-manager-tls":     true, "secret/atoll-extender-client": true,
		"lease.coordination.k8s.io/atoll-manager": true, "lease.coordination.k8s.io/atoll-scheduler": true,
		"configmap/kube-root-ca.crt": true, "serviceaccount/default": true, // of every namespace
	}
	r.eventually("nothing is left", func() error {
		left := r.kubectl("-n", atoll.Namespace, "get", inNamespace, "-o", "name")
		for line := range strings.Lines(r.kubectl("get", ofCluster, "-o", "name")) {
			// The API server has an APIService for each definition that is kept.
			if strings.Contains(line, "atoll") && !strings.HasPrefix(line, "customresourcedefinition") && !strings.HasPrefix(line, "apiservice") {
				left += line
			}
		}
		for line := range strings.Lines(left) {
			name := strings.TrimSpace(line)
			if !stay[name] && !strings.HasPrefix(name, "event") && !strings.HasPrefix(name, "Warning: ") { // of kinds that are deprecated
				return fmt.Errorf("%s is left", name)
			}
		}
		return nil
	})
}
