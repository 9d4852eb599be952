package process

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
)

const portsOfAProcess = 150 // more than a block

// TestLivingProcessesNeverGetTheSamePort: ports without a listener, in four processes at the same time.
func TestLivingProcessesNeverGetTheSamePort(t *testing.T) {
	if os.Getenv("PRINT_PORTS") != "" {
		for range portsOfAProcess {
			port, err := FreePort()
			if err != nil {
				t.Fatal(err)
			}
			fmt.Println(port)
		}
		_, _ = io.Copy(io.Discard, os.Stdin) // lives until the test has read all
		return
	}
	seen := map[string]int{}
	for i := range 4 {
		other := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		other.Env = append(os.Environ(), "PRINT_PORTS=yes")
		in, err := other.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := other.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := other.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = in.Close()
			if err := other.Wait(); err != nil {
				t.Error(err)
			}
		})
		lines := bufio.NewScanner(out)
		for range portsOfAProcess {
			if !lines.Scan() {
				t.Fatal("a process printed too few ports")
			}
			if other, twice := seen[lines.Text()]; twice {
				t.Errorf("processes %d and %d got port %s", other, i, lines.Text())
			}
			seen[lines.Text()] = i
		}
	}
}
