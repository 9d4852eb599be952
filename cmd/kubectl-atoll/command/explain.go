package command

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/atoll-k8s/atoll/internal/kubectl/explain"
)

func (s *shared) explain() *cobra.Command {
	return &cobra.Command{
		Use:     "explain pod NAME",
		Short:   "Why a pod is where it is, or what it waits for",
		Example: "  kubectl atoll explain pod nginx-747d4c55d8-5j6jc",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			name, err := podName(args)
			if err != nil {
				return err
			}
			r, namespace, err := s.reader()
			if err != nil {
				return err
			}
			o, err := explain.Observe(c.Context(), r, namespace, name)
			if err != nil {
				return err
			}
			e := explain.Explain(o)
			e.Unread = r.Unread()
			return s.print(e, func(w io.Writer) error { return writeExplanation(w, &e) })
		},
	}
}

// podName reads "pod NAME" or "pod/NAME".
func podName(args []string) (string, error) {
	kind, name, ok := strings.Cut(args[0], "/")
	if len(args) == 2 {
		kind, name, ok = args[0], args[1], true
	}
	switch {
	case !ok:
		return "", fmt.Errorf("want a kind and a name: kubectl atoll explain pod %s", args[0])
	case kind != "pod" && kind != "pods" && kind != "po":
		return "", fmt.Errorf("%s: only pods are explained", kind)
	}
	return name, nil
}

func writeExplanation(w io.Writer, e *explain.Explanation) error {
	var text strings.Builder
	fmt.Fprintf(&text, "Pod %s/%s\n", e.Namespace, e.Pod)
	last := ""
	for _, f := range e.Facts {
		about := f.About
		if about == last {
			about = ""
		}
		last = f.About
		fmt.Fprintf(&text, "  %-9s %s\n", about, f.Text)
	}
	if e.Waits != nil {
		fmt.Fprintf(&text, "\nIt waits: %s\n  %s\n", e.Waits.Why, e.Waits.Command)
	}
	for _, unread := range e.Unread {
		fmt.Fprintf(&text, "\nMore could be said: %s\n", unread)
	}
	_, err := io.WriteString(w, text.String())
	return err
}
