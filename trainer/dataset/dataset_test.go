package dataset

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/audit"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/store"
)

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const key = "sk-live-0123456789"

// record has a run of the built-in Coder, one of a model, one with a key in its answer,
// and one without a round.
func record(t *testing.T) Source {
	t.Helper()
	s, err := store.Open(filepath.Join(t.TempDir(), store.FileName))
	ok(t, err)
	t.Cleanup(func() { ok(t, s.Close()) })
	ctx := t.Context()
	task := kernelwright.Task{Fingerprint: "f0", Name: "3_relu", Source: "import torch\nclass Model(torch.nn.Module): pass\ndef get_inputs(): return []\n", Operators: []string{"relu"}}
	ok(t, s.SaveTask(ctx, task))
	ok(t, s.SaveDevice(ctx, kernelwright.Device{Key: "0123456789ab", Kind: kernelwright.CPUDevice, Name: "a CPU"}))
	for i, coder := range []string{"builtin", "p:m", "p:m", "builtin"} {
		run, err := s.CreateRun(ctx, kernelwright.Run{Task: "f0", TaskName: "3_relu", Path: "/kb/level1/3_relu.py", Device: "cpu", DeviceKey: "0123456789ab", Strategy: "rounds", Coder: coder, Judge: "rules", Status: kernelwright.RunDone})
		ok(t, err)
		if i == 3 {
			continue
		}
		for n, status := range []kernelwright.Status{kernelwright.Wrong, kernelwright.Correct, kernelwright.Correct} {
			r := kernelwright.Round{RunID: run.ID, Index: n, Candidate: kernelwright.Candidate{Source: fmt.Sprintf("class ModelNew: # %d of %d", n, run.ID), Language: kernelwright.CPP, Note: "a try"}, Verdict: kernelwright.Verdict{Status: status, Reason: "so\xff"}}
			if status == kernelwright.Correct {
				r.Verdict.CandidateMS, r.Verdict.Reason = float64(5-n), ""
				r.Verdict.Speedup = &kernelwright.Speedup{Value: 2, Low: 1.9, High: 2.1, Against: "eager"}
				r.Verdict.Speedups = map[string]kernelwright.Speedup{"eager": {Value: 2, Low: 1.9, High: 2.1}, "compile": {Value: 1, Low: 0.9, High: 1.02}}
			}
			if n == 0 {
				r.Feedback = &kernelwright.Feedback{Kind: kernelwright.Correction, Issue: "an index", Fix: "mend it"}
			}
			if n == 2 {
				from := 0
				r.Parent = &from
			}
			ok(t, s.AppendRound(ctx, r))
			if coder == "p:m" {
				text := fmt.Sprintf("answer %d of run %d", n, run.ID)
				if i == 2 {
					text += " with " + key
				}
				ok(t, s.Append(ctx, llm.Record{
					Key: llm.Key{Run: run.ID, Round: n, Agent: "coder"}, Model: "p:m",
					Request: llm.Request{Messages: []llm.Message{{Role: llm.System, Text: "be quick"}, {Role: llm.User, Text: "go"}}},
					Reply:   llm.Reply{Text: text, ToolCalls: []llm.ToolCall{{ID: "1", Name: "compile", Arguments: "{}"}}},
				}))
			}
		}
		v := kernelwright.Verdict{Status: kernelwright.Certified, CandidateMS: float64(3 - i), Exported: fmt.Sprintf("import torch\nclass ModelNew(torch.nn.Module): pass # run %d\n", run.ID), Speedups: map[string]kernelwright.Speedup{"eager": {Value: 2, Low: 1.9, High: 2.1}, "compile": {Value: 1, Low: 0.9, High: 1.02}}}
		v.ExportedSHA256 = kernelwright.HashText(v.Exported)
		ok(t, s.SetCertificate(ctx, run.ID, 2, v))
	}
	return Source{Store: s, Secret: func(text string) bool { return strings.Contains(text, key) }, Each: func(ctx context.Context, give func(kernelwright.Run) error) error {
		runs, err := s.Runs(ctx, store.RunFilter{})
		for _, run := range runs {
			if err == nil {
				err = give(run)
			}
		}
		return err
	}}
}

func readLines(t *testing.T, path string) (rows []Row) {
	t.Helper()
	f, err := os.Open(path)
	ok(t, err)
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var row Row
		ok(t, json.Unmarshal(lines.Bytes(), &row))
		rows = append(rows, row)
	}
	return rows
}

func TestRunsAsRows(t *testing.T) {
	from := record(t)
	path := filepath.Join(t.TempDir(), "runs.jsonl")
	c, err := Write(t.Context(), path, from, Runs)
	ok(t, err)
	if c.Rows != 3 || c.Runs != 3 || c.Secrets != 0 || c.Empty != 1 || c.Tasks != 1 || c.Certified != 3 || c.Rewards["2"] != 3 {
		t.Errorf("%+v", c)
	}
	rows := readLines(t, path)
	if len(rows) != 3 || rows[0].ID != "run-3" || rows[2].ID != "run-1" {
		t.Fatalf("%+v", rows)
	}
	r := rows[2]
	// Round 2 goes on from round 0, so round 1 is not on the way.
	if len(r.Messages) != 4 || *r.Round != 2 || *r.Reward != 2 || *r.CandidateMS != 3 || r.Said || !strings.Contains(r.Messages[3].Content, "# 2 of 1") || !strings.Contains(r.Messages[2].Content, "Fix: mend it") {
		t.Errorf("%+v", r)
	}
	if text, err := os.ReadFile(path); err != nil || strings.Contains(string(text), "/kb/") || strings.Contains(string(text), key) {
		t.Errorf("a path or a key is in it: %v", err)
	}
	if _, err := Write(t.Context(), path, from, Runs); !errors.Is(err, fs.ErrExist) {
		t.Errorf("over a file: %v", err)
	}
}

func TestRoundsAsParquet(t *testing.T) {
	from := record(t)
	dir := t.TempDir()
	c, err := Write(t.Context(), filepath.Join(dir, "rounds.parquet"), from, Rounds)
	ok(t, err)
	if c.Rows != 6 || c.Secrets != 1 {
		t.Errorf("%+v", c)
	}
	_, err = Write(t.Context(), filepath.Join(dir, "rounds.jsonl"), from, Rounds)
	ok(t, err)
	rows, err := parquet.ReadFile[Row](filepath.Join(dir, "rounds.parquet"))
	ok(t, err)
	lines := readLines(t, filepath.Join(dir, "rounds.jsonl"))
	if len(rows) != 6 || !reflect.DeepEqual(asJSON(t, rows), asJSON(t, lines)) {
		t.Errorf("Parquet and JSON lines differ:\n%s\n%s", asJSON(t, rows), asJSON(t, lines))
	}
	r := rows[0]
	if r.ID != "run-2-round-0" || !r.Said || len(r.Messages) != 3 || r.Messages[2].ToolCalls[0].Function.Name != "compile" || *r.Reward != -1 || r.CandidateMS != nil || *r.Reason != "so\uFFFD" {
		t.Errorf("%+v", r)
	}
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	ok(t, err)
	return strings.ReplaceAll(string(b), `"tool_calls":null`, `"tool_calls":[]`)
}

// A folder is a dataset: its card describes every column, and PyArrow, which datasets
// reads with, reads its files.
func TestAFolderIsADataset(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kernels")
	_, err := Write(t.Context(), path, record(t), Rounds)
	ok(t, err)
	text, err := os.ReadFile(filepath.Join(path, "README.md"))
	ok(t, err)
	of := reflect.TypeFor[Row]()
	if of.NumField() != len(columns) {
		t.Errorf("%d columns, and %d are described", of.NumField(), len(columns))
	}
	for i := range of.NumField() {
		field := of.Field(i)
		if name := field.Tag.Get("json"); name != columns[i][0] || !strings.HasPrefix(field.Tag.Get("parquet"), name) {
			t.Errorf("column %d is %s, described is %s", i, name, columns[i][0])
		}
	}
	for _, part := range []string{"path: data/train-*.parquet", "| rows | 6 |", "| p:m | 3 |", "what looks like a secret | 1 |", "load_dataset"} {
		if !strings.Contains(string(text), part) {
			t.Errorf("%q is not in the card:\n%s", part, text)
		}
	}
	python, training := os.Getenv("KERNELWRIGHT_TEST_PYTHON"), os.Getenv("KERNELWRIGHT_TEST_TRAINING")
	if python == "" || training == "" {
		t.Skip("KERNELWRIGHT_TEST_PYTHON and KERNELWRIGHT_TEST_TRAINING name no Python with PyArrow")
	}
	read := exec.CommandContext(t.Context(), python, "-c", `
import glob, sys
import pyarrow.parquet as pq
files = glob.glob(sys.argv[1] + "/data/train-*.parquet")
rows = [row for f in files for row in pq.read_table(f).to_pylist()]
assert [m["role"] for m in rows[0]["messages"]] == ["system", "user", "assistant"], rows
assert rows[2]["reward"] == 2 and rows[2]["policy"] is None and rows[3]["messages"][0]["tool_calls"] == [], rows
`, path)
	read.Env = append(os.Environ(), "PYTHONPATH="+training)
	if said, err := read.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, said)
	}
}

// What was interrupted leaves nothing.
func TestNothingHalfIsLeft(t *testing.T) {
	from := record(t)
	ctx, cancel := context.WithCancel(t.Context())
	each := from.Each
	from.Each = func(ctx context.Context, give func(kernelwright.Run) error) error {
		return each(ctx, func(run kernelwright.Run) error { cancel(); return errors.Join(give(run), ctx.Err()) })
	}
	for _, name := range []string{"a.jsonl", "a.parquet", "a"} {
		dir := t.TempDir()
		if _, err := Write(ctx, filepath.Join(dir, name), from, Runs); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("%s: %v %v", name, left, err)
		}
	}
}

// An export is read by audit as KernelBench's folders are.
func TestKernelBench(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kb")
	c, err := KernelBench(t.Context(), path, record(t))
	ok(t, err)
	if c.Rows != 1 || c.Tasks != 1 || c.Devices["cpu"] != 1 {
		t.Errorf("%+v", c)
	}
	set, err := audit.Find(path, nil)
	ok(t, err)
	defer set.Close()
	if len(set.Pairs) != 1 {
		t.Fatalf("%+v", set)
	}
	reference, err := set.Pairs[0].Reference.ReadReference()
	ok(t, err)
	candidate, err := set.Pairs[0].Candidate.ReadCandidate()
	ok(t, err)
	if !strings.Contains(reference, "get_inputs") || !strings.Contains(candidate, "# run 3") {
		t.Errorf("%q %q", reference, candidate)
	}
	for _, file := range []string{"KernelBench/level1/3_relu.py", "runs/kernelwright-cpu-01234567/level_1_problem_3_sample_0_kernel.py", "index.jsonl"} {
		if _, err := os.Stat(filepath.Join(path, file)); err != nil {
			t.Error(err)
		}
	}
}
