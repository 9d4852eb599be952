package chart

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/atoll-k8s/atoll/devcluster/images"
)

// TestImageMatchesTheChartsDeployment: the image runs as the chart's user, and the arguments of the
// chart are flags for its entrypoint.
func TestImageMatchesTheChartsDeployment(t *testing.T) {
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, []byte("program"), 0o700); err != nil {
		t.Fatal(err)
	}
	image, err := images.New(images.Manager{Program: program, License: "../../LICENSE", Architecture: "amd64"}.Spec())
	if err != nil {
		t.Fatal(err)
	}
	file, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	pod := get[*appsv1.Deployment](t, render(t, load(t), nil), "Deployment/atoll-manager").Spec.Template.Spec
	if want := fmt.Sprintf("%d:%d", *pod.SecurityContext.RunAsUser, *pod.SecurityContext.RunAsGroup); file.Config.User != want {
		t.Errorf("the image's user is %q, the chart runs it as %s", file.Config.User, want)
	}
	container := pod.Containers[0]
	if container.Command != nil || len(file.Config.Cmd) > 0 || !slices.Equal(file.Config.Entrypoint, []string{"/atoll-manager"}) {
		t.Errorf("the chart runs %v, the image %v %v", container.Command, file.Config.Entrypoint, file.Config.Cmd)
	}
	for _, arg := range container.Args {
		if !strings.HasPrefix(arg, "--") {
			t.Errorf("the chart's argument %q is no flag", arg)
		}
	}
}
