package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// root is the directory of the root module.
const root = "../.."

// TestEachSceneCanBePlayed: it has what its acts need, and a person can find it.
func TestEachSceneCanBePlayed(t *testing.T) {
	readme := read(t, "README.md")
	_, help, _ := strings.Cut(read(t, "Makefile"), "SCENE=rollout|")
	help, _, _ = strings.Cut(help, " ")
	listed := append(strings.Split(help, "|"), "rollout")
	for _, sc := range scenes {
		if sc.name == "" || sc.about == "" || len(sc.acts) == 0 {
			t.Errorf("scene %q is about %q and has %d acts", sc.name, sc.about, len(sc.acts))
		}
		if !strings.Contains(readme, "\n| `"+sc.name+"` |") {
			t.Errorf("README.md does not list scene %q", sc.name)
		}
		if !slices.Contains(listed, sc.name) {
			t.Errorf("make help does not list scene %q", sc.name)
		}
		for i, a := range sc.acts {
			if len(a.commands) == 0 && a.about == "" {
				t.Errorf("act %d of scene %q has neither a command nor a name", i, sc.name)
			}
			if len(a.promises)+len(a.answers) == 0 {
				t.Errorf("act %d of scene %q expects nothing", i, sc.name)
			}
			for _, command := range a.commands {
				if at := slices.Index(command, "-f"); at >= 0 {
					read(t, command[at+1])
				}
			}
		}
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestChosenScene(t *testing.T) {
	for _, sc := range scenes {
		t.Setenv("SCENE", sc.name)
		if got, err := chosenScene(); err != nil || got.name != sc.name {
			t.Errorf("SCENE=%s chooses %v: %v", sc.name, got, err)
		}
	}
	t.Setenv("SCENE", "")
	if got, err := chosenScene(); err != nil || got != nil {
		t.Errorf("without SCENE, %v is chosen: %v", got, err)
	}
	t.Setenv("SCENE", "x")
	if _, err := chosenScene(); err == nil || !strings.Contains(err.Error(), "offline") {
		t.Errorf("an unknown scene gives the error %v, want one that lists them", err)
	}
}

func TestShortStatus(t *testing.T) {
	const head, pods = "node field\ncloud Offline for 9s, last answer 14s ago\nbecause it does not answer\n\nCALLER  REQUEST\n", "node  /api/v1/pods?fieldSelector=x  1"
	rows := []string{"node      1", "2", "3", "4", "5", pods, "7", "8"}
	for name, test := range map[string]struct{ status, want string }{
		"many requests": {head + strings.Join(rows, "\n") + "\n", head + "node  1\n2\n3\n4\n" + pods + "\n… and 3 more"},
		"few requests":  {head + "1\n", head + "1"},
		"none":          {"node field\n", "node field"},
		"nothing":       {"", ""},
	} {
		if got := shortStatus(test.status); got != test.want {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got, test.want)
		}
	}
}

func TestRestarts(t *testing.T) {
	got := restarts([]string{"kubelet", "atoll-hub"})
	want := [][]string{nil, {"kubelet"}, {"atoll-hub"}, {"kubelet", "atoll-hub"}}
	if !slices.EqualFunc(got, want, slices.Equal[[]string]) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := restarts([]string{"atoll-hub"}); len(got) != 2 {
		t.Errorf("one program is killed in the ways %v", got)
	}
}
