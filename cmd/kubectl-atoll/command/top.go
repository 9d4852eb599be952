package command

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/atoll-k8s/atoll/internal/kubectl/top"
)

func (s *shared) top() *cobra.Command {
	again := false
	groups := &cobra.Command{
		Use:   "groups",
		Short: "The pods of each NodeGroup that are wanted, there and Ready, and what pods request of its nodes, in all namespaces",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			for {
				err := s.topGroups(c.Context(), again)
				if !again {
					return err
				}
				if err != nil && c.Context().Err() == nil { // the link may work again
					_, _ = fmt.Fprintln(s.ErrOut, "error:", s.here(err.Error()))
				}
				select {
				case <-time.After(2 * time.Second):
				case <-c.Context().Done():
					return nil
				}
			}
		},
	}
	groups.Flags().BoolVarP(&again, "watch", "w", false, "show it again every two seconds, until you press Ctrl-C")
	c := &cobra.Command{Use: "top", Short: "How full NodeGroups are"}
	c.AddCommand(groups)
	return c
}

func (s *shared) topGroups(ctx context.Context, again bool) error {
	r, _, err := s.reader()
	if err != nil {
		return err
	}
	o, err := top.Observe(ctx, r)
	if err != nil {
		return err
	}
	t := top.Of(o)
	t.Unread = r.Unread()
	if again && columns(s.Out) > 0 {
		_, _ = io.WriteString(s.Out, "\033[H\033[2J") // an empty terminal
	}
	return s.print(t, func(w io.Writer) error { return writeTop(w, &t) })
}

func writeTop(w io.Writer, t *top.Top) error {
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NODEGROUP\tNODES\tWANTED\tPODS\tREADY\tCPU\tMEMORY")
	use := func(u *top.Use) string {
		return fmt.Sprintf("%s/%s (%d%%)", u.Requests.String(), u.Allocatable.String(), u.Percent())
	}
	for i := range t.Groups {
		g := &t.Groups[i]
		fmt.Fprintf(table, "%s\t%d of %d\t%d\t%d\t%d\t%s\t%s\n", g.Name, g.NodesReady, g.Nodes, g.Wanted, g.Pods, g.Ready, use(&g.CPU), use(&g.Memory))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, u := range t.Unread {
		fmt.Fprintf(&text, "More could be said: %s\n", u)
	}
	_, err := io.WriteString(w, text.String())
	return err
}
