package command

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/atoll-k8s/atoll/internal/kubectl/read"
	"github.com/atoll-k8s/atoll/internal/kubectl/uninstall"
)

func (s *shared) uninstall() *cobra.Command {
	yes := false
	c := &cobra.Command{
		Use:   "uninstall",
		Short: "What Atoll has left on nodes and pods; with --yes it is put back",
		Long: `Puts back what Atoll has written on objects that are not its own, after helm uninstall or kubectl delete -f:
nodes get their own labels, annotations and taints, pods leave the scheduling gate, workloads lose the
binding labels, and NodeGroups and NodePools their finalizer, so that they and their definitions can be deleted.
Without --yes it only says what it would do. It can be repeated, and needs the rights of an administrator.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			config, err := s.config.ToRESTConfig()
			if err != nil {
				return err
			}
			scheme, err := read.Scheme()
			if err != nil {
				return err
			}
			cluster, err := client.New(config, client.Options{Scheme: scheme})
			if err != nil {
				return err
			}
			changes, err := uninstall.Plan(c.Context(), cluster)
			if err != nil {
				return err
			}
			if err := s.print(changes, func(w io.Writer) error { return writeUninstall(w, changes, yes) }); err != nil || !yes {
				return err
			}
			return uninstall.Apply(c.Context(), cluster, changes)
		},
	}
	c.Flags().BoolVar(&yes, "yes", false, "put it back")
	return c
}

func writeUninstall(w io.Writer, changes []uninstall.Change, yes bool) error {
	var text strings.Builder
	for i := range changes {
		change := &changes[i]
		name := change.Name
		if change.Namespace != "" {
			name = change.Namespace + "/" + name
		}
		fmt.Fprintf(&text, "%-12s %s: %s\n", change.Kind, name, change.What)
	}
	switch {
	case len(changes) == 0:
		text.WriteString("Nothing of Atoll is left on nodes, pods and workloads.\n")
	case !yes:
		text.WriteString("Nothing has been changed. To put it back: kubectl atoll uninstall --yes\n")
	}
	_, err := io.WriteString(w, text.String())
	return err
}
