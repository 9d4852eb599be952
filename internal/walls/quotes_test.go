package walls

import (
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// foreign matches quotes in the documents that are not messages of atoll-manager: messages of
// the API server and of kube-scheduler, commands, and other code.
var foreign = []*regexp.Regexp{
	regexp.MustCompile(`^(Too (many|long)|Unsupported value|Duplicate value|Invalid value|Required value|supported values|may not be more than|must have at most \S+ items)`),
	regexp.MustCompile(`^should (match|be (greater|less) than or equal to|have at least)|in body should be`),
	regexp.MustCompile(`^(admission webhook .* denied the request|The \w+ .* is invalid)`),
	regexp.MustCompile(`^(failed filter with extender|0/\d+ nodes are available|tls|x509)`),
	regexp.MustCompile(`^\S* ?\{|^\[\{|=.* |^weight / |^https://|^node\(s\) didn't match|^(kubectl|helm|make|go|git|curl|docker) `),
	regexp.MustCompile(`not found$`),
}

// pieceEnd splits a message into pieces, at colons and semicolons. changing matches the parts
// of a piece that vary: a quoted name, or an ellipsis in the document. verb matches the verbs
// of format strings.
var (
	pieceEnd = regexp.MustCompile(`:\s+|:$|;\s|^spec\.\S+$`)
	changing = regexp.MustCompile(`…|"[^"]*"|\\\|`)
	verb     = regexp.MustCompile(`%[-+#.0-9]*[a-zA-Z]`)
)

// TestQuotedMessagesAreOfTheCode checks that the code writes each message that a document
// quotes, so that users who search for a message find it. Text between backticks of three
// words or more counts as a quoted message.
func TestQuotedMessagesAreOfTheCode(t *testing.T) {
	root := filepath.Join("..", "..")
	written := messagesOf(t, root)
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	kinds, err := filepath.Glob(filepath.Join(root, "docs", "kinds", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	quoted := 0
	for _, page := range append(pages, kinds...) {
		switch filepath.Base(page) {
		case "guarantees.md", "metrics.md", "architecture.md", "benchmarks.md": // quote no messages
			continue
		}
		source, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, message := range quotesOf(string(source)) {
			quoted++
			for _, piece := range pieceEnd.Split(message, -1) {
				if !isWritten(strings.TrimSpace(piece), written) {
					t.Errorf("%s quotes %q, but no code writes %q", filepath.Base(page), message, piece)
				}
			}
		}
	}
	if quoted < 100 {
		t.Errorf("only %d quoted messages were found: the format of the documents has changed", quoted)
	}
}

// quotesOf returns the quoted messages of a page. In code blocks, those are the lines that
// begin with a kind and a quoted name, with or without a reason before them.
func quotesOf(page string) []string {
	var out []string
	for _, block := range regexp.MustCompile("(?s)```.*?```").FindAllString(page, -1) {
		for _, match := range regexp.MustCompile(`(?m)^(?:[A-Z]\w+: )?[A-Z]\w+ "[^"]*": (.+)$`).FindAllStringSubmatch(block, -1) {
			out = append(out, match[1])
		}
	}
	page = regexp.MustCompile("(?s)```.*?```").ReplaceAllString(page, "")
	for _, match := range regexp.MustCompile("`([^`\n]+)`").FindAllStringSubmatch(page, -1) {
		if len(strings.Fields(match[1])) >= 3 {
			out = append(out, match[1])
		}
	}
	return out
}

// isWritten reports whether the code has a text that matches the piece. The changing parts of
// the piece match anything.
func isWritten(piece string, written []text) bool {
	if len(strings.Fields(changing.ReplaceAllString(piece, ""))) < 3 {
		return true // too short to search for
	}
	for _, other := range foreign {
		if other.MatchString(piece) {
			return true
		}
	}
	for _, w := range written {
		if w.pattern.MatchString(piece) {
			return true
		}
	}
	// The code may join two texts with a comma.
	if first, rest, ok := strings.Cut(piece, ", "); ok && isWritten(first, written) && isWritten(rest, written) {
		return true
	}
	// The parts between ellipses may be anywhere in a text, in their order.
	parts := changing.Split(piece, -1)
	for i := range parts {
		parts[i] = regexp.QuoteMeta(strings.TrimSpace(parts[i]))
	}
	like := regexp.MustCompile(strings.Join(parts, `.*`))
	for _, w := range written {
		if like.MatchString(w.as) {
			return true
		}
	}
	return false
}

// joined returns the value of a string literal, or of a concatenation, with %s for operands
// that are not literals. It returns "" for other expressions.
func joined(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind == token.STRING {
			s, _ := strconv.Unquote(e.Value)
			return s
		}
	case *ast.BinaryExpr:
		if e.Op == token.ADD {
			return cmp.Or(joined(e.X), "%s") + cmp.Or(joined(e.Y), "%s")
		}
	}
	return ""
}

// text is a string of the code, and a pattern that matches its formatted results.
type text struct {
	as      string
	pattern *regexp.Regexp
}

// messagesOf returns the strings in the product's code and in the messages of its CEL rules,
// split into pieces.
func messagesOf(t *testing.T, root string) []text {
	t.Helper()
	var out []text
	seen := map[string]bool{}
	add := func(literal string) {
		for _, piece := range pieceEnd.Split(literal, -1) {
			piece = strings.TrimSpace(piece)
			piece = strings.TrimPrefix(piece, ", ")
			if len(strings.Fields(verb.ReplaceAllString(piece, ""))) < 2 || seen[piece] {
				continue
			}
			seen[piece] = true
			parts := verb.Split(piece, -1)
			for i := range parts {
				parts[i] = regexp.QuoteMeta(parts[i])
			}
			out = append(out, text{as: piece, pattern: regexp.MustCompile(`^` + strings.Join(parts, `.+`) + `$`)})
		}
	}
	for _, dir := range []string{"api", "internal", "cmd"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if e, ok := n.(ast.Expr); ok {
					add(joined(e))
				}
				return true
			})
			for _, group := range file.Comments { // the messages of CEL rules
				for _, match := range regexp.MustCompile(`message="([^"]*)"`).FindAllStringSubmatch(group.Text(), -1) {
					add(match[1])
				}
				for _, c := range group.List {
					for _, match := range regexp.MustCompile(`message="([^"]*)"`).FindAllStringSubmatch(c.Text, -1) {
						add(match[1])
					}
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}
