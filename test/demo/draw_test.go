package main

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func text(lines []line) string {
	var out strings.Builder
	for _, l := range lines {
		out.WriteString(l.text + "\n")
	}
	return out.String()
}

func TestFrame(t *testing.T) {
	o := kept()
	o.nodes[1].Spec.Unschedulable = true // nodea
	o.pods = append(o.pods, buildPod("p6", "", "nginx:1.27"))
	o.pods[0] = buildPod("p3", "nodeb", "hangzhou.registry.io/nginx:1.27", runs("nginx:1.27", 1))
	p := compose(o)
	p.availability = &availability{wanted: 5, missing: 1, worst: 1}
	log := []entry{
		{3 * time.Second, command, "kubectl label deployment nginx"},
		{3 * time.Second, change, "pod p6: created"},
		{4 * time.Second, event, "SurplusPodEvicted deployment/nginx: Evicted pod p0"},
	}
	got := text(frame(p, log, []string{"Try it"}, nil, 5*time.Second, 120, 40))
	want := `Atoll: one Deployment in two NodeGroups, live   5 s

  NODE            POD  IMAGE                            STATE             RESTARTS
hangzhou: wanted 3, has 3, ready 2
  nodea cordoned  p1   hangzhou.registry.io/nginx:1.27  Ready             0
                  p2   hangzhou.registry.io/nginx:1.27  Ready             0
  nodeb           p3   hangzhou.registry.io/nginx:1.27  Restarting        1
beijing: wanted 2, has 2, ready 2
  nodec           p4   beijing.registry.io/nginx:1.27   Ready             0
  noded           ·
  nodee           p5   beijing.registry.io/nginx:1.27   Ready             0
waiting
                  p6   nginx:1.27                       waits for a node  0

PropagationPolicy nginx-propagationpolicy: Ready=True Satisfied
OverridePolicy nginx-overridepolicy: Ready=True Satisfied
unavailable pods: 1 now, 1 at most so far (allowed: 1)

Try it

What happened ($ command, ! event)
   3.0s $ kubectl label deployment nginx
   4.0s ! SurplusPodEvicted deployment/nginx: Evicted pod p0
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestFrameFitsTheScreen(t *testing.T) {
	p := compose(kept())
	log := make([]entry, 100)
	for i := range log {
		log[i] = entry{time.Duration(i) * time.Second, note, "something"}
	}
	for _, height := range []int{1, 10, 24, 200} {
		lines := frame(p, log, nil, nil, time.Second, 80, height)
		if len(lines) > height {
			t.Errorf("%d lines on a screen of %d", len(lines), height)
		}
		if height == 24 && lines[23].text != log[99].line() {
			t.Errorf("the last line is %q, want the newest entry", lines[23].text)
		}
	}
}

func TestFrameOfAnEmptyCluster(t *testing.T) {
	got := text(frame(&picture{}, nil, nil, nil, 0, 80, 24))
	if !strings.Contains(got, "What happened") {
		t.Errorf("got %q", got)
	}
}

func TestFrameShowsTheOutcome(t *testing.T) {
	p := compose(kept())
	p.availability = &availability{wanted: 5, worst: 1}
	got := text(frame(p, nil, nil, &outcome{picture: p, converged: 2 * time.Second}, 0, 120, 40))
	if !strings.Contains(got, "As the policies say, 2.0 s after the labels; never more than 1 of 5 pods unavailable at a time.") {
		t.Errorf("the promise is not mentioned in\n%s", got)
	}
	got = text(frame(p, nil, nil, &outcome{picture: p, failures: []string{"it rained"}}, 0, 120, 40))
	if !strings.Contains(got, "NOT as the policies say: it rained") {
		t.Errorf("the failure is not mentioned in\n%s", got)
	}
}

func TestWrap(t *testing.T) {
	tests := map[string]struct {
		text  string
		width int
		want  []string
	}{
		"a short text":       {"a b c", 30, []string{"a b c"}},
		"a text of two":      {"one two three four five six seven", 24, []string{"one two three four five", "          six seven"}},
		"more of them":       {"one two three four five six seven eight", 20, []string{"one two three four", "          five six", "          seven", "          eight"}},
		"a word too long":    {"one " + strings.Repeat("x", 40), 24, []string{"one " + strings.Repeat("x", 40)}},
		"a screen too small": {"one two three four", 8, []string{"one two three four"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := wrap(test.text, test.width); !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestEncode(t *testing.T) {
	lines := []line{{"heading", title}, {"a long line → cut", plain}}
	tests := map[string]struct {
		width int
		color bool
		want  string
	}{
		"with colours":    {80, true, "\x1b[H\x1b[1mheading\x1b[0m\x1b[K\r\na long line → cut\x1b[K\x1b[J"},
		"without colours": {80, false, "\x1b[Hheading\x1b[K\r\na long line → cut\x1b[K\x1b[J"},
		"a narrow screen": {8, false, "\x1b[Hheading\x1b[K\r\na long …\x1b[K\x1b[J"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := encode(lines, test.width, test.color); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestJournalSplitsLines(t *testing.T) {
	j := newJournal(time.Now())
	var followed []string
	j.follow(func(e entry) { followed = append(followed, e.text) })
	if _, err := j.Write([]byte("one\n\ntwo  \r\n")); err != nil {
		t.Fatal(err)
	}
	if len(j.all()) != 2 || strings.Join(followed, "|") != "one|two" {
		t.Errorf("entries %+v, followed %q", j.all(), followed)
	}
}

func TestReadExample(t *testing.T) {
	d, err := readExample("../..")
	if err != nil {
		t.Fatal(err)
	}
	if len(d.groups) == 0 || len(d.policies) == 0 {
		t.Errorf("groups %q, policies %q, want some of both", d.groups, d.policies)
	}
	if _, err := readExample(t.TempDir()); err == nil || !strings.Contains(err.Error(), "NodeGroup") {
		t.Errorf("an empty directory gives %v, want an error that names what is missing", err)
	}
}
