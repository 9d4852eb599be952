package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCommandLineIsChecked(t *testing.T) {
	tests := map[string]struct {
		args    []string
		wantErr bool
	}{
		"nothing":                      {},
		"quick":                        {args: []string{"-quick"}},
		"figures that divide":          {args: []string{"-nodes", "30", "-groups", "3", "-pods", "60"}},
		"pods that do not divide":      {args: []string{"-pods", "2001"}, wantErr: true},
		"nodes that do not divide":     {args: []string{"-nodes", "1001"}, wantErr: true},
		"no rounds":                    {args: []string{"-rounds", "0"}, wantErr: true},
		"a word":                       {args: []string{"managed"}, wantErr: true},
		"figures that mean nothing":    {args: []string{"-quick", "-write"}, wantErr: true},
		"an unknown flag, as it seems": {args: []string{"-x"}, wantErr: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := parse(test.args); (err != nil) != test.wantErr {
				t.Errorf("error %v, want one = %t", err, test.wantErr)
			}
		})
	}
}

func TestChoose(t *testing.T) {
	tests := map[string]struct {
		bench, variant string
		want           string
		wantErr        bool
	}{
		"all of one":               {"extender", "all", "extender: managed,unmanaged,spread,limit,passed by,isolated,pinned,pinned spread,pinned sampled,spread sampled", false},
		"some of one":              {"extender", "passed by,managed", "extender: passed by,managed", false},
		"two benchmarks":           {"start,memory", "all", "start: cold; memory: heap,resident", false},
		"a stranger":               {"extender", "managed,x", "", true},
		"no benchmark":             {"x", "all", "", true},
		"whose variant is unclear": {"all", "managed", "", true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			chosen, err := choose(options{bench: test.bench, variant: test.variant})
			var parts []string
			for _, b := range chosen {
				parts = append(parts, b.name+": "+strings.Join(names(b.variants, func(v variant) string { return v.name }), ","))
			}
			if got := strings.Join(parts, "; "); (err != nil) != test.wantErr || !test.wantErr && got != test.want {
				t.Errorf("got %q, error %v, want %q", got, err, test.want)
			}
		})
	}
}

func TestEveryBenchmarkHasADescription(t *testing.T) {
	for _, b := range benchmarks {
		if err := b.fill(options{rounds: 1, groups: 10}).check(); err != nil || b.about == "" {
			t.Errorf("%s is about %q: %v", b.name, b.about, err)
		}
		for _, v := range b.variants {
			if (b.unit == "") == (v.unit == "") {
				t.Errorf("%s measures %q, and its variant %s %q: one of the two has the unit", b.name, b.unit, v.name, v.unit)
			}
		}
	}
}

// TestAVariantMayHaveItsOwnUnit: then its row has it, and not the head of the table.
func TestAVariantMayHaveItsOwnUnit(t *testing.T) {
	r := testRow("size", 50)
	r.variant.unit = "MB"
	b := benchmark{variants: []variant{r.variant}}
	if got := tableHead(b); !strings.HasPrefix(got, "| variant | A: median (lowest–highest) | B | A ÷ B |") {
		t.Errorf("the head is %s", got)
	}
	if got := render(b, []row{r}); !strings.HasPrefix(got, "| size | 50.0 (50.0–50.0) MB | 100 (100–100) MB | **0.50** |") {
		t.Errorf("the row is %s", got)
	}
}

func testRow(name string, a float64) row {
	return row{variant: variant{name: name, a: "ours", b: "theirs", ideal: "1.0"}, result: comparison(buildPairs([3]float64{a, 100, 0}))}
}

func TestDocsAreWritten(t *testing.T) {
	b := benchmark{name: "x", about: "What it is.", unit: "pods/s", places: true, variants: []variant{{name: "one"}, {name: "two"}}}
	path := filepath.Join(t.TempDir(), "benchmarks.md")
	write := func(rows ...row) string {
		t.Helper()
		if err := writeDocs(path, b, rows, "make bench"); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	first := write(testRow("two", 50))
	two := "| two | 50.0 (50.0–50.0) | 100 (100–100) | **0.50** | 0.50 (0.50–0.50) | 1.0 | 9.0 and 0.0 ms | 0 | ours | theirs |\n"
	for _, part := range []string{"# Benchmarks\n", "\n## x\nWhat it is.\n\n<!-- bench:x -->\n    make bench\n\n", tableHead(b) + "\n" + two + "<!-- /bench:x -->\n"} {
		if !strings.Contains(first, part) {
			t.Errorf("%q is missing in\n%s", part, first)
		}
	}
	one := strings.ReplaceAll(strings.ReplaceAll(two, "two", "one"), "50", "70")
	second := write(testRow("one", 70))
	if want := tableHead(b) + "\n" + one + two + "<!-- /bench:x -->\n"; !strings.Contains(second, want) {
		t.Errorf("the row of the other variant is not kept, or not behind the new one:\n%s", second)
	}
	if strings.Count(second, "## x") != 1 {
		t.Errorf("the section is there twice:\n%s", second)
	}
	if third := write(testRow("one", 70)); third != second {
		t.Errorf("writing the same again changes the file:\n%s", third)
	}
}

func TestASectionWithoutAnEndIsRefused(t *testing.T) {
	b := benchmark{name: "x"}
	if _, err := replaceSection("<!-- bench:x -->\n", b, nil, ""); err == nil {
		t.Error("the rest of the file would have been lost")
	}
}

// TestTheCommandCanBeCopied: a shell reads each value as one word.
func TestTheCommandCanBeCopied(t *testing.T) {
	got := commandLine(benchmark{name: "gangs limited"}, options{variant: "divided 1 p50,divided 1 p99", rounds: 3, nodes: 10, groups: 2, pods: 5})
	want := `make bench ARGS='-bench "gangs limited" -variant "divided 1 p50,divided 1 p99" -rounds 3 -nodes 10 -groups 2 -pods 5'`
	if got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := commandLine(benchmark{name: "filter"}, options{variant: "all"}); got != "make bench ARGS='-bench filter -variant all -rounds 0 -nodes 0 -groups 0 -pods 0'" {
		t.Errorf("got %s", got)
	}
}
