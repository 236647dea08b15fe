package report

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/metrics"
	"github.com/kernelwright/kernelwright/store"
)

// why says from the record what a run's best kernel does otherwise than the baseline,
// and by which changes it came to its time.
type why struct {
	Lead    string
	Compare []comparison
	Steps   []whyStep
}

// comparison is a figure of the reference under eager and of the kernel.
type comparison struct{ Name, Eager, Kernel, Meaning string }

// whyStep is a round on the way from the first candidate to the best one.
type whyStep struct {
	Round    int
	Link     string
	Kind     string // "first candidate", "correction" or "optimisation"
	Asked    string // of the Judge
	Did      string // the Coder's sentence
	Standing string
	Class    string
	From, To string
	Ratio    string
	Moved    []movement
}

// movement is a metric before and after a change.
type movement struct {
	Name, Unit, Meaning string
	From, To, Change    string
	Much                bool // it moved by over 5 %
}

// newWhy returns nil where a run has no correct kernel.
func newWhy(d Data, link func(int) string) *why {
	best, v, ok := Best(d.Rounds)
	if !ok {
		return nil
	}
	w := &why{Compare: compareEager(v)}
	if s := v.Speedup; s != nil && v.Baselines[s.Against] > 0 {
		w.Lead = fmt.Sprintf("It takes %s where %s takes %s.", Milliseconds(v.CandidateMS), Line(s.Against), Milliseconds(v.Baselines[s.Against]))
	}
	if v.Headroom > 0 && v.Floor.MS > 0 {
		w.Lead += fmt.Sprintf(" At %s of the roofline, the least time is %s and %s is what bounds it.", Percent(v.Headroom), Milliseconds(v.Floor.MS), Line(v.Floor.Bound))
	}
	for _, r := range lineage(d.Rounds, best.Index) {
		w.Steps = append(w.Steps, newWhyStep(d.Rounds, r, link))
	}
	return w
}

// lineage returns the rounds that a round came from and itself, the first one first.
func lineage(rounds []kernelwright.Round, index int) (way []kernelwright.Round) {
	for len(way) < len(rounds) {
		i := slices.IndexFunc(rounds, func(r kernelwright.Round) bool { return r.Index == index })
		if i < 0 {
			break
		}
		way = append(way, rounds[i])
		index = rounds[i].After()
	}
	slices.Reverse(way)
	return way
}

// roundBefore returns the round that another one went on from; nil for none.
func roundBefore(rounds []kernelwright.Round, r kernelwright.Round) *kernelwright.Round {
	for i := range rounds {
		if rounds[i].Index == r.After() && rounds[i].Index != r.Index {
			return &rounds[i]
		}
	}
	return nil
}

// answers says what a round is a reply to: the feedback on the one that it went on from.
func answers(before *kernelwright.Round) string {
	switch {
	case before == nil:
		return "first candidate"
	case before.Feedback == nil:
		return "next candidate"
	}
	return Line(string(before.Feedback.Kind))
}

func newWhyStep(rounds []kernelwright.Round, r kernelwright.Round, link func(int) string) whyStep {
	v, before := Counts(r), roundBefore(rounds, r)
	s := whyStep{Round: r.Index, Link: link(r.Index), Kind: answers(before), Did: Line(r.Candidate.Note), Standing: RoundStanding(r), Class: statusClass(v.Status), To: Milliseconds(v.CandidateMS)}
	if before == nil {
		return s
	}
	if f := before.Feedback; f != nil {
		s.Asked = Line(asked(*f))
	}
	// Of one level: a certificate's time is not held against a quick one.
	if was, now := before.Verdict.CandidateMS, r.Verdict.CandidateMS; was > 0 && now > 0 {
		s.From, s.To, s.Ratio = Milliseconds(was), Milliseconds(now), times(was/now)
	}
	for _, m := range store.Moved(before.Verdict, r.Verdict) {
		s.Moved = append(s.Moved, newMovement(m))
	}
	return s
}

// asked is what a Judge asked for, in one line.
func asked(f kernelwright.Feedback) string {
	switch {
	case f.Kind == kernelwright.Correction && f.Fix != "":
		return strings.TrimRight(f.Issue, ". ") + ": " + f.Fix
	case f.Kind == kernelwright.Correction:
		return f.Issue
	case f.Bottleneck != "" && f.Method != "":
		return strings.TrimRight(f.Bottleneck, ". ") + ": " + f.Method
	default:
		return f.Plan
	}
}

func newMovement(m kernelwright.Movement) movement {
	out := movement{Name: Line(m.Metric), From: digits(m.From), To: digits(m.To)}
	if known, ok := metrics.Of(m.Metric); ok {
		if out.Unit = known.Unit; out.Unit == metrics.Count || out.Unit == metrics.Ratio || out.Unit == "share" {
			out.Unit = ""
		}
		out.Meaning = known.Meaning
		if known.Unit == "share" {
			out.From, out.To, out.Unit = shareText(m.From), shareText(m.To), ""
		}
	}
	if larger := max(math.Abs(m.From), math.Abs(m.To)); larger > 0 {
		out.Much = math.Abs(m.To-m.From)/larger > 0.05
	}
	switch {
	case m.From == m.To:
		out.Change = "="
	case m.From > 0 && m.To > 0:
		out.Change = fmt.Sprintf("%+.0f %%", 100*(m.To/m.From-1))
		if m.To >= 3*m.From {
			out.Change = "× " + digits(m.To/m.From)
		}
	case m.To > m.From:
		out.Change = "up"
	default:
		out.Change = "down"
	}
	return out
}

func shareText(v float64) string { return fmt.Sprintf("%.0f %%", 100*v) }

// movements has every metric that two verdicts have, the second's by name.
func movements(from, to kernelwright.Verdict) (all []movement) {
	var names []string
	was, now := measuredOf(from), measuredOf(to)
	for name := range now {
		if _, both := was[name]; both {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		all = append(all, newMovement(kernelwright.Movement{Metric: name, From: was[name], To: now[name]}))
	}
	return all
}

func measuredOf(v kernelwright.Verdict) map[string]float64 {
	all := map[string]float64{}
	if v.CandidateMS > 0 {
		all["candidate_ms"] = v.CandidateMS
	}
	if v.Profile != nil {
		for name, x := range v.Profile.Metrics {
			all[name] = x
		}
	}
	for name, x := range v.Metrics {
		all[name] = x
	}
	return all
}

// compareEager holds what was seen of a kernel against what was seen of eager.
func compareEager(v kernelwright.Verdict) (rows []comparison) {
	add := func(name, eager, kernel, meaning string) {
		if kernel != "" && kernel != "–" {
			rows = append(rows, comparison{name, eager, kernel, meaning})
		}
	}
	eagerMS := v.Baselines["eager"]
	add("time", Milliseconds(eagerMS), Milliseconds(v.CandidateMS), "median of one forward")
	if f := v.Floor; f.MS > 0 && f.Bytes > 0 {
		rate := func(ms float64) string {
			if ms <= 0 {
				return "–"
			}
			return digits(float64(f.Bytes)/ms/1e6) + " GB/s"
		}
		if f.Bound == "compute" && f.Operations > 0 {
			rate = func(ms float64) string {
				if ms <= 0 {
					return "–"
				}
				return digits(float64(f.Operations)/ms/1e6) + " GFLOP/s"
			}
		}
		add("useful rate", rate(eagerMS), rate(v.CandidateMS), "the least work of the task over the time")
		if eagerMS > 0 {
			add("of the roofline", Percent(min(f.MS/eagerMS, 1)), Percent(v.Headroom), "100 % is as fast as this hardware can be")
		}
	}
	e, p := v.EagerProfile, v.Profile
	if e != nil && p != nil {
		add("kernel launches", fmt.Sprint(e.Launches), fmt.Sprint(p.Launches), "in one forward")
		add("time on the GPU", Milliseconds(e.MS), Milliseconds(p.MS), "of its kernels together")
		for _, roof := range roofs {
			if p.Position[roof.name] > 0 {
				add("of the ceiling of "+roof.said, Percent(e.Position[roof.name]), Percent(p.Position[roof.name]), "measured on this device")
			}
		}
		if was, now := e.Metrics[metrics.DRAMRead]+e.Metrics[metrics.DRAMWritten], p.Metrics[metrics.DRAMRead]+p.Metrics[metrics.DRAMWritten]; was > 0 && now > 0 {
			add("bytes of memory", ByteSize(int64(was)), ByteSize(int64(now)), "read and written")
		}
	}
	if w := v.Work; w.Custom+w.Vendor+w.PyTorch+w.Compiled+w.Graph > 0 {
		add("who did the work", "PyTorch", Work(w), "shares of the kernel's time")
	}
	return rows
}
