package report

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/metrics"
)

// fact is a name and what is said of it: both texts as they were recorded.
type fact struct{ Name, Value string }

// chip is a metric with its unit, and what it means.
type chip struct{ Name, Value, Meaning string }

// chips are metrics in the order of their names.
func chips(m map[string]float64) []chip {
	var out []chip
	for _, name := range slices.Sorted(maps.Keys(m)) {
		of, _ := metrics.Of(name)
		out = append(out, chip{Line(name), withUnit(m[name], of.Unit), strings.ReplaceAll(of.Meaning, "`", "")})
	}
	return out
}

// withUnit is a number in the unit that people read it in.
func withUnit(v float64, unit string) string {
	switch unit {
	case "share":
		return digits(100*v) + " %"
	case "bytes":
		return ByteSize(int64(v))
	case "", metrics.Count, metrics.Ratio:
		if v == math.Trunc(v) && math.Abs(v) < 1e15 {
			return strconv.FormatFloat(v, 'f', 0, 64)
		}
		return digits(v)
	}
	return digits(v) + " " + unit
}

// timeRow is one line of the table of times.
type timeRow struct {
	Name, Median, Interval, Quartiles, Speedup string
	Share                                      float64 // of the slowest, 0 to 1, for a bar
	Candidate, Fastest                         bool
}

func timeRows(v kernelwright.Verdict) []timeRow {
	slowest := v.CandidateMS
	for _, ms := range v.Baselines {
		slowest = max(slowest, ms)
	}
	if slowest <= 0 {
		return nil
	}
	row := func(name string, ms float64, m kernelwright.Measurement) timeRow {
		if m.Earlier {
			name += ", measured earlier"
		}
		t := timeRow{Name: name, Median: Milliseconds(ms), Interval: "–", Quartiles: "–", Share: ms / slowest}
		if m.LowMS > 0 {
			t.Interval = Milliseconds(m.LowMS) + " to " + Milliseconds(m.HighMS)
		}
		if m.P25MS > 0 {
			t.Quartiles = Milliseconds(m.P25MS) + " to " + Milliseconds(m.P75MS)
		}
		return t
	}
	first := row("this kernel", v.CandidateMS, v.Timing.Candidate)
	first.Candidate, first.Speedup = true, ""
	rows := []timeRow{first}
	for _, name := range BaselineNames(v.Baselines) {
		t := row(name, v.Baselines[name], v.Timing.Baselines[name])
		if s, ok := v.Speedups[name]; ok {
			t.Speedup = Speedup(&s)
		} else if v.Speedup != nil && v.Speedup.Against == name {
			t.Speedup = Speedup(v.Speedup)
		}
		t.Fastest = v.Speedup != nil && v.Speedup.Against == name
		rows = append(rows, t)
	}
	if v.Floor.MS > 0 {
		t := row("roofline floor ("+v.Floor.Bound+")", v.Floor.MS, kernelwright.Measurement{})
		rows = append(rows, t)
	}
	return rows
}

func timeNotes(v kernelwright.Verdict) []string {
	var out []string
	t := v.Timing
	if t.Candidate.Repetitions > 0 {
		s := fmt.Sprintf("%d repetitions, %s clock", t.Candidate.Repetitions, t.Candidate.Clock)
		if t.Threads > 0 {
			s += fmt.Sprintf(", %d threads", t.Threads)
		}
		if t.Protocol != "" {
			s += ", " + t.Protocol
		}
		out = append(out, s+".")
	}
	if t.Marked {
		out = append(out, "The worker's clock and the referee's disagreed: the referee's decided.")
	}
	for _, n := range t.Notes {
		out = append(out, sentence(n))
	}
	if n := Quotients(v); n != "" {
		out = append(out, sentence(n))
	}
	return out
}

func familyWord(f kernelwright.FamilyReport) string {
	switch {
	case f.Passed && f.Gates:
		return "passed"
	case f.Passed:
		return "passed, advisory"
	case f.Gates:
		return "failed"
	default:
		return "failed, advisory"
	}
}

// evidence is what a certificate rests on, but for what stands elsewhere.
func evidence(v kernelwright.Verdict) []string {
	if v.Status != kernelwright.Certified {
		return nil // its round has it
	}
	return slices.DeleteFunc(slices.Clone(v.Evidence), func(e string) bool { return strings.HasPrefix(e, shapesTried) })
}

// findings are the yes-or-no results of the gate.
func findings(v kernelwright.Verdict) []fact {
	c := v.Correctness
	var out []fact
	add := func(name string, b *bool, yes, no string) {
		if b == nil {
			return
		}
		if *b {
			out = append(out, fact{name, yes})
		} else {
			out = append(out, fact{name, no})
		}
	}
	add("Deterministic", c.Deterministic, "yes, bit by bit", "no, two runs differ within the bound")
	add("Packs weights", c.CachesWeights, "yes, at its first call", "no")
	add("Follows weights", c.FollowsWeights, "yes, weights changed in place are seen", "no, weights changed after its first call are not seen")
	if v.Weights != "" {
		out = append(out, fact{"Weights", Line(weights(v.Weights))})
	}
	if v.Status != kernelwright.Certified { // or it stands above
		for _, a := range v.Assumes {
			out = append(out, fact{"Assumes", "it " + Line(a)})
		}
	}
	add("KernelBench's tolerance", c.KernelBench, "would have passed", "would not have passed")
	return out
}

// weights says how a candidate's weights are known to be the reference's.
func weights(by string) string {
	switch by {
	case kernelwright.WeightsByName:
		return "known by their names"
	case kernelwright.WeightsByValue:
		return "known by what they hold as they are constructed"
	case kernelwright.WeightsBySeed:
		return "some are made of others at construction: evaluated as constructed under secret seeds"
	}
	return by
}

func facts(d Data, v kernelwright.Verdict) []fact {
	var out []fact
	add := func(name, value string) {
		if value != "" && value != "–" {
			out = append(out, fact{name, value})
		}
	}
	specs := func(list []kernelwright.TensorSpec) string {
		parts := make([]string, 0, len(list))
		for i, t := range list {
			if i == 12 {
				parts = append(parts, fmt.Sprintf("and %d more", len(list)-i))
				break
			}
			parts = append(parts, shape(t))
		}
		return strings.Join(parts, ", ")
	}
	add("Inputs", specs(d.Task.Inputs))
	add("Parameters", specs(d.Task.Parameters))
	add("Outputs", specs(d.Task.Outputs))
	add("Operators", strings.Join(d.Task.Operators, ", "))
	add("Operations", count(d.Task.Operations))
	add("Least bytes", ByteSize(d.Task.LeastBytes))
	if v.Floor.MS > 0 {
		add("Floor", fmt.Sprintf("%s, bound by %s; headroom %s", Milliseconds(v.Floor.MS), v.Floor.Bound, Percent(v.Headroom)))
	}
	add("Time by what did the work", Work(v.Work))
	if v.Status != kernelwright.Certified { // or it stands above
		add("Device", deviceName(d))
	}
	if c := d.Device.Ceilings; c.MemoryGBs > 0 {
		add("Measured ceilings", fmt.Sprintf("%s GB/s memory, %s GB/s cache, %s GFLOP/s", digits(c.MemoryGBs), digits(c.CacheGBs), digits(c.FP32GFLOPs)))
	}
	add("Strategy", d.Run.Strategy)
	add("Coder", d.Run.Coder)
	add("Judge", d.Run.Judge)
	add("Stops not taken", RefusedStops(d.Rounds))
	if d.Spend.Calls > 0 {
		add("Language models", Spent(d.Spend))
	}
	add("Seed", fmt.Sprint(d.Run.Seed))
	add("Started", when(d.Run.StartedMS))
	add("Finished", when(d.Run.FinishedMS))
	if v.Sandbox.Mode != "" {
		s := v.Sandbox.Mode
		if len(v.Sandbox.Missing) > 0 {
			s += ", without " + strings.Join(v.Sandbox.Missing, ", ")
		}
		add("Sandbox", s)
	}
	if len(v.Versions) > 0 {
		var parts []string
		for _, k := range slices.Sorted(maps.Keys(v.Versions)) {
			parts = append(parts, k+" "+v.Versions[k])
		}
		add("Versions", strings.Join(parts, ", "))
	}
	add("Fingerprint of the task", d.Task.Fingerprint)
	return out
}

func feedbackFacts(f kernelwright.Feedback) []fact {
	var out []fact
	for _, x := range []fact{
		{"Issue", f.Issue}, {"Why", f.Why}, {"Fix", f.Fix},
		{"Bottleneck", f.Bottleneck}, {"Method", f.Method}, {"Plan", f.Plan},
	} {
		if x.Value != "" {
			out = append(out, x)
		}
	}
	if len(f.Knobs) > 0 {
		var parts []string
		for _, k := range slices.Sorted(maps.Keys(f.Knobs)) {
			parts = append(parts, fmt.Sprintf("%s = %d", k, f.Knobs[k]))
		}
		out = append(out, fact{"Knobs", strings.Join(parts, ", ")})
	}
	for _, x := range []fact{{"Rule", f.Rule}, {"The Judge wanted to stop", f.WantedStop}, {"In the place of a model's", f.Unusable}} {
		if x.Value != "" {
			out = append(out, x)
		}
	}
	return out
}

func statusOf(r kernelwright.Round) string {
	s := string(r.Verdict.Status)
	if c := r.Certificate; c != nil {
		if c.Status == kernelwright.Certified {
			s = string(c.Status)
		} else {
			s += ", certification: " + string(c.Status)
		}
	}
	return strings.ReplaceAll(Line(s), "_", " ")
}

// saying is what the Judge said, or why the candidate failed, in one line.
func saying(r kernelwright.Round) string {
	if f := r.Feedback; f != nil {
		for _, s := range []string{f.Plan, f.Method, f.Fix, f.Issue, f.Why, f.Bottleneck} {
			if s != "" {
				return s
			}
		}
	}
	if !r.Verdict.Status.OK() {
		return r.Verdict.Reason
	}
	return ""
}

func stopText(s kernelwright.StopReason) string {
	switch s {
	case kernelwright.StopRounds:
		return "all its rounds were used"
	case kernelwright.StopWallTime:
		return "its time was up"
	case kernelwright.StopHeadroom:
		return "the kernel is as close to the roofline as asked"
	case kernelwright.StopNoProgress:
		return "no round was faster, beyond the noise of measuring, for as many as its patience allows"
	case kernelwright.StopJudge:
		return "the Judge saw nothing left to gain"
	case kernelwright.StopDeclined:
		return "the Coder declined"
	case kernelwright.StopBudget:
		return "its budget did not allow another call of a model"
	case kernelwright.StopTurns:
		return "all its turns were used"
	case kernelwright.StopSubmitted:
		return "the Coder submitted it"
	default:
		return string(s)
	}
}

func levelText(l kernelwright.Level) string {
	if l == kernelwright.Certify {
		return "in a new process with new seeds, for the certificate"
	}
	return "at the quick level"
}

func levelName(l kernelwright.Level) string {
	if l == kernelwright.Certify {
		return "as certified"
	}
	return "at the quick level"
}

// roundReason is the sentence of a round's own verdict, by its level where it has
// figures in it.
func roundReason(r kernelwright.Round) string {
	if v := r.Verdict; v.Reason != "" && v.Status.OK() && v.Level == kernelwright.Quick {
		return "quick: " + v.Reason
	}
	return r.Verdict.Reason
}

// measuredAt is what each level measured of a round that has a certificate's times,
// too: of others the table says it.
func measuredAt(r kernelwright.Round) []fact {
	quick := Measured(r.Verdict)
	if !certified(r) || quick == "" {
		return nil
	}
	return []fact{{"Quick", quick}, {"Certified", Measured(*r.Certificate)}}
}

func name(d Data) string {
	if d.Task.Name != "" {
		return d.Task.Name
	}
	return d.Run.TaskName
}

// sentence gives a recorded reason a capital and a full stop.
func sentence(s string) string {
	s = strings.TrimSpace(s)
	if s == "" {
		return ""
	}
	r, n := utf8.DecodeRuneInString(s)
	s = string(unicode.ToUpper(r)) + s[n:]
	if strings.ContainsRune(".!?…", rune(s[len(s)-1])) {
		return s
	}
	return s + "."
}
