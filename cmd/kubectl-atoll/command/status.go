package command

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/atoll-k8s/atoll/internal/kubectl/status"
)

func (s *shared) status() *cobra.Command {
	all := false
	c := &cobra.Command{
		Use:   "status",
		Short: "How workloads with policies, policies, groups, pools, capacity and gangs are doing, and which are not as they should be",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			r, namespace, err := s.reader()
			if err != nil {
				return err
			}
			if all {
				namespace = ""
			}
			o, err := status.Observe(c.Context(), r, namespace)
			if err != nil {
				return err
			}
			answer := status.Of(o)
			answer.Unread = r.Unread()
			return s.print(answer, func(w io.Writer) error { return writeStatus(w, &answer) })
		},
	}
	c.Flags().BoolVarP(&all, "all-namespaces", "A", false, "all namespaces")
	return c
}

func writeStatus(w io.Writer, s *status.Status) error {
	var text strings.Builder
	if s.Namespace != "" {
		fmt.Fprintf(&text, "Namespace %s; -A shows all\n", s.Namespace)
	}
	for i := range s.Sections {
		section := &s.Sections[i]
		fmt.Fprintf(&text, "%-20s %d of %d good\n", section.Name, section.Good, section.Total)
		for _, fact := range section.Facts {
			fmt.Fprintf(&text, "  %s\n", fact)
		}
		for _, p := range section.Problems {
			fmt.Fprintf(&text, "  ! %s  %s\n", strings.TrimSpace(p.Name+"  "+p.Reason), oneLine(p.Why))
			if p.Command != "" {
				fmt.Fprintf(&text, "      %s\n", p.Command)
			}
		}
	}
	if len(s.Sections) == 0 && len(s.Unread) == 0 {
		text.WriteString("There is nothing of Atoll here.\n")
	}
	for _, unread := range s.Unread {
		fmt.Fprintf(&text, "More could be said: %s\n", unread)
	}
	_, err := io.WriteString(w, text.String())
	return err
}
