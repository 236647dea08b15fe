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
	"time"

	"github.com/kernelwright/kernelwright/internal/soak"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/trainer/gate"
)

// Nights of real programs and real verdicts, in a process that is killed and goes on,
// again and again: no result of a stage is lost or made twice, no policy is half promoted,
// and the last pipeline ends in the bits of one that nobody disturbed. In the shortest form it is
// killed once, within a step of PPO; in the long form wherever that falls.
func TestNightsThatAreKilled(t *testing.T) {
	if !soak.Turn(t, 0, 3) {
		t.Skip("it has its turn every third day: the programs of the stages are killed in turn with it")
	}
	t.Parallel()
	needs(t)
	folder, seen := newFolder(t), newSeen()
	kills := 1
	switch {
	case soak.Long():
		kills = 300
	case !soak.Daily():
		kills = 7
	}
	r := rand.New(rand.NewPCG(uint64(kills), 1))
	for kill := range kills {
		left := 1 + r.IntN(12)
		_, killed := start(t, folder, never, func(s said) bool {
			if kill == 0 {
				return s.Stage == Warmup && s.Part == "train" && s.Step == 1
			}
			if left--; left > 0 {
				return false
			}
			time.Sleep(time.Duration(r.IntN(300_000)) * time.Microsecond) // any moment will do
			return true
		})
		if !killed {
			t.Fatal("the nights ended")
		}
		seen.look(t, folder)
	}
	last := seen.pipelines
	start(t, folder, last, func(said) bool { return false })
	seen.look(t, folder)
	same(t, folder, last, last+1)
	t.Logf("%d kills in %d pipelines, of which %d were promoted", kills, last, seen.promoted)
	if soak.Long() && seen.promoted == 0 {
		t.Error("nothing was promoted, so that nothing could be promoted by half")
	}
}

// same holds a pipeline against another one of the same settings.
func same(t *testing.T, folder string, first, second int64) {
	t.Helper()
	s, err := store.Open(filepath.Join(folder, store.FileName))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	one, err := s.Stages(t.Context(), first)
	if err != nil {
		t.Fatal(err)
	}
	two, err := s.Stages(t.Context(), second)
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
		t.Errorf("pipeline %d has the stages %q", first, names)
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
			t.Errorf("%s: measured %s and %s", st.Stage, one[i].Outputs, st.Outputs)
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
	// Of no stage there are two attempts, and an undisturbed one took one start.
	for _, st := range two {
		if st.Starts != 1 {
			t.Errorf("%s was begun %d times though nobody disturbed it", st.Stage, st.Starts)
		}
	}
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
	r, err := gate.Read(t.Context(), s, fmt.Sprintf("pipeline %d", stages[0].Pipeline))
	if err != nil || r.Decision.All.Coder == nil || r.Decision.All.Coder.N != 2 || r.Reproduced == nil || !*r.Reproduced {
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
