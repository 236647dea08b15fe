package cli

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/report"
)

// outcome is a verdict as `eval` says it. With --explain a rejected one has the
// figures of the candidate, which count nowhere.
type outcome struct {
	kernelwright.Verdict
	Counted     *bool  `json:"counted,omitempty"`     // false of a rejected one that was to be explained
	Unexplained string `json:"unexplained,omitempty"` // why that is not known: the explanation failed

	hint string        // what to do about that
	of   candidateText // empty where no candidate was evaluated

	task   kernelwright.Task // as far as it was inspected
	device kernelwright.Device
}

// explaining gives up on an explanation as on a verdict.
type explaining struct {
	bounded
	by explainer
}

// explainer is what an explanation needs of hwfeedback.Evaluator.
type explainer interface {
	Explain(context.Context, kernelwright.Task, kernelwright.Candidate, kernelwright.Level) (kernelwright.Verdict, error)
}

func (e explaining) explain(ctx context.Context, t kernelwright.Task, c kernelwright.Candidate, l kernelwright.Level) (kernelwright.Verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, e.evaluate)
	defer cancel()
	v, err := e.by.Explain(ctx, t, c, l)
	return v, overdue(ctx, "the explanation", e.evaluate, err)
}

// unexplained is the outcome of what no candidate's process ran for.
func (c evalCmd) unexplained(v kernelwright.Verdict) outcome {
	o := outcome{Verdict: v}
	if c.Explain && v.Status == kernelwright.Rejected {
		o.Counted = new(bool)
	}
	return o
}

// explained adds to a rejected verdict how right and how fast the candidate is,
// where that is asked for. Where that fails the verdict stands, and it says why
// there are no figures; the error is that of a ctx that has ended.
func (c evalCmd) explained(ctx context.Context, by explaining, t kernelwright.Task, cand kernelwright.Candidate, v kernelwright.Verdict) (outcome, error) {
	o := c.unexplained(v)
	if o.Counted == nil {
		return o, nil
	}
	free, err := by.explain(ctx, t, cand, kernelwright.Level(c.Level))
	if err != nil && ctx.Err() != nil {
		return o, err
	}
	if err != nil {
		_, o.Unexplained, o.hint = explain(err)
		return o, nil
	}
	o.Verdict = o.WithFigures(free)
	return o, nil
}

// notKnown is said of what is rejected whatever evaluation.custom_code is.
const notKnown = "it is rejected under every policy, so nothing is known of how right and how fast it is"

// notExplained is said before why an explanation failed.
const notExplained = "it could not be explained: "

// line says an outcome of a batch.
func (o outcome) line() string {
	said := inOneLine(o.Verdict)
	if x := o.Explained; x != nil {
		said += "; not counted: " + o.told()
	}
	if o.Unexplained != "" {
		said += "; not counted: " + notExplained + o.Unexplained
	}
	return said
}

// print says an outcome to people.
func (o outcome) print(a *app) error {
	if o.Counted == nil {
		if err := printVerdict(a, o.Verdict, o.of); err != nil || !o.ran() {
			return err
		}
		return a.printf("hint: --explain says how right and how fast it is, which does not count\n")
	}
	plain := o.Verdict // its figures are said below, as what they are
	plain.CandidateMS, plain.Assumes, plain.Weights, plain.Work = 0, nil, "", kernelwright.WorkReport{}
	if err := printVerdict(a, plain, o.of); err != nil {
		return err
	}
	if o.Unexplained != "" {
		if err := a.printf("not counted: %s\n", notExplained+o.Unexplained); err != nil || o.hint == "" {
			return err
		}
		return a.printf("hint: %s\n", o.hint)
	}
	if o.Explained == nil || o.Explained.Status == kernelwright.Rejected {
		return a.printf("not counted: %s\n", notKnown)
	}
	if err := a.printf("for information, not counted: %s\n", o.told()); err != nil {
		return err
	}
	var b strings.Builder
	for _, s := range o.Assumes {
		fmt.Fprintf(&b, "assumes: it %s\n", report.Line(s))
	}
	if err := writeTimes(&b, o.Verdict, a.again); err != nil {
		return err
	}
	if w := report.Work(o.Work); w != "" {
		fmt.Fprintf(&b, "work: %s\n", w)
	}
	return a.printf("%s", b.String())
}

// ran reports whether policy alone rejected a candidate: it was verified, or what
// policy forbids failed where it was called.
func (o outcome) ran() bool {
	return o.Status == kernelwright.Rejected && (len(o.Correctness.Families) > 0 || strings.Contains(o.Reason, "policy forbids"))
}

// told says what a rejected candidate would be.
func (o outcome) told() string {
	x := o.Explained
	switch {
	case x.Status == kernelwright.Rejected:
		return notKnown
	case !x.Status.OK():
		return "without the policy it is " + words(x.Status) + ": " + lower(report.Line(x.Reason))
	case o.Speedup == nil:
		return lower(report.Line(x.Reason))
	}
	passed := 0
	for _, f := range o.Correctness.Families {
		if f.Passed {
			passed++
		}
	}
	said := fmt.Sprintf("correct on %d families of inputs, %s against %s", passed, report.Speedup(o.Speedup), report.Line(o.Speedup.Against))
	return said
}

// What --require takes.
const (
	requireCorrect = "correct"
	requireFaster  = "faster"
)

// requirement is what a script asks of all verdicts.
type requirement struct {
	Word string // requireCorrect, requireFaster; empty: nothing

	seen   int
	first  string // what is said of the first that is not so
	others int
}

func (q *requirement) see(path string, v kernelwright.Verdict) {
	q.seen++
	met := v.Status.OK()
	said := "it is " + words(v.Status)
	if met && q.Word == requireFaster && !v.Speedup.Wins(0) {
		met, said = false, "it is "+words(v.Status)+" and not faster"
		if v.Speedup != nil {
			said += ": " + report.Speedup(v.Speedup) + " against " + report.Line(v.Speedup.Against)
		}
	}
	if met || q.Word == "" {
		return
	}
	if q.others++; q.first == "" {
		q.first = report.Line(filepath.Base(path)) + " is required to be " + q.Word + ", and " + said
	}
}

// unmet is the error of verdicts that are others than was required, nil where none is.
func (q *requirement) unmet() error {
	if q.others == 0 {
		return nil
	}
	text := q.first
	if q.seen > 1 {
		text += fmt.Sprintf(" (%d of %d are not so)", q.others, q.seen)
	}
	return &Error{Code: ExitNotFound, Text: text}
}
