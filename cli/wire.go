package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/config"
	"github.com/kernelwright/kernelwright/daemon"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/hwfeedback"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
)

// deviceFlags say where and how measuring is done. Flags with a key are given
// to the settings as text, which check them.
type deviceFlags struct {
	Device  string `help:"What candidates run on: cpu, cuda, cuda:1 for the second GPU, or auto. The daemon, bench, audit and inspect take several: cuda:0,1 or cuda:all." placeholder:"DEVICE" key:"device"`
	Threads string `help:"Threads for candidates and baselines; 0: one a core." placeholder:"N" key:"threads"`
	Python  string `help:"A Python that has PyTorch." placeholder:"PROGRAM" key:"python"`
	Sandbox string `help:"strict or weak." placeholder:"MODE" key:"sandbox"`
}

// roundFlags bound a run.
type roundFlags struct {
	Rounds    string `help:"At most so many rounds." placeholder:"N" key:"rounds.max"`
	WallTime  string `help:"At most this long: 90s, 10m." placeholder:"TIME" key:"rounds.wall_time"`
	Headroom  string `help:"Stop at this share of the roofline." placeholder:"SHARE" key:"rounds.headroom"`
	Patience  string `help:"Stop after so many rounds without a faster kernel." placeholder:"N" key:"rounds.patience"`
	Strategy  string `help:"How the Coder is asked: rounds, beam or react." placeholder:"NAME" key:"rounds.strategy"`
	Coder     string `help:"Who writes candidates: builtin, or a model as provider:model." placeholder:"NAME" key:"coder.name"`
	Judge     string `help:"Who reads verdicts: rules, a model as provider:model, or none; or what it may say (--judge-mode)." placeholder:"NAME" key:"judge.name"`
	JudgeMode string `help:"What the Judge may say: both, correction, optimisation or none; self and score ask no Judge." placeholder:"MODE" key:"rounds.judge"`
	Language  string `help:"What candidates are written in: auto, cpp, cuda or triton." placeholder:"LANGUAGE" key:"rounds.language"`
	Seed      string `help:"Same seed, same machine, same lessons: same decisions." placeholder:"N" key:"rounds.seed"`
	Out       string `help:"Where results go; else beside the reference." placeholder:"DIR" type:"path" key:"watch.output_dir" predictor:"dir"`
}

// room is what a verb that touches the record works in.
type room struct {
	config config.Config
	folder string
	log    *slog.Logger
	store  *store.Store
	lock   *daemon.Lock
	models *models
	policyParts
}

// open reads the settings and opens the record. Alone takes the data folder
// for this process, which a verb needs that brings runs forward.
func (a *app) open(alone bool) (*room, error) { return a.openBy(alone, store.Open) }

func (a *app) openBy(alone bool, openStore func(string) (*store.Store, error)) (*room, error) {
	c, _, err := a.settings()
	if err != nil {
		return nil, err
	}
	r := &room{config: c, log: a.logger(c)}
	if r.folder, err = config.DataFolder(c, a.getenv); err != nil {
		return nil, err
	}
	if alone {
		if r.lock, err = daemon.AcquireLock(r.folder, append([]string{"kernelwright"}, a.args...), time.Now()); err != nil {
			return nil, dataError(r.folder, err)
		}
	} else if err := os.MkdirAll(r.folder, 0o700); err != nil {
		return nil, dataError(r.folder, err)
	}
	if r.store, err = openStore(filepath.Join(r.folder, store.FileName)); err != nil {
		return nil, errors.Join(dataError(r.folder, err), r.close())
	}
	r.models = newModels(c, a.getenv, r.store, r.log)
	r.openPolicies()
	if alone {
		r.forget(context.Background(), time.Now())
	}
	return r, nil
}

// remember is for how long verdicts, and what was measured to reach them, are
// kept outside the history. Other versions of anything never ask for them.
const remember = 30 * 24 * time.Hour

// forget drops what is older. What cannot be dropped now is dropped another
// time.
func (r *room) forget(ctx context.Context, now time.Time) {
	for _, kind := range hwfeedback.Remembered {
		if _, err := r.store.Forget(ctx, kind, now.Add(-remember).UnixMilli()); err != nil {
			r.log.Warn("what was remembered long ago cannot be dropped", "error", err)
			return
		}
	}
}

// openRecord opens the record to read it. There must be one.
func (a *app) openRecord() (*room, error) {
	if err := a.recorded(); err != nil {
		return nil, err
	}
	return a.openBy(false, store.OpenToRead)
}

// recorded returns an error where there is no record.
func (a *app) recorded() error {
	c, _, err := a.settings()
	if err != nil {
		return err
	}
	folder, err := config.DataFolder(c, a.getenv)
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(folder, store.FileName)); errors.Is(err, fs.ErrNotExist) {
		return nothingRecorded(folder)
	}
	return nil
}

func nothingRecorded(folder string) error {
	return notFound("nothing is recorded in "+folder, "`kernelwright run FILE` records a run; --data-dir names another folder")
}

// dataError gives what keeps a data folder from being used its hint.
func dataError(folder string, err error) error {
	var held *daemon.HeldError
	var newer *store.NewerError
	var damaged *store.DamagedError
	var ours *Error
	switch {
	case errors.As(err, &ours):
		return err
	case errors.As(err, &held):
		return err
	case errors.As(err, &newer):
		return &Error{Code: ExitFailure, Err: err, Hint: "install the newer version, or use another folder with --data-dir"}
	case errors.As(err, &damaged):
		return &Error{Code: ExitFailure, Err: err, Hint: cmp.Or(damaged.Hint, damagedHint)}
	default:
		return &Error{Code: ExitFailure, Text: "data folder " + folder, Err: err, Hint: worldHint(err, "name a folder that can be written with --data-dir")}
	}
}

// close may be called twice, and on a room that was opened in part.
func (r *room) close() error {
	r.closePolicies()
	var err error
	if r.store != nil {
		err = r.store.Close()
	}
	if r.lock != nil {
		err = errors.Join(err, r.lock.Release())
	}
	return err
}

func (r *room) options(progress func(stage, note string)) hwfeedback.Options {
	c := r.config
	return hwfeedback.Options{
		DataDir:        r.folder,
		Python:         c.Python,
		Device:         c.Device,
		Sandbox:        c.Sandbox,
		Threads:        c.Threads,
		Baselines:      c.Evaluation.Baselines,
		Precision:      c.Evaluation.Precision,
		StrictInputs:   c.Evaluation.StrictInputs,
		CustomCode:     c.Evaluation.CustomCode,
		CertifyTime:    c.Evaluation.CertifyTime.Std(),
		InspectTimeout: c.Evaluation.InspectTimeout.Std(),
		AtOnce:         c.Evaluation.AtOnce,
		Log:            r.log,
		Progress:       progress,
		Named:          r.named,
		Profile:        r.profile(),
	}
}

// profile is what a correct candidate's rounds have of its kernels.
func (r *room) profile() string {
	if !r.config.Evaluation.Profile {
		return ""
	}
	return r.config.Rounds.Metrics // the words are the same
}

// named returns the baselines that were registered for a reference.
func (r *room) named(ctx context.Context, t kernelwright.Task, device kernelwright.DeviceKind) ([]kernelwright.NamedBaseline, error) {
	found, err := r.store.Baselines(ctx, t.Fingerprint, device)
	named := make([]kernelwright.NamedBaseline, 0, len(found))
	for _, b := range found {
		if b.Of(t.Source) {
			named = append(named, b.NamedBaseline)
		}
	}
	return named, err
}

func (r *room) leases() *hwfeedback.FileLeases {
	return &hwfeedback.FileLeases{
		Dir: hwfeedback.LeaseFolder(), NextFence: r.store.NextFence,
		Waiting: func(device, holder string) { r.log.Info("waiting for the device", "device", device, "holder", holder) },
	}
}

// evaluator opens the hardware: of several devices the first.
func (r *room) evaluator(ctx context.Context, o hwfeedback.Options) (*hwfeedback.Evaluator, error) {
	return hwfeedback.Open(ctx, o, r.store, r.leases())
}

// evaluators opens the hardware, all of it.
func (r *room) evaluators(ctx context.Context, o hwfeedback.Options) (found []*hwfeedback.Evaluator, err error) {
	names, err := hwfeedback.Devices(o.Device)
	if err != nil {
		return nil, err
	}
	for _, o.Device = range names {
		e, failed := hwfeedback.Open(ctx, o, r.store, r.leases())
		if failed != nil && (len(names) == 1 || ctx.Err() != nil) {
			return nil, errors.Join(failed, closeAll(found))
		}
		if failed != nil {
			r.log.Error("a device cannot be used", "device", o.Device, "error", failed)
			err = cmp.Or(err, failed)
			continue
		}
		found = append(found, e)
	}
	if len(found) == 0 {
		return nil, err
	}
	return found, nil
}

func closeAll(es []*hwfeedback.Evaluator) error {
	var err error
	for _, e := range es {
		err = errors.Join(err, e.Close())
	}
	return err
}

// hardware is what *hwfeedback.Evaluator offers to runs.
type hardware interface {
	daemon.Evaluator
	forge.Batcher
	forge.Builder
}

// bounded gives up on an answer that takes too long. What a candidate does has
// far smaller limits of its own: this is for a machine that hangs.
type bounded struct {
	hardware
	evaluate, inspect time.Duration
}

func (r *room) bounded(h hardware) bounded {
	return bounded{h, r.config.Evaluation.Timeout.Std(), r.config.Evaluation.InspectTimeout.Std()}
}

func (b bounded) Inspect(ctx context.Context, name, source string) (kernelwright.Task, error) {
	ctx, cancel := context.WithTimeout(ctx, b.inspect)
	defer cancel()
	t, err := b.hardware.Inspect(ctx, name, source)
	return t, overdue(ctx, readingTheReference, b.inspect, err)
}

func (b bounded) Evaluate(ctx context.Context, t kernelwright.Task, c kernelwright.Candidate, l kernelwright.Level) (kernelwright.Verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, b.evaluate)
	defer cancel()
	v, err := b.hardware.Evaluate(ctx, t, c, l)
	return v, overdue(ctx, "the verdict", b.evaluate, err)
}

func (b bounded) BuildOnly(ctx context.Context, c kernelwright.Candidate) (kernelwright.BuildReport, string, error) {
	ctx, cancel := context.WithTimeout(ctx, b.evaluate)
	defer cancel()
	built, failure, err := b.hardware.BuildOnly(ctx, c)
	return built, failure, overdue(ctx, "the build", b.evaluate, err)
}

// EvaluateBatch gives each verdict of a batch as long as Evaluate does.
func (b bounded) EvaluateBatch(ctx context.Context, t kernelwright.Task, cs []kernelwright.Candidate, l kernelwright.Level, yield func(int, kernelwright.Verdict) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := &kernelwright.InfrastructureError{Op: "the verdict", Err: fmt.Errorf("not there after %v", b.evaluate)}
	timer := time.AfterFunc(b.evaluate, func() { cancel(late) })
	defer timer.Stop()
	err := b.hardware.EvaluateBatch(ctx, t, cs, l, func(i int, v kernelwright.Verdict) error {
		timer.Reset(b.evaluate)
		return yield(i, v)
	})
	if err != nil && errors.Is(context.Cause(ctx), late) {
		return late
	}
	return err
}

func overdue(ctx context.Context, what string, limit time.Duration, err error) error {
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return &kernelwright.InfrastructureError{Op: what, Err: &Error{Code: ExitFailure, Text: fmt.Sprintf("not there after %v", limit), Hint: overdueHint(err, what)}}
	}
	return err
}

// overdueHint says what to do about an answer that took too long: mostly somebody
// else measures on the device.
func overdueHint(err error, what string) string {
	if held, ok := errors.AsType[*hwfeedback.HeldError](err); ok {
		return fmt.Sprintf("%s measures on %s: give the same command again when it is done, or stop it", held.Holder, held.Device)
	}
	key := "evaluation.timeout"
	if what == readingTheReference {
		key = "evaluation.inspect_timeout"
	}
	return "where the machine is that slow, raise " + key + " in the settings; `kernelwright doctor` examines it"
}

const readingTheReference = "reading the reference"

// runner wires what brings runs forward.
func (r *room) runner(e hardware, by agents) *daemon.Runner {
	c := r.config
	return &daemon.Runner{
		Store:     r.store,
		Evaluator: r.bounded(e),
		Coder:     by.coder,
		Judge:     by.judge,
		Model:     by.model,
		Journal:   r.store,
		Skills:    by.skills,
		Prompts:   by.prompts,
		Results:   daemon.Results{Folder: c.Watch.OutputDir, Markdown: c.Daemon.ReportMarkdown, HTML: c.Daemon.ReportHTML},
		Lessons:   c.Judge.Lessons,
		Attempts:  c.Daemon.Attempts,
		Grace:     c.Daemon.Grace.Std(),
		Log:       r.log,
	}
}

// language is empty where the device decides.
func language(word string) kernelwright.Language {
	if word == "auto" {
		return ""
	}
	return kernelwright.Language(word)
}

func (r *room) strategy() forge.Settings {
	c := r.config.Rounds
	model, err := llm.Resolve(r.config.Coder.Name, configured(r.config.LLM, r.config.Coder.Name)) // which fails for no model
	s := forge.Settings{
		Rounds:       c.Max,
		WallTime:     c.WallTime.Std(),
		HeadroomStop: c.Headroom,
		Patience:     c.Patience,
		JudgeMode:    forge.JudgeMode(c.Judge),
		Language:     language(c.Language),
		Metrics:      forge.Metrics(c.Metrics),
		Beam:         forge.BeamSettings{Width: r.config.Beam.Width, Samples: r.config.Beam.Samples},
		React:        forge.ReactSettings{Turns: r.config.React.Turns, ContextTokens: r.config.React.ContextTokens, TextTools: r.config.React.TextTools || err == nil && !*model.NativeTools},
	}
	if r.config.Evaluation.CustomCode == forge.AnyCode {
		s.CustomCode = forge.AnyCode
	}
	switch s.JudgeMode {
	case forge.JudgeBoth, forge.JudgeCorrection, forge.JudgeOptimisation:
		if r.config.Judge.Name == kernelwright.NoJudge {
			s.JudgeMode = forge.JudgeNone
		}
	}
	return s.For(c.Strategy)
}

// under is the room with other settings.
func (r *room) under(c config.Config) *room {
	other := *r
	other.config = c
	return &other
}

// spend is what the calls of models cost that a run made.
func (r *room) spend(ctx context.Context, run int64) (report.Spend, error) {
	spent, err := r.store.Spend(ctx, run)
	if err != nil {
		return report.Spend{}, err
	}
	rounds, err := r.store.RoundUSD(ctx, run)
	return report.Spend{Spend: spent, Rounds: rounds}, err
}

// shown writes the path of a result: as people in the working folder would, and
// for programs as it is wherever they are.
func (a *app) shown(path string) string {
	if !a.json || path == "" {
		return short(path)
	}
	if whole, err := filepath.Abs(path); err == nil {
		return whole
	}
	return path
}

// short writes a path as people in the working folder would.
func short(path string) string {
	if path == "" {
		return ""
	}
	cwd, err := os.Getwd()
	if err != nil {
		return path
	}
	rel, err := filepath.Rel(cwd, path)
	if err != nil || len(rel) >= len(path) {
		return path
	}
	return rel
}
