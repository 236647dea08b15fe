package metrics

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
)

var update = flag.Bool("update", false, "write the tables of docs/metrics.md anew")

const page = "../docs/metrics.md"

const head = "| name | unit | meaning |\n|---|---|---|\n"

// docs/metrics.md holds both tables, as they stand here.
func TestThePageIsTheTable(t *testing.T) {
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(string(b), head)
	if len(parts) != 3 {
		t.Fatalf("%s has %d tables, not 2", page, len(parts)-1)
	}
	for i, table := range [][]Metric{Verdict, Counters} {
		_, rest, _ := strings.Cut(parts[i+1], "\n\n")
		parts[i+1] = rows(table) + "\n" + rest
	}
	want := strings.Join(parts, head)
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o600); err != nil { // which keeps the mode that it has
			t.Fatal(err)
		}
		return
	}
	have := strings.Split(string(b), "\n")
	for i, line := range strings.Split(want, "\n") {
		if i >= len(have) || have[i] != line {
			t.Fatalf("line %d of %s is not the table's, which `go test ./metrics -update` writes:\n%s", i+1, page, line)
		}
	}
	if len(want) != len(b) {
		t.Errorf("%s has rows that the table has not", page)
	}
}

func rows(table []Metric) string {
	var b strings.Builder
	for _, m := range table {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", m.Name, m.Unit, m.Meaning)
	}
	return b.String()
}

func TestEachMetricIsSaidOnce(t *testing.T) {
	seen := map[string]bool{}
	for _, table := range [][]Metric{Verdict, Counters} {
		for _, m := range table {
			if seen[m.Name] || m.Unit == "" || m.Meaning == "" || strings.ContainsAny(m.Unit+m.Meaning, "|\n") {
				t.Errorf("%+v", m)
			}
			seen[m.Name] = true
			if got, ok := Of(m.Name); !ok || got != m {
				t.Errorf("%s is found as %+v", m.Name, got)
			}
		}
	}
	for _, s := range Stalls {
		if !seen[StallRatio(s.Name)] {
			t.Errorf("no table has the warps that wait for %s", s.Name)
		}
	}
	if _, ok := Of("no_such_metric"); ok {
		t.Error("a name that stands in no table is found")
	}
}

// What a GPU is asked for stands in the table, and the other way round, but for what a
// full set alone has.
func TestCountersAreThoseThatAreAskedFor(t *testing.T) {
	asked := map[string]bool{L1Busy: true}
	files := 0
	err := filepath.WalkDir("../hwfeedback/harness", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasPrefix(filepath.Base(path), "metrics") || filepath.Ext(path) != ".toml" {
			return err
		}
		files++
		var of struct {
			Metrics    []string
			Operations []string `toml:"tensor_operations"`
		}
		if _, err := toml.DecodeFile(path, &of); err != nil {
			return err
		}
		for _, name := range append(of.Metrics, of.Operations...) {
			if strings.HasPrefix(name, TensorOperations) {
				name = anyTensorOperation
			}
			asked[name] = true
		}
		return nil
	})
	if err != nil || files < 6 {
		t.Fatalf("%d files, %v", files, err)
	}
	for _, m := range Counters {
		if !asked[m.Name] {
			t.Errorf("%s is not asked for", m.Name)
		}
		delete(asked, m.Name)
	}
	for name := range asked {
		t.Errorf("%s is asked for and stands in no table", name)
	}
}
