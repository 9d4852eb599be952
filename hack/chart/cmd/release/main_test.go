package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v3/pkg/chart/loader"
	"sigs.k8s.io/yaml"

	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// TestTwoReleasesAreTheSame: of the same source, all files have the same bytes; and each is what it is said to be.
func TestTwoReleasesAreTheSame(t *testing.T) {
	tier.All(t, "builds all programs for linux/amd64: minutes")
	var sums [2]string
	var dir string
	for i := range sums {
		dir = filepath.Join(t.TempDir(), "release")
		if err := run(t.Context(), []string{"-source", "../../../..", "-o", dir, "-image", "registry.example/atoll-manager:1", "-platforms", "linux/amd64"}, io.Discard); err != nil {
			t.Fatal(err)
		}
		sums[i] = read(t, dir, "SHA256SUMS")
	}
	if diff := cmp.Diff(sums[0], sums[1]); diff != "" {
		t.Errorf("two releases differ:\n%s", diff)
	}
	chart, err := loader.Load("../../../../charts/atoll")
	if err != nil {
		t.Fatal(err)
	}
	version := chart.AppVersion()
	var names []string
	for line := range strings.Lines(sums[0]) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		names = append(names, name)
		if got := sha256.Sum256([]byte(read(t, dir, name))); hex.EncodeToString(got[:]) != sum {
			t.Errorf("the checksum of %s is wrong", name)
		}
	}
	want := []string{
		"atoll-" + version + ".cdx.json", "atoll-" + version + ".tgz", "atoll-hub_" + version + "_linux_amd64.tar.gz", "atoll-manager-" + version + ".tar",
		"atoll.krew.yaml", "install.yaml", "kubectl-atoll_" + version + "_linux_amd64.tar.gz",
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("other files than wanted (-want +got):\n%s", diff)
	}
	packed, err := loader.Load(filepath.Join(dir, "atoll-"+version+".tgz"))
	if err != nil || len(packed.Templates) != len(chart.Templates) || packed.AppVersion() != version {
		t.Errorf("the packed chart is not the chart: %v", err)
	}
	if !strings.Contains(read(t, dir, "install.yaml"), "image: registry.example/atoll-manager:1") {
		t.Error("install.yaml does not name the image")
	}
	var plugin struct {
		Spec struct {
			Version   string
			Platforms []struct{ URI, Sha256, Bin string }
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, dir, "atoll.krew.yaml")), &plugin); err != nil || plugin.Spec.Version != "v"+version || len(plugin.Spec.Platforms) != 1 ||
		!strings.Contains(sums[0], plugin.Spec.Platforms[0].Sha256+"  "+filepath.Base(plugin.Spec.Platforms[0].URI)) {
		t.Errorf("the manifest for krew: %v, %+v", err, plugin)
	}
	var bom struct {
		Components []struct{ Name, Version string }
	}
	if err := json.Unmarshal([]byte(read(t, dir, "atoll-"+version+".cdx.json")), &bom); err != nil {
		t.Fatal(err)
	}
	for _, module := range []string{"std", "k8s.io/client-go", "sigs.k8s.io/controller-runtime", "go.etcd.io/etcd/client/v3", "github.com/spf13/cobra"} {
		if !slices.ContainsFunc(bom.Components, func(c struct{ Name, Version string }) bool { return c.Name == module && c.Version != "" }) {
			t.Errorf("the SBOM does not have %s", module)
		}
	}
}

func read(t *testing.T, dir, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
