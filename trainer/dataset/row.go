// Package dataset writes what runs recorded in the shape that training code and Hugging
// Face datasets use, and as KernelBench's files. What is written passes through: memory
// is that of one run and of one group of rows.
package dataset

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/trainer/episodes"
)

// Message is one turn of a talk, as chat templates take it.
type Message struct {
	Role       string     `json:"role" parquet:"role"` // system, user, assistant, tool
	Content    string     `json:"content" parquet:"content"`
	ToolCalls  []ToolCall `json:"tool_calls" parquet:"tool_calls,list"` // of an assistant
	ToolCallID *string    `json:"tool_call_id" parquet:"tool_call_id,optional"`
}

// ToolCall is a call of a tool, in OpenAI's form.
type ToolCall struct {
	ID       string   `json:"id" parquet:"id"`
	Type     string   `json:"type" parquet:"type"`
	Function Function `json:"function" parquet:"function"`
}

// Function is a tool with what it is called with: a text that may be no JSON.
type Function struct {
	Name      string `json:"name" parquet:"name"`
	Arguments string `json:"arguments" parquet:"arguments"`
}

// Row is a run or a round. What is not known is null. Figures are of the verdict that
// counts: the certificate, where there is one.
type Row struct {
	ID          string    `json:"id" parquet:"id"`                // run-7, run-7-round-2
	Run         int64     `json:"run" parquet:"run"`              // its number in the record
	Round       *int64    `json:"round" parquet:"round,optional"` // that the figures are of
	Task        string    `json:"task" parquet:"task"`            // fingerprint
	TaskName    string    `json:"task_name" parquet:"task_name"`  //
	HeldOut     bool      `json:"held_out" parquet:"held_out"`    // from training: a gate is played on it
	Reference   string    `json:"reference" parquet:"reference"`  // text
	Device      string    `json:"device" parquet:"device"`        // cpu, cuda:0
	DeviceName  *string   `json:"device_name" parquet:"device_name,optional"`
	Language    *string   `json:"language" parquet:"language,optional"`
	Strategy    string    `json:"strategy" parquet:"strategy"`
	Coder       string    `json:"coder" parquet:"coder"` // the author
	Judge       string    `json:"judge" parquet:"judge"`
	Policy      *string   `json:"policy" parquet:"policy,optional"` // of an episode, the version
	Seed        int64     `json:"seed" parquet:"seed"`
	Messages    []Message `json:"messages" parquet:"messages,list"`
	Said        bool      `json:"said" parquet:"said"` // the messages were said to a model and by it
	Candidate   *string   `json:"candidate" parquet:"candidate,optional"`
	Status      *string   `json:"status" parquet:"status,optional"` // of the verdict
	Reason      *string   `json:"reason" parquet:"reason,optional"`
	Certified   bool      `json:"certified" parquet:"certified"`
	Reward      *int64    `json:"reward" parquet:"reward,optional"` // -1, 1, 2, 3
	CandidateMS *float64  `json:"candidate_ms" parquet:"candidate_ms,optional"`
	Speedup     *float64  `json:"speedup" parquet:"speedup,optional"`
	SpeedupLow  *float64  `json:"speedup_low" parquet:"speedup_low,optional"`
	SpeedupHigh *float64  `json:"speedup_high" parquet:"speedup_high,optional"`
	Against     *string   `json:"against" parquet:"against,optional"`
	Headroom    *float64  `json:"headroom" parquet:"headroom,optional"`
	Rounds      int64     `json:"rounds" parquet:"rounds"` // of the run
	RunStatus   string    `json:"run_status" parquet:"run_status"`
	Stop        *string   `json:"stop" parquet:"stop,optional"`
	Created     string    `json:"created" parquet:"created"` // ISO 8601, UTC
}

// Rows says what a row is of.
type Rows string

// The kinds of rows.
const (
	Runs   Rows = "runs"
	Rounds Rows = "rounds"
)

// reader makes rows of runs.
type reader struct {
	store *store.Store
	rows  Rows
	held  map[string]bool // fingerprints
}

// rowsOf returns the rows of a run; none of one without rounds.
func (r *reader) rowsOf(ctx context.Context, run kernelwright.Run) ([]Row, error) {
	rounds, err := r.store.Rounds(ctx, run.ID)
	if err != nil || len(rounds) == 0 {
		return nil, err
	}
	task, err := r.store.RunTask(ctx, run.ID)
	if err != nil {
		return nil, ignoreNotFound(err)
	}
	device, err := r.store.RunDevice(ctx, run.ID)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return nil, err
	}
	base := Row{
		Run: run.ID, Task: run.Task, TaskName: run.TaskName, HeldOut: r.held[run.Task], Reference: task.Source, Device: run.Device, DeviceName: optional(device.Name),
		Strategy: run.Strategy, Coder: run.Coder, Judge: run.Judge, Seed: run.Seed, Rounds: int64(len(rounds)), RunStatus: string(run.Status),
		Stop: optional(string(run.Stop)), Created: time.UnixMilli(run.CreatedMS).UTC().Format("2006-01-02T15:04:05.000Z"),
	}
	episode, err := r.store.Episode(ctx, run.ID)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return nil, err
	}
	base.Policy = optional(episode.Policy)
	said, err := r.calls(ctx, run)
	if err != nil {
		return nil, err
	}
	if r.rows == Rounds {
		all := make([]Row, 0, len(rounds))
		for _, round := range rounds {
			all = append(all, roundRow(base, task.Source, rounds, round, said[round.Index]))
		}
		return all, nil
	}
	return []Row{runRow(base, task.Source, rounds, said, episode)}, nil
}

func ignoreNotFound(err error) error {
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}

// calls returns the last answer of the Coder for each round, where a model was asked.
func (r *reader) calls(ctx context.Context, run kernelwright.Run) (map[int]llm.Record, error) {
	all, err := r.store.Calls(ctx, run.ID)
	last := map[int]llm.Record{}
	for _, c := range all {
		if c.Key.Agent == "coder" {
			last[c.Key.Round] = c
		}
	}
	return last, err
}

// roundRow is what the Coder was asked for a round and what it answered.
func roundRow(row Row, reference string, rounds []kernelwright.Round, round kernelwright.Round, call llm.Record) Row {
	row.ID = fmt.Sprintf("run-%d-round-%d", row.Run, round.Index)
	if len(call.Request.Messages) > 0 {
		row.Messages, row.Said = talk(call), true
	} else {
		row.Messages = []Message{question(reference, parentOf(rounds, round)), answer(round)}
	}
	figures(&row, round)
	if v := counts(round); v != nil {
		row.Reward = reward(v)
	}
	return row
}

// runRow is the way to the best round, else to the last one.
func runRow(row Row, reference string, rounds []kernelwright.Round, said map[int]llm.Record, episode store.Episode) Row {
	row.ID = fmt.Sprintf("run-%d", row.Run)
	end := best(rounds)
	if call, ok := said[end.Index]; ok && row.Strategy == "react" { // one talk, from its beginning
		row.Messages, row.Said = talk(call), true
	} else {
		row.Messages = []Message{question(reference, nil)}
		for i, round := range way(rounds, end) {
			if i > 0 {
				row.Messages = append(row.Messages, Message{Role: "user", Content: verdictText(*parentOf(rounds, round))})
			}
			row.Messages = append(row.Messages, answer(round))
		}
	}
	figures(&row, end)
	switch {
	case episode.Reward != nil:
		given := int64(*episode.Reward)
		row.Reward = &given
	case episode.Run == 0:
		row.Reward = reward(counts(end))
	}
	return row
}

// reward is the milestone of a verdict, nil where its timing does not tell.
func reward(v *kernelwright.Verdict) *int64 {
	given, told := episodes.Told(v)
	if !told {
		return nil
	}
	n := int64(given)
	return &n
}

// counts is the verdict whose figures count.
func counts(r kernelwright.Round) *kernelwright.Verdict {
	if r.Certificate != nil {
		return r.Certificate
	}
	return &r.Verdict
}

func certified(r kernelwright.Round) bool {
	return r.Certificate != nil && r.Certificate.Status == kernelwright.Certified
}

// best is the fastest certified round, else the fastest correct one, else the last.
func best(rounds []kernelwright.Round) kernelwright.Round {
	found := rounds[len(rounds)-1]
	rank := func(r kernelwright.Round) int {
		switch v := counts(r); {
		case certified(r):
			return 2
		case v.Status == kernelwright.Correct && v.CandidateMS > 0:
			return 1
		}
		return 0
	}
	for _, r := range rounds {
		if rank(r) > rank(found) || rank(r) == rank(found) && rank(r) > 0 && counts(r).CandidateMS < counts(found).CandidateMS {
			found = r
		}
	}
	return found
}

// way is the rounds from the first one that led to a round.
func way(rounds []kernelwright.Round, end kernelwright.Round) []kernelwright.Round {
	path := []kernelwright.Round{end}
	for at := parentOf(rounds, end); at != nil; at = parentOf(rounds, *at) {
		path = append(path, *at)
	}
	slices.Reverse(path)
	return path
}

// parentOf is the round that one goes on from: an earlier one, or nil.
func parentOf(rounds []kernelwright.Round, r kernelwright.Round) *kernelwright.Round {
	after := r.After()
	if after >= r.Index {
		return nil
	}
	for i := range rounds {
		if rounds[i].Index == after {
			return &rounds[i]
		}
	}
	return nil
}

func figures(row *Row, r kernelwright.Round) {
	v, index := counts(r), int64(r.Index)
	row.Round, row.Language, row.Candidate = &index, optional(string(r.Candidate.Language)), optional(r.Candidate.Source)
	row.Status, row.Reason, row.Certified = optional(string(v.Status)), optional(v.Reason), certified(r)
	row.CandidateMS, row.Headroom = positive(v.CandidateMS), positive(v.Headroom)
	if s := v.Speedup; s != nil {
		row.Speedup, row.SpeedupLow, row.SpeedupHigh, row.Against = positive(s.Value), positive(s.Low), positive(s.High), optional(s.Against)
	}
}

func optional(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

func positive(x float64) *float64 {
	if !(x > 0) {
		return nil
	}
	return &x
}

// question is what a Coder is asked, for rounds in which no model was.
func question(reference string, before *kernelwright.Round) Message {
	text := "Write a faster ModelNew for this reference.\n\n" + fenced("python", reference)
	if before != nil {
		text += "\nThe last candidate:\n\n" + fenced("python", before.Candidate.Source) + "\n" + verdictText(*before)
	}
	return Message{Role: "user", Content: text}
}

func answer(r kernelwright.Round) Message {
	text := fenced("python", r.Candidate.Source)
	if r.Candidate.Note != "" {
		text = r.Candidate.Note + "\n\n" + text
	}
	return Message{Role: "assistant", Content: text}
}

// fenced is a text as code, in a fence that it does not hold.
func fenced(language, text string) string {
	fence := "```"
	for strings.Contains(text, fence) {
		fence += "`"
	}
	return fence + language + "\n" + strings.TrimSuffix(text, "\n") + "\n" + fence + "\n"
}

// verdictText is what was measured of a round, and what the Judge said of it.
func verdictText(r kernelwright.Round) string {
	v := r.Verdict
	lines := []string{"Verdict: " + strings.ReplaceAll(string(v.Status), "_", " ")}
	if v.Reason != "" {
		lines[0] += ": " + v.Reason
	}
	if v.CandidateMS > 0 {
		lines = append(lines, fmt.Sprintf("Time: %.4g ms", v.CandidateMS))
	}
	if s := v.Speedup; s != nil {
		lines = append(lines, fmt.Sprintf("Speedup: %.3g, interval %.3g to %.3g, against %s", s.Value, s.Low, s.High, s.Against))
	}
	if f := r.Feedback; f != nil {
		for _, part := range []struct{ name, text string }{
			{"Issue", f.Issue}, {"Why", f.Why}, {"Fix", f.Fix}, {"Bottleneck", f.Bottleneck}, {"Method", f.Method}, {"Plan", f.Plan},
		} {
			if part.text != "" {
				lines = append(lines, part.name+": "+part.text)
			}
		}
	}
	return strings.Join(lines, "\n")
}

// talk is a call with what it answered.
func talk(c llm.Record) []Message {
	all := make([]Message, 0, len(c.Request.Messages)+1)
	for _, m := range c.Request.Messages {
		all = append(all, Message{Role: string(m.Role), Content: m.Text, ToolCalls: toolCalls(m.ToolCalls), ToolCallID: optional(m.Call)})
	}
	return append(all, Message{Role: string(llm.Assistant), Content: c.Reply.Text, ToolCalls: toolCalls(c.Reply.ToolCalls)})
}

func toolCalls(calls []llm.ToolCall) []ToolCall {
	all := make([]ToolCall, len(calls))
	for i, c := range calls {
		all[i] = ToolCall{ID: c.ID, Type: "function", Function: Function{c.Name, c.Arguments}}
	}
	return all
}
