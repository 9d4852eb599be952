package realnode

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

const (
	// instancesPath is the setting of the kernel that bounds the inotify instances of a user.
	instancesPath = "/proc/sys/fs/inotify/max_user_instances"
	// enoughInstances are those of about 500 real nodes: a kubelet takes 6, a containerd 2, and the
	// control plane of a cluster 17. Many systems allow 128, for everything that a user runs.
	enoughInstances = 4096
)

// RaiseInstances raises the inotify instances that a user may have, if they are fewer than 4096: a
// kubelet that gets none never makes its node Ready. It lasts until the machine starts again, and
// needs root. It returns what is to be told of it; empty if nothing was changed.
func RaiseInstances() (string, error) { return raise(instancesPath, enoughInstances) }

func raise(path string, enough int) (string, error) {
	name := "fs.inotify." + path[strings.LastIndexByte(path, '/')+1:]
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("reading %s: %w", name, err)
	}
	had, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return "", fmt.Errorf("reading %s: %w", name, err)
	}
	if had >= enough {
		return "", nil
	}
	if err := os.WriteFile(path, []byte(strconv.Itoa(enough)), 0); err != nil {
		return "", fmt.Errorf("raising %s from %d to %d: %w", name, had, enough, err)
	}
	return fmt.Sprintf("raised %s from %d to %d, for the kubelets", name, had, enough), nil
}
