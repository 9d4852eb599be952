// Package memory lets a program keep to the memory that it may use.
package memory

import (
	"io/fs"
	"os"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
)

// Bound makes Go collect garbage more often while nine tenths of the limit are in use: above the limit,
// in bytes, the process is killed. A heap may otherwise grow to twice what is in use before garbage is
// collected. 0 is no limit. $GOMEMLIMIT, which Go has read when the process started, has priority.
func Bound(limit int64) {
	if limit > 0 && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(limit / 10 * 9)
	}
}

// OfControlGroup returns the limit of the control group of this process, or the smallest of those above
// it, in bytes; 0 if there is none. It knows version 2 of control groups. root is the file system of the
// machine.
func OfControlGroup(root fs.FS) (limit int64) {
	text, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		group, is := strings.CutPrefix(strings.TrimSpace(line), "0::/")
		if !is {
			continue
		}
		for at := path.Clean(group); ; at = path.Dir(at) { // "." is the root, also of a container's own
			text, err := fs.ReadFile(root, path.Join("sys/fs/cgroup", at, "memory.max"))
			if err == nil {
				if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && n > 0 && (limit == 0 || n < limit) {
					limit = n // "max" is no number
				}
			}
			if at == "." || strings.HasPrefix(at, "..") {
				break
			}
		}
	}
	return limit
}
