package forge

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
)

// How much of a verdict a model is shown.
const (
	maxDiagnostics = 20
	maxMetrics     = 40  // of a profile, where not all were asked for
	maxProfiled    = 100 // of what a profiler of a GPU measured
	maxLaunches    = 8
	maxLogBytes    = 3 << 10
	maxRoundLines  = 30
	fewRoundLines  = 3 // in a compact talk
)

// buildText is what a compile says; its first line says whether it worked.
func buildText(report kernelwright.BuildReport, failure string) string {
	var b strings.Builder
	if failure != "" {
		fmt.Fprintf(&b, "not built: %s\n", oneLine(failure, 500))
		diagnosticLines(&b, report, maxLogBytes)
		return b.String()
	}
	b.WriteString("built\n")
	staticLines(&b, report)
	return b.String()
}

func diagnosticLines(b *strings.Builder, report kernelwright.BuildReport, most int) {
	for i, d := range report.Errors {
		if i == maxDiagnostics {
			fmt.Fprintf(b, "and %d more\n", len(report.Errors)-i)
			break
		}
		fmt.Fprintf(b, "line %d of the candidate: %s\n", d.Line, oneLine(d.Message, 300))
	}
	if len(report.Errors) == 0 && report.Log != "" {
		log := report.Log
		if len(log) > most {
			log = log[len(log)-most:]
		}
		b.WriteString("The end of the compiler's output:\n" + fenced(bounded(log, most)) + "\n")
	}
}

// staticLines says what is known of compiled code without running it.
func staticLines(b *strings.Builder, report kernelwright.BuildReport) {
	for i, k := range report.Kernels {
		if i == maxDiagnostics {
			break
		}
		fmt.Fprintf(b, "kernel %s for %s: %d registers, %d bytes of shared memory a block, %d bytes spilled a thread\n",
			oneLine(k.Name, 100), k.Arch, k.Registers, k.SharedBytes, k.SpillStoreBytes)
	}
	if n := len(report.Vectorised); n > 0 {
		fmt.Fprintf(b, "%s vectorised\n", plural(n, "loop"))
	}
	for i, d := range report.Missed {
		if i == maxDiagnostics/2 {
			break
		}
		fmt.Fprintf(b, "line %d of the candidate is not vectorised: %s\n", d.Line, oneLine(d.Message, 200))
	}
}

// roundLine says in one line how a round went.
func roundLine(r kernelwright.Round) string {
	v := r.Verdict
	if !v.Status.OK() {
		return fmt.Sprintf("round %d: %s, %s", r.Index, v.Status, oneLine(v.Reason, 200))
	}
	line := fmt.Sprintf("round %d: %s", r.Index, v.Status)
	if v.CandidateMS > 0 {
		line += fmt.Sprintf(", %.4g ms", v.CandidateMS)
	}
	if s := v.Speedup; s != nil {
		line += fmt.Sprintf(", %.2fx the speed of %s", s.Value, s.Against)
	}
	return line
}

// verdictText is what verify says of a round. With JudgeScore it is no more than
// how far the candidate came, and its speedup.
func (a *actor) verdictText(r kernelwright.Round) string {
	var b strings.Builder
	b.WriteString(roundLine(r) + "\n")
	if same := a.duplicate(r.Candidate, r.Index); same != nil {
		fmt.Fprintf(&b, "This is the candidate of round %d again: its verdict counts.\n", same.Index)
	}
	v := r.Verdict
	if a.settings.JudgeMode != JudgeScore {
		if !v.Status.OK() {
			a.failureLines(&b, v)
		} else {
			timeLines(&b, v)
		}
		if f := r.Feedback; f != nil && f.Kind == kernelwright.Correction {
			feedbackLines(&b, [][2]string{{"issue", f.Issue}, {"why", f.Why}, {"fix", f.Fix}})
		}
	}
	won := 0
	for _, earlier := range a.rounds {
		if kept(earlier) && overCompile(earlier.Verdict) {
			won++
		}
	}
	if v.Status.OK() {
		not := " not"
		if overCompile(v) {
			not = ""
		}
		fmt.Fprintf(&b, "It is%s %.0f %% faster than %s, beyond the noise of measuring.\n", not, 100*compileMargin, rival(v))
	}
	fmt.Fprintf(&b, "So far %d of %s were that fast.", won, plural(len(a.rounds), "candidate"))
	if best := best(a.rounds); best != nil {
		fmt.Fprintf(&b, " The best is that of round %d, %.4g ms.", best.Index, best.Verdict.CandidateMS)
	}
	fmt.Fprintf(&b, " Rounds left: %d.\n", a.settings.Rounds-len(a.rounds))
	return b.String()
}

func feedbackLines(b *strings.Builder, parts [][2]string) {
	b.WriteString("The Judge says:\n")
	for _, p := range parts {
		fmt.Fprintf(b, "- %s: %s\n", p[0], oneLine(p[1], 2000))
	}
}

func (a *actor) failureLines(b *strings.Builder, v kernelwright.Verdict) {
	if v.Hint != "" {
		fmt.Fprintf(b, "hint: %s\n", oneLine(v.Hint, 500))
	}
	for i, e := range v.Evidence {
		if i == maxDiagnostics {
			break
		}
		fmt.Fprintf(b, "- %s\n", oneLine(e, 500))
	}
	diagnosticLines(b, v.Build, a.mostLog())
	for _, f := range v.Correctness.Families {
		if f.Gates && !f.Passed {
			fmt.Fprintf(b, "inputs %s: largest error %.3g, allowed %.3g\n", oneLine(f.Name, 60), f.MaxError, f.MaxBound)
		}
	}
	if v.Output != "" {
		b.WriteString("What the candidate printed last:\n" + fenced(bounded(v.Output, a.mostLog())) + "\n")
	}
}

func timeLines(b *strings.Builder, v kernelwright.Verdict) {
	for _, name := range slices.Sorted(maps.Keys(v.Baselines)) {
		fmt.Fprintf(b, "%s takes %.4g ms", oneLine(name, 60), v.Baselines[name])
		if s, ok := v.Speedups[name]; ok {
			fmt.Fprintf(b, ": the candidate has %.2fx its speed (%.2f to %.2f)", s.Value, s.Low, s.High)
		}
		b.WriteString("\n")
	}
	if v.Headroom > 0 {
		fmt.Fprintf(b, "It runs at %.0f %% of the roofline: the least for this task is %.4g ms, bound by %s.\n", 100*v.Headroom, v.Floor.MS, v.Floor.Bound)
	}
}

// profileText is what profile says of a round.
func (a *actor) profileText(r kernelwright.Round) string {
	var b strings.Builder
	b.WriteString(a.verdictText(r))
	v := r.Verdict
	if a.settings.JudgeMode == JudgeScore || !v.Status.OK() {
		return b.String()
	}
	fmt.Fprintf(&b, "Of its time %.0f %% is in own code, %.0f %% in vendors' libraries, %.0f %% in PyTorch.\n", 100*v.Work.Custom, 100*v.Work.Vendor, 100*v.Work.PyTorch)
	names := slices.Sorted(maps.Keys(v.Metrics))
	if a.settings.Metrics != FullMetrics {
		names = names[:min(len(names), maxMetrics)]
	}
	for _, name := range names {
		fmt.Fprintf(&b, "%s = %.6g\n", oneLine(name, 100), v.Metrics[name])
	}
	if p := v.Profile; p != nil {
		names := slices.Sorted(maps.Keys(p.Metrics))
		for _, name := range names[:min(len(names), maxProfiled)] {
			fmt.Fprintf(&b, "%s = %.6g\n", oneLine(name, 100), p.Metrics[name])
		}
	}
	launchLines(&b, v.Profile)
	staticLines(&b, v.Build)
	if f := r.Feedback; f != nil {
		if f.Kind == kernelwright.Stop {
			feedbackLines(&b, [][2]string{{"nothing left to gain", f.Why}})
		} else {
			feedbackLines(&b, [][2]string{{"bottleneck", f.Bottleneck}, {"method", f.Method}, {"plan", f.Plan}})
		}
		if len(f.Evidence) > 0 {
			if evidence, err := json.Marshal(f.Evidence); err == nil { // finite: the feedback was checked
				fmt.Fprintf(&b, "Its numbers: %s\n", bounded(string(evidence), 2000))
			}
		}
	}
	return b.String()
}

// launchLines say which kernels a profiler saw. Its metrics stand among the
// verdict's.
func launchLines(b *strings.Builder, p *kernelwright.Profile) {
	if p == nil {
		return
	}
	took := ""
	if p.MS > 0 { // it is not known otherwise
		took = fmt.Sprintf(", %.4g ms in kernels", p.MS)
	}
	fmt.Fprintf(b, "Profiled by %s: %d launches%s.\n", oneLine(p.Tool, 20), p.Launches, took)
	if p.Why != "" {
		fmt.Fprintf(b, "note: %s\n", oneLine(p.Why, 300))
	}
	for _, k := range p.Kernels[:min(len(p.Kernels), maxLaunches)] {
		took = ""
		if k.MS > 0 {
			took = fmt.Sprintf(", %.4g ms", k.MS)
		}
		fmt.Fprintf(b, "- %s (%s): %d launches%s, grid %v, block %v\n", oneLine(k.Name, 100), oneLine(k.Whose, 20), k.Launches, took, k.Grid, k.Block)
	}
}

// soFar stands for turns that were left out of the talk.
func (a *actor) soFar() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Earlier turns are left out here. The work folder has %s: read shows a file as it is now.", strings.Join(a.folder.names(), ", "))
	if len(a.rounds) == 0 {
		b.WriteString(" Nothing was verified yet.")
		return b.String()
	}
	b.WriteString(" The rounds so far:")
	most := maxRoundLines
	if a.compact {
		most = fewRoundLines
	}
	first := max(len(a.rounds)-most, 0)
	if best := best(a.rounds); best != nil && best.Index < first {
		b.WriteString("\n- " + roundLine(*best))
	}
	for _, r := range a.rounds[first:] {
		b.WriteString("\n- " + roundLine(r))
	}
	return b.String()
}
