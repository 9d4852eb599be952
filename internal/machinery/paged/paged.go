// Package paged lists pods in pages. A pod may have 1.5 MB, so a list of all pods of a large
// workload in one answer could take more memory than the process has.
package paged

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// size is the number of pods of a page.
const size = 50

// List is the method List of a client of pods.
type List func(context.Context, metav1.ListOptions) (*corev1.PodList, error)

// Pods calls visit with the pods of each page, until visit returns false. After an error
// some pages may have been visited.
func Pods(ctx context.Context, list List, options metav1.ListOptions, visit func([]corev1.Pod) (more bool)) error {
	for options.Limit = size; ; {
		page, err := list(ctx, options)
		if err != nil {
			return err
		}
		if options.Continue = page.Continue; !visit(page.Items) || options.Continue == "" {
			return nil
		}
	}
}

// From returns a List through a reader, with these options.
func From(reader client.Reader, own ...client.ListOption) List {
	return func(ctx context.Context, options metav1.ListOptions) (*corev1.PodList, error) {
		page := &corev1.PodList{}
		return page, reader.List(ctx, page, append(slices.Clone(own), client.Limit(options.Limit), client.Continue(options.Continue))...)
	}
}
