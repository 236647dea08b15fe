package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/report"
)

type historyDiffCmd struct {
	From string `arg:"" name:"run" help:"Number of the run, or RUN/ROUND."`
	To   string `arg:"" optional:"" help:"A round, which is compared with the one before it; or RUN/ROUND."`
}

// Help is shown below the flags.
func (historyDiffCmd) Help() string {
	return "`diff RUN` compares the first round with the best, `diff RUN N` round N-1 with N, and `diff RUN/N RUN/M` any two rounds, also of two runs. Each side is headed by its verdict."
}

// Run compares the sources of two rounds.
func (c historyDiffCmd) Run(a *app) error {
	sides, err := c.sides(a)
	if err != nil {
		return err
	}
	from, to := sides[0], sides[1]
	lines := report.Diff(report.Clean(from.Candidate.Source), report.Clean(to.Candidate.Source))
	text := report.Unified(lines)
	if a.json {
		object := map[string]any{"from": newDiffSide(from), "to": newDiffSide(to), "same": len(lines) == 0, "diff": text}
		return a.printJSON(object)
	}
	several := from.RunID != to.RunID
	switch {
	case c.To == "" && from.Index == to.Index:
		return a.printf("round %d of run %d is its first and its best: `kernelwright history show %d %d` has its source\n", to.Index, to.RunID, to.RunID, to.Index)
	case len(lines) == 0:
		return a.printf("%s and %s have the same candidate\n", roundName(from, several), roundName(to, several))
	}
	if a.colour(a.stdout) {
		text = paint(text)
	}
	return a.printf("--- %s\n+++ %s\n%s", diffed(from, several), diffed(to, several), text)
}

// sides returns the two rounds that are asked for.
func (c historyDiffCmd) sides(a *app) (sides [2]kernelwright.Round, err error) {
	run, round, err := roundNamed(c.From)
	if err != nil {
		return sides, err
	}
	both := "give both sides as RUN/ROUND: `kernelwright history diff 3/0 3/2`"
	switch {
	case c.To == "" && round < 0:
		return a.firstAndBest(run)
	case c.To == "":
	case strings.Contains(c.To, "/"):
		toRun, toRound, err := roundNamed(c.To)
		if err != nil {
			return sides, err
		}
		if round < 0 {
			return sides, usage(fmt.Sprintf("%q names no round", c.From), both)
		}
		return a.twoRounds(run, round, toRun, toRound)
	case round >= 0:
		return sides, usage(fmt.Sprintf("%q names no run", c.To), both)
	default:
		if round, err = wholeNumber(c.To); err != nil {
			return sides, err
		}
	}
	if round == 0 {
		return sides, usage("before round 0 there is none", fmt.Sprintf("`kernelwright history show %d 0` has its source", run))
	}
	return a.twoRounds(run, round-1, run, round)
}

func (a *app) firstAndBest(run int64) (sides [2]kernelwright.Round, err error) {
	d, err := a.openRounds(run)
	if err != nil {
		return sides, err
	}
	sides[0], sides[1] = d.Rounds[0], d.Rounds[len(d.Rounds)-1]
	if best, _, ok := report.Best(d.Rounds); ok {
		sides[1] = best
	}
	return sides, nil
}

func (a *app) twoRounds(fromRun int64, from int, toRun int64, to int) (sides [2]kernelwright.Round, err error) {
	for i, want := range []struct {
		run   int64
		round int
	}{{fromRun, from}, {toRun, to}} {
		d, err := a.openRounds(want.run)
		if err != nil {
			return sides, err
		}
		if sides[i], err = roundOf(d, want.round); err != nil {
			return sides, err
		}
	}
	return sides, nil
}

// roundOf returns a round of a run by its number.
func roundOf(d report.Data, index int) (kernelwright.Round, error) {
	i := slices.IndexFunc(d.Rounds, func(x kernelwright.Round) bool { return x.Index == index })
	if i < 0 {
		return kernelwright.Round{}, noRound(d.Run.ID, index, d.Rounds)
	}
	return d.Rounds[i], nil
}

// roundNamed reads RUN or RUN/ROUND; the round is -1 where none is named.
func roundNamed(text string) (run int64, round int, err error) {
	first, second, both := strings.Cut(text, "/")
	n, err := wholeNumber(first)
	if err != nil || !both {
		return int64(n), -1, err
	}
	round, err = wholeNumber(second)
	return int64(n), round, err
}

func wholeNumber(text string) (int, error) {
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return 0, usage(fmt.Sprintf("%q is no number of a run or round", text), "see `kernelwright history diff --help`")
	}
	return int(n), nil
}

// diffSide is what counts for a side of a difference.
type diffSide struct {
	Run     int64                 `json:"run"`
	Round   int                   `json:"round"`
	Status  kernelwright.Status   `json:"status"`
	Level   kernelwright.Level    `json:"level"`
	MS      float64               `json:"candidate_ms" unknown:"0"` // 0: not timed
	Speedup *kernelwright.Speedup `json:"speedup"`
}

func newDiffSide(r kernelwright.Round) diffSide {
	v := report.Counts(r)
	return diffSide{r.RunID, r.Index, v.Status, v.Level, v.CandidateMS, v.Speedup}
}

func roundName(r kernelwright.Round, withRun bool) string {
	if withRun {
		return fmt.Sprintf("run %d, round %d", r.RunID, r.Index)
	}
	return fmt.Sprintf("round %d", r.Index)
}

// diffed names a side of a difference with what counts for it.
func diffed(r kernelwright.Round, withRun bool) string {
	said := fmt.Sprintf("%s: %s", roundName(r, withRun), report.RoundStanding(r))
	if measured := report.Measured(report.Counts(r)); measured != "" {
		said += ", " + measured
	}
	return said
}

func paint(diff string) string {
	var b strings.Builder
	for line := range strings.Lines(diff) {
		line = strings.TrimSuffix(line, "\n")
		switch line[:min(1, len(line))] {
		case "+":
			line = "\x1b[32m" + line + "\x1b[0m"
		case "-":
			line = "\x1b[31m" + line + "\x1b[0m"
		case "@":
			line = "\x1b[36m" + line + "\x1b[0m"
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}
