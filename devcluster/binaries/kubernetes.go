package binaries

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// KubernetesVersions are the versions of Kubernetes that are built, one for each minor version, newest first. The
// modules of the first share the versions of their dependencies with the rest of the repository. The programs of each
// other one have one go.mod, in the directory "kubernetes-" and its minor version.
var KubernetesVersions = []string{"v1.36.3", "v1.35.4", "v1.34.4"}

// KubernetesEnv names the environment variable that chooses one of [KubernetesVersions] where nothing else does.
const KubernetesEnv = "ATOLL_KUBERNETES"

// FindKubernetes returns the one of [KubernetesVersions] that is asked for by its minor version, such as 1.35, or in
// full. "" asks for that of [KubernetesEnv], or else for the newest.
func FindKubernetes(asked string) (string, error) {
	source := ""
	if asked == "" {
		asked, source = os.Getenv(KubernetesEnv), KubernetesEnv+"="
	}
	if asked == "" {
		return KubernetesVersions[0], nil
	}
	wanted := "v" + strings.TrimPrefix(asked, "v")
	i := slices.IndexFunc(KubernetesVersions, func(version string) bool { return wanted == version || wanted == minor(version) })
	if i < 0 {
		return "", fmt.Errorf("finding the version of Kubernetes: %s%s is not built here; choose one of %s", source, asked, strings.Join(KubernetesVersions, ", "))
	}
	return KubernetesVersions[i], nil
}

// minor returns v1.35 of v1.35.4.
func minor(version string) string { return version[:strings.LastIndex(version, ".")] }

// Pins returns the directory of the go.mod that pins a version of Kubernetes for the programs of all modules, or "" if
// each of them has its own.
func Pins(kubernetes string) string {
	if kubernetes == KubernetesVersions[0] {
		return ""
	}
	return "kubernetes-" + strings.TrimPrefix(minor(kubernetes), "v")
}

// ofKubernetes adds to a module of Kubernetes' programs what differs by the version. The linker's values are constant,
// so that two builds of the same sources are equal.
func ofKubernetes(version string, m module) module {
	const pkg = "k8s.io/component-base/version."
	_, minorNumber, _ := strings.Cut(minor(version), ".")
	m.pins = Pins(version)
	m.ldflags = []string{
		"-X " + pkg + "gitVersion=" + version,
		"-X " + pkg + "gitMajor=1",
		"-X " + pkg + "gitMinor=" + minorNumber,
		"-X " + pkg + "gitCommit=0000000000000000000000000000000000000000",
		"-X " + pkg + "gitTreeState=clean",
		"-X " + pkg + "buildDate=1970-01-01T00:00:00Z",
	}
	return m
}
