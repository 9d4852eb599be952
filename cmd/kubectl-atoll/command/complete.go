package command

import (
	"strings"

	"github.com/spf13/cobra"
)

// complete completes TYPE/NAME and TYPE NAME. An error completes nothing.
func (s *shared) complete(c *cobra.Command, args []string, start string) (found []string, _ cobra.ShellCompDirective) {
	const directive = cobra.ShellCompDirectiveNoFileComp
	resource, _, isOne := strings.Cut(start, "/")
	prefix := resource + "/" // of each name
	switch {
	case len(args) > 1:
		return nil, directive
	case len(args) == 1:
		resource, prefix = args[0], ""
	case !isOne:
		return []string{"pod/", "deployment/", "statefulset/", "daemonset/", "job/"}, directive | cobra.ShellCompDirectiveNoSpace
	}
	kind, err := s.kindOf(resource)
	if err != nil {
		return nil, directive
	}
	r, namespace, err := s.reader()
	if err != nil {
		return nil, directive
	}
	for _, name := range namesOf(c.Context(), r, kind, namespace) {
		if strings.HasPrefix(prefix+name, start) {
			found = append(found, prefix+name)
		}
	}
	return found, directive
}
