package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

const rootModule = "github.com/atoll-k8s/atoll"

// row is one line of a table in docs/benchmarks.md.
type row struct {
	variant variant
	result  comparison
}

// tableHead returns the head of a benchmark's table.
func tableHead(b benchmark) string {
	unit := ""
	if b.unit != "" {
		unit = ", " + b.unit
	}
	head, line := fmt.Sprintf("| variant | A%s: median (lowest–highest) | B%s | A ÷ B | pair by pair | wanted |", unit, unit), "|---|---|---|---|---|---|"
	if b.places {
		head, line = head+" CPU per pod, A and B | off by |", line+"---|---|"
	}
	return head + " A | B |\n" + line + "---|---|"
}

func render(bench benchmark, rows []row) string {
	var out strings.Builder
	for _, r := range rows {
		a, b := r.result.rates()
		unit := ""
		if bench.unit == "" {
			unit = " " + r.variant.unit
		}
		fmt.Fprintf(&out, "| %s | %s%s | %s%s | **%.2f** | %s | %s |", r.variant.name,
			spread(a, digits(a)), unit, spread(b, digits(b)), unit, r.result.ratio(), spread(r.result.pairs(), "%.2f"), r.variant.ideal)
		if bench.places {
			cpuA, cpuB := r.result.cpu()
			off := "–"
			if n := r.result.off(); n >= 0 {
				off = fmt.Sprint(n)
			}
			fmt.Fprintf(&out, " %.1f and %.1f ms | %s |", median(cpuA), median(cpuB), off)
		}
		fmt.Fprintf(&out, " %s | %s |\n", r.variant.a, r.variant.b)
	}
	return out.String()
}

// machine describes the machine and the Go version.
func machine() string {
	return fmt.Sprintf("%d cores, %s/%s, %s", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version())
}

// commandLine returns the command that repeats the measurement.
func commandLine(b benchmark, o options) string {
	args := fmt.Sprintf("-bench %s -variant %s -rounds %d -nodes %d -groups %d -pods %d", quoted(b.name), quoted(o.variant), o.rounds, o.nodes, o.groups, o.pods)
	if o.runPods {
		args += " -run-pods"
	}
	return fmt.Sprintf("make bench ARGS='%s'", args)
}

// quoted returns a value as a shell reads it within the single quotes of ARGS.
func quoted(value string) string {
	if strings.Contains(value, " ") {
		return `"` + value + `"`
	}
	return value
}

const docsHead = `# Benchmarks
Ratios between two sides that were measured in turns, A B A B …, in one run on one machine: absolute figures depend on the machine,
ratios hardly. Each table is written by the command above it with ` + "`-write`" + ` added; edit the program in ` + "`test/perf`" + `, not the tables.
`

// docsFile finds docs/benchmarks.md in the source of the root module.
func docsFile(ctx context.Context) (string, error) {
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", rootModule)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("finding the source of module %s (run this from its test directory): %w: %s", rootModule, err, errs.Bytes())
	}
	return filepath.Join(strings.TrimSpace(out.String()), "docs", "benchmarks.md"), nil
}

// writeDocs writes the section of a benchmark into the file.
func writeDocs(path string, b benchmark, rows []row, command string) error {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		text = []byte(docsHead)
	} else if err != nil {
		return fmt.Errorf("reading the docs: %w", err)
	}
	next, err := replaceSection(string(text), b, rows, command)
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	if err := os.WriteFile(path, []byte(next), 0o644); err != nil {
		return fmt.Errorf("writing the docs: %w", err)
	}
	return nil
}

// replaceSection writes the figures between the markers of the benchmark. A missing
// section is added. Rows of variants that were not measured are kept.
func replaceSection(text string, b benchmark, rows []row, command string) (string, error) {
	begin, end := fmt.Sprintf("<!-- bench:%s -->\n", b.name), fmt.Sprintf("<!-- /bench:%s -->\n", b.name)
	before, rest, ok := strings.Cut(text, begin)
	if !ok {
		before, rest = fmt.Sprintf("%s\n## %s\n%s\n\n", strings.TrimRight(text, "\n")+"\n", b.name, b.about), end
	}
	old, after, ok := strings.Cut(rest, end)
	if !ok {
		return "", fmt.Errorf("the marker %q has no %q behind it", strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	section := fmt.Sprintf("    %s\n\n%s:\n\n%s\n%s", command, machine(), tableHead(b), mergeRows(old, b, rows))
	return before + begin + section + end + after, nil
}

// mergeRows returns the rows of all variants of the benchmark, in their order: the new
// rows, and the old rows of the other variants.
func mergeRows(old string, b benchmark, rows []row) string {
	lines := map[string]string{}
	for l := range strings.Lines(old) {
		if cells := strings.Split(l, "|"); len(cells) > 2 {
			lines[strings.TrimSpace(cells[1])] = l
		}
	}
	for _, r := range rows {
		lines[r.variant.name] = render(b, []row{r})
	}
	var out strings.Builder
	for _, v := range b.variants {
		out.WriteString(lines[v.name])
	}
	return out.String()
}
