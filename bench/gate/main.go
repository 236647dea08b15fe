// Command gate prints the error rates of a gate, from simulated nights: of its
// default counts and of others, and how far they depend on what is taken for the
// truth. It prints Markdown, as docs/gate.md has it.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/kernelwright/kernelwright/trainer/gate"
)

func main() {
	s := gate.DefaultSettings
	nights := flag.Int("nights", 10000, "nights to simulate for each figure")
	seed := flag.Uint64("seed", 1, "the same seed, the same nights")
	counts := flag.Bool("counts", false, "print other numbers of tasks and samples instead")
	flag.IntVar(&s.Tasks, "tasks", s.Tasks, "tasks of each held-out set, at most")
	flag.IntVar(&s.Samples, "samples", s.Samples, "answers of each policy to a task")
	flag.IntVar(&s.Looks, "looks", s.Looks, "how often it is decided on")
	flag.Parse()
	if err := s.Check(); err != nil || *nights < 3 || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "gate: -nights takes at least 3, there are no arguments beside flags;", err)
		os.Exit(2)
	}
	if *counts {
		others(s, *nights, *seed)
		return
	}
	required(s, *nights, *seed)
	sensitivity(s, *nights, *seed)
	fewer(s, *nights, *seed)
}

// fewer is candidates that are faster than torch.compile more often, and correct less often.
func fewer(s gate.Settings, nights int, seed uint64) {
	fmt.Println("\n| settings | the candidate's correct answers | 15 points faster: promoted | 20 points faster: promoted |")
	fmt.Println("|---|---|---:|---:|")
	for _, c := range []struct {
		name     string
		settings gate.Settings
	}{{"default", s}, {"`--small`", gate.SmallSettings}} {
		for _, loss := range []float64{0, 0.025, 0.05, 0.075, 0.1, 0.15} {
			fmt.Printf("| %s | %s |", c.name, lost(loss))
			for _, gain := range []float64{0.15, 0.2} {
				p := gate.Simulate(c.settings, gate.DefaultTruth.Better(gain).Fewer(loss), nights, seed)
				fmt.Printf(" %.2f %% (%.2f to %.2f) |", 100*p.Rate, 100*p.Low, 100*p.High)
			}
			fmt.Println()
			c.name = ""
		}
	}
}

func lost(loss float64) string {
	if loss == 0 {
		return "as many"
	}
	return fmt.Sprintf("%g points fewer", 100*loss)
}

// required is the policies that a gate has to tell apart.
func required(s gate.Settings, nights int, seed uint64) {
	fmt.Println("| settings | candidate | promoted | 95 % interval | within three nights | 95 % interval | tasks a night |")
	fmt.Println("|---|---|---:|---:|---:|---:|---:|")
	small := gate.SmallSettings
	for _, c := range []struct {
		name     string
		settings gate.Settings
	}{{"default", s}, {"`--small`", small}} {
		name := fmt.Sprintf("%s: %d tasks a set, %d answers", c.name, c.settings.Tasks, c.settings.Samples)
		for _, truth := range []named{
			{"equal", gate.DefaultTruth},
			{"15 points better", gate.DefaultTruth.Better(0.15)},
			{"5 points worse: faster than torch.compile less often", gate.DefaultTruth.Better(-0.05)},
			{"5 points worse: correct less often", gate.DefaultTruth.Fewer(0.05)},
		} {
			p := gate.Simulate(c.settings, truth.truth, nights, seed)
			fmt.Printf("| %s | %s | %.2f %% | %.2f to %.2f %% | %.1f %% | %.1f to %.1f %% | %.0f of %d |\n", name, truth.name,
				100*p.Rate, 100*p.Low, 100*p.High, 100*p.Within, 100*p.WithinLow, 100*p.WithinHigh, p.Tasks, 2*c.settings.Tasks)
			name = ""
		}
	}
	fmt.Println()
}

// sensitivity is other truths.
func sensitivity(s gate.Settings, nights int, seed uint64) {
	fmt.Println("| truth | equal: promoted | 15 points better: within three nights | 5 points worse: promoted | 5 points fewer correct: promoted |")
	fmt.Println("|---|---:|---:|---:|---:|")
	for _, t := range truths() {
		equal := gate.Simulate(s, t.truth, nights, seed)
		better := gate.Simulate(s, t.truth.Better(0.15), nights, seed)
		worse := gate.Simulate(s, t.truth.Better(-0.05), nights, seed)
		fewer := gate.Simulate(s, t.truth.Fewer(0.05), nights, seed)
		fmt.Printf("| %s | %.2f %% (%.2f to %.2f) | %.1f %% (%.1f to %.1f) | %.2f %% (%.2f to %.2f) | %.2f %% (%.2f to %.2f) |\n", t.name,
			100*equal.Rate, 100*equal.Low, 100*equal.High, 100*better.Within, 100*better.WithinLow, 100*better.WithinHigh, 100*worse.Rate, 100*worse.Low, 100*worse.High,
			100*fewer.Rate, 100*fewer.Low, 100*fewer.High)
	}
}

type named struct {
	name  string
	truth gate.Truth
}

// truths differ from the default one in one thing each.
func truths() []named {
	with := func(name string, change func(*gate.Truth)) named {
		t := gate.DefaultTruth
		change(&t)
		return named{name, t}
	}
	return []named{
		with("as above", func(*gate.Truth) {}),
		with("rate of faster-than-compile 6 %", func(t *gate.Truth) { t.Faster = 0.06 }),
		with("rate 20 %", func(t *gate.Truth) { t.Faster = 0.2 }),
		with("rate 60 %", func(t *gate.Truth) { t.Faster = 0.6 }),
		with("tasks fail nearly always or never (concentration 0.5)", func(t *gate.Truth) { t.Concentration = 0.5 }),
		with("tasks are much alike (concentration 10)", func(t *gate.Truth) { t.Concentration = 10 }),
		with("the candidate's tasks are more alike than the opponent's (2 and 10)", func(t *gate.Truth) { t.Other = 10 }),
		with("policies are good at other tasks (correlation 0)", func(t *gate.Truth) { t.Correlation = 0 }),
		with("correlation 0.4", func(t *gate.Truth) { t.Correlation = 0.4 }),
		with("correlation 0.95", func(t *gate.Truth) { t.Correlation = 0.95 }),
		with("nothing faster on kinds never trained on", func(t *gate.Truth) { t.Kinds = 0 }),
		with("both sets alike", func(t *gate.Truth) { t.Kinds = 1 }),
		with("speedups spread by 0.6 over tasks", func(t *gate.Truth) { t.TaskSpread = 0.6 }),
		with("speedups spread by 0.4 over answers", func(t *gate.Truth) { t.Spread = 0.4 }),
		with("fast answers are 1.15x", func(t *gate.Truth) { t.Speedup, t.TaskSpread = 1.15, 0.1 }),
		with("fast answers are 3x", func(t *gate.Truth) { t.Speedup = 3 }),
		with("of the others, 20 % are correct", func(t *gate.Truth) { t.Correct = 0.2 }),
		with("of the others, 95 % are correct", func(t *gate.Truth) { t.Correct = 0.95 }),
	}
}

// others is what other counts come to.
func others(s gate.Settings, nights int, seed uint64) {
	fmt.Println("| tasks a set | answers | answers a night at most, of each policy | equal: promoted | 15 points better: a night | within three nights | 5 points fewer correct: promoted | tasks a night, equal and better |")
	fmt.Println("|---:|---:|---:|---:|---:|---:|---:|---:|")
	for _, tasks := range []int{16, 20, 24, 28, 32, 36, 40} {
		for _, samples := range []int{2, 4, 8} {
			s.Tasks, s.Samples = tasks, samples
			equal := gate.Simulate(s, gate.DefaultTruth, nights, seed)
			better := gate.Simulate(s, gate.DefaultTruth.Better(0.15), nights, seed)
			worse := gate.Simulate(s, gate.DefaultTruth.Fewer(0.05), nights, seed)
			fmt.Printf("| %d | %d | %d | %.2f %% | %.1f %% | %.1f %% | %.2f %% | %.0f and %.0f |\n", tasks, samples, 2*tasks*samples,
				100*equal.Rate, 100*better.Rate, 100*better.Within, 100*worse.Rate, equal.Tasks, better.Tasks)
		}
	}
}
