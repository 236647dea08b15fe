package pipeline

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/kernelwright/kernelwright/internal/soak"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/trainer/gate"
)

// Every stage, with real programs and real verdicts, in a process that is killed within
// a step of PPO and goes on: that stage ends in the bits of a pipeline that nobody
// disturbed, and no stage is lost or done twice. Once a week the bits of all are compared.
func TestAKilledPipelineEndsInTheSameBits(t *testing.T) {
	t.Parallel()
	needs(t)
	folder := newFolder(t)
	_, killed := start(t, folder, func(s said) bool { return s.Stage == Warmup && s.Part == "train" && s.Step == 1 })
	if !killed {
		t.Fatal("the warm-up has no first step")
	}
	start(t, folder, func(said) bool { return false })
	same(t, folder)
}

// The same with kills wherever they fall.
func TestAPipelineThatIsKilledManyTimes(t *testing.T) {
	soak.Weekly(t)
	t.Parallel()
	needs(t)
	kills := 6
	if soak.Long() {
		kills = 40
	}
	folder := newFolder(t)
	r := rand.New(rand.NewPCG(uint64(kills), 1))
	for range kills {
		left := 1 + r.IntN(12)
		_, killed := start(t, folder, func(s said) bool {
			left--
			return left <= 0
		})
		if !killed {
			break
		}
	}
	start(t, folder, func(said) bool { return false })
	same(t, folder)
}

// same holds pipeline 1 against pipeline 2.
func same(t *testing.T, folder string) {
	t.Helper()
	s, err := store.Open(filepath.Join(folder, store.FileName))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	one, err := s.Stages(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	two, err := s.Stages(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, st := range one {
		names = append(names, st.Stage)
		if !st.Status.Finished() || st.Attempt != 1 {
			t.Errorf("%s, attempt %d: %s %s", st.Stage, st.Attempt, st.Status, st.Reason)
		}
	}
	slices.Sort(names)
	want := Names()
	slices.Sort(want)
	if !slices.Equal(names, want) {
		t.Errorf("pipeline 1 has the stages %q", names)
	}
	compared := 0
	for _, st := range two {
		i := slices.IndexFunc(one, func(o store.Stage) bool { return o.Stage == st.Stage })
		if i < 0 {
			continue
		}
		var a, b Outputs
		if err := json.Unmarshal(one[i].Outputs, &a); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(st.Outputs, &b); err != nil {
			t.Fatal(err)
		}
		for _, path := range [][2]string{{a.Policy, b.Policy}, {a.Critic, b.Critic}} {
			if path[0] == "" {
				continue
			}
			x, y := weights(t, folder, path[0]), weights(t, folder, path[1])
			if x != y {
				t.Errorf("%s: %s and %s differ", st.Stage, path[0], path[1])
			}
			compared++
		}
		if h := b.HeldOut; h != nil && (a.HeldOut == nil || fmt.Sprint(*a.HeldOut.Kinds, *a.HeldOut.Compositions) != fmt.Sprint(*h.Kinds, *h.Compositions)) {
			t.Errorf("%s: measured %+v and %+v", st.Stage, a.HeldOut, b.HeldOut)
		}
	}
	least := 6
	if soak.Daily() {
		least = 2
	}
	if compared < least {
		t.Errorf("only %d policies and critics were compared", compared)
	}
	learned(t, folder, one)
}

// learned: PPO met right and wrong answers, and moved the weights; the gate decided.
func learned(t *testing.T, folder string, stages []store.Stage) {
	t.Helper()
	out := map[string]Outputs{}
	for _, st := range stages {
		var o Outputs
		if err := json.Unmarshal(st.Outputs, &o); err != nil {
			t.Fatal(err)
		}
		out[st.Stage] = o
		if slices.Contains([]string{Warmup, Collect, Agentic}, st.Stage) && st.Verdicts == 0 {
			t.Errorf("%s had no verdict", st.Stage)
		}
	}
	t.Logf("%.0f %% of what was collected is correct", 100*out[Collect].Counts["correct"])
	if weights(t, folder, out[Bootstrap].Policy) == weights(t, folder, out[Warmup].Policy) {
		t.Error("the warm-up left the weights as they were")
	}
	if d := out[GateStage].Decision; d != gate.Promoted && d != gate.Refused {
		t.Errorf("the gate decided %q", d)
	}
	s, err := store.Open(filepath.Join(folder, store.FileName))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	r, err := gate.Read(t.Context(), s, "pipeline 1")
	if err != nil || r.Decision.All.Coder == nil || r.Decision.All.Coder.N != 2 {
		t.Errorf("the built-in Coder beside the gate: %+v, %v", r.Decision.All.Coder, err)
	}
}

// weights is the digest of a model's.
func weights(t *testing.T, folder, within string) [32]byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(folder, within, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	return sha256.Sum256(text)
}
