package main

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/term"
)

// ANSI control sequences.
const (
	ansiEnter   = "\x1b[?1049h\x1b[?25l" // switch to the alternate screen, hide the cursor
	ansiLeave   = "\x1b[?25h\x1b[?1049l"
	ansiHome    = "\x1b[H"
	ansiEndLine = "\x1b[K\r\n"
	ansiClear   = "\x1b[J"
	ansiReset   = "\x1b[0m"
)

// style of a whole line.
type style string

const (
	plain style = ""
	title style = "\x1b[1m"
	good  style = "\x1b[32m"
	busy  style = "\x1b[33m"
	bad   style = "\x1b[31m"
	faint style = "\x1b[2m"
)

type line struct {
	text  string
	style style
}

const (
	redrawAtMostEvery  = 100 * time.Millisecond
	redrawAtLeastEvery = time.Second
)

// display draws the stage on a terminal, and redraws it after each change.
type display struct {
	out   io.Writer
	stage *stage
	color bool

	done    chan struct{}
	drawn   sync.WaitGroup
	leaving sync.Once
}

func startDisplay(out *os.File, s *stage, color bool) *display {
	d := &display{out: out, stage: s, color: color, done: make(chan struct{})}
	fmt.Fprint(d.out, ansiEnter)
	d.drawn.Go(func() { d.loop(out) })
	return d
}

// close restores the terminal.
func (d *display) close() {
	d.leaving.Do(func() {
		close(d.done)
		d.drawn.Wait()
		fmt.Fprint(d.out, ansiLeave)
	})
}

func (d *display) loop(out *os.File) {
	tick := time.NewTicker(redrawAtMostEvery)
	defer tick.Stop()
	for {
		width, height, err := term.GetSize(int(out.Fd()))
		if err != nil || width <= 0 || height <= 0 {
			width, height = 80, 24
		}
		p, changed := d.stage.state.next()
		lines := frame(p, d.stage.journal.all(), d.stage.hints(), d.stage.outcome(), d.stage.journal.elapsed(), width, height)
		fmt.Fprint(d.out, encode(lines, width, d.color))
		quiet := time.NewTimer(redrawAtLeastEvery)
		select {
		case <-d.done:
			quiet.Stop()
			return
		case <-changed:
		case <-quiet.C:
		}
		quiet.Stop()
		select {
		case <-d.done:
			return
		case <-tick.C:
		}
	}
}

// encode overwrites the screen in one write, so that it does not flicker. Lines are cut
// to the width.
func encode(lines []line, width int, color bool) string {
	var out strings.Builder
	out.WriteString(ansiHome)
	for i, l := range lines {
		if i > 0 {
			out.WriteString(ansiEndLine)
		}
		text := cut(l.text, width)
		if color && l.style != plain {
			text = string(l.style) + text + ansiReset
		}
		out.WriteString(text)
	}
	out.WriteString("\x1b[K" + ansiClear)
	return out.String()
}

func cut(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	runes := []rune(text)
	return string(runes[:max(0, width-1)]) + "…"
}

// wrap breaks a text at spaces, so that its lines fit; all but the first are
// indented. A word that is too long stays whole.
func wrap(text string, width int) []string {
	const indent = "          "
	if utf8.RuneCountInString(text) <= width || width < 2*len(indent) {
		return []string{text}
	}
	var lines []string
	rest := []rune(text)
	for len(rest) > width {
		at := width
		for at > len(indent) && rest[at] != ' ' {
			at--
		}
		if at == len(indent) {
			break
		}
		lines = append(lines, string(rest[:at]))
		rest = append([]rune(indent), rest[at+1:]...)
	}
	return append(lines, string(rest))
}

// frame returns the whole screen: the picture, the outcome, and as many of the newest
// journal entries as fit.
func frame(p *picture, log []entry, hints []string, end *outcome, elapsed time.Duration, width, height int) []line {
	lines := []line{{fmt.Sprintf("Atoll: one Deployment in two NodeGroups, live   %.0f s", elapsed.Seconds()), title}, {}}
	lines = append(lines, drawGroups(p)...)
	lines = append(lines, line{})
	for _, status := range drawStatus(p, end) {
		for _, text := range wrap(status.text, width) {
			lines = append(lines, line{text, status.style})
		}
	}
	for i, hint := range hints {
		if i == 0 {
			lines = append(lines, line{})
		}
		lines = append(lines, line{text: hint})
	}
	lines = append(lines, line{}, line{"What happened ($ command, ! event)", title})
	var shown []line
	for _, e := range log {
		if e.kind != change {
			for _, text := range wrap(e.line(), width) {
				shown = append(shown, line{text, styleOf(e.kind)})
			}
		}
	}
	room := max(0, height-len(lines))
	lines = append(lines, shown[max(0, len(shown)-room):]...)
	return lines[:min(len(lines), height)]
}

func styleOf(k kind) style {
	switch k {
	case command:
		return title
	case note, output:
		return faint
	default:
		return plain
	}
}

// row is a line of the table of pods: cells, or a heading that is not aligned to the
// columns.
type row struct {
	cells   []string
	heading string
	style   style
}

// drawGroups lists the nodes group by group, each with its pods.
func drawGroups(p *picture) []line {
	rows := []row{{cells: []string{"  NODE", "POD", "IMAGE", "STATE", "RESTARTS"}, style: faint}}
	for i := range p.groups {
		group := &p.groups[i]
		heading, s := headingOf(group)
		rows = append(rows, row{heading: heading, style: s})
		for _, node := range group.nodes {
			rows = append(rows, rowsOf(node, group.name == "")...)
		}
	}
	if len(p.waiting) > 0 {
		rows = append(rows, row{heading: "waiting", style: title})
	}
	for _, pod := range p.waiting {
		rows = append(rows, rowOf("", pod))
	}
	return align(rows)
}

// rowsOf returns the rows of a node and its pods. For a node without a group they show
// its location.
func rowsOf(node nodeView, withLocation bool) []row {
	name := "  " + node.name + stateOfNode(node)
	if withLocation {
		name += " (" + location + "=" + node.location + ")"
	}
	if len(node.pods) == 0 {
		return []row{{cells: []string{name, "·"}, style: faint}}
	}
	var rows []row
	for _, pod := range node.pods {
		rows = append(rows, rowOf(name, pod))
		name = ""
	}
	return rows
}

func rowOf(node string, pod podView) row {
	s := busy
	if pod.ready {
		s = plain
	}
	return row{cells: []string{node, pod.name, pod.images, pod.condition, strconv.Itoa(pod.restarts)}, style: s}
}

// align pads cells to the width of their columns.
func align(rows []row) []line {
	var widths []int
	for _, r := range rows {
		for i, cell := range r.cells {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var lines []line
	for _, r := range rows {
		var text strings.Builder
		text.WriteString(r.heading)
		for i, cell := range r.cells {
			text.WriteString(cell + strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+2))
		}
		lines = append(lines, line{strings.TrimRight(text.String(), " "), r.style})
	}
	return lines
}

func headingOf(group *groupView) (string, style) {
	pods := group.pods()
	if group.name == "" {
		return fmt.Sprintf("in no NodeGroup: has %d, ready %d", len(pods), countReady(pods)), title
	}
	s := title
	if group.wanted >= 0 {
		s = busy
		if group.wanted == len(pods) && countReady(pods) == len(pods) {
			s = good
		}
	}
	return fmt.Sprintf("%s: wanted %s, has %d, ready %d", group.name, number(group.wanted), len(pods), countReady(pods)), s
}

func stateOfNode(node nodeView) string {
	switch {
	case !node.ready:
		return " not Ready"
	case node.cordoned:
		return " cordoned"
	default:
		return ""
	}
}

// drawStatus returns the conditions of the policies and the number of unavailable pods.
func drawStatus(p *picture, end *outcome) []line {
	var lines []line
	for _, policy := range p.policies {
		s := busy
		if policy.status == "True" {
			s = good
		}
		lines = append(lines, line{policy.text(), s})
	}
	if a := p.availability; a != nil && end == nil {
		s := good
		if a.worst > maxUnavailable {
			s = bad
		}
		lines = append(lines, line{fmt.Sprintf("unavailable pods: %d now, %d at most so far (allowed: %d)", a.missing, a.worst, maxUnavailable), s})
	}
	if end == nil {
		return lines
	}
	if len(end.failures) == 0 {
		lines = append(lines, line{fmt.Sprintf("As the policies say, %.1f s after the labels; never more than %d of %d pods unavailable at a time.",
			end.converged.Seconds(), end.picture.availability.worst, end.picture.availability.wanted), good})
	}
	for _, failure := range end.failures {
		lines = append(lines, line{"NOT as the policies say: " + failure, bad})
	}
	return lines
}
