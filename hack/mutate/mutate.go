package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// variable is the environment variable of a test binary that selects the active change.
const variable = "ATOLL_MUTATION"

// change is one small change of a package. Its id is at least 1.
type change struct {
	id   int
	at   token.Position
	what string
}

func (c change) String() string {
	return fmt.Sprintf("%s:%d:%d: %s", filepath.Base(c.at.Filename), c.at.Line, c.at.Column, c.what)
}

// source is a package that was read and type-checked.
type source struct {
	name, dir string
	fset      *token.FileSet
	files     []*ast.File
	info      *types.Info
}

// load reads the package in a directory, without its tests.
func load(ctx context.Context, dir string) (*source, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("finding %s: %w", dir, err)
	}
	p := &source{dir: dir, fset: token.NewFileSet(), info: &types.Info{Types: map[ast.Expr]types.TypeAndValue{}}}
	err = list(ctx, dir, func(line []byte) error {
		file, err := parser.ParseFile(p.fset, filepath.Join(dir, string(line)), nil, parser.SkipObjectResolution)
		if err != nil {
			return fmt.Errorf("reading %s: %w", line, err)
		}
		p.files = append(p.files, file)
		return nil
	}, "-f", `{{range .GoFiles}}{{println .}}{{end}}`, ".")
	if err != nil {
		return nil, err
	}
	if len(p.files) == 0 {
		return nil, fmt.Errorf("reading %s: no file of Go", dir)
	}
	exports := map[string]string{}
	err = list(ctx, dir, func(line []byte) error {
		if path, export, ok := strings.Cut(string(line), " "); ok {
			exports[path] = export
		}
		return nil
	}, "-deps", "-export", "-f", "{{.ImportPath}} {{.Export}}", ".")
	if err != nil {
		return nil, err
	}
	lookup := func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) }
	config := types.Config{Importer: importer.ForCompiler(p.fset, "gc", lookup)}
	checked, err := config.Check(dir, p.fset, p.files, p.info)
	if err != nil {
		return nil, fmt.Errorf("checking %s: %w", dir, err)
	}
	p.name = checked.Name()
	return p, nil
}

// edit replaces length bytes of a file at an offset.
type edit struct {
	offset, length int
	text           string
}

// mutator creates the changes of a package.
type mutator struct {
	*source
	changes []change
	edits   []edit // of the current file
}

// mutate returns the files of the package with every change in them, by path, and the
// changes.
func (p *source) mutate() (files map[string][]byte, changes []change) {
	m := &mutator{source: p}
	files = map[string][]byte{}
	for _, file := range p.files {
		if ast.IsGenerated(file) {
			continue
		}
		m.edits = nil
		m.walk(file)
		path := p.fset.Position(file.Pos()).Filename
		text, err := os.ReadFile(path)
		if err != nil {
			continue // the file was read before without an error
		}
		files[path] = apply(text, m.edits)
	}
	files[filepath.Join(p.dir, "zz_mutations.go")] = []byte("package " + p.name + "\n" + helpers)
	return files, m.changes
}

// apply applies edits. Edits with the same offset keep their order.
func apply(text []byte, edits []edit) []byte {
	slices.SortStableFunc(edits, func(a, b edit) int { return cmp.Compare(a.offset, b.offset) })
	var out bytes.Buffer
	at := 0
	for _, e := range edits {
		out.Write(text[at:e.offset])
		out.WriteString(e.text)
		at = e.offset + e.length
	}
	out.Write(text[at:])
	return out.Bytes()
}

func (m *mutator) insert(at token.Pos, text string) { m.replace(at, 0, text) }

func (m *mutator) replace(at token.Pos, length int, text string) {
	m.edits = append(m.edits, edit{m.fset.Position(at).Offset, length, text})
}

func (m *mutator) add(at token.Pos, what string) int {
	m.changes = append(m.changes, change{len(m.changes) + 1, m.fset.Position(at), what})
	return len(m.changes)
}

// walk creates the changes below a node.
func (m *mutator) walk(root ast.Node) {
	ast.PreorderStack(root, nil, func(n ast.Node, stack []ast.Node) bool {
		switch n := n.(type) {
		case *ast.GenDecl:
			return n.Tok != token.CONST && n.Tok != token.IMPORT && n.Tok != token.TYPE
		case *ast.BinaryExpr:
			m.binary(n)
		case *ast.UnaryExpr:
			m.unary(n)
		case *ast.IncDecStmt:
			m.incDec(n, stack)
		case *ast.AssignStmt:
			m.assign(n, stack)
		case *ast.BranchStmt:
			m.branch(n, stack)
		}
		return true
	})
}

// ordered maps each comparison to the one that differs from it only if both sides are
// equal.
var ordered = map[token.Token]token.Token{token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR}

// names are the functions that replace operators (helpers).
var names = map[token.Token]string{
	token.LSS: "mutLess", token.LEQ: "mutAtMost", token.GTR: "mutMore", token.GEQ: "mutAtLeast",
	token.ADD: "mutAdd", token.SUB: "mutSub", token.MUL: "mutMul", token.QUO: "mutDiv",
}

func (m *mutator) binary(n *ast.BinaryExpr) {
	if m.info.Types[n].Value != nil {
		return // a constant
	}
	switch n.Op {
	case token.LSS, token.LEQ, token.GTR, token.GEQ:
		bound, negated := m.add(n.OpPos, fmt.Sprintf("%s instead of %s", ordered[n.Op], n.Op)), m.add(n.OpPos, n.Op.String()+" negated")
		m.call(n, fmt.Sprintf("%s(%d, %d, ", names[n.Op], bound, negated))
	case token.EQL, token.NEQ:
		m.insert(n.Pos(), fmt.Sprintf("mutNot(%d, ", m.add(n.OpPos, n.Op.String()+" negated")))
		m.close(n.End(), ")")
	case token.LAND, token.LOR:
		id := m.add(n.OpPos, map[token.Token]string{token.LAND: "|| instead of &&", token.LOR: "&& instead of ||"}[n.Op])
		m.insert(n.Pos(), fmt.Sprintf("%s(%d, ", map[token.Token]string{token.LAND: "mutAnd", token.LOR: "mutOr"}[n.Op], id))
		m.replace(n.OpPos, len(n.Op.String()), ", func() bool { return bool(")
		m.close(n.End(), ") })")
	case token.ADD, token.SUB, token.MUL, token.QUO:
		if basic, ok := m.info.Types[n].Type.Underlying().(*types.Basic); ok && basic.Info()&types.IsNumeric != 0 && basic.Info()&(types.IsComplex|types.IsUntyped) == 0 {
			m.call(n, fmt.Sprintf("%s(%d, ", names[n.Op], m.add(n.OpPos, "another operator than "+n.Op.String())))
		}
	}
}

// call replaces an operator by a call with both sides as arguments.
func (m *mutator) call(n *ast.BinaryExpr, open string) {
	m.insert(n.Pos(), open)
	m.replace(n.OpPos, len(n.Op.String()), ",")
	m.close(n.End(), ")")
}

// close inserts the end of a call; the end of an inner expression comes before that of an
// outer one.
func (m *mutator) close(at token.Pos, text string) {
	offset := m.fset.Position(at).Offset
	first := slices.IndexFunc(m.edits, func(e edit) bool { return e.offset == offset })
	e := edit{offset, 0, text}
	if first < 0 {
		m.edits = append(m.edits, e)
		return
	}
	m.edits = slices.Insert(m.edits, first, e)
}

func (m *mutator) unary(n *ast.UnaryExpr) {
	if n.Op == token.NOT && m.info.Types[n].Value == nil {
		m.insert(n.Pos(), fmt.Sprintf("mutNot(%d, ", m.add(n.OpPos, "without !")))
		m.close(n.End(), ")")
	}
}

// simple reports whether a statement is in a block, where another statement may replace
// it.
func simple(stack []ast.Node) bool {
	switch stack[len(stack)-1].(type) {
	case *ast.BlockStmt, *ast.CaseClause, *ast.CommClause:
		return true
	}
	return false
}

func (m *mutator) incDec(n *ast.IncDecStmt, stack []ast.Node) {
	if !simple(stack) {
		return
	}
	other := map[token.Token]string{token.INC: "--", token.DEC: "++"}[n.Tok]
	id := m.add(n.TokPos, other+" instead of "+n.Tok.String())
	m.replace(n.Pos(), int(n.End()-n.Pos()), fmt.Sprintf("if mutIs(%d) { %s%s } else { %s%s }", id, m.text(n.X), other, m.text(n.X), n.Tok))
}

func (m *mutator) assign(n *ast.AssignStmt, stack []ast.Node) {
	if !simple(stack) || n.Tok != token.ADD_ASSIGN && n.Tok != token.SUB_ASSIGN {
		return
	}
	id := m.add(n.TokPos, "= instead of "+n.Tok.String())
	m.insert(n.Pos(), fmt.Sprintf("if mutIs(%d) { %s = %s } else { ", id, m.text(n.Lhs[0]), m.text(n.Rhs[0])))
	m.close(n.End(), " }")
}

// text returns the source of a node.
func (m *mutator) text(n ast.Node) string {
	from, to := m.fset.Position(n.Pos()), m.fset.Position(n.End())
	raw, err := os.ReadFile(from.Filename)
	if err != nil {
		return ""
	}
	return string(raw[from.Offset:to.Offset])
}

func (m *mutator) branch(n *ast.BranchStmt, stack []ast.Node) {
	if n.Label != nil || n.Tok != token.BREAK && n.Tok != token.CONTINUE || !simple(stack) || !inLoop(stack) {
		return
	}
	other := map[token.Token]string{token.BREAK: "continue", token.CONTINUE: "break"}[n.Tok]
	id := m.add(n.Pos(), other+" instead of "+n.Tok.String())
	m.insert(n.Pos(), fmt.Sprintf("if mutIs(%d) { %s }; ", id, other))
}

// inLoop reports whether the statement is in a loop of the same function.
func inLoop(stack []ast.Node) bool {
	for _, n := range slices.Backward(stack) {
		switch n.(type) {
		case *ast.ForStmt, *ast.RangeStmt:
			return true
		case *ast.FuncLit, *ast.FuncDecl:
			return false
		}
	}
	return false
}

// helpers replace the operators. Each behaves differently while the change with its id is
// active.
const helpers = `
import (
	"cmp"
	"os"
	"strconv"
)

var mutated = func() int { id, _ := strconv.Atoi(os.Getenv("` + variable + `")); return id }()

type mutNumber interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~uintptr | ~float32 | ~float64
}

func mutIs(id int) bool { return mutated == id }

func mutNot[B ~bool](id int, v B) B { return v != (mutated == id) }

func mutAnd[B ~bool](id int, a B, b func() bool) B {
	if mutated == id {
		return a || B(b())
	}
	return a && B(b())
}

func mutOr[B ~bool](id int, a B, b func() bool) B {
	if mutated == id {
		return a && B(b())
	}
	return a || B(b())
}

func mutCompare(bound, negated int, is, other bool) bool {
	switch mutated {
	case bound:
		return other
	case negated:
		return !is
	}
	return is
}

func mutLess[T cmp.Ordered](bound, negated int, a, b T) bool { return mutCompare(bound, negated, a < b, a <= b) }
func mutAtMost[T cmp.Ordered](bound, negated int, a, b T) bool { return mutCompare(bound, negated, a <= b, a < b) }
func mutMore[T cmp.Ordered](bound, negated int, a, b T) bool { return mutCompare(bound, negated, a > b, a >= b) }
func mutAtLeast[T cmp.Ordered](bound, negated int, a, b T) bool { return mutCompare(bound, negated, a >= b, a > b) }

func mutAdd[T mutNumber](id int, a, b T) T {
	if mutated == id {
		return a - b
	}
	return a + b
}

func mutSub[T mutNumber](id int, a, b T) T {
	if mutated == id {
		return a + b
	}
	return a - b
}

func mutMul[T mutNumber](id int, a, b T) T {
	if mutated == id {
		return a + b
	}
	return a * b
}

func mutDiv[T mutNumber](id int, a, b T) T {
	if mutated == id {
		return a * b
	}
	return a / b
}
`
