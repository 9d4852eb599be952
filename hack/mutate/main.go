// Command mutate makes one small change at a time in packages and reports the changes
// that their own tests do not notice. All changes are compiled into one test binary, and
// an environment variable selects the active one: each change costs one run of the tests
// and no build.
//
//	go run ./hack/mutate [-timeout d] <directory of a package>...
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

// reportEvery is the interval between two lines of progress.
const reportEvery = 15 * time.Second

func main() {
	slack := flag.Duration("timeout", 20*time.Second, "how long tests may take beyond ten times what they take without a change")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: mutate [flags] <directory of a package>...")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	for _, dir := range flag.Args() {
		if err := report(context.Background(), dir, *slack); err != nil {
			fmt.Fprintf(os.Stderr, "mutate: %v\n", err)
			os.Exit(1)
		}
	}
}

// report prints a line for a package, and one for each change that its tests did not
// notice.
func report(ctx context.Context, dir string, slack time.Duration) error {
	changes, missed, err := run(ctx, dir, slack)
	if err != nil {
		return err
	}
	if wd, err := os.Getwd(); err == nil && filepath.IsAbs(dir) {
		if relative, err := filepath.Rel(wd, dir); err == nil {
			dir = relative
		}
	}
	noticed := len(changes) - len(missed)
	percent := 100
	if len(changes) > 0 {
		percent = 100 * noticed / len(changes)
	}
	fmt.Printf("%-32s %4d changes, %4d noticed (%d %%), %d not noticed\n", dir, len(changes), noticed, percent, len(missed))
	for _, c := range missed {
		fmt.Println("    " + c.String())
	}
	return nil
}

// run makes every change of a package in turn, and returns those that its tests did not
// notice. It writes progress to standard error.
func run(ctx context.Context, dir string, slack time.Duration) (changes, missed []change, err error) {
	binary, changes, cleanUp, err := build(ctx, dir)
	if err != nil {
		return nil, nil, err
	}
	defer cleanUp()
	began := time.Now()
	if out, passed := test(ctx, dir, binary, 0, 10*time.Minute); !passed {
		return nil, nil, fmt.Errorf("running the tests of %s without a change: they fail: %s", dir, out)
	}
	most := 10*time.Since(began) + slack
	reported := time.Now()
	for i, c := range changes {
		if time.Since(reported) >= reportEvery {
			reported = time.Now()
			fmt.Fprintf(os.Stderr, "%s: %d of %d changes, %d not noticed so far\n", dir, i, len(changes), len(missed))
		}
		if _, passed := test(ctx, dir, binary, c.id, most); passed {
			missed = append(missed, c)
		}
	}
	return changes, missed, nil
}

// test runs the tests with an active change; 0 means none. Tests that take too long count
// as having noticed it.
func test(ctx context.Context, dir, binary string, id int, most time.Duration) (out string, passed bool) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "-test.failfast")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), variable+"="+strconv.Itoa(id))
	raw, err := cmd.CombinedOutput()
	return string(raw), err == nil
}

// build compiles the tests of a package with all changes in it. cleanUp removes the files
// that it has written.
func build(ctx context.Context, dir string) (binary string, changes []change, cleanUp func(), err error) {
	p, err := load(ctx, dir)
	if err != nil {
		return "", nil, nil, err
	}
	files, changes := p.mutate()
	scratch, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return "", nil, nil, fmt.Errorf("making a directory for %s: %w", dir, err)
	}
	cleanUp = func() { _ = os.RemoveAll(scratch) }
	defer func() {
		if err != nil {
			cleanUp()
		}
	}()
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for path, text := range files {
		to := filepath.Join(scratch, filepath.Base(path))
		if err := os.WriteFile(to, text, 0o600); err != nil {
			return "", nil, nil, fmt.Errorf("writing the changes of %s: %w", dir, err)
		}
		overlay.Replace[path] = to
	}
	raw, err := json.Marshal(overlay)
	if err != nil {
		return "", nil, nil, fmt.Errorf("encoding the overlay of %s: %w", dir, err)
	}
	overlayFile := filepath.Join(scratch, "overlay.json")
	if err := os.WriteFile(overlayFile, raw, 0o600); err != nil {
		return "", nil, nil, fmt.Errorf("writing the overlay of %s: %w", dir, err)
	}
	binary = filepath.Join(scratch, "changed.test")
	cmd := exec.CommandContext(ctx, "go", "test", "-vet=off", "-c", "-overlay", overlayFile, "-o", binary, ".")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", nil, nil, fmt.Errorf("building the tests of %s with its changes: %w: %s", dir, err, out)
	}
	return binary, changes, cleanUp, nil
}

// list runs go list for a package.
func list(ctx context.Context, dir string, into func(line []byte) error, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", append([]string{"list"}, args...)...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			out = exit.Stderr
		}
		return fmt.Errorf("listing %s: %w: %s", dir, err, out)
	}
	for line := range bytes.Lines(out) {
		if err := into(bytes.TrimSpace(line)); err != nil {
			return err
		}
	}
	return nil
}
