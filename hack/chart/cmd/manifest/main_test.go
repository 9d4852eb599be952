package main

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSplitImage(t *testing.T) {
	tests := map[string]struct{ registry, repository, tag, digest string }{
		"atoll-manager":                               {"", "atoll-manager", "", ""},
		"atoll-k8s/atoll-manager:0.1.0":               {"", "atoll-k8s/atoll-manager", "0.1.0", ""},
		"registry.example/a/b:1":                      {"registry.example", "a/b", "1", ""},
		"registry.example:5000/a":                     {"registry.example:5000", "a", "", ""},
		"localhost/a:1":                               {"localhost", "a", "1", ""},
		"registry.example:5000/a/b:1@sha256:0123abcd": {"registry.example:5000", "a/b", "1", "sha256:0123abcd"},
		"a@sha256:0123abcd":                           {"", "a", "", "sha256:0123abcd"},
	}
	for reference, tc := range tests {
		t.Run(reference, func(t *testing.T) {
			want := map[string]any{"registry": tc.registry, "repository": tc.repository, "tag": tc.tag, "digest": tc.digest}
			if got := splitImage(reference); !maps.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
}

func TestRun(t *testing.T) {
	dir := t.TempDir()
	values := filepath.Join(dir, "values.yaml")
	if err := os.WriteFile(values, []byte("manager: {replicas: 3}\nimage: {pullPolicy: Always}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "dist", "install.yaml")
	err := run([]string{
		"-chart", "../../../../charts/atoll", "-o", out, "-namespace", "mine", "-values", values,
		"-set", "scheduler.mode=Plain", "-set", "networkPolicy.enabled=true", "-image", "registry.example:5000/atoll-manager:7",
	})
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"kind: Namespace", "namespace: mine", "replicas: 3", "imagePullPolicy: Always", "image: registry.example:5000/atoll-manager:7",
		"kind: NetworkPolicy", "name: atoll-kube-scheduler",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("nowhere in it: %s", want)
		}
	}
	for name, args := range map[string][]string{
		"a value that there is not": {"-set", "replicas=2"},
		"a file that there is not":  {"-values", filepath.Join(dir, "gone.yaml")},
		"a word":                    {"please"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := run(append([]string{"-chart", "../../../../charts/atoll"}, args...)); err == nil {
				t.Error("accepted")
			}
		})
	}
}
