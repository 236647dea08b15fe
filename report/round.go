package report

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/llm"
)

// WriteRound writes all that is recorded of one round for a terminal: what came of
// it and why, what was measured, what was said of it, its source, and what was said to
// models for it.
func WriteRound(b *strings.Builder, d Data, r kernelwright.Round) {
	v := r.Verdict
	fmt.Fprintf(b, "run %d, round %d  %s  %s\n", d.Run.ID, r.Index, Line(name(d)), RoundStanding(r))
	say := func(name, value string) {
		if value = Line(value); value != "" {
			fmt.Fprintf(b, "%-9s %s\n", name, value)
		}
	}
	say("tried", r.Candidate.Note)
	if after := r.After(); after >= 0 {
		say("goes on", fmt.Sprintf("from round %d", after))
	}
	say("coder", r.Candidate.Origin)
	say("language", string(r.Candidate.Language))
	say("why", v.Reason)
	say("hint", v.Hint)
	say("quick", Measured(v))
	if c := r.Certificate; c != nil {
		say("certify", strings.TrimSuffix(strings.Join([]string{Standing(*c), Measured(*c)}, ", "), ", "))
		say("", c.Reason)
	}
	say("headroom", strings.Trim(Percent(Counts(r).Headroom), "–"))
	writeEvidence(b, r)
	writeNumbers(b, "metrics", v.Metrics)
	writeHeading(b, "feedback", r.Feedback != nil)
	if f := r.Feedback; f != nil {
		for _, x := range feedbackFacts(*f) {
			fmt.Fprintf(b, "  %s: %s\n", x.Name, Line(x.Value))
		}
		writeNumbers(b, "that rests on", f.Evidence)
	}
	fmt.Fprintf(b, "\nsource\n%s\n", indent(r.Candidate.Source))
	writePrompt(b, d, r.Index)
}

func writeHeading(b *strings.Builder, heading string, there bool) {
	if there {
		fmt.Fprintf(b, "\n%s\n", heading)
	}
}

// indent is a foreign text set apart.
func indent(text string) string {
	return "  " + strings.ReplaceAll(strings.TrimRight(Clean(text), "\n"), "\n", "\n  ")
}

// writeEvidence writes what a round's verdicts rest on: sentences, what the compiler
// said, input families, and what a profiler saw.
func writeEvidence(b *strings.Builder, r kernelwright.Round) {
	v := r.Verdict
	families, evidence := v.Correctness.Families, v.Evidence
	if r.Certificate != nil {
		families, evidence = r.Certificate.Correctness.Families, append(slices.Clone(evidence), r.Certificate.Evidence...)
	}
	writeHeading(b, "evidence", len(evidence)+len(families)+len(v.Build.Errors) > 0 || v.Build.Log != "" || v.Output != "" || v.Profile != nil)
	for _, e := range evidence {
		fmt.Fprintf(b, "%s\n", indent(e))
	}
	for _, e := range v.Build.Errors {
		fmt.Fprintf(b, "  line %d: %s\n", e.Line, Line(e.Message))
	}
	if len(v.Build.Errors) == 0 && v.Build.Log != "" && !v.Status.OK() {
		fmt.Fprintf(b, "%s\n", indent(v.Build.Log))
	}
	for _, f := range families {
		fmt.Fprintf(b, "  %s: %s, error %s of at most %s%s\n", Line(f.Name), familyWord(f), digits(f.MaxError), digits(f.MaxBound), note(f.Note))
	}
	for _, line := range Profiles(v) {
		fmt.Fprintf(b, "  %s\n", line)
	}
	if v.Output != "" {
		fmt.Fprintf(b, "  it printed:\n%s\n", indent(indent(v.Output)))
	}
}

func note(s string) string {
	if s == "" {
		return ""
	}
	return "; " + Line(s)
}

func writeNumbers(b *strings.Builder, heading string, numbers map[string]float64) {
	writeHeading(b, heading, len(numbers) > 0)
	for _, name := range slices.Sorted(maps.Keys(numbers)) {
		fmt.Fprintf(b, "  %s = %s\n", Line(name), digits(numbers[name]))
	}
}

// writePrompt writes what was said to models in a round, and what they said: also
// what an earlier round's calls had said before.
func writePrompt(b *strings.Builder, d Data, index int) {
	calls := slices.DeleteFunc(slices.Clone(d.Talk), func(c llm.Record) bool { return c.Key.Round != index })
	tried := slices.DeleteFunc(slices.Clone(d.Attempts), func(c llm.Charge) bool { return c.Key.Round != index })
	turns := Talk(calls, tried)
	if len(turns) == 0 {
		b.WriteString("\nprompt: none, no language model was asked in this round\n")
		return
	}
	b.WriteString("\nprompt\n")
	for _, t := range turns {
		fmt.Fprintf(b, "-- %s\n%s\n", t.who(), indent(t.Text))
	}
}
