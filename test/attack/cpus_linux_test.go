package attack

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// allowed are the CPUs on which this process may run when it starts.
var allowed = func() (cpus []int) {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) != nil {
		return nil
	}
	for cpu := range len(set) * strconv.IntSize {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return cpus
}()

// keepOn keeps all threads of a process on some CPUs, and with them the processes that it
// starts later.
func keepOn(pid int, cpus []int) error {
	var set unix.CPUSet
	for _, cpu := range cpus {
		set.Set(cpu)
	}
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return fmt.Errorf("keeping process %d on CPUs %v: %w", pid, cpus, err)
	}
	for _, task := range tasks {
		id, err := strconv.Atoi(task.Name())
		if err != nil {
			return fmt.Errorf("keeping process %d on CPUs %v: %w", pid, cpus, err)
		}
		if err := unix.SchedSetaffinity(id, &set); err != nil && !errors.Is(err, unix.ESRCH) { // a thread that has ended
			return fmt.Errorf("keeping process %d on CPUs %v: %w", pid, cpus, err)
		}
	}
	return nil
}
