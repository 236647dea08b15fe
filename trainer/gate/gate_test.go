package gate

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/trainer/tasks"
)

func TestMain(m *testing.M) {
	if path := os.Getenv("KERNELWRIGHT_GATE_TEST_STORE"); path != "" {
		if err := hold(path); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// turn is an answer that was evaluated.
type turn struct{ task, player string }

// player answers by a truth: the same task and sample have the same outcome.
type player struct {
	name   string
	better float64

	played map[string]int
	seen   *[]turn                                     // by whoever shares it
	fails  func(task string, sample, played int) error // nil: never
	told   map[string]bool                             // of tasks that it was to prepare
}

// Prepare implements Player.
func (p *player) Prepare(ctx context.Context, all []tasks.Task) error {
	if p.told == nil {
		p.told = map[string]bool{}
	}
	for _, t := range all {
		p.told[t.Fingerprint] = true
	}
	return ctx.Err()
}

func (p *player) Name() string { return p.name }

func (p *player) Play(ctx context.Context, t tasks.Task, sample int) (Outcome, error) {
	if err := ctx.Err(); err != nil {
		return Outcome{}, err
	}
	key := fmt.Sprintf("%s/%d", t.Fingerprint, sample)
	if !p.told[t.Fingerprint] {
		panic(p.name + " is to answer what it has not prepared")
	}
	if p.played == nil {
		p.played = map[string]int{}
	}
	p.played[key]++
	n := p.played[key]
	if p.seen != nil {
		*p.seen = append(*p.seen, turn{t.Fingerprint, p.name})
	}
	if p.fails != nil {
		if err := p.fails(t.Fingerprint, sample, n); err != nil {
			return Outcome{}, err
		}
	}
	var seed [32]byte
	copy(seed[:], p.name+key)
	out := make([]Outcome, 1)
	world{Truth: DefaultTruth}.answer(rand.New(rand.NewChaCha8(seed)), out, 0.3+p.better, 0.9, 0.4)
	return out[0], nil
}

// heldTasks are held-out tasks that nobody has met.
func heldTasks(n int, name string) []tasks.Task {
	var out []tasks.Task
	for i := range n {
		for _, split := range heldOut {
			t := tasks.Task{Fingerprint: fmt.Sprintf("%s-%s-%d", name, split, i), Split: split}
			if split == store.KindsSplit && i%4 == 0 {
				t.Unseen = []string{"aten.minimum"}
			}
			out = append(out, t)
		}
	}
	return out
}

var testSettings = Settings{Tasks: 8, Samples: 3, Looks: 2, Alpha: 0.01, Beta: 0.05, Effect: 0.15, Margin: 0.1, Level: 0.05}

func openStore(t testing.TB, path string) *store.Store {
	t.Helper()
	s, err := store.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func testGate(r Record, name string) *Gate {
	return &Gate{Record: r, Name: name, Settings: testSettings, Seed: 3, nights: 9, Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
}

func TestAGateIsHeld(t *testing.T) {
	s := openStore(t, filepath.Join(t.TempDir(), store.FileName))
	ctx := t.Context()
	for i, c := range []struct {
		better   float64
		decision string
	}{{0.65, Promoted}, {-0.3, Refused}} {
		g := testGate(s, fmt.Sprint("gate ", i))
		held := heldTasks(10, g.Name)
		g.Coder, g.Unprotected = &player{name: "builtin"}, true
		var told Progress
		g.Progress = func(p Progress) { told = p }
		candidate, opponent := &player{name: fmt.Sprint("policy:v", i+2), better: c.better}, &player{name: "policy:v1"}
		d, err := g.Run(ctx, candidate, opponent, held)
		if err != nil || d.Decision != c.decision {
			t.Fatalf("%v: %+v", err, d)
		}
		if told.Played != told.Wanted || told.Look != d.Look {
			t.Errorf("told %+v at look %d", told, d.Look)
		}
		for key, n := range candidate.played {
			if n != 1 {
				t.Errorf("%s was played %d times", key, n)
			}
		}
		// It says the same again, without a play.
		played := len(candidate.played)
		again, err := g.Run(ctx, candidate, opponent, held)
		if err != nil || !reflect.DeepEqual(again, d) || len(candidate.played) != played {
			t.Errorf("again: %v, %+v, want %+v", err, again, d)
		}
		r, err := Read(ctx, s, g.Name)
		if err != nil || r.Reproduced == nil || !*r.Reproduced || !reflect.DeepEqual(r.Decision, d) || r.Answers != d.Tasks*(2*testSettings.Samples+1) {
			t.Errorf("%v: %+v", err, r)
		}
		checkPage(t, r, c.decision)
		// A player may have answered what is left over, so none of it serves another gate.
		for _, task := range held {
			if served, err := s.GateOf(ctx, task.Fingerprint); err != nil || served != g.Name {
				t.Errorf("%s served %q, %v", task.Fingerprint, served, err)
			}
		}
		var few *FewTasksError
		if _, err := testGate(s, "after "+g.Name).Run(ctx, candidate, opponent, held); !errors.As(err, &few) || few.Have != 0 {
			t.Errorf("the tasks of %s serve another one: %v", g.Name, err)
		}
	}
}

func checkPage(t *testing.T, r Report, decision string) {
	t.Helper()
	var page strings.Builder
	if err := Page(&page, r); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		": " + r.Candidate + " " + decision, "`training.protected` is empty", "| faster than torch.compile |", "compositions never seen: ",
		"kinds never trained on, with a primitive never trained on: ", "A B B A", "|  | builtin | ", "A candidate that is 15 points better is promoted in ", "| correct | ",
	} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("the page lacks %q:\n%s", want, page.String())
		}
	}
	// A record that was changed is seen.
	no := false
	r.Reproduced = &no
	page.Reset()
	if err := Page(&page, r); err != nil || !strings.Contains(page.String(), "do not give the recorded decision") {
		t.Errorf("%v: %s", err, page.String())
	}
}

// The policies take turns on each task, A B B A, before the next one is begun. Who is A is
// drawn, and the record has the draw.
func TestPoliciesTakeTurns(t *testing.T) {
	s := openStore(t, filepath.Join(t.TempDir(), store.FileName))
	var seen []turn
	candidate, opponent := &player{name: "policy:v2", seen: &seen}, &player{name: "policy:v1", seen: &seen}
	g := testGate(s, "night")
	g.Settings.Samples, g.Settings.Looks = 4, 1
	if _, err := g.Run(t.Context(), candidate, opponent, heldTasks(8, "t")); err != nil {
		t.Fatal(err)
	}
	begins := map[string]int{}
	for i := 0; i < len(seen); i += 8 {
		var order string
		for _, turn := range seen[i : i+8] {
			if turn.task != seen[i].task {
				t.Fatalf("%s is evaluated within %s", turn.task, seen[i].task)
			}
			order += map[bool]string{true: "A", false: "B"}[turn.player == seen[i].player]
		}
		if order != "ABBAABBA" {
			t.Errorf("%s: %s", seen[i].task, order)
		}
		begins[seen[i].player]++
	}
	if begins["policy:v1"] < 3 || begins["policy:v2"] < 3 || begins["policy:v1"]+begins["policy:v2"] != 16 {
		t.Errorf("tasks that a policy begins with: %v", begins)
	}
	r, err := Read(t.Context(), s, "night")
	if err != nil || r.Seed == nil || *r.Seed != g.Seed {
		t.Errorf("%+v, %v", r.Seed, err)
	}
}

// A gate that is cancelled goes on as one that was not.
func TestACancelledGateGoesOn(t *testing.T) {
	s := openStore(t, filepath.Join(t.TempDir(), store.FileName))
	held := heldTasks(8, "t")
	candidate, opponent := &player{name: "policy:v2", better: 0.2}, &player{name: "policy:v1"}
	stop := errors.New("a file came")
	stops := 0
	for {
		ctx, cancel := context.WithCancelCause(t.Context())
		g := testGate(s, "night")
		left := 7
		g.Progress = func(Progress) {
			if left--; left == 0 {
				cancel(stop)
			}
		}
		_, err := g.Run(ctx, candidate, opponent, held)
		cancel(nil)
		if err == nil {
			break
		}
		if stops++; !errors.Is(err, stop) || stops > 50 {
			t.Fatal(err)
		}
	}
	r, err := Read(t.Context(), s, "night")
	if err != nil || stops < 5 {
		t.Fatalf("%v after %d stops", err, stops)
	}
	whole := testGate(openStore(t, filepath.Join(t.TempDir(), store.FileName)), "night")
	d, err := whole.Run(t.Context(), &player{name: "policy:v2", better: 0.2}, &player{name: "policy:v1"}, held)
	if err != nil || !reflect.DeepEqual(d, r.Decision) {
		t.Errorf("%v: %+v, want %+v", err, r.Decision, d)
	}
}

// What has no outcome is tried again; a task that has none is void for both, and
// another one takes its place.
func TestATaskThatCannotBePlayedIsReplaced(t *testing.T) {
	s := openStore(t, filepath.Join(t.TempDir(), store.FileName))
	held := heldTasks(12, "t")
	down := errors.New("the server is down")
	candidate := &player{name: "policy:v2", better: 0.65, fails: func(task string, sample, played int) error {
		if task == held[3].Fingerprint || task == held[5].Fingerprint && played < tries {
			return down
		}
		return nil
	}}
	g := testGate(s, "night")
	d, err := g.Run(t.Context(), candidate, &player{name: "policy:v1"}, held)
	if err != nil || d.Decision != Promoted {
		t.Fatalf("%v: %+v", err, d)
	}
	r, err := Read(t.Context(), s, "night")
	if err != nil || len(r.Void) != 1 || r.Void[0].Task != held[3].Fingerprint || !strings.Contains(r.Void[0].Why, down.Error()) {
		t.Errorf("%v: %+v", err, r.Void)
	}
	if d.Tasks != 2*testSettings.Tasks {
		t.Errorf("it rests on %d tasks", d.Tasks)
	}
}

// A set of the size that is asked for has a task for each that may turn out void.
func TestVoidTasksLeaveEnough(t *testing.T) {
	held := heldTasks(testSettings.Held(), "t")
	lost := map[string]bool{}
	for _, task := range held[:testSettings.lossy()] {
		lost[task.Fingerprint] = true
	}
	candidate := &player{name: "policy:v2", better: 0.65, fails: func(task string, _, _ int) error {
		if lost[task] {
			return errors.New("the server is down")
		}
		return nil
	}}
	d, err := testGate(openStore(t, filepath.Join(t.TempDir(), store.FileName)), "night").Run(t.Context(), candidate, &player{name: "policy:v1"}, held)
	if err != nil || d.Decision != Promoted || d.Tasks != 2*testSettings.Tasks {
		t.Errorf("%v: %+v", err, d)
	}
}

// A machine on which nothing has an outcome decides nothing, and the gate goes on
// where it was when that is over.
func TestAMachineThatIsDownDecidesNothing(t *testing.T) {
	s := openStore(t, filepath.Join(t.TempDir(), store.FileName))
	held := heldTasks(8, "t")
	down := errors.New("the server is down")
	opponent := &player{name: "policy:v1", fails: func(string, int, int) error { return down }}
	g := testGate(s, "night")
	var unfit *UnfitError
	if _, err := g.Run(t.Context(), &player{name: "policy:v2", better: 0.65}, opponent, held); !errors.As(err, &unfit) || !errors.Is(err, down) {
		t.Fatal(err)
	}
	r, err := Read(t.Context(), s, "night")
	if err != nil || len(r.Void) != 0 || r.Decision.Decision != GoOn {
		t.Errorf("%v: %+v", err, r)
	}
	d, err := g.Run(t.Context(), &player{name: "policy:v2", better: 0.65}, &player{name: "policy:v1"}, held)
	if err != nil || d.Decision != Promoted {
		t.Errorf("%v: %+v", err, d)
	}
}

func TestGatesThatCannotBeHeld(t *testing.T) {
	s := openStore(t, filepath.Join(t.TempDir(), store.FileName))
	held := heldTasks(8, "t")
	v1, v2 := &player{name: "policy:v1"}, &player{name: "policy:v2", better: 0.65}
	bad := testGate(s, "bad")
	bad.Settings.Samples = 0
	var few *FewTasksError
	for name, c := range map[string]struct {
		gate                *Gate
		candidate, opponent Player
		held                []tasks.Task
		want                string
	}{
		"itself":       {testGate(s, "a"), v1, v1, held, "cannot be held against itself"},
		"no samples":   {bad, v2, v1, held, "number of samples has to be between 1 and 64"},
		"few tasks":    {testGate(s, "few"), v2, v1, held[:6], "needs 4 more tasks of the held-out set compositions, and 3 are left"},
		"one set only": {testGate(s, "one"), v2, v1, nil, "of the held-out set compositions, and 0 are left"},
	} {
		_, err := c.gate.Run(t.Context(), c.candidate, c.opponent, c.held)
		if name == "few tasks" && !errors.As(err, &few) {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := testGate(s, "held").Run(t.Context(), v2, v1, held); err != nil {
		t.Fatal(err)
	}
	if _, err := testGate(s, "held").Run(t.Context(), &player{name: "policy:v3"}, v1, held); err == nil || !strings.Contains(err.Error(), "holds policy:v2 against policy:v1, not policy:v3") {
		t.Error(err)
	}
}

// hold holds a gate in a process that may be killed. It prints a line for each
// outcome that it recorded.
func hold(path string) error {
	s, err := store.Open(path)
	if err != nil {
		return err
	}
	g := testGate(s, "night")
	g.Progress = func(Progress) { fmt.Println("recorded") }
	_, err = g.Run(context.Background(), &player{name: "policy:v2", better: 0.25}, &player{name: "policy:v1"}, heldTasks(8, "t"))
	return errors.Join(err, s.Close())
}

// A gate whose process is killed at any moment ends as one whose process was not:
// no outcome is lost that was recorded, and none is there twice.
func TestAKilledGateGoesOn(t *testing.T) {
	path := filepath.Join(t.TempDir(), store.FileName)
	kills := 0
	for before := 0; ; {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "KERNELWRIGHT_GATE_TEST_STORE="+path)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		seen := 0
		for limit := 4 + 3*kills; lines.Scan(); {
			if lines.Text() != "recorded" {
				t.Error(lines.Text())
			}
			if seen++; seen == limit {
				if err := cmd.Process.Kill(); err != nil {
					t.Error(err)
				}
			}
		}
		err = cmd.Wait()
		s := openStore(t, path)
		g, named := s.GateNamed(t.Context(), "night")
		if named != nil {
			t.Fatal(named)
		}
		outcomes, read := s.GateOutcomes(t.Context(), g.ID)
		if read != nil || len(outcomes) < before+seen {
			t.Fatalf("%v: of %d outcomes that were told of, %d are recorded", read, before+seen, len(outcomes))
		}
		if err == nil {
			break
		}
		before = len(outcomes)
		if kills++; kills > 20 {
			t.Fatal(err)
		}
	}
	if kills < 3 {
		t.Errorf("only %d processes were killed", kills)
	}
	s := openStore(t, path)
	killed, err := Read(t.Context(), s, "night")
	if err != nil {
		t.Fatal(err)
	}
	other := openStore(t, filepath.Join(t.TempDir(), store.FileName))
	d, err := testGate(other, "night").Run(t.Context(), &player{name: "policy:v2", better: 0.25}, &player{name: "policy:v1"}, heldTasks(8, "t"))
	if err != nil || !reflect.DeepEqual(killed.Decision, d) {
		t.Errorf("%v: %+v, want %+v", err, killed.Decision, d)
	}
	want, err := other.GateOutcomes(t.Context(), 1)
	if got, err2 := s.GateOutcomes(t.Context(), killed.ID); err != nil || err2 != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v: other outcomes: %d, want %d", err, err2, len(got), len(want))
	}
}
