package cli

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// constants returns the values of the string constants of a file that have a type.
func constants(t *testing.T, file, ofType string) (values []string) {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join("..", file), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range parsed.Decls {
		block, ok := d.(*ast.GenDecl)
		if !ok || block.Tok != token.CONST {
			continue
		}
		for _, s := range block.Specs {
			v := s.(*ast.ValueSpec)
			typed, _ := v.Type.(*ast.Ident)
			if typed == nil || typed.Name != ofType {
				continue
			}
			text, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			values = append(values, text)
		}
	}
	return values
}

// docs/how-it-works.md lists the words of outputs: all that the program has, and no
// others.
func TestTheWordsOfOutputsAreListed(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "docs", "how-it-works.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "## The words in outputs\n")
	section, _, ends := strings.Cut(section, "\n## ")
	if !found || !ends {
		t.Fatal("there is no such section")
	}
	listed := map[string][]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| (\\w+) \\| `(\\w+)` \\|").FindAllStringSubmatch(section, -1) {
		listed[row[1]] = append(listed[row[1]], row[2])
	}
	runs := append(constants(t, "run.go", "RunStatus"), "stopped")
	rounds := constants(t, "verdict.go", "Status")
	invalid := func(s string) bool { return s == "invalid" } // of the file
	for of, want := range map[string][]string{
		"file": {"invalid"}, "run": slices.DeleteFunc(runs, invalid), "end": constants(t, "run.go", "StopReason"),
		"result": constants(t, "result.go", "Result"), "round": slices.DeleteFunc(rounds, invalid),
	} {
		slices.Sort(want)
		got := slices.Sorted(slices.Values(listed[of]))
		if len(want) == 0 || !slices.Equal(got, want) {
			t.Errorf("%s: the page has %q, the program %q", of, got, want)
		}
	}
}

// otherWords are what outputs do not say, for there is a word.
var otherWords = map[string]string{
	`\b(is|are) (no|not a) (valid )?tasks?\b`: "invalid",
	`^no task: `:        "invalid",
	`\bbad reference\b`: "invalid",
	`\bnot finished\b`:  "not done",
	`\b(aborted|cancell?ed) (run|round)|run (aborted|cancell?ed)`: "stopped",
	`\bthe run (has )?(stopped: |aborted|finished)`:               "ended",
	`\bcandidate (is|was) refused\b`:                              "rejected",
	`\bcompil(e|ation) (error|failed)\b`:                          "build failed",
}

// What is said to people says one thing in one way. Explanations of a word may use
// others: they are for help, which has its own names.
func TestOutputsHaveOneWordForOneThing(t *testing.T) {
	for _, room := range []string{"cli", "report", "daemon", "mcp", "forge"} {
		files, err := filepath.Glob(filepath.Join("..", room, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatal(room, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			set := token.NewFileSet()
			parsed, err := parser.ParseFile(set, file, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(parsed, func(n ast.Node) bool {
				if f, ok := n.(*ast.FuncDecl); ok && f.Name.Name == "Help" {
					return false
				}
				literal, ok := n.(*ast.BasicLit)
				if !ok || literal.Kind != token.STRING {
					return true
				}
				for pattern, word := range otherWords {
					if regexp.MustCompile(`(?i)` + pattern).MatchString(strings.Trim(literal.Value, "`\"")) {
						t.Errorf("%s: %s: the word is %q (docs/how-it-works.md)", set.Position(literal.Pos()), literal.Value, word)
					}
				}
				return true
			})
		}
	}
}
