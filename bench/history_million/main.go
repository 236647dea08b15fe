// Command history_million makes a history of a million rounds, and says how long people
// wait for what they ask of it: every route of the HTTP API, every page, and the commands.
// Every round is a real one (run.json, the softmax example on this project's machine) with
// its numbers drawn anew, so that no two share a text; runs differ in device, language,
// model, operators, speedup and end. Popular tasks have thousands of runs, most have a few.
// It prints one table, in Markdown.
//
//	go build -o bin/ ./cmd/kernelwright && go run ./bench/history_million -data-dir /tmp/million
//
// A data folder that holds a history already is only measured. Only the routes and pages
// whose names hold the text of -only are, where that is given.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/kernelwright/kernelwright/store"
)

type settings struct {
	dir                   string
	bin                   string
	rounds, perRun, tasks int
	warm, cold            int
	only, ask, profile    string
	seed                  uint64
}

func main() {
	var s settings
	flag.StringVar(&s.dir, "data-dir", "", "data folder to make or to measure; give a new one, never your own")
	flag.StringVar(&s.bin, "bin", "bin/kernelwright", "the program whose commands are measured; empty: none")
	flag.IntVar(&s.rounds, "rounds", 1_000_000, "rounds to record")
	flag.IntVar(&s.perRun, "per-run", 10, "rounds of each run")
	flag.IntVar(&s.tasks, "tasks", 20_000, "tasks that the runs are spread over")
	flag.IntVar(&s.warm, "warm", 200, "times that each thing is asked in one process; 0: the history is only made")
	flag.IntVar(&s.cold, "cold", 40, "times that each thing is asked in a new process, with the file dropped from memory")
	flag.StringVar(&s.only, "only", "", "measure only what has this in its name")
	flag.StringVar(&s.ask, "ask", "", "ask for this path once, cold, and print how long that took: history_million starts itself so")
	flag.StringVar(&s.profile, "profile", "", "write here where the processor's time goes while it answers warm, for go tool pprof")
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
	if s.ask != "" {
		return askOnce(ctx, path, s.ask)
	}
	began := time.Now()
	db, err := store.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if took := time.Since(began); took > time.Second {
		fmt.Printf("opened in %v\n", took.Round(time.Second))
	}
	// What fills it takes memory of its own, which is not that of who answers.
	if there, err := filled(ctx, db, s); err != nil || !there {
		if err == nil {
			err = errors.Join(fill(ctx, db, s), fillOthers(ctx, db, s))
		}
		if err != nil {
			return err
		}
	}
	if s.warm == 0 {
		return nil
	}
	return measure(ctx, db, s)
}
