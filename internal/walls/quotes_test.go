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

// foreign are the texts of others that the documents quote: of the API server,
// of kube-scheduler, and what is no message at all.
var foreign = []*regexp.Regexp{
	regexp.MustCompile(`^(Too (many|long)|Unsupported value|Duplicate value|Invalid value|Required value|supported values|may not be more than|must have at most \S+ items)`),
	regexp.MustCompile(`^should (match|be (greater|less) than or equal to|have at least)|in body should be`),
	regexp.MustCompile(`^(admission webhook .* denied the request|The \w+ .* is invalid)`),
	regexp.MustCompile(`^(failed filter with extender|0/\d+ nodes are available|tls|x509)`),
	regexp.MustCompile(`^\S* ?\{|^\[\{|=.* |^weight / |^https://|^node\(s\) didn't match|^(kubectl|helm|make|go|git|curl|docker) `),
	regexp.MustCompile(`not found$`),
}

// a piece of a message is what stands between two colons, and a changing part
// of it is a quoted name, a dotted path or what a document leaves out.
var (
	pieceEnd = regexp.MustCompile(`:\s+|:$|;\s|^spec\.\S+$`)
	changing = regexp.MustCompile(`…|"[^"]*"|\\\|`)
	verb     = regexp.MustCompile(`%[-+#.0-9]*[a-zA-Z]`)
)

// TestQuotedMessagesAreOfTheCode: a message that a document quotes is one that
// the code writes, so that who searches for it finds it. Quoted in a document is
// what stands between backticks and has three words or more.
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
					t.Errorf("%s quotes %q, and no code writes %q", filepath.Base(page), message, piece)
				}
			}
		}
	}
	if quoted < 100 {
		t.Errorf("only %d quoted messages were found: the documents have changed their form", quoted)
	}
}

// quotesOf are the quoted messages of a page. Of blocks of commands and their
// output they are the lines that begin with a workload, or a reason and one.
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

// isWritten tells whether the code has a text like the piece: what changes in
// it may be anything.
func isWritten(piece string, written []text) bool {
	if len(strings.Fields(changing.ReplaceAllString(piece, ""))) < 3 {
		return true // too little to search for
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
	// A text may be put together where it has a comma.
	if first, rest, ok := strings.Cut(piece, ", "); ok && isWritten(first, written) && isWritten(rest, written) {
		return true
	}
	// What a document leaves out may be anywhere in it.
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

// joined is a string literal, or a sum of such and of what is not known before
// the code runs. Anything else is "".
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

// text is a text of the code, and the pattern of what it may become.
type text struct {
	as      string
	pattern *regexp.Regexp
}

// messagesOf are the texts of the product's code, each as a pattern of what may
// come of it, cut where pieces of messages are.
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
