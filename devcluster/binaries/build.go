package binaries

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// progressInterval is the time between two lines of progress.
	progressInterval = 5 * time.Second
	// maxErrorLines is the maximum number of lines of the compiler's output that an error
	// quotes.
	maxErrorLines = 20
)

// build builds the module's packages into bin.
func (m module) build(ctx context.Context, work, bin string, log io.Writer) error {
	dir := filepath.Join(work, m.name)
	if err := m.writeTo(dir); err != nil {
		return err
	}
	args := []string{
		"build", "-v", "-mod=readonly", "-buildvcs=false",
		"-ldflags", strings.Join(append([]string{"-s", "-w"}, m.ldflags...), " "),
		"-o", bin + string(filepath.Separator),
	}
	cmd := exec.CommandContext(ctx, "go", append(args, m.packages...)...)
	cmd.Dir = dir
	// The linker and compilers are children of the go command and must end with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cgo := "CGO_ENABLED=0"
	if m.cgo {
		cgo = "CGO_ENABLED=1"
	}
	cmd.Env = append(os.Environ(), cgo, "GOFLAGS=", "GOWORK=off", "GOOS=", "GOARCH=")
	output, err := cmd.StderrPipe()
	if err != nil {
		return fmt.Errorf("building %s: %w", m.name, err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("building %s: %w", m.name, err)
	}
	progress := &progress{module: m.name, bin: bin, started: time.Now(), log: log}
	stop := progress.printEvery(progressInterval)
	progress.read(output)
	err = cmd.Wait()
	stop()
	if err != nil {
		return fmt.Errorf("building %s: %w\n%s", m.name, err, strings.Join(progress.other, "\n"))
	}
	for from, to := range m.rename {
		err := os.Rename(filepath.Join(bin, from), filepath.Join(bin, to))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("renaming binary: %w", err)
		}
	}
	fmt.Fprintf(log, "devcluster: built %s in %s\n", m.name, time.Since(progress.started).Round(time.Second))
	return nil
}

// progress follows the output of go build -v: a line for each module that is
// downloaded and each package that is compiled.
type progress struct {
	module  string
	bin     string
	started time.Time
	log     io.Writer

	mu         sync.Mutex // guards the fields below
	downloaded int
	compiled   int
	last       string
	other      []string // last lines that are neither: errors
}

func (p *progress) read(output io.Reader) {
	scanner := bufio.NewScanner(output)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		p.observe(scanner.Text())
	}
	_, _ = io.Copy(io.Discard, output) // a line that is too long must not block the build
}

func (p *progress) observe(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case strings.HasPrefix(line, "go: downloading "):
		p.downloaded++
	case line != "" && !strings.ContainsAny(line, " \t:#"):
		p.compiled++
		p.last = line
	default:
		p.other = append(p.other, line)
		if len(p.other) > maxErrorLines {
			p.other = p.other[1:]
		}
	}
}

// printEvery writes a line of progress at each interval until stop is called.
func (p *progress) printEvery(interval time.Duration) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				fmt.Fprintln(p.log, p.line())
			case <-quit:
				return
			}
		}
	}()
	return func() {
		close(quit)
		<-done
	}
}

func (p *progress) line() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var linked []string
	if entries, err := os.ReadDir(p.bin); err == nil {
		for _, entry := range entries {
			linked = append(linked, entry.Name())
		}
	}
	line := fmt.Sprintf("devcluster: building %s, %s: %d modules downloaded, %d packages compiled",
		p.module, time.Since(p.started).Round(time.Second), p.downloaded, p.compiled)
	if p.last != "" {
		line += ", last " + p.last
	}
	if len(linked) > 0 {
		line += "; finished: " + strings.Join(linked, " ")
	}
	return line
}
