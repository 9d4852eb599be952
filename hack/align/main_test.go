package main

import "testing"

func TestModulesHaveTheSameVersions(t *testing.T) {
	changes, err := differences("../..")
	if err != nil {
		t.Fatal(err)
	}
	for file, versions := range changes {
		t.Errorf("%s is behind another module, run go run ./hack/align: %v", file, versions)
	}
}

func TestIsHigher(t *testing.T) {
	for _, tc := range []struct {
		a, b string
		want bool
	}{
		{"v1.4.4", "v1.4.3", true},
		{"v1.4.3", "v1.4.4", false},
		{"v1.4.3", "v1.4.3", false},
		{"v1.36.12", "v1.36.12-0.20260120151049-f2248ac996af", true},
		{"v0.0.0-20260803160001-6ac0973c030d", "v0.0.0-20260414002931-afd174a4e478", true},
		{"v2.5.0+incompatible", "v2.4.0+incompatible", true},
		{"v1.0.0", "", true},
		{"", "v1.0.0", false},
	} {
		if got, err := isHigher(tc.a, tc.b); err != nil || got != tc.want {
			t.Errorf("isHigher(%q, %q) = %t, %v, want %t", tc.a, tc.b, got, err, tc.want)
		}
	}
	if _, err := isHigher("nonsense", "v1.0.0"); err == nil {
		t.Error("a version that is none has an order")
	}
}
