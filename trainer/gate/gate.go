// Package gate decides whether a policy serves: it holds it against the best one
// that ever served, on held-out tasks that no other gate has had, and promotes it
// only where it is shown to be better. docs/gate.md has the rule, and its error
// rates.
package gate

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"

	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/trainer/tasks"
)

// Player answers tasks: a policy that is served, or the built-in Coder.
type Player interface {
	// Name is as a Coder is named: "policy:v3", "builtin".
	Name() string
	// Prepare has the player write its answers to tasks, all that are evaluated next: a batch
	// takes as long as one, and nothing is measured meanwhile. It is told of a task again where
	// a gate goes on. An error ends the gate, which goes on later.
	Prepare(ctx context.Context, all []tasks.Task) error
	// Play has the player's answer to a task evaluated, one for each number of a sample,
	// and returns what the hardware said. It is called by one at a time, in the order in
	// which the answers are to be measured. An error is of the infrastructure: there is no
	// outcome then.
	Play(ctx context.Context, t tasks.Task, sample int) (Outcome, error)
}

// Record is where gates are kept (*store.Store). It is written to before anything
// follows from what is written.
type Record interface {
	BeginGate(ctx context.Context, g store.Gate) (store.Gate, error)
	GateOf(ctx context.Context, fingerprint string) (string, error)
	UseInGate(ctx context.Context, gate string, fingerprints []string) error
	AddGateTasks(ctx context.Context, gate int64, all []store.GateTask) error
	VoidGateTask(ctx context.Context, gate int64, place int, why string) error
	SaveGateOutcome(ctx context.Context, gate int64, o store.GateOutcome) error
	DecideGate(ctx context.Context, gate int64, decision string, detail json.RawMessage) error
	Reader
}

// Reader is what a page of a gate is read from.
type Reader interface {
	GateNamed(ctx context.Context, name string) (store.Gate, error)
	GateTasks(ctx context.Context, gate int64) ([]store.GateTask, error)
	GateOutcomes(ctx context.Context, gate int64) ([]store.GateOutcome, error)
}

// Gate holds a policy against another one.
type Gate struct {
	Record      Record
	Name        string   // of what holds it: the same name goes on with it
	Settings    Settings // of a gate that begins; one that goes on has its own
	Coder       Player   // the built-in one, one answer a task; nil: nobody stands beside
	Unprotected bool     // training.protected is empty
	Seed        uint64   // of a gate that begins: draws whose answers come first
	Log         *slog.Logger
	Progress    func(Progress) // nil: nobody is told

	nights int // that are simulated when it begins; 0: StrengthNights
}

// Progress is how far a gate is.
type Progress struct {
	Look, Looks    int // from 1
	Played, Wanted int // answers up to this look
}

// terms are what a gate is held under, as they are recorded when it begins.
type terms struct {
	Settings
	Rule        int    `json:"rule"` // of Decide
	Unprotected bool   `json:"unprotected"`
	Coder       string `json:"coder"` // empty: nobody stood beside
	// Seed draws which policy begins with each task; nil: the gate is of a version in which
	// they did not take turns.
	Seed *uint64 `json:"seed"`
	// Powers are what simulated nights say of these settings.
	Powers []Strength `json:"powers"`
}

// Strength is what simulated nights say of a candidate that is so much better.
type Strength struct {
	Gain float64 `json:"gain"`
	Power
}

// rule is raised whenever Decide comes to decide otherwise.
const rule = 2

// StrengthNights are simulated when a gate begins: docs/gate.md has more of them.
const StrengthNights = 1000

// Strengths simulates nights with settings, for an equal, a better and a worse
// candidate.
func Strengths(s Settings, nights int) []Strength {
	var out []Strength
	for _, gain := range []float64{0, s.Effect, -0.05} {
		out = append(out, Strength{gain, Simulate(s, DefaultTruth.Better(gain), nights, 1)})
	}
	return out
}

// FewTasksError says that a held-out set has too few tasks that served no gate.
type FewTasksError struct {
	Split        store.Split
	Wanted, Have int
}

func (e *FewTasksError) Error() string {
	return fmt.Sprintf("the gate needs %d more tasks of the held-out set %s, and %d are left that have served no gate", e.Wanted, e.Split, e.Have)
}

// UnfitError says that too many answers had no outcome. Nothing was decided.
type UnfitError struct {
	Tasks int // that could not be played
	Err   error
}

func (e *UnfitError) Error() string {
	return fmt.Sprintf("the gate cannot be held here: %d tasks could not be played to their end; the last one: %v", e.Tasks, e.Err)
}

func (e *UnfitError) Unwrap() error { return e.Err }

// tries is how often an answer is asked for that has no outcome.
const tries = 3

// Run holds the gate to its decision. Every outcome is recorded as it comes; a
// gate that was stopped, or whose process was killed, goes on where it was, and
// one that has decided says so again. Of held it takes the tasks that have served
// no gate, in their order. All of held serves no other one, also what an early
// decision leaves over.
//
// An error decides nothing: *FewTasksError, *UnfitError, the record's, or ctx's.
func (g *Gate) Run(ctx context.Context, candidate, opponent Player, held []tasks.Task) (Decision, error) {
	r, err := g.begin(ctx, candidate, opponent, held)
	if err != nil {
		return Decision{}, err
	}
	if r.gate.Decision != "" {
		var d Decision
		return d, json.Unmarshal(r.gate.Detail, &d)
	}
	for {
		if err := r.load(ctx); err != nil {
			return Decision{}, err
		}
		d := Decide(r.terms.Settings, r.pairs())
		if d.Decision == GoOn {
			if err := r.look(ctx, d.Look+1); err != nil {
				return Decision{}, err
			}
			continue
		}
		detail, err := json.Marshal(d)
		if err != nil {
			return Decision{}, err
		}
		g.Log.Info("a gate has decided", "gate", g.Name, "candidate", candidate.Name(), "opponent", opponent.Name(), "decision", d.Decision, "why", d.Reason)
		return d, g.Record.DecideGate(ctx, r.gate.ID, d.Decision, detail)
	}
}

// round is a gate that runs.
type round struct {
	*Gate
	gate    store.Gate
	terms   terms
	players map[string]Player
	held    []tasks.Task
	known   map[string]tasks.Task // by fingerprint

	tasks    []store.GateTask
	outcomes map[answer]store.GateOutcome
}

// answer is what an outcome is of.
type answer struct {
	place  int
	player string
	sample int
}

func (g *Gate) begin(ctx context.Context, candidate, opponent Player, held []tasks.Task) (*round, error) {
	if candidate.Name() == opponent.Name() {
		return nil, fmt.Errorf("%s cannot be held against itself", candidate.Name())
	}
	r := &round{
		Gate: g, held: held, known: map[string]tasks.Task{},
		players: map[string]Player{store.GateCandidate: candidate, store.GateOpponent: opponent},
	}
	for _, t := range held {
		r.known[t.Fingerprint] = t
	}
	was, err := g.Record.GateNamed(ctx, g.Name)
	if errors.Is(err, store.ErrNotFound) {
		was, err = g.first(ctx, candidate, opponent)
	}
	if err != nil {
		return nil, err
	}
	if was.Candidate != candidate.Name() || was.Opponent != opponent.Name() {
		return nil, fmt.Errorf("the gate %s holds %s against %s, not %s against %s", g.Name, was.Candidate, was.Opponent, candidate.Name(), opponent.Name())
	}
	r.gate = was
	if err := json.Unmarshal(was.Settings, &r.terms); err != nil {
		return nil, fmt.Errorf("the settings of the gate %s: %w", g.Name, err)
	}
	if r.terms.Coder != "" && g.Coder != nil && g.Coder.Name() == r.terms.Coder {
		r.players[store.GateCoder] = g.Coder
	}
	return r, nil
}

// first records the terms.
func (g *Gate) first(ctx context.Context, candidate, opponent Player) (store.Gate, error) {
	if err := g.Settings.Check(); err != nil {
		return store.Gate{}, err
	}
	t := terms{Settings: g.Settings, Rule: rule, Unprotected: g.Unprotected, Seed: &g.Seed, Powers: Strengths(g.Settings, cmp.Or(g.nights, StrengthNights))}
	if g.Coder != nil {
		t.Coder = g.Coder.Name()
	}
	settings, err := json.Marshal(t)
	if err != nil {
		return store.Gate{}, err
	}
	return g.Record.BeginGate(ctx, store.Gate{Name: g.Name, Candidate: candidate.Name(), Opponent: opponent.Name(), Settings: settings})
}

// load reads what is recorded.
func (r *round) load(ctx context.Context) (err error) {
	if r.tasks, err = r.Record.GateTasks(ctx, r.gate.ID); err != nil {
		return err
	}
	outcomes, err := r.Record.GateOutcomes(ctx, r.gate.ID)
	r.outcomes = map[answer]store.GateOutcome{}
	for _, o := range outcomes {
		r.outcomes[answer{o.Place, o.Player, o.Sample}] = o
	}
	return err
}

// pairs are the tasks that both policies have answered in full, up to the first
// that they have not.
func (r *round) pairs() []Pair {
	return pairs(r.terms.Settings, r.tasks, r.outcomes)
}

func pairs(s Settings, all []store.GateTask, outcomes map[answer]store.GateOutcome) []Pair {
	var out []Pair
	for _, t := range all {
		if t.Void != "" {
			continue
		}
		of := func(player string, samples int) (got []Outcome) {
			for i := range samples {
				if o, there := outcomes[answer{t.Place, player, i}]; there {
					got = append(got, Outcome{t.Fingerprint, t.Split, i, o.Built, o.Correct, o.Reward, o.Speedup, o.Eager, o.Compile})
				}
			}
			return got
		}
		p := Pair{
			Task: t.Fingerprint, Split: t.Split, Unseen: t.Unseen,
			Candidate: of(store.GateCandidate, s.Samples), Opponent: of(store.GateOpponent, s.Samples), Coder: of(store.GateCoder, 1),
		}
		if len(p.Candidate) < s.Samples || len(p.Opponent) < s.Samples {
			break
		}
		out = append(out, p)
	}
	return out
}

// look brings in the tasks of a look and has them played.
func (r *round) look(ctx context.Context, look int) error {
	if err := r.fill(ctx, r.terms.due(look)); err != nil {
		return err
	}
	for _, t := range r.tasks {
		if _, known := r.known[t.Fingerprint]; !known && t.Void == "" {
			return fmt.Errorf("the gate %s has the task %.12s, which is no longer among the held-out tasks", r.Name, t.Fingerprint)
		}
	}
	if err := r.use(ctx); err != nil {
		return err
	}
	if err := r.prepare(ctx); err != nil {
		return err
	}
	return r.play(ctx, look)
}

// prepare has the players write what is not evaluated yet.
func (r *round) prepare(ctx context.Context) error {
	coming := map[string][]tasks.Task{}
	last := map[string]int{} // the place that a player was told of, and one
	for _, a := range r.todo() {
		if last[a.player] <= a.place {
			coming[a.player] = append(coming[a.player], r.known[r.at(a.place).Fingerprint])
			last[a.player] = a.place + 1
		}
	}
	for _, player := range []string{store.GateCandidate, store.GateOpponent, store.GateCoder} {
		if all := coming[player]; len(all) > 0 {
			if err := r.players[player].Prepare(ctx, all); err != nil {
				return err
			}
		}
	}
	return nil
}

// use records that all held-out tasks serve this gate, before any is played.
func (r *round) use(ctx context.Context) error {
	var fresh []string
	for _, t := range r.held {
		served, err := r.Record.GateOf(ctx, t.Fingerprint)
		if err != nil {
			return err
		}
		if served == "" {
			fresh = append(fresh, t.Fingerprint)
		}
	}
	return r.Record.UseInGate(ctx, r.gate.Name, fresh)
}

// fill takes fresh tasks until each set has so many that count.
func (r *round) fill(ctx context.Context, due int) error {
	next, have, taken := 0, map[store.Split]int{}, map[string]bool{}
	for _, t := range r.tasks {
		next, taken[t.Fingerprint] = max(next, t.Place+1), true
		if t.Void == "" {
			have[t.Split]++
		}
	}
	fresh := map[store.Split][]tasks.Task{}
	for _, split := range heldOut {
		wanted := due - have[split]
		for _, t := range r.held {
			if len(fresh[split]) >= wanted {
				break
			}
			if t.Split != split || taken[t.Fingerprint] {
				continue
			}
			served, err := r.Record.GateOf(ctx, t.Fingerprint)
			if err != nil {
				return err
			}
			if served == "" || served == r.gate.Name {
				fresh[split] = append(fresh[split], t)
			}
		}
		if len(fresh[split]) < wanted {
			return &FewTasksError{split, wanted, len(fresh[split])}
		}
	}
	var added []store.GateTask
	for i := 0; i < len(fresh[heldOut[0]]) || i < len(fresh[heldOut[1]]); i++ {
		for _, split := range heldOut { // in turn, so that neither set is played late
			if i < len(fresh[split]) {
				t := fresh[split][i]
				added = append(added, store.GateTask{Place: next, Fingerprint: t.Fingerprint, Split: split, Unseen: len(t.Unseen) > 0})
				next++
			}
		}
	}
	if err := r.Record.AddGateTasks(ctx, r.gate.ID, added); err != nil {
		return err
	}
	r.tasks = append(r.tasks, added...)
	return nil
}

// play has every answer of the tasks that is not recorded be evaluated. A task that
// cannot be played to its end is void for both; where that befalls too many, it is
// the machine, and nothing is made void.
func (r *round) play(ctx context.Context, look int) error {
	todo := r.todo()
	progress := Progress{Look: look, Looks: r.terms.Looks, Played: len(r.outcomes), Wanted: len(r.outcomes) + len(todo)}
	allowed, lost := r.terms.lossy(), map[int]error{} // by place
	for _, t := range r.tasks {
		if t.Void != "" {
			allowed--
		}
	}
	for _, a := range todo {
		if lost[a.place] != nil {
			continue
		}
		err := r.answer(ctx, a)
		var none *noOutcomeError
		switch {
		case err == nil:
			progress.Played++
			if r.Progress != nil {
				r.Progress(progress)
			}
		case !errors.As(err, &none):
			return err
		case a.player == store.GateCoder: // the task counts all the same
			r.Log.Warn("the built-in Coder has no outcome", "gate", r.Name, "place", a.place, "why", err)
		default:
			if lost[a.place] = err; len(lost) > allowed {
				return &UnfitError{len(lost), err}
			}
		}
	}
	for place, err := range lost {
		if err := r.Record.VoidGateTask(ctx, r.gate.ID, place, err.Error()); err != nil {
			return err
		}
		r.Log.Warn("a task does not count: it could not be played to its end", "gate", r.Name, "place", place, "why", err)
	}
	return nil
}

// todo is the answers that are not recorded, in the order in which they are evaluated.
func (r *round) todo() []answer {
	var out []answer
	for _, t := range r.tasks {
		if t.Void != "" {
			continue
		}
		for _, a := range r.turns(t.Place) {
			if _, done := r.outcomes[a]; !done && r.players[a.player] != nil {
				out = append(out, a)
			}
		}
	}
	return out
}

// turns are a task's answers in their order: A B B A, and so on, so that a machine that
// becomes slower meanwhile favours neither policy. Who is A, the seed draws. The built-in
// Coder comes last.
func (r *round) turns(place int) []answer {
	first, second := store.GateCandidate, store.GateOpponent
	if seed := r.terms.Seed; seed != nil && rand.New(rand.NewPCG(*seed, uint64(place))).IntN(2) == 1 { //nolint:gosec // the draw is to be repeated
		first, second = second, first
	}
	var out []answer
	for i := range r.terms.Samples {
		out = append(out, answer{place, first, i}, answer{place, second, i})
		first, second = second, first
	}
	return append(out, answer{place, store.GateCoder, 0})
}

// noOutcomeError is an answer that could not be evaluated, often as it was tried.
type noOutcomeError struct {
	player string
	err    error
}

func (e *noOutcomeError) Error() string {
	return fmt.Sprintf("%s has no outcome in %d tries: %v", e.player, tries, e.err)
}

func (e *noOutcomeError) Unwrap() error { return e.err }

// answer has one answer be evaluated, and records its outcome.
func (r *round) answer(ctx context.Context, a answer) error {
	t, player := r.known[r.at(a.place).Fingerprint], r.players[a.player]
	var err error
	for range tries {
		var o Outcome
		if o, err = player.Play(ctx, t, a.sample); err == nil {
			err = o.Check()
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err == nil {
			return r.Record.SaveGateOutcome(ctx, r.gate.ID, store.GateOutcome{
				Place: a.place, Player: a.player, Sample: a.sample, Built: o.Built, Correct: o.Correct, Reward: o.Reward, Speedup: o.Speedup, Eager: o.Eager, Compile: o.Compile,
			})
		}
		r.Log.Debug("an answer has no outcome", "gate", r.Name, "player", player.Name(), "task", t.Fingerprint, "sample", a.sample, "why", err)
	}
	return &noOutcomeError{player.Name(), err}
}

func (r *round) at(place int) store.GateTask {
	for _, t := range r.tasks {
		if t.Place == place {
			return t
		}
	}
	return store.GateTask{}
}
