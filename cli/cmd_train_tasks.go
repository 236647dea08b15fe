package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/config"
	"github.com/kernelwright/kernelwright/hwfeedback"
	"github.com/kernelwright/kernelwright/prompts"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/trainer/tasks"
)

type trainTasksCmd struct {
	Make   trainTasksMakeCmd   `cmd:"" help:"Compose tasks and keep those that are worth training on."`
	Ls     trainTasksLsCmd     `cmd:"" help:"List the sets, or the tasks of one."`
	Show   trainTasksShowCmd   `cmd:"" help:"Show what a set holds and what was left out, or one task."`
	Import trainTasksImportCmd `cmd:"" help:"Bring references to a set: files, folders, JSON lines or Parquet."`
	Export trainTasksExportCmd `cmd:"" help:"Write a set to a folder, or to a file of JSON lines or Parquet."`
}

// The sizes of a set where nobody says.
const (
	defaultTrain   = 256
	defaultVal     = 32
	defaultHeldOut = 32 // of compositions, and as many of kinds
	smallTrain     = 48
	smallVal       = 8
	smallHeldOut   = 16
	heldKinds      = 0.12
	// The window of small proofs, in milliseconds.
	smallLow, smallHigh = 0.05, 1
)

type trainTasksMakeCmd struct {
	Set          string `help:"The set's name." default:"default" placeholder:"NAME"`
	Train        int    `help:"Tasks to train on (256)." placeholder:"N"`
	Taught       int    `help:"Tasks to learn the built-in Coder's candidates of; nothing is timed on them (0)." placeholder:"N"`
	Val          int    `help:"Tasks to watch training with (32)." placeholder:"N"`
	Compositions int    `help:"Held-out tasks whose compositions are never trained on (32)." placeholder:"N"`
	Kinds        int    `help:"Held-out tasks of operator kinds that are never trained on (32)." placeholder:"N"`
	Seed         int64  `help:"Same seed, same PyTorch, same ceilings, same held-out kinds: same draws (1)." placeholder:"N"`
	Small        bool   `help:"For small proofs: eager from 0.05 to 1 ms, 48 tasks to train on, 8 and 16 and 16 others."`
	Workers      int    `help:"Processes that compose (half the cores)." placeholder:"N"`
	deviceFlags
}

// Help is shown below the flags.
func (trainTasksMakeCmd) Help() string {
	return "Operators of the installed PyTorch are put in sequence, one to five. A task is kept if it runs in eager and under torch.compile, is the same every time, depends on its input, takes eager as long as training.eager_min and training.eager_max say, and is like no protected file (training.protected), no held-out and no kept task. At least half of the training tasks leave room between the fastest baseline and the roofline. Every decision is recorded: the same command goes on where it was stopped."
}

// Run makes the set.
func (c trainTasksMakeCmd) Run(a *app) (err error) {
	if err := checkSetName(c.Set); err != nil {
		return err
	}
	r, err := a.open(true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	writer, err := r.taskWriter()
	if err != nil {
		return err
	}
	show := newProgress(a.stderr)
	defer show.done()
	maker, es, err := r.taskMaker(a, show)
	if err != nil {
		return interruption(a.ctx, err)
	}
	defer func() { err = errors.Join(err, closeAll(es)) }()
	show.begin("the operators of PyTorch")
	catalogue, err := tasks.Crawl(a.ctx, r.folder, es[0].Interpreter(), es[0].Device().Key, func(n, of int) { show.stage("tried", fmt.Sprintf("%d of %d", n, of)) })
	if err != nil {
		return interruption(a.ctx, err)
	}
	wished, err := c.settings(a, r, es[0], catalogue)
	if err != nil {
		return interruption(a.ctx, err)
	}
	set, settings, err := c.begin(a, r, wished)
	if err != nil {
		return err
	}
	maker.Catalogue, maker.Writer, maker.Workers = catalogue, writer, cmp.Or(c.Workers, max(1, runtime.NumCPU()/2))
	show.begin(c.Set)
	made := maker.Make(a.ctx, set, settings)
	show.done()
	if err := r.writeSet(a, set); err != nil {
		return errors.Join(made, err)
	}
	var barren *tasks.BarrenError
	if errors.As(made, &barren) {
		return &Error{Code: ExitFailure, Err: made, Hint: "widen training.eager_min and training.eager_max, or ask for fewer tasks of that split; what was kept stays"}
	}
	if made != nil {
		return interruption(a.ctx, made)
	}
	return showSet(a, r, set)
}

// sayTasks tells of a draw.
func sayTasks(show *progress, p tasks.Progress) {
	if p.Task != "" {
		fmt.Fprintf(lines{show}, "%s  %s\n", keptOf(p), report.Line(p.Task))
		return
	}
	show.stage("drawn", fmt.Sprintf("%d, kept %s", p.Drawn, keptOf(p)))
}

func keptOf(p tasks.Progress) string {
	kept, wanted := 0, 0
	for _, split := range store.Splits {
		kept, wanted = kept+p.Kept[split], wanted+p.Wanted[split]
	}
	return fmt.Sprintf("%d/%d", kept, wanted)
}

func checkSetName(name string) error {
	if !baselineName.MatchString(name) {
		return usage(fmt.Sprintf("a set of tasks cannot be named %q", name), "a name has small letters, digits, - _ and . and up to 32 of them")
	}
	return nil
}

// protected reads training.protected.
func (r *room) protected() ([]tasks.Protected, error) {
	if len(r.config.Training.Protected) == 0 {
		r.log.Warn("no file is protected: tasks may be like those of a benchmark", "hint", "name its folders in training.protected")
	}
	all, err := tasks.ReadProtected(r.config.Training.Protected)
	if err != nil {
		return nil, usage(err.Error(), "name files and folders of references in training.protected")
	}
	return all, nil
}

// taskMaker opens the devices that tasks are measured on, and returns what decides on
// tasks there. Eager is evaluated as a candidate, so no code of its own is asked for, and it
// is timed as a baseline alone.
func (r *room) taskMaker(a *app, show *progress) (tasks.Maker, []*hwfeedback.Evaluator, error) {
	protected, err := r.protected()
	if err != nil {
		return tasks.Maker{}, nil, err
	}
	o := r.options(show.stage)
	o.CustomCode, o.Baselines, o.StrictInputs = "any", []string{"eager", "compile"}, false
	o.KeepWarm = r.config.Evaluation.KeepWarm.Std()
	o.AtOnce = max(o.AtOnce, min(mostAdmitted, runtime.GOMAXPROCS(0)))
	es, err := r.evaluators(a.ctx, o)
	if err != nil {
		return tasks.Maker{}, nil, err
	}
	maker := tasks.Maker{
		Record: r.store, DataDir: r.folder, Interpreter: es[0].Interpreter(), Protected: protected, Log: r.log,
		Progress: func(p tasks.Progress) { sayTasks(show, p) },
	}
	for _, e := range es {
		var h hardware = hwfeedback.Untimed{Evaluator: e, Baselines: true}
		if o.Profile != "" && e.Device().Kind != kernelwright.CPUDevice {
			h = e // eager's profile comes with the times of a candidate
		}
		d := admitter{bounded{h, r.config.Evaluation.Timeout.Std(), r.config.Evaluation.InspectTimeout.Std()}}
		maker.Hardware = append(maker.Hardware, slices.Repeat([]tasks.Hardware{d}, o.AtOnce)...)
	}
	return maker, es, nil
}

// mostAdmitted is how many tasks are compiled and verified side by side on a device: each has a
// PyTorch of its own in memory. They are timed one after the other.
const mostAdmitted = 8

// admitter evaluates candidates of different tasks at once, each as a batch of its own.
type admitter struct{ bounded }

// Evaluate implements tasks.Hardware.
func (h admitter) Evaluate(ctx context.Context, t kernelwright.Task, c kernelwright.Candidate, l kernelwright.Level) (v kernelwright.Verdict, err error) {
	err = h.EvaluateBatch(ctx, t, []kernelwright.Candidate{c}, l, func(_ int, found kernelwright.Verdict) error {
		v = found
		return nil
	})
	return v, err
}

// writer names the language model that writes tasks, "" where none does.
func (r *room) writer() string {
	if name := r.config.Training.Composer; strings.Contains(name, ":") {
		return name
	}
	return ""
}

// taskWriter opens the language model that writes tasks, nil where none is named.
func (r *room) taskWriter() (*tasks.Writer, error) {
	name := r.writer()
	if name == "" {
		return nil, nil
	}
	templates, err := prompts.LoadTemplates(r.config.Prompts.Folder)
	if err != nil {
		return nil, &Error{Code: ExitUsage, Err: err, Hint: "mend that file, or leave prompts.folder empty: the program has prompts of its own"}
	}
	m, err := r.models.open(name)
	if err != nil {
		return nil, err
	}
	return &tasks.Writer{Model: m, Prompts: templates}, nil
}

// settings returns what is asked for.
func (c trainTasksMakeCmd) settings(a *app, r *room, e *hwfeedback.Evaluator, catalogue tasks.Catalogue) (tasks.Settings, error) {
	train, val, held := defaultTrain, defaultVal, defaultHeldOut
	low, high := milliseconds(r.config.Training.EagerMin), milliseconds(r.config.Training.EagerMax)
	if c.Small {
		train, val, held, low, high = smallTrain, smallVal, smallHeldOut, smallLow, smallHigh
	}
	ceilings := e.Device().Ceilings
	s := tasks.Settings{
		Seed:       c.Seed,
		LowMS:      low,
		HighMS:     high,
		Similarity: tasks.DefaultSimilarity,
		HeldKinds:  heldKinds,
		Room:       0.5,
		Shares:     tasks.PaperShares,
		DTypes:     map[string]float64{"float32": 1},
		Machine:    tasks.Machine{BytesS: ceilings.MemoryGBs * 1e9, OperationsS: ceilings.FP32GFLOPs * 1e9, CallMS: 0.005},
		Wanted: map[store.Split]int{
			store.TrainSplit: cmp.Or(c.Train, train), store.ValSplit: cmp.Or(c.Val, val), store.CompositionsSplit: cmp.Or(c.Compositions, held), store.KindsSplit: cmp.Or(c.Kinds, held), store.TaughtSplit: c.Taught,
		},
		Catalogue: catalogue.Version(),
		Writer:    r.writer(),
	}
	if catalogue.Modules > 0 {
		s.Modules = tasks.PaperModules
	}
	for split, n := range s.Wanted {
		if n < 0 {
			return s, usage(fmt.Sprintf("a set cannot have %d tasks in %s", n, split), "name a number from 1")
		}
	}
	if s.Seed == 0 {
		s.Seed = 1
	}
	if e.Device().Kind == kernelwright.CPUDevice {
		rates, err := catalogue.Rates(a.ctx, r.folder, e.Interpreter())
		if err != nil {
			return s, err
		}
		s.Machine.Rates, s.Machine.Threads = rates, max(1, ceilings.CPUThreads)
	}
	sets, err := r.store.TaskSets(a.ctx)
	if err != nil {
		return s, err
	}
	if s.Held, err = tasks.FirstHeld(sets); err == nil && len(s.Held) == 0 {
		s.Held, err = catalogue.HeldKinds(a.ctx, r.folder, e.Interpreter(), s.Seed, s.HeldKinds)
	}
	return s, err
}

func milliseconds(d config.Duration) float64 { return float64(d.Std()) / float64(time.Millisecond) }

// begin records the set, or returns the one that was begun. Its settings stay
// what they were: other ones are another set.
func (c trainTasksMakeCmd) begin(a *app, r *room, wished tasks.Settings) (store.TaskSet, tasks.Settings, error) {
	text, err := json.Marshal(wished)
	if err != nil {
		return store.TaskSet{}, wished, err
	}
	set, err := r.store.BeginTaskSet(a.ctx, c.Set, text)
	if err != nil {
		return set, wished, err
	}
	var begun tasks.Settings
	if err := json.Unmarshal(set.Settings, &begun); err != nil {
		return set, begun, fmt.Errorf("the settings of the set %s: %w", c.Set, err)
	}
	if other := begun.Differs(wished); other != "" {
		return set, begun, usage(fmt.Sprintf("the set %s was begun with another %s", c.Set, other), "give the same flags and settings to go on, or name another set with --set")
	}
	return set, begun, nil
}

// writeSet writes the files of a set.
func (r *room) writeSet(a *app, set store.TaskSet) error {
	all, err := r.tasksOf(a, set)
	if err != nil {
		return err
	}
	return tasks.WriteFolder(tasks.Folder(r.folder, set.Name), all)
}

func (r *room) tasksOf(a *app, set store.TaskSet) ([]tasks.Task, error) {
	draws, err := r.store.TaskDraws(withoutCancel(a), set.ID, true)
	if err != nil {
		return nil, err
	}
	return tasks.Decode(draws)
}

// taskSet returns a set by its name.
func (r *room) taskSet(a *app, name string) (store.TaskSet, error) {
	set, err := r.store.TaskSet(withoutCancel(a), name)
	if errors.Is(err, store.ErrNotFound) {
		return set, notFound("there is no set of tasks "+name, "`kernelwright train tasks ls` lists them, and `train tasks make` makes one")
	}
	return set, err
}

// summary is what is said of a set.
type summary struct {
	Name     string           `json:"name"`
	Folder   string           `json:"folder"`
	Finished bool             `json:"finished"`
	Drawn    int64            `json:"drawn"`
	Splits   map[string]int   `json:"splits"`
	Levels   map[string]int   `json:"levels"`
	Sizes    map[string]int   `json:"operators"` // number of operators to how many tasks
	Reasons  map[string]int64 `json:"left_out"`
	// Room is the share of the training tasks whose fastest baseline is over 1.05
	// times the floor.
	Room   float64        `json:"room"`
	Unseen int            `json:"unseen_primitives"` // held-out tasks of new kinds that hold one
	Bounds map[string]int `json:"bounds"`
	Held   []string       `json:"held_kinds"`
}

func summarise(r *room, set store.TaskSet, all []tasks.Task, reasons map[string]int64) (summary, error) {
	var settings tasks.Settings
	if err := json.Unmarshal(set.Settings, &settings); err != nil {
		return summary{}, err
	}
	s := summary{
		Name: set.Name, Folder: tasks.Folder(r.folder, set.Name), Finished: set.FinishedMS > 0, Splits: map[string]int{}, Levels: map[string]int{},
		Sizes: map[string]int{}, Bounds: map[string]int{}, Reasons: map[string]int64{}, Held: settings.Held,
	}
	for reason, n := range reasons {
		s.Drawn += n
		if reason != "" {
			s.Reasons[reason] = n
		}
	}
	roomy, trained := 0, 0
	for _, t := range all {
		s.Splits[string(t.Split)]++
		s.Levels[fmt.Sprint(t.Level)]++
		s.Sizes[fmt.Sprint(len(t.Operators))]++
		if t.Bound != "" {
			s.Bounds[t.Bound]++
		}
		if t.Split == store.TrainSplit {
			trained++
			if t.HasRoom() {
				roomy++
			}
		}
		if t.Split == store.KindsSplit && len(t.Unseen) > 0 {
			s.Unseen++
		}
	}
	s.Room = float64(roomy) / math.Max(1, float64(trained))
	return s, nil
}

// showSet says what a set holds.
func showSet(a *app, r *room, set store.TaskSet) error {
	set, err := r.taskSet(a, set.Name)
	if err != nil {
		return err
	}
	all, err := r.tasksOf(a, set)
	if err != nil {
		return err
	}
	reasons, err := r.store.TaskReasons(a.ctx, set.ID)
	if err != nil {
		return err
	}
	s, err := summarise(r, set, all, reasons)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(s)
	}
	return s.print(a)
}

func (s summary) print(a *app) error {
	state := "has all its tasks"
	if !s.Finished {
		state = "more is to be drawn"
	}
	if err := a.printf("%s  %s: %d drawn, %s\n", s.Name, short(s.Folder), s.Drawn, state); err != nil {
		return err
	}
	rows := [][]string{{"", "tasks"}}
	for _, split := range store.Splits {
		rows = append(rows, []string{string(split), fmt.Sprint(s.Splits[string(split)])})
	}
	for _, group := range []struct {
		name   string
		counts map[string]int
	}{{"operators", s.Sizes}, {"level", s.Levels}, {"bound by", s.Bounds}} {
		for _, name := range sorted(group.counts) {
			rows = append(rows, []string{group.name + " " + name, fmt.Sprint(group.counts[name])})
		}
	}
	rows = append(rows, []string{"training tasks with room", fmt.Sprintf("%.0f %%", 100*s.Room)}, []string{"new kinds with an unseen primitive", fmt.Sprint(s.Unseen)})
	if err := report.Columns(a.stdout, rows, map[int]bool{0: true}); err != nil {
		return ignoreClosed(err)
	}
	if len(s.Reasons) == 0 {
		return nil
	}
	rows = [][]string{{"left out", "draws"}}
	names := make([]string, 0, len(s.Reasons))
	for reason := range s.Reasons {
		names = append(names, reason)
	}
	slices.SortFunc(names, func(x, y string) int {
		if d := s.Reasons[y] - s.Reasons[x]; d != 0 {
			return int(d)
		}
		return strings.Compare(x, y)
	})
	for _, reason := range names {
		rows = append(rows, []string{report.Line(reason), fmt.Sprint(s.Reasons[reason])})
	}
	if err := a.printf("\n"); err != nil {
		return err
	}
	return ignoreClosed(report.Columns(a.stdout, rows, map[int]bool{0: true}))
}

func sorted(counts map[string]int) []string {
	names := make([]string, 0, len(counts))
	for name := range counts {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
