package coder

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/coder/internal/graphtest"
	"github.com/kernelwright/kernelwright/internal/soak"
	"github.com/kernelwright/kernelwright/internal/wholefile"
)

// onGPU is the same input for a GPU with a few multiprocessors.
func onGPU(f graphtest.Graph) kernelwright.CoderInput {
	in := input(f)
	in.Language = kernelwright.CUDA
	in.Device = graphtest.GPU
	return in
}

func input(f graphtest.Graph) kernelwright.CoderInput {
	return kernelwright.CoderInput{Task: kernelwright.Task{Name: f.Name, Graph: f.Graph, GraphNote: f.Note}, Language: kernelwright.CPP, Device: graphtest.CPU}
}

// variants gives, by its tag, who makes the default candidate, and one for each other
// choice of each knob.
func variants(t *testing.T, f graphtest.Graph, input func(graphtest.Graph) kernelwright.CoderInput) map[string]func() (source string) {
	t.Helper()
	first, err := Builtin{}.Propose(context.Background(), input(f))
	if err != nil {
		t.Errorf("%s: %v", f.Name, err)
		return nil
	}
	out := map[string]func() string{"default": func() string { return first.Source }}
	s, ok := kernelwright.ParseSchedule(first.Source)
	if !ok {
		t.Fatalf("%s: no schedule", f.Name)
	}
	with := func(knobs map[string]int) func() string {
		return func() string {
			in := input(f)
			in.Round = 1
			in.Last = &kernelwright.Attempt{Candidate: first, Verdict: kernelwright.Verdict{Status: kernelwright.Correct}}
			in.Feedback = &kernelwright.Feedback{Kind: kernelwright.Optimisation, Knobs: knobs}
			next, err := Builtin{}.Propose(context.Background(), in)
			if err != nil {
				t.Fatalf("%s with %v: %v", f.Name, knobs, err)
			}
			got, _ := kernelwright.ParseSchedule(next.Source)
			for name, c := range knobs {
				if got.Knobs[name].Value != c {
					t.Errorf("%s: knob %s is %d, not %d", f.Name, name, got.Knobs[name].Value, c)
				}
			}
			return next.Source
		}
	}
	for name, k := range s.Knobs {
		for _, c := range k.Choices {
			if c != k.Value {
				out[name+"-"+itoa(c)] = with(map[string]int{name: c})
			}
		}
	}
	if _, ok := s.Knobs["stage"]; ok && len(s.Knobs["share"].Choices) > 0 { // as a large pooling begins
		out["lines"] = with(map[string]int{"stage": 1, "share": 8})
	}
	return out
}

var testPython = os.Getenv("KERNELWRIGHT_TEST_PYTHON")

// runScript runs a script of testdata with the harness and returns what it prints.
func runScript(script string, args ...string) ([]byte, error) {
	harness, err := filepath.Abs("../hwfeedback/harness")
	if err != nil {
		return nil, err
	}
	folder, remove, err := built()
	if err != nil {
		return nil, err
	}
	defer remove()
	cmd := exec.Command(testPython, append([]string{script, harness}, args...)...)
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1", "TORCH_EXTENSIONS_DIR="+folder)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	b, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", script, err, stderr.String())
	}
	return b, nil
}

// built returns the folder of what native compiles, and removes what it is not to keep:
// the folder of KERNELWRIGHT_TEST_CACHE keeps objects for two weeks. Native names them by
// source, flags and processor, this folder by the compiler.
func built() (folder string, remove func(), err error) {
	cache := os.Getenv("KERNELWRIGHT_TEST_CACHE")
	if cache == "" {
		folder, err = os.MkdirTemp("", "kernelwright-coder-")
		return folder, func() { _ = os.RemoveAll(folder) }, err // it is in the folder for temporary files
	}
	says, err := exec.Command(cmp.Or(os.Getenv("CXX"), "g++"), "--version").Output()
	if err != nil {
		return "", nil, err
	}
	folder = filepath.Join(cache, fmt.Sprintf("candidates-%.12x", sha256.Sum256(says)))
	return folder, func() {
		objects, _ := filepath.Glob(filepath.Join(cache, "candidates-*", "*", "*.so")) // the pattern is one
		for _, name := range objects {
			if info, err := os.Stat(name); err == nil && time.Since(info.ModTime()) > 14*24*time.Hour {
				_ = os.Remove(name) // another process may have done so
			}
		}
	}, os.MkdirAll(folder, 0o755)
}

// captures are the graphs of testdata/models.py, captured once.
var captures = sync.OnceValues(func() ([]byte, error) { return captured("testdata/generate.py") })

// captured returns what a script prints that captures graphs. The folder of
// KERNELWRIGHT_TEST_CACHE keeps it for as long as nothing changes that it is made by:
// the harness, the scripts, the files in the folders that it is given, and Python.
func captured(script string, folders ...string) ([]byte, error) {
	cache := os.Getenv("KERNELWRIGHT_TEST_CACHE")
	if cache == "" {
		return runScript(script, folders...)
	}
	said := sha256.New()
	_, _ = fmt.Fprintln(said, testPython, script, folders)
	for _, folder := range append([]string{"../hwfeedback/harness", "../hwfeedback/harness/kwharness/*", "testdata"}, folders...) {
		files, err := filepath.Glob(filepath.Join(folder, "*.py"))
		if err != nil {
			return nil, err
		}
		for _, name := range files {
			b, err := os.ReadFile(name)
			if err != nil {
				return nil, err
			}
			_, _ = fmt.Fprintln(said, name, len(b))
			_, _ = said.Write(b)
		}
	}
	path := filepath.Join(cache, "graphs-"+strings.TrimSuffix(filepath.Base(script), ".py"))
	key := fmt.Sprintf("%x\n", said.Sum(nil))
	if known, err := os.ReadFile(path); err == nil && strings.HasPrefix(string(known), key) {
		return known[len(key):], nil
	}
	b, err := runScript(script, folders...)
	if err != nil {
		return nil, err
	}
	return b, wholefile.Write(path, append([]byte(key), b...))
}

// TestCandidatesAreRight captures every module of testdata/models.py, has the
// Coder write candidates with the default schedule and with other choices, and
// compares what they compute with float64.
func TestCandidatesAreRight(t *testing.T) { candidatesAreRight(t, input, 6, 61, 10) }

// Kernels in CUDA are run on the CPU, each thread on a stack of its own: what they compute
// is seen without a GPU, how fast is not.
func TestCUDACandidatesAreRight(t *testing.T) { candidatesAreRight(t, onGPU, 3, 301, 58) }

// coderDays is in how many days each candidate has its turn.
const coderDays = 7

// candidatesAreRight takes the default schedule of one case in so many, and of the
// other choices one in so many, more of those cases that threads share; soaking,
// every case's. Every day a part of them has its turn.
func candidatesAreRight(t *testing.T, input func(graphtest.Graph) kernelwright.CoderInput, cases, few, many int) {
	t.Helper()
	t.Parallel()
	long := soak.Long()
	if long {
		cases, few, many = 1, few/10, many/10
	}
	if testPython == "" {
		t.Skip("KERNELWRIGHT_TEST_PYTHON names no Python with torch: candidates are not run")
	}
	captured, err := captures()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	files, turn := 0, 0
	for i, f := range graphtest.Read(t, captured) {
		if string(f.Graph) == "null" {
			t.Errorf("%s: not captured: %s", f.Name, f.Note)
			continue
		}
		n := 0
		all := variants(t, f, input)
		for _, tag := range slices.Sorted(maps.Keys(all)) {
			n++
			every := few
			if strings.HasPrefix(f.Name, "large_") || strings.HasPrefix(f.Name, "wide_") {
				every = many
			}
			// The one case of a row that a team of blocks does not hold whole.
			always := (tag == "default" && (i%cases == 0 || strings.HasPrefix(f.Name, "held_"))) || tag == "lines" || tag == "persistent-1" || f.Name+"."+tag == "wide_softmax_beyond.team-2"
			if !always && (testing.Short() || (n+i)%every != 0) {
				if long {
					all[tag]() // what is not run is written at least
				}
				continue
			}
			if turn++; !soak.Turn(t, turn, coderDays) {
				continue
			}
			if err := os.WriteFile(filepath.Join(dir, f.Name+"."+tag+".py"), []byte(all[tag]()), 0o600); err != nil {
				t.Fatal(err)
			}
			files++
		}
	}
	checked, err := runScript("testdata/check.py", dir)
	if err != nil {
		t.Fatal(err)
	}
	right := 0
	for line := range strings.Lines(string(checked)) {
		var r struct{ File, Error string }
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		if r.Error != "" {
			t.Errorf("%s: %s", r.File, r.Error)
			continue
		}
		right++
	}
	t.Logf("%d of %d candidates are right, on day %d", right, files, soak.Day(t))
}

func itoa(n int) string { b, _ := json.Marshal(n); return string(b) }

func TestDeclines(t *testing.T) {
	var declined *kernelwright.DeclinedError
	for name, in := range map[string]kernelwright.CoderInput{
		"no graph": {Task: kernelwright.Task{GraphNote: "a shape depends on the data"}},
		"language": {Language: kernelwright.CUDA, Task: kernelwright.Task{Graph: []byte("{}")}},
		"nothing":  {Task: kernelwright.Task{Graph: []byte(`{"inputs":[],"nodes":[],"outputs":{"tuple":[]}}`)}},
	} {
		if _, err := (Builtin{}).Propose(context.Background(), in); !errors.As(err, &declined) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if _, err := (Builtin{}).Propose(context.Background(), kernelwright.CoderInput{Task: kernelwright.Task{Graph: []byte("{")}}); err == nil || errors.As(err, &declined) {
		t.Errorf("a broken graph is no reason to decline: %v", err)
	}
}
