// Package metrics is the table of the numbers that verdicts and profiles hold: name, unit
// and meaning. The Judge, prompts, reports and docs/metrics.md read it; nothing else says
// what a metric means. It imports nothing of ours.
package metrics

import "fmt"

// Metric is one number, as it stands under its name in a verdict or a profile.
type Metric struct {
	Name string
	// Unit is Count or Ratio where there is none. A share runs from 0 to 1.
	Unit string
	// Brief is the meaning in the few words that a language model is told; empty where
	// name and unit say enough.
	Brief string
	// Meaning is the meaning as docs/metrics.md has it, in Markdown.
	Meaning string
}

// Units of numbers that have none.
const (
	Count = "count"
	Ratio = "ratio"
)

// Of returns a metric by its name, and false for a name that stands in no table.
func Of(name string) (Metric, bool) {
	m, ok := byName[name]
	return m, ok
}

var byName = func() map[string]Metric {
	all := map[string]Metric{}
	for _, table := range [][]Metric{Verdict, Counters} {
		for _, m := range table {
			all[m.Name] = m
		}
	}
	return all
}()

// Stall is a reason for which warps wait.
type Stall struct {
	Name string // in Nsight Compute's names of counters
	Said string // for people
}

// Stalls are the reasons that are counted as warps for each instruction issued.
var Stalls = []Stall{
	{"long_scoreboard", "global memory"},
	{"short_scoreboard", "shared memory"},
	{"barrier", "a barrier"},
	{"lg_throttle", "the queue of global memory"},
	{"mio_throttle", "the queue of shared memory"},
	{"math_pipe_throttle", "a busy pipe"},
	{"wait", "the last instruction"},
}

// StallRatio returns the counter of the warps that wait for a reason while one
// instruction is issued.
func StallRatio(reason string) string {
	return fmt.Sprintf("smsp__average_warps_issue_stalled_%s_per_issue_active.ratio", reason)
}

// StallShare returns the counter of the share of warps' time, in per cent, that they wait
// for a reason.
func StallShare(reason string) string {
	return fmt.Sprintf("smsp__warp_issue_stalled_%s_per_warp_active.pct", reason)
}
