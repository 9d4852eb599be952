// Command metricsdoc writes docs/metrics.md: every metric that the project's
// Go source declares, with its labels and help.
//
//	go run ./hack/metricsdoc [-root directory] > docs/metrics.md
//
// It reads declarations, not a running program: calls of prometheus.New… in files called
// metrics.go, with literals (or constants of the same file) for namespace, subsystem,
// name, help and labels. A declaration that it cannot read is an error, so that every
// metric is documented.
package main

import (
	"bufio"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// metric is one declaration.
type metric struct {
	Name, Type, Help string
	Labels           []string
	// File is relative to the root of the module.
	File string
}

func main() {
	root := flag.String("root", ".", "directory of the module")
	flag.Parse()
	if err := run(*root, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "metricsdoc:", err)
		os.Exit(1)
	}
}

func run(root string, out io.Writer) error {
	var metrics []metric
	for _, room := range []string{"cmd", "internal"} {
		found, err := scan(root, room)
		if err != nil {
			return err
		}
		metrics = append(metrics, found...)
	}
	slices.SortFunc(metrics, func(a, b metric) int { return cmp.Compare(a.Name, b.Name) })
	for i := 1; i < len(metrics); i++ {
		if metrics[i].Name == metrics[i-1].Name {
			return fmt.Errorf("%s is declared in %s and in %s", metrics[i].Name, metrics[i-1].File, metrics[i].File)
		}
	}
	return write(out, metrics)
}

// scan reads every metrics.go below root/room.
func scan(root, room string) ([]metric, error) {
	var metrics []metric
	err := filepath.WalkDir(filepath.Join(root, room), func(name string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || entry.IsDir() || entry.Name() != "metrics.go" {
			return err
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		found, err := declarations(files, file)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		for i := range found {
			found[i].File = filepath.ToSlash(relative)
		}
		metrics = append(metrics, found...)
		return nil
	})
	return metrics, err
}

// declarations returns the metrics that a file declares.
func declarations(files *token.FileSet, file *ast.File) ([]metric, error) {
	r := reader{constants: constants(file)}
	var metrics []metric
	var failed error
	ast.Inspect(file, func(node ast.Node) bool {
		call, ok := node.(*ast.CallExpr)
		if !ok || failed != nil {
			return failed == nil
		}
		kind, vector := constructor(call)
		if kind == "" {
			return true
		}
		m, err := r.metric(call, kind, vector)
		if err != nil {
			failed = fmt.Errorf("%s: reading a metric: %w", files.Position(call.Pos()), err)
			return false
		}
		metrics = append(metrics, m)
		return true
	})
	return metrics, failed
}

// constructor returns the type of the metric that a call creates, and whether it has
// labels: ("counter", true) for prometheus.NewCounterVec. "" means another call.
func constructor(call *ast.CallExpr) (kind string, vector bool) {
	selector, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return "", false
	}
	if of, ok := selector.X.(*ast.Ident); !ok || of.Name != "prometheus" {
		return "", false
	}
	rest, ok := strings.CutPrefix(selector.Sel.Name, "New")
	if !ok {
		return "", false
	}
	rest, vector = strings.CutSuffix(rest, "Vec")
	rest = strings.TrimSuffix(rest, "Func")
	switch rest {
	case "Counter", "Gauge", "Histogram", "Summary":
		return strings.ToLower(rest), vector
	}
	return "", false
}

// reader evaluates the few expressions that a declaration consists of.
type reader struct {
	constants map[string]ast.Expr
}

func (r reader) metric(call *ast.CallExpr, kind string, vector bool) (metric, error) {
	m := metric{Type: kind}
	if len(call.Args) == 0 {
		return m, errors.New("no options")
	}
	options, ok := call.Args[0].(*ast.CompositeLit)
	if !ok {
		return m, errors.New("options are not a literal")
	}
	fields := map[string]string{}
	for _, element := range options.Elts {
		pair, ok := element.(*ast.KeyValueExpr)
		if !ok {
			return m, errors.New("options without field names")
		}
		key := pair.Key.(*ast.Ident).Name
		switch key {
		case "Namespace", "Subsystem", "Name", "Help":
			value, err := r.text(pair.Value)
			if err != nil {
				return m, fmt.Errorf("%s: %w", key, err)
			}
			fields[key] = value
		}
	}
	if fields["Namespace"] != "atoll" || fields["Name"] == "" || fields["Help"] == "" {
		return m, fmt.Errorf("needs Namespace atoll, a Name and a Help, has %v", fields)
	}
	m.Help = fields["Help"]
	m.Name = strings.Join(slices.DeleteFunc(
		[]string{fields["Namespace"], fields["Subsystem"], fields["Name"]},
		func(part string) bool { return part == "" }), "_")
	if !vector {
		return m, nil
	}
	if len(call.Args) != 2 {
		return m, errors.New("no labels")
	}
	labels, ok := call.Args[1].(*ast.CompositeLit)
	if !ok {
		return m, errors.New("labels are not a literal")
	}
	for _, element := range labels.Elts {
		label, err := r.text(element)
		if err != nil {
			return m, fmt.Errorf("label: %w", err)
		}
		m.Labels = append(m.Labels, label)
	}
	return m, nil
}

// text evaluates a string literal, a constant of the file or a sum of both.
func (r reader) text(expr ast.Expr) (string, error) {
	switch e := expr.(type) {
	case *ast.BasicLit:
		return strconv.Unquote(e.Value)
	case *ast.ParenExpr:
		return r.text(e.X)
	case *ast.BinaryExpr:
		left, err := r.text(e.X)
		if err != nil {
			return "", err
		}
		right, err := r.text(e.Y)
		return left + right, err
	case *ast.Ident:
		if value, known := r.constants[e.Name]; known {
			return r.text(value)
		}
		return "", fmt.Errorf("%s is not a constant of this file", e.Name)
	}
	return "", errors.New("not a literal")
}

// constants returns the constants of a file by name.
func constants(file *ast.File) map[string]ast.Expr {
	found := map[string]ast.Expr{}
	for _, declaration := range file.Decls {
		group, ok := declaration.(*ast.GenDecl)
		if !ok || group.Tok != token.CONST {
			continue
		}
		for _, spec := range group.Specs {
			values := spec.(*ast.ValueSpec)
			for i, name := range values.Names {
				if i < len(values.Values) {
					found[name.Name] = values.Values[i]
				}
			}
		}
	}
	return found
}

func write(to io.Writer, metrics []metric) error {
	out := bufio.NewWriter(to)
	fmt.Fprint(out, `# Metrics
<!-- Generated by hack/metricsdoc from the source; make generate. -->

atoll-manager serves these on port 8080 under /metrics, beside those of the Go
runtime and of controller-runtime, over HTTPS and to whom the ClusterRole
atoll-metrics-reader is bound. Those that begin with atoll_hub_ are served by
atoll-hub on its node instead, at http://127.0.0.1:10267/metrics. A name that
ends in _total only grows.

| metric | type | labels | what it says |
|---|---|---|---|
`)
	for _, m := range metrics {
		labels := "–"
		if len(m.Labels) > 0 {
			labels = "`" + strings.Join(m.Labels, "`, `") + "`"
		}
		fmt.Fprintf(out, "| `%s` | %s | %s | %s |\n", m.Name, m.Type, labels, cell(m.Help))
	}
	return out.Flush()
}

// cell escapes a text for a cell of a table.
func cell(text string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", `\|`)
}
