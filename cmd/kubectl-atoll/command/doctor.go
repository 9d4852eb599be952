package command

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/atoll-k8s/atoll/internal/kubectl/doctor"
	"github.com/atoll-k8s/atoll/internal/kubectl/read"
)

// faulty is the exit code if something is wrong.
const faulty exitCode = 2

func (s *shared) doctor() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "What is wrong with the installation of Atoll, and the command that mends it",
		Long: `What is wrong with the installation of Atoll, and for each fault a command that mends it or shows more.
It reads the namespace atoll-system, or that of -n. Whoever may install Atoll may read all that it needs;
what you may not read is left out, and said. Exit code 0: nothing is wrong; 1: an error; 2: something is wrong.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			config, err := s.config.ToRESTConfig()
			if err != nil {
				return err
			}
			r, err := read.New(config)
			if err != nil {
				return err
			}
			namespace := "atoll-system"
			if flag := c.Flags().Lookup("namespace"); flag.Changed {
				namespace = flag.Value.String()
			}
			o, err := doctor.Observe(c.Context(), r, config, namespace, version)
			if err != nil {
				return err
			}
			report := doctor.Of(o)
			report.Unread = r.Unread()
			if err := s.print(report, func(w io.Writer) error { return writeReport(w, &report) }); err != nil {
				return err
			}
			if report.Faulty() {
				return faulty
			}
			return nil
		},
	}
}

func writeReport(w io.Writer, r *doctor.Report) error {
	var text strings.Builder
	fmt.Fprintf(&text, "Atoll %s, form %s, in namespace %s, Kubernetes %s\n", r.Version, r.Mode, r.Namespace, r.Kubernetes)
	for _, c := range r.Checks {
		switch {
		case len(c.Faults) > 0:
			for _, fault := range c.Faults {
				fmt.Fprintf(&text, "! %-14s %s\n    %s\n", c.Name, fault.What, fault.Command)
			}
		case c.Good != "":
			fmt.Fprintf(&text, "  %-14s %s\n", c.Name, c.Good)
		default:
			fmt.Fprintf(&text, "? %-14s you may not read what this needs\n", c.Name)
		}
	}
	for _, unread := range r.Unread {
		fmt.Fprintf(&text, "More could be said: %s\n", unread)
	}
	_, err := io.WriteString(w, text.String())
	return err
}
