package command

import (
	"io"
	"os"
	"regexp"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

// columns returns the width of the terminal that is written to; 0 if it is none.
func columns(w io.Writer) int {
	file, is := w.(*os.File)
	if !is {
		return 0
	}
	width, _, err := term.GetSize(int(file.Fd()))
	if err != nil {
		return 0
	}
	return width
}

var (
	// lineHead is what is before the text of a line: spaces, a mark, and a name that two spaces end.
	lineHead = regexp.MustCompile(`^ *([!?] )?(\S+( \S+)? {2,})?`)
	// wholeLine are commands, which people copy, and branches of trees.
	wholeLine = regexp.MustCompile(`^ *(kubectl|helm|echo|timedatectl|journalctl) |^[ │]*[├└]─ `)
)

// wrap breaks lines between words, so that they fit a width in columns. What is broken off begins below the text of
// its line, or two columns to the right if no name is before that.
func wrap(text string, width int) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if utf8.RuneCountInString(line) > width && !wholeLine.MatchString(line) {
			line = broken(line, width)
		}
		out.WriteString(line + "\n")
	}
	return out.String()
}

func broken(line string, width int) string {
	head := lineHead.FindString(line)
	indent := utf8.RuneCountInString(head)
	if strings.TrimSpace(head) == "" {
		indent += 2
	}
	if indent > width/2 {
		indent = 4
	}
	var out strings.Builder
	out.WriteString(head)
	at, isFirst := utf8.RuneCountInString(head), true
	for word := range strings.SplitSeq(line[len(head):], " ") {
		length := utf8.RuneCountInString(word)
		switch {
		case isFirst:
		case at+1+length > width:
			out.WriteString("\n" + strings.Repeat(" ", indent))
			at = indent
		default:
			out.WriteString(" ")
			at++
		}
		out.WriteString(word)
		at, isFirst = at+length, false
	}
	return out.String()
}
