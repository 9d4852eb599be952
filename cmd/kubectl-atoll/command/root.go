// Package command has the verbs of kubectl-atoll: their arguments, flags and output.
package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/atoll-k8s/atoll/internal/kubectl/read"
)

// shared is what all verbs have.
type shared struct {
	genericiooptions.IOStreams
	config *genericclioptions.ConfigFlags
	output string
	// root has the flags of all verbs.
	root *cobra.Command
}

// version is set when a release is built.
var version = "devel"

// newRoot returns the command, and what its verbs share.
func newRoot(streams genericiooptions.IOStreams) (*cobra.Command, *shared) {
	s := &shared{IOStreams: streams, config: genericclioptions.NewConfigFlags(true)}
	root := &cobra.Command{
		Use:           "kubectl-atoll",
		Short:         "Why pods are where they are, and what Atoll will do",
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl atoll"},
		PersistentPreRunE: func(*cobra.Command, []string) error {
			if !slices.Contains([]string{"", "json", "yaml", "wide"}, s.output) {
				return fmt.Errorf("-o %s: want json, yaml or wide", s.output)
			}
			return nil
		},
	}
	root.SetOut(streams.Out)
	root.SetErr(streams.ErrOut)
	s.config.AddFlags(root.PersistentFlags())
	warnings := rest.NewWarningWriter(streams.ErrOut, rest.WarningWriterOptions{Deduplicate: true})
	s.config.WrapConfigFn = func(c *rest.Config) *rest.Config {
		c.WarningHandler = warnings
		return c
	}
	root.PersistentFlags().StringVarP(&s.output, "output", "o", "", "json or yaml, for programs; wide is the text for people, as without -o")
	s.root = root
	if err := s.completeFlags(root); err != nil {
		panic(err) // the flags are there
	}
	root.AddCommand(s.doctor(), s.explain(), s.plan(), s.pool(), s.status(), s.top(), s.tree(), s.ui(), s.uninstall())
	return root, s
}

// reader connects to the cluster, and returns the namespace of the command.
func (s *shared) reader() (*read.Reader, string, error) {
	namespace, _, err := s.config.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return nil, "", err
	}
	config, err := s.config.ToRESTConfig()
	if err != nil {
		return nil, "", err
	}
	r, err := read.New(config)
	return r, namespace, err
}

// namespaceIsGiven reports whether -n was given.
func (s *shared) namespaceIsGiven() bool { return s.root.PersistentFlags().Changed("namespace") }

// command finds the programs that commands in a text begin with.
var command = regexp.MustCompile(`(?m)(^ *|[:;|(] )(kubectl (?:atoll )?|helm )`)

// led are the flags that lead to a cluster and to its user, but for those that are secrets.
var led = []string{"kubeconfig", "context", "cluster", "user", "server", "certificate-authority", "tls-server-name", "client-certificate", "client-key", "as", "as-uid"}

// here gives the commands in a text the flags that led this command to its cluster.
func (s *shared) here(text string) string {
	kubectl, helm := "", ""
	for _, name := range led {
		f := s.root.PersistentFlags().Lookup(name)
		if !f.Changed {
			continue
		}
		flag := fmt.Sprintf("%s=%s ", name, quoted(f.Value.String()))
		kubectl += "--" + flag
		switch name {
		case "kubeconfig":
			helm += "--" + flag
		case "context":
			helm += "--kube-" + flag
		}
	}
	for _, group := range *s.config.ImpersonateGroup {
		kubectl += fmt.Sprintf("--as-group=%s ", quoted(group))
	}
	return command.ReplaceAllStringFunc(text, func(program string) string {
		if strings.HasSuffix(program, "helm ") {
			return program + helm
		}
		return program + kubectl
	})
}

// quoted quotes an argument for a shell, if that is necessary.
func quoted(argument string) string {
	if argument != "" && !strings.ContainsFunc(argument, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("-_./:@", r)
	}) {
		return argument
	}
	return "'" + strings.ReplaceAll(argument, "'", `'\''`) + "'"
}

// print prints a value as -o says; text prints it for people, on a terminal with lines that fit it.
func (s *shared) print(value any, text func(io.Writer) error) error {
	switch s.output {
	case "json":
		encoder := json.NewEncoder(s.Out)
		encoder.SetIndent("", "  ")
		encoder.SetEscapeHTML(false)
		return encoder.Encode(value)
	case "yaml":
		data, err := yaml.Marshal(value)
		if err != nil {
			return err
		}
		_, err = s.Out.Write(data)
		return err
	}
	var whole strings.Builder
	if err := text(&whole); err != nil {
		return err
	}
	out := s.here(printable(whole.String()))
	if width := columns(s.Out); width > 0 {
		out = wrap(out, width)
	}
	_, err := io.WriteString(s.Out, out)
	return err
}

// printable takes out what a terminal would obey: texts of the cluster may have been written to deceive.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || unicode.IsPrint(r) {
			return r
		}
		return -1
	}, text)
}

// oneLine keeps a text of the cluster from looking like more lines of the output.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// exitCode is an error that only sets the exit code.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// Main runs the command, and returns the exit code: 0, or 1 after an error; plan and doctor have others.
func Main(ctx context.Context, streams genericiooptions.IOStreams, args []string) int {
	root, s := newRoot(streams)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if code, is := errors.AsType[exitCode](err); is {
		return int(code)
	}
	if err != nil {
		_, _ = fmt.Fprintln(streams.ErrOut, "error:", s.here(err.Error()))
		return 1
	}
	return 0
}
