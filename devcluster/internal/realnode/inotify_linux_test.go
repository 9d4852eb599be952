package realnode

import (
	"os"
	"path/filepath"
	"testing"
)

// TestInstancesAreRaised, once, and never lowered.
func TestInstancesAreRaised(t *testing.T) {
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

// TestInstancesThatCannotBeRaised: what they are, and what was tried, is in the error.
func TestInstancesThatCannotBeRaised(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{filepath.Join(dir, "missing"), dir, filepath.Join(dir, "damaged")} {
		if err := os.WriteFile(filepath.Join(dir, "damaged"), []byte("many"), 0o600); err != nil {
			t.Fatal(err)
		}
		if told, err := raise(path, enoughInstances); err == nil || told != "" {
			t.Errorf("%s: %q was told, and %v", path, told, err)
		}
	}
}
