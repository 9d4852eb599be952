package usage

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// maxText bounds the text of a kubelet, maxKept what is kept of it, and maxLine a line. A container has about 400
	// bytes of what is kept.
	maxText, maxKept, maxLine = 8 << 20, 1 << 20, 16 << 10
	// maxContainers bounds the containers of a node.
	maxContainers = 2048
	// maxSeconds and maxBytes bound a value. What is above is no measurement, and would not fit into a quantity.
	maxSeconds, maxBytes = 1e12, 1e15
)

// The metrics of a kubelet that are read.
const (
	nodeCPU, nodeMemory           = "node_cpu_usage_seconds_total", "node_memory_working_set_bytes"
	containerCPU, containerMemory = "container_cpu_usage_seconds_total", "container_memory_working_set_bytes"
)

var errTooLarge = errors.New("the answer of the kubelet is too large")

// container names one of a pod.
type container struct {
	pod  types.NamespacedName
	name string
}

// point is one measurement.
type point struct {
	at      time.Time // by the clock of the node
	seconds float64   // of CPU since the start
	bytes   float64   // of memory
}

// sample is what a kubelet has measured.
type sample struct {
	node       *point
	containers map[container]point
}

// keep returns the lines of the metrics that are read. The others may be anything.
func keep(text io.Reader) ([]byte, error) {
	limited := &io.LimitedReader{R: text, N: maxText + 1}
	lines := bufio.NewScanner(limited)
	lines.Buffer(make([]byte, 0, 4096), maxLine)
	var kept bytes.Buffer
	for lines.Scan() {
		line := lines.Bytes()
		for _, name := range [][]byte{[]byte(nodeCPU), []byte(nodeMemory), []byte(containerCPU), []byte(containerMemory)} {
			if rest, is := bytes.CutPrefix(line, name); is && len(rest) > 0 && (rest[0] == '{' || rest[0] == ' ' || rest[0] == '\t') {
				kept.Write(line)
				kept.WriteByte('\n')
			}
		}
		if kept.Len() > maxKept {
			return nil, errTooLarge
		}
	}
	switch err := lines.Err(); {
	case limited.N <= 0 || errors.Is(err, bufio.ErrTooLong):
		return nil, errTooLarge
	case err != nil:
		return nil, fmt.Errorf("reading the answer of the kubelet: %w", err)
	}
	return kept.Bytes(), nil
}

// parse reads lines that keep has returned. Values that are no measurements are left out, and what has not both CPU
// and memory; of a series that is there twice the last one is taken. now is the time of a line that has none.
func parse(lines []byte, now time.Time) (*sample, error) {
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(lines))
	if err != nil {
		return nil, fmt.Errorf("reading the answer of the kubelet: %w", err)
	}
	s := &sample{containers: map[container]point{}}
	if cpu, memory := last(families[nodeCPU], maxSeconds), last(families[nodeMemory], maxBytes); cpu != nil && memory != nil {
		s.node = pointOf(cpu, memory, now)
	}
	memory := map[container]*dto.Metric{}
	for _, m := range families[containerMemory].GetMetric() {
		if isMeasured(m, maxBytes) {
			memory[containerOf(m)] = m
		}
	}
	for _, m := range families[containerCPU].GetMetric() {
		c := containerOf(m)
		if memory[c] == nil || !isMeasured(m, maxSeconds) || c.name == "" {
			continue
		}
		s.containers[c] = *pointOf(m, memory[c], now)
		if len(s.containers) > maxContainers {
			return nil, errTooLarge
		}
	}
	return s, nil
}

// last returns the last measurement of a metric, or nil.
func last(family *dto.MetricFamily, limit float64) *dto.Metric {
	metrics := family.GetMetric()
	if len(metrics) == 0 || !isMeasured(metrics[len(metrics)-1], limit) {
		return nil
	}
	return metrics[len(metrics)-1]
}

func isMeasured(m *dto.Metric, limit float64) bool {
	value := m.GetUntyped().GetValue()
	return !math.IsNaN(value) && value >= 0 && value <= limit
}

func pointOf(cpu, memory *dto.Metric, now time.Time) *point {
	p := &point{at: now, seconds: cpu.GetUntyped().GetValue(), bytes: memory.GetUntyped().GetValue()}
	if cpu.TimestampMs != nil {
		p.at = time.UnixMilli(cpu.GetTimestampMs())
	}
	return p
}

// containerOf returns the container that a metric is about. The text is not kept alive by its names.
func containerOf(m *dto.Metric) (c container) {
	for _, l := range m.GetLabel() {
		switch l.GetName() {
		case "namespace":
			c.pod.Namespace = strings.Clone(l.GetValue())
		case "pod":
			c.pod.Name = strings.Clone(l.GetValue())
		case "container":
			c.name = strings.Clone(l.GetValue())
		}
	}
	return c
}
