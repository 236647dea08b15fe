package report

import (
	"fmt"
	"html"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright"
)

func interval95(low, high float64, against string) *kernelwright.Speedup {
	return &kernelwright.Speedup{Value: (low + high) / 2, Low: low, High: high, Against: against}
}

// rightVerdict is one on a candidate that is right.
func rightVerdict(s *kernelwright.Speedup, eager kernelwright.Speedup, work kernelwright.WorkReport) kernelwright.Verdict {
	return kernelwright.Verdict{
		Status: kernelwright.Correct, CandidateMS: 1, Candidate: "ab", Speedup: s, Work: work,
		Speedups: map[string]kernelwright.Speedup{"eager": eager}, Baselines: map[string]float64{"eager": 2, "compile": 1.5},
	}
}

func TestAuditRows(t *testing.T) {
	custom, pytorch := kernelwright.WorkReport{Custom: 0.9, PyTorch: 0.1}, kernelwright.WorkReport{Custom: 0.1, PyTorch: 0.3, Vendor: 0.6}
	eager := *interval95(1.9, 2.1, "eager")
	claim := func(s float64) *kernelwright.Claim { return &kernelwright.Claim{Speedup: s, Against: "eager"} }
	yes, no := true, false
	nothing := rightVerdict(interval95(90, 110, "eager"), *interval95(90, 110, "eager"), custom)
	nothing.Flags = []kernelwright.TaskFlag{kernelwright.FlagConstantOutput}
	for name, c := range map[string]struct {
		v       kernelwright.Verdict
		claim   *kernelwright.Claim
		group   string
		reaches *bool
		wrongOn string
	}{
		"faster, as claimed":          {rightVerdict(interval95(1.4, 1.6, "compile"), eager, custom), claim(2.05), "faster", &yes, ""},
		"slower, far from the claim":  {rightVerdict(interval95(0.4, 0.6, "compile"), eager, custom), claim(3), "slower", &no, ""},
		"no difference":               {rightVerdict(interval95(0.95, 1.05, "compile"), eager, custom), nil, "no_difference", nil, ""},
		"too noisy":                   {rightVerdict(interval95(0.1, 4, "eager"), *interval95(0.1, 4, "eager"), custom), claim(2), "undecided", nil, ""},
		"a rewrite, however fast":     {rightVerdict(interval95(1.4, 1.6, "compile"), eager, pytorch), claim(2), "rewrite", &yes, ""},
		"of a reference without work": {nothing, claim(2), "degenerate", nil, ""},
		"not timed":                   {kernelwright.Verdict{Status: kernelwright.Correct}, claim(2), "not_timed", nil, ""},
		"another baseline's claim":    {rightVerdict(interval95(1.4, 1.6, "compile"), eager, custom), &kernelwright.Claim{Speedup: 2, Against: "compile"}, "faster", &no, ""},
		"wrong on a family":           {kernelwright.Verdict{Status: kernelwright.Wrong, Reason: "on family scaled_up (inputs: times 100): 3 of 4 elements"}, claim(2), "wrong", &no, "scaled_up"},
		"wrong, as the families say":  {kernelwright.Verdict{Status: kernelwright.Wrong, Correctness: kernelwright.CorrectnessReport{Families: []kernelwright.FamilyReport{{Name: "base", Gates: true, Passed: true}, {Name: "odd"}, {Name: "zeros", Gates: true}}}}, nil, "wrong", nil, "zeros"},
		"wrong with other weights":    {kernelwright.Verdict{Status: kernelwright.Wrong, Reason: "right with the weights", Correctness: kernelwright.CorrectnessReport{FollowsWeights: &no, Families: []kernelwright.FamilyReport{{Name: "base", Gates: true}}}}, claim(2), "wrong", &no, "weights"},
		"wrong for no inputs":         {kernelwright.Verdict{Status: kernelwright.Wrong, Reason: "output 0 has another shape"}, nil, "wrong", nil, ""},
		"a package that is not there": {kernelwright.Verdict{Status: kernelwright.Crashed, Reason: "importing the candidate raised ModuleNotFoundError (line 1): No module named 'cupy'"}, claim(2), "missing_package", &no, ""},
		"no Python":                   {kernelwright.Verdict{Status: kernelwright.Rejected, Reason: "it is empty"}, nil, "not_python", nil, ""},
		"against policy":              {kernelwright.Verdict{Status: kernelwright.Rejected, Candidate: "ab", Reason: "it has no custom code"}, nil, "rejected", nil, ""},
		"for a GPU":                   {kernelwright.Verdict{Status: kernelwright.NeedsGPU}, claim(2), "needs_gpu", nil, ""},
		"rejected, and as claimed":    {kernelwright.Verdict{Status: kernelwright.Rejected, Candidate: "ab"}.WithFigures(rightVerdict(interval95(1.4, 1.6, "compile"), eager, pytorch)), claim(2), "rejected", &yes, ""},
		"rejected, and wrong":         {kernelwright.Verdict{Status: kernelwright.Rejected, Candidate: "ab"}.WithFigures(kernelwright.Verdict{Status: kernelwright.Wrong}), claim(2), "rejected", &no, ""},
		"claims that are not read":    {kernelwright.Verdict{Status: kernelwright.NoClaims}, nil, "no_claims", nil, ""},
	} {
		r := NewAuditRow(kernelwright.AuditPair{Verdict: c.v, Claim: c.claim})
		if explained := c.v.Explained != nil; explained != (r.Correctness != nil) || explained && (r.Counted == nil || *r.Counted) {
			t.Errorf("%s: %+v", name, r)
		}
		if r.Group != c.group || (r.Reaches == nil) != (c.reaches == nil) || r.Reaches != nil && *r.Reaches != *c.reaches {
			t.Errorf("%s: group %s, reaches %v", name, r.Group, r.Reaches)
		}
		if (r.WrongOn == nil) != (c.wrongOn == "") || r.WrongOn != nil && *r.WrongOn != c.wrongOn {
			t.Errorf("%s: wrong on %v", name, r.WrongOn)
		}
		if (r.Claimed == nil) != (c.claim == nil) || r.Baselines == nil {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// Each group has a title of its own: what is unknown would be told as the
// machine's failure.
func TestEachStatusHasAGroup(t *testing.T) {
	for _, s := range []kernelwright.Status{
		kernelwright.Invalid, kernelwright.Rejected, kernelwright.BuildFailed, kernelwright.Crashed, kernelwright.TimedOut, kernelwright.Wrong, kernelwright.Cheated,
		kernelwright.NeedsGPU, kernelwright.NoCandidate, kernelwright.NoReference, kernelwright.NotEvaluated, kernelwright.NoClaims, kernelwright.Unrecognised,
	} {
		if r := NewAuditRow(kernelwright.AuditPair{Verdict: kernelwright.Verdict{Status: s, Candidate: "ab"}}); auditGroups[r.place].name != string(s) {
			t.Errorf("%s is told as %s", s, auditGroups[r.place].name)
		}
	}
}

func TestAuditPages(t *testing.T) {
	var count AuditCounter
	passes := true
	a := Audit{Audit: kernelwright.Audit{ID: 3, Path: "/set", Device: "cpu", Level: kernelwright.Quick, CustomCode: "any", Command: []string{"kernelwright", "audit", "set"}}}
	for i, p := range []kernelwright.AuditPair{
		{Reference: "/set/a/ref.py", Candidate: "/set/a/new.py", Claim: &kernelwright.Claim{Speedup: 4, Against: "eager"}, Verdict: rightVerdict(interval95(1.4, 1.6, "compile"), *interval95(1.9, 2.1, "eager"), kernelwright.WorkReport{Custom: 1})},
		{Reference: "/set/a/ref.py", Candidate: "/set/a/<script>alert(1)</script>.py", Verdict: kernelwright.Verdict{Status: kernelwright.Wrong, Reason: "on family zeros (inputs: all zero): \x1b[2J<b>bad</b>", Correctness: kernelwright.CorrectnessReport{KernelBench: &passes}}},
		{Candidate: "/set/b.py", Verdict: kernelwright.Verdict{Status: kernelwright.NoReference, Reason: "no reference was found for it"}},
		{Reference: "/set/eval_results.json", Candidate: "/set/eval_results.json", Verdict: kernelwright.Verdict{Status: kernelwright.NoClaims, Reason: "it is no JSON object"}},
		{Reference: "/set", Candidate: "/set", Verdict: kernelwright.Verdict{Status: kernelwright.Unrecognised, Reason: "c.py is neither a reference nor a candidate"}},
		{
			Reference: "/set/a/ref.py", Candidate: "/set/a/rewrite.py", Claim: &kernelwright.Claim{Speedup: 2, Against: "eager"},
			Verdict: kernelwright.Verdict{Status: kernelwright.Rejected, Candidate: "cd", Reason: "it has no custom code", Evidence: []string{kernelwright.FromBare}}.
				WithFigures(rightVerdict(interval95(1.4, 1.6, "compile"), *interval95(1.9, 2.1, "eager"), kernelwright.WorkReport{PyTorch: 1})),
		},
	} {
		p.Index = i
		row := NewAuditRow(p)
		count.Add(row)
		a.Rows = append(a.Rows, row)
	}
	a.Summary = count.Summary()
	for name, write := range map[string]func(*strings.Builder) error{
		"html": func(b *strings.Builder) error { return AuditHTML(b, a) }, "markdown": func(b *strings.Builder) error { return AuditMarkdown(b, a) }, "terminal": func(b *strings.Builder) error { return AuditTable(b, a) },
	} {
		var b strings.Builder
		if err := write(&b); err != nil {
			t.Fatal(name, err)
		}
		text := b.String()
		for _, want := range []string{"4 pairs: 1 right (1 faster than the fastest baseline), 1 wrong (1 of which KernelBench's comparison passes), 1 that do not run, 1 not evaluated.", "Claims of a speedup that could be tested: 2, of which reached: 1. 1 file of claims cannot be read. Left out: c.py is neither a reference nor a candidate.", "wrong on family zeros"} {
			if !strings.Contains(html.UnescapeString(strings.ReplaceAll(text, `\`, "")), want) {
				t.Errorf("%s lacks %q:\n%s", name, want, text)
			}
		}
		for _, never := range []string{"<script>", "<b>bad", "\x1b", "/set/a/new.py"} {
			if strings.Contains(text, never) && (name != "terminal" || never == "\x1b") {
				t.Errorf("%s has %q", name, never)
			}
		}
		if name != "terminal" && (!strings.Contains(text, "a/new.py") || !strings.Contains(text, "the claim is not reached") || !strings.Contains(text, "100 % custom") ||
			!strings.Contains(text, "not counted: without the policy it is correct, 1.50×") || !strings.Contains(text, "what was published is a function of C")) {
			t.Errorf("%s:\n%s", name, text)
		}
	}
}

// Pairs stand under their reasons, with the columns in which one of them has
// something, and those of large audits are closed and laid out a block at a time.
func TestAuditSections(t *testing.T) {
	var count AuditCounter
	a := Audit{Audit: kernelwright.Audit{Path: "/set"}}
	add := func(n int, v kernelwright.Verdict, claim *kernelwright.Claim) {
		for range n {
			row := NewAuditRow(kernelwright.AuditPair{Reference: "/set/r.py", Candidate: fmt.Sprintf("/set/%d.py", len(a.Rows)), Claim: claim, Verdict: v})
			count.Add(row)
			a.Rows = append(a.Rows, row)
		}
	}
	add(1, rightVerdict(interval95(1.4, 1.6, "compile"), *interval95(1.9, 2.1, "eager"), kernelwright.WorkReport{Custom: 1}), &kernelwright.Claim{Speedup: 4, Against: "eager"})
	add(2, kernelwright.Verdict{Status: kernelwright.Wrong, Reason: "on family zeros (inputs: all zero): 1 of 2"}, nil)
	count.Add(NewAuditRow(kernelwright.AuditPair{Verdict: kernelwright.Verdict{Status: kernelwright.NotEvaluated}})) // it is not recorded
	a.Summary = count.Summary()
	html := func() string {
		var b strings.Builder
		if err := AuditHTML(&b, a); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	small := html()
	_, pairs, _ := strings.Cut(small, "<h2>Pairs</h2>")
	right, wrong, found := strings.Cut(pairs, "wrong on family zeros")
	if !found || strings.Count(small, "<details open>") != 2 || strings.Contains(small, "blocks long") || !strings.Contains(small, `<a href="#wrong-zeros">wrong on family zeros</a>`) ||
		!strings.Contains(small, `id="wrong-zeros"`) || strings.Contains(small, `href="#not_judged"`) || !strings.Contains(small, "not evaluated: the machine failed") {
		t.Error(small)
	}
	for _, column := range []string{"claimed</th>", "measured</th>", "who did the work</th>"} {
		if !strings.Contains(right, column) || strings.Contains(wrong, column) {
			t.Errorf("%s\n%s\n%s", column, right, wrong)
		}
	}
	add(250, kernelwright.Verdict{Status: kernelwright.Wrong, Reason: "on family zeros (inputs: all zero): 1 of 2"}, nil)
	a.Summary = count.Summary()
	large := html()
	if strings.Contains(large, "<details open>") || strings.Count(large, "blocks long") != 1 || strings.Count(large, `<div class="block">`) != 1+3 || strings.Count(large, `<td class="where">`) != 253 {
		t.Error(large)
	}
}

// A note that asks for another measurement is the command for it.
func TestAuditNoteIsACommand(t *testing.T) {
	a := Audit{Audit: kernelwright.Audit{Command: []string{"kernelwright", "audit", "my set", "--json", "--again"}}}
	a.Summary.Groups = []AuditGroup{{Name: "undecided", Pairs: 1}}
	var b strings.Builder
	if err := AuditTable(&b, a); err != nil || !strings.Contains(b.String(), "when it is: `kernelwright audit 'my set' --again`") {
		t.Errorf("%v: %s", err, b.String())
	}
}

func TestAuditChart(t *testing.T) {
	row := func(claimed float64, measured *kernelwright.Speedup) AuditRow {
		v := rightVerdict(measured, *measured, kernelwright.WorkReport{Custom: 1})
		return NewAuditRow(kernelwright.AuditPair{Candidate: "/set/<b>.py", Claim: &kernelwright.Claim{Speedup: claimed, Against: "eager"}, Verdict: v})
	}
	a := Audit{Audit: kernelwright.Audit{Path: "/set"}, Rows: []AuditRow{row(2, interval95(1.9, 2.1, "eager")), row(8, interval95(0.9, 1.1, "eager"))}}
	if a.chart() != nil {
		t.Error("two points make a picture")
	}
	a.Rows = append(a.Rows, row(5000, interval95(0.1, 4, "eager")), NewAuditRow(kernelwright.AuditPair{Claim: &kernelwright.Claim{Speedup: 3, Against: "eager"}, Verdict: kernelwright.Verdict{Status: kernelwright.Wrong}}))
	c := a.chart()
	if c == nil || len(c.Points) != 3 {
		t.Fatalf("%+v", c)
	}
	for i, want := range []string{"f0", "f2", "f3"} {
		p := c.Points[i]
		if p.Class != want || p.X < c.Left || p.X > c.Right || p.Y < c.Top || p.Y > c.Bottom {
			t.Errorf("point %d: %+v in %+v", i, p, c)
		}
	}
	// What is claimed is to the right of what is measured, below the diagonal, where it is not reached.
	if over := c.Points[1]; over.X-c.Left <= c.Bottom-over.Y {
		t.Errorf("%+v", over)
	}
	if on := c.Points[0]; on.X-c.Left-(c.Bottom-on.Y) > 0.2 || on.X-c.Left-(c.Bottom-on.Y) < -0.2 {
		t.Errorf("%+v", on)
	}
	var b strings.Builder
	if err := AuditHTML(&b, a); err != nil || !strings.Contains(b.String(), "<circle class=\"f2\"") || strings.Contains(b.String(), "<b>.py") {
		t.Error(err, b.String())
	}
}
