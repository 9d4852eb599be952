package command

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os/exec"
	"runtime"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/resource"

	"github.com/atoll-k8s/atoll/internal/kubectl/page"
	"github.com/atoll-k8s/atoll/internal/kubectl/read"
)

func (s *shared) ui() *cobra.Command {
	port, open, all := 0, true, false
	c := &cobra.Command{
		Use:   "ui",
		Short: "A page that shows groups, workloads, nodes and gangs as they change, and plans",
		Long: `A page that shows groups, workloads, nodes and gangs as they change, and plans.
It is served on this machine, to whoever has the address that is printed, until you press Ctrl-C. It reads with
your rights, and writes nothing. Without -n it shows all namespaces.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			namespace := ""
			if s.namespaceIsGiven() && !all {
				namespace = *s.config.Namespace
			}
			return s.serve(c.Context(), namespace, port, open)
		},
	}
	c.Flags().IntVar(&port, "port", 0, "the port on this machine; 0 is any that is free")
	c.Flags().BoolVar(&open, "open", true, "open it in the browser")
	c.Flags().BoolVarP(&all, "all-namespaces", "A", false, "all namespaces, also with -n")
	return c
}

// serve serves the page until ctx is done.
func (s *shared) serve(ctx context.Context, namespace string, port int, open bool) error {
	config, err := s.config.ToRESTConfig()
	if err != nil {
		return err
	}
	r, err := read.New(config)
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return fmt.Errorf("--port: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	feed := page.NewFeed()
	watched := make(chan error, 1)
	go func() {
		defer cancel()
		watched <- page.Watch(ctx, config, r, namespace, feed)
	}()
	server := &page.Server{Feed: feed, Explain: s.explainText, Plan: s.planText}
	err = server.Serve(ctx, listener, func(at page.Addresses) {
		_, _ = fmt.Fprintf(s.Out, "%s\n", at.Page)
		if open {
			openBrowser(at.Open)
		}
	})
	cancel()
	if problem := <-watched; problem != nil && err == nil {
		return problem
	}
	return err
}

// openBrowser opens an address as a desktop does; without a desktop the person has it printed.
func openBrowser(address string) {
	program := map[string][]string{"darwin": {"open"}, "windows": {"rundll32", "url.dll,FileProtocolHandler"}}[runtime.GOOS]
	if program == nil {
		program = []string{"xdg-open"}
	}
	cmd := exec.Command(program[0], append(program[1:], address)...) //nolint:noctx // a browser stays when this ends
	detach(cmd)
	if cmd.Start() == nil {
		go func() { _ = cmd.Wait() }()
	}
}

// explainText is what explain prints.
func (s *shared) explainText(ctx context.Context, kind, namespace, name string) (string, error) {
	config, err := s.config.ToRESTConfig()
	if err != nil {
		return "", err
	}
	r, err := read.New(config)
	if err != nil {
		return "", err
	}
	answer, err := s.explanationOf(ctx, r, namespace, strings.ToLower(kind), name)
	if err != nil {
		return "", err
	}
	var text bytes.Buffer
	err = answer.write(&text)
	return s.here(text.String()), err
}

// planText is what plan prints.
func (s *shared) planText(ctx context.Context, objects []byte) (string, error) {
	p, err := s.planOf(ctx, func(b *resource.Builder) *resource.Builder { return b.Stream(bytes.NewReader(objects), "the page") })
	if err != nil {
		return "", err
	}
	return s.here(p.Text()), nil
}
