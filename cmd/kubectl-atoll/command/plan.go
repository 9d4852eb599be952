package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/atoll-k8s/atoll/internal/kubectl/plan"
	"github.com/atoll-k8s/atoll/internal/kubectl/read"
)

// The exit codes of plan beside 0, nothing changes, and 1, an error.
const (
	exitChanges exitCode = 2
	exitBlocked exitCode = 3
)

func (s *shared) plan() *cobra.Command {
	var files []string
	c := &cobra.Command{
		Use:     "plan -f FILE",
		Short:   "What will happen to which pods when these objects are applied",
		Long:    "What will happen to which pods when these objects are applied, by the decisions of atoll-manager itself. Exits with 0 if nothing will, with 2 if something will, and with 3 if something prevents it.",
		Example: "  kubectl atoll plan -f policy.yaml\n  kubectl atoll plan -f - -o json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if len(files) == 0 {
				return errors.New("want the objects: kubectl atoll plan -f FILE")
			}
			p, err := s.planOf(c.Context(), func(b *resource.Builder) *resource.Builder {
				return b.FilenameParam(s.namespaceIsGiven(), &resource.FilenameOptions{Filenames: files})
			})
			if err != nil {
				return err
			}
			if err := s.print(p, func(w io.Writer) error { _, err := io.WriteString(w, p.Text()); return err }); err != nil {
				return err
			}
			switch {
			case p.IsBlocked():
				return exitBlocked
			case len(p.Nodes)+len(p.Workloads) > 0:
				return exitChanges
			}
			return nil
		},
	}
	c.Flags().StringSliceVarP(&files, "filename", "f", nil, "files, directories or addresses with the objects; - for standard input")
	return c
}

// source tells a builder where the objects are.
type source func(*resource.Builder) *resource.Builder

func (s *shared) planOf(ctx context.Context, from source) (*plan.Plan, error) {
	config, err := s.config.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	pods, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	r, namespace, err := s.reader()
	if err != nil {
		return nil, err
	}
	cluster, err := plan.Observe(ctx, r)
	if err != nil {
		return nil, err
	}
	applied, unknown, err := s.applied(namespace, from)
	if err != nil {
		return nil, err
	}
	p, err := cluster.Of(ctx, applied, pods)
	if err != nil {
		return nil, err
	}
	p.Unknown = unknown
	return p, nil
}

// applied returns the objects of a source as the API server would store them, by a dry run. Where
// the person may not apply them, they are as they were given, and unknown says so.
func (s *shared) applied(namespace string, from source) (objects []client.Object, unknown []string, err error) {
	scheme, err := read.Scheme()
	if err != nil {
		return nil, nil, err
	}
	infos, err := from(resource.NewBuilder(s.config).Unstructured().ContinueOnError().NamespaceParam(namespace).DefaultNamespace()).Flatten().Do().Infos()
	if err != nil {
		return nil, nil, err
	}
	for _, info := range infos {
		if info.Name == "" {
			return nil, nil, fmt.Errorf("%s in %s has no metadata.name, which apply and plan need", info.Mapping.GroupVersionKind.Kind, info.Source)
		}
		object, problem, err := dryRun(info)
		if apierrors.IsNotFound(err) && slices.ContainsFunc(infos, func(n *resource.Info) bool {
			return n.Mapping.GroupVersionKind.GroupKind() == schema.GroupKind{Kind: "Namespace"} && n.Name == info.Namespace
		}) {
			problem, err = fmt.Sprintf("what the API server adds to %s, and whether it accepts it: its namespace is not there yet", nameOf(object)), nil
		}
		if err != nil {
			return nil, nil, err
		}
		if problem != "" {
			unknown = append(unknown, problem)
		}
		typed, err := scheme.New(object.GroupVersionKind())
		if o, is := typed.(client.Object); runtime.IsNotRegisteredError(err) || is && !plan.Knows(o) {
			unknown = append(unknown, "what "+nameOf(object)+" changes")
			continue
		}
		if err == nil {
			err = runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, typed)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("reading %s: %w", nameOf(object), err)
		}
		if o, is := typed.(client.Object); is {
			objects = append(objects, o)
		}
	}
	return objects, unknown, nil
}

func nameOf(o *unstructured.Unstructured) string { return o.GetKind() + " " + o.GetName() }

// dryRun applies an object without storing it, as kubectl apply --server-side does: under its
// name, so that a field that it has set and that the file does not have any more goes.
func dryRun(info *resource.Info) (object *unstructured.Unstructured, problem string, err error) {
	object, is := info.Object.(*unstructured.Unstructured)
	if !is {
		return nil, "", fmt.Errorf("%s is no object", info.Source)
	}
	name := nameOf(object)
	body, err := object.MarshalJSON()
	if err != nil {
		return nil, "", err
	}
	force := true
	answer, err := resource.NewHelper(info.Client, info.Mapping).DryRun(true).WithFieldManager("kubectl").
		Patch(info.Namespace, info.Name, types.ApplyPatchType, body, &metav1.PatchOptions{Force: &force})
	switch {
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), " cannot "): // of RBAC, and of no quota or namespace that ends
		return object, fmt.Sprintf("what the API server adds to %s, and whether it accepts it: you may not apply it", name), nil
	case err != nil:
		return object, "", fmt.Errorf("%s would be refused: %w", name, err)
	}
	applied, is := answer.(*unstructured.Unstructured)
	if !is {
		return nil, "", fmt.Errorf("applying %s: unexpected answer %T", name, answer)
	}
	return applied, "", nil
}
