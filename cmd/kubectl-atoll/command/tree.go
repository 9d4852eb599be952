package command

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-k8s/atoll/internal/kubectl/tree"
)

func (s *shared) tree() *cobra.Command {
	return &cobra.Command{
		Use:     "tree TYPE/NAME",
		Short:   "The pods of a workload by revision, NodeGroup and node",
		Example: "  kubectl atoll tree deployment/nginx",
		Args:    cobra.RangeArgs(1, 2),

		ValidArgsFunction: s.complete,
		RunE: func(c *cobra.Command, args []string) error {
			r, namespace, err := s.reader()
			if err != nil {
				return err
			}
			resource, name, err := s.named(c.Context(), r, namespace, "tree", args)
			if err != nil {
				return err
			}
			workload, err := s.workload(c.Context(), r, namespace, resource, name)
			if err != nil {
				return err
			}
			root, err := tree.Of(c.Context(), r, workload)
			if err != nil {
				return err
			}
			return s.print(root, func(w io.Writer) error { return writeTree(w, root) })
		},
	}
}

var errNoPods = errors.New("has no pods of its own")

// kindOf finds the kind that a person names as for kubectl: deploy, deployments.apps, Deployment.
func (s *shared) kindOf(resource string) (schema.GroupVersionKind, error) {
	mapper, err := s.config.ToRESTMapper()
	if err != nil {
		return schema.GroupVersionKind{}, err
	}
	gr := schema.ParseGroupResource(strings.ToLower(resource))
	kind, err := mapper.KindFor(gr.WithVersion(""))
	if meta.IsNoMatchError(err) {
		return kind, fmt.Errorf("the cluster does not serve %q: kubectl api-resources lists what it serves", resource)
	}
	if err != nil {
		return kind, err
	}
	mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err == nil && mapping.Scope.Name() == meta.RESTScopeNameRoot {
		return kind, fmt.Errorf("a %s %w: want a pod, or a workload such as deployment/NAME", kind.Kind, errNoPods)
	}
	return kind, err
}

func writeTree(w io.Writer, root *tree.Branch) error {
	var text strings.Builder
	fmt.Fprintf(&text, "%s %s  %d of %d pods Ready\n", root.Kind, root.Name, root.Ready, root.Pods)
	writeBranches(&text, root.Branches, "")
	for _, u := range root.Unread {
		fmt.Fprintf(&text, "More could be said: %s\n", u)
	}
	_, err := io.WriteString(w, text.String())
	return err
}

func writeBranches(text *strings.Builder, branches []*tree.Branch, indent string) {
	for i, b := range branches {
		corner, below := "├─ ", "│  "
		if i == len(branches)-1 {
			corner, below = "└─ ", "   "
		}
		line := fmt.Sprintf("%s%s%s %s", indent, corner, b.Kind, b.Name)
		if b.Kind != "Pod" {
			line += fmt.Sprintf("  %d of %d Ready", b.Ready, b.Pods)
		} else if b.Note != "" {
			line += "  " + b.Note
		}
		fmt.Fprintln(text, line)
		writeBranches(text, b.Branches, indent+below)
	}
}
