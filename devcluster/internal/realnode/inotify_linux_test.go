package realnode

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestInotifyInstanceLimitIsRaised: fs.inotify.max_user_instances is raised once, and never
// lowered.
func TestInotifyInstanceLimitIsRaised(t *testing.T) {
	path := filepath.Join(t.TempDir(), "max_user_instances")
	for _, tc := range []struct{ had, want, told string }{
		{"128\n", "4096", "raised fs.inotify.max_user_instances from 128 to 4096, for the kubelets"},
		{"4096\n", "4096\n", ""},
		{"65536\n", "65536\n", ""},
	} {
		if err := os.WriteFile(path, []byte(tc.had), 0o600); err != nil {
			t.Fatal(err)
		}
		told, err := raise(path, enoughInstances)
		if err != nil {
			t.Error(err)
		}
		if got, _ := os.ReadFile(path); string(got) != tc.want || told != tc.told {
			t.Errorf("%q became %q, and %q was told", tc.had, got, told)
		}
	}
}

// TestInotifyLimitErrorNamesTheSetting: the error says what was tried, and of which setting.
func TestInotifyLimitErrorNamesTheSetting(t *testing.T) {
	dir := t.TempDir()
	damaged := filepath.Join(dir, "damaged")
	if err := os.WriteFile(damaged, []byte("many"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "missing"): "reading fs.inotify.missing: ",
		damaged:                       "reading fs.inotify.damaged: ",
		// A setting that nobody may write, as all are in some containers; it is below 100.
		"/proc/sys/kernel/cap_last_cap": "raising fs.inotify.cap_last_cap from ",
	} {
		if told, err := raise(path, enoughInstances); err == nil || !strings.HasPrefix(err.Error(), want) || told != "" {
			t.Errorf("%s: %q was told, and %v, want %q", path, told, err, want)
		}
	}
}
