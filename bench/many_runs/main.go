// Command many_runs takes many whole runs forward at once, each with a language
// model as Coder and Judge, against a server that answers slowly and now and then
// says that there are too many requests. It says what that takes of the program:
// memory, goroutines, time beyond the server's; and it fails where a reply was
// lost, or recorded twice. Agents, loop, llm and store are the real ones; verdicts
// are made up, and the server is a process of its own. It prints Markdown.
//
//	go run ./bench/many_runs
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"
)

type settings struct {
	runs, rounds int
	wait         time.Duration // before each reply
	busy         int           // of so many requests one is refused; 0: none
	dir          string
}

func main() {
	var s settings
	serving := flag.Bool("serve", false, "be the server; many_runs starts it itself")
	flag.IntVar(&s.runs, "runs", 64, "runs at once")
	flag.IntVar(&s.rounds, "rounds", 5, "rounds of each")
	flag.DurationVar(&s.wait, "wait", 2*time.Second, "how long the server takes to answer")
	flag.IntVar(&s.busy, "busy", 20, "of so many requests the server refuses one; 0: none")
	flag.StringVar(&s.dir, "data-dir", "", "a new folder for the record; empty: one that is removed at the end")
	flag.Parse()
	if *serving {
		serve(s.wait, s.busy)
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := measured(ctx, s)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "many_runs:", err)
		os.Exit(1)
	}
}

func measured(ctx context.Context, s settings) (err error) {
	if s.dir == "" {
		if s.dir, err = os.MkdirTemp("", "many-runs-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(s.dir)) }()
	} else if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	server, err := startServer(ctx, s)
	if err != nil {
		return err
	}
	defer func() { _, _ = server.stop() }()
	m, err := bring(ctx, s, server.url)
	if err != nil {
		return err
	}
	served, err := server.stop()
	if err != nil {
		return err
	}
	if err := m.check(s, served); err != nil {
		return err
	}
	fmt.Println("| runs at once | calls | refused | recorded | seconds | of them the server's | peak memory | before | goroutines |")
	fmt.Println("|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
	fmt.Printf("| %d | %d | %d | %d | %.1f | %.1f | %d MB | %d MB | %d |\n", s.runs, len(served.Replies), served.Refused, m.recorded,
		m.took.Seconds(), (time.Duration(m.calls) * s.wait).Seconds(), m.peakKB>>10, m.beforeKB>>10, m.goroutines)
	return nil
}
