package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/hwfeedback"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/task"
)

// firstAnswer is what a run of a file would begin with.
type firstAnswer struct {
	File      string                  `json:"file"`
	Talk      []llm.Record            `json:"talk"` // empty for the built-in Coder, which is asked in no words
	Candidate *kernelwright.Candidate `json:"candidate,omitempty"`
	Unusable  string                  `json:"unusable,omitempty"` // why the answer holds no candidate
	Declined  string                  `json:"declined,omitempty"` // why the Coder does not try
}

// errAnswered ends a strategy after the first answer.
var errAnswered = errors.New("the first answer is there")

// dry prints what the Coder is asked first of each file, and what it answers. The
// reference is inspected, as its prompt needs; nothing is measured or recorded, but for
// what a model's call costs.
func (c runCmd) dry(a *app) (err error) {
	r, err := a.open(false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	heard := &overheard{}
	by, err := r.casting().agents(func(name string) (llm.Model, error) {
		m, err := r.models.open(name)
		if err != nil {
			return nil, err
		}
		return llm.WithJournal(m, heard, priceList(r.config.LLM.Prices).With(name, r.models.options(name)), nil), nil
	})
	if err != nil {
		return err
	}
	show := newProgress(a.stderr)
	defer show.done()
	o := r.options(show.stage)
	o.KeepWarm, o.Lazy = r.config.Evaluation.KeepWarm.Std(), true
	var e *hwfeedback.Evaluator // nil until a file needs it
	defer func() {
		if e != nil {
			err = errors.Join(err, e.Close())
		}
	}()
	for _, path := range c.Files {
		heard.calls = nil
		show.begin(path)
		f, err := task.ReadReference(path)
		if err == nil && e == nil {
			if err = r.reach(a.ctx); err != nil {
				return err
			}
			if e, err = r.evaluator(a.ctx, o); err != nil {
				return cutShort(a.ctx, err)
			}
		}
		first := firstAnswer{File: path}
		if err == nil {
			first, err = r.firstAnswer(a.ctx, e, by, f)
		}
		if bad, ok := errors.AsType[*kernelwright.InvalidTaskError](err); ok { // as of a run of it
			return &Error{Code: ExitNotFound, Text: report.Line(filepath.Base(path)) + " is invalid: " + bad.Reason, Hint: bad.Hint}
		}
		if err != nil {
			return cutShort(a.ctx, err)
		}
		first.Talk = append([]llm.Record{}, heard.calls...)
		show.done()
		if err := first.print(a); err != nil {
			return err
		}
	}
	return nil
}

// firstAnswer has the strategy of a run ask its Coder once.
func (r *room) firstAnswer(ctx context.Context, e *hwfeedback.Evaluator, by agents, f task.File) (firstAnswer, error) {
	first := firstAnswer{File: f.Path}
	t, err := bounded{e, 0, r.config.Evaluation.InspectTimeout.Std()}.Inspect(ctx, f.Name, f.Source)
	if err != nil {
		return first, err
	}
	settings, device := r.strategy(), e.Device()
	var lessons []kernelwright.Lesson
	if r.config.Judge.Lessons && settings.JudgeMode.Lessons() {
		if lessons, err = r.store.LessonsFor(ctx, 0, t, device); err != nil {
			return first, err
		}
	}
	coder := &onceAsked{Coder: by.coder}
	parts := forge.Parts{
		Coder: coder, Judge: by.judge, Recorder: noRounds{}, Device: device, Settings: settings, Lessons: lessons,
		Skills: by.skills, Prompts: by.prompts,
	}
	if by.model != nil {
		parts.Model = onceHeard{by.model}
	}
	strategy, err := forge.New(r.config.Rounds.Strategy, parts)
	if err != nil {
		return first, err
	}
	out, err := strategy.Run(ctx, kernelwright.Run{TaskName: f.Name, Seed: r.config.Rounds.Seed}, t)
	switch {
	case errors.Is(err, errAnswered):
		first.Candidate, first.Unusable = coder.candidate, coder.unusable
		return first, nil
	case err == nil: // it was declined, or the budget holds nothing
		first.Declined = out.Summary
	}
	return first, err
}

func (f firstAnswer) print(a *app) error {
	if a.json {
		return a.printLine(f)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", report.Line(short(f.File)))
	report.WriteTalk(&b, f.Talk, nil)
	switch c := f.Candidate; {
	case f.Declined != "":
		fmt.Fprintf(&b, "\n%s\n", report.Line(f.Declined))
	case f.Unusable != "":
		fmt.Fprintf(&b, "\nthe answer holds no candidate: %s\n", lower(report.Line(f.Unusable)))
	case c != nil && len(f.Talk) == 0:
		fmt.Fprintf(&b, "\n-- %s: %s\n%s\n", report.Line(c.Origin), report.Line(c.Note), strings.TrimRight(report.Clean(c.Source), "\n"))
	case c != nil:
		fmt.Fprintf(&b, "\nthe answer holds a candidate in %s, %d lines\n", c.Language, strings.Count(c.Source, "\n")+1)
	}
	return a.printf("%s", b.String())
}

// overheard is a Journal of calls that belong to no run, which keeps them here.
type overheard struct {
	llm.Journal // which such calls ask nothing
	calls       []llm.Record
}

// Append implements llm.Journal.
func (o *overheard) Append(_ context.Context, r llm.Record) error {
	o.calls = append(o.calls, r)
	return nil
}

// onceAsked is a Coder that is asked once: whoever asks has no answer, and no other.
type onceAsked struct {
	forge.Coder
	mu        sync.Mutex // a beam asks several times at once
	asked     bool
	candidate *kernelwright.Candidate
	unusable  string
}

// Propose implements forge.Coder.
func (o *onceAsked) Propose(ctx context.Context, in kernelwright.CoderInput) (kernelwright.Candidate, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.asked {
		return kernelwright.Candidate{}, errAnswered
	}
	o.asked = true
	c, err := o.Coder.Propose(ctx, in)
	var unusable *kernelwright.UnusableError
	switch {
	case errors.As(err, &unusable):
		o.unusable = unusable.Reason
	case err != nil:
		return c, err
	default:
		o.candidate = &c
	}
	return c, errAnswered
}

// onceHeard is a model that is asked once: react's.
type onceHeard struct{ llm.Model }

// Unwrap has the model's window found.
func (o onceHeard) Unwrap() llm.Model { return o.Model }

// Generate implements llm.Model.
func (o onceHeard) Generate(ctx context.Context, r llm.Request) (llm.Reply, error) {
	reply, err := o.Model.Generate(ctx, r)
	if err == nil {
		err = errAnswered
	}
	return reply, err
}

// noRounds is the record of a run that has none.
type noRounds struct{ forge.Recorder }

// Rounds implements forge.Recorder.
func (noRounds) Rounds(context.Context, int64) ([]kernelwright.Round, error) { return nil, nil }
