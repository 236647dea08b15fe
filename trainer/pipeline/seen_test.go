package pipeline

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/trainer/gate"
	"github.com/kernelwright/kernelwright/trainer/policies"
)

// seen is what of a data folder may not change any more.
type seen struct {
	stages    map[string]string   // finished ones
	weights   map[string][32]byte // of their policies, by path
	gates     map[int64]string    // decided ones
	outcomes  map[int64]int       // by gate
	history   []policies.Promotion
	nights    int
	pipelines int64
	promoted  int // by gates
}

func newSeen() *seen {
	return &seen{stages: map[string]string{}, weights: map[string][32]byte{}, gates: map[int64]string{}, outcomes: map[int64]int{}}
}

// look examines a data folder in which a process was killed, and holds it against what was
// seen before.
func (k *seen) look(t *testing.T, folder string) {
	t.Helper()
	ctx := t.Context()
	path := filepath.Join(folder, store.FileName)
	if e, err := store.Examine(ctx, path, func(string) {}); err != nil || !e.Sound() {
		t.Fatalf("%+v, %v", e.Faults, err)
	}
	s, err := store.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	all, err := s.Pipelines(ctx, store.Page{Oldest: true})
	if err != nil {
		t.Fatal(err)
	}
	open := 0
	for i, p := range all {
		if p.FinishedMS == 0 && i < len(all)-1 {
			open++
		}
		k.lookAtStages(t, s, folder, p.ID)
	}
	if open > 0 {
		t.Errorf("%d pipelines were left behind", open)
	}
	k.pipelines = int64(len(all))
	spent, err := s.Nights(ctx, store.Page{})
	if err != nil || len(spent) < k.nights {
		t.Errorf("%d nights are recorded, and %d were, %v", len(spent), k.nights, err)
	}
	for i, n := range spent { // the latest first
		if n.Open() && i > 0 || n.Stop == store.NightFailed {
			t.Errorf("night %d of %d: %+v", n.ID, len(spent), n)
		}
	}
	k.nights = len(spent)
	k.lookAtPolicies(t, s, folder)
}

// lookAtStages: a finished stage stays as it is, its files too, and is not begun again.
func (k *seen) lookAtStages(t *testing.T, s *store.Store, folder string, pipeline int64) {
	t.Helper()
	stages, err := s.Stages(t.Context(), pipeline)
	if err != nil {
		t.Fatal(err)
	}
	for _, st := range stages {
		name := fmt.Sprintf("%s of pipeline %d", st.Stage, pipeline)
		if st.Attempt != 1 {
			t.Errorf("%s has attempt %d", name, st.Attempt)
		}
		before, finished := k.stages[name]
		if !st.Status.Finished() {
			if finished {
				t.Errorf("%s was finished, and is %s", name, st.Status)
			}
			continue
		}
		row, err := json.Marshal(st)
		if err != nil {
			t.Fatal(err)
		}
		if finished && before != string(row) {
			t.Errorf("%s was %s, and is %s", name, before, row)
		}
		k.stages[name] = string(row)
		var out Outputs
		if err := json.Unmarshal(st.Outputs, &out); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{out.Policy, out.Critic} {
			if path == "" {
				continue
			}
			now := weights(t, folder, path)
			if was, known := k.weights[path]; known && was != now {
				t.Errorf("%s: %s has changed", name, path)
			}
			k.weights[path] = now
		}
	}
	g, err := s.GateNamed(t.Context(), fmt.Sprintf("pipeline %d", pipeline))
	if err != nil {
		return // it has not begun
	}
	outcomes, err := s.GateOutcomes(t.Context(), g.ID)
	if err != nil || len(outcomes) < k.outcomes[g.ID] {
		t.Errorf("gate %d has %d outcomes, and had %d, %v", g.ID, len(outcomes), k.outcomes[g.ID], err)
	}
	k.outcomes[g.ID] = len(outcomes)
	decided := kernelwright.HashText(g.Decision + string(g.Detail))
	if was, known := k.gates[g.ID]; known && was != decided {
		t.Errorf("gate %d has decided otherwise", g.ID)
	}
	if g.Decision != "" {
		k.gates[g.ID] = decided
	}
}

// lookAtPolicies: each is there whole, what was promoted stays promoted, once, by a gate
// that decided so, and what serves can.
func (k *seen) lookAtPolicies(t *testing.T, s *store.Store, folder string) {
	t.Helper()
	ctx := t.Context()
	r := policies.Open(s, folder)
	all, err := r.List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if err := r.Check(ctx, p); err != nil {
			t.Error(err)
		}
	}
	history, err := r.History(ctx)
	if err != nil || len(history) < len(k.history) {
		t.Fatalf("%d promotions, and there were %d, %v", len(history), len(k.history), err)
	}
	by := map[int64]bool{}
	for i, h := range history {
		if i < len(k.history) && h != k.history[i] {
			t.Errorf("promotion %d was %+v, and is %+v", i, k.history[i], h)
		}
		g, err := s.Gate(ctx, h.Gate)
		if err != nil || by[h.Gate] || g.Decision != gate.Promoted || g.Candidate != fmt.Sprintf("policy:v%d", h.Policy) {
			t.Errorf("promotion %+v by gate %+v, %v", h, g, err)
		}
		by[h.Gate] = true
	}
	k.history, k.promoted = history, len(history)
}
