package prompts

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
)

// facts collects lines of ours in which words of others stand.
type facts struct{ b strings.Builder }

func (f *facts) add(format string, args ...any) { fmt.Fprintf(&f.b, format+"\n", args...) }

// What of lists is shown: names, lines of a compiler, kernels.
const (
	maxListed    = 12
	maxOperators = 40
	maxErrors    = 5
	maxWord      = 80   // bytes of somebody's name for something
	maxSentence  = 400  // of somebody's sentence
	maxAdvice    = 2000 // of what a Judge says in one part
	maxBeginning = 160  // of an answer that is none
)

// QueryFor asks for the skills for a task on a device. The words may be foreign
// text: all of a query is looked through, so they are cut to a sentence each.
func QueryFor(t kernelwright.Task, d kernelwright.Device, l kernelwright.Language, words ...string) Query {
	q := Query{Language: l, Operators: t.Operators, ISA: d.Specs.ISA}
	for _, w := range words {
		q.Words = append(q.Words, Line(w, maxSentence))
	}
	for _, s := range slices.Concat(t.Inputs, t.Parameters) {
		if !slices.Contains(q.DTypes, s.DType) {
			q.DTypes = append(q.DTypes, s.DType)
		}
	}
	return q
}

// TaskFacts is what inspection found out about a task, for a prompt.
func TaskFacts(t kernelwright.Task) Data {
	var f facts
	tensors := func(what string, list []kernelwright.TensorSpec) {
		var all []string
		for _, s := range list[:min(len(list), maxListed)] {
			all = append(all, strings.TrimSpace(fmt.Sprintf("%s %s %s", Line(s.Name, maxWord), Line(s.DType, maxWord), shape(s.Shape))))
		}
		if more := len(list) - len(all); more > 0 {
			all = append(all, fmt.Sprintf("and %d more", more))
		}
		if len(all) > 0 {
			f.add("%s: %s", what, strings.Join(all, "; "))
		}
	}
	tensors("inputs", t.Inputs)
	tensors("parameters", t.Parameters)
	tensors("outputs", t.Outputs)
	if n := len(t.Operators); n > 0 {
		var all []string
		for _, o := range t.Operators[:min(n, maxOperators)] {
			all = append(all, Line(o, maxWord))
		}
		if n > maxOperators {
			all = append(all, fmt.Sprintf("and %d more", n-maxOperators))
		}
		f.add("operators: %s", strings.Join(all, ", "))
	}
	if t.LeastBytes > 0 {
		f.add("least bytes to move: %s; floating-point operations: %.3g", byteSize(float64(t.LeastBytes)), float64(t.Operations))
	}
	if t.EagerMS > 0 {
		f.add("eager takes about %.4g ms", t.EagerMS)
	}
	for _, n := range t.Notes[:min(len(t.Notes), maxListed)] {
		f.add("note: %s", Line(n, maxSentence))
	}
	return Fence("task", f.b.String(), MaxFactsBytes)
}

// DeviceFacts is what a device is and was measured to reach, for a prompt.
func DeviceFacts(d kernelwright.Device) Data {
	var f facts
	s, c := d.Specs, d.Ceilings
	name := s.Model
	if name == "" {
		name = d.Name
	}
	f.add("%s: %s", d, Line(name, maxWord))
	var parts []string
	part := func(ok bool, format string, args ...any) {
		if ok {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	line := func(what string) {
		if len(parts) > 0 {
			f.add("%s: %s", what, strings.Join(parts, ", "))
		}
		parts = nil
	}
	cuda := d.Kind == kernelwright.CUDADevice
	part(s.Cores > 0 && cuda, "%d SMs", s.Cores)
	part(s.Cores > 0 && !cuda, "%d cores", s.Cores)
	part(c.CPUThreads > 0 && !cuda, "%d threads for a candidate", c.CPUThreads)
	part(len(s.ISA) > 0, "%s", Line(strings.Join(s.ISA, " "), maxSentence))
	part(s.VectorBits > 0, "vectors of %d bits", s.VectorBits)
	part(s.L1Bytes > 0, "L1 %s", byteSize(float64(s.L1Bytes)))
	part(s.L2Bytes > 0, "L2 %s", byteSize(float64(s.L2Bytes)))
	part(s.L3Bytes > 0, "L3 %s", byteSize(float64(s.L3Bytes)))
	part(s.MemoryBytes > 0, "memory %s", byteSize(float64(s.MemoryBytes)))
	line("specs")
	if s.SM != nil {
		f.add("an SM holds at most: %s", Line(s.SM.Limits(), maxSentence))
		f.add("an SM's multiply-adds a clock: %s", Line(s.SM.Rates(), maxSentence))
	}
	part(c.MemoryGBs > 0, "memory %s GB/s", number(c.MemoryGBs))
	part(c.ReadGBs > 0, "read alone %s GB/s", number(c.ReadGBs))
	part(c.CacheGBs > 0, "cache %s GB/s", number(c.CacheGBs))
	part(c.FP32GFLOPs > 0, "float32 %s GFLOP/s", number(c.FP32GFLOPs))
	var types []string
	for t := range c.TensorGFLOPs {
		types = append(types, t)
	}
	slices.Sort(types)
	for _, t := range types {
		part(c.TensorGFLOPs[t] > 0, "tensor cores on %s %s GFLOP/s", Line(t, maxWord), number(c.TensorGFLOPs[t]))
	}
	part(c.CallUS > 0 && cuda, "an empty kernel %.3g us", c.CallUS)
	part(c.CallUS > 0 && !cuda, "an empty native call %.3g us", c.CallUS)
	line("measured to reach")
	return Fence("device", f.b.String(), MaxFactsBytes)
}

// VerdictFacts is what the hardware said of a candidate, as who has no Judge
// is told: how far it came, why, what the compiler said first, or how fast it
// is.
func VerdictFacts(v kernelwright.Verdict) Data {
	var f facts
	f.add("status: %s", Line(string(v.Status), maxWord))
	sentence := func(what, s string) {
		if s != "" {
			f.add("%s: %s", what, Line(s, maxSentence))
		}
	}
	sentence("reason", v.Reason)
	sentence("hint", v.Hint)
	if !v.Status.OK() {
		for _, e := range v.Evidence[:min(len(v.Evidence), maxErrors)] {
			sentence("evidence", e)
		}
		families(&f, v.Correctness.Families)
		for _, d := range v.Build.Errors[:min(len(v.Build.Errors), maxErrors)] {
			f.add("compiler, line %d: %s", d.Line, Line(d.Message, maxSentence))
		}
		return Fence("verdict", f.b.String(), MaxFactsBytes)
	}
	timing(&f, v)
	return Fence("verdict", f.b.String(), MaxFactsBytes)
}

func timing(f *facts, v kernelwright.Verdict) {
	if v.CandidateMS <= 0 {
		f.add("it was not timed")
		return
	}
	f.add("time: %.4g ms", v.CandidateMS)
	if s := v.Speedup; s != nil {
		f.add("speedup: %.3g (%.3g to %.3g) against %s, the fastest baseline", s.Value, s.Low, s.High, Line(s.Against, maxWord))
	}
	names := make([]string, 0, len(v.Baselines))
	for name := range v.Baselines {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names[:min(len(names), maxListed)] {
		f.add("baseline %s: %.4g ms", Line(name, maxWord), v.Baselines[name])
	}
	if v.Floor.MS > 0 {
		work := byteSize(float64(v.Floor.Bytes))
		if v.Floor.Operations > 0 {
			work += fmt.Sprintf(", %.3g operations", float64(v.Floor.Operations))
		}
		f.add("roofline: no faster than %.4g ms (bound by %s: %s), so headroom %.2f of 1", v.Floor.MS, Line(v.Floor.Bound, maxWord), work, v.Headroom)
	}
}

func families(f *facts, all []kernelwright.FamilyReport) {
	var passed []string
	told := 0
	for _, r := range all {
		switch {
		case !r.Gates:
		case r.Passed:
			passed = append(passed, Line(r.Name, maxWord))
		case told < maxListed:
			told++
			f.add("wrong on inputs %q: largest error %s, allowed %s; root mean square %s, allowed %s",
				Line(r.Name, maxWord), size(r.MaxError), size(r.MaxBound), size(r.RMSError), size(r.RMSBound))
		}
	}
	if told > 0 && len(passed) > 0 {
		f.add("right on inputs: %s", strings.Join(passed, ", "))
	}
}

// size writes an error or a bound.
func size(x float64) string {
	if x >= kernelwright.NotFinite {
		return "infinite"
	}
	return fmt.Sprintf("%.3g", x)
}

// Score is all that a Coder is told which refines on the speedup alone.
func Score(v kernelwright.Verdict) string {
	switch s := v.Speedup; {
	case !v.Status.OK():
		return "It is not correct."
	case s == nil:
		return "It is correct. Its speed is not known."
	default:
		return fmt.Sprintf("It is correct, and runs at %.3g times the speed of the fastest baseline.", s.Value)
	}
}

// BuildFacts is what is known of a candidate's code without running it: a
// GPU's kernels, what they launch, and loops that a compiler left scalar.
func BuildFacts(v kernelwright.Verdict) Data {
	var f facts
	if v.Build.Form != "" {
		f.add("form: %s", Line(v.Build.Form, maxWord))
	}
	for i, k := range v.Build.Kernels {
		if i == maxListed {
			f.add("and %d more kernels", len(v.Build.Kernels)-i)
			break
		}
		f.add("kernel %s: %d registers, %s of static shared memory, spills %d bytes stored and %d loaded, %.3g bytes a load, %.3g a store%s",
			Line(k.Name, maxWord), k.Registers, byteSize(float64(k.SharedBytes)), k.SpillStoreBytes, k.SpillLoadBytes, k.LoadBytes, k.StoreBytes, mix(k.Instructions))
	}
	for _, l := range v.Work.Launches[:min(len(v.Work.Launches), maxListed)] {
		f.add("launch %s: %d times, %.4g ms, grid %v, block %v", Line(l.Name, maxWord), l.Count, l.MS, l.Grid, l.Block)
	}
	for _, o := range v.Work.Operators[:min(len(v.Work.Operators), maxListed)] {
		f.add("time in %s (%s): %.0f %%, %d calls", Line(o.Name, maxWord), Line(o.Kind, maxWord), 100*o.Share, o.Calls)
	}
	for _, d := range v.Build.Missed[:min(len(v.Build.Missed), maxErrors)] {
		f.add("not vectorised, line %d: %s", d.Line, Line(d.Message, maxSentence))
	}
	return Fence("build and work", f.b.String(), MaxFactsBytes)
}

func mix(instructions map[string]int) string {
	names := make([]string, 0, len(instructions))
	for n := range instructions {
		names = append(names, n)
	}
	slices.Sort(names)
	var all []string
	for _, n := range names[:min(len(names), maxListed)] {
		all = append(all, fmt.Sprintf("%s %d", Line(n, maxWord), instructions[n]))
	}
	if len(all) == 0 {
		return ""
	}
	return "; instructions: " + strings.Join(all, ", ")
}

// OutputFacts is the end of what a candidate printed, and of what a compiler
// did where VerdictFacts has not all its words.
func OutputFacts(v kernelwright.Verdict) (compiler, output Data) {
	errors := len(v.Build.Errors)
	told := errors > 0 && errors <= maxErrors && !strings.Contains(v.Build.Log, "note: ")
	if v.Status == kernelwright.BuildFailed && !told {
		compiler = Fence("compiler output", v.Build.Log, MaxCompilerBytes)
	}
	return compiler, Fence("candidate output", v.Output, MaxOutputBytes)
}

func shape(dims []int) string { return strings.ReplaceAll(fmt.Sprint(dims), " ", ", ") }

// byteSize writes a number of bytes for a reader.
func byteSize(n float64) string {
	for _, u := range []struct {
		size float64
		name string
	}{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n >= u.size {
			return number(n/u.size) + " " + u.name
		}
	}
	return number(n) + " bytes"
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// number writes a measured value to four digits or more, and large ones whole.
func number(x float64) string {
	if size := math.Abs(x); size >= 1000 && size < 1e15 {
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.4g", x)
}

// AnswerFacts is what is wrong with an answer that holds no candidate, and how it begins: as a
// whole it would teach nothing.
func AnswerFacts(u kernelwright.UnusableError) Data {
	var f facts
	f.add("reason: %s", Line(u.Reason, maxSentence))
	if u.Hint != "" {
		f.add("hint: %s", Line(u.Hint, maxSentence))
	}
	if begins := Line(u.Answer, maxBeginning); begins != "" {
		f.add("it began: %s", begins)
	}
	return Fence("answer without a candidate", f.b.String(), MaxFactsBytes)
}

// FeedbackFacts is what a Judge said, for the Coder. Others' words stand in it:
// a compiler's, a candidate's.
func FeedbackFacts(f kernelwright.Feedback) Data {
	var b facts
	if f.Kind == kernelwright.Stop {
		b.add("no change to advise")
	}
	for _, part := range []struct{ what, says string }{
		{"issue", f.Issue}, {"bottleneck", f.Bottleneck}, {"method", f.Method}, {"why", f.Why}, {"fix", f.Fix}, {"plan", f.Plan}} {
		if part.says != "" {
			b.add("%s: %s", part.what, Line(part.says, maxAdvice))
		}
	}
	if len(f.Evidence) > 0 {
		names := slices.Sorted(maps.Keys(f.Evidence))
		var all []string
		for _, name := range names[:min(len(names), maxListed)] {
			all = append(all, Line(name, maxWord)+" = "+number(f.Evidence[name]))
		}
		b.add("evidence: %s", strings.Join(all, ", "))
	}
	return Fence("feedback", b.b.String(), MaxFactsBytes)
}
