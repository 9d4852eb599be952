package hub

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/atoll-k8s/atoll/internal/testing/build"
	"github.com/atoll-k8s/atoll/internal/testing/faultydisk"
)

// fullDisk is a disk on which nothing can be written while it is full.
type fullDisk struct{ isFull atomic.Bool }

func (d *fullDisk) fail(string) error {
	if d.isFull.Load() {
		return syscall.ENOSPC
	}
	return nil
}

const streamedConfigMaps = `{"type":"ADDED","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","namespace":"default","resourceVersion":"1"}}}
{"type":"BOOKMARK","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"resourceVersion":"1","annotations":{"k8s.io/initial-events-end":"true"}}}}
`

// TestTheHubRunsOnAFullDisk: the disk is full from the start, while the cloud is offline, or when the cloud is
// back. Clients get the cloud's answers.
func TestTheHubRunsOnAFullDisk(t *testing.T) {
	for _, fullAt := range []string{"from the start", "without the cloud", "when the cloud is back"} {
		t.Run(fullAt, func(t *testing.T) {
			t.Parallel()
			disk := &fullDisk{}
			var isAway, isBack atomic.Bool
			later := strings.ReplaceAll(configMaps, `"1"`, `"2"`)
			over := make(chan struct{})
			cloud := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				switch {
				case isAway.Load():
					w.WriteHeader(http.StatusServiceUnavailable)
				case strings.HasPrefix(r.URL.Path, "/api") && r.URL.Path != configMapsPath: // discovery, and what the hub follows
					w.WriteHeader(http.StatusForbidden)
				case r.URL.Query().Get("watch") != "":
					_, _ = io.WriteString(w, streamedConfigMaps)
					_ = http.NewResponseController(w).Flush()
					select {
					case <-r.Context().Done():
					case <-over:
					}
				case isBack.Load():
					_, _ = io.WriteString(w, later)
				default:
					_, _ = io.WriteString(w, configMaps)
				}
			}))
			cloud.StartTLS()
			t.Cleanup(cloud.Close)
			t.Cleanup(func() { close(over) })
			dir := t.TempDir()
			first := runHub(t, dir, cloud)
			first.end()
			for _, name := range []string{"pods.json", "tokens.json"} { // the small files cannot be written either
				if err := os.Symlink("/dev/full", filepath.Join(dir, "state", name+".tmp")); err != nil {
					t.Fatal(err)
				}
			}
			disk.isFull.Store(fullAt == "from the start")
			r := tryHub(t, dir, cloud, trial{wrap: faultydisk.Of(disk.fail)})
			t.Cleanup(func() { disk.isFull.Store(false) }) // before it ends
			online := func(when, want string) {
				t.Helper()
				build.Eventually(t, when+" the hub passes on what the cloud answers", func() bool {
					code, body, err := r.ask(configMapsPath)
					if err != nil {
						t.Fatal(err)
					}
					return code == http.StatusOK && body == want
				})
				build.Eventually(t, when+" the hub passes on a watch", func() bool { return r.watches(t) })
			}
			online("at first", configMaps)
			if fullAt != "from the start" {
				build.Eventually(t, "the list and the watch are kept", func() bool { return filesWith(t, filepath.Join(dir, "state", "cache"), `"name":"a"`) == 2 })
			}
			isAway.Store(true)
			disk.isFull.Store(fullAt != "when the cloud is back")
			build.Eventually(t, "the hub has noticed that there is no cloud", func() bool {
				code, body, err := r.ask(configMapsPath)
				if err != nil {
					t.Fatal(err)
				}
				return code == http.StatusOK && body == configMaps || fullAt == "from the start" && strings.Contains(body, "no API server of the cloud answers")
			})
			disk.isFull.Store(true)
			isBack.Store(true)
			isAway.Store(false)
			online("afterwards", later)
			select {
			case err := <-r.ended:
				t.Fatalf("the hub has ended: %v", err)
			default:
			}
		})
	}
}

// watches reports whether the hub gives a watch of ConfigMaps all initial events.
func (r *running) watches(t *testing.T) bool {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+r.address+configMapsPath+"?watch=1&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan", nil)
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Authorization", "Bearer x")
	q.Header.Set("Accept", "application/json")
	response, err := r.client.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	for _, want := range []string{"ADDED", "initial-events-end"} {
		if !lines.Scan() || !strings.Contains(lines.Text(), want) {
			return false
		}
	}
	return true
}

// filesWith counts the files of a directory that have a text.
func filesWith(t *testing.T, dir, text string) (n int) {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		content, err := os.ReadFile(filepath.Join(dir, file.Name()))
		if err == nil && strings.Contains(string(content), text) {
			n++
		}
	}
	return n
}
