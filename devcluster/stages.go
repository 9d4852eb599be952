package devcluster

import (
	"bytes"
	_ "embed"
	"fmt"
	"time"

	"sigs.k8s.io/yaml"
)

// The simulated kubelet is a set of kwok stages. Each stage selects objects, and after a
// delay changes their status. At most one stage applies to a pod at a time:
//
//	          start delay               image changed
//	Pending ───────────────▶ Running ──────────────────▶ Running, not ready
//	                            ▲  │                            │
//	                            │  └─ sync: readiness gates,    │ restart delay
//	                            │     observedGeneration        │
//	                            └───────────────────────────────┘
//	Running ──────▶ Succeeded, if a Job owns the pod
//	any ──────────▶ gone, once it is being deleted

const (
	// StartDelayAnnotation on a pod replaces Options.PodStartDelay for it, as a
	// Go duration such as "1500ms".
	StartDelayAnnotation = "devcluster.atoll-k8s.io/start-delay"
	// NeverReadyTag is the image tag whose containers run on simulated nodes
	// without ever getting ready.
	NeverReadyTag = "never-ready"

	// minRestartDelay is the minimum time that a container is not ready when it is
	// restarted for a new image, so that watchers see it.
	minRestartDelay = 300 * time.Millisecond
	// jobDuration is how long the pods of Jobs run.
	jobDuration = time.Second
	// nodeReportInterval is the time between two full reports of a node's
	// status; its Lease is renewed more often.
	nodeReportInterval = 5 * time.Minute
)

//go:embed simulation/pod-status.tmpl
var podStatusTemplate string

//go:embed simulation/pod-complete.tmpl
var podCompleteTemplate string

//go:embed simulation/node-ready.tmpl
var nodeReadyTemplate string

// Conditions on a pod as jq expressions. Each yields true or false; kwok treats an
// expression that fails as a missing value.
const (
	jqImageChanged = `((.spec.containers + [(.spec.initContainers // [])[] | select(.restartPolicy == "Always")])` +
		` | map(.name + " " + .image))` +
		` - (((.status.containerStatuses // []) + (.status.initContainerStatuses // [])) | map(.name + " " + .image))` +
		` | length > 0`
	jqContainersReady = `(.status.conditions // []) | any(.type == "ContainersReady" and .status == "True")`
	jqInSync          = `(.status.observedGeneration == .metadata.generation) and` +
		` ([.spec.readinessGates[]?.conditionType] - [.status.conditions[]? | select(.status == "True") | .type] == [])` +
		` == any(.status.conditions[]?; .type == "Ready" and .status == "True")`
	jqOfJob     = `(.metadata.ownerReferences // []) | any(.kind == "Job")`
	jqNodeReady = `(.status.conditions // []) | any(.type == "Ready" and .status == "True")`
)

type requirement struct {
	expression string
	operator   string
	values     []string
}

func isTrue(expression string) requirement  { return requirement{expression, "In", []string{"true"}} }
func isFalse(expression string) requirement { return requirement{expression, "In", []string{"false"}} }

var (
	isDeleted    = requirement{expression: ".metadata.deletionTimestamp", operator: "Exists"}
	isNotDeleted = requirement{expression: ".metadata.deletionTimestamp", operator: "DoesNotExist"}
	isPending    = requirement{".status.phase", "In", []string{"Pending"}}
	isRunning    = requirement{".status.phase", "In", []string{"Running"}}
)

// stage is one step of the simulated kubelet.
type stage struct {
	name  string
	kind  string
	when  []requirement
	delay time.Duration
	// delayFrom is a jq expression for a delay that has priority over delay.
	delayFrom string
	// status is a template of a patch of the object's status. Without one the
	// object is deleted.
	status string
}

func simulatedStages(podStartDelay time.Duration) []stage {
	starting, running := "{{- $ready := false -}}\n"+podStatusTemplate, "{{- $ready := true -}}\n"+podStatusTemplate
	startDelayFrom := `.metadata.annotations["` + StartDelayAnnotation + `"]`
	return []stage{
		{name: "node-ready", kind: "Node", when: []requirement{isFalse(jqNodeReady)}, status: nodeReadyTemplate},
		{name: "node-report", kind: "Node", when: []requirement{isTrue(jqNodeReady)},
			delay: nodeReportInterval, status: nodeReadyTemplate},
		{name: "pod-delete", kind: "Pod", when: []requirement{isDeleted}},
		{name: "pod-start", kind: "Pod", when: []requirement{isNotDeleted, isPending},
			delay: podStartDelay, delayFrom: startDelayFrom, status: running},
		{name: "pod-restart", kind: "Pod", when: []requirement{isNotDeleted, isRunning, isTrue(jqImageChanged)},
			status: starting},
		{name: "pod-restarted", kind: "Pod",
			when:  []requirement{isNotDeleted, isRunning, isFalse(jqImageChanged), isFalse(jqContainersReady)},
			delay: max(podStartDelay, minRestartDelay), delayFrom: startDelayFrom, status: running},
		{name: "pod-sync", kind: "Pod",
			when: []requirement{isNotDeleted, isRunning, isFalse(jqImageChanged), isTrue(jqContainersReady),
				isFalse(jqInSync), isFalse(jqOfJob)},
			status: running},
		{name: "pod-complete", kind: "Pod",
			when: []requirement{isNotDeleted, isRunning, isFalse(jqImageChanged), isTrue(jqContainersReady),
				isTrue(jqOfJob)},
			delay: jobDuration, status: podCompleteTemplate},
	}
}

// simulationConfig encodes the stages and kwok's own options, one YAML document each.
func simulationConfig(podStartDelay time.Duration) ([]byte, error) {
	documents := []any{map[string]any{
		"apiVersion": "config.kwok.x-k8s.io/v1alpha1",
		"kind":       "KwokConfiguration",
		"options": map[string]any{
			"podPlayStageParallelism":   16,
			"nodePlayStageParallelism":  16,
			"nodeLeaseParallelism":      16,
			"podsOnNodeSyncParallelism": 4,
			"enableDebuggingHandlers":   false,
		},
	}}
	for _, s := range simulatedStages(podStartDelay) {
		documents = append(documents, s.object())
	}
	var out bytes.Buffer
	for _, document := range documents {
		data, err := yaml.Marshal(document)
		if err != nil {
			return nil, fmt.Errorf("encoding the configuration of kwok: %w", err)
		}
		out.WriteString("---\n")
		out.Write(data)
	}
	return out.Bytes(), nil
}

func (s stage) object() map[string]any {
	var expressions []any
	for _, r := range s.when {
		jq := map[string]any{"key": r.expression, "operator": r.operator}
		if len(r.values) > 0 {
			jq["values"] = r.values
		}
		expressions = append(expressions, map[string]any{"jq": jq})
	}
	step := map[string]any{"delete": true}
	if s.status != "" {
		step = map[string]any{"patch": map[string]any{
			"subresource": "status", "root": "status", "type": "strategic", "template": s.status,
		}}
	}
	spec := map[string]any{
		"resourceRef": map[string]any{"apiGroup": "v1", "kind": s.kind},
		"selector":    map[string]any{"matchExpressions": expressions},
		"steps":       []any{step},
	}
	if s.delay > 0 || s.delayFrom != "" {
		delay := map[string]any{"durationMilliseconds": s.delay.Milliseconds()}
		if s.delayFrom != "" {
			delay["durationFrom"] = map[string]any{"jq": map[string]any{"expression": s.delayFrom}}
		}
		spec["delay"] = delay
	}
	return map[string]any{
		"apiVersion": "kwok.x-k8s.io/v1alpha1",
		"kind":       "Stage",
		"metadata":   map[string]any{"name": s.name},
		"spec":       spec,
	}
}
