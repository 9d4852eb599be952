package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/atoll-k8s/atoll/devcluster"
)

// clockTicks is the number of time units of /proc in a second on Linux.
const clockTicks = 100

// usage is the CPU time in seconds that was used up to a moment, by process.
// It is empty on systems without /proc.
type usage struct {
	at time.Time
	by map[string]float64
	// all is the usage of the whole machine.
	all float64
}

// bench is this process among the others.
const self = "perf"

// usageOf reads the usage of a cluster's processes and of this one.
func usageOf(ctx context.Context, cluster *devcluster.Cluster) (usage, error) {
	processes, err := cluster.Processes(ctx)
	if err != nil {
		return usage{}, err
	}
	u := usage{at: time.Now(), by: map[string]float64{}, all: machineSeconds()}
	for _, p := range processes {
		if p.Running {
			u.by[p.Name] = processSeconds(p.PID)
		}
	}
	u.by[self] = processSeconds(os.Getpid())
	return u, nil
}

// processSeconds reads user and system time from /proc/<pid>/stat.
func processSeconds(pid int) float64 {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The second field is the name in parentheses, which may hold spaces.
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	const utime, stime = 11, 12 // counted from the third field
	if len(fields) <= stime {
		return 0
	}
	user, _ := strconv.ParseFloat(fields[utime], 64)
	system, _ := strconv.ParseFloat(fields[stime], 64)
	return (user + system) / clockTicks
}

// machineSeconds reads the busy time of all CPUs from /proc/stat.
func machineSeconds() float64 {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(data), "\n")
	fields := strings.Fields(first)
	busy := 0.0
	for i, field := range fields {
		const idle, iowait, guest = 4, 5, 9 // guest time is counted in user time too
		if i == 0 || i == idle || i == iowait || i >= guest {
			continue
		}
		value, _ := strconv.ParseFloat(field, 64)
		busy += value
	}
	return busy / clockTicks
}

// since returns the usage between two readings.
func (u usage) since(before usage) usage {
	d := usage{at: u.at, by: map[string]float64{}, all: u.all - before.all}
	for name, seconds := range u.by {
		// The whole usage of a new process is within the span.
		d.by[name] = max(0, seconds-before.by[name])
	}
	return d
}

// plus returns the sum of the usage in two spans.
func (u usage) plus(other usage) usage {
	sum := usage{at: other.at, by: maps.Clone(other.by), all: u.all + other.all}
	for name, seconds := range u.by {
		sum.by[name] += seconds
	}
	return sum
}

// cluster returns the usage of the cluster's own processes.
func (u usage) cluster() float64 {
	sum := 0.0
	for name, seconds := range u.by {
		if name != self {
			sum += seconds
		}
	}
	return sum
}

// others returns the usage of processes outside of the benchmark.
func (u usage) others() float64 { return max(0, u.all-u.cluster()-u.by[self]) }

// String lists the usage of each process, largest first. Of long names the end is shown.
func (u usage) String() string {
	if u.all == 0 {
		return "CPU unknown"
	}
	list := make([]string, 0, len(u.by))
	for name := range u.by {
		list = append(list, name)
	}
	slices.SortFunc(list, func(a, b string) int {
		if u.by[a] != u.by[b] {
			return int((u.by[b] - u.by[a]) * clockTicks)
		}
		return strings.Compare(a, b)
	})
	var parts []string
	for _, name := range list {
		if u.by[name] >= 0.05 {
			parts = append(parts, fmt.Sprintf("%s %.1f", strings.TrimPrefix(name, "kube-"), u.by[name]))
		}
	}
	return fmt.Sprintf("CPU s: %s; strangers %.1f", strings.Join(parts, ", "), u.others())
}

// strangers returns the share of the CPU time that others used.
func (u usage) strangers() float64 { return u.others() / max(u.all, 0.01) }
