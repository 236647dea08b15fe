package gate

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strings"

	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
)

// Report is what there is to say of a gate.
type Report struct {
	ID          int64      `json:"id"`
	Name        string     `json:"name"`
	Candidate   string     `json:"candidate"`
	Opponent    string     `json:"opponent"`
	Coder       string     `json:"coder"` // beside them; empty: nobody
	CreatedMS   int64      `json:"created" time:"ms"`
	EndedMS     int64      `json:"ended" time:"ms"`
	Settings    Settings   `json:"settings"`
	Unprotected bool       `json:"unprotected"` // training.protected was empty
	Seed        *uint64    `json:"seed"`        // draws which policy begins with a task; null: they took no turns
	Powers      []Strength `json:"powers"`
	Answers     int        `json:"answers"` // with an outcome
	Void        []Void     `json:"void"`
	Decision    Decision   `json:"result"`
	// Reproduced is whether the outcomes, decided on again, give what was recorded;
	// null: nothing is decided, or by another rule.
	Reproduced *bool `json:"reproduced"`
}

// Void is a task that did not count.
type Void struct {
	Task string `json:"task"` // fingerprint
	Why  string `json:"why"`
}

// Read reads what is recorded of a gate, and decides on it again.
func Read(ctx context.Context, r Reader, name string) (Report, error) {
	g, err := r.GateNamed(ctx, name)
	if err != nil {
		return Report{}, err
	}
	var t terms
	if err := json.Unmarshal(g.Settings, &t); err != nil {
		return Report{}, fmt.Errorf("the settings of the gate %s: %w", name, err)
	}
	all, err := r.GateTasks(ctx, g.ID)
	if err != nil {
		return Report{}, err
	}
	rows, err := r.GateOutcomes(ctx, g.ID)
	if err != nil {
		return Report{}, err
	}
	outcomes := map[answer]store.GateOutcome{}
	for _, o := range rows {
		outcomes[answer{o.Place, o.Player, o.Sample}] = o
	}
	out := Report{
		ID: g.ID, Name: g.Name, Candidate: g.Candidate, Opponent: g.Opponent, Coder: t.Coder, CreatedMS: g.CreatedMS, EndedMS: g.DecidedMS,
		Settings: t.Settings, Unprotected: t.Unprotected, Seed: t.Seed, Powers: t.Powers, Answers: len(rows), Void: []Void{},
	}
	for _, task := range all {
		if task.Void != "" {
			out.Void = append(out.Void, Void{task.Fingerprint, task.Void})
		}
	}
	again := Decide(t.Settings, pairs(t.Settings, all, outcomes))
	if g.Decision == "" {
		out.Decision = again
		return out, nil
	}
	if err := json.Unmarshal(g.Detail, &out.Decision); err != nil {
		return Report{}, fmt.Errorf("the decision of the gate %s: %w", name, err)
	}
	if t.Rule == rule {
		same := reflect.DeepEqual(again, out.Decision)
		out.Reproduced = &same
	}
	return out, nil
}

// Page writes a gate for people, as Markdown.
func Page(w io.Writer, r Report) error {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	d := r.Decision
	decision := d.Decision
	if decision == GoOn {
		decision = "not decided"
	}
	line("# Gate %d: %s %s", r.ID, report.Line(r.Candidate), decision)
	line("")
	line("%s.", upper(d.Reason))
	line("")
	if r.Unprotected {
		line("> **Take care:** `training.protected` is empty. Tasks may be like those of a benchmark, so what was learned may be the benchmark.")
		line("")
	}
	if r.Reproduced != nil && !*r.Reproduced {
		line("> **Take care:** the recorded outcomes do not give the recorded decision. See `kernelwright history check`.")
		line("")
	}
	if d.Look > 0 {
		comparisons(line, r)
	}
	sides(line, r)
	about(line, r)
	_, err := io.WriteString(w, b.String())
	return err
}

func comparisons(line func(string, ...any), r Report) {
	d := r.Decision
	line("| %d tasks, %d answers each | %s | %s | difference | interval | chance if equal | clears |", d.Tasks, r.Settings.Samples, report.Line(r.Candidate), report.Line(r.Opponent))
	line("|---|---:|---:|---:|---:|---:|---|")
	for _, c := range []struct {
		name string
		of   *Comparison
	}{{"faster than torch.compile", d.Faster}, {"correct", d.Correct}} {
		line("| %s | %s | %s | %+.1f points | %s | %.2g | %s |", c.name, percent(c.of.Candidate), percent(c.of.Opponent), 100*c.of.Difference,
			interval(c.of, "%+.1f", 100), c.of.P, yes(c.of.Clears))
	}
	line("| geometric mean of speedups | %.3fx | %.3fx | %.3fx | %s | %.2g | %s |", d.Geomean.Candidate, d.Geomean.Opponent, d.Geomean.Difference,
		interval(d.Geomean, "%.3f", 1), d.Geomean.P, yes(d.Geomean.Clears))
	line("")
}

// sides are both held-out sets, apart.
func sides(line func(string, ...any), r Report) {
	line("## By held-out set")
	line("")
	line("| tasks | player | answers | built | correct | faster than eager | faster than torch.compile | mean reward | geometric mean |")
	line("|---|---|---:|---:|---:|---:|---:|---:|---:|")
	for _, s := range append([]Side{r.Decision.All}, r.Decision.Sets...) {
		name := map[store.Split]string{"": "both sets", store.CompositionsSplit: "compositions never seen", store.KindsSplit: "kinds never trained on"}[s.Split]
		if s.Unseen {
			name += ", with a primitive never trained on"
		}
		name = fmt.Sprintf("%s: %d", name, s.Tasks)
		for _, p := range []struct {
			name string
			of   *Figures
		}{{r.Candidate, s.Candidate}, {r.Opponent, s.Opponent}, {r.Coder, s.Coder}} {
			if f := p.of; f != nil {
				line("| %s | %s | %d | %s | %s | %s | %s | %.2f | %.3fx |", name, report.Line(p.name), f.N, percent(f.Built), percent(f.Correct), percent(f.FasterEager),
					percent(f.FasterCompile), f.Reward, f.Geomean)
				name = ""
			}
		}
	}
	line("")
	for _, s := range r.Decision.Sets {
		if s.Faster != nil && !s.Unseen {
			line("- %s alone: the rate of faster-than-compile differs by %s.", s.Split, points(s.Faster))
		}
	}
	if r.Coder == "" {
		line("- The built-in Coder was not asked.")
	}
	line("")
}

// about is what the gate was held under.
func about(line func(string, ...any), r Report) {
	s := r.Settings
	line("## What it was held under")
	line("")
	line("- At most %d tasks of each held-out set, %d answers of each policy to a task, the same budget. No task has served another gate.", s.Tasks, s.Samples)
	if r.Seed != nil {
		line("- The answers to a task were evaluated in turn, A B B A; who is A was drawn (seed %d). A machine that becomes slower favours neither.", *r.Seed)
	}
	line("- Decided on %d times at most, after equal numbers of tasks; the decision fell at look %d. In all, an equal policy is promoted with a chance of at most %s.", s.Looks, r.Decision.Look, percent(s.Alpha))
	line("- Promoted: the rate of faster-than-compile and the geometric mean are shown to be higher, and the rate of correct answers is within %s and not shown to be lower.", pointsOf(s.Margin))
	line("- Refused early: a policy that is shown to be less than %s better. That befalls one that is so much better with a chance of at most %s.", pointsOf(s.Effect), percent(s.Beta))
	for _, p := range r.Powers {
		line("- A candidate that is %s is promoted in %s of nights (%d simulated, 95 %% interval %s to %s), and within three nights in %s. A night takes %.0f tasks.",
			gained(p.Gain), percent(p.Rate), p.Nights, percent(p.Low), percent(p.High), percent(p.Within), p.Tasks)
	}
	for _, v := range r.Void {
		line("- Task `%.12s` did not count: `%s`", v.Task, strings.ReplaceAll(report.Line(v.Why), "`", "'"))
	}
}

// Odds says in a sentence what simulated nights say of a gate's settings.
func Odds(powers []Strength) string {
	var all []string
	for _, p := range powers {
		all = append(all, fmt.Sprintf("one that is %s in %s", gained(p.Gain), percent(p.Rate)))
	}
	if len(all) == 0 {
		return ""
	}
	return fmt.Sprintf("of %d simulated nights, a gate with these settings promotes %s", powers[0].Nights, strings.Join(all, ", "))
}

func gained(gain float64) string {
	switch {
	case gain > 0:
		return pointsOf(gain) + " better"
	case gain < 0:
		return pointsOf(-gain) + " worse"
	}
	return "equal"
}

func percent(share float64) string { return fmt.Sprintf("%.1f %%", 100*share) }

func yes(is bool) string {
	if is {
		return "yes"
	}
	return "no"
}

func upper(sentence string) string {
	if sentence == "" {
		return sentence
	}
	return strings.ToUpper(sentence[:1]) + sentence[1:]
}
