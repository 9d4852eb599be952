package command

import (
	"errors"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// completeFlags completes the values of flags.
func (s *shared) completeFlags(c *cobra.Command) error {
	return errors.Join(
		c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"json", "yaml", "wide"}, cobra.ShellCompDirectiveNoFileComp)),
		c.RegisterFlagCompletionFunc("namespace", s.completeKind(corev1.SchemeGroupVersion.WithKind("Namespace"))),
	)
}

// completeKind completes the names of objects of a kind that are in no namespace.
func (s *shared) completeKind(kind schema.GroupVersionKind) cobra.CompletionFunc {
	return func(c *cobra.Command, _ []string, start string) (found []string, _ cobra.ShellCompDirective) {
		r, _, err := s.reader()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		for _, name := range namesOf(c.Context(), r, kind, "") {
			if strings.HasPrefix(name, start) {
				found = append(found, name)
			}
		}
		return found, cobra.ShellCompDirectiveNoFileComp
	}
}

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
