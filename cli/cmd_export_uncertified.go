package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/report"
)

// uncertified writes the kernel of a correct round that was not certified. Its file says
// so first, and no certificate is written.
func (c exportCmd) uncertified(a *app, d report.Data, r kernelwright.Round) error {
	text, err := a.standalone(r.Candidate)
	if err != nil {
		return err
	}
	text = report.Uncertified(d, r, text)
	if err := writeNew(c.Out, text); err != nil {
		return err
	}
	v := r.Verdict
	if a.json {
		return a.printJSON(map[string]any{
			"path": a.shown(c.Out), "sha256": kernelwright.HashText(text), "certified": false, "run": c.ID, "round": r.Index, "task": d.Run.TaskName, "device": d.Run.Device,
			"candidate_ms": v.CandidateMS, "baselines": v.Baselines, "speedup": v.Speedup,
		})
	}
	said := fmt.Sprintf("written: %s (round %d of run %d, not certified: %s)\n", report.Line(a.shown(c.Out)), r.Index, c.ID, report.Standing(v))
	said += figuresOf(v)
	reference := "REFERENCE"
	if d.Run.Path != "" {
		reference = short(d.Run.Path)
	}
	out := a.shown(c.Out)
	certified := strings.TrimSuffix(out, ".py") + ".best.py"
	said += fmt.Sprintf("`%s` certifies it\n", report.Command("kernelwright", "eval", reference, out, "--level", "certify", "--device", d.Run.Device, "--export", certified))
	return a.printf("%s", said)
}

// standalone returns a candidate with what it uses of kernelwright written into it. Only
// where it uses something that takes a Python with PyTorch; no device is opened.
func (a *app) standalone(c kernelwright.Candidate) (text string, err error) {
	if !strings.Contains(c.Source, "kernelwright") && !strings.Contains(c.Source, "<kw/") {
		return c.Source, nil
	}
	r, err := a.open(false)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	show := newProgress(a.stderr)
	defer show.done()
	o := r.options(show.stage)
	o.Device, o.Unmeasured, o.KeepWarm = string(kernelwright.CPUDevice), true, r.config.Evaluation.KeepWarm.Std()
	e, err := r.evaluator(a.ctx, o)
	if err != nil {
		return "", cutShort(a.ctx, err)
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	text, err = e.Export(a.ctx, c)
	return text, cutShort(a.ctx, err)
}
