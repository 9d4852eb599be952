package usage

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
)

// kubelet is what a kubelet 1.36 answers, shortened.
const kubelet = `# HELP container_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the container in core-seconds
# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{container="web",namespace="default",pod="web-0"} 4.710169 1768000001000
container_cpu_usage_seconds_total{container="side",namespace="default",pod="web-0"} 1 1768000001000
# TYPE container_memory_working_set_bytes gauge
container_memory_working_set_bytes{container="web",namespace="default",pod="web-0"} 1.253376e+06 1768000001000
# TYPE container_start_time_seconds gauge
container_start_time_seconds{container="web",namespace="default",pod="web-0"} 1.768e+09
# TYPE node_cpu_usage_seconds_total counter
node_cpu_usage_seconds_total 357.35491 1768000002000
# TYPE node_memory_working_set_bytes gauge
node_memory_working_set_bytes 1.9e+08 1768000002000
# TYPE pod_cpu_usage_seconds_total counter
pod_cpu_usage_seconds_total{namespace="default",pod="web-0"} 4.67812 1768000001000
# TYPE resource_scrape_error gauge
resource_scrape_error 0
`

var web = container{types.NamespacedName{Namespace: "default", Name: "web-0"}, "web"}

func TestKubeletMetricsAreParsed(t *testing.T) {
	now := time.Unix(1768000100, 0)
	first, second := time.Unix(1768000001, 0), time.Unix(1768000002, 0)
	line := func(name, value string) string {
		return name + `{container="web",namespace="default",pod="web-0"} ` + value + "\n"
	}
	pair := func(cpu, memory string) string { return line(containerCPU, cpu) + line(containerMemory, memory) }
	for name, tc := range map[string]struct {
		text string
		want *sample // nil for an error
	}{
		"a kubelet, with a container that has no memory": {kubelet, &sample{
			node: &point{second, 357.35491, 1.9e8}, containers: map[container]point{web: {first, 4.710169, 1253376}},
		}},
		"nothing":                       {"", &sample{}},
		"without a time":                {pair("1", "2"), &sample{containers: map[container]point{web: {now, 1, 2}}}},
		"no new line at the end":        {strings.TrimSuffix(pair("1", "2"), "\n"), &sample{containers: map[container]point{web: {now, 1, 2}}}},
		"one twice":                     {pair("1", "2") + pair("3", "4"), &sample{containers: map[container]point{web: {now, 3, 4}}}},
		"one twice, the second garbage": {pair("1", "2") + pair("NaN", "4"), &sample{containers: map[container]point{web: {now, 1, 4}}}},
		"NaN":                           {pair("NaN", "2"), &sample{}},
		"infinite":                      {pair("1", "+Inf"), &sample{}},
		"negative":                      {pair("-1", "2"), &sample{}},
		"more than fits":                {pair("1e300", "2"), &sample{}},
		"a node with NaN":               {nodeCPU + " NaN\n" + nodeMemory + " 1\n", &sample{}},
		"a node without memory":         {nodeCPU + " 1\n", &sample{}},
		"a node with labels":            {nodeCPU + "{a=\"b\"} 1\n" + nodeMemory + " 1\n", &sample{node: &point{now, 1, 1}}},
		"no container":                  {containerCPU + " 1\n" + containerMemory + " 1\n", &sample{}},
		"other metrics are garbage":     {"\xff\x00{{{\n" + containerCPU + "_x{ nothing\n" + pair("1", "2"), &sample{containers: map[container]point{web: {now, 1, 2}}}},
		"types that are there twice":    {"# TYPE " + containerCPU + " counter\n# TYPE " + containerCPU + " histogram\n" + pair("1", "2"), &sample{containers: map[container]point{web: {now, 1, 2}}}},
		"garbage":                       {containerCPU + "{{{", nil},
		"a value that is no number":     {pair("one", "2"), nil},
		"a time that is no number":      {pair("1 soon", "2"), nil},
		"a time far away":               {pair("1 9223372036854775807", "2"), &sample{containers: map[container]point{web: {time.UnixMilli(9223372036854775807), 1, 2}}}},
		"labels that do not end":        {containerCPU + `{container="`, nil},
		"text that is not UTF-8":        {containerCPU + "{container=\"\xff\"} 1", nil},
	} {
		lines, err := keep(strings.NewReader(tc.text))
		var is *sample
		if err == nil {
			is, err = parse(lines, now)
		}
		if tc.want == nil {
			if err == nil {
				t.Errorf("%s: there is no error, and %+v", name, is)
			}
			continue
		}
		if tc.want.containers == nil {
			tc.want.containers = map[container]point{}
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if diff := cmp.Diff(tc.want, is, cmp.AllowUnexported(sample{}, point{}, container{})); diff != "" {
			t.Errorf("%s: (-want +is)\n%s", name, diff)
		}
	}
}

func TestLargeTextsAreRefused(t *testing.T) {
	series := func(n int) string {
		var all strings.Builder
		for i := range n {
			for _, name := range []string{containerCPU, containerMemory} {
				fmt.Fprintf(&all, "%s{container=\"c-%d\",namespace=\"n\",pod=\"p\"} 1\n", name, i)
			}
		}
		return all.String()
	}
	for name, text := range map[string]string{
		"of other metrics": strings.Repeat(strings.Repeat("a", 1000)+"\n", maxText/1000+1),
		"of these metrics": strings.Repeat(nodeCPU+" 1\n", maxKept/len(nodeCPU)),
		"one line":         strings.Repeat("a", maxLine+1),
		"many containers":  series(maxContainers + 1),
	} {
		lines, err := keep(strings.NewReader(text))
		if err == nil {
			_, err = parse(lines, time.Now())
		}
		if !errors.Is(err, errTooLarge) {
			t.Errorf("%s: the error is %v", name, err)
		}
	}
	lines, err := keep(strings.NewReader(series(maxContainers)))
	if err != nil {
		t.Fatal(err)
	}
	if s, err := parse(lines, time.Now()); err != nil || len(s.containers) != maxContainers {
		t.Errorf("%d containers: %v", maxContainers, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(kubelet)
	f.Add(containerCPU + "{container=\"\\xff\"} 1e400 -1\n")
	f.Fuzz(func(t *testing.T, text string) {
		lines, err := keep(strings.NewReader(text))
		if err != nil {
			return
		}
		s, err := parse(lines, time.Now())
		if err != nil {
			return
		}
		for c, p := range s.containers {
			if !(p.seconds >= 0 && p.seconds <= maxSeconds && p.bytes >= 0 && p.bytes <= maxBytes) || c.name == "" {
				t.Errorf("%+v has %+v", c, p)
			}
		}
	})
}
