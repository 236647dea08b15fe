// Package report turns a recorded run into what people keep: a certificate, a
// Markdown report, one self-contained HTML page, and the table that a command
// ends with. It computes nothing that the record does not hold. Sources, logs
// and compiler output in it are foreign text, and are treated as such.
package report

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/llm"
)

// Data is one run with everything that a report of it shows. Rounds are in
// order, oldest first.
type Data struct {
	Run      kernelwright.Run
	Task     kernelwright.Task
	Device   kernelwright.Device
	Rounds   []kernelwright.Round
	Spend    kernelwright.Spend // on language models
	Talk     []llm.Record       // with them, in order
	Attempts []llm.Charge       // at calls with them, which were not answered
	// Where results are written: the name that a kernel's file has there, and what
	// became of an older one of this name, a sentence without its full stop.
	File  string
	Older string
}

// Summary is what a run came to.
type Summary struct {
	Task     string             `json:"task"`
	Run      int64              `json:"run"`
	Status   string             `json:"status"`          // of the run while it has no kernel, else of the verdict
	Level    string             `json:"level,omitempty"` // of that verdict
	Result   string             `json:"result"`          // what the run came to: [Result]
	Reason   string             `json:"reason,omitempty"`
	Hint     string             `json:"hint,omitempty"`
	Stop     string             `json:"stop,omitempty"`
	Rounds   int                `json:"rounds"`
	Round    int                `json:"round" unknown:"-1"` // of the best kernel; -1 where there is none
	MS       float64            `json:"candidate_ms,omitempty" unknown:"0"`
	Baseline map[string]float64 `json:"baselines"`

	Speedup  *kernelwright.Speedup   `json:"speedup"`
	Headroom float64                 `json:"headroom,omitempty" unknown:"0"`
	Flags    []kernelwright.TaskFlag `json:"flags,omitempty"`
	Spend    *kernelwright.Spend     `json:"spend,omitempty"`         // nil where no language model was asked
	Stops    *Stops                  `json:"refused_stops,omitempty"` // of the Judge; nil where none was
	Notes    []string                `json:"notes,omitempty"`         // what its figures are to be read with
	Report   string                  `json:"report,omitempty"`        // path, where one was written
	Kernel   string                  `json:"kernel,omitempty"`
}

// Best returns the round whose kernel the run kept, and the verdict that
// counts for it: the certificate where there is one. With none certified it
// is the fastest correct one that was not refused, and false says that there is
// none either.
func Best(rounds []kernelwright.Round) (kernelwright.Round, kernelwright.Verdict, bool) {
	var best kernelwright.Round
	var verdict kernelwright.Verdict
	found, strict := false, false
	for _, r := range rounds {
		v, c := Counts(r), certified(r)
		if !v.Status.OK() || refused(r) || strict && !c {
			continue
		}
		if found && strict == c && !faster(v, verdict) {
			continue
		}
		best, verdict, found, strict = r, v, true, c
	}
	return best, verdict, found
}

func faster(a, b kernelwright.Verdict) bool {
	if a.CandidateMS <= 0 || b.CandidateMS <= 0 {
		return a.CandidateMS > 0
	}
	return a.CandidateMS < b.CandidateMS
}

// Summarise reduces a run to one row.
func Summarise(d Data) Summary {
	s := Summary{
		Task: d.Run.TaskName, Run: d.Run.ID, Status: string(d.Run.Status), Reason: d.Run.Reason, Hint: d.Run.Hint,
		Stop: string(d.Run.Stop), Rounds: len(d.Rounds), Round: -1, Flags: d.Task.Flags, Baseline: map[string]float64{}, Result: Result(d.Run.Status, d.Rounds),
	}
	if s.Task == "" {
		s.Task = d.Task.Name
	}
	if d.Spend.Calls > 0 {
		s.Spend = &d.Spend
	}
	if stops, _ := stopsOf(d.Rounds); stops.Refused > 0 {
		s.Stops = &stops
	}
	r, v, ok := Best(d.Rounds)
	if !ok {
		if n := len(d.Rounds); n > 0 && d.Run.Status == kernelwright.RunDone {
			last := d.Rounds[n-1].Verdict
			if i := slices.IndexFunc(d.Rounds, refused); i >= 0 { // it came furthest
				last = *d.Rounds[i].Certificate
			}
			s.Status = string(last.Status)
			if s.Reason == "" {
				s.Reason = last.Reason
			}
			if last.Baselines != nil {
				s.Baseline = last.Baselines
			}
		}
		return s
	}
	s.Round, s.Status, s.Level, s.MS, s.Speedup, s.Headroom = r.Index, string(v.Status), string(v.Level), v.CandidateMS, v.Speedup, v.Headroom
	if s.Result == NothingFaster {
		s.Notes = append(s.Notes, "nothing faster was found: "+slower(v, d.Run.ID, r.Index))
	}
	if again := Again(d); v.Speedup.Vague() && again != "" {
		s.Notes = append(s.Notes, "the interval is too wide to tell; on a quiet machine: `"+again+"`")
	}
	if work := OthersWork(v.Work); work != "" {
		s.Notes = append(s.Notes, "what did the work: "+work)
	}
	if d.Older != "" {
		s.Notes = append(s.Notes, d.Older)
	}
	if v.Speedup != nil {
		if note := Quotients(v, v.Speedup.Against); note != "" {
			s.Notes = append(s.Notes, note)
		}
	}
	if v.Baselines != nil {
		s.Baseline = v.Baselines
	}
	return s
}

// baselineOrder is how people read them; others follow by name.
var baselineOrder = kernelwright.Shared.AllBaselines()

// BaselineNames returns the names in the order in which people read them.
func BaselineNames[V any](m map[string]V) []string {
	names := slices.Sorted(maps.Keys(m))
	slices.SortStableFunc(names, func(a, b string) int { return rank(a) - rank(b) })
	return names
}

func rank(name string) int {
	if i := slices.Index(baselineOrder, name); i >= 0 {
		return i
	}
	return len(baselineOrder)
}

// flagTexts says what each flag means to somebody who would use the kernel.
var flagTexts = map[kernelwright.TaskFlag]string{
	kernelwright.FlagConstantOutput:     "the reference's output does not vary at all: a program that ignores its work could look right",
	kernelwright.FlagIgnoresInput:       "the reference's output does not depend on any input: a program that ignores them could look right",
	kernelwright.FlagIgnoresWeights:     "the reference's output does not depend on any parameter",
	kernelwright.FlagTrainModeOnly:      "the reference behaves differently in train mode; it was evaluated in eval mode, where it is deterministic",
	kernelwright.FlagIllConditioned:     "the reference is ill-conditioned: the last bit of an input moves the output by over 1 %",
	kernelwright.FlagNonFiniteReference: "the reference itself gives NaN or infinity on its own inputs",
	kernelwright.FlagTooLarge:           "the reference is large for the device: evaluating it takes about more memory than there is, and it may end as too large",
}

// FlagText returns the sentence for a flag.
func FlagText(f kernelwright.TaskFlag) string {
	if s, ok := flagTexts[f]; ok {
		return s
	}
	return Clean(strings.ReplaceAll(string(f), "_", " "))
}

// flagsOf joins the flags of the task and of the verdict that counts.
func flagsOf(d Data, v kernelwright.Verdict) []kernelwright.TaskFlag {
	out := slices.Clone(d.Task.Flags)
	for _, f := range v.Flags {
		if !slices.Contains(out, f) {
			out = append(out, f)
		}
	}
	return out
}

// headline is the run in one sentence.
func headline(d Data) string {
	_, v, ok := Best(d.Rounds)
	if !ok {
		switch d.Run.Status {
		case kernelwright.RunInvalid, kernelwright.RunDeclined, kernelwright.RunFailed, kernelwright.RunCancelled:
			return Clean(d.Run.Reason)
		case kernelwright.RunQueued:
			return "Not started yet."
		case kernelwright.RunRunning:
			return "No correct candidate so far."
		default:
			if slices.ContainsFunc(d.Rounds, refused) {
				return "No candidate passed certification."
			}
			return "No candidate was correct."
		}
	}
	kept := "certified"
	if v.Status != kernelwright.Certified {
		kept = "correct, not certified"
	}
	s := v.Speedup
	if s == nil {
		return "A kernel is " + kept + "; it was not timed."
	}
	against := Clean(s.Against)
	switch {
	case s.Slower() && v.Status == kernelwright.Certified:
		return fmt.Sprintf("Nothing faster than %s was found: the best certified kernel has %s its speed (%s) and is not handed out.", against, times(s.Value), interval(*s))
	case s.Wins(0):
		return fmt.Sprintf("%s the speed of %s (%s), %s.", times(s.Value), against, interval(*s), kept)
	case s.High < 1:
		return fmt.Sprintf("Slower than %s: %s (%s), %s.", against, times(s.Value), interval(*s), kept)
	case s.Vague():
		said := fmt.Sprintf("Too wide an interval to tell it from %s: %s (%s), %s.", against, times(s.Value), interval(*s), kept)
		if again := Again(d); again != "" {
			said += " On a quiet machine `" + again + "` tells more."
		}
		return said
	default:
		return fmt.Sprintf("No measurable difference to %s: %s (%s), %s.", against, times(s.Value), interval(*s), kept)
	}
}

func when(ms int64) string {
	if ms == 0 {
		return ""
	}
	return time.UnixMilli(ms).UTC().Format("2006-01-02 15:04:05 UTC")
}
