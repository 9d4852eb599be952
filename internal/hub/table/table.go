// Package table prints objects as a table for kubectl, with a row for each object, like an API server. It knows
// the columns of pods; for other kinds it prints the name and the age.
package table

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
)

// unknown is shown for an empty value that indicates a problem, and none for one that is normal.
const unknown, none = "<unknown>", "<none>"

// Include says which part of its object a row contains: the parameter includeObject of a request.
type Include = metav1.IncludeObjectPolicy

// Of prints objects of one kind, in the given order. The objects must have metadata. version is the resource
// version of the table.
func Of(objects []runtime.Object, version string, include Include, now time.Time) (*metav1.Table, error) {
	t := &metav1.Table{
		TypeMeta: metav1.TypeMeta{APIVersion: metav1.SchemeGroupVersion.String(), Kind: "Table"},
		ListMeta: metav1.ListMeta{ResourceVersion: version}, ColumnDefinitions: columns, Rows: []metav1.TableRow{},
	}
	for _, object := range objects {
		m, err := meta.Accessor(object)
		if err != nil {
			return nil, fmt.Errorf("printing an object: %w", err)
		}
		row := metav1.TableRow{Cells: []any{m.GetName(), age(m.GetCreationTimestamp(), now)}}
		if pod, is := object.(*corev1.Pod); is {
			pod = pod.DeepCopy()
			pod.APIVersion, pod.Kind = "v1", "Pod" // items of a list do not have them
			object, t.ColumnDefinitions = pod, podColumns
			row.Cells = cellsOf(pod, now)
		}
		switch include {
		case metav1.IncludeNone:
		case metav1.IncludeObject:
			row.Object.Object = object
		default:
			row.Object.Object = metadataOf(m)
		}
		t.Rows = append(t.Rows, row)
	}
	return t, nil
}

func metadataOf(m metav1.Object) *metav1.PartialObjectMetadata {
	p := meta.AsPartialObjectMetadata(m)
	p.TypeMeta = metav1.TypeMeta{APIVersion: metav1.SchemeGroupVersion.String(), Kind: "PartialObjectMetadata"}
	return p
}

func column(name, format string, priority int32) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: name, Type: "string", Format: format, Priority: priority}
}

// The columns with the priority 1 are shown by kubectl get -o wide.
var (
	columns    = []metav1.TableColumnDefinition{column("Name", "name", 0), column("Age", "", 0)}
	podColumns = []metav1.TableColumnDefinition{
		column("Name", "name", 0), column("Ready", "", 0), column("Status", "", 0), column("Restarts", "", 0), column("Age", "", 0),
		column("IP", "", 1), column("Node", "", 1), column("Nominated Node", "", 1), column("Readiness Gates", "", 1),
	}
)

func age(since metav1.Time, now time.Time) string {
	if since.IsZero() {
		return unknown
	}
	return duration.HumanDuration(now.Sub(since.Time))
}

func orNone(text string) string {
	if text == "" {
		return none
	}
	return text
}

func cellsOf(pod *corev1.Pod, now time.Time) []any {
	ready, all := 0, len(pod.Spec.Containers)
	restarts, last := int32(0), time.Time{}
	count := func(s *corev1.ContainerStatus) {
		restarts += s.RestartCount
		if t := s.LastTerminationState.Terminated; t != nil && t.FinishedAt.After(last) {
			last = t.FinishedAt.Time
		}
	}
	for i := range pod.Status.InitContainerStatuses {
		if s := &pod.Status.InitContainerStatuses[i]; isSidecar(pod, s.Name) {
			count(s)
			if all++; s.Ready && s.Started != nil && *s.Started {
				ready++
			}
		}
	}
	for i := range pod.Status.ContainerStatuses {
		s := &pod.Status.ContainerStatuses[i]
		count(s)
		if s.Ready && s.State.Running != nil {
			ready++
		}
	}
	restarted := fmt.Sprint(restarts)
	if restarts > 0 && !last.IsZero() {
		restarted += fmt.Sprintf(" (%s ago)", duration.HumanDuration(now.Sub(last)))
	}
	return []any{
		pod.Name, fmt.Sprintf("%d/%d", ready, all), statusOf(pod), restarted, age(pod.CreationTimestamp, now),
		orNone(pod.Status.PodIP), orNone(pod.Spec.NodeName), orNone(pod.Status.NominatedNodeName), gatesOf(pod),
	}
}

// gatesOf returns how many readiness gates of a pod are fulfilled, and how many there are.
func gatesOf(pod *corev1.Pod) string {
	open := 0
	for _, gate := range pod.Spec.ReadinessGates {
		if hasCondition(pod, gate.ConditionType) {
			open++
		}
	}
	if len(pod.Spec.ReadinessGates) == 0 {
		return none
	}
	return fmt.Sprintf("%d/%d", open, len(pod.Spec.ReadinessGates))
}

func hasCondition(pod *corev1.Pod, kind corev1.PodConditionType) bool {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == kind {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// isSidecar reports whether an init container is a sidecar, which runs next to the other containers.
func isSidecar(pod *corev1.Pod, name string) bool {
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; c.Name == name {
			return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
		}
	}
	return false
}

// statusOf returns the status of a pod as one word: the first reason why it does not run, otherwise its phase.
func statusOf(pod *corev1.Pod) string {
	isOver := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	switch {
	case pod.DeletionTimestamp != nil && pod.Status.Reason == "NodeLost":
		return "Unknown"
	case pod.DeletionTimestamp != nil && !isOver:
		return "Terminating"
	}
	if status := beginning(pod); status != "" && !isOver {
		return status
	}
	status, runs := string(pod.Status.Phase), false
	if pod.Status.Reason != "" {
		status = pod.Status.Reason
	}
	for i := len(pod.Status.ContainerStatuses) - 1; i >= 0; i-- { // the first container has priority
		s := &pod.Status.ContainerStatuses[i]
		switch {
		case s.State.Waiting != nil && s.State.Waiting.Reason != "":
			status = s.State.Waiting.Reason
		case s.State.Terminated != nil:
			status = ending(s.State.Terminated)
		case s.State.Running != nil && s.Ready:
			runs = true
		}
	}
	if status == "Completed" && runs { // some containers have completed, others run
		if hasCondition(pod, corev1.PodReady) {
			return "Running"
		}
		return "NotReady"
	}
	return status
}

// beginning returns the state of a pod before its containers start (gates, init containers); "" if they may start.
func beginning(pod *corev1.Pod) string {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonSchedulingGated {
			return c.Reason
		}
	}
	for i := range pod.Status.InitContainerStatuses {
		s := &pod.Status.InitContainerStatuses[i]
		switch {
		case s.State.Terminated != nil && s.State.Terminated.ExitCode == 0, isSidecar(pod, s.Name) && s.Started != nil && *s.Started:
			continue
		case s.State.Terminated != nil:
			return "Init:" + ending(s.State.Terminated)
		case s.State.Waiting != nil && s.State.Waiting.Reason != "" && s.State.Waiting.Reason != "PodInitializing":
			return "Init:" + s.State.Waiting.Reason
		default:
			return fmt.Sprintf("Init:%d/%d", i, len(pod.Spec.InitContainers))
		}
	}
	return ""
}

// ending returns why a container has terminated.
func ending(t *corev1.ContainerStateTerminated) string {
	switch {
	case t.Reason != "":
		return t.Reason
	case t.Signal != 0:
		return fmt.Sprintf("Signal:%d", t.Signal)
	default:
		return fmt.Sprintf("ExitCode:%d", t.ExitCode)
	}
}
