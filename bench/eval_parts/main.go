// Command eval_parts says where the time of a warm evaluation goes: one
// evaluator, baselines known, and for every repetition a candidate that nobody
// has seen, so that nothing comes from the verdict cache or the build cache.
// Beside it runs bench/kernelbench_style.py, which does what KernelBench does.
// It prints Markdown.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/hwfeedback"
	"github.com/kernelwright/kernelwright/task"
)

type pair struct{ reference, candidate string }

var pairs = []pair{
	{"examples/softmax.py", "examples/candidates/softmax_native.py"},
	{"examples/bias_swish.py", "examples/candidates/bias_swish_native.py"},
	{"examples/softmax.py", "examples/candidates/softmax_load_inline.py"},
}

// loader is what a native candidate imports.
const loader = "hwfeedback/harness/kernelwright.py"

// parts is the order in which people read them; others follow by name. They
// add up: a part within another counts for itself alone.
var parts = []string{"build", "worker", "load", "verify", "verify reference", "verify candidate", "trace", "baselines", "time"}

// total is the referee's own sum, from the request to the verdict.
const total = "total"

func main() {
	dataDir := flag.String("data-dir", ".kernelwright", "data folder whose Python environment is used")
	python := flag.String("python", os.Getenv("KERNELWRIGHT_PYTHON"), "interpreter with PyTorch; empty: the data folder's")
	repeats := flag.Int("repeats", 5, "candidates per row")
	style := flag.String("style", "bench/kernelbench_style.py", "script to compare with; empty: none")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, *dataDir, *python, *style, *repeats)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "eval_parts:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dataDir, python, style string, repeats int) (err error) {
	cache := &memory{values: map[string][]byte{}}
	leases := &hwfeedback.FileLeases{Dir: hwfeedback.LeaseFolder()}
	started := time.Now()
	e, err := hwfeedback.Open(ctx, hwfeedback.Options{
		DataDir: dataDir, Python: python,
		Progress: func(stage, note string) { fmt.Fprintf(os.Stderr, "%s: %s\n", stage, note) },
	}, cache, leases)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	opened := time.Since(started)
	d := e.Device()
	fmt.Printf("%s, %d cores; memory %.1f GB/s, %.0f GFLOP/s; torch %s. Starting took %.1f s, ceilings included.\n\n",
		d.Specs.Model, d.Specs.Cores, d.Ceilings.MemoryGBs, d.Ceilings.FP32GFLOPs, e.Versions()["torch"], opened.Seconds())

	var rows []row
	for _, p := range pairs {
		r, err := measure(ctx, e, p, repeats)
		if err != nil {
			return fmt.Errorf("%s: %w", p.candidate, err)
		}
		rows = append(rows, r)
	}
	printRows(rows)
	if style == "" {
		return nil
	}
	// The evaluator's processes would share the cores with the script.
	if err := e.Close(); err != nil {
		return err
	}
	fmt.Println("\nThe same files through a script that does what KernelBench does (build, 5 correctness trials, 100 timed calls, one new process):")
	fmt.Println()
	fmt.Println("| candidate | seconds |")
	fmt.Println("|---|---:|")
	for _, p := range pairs {
		if err := compare(ctx, dataDir, python, style, p); err != nil {
			return err
		}
	}
	return nil
}

type row struct {
	pair
	form, status string
	eagerMS      float64
	first        time.Duration
	wall         []time.Duration
	cost         map[string][]float64
}

func measure(ctx context.Context, e *hwfeedback.Evaluator, p pair, repeats int) (row, error) {
	r := row{pair: p, cost: map[string][]float64{}}
	reference, err := task.Read(p.reference)
	if err != nil {
		return r, err
	}
	t, err := e.Inspect(ctx, reference.Name, reference.Source)
	if err != nil {
		return r, err
	}
	source, err := os.ReadFile(p.candidate)
	if err != nil {
		return r, err
	}
	for i := range repeats + 1 {
		began := time.Now()
		v, err := e.Evaluate(ctx, t, kernelwright.Candidate{Source: variant(string(source), began), Language: kernelwright.CPP}, kernelwright.Quick)
		if err != nil {
			return r, err
		}
		took := time.Since(began)
		if v.Cached || v.Build.Cached {
			return r, errors.New("something came from a cache, so this measured nothing")
		}
		r.form, r.status = v.Build.Form, string(v.Status)
		if i == 0 { // finds calibration and baselines, which later ones know
			r.first, r.eagerMS = took, v.Baselines["eager"]
			continue
		}
		r.wall = append(r.wall, took)
		for part, seconds := range v.CostS {
			r.cost[part] = append(r.cost[part], seconds)
		}
	}
	return r, nil
}

// variant returns the candidate with C++ that no compiler has seen and a
// syntax tree that no cache has.
func variant(source string, now time.Time) string {
	mark := fmt.Sprint(now.UnixNano())
	source = strings.Replace(source, `r"""`, `r"""// `+mark+"\n", 1)
	return source + "\nvariant = " + mark + "\n"
}

func printRows(rows []row) {
	names := slices.Clone(parts)
	for _, r := range rows {
		for _, n := range slices.Sorted(maps.Keys(r.cost)) {
			if n != total && !slices.Contains(names, n) {
				names = append(names, n)
			}
		}
	}
	names = slices.DeleteFunc(names, func(n string) bool {
		return !slices.ContainsFunc(rows, func(r row) bool { return len(r.cost[n]) > 0 })
	})
	fmt.Println("Seconds, the median of warm `quick` evaluations; `first` is the one that also finds calibration and baselines. " +
		"`build` is what is left of building after the reference has done all that it can without the candidate; `baselines` is the sentinel, eager timed again; `time` the candidate alone; `rest` is outside the referee:")
	fmt.Println()
	fmt.Printf("| candidate | form | verdict | eager ms | first | **whole** | %s | rest |\n", strings.Join(names, " | "))
	fmt.Printf("|---|---|---|---:|---:|---:|%s---:|\n", strings.Repeat("---:|", len(names)))
	for _, r := range rows {
		whole := median(seconds(r.wall))
		rest := whole - median(r.cost[total])
		cells := make([]string, len(names))
		for i, n := range names {
			cells[i] = "–"
			if len(r.cost[n]) > 0 {
				cells[i] = fmt.Sprintf("%.2f", median(r.cost[n]))
			}
		}
		fmt.Printf("| %s | %s | %s | %.2f | %.1f | **%.2f** | %s | %.2f |\n", filepath.Base(r.candidate), r.form, r.status, r.eagerMS,
			r.first.Seconds(), whole, strings.Join(cells, " | "), max(rest, 0))
	}
}

// compare runs the script on a candidate that it has not built before.
func compare(ctx context.Context, dataDir, python, style string, p pair) (err error) {
	if python == "" {
		found, err := filepath.Glob(filepath.Join(dataDir, "venv-*", "bin", "python"))
		if err != nil || len(found) == 0 {
			return fmt.Errorf("no Python environment in %s", dataDir)
		}
		python = found[len(found)-1]
	}
	source, err := os.ReadFile(p.candidate)
	if err != nil {
		return err
	}
	folder, err := os.MkdirTemp("", "eval_parts")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	candidate := filepath.Join(folder, filepath.Base(p.candidate))
	if err := os.WriteFile(candidate, []byte(variant(string(source), time.Now())), 0o644); err != nil {
		return err
	}
	module, err := os.ReadFile(loader)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(folder, filepath.Base(loader)), module, 0o644); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, python, style, p.reference, candidate)
	cmd.Env = append(os.Environ(), "TORCH_EXTENSIONS_DIR="+folder, "PYTHONPATH="+folder, "PATH="+filepath.Dir(python)+":"+os.Getenv("PATH"))
	cmd.Stderr = os.Stderr
	began := time.Now()
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", style, err, out)
	}
	fmt.Printf("| %s | %.1f |\n", filepath.Base(p.candidate), time.Since(began).Seconds())
	return nil
}

func seconds(d []time.Duration) []float64 {
	s := make([]float64, len(d))
	for i := range d {
		s[i] = d[i].Seconds()
	}
	return s
}

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	if len(s) == 0 {
		return 0
	}
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// memory is a Cache that ends with the process.
type memory struct {
	mu     sync.Mutex
	values map[string][]byte
}

func (m *memory) Get(_ context.Context, kind, key string) ([]byte, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, ok := m.values[kind+"|"+key]
	return v, ok, nil
}

func (m *memory) Put(_ context.Context, kind, key string, value []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.values[kind+"|"+key] = value
	return nil
}
