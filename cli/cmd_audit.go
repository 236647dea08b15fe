package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/audit"
	"github.com/kernelwright/kernelwright/daemon"
	"github.com/kernelwright/kernelwright/hwfeedback"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
)

type auditCmd struct {
	Path       string   `arg:"" optional:"" help:"A folder of published candidates, or a file of JSON lines or Parquet." type:"path" predictor:"file"`
	References []string `help:"Where the references lie, if not beside the candidates: a folder such as KernelBench's, or a file." placeholder:"PATH" type:"path" predictor:"file"`
	Level      string   `help:"How strict: quick or certify." enum:"quick,certify" default:"quick"`
	CustomCode string   `help:"Whether code of its own has to do the work: any evaluates rewrites in PyTorch, too, and counts them apart; required rejects them." enum:"any,required" default:"any"`
	Strict     bool     `name:"strict-inputs" help:"What a candidate takes for granted of its inputs makes it wrong, and is not only told."`
	Only       []string `help:"Only candidates whose paths match: 'runs/mine/*'." placeholder:"PATTERN" sep:","`
	Limit      int      `help:"Only the first so many pairs." placeholder:"N"`
	Again      bool     `help:"Evaluate all anew, whatever is recorded."`
	Out        string   `help:"Write the page (audit.html, audit.md) into this folder; else below the data folder." placeholder:"DIR" type:"path" predictor:"dir"`
	Show       int64    `help:"Print the audit of this number again; nothing is evaluated." placeholder:"AUDIT"`
	deviceFlags
}

// Help is shown below the flags.
func (auditCmd) Help() string {
	return "Evaluates what others have published: pairs of a reference and a candidate, in KernelBench's layout of runs, as a folder with a reference and its candidates each, or as JSON lines or Parquet of reference, candidate and claimed speedup (docs/audit.md). What was evaluated under the same bytes and settings is not evaluated again: the same command goes on where it was stopped. With --json one object a line, as they come. Exit code 0 says that every pair got its answer, whatever that is."
}

// Run evaluates what is not evaluated yet, and tells all. Lines are promised with --json:
// what fails is one of them.
func (c auditCmd) Run(a *app) error {
	err := c.run(a)
	if a.json {
		return a.lastLine(err)
	}
	return err
}

func (c auditCmd) run(a *app) (err error) {
	if c.Show != 0 {
		if c.Path != "" {
			return usage("--show prints a recorded audit, and a path was named", "give one or the other")
		}
		return a.showAudit(c.Show, c.Out)
	}
	set, err := c.find()
	if err != nil {
		return interruption(a.ctx, err)
	}
	defer func() { err = errors.Join(err, set.Close()) }()
	if c.Out != "" {
		if err := writableFolder(c.Out); err != nil {
			return err
		}
	}
	r, err := a.open(false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if r.config.Sandbox == "weak" {
		return usage(`what strangers have published is not run in the sandbox "weak"`, `set sandbox = "strict"`)
	}
	show := newProgress(a.stderr)
	defer show.done()
	show.say(found(set))
	none, err := tellUntried(a.ctx, show, set, c.Path)
	if err != nil {
		return err
	}
	var es []*hwfeedback.Evaluator
	if !none { // else no device is needed
		if es, err = r.evaluators(a.ctx, c.options(r, show)); err != nil {
			show.done()
			return interruption(a.ctx, err)
		}
	}
	show.done()
	defer func() { err = errors.Join(err, closeAll(es)) }()
	if slices.ContainsFunc(es, func(e *hwfeedback.Evaluator) bool { return e.Device().Class != es[0].Device().Class }) {
		return usage(fmt.Sprintf("an audit is of one kind of device, and these %d are not", len(es)), "name those of one kind with --device")
	}
	known, begun, err := r.recordedAudit(a.ctx, c.audit(r, es, append([]string{"kernelwright"}, a.args...)), c.Again)
	if err != nil {
		return err
	}
	show.say(begins(known, begun))
	t := &auditTeller{app: a, show: show, of: len(set.Pairs), in: report.Audit{Audit: known}}
	run := &audit.Run{Audit: known, Set: set, Record: auditRecord{r.store, known, time.Now().UnixMilli()}, Begun: t.begun, Yield: t.pair}
	for _, e := range es {
		d := auditDevice{bounded{e, r.config.Evaluation.Timeout.Std(), r.config.Evaluation.InspectTimeout.Std()}, e}
		run.Devices = append(run.Devices, slices.Repeat([]audit.Device{d}, r.config.Evaluation.AtOnce)...) // each has pairs of its own
	}
	if len(es) == 0 {
		run.Devices = []audit.Device{audit.NoDevice{}}
	}
	return r.tellAudit(a, known, c.Out, t, c.finish(a.ctx, r, run))
}

// finish evaluates, and records that the audit has come to its end.
func (c auditCmd) finish(ctx context.Context, r *room, run *audit.Run) error {
	err := run.Run(ctx)
	if ctx.Err() != nil && err != nil {
		return errInterrupted
	}
	var failed *audit.FailedError
	if errors.As(err, &failed) {
		_, _, hint := explain(failed.First)
		return &Error{Code: ExitFailure, Err: failed, Hint: "the same command tries these again" + prefixed("; ", hint)}
	}
	if err != nil {
		return err
	}
	record := run.Record.(auditRecord)
	return r.store.FinishAudit(context.WithoutCancel(ctx), run.Audit.ID, record.pass)
}

func prefixed(with, text string) string {
	if text == "" {
		return ""
	}
	return with + text
}

// find reads which pairs there are, and chooses among them.
func (c auditCmd) find() (audit.Set, error) {
	if c.Path == "" {
		return audit.Set{}, usage("no set was named", "name a folder or a file of pairs: `kernelwright audit PATH`")
	}
	if c.Limit < 0 {
		return audit.Set{}, usage(fmt.Sprintf("--limit is %d", c.Limit), "it takes a whole number from 1")
	}
	for _, pattern := range c.Only {
		if _, err := filepath.Match(pattern, ""); err != nil {
			return audit.Set{}, usage(fmt.Sprintf("--only: %q is no pattern", pattern), "use * and ?: 'runs/mine/*'")
		}
	}
	set, err := audit.Find(c.Path, c.References)
	var none *audit.NoPairsError
	if errors.As(err, &none) {
		return set, usage(none.Reason, none.Hint)
	}
	if err != nil {
		return set, err
	}
	all := set.Count()
	set.Pairs = slices.DeleteFunc(set.Pairs, func(p audit.Pair) bool { return !c.matches(p.Candidate.Label) })
	if set.Count() == 0 && all > 0 {
		_ = set.Close() // it was only read
		return set, usage(fmt.Sprintf("none of %d candidates matches --only %s", all, strings.Join(c.Only, ",")), "patterns are held against paths below "+c.Path+", and against names of files")
	}
	if c.Limit > 0 {
		set = set.First(c.Limit)
	}
	return set, nil
}

func (c auditCmd) matches(label string) bool {
	below, err := filepath.Rel(c.Path, label)
	if err != nil || !filepath.IsLocal(below) {
		below = label
	}
	return len(c.Only) == 0 || slices.ContainsFunc(c.Only, func(pattern string) bool {
		whole, _ := filepath.Match(pattern, below)
		base, _ := filepath.Match(pattern, filepath.Base(label))
		return whole || base
	})
}

func begins(k kernelwright.Audit, begun bool) string {
	said := fmt.Sprintf("audit %d", k.ID)
	switch {
	case begun && k.FinishedMS != 0:
		said += " again: what is new or has changed is evaluated (--again evaluates all anew)"
	case begun:
		said = "going on with " + said
	}
	return said + fmt.Sprintf("; evaluated with custom_code = %q", k.CustomCode)
}

// options are those of every verdict of an audit. Baselines that somebody here has
// registered are not what others have claimed against.
func (c auditCmd) options(r *room, show *progress) hwfeedback.Options {
	o := r.options(show.stage)
	o.CustomCode, o.Named, o.Profile = c.CustomCode, nil, ""
	o.StrictInputs = o.StrictInputs || c.Strict
	o.Again = c.Again
	return o
}

func (c auditCmd) audit(r *room, es []*hwfeedback.Evaluator, command []string) kernelwright.Audit {
	var names []string
	for _, e := range es {
		names = append(names, e.Device().String())
	}
	settings := r.config.Evaluation
	first := kernelwright.Device{}
	if len(es) == 0 {
		names = []string{kernelwright.NoDevice}
	} else {
		first = es[0].Device()
	}
	return kernelwright.Audit{
		Path: c.Path, References: c.References, Only: c.Only, Limit: c.Limit, Level: kernelwright.Level(c.Level),
		Device: strings.Join(names, ", "), DeviceClass: first.Class, DeviceName: first.Name,
		Baselines: settings.Baselines, Precision: settings.Precision, CustomCode: c.CustomCode,
		StrictInputs: settings.StrictInputs || c.Strict, Sandbox: r.config.Sandbox,
		Again: c.Again, Command: command, Version: kernelwright.Version,
	}
}

// recordedAudit finds the audit that the same command began, or records it.
func (r *room) recordedAudit(ctx context.Context, k kernelwright.Audit, again bool) (_ kernelwright.Audit, begun bool, err error) {
	known, err := r.store.LatestAudit(ctx, k.Key())
	anew := again && (known.FinishedMS != 0 || !known.Again) // one that was stopped goes on even then
	if errors.Is(err, store.ErrNotFound) || err == nil && anew {
		k, err = r.store.CreateAudit(ctx, k)
		return k, false, err
	}
	return known, true, err
}

// auditDevice is an evaluator as an audit asks it.
type auditDevice struct {
	bounded
	evaluator *hwfeedback.Evaluator
}

func (d auditDevice) Problem(ctx context.Context, c kernelwright.Candidate) (kernelwright.Status, string, error) {
	ctx, cancel := context.WithTimeout(ctx, d.inspect)
	defer cancel()
	status, problem, err := d.evaluator.Problem(ctx, c)
	return status, problem, overdue(ctx, "reading the candidate", d.inspect, err)
}

func (d auditDevice) Given(ctx context.Context, reference string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, d.inspect)
	defer cancel()
	parameter, err := d.evaluator.Given(ctx, reference)
	return parameter, overdue(ctx, readingTheReference, d.inspect, err)
}

// EvaluateBatch has what comes then built meanwhile, and gives each verdict of the
// batch as long as others get.
func (d auditDevice) EvaluateBatch(ctx context.Context, t kernelwright.Task, cs, then []kernelwright.Candidate, l kernelwright.Level, yield func(int, kernelwright.Verdict) error) error {
	d.hardware = sequel{d.evaluator, then}
	return d.bounded.EvaluateBatch(ctx, t, cs, l, yield)
}

// sequel is an evaluator that knows what comes after a batch.
type sequel struct {
	*hwfeedback.Evaluator
	then []kernelwright.Candidate
}

func (s sequel) EvaluateBatch(ctx context.Context, t kernelwright.Task, cs []kernelwright.Candidate, l kernelwright.Level, yield func(int, kernelwright.Verdict) error) error {
	return s.EvaluateBatchThen(ctx, t, cs, s.then, l, yield)
}

// Explain gives up on an explanation as on a verdict.
func (d auditDevice) Explain(ctx context.Context, t kernelwright.Task, c kernelwright.Candidate, l kernelwright.Level) (kernelwright.Verdict, error) {
	return explaining{d.bounded, d.evaluator}.explain(ctx, t, c, l)
}

// auditRecord is the store as an audit keeps things in it.
type auditRecord struct {
	store *store.Store
	audit kernelwright.Audit
	pass  int64
}

func (r auditRecord) Known(ctx context.Context, key string) (kernelwright.Verdict, int64, bool, error) {
	since := int64(0)
	if r.audit.Again {
		since = r.audit.CreatedMS
	}
	return r.store.Audited(ctx, key, since)
}

func (r auditRecord) Keep(ctx context.Context, p kernelwright.AuditPair) error {
	return r.store.KeepAudited(ctx, r.audit.ID, r.pass, p)
}

// auditTeller tells pairs as they come.
type auditTeller struct {
	*app
	show     *progress
	in       report.Audit
	count    report.AuditCounter
	of, done int
	known    int

	reference string // that a device has turned to last
}

func (t *auditTeller) begun(_ int, reference string) {
	t.reference = reference
	t.show.begin(t.place())
}

// place says how far it is.
func (t *auditTeller) place() string { return fmt.Sprintf("%d of %d  %s", t.done, t.of, t.reference) }

// pair tells one. On standard error what was known before is only counted.
func (t *auditTeller) pair(p kernelwright.AuditPair, known bool) error {
	if p.EvaluatedMS == 0 && p.Verdict.Status != kernelwright.NotEvaluated {
		p.EvaluatedMS = time.Now().UnixMilli()
	}
	row := report.NewAuditRow(p)
	t.count.Add(row)
	t.done++
	if known {
		t.known++
	} else {
		t.show.say(fmt.Sprintf("%d of %d  %s  %s", t.done, t.of, t.in.Place(row.Candidate), t.in.In(row)))
	}
	t.show.begin(t.place())
	if t.json {
		return t.printLine(row)
	}
	return nil
}

// tellAudit prints an audit, and writes its page. The failure is what ended it.
func (r *room) tellAudit(a *app, k kernelwright.Audit, out string, t *auditTeller, failed error) error {
	t.show.done()
	if t.known > 0 {
		t.show.say(fmt.Sprintf("not evaluated anew, since the same bytes were evaluated before: %d of %d", t.known, t.done))
	}
	whole, err := r.loadAudit(context.WithoutCancel(a.ctx), k.ID)
	if err != nil {
		return errors.Join(failed, err)
	}
	whole.Summary = t.count.Summary() // with those that the machine failed on, which are not recorded
	written, err := r.writeAudit(whole, out)
	failed = errors.Join(failed, err)
	if !a.json {
		if err := printAudit(a, whole, written); err != nil {
			return err
		}
		return failed
	}
	for _, path := range written {
		t.show.say("written: " + report.Line(short(path)))
	}
	return failed
}

// lastLine ends a stream of lines: what failed is one of them.
func (a *app) lastLine(failed error) error {
	if failed == nil {
		return nil
	}
	code, text, hint := explain(failed)
	a.json = false
	return cmp.Or(a.printLine(map[string]any{"error": text, "hint": hint, "exit_code": code}), failed)
}

func printAudit(a *app, whole report.Audit, written []string) error {
	var text strings.Builder
	if err := report.AuditTable(&text, whole); err != nil {
		return err
	}
	for _, path := range written {
		fmt.Fprintf(&text, "written: %s\n", report.Line(short(path)))
	}
	return a.printf("%s", text.String())
}

// loadAudit reads an audit with its pairs.
func (r *room) loadAudit(ctx context.Context, id int64) (report.Audit, error) {
	k, err := r.store.Audit(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		return report.Audit{}, notFound(fmt.Sprintf("there is no audit %d", id), "`kernelwright history audit` lists them")
	}
	whole := report.Audit{Audit: k}
	if err != nil {
		return whole, err
	}
	var count report.AuditCounter
	err = r.store.AuditPairs(ctx, id, func(p kernelwright.AuditPair) error {
		row := report.NewAuditRow(p)
		count.Add(row)
		whole.Rows = append(whole.Rows, row)
		return nil
	})
	whole.Summary = count.Summary()
	return whole, err
}

// writeAudit writes an audit's pages.
func (r *room) writeAudit(whole report.Audit, out string) ([]string, error) {
	if out == "" {
		out = filepath.Join(r.folder, "audits", fmt.Sprint(whole.ID))
	}
	if err := writableFolder(out); err != nil {
		return nil, err
	}
	var paths []string
	for _, page := range []struct {
		name  string
		write func(io.Writer, report.Audit) error
	}{{"audit.md", report.AuditMarkdown}, {"audit.html", report.AuditHTML}} {
		var text bytes.Buffer
		if err := page.write(&text, whole); err != nil {
			return paths, err
		}
		path := filepath.Join(out, page.name)
		if err := daemon.WriteFile(path, text.Bytes()); err != nil {
			return paths, outError(path, err)
		}
		paths = append(paths, path)
	}
	return paths, nil
}

// showAudit prints a recorded audit.
func (a *app) showAudit(id int64, out string) (err error) {
	r, err := a.openRecord()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	whole, err := r.loadAudit(a.ctx, id)
	if err != nil {
		return err
	}
	var written []string
	if out != "" {
		if written, err = r.writeAudit(whole, out); err != nil {
			return err
		}
	}
	if !a.json {
		return printAudit(a, whole, written)
	}
	for _, row := range whole.Rows {
		if err := a.printLine(row); err != nil {
			return err
		}
	}
	return nil
}
