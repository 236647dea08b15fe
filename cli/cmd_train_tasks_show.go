package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/trainer/tasks"
)

// withoutCancel is for what is read after a signal, to say what was kept.
func withoutCancel(a *app) context.Context { return context.WithoutCancel(a.ctx) }

type trainTasksLsCmd struct {
	Set string `arg:"" optional:"" help:"Only the tasks of this set."`
}

// Run lists sets or tasks.
func (c trainTasksLsCmd) Run(a *app) (err error) {
	r, err := a.openRecord()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if c.Set != "" {
		return lsTasks(a, r, c.Set)
	}
	sets, err := r.store.TaskSets(a.ctx)
	if err != nil {
		return err
	}
	all := []summary{}
	for _, set := range sets {
		s, err := r.summaryOf(a, set)
		if err != nil {
			return err
		}
		all = append(all, s)
	}
	if a.json {
		return a.printJSON(map[string]any{"sets": all})
	}
	if len(all) == 0 {
		return a.printf("there are no sets of tasks: `kernelwright train tasks make` makes one\n")
	}
	rows := [][]string{{"set", "train", "val", "compositions", "kinds", "drawn", "room", "finished", "folder"}}
	for _, s := range all {
		row := []string{s.Name}
		for _, split := range store.Splits {
			row = append(row, fmt.Sprint(s.Splits[string(split)]))
		}
		rows = append(rows, append(row, fmt.Sprint(s.Drawn), fmt.Sprintf("%.0f %%", 100*s.Room), map[bool]string{true: "yes", false: "no"}[s.Finished], short(s.Folder)))
	}
	return ignoreClosed(report.Columns(a.stdout, rows, map[int]bool{0: true, 7: true, 8: true}))
}

func (r *room) summaryOf(a *app, set store.TaskSet) (summary, error) {
	all, err := r.tasksOf(a, set)
	if err != nil {
		return summary{}, err
	}
	reasons, err := r.store.TaskReasons(a.ctx, set.ID)
	if err != nil {
		return summary{}, err
	}
	return summarise(r, set, all, reasons)
}

func lsTasks(a *app, r *room, name string) error {
	set, err := r.taskSet(a, name)
	if err != nil {
		return err
	}
	all, err := r.tasksOf(a, set)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(map[string]any{"tasks": append([]tasks.Task{}, all...)})
	}
	rows := [][]string{{"task", "split", "level", "eager", "compile", "floor", "bound", "room", "operators"}}
	for _, t := range all {
		room := "–"
		if t.Room > 0 {
			room = fmt.Sprintf("%.2f", t.Room)
		}
		rows = append(rows, []string{
			fmt.Sprintf("%s/%d", name, t.Index), string(t.Split), fmt.Sprint(t.Level), report.Milliseconds(t.EagerMS), report.Milliseconds(t.CompileMS),
			report.Milliseconds(t.FloorMS), cmp.Or(t.Bound, "–"), room, report.Line(strings.Join(t.Kinds, ", ")),
		})
	}
	return ignoreClosed(report.Columns(a.stdout, rows, map[int]bool{0: true, 1: true, 6: true, 8: true}))
}

type trainTasksShowCmd struct {
	What string `arg:"" optional:"" default:"default" help:"A set, or a task of one: default/17."`
}

// Run shows a set or a task.
func (c trainTasksShowCmd) Run(a *app) (err error) {
	r, err := a.openRecord()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	name, number, one := strings.Cut(c.What, "/")
	set, err := r.taskSet(a, name)
	if err != nil {
		return err
	}
	if !one {
		return showSet(a, r, set)
	}
	index, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return usage(fmt.Sprintf("%q names no task: %q is no number", c.What, number), "name it as `train tasks ls SET` does: SET/NUMBER")
	}
	all, err := r.tasksOf(a, set)
	if err != nil {
		return err
	}
	for _, t := range all {
		if t.Index == index {
			return showTask(a, r, name, t)
		}
	}
	return notFound(fmt.Sprintf("the set %s has no task %d", name, index), "`kernelwright train tasks ls "+name+"` lists them")
}

// floorOf says how far the fastest baseline is from the floor.
func floorOf(t tasks.Task) string {
	if t.FloorMS <= 0 {
		return "–"
	}
	return fmt.Sprintf("%s (%s); the fastest baseline takes %.2f times as long", report.Milliseconds(t.FloorMS), t.Bound, t.Room)
}

func showTask(a *app, r *room, set string, t tasks.Task) error {
	gate, err := r.store.GateOf(a.ctx, t.Fingerprint)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(map[string]any{"task": t, "source": t.Source, "gate": gate})
	}
	rows := [][]string{
		{"task", fmt.Sprintf("%s/%d", set, t.Index)}, {"file", short(filepath.Join(tasks.Folder(r.folder, set), t.File))}, {"split", string(t.Split)},
		{"level", fmt.Sprint(t.Level)}, {"operators", report.Line(strings.Join(t.Operators, ", "))}, {"primitives", report.Line(strings.Join(t.Primitives, ", "))},
		{"eager", report.Milliseconds(t.EagerMS)}, {"compile", report.Milliseconds(t.CompileMS)}, {"floor", floorOf(t)},
		{"nearest", fmt.Sprintf("%.2f", t.Similarity)}, {"fingerprint", t.Fingerprint},
	}
	if len(t.Unseen) > 0 {
		rows = append(rows, []string{"unseen in training", report.Line(strings.Join(t.Unseen, ", "))})
	}
	if gate != "" {
		rows = append(rows, []string{"served the gate", report.Line(gate)})
	}
	if err := report.Columns(a.stdout, rows, map[int]bool{0: true, 1: true}); err != nil {
		return ignoreClosed(err)
	}
	return a.printf("\n%s", report.Clean(t.Source))
}
