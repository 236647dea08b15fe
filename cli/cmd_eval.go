package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/hwfeedback"
	"github.com/kernelwright/kernelwright/internal/wholefile"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/task"
)

type evalCmd struct {
	Reference  string   `arg:"" help:"The reference file." type:"path" predictor:"file"`
	Candidates []string `arg:"" optional:"" name:"candidate" help:"The file that defines ModelNew, or a work folder with model_new.py, *.cu and *.cpp. Several are a batch." type:"path" predictor:"file"`
	Batch      string   `help:"Judge every *.py file of this folder." placeholder:"FOLDER" type:"path" predictor:"dir"`
	Level      string   `help:"How strict: quick or certify." enum:"quick,certify" default:"quick"`
	Again      bool     `help:"Measure it and its baselines anew, whatever is remembered of them."`
	Strict     bool     `name:"strict-inputs" help:"What it takes for granted of its inputs makes a candidate wrong, and is not only told."`
	Profile    bool     `help:"Have Nsight Compute measure the kernels of a correct candidate, on a GPU."`
	Explain    bool     `help:"Say how right and how fast a rejected candidate is; that counts nowhere."`
	Require    string   `help:"Exit with 3 unless every candidate is correct, or faster than the fastest baseline by its whole interval." placeholder:"correct|faster"`
	Export     string   `help:"Write the standalone file that was certified, and its certificate beside it." placeholder:"FILE" type:"path" predictor:"file"`
	deviceFlags
}

var errProfileOnCPU = usage("--profile is for a GPU, and the device is the CPU", "name one with --device cuda, or leave --profile out")

// Help is shown below the flags.
func (evalCmd) Help() string {
	return "Exit code 0 says that a verdict was reached, whatever it is: a bad reference is the verdict invalid. The history does not get it: that records what `run` and the daemon do. A verdict that was reached before, on the same bytes, is remembered for thirty days; --again measures anew. --require makes the code 3 for any other verdict, which is printed all the same. With --json one object is printed: status, reason, candidate_ms, baselines, speedup, headroom, and everything they rest on. A batch prints a line for each candidate as soon as it is evaluated, with --json one object a line, with the candidate's path in file; the next ones are built meanwhile."
}

// Run reaches a verdict, or one for each of a batch.
func (c evalCmd) Run(a *app) (err error) {
	a.lines = len(c.Candidates) > 1 || c.Batch != ""
	paths, err := c.candidates()
	if err != nil {
		return err
	}
	if c.Require != "" && c.Require != requireCorrect && c.Require != requireFaster {
		return usage(fmt.Sprintf("--require is %q", c.Require), `it takes "correct" or "faster"`)
	}
	batch := a.lines
	if c.Export != "" && batch {
		return usage("--export is for one candidate", "name one, or leave --export out")
	}
	if c.Export != "" && c.Level != string(kernelwright.Certify) {
		return usage("--export needs --level certify", "add --level certify: only what was certified is exported")
	}
	if c.Profile && c.Level != string(kernelwright.Quick) {
		return usage("--profile is for --level quick", "certify lists what a forward launches by itself")
	}
	r, err := a.open(false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if c.Profile && r.config.Device == string(kernelwright.CPUDevice) {
		return errProfileOnCPU
	}
	width := 0
	for _, p := range paths {
		width = max(width, len(report.Line(filepath.Base(p))))
	}
	required := requirement{Word: c.Require}
	err = c.verdicts(a, r, paths, func(path string, v outcome) error {
		required.see(path, v.Verdict)
		if c.Export != "" && v.Exported != "" {
			if err := c.export(v); err != nil {
				return err
			}
		}
		v.Exported = "" // its hash stays; --export writes it
		switch {
		case batch && a.json:
			return a.printLine(batchLine{path, v})
		case batch:
			return a.printf("%-*s  %s\n", width, report.Line(filepath.Base(path)), v.line())
		case a.json:
			return a.printJSON(v)
		}
		return v.print(a)
	})
	if err = cutShort(a.ctx, err); err != nil {
		return err
	}
	if err = required.unmet(); err != nil {
		a.json = false // standard output has the verdicts, and they are all of it
	}
	return err
}

// export writes the certified file over an older one, and its certificate beside it.
func (c evalCmd) export(v outcome) error {
	round := kernelwright.Round{Verdict: v.Verdict, Certificate: &v.Verdict, CertifiedMS: time.Now().UnixMilli()}
	d := report.Data{Run: kernelwright.Run{TaskName: v.task.Name, Device: v.device.String()}, Task: v.task, Device: v.device}
	certificate, err := report.CertificateOf(d, round, filepath.Base(c.Export))
	if err != nil {
		return err
	}
	beside := placeOfCertificate(c.Export, v.Exported)
	there, err := certifies(beside, c.Export, kernelwright.HashText(v.Exported))
	if err != nil {
		return err
	}
	err = wholefile.Write(c.Export, []byte(v.Exported))
	if err == nil && !there {
		err = wholefile.Write(beside, certificate)
	}
	if err != nil {
		return &Error{Code: ExitFailure, Text: "the exported file", Err: err, Hint: "name a file that can be written with --export"}
	}
	return nil
}

// batchLine is a line of a batch.
type batchLine struct {
	File string `json:"file"`
	outcome
}

// candidates returns the files to evaluate.
func (c evalCmd) candidates() ([]string, error) {
	paths := c.Candidates
	if c.Batch != "" {
		found, err := os.ReadDir(c.Batch)
		if err != nil {
			return nil, usage("the folder of the batch cannot be read: "+err.Error(), "--batch names a folder of candidates")
		}
		for _, f := range found {
			if path := filepath.Join(c.Batch, f.Name()); !f.IsDir() && filepath.Ext(path) == ".py" {
				paths = append(paths, path)
			}
		}
		if len(paths) == 0 {
			return nil, usage("there is no *.py file in "+c.Batch, "--batch names a folder of candidates")
		}
	}
	if len(paths) == 0 {
		return nil, usage("no candidate was given", "give a reference and a candidate, or --batch FOLDER")
	}
	for _, path := range append([]string{c.Reference}, paths...) {
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			return nil, noFile(path)
		}
	}
	return paths, nil
}

// verdicts gives the verdict on each candidate to each, in their order.
func (c evalCmd) verdicts(a *app, r *room, paths []string, each func(string, outcome) error) (err error) {
	level := kernelwright.Level(c.Level)
	all := func(v kernelwright.Verdict) error {
		for _, p := range paths {
			if err := each(p, c.unexplained(v)); err != nil {
				return err
			}
		}
		return nil
	}
	reference, bad := task.ReadReference(c.Reference)
	if bad != nil && !errors.As(bad, new(*kernelwright.InvalidTaskError)) {
		return bad
	}
	rejected := map[int]kernelwright.Verdict{} // what cannot be read
	var cands []kernelwright.Candidate
	var at []int // in paths, of each candidate
	looksLike := ""
	for i, path := range paths {
		candidate, err := task.ReadModelNew(path)
		if strings.Contains(reference.Source, "class ModelNew") && candidate.Source != "" && !strings.Contains(candidate.Source, "class ModelNew") {
			looksLike = "the reference comes first, the candidate second: these look as if they had changed places"
		}
		var unreadable *kernelwright.InvalidTaskError
		switch {
		case errors.As(err, &unreadable):
			// The reasons are the same for any Python file, but here it is the
			// candidate that is at fault.
			rejected[i] = blankVerdict(kernelwright.Rejected, unreadable.Reason, unreadable.Hint, level)
			continue
		case err != nil:
			return err
		}
		cands, at = append(cands, kernelwright.Candidate{Source: candidate.Source, Origin: "file"}), append(at, i)
	}
	if v, ok := invalidVerdict(bad, level); ok {
		v.Hint = cmp.Or(looksLike, v.Hint)
		return all(v)
	}
	next := 0 // of paths
	until := func(end int) error {
		for ; next < end; next++ {
			if v, ok := rejected[next]; ok {
				if err := each(paths[next], c.unexplained(v)); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if len(cands) == 0 {
		return until(len(paths))
	}
	show := newProgress(a.stderr)
	defer show.done()
	err = c.evaluate(a, r, show, reference, cands, func(i int, v outcome) error {
		if err := until(at[i]); err != nil {
			return err
		}
		if v.Baselines == nil {
			v.Baselines = map[string]float64{}
		}
		if v.Status == kernelwright.Invalid {
			v.Hint = cmp.Or(looksLike, v.Hint)
		}
		v.of = candidateText{paths[at[i]], cands[i].Source}
		show.done()
		return each(paths[at[i]], v)
	})
	if err != nil {
		return err
	}
	return until(len(paths))
}

// evaluate gives yield the verdict on each candidate that can be read, by its index. What
// is remembered and what needs no device comes first: no process is started for the
// one, and the reference is inspected when a candidate has to run.
func (c evalCmd) evaluate(a *app, r *room, show *progress, reference task.File, cands []kernelwright.Candidate, yield func(int, outcome) error) (err error) {
	o := r.options(show.stage)
	o.KeepWarm, o.Again, o.Profile, o.Lazy = r.config.Evaluation.KeepWarm.Std(), c.Again, "", true
	o.StrictInputs = o.StrictInputs || c.Strict
	if c.Profile {
		o.Profile = r.config.Rounds.Metrics
	}
	e, err := r.evaluator(a.ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	if c.Profile && e.Device().Kind != kernelwright.CUDADevice { // auto found none
		return errProfileOnCPU
	}
	show.begin(reference.Name)
	limited := r.bounded(e)
	level := kernelwright.Level(c.Level)
	t, known := e.Inspected(a.ctx, reference.Name, reference.Source)
	next := 0 // of those that are not evaluated yet
	give := func(_ int, v kernelwright.Verdict) error {
		said, err := c.explained(a.ctx, explaining{limited, e}, t, cands[next], v)
		if err != nil {
			return err
		}
		said.task, said.device = t, e.Device()
		next++
		return yield(next-1, said)
	}
	for !known && err == nil && next < len(cands) {
		var failed *kernelwright.Verdict
		failed, err = limited.precheck(a.ctx, e, reference, cands[next], level)
		switch {
		case err != nil:
		case failed != nil && (!c.Explain || failed.Status != kernelwright.Rejected): // to be explained it has to run
			err = give(next, *failed)
		default:
			t, err = limited.Inspect(a.ctx, reference.Name, reference.Source)
			known = err == nil
		}
	}
	if rest := len(cands) - next; known && rest > 0 {
		if err = limited.EvaluateBatch(a.ctx, t, cands[next:], level, give); rest > 1 {
			return err
		}
	}
	v, invalid := invalidVerdict(err, level)
	if !invalid {
		return err
	}
	for err = nil; err == nil && next < len(cands); {
		err = give(next, v)
	}
	return err
}

// precheck is Evaluator.Precheck within the time of a verdict.
func (b bounded) precheck(ctx context.Context, e *hwfeedback.Evaluator, reference task.File, cand kernelwright.Candidate, level kernelwright.Level) (*kernelwright.Verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, b.evaluate)
	defer cancel()
	v, err := e.Precheck(ctx, reference.Name, reference.Source, cand, level)
	return v, overdue(ctx, "the build", b.evaluate, err)
}

// inOneLine says a verdict of a batch.
func inOneLine(v kernelwright.Verdict) string {
	if !v.Status.OK() || v.CandidateMS <= 0 {
		return words(v.Status) + ": " + lower(report.Line(v.Reason))
	}
	said := fmt.Sprintf("%-9s  %8s", words(v.Status), report.Milliseconds(v.CandidateMS))
	if v.Speedup != nil {
		said += fmt.Sprintf("  %s against %s", report.Speedup(v.Speedup), report.Line(v.Speedup.Against))
	}
	if len(v.Assumes) > 0 {
		said += "  (it " + report.Line(strings.Join(v.Assumes, "; it ")) + ")"
	}
	if v.Cached {
		said += "  (remembered)"
	}
	return said
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

// maxKernels is how many compiled kernels are shown of a verdict.
const maxKernels = 5

// printVerdict says a verdict to people.
func printVerdict(a *app, v kernelwright.Verdict, of candidateText) error {
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
	if v.Weights != "" && v.Weights != kernelwright.WeightsByName {
		fmt.Fprintf(&b, "weights: %s\n", report.Line(v.Weights))
	}
	for _, a := range v.Assumes {
		fmt.Fprintf(&b, "assumes: it %s\n", report.Line(a))
	}
	writeErrors(&b, "", slices.DeleteFunc(slices.Clone(v.Build.Errors), func(d kernelwright.Diagnostic) bool {
		return d.Line < 1 && strings.Contains(v.Reason, d.Message) // it was said, and there is no code to show
	}), of)
	for _, e := range v.Evidence {
		b.WriteString(indented(e))
	}
	if err := writeTimes(&b, v, a.again); err != nil {
		return err
	}
	if w := report.Work(v.Work); w != "" {
		fmt.Fprintf(&b, "work: %s\n", w)
	}
	writeKernels(&b, "", v.Build.Kernels)
	launches := report.Launches(v.Work.Launches)
	for _, l := range launches[:min(len(launches), maxKernels)] {
		fmt.Fprintf(&b, "launch %s\n", l)
	}
	if n := len(launches) - maxKernels; n > 0 {
		fmt.Fprintf(&b, "and %d more kinds of launches\n", n)
	}
	writeProfile(&b, v)
	if v.Sandbox.Mode == "weak" || len(v.Sandbox.Missing) > 0 {
		fmt.Fprintf(&b, "sandbox: %s", report.Line(v.Sandbox.Mode))
		if len(v.Sandbox.Missing) > 0 {
			fmt.Fprintf(&b, ", without %s", report.Line(strings.Join(v.Sandbox.Missing, ", ")))
		}
		b.WriteByte('\n')
	}
	return a.printf("%s", b.String())
}

// again is the command line with which all is measured anew, at certify where that
// is needed; empty of another command than eval.
func (a *app) again(certify bool) string {
	if !slices.Contains(a.args, "eval") {
		return ""
	}
	words := []string{"kernelwright"}
	skip := false
	for _, arg := range a.args {
		name, _, joined := strings.Cut(arg, "=")
		switch {
		case skip:
			skip = false
		case arg == "--again" || arg == "--json":
		case certify && name == "--level":
			skip = !joined
		default:
			words = append(words, arg)
		}
	}
	if certify {
		words = append(words, "--level", string(kernelwright.Certify))
	}
	return report.Command(append(words, "--again")...)
}

// writeTimes says how fast a candidate is, and what it was held against. again
// gives the command that a note asks for.
func writeTimes(b *strings.Builder, v kernelwright.Verdict, again func(certify bool) string) error {
	if v.CandidateMS <= 0 {
		return nil
	}
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
	if err := report.Columns(b, rows, map[int]bool{0: true}); err != nil {
		return err
	}
	if slices.ContainsFunc(rows, func(r []string) bool { return strings.HasSuffix(r[0], " *") }) {
		b.WriteString("* measured earlier, scaled to how fast the machine is now\n")
	}
	for _, n := range once(v.Timing.Notes, "the referee's clock resolves") {
		fmt.Fprintf(b, "note: %s\n", lower(report.Note(report.Line(n), again(true))))
	}
	if command := again(false); command != "" && v.Speedup.Vague() {
		fmt.Fprintf(b, "note: the interval is too wide to tell; on a quiet machine: `%s`\n", command)
	}
	if n := report.Quotients(v); n != "" {
		fmt.Fprintf(b, "note: %s\n", n)
	}
	return nil
}

// once leaves of notes that say the same of several participants the last one,
// which is the candidate's.
func once(notes []string, words string) (kept []string) {
	said := false
	for _, n := range slices.Backward(notes) {
		again := strings.Contains(n, words)
		if again && said {
			continue
		}
		said = said || again
		kept = append(kept, n)
	}
	slices.Reverse(kept)
	return kept
}

// writeProfile says what a profiler saw, and how much of that eager has.
func writeProfile(b *strings.Builder, v kernelwright.Verdict) {
	for i, line := range report.Profile(v.Profile) {
		if i > maxKernels {
			fmt.Fprintf(b, "and %d more kernels\n", len(v.Profile.Kernels)-maxKernels)
			break
		}
		fmt.Fprintf(b, "%s\n", line)
	}
	for _, line := range report.Eager(v.EagerProfile) {
		fmt.Fprintf(b, "%s\n", line)
	}
}

// writeKernels lists what was compiled, a line each.
func writeKernels(b *strings.Builder, indent string, kernels []kernelwright.Kernel) {
	for i, k := range kernels {
		if i == maxKernels {
			fmt.Fprintf(b, "%sand %d more kernels\n", indent, len(kernels)-i)
			break
		}
		fmt.Fprintf(b, "%skernel %s\n", indent, report.Kernel(k))
	}
}
