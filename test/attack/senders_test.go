package attack

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"testing"
)

// order tells a process of senders, in its environment, what to send.
type order struct {
	Wave   string
	Target target
	CPUs   []int // nil means any
}

const orderVariable = "ATOLL_ATTACK"

// sent is what became of what was sent: how many clients got something else than an error,
// and how many an error.
type sent struct{ Done, Failed int64 }

// TestMain is also the program of the senders, which are a process of their own.
func TestMain(m *testing.M) {
	raw := os.Getenv(orderVariable)
	if raw == "" {
		os.Exit(m.Run())
	}
	if err := obey(raw); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// obey sends until standard input ends, and prints what became of it.
func obey(raw string) error {
	var o order
	if err := json.Unmarshal([]byte(raw), &o); err != nil {
		return fmt.Errorf("reading %s: %w", orderVariable, err)
	}
	if o.CPUs != nil {
		if err := keepOn(os.Getpid(), o.CPUs); err != nil {
			return err
		}
	}
	known := slices.Concat(waves, []wave{all})
	i := slices.IndexFunc(known, func(w wave) bool { return w.name == o.Wave })
	if i < 0 {
		return fmt.Errorf("there is no wave %q", o.Wave)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	end := attack(ctx, known[i].clients(o.Target))
	_, _ = io.Copy(io.Discard, os.Stdin)
	cancel()
	return json.NewEncoder(os.Stdout).Encode(end())
}

// send starts the senders of a wave. It returns a function that ends them.
func (b *bed) send(wave string) (end func() sent) {
	b.Helper()
	raw, err := json.Marshal(order{wave, b.target, b.senders})
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.CommandContext(b.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), orderVariable+"="+string(raw))
	cmd.Stderr = os.Stderr
	stop, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	return func() (s sent) {
		b.Helper()
		_ = stop.Close()
		if err := json.NewDecoder(out).Decode(&s); err != nil {
			b.Errorf("the senders of %q: %v", wave, err)
		}
		if err := cmd.Wait(); err != nil {
			b.Errorf("the senders of %q: %v", wave, err)
		}
		return s
	}
}
