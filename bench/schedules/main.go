// Command schedules prints what each choice of the built-in Coder is worth: the
// first schedule of each reference, and each that differs from it by one knob,
// verified and timed as rounds are, at `quick`. That is what first schedules
// are chosen by. It prints Markdown. What was evaluated before comes from the
// data folder, so it may be stopped and goes on.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/coder"
	"github.com/kernelwright/kernelwright/hwfeedback"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/task"
)

func main() {
	o := hwfeedback.Options{Progress: func(stage, note string) { fmt.Fprintf(os.Stderr, "%s: %s\n", stage, note) }}
	flag.StringVar(&o.DataDir, "data-dir", ".kernelwright", "data folder: its Python environment, and where verdicts are kept")
	flag.StringVar(&o.Python, "python", os.Getenv("KERNELWRIGHT_PYTHON"), "interpreter with PyTorch; empty: the data folder's")
	flag.StringVar(&o.Device, "device", "cpu", "cpu, cuda or cuda:1")
	baselines := flag.String("baselines", "eager", "what to hold them against, with commas, eager first")
	only := flag.String("knobs", "", "these knobs alone, with commas; empty: all; none: first schedules alone")
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "schedules [flags] REFERENCE...\n")
		flag.PrintDefaults()
	}
	flag.Parse()
	o.Baselines = strings.Split(*baselines, ",")
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, o, flag.Args(), strings.FieldsFunc(*only, func(r rune) bool { return r == ',' }))
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "schedules:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o hwfeedback.Options, references, only []string) (err error) {
	if err := os.MkdirAll(o.DataDir, 0o700); err != nil {
		return err
	}
	s, err := store.Open(filepath.Join(o.DataDir, store.FileName))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	e, err := hwfeedback.Open(ctx, o, s, &hwfeedback.FileLeases{Dir: hwfeedback.LeaseFolder()})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	d := e.Device()
	fmt.Printf("%s; memory %.1f GB/s, %.0f GFLOP/s; torch %s.\n\n", d.Specs.Model, d.Ceilings.MemoryGBs, d.Ceilings.FP32GFLOPs, e.Versions()["torch"])
	fmt.Println("| task | schedule | verdict | µs | of the first's | of the roofline | against the fastest baseline |\n|---|---|---|---:|---:|---:|---|")
	for _, path := range references {
		if err := neighbours(ctx, e, path, only); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

// neighbours prints a row for the first schedule of a reference and for each
// that has one knob otherwise.
func neighbours(ctx context.Context, e *hwfeedback.Evaluator, path string, only []string) error {
	reference, err := task.Read(path)
	if err != nil {
		return err
	}
	t, err := e.Inspect(ctx, reference.Name, reference.Source)
	if err != nil {
		return err
	}
	in := kernelwright.CoderInput{Task: t, Device: e.Device()}
	first, err := coder.Builtin{}.Propose(ctx, in)
	if declined := new(kernelwright.DeclinedError); errors.As(err, &declined) {
		fmt.Printf("| %s | %v | | | | | |\n", t.Name, err)
		return nil
	}
	if err != nil {
		return err
	}
	schedule, ok := kernelwright.ParseSchedule(first.Source)
	if !ok {
		return errors.New("its first candidate states no schedule")
	}
	v, err := e.Evaluate(ctx, t, first, kernelwright.Quick)
	if err != nil {
		return err
	}
	row(t.Name, "the first", v, v.CandidateMS)
	in.Round, in.Last = 1, &kernelwright.Attempt{Candidate: first, Verdict: v}
	for _, name := range slices.Sorted(maps.Keys(schedule.Knobs)) {
		knob := schedule.Knobs[name]
		if len(only) > 0 && !slices.Contains(only, name) {
			continue
		}
		for _, choice := range knob.Choices {
			if choice == knob.Value {
				continue
			}
			in.Feedback = &kernelwright.Feedback{Kind: kernelwright.Optimisation, Knobs: map[string]int{name: choice}}
			c, err := coder.Builtin{}.Propose(ctx, in)
			if err != nil {
				return err
			}
			other, err := e.Evaluate(ctx, t, c, kernelwright.Quick)
			if err != nil {
				return err
			}
			row(t.Name, fmt.Sprintf("%s %d -> %d", name, knob.Value, choice), other, v.CandidateMS)
		}
	}
	return nil
}

func row(name, schedule string, v kernelwright.Verdict, firstMS float64) {
	if v.CandidateMS <= 0 {
		fmt.Printf("| %s | %s | %s | | | | %s |\n", name, schedule, v.Status, cmp.Or(v.Reason, "–"))
		return
	}
	of := "–"
	if firstMS > 0 {
		of = fmt.Sprintf("%.2f", v.CandidateMS/firstMS)
	}
	s := v.Speedup
	fmt.Printf("| %s | %s | %s | %.4g | %s | %.0f %% | %.2f [%.2f, %.2f] %s |\n", name, schedule, v.Status, 1000*v.CandidateMS, of, 100*v.Headroom, s.Value, s.Low, s.High, s.Against)
}
