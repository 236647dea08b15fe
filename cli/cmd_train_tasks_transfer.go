package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/trainer/tasks"
)

type trainTasksImportCmd struct {
	Paths []string `arg:"" name:"path" help:"Reference files, folders of them, *.jsonl or *.parquet with a column code." type:"path" predictor:"file"`
	Set   string   `help:"The set they come to." default:"imported" placeholder:"NAME"`
	Split string   `help:"What they are for: train, taught, val, compositions or kinds; the last two are held out." default:"train" enum:"train,taught,val,compositions,kinds" placeholder:"SPLIT"`
	levelFlag
	deviceFlags
}

// Help is shown below the flags.
func (trainTasksImportCmd) Help() string {
	return "References pass the filters that composed ones pass, in the sandbox. Where one is like a task on the other side of the gate (held out here, trained on there), none is brought in."
}

// read returns the references at the paths.
func (c trainTasksImportCmd) read() (files []tasks.Protected, err error) {
	paths := c.Paths
	if c.Level != "" {
		if paths, err = c.ofLevels(c.Paths); err != nil {
			return nil, err
		}
	}
	for _, path := range paths {
		found, err := tasks.ReadAny(path)
		if err != nil {
			return nil, usage(err.Error(), "name reference files, folders of them, *.jsonl or *.parquet")
		}
		files = append(files, found...)
	}
	return files, nil
}

// Run brings references to a set.
func (c trainTasksImportCmd) Run(a *app) (err error) {
	if err := checkSetName(c.Set); err != nil {
		return err
	}
	files, err := c.read()
	if err != nil {
		return err
	}
	r, err := a.open(true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	show := newProgress(a.stderr)
	defer show.done()
	maker, es, err := r.taskMaker(a, show)
	if err != nil {
		return interruption(a.ctx, err)
	}
	defer func() { err = errors.Join(err, closeAll(es)) }()
	s := tasks.Settings{LowMS: milliseconds(r.config.Training.EagerMin), HighMS: milliseconds(r.config.Training.EagerMax), Similarity: tasks.DefaultSimilarity}
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	set, err := r.store.BeginTaskSet(a.ctx, c.Set, text)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(set.Settings, &s); err != nil {
		return err
	}
	show.begin(c.Set)
	brought := maker.Import(a.ctx, set, s, store.Split(c.Split), files)
	show.done()
	var overlaps *tasks.OverlapsError
	if errors.As(brought, &overlaps) {
		return &Error{Code: ExitUsage, Err: brought, Hint: "leave those references out, or bring them to the split that their likes are in; nothing was brought in"}
	}
	if err := r.writeSet(a, set); err != nil {
		return errors.Join(brought, err)
	}
	if brought != nil {
		return interruption(a.ctx, brought)
	}
	return showSet(a, r, set)
}

type trainTasksExportCmd struct {
	Set   string `arg:"" help:"The set."`
	Out   string `help:"A folder, or a file that ends in .jsonl or .parquet." required:"" type:"path" placeholder:"PATH" predictor:"file"`
	Split string `help:"Which tasks: train, taught, val, compositions or kinds; the last two are held out." default:"train" enum:"train,taught,val,compositions,kinds" placeholder:"SPLIT"`
}

// Help is shown below the flags.
func (trainTasksExportCmd) Help() string {
	return "A folder has a file a task and index.jsonl with all that is known of each. Files have CUDA-Agent-Ops-6K's columns, ops, data_source and code, and id (the fingerprint), level and split."
}

// Run writes a set.
func (c trainTasksExportCmd) Run(a *app) (err error) {
	r, err := a.openRecord()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	set, err := r.taskSet(a, c.Set)
	if err != nil {
		return err
	}
	all, err := r.tasksOf(a, set)
	if err != nil {
		return err
	}
	chosen := slices.DeleteFunc(all, func(t tasks.Task) bool { return string(t.Split) != c.Split })
	if len(chosen) == 0 {
		return notFound(fmt.Sprintf("the set %s has no task of the split %s", c.Set, c.Split), "`kernelwright train tasks show "+c.Set+"` says what it has; splits are train, val, compositions and kinds")
	}
	if err := tasks.Export(c.Out, chosen); err != nil {
		return &Error{Code: ExitFailure, Text: c.Out, Err: err, Hint: worldHint(err, "name a path that can be written with --out")}
	}
	if a.json {
		return a.printJSON(map[string]any{"path": a.shown(c.Out), "tasks": len(chosen)})
	}
	return a.printf("%d tasks are in %s\n", len(chosen), a.shown(c.Out))
}
