package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/atoll-k8s/atoll/internal/kubectl/explain"
	"github.com/atoll-k8s/atoll/internal/kubectl/read"
)

func (s *shared) explain() *cobra.Command {
	return &cobra.Command{
		Use:     "explain TYPE/NAME",
		Short:   "Why a pod or the pods of a workload are where they are, or what they wait for",
		Example: "  kubectl atoll explain pod nginx-747d4c55d8-5j6jc\n  kubectl atoll explain deployment/nginx",
		Args:    cobra.RangeArgs(1, 2),

		ValidArgsFunction: s.complete,
		RunE: func(c *cobra.Command, args []string) error {
			r, namespace, err := s.reader()
			if err != nil {
				return err
			}
			resource, name, err := s.named(c.Context(), r, namespace, "explain", args)
			if err != nil {
				return err
			}
			answer, err := s.explanationOf(c.Context(), r, namespace, resource, name)
			if err != nil {
				return err
			}
			return s.print(answer.value, answer.write)
		},
	}
}

// explanation is an answer for programs, and as text for people.
type explanation struct {
	value any
	write func(io.Writer) error
}

// explanationOf explains a pod or a workload.
func (s *shared) explanationOf(ctx context.Context, r *read.Reader, namespace, resource, name string) (*explanation, error) {
	if resource != "pod" && resource != "pods" && resource != "po" {
		workload, err := s.workload(ctx, r, namespace, resource, name)
		if err != nil {
			return nil, err
		}
		w, err := explain.OfWorkload(ctx, r, workload)
		if err != nil {
			return nil, err
		}
		w.Unread = r.Unread()
		return &explanation{w, func(out io.Writer) error { return writeWorkload(out, w) }}, nil
	}
	o, err := explain.Observe(ctx, r, namespace, name)
	if err != nil {
		return nil, err
	}
	e := explain.Explain(o)
	e.Unread = r.Unread()
	return &explanation{e, func(w io.Writer) error { return writeExplanation(w, &e) }}, nil
}

// named reads "TYPE NAME" or "TYPE/NAME".
func (s *shared) named(ctx context.Context, r *read.Reader, namespace, verb string, args []string) (resource, name string, err error) {
	if len(args) == 2 {
		return args[0], args[1], nil
	}
	resource, name, ok := strings.Cut(args[0], "/")
	if ok {
		return resource, name, nil
	}
	kind, err := s.kindOf(resource)
	switch {
	case errors.Is(err, errNoPods):
		return "", "", err
	case err == nil:
		return "", "", fmt.Errorf("want a name, too: kubectl atoll %s %s/NAME%s", verb, resource, existing(ctx, r, kind, namespace))
	}
	return "", "", fmt.Errorf("want a kind and a name: kubectl atoll %s deployment/%s", verb, resource)
}

// maxNamed is how many names an error lists.
const maxNamed = 10

// existing lists objects of a kind, for an error; "" if there is none, or if they cannot be read.
func existing(ctx context.Context, r *read.Reader, kind schema.GroupVersionKind, namespace string) string {
	names := namesOf(ctx, r, kind, namespace)
	if len(names) == 0 {
		return ""
	}
	text := fmt.Sprintf("; namespace %s has %s", namespace, strings.Join(names[:min(maxNamed, len(names))], ", "))
	if more := len(names) - maxNamed; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// namesOf lists the objects of a kind; none if they cannot be read.
func namesOf(ctx context.Context, r *read.Reader, kind schema.GroupVersionKind, namespace string) (names []string) {
	list := read.MetadataOf(kind.GroupVersion().String(), kind.Kind+"List")
	if err := r.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return nil
	}
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names
}

// workload reads the metadata of an object whose kind is named as for kubectl.
func (s *shared) workload(ctx context.Context, r *read.Reader, namespace, resource, name string) (*metav1.PartialObjectMetadata, error) {
	kind, err := s.kindOf(resource)
	if err != nil {
		return nil, err
	}
	workload := &metav1.PartialObjectMetadata{}
	workload.SetGroupVersionKind(kind)
	found, err := r.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, workload)
	switch unread := r.Unread(); {
	case err != nil:
		return nil, err
	case len(unread) > 0:
		return nil, errors.New(unread[0])
	case !found:
		return nil, fmt.Errorf("there is no %s %s in namespace %s%s", kind.Kind, name, namespace, existing(ctx, r, kind, namespace))
	}
	workload.SetGroupVersionKind(kind)
	return workload, nil
}

func writeExplanation(w io.Writer, e *explain.Explanation) error {
	var text strings.Builder
	fmt.Fprintf(&text, "Pod %s/%s\n", e.Namespace, e.Pod)
	writeFacts(&text, e.Facts)
	if e.Waits != nil {
		fmt.Fprintf(&text, "\nIt waits: %s\n  %s\n", oneLine(e.Waits.Why), e.Waits.Command)
	}
	return writeUnread(w, &text, e.Unread)
}

func writeWorkload(out io.Writer, w *explain.Workload) error {
	var text strings.Builder
	fmt.Fprintf(&text, "%s %s/%s\n", w.Kind, w.Namespace, w.Name)
	writeFacts(&text, w.Facts)
	for _, waits := range w.Waits {
		switch len(waits.Pods) {
		case 0:
			fmt.Fprint(&text, "\nIt has no pod")
		case 1:
			fmt.Fprintf(&text, "\n%s waits", waits.Pods[0])
		default:
			fmt.Fprintf(&text, "\n%d pods wait, such as %s", len(waits.Pods), waits.Pods[0])
		}
		fmt.Fprintf(&text, ": %s\n  %s\n", oneLine(waits.Why), waits.Command)
	}
	if w.Stays != nil {
		fmt.Fprintf(&text, "\nIts pods are not divided as the policy wants: %s\n  %s\n", w.Stays.Why, w.Stays.Command)
	}
	if w.More > 0 {
		fmt.Fprintf(&text, "\n%d more are not Ready: kubectl atoll explain pod tells why of each\n", w.More)
	}
	return writeUnread(out, &text, w.Unread)
}

func writeFacts(text *strings.Builder, facts []explain.Fact) {
	last := ""
	for _, f := range facts {
		about := f.About
		if about == last {
			about = ""
		}
		last = f.About
		fmt.Fprintf(text, "  %-9s %s\n", about, oneLine(f.Text))
	}
}

func writeUnread(w io.Writer, text *strings.Builder, unread []string) error {
	for _, u := range unread {
		fmt.Fprintf(text, "\nMore could be said: %s\n", u)
	}
	_, err := io.WriteString(w, text.String())
	return err
}
