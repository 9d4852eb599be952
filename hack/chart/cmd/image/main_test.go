package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// files is the source of programs that are built in a moment.
var files = map[string]string{
	"go.mod":                        "module example.org/atoll\n\ngo 1.26.0\n",
	"cmd/atoll-manager/main.go":     "package main\n\nfunc main() { panic(\"its trace names this file\") }\n",
	"cmd/atoll-coordinator/main.go": "package main\n\nfunc main() {}\n",
	"cmd/atoll-hub/main.go":         "package main\n\nfunc main() { panic(\"its trace names this file\") }\n",
	"charts/atoll/Chart.yaml":       "appVersion: \"1.2.3\"\n",
	"LICENSE":                       "licence\n",
}

// checkout returns a new directory with the source and one commit, which is the same each time.
func checkout(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	script, err := os.ReadFile("../../../build-static.sh")
	if err != nil {
		t.Fatal(err)
	}
	for file, text := range files {
		write(t, filepath.Join(dir, filepath.FromSlash(file)), text, 0o600)
	}
	write(t, filepath.Join(dir, "hack", "build-static.sh"), string(script), 0o700)
	write(t, filepath.Join(dir, ".gitignore"), "/dist/\n", 0o600)
	for _, args := range [][]string{{"init", "--quiet"}, {"add", "."}, {"commit", "--quiet", "--message", "all"}} {
		gitIn(t, dir, args...)
	}
	return dir
}

func write(t *testing.T, file, text string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// gitIn runs git without the settings of the machine.
func gitIn(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.org", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.org",
		"GIT_AUTHOR_DATE=2026-01-02T03:04:05Z", "GIT_COMMITTER_DATE=2026-01-02T03:04:05Z")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// startRegistry starts a registry on this machine and returns its host. With a password, only
// the user atoll may use it.
func startRegistry(t *testing.T, password string) string {
	t.Helper()
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, given, _ := r.BasicAuth(); password != "" && (user != "atoll" || given != password) {
			w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

// login makes the credentials of a user those of this machine; without a host there are none.
func login(t *testing.T, host, password string) {
	t.Helper()
	auths := ""
	if host != "" {
		auths = fmt.Sprintf(`%q: {"username": "atoll", "password": %q}`, host, password)
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "config.json"), `{"auths": {`+auths+`}}`, 0o600)
	t.Setenv("DOCKER_CONFIG", dir)
}

// parts are what a pushed index has for each platform.
type parts struct {
	Files    []string
	Revision string
	Version  string
	Created  string
}

// contentOf returns the paths of the files of an image.
func contentOf(t *testing.T, image v1.Image) []string {
	t.Helper()
	content := mutate.Extract(image)
	defer content.Close()
	var out []string
	for r := tar.NewReader(content); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, header.Name)
	}
}

// TestPush: the index has both platforms, each with its program and labels, and its digest does
// not depend on the directory of the source.
func TestPush(t *testing.T) {
	host := startRegistry(t, "secret")
	login(t, host, "secret")
	var digests []string
	var revision string
	for _, tag := range []string{"1", "2"} {
		source := checkout(t)
		revision = gitIn(t, source, "rev-parse", "HEAD")
		var out bytes.Buffer
		if err := run(t.Context(), []string{"-source", source, "-image", host + "/atoll-manager:" + tag, "-push"}, &out); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(source, "dist")); err == nil {
			t.Error("-push wrote a file too")
		}
		ref, err := name.NewTag(host + "/atoll-manager:" + tag)
		if err != nil {
			t.Fatal(err)
		}
		index, err := remote.Index(ref, remote.WithContext(t.Context()), remote.WithAuthFromKeychain(authn.DefaultKeychain))
		if err != nil {
			t.Fatal(err)
		}
		digest, err := index.Digest()
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), "@"+digest.String()) {
			t.Errorf("the digest %s is not in %q", digest, out.String())
		}
		digests = append(digests, digest.String())
		manifest, err := index.IndexManifest()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]parts{}
		for _, entry := range manifest.Manifests {
			image, err := index.Image(entry.Digest)
			if err != nil {
				t.Fatal(err)
			}
			file, err := image.ConfigFile()
			if err != nil {
				t.Fatal(err)
			}
			p := parts{
				Files: contentOf(t, image), Revision: file.Config.Labels["org.opencontainers.image.revision"], Version: file.Config.Labels["org.opencontainers.image.version"],
				Created: file.Created.Format("2006-01-02 15:04:05"),
			}
			got[entry.Platform.String()] = p
		}
		one := parts{Files: []string{"LICENSE", "atoll-coordinator", "atoll-hub", "atoll-manager"}, Revision: revision, Version: "1.2.3", Created: "2026-01-02 03:04:05"}
		if diff := cmp.Diff(map[string]parts{"linux/amd64": one, "linux/arm64": one}, got); diff != "" {
			t.Errorf("the pushed index (-want +got):\n%s", diff)
		}
	}
	if digests[0] != digests[1] {
		t.Errorf("the same source in two directories gives %v", digests)
	}
}

// TestFile: without -push the image is written into dist/, for one platform if asked for, and a
// checkout with changes is marked.
func TestFile(t *testing.T) {
	source := checkout(t)
	write(t, filepath.Join(source, "cmd", "atoll-manager", "more.go"), "package main\n", 0o600)
	if err := run(t.Context(), []string{"-source", source, "-image", "atoll-k8s/atoll-manager:1", "-platforms", "linux/arm64"}, io.Discard); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(source, "dist", "atoll-manager-1.tar"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"docker.io/atoll-k8s/atoll-manager:1"`, `"architecture":"arm64"`, gitIn(t, source, "rev-parse", "HEAD") + "-dirty"} {
		if !bytes.Contains(content, []byte(want)) {
			t.Errorf("nowhere in it: %s", want)
		}
	}
	if bytes.Contains(content, []byte(`"architecture":"amd64"`)) {
		t.Error("it has a platform that was not asked for")
	}
}

// TestASourceWithoutGit has no revision and no time, and says so.
func TestASourceWithoutGit(t *testing.T) {
	source := checkout(t)
	if err := os.RemoveAll(filepath.Join(source, ".git")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GIT_CEILING_DIRECTORIES", filepath.Dir(source))
	var out bytes.Buffer
	made, err := build(t.Context(), source, []string{"amd64"}, &out)
	if err != nil {
		t.Fatal(err)
	}
	file, err := made[0].ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if file.Created.Unix() != 0 || file.Config.Labels["org.opencontainers.image.revision"] != "" {
		t.Errorf("created %s from revision %q", file.Created, file.Config.Labels["org.opencontainers.image.revision"])
	}
	if !strings.Contains(out.String(), "the image has no revision") {
		t.Errorf("printed: %s", out.String())
	}
}

// TestNotLoggedIn: the message says how to log in.
func TestNotLoggedIn(t *testing.T) {
	host := startRegistry(t, "secret")
	for title, login := range map[string]func(t *testing.T){
		"without credentials":   func(t *testing.T) { t.Helper(); login(t, "", "") },
		"with a wrong password": func(t *testing.T) { t.Helper(); login(t, host, "guess") },
	} {
		t.Run(title, func(t *testing.T) {
			login(t)
			tag, err := parseName(host+"/atoll-manager:1", true, false)
			if err != nil {
				t.Fatal(err)
			}
			err = push(t.Context(), tag, empty.Index)
			if err == nil || !strings.Contains(err.Error(), "docker login "+host) {
				t.Errorf("the error is %v", err)
			}
		})
	}
}

func TestAdvice(t *testing.T) {
	tag := name.MustParseReference("registry.example/a:1").(name.Tag)
	tests := map[string]struct {
		err  error
		want string
	}{
		"may not push":   {&transport.Error{StatusCode: http.StatusForbidden}, "docker login registry.example"},
		"no HTTPS":       {&url.Error{Op: "Get", URL: "https://registry.example/v2/", Err: http.ErrSchemeMismatch}, "-insecure"},
		"anything else":  {io.ErrUnexpectedEOF, ""},
		"out of service": {&transport.Error{StatusCode: http.StatusServiceUnavailable}, ""},
	}
	for title, tc := range tests {
		t.Run(title, func(t *testing.T) {
			if got := advice(tag, tc.err); !strings.Contains(got, tc.want) || (tc.want == "") != (got == "") {
				t.Errorf("got %q, want %q in it", got, tc.want)
			}
		})
	}
}

func TestParse(t *testing.T) {
	refused := map[string]struct {
		args []string
		want []string
	}{
		"no name":                    {nil, []string{"IMAGE"}},
		"no tag":                     {[]string{"-image", "registry.example/a"}, []string{"IMAGE", "tag", ":0.1.0"}},
		"a digest":                   {[]string{"-image", "registry.example/a@sha256:0123abcd"}, []string{"IMAGE", "digest", "tag"}},
		"capitals":                   {[]string{"-image", "registry.example/A:1"}, []string{"IMAGE", "[registry/]repository:tag"}},
		"a push without a registry":  {[]string{"-image", "atoll/a:1", "-push"}, []string{"IMAGE", "registry.example/atoll/a:1", "docker.io/atoll/a:1"}},
		"an unknown platform":        {[]string{"-image", "a:1", "-platforms", "linux/amd64,linux/s390x"}, []string{"-platforms", `"linux/s390x"`, "linux/arm64"}},
		"an architecture, no system": {[]string{"-image", "a:1", "-platforms", "arm64"}, []string{"-platforms", "linux/arm64"}},
		"no platform":                {[]string{"-image", "a:1", "-platforms", ""}, []string{"-platforms"}},
		"a word":                     {[]string{"-image", "a:1", "push"}, []string{`"push"`}},
	}
	for title, tc := range refused {
		t.Run(title, func(t *testing.T) {
			_, err := parse(tc.args, io.Discard)
			if err == nil {
				t.Fatal("accepted")
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error is %q, without %q", err, want)
				}
			}
		})
	}
	accepted := map[string]struct {
		args          []string
		tag, out      string
		architectures []string
		scheme        string
	}{
		"no flags":           {[]string{"-image", "atoll/a:1"}, "index.docker.io/atoll/a:1", "/src/dist/a-1.tar", []string{"amd64", "arm64"}, "https"},
		"a push":             {[]string{"-image", "registry.example:5000/a:1", "-push"}, "registry.example:5000/a:1", "", []string{"amd64", "arm64"}, "https"},
		"a push to a host":   {[]string{"-image", "localhost/a:1", "-push", "-insecure"}, "localhost/a:1", "", []string{"amd64", "arm64"}, "http"},
		"a push and a file":  {[]string{"-image", "docker.io/a/b:1", "-push", "-o", "b.tar"}, "index.docker.io/a/b:1", "/src/b.tar", []string{"amd64", "arm64"}, "https"},
		"platforms in order": {[]string{"-image", "r.io/a:1", "-platforms", "linux/arm64,linux/amd64,linux/arm64"}, "r.io/a:1", "/src/dist/a-1.tar", []string{"amd64", "arm64"}, "https"},
	}
	for title, tc := range accepted {
		t.Run(title, func(t *testing.T) {
			o, err := parse(append([]string{"-source", "/src"}, tc.args...), io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			if o.tag.Name() != tc.tag || o.out != tc.out || !slices.Equal(o.architectures, tc.architectures) || o.tag.Scheme() != tc.scheme {
				t.Errorf("got %s over %s, file %q, %v", o.tag.Name(), o.tag.Scheme(), o.out, o.architectures)
			}
		})
	}
}
