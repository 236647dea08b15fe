// Command history_million makes a history of a million rounds, through the
// store's own methods, and says how long the commands that people wait for take
// in it. Every round is a real one (run.json, the softmax example on this
// project's machine) with its numbers drawn anew, so that no two share a text.
// Popular tasks have thousands of runs, most have a few. It prints Markdown.
//
//	go run ./bench/history_million -data-dir /tmp/million
//
// A data folder that holds a history already is only measured.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"

	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/kernelwright/kernelwright"

	"github.com/kernelwright/kernelwright/daemon"
	"github.com/kernelwright/kernelwright/store"
)

type settings struct {
	dir                   string
	bin                   string
	rounds, perRun, tasks int
	calls, commands       int
	seed                  uint64
}

func main() {
	var s settings
	flag.StringVar(&s.dir, "data-dir", "", "data folder to make or to measure; give a new one, never your own")
	flag.StringVar(&s.bin, "bin", "bin/kernelwright", "the program whose commands are measured; empty: none")
	flag.IntVar(&s.rounds, "rounds", 1_000_000, "rounds to record")
	flag.IntVar(&s.perRun, "per-run", 10, "rounds of each run")
	flag.IntVar(&s.tasks, "tasks", 20_000, "tasks that the runs are spread over")
	flag.IntVar(&s.calls, "calls", 500, "calls of each kind within this process")
	flag.IntVar(&s.commands, "commands", 50, "whole commands of each kind")
	flag.Uint64Var(&s.seed, "seed", 1, "of what is drawn")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, s)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "history_million:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, s settings) (err error) {
	if s.dir == "" {
		return errors.New("name a data folder with -data-dir")
	}
	path := filepath.Join(s.dir, store.FileName)
	db, err := store.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := fill(ctx, db, s); err != nil {
		return err
	}
	return measure(ctx, db, s)
}

// measure times random questions, of the open store and as whole commands.
func measure(ctx context.Context, db *store.Store, s settings) error {
	newest, err := db.Runs(ctx, store.RunFilter{Limit: 1})
	if err != nil || len(newest) == 0 {
		return errors.Join(err, errors.New("there is nothing to measure"))
	}
	info, err := os.Stat(db.Path())
	if err != nil {
		return err
	}
	fmt.Printf("%d runs, a file of %.2f GB\n\n", newest[0].ID, float64(info.Size())/1e9)
	rng := rand.New(rand.NewPCG(s.seed, 2))
	anyRun := func() int64 { return 1 + rng.Int64N(newest[0].ID) }
	// A task is asked for as often as it was worked on: popular ones count more.
	task := func() (kernelwright.Run, error) { return db.Run(ctx, anyRun()) }

	fmt.Println("| question | calls | p50 | p99 | command | p50 | p99 |")
	fmt.Println("|---|---:|---:|---:|---:|---:|---:|")
	for _, q := range []struct {
		name string
		args func() ([]string, error)
	}{
		{"ls", func() ([]string, error) { return []string{"ls"}, nil }},
		{"ls --before", func() ([]string, error) { return []string{"ls", "--before", strconv.FormatInt(anyRun(), 10)}, nil }},
		{"ls --status", func() ([]string, error) {
			return []string{"ls", "--status", []string{"done", "failed", "running"}[rng.IntN(3)]}, nil
		}},
		{"ls --task", func() ([]string, error) { r, err := task(); return []string{"ls", "--task", r.TaskName}, err }},
		{"best NAME", func() ([]string, error) { r, err := task(); return []string{"best", r.TaskName}, err }},
		{"best FILE", func() ([]string, error) { r, err := task(); return []string{"best", r.Path}, err }},
		{"search", func() ([]string, error) {
			return []string{"search", []string{"softmax", "bits", "unroll", "elements"}[rng.IntN(4)]}, nil
		}},
		{"lessons", func() ([]string, error) { return []string{"lessons"}, nil }},
		{"lessons --operators", func() ([]string, error) { return []string{"lessons", "--operators", "softmax"}, nil }},
		{"lessons --bottleneck", func() ([]string, error) {
			return []string{"lessons", "--bottleneck", []string{"memory_ceiling", "local_search", "idle_cores"}[rng.IntN(3)]}, nil
		}},
		{"show", func() ([]string, error) { return []string{"show", strconv.FormatInt(anyRun(), 10)}, nil }},
	} {
		line := "| `" + q.name + "` |"
		for _, way := range []struct {
			n  int
			do func([]string) error
		}{
			{s.calls, func(args []string) error { return within(ctx, db, args) }},
			{s.commands, func(args []string) error {
				return exec.CommandContext(ctx, s.bin, append([]string{"history", "--data-dir", s.dir}, args...)...).Run()
			}},
		} {
			if way.n == 0 || s.bin == "" {
				line += " – | – | – |"
				continue
			}
			took := make([]time.Duration, way.n)
			for i := range took {
				args, err := q.args()
				if err != nil {
					return err
				}
				start := time.Now()
				if err := way.do(args); err != nil {
					return fmt.Errorf("history %v: %w", args, err)
				}
				took[i] = time.Since(start)
			}
			slices.Sort(took)
			line += fmt.Sprintf(" %d | %s | %s |", way.n, quantile(took, 0.5), quantile(took, 0.99))
		}
		fmt.Println(line)
	}
	if err := record(ctx, db, s, newest[0].ID); err != nil {
		return err
	}
	return requests(ctx, db, s, newest[0].ID)
}

// within asks the open store what a command asks it.
func within(ctx context.Context, db *store.Store, args []string) error {
	value := args[len(args)-1]
	switch args[0] {
	case "show":
		id, err := strconv.ParseInt(value, 10, 64)
		if err == nil {
			_, err = daemon.Load(ctx, db, id)
		}
		return err
	case "best":
		f := store.RunFilter{Name: value}
		if filepath.IsAbs(value) {
			f = store.RunFilter{Path: value}
		}
		worked, err := db.Worked(ctx, f)
		if err != nil {
			return err
		}
		for _, w := range worked {
			if _, err := db.Best(ctx, w.Task, w.Reference, w.DeviceKey); err != nil && !errors.Is(err, store.ErrNotFound) {
				return err
			}
			if _, err := db.Run(ctx, w.RunID); err != nil {
				return err
			}
		}
		return nil
	case "lessons":
		f := store.LessonFilter{}
		if len(args) > 1 && args[1] == "--operators" {
			f.Holding = []string{"aten." + value}
		} else if len(args) > 1 {
			f.Bottleneck = value
		}
		_, err := db.Lessons(ctx, f)
		return err
	case "search":
		_, err := db.Search(ctx, value, 0)
		return err
	}
	var f store.RunFilter
	if len(args) == 3 {
		switch args[1] {
		case "--before":
			id, err := strconv.ParseInt(value, 10, 64)
			if err != nil {
				return err
			}
			f.Before = id
		case "--status":
			f.Status = kernelwright.RunStatus(value)
		case "--task":
			f.Name = value
		}
	}
	_, err := db.Runs(ctx, f)
	return err
}

// record times the next rounds in so large a history: what a run pays.
func record(ctx context.Context, db *store.Store, s settings, last int64) error {
	o, all, err := patterns()
	if err != nil {
		return err
	}
	tasks, err := saveTasks(ctx, db, s, o)
	if err != nil {
		return err
	}
	var took []time.Duration
	for id := last + 1; len(took) < s.calls; id++ {
		d, err := draw(s, o, all, tasks, id)
		if err != nil {
			return err
		}
		run, err := db.CreateRun(ctx, d.run)
		if err != nil {
			return err
		}
		for _, r := range d.rounds {
			r.RunID, r.Certificate = run.ID, nil
			start := time.Now()
			if err := db.AppendRound(ctx, r); err != nil {
				return err
			}
			took = append(took, time.Since(start))
		}
	}
	slices.Sort(took)
	fmt.Printf("| recording a round | %d | %s | %s | – | – | – |\n", len(took), quantile(took, 0.5), quantile(took, 0.99))
	return nil
}

func quantile(sorted []time.Duration, q float64) string {
	d := sorted[int(q*float64(len(sorted)-1)+0.5)]
	return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
}
