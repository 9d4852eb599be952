package chart

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/mutate"
	appsv1 "k8s.io/api/apps/v1"

	"github.com/atoll-k8s/atoll/devcluster/images"
)

// TestImageIsWhatTheChartRuns: the image has only the program and its licence, it runs as the
// chart's user, and the arguments of the chart are for its entrypoint.
func TestImageIsWhatTheChartRuns(t *testing.T) {
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

	content := mutate.Extract(image)
	defer content.Close()
	var files []string
	for r := tar.NewReader(content); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, header.Name)
	}
	if want := []string{"LICENSE", "atoll-manager"}; !slices.Equal(files, want) {
		t.Errorf("the image has %v, want %v", files, want)
	}
}
