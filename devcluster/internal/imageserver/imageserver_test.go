package imageserver

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/atoll-k8s/atoll/devcluster/images"
)

// TestPull does what a container runtime does: it reads the manifest by its tag, then all that the
// manifest names. Each content has the digest by which it was asked for.
func TestPull(t *testing.T) {
	dir := t.TempDir()
	program, tar := filepath.Join(dir, "program"), filepath.Join(dir, "images.tar")
	if err := os.WriteFile(program, []byte("text"), 0o700); err != nil {
		t.Fatal(err)
	}
	image, err := images.New(images.Spec{Programs: map[string]string{"/a": program}, Entrypoint: []string{"/a"}, Architecture: "arm64"})
	if err != nil {
		t.Fatal(err)
	}
	if err := images.Save(tar, map[string][]v1.Image{"site.example/nginx:1.27": {image}, "store:1": {image}}); err != nil {
		t.Fatal(err)
	}
	handler, err := Load(t.Context(), tar)
	if err != nil {
		t.Fatal(err)
	}
	ask := func(method, path string, want int) *httptest.ResponseRecorder {
		t.Helper()
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(method, path, nil))
		if w.Code != want {
			t.Errorf("%s %s is answered %d, want %d", method, path, w.Code, want)
		}
		return w
	}
	ask(http.MethodGet, "/v2/", http.StatusOK)
	for repository, tag := range map[string]string{"nginx": "1.27", "library/store": "1"} {
		at := "/v2/" + repository
		raw := ask(http.MethodGet, at+"/manifests/"+tag, http.StatusOK)
		var manifest v1.Manifest
		if err := json.Unmarshal(raw.Body.Bytes(), &manifest); err != nil || len(manifest.Layers) != 1 {
			t.Fatalf("the manifest is %s, %v", raw.Body, err)
		}
		if raw.Header().Get("Content-Type") != string(manifest.MediaType) {
			t.Errorf("the manifest's type is %q", raw.Header().Get("Content-Type"))
		}
		for digest, of := range map[string]string{
			raw.Header().Get("Docker-Content-Digest"): "manifests",
			manifest.Config.Digest.String():           "blobs",
			manifest.Layers[0].Digest.String():        "blobs",
		} {
			path := at + "/" + of + "/" + digest
			sum := sha256.Sum256(ask(http.MethodGet, path, http.StatusOK).Body.Bytes())
			if got := "sha256:" + hex.EncodeToString(sum[:]); got != digest {
				t.Errorf("%s has the digest %s", path, got)
			}
			if w := ask(http.MethodHead, path, http.StatusOK); w.Body.Len() > 0 || w.Header().Get("Content-Length") == "" {
				t.Errorf("HEAD of %s has %d bytes", path, w.Body.Len())
			}
		}
	}
	ask(http.MethodGet, "/v2/nginx/manifests/1.28", http.StatusNotFound)
	ask(http.MethodGet, "/v2/store/manifests/1", http.StatusNotFound)
	ask(http.MethodPut, "/v2/nginx/manifests/1.27", http.StatusMethodNotAllowed)
}

// TestMissingOrEmptyArchiveIsRefused: a file that is missing, or no tar.
func TestMissingOrEmptyArchiveIsRefused(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.tar")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tar := range []string{empty, empty + "-missing"} {
		if _, err := Load(t.Context(), tar); err == nil {
			t.Errorf("%s is served", tar)
		}
		if err := Run(t.Context(), tar, "127.0.0.1:0"); err == nil {
			t.Errorf("%s is served", tar)
		}
	}
}
