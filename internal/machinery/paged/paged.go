// Package paged lists pods in pages. A pod may have 1.5 MB, so a list of all pods of a large
// workload in one answer could take more memory than the process has.
package paged

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// size is the number of pods of a page.
const size = 50

// Pods calls visit with the pods of each page, until visit returns false. After an error
// some pages may have been visited.
func Pods(ctx context.Context, reader client.Reader, visit func([]corev1.Pod) (more bool), options ...client.ListOption) error {
	for next := ""; ; {
		var page corev1.PodList
		if err := reader.List(ctx, &page, append(slices.Clone(options), client.Limit(size), client.Continue(next))...); err != nil {
			return err
		}
		if next = page.Continue; !visit(page.Items) || next == "" {
			return nil
		}
	}
}
