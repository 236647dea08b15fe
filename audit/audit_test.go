package audit

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright"
)

const (
	aReference = "import torch\n\n\nclass Model:\n    pass\n\n\ndef get_inputs():\n    return []\n\n\ndef get_init_inputs():\n    return []\n"
	aCandidate = "class ModelNew:\n    pass\n"
)

// lay writes files below a folder.
func lay(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// told writes a set as lines: candidate, reference or why there is none, claim.
func told(dir string, s Set) (lines []string) {
	for _, p := range s.Pairs {
		at := func(x Text) string {
			if err := x.Err(); err != nil {
				return "(" + err.Error() + ")"
			}
			below, _ := filepath.Rel(dir, x.Label)
			return below
		}
		line := at(p.Candidate) + " < " + at(p.Reference)
		if p.Claim != nil {
			line += " " + p.Claim.Against
		}
		lines = append(lines, line)
	}
	return lines
}

func TestLayouts(t *testing.T) {
	bench := map[string]string{
		"KernelBench/level1/3_relu.py": aReference, "KernelBench/level1/13_gelu.py": aReference,
		"KernelBench/level2/3_both.py": aReference,
	}
	with := func(more map[string]string) map[string]string {
		all := map[string]string{}
		for _, files := range []map[string]string{bench, more} {
			for name, text := range files {
				all[name] = text
			}
		}
		return all
	}
	const noReference = "(no reference was found for it)"
	for name, c := range map[string]struct {
		files      map[string]string
		at         string
		references []string
		want       []string
	}{
		"a checkout of KernelBench with runs": {
			files: with(map[string]string{
				"runs/a/level_1_problem_3_sample_0_kernel.py": aCandidate, "runs/a/level_1_problem_3_sample_1_kernel.py": "class Mod",
				"runs/a/level_1_problem_99_sample_0_kernel.py": aCandidate,
				"runs/a/eval_results.json":                     `{"3": [{"sample_id": 0, "runtime": 2.0, "ref_runtime": 3.0}]}`,
				"runs/b/level_1_problem_3_sample_0_kernel.py":  aCandidate, "runs/b/level_2_problem_3_sample_0_kernel.py": aCandidate,
				"runs/b/eval_results.json": `{"3": [{"sample_id": 0, "runtime": 2.0, "ref_runtime": 3.0}]}`,
			}),
			want: []string{
				"runs/a/level_1_problem_3_sample_0_kernel.py < KernelBench/level1/3_relu.py eager",
				"runs/a/level_1_problem_3_sample_1_kernel.py < KernelBench/level1/3_relu.py",
				"runs/a/level_1_problem_99_sample_0_kernel.py < " + noReference,
				"runs/b/level_1_problem_3_sample_0_kernel.py < KernelBench/level1/3_relu.py", // of which level is the claim?
				"runs/b/level_2_problem_3_sample_0_kernel.py < KernelBench/level2/3_both.py",
			},
		},
		"one run of it": {
			files: with(map[string]string{"runs/a/level_1_problem_13_sample_0_kernel.py": aCandidate}), at: "runs/a",
			want: []string{"runs/a/level_1_problem_13_sample_0_kernel.py < KernelBench/level1/13_gelu.py"},
		},
		"references that are named": {
			files: with(map[string]string{"mine/13_gelu/best_kernel.py": aCandidate, "mine/level1/3_relu.py": aCandidate, "mine/unknown.py": aCandidate}), at: "mine", references: []string{"KernelBench"},
			want: []string{
				"mine/13_gelu/best_kernel.py < KernelBench/level1/13_gelu.py",
				"mine/level1/3_relu.py < KernelBench/level1/3_relu.py",
				"mine/unknown.py < (none of 3 references that were named fits its name)",
			},
		},
		"one reference for all": {
			files: map[string]string{"ref.py": aReference, "c/a.py": aCandidate, "c/b.py": aCandidate}, at: "c", references: []string{"ref.py"},
			want: []string{"c/a.py < ref.py", "c/b.py < ref.py"},
		},
		"folders with a reference each": {
			files: map[string]string{
				"x/reference.py": aReference, "x/one.py": aCandidate, "x/two.py": aCandidate, "x/helper.py": "import os\n", "x/kernel_3.py": "def broken(", "x/x.best.py": aCandidate,
				"y/task.py": aReference, "y/whatever.py": "no python at all", "z/model.py": aReference, "z/kernel.cu": "__global__",
				"w/notes.py": "import os\n", ".hidden/a.py": aCandidate, "lone/a.py": aCandidate,
			},
			want: []string{
				"(w/notes.py is neither a reference nor a candidate) < (w/notes.py is neither a reference nor a candidate)", "lone/a.py < " + noReference,
				"x/kernel_3.py < x/reference.py", "x/one.py < x/reference.py", "x/two.py < x/reference.py",
				"y/whatever.py < y/task.py", "z/kernel.cu < z/model.py",
			},
		},
		"work folders": {
			files: map[string]string{"w/model.py": aReference, "w/model_new.py": aCandidate, "w/kernels/a.cu": "x", "w/kernels/b.py": aCandidate},
			want:  []string{"w < w/model.py"},
		},
		"bare sources": {
			files: map[string]string{
				"a/ref_0.py": aReference, "a/ref_1.py": aReference, "a/kernel_0.cu": "__global__", "a/kernel_1.cpp": "int f();",
				"b/alone.cu": "__global__", "c/new.py": aCandidate, "c/csrc/part.cu": "__global__", "c/model.py": aReference, "d/model_new.py": aCandidate, "d/kernels/x.cu": "x", "d/ref.py": aReference,
			},
			want: []string{
				"a/kernel_0.cu < a/ref_0.py", "a/kernel_1.cpp < a/ref_1.py", "b/alone.cu < " + noReference, "c/new.py < c/model.py", "d < d/ref.py",
			},
		},
		"bare sources of references that are named": {
			files: with(map[string]string{"mine/3_relu.cu": "__global__", "mine/13_gelu.cu": "__global__", "mine/helpers.cpp": "int f();"}), at: "mine", references: []string{"KernelBench/level1"},
			want: []string{
				"mine/13_gelu.cu < KernelBench/level1/13_gelu.py", "mine/3_relu.cu < KernelBench/level1/3_relu.py",
				"mine/helpers.cpp < (none of 2 references that were named fits its name)",
			},
		},
		"several references in one folder, by name": {
			files: map[string]string{"ref_0.py": aReference, "test_kernel_0.py": aCandidate, "model_ex_add.py": aReference, "model_new_ex_add.py": aCandidate, "other.py": aCandidate},
			want: []string{
				"model_new_ex_add.py < model_ex_add.py",
				"other.py < (several references lie beside it, and none has its name)",
				"test_kernel_0.py < ref_0.py",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := lay(t, c.files)
			var references []string
			for _, r := range c.references {
				references = append(references, filepath.Join(dir, r))
			}
			set, err := Find(filepath.Join(dir, c.at), references)
			if err != nil {
				t.Fatal(err)
			}
			if got := slices.Sorted(slices.Values(told(dir, set))); !slices.Equal(got, c.want) {
				t.Errorf("%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
		})
	}
}

func TestJSON(t *testing.T) {
	const pair = `{"reference": "class Model:\n", "candidate": "class ModelNew:\n", "claimed": 1.5}`
	for name, c := range map[string]struct {
		text string
		want []string
	}{
		"lines": {
			pair + "\n\nnonsense\n" + `{"ref_code": "r.py", "custom_code": "c.py", "score_default": 2, "level_id": 1, "task_id": 7}` + "\n" + `{"reference": "r.py"}` + "\n" + `{"reference": "r.py", "candidate": null}`,
			[]string{
				"set.jsonl:1 < set.jsonl:1 eager", "(the line is not JSON) < (the line is not JSON)", "c.py < r.py eager",
				"(it has no reference and candidate) < (it has no reference and candidate)", "(no candidate was published for it) < r.py",
			},
		},
		"a list":                     {"[" + pair + ",\n" + pair + ", 3]", []string{"set.jsonl:1 < set.jsonl:1 eager", "set.jsonl:2 < set.jsonl:2 eager", "(it has no reference and candidate) < (it has no reference and candidate)"}},
		"objects over several lines": {"{\n" + pair[1:] + "\n{\n" + pair[1:], []string{"set.jsonl:1 < set.jsonl:1 eager", "set.jsonl:2 < set.jsonl:2 eager"}},
		"a list that breaks off":     {"[" + pair + ", {", []string{"set.jsonl:1 < set.jsonl:1 eager", "(from here on the file is not JSON: unexpected EOF) < (from here on the file is not JSON: unexpected EOF)"}},
		"another baseline":           {`{"reference": "r.py", "candidate": "c.py", "claimed": 2, "claimed_against": "compile"}`, []string{"c.py < r.py compile"}},
		"the same twice":             {strings.Repeat(`{"reference": "r.py", "candidate": "c.py"}`+"\n", 2), []string{"c.py < r.py", "c.py (2) < r.py"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := lay(t, map[string]string{"set.jsonl": c.text, "r.py": aReference, "c.py": aCandidate})
			set, err := Find(filepath.Join(dir, "set.jsonl"), nil)
			if err != nil {
				t.Fatal(err)
			}
			if got := told(dir, set); !slices.Equal(got, c.want) {
				t.Errorf("%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
			for _, p := range set.Pairs {
				if p.Candidate.Err() != nil {
					continue
				}
				if text, err := p.Candidate.ReadCandidate(); err != nil || !strings.HasPrefix(text, "class ModelNew:") {
					t.Errorf("%s: %q, %v", p.Candidate.Label, text, err)
				}
			}
		})
	}
}

// A set is a stranger's: it names no file outside of its folder.
func TestJSONStaysInItsFolder(t *testing.T) {
	dir := lay(t, map[string]string{
		"outside.py":    aCandidate,
		"set/in/c.py":   aCandidate,
		"set/r.py":      aReference,
		"set/set.jsonl": `{"reference": "r.py", "candidate": "in/c.py"}` + "\n" + `{"reference": "r.py", "candidate": "../outside.py"}` + "\n" + `{"reference": "r.py", "candidate": "/etc/passwd"}` + "\n" + `{"reference": "r.py", "candidate": "link.py"}` + "\n" + `{"reference": "r.py", "candidate": "\u0000"}`,
	})
	if err := os.Symlink("../outside.py", filepath.Join(dir, "set", "link.py")); err != nil {
		t.Fatal(err)
	}
	set, err := Find(filepath.Join(dir, "set", "set.jsonl"), nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range set.Pairs {
		text, err := p.Candidate.ReadCandidate()
		if want := i == 0; (err == nil) != want || !want && text != "" {
			t.Errorf("%s: %q, %v", p.Candidate.Label, text, err)
		}
	}
}

func TestNoPairs(t *testing.T) {
	dir := lay(t, map[string]string{"refs/1_a.py": aReference, "refs/2_b.py": aReference, "a.py": aCandidate, "empty/x.txt": "", "empty.jsonl": "", "other.json": `{"a": 1}`, "bare/x/a.cu": "__global__", "broken.parquet": "PAR1"})
	for at, want := range map[string]string{
		"nowhere":        "there is no file or folder ",
		"refs":           "there are no pairs of a reference and a candidate in ",
		"empty":          "there are no pairs ",
		"empty.jsonl":    "there are no pairs ",
		"bare":           "beside none of its 1 files of bare C++ or CUDA (",
		"broken.parquet": "broken.parquet cannot be read as Parquet: ",
		"a.py":           " is neither a folder nor JSON nor Parquet",
	} {
		if _, err := Find(filepath.Join(dir, at), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", at, err, want)
		}
	}
	for _, references := range []string{"nowhere", "empty"} {
		if _, err := Find(dir, []string{filepath.Join(dir, references)}); err == nil {
			t.Errorf("references in %s: no error", references)
		}
	}
	// One of its own is no pair, but names what it lacks.
	set, err := Find(filepath.Join(dir, "other.json"), nil)
	if err != nil || len(set.Pairs) != 1 || set.Pairs[0].Candidate.Err() == nil {
		t.Errorf("%+v, %v", set, err)
	}
}

func TestClaimsOfKernelBench(t *testing.T) {
	dir := lay(t, map[string]string{"eval_results.json": `{"3": [{"sample_id": "1", "runtime": 2, "ref_runtime": 5}, {"sample_id": 0, "runtime": 4}], "5": {"sample_id": 0, "runtime": 1, "ref_runtime": 3}, "6": {"sample_id": 0, "runtime": 1e-320, "ref_runtime": 1e300}}`})
	claims, problems := claimsOf(dir)
	if problems != nil {
		t.Error(problems)
	}
	for name, want := range map[string]*kernelwright.Claim{
		"level_1_problem_3_sample_1_kernel.py": {Speedup: 2.5, Against: "eager"},
		"level_1_problem_3_sample_0_kernel.py": nil, // it was never timed against anything
		"level_1_problem_4_sample_0_kernel.py": nil,
		"level_1_problem_5_sample_0_kernel.py": {Speedup: 3, Against: "eager"},
		"level_1_problem_6_sample_0_kernel.py": nil, // no number
	} {
		got := claims.of(name)
		if (got == nil) != (want == nil) || got != nil && *got != *want {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// What a run claims and cannot be read is told, and nothing else is lost.
func TestClaimsThatCannotBeRead(t *testing.T) {
	for text, want := range map[string]string{
		"{":    "it is no JSON object by problem: unexpected end of JSON input (at byte 1)",
		"[1]":  "it is no JSON object by problem: it is something else",
		"null": "",
		`{"3": [{"sample_id": 0, "runtime": "fast"}, {"sample_id": 1, "runtime": 2, "ref_runtime": 5}], "4": 7}`: "what it says of 2 of 2 problems is no list of samples with numbers: 3, 4",
	} {
		set := found(t, map[string]string{
			"KernelBench/level1/3_relu.py": aReference, "runs/level_1_problem_3_sample_1_kernel.py": aCandidate, "runs/eval_results.json": text,
		})
		var told []string
		for _, p := range set.Pairs {
			if !p.IsPair() {
				told = append(told, filepath.Base(p.Candidate.Label)+": "+p.Candidate.Err().Error())
			} else if claimed := p.Claim != nil; claimed != strings.Contains(text, `"ref_runtime": 5`) {
				t.Errorf("%s: %+v", text, p.Claim)
			}
		}
		if want != "" {
			want = "eval_results.json: " + want
		}
		if got := strings.Join(told, "; "); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
		got, err := audited(t, set, &Run{Devices: []Device{newDouble()}, Record: newMemory()})
		if err != nil || got["level_1_problem_3_sample_1_kernel.py"] != kernelwright.Correct || (got["eval_results.json"] == kernelwright.NoClaims) != (want != "") {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
}

// A folder has other JSON, too; what holds code in fields of other names is told.
func TestTablesWithOtherNames(t *testing.T) {
	t.Parallel()
	line := func(fields map[string]string) string {
		text, err := json.Marshal(fields)
		if err != nil {
			t.Fatal(err)
		}
		return string(text) + "\n"
	}
	odd := line(map[string]string{"My_Ref": aReference, "kernel_src": aCandidate, "note": "by hand"})
	files := map[string]string{"config.json": `{"layers": 2, "note": "class of Model"}`, "odd.jsonl": odd}
	const said = "odd.jsonl holds code in fields whose names are not known: My_Ref, kernel_src"
	var none *NoPairsError
	if _, err := Find(lay(t, files), nil); !errors.As(err, &none) || !strings.HasSuffix(err.Error(), ": "+said) || !strings.HasPrefix(none.Hint, fieldsWanted) {
		t.Error(err)
	}
	files["a/reference.py"], files["a/kernel.py"] = aReference, aCandidate
	files["b/other.py"] = "import os\n"
	files["lines.jsonl"] = line(map[string]string{"reference": aReference, "candidate": aCandidate})
	set := found(t, files)
	if last := set.Pairs[len(set.Pairs)-1]; set.Count() != 2 || len(set.Pairs) != 3 || last.IsPair() || last.Candidate.Err().Error() != filepath.Join("b", "other.py")+" is neither a reference nor a candidate; "+said {
		t.Errorf("%d of %d, %v", set.Count(), len(set.Pairs), set.Pairs[len(set.Pairs)-1].Candidate.Err())
	}
}
