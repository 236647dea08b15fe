package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/config"
	"github.com/kernelwright/kernelwright/daemon"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/hwfeedback"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
)

type benchCmd struct {
	References []string `arg:"" optional:"" name:"reference" help:"A folder of references, such as KernelBench's, or several of them and files." type:"path" predictor:"file"`
	Show       int64    `help:"Print the bench of this number again; nothing is run." placeholder:"BENCH"`
	Again      bool     `help:"Begin anew, even if a bench like this is recorded."`
	Out        string   `help:"Write the report (bench.md, bench.html) and the kernels into this folder." placeholder:"DIR" type:"path" predictor:"dir"`
	chosenFlags
	matrixFlags
	Budget   int    `help:"With --strategy exhaustive: at most so many of the built-in Coder's programs for each task (100)." placeholder:"N"`
	WallTime string `help:"A run takes at most this long: 90s, 10m." placeholder:"TIME" key:"rounds.wall_time"`
	Headroom string `help:"A run stops at this share of the roofline." placeholder:"SHARE" key:"rounds.headroom"`
	Patience string `help:"A run stops after so many rounds without a faster kernel." placeholder:"N" key:"rounds.patience"`
	deviceFlags
}

// chosenFlags choose among the references of a folder.
type chosenFlags struct {
	levelFlag
	Only  []string `help:"Only references of these names: 'softmax*'. Case, a number in front and .py do not count." placeholder:"PATTERN" sep:","`
	List  string   `help:"Only the references that this file names, a line each, as paths below the folder." placeholder:"FILE" type:"path" predictor:"file"`
	Limit int      `help:"Only the first so many." placeholder:"N"`
}

// levelFlag chooses among the levels of a folder such as KernelBench's.
type levelFlag struct {
	Level string `help:"Only the subfolders level1, ... of the folder: 1, or 1,2." placeholder:"N"`
}

// matrixFlags take several values each; a bench tries all their combinations.
type matrixFlags struct {
	Strategy string `help:"Strategies to compare, separated by commas: rounds, beam, react; exhaustive tries the built-in Coder's whole schedule space." placeholder:"NAMES"`
	Coder    string `help:"Coders to compare: builtin, and models as provider:model." placeholder:"NAMES"`
	Judge    string `help:"Judges to compare: rules, none, and models as provider:model; correction and optimisation let it say only that, self and score ask none." placeholder:"NAMES"`
	Language string `help:"Languages to compare: auto, cpp, cuda, triton." placeholder:"NAMES"`
	Lessons  string `help:"With what runs before this bench learned of other tasks, without, or both to compare: on, off." placeholder:"SWITCHES"`
	Metrics  string `help:"What Nsight Compute measures of each kernel: selected, full, or both to compare." placeholder:"NAMES"`
	Rounds   string `help:"Numbers of rounds to compare: at most so many." placeholder:"NUMBERS"`
	Seed     string `help:"Seeds: each makes a run of its own." placeholder:"NUMBERS"`
}

// Help is shown below the flags.
func (benchCmd) Help() string {
	return "Flags that take several values make a matrix: each reference is optimised under each combination of them, and the combinations are held against each other. Every one of these is a run that `history` knows. What was stopped goes on when the same command is given again; what is done is printed again, and --again begins anew. A reference that is no task, or that the Coder declines, counts as not correct; where none is a task nothing is run. Exit code 0 says that every run has ended, whatever came of it."
}

// Run makes the runs that are not made yet, and prints what they came to.
func (c benchCmd) Run(a *app) (err error) {
	if c.Show != 0 {
		if len(c.References) > 0 {
			return usage("--show prints a recorded bench, and references were named", "give one or the other")
		}
		return a.showBench(c.Show, c.Out)
	}
	p, err := c.plan(a)
	if err != nil {
		return err
	}
	if c.Out != "" {
		if err := writableFolder(c.Out); err != nil {
			return err
		}
	}
	show := newProgress(a.stderr)
	p.references.tell(show)
	r, err := a.open(true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	by := make([]agents, len(p.configs))
	for i, c := range p.configs {
		if by[i], err = r.under(c).agents(); err != nil {
			return err
		}
	}
	defer show.done()
	es, err := r.evaluators(a.ctx, r.options(show.stage))
	show.done()
	if err != nil {
		return interruption(a.ctx, err)
	}
	defer func() { err = errors.Join(err, closeAll(es)) }()
	b, err := r.bench(es, by, p, append([]string{"kernelwright"}, a.args...))
	if err != nil {
		return err
	}
	var begun bool
	if b.Bench, begun, err = r.recordedBench(a.ctx, b.Bench, c.Again); err != nil {
		return err
	}
	switch {
	case b.Bench.FinishedMS != 0:
		show.say(fmt.Sprintf("bench %d has these runs already; --again begins anew", b.Bench.ID))
	case begun:
		show.say(fmt.Sprintf("going on with bench %d", b.Bench.ID))
	default:
		show.say(fmt.Sprintf("bench %d: runs to be made: %d", b.Bench.ID, len(p.references.all)*len(p.configs)*len(p.seeds)))
	}
	shows := []*progress{show}
	if len(b.Devices) > 1 {
		shows = show.beside(len(b.Devices))
	}
	for i, runners := range b.Devices {
		for _, w := range runners {
			w.Observe = shows[i].observe
		}
	}
	b.Begun = benchLabels(b.Bench, shows)
	stopNotice := context.AfterFunc(a.ctx, func() {
		show.say(fmt.Sprintf("finishing the round, for at most %s; a second interrupt stops at once", r.config.Daemon.Grace))
	})
	defer stopNotice()
	failed := b.Run(a.ctx)
	show.done()
	if errors.Is(failed, daemon.ErrStopped) {
		failed = errInterrupted
	}
	if bad := b.Usable(); bad != nil {
		return bad // nothing that is read now is sure
	}
	return r.tellBench(a, b.Bench.ID, c.Out, failed, true)
}

// benchPlan is what a command line asks for.
type benchPlan struct {
	references benchReferences
	configs    []config.Config
	seeds      []int64
}

func (c benchCmd) plan(a *app) (p benchPlan, err error) {
	paths, err := c.chosen(c.References)
	if err != nil {
		return p, err
	}
	if p.configs, err = c.configurations(a); err != nil {
		return p, err
	}
	p.seeds = []int64{p.configs[0].Rounds.Seed}
	if c.Seed != "" {
		if p.seeds, err = listed("--seed", c.Seed, func(text string) (int64, error) { return strconv.ParseInt(text, 10, 64) }); err != nil {
			return p, err
		}
	}
	p.references, err = readReferences(paths)
	return p, err
}

// bench is what the daemon works off, not recorded yet: by has the agents of each
// configuration.
func (r *room) bench(es []*hwfeedback.Evaluator, by []agents, p benchPlan, command []string) (*daemon.Bench, error) {
	names := make([]string, len(es))
	first := es[0].Device()
	for i, e := range es {
		names[i] = e.Device().String()
		if d := e.Device(); d.Class != first.Class {
			return nil, usage(fmt.Sprintf("a bench is of one kind of device, and %s is %s, %s %s", first, first.Name, d, d.Name), "name those of one kind with --device")
		}
	}
	b := &daemon.Bench{
		Store: r.store, Usable: func() error { return cmp.Or(r.store.Usable(), r.lock.Usable()) },
		Sources: p.references.sources, Invalid: p.references.invalid, Devices: make([][]*daemon.Runner, len(es)),
		Bench: kernelwright.Bench{
			References: p.references.all,
			Seeds:      p.seeds, Device: strings.Join(names, ", "), DeviceClass: first.Class,
			Baselines: r.config.Evaluation.Baselines, Precision: r.config.Evaluation.Precision,
			Command: command, Version: kernelwright.Version,
		},
	}
	for i, c := range p.configs {
		under := r.under(c)
		settings := under.strategy()
		for k, e := range es {
			w := under.runner(hwfeedback.Profiling{Evaluator: e, Profile: under.profile()}, by[i])
			w.RecordOnly = true
			b.Devices[k] = append(b.Devices[k], w)
		}
		b.Settings = append(b.Settings, settings)
		b.Bench.Configurations = append(b.Bench.Configurations, configuration(c, settings))
	}
	return b, nil
}

// benchLabels tells whose rounds follow, on each device.
func benchLabels(b kernelwright.Bench, shows []*progress) func(int, kernelwright.Member, bool) {
	names := report.ConfigurationNames(b.Configurations)
	return func(device int, m kernelwright.Member, resumed bool) {
		show := shows[device]
		label := b.References[m.Reference].Name
		if len(names) > 1 {
			label += " [" + names[m.Configuration] + "]"
		}
		if len(b.Seeds) > 1 {
			label += fmt.Sprintf(" [seed %d]", m.Seed)
		}
		show.begin(label)
		if resumed {
			show.say(report.Line(label) + ": going on where it was stopped")
		}
	}
}

// recordedBench finds the bench that the same command began, or records it.
func (r *room) recordedBench(ctx context.Context, b kernelwright.Bench, again bool) (_ kernelwright.Bench, begun bool, err error) {
	known, err := r.store.LatestBench(ctx, b.Key())
	anew := again && known.FinishedMS != 0 // one that was stopped goes on even then
	if errors.Is(err, store.ErrNotFound) || err == nil && anew {
		b, err = r.store.CreateBench(ctx, b)
		return b, false, err
	}
	return known, true, err
}

// axis is one flag of the matrix, and the setting that a value of it stands for.
type axis struct {
	flag, text string
	setting    func(value string) (key, text string)
}

// axes are the flags of the matrix.
func (c benchCmd) axes() []axis {
	always := func(key string) func(string) (string, string) {
		return func(value string) (string, string) { return key, value }
	}
	return []axis{
		{"--strategy", c.Strategy, always("rounds.strategy")},
		{"--coder", c.Coder, always("coder.name")},
		{"--judge", c.Judge, func(value string) (string, string) { return judgeKey(value), value }},
		{"--language", c.Language, always("rounds.language")},
		{"--rounds", c.Rounds, always("rounds.max")},
		{"--metrics", c.Metrics, always("rounds.metrics")},
		{"--lessons", c.Lessons, func(value string) (string, string) { return "judge.lessons", strconv.FormatBool(value == "on") }},
	}
}

// configurations is the settings of every combination, and of the exhaustive search
// where it is asked for. What a value may be, the settings know.
func (c benchCmd) configurations(a *app) ([]config.Config, error) {
	searches, err := c.searches()
	if err != nil {
		return nil, err
	}
	var all []map[string]string
	if !searches.alone {
		all = []map[string]string{{}}
	}
	for _, x := range c.axes() {
		if x.flag == "--strategy" {
			x.text = searches.others
		}
		if x.text == "" {
			continue
		}
		values, err := listed(x.flag, x.text, func(text string) (string, error) { return text, nil })
		if err != nil {
			return nil, err
		}
		if i := slices.IndexFunc(values, func(v string) bool { return v != "on" && v != "off" }); x.flag == "--lessons" && i >= 0 {
			return nil, usage(fmt.Sprintf("--lessons is %q", values[i]), "it takes on, off, or both: on,off")
		}
		var next []map[string]string
		for _, flags := range all {
			for _, value := range values {
				key, text := x.setting(value)
				a.flagNames[key] = x.flag
				more := map[string]string{key: text}
				for k, v := range flags {
					more[k] = v
				}
				next = append(next, more)
			}
		}
		all = next
	}
	configs := make([]config.Config, len(all))
	for i, flags := range all {
		if configs[i], err = a.configured(flags); err != nil {
			return nil, err
		}
		if configs[i].Rounds.Judge == string(forge.JudgeNone) && flags["judge.name"] != "" {
			return nil, usage("--judge names a Judge, and rounds.judge is none in the settings", `set rounds.judge to "both", or leave it out`)
		}
	}
	if searches.wanted {
		conf, err := a.configured(exhaustiveFlags())
		if err != nil {
			return nil, err
		}
		configs = append(configs, c.exhaustive(conf))
	}
	return configs, nil
}

// configured is the settings under flags of a configuration and those of the command.
func (a *app) configured(flags map[string]string) (config.Config, error) {
	for key, value := range a.flags {
		flags[key] = value
	}
	conf, _, err := config.Read(config.Source{File: config.FindFile(a.file, a.getenv), Env: a.env, Flags: flags, FlagNames: a.flagNames})
	return conf, err
}

// judgeKey tells what the Judge may say from who it is.
func judgeKey(value string) string {
	if (forge.Settings{JudgeMode: forge.JudgeMode(value)}).Validate() == nil {
		return "rounds.judge"
	}
	return "judge.name"
}

// configuration is what a bench records of settings.
func configuration(c config.Config, s forge.Settings) kernelwright.Configuration {
	judge := string(s.JudgeMode)
	switch s.JudgeMode {
	case forge.JudgeBoth, forge.JudgeCorrection, forge.JudgeOptimisation:
		judge = c.Judge.Name
	case forge.JudgeNone: // as any other mode that asks no Judge
	}
	metrics := ""
	if s.Metrics == forge.FullMetrics {
		metrics = string(s.Metrics)
	}
	return kernelwright.Configuration{
		Strategy: c.Rounds.Strategy,
		Coder:    c.Coder.Name,
		Judge:    judge,
		Mode:     string(s.JudgeMode),
		Language: kernelwright.Language(c.Rounds.Language),
		Rounds:   s.Rounds,
		Lessons:  c.Judge.Lessons && s.JudgeMode.Lessons(),
		Metrics:  metrics,
		Settings: s.String(),
	}
}

// listed reads a list of values, each of which is named once.
func listed[T comparable](flag, text string, parse func(string) (T, error)) ([]T, error) {
	var values []T
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		v, err := parse(part)
		switch {
		case part == "":
			return nil, usage(fmt.Sprintf("%s: %q has an empty value", flag, text), "separate values by single commas")
		case err != nil:
			return nil, usage(fmt.Sprintf("%s: %q is not a whole number", flag, part), "it takes whole numbers, separated by commas")
		case slices.Contains(values, v):
			return nil, usage(fmt.Sprintf("%s names %s twice", flag, part), "name each value once")
		}
		values = append(values, v)
	}
	return values, nil
}

// tellBench prints a bench, and writes its files where they are asked for. The
// failure is what ended it. What it came to is kept for its page, where it has just ended.
func (r *room) tellBench(a *app, id int64, out string, failed error, keeps bool) error {
	b, err := r.loadBench(a.ctx, id)
	if err != nil {
		return errors.Join(failed, err)
	}
	f := report.Figures(b)
	if keeps {
		failed = errors.Join(failed, report.KeepBench(context.WithoutCancel(a.ctx), r.store, kernelwright.Version, b, f))
	}
	var written []string
	if out != "" {
		var err error
		written, err = r.writeBench(a.ctx, &b, out)
		failed = errors.Join(failed, err)
	}
	if a.json {
		// One object, whatever happened: the error is part of it.
		object := map[string]any{"bench": b, "figures": f, "written": append([]string{}, written...)}
		return a.printLast(object, failed)
	}
	var text strings.Builder
	if err := report.BenchTable(&text, b, f); err != nil {
		return err
	}
	if len(written) > 0 {
		text.WriteByte('\n')
	}
	for _, path := range written {
		fmt.Fprintf(&text, "written: %s\n", report.Line(short(path)))
	}
	return cmp.Or(a.printf("%s", text.String()), failed)
}

// showBench prints a recorded bench.
func (a *app) showBench(id int64, out string) (err error) {
	r, err := a.openRecord()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	return r.tellBench(a, id, out, nil, false)
}

// loadBench gathers what a report shows of a bench. The runs are read one at a
// time, and only what the report needs of them is kept.
func (r *room) loadBench(ctx context.Context, id int64) (b report.Bench, err error) {
	ctx = context.WithoutCancel(ctx) // an interrupted bench is told of as well
	b.Bench, err = r.store.Bench(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		return b, notFound(fmt.Sprintf("there is no bench %d", id), "`kernelwright history bench` lists them")
	}
	if err != nil {
		return b, err
	}
	members, err := r.store.Members(ctx, id)
	if err != nil {
		return b, err
	}
	b.Runs = []report.BenchRun{}
	devices, of := map[string]bool{}, map[int]string{}
	for _, m := range members {
		d, err := daemon.Load(ctx, r.store, m.RunID)
		if err != nil {
			return b, err
		}
		spend, err := r.spend(ctx, m.RunID)
		if err != nil {
			return b, err
		}
		if d.Device.Key != "" {
			b.Machine = d.Device
			key, reference := d.Device.Key, m.Reference
			devices[key] = true
			b.Machines = len(devices)
			b.Mixed = b.Mixed || of[reference] != "" && of[reference] != key
			of[reference] = key
		}
		if _, v, found := report.Best(d.Rounds); found && len(v.Versions) > 0 {
			b.Versions = v.Versions
		}
		lessons, err := r.store.RunLessons(ctx, m.RunID)
		if err != nil {
			return b, err
		}
		run := report.ReduceRun(d, m, spend)
		if run.Space, err = r.searched(ctx, d); err != nil {
			return b, err
		}
		run.Lessons = len(lessons)
		b.Runs = append(b.Runs, run)
	}
	return b, nil
}
