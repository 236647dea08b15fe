package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/task"
)

type evalCmd struct {
	Reference string `arg:"" help:"The reference file." type:"path" predictor:"file"`
	Candidate string `arg:"" help:"The file that defines ModelNew." type:"path" predictor:"file"`
	Level     string `help:"How strict: quick or certify." enum:"quick,certify" default:"quick"`
	Again     bool   `help:"Measure it and its baselines anew, whatever is remembered of them."`
	Export    string `help:"Write the standalone file that was certified." placeholder:"FILE" type:"path" predictor:"file"`
	deviceFlags
}

// Help is shown below the flags.
func (evalCmd) Help() string {
	return "Exit code 0 says that a verdict was reached, whatever it is: a bad reference is the verdict invalid. The history does not get it: that records what `run` and the daemon do. A verdict that was reached before, on the same code, is remembered for thirty days; --again measures anew. With --json one object is printed: status, reason, candidate_ms, baselines, speedup, headroom, and everything they rest on."
}

// Run reaches one verdict.
func (c evalCmd) Run(a *app) (err error) {
	if c.Export != "" && c.Level != string(kernelwright.Certify) {
		return usage("--export needs --level certify", "only what was certified is exported")
	}
	for _, path := range []string{c.Reference, c.Candidate} {
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			return usage("there is no file "+path, "give a reference and a candidate")
		}
	}
	r, err := a.open(false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	v, err := c.verdict(a, r)
	if err != nil {
		return interruption(a.ctx, err)
	}
	if c.Export != "" && v.Exported != "" {
		if err := os.WriteFile(c.Export, []byte(v.Exported), 0o644); err != nil {
			return &Error{Code: ExitFailure, Text: "the exported file", Err: err, Hint: "name a file that can be written with --export"}
		}
	}
	if a.json {
		v.Exported = "" // its hash stays; --export writes it
		return a.printJSON(v)
	}
	return printVerdict(a, v)
}

func (c evalCmd) verdict(a *app, r *room) (v kernelwright.Verdict, err error) {
	reference, err := task.Read(c.Reference)
	if v, ok := invalidVerdict(err, kernelwright.Level(c.Level)); ok {
		return v, nil
	}
	if err != nil {
		return v, err
	}
	candidate, err := task.Read(c.Candidate)
	var unreadable *kernelwright.InvalidTaskError
	if errors.As(err, &unreadable) {
		// The reasons are the same for any Python file, but here it is the
		// candidate that is at fault.
		return blankVerdict(kernelwright.Rejected, unreadable.Reason, unreadable.Hint, kernelwright.Level(c.Level)), nil
	}
	if err != nil {
		return v, err
	}
	show := newProgress(a.stderr)
	defer show.done()
	o := r.options(show.stage)
	o.KeepWarm, o.Again = r.config.Evaluation.KeepWarm.Std(), c.Again
	e, err := r.evaluator(a.ctx, o)
	if err != nil {
		return v, err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	show.begin(reference.Name)
	limited := bounded{e, r.config.Evaluation.Timeout.Std(), r.config.Evaluation.InspectTimeout.Std()}
	t, err := limited.Inspect(a.ctx, reference.Name, reference.Source)
	if v, ok := invalidVerdict(err, kernelwright.Level(c.Level)); ok {
		if strings.Contains(reference.Source, "class ModelNew") && !strings.Contains(candidate.Source, "class ModelNew") {
			v.Hint = "the reference comes first, the candidate second: these look as if they had changed places"
		}
		return v, nil
	}
	if err != nil {
		return v, err
	}
	v, err = limited.Evaluate(a.ctx, t, kernelwright.Candidate{Source: candidate.Source, Origin: "file"}, kernelwright.Level(c.Level))
	if v, ok := invalidVerdict(err, kernelwright.Level(c.Level)); ok {
		return v, nil
	}
	if v.Baselines == nil {
		v.Baselines = map[string]float64{}
	}
	return v, err
}

// invalidVerdict is the verdict on a reference that is no task.
func invalidVerdict(err error, level kernelwright.Level) (kernelwright.Verdict, bool) {
	var invalid *kernelwright.InvalidTaskError
	if !errors.As(err, &invalid) {
		return kernelwright.Verdict{}, false
	}
	v := blankVerdict(kernelwright.Invalid, invalid.Reason, invalid.Hint, level)
	v.Output = invalid.Traceback
	return v, true
}

func blankVerdict(s kernelwright.Status, reason, hint string, level kernelwright.Level) kernelwright.Verdict {
	return kernelwright.Verdict{
		Status: s, Reason: reason, Hint: hint, Level: level, Device: string(kernelwright.CPUDevice),
		Baselines: map[string]float64{}, CostS: map[string]float64{}, Versions: map[string]string{"kernelwright": kernelwright.Version},
	}
}

// indented writes a text that may have several lines, such as a traceback.
func indented(text string) string {
	text = strings.TrimRight(report.Clean(text), "\n")
	return "  " + strings.ReplaceAll(text, "\n", "\n  ") + "\n"
}

// printVerdict says a verdict to people.
func printVerdict(a *app, v kernelwright.Verdict) error {
	var b strings.Builder
	b.WriteString(words(v.Status))
	if v.Cached {
		b.WriteString(" (remembered; --again measures anew)")
	}
	if v.Reason != "" {
		fmt.Fprintf(&b, ": %s", lower(report.Line(v.Reason)))
	}
	b.WriteByte('\n')
	if v.Hint != "" && !v.Status.OK() {
		fmt.Fprintf(&b, "hint: %s\n", lower(report.Line(v.Hint)))
	}
	for _, f := range v.Flags {
		fmt.Fprintf(&b, "take care: %s\n", report.FlagText(f))
	}
	for _, d := range v.Build.Errors {
		switch {
		case strings.Contains(v.Reason, d.Message): // it was said
		case d.Line > 0:
			fmt.Fprintf(&b, "  line %d: %s\n", d.Line, report.Line(d.Message))
		default:
			fmt.Fprintf(&b, "  %s\n", report.Line(d.Message))
		}
	}
	for _, e := range v.Evidence {
		b.WriteString(indented(e))
	}
	if v.CandidateMS > 0 {
		rows := [][]string{{"", "time", "speedup"}, {"candidate", report.Milliseconds(v.CandidateMS), ""}}
		for _, n := range report.BaselineNames(v.Baselines) {
			s := ""
			if x, ok := v.Speedups[n]; ok {
				s = report.Speedup(&x)
			} else if v.Speedup != nil && v.Speedup.Against == n {
				s = report.Speedup(v.Speedup)
			}
			name := report.Line(n)
			if v.Timing.Baselines[n].Earlier {
				name += " *"
			}
			rows = append(rows, []string{name, report.Milliseconds(v.Baselines[n]), s})
		}
		if v.Floor.MS > 0 {
			rows = append(rows, []string{"floor (" + report.Line(v.Floor.Bound) + ")", report.Milliseconds(v.Floor.MS), "headroom " + report.Percent(v.Headroom)})
		}
		if err := report.Columns(&b, rows, map[int]bool{0: true}); err != nil {
			return err
		}
		if slices.ContainsFunc(rows, func(r []string) bool { return strings.HasSuffix(r[0], " *") }) {
			b.WriteString("* measured earlier, scaled to how fast the machine is now\n")
		}
		for _, n := range v.Timing.Notes {
			fmt.Fprintf(&b, "note: %s\n", lower(report.Line(n)))
		}
	}
	if v.Sandbox.Mode == "weak" || len(v.Sandbox.Missing) > 0 {
		fmt.Fprintf(&b, "sandbox: %s", report.Line(v.Sandbox.Mode))
		if len(v.Sandbox.Missing) > 0 {
			fmt.Fprintf(&b, ", without %s", report.Line(strings.Join(v.Sandbox.Missing, ", ")))
		}
		b.WriteByte('\n')
	}
	return a.printf("%s", b.String())
}
