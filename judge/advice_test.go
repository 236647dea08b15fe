package judge

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/coder"
)

// graphs are captured graphs of the built-in Coder's own tests.
func graphs(t *testing.T, names ...string) map[string]kernelwright.Task {
	t.Helper()
	f, err := os.Open("../coder/testdata/graphs.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	found := map[string]kernelwright.Task{}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var g struct {
			Name  string
			Graph json.RawMessage
		}
		if err := json.Unmarshal(lines.Bytes(), &g); err != nil {
			t.Fatal(err)
		}
		if slices.Contains(names, g.Name) {
			found[g.Name] = kernelwright.Task{Name: g.Name, Fingerprint: g.Name, Graph: g.Graph}
		}
	}
	if len(found) != len(names) {
		t.Fatalf("of %v there are %d", names, len(found))
	}
	return found
}

// plain takes back everything that the built-in Coder does by itself.
var plain = map[string]int{"vector": 1, "items": 1, "share": 1, "unroll": 1, "split": 0, "keep": 0, "passes": 3, "fuse": 0}

// The built-in Coder follows every piece of advice that a rule for a GPU gives:
// it writes other CUDA than before. Each rule that names knobs is heard by some
// example, from the schedule that it begins with or from a plain one, and when
// they have nothing more to say the search takes over and comes to an end.
func TestTheCoderFollowsTheRulesOnAGPU(t *testing.T) {
	// Few multiprocessors, so that small tensors fill them or not, as large ones do an H200's.
	device := h200
	device.Specs.Cores = 6
	// Different looks ask for the same after the same: it is written once.
	written := map[string]kernelwright.Candidate{}
	propose := func(task kernelwright.Task, last *kernelwright.Attempt, knobs map[string]int) kernelwright.Candidate {
		t.Helper()
		after := fmt.Sprintln(task.Name, knobs)
		if last != nil {
			after += last.Candidate.Source
		}
		if c, ok := written[after]; ok {
			return c
		}
		in := kernelwright.CoderInput{Task: task, Device: device, Language: kernelwright.CUDA, Last: last}
		if last != nil {
			in.Round, in.Feedback = 1, &kernelwright.Feedback{Kind: kernelwright.Optimisation, Knobs: knobs}
		}
		c, err := coder.Builtin{}.Propose(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		written[after] = c
		return c
	}
	looks := map[string]kernelwright.Verdict{}
	for kind, is := range kinds {
		looks[kind] = is.forward.verdict("ncu")
	}
	for kernel, m := range measuredOn(t, "h200") {
		looks[kernel] = m.verdict(h200, "ncu")
	}
	heard := map[string]bool{}
	exhausted := 0
	for name, task := range graphs(t, "softmax", "column_var", "block", "max_pool", "wide_argmax_all", "cumsum", "large_layer_norm", "group_norm_mish") {
		first := propose(task, nil, nil)
		taken := propose(task, &kernelwright.Attempt{Candidate: first, Verdict: kernelwright.Verdict{Status: kernelwright.Correct}}, plain)
		for start, c := range map[string]kernelwright.Candidate{"default": first, "plain": taken} {
			for kind, v := range looks {
				in := kernelwright.JudgeInput{Task: task, Device: device, Want: kernelwright.Optimisation, Current: kernelwright.Attempt{Candidate: c, Verdict: v}}
				for round := 0; ; round++ {
					if round > 60 {
						t.Fatalf("%s, %s, %s: it does not come to an end", name, start, kind)
					}
					f, err := Rules{}.Judge(t.Context(), in)
					if err != nil {
						t.Fatal(err)
					}
					if err := f.Validate(); err != nil {
						t.Fatal(err)
					}
					if f.Kind == kernelwright.Stop {
						exhausted++
						break
					}
					if f.Rule == "local_search" && (name != "softmax" || kind != "one load under way") {
						break
					}
					next := propose(task, &in.Current, f.Knobs)
					if len(f.Knobs) == 0 || next.Source == in.Current.Candidate.Source || (round > 0 && next.Source == c.Source) {
						t.Fatalf("%s, %s, %s: the Coder does not follow %+v", name, start, kind, f)
					}
					heard[f.Rule] = true
					in.History = append(in.History, kernelwright.Round{Index: round, Candidate: in.Current.Candidate, Verdict: in.Current.Verdict, Feedback: &f})
					slower := v // by more than the search goes on from
					slower.CandidateMS *= 1.2
					in.Current = kernelwright.Attempt{Candidate: next, Verdict: slower}
				}
			}
		}
	}
	if exhausted == 0 || !heard["local_search"] {
		t.Error("no search came to an end")
	}
	for _, r := range gpuRules {
		if r.name != "vendor_library" && r.name != "roofline_gap" && !heard[r.name] {
			t.Errorf("%s was never heard by the Coder: %v", r.name, slices.Sorted(maps.Keys(heard)))
		}
	}
}
