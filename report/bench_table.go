package report

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/score"
)

// table is what each form of a bench's report shows in its own way.
type table struct {
	Title string
	Head  []string
	Left  []int // columns of words; the others are numbers
	Rows  [][]string
	Notes []string
}

// tables are the figures of a bench, but for single tasks.
func (b Bench) tables(f BenchFigures) []table {
	out := []table{b.resultTable(f), b.baselineTable(f)}
	if t := rooflineTable(f); len(t.Rows) > 0 {
		out = append(out, t)
	}
	if t := spaceTable(b); len(t.Rows) > 0 {
		out = append(out, t)
	}
	if len(f.Pairs) > 0 {
		out = append(out, pairTable(f), roundsTable(b, f))
	}
	if t := adviceTable(f); len(t.Rows) > 0 {
		out = append(out, t)
	}
	return out
}

// resultTable has a row like those of the papers for each configuration.
func (b Bench) resultTable(f BenchFigures) table {
	t := table{
		Title: "Against the fastest baseline",
		Head:  []string{"configuration", "runs", "covered", "certified", "correct", "of covered", "fast_1", "faster", "slower", "mean", "geomean", "median", "Q1", "Q3", "rounds", "minutes", "cost"},
		Left:  []int{0},
		Notes: []string{
			"correct: the share of all runs that ended with a certified kernel; of covered: of those in which the Coder wrote a candidate; fast_1: certified with a speedup above 1; faster, slower: runs whose speedup's 95 % interval lies above or below 1, so that it is no noise",
			"mean to Q3: speedups of the certified kernels; rounds, minutes and cost: the mean of a covered run",
			"[ ]: 95 % interval over the references, by bootstrap",
		},
	}
	remembered, unpriced, failed, taught := 0, int64(0), 0, 0
	var spend kernelwright.Spend
	for _, c := range f.Configurations {
		remembered, unpriced, failed, taught = remembered+c.Remembered, unpriced+c.Spend.Unpriced, failed+c.Failed, taught+c.Taught
		spend = spend.Add(c.Spend)
		row := []string{c.Name, fmt.Sprint(c.Ended), fmt.Sprint(c.Covered), fmt.Sprint(c.Certified), shareOf(c.Correct), shareOf(c.CorrectOfCovered)}
		a := c.Against[0]
		row = append(row, shareOf(a.fastP(1)), fmt.Sprint(c.Faster), fmt.Sprint(c.Slower), factor(a.Mean), factorOf(a.Geomean), factor(a.Median), factor(a.Q1), factor(a.Q3),
			number(c.Rounds, "%.1f"), number(c.Minutes, "%.2f"), dollars(c.USD))
		t.Rows = append(t.Rows, row)
	}
	if n := b.wanted() - b.ended(); n > 0 {
		t.Notes = append(t.Notes, plural(n, "run")+" of "+fmt.Sprint(b.wanted())+" did not end yet: not counted, and the same command goes on from there")
	}
	if taught > 0 {
		t.Notes = append(t.Notes, plural(taught, "run")+" had lessons of runs before this bench, on other tasks than their own")
	}
	if failed > 0 {
		t.Notes = append(t.Notes, plural(failed, "run")+" failed for reasons that are no kernel's: not correct until the same command has made such a run anew")
	}
	if remembered > 0 {
		t.Notes = append(t.Notes, plural(remembered, "verdict")+" remembered from before: minutes count each with the time that it took then")
	}
	if unpriced > 0 {
		t.Notes = append(t.Notes, plural(int(unpriced), "call")+" of models whose price is not known, which cost nothing here")
	}
	if spend.AtWorst > 0 {
		t.Notes = append(t.Notes, plural(int(spend.AtWorst), "call")+" of models that were not answered count at worst, "+usd(spend.USDAtWorst)+" of all costs")
	}
	return t
}

func (b Bench) baselineTable(f BenchFigures) table {
	t := table{
		Title: "Against each baseline",
		Head:  []string{"configuration", "against"},
		Left:  []int{0, 1},
		Notes: []string{"fast_p: the share of all runs whose kernel is certified and whose speedup is above p; geomean of all: a run without a certified kernel counts as 1×"},
	}
	for _, p := range Thresholds {
		t.Head = append(t.Head, fmt.Sprintf("fast_%v", p))
	}
	t.Head = append(t.Head, "mean", "geomean", "median", "Q1", "Q3", "geomean of all")
	for _, c := range f.Configurations {
		for _, a := range c.Against {
			row := []string{c.Name, Line(a.Baseline)}
			for _, p := range a.FastP {
				row = append(row, shareOf(p.Share))
			}
			t.Rows = append(t.Rows, append(row, factor(a.Mean), factorOf(a.Geomean), factor(a.Median), factor(a.Q1), factor(a.Q3), factorOf(a.GeomeanAll)))
			if a.Unknown > 0 {
				t.Notes = append(t.Notes, fmt.Sprintf("%s: %s of %s not held against it count as not faster", Line(a.Baseline), plural(a.Unknown, "certified kernel"), c.Name))
			}
		}
	}
	return t
}

func pairTable(f BenchFigures) table {
	t := table{
		Title: "One configuration against another",
		Head:  []string{"configuration", "over", "references", "both certified", "only the first", "only the second", "ratio of speedups", ""},
		Left:  []int{0, 1, 7},
		Notes: []string{"ratio: the geometric mean over the same references of one speedup over the other, against the fastest baseline; a run without a certified kernel counts as 1×"},
	}
	for _, p := range f.Pairs {
		t.Rows = append(t.Rows, []string{
			f.Configurations[p.A].Name, f.Configurations[p.B].Name, fmt.Sprint(p.References), fmt.Sprint(p.Both), fmt.Sprint(p.OnlyA), fmt.Sprint(p.OnlyB),
			factorOf(p.Ratio), p.word(),
		})
	}
	return t
}

// word says which of two configurations is faster.
func (p PairFigures) word() string {
	switch {
	case p.Ratio == nil:
		return "–"
	case p.Ratio.Low > 1:
		return "the first is faster"
	case p.Ratio.High < 1:
		return "the second is faster"
	}
	return "no difference shown"
}

func (f BaselineFigures) fastP(p float64) *score.Interval {
	i := slices.IndexFunc(f.FastP, func(one FastP) bool { return one.P == p })
	return f.FastP[i].Share
}

func number(n Number, format string) string {
	if v := float64(n); math.IsNaN(v) || math.IsInf(v, 0) {
		return "–"
	}
	return fmt.Sprintf(format, float64(n))
}

func factor(n Number) string { return number(n, "%.2f×") }

func factorOf(i *score.Interval) string {
	if i == nil {
		return "–"
	}
	return fmt.Sprintf("%.2f×", i.Value) + brackets(*i)
}

// brackets is an interval where there is one: a single reference has none.
func brackets(i score.Interval) string {
	if i.Low == i.High {
		return ""
	}
	return fmt.Sprintf(" [%.2f, %.2f]", i.Low, i.High)
}

// shareOf leaves the interval to JSON: with it a row would be twice as wide.
func shareOf(i *score.Interval) string {
	if i == nil {
		return "–"
	}
	return fmt.Sprintf("%.0f %%", 100*i.Value)
}

func dollars(n Number) string {
	if n == 0 {
		return "0"
	}
	return number(n, "$%.3g")
}

// headline is the bench in a sentence or two.
func (b Bench) headline(f BenchFigures) string {
	so := ""
	if n := b.ended(); n == 0 {
		return "No run has ended yet."
	} else if n < b.wanted() {
		so = fmt.Sprintf("So far, after %d of %d runs: ", n, b.wanted())
	}
	best := 0
	for i, c := range f.Configurations {
		if all, other := c.Against[0].GeomeanAll, f.Configurations[best].Against[0].GeomeanAll; all != nil && (other == nil || all.Value > other.Value) {
			best = i
		}
	}
	c := f.Configurations[best]
	what := "references"
	if len(b.Seeds) > 1 {
		what = "runs"
	}
	said := fmt.Sprintf("%d of %d %s got a certified kernel", c.Certified, c.Ended, what)
	if a := c.Against[0]; a.Geomean != nil {
		interval := ""
		if a.Geomean.Low < a.Geomean.High {
			interval = fmt.Sprintf(" (95 %% interval %.2f to %.2f)", a.Geomean.Low, a.Geomean.High)
		}
		said += fmt.Sprintf("; against the fastest baseline of each, kernels are %.2f× as fast in the geometric mean%s and %s in the median", a.Geomean.Value, interval, factor(a.Median))
	}
	if len(f.Configurations) == 1 {
		return so + said + "."
	}
	said = fmt.Sprintf("Of %d configurations, %s came furthest: %s.", len(f.Configurations), c.Name, said)
	if len(f.Configurations) == 2 && f.Pairs[0].Ratio != nil {
		r := *f.Pairs[0].Ratio
		if best == 1 {
			r = score.Interval{Value: 1 / r.Value, Low: 1 / r.High, High: 1 / r.Low}
		}
		other := f.Configurations[1-best].Name
		if r.Low > 1 {
			said += fmt.Sprintf(" On the same references it is %.2f× as fast as %s (%.2f to %.2f).", r.Value, other, r.Low, r.High)
		} else {
			said += fmt.Sprintf(" The difference to %s, %.2f× on the same references, may be chance (%.2f to %.2f).", other, r.Value, r.Low, r.High)
		}
	}
	return so + said
}

// without lists the runs that ended without a certified kernel, with the reason.
// Configurations that have the same reason share a row.
func (b Bench) without() table {
	t := table{Title: "Without a certified kernel", Head: []string{"reference", "configuration", "outcome", "reason"}, Left: []int{0, 1, 2, 3}}
	names := ConfigurationNames(b.Configurations)
	for reference := range b.References {
		begun := len(t.Rows)
		missing := map[string]int{}
		for configuration := range b.Configurations {
			for _, seed := range b.Seeds {
				r := b.find(reference, configuration, seed)
				if r == nil || !r.Ended || r.Certified {
					continue
				}
				name, outcome, reason := names[configuration], words(r.Status), Line(r.Reason)
				if len(b.Seeds) > 1 {
					name += fmt.Sprintf(", seed %d", seed)
				}
				missing[outcome+reason]++
				t.Rows = append(t.Rows, []string{Line(b.References[reference].Name), name, outcome, reason})
			}
		}
		if added := t.Rows[begun:]; len(added) > 1 && missing[added[0][2]+added[0][3]] == len(b.Configurations)*len(b.Seeds) {
			added[0][1] = "all"
			t.Rows = t.Rows[:begun+1]
		}
	}
	return t
}

func words(s string) string { return strings.ReplaceAll(Line(s), "_", " ") }

// about says what was measured, where and when.
func (b Bench) about() []fact {
	device := b.Device
	if b.Machine.Name != "" {
		device += ", " + b.Machine.Name
	}
	if b.Machines > 1 {
		device += fmt.Sprintf("; runs of %d such devices", b.Machines)
		if !b.Mixed {
			device += ", each reference's of one"
		}
	}
	out := []fact{{"Bench", fmt.Sprint(b.ID)}, {"Size", b.size()}, {"Device", device}}
	for _, f := range facts(Data{Device: b.Machine}, kernelwright.Verdict{Versions: b.Versions}) {
		if f.Name == "Measured ceilings" || f.Name == "Versions" {
			out = append(out, f)
		}
	}
	for i, name := range ConfigurationNames(b.Configurations) {
		out = append(out, fact{"Configuration " + fmt.Sprint(i+1), name + ": " + b.Configurations[i].Settings})
	}
	out = append(out, fact{"Baselines", strings.Join(b.Baselines, ", ")}, fact{"Precision", b.Precision})
	if b.Version != "" {
		out = append(out, fact{"kernelwright", b.Version})
	}
	out = append(out, fact{"Begun", when(b.CreatedMS)})
	if b.FinishedMS != 0 {
		out = append(out, fact{"Finished", when(b.FinishedMS)})
	}
	return append(out, fact{"To repeat it", shell(b.Command)})
}

// shell writes a command as one types it.
func shell(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = w
		if w == "" || strings.ContainsFunc(w, func(r rune) bool {
			return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:=,@%+", r)
		}) {
			quoted[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return strings.Join(quoted, " ")
}

// BenchTable writes what a bench came to for a terminal.
func BenchTable(w io.Writer, b Bench, f BenchFigures) error {
	var text strings.Builder
	fmt.Fprintf(&text, "bench %d  %s  on %s  begun %s\n%s\n", b.ID, b.size(), Line(b.Device), when(b.CreatedMS), Line(f.Headline))
	tables := b.tables(f)
	if t := b.without(); len(t.Rows) > 0 {
		tables = append(tables, t)
	}
	for _, t := range tables {
		fmt.Fprintf(&text, "\n%s\n", t.Title)
		left := map[int]bool{}
		for _, column := range t.Left {
			left[column] = true
		}
		if err := Columns(&text, append([][]string{t.Head}, t.Rows...), left); err != nil {
			return err
		}
		for _, n := range t.Notes {
			text.WriteString("  " + n + "\n")
		}
	}
	_, err := io.WriteString(w, text.String())
	return err
}
