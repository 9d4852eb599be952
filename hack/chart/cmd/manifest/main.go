// Command manifest renders the chart into one file for `kubectl apply -f`, for
// installations without Helm.
//
//	make manifest                                             # into dist/install.yaml
//	make manifest IMAGE=registry.example/atoll-manager:0.1.0
//	make manifest ARGS='-set scheduler.mode=Plain -values mine.yaml'
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/strvals"

	"github.com/atoll-k8s/atoll/hack/chart"
)

func main() {
	if err := run(os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "manifest:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	fs := flag.NewFlagSet("manifest", flag.ContinueOnError)
	m := chart.Manifest{Values: map[string]any{}}
	fs.StringVar(&m.ChartDir, "chart", "../../charts/atoll", "directory of the chart")
	fs.StringVar(&m.Namespace, "namespace", "atoll-system", "namespace to create and to install into")
	out := fs.String("o", "", "file to write; unset means standard output")
	// In the order in which they are given: the last one counts.
	fs.Func("values", "file with values of the chart; may be given more than once", func(file string) error {
		values, err := chartutil.ReadValuesFile(file)
		if err != nil {
			return fmt.Errorf("reading values: %w", err)
		}
		m.Values = chartutil.CoalesceTables(values, m.Values)
		return nil
	})
	fs.Func("set", "value of the chart, as key.of.it=value; may be given more than once", func(text string) error {
		return strvals.ParseInto(text, m.Values)
	})
	fs.Func("image", "image of atoll-manager: registry/repository:tag, or …@digest", func(reference string) error {
		if reference == "" {
			return nil
		}
		m.Values = chartutil.CoalesceTables(map[string]any{"image": splitImage(reference)}, m.Values)
		return nil
	})
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("reading the command line: %q is not a flag", fs.Arg(0))
	}
	var text bytes.Buffer
	if err := m.Write(&text); err != nil {
		return err
	}
	if *out == "" {
		_, err := os.Stdout.Write(text.Bytes())
		return err
	}
	if err := os.MkdirAll(filepath.Dir(*out), 0o755); err != nil {
		return fmt.Errorf("writing the manifest: %w", err)
	}
	if err := os.WriteFile(*out, text.Bytes(), 0o644); err != nil {
		return fmt.Errorf("writing the manifest: %w", err)
	}
	fmt.Fprintf(os.Stderr, "wrote %s: kubectl apply -f %s\n", *out, *out)
	return nil
}

// splitImage splits an image reference as container runtimes do: the part before the
// first slash is a registry if it can be a host.
func splitImage(reference string) map[string]any {
	image := map[string]any{"registry": "", "tag": "", "digest": ""}
	rest, digest, _ := strings.Cut(reference, "@")
	image["digest"] = digest
	if host, path, ok := strings.Cut(rest, "/"); ok && (host == "localhost" || strings.ContainsAny(host, ".:")) {
		image["registry"], rest = host, path
	}
	if i := strings.LastIndexByte(rest, ':'); i >= 0 {
		image["tag"], rest = rest[i+1:], rest[:i]
	}
	image["repository"] = rest
	return image
}
