package main

import (
	"maps"
	"testing"
)

func TestCallsIn(t *testing.T) {
	before := callsIn("# HELP x\n" +
		`apiserver_flowcontrol_dispatched_requests_total{flow_schema="perf-calls-patches",priority_level="workload-low"} 12` + "\n" +
		`apiserver_flowcontrol_dispatched_requests_total{flow_schema="exempt",priority_level="exempt"} 900` + "\n")
	after := callsIn(`apiserver_flowcontrol_dispatched_requests_total{flow_schema="perf-calls-patches",priority_level="workload-low"} 1.000012e+06` + "\n" +
		`apiserver_flowcontrol_dispatched_requests_total{flow_schema="perf-calls-lists",priority_level="workload-low"} 3` + "\n")
	if want := (callCounts{patchCalls: 12}); !maps.Equal(before, want) {
		t.Errorf("found %v, want %v", before, want)
	}
	d := after.since(before)
	if want := (callCounts{patchCalls: 1_000_000, listCalls: 3}); !maps.Equal(d, want) {
		t.Errorf("found %v, want %v", d, want)
	}
	if d.sum() != 1_000_003 || d.String() != "lists 3, patches 1000000" || after.since(after).String() != "none" {
		t.Errorf("%d in all: %s", d.sum(), d)
	}
}
