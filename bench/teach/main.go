// Command teach makes a corpus for the bootstrap of references, and says how many
// verdicts a minute that takes, and where the time goes. It prints Markdown. What was
// done before in the same folder is not done again.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/hwfeedback"
	"github.com/kernelwright/kernelwright/judge"
	"github.com/kernelwright/kernelwright/prompts"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/trainer/episodes"
	"github.com/kernelwright/kernelwright/trainer/tasks"
	"github.com/kernelwright/kernelwright/trainer/teach"
)

func main() {
	o := hwfeedback.Options{StrictInputs: true, Baselines: []string{"eager"}}
	flag.StringVar(&o.DataDir, "data-dir", ".kernelwright", "data folder: its Python environment, and where verdicts are kept")
	flag.StringVar(&o.Python, "python", os.Getenv("KERNELWRIGHT_PYTHON"), "interpreter with PyTorch; empty: the data folder's")
	flag.StringVar(&o.Device, "device", "cpu", "cpu, cuda or cuda:1")
	flag.IntVar(&o.Threads, "threads", 0, "threads of candidates; 0: one a core")
	beside := flag.Int("beside", 1, "so many tasks are verified side by side on the device")
	out := flag.String("out", "pairs.jsonl", "the corpus")
	s := teach.Settings{Request: episodes.Request{Rounds: 1}}
	flag.IntVar(&s.Each, "each", teach.DefaultEach, "right answers for each task")
	flag.Int64Var(&s.Seed, "seed", 1, "of the schedules")
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "teach [flags] REFERENCE...\n")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, o, s, *out, *beside, flag.Args())
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "teach:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o hwfeedback.Options, s teach.Settings, out string, beside int, paths []string) (err error) {
	if err := os.MkdirAll(o.DataDir, 0o700); err != nil {
		return err
	}
	cache, err := store.Open(filepath.Join(o.DataDir, store.FileName))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cache.Close()) }()
	templates, err := prompts.LoadTemplates("")
	if err != nil {
		return err
	}
	with := teach.Options{
		Episodes: episodes.Options{Judge: judge.Rules{}, Prompts: templates, Settings: forge.DefaultSettings()}, Out: out,
		Progress: func(p teach.Progress) { fmt.Fprintf(os.Stderr, "%d of %d tasks, %d pairs\n", p.Tasks, p.Of, p.Pairs) },
	}
	leases := hwfeedback.Shared(&hwfeedback.FileLeases{Dir: hwfeedback.LeaseFolder()})
	for range beside {
		e, err := hwfeedback.Open(ctx, o, cache, leases)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, e.Close()) }()
		with.Hardware = append(with.Hardware, hwfeedback.Untimed{Evaluator: e})
	}
	var all []tasks.Task
	for _, path := range paths {
		found, err := tasks.ReadAny(path)
		if err != nil {
			return err
		}
		for _, f := range found {
			all = append(all, tasks.Task{Source: f.Source, Fingerprint: kernelwright.HashText(f.Source), Split: store.TrainSplit})
		}
	}
	began := time.Now()
	counts, err := teach.Pairs(ctx, s, all, with)
	if err != nil {
		return err
	}
	took := time.Since(began)
	pairs, err := teach.Read(out)
	if err != nil {
		return err
	}
	tell(counts, pairs, took)
	return nil
}

// tell prints what came of it.
func tell(c teach.Counts, pairs []teach.Pair, took time.Duration) {
	prompt, answer := []int{0}, []int{0}
	for _, p := range pairs {
		n := 0
		for _, m := range p.Prompt {
			n += len(m.Content)
		}
		prompt, answer = append(prompt, n), append(answer, len(p.Answer))
	}
	slices.Sort(prompt)
	slices.Sort(answer)
	fmt.Printf("%d tasks, %d with pairs; %d pairs by %d verdicts (%d remembered) in %.0f s: %.0f verdicts a minute.\n", c.Tasks, c.Taught, c.Pairs, c.Verdicts, c.Cached, took.Seconds(), float64(c.Verdicts)/took.Minutes())
	fmt.Printf("Median characters: prompt %d, answer %d; the longest answer %d.\n\n", prompt[len(prompt)/2], answer[len(answer)/2], answer[len(answer)-1])
	fmt.Println("| part | seconds |\n|---|---:|")
	for _, part := range slices.Sorted(maps.Keys(c.Seconds)) {
		fmt.Printf("| %s | %.1f |\n", part, c.Seconds[part])
	}
	fmt.Println("\n| in no pair | times |\n|---|---:|")
	for _, why := range slices.Sorted(maps.Keys(c.Left)) {
		fmt.Printf("| %s | %d |\n", why, c.Left[why])
	}
}
