package realnode

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"testing"
)

// TestSeccompIsRemovedFromContainerConfig: only the seccomp profile is removed from the
// configuration of a container.
func TestSeccompIsRemovedFromContainerConfig(t *testing.T) {
	for name, tc := range map[string]struct{ config, want string }{
		"with a profile": {
			`{"ociVersion":"1.3.0","process":{"args":["/pause"]},"linux":{"seccomp":{"defaultAction":"SCMP_ACT_ERRNO"},"namespaces":[{"type":"pid"}],"resources":{"memory":{"limit":9007199254740993}}}}`,
			`{"ociVersion":"1.3.0","process":{"args":["/pause"]},"linux":{"namespaces":[{"type":"pid"}],"resources":{"memory":{"limit":9007199254740993}}}}`,
		},
		"without a profile": {`{"linux":{"namespaces":[]}}`, `{"linux":{"namespaces":[]}}`},
		"without Linux":     {`{"ociVersion":"1.3.0"}`, `{"ociVersion":"1.3.0"}`},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "config.json")
			if err := os.WriteFile(path, []byte(tc.config), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := withoutSeccomp(path); err != nil {
				t.Fatal(err)
			}
			raw, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := decode(t, raw), decode(t, []byte(tc.want)); !reflect.DeepEqual(got, want) {
				t.Errorf("the configuration is %s, want %s", raw, tc.want)
			}
		})
	}
}

// decode keeps numbers as they are written.
func decode(t *testing.T, text []byte) (value struct {
	OCIVersion string                     `json:"ociVersion"`
	Process    json.RawMessage            `json:"process"`
	Linux      map[string]json.RawMessage `json:"linux"`
}) {
	t.Helper()
	if err := json.Unmarshal(text, &value); err != nil {
		t.Fatal(err)
	}
	return value
}

// TestInvalidContainerConfigIsAnError: a file that is missing is left to runc, which says so.
func TestInvalidContainerConfigIsAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	if err := withoutSeccomp(path); err != nil {
		t.Errorf("a file that is missing: %v", err)
	}
	for _, text := range []string{"", "[]", `{"linux": 1}`} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := withoutSeccomp(path); err == nil {
			t.Errorf("the configuration %q is accepted", text)
		}
	}
}

// TestCgroupsInheritTheirCPUs: in version 1, cgroups inherit their CPUs at each level. In version
// 2 the kernel does that.
func TestCgroupsInheritTheirCPUs(t *testing.T) {
	for name, version2 := range map[string]bool{"version 1": false, "version 2": true} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for file, value := range map[string]string{"cpuset.cpus": "0-1\n", "cpuset.mems": "0\n"} {
				if err := os.WriteFile(filepath.Join(root, file), []byte(value), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			group := filepath.Join(root, "cluster", "node")
			for range 2 { // it may be there already, when a node is started again
				if err := makeGroup(root, group, version2); err != nil {
					t.Fatal(err)
				}
			}
			for _, at := range []string{filepath.Dir(group), group} {
				cpus, err := os.ReadFile(filepath.Join(at, "cpuset.cpus"))
				if version2 && !errors.Is(err, os.ErrNotExist) || !version2 && string(cpus) != "0-1\n" {
					t.Errorf("%s has the CPUs %q, %v", at, cpus, err)
				}
				if info, err := os.Stat(at); err != nil || !info.IsDir() {
					t.Errorf("the group %s: %v", at, err)
				}
			}
		})
	}
	root := t.TempDir()
	if err := makeGroup(root, filepath.Join(root, "a"), false); err != nil {
		t.Errorf("a hierarchy that is not of CPUs: %v", err)
	}
	if err := makeGroup(filepath.Join(root, "missing"), filepath.Join(root, "missing", "a"), false); err == nil {
		t.Error("a group is made in a hierarchy that is not there")
	}
}

// TestConcurrentCgroupChecksAgree: tests that run side by side ask side by side. Each gets the answer that
// one alone gets, whether this machine has control groups or not.
func TestConcurrentCgroupChecksAgree(t *testing.T) {
	alone := CanMakeGroups()
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 50 {
				if err := CanMakeGroups(); (err == nil) != (alone == nil) {
					t.Errorf("beside others the answer is %v, alone it is %v", err, alone)
					return
				}
			}
		})
	}
	all.Wait()
}
