package chart

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
)

const sourceDir = "../.."

// instructions are the lines of the Dockerfile by their first word.
func instructions(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(sourceDir, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		if word, rest, ok := strings.Cut(strings.TrimSpace(line), " "); ok && word == strings.ToUpper(word) && !strings.HasPrefix(word, "#") {
			out[word] = append(out[word], rest)
		}
	}
	return out
}

// TestImageIsWhatTheChartRuns: the image has only the program, and runs as the chart's
// user.
func TestImageIsWhatTheChartRuns(t *testing.T) {
	file := instructions(t)
	if from := file["FROM"]; len(from) != 2 || from[1] != "scratch" {
		t.Errorf("the image is made from %v, want a builder and scratch", from)
	}
	security := get[*appsv1.Deployment](t, render(t, load(t), nil), "Deployment/atoll-manager").Spec.Template.Spec.SecurityContext
	if want := fmt.Sprintf("%d:%d", *security.RunAsUser, *security.RunAsGroup); len(file["USER"]) != 1 || file["USER"][0] != want {
		t.Errorf("the image's user is %v, the chart runs it as %s", file["USER"], want)
	}
	copied := file["COPY"]
	if last := copied[len(copied)-1]; len(file["ENTRYPOINT"]) != 1 || file["ENTRYPOINT"][0] != `["`+last[strings.LastIndexByte(last, ' ')+1:]+`"]` {
		t.Errorf("the entrypoint is %v, and what is copied last %q", file["ENTRYPOINT"], last)
	}
}

// TestWhatTheImageNeedsIsNotIgnored: .dockerignore does not exclude the files that the
// Dockerfile copies.
func TestWhatTheImageNeedsIsNotIgnored(t *testing.T) {
	ignore, err := os.ReadFile(filepath.Join(sourceDir, ".dockerignore"))
	if err != nil {
		t.Fatal(err)
	}
	for _, copied := range instructions(t)["COPY"] {
		if strings.HasPrefix(copied, "--from=") {
			continue
		}
		words := strings.Fields(copied)
		for _, source := range words[:len(words)-1] {
			if _, err := os.Stat(filepath.Join(sourceDir, source)); err != nil {
				t.Errorf("COPY %s: %v", copied, err)
			}
			if !bytes.Contains(ignore, []byte("\n!"+source+"\n")) {
				t.Errorf("COPY %s: .dockerignore leaves it out", copied)
			}
		}
	}
}
